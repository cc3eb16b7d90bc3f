# Pairwise distances, the norms of the differences of two sets of vectors: included by reduce.pyx.
#
# out[b,i,j] = (sum_t |x[b,i,t] - y[b,t,j]|^p)^(1/p)
#
# Short vectors are columns of y: a strip of distances grows term by term.  Long vectors are rows of
# y, and each distance is a reduction.  Either way memory is read in sequence.

from libc.math cimport fabsf, powf, sqrtf
from libc.string cimport memset

from kuiper._kernels.micro cimport functions as fn
from kuiper._kernels.micro.table cimport rows_t

cdef enum:
    ROWS = 8             # (ROWS, TERMS) differences are computed at once: 16 KB, in the L1 cache
    TERMS = 512

cdef enum:
    COUNT                # p = 0
    SUM                  # p = 1
    EUCLIDEAN            # p = 2
    GREATEST             # p = infinity
    POWER                # other p

cdef struct distance_t:
    const kernels_t* kernels
    ref_t x
    ref_t y
    ref_t out
    int norm
    float power          # p
    bint by_rows         # y is (batch, columns, terms), else (batch, terms, columns)
    bint is_upper        # out holds only the elements above the diagonal
    Py_ssize_t batch
    Py_ssize_t rows
    Py_ssize_t terms
    Py_ssize_t columns
    Py_ssize_t strips    # ceil(columns / STRIP)


cdef inline void add_gaps(
    int norm, float x, const float* y, float* sums, Py_ssize_t count
) noexcept nogil:
    """Add one term to `count` distances; `norm` is a constant to the compiler."""
    cdef Py_ssize_t j
    cdef float gap
    for j in range(count):
        gap = fabsf(x - y[j])
        if norm == COUNT:
            sums[j] += 0 if gap == 0 else 1
        elif norm == SUM:
            sums[j] += gap
        elif norm == EUCLIDEAN:
            sums[j] += gap * gap
        else:
            sums[j] = sums[j] if sums[j] >= gap or sums[j] != sums[j] else gap


cdef void raise_all(const distance_t* p, float* x, Py_ssize_t n) noexcept nogil:
    """Replace x by abs(x) ** p, or for p = 0 by 0 or 1."""
    cdef rows_t r
    cdef Py_ssize_t i
    if p.norm == COUNT:
        for i in range(n):
            x[i] = 0 if x[i] == 0 else 1
        return
    p.kernels.f32_unary[<int> fn.ABS](n, x, x, 0, 0)
    r.n_rows, r.n_columns = 1, n
    r.a, r.a_row, r.a_column = x, 0, 1
    r.b, r.b_row, r.b_column = &p.power, 0, 0
    r.y, r.y_row = x, 0
    p.kernels.f32_binary[<int> fn.POW](&r)


cdef void strip_of(
    const distance_t* p, const float* x, const float* y, float* sums, Py_ssize_t count
) noexcept nogil:
    """Compute the distances of one row from `count` columns."""
    cdef float[STRIP] gaps
    cdef Py_ssize_t t, j
    memset(sums, 0, count * sizeof(float))
    for t in range(p.terms):
        if p.norm == COUNT:
            add_gaps(COUNT, x[t], y, sums, count)
        elif p.norm == SUM:
            add_gaps(SUM, x[t], y, sums, count)
        elif p.norm == EUCLIDEAN:
            add_gaps(EUCLIDEAN, x[t], y, sums, count)
        elif p.norm == GREATEST:
            add_gaps(GREATEST, x[t], y, sums, count)
        else:
            for j in range(count):
                gaps[j] = x[t] - y[j]
            raise_all(p, gaps, count)
            for j in range(count):
                sums[j] += gaps[j]
        y += p.columns


