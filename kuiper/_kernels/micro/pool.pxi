# Windows over channels-last pixels.  Vectors run across channels, so no window is gathered.
#
# Row r of the window of output pixel i starts at x + i * x_step + rows[r]; its columns are `column`
# apart.

from libc.math cimport INFINITY
from libc.stdint cimport int64_t

cdef enum:
    POOL_NV = 4   # vectors of channels per pass over a window
    SLIDE_NV = 4  # at most, if columns are kept from window to window
    SLIDE_K = 5   # columns kept, at most


ctypedef fused pooled_t:
    float
    bfloat16_t


cdef inline vf32 load_pooled(const pooled_t* x) noexcept nogil:
    if pooled_t is float:
        return load(x)
    else:
        return load_bf16(x)


cdef inline vf32 load_pooled_n(const pooled_t* x, long n) noexcept nogil:
    if pooled_t is float:
        return load_n(x, n)
    else:
        return load_bf16_n(x, n)


cdef inline void store_pooled(pooled_t* y, vf32 v) noexcept nogil:
    if pooled_t is float:
        store(y, v)
    else:
        store_bf16(y, v)


cdef inline void store_pooled_n(pooled_t* y, vf32 v, long n) noexcept nogil:
    if pooled_t is float:
        store_n(y, v, n)
    else:
        store_bf16_n(y, v, n)


cdef inline void max_window(
    int nv, const pooled_t* x, const Py_ssize_t* rows, Py_ssize_t n_rows, Py_ssize_t n_columns,
    Py_ssize_t column, vf32* acc,
) noexcept nogil:
    cdef const pooled_t* pixel
    cdef Py_ssize_t r, k
    cdef int j
    for j in range(nv):
        acc[j] = splat(-INFINITY)
    for r in range(n_rows):
        pixel = x + rows[r]
        for k in range(n_columns):
            for j in range(nv):
                acc[j] = nan_max(acc[j], load_pooled(pixel + j * LANES))
            pixel += column


cdef inline void max_pixels(
    int nv, Py_ssize_t n_rows, Py_ssize_t n_columns, const pooled_t* x, Py_ssize_t x_step,
    const Py_ssize_t* rows, Py_ssize_t column, pooled_t* y, Py_ssize_t y_step, Py_ssize_t count,
) noexcept nogil:
    """A block of channels of all pixels; windows of 2 x 2 and 3 x 3 are constants."""
    cdef vf32[POOL_NV] acc
    cdef Py_ssize_t i
    cdef int j
    for i in range(count):
        if n_rows == 3 and n_columns == 3:
            max_window(nv, x, rows, 3, 3, column, &acc[0])
        elif n_rows == 2 and n_columns == 2:
            max_window(nv, x, rows, 2, 2, column, &acc[0])
        else:
            max_window(nv, x, rows, n_rows, n_columns, column, &acc[0])
        for j in range(nv):
            store_pooled(y + j * LANES, acc[j])
        x += x_step
        y += y_step


cdef inline void pool_column(
    bint is_max, int nv, const pooled_t* x, const Py_ssize_t* rows, Py_ssize_t n_rows, vf32* acc
) noexcept nogil:
    """The maximum or sum of one column of a window."""
    cdef Py_ssize_t r
    cdef int j
    for j in range(nv):
        acc[j] = load_pooled(x + rows[0] + j * LANES)
    for r in range(1, n_rows):
        for j in range(nv):
            if is_max:
                acc[j] = nan_max(acc[j], load_pooled(x + rows[r] + j * LANES))
            else:
                acc[j] += load_pooled(x + rows[r] + j * LANES)


