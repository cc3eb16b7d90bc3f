# Transforms of Winograd's F(4 x 4, 3x3) for a stride of 2, by its two phases along each axis.
#
# Output k is w0 d[2k] + w1 d[2k + 1] + w2 d[2k + 2]: a filter of two taps, w0 and w2, with a stride
# of 1 over the even pixels, plus tap w1 times the odd pixels.  For four outputs the two taps take
# five products, F(4, 2), and the one tap four: 9 instead of 12, and 81 instead of 144 along both
# axes.
#
# F(4, 2) interpolates at c, -c, e, -e and infinity, c = 3/8 and e = 3/2.  Of all pairs of short
# binary fractions this one rounded best in a trial, as well as the definition.  Along an axis come
# these five frequencies, then the four odd pixels, which share a weight: of 81 frequencies 36 have
# a weight that no other has.

cdef extern from *:
    """
    #define KP_C 0.375f
    #define KP_E 1.5f
    #define KP_C2 (KP_C * KP_C)
    #define KP_E2 (KP_E * KP_E)
    #define KP_AT_C (0.5f / (KP_C * (KP_C2 - KP_E2)))
    #define KP_AT_E (0.5f / (KP_E * (KP_E2 - KP_C2)))
    /* G: the factors of the three taps in the filter at each point and of the odd pixels. */
    static const float kp_filter_strided[6][3] = {
        {KP_AT_C, 0.0f, KP_AT_C * KP_C},
        {-KP_AT_C, 0.0f, KP_AT_C * KP_C},
        {KP_AT_E, 0.0f, KP_AT_E * KP_E},
        {-KP_AT_E, 0.0f, KP_AT_E * KP_E},
        {0.0f, 0.0f, 1.0f},
        {0.0f, 1.0f, 0.0f},
    };
    """
    const float C "KP_C", C2 "KP_C2", E "KP_E", E2 "KP_E2", AT_C "KP_AT_C", AT_E "KP_AT_E"
    const float[6][3] FILTER_STRIDED "kp_filter_strided"

cdef enum:
    EVENS = 5                # products of the even pixels
    STRIDED_PATCH = 9        # pixels along an axis, and frequencies


cdef inline void strided_bt(
    vf32 d0, vf32 d2, vf32 d4, vf32 d6, vf32 d8, vf32* o
) noexcept nogil:
    """One column of B' d for the even pixels."""
    cdef vf32 p = d6 - splat(E2) * d2, q = d4 - splat(E2) * d0
    cdef vf32 r = d6 - splat(C2) * d2, s = d4 - splat(C2) * d0
    o[0] = p + splat(C) * q
    o[1] = p - splat(C) * q
    o[2] = r + splat(E) * s
    o[3] = r - splat(E) * s
    o[4] = splat(C2 * E2) * d0 - splat(C2 + E2) * d4 + d8


cdef inline void strided_at(
    vf32 m0, vf32 m1, vf32 m2, vf32 m3, vf32 m4, vf32 m5, vf32 m6, vf32 m7, vf32 m8, vf32* o
) noexcept nogil:
    """One column of A' m."""
    cdef vf32 a = m0 + m1, b = m0 - m1, c = m2 + m3, d = m2 - m3
    o[0] = a + c + m5
    o[1] = splat(C) * b + splat(E) * d + m6
    o[2] = splat(C2) * a + splat(E2) * c + m7
    o[3] = m4 + splat(E * E2) * d + splat(C * C2) * b + m8


cdef inline void strided_row(
    vf32 d0, vf32 d1, vf32 d2, vf32 d3, vf32 d4, vf32 d5, vf32 d6, vf32 d7, vf32 d8, float* v,
    Py_ssize_t stride, long n,
) noexcept nogil:
    """Transform and store one row."""
    cdef vf32[STRIDED_PATCH] o
    cdef int j
    strided_bt(d0, d2, d4, d6, d8, &o[0])
    o[EVENS], o[EVENS + 1], o[EVENS + 2], o[EVENS + 3] = d1, d3, d5, d7
    for j in range(STRIDED_PATCH):
        store_first(v + j * stride, o[j], n)


