"""Convolution drivers: tiling, borders and addresses around the GEMM and depthwise micro-kernels.

All of them write channels-last images and build no im2col matrix.

``ConvStep``
    Implicit GEMM.  A tile is up to mr output pixels by one panel of nr output channels; the
    micro-kernel gets one pointer per pixel and tap.  A transposed convolution runs once for each
    phase of its stride: all output pixels of a phase have the same taps.
``FewInputsConvStep``
    For few input channels, such as the three of a photo.  The channels of one tap are too short an
    inner loop, so the loop runs along a row of the filter, directly on the caller's NCHW array.
``DepthwiseStep``
    One filter per channel.
``NarrowDepthwiseStep``
    The same from images in bfloat16.
"""

import numpy as np

from libc.string cimport memcpy, memset

from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.simd.bfloat16 cimport bfloat16_t
from kuiper._kernels.conv.epilogue cimport (
    epilogue_t, finish_tile, make_epilogue, make_sums_end, residual_at, residual_bytes_at,
)
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start
from kuiper._kernels.micro.table cimport (
    DW_ROW, FEW_OUTPUTS, bf16_dwconv_fn, dwrow_fn, kernels_t, narrow_row_kernel, prefetch_distance,
    row_kernel, sums_end_t,
)
from kuiper._kernels.conv.tiles cimport (
    PANEL_BYTES, first_pixel, item_of, item_t, pixel_blocks, share_of, share_t, tiling_t,
)
from kuiper._kernels.conv.window cimport (
    Window, inner_columns, is_inside, output_pixel, phase_t, point_inside, point_lines, point_rows,
    window_t,
)

from kuiper._kernels.micro.packing import pack_panels
from kuiper._runtime.step import run_step
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import Buffer, TensorView, channels_last_strides
from kuiper.errors import InputError


cdef extern from *:
    """
    /* Prefetch a cache line for writing. */
    #if defined(__GNUC__)
    #define KP_FETCH(p) __builtin_prefetch(p, 1, 3)
    #else
    #define KP_FETCH(p) (void)(p)
    #endif
    """
    void fetch "KP_FETCH"(const float*) noexcept nogil


# -- implicit GEMM -----------------------------------------------------------------------------

cdef enum:
    EPILOGUE_COLUMNS = 256       # columns per call of a post-op, if a tile has several panels
    # Outputs above these sizes are prefetched for writing; measured for each driver.
    FETCHED_BYTES = 1 << 23
    FETCHED_ROW_BYTES = 1 << 22


# Output channels of a few-output-channel convolution, at most.
MAX_FEW_COLUMNS = FEW_OUTPUTS


cdef struct conv_t:
    const kernels_t* kernels
    const window_t* window
    ref_t x                      # (n, in_h, in_w, groups * in_channels)
    ref_t weight                 # (phases, groups, panels, 1 + taps * in_channels, nr)
    ref_t y                      # (n, out_h, out_w, groups * out_channels)
    ref_t scratch                # (taps, mr) pointers
    const float* zeros           # (in_channels,)
    tiling_t tiling
    Py_ssize_t in_channels       # of one group
    Py_ssize_t out_channels      # of one group
    bint few_outputs             # use the tile for few output channels
    bint fetches                 # prefetch the output lines of a tile before computing it
    epilogue_t epilogue


cdef class ConvStep(Step):
    """Convolution, grouped or not, forward or transposed, as implicit GEMM.

    Parameters
    ----------
    x, y : TensorView
        Channels-last.
    weight : TensorView
        Panels of :func:`.packing.pack_panels`; for each phase, for each group.
    window : Window
    groups, in_channels, out_channels : int
        Channels of one group.
    scratch : TensorView
        :func:`conv_scratch_bytes` of the window's `max_taps` for each thread.
    epilogue : Epilogue or None
    few_outputs : bool
        Whether the weight is a :class:`~kuiper._kernels.micro.packed.FewColumns`: one group of a
        few output channels.
    """

    cdef conv_t p
    cdef Window window

    def __init__(self, x, weight, y, Window window, groups, in_channels, out_channels, scratch,
                 epilogue=None, few_outputs=False):
        zeros = np.zeros(max(in_channels, 1), np.float32)
        cdef float[::1] zero_view = zeros
        self.window = window
        self.keep = zeros
        self.p.kernels = active()
        self.p.window = &window.w
        self.p.x, self.p.weight, self.p.y = self.ref(x), self.ref(weight), self.ref(y)
        self.p.scratch = self.ref(scratch)
        self.p.zeros = &zero_view[0]
        self.p.in_channels, self.p.out_channels = in_channels, out_channels
        self.p.tiling = tiling_t(
            &window.w, active().mr, groups, ceil_div(out_channels, active().nr),
            weight.n_bytes > PANEL_BYTES, x.n_bytes,
            4 * active().nr * in_channels * window.max_taps,
        )
        self.p.few_outputs = few_outputs
        self.p.fetches = 4 * y.size > FETCHED_BYTES
        self.p.epilogue = make_epilogue(self, epilogue)
        self.run = conv_run
        self.params = &self.p
        self.kind = "conv_few_outputs" if few_outputs else "conv"
        tiles = ceil_div(window.max_pixels, active().mr)
        self.max_shards = max(tiles * groups * ceil_div(out_channels, active().nr), 1)