cdef void rows_of(
    const distance_t* p, const float* x, const float* y, float* sums, Py_ssize_t count
) noexcept nogil:
    """Compute the distances of one row from `count` <= ROWS other rows."""
    cdef float[ROWS * TERMS] gaps
    cdef float[ROWS] block
    cdef Py_ssize_t start = 0, n, j
    cdef rows_t r
    cdef int reduction = REDUCE_SUM
    if p.norm == SUM:
        reduction = REDUCE_ABS
    elif p.norm == EUCLIDEAN:
        reduction = REDUCE_SQUARES
    elif p.norm == GREATEST:
        reduction = REDUCE_ABS_MAX
    memset(sums, 0, count * sizeof(float))
    while start < p.terms:
        n = min(<Py_ssize_t> TERMS, p.terms - start)
        r.n_rows, r.n_columns = count, n
        r.a, r.a_row, r.a_column = x + start, 0, 1
        r.b, r.b_row, r.b_column = y + start, p.terms, 1
        r.y, r.y_row = gaps, n
        p.kernels.f32_binary[<int> fn.SUB](&r)
        if p.norm == COUNT or p.norm == POWER:
            raise_all(p, gaps, count * n)
        p.kernels.f32_reduce_rows(reduction, gaps, n, count, n, NULL, block)
        for j in range(count):
            if p.norm != GREATEST:
                sums[j] += block[j]
            elif not (sums[j] >= block[j] or sums[j] != sums[j]):
                sums[j] = block[j]
        start += n


cdef void distance_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Pairwise distances, a strip at a time.

    Layout : x (batch, rows, terms), y (batch, terms, columns) or (batch, columns, terms)
             -> out (batch, rows, columns), or the elements above its diagonal, row by row
    Needs  : C order
    Threads: over rows and strips of 256 columns
    Source : torch.cdist, torch.nn.functional.pdist
    """
    cdef const distance_t* p = <const distance_t*> params
    cdef const float* x
    cdef const float* y
    cdef float* sums
    cdef Py_ssize_t total = p.batch * p.rows * p.strips, item, row, first, stop, j
    for item in range(shard_start(total, shard, n_shards), shard_start(total, shard + 1, n_shards)):
        row, first = item // p.strips, item % p.strips * STRIP
        stop = min(first + STRIP, p.columns)
        x = <const float*> at(slots, p.x) + row * p.terms
        y = <const float*> at(slots, p.y) + row // p.rows * p.terms * p.columns
        sums = <float*> at(slots, p.out) + row * p.columns
        if p.is_upper:
            # Row r has the r + 1 elements up to the diagonal cut off.
            sums -= row * (row + 1) // 2 + row + 1
            first = max(first, row + 1)
        if first >= stop:
            continue
        sums += first
        if p.by_rows:
            j = first
            while j < stop:
                rows_of(p, x, y + j * p.terms, sums + j - first, min(<Py_ssize_t> ROWS, stop - j))
                j += ROWS
        else:
            strip_of(p, x, y + first, sums, stop - first)
        for j in range(stop - first):
            if p.norm == EUCLIDEAN:
                sums[j] = sqrtf(sums[j])
            elif p.norm == POWER:
                sums[j] = powf(sums[j], 1 / p.power)


cdef class DistanceStep(Step):
    """Distances of all rows of one matrix from all rows or columns of another.

    Parameters
    ----------
    x : TensorView, shape (batch, rows, terms), C order
    y : TensorView, shape (batch, terms, columns), or (batch, columns, terms) if `by_rows`; C order
    out : TensorView, C order
        Shape (batch, rows, columns); or one axis, for a batch of 1 and rows = columns: the elements
        above the diagonal.
    p : float
        The norm, >= 0.
    by_rows : bool
    """

    cdef distance_t p

    def __init__(self, x, y, out, p, by_rows):
        self.p.kernels = active()
        self.p.x, self.p.y, self.p.out = self.ref(x), self.ref(y), self.ref(out)
        self.p.norm = {0.0: COUNT, 1.0: SUM, 2.0: EUCLIDEAN, float("inf"): GREATEST}.get(p, POWER)
        self.p.power = p
        self.p.by_rows, self.p.is_upper = by_rows, out.rank == 1
        self.p.batch, self.p.rows, self.p.terms = x.shape
        self.p.columns = y.shape[1 if by_rows else 2]
        self.p.strips = (self.p.columns + STRIP - 1) // STRIP
        self.run = distance_run
        self.params = &self.p
        self.kind = "distance"
        self.flops = 3.0 * out.size * self.p.terms
        self.bytes = float(x.n_bytes + y.n_bytes + out.n_bytes)
        self.max_shards = max(
            1, min(self.p.batch * self.p.rows * self.p.strips,
                   out.size * self.p.terms // SHARD_TERMS),
        )
