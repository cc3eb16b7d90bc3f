"""Pooling: maximum, argmax and mean over windows of channels-last pixels.

The kernel treats fixed and adaptive windows the same: three tables per axis hold, for each output,
the start of its window, the number of its taps inside the input, and the divisor of a mean.
Consecutive outputs with equal windows form a run, which one micro-kernel call computes.
"""

import numpy as np

from libc.stdint cimport int64_t, uint8_t, uintptr_t

from kuiper._kernels.micro.dispatch cimport active
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start
from kuiper._kernels.micro.table cimport kernels_t, pool_fn

from kuiper._kernels.spatial import pool_windows
from kuiper._runtime.step import run_step
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import Buffer, TensorView, channels_last_strides
from kuiper.errors import InputError

cdef enum:
    ROWS_ENOUGH = 16  # with fewer rows of output, threads divide the channels as well

cdef struct axis_t:
    const int64_t* start    # (y_extent,), as in Windows
    const int64_t* count    # (y_extent,)
    const int64_t* divisor  # (y_extent,)
    const int64_t* run      # (y_extent,)
    Py_ssize_t x_extent
    Py_ssize_t y_extent
    Py_ssize_t dilation

cdef struct pool_t:
    const kernels_t* kernels
    pool_fn window
    ref_t x
    ref_t y
    ref_t indices
    ref_t scratch
    Py_ssize_t itemsize     # of x and y
    Py_ssize_t max_rows     # of a window
    Py_ssize_t batch
    Py_ssize_t channels
    Py_ssize_t block        # channels of a work item
    Py_ssize_t n_blocks
    Py_ssize_t ldx          # pixel strides, in elements
    Py_ssize_t ldy
    Py_ssize_t ld_indices
    float divisor           # of a mean; 0: those of the windows
    axis_t depth
    axis_t height
    axis_t width


cdef class PoolStep(Step):
    """Reduces windows of an image.

    Parameters
    ----------
    x : TensorView, shape (n, c, d * h, w), channels-last
        float32, or bfloat16 or uint8 without indices; uint8 for maxima only.
    y : TensorView, shape (n, c, od * oh, ow), channels-last
        Of the dtype of x.
    windows : sequence of Windows
        Of the axes d, h and w.
    kind : str
        ``"max"`` or ``"mean"``.
    scratch : TensorView
        :func:`~kuiper._kernels.spatial.pool_windows.scratch_bytes` bytes.
    indices : TensorView, optional
        int64, of the shape of y: the flat index of each maximum in (d, h, w).
    divisor : int, default=0
        Of means; 0 for the divisors of the windows.
    """

    cdef pool_t p

    def __init__(self, x, y, windows, kind, scratch, indices=None, divisor=0):
        cdef Py_ssize_t rows, vectors, unit, blocks, lanes = active().lanes
        cdef bint of_bytes = x.dtype == np.uint8
        if of_bytes:
            lanes *= 4
        self.p.kernels = active()
        self.p.itemsize = x.dtype.itemsize
        if x.dtype == BFLOAT16:
            self.p.window = active().bf16_pool_max if kind == "max" else active().bf16_pool_mean
        else:
            self.p.window = active().f32_pool_max if kind == "max" else active().f32_pool_mean
        self.p.x, self.p.y = self.ref(x), self.ref(y)
        self.p.scratch = self.ref(scratch)
        self.p.max_rows = pool_windows.max_rows(windows)
        self.p.batch, self.p.channels = x.shape[0], x.shape[1]
        self.p.ldx, self.p.ldy = x.row_stride, y.row_stride
        self.p.divisor = divisor
        depth, height, width = windows
        fill_axis(&self.p.depth, depth)
        fill_axis(&self.p.height, height)
        fill_axis(&self.p.width, width)
        self.keep = tuple(windows)
        rows = self.p.batch * self.p.depth.y_extent * self.p.height.y_extent
        vectors = ceil_div(self.p.channels, lanes)
        # Multiples of four vectors if there are enough; the micro-kernel is fastest on them.
        unit = 4 if vectors >= 8 else 1
        blocks = 1 if rows >= ROWS_ENOUGH else ceil_div(ROWS_ENOUGH, max(rows, 1))
        self.p.block = lanes * unit * max(1, ceil_div(vectors, unit * blocks))
        # A remainder of less than a vector joins the previous block, which covers it with a whole
        # vector.  Alone it would be summed in another order, and blocks depend on the batch.
        self.p.n_blocks = self.p.channels // self.p.block
        if self.p.n_blocks == 0 or self.p.channels % self.p.block >= lanes:
            self.p.n_blocks += 1
        self.params = &self.p
        if of_bytes:
            self.run = pool_bytes_run
        elif indices is None:
            self.run = pool_run
        else:
            self.p.indices, self.p.ld_indices = self.ref(indices), indices.row_stride
            self.run = pool_argmax_run
        self.max_shards = max(rows * self.p.n_blocks, 1)
        self.kind = f"pool_{kind}"
        taps = [axis.counts.mean() if axis.counts.size else 0 for axis in windows]
        self.flops = float(y.size * taps[0] * taps[1] * taps[2])
        self.bytes = float(x.n_bytes + y.n_bytes + (0 if indices is None else indices.n_bytes))


