# Scans: running sums, products, extremes and log-sum-exp.  Included by order.pyx.
#
# If inner is 1, the elements of a line are adjacent; otherwise a strip of adjacent lines is scanned
# together.

cdef enum:
    FOUR = 4             # lines of adjacent elements that are scanned together

# The dtypes of sums and products, and of running extremes.
SCAN_DTYPES = EXTREME_DTYPES
RUNNING_DTYPES = frozenset(["float32", "int64"])


# -- sums and products -------------------------------------------------------------------------

# The types of accumulators and of results.
ctypedef fused sum_t:
    uint64_t
    double

ctypedef fused result_t:
    uint64_t
    float
    double

cdef struct scan_t:
    ref_t x
    ref_t y
    bint multiplies              # products, else sums
    char dtype                   # of SCAN_DTYPES
    Py_ssize_t outer
    Py_ssize_t n
    Py_ssize_t inner
    Py_ssize_t strips            # ceil(inner / STRIP)
    Py_ssize_t items             # work items: strips, or groups of four lines


cdef inline void scan_strip(
    bint multiplies, const number_t* x, result_t* y, sum_t* sums, Py_ssize_t n, Py_ssize_t step,
    Py_ssize_t count,
) noexcept nogil:
    """Scan `count` adjacent lines whose elements are `step` apart."""
    cdef Py_ssize_t i, j
    for j in range(count):
        sums[j] = 1 if multiplies else 0
    for i in range(n):
        if multiplies:
            for j in range(count):
                sums[j] *= <sum_t> x[i * step + j]
                y[i * step + j] = <result_t> sums[j]
        else:
            for j in range(count):
                sums[j] += <sum_t> x[i * step + j]
                y[i * step + j] = <result_t> sums[j]


cdef inline void scan_along(
    bint multiplies, const number_t* x, result_t* y, sum_t* sums, Py_ssize_t n
) noexcept nogil:
    """Scan one line of adjacent elements."""
    cdef Py_ssize_t i
    cdef sum_t total = 1 if multiplies else 0
    for i in range(n):
        total = total * <sum_t> x[i] if multiplies else total + <sum_t> x[i]
        y[i] = <result_t> total


cdef inline void scan_four(
    bint multiplies, const number_t* x, result_t* y, sum_t* sums, Py_ssize_t n
) noexcept nogil:
    """Scan four lines of adjacent elements at once, which hides the latency of the sums."""
    cdef Py_ssize_t i
    cdef sum_t a, b, c, d
    a = b = c = d = 1 if multiplies else 0
    for i in range(n):
        if multiplies:
            a *= <sum_t> x[i]
            b *= <sum_t> x[n + i]
            c *= <sum_t> x[2 * n + i]
            d *= <sum_t> x[3 * n + i]
        else:
            a += <sum_t> x[i]
            b += <sum_t> x[n + i]
            c += <sum_t> x[2 * n + i]
            d += <sum_t> x[3 * n + i]
        y[i], y[n + i] = <result_t> a, <result_t> b
        y[2 * n + i], y[3 * n + i] = <result_t> c, <result_t> d


cdef inline void scan_lines(
    const scan_t* p, const number_t* x, result_t* y, sum_t* sums, Py_ssize_t first, Py_ssize_t stop
) noexcept nogil:
    """Scan work items [first, stop): strips of lines, or groups of four lines."""
    cdef Py_ssize_t item, start, count
    for item in range(first, stop):
        if p.inner > 1:
            start = item // p.strips * p.n * p.inner + item % p.strips * STRIP
            count = min(<Py_ssize_t> STRIP, p.inner - item % p.strips * STRIP)
            scan_strip(p.multiplies, x + start, y + start, sums, p.n, p.inner, count)
            continue
        start, count = FOUR * item, min(<Py_ssize_t> FOUR, p.outer - FOUR * item)
        if count == FOUR:
            scan_four(p.multiplies, x + start * p.n, y + start * p.n, sums, p.n)
            continue
        for start in range(start, start + count):
            scan_along(p.multiplies, x + start * p.n, y + start * p.n, sums, p.n)


