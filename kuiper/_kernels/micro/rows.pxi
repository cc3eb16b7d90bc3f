# Reductions, softmax and normalisation.
#
# A tensor is (outer, n, inner), reduced along n.  If inner is 1, vectors run along n: "rows".
# Otherwise vectors run across inner, which needs no shuffle: "columns".  Sums are blocked, so their
# error grows with the length of a block plus the number of blocks; their order does not depend on
# the number of threads.

from libc.math cimport INFINITY, logf, sqrtf

from kuiper._kernels.micro.table cimport (
    REDUCE_ABS, REDUCE_ABS_MAX, REDUCE_ABS_MIN, REDUCE_DEVIATIONS, REDUCE_EXPONENTIALS, REDUCE_MAX,
    REDUCE_MIN, REDUCE_PRODUCT, REDUCE_SQUARES, REDUCE_SUM,
)

cdef extern from "_kernels/simd/lanes.h" nogil:
    vi32 first_lanes "kp_first_lanes"(long n) noexcept
    vf32 swap_8 "kp_swap_8"(vf32) noexcept
    vf32 swap_4 "kp_swap_4"(vf32) noexcept
    vf32 swap_2 "kp_swap_2"(vf32) noexcept
    vf32 swap_1 "kp_swap_1"(vf32) noexcept
    float lane_0 "kp_lane_0"(vf32) noexcept

cdef enum:
    ROW_NV = 4              # accumulators of a row; vectors of columns per pass
    BLOCK_TERMS = 64        # vectors summed in one accumulator before it is added to the total
    ROWS_TOGETHER = 8       # rows of a softmax per pass, at most
    FLOATS_TOGETHER = 4096  # of these rows


cdef inline vf32 nan_min(vf32 a, vf32 b) noexcept nogil:
    """The lesser of two; NaN if either is NaN.  See nan_max."""
    return from_bits(bits(vmin(a, b)) | bits(vmin(b, a)))


cdef inline vf32 first_value(int kind) noexcept nogil:
    """The reduction of zero elements."""
    if kind == REDUCE_MAX:
        return splat(-INFINITY)
    if kind == REDUCE_MIN or kind == REDUCE_ABS_MIN:
        return splat(INFINITY)
    if kind == REDUCE_PRODUCT:
        return splat(1)
    return splat(0)


cdef inline vf32 term(int kind, vf32 x, vf32 shift) noexcept nogil:
    """The term of an element in a reduction."""
    if kind == REDUCE_SQUARES:
        return x * x
    if kind == REDUCE_ABS or kind == REDUCE_ABS_MAX or kind == REDUCE_ABS_MIN:
        return vabs(x)
    if kind == REDUCE_DEVIATIONS:
        return (x - shift) * (x - shift)
    if kind == REDUCE_EXPONENTIALS:
        return vexp(x - shift)
    return x


cdef inline vf32 joined(int kind, vf32 a, vf32 b) noexcept nogil:
    """Combine two partial results."""
    if kind == REDUCE_MAX or kind == REDUCE_ABS_MAX:
        return nan_max(a, b)
    if kind == REDUCE_MIN or kind == REDUCE_ABS_MIN:
        return nan_min(a, b)
    if kind == REDUCE_PRODUCT:
        return a * b
    return a + b


cdef inline float across(int kind, vf32 v) noexcept nogil:
    """Reduce the lanes of a vector by folding halves onto each other."""
    if LANES > 8:
        v = joined(kind, v, swap_8(v))
    if LANES > 4:
        v = joined(kind, v, swap_4(v))
    if LANES > 2:
        v = joined(kind, v, swap_2(v))
    if LANES > 1:
        v = joined(kind, v, swap_1(v))
    return lane_0(v)


