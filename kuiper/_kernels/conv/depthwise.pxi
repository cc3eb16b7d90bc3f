# Depthwise convolution: one filter per channel.

cdef struct depthwise_t:
    const kernels_t* kernels
    const window_t* window
    ref_t x                      # (n, in_h, in_w, channels)
    ref_t weight                 # (ceil(channels / lanes), 1 + taps, lanes)
    ref_t y                      # (n, out_h, out_w, channels)
    ref_t scratch                # pointers per pixel and tap, or per tap with row steps
    const float* zeros           # (channels,)
    Py_ssize_t channels
    Py_ssize_t kernel_h
    Py_ssize_t kernel_w
    dwrow_fn dwrow               # NULL if no row kernel has this window and stride
    epilogue_t epilogue


cdef class DepthwiseStep(Step):
    """Convolution with one filter per channel.

    Parameters
    ----------
    x, y : TensorView
        Channels-last, with the same number of channels.
    weight : TensorView
        Memory of a :class:`~kuiper._kernels.micro.packed.DepthwiseBlocks`.
    window : Window
        With the taps of the kernel, row by row.
    kernel, dilation : (int, int)
    scratch : TensorView
        :func:`depthwise_scratch_bytes` for each thread.
    epilogue : Epilogue or None
    """

    cdef depthwise_t p
    cdef Window window

    def __init__(self, x, weight, y, Window window, kernel, dilation, scratch, epilogue=None):
        channels = x.shape[1]
        zeros = np.zeros(channels, np.float32)
        cdef float[::1] zero_view = zeros
        self.window = window
        self.keep = zeros
        self.p.kernels = active()
        self.p.window = &window.w
        self.p.x, self.p.weight, self.p.y = self.ref(x), self.ref(weight), self.ref(y)
        self.p.scratch = self.ref(scratch)
        self.p.zeros = &zero_view[0]
        self.p.channels = channels
        self.p.kernel_h, self.p.kernel_w = kernel
        self.p.dwrow = row_kernel(
            self.p.kernels, self.p.kernel_w, window.w.in_step_w, dilation[1]
        )
        self.p.epilogue = make_epilogue(self, epilogue)
        self.run = depthwise_run
        self.params = &self.p
        self.kind = "conv_depthwise"
        self.max_shards = max(ceil_div(window.max_pixels, active().dw_m), 1)


def depthwise_scratch_bytes(Py_ssize_t n_taps):
    """Return the bytes of scratch per thread: pointers per pixel and tap, or pointers and steps."""
    return 8 * n_taps * max(active().dw_m, 2)


