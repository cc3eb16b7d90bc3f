"""Elements chosen by values: gathering, scattering, choosing by a mask, triangles, bags of rows.

Operands of one shape share one nest of loops, which loops.py has merged as far as their strides
allow.  An index out of range is recorded in the error slot (see _runtime/step.pxd) and replaced by
0, so no access leaves a tensor.  What only moves elements serves every dtype of an element size.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import numpy as np

from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.data.loops import strided_loops
from kuiper._runtime.step cimport Step, at, ceil_div, error_slot_t, ref_t, shard_start
from kuiper._kernels.data.strided cimport advance, cursor_t, fill_strided, seek, strided_t
from kuiper._kernels.micro.table cimport kernels_t

cdef extern from "_runtime/work_shares.h" nogil:
    void record_error "kp_record_error"(long long* error_slot, long long value) noexcept

cdef enum:
    MAX_INDICES = 6
    MAX_STEPS = 8        # two tensors and their indices
    BLOCK = 1024         # elements of an inner loop that are done at once
    SHARD_BYTES = 16384  # a shard that moves less is not worth another thread
    LINE = 16            # elements that two threads should not both write to
    SHORT_RUN = 512      # bytes; longer runs are worth finding the place of each by itself

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

# What becomes of a value that meets another one.
cdef enum:
    PUT
    ADD
    MULTIPLY
    MAXIMUM
    MINIMUM

KINDS = {"put": PUT, "add": ADD, "multiply": MULTIPLY, "maximum": MAXIMUM, "minimum": MINIMUM}

# -- loops -------------------------------------------------------------------------------------

# The loops over operands of one shape, strides in elements of each: an inner one and those around.
cdef struct nest_t:
    strided_t outer
    Py_ssize_t inner             # iterations of the inner loop
    Py_ssize_t[MAX_STEPS] step


cdef fill_nest(Step owner, nest_t* nest, loops):
    """Store loops, the last of which is the inner one, for a step."""
    cdef int k
    *outer, (nest.inner, steps) = loops
    owner.keep = fill_strided(&nest.outer, outer, len(steps))
    for k in range(nest.outer.n_operands):
        nest.step[k] = steps[k]


cdef inline Py_ssize_t next_block(
    const nest_t* nest, int n, cursor_t* cursor, Py_ssize_t block, Py_ssize_t blocks
) noexcept nogil:
    """Advance by a block of the inner loop; after the last one, to the next iteration around it."""
    if block + 1 < blocks:
        return block + 1
    advance(&nest.outer, n, cursor)
    return 0


# -- indices -----------------------------------------------------------------------------------

cdef struct index_t:
    ref_t values
    bint is_wide                 # int64, else int32
    bint negative                # whether it may count from the end
    int64_t extent               # of the axis whose places it names
    Py_ssize_t stride            # of that axis

ctypedef fused integer_t:
    int32_t
    int64_t


cdef inline void add_offsets(
    const index_t* p, bint is_first, error_slot_t* error_slot, const integer_t* index,
    Py_ssize_t step,
    Py_ssize_t n, Py_ssize_t* offset,
) noexcept nogil:
    cdef Py_ssize_t i
    cdef int64_t place
    cdef uint64_t one, outside = 0, last = p.extent - 1
    # First whether all are well, in a loop that vectors can do: either difference is negative where
    # an index is not.
    for i in range(n):
        one = <uint64_t> <int64_t> index[i * step]
        outside |= one | (last - one)
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
        place = index[i * step]
        if p.negative and -p.extent <= place < 0:
            place += p.extent
        if not 0 <= place < p.extent:
            record_error(<long long*> error_slot, place)
            place = 0
        offset[i] += place * p.stride


cdef struct found_t:
    # Which places were found last: equal ones need not be found again.
    Py_ssize_t n
    Py_ssize_t[MAX_INDICES] begin


cdef inline void find_offsets(
    const index_t* indices, int count, const nest_t* nest, const cursor_t* cursor, Py_ssize_t start,
    Py_ssize_t n, char* const* slots, error_slot_t* error_slot, Py_ssize_t* offset, found_t* found,
) noexcept nogil:
    """Write how far n elements of the inner loop are from where index 0 of all axes would be.

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
                <const int64_t*> at(slots, indices[k].values) + begin,
                step, n, offset,
            )
        else:
            add_offsets(
                &indices[k], k == 0, error_slot,
                <const int32_t*> at(slots, indices[k].values) + begin,
                step, n, offset,
            )


