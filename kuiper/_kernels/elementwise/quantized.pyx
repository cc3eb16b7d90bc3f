"""Floats as bytes of one scale and zero point, and back; functions of bytes as tables.

The loops are those of a copy (data/loops.py).  A block that is contiguous in source and target is
converted directly; any other passes through a buffer of floats in the L1 cache, transposed on the
way if that is what the strides ask for, so that the conversion itself always runs over dense
memory.
"""

from libc.stdint cimport uint8_t, uintptr_t

from kuiper._kernels.data.strided cimport advance, cursor_t, fill_strided, seek, strided_t
from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.micro.table cimport kernels_t
from kuiper._runtime.step cimport Step, at, ref_t, shard_start

import numpy as np

from kuiper._kernels.data.loops import copy_loops

cdef enum:
    BLOCK = 4096           # elements of a block at most: 16 KB of floats
    SHARD_ELEMENTS = 8192  # fewest elements of a shard that are worth a thread
    LONG_RUN = 16          # elements; shorter runs are converted together
    ITEM = 4               # bytes of an element of the copy whose loops are used

ctypedef fused item_t:
    uint8_t
    float

# What becomes of the elements.
cdef enum conversion_t:
    TO_BYTES
    TO_FLOATS
    BY_TABLE

cdef struct convert_t:
    const kernels_t* kernels
    const uint8_t* table        # (256,), of BY_TABLE
    ref_t x
    ref_t y
    float factor                # the scale, or its inverse if y is bytes
    int zero
    bint is_direct              # runs along a are contiguous in x and y, and long
    bint is_transposed          # a is contiguous in y, b in x
    Py_ssize_t xa, xb, ya, yb   # strides in a block, in elements
    Py_ssize_t n_a, n_b         # extents of the axes that are cut into blocks
    Py_ssize_t step_a, step_b   # extents of a block
    strided_t around            # x and y, in elements; the last two run over blocks of b and a


cdef inline void gather(
    const convert_t* p, const item_t* x, item_t* block, Py_ssize_t n_a, Py_ssize_t n_b
) noexcept nogil:
    """block[b, a] = x[b, a]"""
    cdef Py_ssize_t a, b
    for b in range(n_b):
        for a in range(n_a):
            block[b * n_a + a] = x[b * p.xb + a * p.xa]


cdef inline void scatter(
    const convert_t* p, const item_t* block, item_t* y, Py_ssize_t n_a, Py_ssize_t n_b
) noexcept nogil:
    """y[b, a] = block[b, a]"""
    cdef Py_ssize_t a, b
    for b in range(n_b):
        for a in range(n_a):
            y[b * p.yb + a * p.ya] = block[b * n_a + a]


cdef inline void block_to_bytes(
    const convert_t* p, const float* x, uint8_t* y, Py_ssize_t n_a, Py_ssize_t n_b
) noexcept nogil:
    cdef float[BLOCK] floats
    cdef uint8_t[BLOCK] bytes
    cdef Py_ssize_t b
    if p.is_direct:
        for b in range(n_b):
            p.kernels.f32_to_u8(n_a, x + b * p.xb, y + b * p.yb, p.factor, p.zero)
        return
    if p.is_transposed:
        p.kernels.b32_transpose(x, p.xa, floats, n_a, n_a, n_b)
    else:
        floats[0] = 0  # what a block without elements passes on
        gather(p, x, &floats[0], n_a, n_b)
    if p.ya == 1 and (p.yb == n_a or n_b == 1):
        p.kernels.f32_to_u8(n_a * n_b, floats, y, p.factor, p.zero)
    elif p.ya == 1 and n_a >= LONG_RUN:
        for b in range(n_b):
            p.kernels.f32_to_u8(n_a, floats + b * n_a, y + b * p.yb, p.factor, p.zero)
    else:
        p.kernels.f32_to_u8(n_a * n_b, floats, bytes, p.factor, p.zero)
        scatter(p, &bytes[0], y, n_a, n_b)


