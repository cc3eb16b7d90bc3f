"""Resizing of channels-last images; nearest, linear and cubic modes differ in their taps.

An output row is a weighted sum of a few input rows.  Each input row is resampled along its columns
once, into a buffer that stays in the cache, for all output rows that use it.  Vectors run across
channels in the first pass, and along whole rows in the second.  A planar image is a batch of
one-channel images.  Rows in bfloat16 are widened before, and rounded after.
"""

from libc.stdint cimport uintptr_t
from libc.string cimport memcpy

from kuiper._kernels.micro.dispatch cimport active
from kuiper._runtime.step cimport Step, at, ref_t, shard_start
from kuiper._kernels.micro.table cimport bfloat16_t, kernels_t
from kuiper._kernels.micro.narrow cimport round_rows, widen_rows

import numpy as np

from kuiper.ir.dtypes import BFLOAT16

cdef enum:
    MAX_TAPS = 4
    ROWS_PER_SHARD = 4  # at least, since adjacent shards resample some rows twice

cdef struct resize_t:
    const kernels_t* kernels
    ref_t x
    ref_t y
    ref_t scratch
    Py_ssize_t batch
    Py_ssize_t channels
    Py_ssize_t x_image       # strides of images and rows, in elements
    Py_ssize_t x_row
    Py_ssize_t x_pixel       # and of pixels
    Py_ssize_t x_columns
    Py_ssize_t ldy           # pixel stride, in elements
    bint from_bfloat16
    bint to_bfloat16
    Py_ssize_t rows          # of the output
    Py_ssize_t columns
    int row_taps
    int column_taps
    const int* row_indices       # (rows, row_taps), as in Taps
    const int* row_slots         # (rows, row_taps)
    const float* row_weights     # (rows, row_taps)
    const int* offsets           # (columns, column_taps), in elements
    const float* column_weights  # (columns, column_taps)


