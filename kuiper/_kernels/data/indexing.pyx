"""Data-dependent access: gather and scatter; masks.pxi: masks, triangles; bags.pxi: embedding bags.

Operands of one shape share one nest of loops, merged by loops.py as far as their strides allow.  An
index out of range is recorded in the error slot (_runtime/step.pxd) and replaced by 0, so no access
leaves a tensor.  Kernels that only move elements serve every dtype of an element size.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import numpy as np

from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.data.loops import strided_loops
from kuiper._runtime.step cimport Step, at, at_or_null, ceil_div, error_slot_t, ref_t, shard_start
from kuiper._kernels.data.strided cimport advance, cursor_t, fill_strided, seek, strided_t
from kuiper._kernels.micro.table cimport kernels_t

cdef extern from "_runtime/work_shares.h" nogil:
    void record_error "kp_record_error"(long long* error_slot, long long value) noexcept

cdef enum:
    MAX_INDICES = 6
    MAX_STEPS = 8        # two tensors and their indices
    BLOCK = 1024         # elements of the inner loop whose offsets are computed together
    SHARD_BYTES = 16384  # fewest bytes of a shard that are worth a thread
    LINE = 16            # elements of a cache line, to keep threads apart
    SHORT_RUN = 512      # bytes; the offsets of longer runs are computed one by one

ctypedef fused item_t:
    uint8_t
    uint16_t
    uint32_t
    uint64_t
    double complex

ctypedef fused number_t:
    float
    double
    int32_t
    int64_t

# How a scatter combines a value with the one it meets.
cdef enum:
    PUT
    ADD
    MULTIPLY
    MAXIMUM
    MINIMUM

KINDS = {"put": PUT, "add": ADD, "multiply": MULTIPLY, "maximum": MAXIMUM, "minimum": MINIMUM}

# -- loops -------------------------------------------------------------------------------------

# The loops over operands of one shape; strides in elements.
cdef struct nest_t:
    strided_t outer              # the loops around the inner one
    Py_ssize_t inner             # iterations of the inner loop
    Py_ssize_t[MAX_STEPS] step   # stride of each operand in the inner loop


cdef fill_nest(Step owner, nest_t* nest, loops):
    """Store loops for a step; the last one is the inner loop."""
    cdef int k
    *outer, (nest.inner, steps) = loops
    owner.keep = fill_strided(&nest.outer, outer, len(steps))
    for k in range(nest.outer.n_operands):
        nest.step[k] = steps[k]


cdef inline Py_ssize_t next_block(
    const nest_t* nest, int n, cursor_t* cursor, Py_ssize_t block, Py_ssize_t blocks
) noexcept nogil:
    """Advance to the next block of the inner loop, or to the first of the next outer iteration."""
    if block + 1 < blocks:
        return block + 1
    advance(&nest.outer, n, cursor)
    return 0


# -- indices -----------------------------------------------------------------------------------

cdef struct index_t:
    ref_t values                 # strides as in the nest
    bint is_wide                 # int64, else int32
    bint negative                # values in [-extent, 0) count from the end
    int64_t extent               # of the indexed axis
    Py_ssize_t stride            # of that axis, in elements

ctypedef fused integer_t:
    int32_t
    int64_t


cdef inline void add_offsets(
    const index_t* p, bint is_first, error_slot_t* error_slot, const integer_t* index,
    Py_ssize_t step, Py_ssize_t n, Py_ssize_t* offset,
) noexcept nogil:
    """offset[i] = (0 if is_first else offset[i]) + index[i * step] * stride."""
    cdef Py_ssize_t i
    cdef int64_t value
    cdef uint64_t bits, outside = 0, last = p.extent - 1
    # Check the range of all indices first, in a loop that vectorises: out of range, either the
    # index or last - index is negative.
    for i in range(n):
        bits = <uint64_t> <int64_t> index[i * step]
        outside |= bits | (last - bits)
    if is_first:
        for i in range(n):
            offset[i] = 0
    if outside >> 63 == 0:
        if is_first and p.stride == 1:
            for i in range(n):
                offset[i] = <Py_ssize_t> index[i * step]
        else:
            for i in range(n):
                offset[i] += <Py_ssize_t> index[i * step] * p.stride
        return
    for i in range(n):
        value = index[i * step]
        if p.negative and -p.extent <= value < 0:
            value += p.extent
        if not 0 <= value < p.extent:
            record_error(<long long*> error_slot, value)
            value = 0
        offset[i] += value * p.stride


# The range of indices whose offsets were computed last: they are reused for the same range.
cdef struct found_t:
    Py_ssize_t n
    Py_ssize_t[MAX_INDICES] begin  # offset of the first value of each index


cdef inline void find_offsets(
    const index_t* indices, int count, const nest_t* nest, const cursor_t* cursor, Py_ssize_t start,
    Py_ssize_t n, char* const* slots, error_slot_t* error_slot, Py_ssize_t* offset, found_t* found,
) noexcept nogil:
    """Compute the offsets that the indices add to n elements of the inner loop.

    The operands of the nest are two tensors, then the indices.
    """
    cdef Py_ssize_t step, begin, i
    cdef int k
    cdef bint is_known = found.n == n
    for k in range(count):
        begin = cursor.offset[2 + k] + start * nest.step[2 + k]
        is_known = is_known and found.begin[k] == begin
        found.begin[k] = begin
    if is_known and count > 0:
        return
    found.n = n
    if count == 0:
        for i in range(n):
            offset[i] = 0
    for k in range(count):
        step, begin = nest.step[2 + k], found.begin[k]
        if indices[k].is_wide:
            add_offsets(
                &indices[k], k == 0, error_slot,
                <const int64_t*> at(slots, indices[k].values) + begin, step, n, offset,
            )
        else:
            add_offsets(
                &indices[k], k == 0, error_slot,
                <const int32_t*> at(slots, indices[k].values) + begin, step, n, offset,
            )


cdef bint _is_constant_inside(const nest_t* nest) noexcept:
    """Tell whether all indices are constant in the inner loop."""
    cdef int k
    for k in range(2, nest.outer.n_operands):
        if nest.step[k]:
            return False
    return True


class AxisIndex:
    """The indices of a step along one axis.

    Parameters
    ----------
    values : TensorView
        int64 or int32, of the shape that the step iterates over.
    extent, stride : int
        Of the axis; the stride in elements.
    negative : bool, default=False
        Whether negative indices count from the end.
    """

    def __init__(self, values, extent, stride, negative=False):
        self.values, self.extent, self.stride, self.negative = values, extent, stride, negative


cdef class _IndexedStep(Step):
    """The base of gather and scatter."""

    cdef nest_t nest
    cdef index_t[MAX_INDICES] indices
    cdef int count

    cdef take(self, indices, error_slot, message):
        """Store the indices and the error slot."""
        cdef int k
        self.count = len(indices)
        if self.count > MAX_INDICES:
            raise ValueError(f"the step has {self.count} indices, more than {MAX_INDICES}")
        self.error_slot = self.ref(error_slot)
        self.message = message
        for k, index in enumerate(indices):
            self.indices[k].values = self.ref(index.values)
            self.indices[k].is_wide = index.values.dtype == np.int64
            self.indices[k].extent, self.indices[k].stride = index.extent, index.stride
            self.indices[k].negative = index.negative


# -- gather ------------------------------------------------------------------------------------

cdef struct gather_t:
    ref_t x
    ref_t y
    ref_t error_slot
    const nest_t* nest           # over x, y and the indices
    const index_t* indices       # (count,)
    int count
    Py_ssize_t itemsize
    bint runs                    # the inner loop moves one contiguous run
    Py_ssize_t run_bytes         # of the short run per iteration of the inner loop; or 0
    Py_ssize_t blocks            # of the inner loop: ceil(inner / BLOCK)


cdef inline void copy_short(char* y, const char* x, Py_ssize_t n) noexcept nogil:
    """Copy a few bytes, 16, 8 or 4 at a time; the last copy may overlap the previous one."""
    cdef Py_ssize_t i = 16
    if n >= 16:
        while i < n:
            memcpy(y + i - 16, x + i - 16, 16)
            i += 16
        memcpy(y + n - 16, x + n - 16, 16)
    elif n >= 8:
        memcpy(y, x, 8)
        memcpy(y + n - 8, x + n - 8, 8)
    elif n >= 4:
        memcpy(y, x, 4)
        memcpy(y + n - 4, x + n - 4, 4)
    else:
        for i in range(n):
            y[i] = x[i]


cdef inline void gather_runs(
    const gather_t* p, const char* x, char* y, const Py_ssize_t* offset, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t i, xs = p.nest.step[0], ys = p.nest.step[1] * p.itemsize
    for i in range(n):
        copy_short(y + i * ys, x + (i * xs + offset[i]) * p.itemsize, p.run_bytes)


cdef inline void gather_items(
    const nest_t* nest, const item_t* x, item_t* y, const Py_ssize_t* offset, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t i, xs = nest.step[0], ys = nest.step[1]
    if xs == 0 and ys == 1:
        for i in range(n):
            y[i] = x[offset[i]]
    else:
        for i in range(n):
            y[i * ys] = x[i * xs + offset[i]]


cdef void gather_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Elements, or runs of elements, at indexed positions: y[i,j] = x[index[i],j].

    Layout : x, y and the indices any strides; elements of 1, 2, 4, 8 or 16 bytes
    Needs  : x not empty along the indexed axes
    Threads: over rows of the nest and blocks of 1024 elements
    Source : torch.gather, torch.index_select, torch.embedding, torch.Tensor.__getitem__
    """
    cdef const gather_t* p = <const gather_t*> params
    cdef const nest_t* nest = p.nest
    cdef const char* x = at(slots, p.x)
    cdef char* y = at(slots, p.y)
    cdef error_slot_t* error_slot = <error_slot_t*> at(slots, p.error_slot)
    cdef Py_ssize_t total = nest.outer.count * p.blocks, size = p.itemsize
    cdef Py_ssize_t item = shard_start(total, shard, n_shards)
    cdef Py_ssize_t stop = shard_start(total, shard + 1, n_shards), block, start, n
    cdef Py_ssize_t[BLOCK] offset
    cdef found_t found
    cdef cursor_t cursor
    cdef const char* source
    cdef char* target
    if item >= stop:
        return
    found.n = 0
    seek(&nest.outer, nest.outer.n_operands, &cursor, item // p.blocks)
    block = item % p.blocks
    while True:
        start = block * BLOCK
        n = min(<Py_ssize_t> BLOCK, nest.inner - start)
        source = x + (cursor.offset[0] + start * nest.step[0]) * size
        target = y + (cursor.offset[1] + start * nest.step[1]) * size
        if p.runs:
            find_offsets(p.indices, p.count, nest, &cursor, 0, 1, slots, error_slot, offset, &found)
            memcpy(target, source + offset[0] * size, n * size)
        else:
            find_offsets(
                p.indices, p.count, nest, &cursor, start, n, slots, error_slot, offset, &found
            )
            if p.run_bytes:
                gather_runs(p, source, target, offset, n)
            elif size == 1:
                gather_items(nest, <const uint8_t*> source, <uint8_t*> target, offset, n)
            elif size == 2:
                gather_items(nest, <const uint16_t*> source, <uint16_t*> target, offset, n)
            elif size == 4:
                gather_items(nest, <const uint32_t*> source, <uint32_t*> target, offset, n)
            elif size == 8:
                gather_items(nest, <const uint64_t*> source, <uint64_t*> target, offset, n)
            else:
                gather_items(
                    nest, <const double complex*> source, <double complex*> target, offset, n
                )
        item += 1
        if item == stop:
            return
        block = next_block(nest, nest.outer.n_operands, &cursor, block, p.blocks)


cdef class GatherStep(_IndexedStep):
    """Reads a tensor at indexed positions.

    Parameters
    ----------
    x : TensorView
        None of its indexed axes is empty.
    y : TensorView
    x_strides : sequence of int
        The stride of x along each axis of y, in elements: 0 along indexed axes.
    indices : sequence of AxisIndex
        Of the shape of y.
    error_slot : TensorView
        16 bytes of per-context state.
    message : str
        Of the error for an index out of range; ``{}`` stands for the index.
    """

    cdef gather_t p

    def __init__(self, x, y, x_strides, indices, error_slot, message):
        self.take(indices, error_slot, message)
        self.p.x, self.p.y = self.ref(x), self.ref(y)
        strides = [x_strides, y.strides, *(index.values.strides for index in indices)]
        loops = strided_loops(y.shape, strides)
        fill_nest(self, &self.nest, loops)
        self.p.error_slot = self.error_slot
        self.p.nest, self.p.indices, self.p.count = &self.nest, self.indices, self.count
        self.p.itemsize = y.dtype.itemsize
        self.p.runs = (
            self.nest.step[0] == self.nest.step[1] == 1 and _is_constant_inside(&self.nest)
        )
        if self.p.runs and self.nest.outer.rank and self.nest.inner * self.p.itemsize <= SHORT_RUN:
            # Rows of a narrow table: compute the offsets of many together.
            self.p.run_bytes = self.nest.inner * self.p.itemsize
            self.p.runs = False
            fill_nest(self, &self.nest, loops[:-1])
        self.p.blocks = ceil_div(self.nest.inner, BLOCK)
        self.run = gather_run
        self.params = &self.p
        self.kind = "gather"
        self.bytes = 2.0 * y.n_bytes + sum(float(index.values.n_bytes) for index in indices)
        self.max_shards = max(
            1, min(self.nest.outer.count * self.p.blocks, <Py_ssize_t> self.bytes // SHARD_BYTES)
        )


# -- scatter -----------------------------------------------------------------------------------

cdef struct scatter_t:
    ref_t source
    ref_t y
    ref_t error_slot
    const nest_t* nest           # over source, y and the indices
    const index_t* indices       # (count,)
    int count
    int kind                     # PUT, ADD, ...
    Py_ssize_t itemsize
    char number                  # dtype of arithmetic: f, d, i or l
    bint runs                    # the inner loop writes one contiguous run
    int lane                     # the loop that shards divide; the inner one is outer.rank; or -1


cdef inline void put_items(
    const nest_t* nest, const item_t* source, item_t* y, const Py_ssize_t* offset, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t i, ss = nest.step[0], ys = nest.step[1]
    for i in range(n):
        y[i * ys + offset[i]] = source[i * ss]


cdef inline number_t joined(int kind, number_t a, number_t b) noexcept nogil:
    if kind == ADD:
        # Integers wrap around, which C defines for unsigned types only.
        if number_t is int32_t:
            return <int32_t> (<uint32_t> a + <uint32_t> b)
        elif number_t is int64_t:
            return <int64_t> (<uint64_t> a + <uint64_t> b)
        else:
            return a + b
    if kind == MULTIPLY:
        if number_t is int32_t:
            return <int32_t> (<uint32_t> a * <uint32_t> b)
        elif number_t is int64_t:
            return <int64_t> (<uint64_t> a * <uint64_t> b)
        else:
            return a * b
    # A NaN on either side wins.
    if kind == MAXIMUM:
        return a if a > b or a != a else b
    return a if a < b or a != a else b


cdef inline void join_items(
    int kind, const nest_t* nest, const number_t* source, number_t* y, const Py_ssize_t* offset,
    Py_ssize_t n,
) noexcept nogil:
    cdef Py_ssize_t i, target, ss = nest.step[0], ys = nest.step[1]
    for i in range(n):
        target = i * ys + offset[i]
        y[target] = joined(kind, y[target], source[i * ss])


cdef inline void join_run(
    int kind, const number_t* source, Py_ssize_t step, number_t* y, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t i
    if kind == ADD and step == 1:
        for i in range(n):
            y[i] = joined(ADD, y[i], source[i])
    else:
        for i in range(n):
            y[i] = joined(kind, y[i], source[i * step])


cdef inline void join_all(
    const scatter_t* p, const number_t* source, number_t* y, const Py_ssize_t* offset, Py_ssize_t n
) noexcept nogil:
    if p.runs:
        join_run(p.kind, source, p.nest.step[0], y + offset[0], n)
    else:
        join_items(p.kind, p.nest, source, y, offset, n)


cdef void scatter_block(
    const scatter_t* p, const char* source, char* y, const Py_ssize_t* offset, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t size = p.itemsize
    cdef const nest_t* nest = p.nest
    if p.kind != PUT:
        if p.number == b"f":
            join_all(p, <const float*> source, <float*> y, offset, n)
        elif p.number == b"d":
            join_all(p, <const double*> source, <double*> y, offset, n)
        elif p.number == b"i":
            join_all(p, <const int32_t*> source, <int32_t*> y, offset, n)
        else:
            join_all(p, <const int64_t*> source, <int64_t*> y, offset, n)
    elif p.runs:
        memcpy(y + offset[0] * size, source, n * size)
    elif size == 1:
        put_items(nest, <const uint8_t*> source, <uint8_t*> y, offset, n)
    elif size == 2:
        put_items(nest, <const uint16_t*> source, <uint16_t*> y, offset, n)
    elif size == 4:
        put_items(nest, <const uint32_t*> source, <uint32_t*> y, offset, n)
    elif size == 8:
        put_items(nest, <const uint64_t*> source, <uint64_t*> y, offset, n)
    else:
        put_items(nest, <const double complex*> source, <double complex*> y, offset, n)


cdef void scatter_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Values stored or accumulated at indexed positions, in order: y[index[i],j] op= source[i,j].

    Layout : y, source and the indices any strides; elements of 1, 2, 4, 8 or 16 bytes
    Needs  : y not empty along the indexed axes
    Threads: over an axis that is not indexed, so one thread does all writes to an element
    Source : torch.scatter, torch.scatter_add, torch.index_add, torch.Tensor.index_put
    """
    cdef const scatter_t* p = <const scatter_t*> params
    cdef nest_t nest = p.nest[0]
    cdef const char* source = at(slots, p.source)
    cdef char* y = at(slots, p.y)
    cdef bint is_inner
    cdef error_slot_t* error_slot = <error_slot_t*> at(slots, p.error_slot)
    cdef Py_ssize_t size = p.itemsize, start, n, first, last, _row
    cdef Py_ssize_t[BLOCK] offset
    cdef found_t found
    cdef const Py_ssize_t* lane_step
    cdef cursor_t cursor
    cdef int k
    found.n = 0
    first = 0
    lane_step = nest.step
    if p.lane >= 0:
        # Restrict the nest to a range of this loop.
        is_inner = p.lane == nest.outer.rank
        last = nest.inner if is_inner else nest.outer.extent[p.lane]
        first, last = shard_start(last, shard, n_shards), shard_start(last, shard + 1, n_shards)
        if first == last:
            return
        if is_inner:
            nest.inner = last - first
        else:
            nest.outer.count = nest.outer.count // nest.outer.extent[p.lane] * (last - first)
            nest.outer.extent[p.lane] = last - first
            lane_step = nest.outer.stride + p.lane * nest.outer.n_operands
    elif shard > 0:
        return
    seek(&nest.outer, nest.outer.n_operands, &cursor, 0)
    for k in range(nest.outer.n_operands):
        cursor.offset[k] += first * lane_step[k]
    for _row in range(nest.outer.count):
        start = 0
        while start < nest.inner:
            n = min(<Py_ssize_t> BLOCK, nest.inner - start)
            find_offsets(
                p.indices, p.count, &nest, &cursor, start, 1 if p.runs else n, slots, error_slot,
                offset, &found,
            )
            scatter_block(
                p, source + (cursor.offset[0] + start * nest.step[0]) * size,
                y + (cursor.offset[1] + start * nest.step[1]) * size, offset, n,
            )
            start += n
        advance(&nest.outer, nest.outer.n_operands, &cursor)


cdef class ScatterStep(_IndexedStep):
    """Stores values at indexed positions, or combines them with the present ones.

    Parameters
    ----------
    source : TensorView
        Of the dtype of y; may be broadcast (strides of 0).  Its shape is that of the iteration.
    y : TensorView
        Initialised; other elements keep their values.
    y_strides : sequence of int
        The stride of y along each axis of the iteration, in elements: 0 along indexed axes.
    indices : sequence of AxisIndex
        Of the shape of `source`.
    is_lane : sequence of bool
        For each axis of the iteration, whether it is an axis of y that is not indexed.
    kind : str
        A key of `KINDS`; all but ``"put"`` require float32, float64, int32 or int64.
    error_slot : TensorView
        16 bytes of per-context state.
    message : str
        Of the error for an index out of range; ``{}`` stands for the index.
    """

    cdef scatter_t p

    def __init__(self, source, y, y_strides, indices, is_lane, kind, error_slot, message):
        self.take(indices, error_slot, message)
        self.p.source, self.p.y = self.ref(source), self.ref(y)
        strides = [source.strides, y_strides, *(index.values.strides for index in indices)]
        loops = strided_loops(source.shape, strides, groups=is_lane)
        fill_nest(self, &self.nest, loops)
        self.p.error_slot = self.error_slot
        self.p.nest, self.p.indices, self.p.count = &self.nest, self.indices, self.count
        self.p.itemsize = y.dtype.itemsize
        self.p.number = ord({"float32": "f", "float64": "d", "int32": "i"}.get(y.dtype.name, "l"))
        self.p.kind = KINDS[kind]
        self.p.runs = (
            self.nest.step[1] == 1 and _is_constant_inside(&self.nest)
            and (self.p.kind != PUT or self.nest.step[0] == 1)
        )
        # Where y moves, shards write different elements; the stride is 0 along indexed axes.
        lanes = [
            (extent // (LINE if axis == self.nest.outer.rank else 1), -axis)
            for axis, (extent, steps) in enumerate(loops)
            if steps[1]
        ]
        most, lane = max(lanes, default=(0, 1))
        self.p.lane = -lane if most > 1 else -1
        self.run = scatter_run
        self.params = &self.p
        self.kind = f"scatter_{kind}"
        self.bytes = 3.0 * source.n_bytes + sum(float(index.values.n_bytes) for index in indices)
        self.flops = float(source.size)
        self.max_shards = max(1, min(most, <Py_ssize_t> self.bytes // SHARD_BYTES))


include "masks.pxi"
include "bags.pxi"