cdef void scan_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Running sums or products of each line; float32 accumulates in float64.

    Layout : x, y (outer, n, inner), C order
    Needs  : nothing
    Threads: over the outer axis x strips of the inner one, or over groups of four lines
    Source : torch.cumsum, torch.cumprod
    """
    cdef const scan_t* p = <const scan_t*> params
    cdef const char* x = at(slots, p.x)
    cdef char* y = at(slots, p.y)
    cdef Py_ssize_t first = shard_start(p.items, shard, n_shards)
    cdef Py_ssize_t stop = shard_start(p.items, shard + 1, n_shards)
    cdef double[STRIP] reals
    cdef uint64_t[STRIP] wholes  # unsigned, since sums may overflow
    if p.dtype == b"f":
        scan_lines(p, <const float*> x, <float*> y, reals, first, stop)
    elif p.dtype == b"d":
        scan_lines(p, <const double*> x, <double*> y, reals, first, stop)
    elif p.dtype == b"i":
        scan_lines(p, <const int32_t*> x, <uint64_t*> y, wholes, first, stop)
    elif p.dtype == b"l":
        scan_lines(p, <const int64_t*> x, <uint64_t*> y, wholes, first, stop)
    else:
        scan_lines(p, <const uint8_t*> x, <uint64_t*> y, wholes, first, stop)


cdef class ScanStep(Step):
    """Computes running sums or products of each line.

    Parameters
    ----------
    x, y : TensorView, shape (outer, n, inner), C order
        x of a dtype in `SCAN_DTYPES`; y of the same float type, or int64.
    multiplies : bool
    """

    cdef scan_t p

    def __init__(self, x, y, multiplies):
        self.p.x, self.p.y = self.ref(x), self.ref(y)
        self.p.multiplies = multiplies
        self.p.dtype = ord(SCAN_DTYPES[x.dtype.name])
        self.p.outer, self.p.n, self.p.inner = x.shape
        self.p.strips = (self.p.inner + STRIP - 1) // STRIP
        self.p.items = (
            ceil_div(self.p.outer, FOUR) if self.p.inner == 1 else self.p.outer * self.p.strips
        )
        self.run = scan_run
        self.params = &self.p
        self.kind = "scan"
        self.flops = float(x.size)
        self.bytes = float(x.n_bytes + y.n_bytes)
        self.max_shards = max(1, min(self.p.items, x.size // SHARD_TERMS))


# -- extremes ----------------------------------------------------------------------------------

cdef struct running_t:
    ref_t x
    ref_t values
    ref_t indices
    bint is_min
    char dtype                   # of RUNNING_DTYPES, as in EXTREME_DTYPES
    Py_ssize_t outer
    Py_ssize_t n
    Py_ssize_t inner
    Py_ssize_t strips            # ceil(inner / STRIP)


cdef inline void run_along(
    bint is_min, const number_t* x, number_t* values, int64_t* indices, Py_ssize_t n
) noexcept nogil:
    """Find the running extremes of a line of adjacent elements; the last of equal ones counts."""
    cdef Py_ssize_t i, index = 0
    cdef number_t best = x[0], value
    for i in range(n):
        value = x[i]
        # A NaN is extreme; only another NaN replaces it.
        if (value <= best if is_min else value >= best) or value != value:
            best, index = value, i
        values[i] = best
        if indices != NULL:
            indices[i] = index


cdef inline void run_strip(
    bint is_min, const number_t* x, number_t* values, int64_t* indices, Py_ssize_t n,
    Py_ssize_t step, Py_ssize_t count,
) noexcept nogil:
    """Find the running extremes of `count` adjacent lines whose elements are `step` apart."""
    cdef number_t[STRIP] best
    cdef int64_t[STRIP] index
    cdef Py_ssize_t i, j
    cdef number_t value
    cdef bint better
    for j in range(count):
        best[j], index[j] = x[j], 0
    for i in range(n):
        for j in range(count):
            value = x[j]
            better = (value <= best[j] if is_min else value >= best[j]) | (value != value)
            best[j] = value if better else best[j]
            index[j] = i if better else index[j]
            values[j] = best[j]
        x += step
        values += step
        if indices != NULL:
            for j in range(count):
                indices[j] = index[j]
            indices += step


cdef inline void follow(
    const running_t* p, const number_t* x, number_t* values, int64_t* indices, Py_ssize_t shard,
    Py_ssize_t n_shards,
) noexcept nogil:
    cdef Py_ssize_t total = p.outer * p.strips, item, start, count
    cdef int64_t* target = NULL
    for item in range(shard_start(total, shard, n_shards), shard_start(total, shard + 1, n_shards)):
        start = item // p.strips * p.n * p.inner + item % p.strips * STRIP
        count = min(<Py_ssize_t> STRIP, p.inner - item % p.strips * STRIP)
        if indices != NULL:
            target = indices + start
        if p.inner == 1:
            run_along(p.is_min, x + start, values + start, target, p.n)
        elif p.is_min:
            run_strip(True, x + start, values + start, target, p.n, p.inner, count)
        else:
            run_strip(False, x + start, values + start, target, p.n, p.inner, count)


cdef void running_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Running maxima or minima of each line, and their last indices.

    Layout : x, values, indices (outer, n, inner), C order
    Needs  : n > 0
    Threads: over the outer axis x strips of the inner one
    Source : torch.cummax, torch.cummin
    """
    cdef const running_t* p = <const running_t*> params
    cdef const char* x = at(slots, p.x)
    cdef char* values = at(slots, p.values)
    cdef int64_t* indices = <int64_t*> at_or_null(slots, p.indices)
    if p.dtype == b"f":
        follow(p, <const float*> x, <float*> values, indices, shard, n_shards)
    else:
        follow(p, <const int64_t*> x, <int64_t*> values, indices, shard, n_shards)