cdef inline void block_to_floats(
    const convert_t* p, const uint8_t* x, float* y, Py_ssize_t n_a, Py_ssize_t n_b
) noexcept nogil:
    cdef float[BLOCK] floats
    cdef uint8_t[BLOCK] bytes
    cdef Py_ssize_t a, b
    if p.is_direct:
        for b in range(n_b):
            p.kernels.u8_to_f32(n_a, x + b * p.xb, y + b * p.yb, p.factor, p.zero)
        return
    if p.is_transposed and n_b >= LONG_RUN:
        for a in range(n_a):
            p.kernels.u8_to_f32(n_b, x + a * p.xa, floats + a * n_b, p.factor, p.zero)
        p.kernels.b32_transpose(floats, n_b, y, p.yb, n_a, n_b)
        return
    bytes[0] = 0  # what a block without elements passes on
    gather(p, x, &bytes[0], n_a, n_b)
    if p.ya == 1 and (p.yb == n_a or n_b == 1):
        p.kernels.u8_to_f32(n_a * n_b, bytes, y, p.factor, p.zero)
    else:
        p.kernels.u8_to_f32(n_a * n_b, bytes, floats, p.factor, p.zero)
        scatter(p, &floats[0], y, n_a, n_b)


cdef inline void block_by_table(
    const convert_t* p, const uint8_t* x, uint8_t* y, Py_ssize_t n_a, Py_ssize_t n_b
) noexcept nogil:
    cdef uint8_t[BLOCK] bytes
    cdef Py_ssize_t b
    if p.is_direct:
        for b in range(n_b):
            p.kernels.u8_lookup(n_a, x + b * p.xb, y + b * p.yb, p.table)
        return
    gather(p, x, &bytes[0], n_a, n_b)
    p.kernels.u8_lookup(n_a * n_b, bytes, bytes, p.table)
    scatter(p, &bytes[0], y, n_a, n_b)


cdef inline void convert_run(
    conversion_t conversion, const convert_t* p, char* const* slots, Py_ssize_t shard,
    Py_ssize_t n_shards,
) noexcept nogil:
    cdef Py_ssize_t block = shard_start(p.around.count, shard, n_shards)
    cdef Py_ssize_t stop = shard_start(p.around.count, shard + 1, n_shards), n_a, n_b, _i
    cdef int last = p.around.rank - 1
    cdef cursor_t cursor
    cdef const char* x = at(slots, p.x)
    cdef char* y = at(slots, p.y)
    if block >= stop:
        return
    seek(&p.around, 2, &cursor, block)
    for _i in range(block, stop):
        n_a = min(p.step_a, p.n_a - cursor.index[last] * p.step_a)
        n_b = min(p.step_b, p.n_b - cursor.index[last - 1] * p.step_b)
        if conversion == TO_BYTES:
            block_to_bytes(
                p, <const float*> x + cursor.offset[0], <uint8_t*> y + cursor.offset[1], n_a, n_b
            )
        elif conversion == TO_FLOATS:
            block_to_floats(
                p, <const uint8_t*> x + cursor.offset[0], <float*> y + cursor.offset[1], n_a, n_b
            )
        else:
            block_by_table(
                p, <const uint8_t*> x + cursor.offset[0], <uint8_t*> y + cursor.offset[1], n_a, n_b
            )
        advance(&p.around, 2, &cursor)


cdef void quantize_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Multiply by the inverse scale, round to nearest even, add the zero point, clamp to a byte.

    Layout : x, y any strides
    Needs  : x and y do not overlap; no stride of y is 0
    Threads: over blocks of up to 4096 elements; no shared writes
    Source : ONNX's QuantizeLinear, with a product by the inverse instead of a quotient
    """
    convert_run(TO_BYTES, <const convert_t*> params, slots, shard, n_shards)


cdef void dequantize_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Subtract the zero point and multiply by the scale.

    Layout : x, y any strides
    Needs  : x and y do not overlap; no stride of y is 0
    Threads: over blocks of up to 4096 elements; no shared writes
    Source : ONNX's DequantizeLinear
    """
    convert_run(TO_FLOATS, <const convert_t*> params, slots, shard, n_shards)


