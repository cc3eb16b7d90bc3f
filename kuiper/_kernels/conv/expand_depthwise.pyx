"""Inverted residuals: a 1x1 convolution and the depthwise convolution of its result, in one pass.

The result of the 1x1 convolution is the largest tensor of such a network; writing and reading it
costs more than computing it.  Here only the rows in the depthwise window are kept, in a ring that
stays in the L2 cache: row r has index r % ring_rows and is computed just before the first output
row that needs it.  If the input is in bfloat16, so are these rows.
"""

import numpy as np

from libc.string cimport memset

from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.conv.epilogue cimport (
    epilogue_t, finish_tile, make_epilogue, make_sums_end, residual_at, residual_bytes_at,
)
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start
from kuiper._kernels.micro.table cimport (
    DW_ROW, MAX_MR, MAX_TILE_ROWS, bf16_dwconv_fn, dwrow_fn, kernels_t, narrow_row_kernel,
    row_kernel, sums_end_t,
)
from kuiper._kernels.simd.bfloat16 cimport bfloat16_t

from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import padded_row

cdef enum:
    MIN_ROWS = 4  # output rows per shard: a shard first recomputes ring rows of the previous one


cdef struct inverted_t:
    const kernels_t* kernels
    ref_t x                      # (n, in_h, in_w, in_channels)
    ref_t expand                 # (panels, 1 + in_channels, nr), or panels of pairs
    ref_t weight                 # (ceil(channels / lanes), 1 + kernel_h * kernel_w, lanes)
    ref_t y                      # (n, out_h, out_w, channels)
    ref_t scratch                # (ring_rows, ring_width, ld_ring), then pointers and steps of taps
    const char* zeros            # (block,)
    bint narrow                  # whether input and ring are in bfloat16, else in float32
    Py_ssize_t ring_bytes        # of an element of the ring
    Py_ssize_t y_bytes           # of an element of the output
    Py_ssize_t n
    Py_ssize_t in_h
    Py_ssize_t in_w
    Py_ssize_t ldx               # from pixel to pixel, in elements
    Py_ssize_t in_channels
    Py_ssize_t out_h
    Py_ssize_t out_w
    Py_ssize_t ldy
    Py_ssize_t channels
    Py_ssize_t kernel_h
    Py_ssize_t kernel_w
    Py_ssize_t stride_h
    Py_ssize_t stride_w
    Py_ssize_t dilation_h
    Py_ssize_t dilation_w
    Py_ssize_t top               # padding, in pixels
    Py_ssize_t left
    Py_ssize_t ring_rows
    Py_ssize_t ring_width        # pixels of a row, including the zeros of the padding
    Py_ssize_t ld_ring           # from pixel to pixel, in elements
    Py_ssize_t ring_size         # of the whole ring, in bytes
    bint by_row                  # whether a row kernel has this window and stride
    dwrow_fn dwrow
    bf16_dwconv_fn narrow_dwrow
    Py_ssize_t block             # channels per pass
    epilogue_t expand_epilogue
    epilogue_t epilogue
    sums_end_t expand_end        # of sums in bfloat16
    sums_end_t end