cdef bint _is_constant_inside(const nest_t* nest) noexcept:
    """Tell whether no index changes in the inner loop."""
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
    """What gathering and scattering share."""

    cdef nest_t nest
    cdef index_t[MAX_INDICES] indices
    cdef int count
    cdef Py_ssize_t itemsize
    cdef bint runs               # the inner loop moves a dense run to or from one place

    cdef take(self, indices, error_slot, message):
        cdef int k
        self.count = len(indices)
        if self.count > MAX_INDICES:
            raise ValueError(f"it has {self.count} indices, more than {MAX_INDICES}")
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
    const nest_t* nest
    const index_t* indices
    int count
    Py_ssize_t itemsize
    bint runs
    Py_ssize_t run_bytes         # of a short run, which is what the inner loop moves; or 0
    Py_ssize_t blocks            # of an inner loop


cdef inline void copy_short(char* y, const char* x, Py_ssize_t n) noexcept nogil:
    """Copy a few bytes; the last piece may lie over the one before it."""
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
    """Elements, or runs of them, from places that indices name.

    Layout : x, y and the indices any strides; elements of 1, 2, 4, 8 or 16 bytes
    Needs  : x not empty along the axes of the indices
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
    """Reads a tensor at places that indices name.

    Parameters
    ----------
    x : TensorView
        What is read; none of the axes that indices are about is empty.
    y : TensorView
    x_strides : sequence of int
        How far x moves along each axis of y, in elements: 0 along those that indices stand for.
    indices : sequence of AxisIndex
        Of the shape of y.
    error_slot : TensorView
        16 bytes of the context's own.
    message : str
        What is said of an index out of range.
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
            # Rows of a narrow table: the places of many are found together.
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
    const nest_t* nest
    const index_t* indices
    int count
    int kind
    Py_ssize_t itemsize
    char number                  # kind of a dtype that is computed with: f, d, i or l
    bint runs
    int lane                     # which loop is shared out, the last being the inner one; or -1


