# The greatest or least element of each line, and its index.  Included by order.pyx.

cdef struct extreme_t:
    ref_t x
    ref_t values
    ref_t indices
    bint is_min
    char dtype              # of EXTREME_DTYPES
    Py_ssize_t outer
    Py_ssize_t n
    Py_ssize_t inner
    Py_ssize_t x_outer      # strides of the outer and middle axes, in elements
    Py_ssize_t x_step
    Py_ssize_t strips       # ceil(inner / STRIP)


cdef inline void argreduce_columns(
    bint is_min, const number_t* x, Py_ssize_t step, Py_ssize_t n, Py_ssize_t count,
    number_t* best, int32_t* index,
) noexcept nogil:
    """Find the first extreme of each of `count` adjacent lines of n elements; NaN is extreme."""
    cdef Py_ssize_t j
    cdef int32_t i
    cdef bint better
    cdef number_t value
    for j in range(count):
        best[j] = x[j]
        index[j] = 0
    for i in range(1, <int32_t> n):
        x += step
        for j in range(count):
            value = x[j]
            better = (value < best[j] if is_min else value > best[j]) | (
                (value != value) & (best[j] == best[j])
            )
            best[j] = value if better else best[j]
            index[j] = i if better else index[j]


cdef inline number_t extreme_of(
    bint is_min, const number_t* x, Py_ssize_t n, bint* has_nan
) noexcept nogil:
    """Return the extreme of n > 0 adjacent elements; undefined if one of them is NaN."""
    cdef number_t[LANES] best
    cdef int32_t[LANES] odd
    cdef Py_ssize_t i, j, rows = n // LANES
    cdef number_t value, result = x[0]
    cdef int32_t any_odd = 0
    if rows > 0:
        for j in range(LANES):
            best[j] = x[j]
            odd[j] = x[j] != x[j]
        for i in range(1, rows):
            for j in range(LANES):
                value = x[i * LANES + j]
                if is_min:
                    best[j] = value if value < best[j] else best[j]
                else:
                    best[j] = value if value > best[j] else best[j]
                odd[j] |= value != value
        for j in range(LANES):
            any_odd |= odd[j]
            if best[j] < result if is_min else best[j] > result:
                result = best[j]
    for i in range(rows * LANES, n):
        any_odd |= x[i] != x[i]
        if x[i] < result if is_min else x[i] > result:
            result = x[i]
    has_nan[0] = any_odd
    return result


cdef inline void argreduce_row(
    bint is_min, const number_t* x, Py_ssize_t n, number_t* best, Py_ssize_t* index
) noexcept nogil:
    """Find the first extreme of a line of adjacent elements: its value, then its index."""
    cdef Py_ssize_t start = 0, where = 0, count
    cdef number_t here, extreme = x[0]
    cdef bint has_nan
    while start < n:
        count = min(<Py_ssize_t> BLOCK, n - start)
        here = extreme_of(is_min, x + start, count, &has_nan)
        if has_nan:
            where = start
            while x[where] == x[where]:
                where += 1
            best[0], index[0] = x[where], where
            return
        if here < extreme if is_min else here > extreme:
            extreme, where = here, start
        start += count
    while x[where] != extreme:
        where += 1
    # The first of equal elements; 0 and -0 are equal.
    best[0], index[0] = x[where], where


cdef inline void find_extremes(
    const extreme_t* p, const number_t* x, number_t* values, int64_t* indices, Py_ssize_t shard,
    Py_ssize_t n_shards,
) noexcept nogil:
    cdef number_t[STRIP] best
    cdef int32_t[STRIP] index
    cdef Py_ssize_t row_index, item, o, first, start, count, j
    if p.inner == 1:
        for o in range(
            shard_start(p.outer, shard, n_shards), shard_start(p.outer, shard + 1, n_shards)
        ):
            argreduce_row(p.is_min, x + o * p.x_outer, p.n, best, &row_index)
            if values != NULL:
                values[o] = best[0]
            if indices != NULL:
                indices[o] = row_index
        return
    for item in range(
        shard_start(p.outer * p.strips, shard, n_shards),
        shard_start(p.outer * p.strips, shard + 1, n_shards),
    ):
        o, first = item // p.strips, item % p.strips * STRIP
        start = o * p.x_outer + first
        count = min(<Py_ssize_t> STRIP, p.inner - first)
        if p.is_min:
            argreduce_columns(True, x + start, p.x_step, p.n, count, best, index)
        else:
            argreduce_columns(False, x + start, p.x_step, p.n, count, best, index)
        for j in range(count):
            if values != NULL:
                values[o * p.inner + first + j] = best[j]
            if indices != NULL:
                indices[o * p.inner + first + j] = index[j]


cdef void extreme_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """The first greatest or least element of each line, and its index.

    Layout : x (outer, n, inner), adjacent elements along inner, or along n if inner is 1
    Needs  : 0 < n < 2**31
    Threads: over rows, or over the outer axis x strips of the inner one
    Source : torch.argmax, torch.argmin, torch.max, torch.min
    """
    cdef const extreme_t* p = <const extreme_t*> params
    cdef const char* x = at(slots, p.x)
    cdef char* values = at_or_null(slots, p.values)
    cdef int64_t* indices = <int64_t*> at_or_null(slots, p.indices)
    if p.dtype == b"f":
        find_extremes(p, <const float*> x, <float*> values, indices, shard, n_shards)
    elif p.dtype == b"d":
        find_extremes(p, <const double*> x, <double*> values, indices, shard, n_shards)
    elif p.dtype == b"i":
        find_extremes(p, <const int32_t*> x, <int32_t*> values, indices, shard, n_shards)
    elif p.dtype == b"l":
        find_extremes(p, <const int64_t*> x, <int64_t*> values, indices, shard, n_shards)
    else:
        find_extremes(p, <const uint8_t*> x, <uint8_t*> values, indices, shard, n_shards)


# The code of each dtype.
EXTREME_DTYPES = {
    "float32": "f", "float64": "d", "int32": "i", "int64": "l", "bool": "b", "uint8": "b",
}


cdef class ExtremeStep(Step):
    """Finds the greatest or the least element of each line.

    Parameters
    ----------
    x : TensorView, shape (outer, n, inner)
        Of a dtype in `EXTREME_DTYPES`.  Elements of the inner axis are adjacent, or of the middle
        axis if inner is 1.
    values : TensorView or None
        outer * inner elements in C order.
    indices : TensorView or None
        As many, int64.
    is_min : bool
    """

    cdef extreme_t p

    def __init__(self, x, values, indices, is_min):
        self.p.x = self.ref(x)
        self.p.values, self.p.indices = self.ref(values), self.ref(indices)
        self.p.is_min = is_min
        self.p.dtype = ord(EXTREME_DTYPES[x.dtype.name])
        self.p.outer, self.p.n, self.p.inner = x.shape
        self.p.x_outer, self.p.x_step = x.strides[:2]
        self.p.strips = (self.p.inner + STRIP - 1) // STRIP
        self.run = extreme_run
        self.params = &self.p
        self.kind = "extreme"
        self.flops = float(x.size)
        self.bytes = float(x.n_bytes)
        items = self.p.outer * (1 if self.p.inner == 1 else self.p.strips)
        self.max_shards = max(1, min(items, x.size // SHARD_TERMS))