cdef class ResizeStep(Step):
    """Resizes images.

    Parameters
    ----------
    x : TensorView, shape (n, c, rows, columns), channels-last
    y : TensorView, shape (n, c, out_rows, out_columns), channels-last
    rows, columns : Taps
        With 1, 2 or 4 taps each.
    scratch : TensorView
        :func:`~kuiper._kernels.spatial.resampling.scratch_bytes` bytes; if x or y is in bfloat16, 4
        bytes more for each element of a row of x and of y.
    """

    cdef resize_t p

    def __init__(self, x, y, rows, columns, scratch):
        self.p.kernels = active()
        self.p.x, self.p.y = self.ref(x), self.ref(y)
        self.p.scratch = self.ref(scratch)
        self.p.batch, self.p.channels = x.shape[0], x.shape[1]
        self.p.x_row = x.shape[3] * x.row_stride
        self.p.x_image = x.shape[2] * self.p.x_row
        self.p.ldy = y.row_stride
        self.p.rows, self.p.columns = len(rows), len(columns)
        self.p.row_taps, self.p.column_taps = rows.count, columns.count
        self.p.x_pixel, self.p.x_columns = x.row_stride, x.shape[3]
        self.p.from_bfloat16, self.p.to_bfloat16 = x.dtype == BFLOAT16, y.dtype == BFLOAT16
        # A row that is widened has no gaps between pixels.
        pixel = x.shape[1] if x.dtype == BFLOAT16 else x.row_stride
        offsets = np.ascontiguousarray(columns.indices * pixel, np.int32)
        self.keep = (rows, columns, offsets)
        self.p.row_indices = <const int*> address(rows.indices)
        self.p.row_slots = <const int*> address(rows.slots)
        self.p.row_weights = <const float*> address(rows.weights)
        self.p.offsets = <const int*> address(offsets)
        self.p.column_weights = <const float*> address(columns.weights)
        self.run = resize_run
        if BFLOAT16 in (x.dtype, y.dtype):
            self.run = narrow_resize_run
        self.params = &self.p
        self.max_shards = max(self.p.batch * self.p.rows // ROWS_PER_SHARD, 1)
        self.kind = "resize"
        self.flops = 2.0 * y.size * (rows.count + columns.count)
        self.bytes = float(x.n_bytes + y.n_bytes)


cdef char* address(array):
    return <char*> <uintptr_t> array.ctypes.data


cdef void resize_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Weighted sums of a few input pixels.

    Layout : x (n, h, w, c) -> y (n, oh, ow, c), any pixel strides
    Needs  : taps inside x; offsets in a row below 2 ** 31
    Threads: over rows of y; adjacent shards resample some input rows twice
    Source : torch.nn.functional.interpolate
    """
    cdef const resize_t* p = <const resize_t*> params
    cdef const float* x = <const float*> at(slots, p.x)
    cdef float* y = <float*> at(slots, p.y)
    cdef float* buffer = <float*> at(slots, p.scratch)
    cdef (const float*)[MAX_TAPS] rows
    cdef Py_ssize_t[MAX_TAPS] held          # the row of x that each buffer holds
    cdef Py_ssize_t length = p.columns * p.channels, y_row = p.columns * p.ldy
    cdef Py_ssize_t total = p.batch * p.rows, x_rows = p.x_image // p.x_row
    cdef Py_ssize_t i, j, tap, row, image
    cdef float* y_line
    cdef int k, slot
    for slot in range(MAX_TAPS):
        held[slot] = -1
    for i in range(shard_start(total, shard, n_shards), shard_start(total, shard + 1, n_shards)):
        image, tap = i // p.rows * x_rows, i % p.rows * p.row_taps
        y_line = y + i * y_row
        if p.row_taps == 1:
            row = image + p.row_indices[tap]
            if row == held[0] and p.ldy == p.channels:
                memcpy(y_line, y_line - y_row, length * sizeof(float))
            else:
                resample(p, x + row * p.x_row, y_line, p.ldy)
            held[0] = row
            continue
        for k in range(p.row_taps):
            row = image + p.row_indices[tap + k]
            slot = p.row_slots[tap + k]
            rows[k] = buffer + slot * length
            if held[slot] != row:
                resample(p, x + row * p.x_row, buffer + slot * length, p.channels)
                held[slot] = row
        if p.ldy == p.channels:
            p.kernels.f32_resize_rows(
                p.row_taps, <const float* const*> rows, p.row_weights + tap, y_line, length
            )
            continue
        for j in range(p.columns):
            p.kernels.f32_resize_rows(
                p.row_taps, <const float* const*> rows, p.row_weights + tap,
                y_line + j * p.ldy, p.channels,
            )
            for k in range(p.row_taps):
                rows[k] += p.channels


cdef inline void resample(
    const resize_t* p, const float* x, float* y, Py_ssize_t y_step
) noexcept nogil:
    """Resample the columns of one row."""
    p.kernels.f32_resize_columns(
        p.column_taps, x, p.offsets, p.column_weights, y, y_step, p.columns, p.channels
    )


cdef void narrow_resize_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Weighted sums of a few input pixels in bfloat16, or into bfloat16; sums in float32.

    Layout : as resize_run
    Needs  : as resize_run
    Threads: as resize_run
    Source : torch.nn.functional.interpolate
    """
    cdef const resize_t* p = <const resize_t*> params
    cdef Py_ssize_t x_bytes = sizeof(bfloat16_t) if p.from_bfloat16 else sizeof(float)
    cdef Py_ssize_t y_bytes = sizeof(bfloat16_t) if p.to_bfloat16 else sizeof(float)
    cdef const char* x = at(slots, p.x)
    cdef char* y = at(slots, p.y)
    cdef float* wide = <float*> at(slots, p.scratch)
    cdef float* line = wide + p.x_columns * p.channels
    cdef float* buffer = line + p.columns * p.channels
    cdef (const float*)[MAX_TAPS] rows
    cdef Py_ssize_t[MAX_TAPS] held
    cdef Py_ssize_t length = p.columns * p.channels
    cdef Py_ssize_t total = p.batch * p.rows, x_rows = p.x_image // p.x_row
    cdef Py_ssize_t i, tap, row, image
    cdef float* target
    cdef int k, slot
    for slot in range(MAX_TAPS):
        held[slot] = -1
    for i in range(shard_start(total, shard, n_shards), shard_start(total, shard + 1, n_shards)):
        image, tap = i // p.rows * x_rows, i % p.rows * p.row_taps
        for k in range(p.row_taps):
            row = image + p.row_indices[tap + k]
            slot = p.row_slots[tap + k] if p.row_taps > 1 else 0
            target = buffer + slot * length if p.row_taps > 1 else line
            rows[k] = target
            if held[slot] != row:
                if p.from_bfloat16:
                    widen_rows(
                        p.kernels, <const bfloat16_t*> (x + row * p.x_row * x_bytes), p.x_pixel,
                        p.x_columns, p.channels, wide,
                    )
                    resample(p, wide, target, p.channels)
                else:
                    resample(p, <const float*> (x + row * p.x_row * x_bytes), target, p.channels)
                held[slot] = row
        if p.row_taps > 1:
            p.kernels.f32_resize_rows(
                p.row_taps, <const float* const*> rows, p.row_weights + tap, line, length
            )
        store_line(p, line, y + i * p.columns * p.ldy * y_bytes)


cdef inline void store_line(const resize_t* p, const float* line, char* y) noexcept nogil:
    cdef Py_ssize_t j
    if p.to_bfloat16:
        round_rows(p.kernels, line, p.columns, p.channels, <bfloat16_t*> y, p.ldy)
        return
    for j in range(p.columns):
        memcpy(
            <float*> y + j * p.ldy, line + j * p.channels, p.channels * sizeof(float)
        )