cdef inline float reduce_row(int kind, const float* x, Py_ssize_t n, float shift) noexcept nogil:
    """One row of adjacent elements."""
    cdef vf32[ROW_NV] acc
    cdef vf32 total = first_value(kind), by = splat(shift), v
    cdef Py_ssize_t i = 0, end, rest
    cdef int j
    while i + ROW_NV * LANES <= n:
        end = least(n, i + BLOCK_TERMS * ROW_NV * LANES)
        for j in range(ROW_NV):
            acc[j] = first_value(kind)
        while i + ROW_NV * LANES <= end:
            for j in range(ROW_NV):
                acc[j] = joined(kind, acc[j], term(kind, load(x + i + j * LANES), by))
            i += ROW_NV * LANES
        acc[0] = joined(kind, joined(kind, acc[0], acc[1]), joined(kind, acc[2], acc[3]))
        total = joined(kind, total, acc[0])
    while i + LANES <= n:
        total = joined(kind, total, term(kind, load(x + i), by))
        i += LANES
    rest = n - i
    if rest > 0:
        v = joined(kind, total, term(kind, load_n(x + i, rest), by))
        total = select(first_lanes(rest), v, total)
    return across(kind, total)


cdef inline void reduce_each_row(
    int kind, const float* x, Py_ssize_t x_row, Py_ssize_t rows, Py_ssize_t n,
    const float* shift, float* y,
) noexcept nogil:
    cdef Py_ssize_t row
    for row in range(rows):
        y[row] = reduce_row(kind, x + row * x_row, n, shift[row] if shift != NULL else 0)


cdef inline void reduce_block(
    int kind, int nv, const float* x, Py_ssize_t x_step, Py_ssize_t n, const float* shift, float* y,
    long lanes,
) noexcept nogil:
    """Columns of `nv` vectors, or the first `lanes` columns of one vector."""
    cdef vf32[ROW_NV] total, acc, by
    cdef Py_ssize_t i = 0, end
    cdef int j
    for j in range(nv):
        total[j] = first_value(kind)
        by[j] = load_first(shift + j * LANES, lanes) if shift != NULL else splat(0)
    while i < n:
        end = least(n, i + BLOCK_TERMS)
        for j in range(nv):
            acc[j] = first_value(kind)
        while i < end:
            for j in range(nv):
                acc[j] = joined(kind, acc[j], term(kind, load_first(x + j * LANES, lanes), by[j]))
            x += x_step
            i += 1
        for j in range(nv):
            total[j] = joined(kind, total[j], acc[j])
    for j in range(nv):
        store_first(y + j * LANES, total[j], lanes)


cdef inline void reduce_each_column(
    int kind, const float* x, Py_ssize_t x_step, Py_ssize_t n, Py_ssize_t inner,
    const float* shift, float* y,
) noexcept nogil:
    cdef Py_ssize_t c = 0
    if inner < LANES:
        reduce_block(kind, 1, x, x_step, n, shift, y, rest_of(inner))
        return
    while c + ROW_NV * LANES <= inner:
        reduce_block(
            kind, ROW_NV, x + c, x_step, n, shift + c if shift != NULL else NULL, y + c, LANES
        )
        c += ROW_NV * LANES
    while c < inner:
        c = least(c, inner - LANES)  # the last vector may overlap the one before
        reduce_block(kind, 1, x + c, x_step, n, shift + c if shift != NULL else NULL, y + c, LANES)
        c += LANES


cdef void f32_reduce_rows(
    int kind, const float* x, Py_ssize_t x_row, Py_ssize_t rows, Py_ssize_t n,
    const float* shift, float* y,
) noexcept nogil:
    if kind == REDUCE_SUM:
        reduce_each_row(REDUCE_SUM, x, x_row, rows, n, shift, y)
    elif kind == REDUCE_MAX:
        reduce_each_row(REDUCE_MAX, x, x_row, rows, n, shift, y)
    elif kind == REDUCE_MIN:
        reduce_each_row(REDUCE_MIN, x, x_row, rows, n, shift, y)
    elif kind == REDUCE_PRODUCT:
        reduce_each_row(REDUCE_PRODUCT, x, x_row, rows, n, shift, y)
    elif kind == REDUCE_SQUARES:
        reduce_each_row(REDUCE_SQUARES, x, x_row, rows, n, shift, y)
    elif kind == REDUCE_ABS:
        reduce_each_row(REDUCE_ABS, x, x_row, rows, n, shift, y)
    elif kind == REDUCE_ABS_MAX:
        reduce_each_row(REDUCE_ABS_MAX, x, x_row, rows, n, shift, y)
    elif kind == REDUCE_ABS_MIN:
        reduce_each_row(REDUCE_ABS_MIN, x, x_row, rows, n, shift, y)
    elif kind == REDUCE_DEVIATIONS:
        reduce_each_row(REDUCE_DEVIATIONS, x, x_row, rows, n, shift, y)
    else:
        reduce_each_row(REDUCE_EXPONENTIALS, x, x_row, rows, n, shift, y)


