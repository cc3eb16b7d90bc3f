# Transforms of Winograd's F(t x t, 3x3), t = 2 and t = 4: t^2 outputs of a 3x3 filter from a patch
# of (t + 2)^2 pixels with (t + 2)^2 multiplications instead of 9 t^2.
#
#   filter  U = G g G'      input   V = B' d B      output   Y = A' M A
#
# All are separable: first down the columns, then along the rows.  The interpolation points are
#
#   t = 2:  0, 1, -1, infinity
#   t = 4:  0, a, -a, b, -b, infinity           a = 5/8, b = 3/2
#
# B' holds, for each point, the product of (x - p) over the other points p, and G the filter at the
# point divided by that product (Lagrange).  With the usual a = 1, b = 2 errors are three to four
# times as large; of all pairs of short binary fractions this one rounded best in a trial.
#
# A tile at the edge of the plane with only r wanted outputs needs r + 2 points, see wino_needs.
# r = t - 1 uses the same formulas, because infinity contributes to the last output only.  r <= 2 of
# t = 4 uses F(2) over 0, a, -a and infinity, `small` below; as the filters are scaled for F(4), its
# input transform multiplies by the quotients, -b^2 at 0 and a^2 - b^2 at a and -a.
#
# Source: A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks" (2015).

from kuiper._kernels.micro.table cimport wino_needs

cdef inline vf32 wino_load(
    int t, bint small, const float* const* pixels, int i, int j, Py_ssize_t c, long n
) noexcept nogil:
    """Load from pixel (i, j) of a patch; zeros for rows beyond it."""
    if i >= (4 if small else t + 2):
        return splat(0.0)
    return load_first(pixels[i * (t + 2) + j] + c, n)


cdef inline void wino_input_vector(
    int t, bint small_h, bint small_w, const float* const* pixels, bint ends_h, bint ends_w,
    Py_ssize_t c, long n, float* v, Py_ssize_t stride,
) noexcept nogil:
    """Transform the first n channels of a vector; `ends_h`, `ends_w`: whether to write infinity."""
    cdef vf32[6][6] half
    cdef vf32[6] o
    cdef int i, j
    for j in range(4 if small_w else t + 2):
        wino_bt(
            t, small_h, wino_load(t, small_h, pixels, 0, j, c, n),
            wino_load(t, small_h, pixels, 1, j, c, n), wino_load(t, small_h, pixels, 2, j, c, n),
            wino_load(t, small_h, pixels, 3, j, c, n), wino_load(t, small_h, pixels, 4, j, c, n),
            wino_load(t, small_h, pixels, 5, j, c, n), &o[0],
        )
        for i in range(t + 2):
            if wino_has(t, small_h, i):
                half[i][j] = o[i]
    for i in range(t + 2):
        if wino_has(t, small_h, i) and (i < t + 1 or ends_h):
            wino_bt(
                t, small_w, half[i][0], half[i][1], half[i][2], half[i][3], half[i][4],
                half[i][5], &o[0],
            )
            for j in range(t + 2):
                if wino_has(t, small_w, j) and (j < t + 1 or ends_w):
                    store_first(v + ((t + 2) * i + j) * stride + c, o[j], n)


cdef inline void f32_wino_input(
    int t, bint small_h, bint small_w, Py_ssize_t channels, const float* const* pixels,
    Py_ssize_t rows, Py_ssize_t columns, float* v, Py_ssize_t stride,
) noexcept nogil:
    cdef Py_ssize_t c = 0
    cdef bint ends_h = wino_needs(t, 1, rows, t + 1), ends_w = wino_needs(t, 1, columns, t + 1)
    while c + LANES <= channels:
        wino_input_vector(t, small_h, small_w, pixels, ends_h, ends_w, c, LANES, v, stride)
        c += LANES
    if c < channels:
        wino_input_vector(
            t, small_h, small_w, pixels, ends_h, ends_w, c, rest_of(channels - c), v, stride
        )