cdef inline void put_items(
    const nest_t* nest, const item_t* source, item_t* y, const Py_ssize_t* offset, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t i, ss = nest.step[0], ys = nest.step[1]
    for i in range(n):
        y[i * ys + offset[i]] = source[i * ss]


cdef inline number_t joined(int kind, number_t a, number_t b) noexcept nogil:
    if kind == ADD:
        # Integers may run over, which only unsigned ones are allowed to.
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
    # A NaN on either side stays.
    if kind == MAXIMUM:
        return a if a > b or a != a else b
    return a if a < b or a != a else b


cdef inline void join_items(
    int kind, const nest_t* nest, const number_t* source, number_t* y, const Py_ssize_t* offset,
    Py_ssize_t n,
) noexcept nogil:
    cdef Py_ssize_t i, place, ss = nest.step[0], ys = nest.step[1]
    for i in range(n):
        place = i * ys + offset[i]
        y[place] = joined(kind, y[place], source[i * ss])


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
    """Values put, or joined on, at places that indices name, one after the other.

    Layout : y, source and the indices any strides; elements of 1, 2, 4, 8 or 16 bytes
    Needs  : y not empty along the axes of the indices
    Threads: over an axis that no index is about, so what meets in one place meets in one thread
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
        # The shard is a nest of its own, over a range of one axis.
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
                offset,
                &found,
            )
            scatter_block(
                p, source + (cursor.offset[0] + start * nest.step[0]) * size,
                y + (cursor.offset[1] + start * nest.step[1]) * size, offset, n,
            )
            start += n
        advance(&nest.outer, nest.outer.n_operands, &cursor)


cdef class ScatterStep(_IndexedStep):
    """Puts values at places that indices name, or joins them with what is there.

    Parameters
    ----------
    source : TensorView
        Of the shape that is walked, and of y's dtype; may be broadcast (strides of 0).
    y : TensorView
        Holds what it is before.
    y_strides : sequence of int
        How far y moves along each axis of the walk: 0 along those that indices stand for.
    indices : sequence of AxisIndex
        Of the shape that is walked.
    is_lane : sequence of bool
        For each axis of the nest whether it is an axis of y that no index is about.
    kind : str
        A key of `KINDS`; all but ``"put"`` take float32, float64, int32 and int64.
    error_slot : TensorView
        16 bytes of the context's own.
    message : str
        What is said of an index out of range.
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
        # Along an axis of y its stride is not 0; along others it is, and threads might meet.
        shares = [
            (extent // (LINE if axis == self.nest.outer.rank else 1), -axis)
            for axis, (extent, steps) in enumerate(loops)
            if steps[1]
        ]
        most, lane = max(shares, default=(0, 1))
        self.p.lane = -lane if most > 1 else -1
        self.run = scatter_run
        self.params = &self.p
        self.kind = f"scatter_{kind}"
        self.bytes = 3.0 * source.n_bytes + sum(float(index.values.n_bytes) for index in indices)
        self.flops = float(source.size)
        self.max_shards = max(1, min(most, <Py_ssize_t> self.bytes // SHARD_BYTES))


# -- choice ------------------------------------------------------------------------------------

cdef struct select_t:
    ref_t mask
    ref_t a
    ref_t b
    ref_t y
    const nest_t* nest
    Py_ssize_t itemsize
    Py_ssize_t blocks


cdef inline void select_items(
    const nest_t* nest, const uint8_t* mask, const item_t* a, const item_t* b, item_t* y,
    Py_ssize_t n,
) noexcept nogil:
    cdef Py_ssize_t i
    cdef Py_ssize_t ms = nest.step[0], xs = nest.step[1], zs = nest.step[2], ys = nest.step[3]
    cdef item_t one = a[0], other = b[0]
    if ms == 1 and ys == 1 and xs == 1 and zs == 1:
        for i in range(n):
            y[i] = a[i] if mask[i] else b[i]
    elif ms == 1 and ys == 1 and xs == 0 and zs == 1:
        for i in range(n):
            y[i] = one if mask[i] else b[i]
    elif ms == 1 and ys == 1 and xs == 1 and zs == 0:
        for i in range(n):
            y[i] = a[i] if mask[i] else other
    elif ms == 1 and ys == 1 and xs == 0 and zs == 0:
        for i in range(n):
            y[i] = one if mask[i] else other
    elif ms == 0 and mask[0]:
        for i in range(n):
            y[i * ys] = a[i * xs]
    elif ms == 0:
        for i in range(n):
            y[i * ys] = b[i * zs]
    else:
        for i in range(n):
            y[i * ys] = a[i * xs] if mask[i * ms] else b[i * zs]


cdef void select_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """One of two tensors for each element, as a mask says.

    Layout : all any strides; mask of bytes, elements of 1, 2, 4, 8 or 16 bytes
    Needs  : nothing
    Threads: over rows of the nest and blocks of 1024 elements
    Source : torch.where, torch.Tensor.masked_fill
    """
    cdef const select_t* p = <const select_t*> params
    cdef const nest_t* nest = p.nest
    cdef Py_ssize_t total = nest.outer.count * p.blocks, size = p.itemsize
    cdef Py_ssize_t item = shard_start(total, shard, n_shards)
    cdef Py_ssize_t stop = shard_start(total, shard + 1, n_shards), start, n, block
    cdef const uint8_t* mask
    cdef const char* a
    cdef const char* b
    cdef char* y
    cdef cursor_t cursor
    if item >= stop:
        return
    seek(&nest.outer, 4, &cursor, item // p.blocks)
    block = item % p.blocks
    while True:
        start = block * BLOCK
        n = min(<Py_ssize_t> BLOCK, nest.inner - start)
        mask = <const uint8_t*> at(slots, p.mask) + cursor.offset[0] + start * nest.step[0]
        a = at(slots, p.a) + (cursor.offset[1] + start * nest.step[1]) * size
        b = at(slots, p.b) + (cursor.offset[2] + start * nest.step[2]) * size
        y = at(slots, p.y) + (cursor.offset[3] + start * nest.step[3]) * size
        if size == 1:
            select_items(nest, mask, <const uint8_t*> a, <const uint8_t*> b, <uint8_t*> y, n)
        elif size == 2:
            select_items(nest, mask, <const uint16_t*> a, <const uint16_t*> b, <uint16_t*> y, n)
        elif size == 4:
            select_items(nest, mask, <const uint32_t*> a, <const uint32_t*> b, <uint32_t*> y, n)
        elif size == 8:
            select_items(nest, mask, <const uint64_t*> a, <const uint64_t*> b, <uint64_t*> y, n)
        else:
            select_items(
                nest, mask, <const double complex*> a, <const double complex*> b,
                <double complex*> y, n,
            )
        item += 1
        if item == stop:
            return
        block = next_block(nest, 4, &cursor, block, p.blocks)


cdef class SelectStep(Step):
    """Takes each element from one of two tensors.

    Parameters
    ----------
    mask : TensorView
        Elements of one byte; not 0 where `a` is meant.
    a, b, y : TensorView
        Of one dtype and, as `mask`, of one shape; all but y may be broadcast (strides of 0).
        y may be the memory of a or b.
    """

    cdef select_t p
    cdef nest_t nest

    def __init__(self, mask, a, b, y):
        self.p.mask, self.p.a = self.ref(mask), self.ref(a)
        self.p.b, self.p.y = self.ref(b), self.ref(y)
        strides = [value.strides for value in (mask, a, b, y)]
        fill_nest(self, &self.nest, strided_loops(y.shape, strides, order=y.strides))
        self.p.nest = &self.nest
        self.p.itemsize = y.dtype.itemsize
        self.p.blocks = ceil_div(self.nest.inner, BLOCK)
        self.run = select_run
        self.params = &self.p
        self.kind = "select"
        self.bytes = 3.0 * y.n_bytes + y.size
        self.max_shards = max(
            1, min(self.nest.outer.count * self.p.blocks, <Py_ssize_t> self.bytes // SHARD_BYTES)
        )


# -- triangles ---------------------------------------------------------------------------------

cdef struct triangle_t:
    ref_t x
    ref_t y
    bint upper
    Py_ssize_t diagonal
    Py_ssize_t matrices
    Py_ssize_t rows
    Py_ssize_t columns
    Py_ssize_t itemsize


cdef void triangle_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Matrices with zeros on one side of a diagonal.

    Layout : x, y in C order; elements of any size
    Needs  : zero is no bit set; y may be x
    Threads: over rows
    Source : torch.tril, torch.triu
    """
    cdef const triangle_t* p = <const triangle_t*> params
    cdef Py_ssize_t total = p.matrices * p.rows, row, cut, width = p.columns * p.itemsize
    cdef const char* x = at(slots, p.x)
    cdef char* y = at(slots, p.y)
    for row in range(shard_start(total, shard, n_shards), shard_start(total, shard + 1, n_shards)):
        # The first column on the right of the cut: of the diagonal, or of the one after it.
        cut = row % p.rows + p.diagonal + (0 if p.upper else 1)
        cut = min(max(cut, <Py_ssize_t> 0), p.columns) * p.itemsize
        if p.upper:
            memset(y + row * width, 0, cut)
            if x != y:
                memcpy(y + row * width + cut, x + row * width + cut, width - cut)
        else:
            if x != y:
                memcpy(y + row * width, x + row * width, cut)
            memset(y + row * width + cut, 0, width - cut)


cdef class TriangleStep(Step):
    """Keeps the part of matrices on one side of a diagonal, the diagonal included.

    Parameters
    ----------
    x, y : TensorView, shape (..., rows, columns), C order
        May be the same memory.
    diagonal : int
        Which one; positive numbers lie above the main one.
    upper : bool
        Which side is kept.
    """

    cdef triangle_t p

    def __init__(self, x, y, diagonal, upper):
        self.p.x, self.p.y = self.ref(x), self.ref(y)
        self.p.upper = upper
        self.p.rows, self.p.columns = x.shape[-2:]
        self.p.diagonal = max(min(diagonal, self.p.columns), -self.p.rows)
        self.p.matrices = x.size // (self.p.rows * self.p.columns)
        self.p.itemsize = x.dtype.itemsize
        self.run = triangle_run
        self.params = &self.p
        self.kind = "triangle"
        self.bytes = 2.0 * x.n_bytes
        self.max_shards = max(1, min(x.size // self.p.columns, x.n_bytes // SHARD_BYTES))


# -- elements that a mask lets through ----------------------------------------------------------

cdef struct mask_t:
    ref_t mask
    ref_t source
    ref_t y
    ref_t error_slot
    Py_ssize_t n
    Py_ssize_t length            # of the source
    Py_ssize_t itemsize


cdef void masked_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Elements of a source, one after the other, where a mask is true.

    Layout : mask, source and y in C order; y holds what it is where the mask is false
    Threads: one, since each place depends on those before it
    Source : torch.masked_scatter
    """
    cdef const mask_t* p = <const mask_t*> params
    cdef const uint8_t* mask = <const uint8_t*> at(slots, p.mask)
    cdef const char* source = at(slots, p.source)
    cdef char* y = at(slots, p.y)
    cdef Py_ssize_t i = 0, start, used = 0, n
    while i < p.n:
        while i < p.n and not mask[i]:
            i += 1
        start = i
        while i < p.n and mask[i]:
            i += 1
        # What there is not enough of is not copied, but counted.
        n = max(min(i - start, p.length - used), <Py_ssize_t> 0)
        memcpy(y + start * p.itemsize, source + min(used, p.length) * p.itemsize, n * p.itemsize)
        used += i - start
    if used > p.length:
        record_error(<long long*> at(slots, p.error_slot), used)


cdef class MaskedScatterStep(Step):
    """Puts the elements of a source, one after the other, where a mask is true.

    Parameters
    ----------
    mask : TensorView
        One byte an element, C order.
    source : TensorView
        In C order, of y's dtype.
    y : TensorView
        As many elements as the mask, C order; holds what it is before.
    error_slot : TensorView
        16 bytes of the context's own.
    message : str
        What is said if the mask is true more often than the source has elements.
    """

    cdef mask_t p

    def __init__(self, mask, source, y, error_slot, message):
        self.p.mask, self.p.source, self.p.y = self.ref(mask), self.ref(source), self.ref(y)
        self.p.error_slot = self.error_slot = self.ref(error_slot)
        self.message = message
        self.p.n, self.p.length, self.p.itemsize = y.size, source.size, y.dtype.itemsize
        self.run = masked_run
        self.params = &self.p
        self.kind = "masked_scatter"
        self.bytes = float(mask.n_bytes + y.n_bytes)


# -- bags of rows ------------------------------------------------------------------------------

cdef enum:
    TAPS = 4                     # rows that are joined at once

# What becomes of the rows of a bag.
cdef enum:
    BAG_SUM
    BAG_MEAN
    BAG_MAXIMUM

cdef struct bag_t:
    const kernels_t* kernels
    ref_t table
    ref_t indices
    ref_t offsets
    ref_t weights
    ref_t y
    ref_t error_slot
    int mode
    bint has_weights
    Py_ssize_t n                 # indices
    Py_ssize_t bags
    Py_ssize_t n_offsets
    int64_t rows                 # of the table
    Py_ssize_t width
    int64_t padding              # an index that does not count, or -1


cdef inline void join_rows(
    const bag_t* p, int n, const float** taps, float* factors, float* y
) noexcept nogil:
    """Let y be the weighted sum or the maximum of up to four rows, of which it may be the first."""
    cdef Py_ssize_t j
    cdef int k
    if n == 0:
        memset(y, 0, p.width * sizeof(float))
    elif p.mode == BAG_MAXIMUM:
        for k in range(n):
            for j in range(p.width):
                y[j] = taps[k][j] if k == 0 else joined(MAXIMUM, y[j], taps[k][j])
    else:
        if n == 1 or n == 3:
            # The micro-kernel takes two or four: one row is split into halves, which is exact.
            factors[n - 1] *= 0.5
            taps[n], factors[n] = taps[n - 1], factors[n - 1]
            n += 1
        p.kernels.f32_resize_rows(n, taps, factors, y, p.width)


cdef void bag_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """The sum, mean or maximum of the table rows of each bag.

    Layout : table (rows, width), indices (n), offsets (bags or bags + 1) -> y (bags, width)
    Needs  : C order; the table not empty where there are indices
    Threads: over bags
    Source : torch.nn.EmbeddingBag
    """
    cdef const bag_t* p = <const bag_t*> params
    cdef const float* table = <const float*> at(slots, p.table)
    cdef const int64_t* indices = <const int64_t*> at(slots, p.indices)
    cdef const int64_t* offsets = <const int64_t*> at(slots, p.offsets)
    cdef const float* weights = <const float*> at(slots, p.weights) if p.has_weights else NULL
    cdef (const float*)[TAPS] taps
    cdef float[TAPS] factors
    cdef float* y
    cdef int64_t place
    cdef Py_ssize_t bag, i, start, stop, count
    cdef int n
    for bag in range(
        shard_start(p.bags, shard, n_shards), shard_start(p.bags, shard + 1, n_shards)
    ):
        y = <float*> at(slots, p.y) + bag * p.width
        start = max(min(offsets[bag], <int64_t> p.n), <int64_t> 0)
        stop = p.n
        if bag + 1 < p.n_offsets:
            stop = min(offsets[bag + 1], <int64_t> p.n)
        count = n = 0
        for i in range(start, stop):
            place = indices[i]
            if not 0 <= place < p.rows:
                record_error(<long long*> at(slots, p.error_slot), place)
                place = 0
            if place == p.padding:
                continue
            if n == TAPS:
                join_rows(p, n, taps, factors, y)
                # What there is so far is a row like the others.
                taps[0], factors[0], n = y, 1, 1
            taps[n] = table + place * p.width
            factors[n] = weights[i] if p.has_weights and p.mode != BAG_MAXIMUM else 1
            n += 1
            count += 1
        join_rows(p, n, taps, factors, y)
        if p.mode == BAG_MEAN and count > 1:
            for i in range(p.width):
                y[i] /= <float> count


cdef class EmbeddingBagStep(Step):
    """Joins the rows of a table that bags of indices name.

    Parameters
    ----------
    table : TensorView, shape (rows, width), C order
    indices : TensorView, shape (n,), int64
    offsets : TensorView, shape (bags,) or (bags + 1,), int64
        Where bags begin; and where the last one ends, if there is one more.
    weights : TensorView or None
        A factor for each index.
    y : TensorView, shape (bags, width), C order
    mode : int
        0 for the sum, 1 for the mean, 2 for the maximum.
    padding : int
        An index that does not count, or -1.
    error_slot : TensorView
        16 bytes of the context's own.
    message : str
        What is said of an index out of range.
    """

    cdef bag_t p

    def __init__(self, table, indices, offsets, weights, y, mode, padding, error_slot, message):
        self.p.kernels = active()
        self.p.table, self.p.indices = self.ref(table), self.ref(indices)
        self.p.offsets, self.p.y = self.ref(offsets), self.ref(y)
        self.p.has_weights = weights is not None
        if weights is not None:
            self.p.weights = self.ref(weights)
        self.p.error_slot = self.error_slot = self.ref(error_slot)
        self.message = message
        self.p.mode, self.p.padding = mode, padding
        self.p.n, self.p.n_offsets = indices.size, offsets.size
        self.p.rows, self.p.width = table.shape
        self.p.bags = y.shape[0]
        self.run = bag_run
        self.params = &self.p
        self.kind = "embedding_bag"
        self.flops = float(indices.size) * self.p.width
        self.bytes = 4.0 * indices.size * self.p.width + y.n_bytes
        self.max_shards = max(1, min(self.p.bags, <Py_ssize_t> self.bytes // SHARD_BYTES))