cdef void f32_reduce_columns(
    int kind, const float* x, Py_ssize_t x_step, Py_ssize_t n, Py_ssize_t inner,
    const float* shift, float* y,
) noexcept nogil:
    if kind == REDUCE_SUM:
        reduce_each_column(REDUCE_SUM, x, x_step, n, inner, shift, y)
    elif kind == REDUCE_MAX:
        reduce_each_column(REDUCE_MAX, x, x_step, n, inner, shift, y)
    elif kind == REDUCE_MIN:
        reduce_each_column(REDUCE_MIN, x, x_step, n, inner, shift, y)
    elif kind == REDUCE_PRODUCT:
        reduce_each_column(REDUCE_PRODUCT, x, x_step, n, inner, shift, y)
    elif kind == REDUCE_SQUARES:
        reduce_each_column(REDUCE_SQUARES, x, x_step, n, inner, shift, y)
    elif kind == REDUCE_ABS:
        reduce_each_column(REDUCE_ABS, x, x_step, n, inner, shift, y)
    elif kind == REDUCE_ABS_MAX:
        reduce_each_column(REDUCE_ABS_MAX, x, x_step, n, inner, shift, y)
    elif kind == REDUCE_ABS_MIN:
        reduce_each_column(REDUCE_ABS_MIN, x, x_step, n, inner, shift, y)
    elif kind == REDUCE_DEVIATIONS:
        reduce_each_column(REDUCE_DEVIATIONS, x, x_step, n, inner, shift, y)
    else:
        reduce_each_column(REDUCE_EXPONENTIALS, x, x_step, n, inner, shift, y)


# -- softmax -----------------------------------------------------------------------------------


cdef inline float exp_row(
    bint keep, const float* x, float* y, Py_ssize_t n, vf32 scale, vf32 top
) noexcept nogil:
    """Return the sum of exp(scale * x - top) over a row; `keep` stores the terms in y.

    The largest term is 1, so the lower precision of exp_term for small terms is lost in the sum.
    """
    cdef vf32 total = splat(0), acc = splat(0), v
    cdef Py_ssize_t i = 0, rest
    while i + LANES <= n:
        v = exp_term(top - load(x + i) * scale)
        if keep:
            store(y + i, v)
        acc += v
        i += LANES
        if i % (BLOCK_TERMS * LANES) == 0:
            total += acc
            acc = splat(0)
    total += acc
    rest = n - i
    if rest > 0:
        v = exp_term(top - load_n(x + i, rest) * scale)
        if keep:
            store_n(y + i, v, rest)
        total += select(first_lanes(rest), v, splat(0))
    return across(REDUCE_SUM, total)


cdef inline float max_scaled_row(const float* x, Py_ssize_t n, vf32 scale) noexcept nogil:
    cdef vf32 a = splat(-INFINITY), b = a, v
    cdef Py_ssize_t i = 0, rest
    while i + 2 * LANES <= n:
        a = nan_max(a, load(x + i) * scale)
        b = nan_max(b, load(x + i + LANES) * scale)
        i += 2 * LANES
    if i + LANES <= n:
        a = nan_max(a, load(x + i) * scale)
        i += LANES
    a = nan_max(a, b)
    rest = n - i
    if rest > 0:
        v = nan_max(a, load_n(x + i, rest) * scale)
        a = select(first_lanes(rest), v, a)
    return across(REDUCE_MAX, a)


cdef inline void scale_row(
    bint is_log, const float* x, float* y, Py_ssize_t n, vf32 a, vf32 b, vf32 c
) noexcept nogil:
    """y = x * a, or as logarithms y = x * a - b - c."""
    cdef Py_ssize_t i = 0
    cdef vf32 v
    while i < n:
        v = (load(x + i) if i + LANES <= n else load_n(x + i, n - i)) * a
        if is_log:
            v = v - b - c
        if i + LANES <= n:
            store(y + i, v)
        else:
            store_n(y + i, v, n - i)
        i += LANES