cdef inline void wino_output_vector(
    int t, bint small_h, bint small_w, const float* m, Py_ssize_t stride, Py_ssize_t c, long n,
    const float* bias, float* y, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows,
    Py_ssize_t columns, const float* residual, Py_ssize_t r_row, Py_ssize_t r_column, vf32 low,
    vf32 high, bint streams, vf32* spoilt,
) noexcept nogil:
    """Transform the first n channels of a vector; products that are not needed may be anything.

    Adds NaN to `spoilt` if a product is not finite or the transform overflows.
    """
    cdef vf32[4][6] half
    cdef vf32[6] o
    cdef vf32 b = load_first(bias + c, n), value
    cdef Py_ssize_t r
    cdef int i, j
    for j in range(t + 2):
        if wino_has(t, small_w, j):
            wino_at(
                t, small_h, wino_product(t, small_h, m, stride, 0, j, c, n),
                wino_product(t, small_h, m, stride, 1, j, c, n),
                wino_product(t, small_h, m, stride, 2, j, c, n),
                wino_product(t, small_h, m, stride, 3, j, c, n),
                wino_product(t, small_h, m, stride, 4, j, c, n),
                wino_product(t, small_h, m, stride, 5, j, c, n), &o[0],
            )
            for i in range(2 if small_h else t):
                half[i][j] = o[i]
    for i in range(2 if small_h else t):
        if i < rows:
            wino_at(
                t, small_w, half[i][0], half[i][1], half[i][2], half[i][3], half[i][4],
                half[i][5], &o[0],
            )
            for j in range(2 if small_w else t):
                if j < columns:
                    # The first and the last output, if wanted, contain all needed products;
                    # infinity times 0 is NaN.
                    if (
                        (i == 0 or i == (1 if small_h else t - 1))
                        and (j == 0 or j == (1 if small_w else t - 1))
                    ):
                        spoilt[0] += splat(0.0) * o[j]
                    value = o[j] + b
                    r = i * r_row + j * r_column + c
                    if streams and n == LANES:
                        if residual != NULL:
                            value += load(residual + r)
                        stream(y + i * row + j * column + c, vmin(high, vmax(low, value)))
                    else:
                        store_result(
                            y + i * row + j * column + c, value, residual, r, low, high, n
                        )


cdef inline bint f32_wino_output(
    int t, bint small_h, bint small_w, Py_ssize_t channels, const float* m, Py_ssize_t stride,
    const float* bias, float* y, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows,
    Py_ssize_t columns, const float* residual, Py_ssize_t r_row, Py_ssize_t r_column, float lo,
    float hi, bint streams,
) noexcept nogil:
    cdef Py_ssize_t c = 0
    cdef vf32 low = splat(lo), high = splat(hi), spoilt = splat(0.0)
    while c + LANES <= channels:
        wino_output_vector(
            t, small_h, small_w, m, stride, c, LANES, bias, y, row, column, rows, columns,
            residual, r_row, r_column, low, high, streams, &spoilt,
        )
        c += LANES
    if c < channels:
        wino_output_vector(
            t, small_h, small_w, m, stride, c, rest_of(channels - c), bias, y, row, column, rows,
            columns, residual, r_row, r_column, low, high, streams, &spoilt,
        )
    return reduce_add(spoilt) == 0.0


cdef inline void wino_pair(
    vf32 g0, vf32 g1, vf32 g2, float point, float scale, vf32* o
) noexcept nogil:
    """Filters at a point and at its negative; both have the same scale."""
    cdef vf32 even = splat(scale) * g0 + splat(scale * point * point) * g2
    cdef vf32 odd = splat(scale * point) * g1
    o[0] = even + odd
    o[1] = even - odd


cdef inline void wino_g(int t, int step, vf32 g0, vf32 g1, vf32 g2, vf32* o) noexcept nogil:
    """One column of G g, for a vector of filters."""
    if step == 2:
        strided_g(g0, g1, g2, o)
    elif t == 2:
        o[0] = g0
        wino_pair(g0, g1, g2, 1.0, 0.5, o + 1)
        o[3] = g2
    else:
        o[0] = splat(AT_0) * g0
        wino_pair(g0, g1, g2, A, AT_A, o + 1)
        wino_pair(g0, g1, g2, B, AT_B, o + 3)
        o[5] = g2


cdef inline vf32 wino_tap(
    const float* taps, int j, vf32 part_0, vf32 part_1, vf32 part_2
) noexcept nogil:
    """Element j of a row of G g, whose factors in G are `part_0` to `part_2`."""
    cdef Py_ssize_t tap = NV * LANES
    taps += j * tap
    return part_0 * load(taps) + part_1 * load(taps + 3 * tap) + part_2 * load(taps + 6 * tap)


cdef inline void f32_wino_filter(
    int t, int step, const float* parts, Py_ssize_t channels, const float* taps, float* panel,
    Py_ssize_t stride,
) noexcept nogil:
    """A row of G g G'; `parts` is that row of G, (3,)."""
    cdef vf32 part_0 = splat(parts[0]), part_1 = splat(parts[1]), part_2 = splat(parts[2])
    cdef vf32[6] o
    cdef Py_ssize_t k, v
    cdef int j
    for k in range(channels):
        for v in range(NV):
            wino_g(
                t, step, wino_tap(taps + v * LANES, 0, part_0, part_1, part_2),
                wino_tap(taps + v * LANES, 1, part_0, part_1, part_2),
                wino_tap(taps + v * LANES, 2, part_0, part_1, part_2), &o[0],
            )
            for j in range(t + 2):
                store(panel + j * stride + v * LANES, o[j])
        taps += 9 * NV * LANES
        panel += NV * LANES


