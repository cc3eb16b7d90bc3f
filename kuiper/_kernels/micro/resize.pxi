# Resampling along a row of the image, and across rows.

cdef inline void weighted_pixels(
    int taps, const float* x, const int* offsets, const float* weights, float* y,
    Py_ssize_t y_step, Py_ssize_t count, Py_ssize_t channels,
) noexcept nogil:
    """Pixels of at least LANES channels; `taps` is a constant."""
    cdef vf32[4] w
    cdef (const float*)[4] tap
    cdef vf32 acc
    cdef Py_ssize_t i, c
    cdef int k
    for i in range(count):
        for k in range(taps):
            w[k] = splat(weights[k])
            tap[k] = x + offsets[k]
        c = 0
        while c < channels:
            c = least(c, channels - LANES)  # the last vector may overlap the one before
            acc = w[0] * load(tap[0] + c)
            for k in range(1, taps):
                acc += w[k] * load(tap[k] + c)
            store(y + c, acc)
            c += LANES
        offsets += taps
        weights += taps
        y += y_step


cdef inline void weighted_items(
    int taps, const float* x, const int* offsets, const float* weights, float* y,
    Py_ssize_t y_step, Py_ssize_t count, Py_ssize_t channels,
) noexcept nogil:
    """Pixels of few channels, element by element."""
    cdef Py_ssize_t i, c
    cdef float acc
    cdef int k
    for i in range(count):
        for c in range(channels):
            acc = weights[i * taps] * x[offsets[i * taps] + c]
            for k in range(1, taps):
                acc += weights[i * taps + k] * x[offsets[i * taps + k] + c]
            y[i * y_step + c] = acc


cdef inline void resize_columns_n(
    int taps, const float* x, const int* offsets, const float* weights, float* y,
    Py_ssize_t y_step, Py_ssize_t count, Py_ssize_t channels,
) noexcept nogil:
    if channels >= LANES and LANES > 1:
        weighted_pixels(taps, x, offsets, weights, y, y_step, count, channels)
    elif channels == 1 and y_step == 1:
        weighted_items(taps, x, offsets, weights, y, 1, count, 1)
    else:
        weighted_items(taps, x, offsets, weights, y, y_step, count, channels)


cdef void f32_resize_columns(
    int taps, const float* x, const int* offsets, const float* weights, float* y,
    Py_ssize_t y_step, Py_ssize_t count, Py_ssize_t channels,
) noexcept nogil:
    if taps == 1:
        resize_columns_n(1, x, offsets, weights, y, y_step, count, channels)
    elif taps == 2:
        resize_columns_n(2, x, offsets, weights, y, y_step, count, channels)
    else:
        resize_columns_n(4, x, offsets, weights, y, y_step, count, channels)


cdef inline void resize_rows_n(
    int taps, const float* const* rows, const float* weights, float* y, Py_ssize_t count
) noexcept nogil:
    cdef vf32[4] w
    cdef vf32 acc
    cdef Py_ssize_t i = 0, rest
    cdef int k
    for k in range(taps):
        w[k] = splat(weights[k])
    while i + LANES <= count:
        acc = w[0] * load(rows[0] + i)
        for k in range(1, taps):
            acc += w[k] * load(rows[k] + i)
        store(y + i, acc)
        i += LANES
    rest = count - i
    if rest > 0:
        acc = w[0] * load_n(rows[0] + i, rest)
        for k in range(1, taps):
            acc += w[k] * load_n(rows[k] + i, rest)
        store_n(y + i, acc, rest)


cdef void f32_resize_rows(
    int taps, const float* const* rows, const float* weights, float* y, Py_ssize_t count
) noexcept nogil:
    if taps == 2:
        resize_rows_n(2, rows, weights, y, count)
    else:
        resize_rows_n(4, rows, weights, y, count)


cdef void fill_resize(kernels_t* k) noexcept:
    k.f32_resize_columns = f32_resize_columns
    k.f32_resize_rows = f32_resize_rows