cdef inline void slide_rows(
    bint is_max, int nv, int k, int s, const pooled_t* x, const Py_ssize_t* rows, Py_ssize_t n_rows,
    Py_ssize_t column, pooled_t* y, Py_ssize_t y_step, Py_ssize_t count, vf32 by,
) noexcept nogil:
    """Windows of k columns that move by s: shared columns are computed once."""
    cdef vf32[SLIDE_K][SLIDE_NV] columns
    cdef vf32 v
    cdef Py_ssize_t i
    cdef int j, q
    for q in range(k - s):
        pool_column(is_max, nv, x + q * column, rows, n_rows, &columns[q][0])
    x += (k - s) * column
    for i in range(count):
        for q in range(s):
            pool_column(is_max, nv, x + q * column, rows, n_rows, &columns[k - s + q][0])
        for j in range(nv):
            v = columns[0][j]
            for q in range(1, k):
                v = nan_max(v, columns[q][j]) if is_max else v + columns[q][j]
            store_pooled(y + j * LANES, v if is_max else v / by)
        for q in range(k - s):
            for j in range(nv):
                columns[q][j] = columns[q + s][j]
        x += s * column
        y += y_step


cdef inline void slide_channels(
    bint is_max, int k, int s, const pooled_t* x, const Py_ssize_t* rows, Py_ssize_t n_rows,
    Py_ssize_t column, pooled_t* y, Py_ssize_t y_step, Py_ssize_t count, Py_ssize_t channels,
    vf32 by,
) noexcept nogil:
    cdef Py_ssize_t c = 0
    # As many vectors at a time as have columns in registers.
    if LANES == 16:
        while c + 4 * LANES <= channels:
            slide_rows(is_max, 4, k, s, x + c, rows, n_rows, column, y + c, y_step, count, by)
            c += 4 * LANES
    while c + 2 * LANES <= channels:
        slide_rows(is_max, 2, k, s, x + c, rows, n_rows, column, y + c, y_step, count, by)
        c += 2 * LANES
    while c < channels:
        c = least(c, channels - LANES)  # the last vector may overlap the one before
        slide_rows(is_max, 1, k, s, x + c, rows, n_rows, column, y + c, y_step, count, by)
        c += LANES


cdef inline bint slide(
    bint is_max, const pooled_t* x, Py_ssize_t x_step, const Py_ssize_t* rows, Py_ssize_t n_rows,
    Py_ssize_t n_columns, Py_ssize_t column, pooled_t* y, Py_ssize_t y_step, Py_ssize_t count,
    Py_ssize_t channels, vf32 by,
) noexcept nogil:
    """Pool overlapping windows of common widths; return False for other windows."""
    if channels < LANES or n_rows < 1 or count < 1:
        return False
    # A single maximum shares no columns.  A mean does, as its sums must not depend on the shards.
    if is_max and count == 1:
        return False
    if n_columns == 3 and x_step == 2 * column:
        slide_channels(is_max, 3, 2, x, rows, n_rows, column, y, y_step, count, channels, by)
    elif n_columns == 3 and x_step == column:
        slide_channels(is_max, 3, 1, x, rows, n_rows, column, y, y_step, count, channels, by)
    elif n_columns == 5 and x_step == column:
        slide_channels(is_max, 5, 1, x, rows, n_rows, column, y, y_step, count, channels, by)
    else:
        return False
    return True


cdef inline void pool_max(
    const pooled_t* x, Py_ssize_t x_step, const Py_ssize_t* rows, Py_ssize_t n_rows,
    Py_ssize_t n_columns, Py_ssize_t column, pooled_t* y, Py_ssize_t y_step, Py_ssize_t count,
    Py_ssize_t channels,
) noexcept nogil:
    cdef Py_ssize_t c = 0, i, r, k
    cdef const pooled_t* pixel
    cdef vf32 acc
    if slide(
        True, x, x_step, rows, n_rows, n_columns, column, y, y_step, count, channels, splat(1)
    ):
        return
    if channels < LANES:
        for i in range(count):
            acc = splat(-INFINITY)
            for r in range(n_rows):
                pixel = x + i * x_step + rows[r]
                for k in range(n_columns):
                    acc = nan_max(acc, load_pooled_n(pixel + k * column, channels))
            store_pooled_n(y + i * y_step, acc, channels)
        return
    while c + POOL_NV * LANES <= channels:
        max_pixels(POOL_NV, n_rows, n_columns, x + c, x_step, rows, column, y + c, y_step, count)
        c += POOL_NV * LANES
    while c < channels:
        c = least(c, channels - LANES)  # the last vector may overlap the one before
        max_pixels(1, n_rows, n_columns, x + c, x_step, rows, column, y + c, y_step, count)
        c += LANES