cdef void lookup_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Replace each byte by its entry in a table.

    Layout : x, y any strides
    Needs  : x and y do not overlap, or are the same; no stride of y is 0
    Threads: over blocks of up to 4096 elements; no shared writes
    Source : none; a function of one byte has 256 values
    """
    convert_run(BY_TABLE, <const convert_t*> params, slots, shard, n_shards)


cdef class _ConvertStep(Step):
    cdef convert_t p
    cdef object loops_memory

    def __init__(self, x, y, factor=1, int zero=0):
        self.p.kernels = active()
        self.p.x, self.p.y = self.ref(x), self.ref(y)
        self.p.factor, self.p.zero = factor, zero
        self.params = &self.p
        self.bytes = float(x.n_bytes + y.n_bytes)
        self._arrange(copy_loops(y.shape, x.strides, y.strides, ITEM))
        self.max_shards = max(1, min(self.p.around.count, y.size // SHARD_ELEMENTS))

    cdef _arrange(self, loops):
        """Fill in the loops of a copy of elements that are ITEM bytes long."""
        self.p.is_direct = loops.kind == "runs"
        self.p.is_transposed = loops.kind == "transposed"
        self.p.n_a, self.p.xa, self.p.ya = loops.a.extent, loops.a.x // ITEM, loops.a.y // ITEM
        self.p.n_b, self.p.xb, self.p.yb = loops.b.extent, loops.b.x // ITEM, loops.b.y // ITEM
        self.p.step_a, self.p.step_b = loops.step_a, loops.step_b
        assert loops.step_a * loops.step_b <= BLOCK
        around = [(loop.extent, (loop.x // ITEM, loop.y // ITEM)) for loop in loops.around]
        self.loops_memory = fill_strided(&self.p.around, around, 2)


cdef class QuantizeStep(_ConvertStep):
    """Floats as bytes: ``clamp(rint(x * (1 / scale)) + zero, 0, 255)``; NaN becomes `zero`.

    Parameters
    ----------
    x : TensorView, float32
        Any strides.
    y : TensorView, uint8
        Of the same shape, with positive strides; it does not overlap `x`.
    scale : float
        Positive; its inverse, as float32, is finite.
    zero : int
        0 to 255.
    """

    def __init__(self, x, y, scale, int zero):
        _ConvertStep.__init__(self, x, y, np.float32(1) / np.float32(scale), zero)
        self.run = quantize_run
        self.kind = "quantize"


cdef class DequantizeStep(_ConvertStep):
    """Bytes as floats: ``(x - zero) * scale``.

    Parameters
    ----------
    x : TensorView, uint8
        Any strides.
    y : TensorView, float32
        Of the same shape, with positive strides; it does not overlap `x`.
    scale : float
    zero : int
        0 to 255.
    """

    def __init__(self, x, y, scale, int zero):
        _ConvertStep.__init__(self, x, y, np.float32(scale), zero)
        self.run = dequantize_run
        self.kind = "dequantize"


cdef class LookupStep(_ConvertStep):
    """A function of bytes: ``table[x]``.

    Parameters
    ----------
    x : TensorView, uint8
        Any strides.
    y : TensorView, uint8
        Of the same shape, with positive strides; it does not overlap `x`, or is `x`.
    table : numpy.ndarray, shape (256,), uint8
    """

    def __init__(self, x, y, table):
        _ConvertStep.__init__(self, x, y)
        self.keep = np.ascontiguousarray(table)
        self.p.table = <const uint8_t*> <uintptr_t> self.keep.ctypes.data
        self.run = lookup_run
        self.kind = "lookup"