cdef inline void strided_input_vector(
    const float* const* pixels, Py_ssize_t c, long n, float* v, Py_ssize_t stride
) noexcept nogil:
    cdef vf32[EVENS][STRIDED_PATCH] half
    cdef vf32[EVENS] o
    cdef const float* const* row
    cdef int i, j
    for j in range(STRIDED_PATCH):
        row = pixels + j
        strided_bt(
            load_first(row[0] + c, n), load_first(row[2 * STRIDED_PATCH] + c, n),
            load_first(row[4 * STRIDED_PATCH] + c, n), load_first(row[6 * STRIDED_PATCH] + c, n),
            load_first(row[8 * STRIDED_PATCH] + c, n), &o[0],
        )
        for i in range(EVENS):
            half[i][j] = o[i]
    v += c
    for i in range(EVENS):
        strided_row(
            half[i][0], half[i][1], half[i][2], half[i][3], half[i][4], half[i][5], half[i][6],
            half[i][7], half[i][8], v + i * STRIDED_PATCH * stride, stride, n,
        )
    for i in range(EVENS, STRIDED_PATCH):
        row = pixels + (2 * (i - EVENS) + 1) * STRIDED_PATCH
        strided_row(
            load_first(row[0] + c, n), load_first(row[1] + c, n), load_first(row[2] + c, n),
            load_first(row[3] + c, n), load_first(row[4] + c, n), load_first(row[5] + c, n),
            load_first(row[6] + c, n), load_first(row[7] + c, n), load_first(row[8] + c, n),
            v + i * STRIDED_PATCH * stride, stride, n,
        )


cdef void f32_wino_input_4_strided(
    Py_ssize_t channels, const float* const* pixels, Py_ssize_t rows, Py_ssize_t columns, float* v,
    Py_ssize_t stride,
) noexcept nogil:
    cdef Py_ssize_t c = 0
    while c + LANES <= channels:
        strided_input_vector(pixels, c, LANES, v, stride)
        c += LANES
    if c < channels:
        strided_input_vector(pixels, c, rest_of(channels - c), v, stride)


cdef inline void strided_output_vector(
    const float* m, Py_ssize_t stride, Py_ssize_t c, long n, const float* bias, float* y,
    Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows, Py_ssize_t columns, const float* residual,
    Py_ssize_t r_row, Py_ssize_t r_column, vf32 low, vf32 high, vf32* spoilt,
) noexcept nogil:
    """As wino_output_vector, but all outputs are checked: no two contain all products."""
    cdef vf32[4][STRIDED_PATCH] half
    cdef vf32[4] o
    cdef vf32 b = load_first(bias + c, n)
    cdef Py_ssize_t down = STRIDED_PATCH * stride
    cdef const float* p
    cdef int i, j
    for j in range(STRIDED_PATCH):
        p = m + j * stride + c
        strided_at(
            load_first(p, n), load_first(p + down, n), load_first(p + 2 * down, n),
            load_first(p + 3 * down, n), load_first(p + 4 * down, n), load_first(p + 5 * down, n),
            load_first(p + 6 * down, n), load_first(p + 7 * down, n), load_first(p + 8 * down, n),
            &o[0],
        )
        for i in range(4):
            half[i][j] = o[i]
    for i in range(4):
        if i < rows:
            strided_at(
                half[i][0], half[i][1], half[i][2], half[i][3], half[i][4], half[i][5],
                half[i][6], half[i][7], half[i][8], &o[0],
            )
            for j in range(4):
                if j < columns:
                    spoilt[0] += splat(0.0) * o[j]
                    store_result(
                        y + i * row + j * column + c, o[j] + b, residual,
                        i * r_row + j * r_column + c, low, high, n,
                    )


cdef bint f32_wino_output_4_strided(
    Py_ssize_t channels, const float* m, Py_ssize_t stride, const float* bias,
    float* y, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows, Py_ssize_t columns,
    const float* residual, Py_ssize_t r_row, Py_ssize_t r_column, float lo, float hi,
    bint streams,
) noexcept nogil:
    cdef Py_ssize_t c = 0
    cdef vf32 low = splat(lo), high = splat(hi), spoilt = splat(0.0)
    while c + LANES <= channels:
        strided_output_vector(
            m, stride, c, LANES, bias, y, row, column, rows, columns, residual, r_row, r_column,
            low, high, &spoilt,
        )
        c += LANES
    if c < channels:
        strided_output_vector(
            m, stride, c, rest_of(channels - c), bias, y, row, column, rows, columns, residual,
            r_row, r_column, low, high, &spoilt,
        )
    return reduce_add(spoilt) == 0.0


cdef inline void strided_g(vf32 g0, vf32 g1, vf32 g2, vf32* o) noexcept nogil:
    """One column of G g for a vector of filters; o[EVENS] is shared by the odd pixels."""
    cdef vf32 c = splat(AT_C * C) * g2, e = splat(AT_E * E) * g2
    o[0] = c + splat(AT_C) * g0
    o[1] = c - splat(AT_C) * g0
    o[2] = e + splat(AT_E) * g0
    o[3] = e - splat(AT_E) * g0
    o[4] = g2
    o[EVENS] = g1