cdef void depthwise_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Cross-correlate each channel with its filter and apply the epilogue.

    Layout : x (n, h, w, c) -> y (n, oh, ow, c), any row strides
    Needs  : packed weights for the table's lanes
    Threads: over pixels; no shared writes
    Source : torch.nn.Conv2d with groups = in_channels = out_channels
    """
    cdef const depthwise_t* p = <const depthwise_t*> params
    cdef const window_t* w = p.window
    cdef const phase_t* phase = &w.phases[0]
    cdef Py_ssize_t pixels = w.n * w.out_h * w.out_w
    cdef Py_ssize_t pixel = shard_start(pixels, shard, n_shards)
    cdef Py_ssize_t last = shard_start(pixels, shard + 1, n_shards), end, ow, m
    cdef Py_ssize_t left, right
    inner_columns(w, phase, &left, &right)
    while pixel < last and w.out_w < 2 * p.kernels.dw_m:
        # Short rows are mostly border: use one pointer per pixel and tap.
        m = min(p.kernels.dw_m, last - pixel)
        scattered_pixels(p, slots, pixel, m)
        pixel += m
    while pixel < last:
        ow = pixel % w.out_w
        end = min(last, pixel - ow + w.out_w)
        while pixel < end:
            m = 1
            if left <= ow < right:
                m = min(end - pixel, right - ow)
                if p.dwrow != NULL and m >= DW_ROW:
                    whole_windows(p, slots, pixel, m)
                else:
                    m = min(p.kernels.dw_m, m)
                    row_pixels(p, slots, pixel, m)
            else:
                row_pixels(p, slots, pixel, m)
            pixel += m
            ow += m


cdef inline void whole_windows(
    const depthwise_t* p, char* const* slots, Py_ssize_t pixel, Py_ssize_t count
) noexcept nogil:
    """Compute DW_ROW or more pixels of one output row, away from the side borders."""
    cdef const window_t* w = p.window
    cdef const phase_t* phase = &w.phases[0]
    cdef Py_ssize_t ldr = p.epilogue.ldr
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float** rows = <const float**> at(slots, p.scratch)
    cdef Py_ssize_t* steps = <Py_ssize_t*> (rows + p.kernel_h)
    cdef const float* weight = <const float*> at(slots, p.weight)
    cdef const float* residual
    cdef float* y
    cdef Py_ssize_t done = 0, start
    while done < count:
        # The last windows may overlap earlier ones and store the same values again.
        start = min(done, count - DW_ROW)
        point_lines(
            w, phase, p.kernel_h, p.kernel_w, x, p.zeros, pixel + start, rows, steps
        )
        y = <float*> at(slots, p.y) + (pixel + start) * w.ldy
        residual = residual_at(&p.epilogue, slots, (pixel + start) * ldr)
        p.dwrow(
            p.kernel_h, p.channels, <const float* const*> rows, steps, weight, y, w.ldy,
            residual if p.epilogue.residual_in_tile else NULL, ldr, p.epilogue.lo, p.epilogue.hi,
        )
        finish_tile(&p.epilogue, DW_ROW, p.channels, y, w.ldy, residual, ldr)
        done = start + DW_ROW


cdef inline void scattered_pixels(
    const depthwise_t* p, char* const* slots, Py_ssize_t pixel, Py_ssize_t m
) noexcept nogil:
    """Compute m consecutive pixels, all channels, with one pointer per pixel and tap."""
    cdef const float** pixels = <const float**> at(slots, p.scratch)
    point_rows(
        p.window, &p.window.phases[0], <const float*> at(slots, p.x), p.zeros, pixel, m, pixels
    )
    depthwise_pixels(p, slots, pixel, m, <const float* const*> pixels, NULL)


cdef inline void row_pixels(
    const depthwise_t* p, char* const* slots, Py_ssize_t pixel, Py_ssize_t m
) noexcept nogil:
    """Compute m pixels of one output row, all channels; m > 1 only away from the side borders."""
    cdef const window_t* w = p.window
    cdef const phase_t* phase = &w.phases[0]
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float** pixels = <const float**> at(slots, p.scratch)
    cdef Py_ssize_t* steps = <Py_ssize_t*> (pixels + phase.n_taps)
    cdef Py_ssize_t ih = pixel // w.out_w % w.out_h * w.in_step_h
    cdef Py_ssize_t iw = pixel % w.out_w * w.in_step_w
    cdef Py_ssize_t image = pixel // (w.out_w * w.out_h), t
    cdef const float* origin = x + ((image * w.in_h + ih) * w.in_w + iw) * w.ldx
    for t in range(phase.n_taps):
        if 0 <= ih + phase.taps[t].dy < w.in_h and 0 <= iw + phase.taps[t].dx < w.in_w:
            pixels[t] = origin + phase.taps[t].offset
            steps[t] = w.in_step_w * w.ldx
        else:
            pixels[t] = p.zeros
            steps[t] = 0
    depthwise_pixels(p, slots, pixel, m, <const float* const*> pixels, steps)


cdef inline void depthwise_pixels(
    const depthwise_t* p, char* const* slots, Py_ssize_t pixel, Py_ssize_t m,
    const float* const* pixels, const Py_ssize_t* steps,
) noexcept nogil:
    """Run the micro-kernel on m consecutive output pixels."""
    cdef const window_t* w = p.window
    cdef const float* residual = residual_at(&p.epilogue, slots, pixel * p.epilogue.ldr)
    cdef float* y = <float*> at(slots, p.y) + pixel * w.ldy
    p.kernels.f32_dwconv[m](
        w.phases[0].n_taps, p.channels, pixels, steps,
        <const float*> at(slots, p.weight), y, w.ldy,
        residual if p.epilogue.residual_in_tile else NULL, p.epilogue.ldr,
        p.epilogue.lo, p.epilogue.hi,
    )
    finish_tile(&p.epilogue, m, p.channels, y, w.ldy, residual, p.epilogue.ldr)


# -- from images in bfloat16 -------------------------------------------------------------------

cdef struct narrow_depthwise_t:
    const kernels_t* kernels
    const window_t* window
    ref_t x                      # (n, in_h, in_w, channels)
    ref_t weight                 # (ceil(channels / lanes), 1 + taps, lanes)
    ref_t y                      # (n, out_h, out_w, channels)
    ref_t scratch                # pointers per pixel and tap, or per row of taps with steps
    const bfloat16_t* zeros      # (channels,)
    Py_ssize_t channels
    Py_ssize_t kernel_h
    Py_ssize_t kernel_w
    Py_ssize_t y_bytes           # of an element
    bf16_dwconv_fn dwrow         # NULL if no row kernel has this window and stride
    epilogue_t epilogue
    sums_end_t end


cdef class NarrowDepthwiseStep(Step):
    """Convolution of an image in bfloat16 with one filter per channel, and sums in float32.

    Parameters
    ----------
    x : TensorView, bfloat16
        Channels-last.
    weight : TensorView
        Memory of a :class:`~kuiper._kernels.micro.packed.NarrowDepthwiseBlocks`.
    y : TensorView, bfloat16 or float32
        Channels-last, with the same number of channels.
    window : Window
        With the taps of the kernel, row by row.
    kernel, dilation : (int, int)
    scratch : TensorView
        :func:`depthwise_scratch_bytes` for each thread.
    epilogue : Epilogue or None
        A residual is bfloat16 or float32.
    """

    cdef narrow_depthwise_t p
    cdef Window window

    def __init__(self, x, weight, y, Window window, kernel, dilation, scratch, epilogue=None):
        channels = x.shape[1]
        zeros = np.zeros(channels, np.uint16)
        cdef bfloat16_t[::1] zero_view = zeros
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
        # Short rows are mostly border.
        if window.w.out_w >= 2 * self.p.kernels.dw_m:
            self.p.dwrow = narrow_row_kernel(
                self.p.kernels, self.p.kernel_w, window.w.in_step_w, dilation[1]
            )
        self.p.epilogue = make_epilogue(self, epilogue)
        self.p.end = make_sums_end(&self.p.epilogue, epilogue, y.dtype == BFLOAT16)
        self.run = narrow_depthwise_run
        self.params = &self.p
        self.kind = "conv_depthwise_bfloat16"
        self.max_shards = max(ceil_div(window.max_pixels, active().dw_m), 1)


cdef void narrow_depthwise_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Cross-correlate each channel with its filter and apply the epilogue.

    Layout : x (n, h, w, c) -> y (n, oh, ow, c), any row strides
    Needs  : packed weights for the table's lanes
    Threads: over pixels; no shared writes
    Source : torch.nn.Conv2d with groups = in_channels = out_channels
    """
    cdef const narrow_depthwise_t* p = <const narrow_depthwise_t*> params
    cdef const window_t* w = p.window
    cdef Py_ssize_t pixels = w.n * w.out_h * w.out_w
    cdef Py_ssize_t pixel = shard_start(pixels, shard, n_shards)
    cdef Py_ssize_t last = shard_start(pixels, shard + 1, n_shards), ow, inner, m
    cdef Py_ssize_t left, right
    inner_columns(w, &w.phases[0], &left, &right)
    while pixel < last:
        ow = pixel % w.out_w
        m = min(p.kernels.dw_m, last - pixel)
        if p.dwrow != NULL:
            inner = min(last - pixel, right - ow)
            if ow >= left and inner >= DW_ROW:
                narrow_windows(p, slots, pixel, inner)
                pixel += inner
                continue
            # Up to the next row of inner pixels, past the end of this one.
            if ow < left:
                m = min(m, left - ow)
            else:
                m = min(m, w.out_w - ow + left)
        narrow_pixels(p, slots, pixel, m)
        pixel += m