cdef inline void sum_window(
    int nv, const pooled_t* x, const Py_ssize_t* rows, Py_ssize_t n_rows, Py_ssize_t n_columns,
    Py_ssize_t column, vf32* acc,
) noexcept nogil:
    """Sum each row, then the row sums: the error grows with n_rows + n_columns."""
    cdef vf32[POOL_NV] row
    cdef const pooled_t* pixel
    cdef Py_ssize_t r, k
    cdef int j
    for j in range(nv):
        acc[j] = splat(0)
    for r in range(n_rows):
        pixel = x + rows[r]
        for j in range(nv):
            row[j] = splat(0)
        for k in range(n_columns):
            for j in range(nv):
                row[j] += load_pooled(pixel + j * LANES)
            pixel += column
        for j in range(nv):
            acc[j] += row[j]


cdef inline vf32 sum_window_1(
    const pooled_t* x, const Py_ssize_t* rows, Py_ssize_t n_rows, Py_ssize_t n_columns,
    Py_ssize_t column,
) noexcept nogil:
    """As sum_window for one vector, four rows at a time to hide the latency of additions."""
    cdef vf32 acc = splat(0), a, b, c, d
    cdef Py_ssize_t r = 0, k, at
    while r + 4 <= n_rows:
        a = b = c = d = splat(0)
        for k in range(n_columns):
            at = k * column
            a += load_pooled(x + rows[r] + at)
            b += load_pooled(x + rows[r + 1] + at)
            c += load_pooled(x + rows[r + 2] + at)
            d += load_pooled(x + rows[r + 3] + at)
        acc += a
        acc += b
        acc += c
        acc += d
        r += 4
    while r < n_rows:
        a = splat(0)
        for k in range(n_columns):
            a += load_pooled(x + rows[r] + k * column)
        acc += a
        r += 1
    return acc


cdef inline void pool_mean(
    const pooled_t* x, Py_ssize_t x_step, const Py_ssize_t* rows, Py_ssize_t n_rows,
    Py_ssize_t n_columns, Py_ssize_t column, pooled_t* y, Py_ssize_t y_step, Py_ssize_t count,
    Py_ssize_t channels, float divisor,
) noexcept nogil:
    cdef Py_ssize_t c = 0, i, r, k
    cdef const pooled_t* pixel
    cdef vf32[POOL_NV] sums
    cdef vf32 acc, row, by = splat(divisor)
    cdef int j
    if slide(
        False, x, x_step, rows, n_rows, n_columns, column, y, y_step, count, channels, by
    ):
        return
    if channels < LANES:
        for i in range(count):
            acc = splat(0)
            for r in range(n_rows):
                pixel = x + i * x_step + rows[r]
                row = splat(0)
                for k in range(n_columns):
                    row += load_pooled_n(pixel + k * column, channels)
                acc += row
            store_pooled_n(y + i * y_step, acc / by, channels)
        return
    while c + POOL_NV * LANES <= channels:
        for i in range(count):
            if n_rows == 2 and n_columns == 2:
                sum_window(POOL_NV, x + i * x_step + c, rows, 2, 2, column, &sums[0])
            else:
                sum_window(POOL_NV, x + i * x_step + c, rows, n_rows, n_columns, column, &sums[0])
            for j in range(POOL_NV):
                store_pooled(y + i * y_step + c + j * LANES, sums[j] / by)
        c += POOL_NV * LANES
    while c < channels:
        c = least(c, channels - LANES)
        for i in range(count):
            acc = sum_window_1(x + i * x_step + c, rows, n_rows, n_columns, column)
            store_pooled(y + i * y_step + c, acc / by)
        c += LANES


