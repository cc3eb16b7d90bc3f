"""Strided copies (layout changes, concatenation, permutation) and fills.

A copy is a loop nest over the axes of both tensors, which loops.py arranges when the step is made.
The two innermost loops form a *block* that one of three kernels moves: contiguous runs (memcpy), a
transposition in registers, or single elements.  A kernel serves every dtype of an element size.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kuiper._kernels.data.strided cimport advance, cursor_t, fill_strided, seek, strided_t
from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.micro.table cimport kernels_t
from kuiper._kernels.simd.bfloat16 cimport bfloat16_t
from kuiper._runtime.step cimport Step, at, ref_t, shard_start

import numpy as np

from kuiper._kernels.data.loops import copy_loops
from kuiper.ir import dtypes

cdef enum:
    SHARD_BYTES = 8192   # fewest bytes of a shard that are worth a thread

ctypedef fused item_t:
    uint8_t
    uint16_t
    uint32_t
    uint64_t

cdef struct copy_t

# y[b * yb + a * ya] = x[b * xb + a * xa] for a < n_a, b < n_b; strides in bytes
ctypedef void (*block_fn)(
    const copy_t* p, const char* x, char* y, Py_ssize_t n_a, Py_ssize_t n_b
) noexcept nogil

cdef struct copy_t:
    ref_t x
    ref_t y
    bint is_fill
    uint64_t pattern            # the item that a fill writes
    const kernels_t* kernels
    block_fn block
    Py_ssize_t itemsize
    Py_ssize_t xa, xb, ya, yb   # strides in a block, in bytes
    Py_ssize_t n_a, n_b         # extents of the axes that are cut into blocks
    Py_ssize_t step_a, step_b   # extents of a block
    strided_t around            # x and y, in bytes; the last two loops run over blocks of b and a


cdef void copy_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Copy between two strided tensors of equal shape.

    Layout : x, y any strides; elements of 1, 2, 4 or 8 bytes
    Needs  : x and y do not overlap; no stride of y is 0
    Threads: over blocks of up to 16 KB; no shared writes
    Source : none; torch.Tensor.copy_ for one dtype
    """
    cdef const copy_t* p = <const copy_t*> params
    cdef Py_ssize_t block = shard_start(p.around.count, shard, n_shards)
    cdef Py_ssize_t stop = shard_start(p.around.count, shard + 1, n_shards), n_a, n_b, _i
    cdef int last = p.around.rank - 1
    cdef cursor_t cursor
    cdef const char* x = <const char*> &p.pattern if p.is_fill else at(slots, p.x)
    cdef char* y = at(slots, p.y)
    if block >= stop:
        return
    seek(&p.around, 2, &cursor, block)
    for _i in range(block, stop):
        n_a = p.n_a - cursor.index[last] * p.step_a
        n_b = p.n_b - cursor.index[last - 1] * p.step_b
        p.block(
            p, x + cursor.offset[0], y + cursor.offset[1],
            p.step_a if n_a > p.step_a else n_a, p.step_b if n_b > p.step_b else n_b,
        )
        advance(&p.around, 2, &cursor)


cdef void block_of_runs(
    const copy_t* p, const char* x, char* y, Py_ssize_t n_a, Py_ssize_t n_b
) noexcept nogil:
    cdef Py_ssize_t b
    for b in range(n_b):
        memcpy(y + b * p.yb, x + b * p.xb, n_a * p.itemsize)


cdef void block_transposed(
    const copy_t* p, const char* x, char* y, Py_ssize_t n_a, Py_ssize_t n_b
) noexcept nogil:
    p.kernels.b32_transpose(
        <const float*> x, p.xa // <Py_ssize_t> sizeof(float),
        <float*> y, p.yb // <Py_ssize_t> sizeof(float), n_a, n_b,
    )


cdef inline void block_of_items(
    const copy_t* p, const item_t* x, item_t* y, Py_ssize_t n_a, Py_ssize_t n_b
) noexcept nogil:
    cdef Py_ssize_t size = sizeof(item_t)
    cdef Py_ssize_t xa = p.xa // size, xb = p.xb // size, ya = p.ya // size, yb = p.yb // size
    cdef Py_ssize_t a, b
    cdef item_t item
    if xa == 0 and ya == 1:
        for b in range(n_b):
            item = x[b * xb]
            for a in range(n_a):
                y[b * yb + a] = item
    elif xa == 1 and ya == 1:
        for b in range(n_b):
            for a in range(n_a):
                y[b * yb + a] = x[b * xb + a]
    elif n_a == 2 and ya == 1 and xb == 1 and yb == 2:
        # Two runs interleaved, as a shuffle of two groups does: compilers vectorise this loop.
        for b in range(n_b):
            y[2 * b] = x[b]
            y[2 * b + 1] = x[b + xa]
    elif n_b == 2 and yb == 1 and xa == 1 and ya == 2:
        for a in range(n_a):
            y[2 * a] = x[a]
            y[2 * a + 1] = x[a + xb]
    elif xa == -1 and ya == 1:
        for b in range(n_b):
            for a in range(n_a):
                y[b * yb + a] = x[b * xb - a]
    else:
        for b in range(n_b):
            for a in range(n_a):
                y[b * yb + a * ya] = x[b * xb + a * xa]


