"""Convolutions with few channels per group, such as ResNeXt's; see micro/grouped.pxi."""

import numpy as np

from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.conv.epilogue cimport epilogue_t, finish_tile, make_epilogue, residual_at
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start
from kuiper._kernels.micro.table cimport GROUPED_PIXELS, kernels_t
from kuiper._kernels.conv.window cimport Window, phase_t, point_rows, window_t


def is_grouped(Py_ssize_t terms, Py_ssize_t per_group):
    """Tell whether the active variant computes groups of these sizes faster than a GEMM.

    A vector must hold whole groups, and at least two of them.
    """
    cdef const kernels_t* kernels = active()
    return (
        kernels.f32_grouped != NULL and terms <= per_group and 2 * per_group <= kernels.lanes
        and kernels.lanes % per_group == 0
    )


def input_lanes(Py_ssize_t terms, Py_ssize_t per_group):
    """Return the lane of term j of output o among the inputs of a vector of outputs.

    Returns
    -------
    numpy.ndarray, shape (terms, lanes), int32
        Indexed by j, o.
    """
    first = np.arange(active().lanes) // per_group * terms
    return (first + np.arange(terms)[:, np.newaxis]).astype(np.int32)


def grouped_scratch_bytes(Py_ssize_t n_taps):
    """Return the bytes of scratch per thread: one pointer per pixel of a tile and tap."""
    return 8 * GROUPED_PIXELS * n_taps


cdef struct grouped_t:
    const kernels_t* kernels
    const window_t* window
    ref_t x                      # (n, in_h, in_w, groups * terms)
    ref_t weight                 # (ceil(channels / lanes), 1 + taps * terms, lanes)
    ref_t y                      # (n, out_h, out_w, channels)
    ref_t scratch                # (taps, GROUPED_PIXELS) pointers
    const float* zeros           # (groups * terms,)
    const float* input_lanes     # (terms, lanes), bits of int32; see grouped_fn
    Py_ssize_t terms             # inputs of a group
    Py_ssize_t per_group         # outputs of a group
    Py_ssize_t channels          # outputs, groups * per_group
    epilogue_t epilogue


cdef class GroupedStep(Step):
    """Convolution of groups that :func:`is_grouped` allows.

    Parameters
    ----------
    x, y : TensorView
        Channels-last.
    weight : TensorView
        Memory of a :class:`~kuiper._kernels.micro.packed.GroupedBlocks`.
    window : Window
        Of one phase.
    groups : int
    scratch : TensorView
        :func:`grouped_scratch_bytes` for each thread.
    epilogue : Epilogue or None
    """

    cdef grouped_t p
    cdef Window window

    def __init__(self, x, weight, y, Window window, groups, scratch, epilogue=None):
        cdef float[::1] zeros = np.zeros(x.shape[1], np.float32)
        self.p.kernels = active()
        self.p.channels = y.shape[1]
        self.p.terms, self.p.per_group = x.shape[1] // groups, y.shape[1] // groups
        lanes = input_lanes(self.p.terms, self.p.per_group).view(np.float32)
        cdef float[:, ::1] lane_view = lanes
        self.window = window
        self.keep = (np.asarray(zeros), lanes)
        self.p.window = &window.w
        self.p.x, self.p.weight, self.p.y = self.ref(x), self.ref(weight), self.ref(y)
        self.p.scratch = self.ref(scratch)
        self.p.zeros, self.p.input_lanes = &zeros[0], &lane_view[0, 0]
        self.p.epilogue = make_epilogue(self, epilogue)
        self.run = grouped_run
        self.params = &self.p
        self.kind = "conv_grouped"
        self.max_shards = max(ceil_div(window.max_pixels, GROUPED_PIXELS), 1)


cdef void point_to_all(const float** rows, Py_ssize_t taps, Py_ssize_t count) noexcept nogil:
    """Extend rows of `count` pixels in front to GROUPED_PIXELS, by copies of the first pixel."""
    cdef Py_ssize_t t = taps, i, missing = GROUPED_PIXELS - count
    while missing > 0 and t > 0:
        t -= 1
        i = GROUPED_PIXELS
        while i > 0:
            i -= 1
            rows[t * GROUPED_PIXELS + i] = rows[t * count + max(i - missing, 0)]


cdef void grouped_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Cross-correlate in groups and apply the epilogue.

    Layout : x (n, h, w, groups * terms) -> y (n, oh, ow, groups * per_group), any row strides
    Needs  : packed weights for the table's lanes
    Threads: over tiles of pixels; the sum over taps is never split
    Source : torch.nn.Conv2d
    """
    cdef const grouped_t* p = <const grouped_t*> params
    cdef const window_t* w = p.window
    cdef const phase_t* phase = &w.phases[0]
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* weight = <const float*> at(slots, p.weight)
    cdef const float* residual
    cdef const float* added
    cdef const float** rows = <const float**> at(slots, p.scratch)
    cdef float* y
    cdef Py_ssize_t pixels = w.n * w.out_h * w.out_w
    cdef Py_ssize_t pixel = shard_start(pixels, shard, n_shards)
    cdef Py_ssize_t last = shard_start(pixels, shard + 1, n_shards), count, missing
    cdef Py_ssize_t ldr = p.epilogue.ldr
    while pixel < last:
        count = min(<Py_ssize_t> GROUPED_PIXELS, last - pixel)
        missing = GROUPED_PIXELS - count
        point_rows(w, phase, x, p.zeros, pixel, count, rows)
        point_to_all(rows, phase.n_taps, count)
        y = <float*> at(slots, p.y) + pixel * w.ldy
        residual = residual_at(&p.epilogue, slots, pixel * ldr)
        added = residual if p.epilogue.residual_in_tile else NULL
        # The pixels before the first one are computed but not stored.
        p.kernels.f32_grouped(
            phase.n_taps, p.terms, p.per_group, p.channels, <const float* const*> rows,
            p.input_lanes, weight, missing, y - missing * w.ldy, w.ldy,
            added - missing * ldr if added != NULL else NULL, ldr, p.epilogue.lo, p.epilogue.hi,
        )
        finish_tile(&p.epilogue, count, p.channels, y, w.ldy, residual, ldr)
        pixel += count