cdef class ExpandDepthwiseStep(Step):
    """A 1x1 convolution, then a depthwise one.

    Parameters
    ----------
    x : TensorView, shape (n, in_channels, h, w), float32 or bfloat16
        Channels-last.
    expand : TensorView
        Panels of :func:`~kuiper._kernels.micro.packing.pack_panels`, or for bfloat16 of
        :func:`~kuiper._kernels.micro.packing.pack_pairs`.
    weight : TensorView
        Memory of a :class:`~kuiper._kernels.micro.packed.DepthwiseBlocks`, or for bfloat16 of a
        :class:`~kuiper._kernels.micro.packed.NarrowDepthwiseBlocks`.
    y : TensorView, shape (n, channels, oh, ow)
        Channels-last; float32, or either type from bfloat16.
    scratch : TensorView
        ``ring.n_bytes`` for each thread.
    ring : Ring
    kernel, stride, dilation : (int, int)
        Of the depthwise convolution.
    origin : (int, int)
        Its padding at the top and on the left.
    expand_epilogue : Epilogue or None
        Of the 1x1 convolution; has no residual.
    epilogue : Epilogue or None
    """

    cdef inverted_t p

    def __init__(self, x, expand, weight, y, scratch, ring, kernel, stride, dilation, origin,
                 expand_epilogue=None, epilogue=None):
        zeros = np.zeros(4 * ring.channels, np.uint8)
        cdef unsigned char[::1] zero_view = zeros
        self.keep = zeros
        self.p.kernels = active()
        self.p.x, self.p.expand, self.p.weight = self.ref(x), self.ref(expand), self.ref(weight)
        self.p.y, self.p.scratch = self.ref(y), self.ref(scratch)
        self.p.zeros = <const char*> &zero_view[0]
        self.p.narrow = x.dtype == BFLOAT16
        self.p.ring_bytes, self.p.y_bytes = x.dtype.itemsize, y.dtype.itemsize
        self.p.n, self.p.in_channels, self.p.in_h, self.p.in_w = x.shape
        _, self.p.channels, self.p.out_h, self.p.out_w = y.shape
        self.p.ldx, self.p.ldy = x.row_stride, y.row_stride
        self.p.kernel_h, self.p.kernel_w = kernel
        self.p.stride_h, self.p.stride_w = stride
        self.p.dilation_h, self.p.dilation_w = dilation
        self.p.top, self.p.left = origin
        self.p.ring_rows, self.p.ring_width = ring.rows, ring.width
        self.p.ld_ring, self.p.ring_size = ring.row_stride, ring.size
        self.p.block = ring.channels
        if self.p.out_w >= DW_ROW:
            self.p.dwrow = row_kernel(self.p.kernels, kernel[1], stride[1], dilation[1])
            self.p.narrow_dwrow = narrow_row_kernel(
                self.p.kernels, kernel[1], stride[1], dilation[1]
            )
        self.p.by_row = self.p.dwrow != NULL
        self.p.expand_epilogue = make_epilogue(self, expand_epilogue)
        self.p.epilogue = make_epilogue(self, epilogue)
        self.p.expand_end = make_sums_end(&self.p.expand_epilogue, expand_epilogue, True)
        self.p.end = make_sums_end(&self.p.epilogue, epilogue, y.dtype == BFLOAT16)
        self.run = inverted_run
        self.params = &self.p
        self.kind = "conv_expand_depthwise" + ("_bfloat16" if self.p.narrow else "")
        self.max_shards = max(self.p.n * self.p.out_h // MIN_ROWS, 1)


class Ring:
    """Extents of the ring: the rows of the expanded image in a depthwise window.

    Parameters
    ----------
    x, y : TensorView
        Input and output of the two convolutions, (n, c, h, w).
    kernel, stride, dilation, origin : (int, int)
        As for :class:`ExpandDepthwiseStep`.
    limit : int
        Maximum size in bytes, which one panel of channels may exceed.

    Attributes
    ----------
    rows, width : int
        In pixels; a row starts and ends with the zeros of the padding.
    channels : int
        Channels per pass: the panels that fit, at least one.
    row_stride : int
        Elements from pixel to pixel.
    size : int
        Its bytes, rounded up to whole cache lines.
    n_bytes : int
        Bytes of scratch per thread: the ring, then pointers to taps and their steps, or pointers
        for each pixel.
    """

    def __init__(self, x, y, kernel, stride, dilation, origin, limit):
        self.rows = (kernel[0] - 1) * dilation[0] + 1
        reach = (y.shape[3] - 1) * stride[1] + (kernel[1] - 1) * dilation[1] + 1
        self.width = max(origin[1] + x.shape[3], reach)
        nr, item = active().nr, x.dtype.itemsize
        fitting = limit // (item * self.width * self.rows * nr) * nr
        self.channels = min(max(fitting, nr), y.shape[1])
        self.row_stride = padded_row(self.channels)
        self.size = -(-item * self.row_stride * self.width * self.rows // 64) * 64
        self.n_bytes = self.size + 8 * max(active().dw_m, 2) * kernel[0] * kernel[1]


cdef void inverted_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Compute a 1x1 convolution and a depthwise one, each with an epilogue.

    Layout : x (n, h, w, ic) -> y (n, oh, ow, c), any row strides
    Needs  : weights packed for the table's tile and lanes
    Threads: over output rows; one ring per thread
    Source : Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks" (2018)
    """
    cdef const inverted_t* p = <const inverted_t*> params
    cdef Py_ssize_t rows = p.n * p.out_h
    cdef Py_ssize_t row = shard_start(rows, shard, n_shards)
    cdef Py_ssize_t last = shard_start(rows, shard + 1, n_shards), end, first
    while row < last:
        end = min(last, (row // p.out_h + 1) * p.out_h)
        first = 0
        while first < p.channels:
            sweep(p, slots, row // p.out_h, row % p.out_h, row % p.out_h + end - row, first)
            first += p.block
        row = end


cdef void sweep(
    const inverted_t* p, char* const* slots, Py_ssize_t image, Py_ssize_t row, Py_ssize_t end,
    Py_ssize_t first,
) noexcept nogil:
    """Compute the output rows [row, end) of one image, for the channels from `first` on."""
    cdef char* ring = at(slots, p.scratch)
    cdef Py_ssize_t n = min(p.block, p.channels - first)
    cdef Py_ssize_t ready = 0, top, stop  # rows before `ready` are in the ring
    cdef Py_ssize_t right = p.ring_width - p.left - p.in_w, r, pixel = p.ld_ring * p.ring_bytes
    cdef char* line
    for r in range(p.ring_rows):
        line = ring + r * p.ring_width * pixel
        memset(line, 0, p.left * pixel)
        line += (p.left + p.in_w) * pixel
        memset(line, 0, right * pixel)
    while row < end:
        top = row * p.stride_h - p.top
        stop = min(top + p.ring_rows, p.in_h)
        ready = max(ready, max(top, 0))
        while ready < stop:
            line = ring + (ready % p.ring_rows * p.ring_width + p.left) * pixel
            if p.narrow:
                expand_narrow_row(p, slots, image * p.in_h + ready, first, n, line)
            else:
                expand_row(p, slots, image * p.in_h + ready, first, n, <float*> line)
            ready += 1
        depthwise_row(p, slots, ring, image, row, first, n)
        row += 1


cdef inline void expand_narrow_row(
    const inverted_t* p, char* const* slots, Py_ssize_t row, Py_ssize_t first, Py_ssize_t n,
    char* y,
) noexcept nogil:
    """As `expand_row`, in bfloat16."""
    cdef const kernels_t* kernels = p.kernels
    cdef const bfloat16_t* x = <const bfloat16_t*> at(slots, p.x) + row * p.in_w * p.ldx
    cdef Py_ssize_t nr = kernels.nr, depth = 4 * kernels.nr * (1 + ceil_div(p.in_channels, 2))
    cdef const char* weight = at(slots, p.expand) + first // nr * depth
    cdef (const bfloat16_t*)[MAX_TILE_ROWS] rows
    cdef Py_ssize_t tiles = ceil_div(p.in_w, kernels.pair_mr), tile, start, m, i, c
    for tile in range(tiles):
        start = tile * p.in_w // tiles
        m = (tile + 1) * p.in_w // tiles - start
        for i in range(m):
            rows[i] = x + (start + i) * p.ldx
        c = 0
        while c < n:
            kernels.bf16_gemm[m](
                1, p.in_channels, <const bfloat16_t* const*> rows, weight + c // nr * depth, 0,
                y + (start * p.ld_ring + c) * p.ring_bytes, p.ld_ring, min(nr, n - c), NULL, 0,
                &p.expand_end,
            )
            c += nr


cdef inline void expand_row(
    const inverted_t* p, char* const* slots, Py_ssize_t row, Py_ssize_t first, Py_ssize_t n,
    float* y,
) noexcept nogil:
    """Compute one row of the expanded image, n channels from `first` on."""
    cdef const kernels_t* kernels = p.kernels
    cdef const float* x = <const float*> at(slots, p.x) + row * p.in_w * p.ldx
    cdef Py_ssize_t nr = kernels.nr, depth = (p.in_channels + 1) * kernels.nr
    cdef const float* weight = <const float*> at(slots, p.expand) + first // nr * depth
    cdef (const float*)[MAX_MR] rows
    cdef Py_ssize_t tiles = ceil_div(p.in_w, kernels.mr), tile, start, m, i, c
    for tile in range(tiles):
        start = tile * p.in_w // tiles
        m = (tile + 1) * p.in_w // tiles - start
        for i in range(m):
            rows[i] = x + (start + i) * p.ldx
        c = 0
        while c < n:
            kernels.f32_gemm[m](
                1, p.in_channels, <const float* const*> rows, weight + c // nr * depth, 0,
                y + start * p.ld_ring + c, p.ld_ring, min(nr, n - c), NULL, 0,
                p.expand_epilogue.lo, p.expand_epilogue.hi,
            )
            c += nr
        finish_tile(&p.expand_epilogue, m, n, y + start * p.ld_ring, p.ld_ring, NULL, 0)


cdef inline void depthwise_row(
    const inverted_t* p, char* const* slots, char* ring, Py_ssize_t image, Py_ssize_t row,
    Py_ssize_t first, Py_ssize_t n,
) noexcept nogil:
    """Compute one row of the output from the ring, n channels from `first` on."""
    cdef Py_ssize_t pixel = (image * p.out_h + row) * p.out_w, done = 0, ow, m
    cdef const char** pixels = <const char**> (ring + p.ring_size)
    cdef Py_ssize_t* steps = <Py_ssize_t*> (pixels + p.kernel_h * p.kernel_w)
    cdef Py_ssize_t ih = row * p.stride_h - p.top, i
    while done < p.out_w:
        if p.by_row:
            # The last windows of a row may overlap earlier ones and store the same values again.
            m, ow = DW_ROW, min(done, p.out_w - DW_ROW)
        else:
            m, ow = min(p.kernels.dw_m, p.out_w - done), done
        if p.narrow and not p.by_row:
            for i in range(m):
                point_pixel(p, ring, ih, (ow + i) * p.stride_w, pixels + i, m)
        else:
            point_window(p, ring, ih, ow * p.stride_w, pixels, steps)
        if p.narrow:
            narrow_windows(p, slots, pixel + ow, m, first, n, pixels, steps)
        else:
            windows(p, slots, pixel + ow, m, first, n, pixels, steps)
        done = ow + m


cdef inline void windows(
    const inverted_t* p, char* const* slots, Py_ssize_t pixel, Py_ssize_t m, Py_ssize_t first,
    Py_ssize_t n, const char** pixels, const Py_ssize_t* steps,
) noexcept nogil:
    """Compute m pixels of the output, n channels from `first` on."""
    cdef const float* weight = (
        <const float*> at(slots, p.weight) + first * (p.kernel_h * p.kernel_w + 1)
    )
    cdef float* y = <float*> at(slots, p.y) + pixel * p.ldy + first
    cdef const float* residual = residual_at(&p.epilogue, slots, pixel * p.epilogue.ldr + first)
    cdef const float* in_tile = residual if p.epilogue.residual_in_tile else NULL
    if p.by_row:
        p.dwrow(
            p.kernel_h, n, <const float* const*> pixels, steps, weight, y, p.ldy,
            in_tile, p.epilogue.ldr, p.epilogue.lo, p.epilogue.hi,
        )
    else:
        p.kernels.f32_dwconv[m](
            p.kernel_h * p.kernel_w, n, <const float* const*> pixels, steps, weight, y,
            p.ldy, in_tile, p.epilogue.ldr, p.epilogue.lo, p.epilogue.hi,
        )
    finish_tile(&p.epilogue, m, n, y, p.ldy, residual, p.epilogue.ldr)


cdef inline void narrow_windows(
    const inverted_t* p, char* const* slots, Py_ssize_t pixel, Py_ssize_t m, Py_ssize_t first,
    Py_ssize_t n, const char** pixels, const Py_ssize_t* steps,
) noexcept nogil:
    """As `windows`, from bfloat16."""
    cdef const float* weight = (
        <const float*> at(slots, p.weight) + first * (p.kernel_h * p.kernel_w + 1)
    )
    cdef char* y = at(slots, p.y) + (pixel * p.ldy + first) * p.y_bytes
    cdef const void* residual = residual_bytes_at(
        &p.epilogue, &p.end, slots, pixel * p.epilogue.ldr + first
    )
    if p.by_row:
        p.narrow_dwrow(
            p.kernel_h, n, <const bfloat16_t* const*> pixels, steps, weight, y, p.ldy,
            residual, p.epilogue.ldr, &p.end,
        )
    else:
        p.kernels.bf16_dwconv[m](
            p.kernel_h * p.kernel_w, n, <const bfloat16_t* const*> pixels, NULL, weight, y, p.ldy,
            residual, p.epilogue.ldr, &p.end,
        )


cdef inline void point_pixel(
    const inverted_t* p, const char* ring, Py_ssize_t ih, Py_ssize_t column, const char** pixels,
    Py_ssize_t apart,
) noexcept nogil:
    """Fill pixels[t * apart] with the taps of the window at (ih, column - left)."""
    cdef Py_ssize_t pixel = p.ld_ring * p.ring_bytes, v
    cdef const char* line
    for _ in range(p.kernel_h):
        line = ring + (ih % p.ring_rows * p.ring_width + column) * pixel
        for v in range(p.kernel_w):
            pixels[0] = p.zeros
            if 0 <= ih < p.in_h:
                pixels[0] = line + v * p.dilation_w * pixel
            pixels += apart
        ih += p.dilation_h


cdef inline void point_window(
    const inverted_t* p, const char* ring, Py_ssize_t ih, Py_ssize_t column,
    const char** pixels, Py_ssize_t* steps,
) noexcept nogil:
    """Fill pixels and steps with the rows, or all taps, of the window at (ih, column - left)."""
    cdef const char* line
    cdef Py_ssize_t step, v
    for _ in range(p.kernel_h):
        line, step = p.zeros, 0
        if 0 <= ih < p.in_h:
            step = p.ld_ring
            line = ring + (ih % p.ring_rows * p.ring_width + column) * step * p.ring_bytes
        ih += p.dilation_h
        if p.by_row:
            pixels[0], steps[0] = line, step
            pixels += 1
            steps += 1
            continue
        for v in range(p.kernel_w):
            pixels[v] = line + v * p.dilation_w * step * p.ring_bytes
            steps[v] = p.stride_w * step
        pixels += p.kernel_w
        steps += p.kernel_w
