# Winograd's F(t x t, 3x3) of images in bfloat16 or of bytes: transforms in float32, results in
# bfloat16.
#
# The channels of an image are taken two vectors at a time, the first of each pair as one vector and
# the second as another, which costs a shift or a mask each.  Transformed channels stay in this
# order, even ones and odd ones, and filters are packed in the same order.

from libc.stdint cimport uint8_t

from kuiper._kernels.micro.table cimport PAIRED_VECTORS

cdef extern from "_kernels/simd/dot.h" nogil:
    vf32 floats_of "kp_floats"(vi32) noexcept
    vi32 load_byte_pairs "kp_load_byte_pairs"(const uint8_t*, long) noexcept
    vi32 byte_of_pairs "kp_byte_of_pairs"(vi32, int) noexcept

cdef extern from "_kernels/simd/bfloat16.h" nogil:
    vi32 load_pairs_n "kp_load_pairs_n"(const bfloat16_t*, long) noexcept


cdef inline vf32 pair_part(
    int t, int part, bint of_bytes, const void* const* patch, float zero, int i, int j,
    Py_ssize_t c, long n,
) noexcept nogil:
    """Load every second channel from pixel (i, j) of a patch."""
    cdef const bfloat16_t* const* pixels = <const bfloat16_t* const*> patch
    cdef vi32 pairs
    if i >= t + 2:
        return splat(0.0)
    if of_bytes:
        pairs = load_byte_pairs(<const uint8_t*> patch[i * (t + 2) + j] + c, n)
        return floats_of(byte_of_pairs(pairs, part)) - splat(zero)
    if n == PAIRED_VECTORS * LANES:
        pairs = load_pairs(pixels[i * (t + 2) + j] + c)
    else:
        pairs = load_pairs_n(pixels[i * (t + 2) + j] + c, n)
    return second_of_pairs(pairs) if part else first_of_pairs(pairs)


cdef inline void wino_pairs_vector(
    int t, int part, bint of_bytes, const void* const* pixels, float zero, Py_ssize_t c, long n,
    bfloat16_t* v, Py_ssize_t stride,
) noexcept nogil:
    """Transform the first or the second channels of n / 2 pairs."""
    cdef vf32[6][6] half
    cdef vf32[6] o
    cdef int i, j
    for j in range(t + 2):
        wino_bt(
            t, False, pair_part(t, part, of_bytes, pixels, zero, 0, j, c, n),
            pair_part(t, part, of_bytes, pixels, zero, 1, j, c, n),
            pair_part(t, part, of_bytes, pixels, zero, 2, j, c, n),
            pair_part(t, part, of_bytes, pixels, zero, 3, j, c, n),
            pair_part(t, part, of_bytes, pixels, zero, 4, j, c, n),
            pair_part(t, part, of_bytes, pixels, zero, 5, j, c, n), &o[0],
        )
        for i in range(t + 2):
            half[i][j] = o[i]
    for i in range(t + 2):
        wino_bt(
            t, False, half[i][0], half[i][1], half[i][2], half[i][3], half[i][4], half[i][5], &o[0]
        )
        for j in range(t + 2):
            store_bf16(v + (i * (t + 2) + j) * stride + part * LANES, o[j])


cdef inline void wino_input_pairs(
    int t, bint of_bytes, Py_ssize_t channels, const void* const* pixels, float zero,
    bfloat16_t* v, Py_ssize_t stride,
) noexcept nogil:
    cdef Py_ssize_t c = 0
    while c + PAIRED_VECTORS * LANES <= channels:
        wino_pairs_vector(
            t, 0, of_bytes, pixels, zero, c, PAIRED_VECTORS * LANES, v + c, stride
        )
        wino_pairs_vector(
            t, 1, of_bytes, pixels, zero, c, PAIRED_VECTORS * LANES, v + c, stride
        )
        c += PAIRED_VECTORS * LANES
    if c < channels:
        wino_pairs_vector(t, 0, of_bytes, pixels, zero, c, channels - c, v + c, stride)
        wino_pairs_vector(t, 1, of_bytes, pixels, zero, c, channels - c, v + c, stride)


