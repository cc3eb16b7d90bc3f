"""Convolutions of bytes with one filter per channel: exact sums, scaled and rounded again."""

import numpy as np

from libc.stdint cimport uint8_t

from kuiper._kernels.conv.epilogue cimport (
    epilogue_t, make_epilogue, make_sums_end, residual_bytes_at,
)
from kuiper._kernels.conv.window cimport (
    Window, inner_columns, phase_t, point_lines, point_rows, window_t,
)
from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.micro.table cimport (
    DW_ROW, MAX_DW_KW, MAX_DW_STEP, kernels_t, sums_end_t, u8_dwrow_fn, u8_dwrows_fn,
)
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start


# More taps could exceed the integers that float32 holds exactly.
MAX_DEPTHWISE_TAPS = 2 ** 24 // (255 * 128)


cdef struct quantized_depthwise_t:
    const kernels_t* kernels
    const window_t* window
    ref_t x                      # (n, in_h, in_w, channels), uint8
    ref_t weight                 # QuantizedDepthwiseBlocks or QuantizedDepthwiseQuads
    ref_t y                      # (n, out_h, out_w, channels), uint8 or float32
    ref_t scratch                # pointers per pixel and tap, or per row with steps
    const uint8_t* zeros         # (channels,), the zero point
    Py_ssize_t channels
    Py_ssize_t kernel_h
    Py_ssize_t kernel_w
    Py_ssize_t y_bytes           # of an element
    float input_scale
    u8_dwrow_fn dwrow            # NULL if no row kernel has this window and stride
    u8_dwrows_fn dwrows          # likewise, of quads
    epilogue_t epilogue
    sums_end_t end


