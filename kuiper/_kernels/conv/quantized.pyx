"""Convolutions of bytes with one filter per channel: exact sums, scaled and rounded again."""

import numpy as np

from libc.stdint cimport uint8_t

from kuiper._kernels.conv.epilogue cimport (
    epilogue_t, make_epilogue, make_sums_end, residual_bytes_at,
)
from kuiper._kernels.conv.window cimport (
    Window, inner_columns, point_lines, point_rows, window_t,
)
from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.micro.table cimport (
    DW_ROW, MAX_DW_KW, MAX_DW_STEP, kernels_t, sums_end_t, u8_dwrow_fn,
)
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start


# More taps could exceed the integers that float32 holds exactly.
MAX_DEPTHWISE_TAPS = 2 ** 24 // (255 * 128)


cdef struct quantized_depthwise_t:
    const kernels_t* kernels
    const window_t* window
    ref_t x                      # (n, in_h, in_w, channels), uint8
    ref_t weight                 # (ceil(channels / lanes), 3 + taps, lanes)
    ref_t y                      # (n, out_h, out_w, channels), uint8 or float32
    ref_t scratch                # pointers per pixel and tap, or per row with steps
    const uint8_t* zeros         # (channels,), the zero point
    Py_ssize_t channels
    Py_ssize_t kernel_h
    Py_ssize_t kernel_w
    Py_ssize_t y_bytes           # of an element
    float input_scale
    u8_dwrow_fn dwrow            # NULL if no row kernel has this window and stride
    epilogue_t epilogue
    sums_end_t end


cdef class QuantizedDepthwiseStep(Step):
    """Convolution of bytes by bytes with one filter per channel.

    Parameters
    ----------
    x : TensorView, uint8
        Channels-last.
    weight : TensorView
        Memory of a :class:`~kuiper._kernels.micro.packed.QuantizedDepthwiseBlocks`.
    y : TensorView
        Channels-last, uint8 if the epilogue has an output in bytes, else float32.
    window : Window
        With the taps of the kernel, row by row; at most MAX_DEPTHWISE_TAPS.
    kernel, dilation : (int, int)
    scratch : TensorView
        :func:`quantized_depthwise_scratch_bytes` for each thread.
    input_scale : float
    input_zero : int
        The byte of a pixel outside the image.
    epilogue : Epilogue or None
    """

    cdef quantized_depthwise_t p
    cdef Window window

    def __init__(self, x, weight, y, Window window, kernel, dilation, scratch, input_scale,
                 input_zero, epilogue=None):
        channels = x.shape[1]
        zeros = np.full(max(channels, 1), input_zero, np.uint8)
        cdef uint8_t[::1] zero_view = zeros
        self.window = window
        self.keep = zeros
        self.p.kernels = active()
        self.p.window = &window.w
        self.p.x, self.p.weight, self.p.y = self.ref(x), self.ref(weight), self.ref(y)
        self.p.scratch = self.ref(scratch)
        self.p.zeros = &zero_view[0]
        self.p.channels = channels
        self.p.kernel_h, self.p.kernel_w = kernel
        self.p.y_bytes = y.dtype.itemsize
        self.p.input_scale = input_scale
        if self.p.kernel_w <= MAX_DW_KW and window.w.in_step_w <= MAX_DW_STEP and dilation[1] == 1:
            self.p.dwrow = self.p.kernels.u8_dwrow[self.p.kernel_w][window.w.in_step_w]
        self.p.epilogue = make_epilogue(self, epilogue)
        self.p.end = make_sums_end(&self.p.epilogue, epilogue)
        self.run = quantized_depthwise_run
        self.params = &self.p
        self.kind = "quantized_depthwise"
        self.flops = 2.0 * y.size * self.p.kernel_h * self.p.kernel_w
        self.bytes = x.n_bytes + weight.n_bytes + y.n_bytes
        self.max_shards = max(ceil_div(window.max_pixels, active().dw_m), 1)


