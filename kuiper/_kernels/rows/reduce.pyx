"""Reductions of one axis: sums, extremes, products, norms, variances, log-sum-exp; distances."""

from libc.math cimport fabsf, INFINITY, logf, sqrtf

from kuiper._kernels.micro.dispatch cimport active
from kuiper._runtime.step cimport Step, at, ref_t, shard_start
from kuiper._kernels.micro.table cimport (
    REDUCE_ABS, REDUCE_ABS_MAX, REDUCE_ABS_MIN, REDUCE_DEVIATIONS, REDUCE_EXPONENTIALS, REDUCE_MAX,
    REDUCE_MIN, REDUCE_PRODUCT, REDUCE_SQUARES, REDUCE_SUM, kernels_t,
)

cdef enum:
    STRIP = 256          # results per work item
    SHARD_TERMS = 8192   # fewest elements of a shard that are worth a thread
    NOTHING = -1         # no first pass

# How a result follows from the second pass.
cdef enum:
    AS_IT_IS
    MEAN
    VARIANCE
    DEVIATION
    ROOT
    LOG_SUM

# name: (reduction of the first pass, which yields a shift; of the second pass; result)
KINDS = {
    "sum": (NOTHING, REDUCE_SUM, AS_IT_IS),
    "mean": (NOTHING, REDUCE_SUM, MEAN),
    "max": (NOTHING, REDUCE_MAX, AS_IT_IS),
    "min": (NOTHING, REDUCE_MIN, AS_IT_IS),
    "prod": (NOTHING, REDUCE_PRODUCT, AS_IT_IS),
    "norm1": (NOTHING, REDUCE_ABS, AS_IT_IS),
    "norm2": (NOTHING, REDUCE_SQUARES, ROOT),
    "norm_inf": (NOTHING, REDUCE_ABS_MAX, AS_IT_IS),
    "norm_minus_inf": (NOTHING, REDUCE_ABS_MIN, AS_IT_IS),
    "var": (REDUCE_SUM, REDUCE_DEVIATIONS, VARIANCE),
    "std": (REDUCE_SUM, REDUCE_DEVIATIONS, DEVIATION),
    "logsumexp": (REDUCE_MAX, REDUCE_EXPONENTIALS, LOG_SUM),
}

cdef struct reduce_t:
    const kernels_t* kernels
    ref_t x
    ref_t y
    int first               # REDUCE_... of the first pass, or NOTHING
    int second
    int result
    float divisor           # of a mean or variance
    Py_ssize_t outer
    Py_ssize_t n            # terms of a result
    Py_ssize_t inner
    Py_ssize_t strips       # of the inner axis, or of the outer one if inner == 1
    Py_ssize_t x_outer      # strides of x, in elements: from line to line
    Py_ssize_t x_step       # from term to term
    Py_ssize_t y_outer      # strides of y, in elements
    Py_ssize_t y_inner


cdef class ReduceStep(Step):
    """Reduces the middle axis of a tensor.

    Parameters
    ----------
    x : TensorView, shape (outer, n, inner)
        Elements of the inner axis are adjacent, or of the middle axis if inner is 1.
    y : TensorView, shape (outer, inner)
    kind : str
        A key of :data:`KINDS`.
    correction : float, default=0
        A variance divides by n - correction.
    """

    cdef reduce_t p

    def __init__(self, x, y, kind, correction=0.0):
        self.p.kernels = active()
        self.p.x, self.p.y = self.ref(x), self.ref(y)
        self.p.first, self.p.second, self.p.result = KINDS[kind]
        self.p.outer, self.p.n, self.p.inner = x.shape
        self.p.divisor = max(self.p.n - correction, 0.0)
        self.p.x_outer, self.p.x_step = x.strides[0], x.strides[1]
        self.p.y_outer, self.p.y_inner = y.strides
        rows = self.p.outer if self.p.inner == 1 else self.p.inner
        self.p.strips = (rows + STRIP - 1) // STRIP
        self.run = reduce_run
        self.params = &self.p
        items = y.size if self.p.inner == 1 else self.p.outer * self.p.strips
        self.max_shards = max(min(items, x.size // SHARD_TERMS), 1)
        self.kind = f"reduce_{kind}"
        self.flops = float(x.size)
        self.bytes = float(x.n_bytes + y.n_bytes)


cdef void reduce_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """One result per line along the middle axis.

    Layout : x (outer, n, inner) -> y (outer, inner), any strides
    Needs  : n > 0, except for sums and products
    Threads: over rows, or over the outer axis x strips of the inner one; no sum is split
    Source : torch.sum, mean, amax, amin, prod, var, std, norm, logsumexp
    """
    cdef const reduce_t* p = <const reduce_t*> params
    cdef const float* x = <const float*> at(slots, p.x)
    cdef float* y = <float*> at(slots, p.y)
    cdef float[STRIP] shift
    cdef float[STRIP] sums
    cdef Py_ssize_t i, j, start, stop, first, count
    if p.inner == 1:
        start = shard_start(p.outer, shard, n_shards)
        stop = shard_start(p.outer, shard + 1, n_shards)
        while start < stop:
            count = min(STRIP, stop - start)
            if p.first != NOTHING:
                p.kernels.f32_reduce_rows(
                    p.first, x + start * p.x_outer, p.x_outer, count, p.n, NULL, shift
                )
                make_shift(p, shift, count)
            p.kernels.f32_reduce_rows(
                p.second, x + start * p.x_outer, p.x_outer, count, p.n,
                shift if p.first != NOTHING else NULL, sums,
            )
            for j in range(count):
                y[(start + j) * p.y_outer] = result_of(p, sums[j], shift[j])
            start += count
        return
    for i in range(
        shard_start(p.outer * p.strips, shard, n_shards),
        shard_start(p.outer * p.strips, shard + 1, n_shards),
    ):
        first = i % p.strips * STRIP
        count = min(STRIP, p.inner - first)
        start = i // p.strips
        if p.first != NOTHING:
            p.kernels.f32_reduce_columns(
                p.first, x + start * p.x_outer + first, p.x_step, p.n, count, NULL, shift
            )
            make_shift(p, shift, count)
        p.kernels.f32_reduce_columns(
            p.second, x + start * p.x_outer + first, p.x_step, p.n, count,
            shift if p.first != NOTHING else NULL, sums,
        )
        for j in range(count):
            y[start * p.y_outer + (first + j) * p.y_inner] = result_of(p, sums[j], shift[j])


cdef inline void make_shift(const reduce_t* p, float* shift, Py_ssize_t count) noexcept nogil:
    """Turn the results of the first pass into the shifts that the second pass subtracts."""
    cdef Py_ssize_t j
    for j in range(count):
        if p.result == LOG_SUM:
            # Subtracting an infinite maximum would give infinity - infinity = NaN.
            shift[j] = 0 if fabsf(shift[j]) == INFINITY else shift[j]
        else:
            shift[j] /= <float> p.n


cdef inline float result_of(const reduce_t* p, float total, float shift) noexcept nogil:
    if p.result == MEAN or p.result == VARIANCE:
        return total / p.divisor
    if p.result == DEVIATION:
        return sqrtf(total / p.divisor)
    if p.result == ROOT:
        return sqrtf(total)
    if p.result == LOG_SUM:
        return logf(total) + shift
    return total


include "distances.pxi"