cdef inline void wino_half_vector(
    int t, const float* m, Py_ssize_t stride, Py_ssize_t c, long n, const float* bias,
    bfloat16_t* y, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows, Py_ssize_t columns,
    const bfloat16_t* residual, Py_ssize_t r_row, Py_ssize_t r_column, vf32 low, vf32 high,
    vf32* spoilt,
) noexcept nogil:
    """Transform the first n channels of a vector; as wino_output_vector of winograd.pxi."""
    cdef vf32[4][6] half
    cdef vf32[6] o
    cdef vf32 b = load_first(bias + c, n), value
    cdef int i, j
    for j in range(t + 2):
        wino_at(
            t, False, wino_product(t, False, m, stride, 0, j, c, n),
            wino_product(t, False, m, stride, 1, j, c, n),
            wino_product(t, False, m, stride, 2, j, c, n),
            wino_product(t, False, m, stride, 3, j, c, n),
            wino_product(t, False, m, stride, 4, j, c, n),
            wino_product(t, False, m, stride, 5, j, c, n), &o[0],
        )
        for i in range(t):
            half[i][j] = o[i]
    for i in range(t):
        if i < rows:
            wino_at(
                t, False, half[i][0], half[i][1], half[i][2], half[i][3], half[i][4], half[i][5],
                &o[0],
            )
            for j in range(t):
                if j < columns:
                    if (i == 0 or i == t - 1) and (j == 0 or j == t - 1):
                        spoilt[0] += splat(0.0) * o[j]
                    value = o[j] + b
                    if residual != NULL:
                        value += load_bf16_first(residual + i * r_row + j * r_column + c, n)
                    store_bf16_first(
                        y + i * row + j * column + c, vmin(high, vmax(low, value)), n
                    )


cdef inline bint bf16_wino_output(
    int t, Py_ssize_t channels, const float* m, Py_ssize_t stride, const float* bias,
    bfloat16_t* y, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows, Py_ssize_t columns,
    const bfloat16_t* residual, Py_ssize_t r_row, Py_ssize_t r_column, float lo, float hi,
) noexcept nogil:
    cdef Py_ssize_t c = 0
    cdef vf32 low = splat(lo), high = splat(hi), spoilt = splat(0.0)
    while c + LANES <= channels:
        wino_half_vector(
            t, m, stride, c, LANES, bias, y, row, column, rows, columns, residual, r_row, r_column,
            low, high, &spoilt,
        )
        c += LANES
    if c < channels:
        wino_half_vector(
            t, m, stride, c, rest_of(channels - c), bias, y, row, column, rows, columns, residual,
            r_row, r_column, low, high, &spoilt,
        )
    return reduce_add(spoilt) == 0.0


cdef void bf16_wino_input_2(
    Py_ssize_t channels, const bfloat16_t* const* pixels, bfloat16_t* v, Py_ssize_t stride
) noexcept nogil:
    wino_input_pairs(2, False, channels, <const void* const*> pixels, 0, v, stride)


cdef void bf16_wino_input_4(
    Py_ssize_t channels, const bfloat16_t* const* pixels, bfloat16_t* v, Py_ssize_t stride
) noexcept nogil:
    wino_input_pairs(4, False, channels, <const void* const*> pixels, 0, v, stride)


cdef void u8_wino_input_2(
    Py_ssize_t channels, const uint8_t* const* pixels, float zero, bfloat16_t* v, Py_ssize_t stride
) noexcept nogil:
    wino_input_pairs(2, True, channels, <const void* const*> pixels, zero, v, stride)


cdef void u8_wino_input_4(
    Py_ssize_t channels, const uint8_t* const* pixels, float zero, bfloat16_t* v, Py_ssize_t stride
) noexcept nogil:
    wino_input_pairs(4, True, channels, <const void* const*> pixels, zero, v, stride)


cdef bint bf16_wino_output_2(
    Py_ssize_t channels, const float* m, Py_ssize_t stride, const float* bias,
    bfloat16_t* y, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows, Py_ssize_t columns,
    const bfloat16_t* residual, Py_ssize_t r_row, Py_ssize_t r_column, float lo, float hi,
) noexcept nogil:
    return bf16_wino_output(
        2, channels, m, stride, bias, y, row, column, rows, columns, residual, r_row, r_column, lo,
        hi,
    )


cdef bint bf16_wino_output_4(
    Py_ssize_t channels, const float* m, Py_ssize_t stride, const float* bias,
    bfloat16_t* y, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows, Py_ssize_t columns,
    const bfloat16_t* residual, Py_ssize_t r_row, Py_ssize_t r_column, float lo, float hi,
) noexcept nogil:
    return bf16_wino_output(
        4, channels, m, stride, bias, y, row, column, rows, columns, residual, r_row, r_column, lo,
        hi,
    )


cdef void fill_winograd_pairs(kernels_t* k) noexcept:
    k.bf16_wino_input[2] = bf16_wino_input_2
    k.bf16_wino_input[4] = bf16_wino_input_4
    if PAIRS_ARE_NATIVE:  # nothing else calls them, and the compiler leaves them out
        k.u8_wino_input[2] = u8_wino_input_2
        k.u8_wino_input[4] = u8_wino_input_4
    k.bf16_wino_output[2] = bf16_wino_output_2
    k.bf16_wino_output[4] = bf16_wino_output_4