cdef class RunningExtremeStep(Step):
    """Computes running maxima or minima of each line.

    Parameters
    ----------
    x, values : TensorView, shape (outer, n, inner), C order
        Of a dtype in `RUNNING_DTYPES`; lines are not empty.
    indices : TensorView or None
        As many elements, int64.
    is_min : bool
    """

    cdef running_t p

    def __init__(self, x, values, indices, is_min):
        self.p.x, self.p.values, self.p.indices = self.ref(x), self.ref(values), self.ref(indices)
        self.p.is_min = is_min
        self.p.dtype = ord(EXTREME_DTYPES[x.dtype.name])
        self.p.outer, self.p.n, self.p.inner = x.shape
        self.p.strips = ceil_div(self.p.inner, STRIP)
        self.run = running_run
        self.params = &self.p
        self.kind = "running_extreme"
        self.flops = float(x.size)
        self.bytes = 2.0 * x.n_bytes + (0 if indices is None else indices.n_bytes)
        self.max_shards = max(1, min(self.p.outer * self.p.strips, x.size // SHARD_TERMS))


# -- log-sum-exp -------------------------------------------------------------------------------

cdef struct log_sum_t:
    const kernels_t* kernels
    ref_t x
    ref_t y
    Py_ssize_t outer
    Py_ssize_t n
    Py_ssize_t inner
    Py_ssize_t strips            # ceil(inner / STRIP)

# The state of a line: the sum of exponentials is sum * exp(top).
cdef struct total_t:
    float top                    # the greatest value so far
    double sum


cdef inline float gap_to(total_t* line, float value) noexcept nogil:
    """Return value - top; if that is positive, the value becomes the new top."""
    cdef float gap = 0 if value == line.top else value - line.top
    if gap > 0:
        line.top = value
    return gap


cdef inline void add_exponential(total_t* line, float gap, float power) noexcept nogil:
    """Add a value with this gap; `power` is exp(-abs(gap))."""
    line.sum = line.sum * power + 1 if gap > 0 else line.sum + power


cdef inline void log_sums(
    const log_sum_t* p, total_t* lines, Py_ssize_t moves, const float* x, float* y, Py_ssize_t n
) noexcept nogil:
    """Add n values, one to each line (moves = 1) or all to the same line (moves = 0)."""
    cdef float[STRIP] gaps, powers, tops
    cdef Py_ssize_t j
    for j in range(n):
        gaps[j] = gap_to(&lines[j * moves], x[j])
        tops[j] = lines[j * moves].top
        powers[j] = -gaps[j] if gaps[j] > 0 else gaps[j]
    p.kernels.f32_unary[<int> fn.EXP](n, powers, powers, 0, 0)
    for j in range(n):
        add_exponential(&lines[j * moves], gaps[j], powers[j])
        powers[j] = <float> lines[j * moves].sum
    p.kernels.f32_unary[<int> fn.LOG](n, powers, powers, 0, 0)
    for j in range(n):
        y[j] = tops[j] + powers[j]


cdef void log_sum_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Running log-sum-exp of each line, relative to its greatest value so far.

    Layout : x, y (outer, n, inner), C order
    Needs  : n > 0
    Threads: over the outer axis x strips of the inner one
    Source : torch.logcumsumexp
    """
    cdef const log_sum_t* p = <const log_sum_t*> params
    cdef Py_ssize_t total = p.outer * p.strips, item, start, i, j, count
    cdef total_t[STRIP] lines
    cdef const float* x
    cdef float* y
    for item in range(shard_start(total, shard, n_shards), shard_start(total, shard + 1, n_shards)):
        start = item // p.strips * p.n * p.inner + item % p.strips * STRIP
        count = min(<Py_ssize_t> STRIP, p.inner - item % p.strips * STRIP)
        x = <const float*> at(slots, p.x) + start
        y = <float*> at(slots, p.y) + start
        for j in range(count):
            lines[j].top, lines[j].sum = x[j], 0
        if p.inner > 1:
            for i in range(p.n):
                log_sums(p, lines, 1, x + i * p.inner, y + i * p.inner, count)
            continue
        i = 0
        while i < p.n:
            log_sums(p, lines, 0, x + i, y + i, min(<Py_ssize_t> STRIP, p.n - i))
            i += STRIP


cdef class LogSumScanStep(Step):
    """Computes the running log-sum-exp of each line.

    Parameters
    ----------
    x, y : TensorView, shape (outer, n, inner), C order
        float32; lines are not empty.
    """

    cdef log_sum_t p

    def __init__(self, x, y):
        self.p.kernels = active()
        self.p.x, self.p.y = self.ref(x), self.ref(y)
        self.p.outer, self.p.n, self.p.inner = x.shape
        self.p.strips = ceil_div(self.p.inner, STRIP)
        self.run = log_sum_run
        self.params = &self.p
        self.kind = "log_sum_scan"
        self.flops = 20.0 * x.size
        self.bytes = float(x.n_bytes + y.n_bytes)
        self.max_shards = max(1, min(self.p.outer * self.p.strips, x.size // 1024))