cdef void f32_pool_argmax(
    const float* x, const Py_ssize_t* rows, Py_ssize_t n_rows, Py_ssize_t n_columns,
    Py_ssize_t column, Py_ssize_t channels, const int* row_index, int index_step,
    float* y, int64_t* indices,
) noexcept nogil:
    cdef Py_ssize_t c = 0, r, k, n
    cdef const float* pixel
    cdef vf32 acc, v
    cdef vi32 index, best, wins
    cdef int[MAX_LANES] lanes
    cdef int j
    while c < channels:
        n = least(LANES, channels - c)
        acc = splat(-INFINITY)
        best = splat_int(row_index[0] if n_rows > 0 else 0)
        for r in range(n_rows):
            pixel = x + rows[r] + c
            for k in range(n_columns):
                v = load_first(pixel, n)
                index = splat_int(row_index[r] + <int> k * index_step)
                wins = vlt(acc, v) | ~veq(v, v)
                acc = select(wins, v, acc)
                best = (index & wins) | (best & ~wins)
                pixel += column
        store_first(y + c, acc, n)
        store(<float*> &lanes[0], from_bits(best))
        for j in range(n):
            indices[c + j] = lanes[j]
        c += LANES


cdef void f32_pool_max(
    const void* x, Py_ssize_t x_step, const Py_ssize_t* rows, Py_ssize_t n_rows,
    Py_ssize_t n_columns, Py_ssize_t column, void* y, Py_ssize_t y_step, Py_ssize_t count,
    Py_ssize_t channels, float divisor,
) noexcept nogil:
    pool_max(
        <const float*> x, x_step, rows, n_rows, n_columns, column, <float*> y, y_step, count,
        channels,
    )


cdef void f32_pool_mean(
    const void* x, Py_ssize_t x_step, const Py_ssize_t* rows, Py_ssize_t n_rows,
    Py_ssize_t n_columns, Py_ssize_t column, void* y, Py_ssize_t y_step, Py_ssize_t count,
    Py_ssize_t channels, float divisor,
) noexcept nogil:
    pool_mean(
        <const float*> x, x_step, rows, n_rows, n_columns, column, <float*> y, y_step, count,
        channels, divisor,
    )


cdef void bf16_pool_max(
    const void* x, Py_ssize_t x_step, const Py_ssize_t* rows, Py_ssize_t n_rows,
    Py_ssize_t n_columns, Py_ssize_t column, void* y, Py_ssize_t y_step, Py_ssize_t count,
    Py_ssize_t channels, float divisor,
) noexcept nogil:
    pool_max(
        <const bfloat16_t*> x, x_step, rows, n_rows, n_columns, column, <bfloat16_t*> y, y_step,
        count, channels,
    )


cdef void bf16_pool_mean(
    const void* x, Py_ssize_t x_step, const Py_ssize_t* rows, Py_ssize_t n_rows,
    Py_ssize_t n_columns, Py_ssize_t column, void* y, Py_ssize_t y_step, Py_ssize_t count,
    Py_ssize_t channels, float divisor,
) noexcept nogil:
    pool_mean(
        <const bfloat16_t*> x, x_step, rows, n_rows, n_columns, column, <bfloat16_t*> y, y_step,
        count, channels, divisor,
    )


cdef void fill_pool(kernels_t* k) noexcept:
    k.f32_pool_max = f32_pool_max
    k.f32_pool_mean = f32_pool_mean
    k.bf16_pool_max = bf16_pool_max
    k.bf16_pool_mean = bf16_pool_mean
    k.f32_pool_argmax = f32_pool_argmax
