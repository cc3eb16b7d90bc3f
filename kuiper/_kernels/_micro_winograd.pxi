# Transforms of Winograd's F(4x4, 3x3): 4x4 outputs of a 3x3 filter from a 6x6 patch with 36
# multiplications instead of 144.  Source: A. Lavin, S. Gray, "Fast Algorithms for Convolutional
# Neural Networks" (2015), interpolation points 0, 1, -1, 2, -2, infinity.
#
#   input   V = B' d B      output   Y = A' M A
#
# Both are separable: first down the columns, then along the rows.


cdef inline void wino_bt(
    vf32 d0, vf32 d1, vf32 d2, vf32 d3, vf32 d4, vf32 d5, vf32* o
) noexcept nogil:
    """One column of B' d."""
    cdef vf32 p = d4 - splat(4.0) * d2, q = d3 - splat(4.0) * d1
    cdef vf32 r = d4 - d2, s = splat(2.0) * (d3 - d1)
    o[0] = splat(4.0) * d0 - splat(5.0) * d2 + d4
    o[1] = p + q
    o[2] = p - q
    o[3] = r + s
    o[4] = r - s
    o[5] = splat(4.0) * d1 - splat(5.0) * d3 + d5


cdef inline void wino_at(
    vf32 m0, vf32 m1, vf32 m2, vf32 m3, vf32 m4, vf32 m5, vf32* o
) noexcept nogil:
    """One column of A' m."""
    cdef vf32 a = m1 + m2, b = m1 - m2, c = m3 + m4, d = m3 - m4
    o[0] = m0 + a + c
    o[1] = b + splat(2.0) * d
    o[2] = a + splat(4.0) * c
    o[3] = b + splat(8.0) * d + m5


cdef inline void wino_input_vector(
    const float* const* pixels, Py_ssize_t c, long n, float* v, Py_ssize_t stride
) noexcept nogil:
    """Transform one vector of channels, or its first n where n < LANES."""
    cdef vf32[6][6] half
    cdef vf32[6] o
    cdef int i, j
    for j in range(6):
        if n == LANES:
            wino_bt(
                load(pixels[j] + c), load(pixels[6 + j] + c), load(pixels[12 + j] + c),
                load(pixels[18 + j] + c), load(pixels[24 + j] + c), load(pixels[30 + j] + c),
                &o[0],
            )
        else:
            wino_bt(
                load_n(pixels[j] + c, n), load_n(pixels[6 + j] + c, n),
                load_n(pixels[12 + j] + c, n), load_n(pixels[18 + j] + c, n),
                load_n(pixels[24 + j] + c, n), load_n(pixels[30 + j] + c, n), &o[0],
            )
        for i in range(6):
            half[i][j] = o[i]
    for i in range(6):
        wino_bt(half[i][0], half[i][1], half[i][2], half[i][3], half[i][4], half[i][5], &o[0])
        for j in range(6):
            if n == LANES:
                store(v + (6 * i + j) * stride + c, o[j])
            else:
                store_n(v + (6 * i + j) * stride + c, o[j], n)


cdef void wino_input(
    Py_ssize_t channels, const float* const* pixels, float* v, Py_ssize_t stride
) noexcept nogil:
    cdef Py_ssize_t c = 0
    while c + LANES <= channels:
        wino_input_vector(pixels, c, LANES, v, stride)
        c += LANES
    if c < channels:
        wino_input_vector(pixels, c, channels - c, v, stride)


cdef inline void wino_output_vector(
    const float* m, Py_ssize_t stride, Py_ssize_t c, long n, const float* bias,
    float* y, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows, Py_ssize_t columns,
    const float* residual, Py_ssize_t r_row, Py_ssize_t r_column, vf32 low, vf32 high,
) noexcept nogil:
    cdef vf32[4][6] half
    cdef vf32[4] o
    cdef vf32 b, value
    cdef int i, j
    if n == LANES:
        b = load(bias + c)
    else:
        b = load_n(bias + c, n)
    for j in range(6):
        if n == LANES:
            wino_at(
                load(m + j * stride + c), load(m + (6 + j) * stride + c),
                load(m + (12 + j) * stride + c), load(m + (18 + j) * stride + c),
                load(m + (24 + j) * stride + c), load(m + (30 + j) * stride + c), &o[0],
            )
        else:
            wino_at(
                load_n(m + j * stride + c, n), load_n(m + (6 + j) * stride + c, n),
                load_n(m + (12 + j) * stride + c, n), load_n(m + (18 + j) * stride + c, n),
                load_n(m + (24 + j) * stride + c, n), load_n(m + (30 + j) * stride + c, n), &o[0],
            )
        for i in range(4):
            half[i][j] = o[i]
    for i in range(4):
        if i < rows:
            wino_at(half[i][0], half[i][1], half[i][2], half[i][3], half[i][4], half[i][5], &o[0])
            for j in range(4):
                if j < columns:
                    value = o[j] + b
                    if n == LANES:
                        if residual != NULL:
                            value += load(residual + i * r_row + j * r_column + c)
                        store(y + i * row + j * column + c, vmin(high, vmax(low, value)))
                    else:
                        if residual != NULL:
                            value += load_n(residual + i * r_row + j * r_column + c, n)
                        store_n(y + i * row + j * column + c, vmin(high, vmax(low, value)), n)


cdef void wino_output(
    Py_ssize_t channels, const float* m, Py_ssize_t stride, const float* bias,
    float* y, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows, Py_ssize_t columns,
    const float* residual, Py_ssize_t r_row, Py_ssize_t r_column, float lo, float hi,
) noexcept nogil:
    cdef Py_ssize_t c = 0
    cdef vf32 low = splat(lo), high = splat(hi)
    while c + LANES <= channels:
        wino_output_vector(
            m, stride, c, LANES, bias, y, row, column, rows, columns, residual, r_row, r_column,
            low, high,
        )
        c += LANES
    if c < channels:
        wino_output_vector(
            m, stride, c, channels - c, bias, y, row, column, rows, columns, residual, r_row,
            r_column, low, high,
        )


cdef void fill_winograd(kernels_t* k) noexcept:
    k.wino_input = wino_input
    k.wino_output = wino_output