cdef class QuantizedDepthwiseStep(Step):
    """Convolution of bytes by bytes with one filter per channel.

    Parameters
    ----------
    x : TensorView, uint8
        Channels-last.
    weight : TensorView
        Memory of a :class:`~kuiper._kernels.micro.packed.QuantizedDepthwiseQuads` if
        :func:`depthwise_quads` returns their order, else of `QuantizedDepthwiseBlocks`.
    y : TensorView
        Channels-last, uint8 if the epilogue has an output in bytes, else float32.
    window : Window
        With the taps of the kernel, in the order of the quads or row by row; at most
        MAX_DEPTHWISE_TAPS.
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
        if not active().dw_takes_quads and dilation[1] == 1:
            if self.p.kernel_w <= MAX_DW_KW and window.w.in_step_w <= MAX_DW_STEP:
                self.p.dwrow = self.p.kernels.u8_dwrow[self.p.kernel_w][window.w.in_step_w]
        self.p.dwrows = quad_kernel(kernel, window.w.in_step_w, dilation[1])
        self.p.y_bytes = y.dtype.itemsize
        self.p.input_scale = input_scale
        self.p.epilogue = make_epilogue(self, epilogue)
        self.p.end = make_sums_end(&self.p.epilogue, epilogue)
        self.run = quantized_depthwise_run if self.p.dwrows == NULL else quad_rows_run
        self.params = &self.p
        self.kind = "quantized_depthwise"
        self.flops = 2.0 * y.size * kernel[0] * kernel[1]
        self.bytes = x.n_bytes + weight.n_bytes + y.n_bytes
        self.max_shards = max(ceil_div(window.max_pixels, active().dw_m), 1)


cdef u8_dwrows_fn quad_kernel(kernel, Py_ssize_t stride_w, Py_ssize_t dilation_w) except *:
    """Return the kernel of adjacent windows whose quads are taps of one column, or NULL."""
    kernel_h, kernel_w = kernel
    if not active().dw_takes_quads or dilation_w != 1:
        return NULL
    # The kernel expects as many quads in a column as in a row.
    if kernel_w > MAX_DW_KW or stride_w > MAX_DW_STEP or (kernel_h + 3) // 4 != (kernel_w + 3) // 4:
        return NULL
    return active().u8_dwrows[<Py_ssize_t> kernel_w][stride_w]


def depthwise_quads(kernel, stride_w, dilation_w):
    """Return the order of the taps of depthwise convolutions of bytes, in quads.

    Parameters
    ----------
    kernel : (int, int)
    stride_w, dilation_w : int

    Returns
    -------
    list of int or None
        The number of each tap, row by row in the kernel.  Quads are filled up with repetitions of
        the tap before, whose weights have to be 0.  None if the active variant takes taps one by
        one, row by row.
    """
    if not active().dw_takes_quads:
        return None
    kernel_h, kernel_w = kernel
    if quad_kernel(kernel, stride_w, dilation_w) == NULL:
        runs = [list(range(kernel_h * kernel_w))]
    else:
        runs = [[u * kernel_w + v for u in range(kernel_h)] for v in range(kernel_w)]
    return [tap for run in runs for tap in run + run[-1:] * (3 - (len(run) + 3) % 4)]


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


cdef void quad_rows_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Cross-correlate each channel of bytes with its filter, exactly, and apply the epilogue.

    Rows of outputs are computed several at a time, whole ones and the ends of a shard.

    Layout : x (n, h, w, c) -> y (n, oh, ow, c), any row strides
    Needs  : weights packed in quads of one column
    Threads: over pixels; no shared writes
    Source : torch.ao.nn.quantized.Conv2d with groups = in_channels = out_channels
    """
    cdef const quantized_depthwise_t* p = <const quantized_depthwise_t*> params
    cdef const window_t* w = p.window
    cdef const phase_t* phase = &w.phases[0]
    cdef const uint8_t* x = <const uint8_t*> at(slots, p.x)
    cdef const uint8_t** rows = <const uint8_t**> at(slots, p.scratch)
    cdef Py_ssize_t pixels = w.n * w.out_h * w.out_w
    cdef Py_ssize_t pixel = shard_start(pixels, shard, n_shards)
    cdef Py_ssize_t last = shard_start(pixels, shard + 1, n_shards), ow, n, m, i, u, row, ih
    while pixel < last:
        ow, row = pixel % w.out_w, pixel // w.out_w
        n, m = 1, min(last - pixel, w.out_w - ow)
        if m == w.out_w:
            n = min((last - pixel) // w.out_w, p.kernels.dw_m)
        for i in range(n):
            for u in range(p.kernel_h):
                ih = (row + i) % w.out_h * w.in_step_h + phase.taps[u].dy
                rows[i * p.kernel_h + u] = NULL
                if 0 <= ih < w.in_h:
                    rows[i * p.kernel_h + u] = x + (
                        ((row + i) // w.out_h * w.in_h + ih) * w.in_w * w.ldx
                    )
        p.dwrows(
            p.kernel_h, p.channels, n, m, <const uint8_t* const*> rows,
            ow * w.in_step_w + phase.taps[0].dx, w.in_w, w.ldx, p.zeros, at(slots, p.weight),
            &p.input_scale, byte_output(p, slots, pixel), w.ldy,
            residual_bytes_at(&p.epilogue, &p.end, slots, pixel * p.epilogue.ldr), p.epilogue.ldr,
            &p.end,
        )
        pixel += n * m


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
    point_lines(
        w, &w.phases[0], p.kernel_h, p.kernel_w, <const uint8_t*> at(slots, p.x), p.zeros, pixel,
        rows, steps,
    )
    p.dwrow(
        p.kernel_h, p.channels, count, <const uint8_t* const*> rows, steps, at(slots, p.weight),
        &p.input_scale, byte_output(p, slots, pixel), w.ldy,
        residual_bytes_at(&p.epilogue, &p.end, slots, pixel * p.epilogue.ldr), p.epilogue.ldr,
        &p.end,
    )


cdef inline void byte_pixels(
    const quantized_depthwise_t* p, char* const* slots, Py_ssize_t pixel, Py_ssize_t m
) noexcept nogil:
    """Compute m consecutive pixels with one pointer per pixel and tap."""
    cdef const window_t* w = p.window
    cdef const uint8_t** pixels = <const uint8_t**> at(slots, p.scratch)
    point_rows(w, &w.phases[0], <const uint8_t*> at(slots, p.x), p.zeros, pixel, m, pixels)
    p.kernels.u8_dwconv[m](
        w.phases[0].n_taps, p.channels, <const uint8_t* const*> pixels,
        at(slots, p.weight), &p.input_scale, byte_output(p, slots, pixel), w.ldy,
        residual_bytes_at(&p.epilogue, &p.end, slots, pixel * p.epilogue.ldr), p.epilogue.ldr,
        &p.end,
    )
