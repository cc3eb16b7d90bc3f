# Elements of sorted lines: medians, modes, k-th values; quantiles.  Included by order.pyx.

# -- ranks -------------------------------------------------------------------------------------

# Which element of a sorted line is the result.
cdef enum:
    MIDDLE             # the lower of two, or the first NaN
    NUMBERS_MIDDLE     # the same, NaNs left out
    COUNTED            # the k-th
    COMMONEST          # the last of the longest run of equal elements

RANKS = {
    "median": MIDDLE, "nanmedian": NUMBERS_MIDDLE, "kthvalue": COUNTED, "mode": COMMONEST,
}


cdef inline Py_ssize_t rank_of(
    int rank, const sort_t* p, const entry_t* entries
) noexcept nogil:
    """Return the position of the result among the sorted entries of a line."""
    cdef uint64_t nan = ~(<uint64_t> 0)
    cdef Py_ssize_t numbers = p.n, first = 0, longest = 0, taken = 0, i
    if rank == COUNTED:
        return p.k - 1
    if p.dtype == b"f" or p.dtype == b"d":
        if entry_t is not pair_t:
            nan >>= 32
        while numbers > 0 and key_part(entries[numbers - 1]) == nan:
            numbers -= 1
    if rank == MIDDLE:
        return numbers if numbers < p.n else (p.n - 1) // 2
    if rank == NUMBERS_MIDDLE:
        return max(numbers - 1, <Py_ssize_t> 0) // 2
    for i in range(1, numbers):
        if key_part(entries[i]) != key_part(entries[i - 1]):
            first = i
        if i - first > longest:
            longest, taken = i - first, i
    return taken


cdef inline void rank_line(
    int rank, const sort_t* p, const char* x, entry_t* entries, char* value, int64_t* indices,
    Py_ssize_t line,
) noexcept nogil:
    cdef Py_ssize_t step = p.inner * p.itemsize, taken
    make_entries(p, x, step, entries)
    sort_entries(entries, entries + p.n, p.n)
    taken = <Py_ssize_t> index_of(entries[rank_of(rank, p, entries)])
    memcpy(value, x + taken * step, p.itemsize)
    if indices != NULL:
        indices[line] = taken


cdef struct rank_t:
    sort_t sort
    int rank