def conv_scratch_bytes(Py_ssize_t taps):
    """Return the bytes of scratch per thread: one pointer per row of a tile and tap."""
    return sizeof(float*) * active().mr * taps


cdef void conv_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Cross-correlate images with packed filters and apply the epilogue.

    Layout : x (n, h, w, groups * ic) -> y (n, oh, ow, groups * oc), any row strides
    Needs  : packed weights for the table's tile; positive strides
    Threads: over tiles of pixels x panels of channels; the sum over taps is never split
    Source : torch.nn.Conv2d, torch.nn.ConvTranspose2d
    """
    cdef const conv_t* p = <const conv_t*> params
    cdef const phase_t* phase
    cdef share_t share
    cdef Py_ssize_t blocks = pixel_blocks(&p.tiling, n_shards), block, f
    for block in range(blocks):
        for f in range(p.window.n_phases):
            phase = &p.window.phases[f]
            share = share_of(&p.tiling, phase, block, blocks, shard, n_shards)
            conv_tiles(p, slots, phase, &share)


cdef void conv_tiles(
    const conv_t* p, char* const* slots, const phase_t* phase, share_t* share
) noexcept nogil:
    """Compute the items of a share."""
    cdef const window_t* w = p.window
    cdef const kernels_t* kernels = p.kernels
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* weight = <const float*> at(slots, p.weight)
    cdef const float* residual
    cdef float* y = <float*> at(slots, p.y)
    cdef const float** rows = <const float**> at(slots, p.scratch)
    cdef bint panel_major = p.tiling.panel_major
    cdef item_t item
    cdef Py_ssize_t nr = kernels.nr, panels = p.tiling.panels, panel, group, n, i
    cdef Py_ssize_t depth = (phase.n_taps * p.in_channels + 1) * nr
    cdef Py_ssize_t at_tile = -1, at_group = -1, pixel = 0, m = 0, pending = 0
    cdef Py_ssize_t ldy = w.out_step_w * w.ldy, ldr = w.out_step_w * p.epilogue.ldr
    cdef float* y_tile
    while share.q < share.stop:
        item = item_of(&p.tiling, share)
        panel, group = item.panel, item.group
        if item.tile != at_tile or group != at_group:
            at_tile, at_group = item.tile, group
            pixel = first_pixel(share, item.tile, &m)
            point_rows(w, phase, x + group * p.in_channels, p.zeros, pixel, m, rows)
            pixel = output_pixel(w, phase, pixel)
        n = min(nr, p.out_channels - panel * nr)
        y_tile = y + pixel * w.ldy + group * p.out_channels + panel * nr
        residual = residual_at(
            &p.epilogue, slots, pixel * p.epilogue.ldr + group * p.out_channels + panel * nr
        )
        if p.fetches:
            # Prefetch the output lines for writing; the tile hides the latency.
            for i in range(m):
                fetch(y_tile + i * ldy)
                fetch(y_tile + i * ldy + n - 1)
        if p.few_outputs:
            kernels.f32_few_outputs(
                m, phase.n_taps, p.in_channels, <const float* const*> rows, weight + phase.weight,
                y_tile, ldy, n,
                residual if p.epilogue.residual_in_tile else NULL, ldr,
                p.epilogue.lo, p.epilogue.hi,
            )
        else:
            kernels.f32_gemm[m](
                phase.n_taps, p.in_channels, <const float* const*> rows,
                weight + phase.weight + (group * panels + panel) * depth,
                prefetch_distance(item.tile, depth, nr) if panel_major else 0,
                y_tile, ldy, n,
                residual if p.epilogue.residual_in_tile else NULL, ldr,
                p.epilogue.lo, p.epilogue.hi,
            )
        share.q += 1
        # Run the post-ops on several panels at once: longer rows, still in the cache.
        pending += n
        if (
            panel_major or share.q == share.stop or panel + 1 == panels
            or pending >= EPILOGUE_COLUMNS
        ):
            n -= pending
            if residual != NULL:
                residual += n
            finish_tile(&p.epilogue, m, pending, y_tile + n, ldy, residual, ldr)
            pending = 0


include "few_inputs.pxi"
include "depthwise.pxi"


# -- without a plan ----------------------------------------------------------------------------

def conv2d(const float[:, :, :, ::1] x, const float[:, :, :, ::1] weight, bias=None, *,
           stride=(1, 1), padding=(0, 0), dilation=(1, 1), int groups=1, int n_threads=1):
    """Convolve channels-last images without graph or plan, for learning, tests and measurements.

    Parameters
    ----------
    x : array, shape (n, height, width, in_channels), float32
    weight : array, shape (out_channels, in_channels / groups, kernel_h, kernel_w), float32
        PyTorch's order.
    bias : array, shape (out_channels,), float32, optional
    stride, padding, dilation : (int, int)
    groups : int
    n_threads : int

    Returns
    -------
    numpy.ndarray, shape (n, out_height, out_width, out_channels), float32

    Raises
    ------
    InputError
        If extents do not fit each other.
    """
    cdef Py_ssize_t out_channels = weight.shape[0], in_channels = weight.shape[1]
    cdef Py_ssize_t kernel_h = weight.shape[2], kernel_w = weight.shape[3]
    cdef Py_ssize_t n = x.shape[0], height = x.shape[1], width = x.shape[2]
    if groups < 1 or x.shape[3] != in_channels * groups or out_channels % groups:
        raise InputError(
            f"x has {x.shape[3]} channels and weight shape {np.shape(weight)}, which do not "
            f"fit {groups} groups"
        )
    if min(*stride, *dilation) < 1 or min(padding) < 0 or n_threads < 1 or kernel_h * kernel_w == 0:
        raise InputError("stride, dilation, kernel and n_threads must be >= 1, padding >= 0")
    if bias is not None and np.shape(bias) != (out_channels,):
        raise InputError(f"bias has shape {np.shape(bias)}, expected ({out_channels},)")
    out_h = (height + 2 * padding[0] - dilation[0] * (kernel_h - 1) - 1) // stride[0] + 1
    out_w = (width + 2 * padding[1] - dilation[1] * (kernel_w - 1) - 1) // stride[1] + 1
    if out_h < 1 or out_w < 1 or n < 1:
        raise InputError(f"the output would have shape {(n, out_h, out_w, out_channels)}")
    by_tap = np.asarray(weight).reshape(out_channels, in_channels, -1).transpose(0, 2, 1)
    size = out_channels // groups
    packed = np.concatenate([
        pack_panels(
            by_tap[g * size:(g + 1) * size], None if bias is None else bias[g * size:(g + 1) * size]
        ).ravel()
        for g in range(groups)
    ])
    y = np.empty((n, out_h, out_w, out_channels), np.float32)
    taps = [
        (u * dilation[0] - padding[0], v * dilation[1] - padding[1])
        for u in range(kernel_h) for v in range(kernel_w)
    ]
    scratch_bytes = conv_scratch_bytes(len(taps))
    shapes = ((n, x.shape[3], height, width), (n, out_channels, out_h, out_w))
    images = [
        TensorView(Buffer(slot, 0, "input"), shape, channels_last_strides(shape))
        for slot, shape in enumerate(shapes)
    ]
    panels = TensorView(Buffer(2, 0, "input"), packed.shape, (1,))
    scratch = TensorView(Buffer(3, 0, "scratch"), (scratch_bytes,), (1,), dtype=np.uint8)
    window = Window(images[0], images[1], stride, (1, 1), [((0, 0), (out_h, out_w), taps, 0)])
    step = ConvStep(images[0], panels, images[1], window, groups, in_channels, size, scratch)
    scratches = np.empty((n_threads, scratch_bytes), np.uint8)
    run_step(step, [np.asarray(x), y, packed, (scratches,)], n_threads)
    return y
