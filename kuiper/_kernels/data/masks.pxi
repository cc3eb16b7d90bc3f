# Selection and scatter by a mask, and triangles of matrices.  Included by indexing.pyx.

# -- selection by a mask -----------------------------------------------------------------------

cdef struct select_t:
    ref_t mask
    ref_t a
    ref_t b
    ref_t y
    const nest_t* nest           # over mask, a, b and y
    Py_ssize_t itemsize
    Py_ssize_t blocks            # of the inner loop: ceil(inner / BLOCK)


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
    """y[i] = a[i] if mask[i] else b[i].

    Layout : any strides; mask of bytes, elements of 1, 2, 4, 8 or 16 bytes
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
        One byte per element; nonzero selects `a`.
    a, b, y : TensorView
        Of one dtype, and of the shape of `mask`; all but y may be broadcast (strides of 0).
        y may share the memory of a or b.
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
    bint upper                   # keep the upper side, else the lower one
    Py_ssize_t diagonal          # above the main one
    Py_ssize_t matrices
    Py_ssize_t rows
    Py_ssize_t columns
    Py_ssize_t itemsize


cdef void triangle_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Matrices with zeros on one side of a diagonal.

    Layout : x, y in C order; elements of any size
    Needs  : all bits of a zero are 0; y may be x
    Threads: over rows
    Source : torch.tril, torch.triu
    """
    cdef const triangle_t* p = <const triangle_t*> params
    cdef Py_ssize_t total = p.matrices * p.rows, row, cut, width = p.columns * p.itemsize
    cdef const char* x = at(slots, p.x)
    cdef char* y = at(slots, p.y)
    for row in range(shard_start(total, shard, n_shards), shard_start(total, shard + 1, n_shards)):
        # The first kept column (upper), or the first zero one (lower).
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
    """Keeps one side of the matrices, and the diagonal.

    Parameters
    ----------
    x, y : TensorView, shape (..., rows, columns), C order
        May be the same memory.
    diagonal : int
        Its offset; positive ones are above the main diagonal.
    upper : bool
        Whether to keep the upper side, else the lower one.
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


# -- scatter by a mask -------------------------------------------------------------------------

cdef struct mask_t:
    ref_t mask
    ref_t source
    ref_t y
    ref_t error_slot
    Py_ssize_t n                 # elements of mask and y
    Py_ssize_t length            # elements of source
    Py_ssize_t itemsize


cdef void masked_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Consecutive elements of a source where a mask is true.

    Layout : mask, source and y in C order; y is initialised
    Threads: one, since the source index is a running count
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
        # Elements missing at the end of the source are not copied, but counted.
        n = max(min(i - start, p.length - used), <Py_ssize_t> 0)
        memcpy(y + start * p.itemsize, source + min(used, p.length) * p.itemsize, n * p.itemsize)
        used += i - start
    if used > p.length:
        record_error(<long long*> at(slots, p.error_slot), used)


cdef class MaskedScatterStep(Step):
    """Stores consecutive elements of a source where a mask is true.

    Parameters
    ----------
    mask : TensorView
        One byte per element, C order.
    source : TensorView
        In C order, of the dtype of y.
    y : TensorView
        As many elements as the mask, C order; keeps its values where the mask is false.
    error_slot : TensorView
        16 bytes of per-context state.
    message : str
        Of the error for a mask with more true elements than the source has.
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