cdef void f32_wino_input_2(
    Py_ssize_t channels, const float* const* pixels, Py_ssize_t rows, Py_ssize_t columns, float* v,
    Py_ssize_t stride,
) noexcept nogil:
    f32_wino_input(2, False, False, channels, pixels, rows, columns, v, stride)


cdef void f32_wino_input_4(
    Py_ssize_t channels, const float* const* pixels, Py_ssize_t rows, Py_ssize_t columns, float* v,
    Py_ssize_t stride,
) noexcept nogil:
    if rows > 2 and columns > 2:
        f32_wino_input(4, False, False, channels, pixels, rows, columns, v, stride)
    elif rows > 2:
        f32_wino_input(4, False, True, channels, pixels, rows, columns, v, stride)
    elif columns > 2:
        f32_wino_input(4, True, False, channels, pixels, rows, columns, v, stride)
    else:
        f32_wino_input(4, True, True, channels, pixels, rows, columns, v, stride)


cdef bint f32_wino_output_2(
    Py_ssize_t channels, const float* m, Py_ssize_t stride, const float* bias,
    float* y, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows, Py_ssize_t columns,
    const float* residual, Py_ssize_t r_row, Py_ssize_t r_column, float lo, float hi,
    bint streams,
) noexcept nogil:
    return f32_wino_output(
        2, False, False, channels, m, stride, bias, y, row, column, rows, columns, residual, r_row,
        r_column, lo, hi, False,
    )


cdef bint f32_wino_output_4(
    Py_ssize_t channels, const float* m, Py_ssize_t stride, const float* bias,
    float* y, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows, Py_ssize_t columns,
    const float* residual, Py_ssize_t r_row, Py_ssize_t r_column, float lo, float hi,
    bint streams,
) noexcept nogil:
    if rows > 2 and columns > 2 and streams:
        return f32_wino_output(
            4, False, False, channels, m, stride, bias, y, row, column, rows, columns, residual,
            r_row, r_column, lo, hi, True,
        )
    if rows > 2 and columns > 2:
        return f32_wino_output(
            4, False, False, channels, m, stride, bias, y, row, column, rows, columns, residual,
            r_row, r_column, lo, hi, False,
        )
    if rows > 2:
        return f32_wino_output(
            4, False, True, channels, m, stride, bias, y, row, column, rows, columns, residual,
            r_row, r_column, lo, hi, False,
        )
    if columns > 2:
        return f32_wino_output(
            4, True, False, channels, m, stride, bias, y, row, column, rows, columns, residual,
            r_row, r_column, lo, hi, False,
        )
    return f32_wino_output(
        4, True, True, channels, m, stride, bias, y, row, column, rows, columns, residual, r_row,
        r_column, lo, hi, False,
    )


cdef void f32_wino_filter_2(
    int row, Py_ssize_t channels, const float* taps, float* panel, Py_ssize_t stride
) noexcept nogil:
    f32_wino_filter(2, 1, &FILTER_2[row][0], channels, taps, panel, stride)


cdef void f32_wino_filter_4(
    int row, Py_ssize_t channels, const float* taps, float* panel, Py_ssize_t stride
) noexcept nogil:
    f32_wino_filter(4, 1, &FILTER_4[row][0], channels, taps, panel, stride)


cdef void f32_wino_filter_4_strided(
    int row, Py_ssize_t channels, const float* taps, float* panel, Py_ssize_t stride
) noexcept nogil:
    f32_wino_filter(4, 2, &FILTER_STRIDED[row][0], channels, taps, panel, stride)


cdef void fill_winograd(kernels_t* k) noexcept:
    k.f32_wino_filter[2][1] = f32_wino_filter_2
    k.f32_wino_filter[4][1] = f32_wino_filter_4
    k.f32_wino_filter[4][2] = f32_wino_filter_4_strided
    k.f32_wino_input[2][1] = f32_wino_input_2
    k.f32_wino_input[4][1] = f32_wino_input_4
    k.f32_wino_input[4][2] = f32_wino_input_4_strided
    k.f32_wino_output[2][1] = f32_wino_output_2
    k.f32_wino_output[4][1] = f32_wino_output_4
    k.f32_wino_output[4][2] = f32_wino_output_4_strided