cdef void f32_softmax_rows(
    bint is_log, const float* x, Py_ssize_t x_row, float* y, Py_ssize_t y_row, Py_ssize_t rows,
    Py_ssize_t n, float scale,
) noexcept nogil:
    cdef float[ROWS_TOGETHER] tops
    cdef float[ROWS_TOGETHER] totals
    cdef Py_ssize_t row = 0, count, i
    while row < rows:
        # A few rows at a time: loads right after stores to the same addresses would stall.
        count = least(rows - row, 1 + FLOATS_TOGETHER // n)
        count = least(count, ROWS_TOGETHER)
        for i in range(count):
            tops[i] = max_scaled_row(x + i * x_row, n, splat(scale))
            totals[i] = exp_row(
                not is_log, x + i * x_row, y + i * y_row, n, splat(scale), splat(tops[i])
            )
        for i in range(count):
            if is_log:
                scale_row(
                    True, x + i * x_row, y + i * y_row, n, splat(scale), splat(tops[i]),
                    splat(logf(totals[i])),
                )
            else:
                scale_row(
                    False, y + i * y_row, y + i * y_row, n, splat(1 / totals[i]), splat(0),
                    splat(0),
                )
        x += count * x_row
        y += count * y_row
        row += count


cdef inline void softmax_block(
    bint is_log, int nv, const float* x, Py_ssize_t x_step, float* y, Py_ssize_t y_step,
    Py_ssize_t n, vf32 scale, float* buffer, long lanes,
) noexcept nogil:
    """Columns of `nv` vectors, or the first `lanes` columns of one; buffer (n, nv * LANES)."""
    cdef vf32[ROW_NV] top, total
    cdef vf32 v
    cdef Py_ssize_t i
    cdef int j
    for j in range(nv):
        top[j] = splat(-INFINITY)
        total[j] = splat(0)
    for i in range(n):
        for j in range(nv):
            v = load_first(x + i * x_step + j * LANES, lanes) * scale
            top[j] = nan_max(top[j], v)
            store(buffer + (i * nv + j) * LANES, v)
    for i in range(n):
        for j in range(nv):
            v = exp_term(top[j] - load(buffer + (i * nv + j) * LANES))
            total[j] += v
            if not is_log:
                store(buffer + (i * nv + j) * LANES, v)
    for j in range(nv):
        total[j] = vlog(total[j]) if is_log else splat(1) / total[j]
    for i in range(n):
        for j in range(nv):
            v = load(buffer + (i * nv + j) * LANES)
            v = v - top[j] - total[j] if is_log else v * total[j]
            store_first(y + i * y_step + j * LANES, v, lanes)


cdef void f32_softmax_columns(
    bint is_log, const float* x, Py_ssize_t x_step, float* y, Py_ssize_t y_step, Py_ssize_t n,
    Py_ssize_t inner, float scale, float* buffer,
) noexcept nogil:
    # y may be x, so each column is computed once.
    cdef Py_ssize_t c = 0
    cdef vf32 s = splat(scale)
    while c + ROW_NV * LANES <= inner:
        softmax_block(is_log, ROW_NV, x + c, x_step, y + c, y_step, n, s, buffer, LANES)
        c += ROW_NV * LANES
    while c + LANES <= inner:
        softmax_block(is_log, 1, x + c, x_step, y + c, y_step, n, s, buffer, LANES)
        c += LANES
    if c < inner:
        softmax_block(is_log, 1, x + c, x_step, y + c, y_step, n, s, buffer, rest_of(inner - c))


# -- normalisation -----------------------------------------------------------------------------


cdef inline vf32 normalized(
    const float* x, Py_ssize_t i, long n, vf32 mean, vf32 factor, const float* weight,
    const float* bias,
) noexcept nogil:
    """(x - mean) * factor * weight + bias for n elements from i on; weight, bias may be NULL."""
    cdef vf32 v = (load_first(x + i, n) - mean) * factor
    if weight != NULL:
        v = v * load_first(weight + i, n)
    if bias != NULL:
        v = v + load_first(bias + i, n)
    return v


cdef inline void normalize_row(
    const float* x, float* y, Py_ssize_t n, vf32 mean, vf32 factor, const float* weight,
    const float* bias,
) noexcept nogil:
    cdef Py_ssize_t i = 0
    while i + LANES <= n:
        store(y + i, normalized(x, i, LANES, mean, factor, weight, bias))
        i += LANES
    if i < n:
        store_n(y + i, normalized(x, i, rest_of(n - i), mean, factor, weight, bias), n - i)


cdef void f32_layer_norm_rows(
    bint centred, const float* x, Py_ssize_t x_row, float* y, Py_ssize_t y_row, Py_ssize_t rows,
    Py_ssize_t n, const float* weight, const float* bias, float eps,
) noexcept nogil:
    cdef Py_ssize_t row
    cdef float mean, square
    for row in range(rows):
        mean = 0
        if centred:
            mean = reduce_row(REDUCE_SUM, x, n, 0) / <float> n
            square = reduce_row(REDUCE_DEVIATIONS, x, n, mean)
        else:
            square = reduce_row(REDUCE_SQUARES, x, n, 0)
        normalize_row(
            x, y, n, splat(mean), splat(1 / sqrtf(square / <float> n + eps)), weight, bias
        )
        x += x_row
        y += y_row


cdef void f32_normalize_flat(
    const float* x, float* y, Py_ssize_t n, float mean, float factor, float bias
) noexcept nogil:
    cdef vf32 m = splat(mean), f = splat(factor), b = splat(bias)
    cdef Py_ssize_t i = 0
    while i + LANES <= n:
        store(y + i, (load(x + i) - m) * f + b)
        i += LANES
    if i < n:
        store_n(y + i, (load_n(x + i, n - i) - m) * f + b, n - i)


cdef void f32_normalize_columns(
    const float* x, Py_ssize_t x_step, float* y, Py_ssize_t y_step, Py_ssize_t rows,
    Py_ssize_t channels, const float* mean, const float* factor, const float* bias,
) noexcept nogil:
    cdef Py_ssize_t row, c
    for row in range(rows):
        c = 0
        while c + LANES <= channels:
            store(y + c, (load(x + c) - load(mean + c)) * load(factor + c) + load(bias + c))
            c += LANES
        if c < channels:
            store_n(
                y + c,
                (load_n(x + c, channels - c) - load_n(mean + c, channels - c))
                * load_n(factor + c, channels - c) + load_n(bias + c, channels - c),
                channels - c,
            )
        x += x_step
        y += y_step


cdef void f32_local_response_norm(
    const float* x, float* y, Py_ssize_t channels, Py_ssize_t size, float alpha, float beta,
    float k, float* squares,
) noexcept nogil:
    # squares: size // 2 zeros, the squares of the channels, zeros up to the end of the last window
    cdef Py_ssize_t before = size // 2, c = 0, t, n
    cdef vf32 v, total
    for t in range(before):
        squares[t] = 0
    while c < channels:
        v = load_first(x + c, least(LANES, channels - c))
        store(squares + before + c, v * v)
        c += LANES
    for t in range(size - before):
        squares[before + c + t] = 0
    c = 0
    while c < channels:
        n = least(LANES, channels - c)
        total = splat(0)
        for t in range(size):
            total += load(squares + c + t)
        total = vexp(vlog(total * splat(alpha) + splat(k)) * splat(-beta))
        store_first(y + c, load_first(x + c, n) * total, n)
        c += LANES


cdef void fill_rows(kernels_t* k) noexcept:
    k.f32_reduce_rows = f32_reduce_rows
    k.f32_reduce_columns = f32_reduce_columns
    k.f32_softmax_rows = f32_softmax_rows
    k.f32_softmax_columns = f32_softmax_columns
    k.f32_layer_norm_rows = f32_layer_norm_rows
    k.f32_normalize_flat = f32_normalize_flat
    k.f32_normalize_columns = f32_normalize_columns
    k.f32_local_response_norm = f32_local_response_norm