cdef void block_of_items_1(
    const copy_t* p, const char* x, char* y, Py_ssize_t n_a, Py_ssize_t n_b
) noexcept nogil:
    block_of_items(p, <const uint8_t*> x, <uint8_t*> y, n_a, n_b)


cdef void block_of_items_2(
    const copy_t* p, const char* x, char* y, Py_ssize_t n_a, Py_ssize_t n_b
) noexcept nogil:
    block_of_items(p, <const uint16_t*> x, <uint16_t*> y, n_a, n_b)


cdef void block_of_items_4(
    const copy_t* p, const char* x, char* y, Py_ssize_t n_a, Py_ssize_t n_b
) noexcept nogil:
    block_of_items(p, <const uint32_t*> x, <uint32_t*> y, n_a, n_b)


cdef void block_of_items_8(
    const copy_t* p, const char* x, char* y, Py_ssize_t n_a, Py_ssize_t n_b
) noexcept nogil:
    block_of_items(p, <const uint64_t*> x, <uint64_t*> y, n_a, n_b)


cdef class CopyStep(Step):
    """Copies a tensor into another one of equal shape and dtype but any strides.

    Parameters
    ----------
    source : TensorView
        May be broadcast (strides of 0) or reversed (negative strides).
    target : TensorView
        Its strides are positive; it does not overlap the source.
    """

    cdef copy_t p

    def __init__(self, source, target):
        self.p.x = self.ref(source)
        self.p.y = self.ref(target)
        self.kind = "copy"
        self._prepare(target, source.strides)
        self.bytes = 2.0 * target.n_bytes

    cdef _prepare(self, target, x_strides):
        """Fill in the loops; `x_strides` are the source's, in elements."""
        loops = copy_loops(target.shape, x_strides, target.strides, target.dtype.itemsize)
        self.p.itemsize = loops.itemsize
        self.p.n_a, self.p.xa, self.p.ya = loops.a
        self.p.n_b, self.p.xb, self.p.yb = loops.b
        self.p.step_a, self.p.step_b = loops.step_a, loops.step_b
        around = [(loop.extent, (loop.x, loop.y)) for loop in loops.around]
        self.keep = fill_strided(&self.p.around, around, 2)
        self.p.kernels = active()
        if loops.kind == "runs":
            self.p.block = block_of_runs
        elif loops.kind == "transposed" and loops.itemsize == 4:
            self.p.block = block_transposed
        elif loops.itemsize == 1:
            self.p.block = block_of_items_1
        elif loops.itemsize == 2:
            self.p.block = block_of_items_2
        elif loops.itemsize == 4:
            self.p.block = block_of_items_4
        else:
            self.p.block = block_of_items_8
        self.run = copy_run
        self.params = &self.p
        self.max_shards = max(1, min(self.p.around.count, target.n_bytes // SHARD_BYTES))


cdef class FillStep(CopyStep):
    """Fills a tensor with a number.

    Parameters
    ----------
    target : TensorView
        Elements of at most 8 bytes.
    number : float, int or bool
        Converted to the target's dtype.
    """

    def __init__(self, target, number):
        cdef bytes item
        cdef float wide
        cdef uint16_t half
        is_bfloat16 = target.dtype == dtypes.BFLOAT16
        with np.errstate(all="ignore"):  # a float64 beyond the range of float32 becomes infinity
            item = np.array(number).astype(np.float32 if is_bfloat16 else target.dtype).tobytes()
        if is_bfloat16:
            memcpy(&wide, <const char*> item, sizeof(float))
            active().f32_to_bf16(1, &wide, <bfloat16_t*> &half)
            item = (<const char*> &half)[:sizeof(half)]
        self.p.y = self.ref(target)
        self.p.is_fill = True
        memcpy(&self.p.pattern, <const char*> item, len(item))
        self.kind = "fill"
        self._prepare(target, (0,) * target.rank)
        self.bytes = float(target.n_bytes)