cdef int fill_axis(axis_t* axis, windows) except -1:
    axis.start = <const int64_t*> <uintptr_t> windows.starts.ctypes.data
    axis.count = <const int64_t*> <uintptr_t> windows.counts.ctypes.data
    axis.divisor = <const int64_t*> <uintptr_t> windows.divisors.ctypes.data
    axis.run = <const int64_t*> <uintptr_t> windows.runs.ctypes.data
    axis.x_extent, axis.y_extent = windows.extent, len(windows.starts)
    axis.dilation = windows.dilation
    return 0


# A work item: a row of output pixels in a block of channels.
cdef struct pool_window_t:
    Py_ssize_t x            # offset of (d, h, w, ldx), first channel of the block, in elements
    Py_ssize_t y            # offset of (ow, ldy), in elements
    Py_ssize_t pixel        # index of the first pixel of the row in y
    Py_ssize_t first        # channel
    Py_ssize_t channels
    Py_ssize_t n_rows       # of each window
    int64_t divisor         # product of the divisors of depth and height


cdef inline pool_window_t window_rows(
    const pool_t* p, Py_ssize_t item, Py_ssize_t* rows, int* first_pixels
) noexcept nogil:
    """Locate a work item.

    Writes the offset of each window row from x, and its first pixel in the volume if
    `first_pixels` is not NULL.
    """
    cdef pool_window_t w
    cdef Py_ssize_t block = item % p.n_blocks, row = item // p.n_blocks
    cdef Py_ssize_t h = row % p.height.y_extent, d = row // p.height.y_extent % p.depth.y_extent
    cdef Py_ssize_t n = row // p.height.y_extent // p.depth.y_extent
    cdef Py_ssize_t i, j, line
    w.first = block * p.block
    w.channels = p.channels - w.first if block == p.n_blocks - 1 else p.block
    w.pixel = row * p.width.y_extent
    w.x = n * p.depth.x_extent * p.height.x_extent * p.width.x_extent * p.ldx + w.first
    w.y = w.pixel * p.ldy + w.first
    w.n_rows = 0
    for i in range(p.depth.count[d]):
        for j in range(p.height.count[h]):
            line = (p.depth.start[d] + i * p.depth.dilation) * p.height.x_extent
            line += p.height.start[h] + j * p.height.dilation
            rows[w.n_rows] = line * p.width.x_extent * p.ldx
            if first_pixels != NULL:
                first_pixels[w.n_rows] = <int> (line * p.width.x_extent)
            w.n_rows += 1
    w.divisor = p.depth.divisor[d] * p.height.divisor[h]
    return w


cdef void pool_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Maximum or mean over each window.

    Layout : x (n, d, h, w, c), y (n, od, oh, ow, c), any pixel strides
    Needs  : windows inside x
    Threads: over rows of y x blocks of channels; no shared writes
    Source : torch.nn.MaxPool2d, AvgPool2d, AdaptiveMaxPool2d, AdaptiveAvgPool2d
    """
    cdef const pool_t* p = <const pool_t*> params
    cdef Py_ssize_t items = p.batch * p.depth.y_extent * p.height.y_extent * p.n_blocks
    cdef Py_ssize_t* rows = <Py_ssize_t*> at(slots, p.scratch)
    cdef const char* x = at(slots, p.x)
    cdef char* y = at(slots, p.y)
    cdef Py_ssize_t item, i, step
    cdef float divisor
    cdef pool_window_t w
    for item in range(shard_start(items, shard, n_shards), shard_start(items, shard + 1, n_shards)):
        w = window_rows(p, item, rows, NULL)
        i = 0
        while i < p.width.y_extent:
            step = p.width.start[i + 1] - p.width.start[i] if p.width.run[i] > 1 else 0
            divisor = p.divisor if p.divisor != 0 else <float> (w.divisor * p.width.divisor[i])
            p.window(
                x + (w.x + p.width.start[i] * p.ldx) * p.itemsize, step * p.ldx, rows, w.n_rows,
                p.width.count[i], p.width.dilation * p.ldx,
                y + (w.y + i * p.ldy) * p.itemsize, p.ldy, p.width.run[i], w.channels, divisor,
            )
            i += p.width.run[i]


cdef void pool_bytes_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Maximum of bytes over each window.

    Layout : x (n, d, h, w, c), y (n, od, oh, ow, c), any pixel strides
    Needs  : windows inside x
    Threads: over rows of y x blocks of channels; no shared writes
    Source : torch.nn.MaxPool2d of a quantized tensor; padding is the smallest byte
    """
    cdef const pool_t* p = <const pool_t*> params
    cdef Py_ssize_t items = p.batch * p.depth.y_extent * p.height.y_extent * p.n_blocks
    cdef Py_ssize_t* rows = <Py_ssize_t*> at(slots, p.scratch)
    cdef const uint8_t* x = <const uint8_t*> at(slots, p.x)
    cdef uint8_t* y = <uint8_t*> at(slots, p.y)
    cdef Py_ssize_t item, i, step
    cdef pool_window_t w
    for item in range(shard_start(items, shard, n_shards), shard_start(items, shard + 1, n_shards)):
        w = window_rows(p, item, rows, NULL)
        i = 0
        while i < p.width.y_extent:
            step = p.width.start[i + 1] - p.width.start[i] if p.width.run[i] > 1 else 0
            p.kernels.u8_pool_max(
                x + w.x + p.width.start[i] * p.ldx, step * p.ldx, rows, w.n_rows,
                p.width.count[i], p.width.dilation * p.ldx,
                y + w.y + i * p.ldy, p.ldy, p.width.run[i], w.channels,
            )
            i += p.width.run[i]