def quantized_depthwise_scratch_bytes(Py_ssize_t n_taps):
    """Return the bytes of scratch per thread: pointers per pixel and tap, or pointers and steps."""
    return 8 * n_taps * max(active().dw_m, 2)


cdef void quantized_depthwise_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Cross-correlate each channel of bytes with its filter, exactly, and apply the epilogue.

    Layout : x (n, h, w, c) -> y (n, oh, ow, c), any row strides
    Needs  : packed weights for the table's lanes
    Threads: over pixels; no shared writes
    Source : torch.ao.nn.quantized.Conv2d with groups = in_channels = out_channels
    """
    cdef const quantized_depthwise_t* p = <const quantized_depthwise_t*> params
    cdef const window_t* w = p.window
    cdef Py_ssize_t pixels = w.n * w.out_h * w.out_w
    cdef Py_ssize_t pixel = shard_start(pixels, shard, n_shards)
    cdef Py_ssize_t last = shard_start(pixels, shard + 1, n_shards), left, right, ow, m
    inner_columns(w, &w.phases[0], &left, &right)
    if p.dwrow == NULL or right - left < DW_ROW:
        left = right = w.out_w
    while pixel < last:
        ow = pixel % w.out_w
        m = min(last - pixel, right - ow)
        if left <= ow and m >= DW_ROW:
            byte_windows(p, slots, pixel, m)
        else:
            # Up to the next range of whole windows, across the ends of rows.
            m = min(last - pixel, p.kernels.dw_m)
            if ow < left < w.out_w:
                m = min(m, left - ow)
            elif left < w.out_w:
                m = min(m, w.out_w - ow + left)
            byte_pixels(p, slots, pixel, m)
        pixel += m


cdef inline char* byte_output(
    const quantized_depthwise_t* p, char* const* slots, Py_ssize_t pixel
) noexcept nogil:
    return at(slots, p.y) + pixel * p.window.ldy * p.y_bytes


cdef inline void byte_windows(
    const quantized_depthwise_t* p, char* const* slots, Py_ssize_t pixel, Py_ssize_t count
) noexcept nogil:
    """Compute DW_ROW or more pixels of one output row, away from the side borders."""
    cdef const window_t* w = p.window
    cdef const uint8_t** rows = <const uint8_t**> at(slots, p.scratch)
    cdef Py_ssize_t* steps = <Py_ssize_t*> (rows + p.kernel_h)
    cdef Py_ssize_t done = 0, start
    while done < count:
        # The last windows may overlap earlier ones and store the same values again.
        start = pixel + min(done, count - DW_ROW)
        point_lines(
            w, &w.phases[0], p.kernel_h, p.kernel_w, <const uint8_t*> at(slots, p.x), p.zeros,
            start, rows, steps,
        )
        p.dwrow(
            p.kernel_h, p.channels, <const uint8_t* const*> rows, steps,
            <const float*> at(slots, p.weight), &p.input_scale, byte_output(p, slots, start), w.ldy,
            residual_bytes_at(&p.epilogue, &p.end, slots, start * p.epilogue.ldr), p.epilogue.ldr,
            &p.end,
        )
        done += DW_ROW


cdef inline void byte_pixels(
    const quantized_depthwise_t* p, char* const* slots, Py_ssize_t pixel, Py_ssize_t m
) noexcept nogil:
    """Compute m consecutive pixels with one pointer per pixel and tap."""
    cdef const window_t* w = p.window
    cdef const uint8_t** pixels = <const uint8_t**> at(slots, p.scratch)
    point_rows(w, &w.phases[0], <const uint8_t*> at(slots, p.x), p.zeros, pixel, m, pixels)
    p.kernels.u8_dwconv[m](
        w.phases[0].n_taps, p.channels, <const uint8_t* const*> pixels,
        <const float*> at(slots, p.weight), &p.input_scale, byte_output(p, slots, pixel), w.ldy,
        residual_bytes_at(&p.epilogue, &p.end, slots, pixel * p.epilogue.ldr), p.epilogue.ldr,
        &p.end,
    )