cdef void rank_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """One element of each line by its rank, and its index; equal elements rank in their order.

    Layout : x (outer, n, inner), values and indices (outer, inner), C order
    Needs  : 0 < n < 2**32
    Threads: over lines
    Source : torch.median, torch.nanmedian, torch.kthvalue, torch.mode
    """
    cdef const rank_t* r = <const rank_t*> params
    cdef const sort_t* p = &r.sort
    cdef const char* x = at(slots, p.x)
    cdef char* value
    cdef int64_t* indices = <int64_t*> at_or_null(slots, p.indices)
    cdef char* scratch = at(slots, p.scratch)
    cdef Py_ssize_t lines = p.outer * p.inner, line
    cdef const char* first
    for line in range(shard_start(lines, shard, n_shards), shard_start(lines, shard + 1, n_shards)):
        first = x + (line // p.inner * p.n * p.inner + line % p.inner) * p.itemsize
        value = at(slots, p.values) + line * p.itemsize
        if p.itemsize == 8:
            rank_line(r.rank, p, first, <pair_t*> scratch, value, indices, line)
        else:
            rank_line(r.rank, p, first, <uint64_t*> scratch, value, indices, line)


cdef class RankStep(Step):
    """Takes one element of each line by its rank.

    Parameters
    ----------
    x : TensorView, shape (outer, n, inner), C order
        Of a dtype in `SORT_DTYPES`; lines are not empty.
    values : TensorView
        outer * inner elements in C order.
    indices : TensorView or None
        As many, int64.
    rank : str
        A key of `RANKS`.
    k : int
        For ``"kthvalue"``, >= 1.
    scratch : TensorView
        :func:`sort_bytes` bytes.
    """

    cdef rank_t p

    def __init__(self, x, values, indices, rank, k, scratch):
        fill_sort(self, &self.p.sort, x, values, indices, k, scratch)
        self.p.rank = RANKS[rank]
        self.run = rank_run
        self.params = &self.p
        self.kind = "rank"


# -- quantiles ---------------------------------------------------------------------------------

# The result for a rank between two elements.
cdef enum:
    LINEAR
    LOWER
    HIGHER
    MIDPOINT
    NEAREST

INTERPOLATIONS = {
    "linear": LINEAR, "lower": LOWER, "higher": HIGHER, "midpoint": MIDPOINT, "nearest": NEAREST,
}

cdef struct quantile_t:
    sort_t sort
    ref_t levels
    Py_ssize_t count        # of levels
    int interpolation
    bint skips_nan


cdef inline float between(
    int interpolation, const float* x, Py_ssize_t step, float rank, const uint64_t* entries
) noexcept nogil:
    """Return the value at a fractional rank, by PyTorch's formulas."""
    cdef float below, above, weight
    if interpolation == LOWER:
        rank = <float> floor(rank)
    elif interpolation == HIGHER:
        rank = <float> ceil(rank)
    elif interpolation == NEAREST:
        rank = <float> rint(rank)
    below = x[<Py_ssize_t> index_of(entries[<Py_ssize_t> rank]) * step]
    if interpolation != LINEAR and interpolation != MIDPOINT:
        return below
    above = x[<Py_ssize_t> index_of(entries[<Py_ssize_t> ceil(rank)]) * step]
    weight = <float> 0.5 if interpolation == MIDPOINT else rank - <float> floor(rank)
    if weight < 0.5:
        return below + weight * (above - below)
    return above - (above - below) * (1 - weight)


cdef inline void quantile_line(
    const quantile_t* q, const float* x, const float* levels, float* y, uint64_t* entries
) noexcept nogil:
    cdef const sort_t* p = &q.sort
    cdef Py_ssize_t lines = p.outer * p.inner, numbers = p.n, i
    make_entries(p, <const char*> x, p.inner * p.itemsize, entries)
    sort_entries(entries, entries + p.n, p.n)
    while numbers > 0 and isnan(x[<Py_ssize_t> index_of(entries[numbers - 1]) * p.inner]):
        numbers -= 1
    if numbers < p.n and not q.skips_nan:
        numbers = p.n
        levels = NULL
    for i in range(q.count):
        y[i * lines] = between(
            q.interpolation, x, p.inner,
            <float> (numbers - 1) if levels == NULL
            else levels[i] * <float> max(numbers - 1, <Py_ssize_t> 0), entries,
        )


cdef void quantile_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """The quantiles of each line.

    Layout : x (outer, n, inner), levels (count) -> y (count, outer, inner), C order
    Needs  : 0 < n < 2**32; levels from 0 to 1
    Threads: over lines
    Source : torch.quantile, torch.nanquantile
    """
    cdef const quantile_t* q = <const quantile_t*> params
    cdef const sort_t* p = &q.sort
    cdef char* scratch = at(slots, p.scratch)
    cdef Py_ssize_t lines = p.outer * p.inner, line, first
    for line in range(shard_start(lines, shard, n_shards), shard_start(lines, shard + 1, n_shards)):
        first = line // p.inner * p.n * p.inner + line % p.inner
        quantile_line(
            q, <const float*> at(slots, p.x) + first, <const float*> at(slots, q.levels),
            <float*> at(slots, p.values) + line, <uint64_t*> scratch,
        )


cdef class QuantileStep(Step):
    """Computes quantiles of each line.

    Parameters
    ----------
    x : TensorView, shape (outer, n, inner), C order
        float32; lines are not empty.
    levels : TensorView, shape (count,)
        The fractions, from 0 to 1, float32.
    y : TensorView
        count * outer * inner elements in C order.
    interpolation : str
        A key of `INTERPOLATIONS`.
    skips_nan : bool
        Whether to leave NaNs out; otherwise the result of a line with a NaN is NaN.
    scratch : TensorView
        :func:`sort_bytes` bytes.
    """

    cdef quantile_t p

    def __init__(self, x, levels, y, interpolation, skips_nan, scratch):
        fill_sort(self, &self.p.sort, x, y, None, 0, scratch)
        self.p.levels, self.p.count = self.ref(levels), levels.size
        self.p.interpolation, self.p.skips_nan = INTERPOLATIONS[interpolation], skips_nan
        self.run = quantile_run
        self.params = &self.p
        self.kind = "quantile"
