# Embedding bags: sums, means or maxima of the rows of a table.  Included by indexing.pyx.

cdef enum:
    TAPS = 4                     # rows that are combined at once

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
    int mode                     # BAG_SUM, ...
    Py_ssize_t n                 # number of indices
    Py_ssize_t bags
    Py_ssize_t n_offsets         # bags, or bags + 1
    int64_t rows                 # of the table
    Py_ssize_t width             # of a row
    int64_t padding              # an index to skip, or -1


cdef inline void join_rows(
    const bag_t* p, int n, const float** taps, float* factors, float* y
) noexcept nogil:
    """y = the weighted sum or the maximum of up to four rows; the first one may be y."""
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
            # The micro-kernel takes two or four rows: split one into halves, which is exact.
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
    cdef const float* weights = <const float*> at_or_null(slots, p.weights)
    cdef (const float*)[TAPS] taps
    cdef float[TAPS] factors
    cdef float* y
    cdef int64_t row
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
            row = indices[i]
            if not 0 <= row < p.rows:
                record_error(<long long*> at(slots, p.error_slot), row)
                row = 0
            if row == p.padding:
                continue
            if n == TAPS:
                join_rows(p, n, taps, factors, y)
                # The intermediate result is the first row of the next sum.
                taps[0], factors[0], n = y, 1, 1
            taps[n] = table + row * p.width
            factors[n] = weights[i] if weights != NULL and p.mode != BAG_MAXIMUM else 1
            n += 1
            count += 1
        join_rows(p, n, taps, factors, y)
        if p.mode == BAG_MEAN and count > 1:
            for i in range(p.width):
                y[i] /= <float> count


cdef class EmbeddingBagStep(Step):
    """Combines the rows of a table that bags of indices select.

    Parameters
    ----------
    table : TensorView, shape (rows, width), C order
    indices : TensorView, shape (n,), int64
    offsets : TensorView, shape (bags,) or (bags + 1,), int64
        The start of each bag in `indices`, and optionally the end of the last one.
    weights : TensorView or None
        A factor per index.
    y : TensorView, shape (bags, width), C order
    mode : int
        0 for the sum, 1 for the mean, 2 for the maximum.
    padding : int
        An index to skip, or -1.
    error_slot : TensorView
        16 bytes of per-context state.
    message : str
        Of the error for an index out of range; ``{}`` stands for the index.
    """

    cdef bag_t p

    def __init__(self, table, indices, offsets, weights, y, mode, padding, error_slot, message):
        self.p.kernels = active()
        self.p.table, self.p.indices = self.ref(table), self.ref(indices)
        self.p.offsets, self.p.y = self.ref(offsets), self.ref(y)
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
