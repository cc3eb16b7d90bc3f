"""Implicit GEMM over images of narrow elements: of bytes, whose sums are exact, or of bfloat16."""

import numpy as np

from libc.stdint cimport uint8_t
from libc.string cimport memcpy, memset

from kuiper._kernels.conv.epilogue cimport (
    epilogue_t, make_epilogue, make_sums_end, residual_bytes_at,
)
from kuiper._kernels.conv.tiles cimport (
    PANEL_BYTES, first_pixel, item_of, item_t, pixel_blocks, share_of, share_t, tiling_t,
)
from kuiper._kernels.conv.window cimport Window, output_pixel, phase_t, point_rows, window_t
from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.micro.table cimport byte_prefetch_distance, kernels_t, sums_end_t
from kuiper._kernels.simd.bfloat16 cimport bfloat16_t
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start

from kuiper.ir.dtypes import BFLOAT16

include "pad_image.pxi"


cdef struct narrow_conv_t:
    const kernels_t* kernels
    const window_t* window
    ref_t x                      # (n, in_h, in_w, groups * in_channels)
    ref_t weight                 # panels for each phase, for each group
    ref_t y                      # (n, out_h, out_w, groups * out_channels)
    ref_t scratch                # (taps, mr) pointers
    const char* zeros            # what a pixel outside the image holds
    tiling_t tiling
    bint is_bytes                # else bfloat16
    Py_ssize_t terms             # of one tap: quads of bytes, or channels
    Py_ssize_t head_bytes        # of a panel, before its terms
    Py_ssize_t tap_bytes         # of a panel's terms of one tap
    Py_ssize_t weight_bytes      # of an element of the weight
    Py_ssize_t in_channels       # of one group
    Py_ssize_t out_channels      # of one group
    Py_ssize_t x_bytes           # of an element
    Py_ssize_t y_bytes
    float input_scale            # of bytes
    epilogue_t epilogue
    sums_end_t end


cdef class NarrowConvStep(Step):
    """Convolution, grouped or not, forward or transposed, as implicit GEMM.

    A matrix product is the convolution of an image (1, k, 1, rows) with filters of one tap.

    Parameters
    ----------
    x : TensorView, uint8 or bfloat16
        Channels-last.  Up to 3 bytes after a pixel of bytes are read, and multiplied by 0.
    weight : TensorView
        Memory of a :class:`~kuiper._kernels.micro.packed.QuantizedPanels`, or for bfloat16 of a
        :class:`~kuiper._kernels.micro.packed.PairPanels`, for each phase.  The channels of each tap
        are padded to a multiple of 4 or of 2.
    y : TensorView
        Channels-last.  Of bytes: uint8 if the epilogue has an output in bytes, else float32.  Of
        bfloat16: bfloat16 or float32.
    window : Window
    groups, in_channels, out_channels : int
        Channels of one group.
    scratch : TensorView
        :func:`narrow_conv_scratch_bytes` of the window's `max_taps` for each thread.
    depth : int
        Number of terms of a sum, for the profile.
    epilogue : Epilogue or None
        A residual of a product of bfloat16 is bfloat16 or float32.
    input_scale : float
        Of bytes.
    input_zero : int
        The byte of a pixel outside the image.
    """

    cdef narrow_conv_t p
    cdef Window window

    def __init__(self, x, weight, y, Window window, groups, in_channels, out_channels, scratch,
                 depth, epilogue=None, input_scale=1.0, input_zero=0):
        cdef const kernels_t* kernels = active()
        cdef Py_ssize_t rows, units
        self.p.is_bytes = x.dtype == np.uint8
        self.p.kernels, self.p.window, self.window = kernels, &window.w, window
        if self.p.is_bytes:
            rows, units, self.p.head_bytes = kernels.dot_mr, ceil_div(in_channels, 4), 12
        else:
            rows, units, self.p.head_bytes = kernels.pair_mr, ceil_div(in_channels, 2), 4
        zeros = np.full(4 * max(units, 1), input_zero, np.uint8)
        cdef uint8_t[::1] zero_view = zeros
        self.keep = zeros
        self.p.zeros = <const char*> &zero_view[0]
        self.p.x, self.p.weight, self.p.y = self.ref(x), self.ref(weight), self.ref(y)
        self.p.scratch = self.ref(scratch)
        self.p.terms = units if self.p.is_bytes else in_channels
        self.p.head_bytes *= kernels.nr
        self.p.tap_bytes = 4 * kernels.nr * units
        self.p.weight_bytes = weight.dtype.itemsize
        panels = ceil_div(out_channels, kernels.nr)
        self.p.tiling = tiling_t(
            &window.w, rows, groups, panels, weight.n_bytes > PANEL_BYTES, x.n_bytes,
            self.p.head_bytes + window.max_taps * self.p.tap_bytes,
        )
        self.p.in_channels, self.p.out_channels = in_channels, out_channels
        self.p.x_bytes, self.p.y_bytes = x.dtype.itemsize, y.dtype.itemsize
        self.p.input_scale = input_scale
        self.p.epilogue = make_epilogue(self, epilogue)
        self.p.end = make_sums_end(&self.p.epilogue, epilogue, y.dtype == BFLOAT16)
        self.run = narrow_conv_run
        self.params = &self.p
        self.kind = "quantized_conv" if self.p.is_bytes else "conv_bfloat16"
        self.flops = 2.0 * y.size * depth
        self.bytes = x.n_bytes + weight.n_bytes + y.n_bytes
        self.max_shards = max(ceil_div(window.max_pixels, rows) * groups * panels, 1)