cdef void pool_argmax_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Maximum over each window, and its flat index in (d, h, w).

    Layout : x (n, d, h, w, c), y and indices (n, od, oh, ow, c), any pixel strides
    Needs  : windows inside x; d * h * w < 2 ** 31
    Threads: over rows of y x blocks of channels; no shared writes
    Source : torch.nn.MaxPool2d and AdaptiveMaxPool2d with return_indices
    """
    cdef const pool_t* p = <const pool_t*> params
    cdef Py_ssize_t items = p.batch * p.depth.y_extent * p.height.y_extent * p.n_blocks
    cdef Py_ssize_t* rows = <Py_ssize_t*> at(slots, p.scratch)
    cdef int* pixels = <int*> (rows + p.max_rows)
    cdef const float* x = <const float*> at(slots, p.x)
    cdef float* y = <float*> at(slots, p.y)
    cdef int64_t* indices = <int64_t*> at(slots, p.indices)
    cdef Py_ssize_t item, i, j
    cdef pool_window_t w
    for item in range(shard_start(items, shard, n_shards), shard_start(items, shard + 1, n_shards)):
        w = window_rows(p, item, rows, pixels)
        for i in range(p.width.y_extent):
            # Move the first pixel of each window row to this window.
            for j in range(w.n_rows):
                pixels[j] += <int> (p.width.start[i] - (p.width.start[i - 1] if i > 0 else 0))
            p.kernels.f32_pool_argmax(
                x + w.x + p.width.start[i] * p.ldx, rows, w.n_rows, p.width.count[i],
                p.width.dilation * p.ldx, w.channels, pixels, <int> p.width.dilation,
                y + w.y + i * p.ldy,
                indices + (w.pixel + i) * p.ld_indices + w.first,
            )


# -- the kernels alone -------------------------------------------------------------------------


def pool2d(
    const float[:, :, :, ::1] x, kind, kernel_size, stride=None, padding=0, dilation=1,
    bint ceil_mode=False, bint count_include_pad=True, int divisor=0, *, int n_threads=1,
):
    """Pool a batch of channels-last images.

    Parameters
    ----------
    x : array of float32, shape (n, h, w, c)
    kind : str
        ``"max"`` or ``"mean"``.
    kernel_size, stride, padding, dilation : int or (int, int)
        In pixels; the default stride is the kernel size.  Padding counts as -infinity for a
        maximum, as 0 for a mean.
    ceil_mode : bool, default=False
        Whether the last window may extend past the far edge.
    count_include_pad : bool, default=True
        Whether a mean divides by the number of pixels including those in the padding.
    divisor : int, default=0
        Of means; 0 for the number of pixels.
    n_threads : int, default=1

    Returns
    -------
    numpy.ndarray of float32, shape (n, oh, ow, c)

    Raises
    ------
    InputError
        If the window does not fit the image, or `n_threads` is less than 1.

    Examples
    --------
    >>> import numpy as np
    >>> from kuiper._kernels.spatial.pool import pool2d
    >>> x = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)
    >>> pool2d(x, "max", 2)[0, :, :, 0]
    array([[ 5.,  7.],
           [13., 15.]], dtype=float32)
    """
    if n_threads < 1:
        raise InputError(f"n_threads is {n_threads}, expected an integer >= 1")
    windows = pool_windows.image_windows(
        (x.shape[1], x.shape[2]), kernel_size, stride, padding, dilation, ceil_mode,
        count_include_pad,
    )
    array = np.asarray(x)
    y = np.empty((x.shape[0], len(windows[1]), len(windows[2]), x.shape[3]), np.float32)
    n_bytes = pool_windows.scratch_bytes(windows)
    views = []
    for slot, operand in enumerate((array, y)):
        shape = np.moveaxis(operand, -1, 1).shape
        buffer = Buffer(slot, operand.nbytes, "input")
        views.append(TensorView(buffer, shape, channels_last_strides(shape)))
    scratch = TensorView(Buffer(2, n_bytes, "scratch"), (n_bytes,), (1,), dtype=np.uint8)
    step = PoolStep(*views, windows, kind, scratch, divisor=divisor)
    if array.size and y.size:
        run_step(step, [array, y, (np.empty((n_threads, n_bytes), np.uint8),)], n_threads)
    return y