cdef inline void narrow_windows(
    const narrow_depthwise_t* p, char* const* slots, Py_ssize_t pixel, Py_ssize_t count
) noexcept nogil:
    """Compute DW_ROW or more pixels of one output row, away from the side borders."""
    cdef const window_t* w = p.window
    cdef Py_ssize_t ldr = p.epilogue.ldr
    cdef const bfloat16_t* x = <const bfloat16_t*> at(slots, p.x)
    cdef const bfloat16_t** rows = <const bfloat16_t**> at(slots, p.scratch)
    cdef Py_ssize_t* steps = <Py_ssize_t*> (rows + p.kernel_h)
    cdef Py_ssize_t done = 0, start
    while done < count:
        # The last windows may overlap earlier ones and store the same values again.
        start = pixel + min(done, count - DW_ROW)
        point_lines(
            w, &w.phases[0], p.kernel_h, p.kernel_w, x, p.zeros, start, rows, steps
        )
        p.dwrow(
            p.kernel_h, p.channels, <const bfloat16_t* const*> rows, steps,
            <const float*> at(slots, p.weight), at(slots, p.y) + start * w.ldy * p.y_bytes, w.ldy,
            residual_bytes_at(&p.epilogue, &p.end, slots, start * ldr), ldr, &p.end,
        )
        done += DW_ROW


cdef inline void narrow_pixels(
    const narrow_depthwise_t* p, char* const* slots, Py_ssize_t pixel, Py_ssize_t m
) noexcept nogil:
    """Compute m consecutive pixels, all channels."""
    cdef const window_t* w = p.window
    cdef const bfloat16_t** pixels = <const bfloat16_t**> at(slots, p.scratch)
    cdef Py_ssize_t ldr = p.epilogue.ldr
    point_rows(
        w, &w.phases[0], <const bfloat16_t*> at(slots, p.x), p.zeros, pixel, m, pixels
    )
    p.kernels.bf16_dwconv[m](
        w.phases[0].n_taps, p.channels, <const bfloat16_t* const*> pixels, NULL,
        <const float*> at(slots, p.weight), at(slots, p.y) + pixel * w.ldy * p.y_bytes, w.ldy,
        residual_bytes_at(&p.epilogue, &p.end, slots, pixel * ldr), ldr, &p.end,
    )