def narrow_conv_scratch_bytes(Py_ssize_t taps):
    """Return the bytes of scratch per thread: one pointer per row of a tile and tap."""
    return sizeof(char*) * max(active().dot_mr, active().pair_mr) * taps


cdef void narrow_conv_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Cross-correlate images with packed filters and apply the epilogue.

    Layout : x (n, h, w, groups * ic) -> y (n, oh, ow, groups * oc), any row strides
    Needs  : packed weights for the table's tile; positive strides
    Threads: over tiles of pixels x panels of channels; the sum over taps is never split
    Source : torch.nn.Conv2d, torch.nn.Linear, and those of torch.ao.nn.quantized
    """
    cdef const narrow_conv_t* p = <const narrow_conv_t*> params
    cdef const phase_t* phase
    cdef share_t share
    cdef Py_ssize_t blocks = pixel_blocks(&p.tiling, n_shards), block, f
    for block in range(blocks):
        for f in range(p.window.n_phases):
            phase = &p.window.phases[f]
            share = share_of(&p.tiling, phase, block, blocks, shard, n_shards)
            narrow_conv_tiles(p, slots, phase, &share)


cdef inline void point_to(
    const narrow_conv_t* p, const phase_t* phase, const char* x, Py_ssize_t pixel, Py_ssize_t m,
    void* rows,
) noexcept nogil:
    """Fill (taps, m) pointers to pixels."""
    if p.is_bytes:
        point_rows(
            p.window, phase, <const uint8_t*> x, <const uint8_t*> p.zeros, pixel, m,
            <const uint8_t**> rows,
        )
    else:
        point_rows(
            p.window, phase, <const bfloat16_t*> x, <const bfloat16_t*> p.zeros, pixel, m,
            <const bfloat16_t**> rows,
        )


cdef void narrow_conv_tiles(
    const narrow_conv_t* p, char* const* slots, const phase_t* phase, share_t* share
) noexcept nogil:
    """Compute the items of a share."""
    cdef const window_t* w = p.window
    cdef const kernels_t* kernels = p.kernels
    cdef const char* x = at(slots, p.x)
    cdef void* rows = at(slots, p.scratch)
    cdef Py_ssize_t nr = kernels.nr, panels = p.tiling.panels, column, n, distance
    cdef Py_ssize_t depth = p.head_bytes + phase.n_taps * p.tap_bytes
    cdef const char* weight = at(slots, p.weight) + phase.weight * p.weight_bytes
    cdef const char* panel
    cdef const void* residual
    cdef char* y
    cdef Py_ssize_t ldy = w.out_step_w * w.ldy, ldr = w.out_step_w * p.epilogue.ldr
    cdef Py_ssize_t at_tile = -1, at_group = -1, pixel = 0, m = 0
    cdef item_t item
    while share.q < share.stop:
        item = item_of(&p.tiling, share)
        if item.tile != at_tile or item.group != at_group:
            at_tile, at_group = item.tile, item.group
            pixel = first_pixel(share, item.tile, &m)
            point_to(p, phase, x + item.group * p.in_channels * p.x_bytes, pixel, m, rows)
            pixel = output_pixel(w, phase, pixel)
        n = min(nr, p.out_channels - item.panel * nr)
        column = item.group * p.out_channels + item.panel * nr
        panel = weight + (item.group * panels + item.panel) * depth
        distance = byte_prefetch_distance(item.tile, depth, nr) if p.tiling.panel_major else 0
        y = at(slots, p.y) + (pixel * w.ldy + column) * p.y_bytes
        residual = residual_bytes_at(&p.epilogue, &p.end, slots, pixel * p.epilogue.ldr + column)
        if p.is_bytes:
            kernels.u8s8_gemm[m](
                phase.n_taps, p.terms, <const uint8_t* const*> rows, panel, distance,
                &p.input_scale, y, ldy, n, residual, ldr, &p.end,
            )
        else:
            kernels.bf16_gemm[m](
                phase.n_taps, p.terms, <const bfloat16_t* const*> rows, panel, distance, y, ldy, n,
                residual, ldr, &p.end,
            )
        share.q += 1
