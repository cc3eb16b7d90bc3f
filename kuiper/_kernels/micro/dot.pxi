# Products of unsigned by signed bytes (simd/dot_tile.h), what becomes of exact sums, and rows of
# floats as unsigned bytes.

from libc.math cimport NAN
from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memcpy, memset

from kuiper._kernels.micro.table cimport BYTE_ZERO, sums_end_t, u8s8_gemm_fn

cdef extern from "_kernels/simd/dot_tile.h" nogil:
    enum:
        DOT_ROWS "KP_DOT_ROWS"
        DOT_IS_NATIVE "KP_DOT_IS_NATIVE"
    void enter_dot "kp_enter_dot"(u8s8_gemm_fn* table) noexcept
    vi32 nearest_int "kp_nearest"(vf32) noexcept            # to even integers from halves
    vf32 floats "kp_floats"(vi32) noexcept
    vf32 number "kp_number"(vf32) noexcept              # 0 for NaN
    vi32 load_ints "kp_load_ints"(const int32_t*) noexcept
    void store_ints "kp_store_ints"(int32_t*, vi32) noexcept
    void store_bytes "kp_store_bytes"(uint8_t*, vi32, long) noexcept
    vi32 larger_int "kp_larger_int"(vi32, vi32) noexcept
    int largest_int "kp_largest_int"(vi32) noexcept

cdef enum:
    INFINITY_BITS = 0x7F800000
    SIGN_BITS = 0x7FFFFFFF       # all bits of a float but its sign
    BYTE_LIMIT = 127             # of a symmetric range

# Rows whose largest magnitude is smaller are zeros: its reciprocal times 127 would overflow.
cdef float SMALLEST = 1e-36


cdef enum:
    NO_RESIDUAL
    FLOAT_RESIDUAL
    BYTE_RESIDUAL


cdef inline void end_column(
    bint of_sums, bint to_bytes, int residual_kind, Py_ssize_t m, long n, const int32_t* sums,
    Py_ssize_t ld, const float* scale, const float* bias, const float* factors, void* y,
    Py_ssize_t ldy, const void* residual, Py_ssize_t ldr, const sums_end_t* end,
) noexcept nogil:
    """One vector, or its first n columns: of sums, scaled and clamped; else of floats."""
    cdef vf32 v, unit = splat(0.0), shift = splat(0.0), low = splat(end.lo), high = splat(end.hi)
    cdef vf32 inverse = splat(end.inverse_scale)
    cdef vf32 r_zero = splat(end.residual_zero), r_scale = splat(end.residual_scale)
    cdef vi32 zero = splat_int(<int> end.zero)
    cdef bint per_row = end.factor_per_row
    cdef const float* floats_of_r = <const float*> residual
    cdef const uint8_t* bytes_of_r = <const uint8_t*> residual
    cdef Py_ssize_t i
    if of_sums:
        shift, unit = load(bias), load(scale)
        if not per_row:
            unit = rounded(unit * splat(factors[0]))
    if to_bytes:
        low = splat((end.low if of_sums else 0) - end.zero)
        high = splat((end.high if of_sums else 255) - end.zero)
    for i in range(m):
        if of_sums:
            v = floats(load_ints(sums))
            if per_row:
                v = v * rounded(unit * splat(factors[i]))
            else:
                v = v * unit
            v = rounded(v) + shift
        else:
            v = load(<const float*> sums)
        if residual_kind == FLOAT_RESIDUAL:
            v = v + load_first(floats_of_r, n)
            floats_of_r += ldr
        elif residual_kind == BYTE_RESIDUAL:
            v = v + rounded((load_bytes(bytes_of_r, n) - r_zero) * r_scale)
            bytes_of_r += ldr
        if to_bytes:
            v = number(vmin(high, vmax(low, v * inverse)))
            store_bytes(<uint8_t*> y, nearest_int(v) + zero, n)
            y = <uint8_t*> y + ldy
        else:
            if of_sums:
                v = vmin(high, vmax(low, v))
            store_first(<float*> y, v, n)
            y = <float*> y + ldy
        sums += ld


cdef inline void end_columns(
    bint of_sums, bint to_bytes, int residual_kind, Py_ssize_t m, const int32_t* sums,
    Py_ssize_t ld, const float* scale, const float* bias, const float* factors, void* y,
    Py_ssize_t ldy, Py_ssize_t n, const void* residual, Py_ssize_t ldr, const sums_end_t* end,
) noexcept nogil:
    cdef Py_ssize_t width = LANES, vector = LANES * <Py_ssize_t> sizeof(float)
    cdef Py_ssize_t y_step = LANES if to_bytes else vector
    cdef Py_ssize_t r_step = LANES if residual_kind == BYTE_RESIDUAL else vector
    while n >= width:
        if to_bytes and of_sums and residual_kind == NO_RESIDUAL:
            end_column(
                True, True, NO_RESIDUAL, m, LANES, sums, ld, scale, bias, factors, y, ldy,
                residual, ldr, end,
            )
        elif to_bytes and of_sums and residual_kind == BYTE_RESIDUAL:
            end_column(
                True, True, BYTE_RESIDUAL, m, LANES, sums, ld, scale, bias, factors, y, ldy,
                residual, ldr, end,
            )
        else:
            end_column(
                of_sums, to_bytes, residual_kind, m, LANES, sums, ld, scale, bias, factors, y,
                ldy, residual, ldr, end,
            )
        n -= width
        sums += width
        scale += width
        bias += width
        y = <char*> y + y_step
        if residual != NULL:
            residual = <const char*> residual + r_step
    if n > 0:
        end_column(
            of_sums, to_bytes, residual_kind, m, rest_of(n), sums, ld, scale, bias, factors, y,
            ldy, residual, ldr, end,
        )


cdef void end_sums "kp_end_sums"(
    Py_ssize_t m, int32_t* sums, const float* scale, const float* bias, const float* factors,
    void* y, Py_ssize_t ldy, Py_ssize_t n, const void* residual, Py_ssize_t ldr,
    const sums_end_t* end,
) noexcept nogil:
    """Turn exact sums (m, n rounded up to vectors) into y, as sums_end_t says.

    Scales and biases are readable up to the end of the last vector.  The sums are overwritten.
    """
    cdef Py_ssize_t ld = (n + LANES - 1) // LANES * LANES
    cdef float* values = <float*> sums
    cdef int kind = NO_RESIDUAL
    if residual != NULL:
        kind = BYTE_RESIDUAL if end.residual_in_bytes else FLOAT_RESIDUAL
    if end.pre == NULL and end.post == NULL and (kind == NO_RESIDUAL or end.residual_first):
        end_columns(
            True, end.to_bytes, kind, m, sums, ld, scale, bias, factors, y, ldy, n, residual, ldr,
            end,
        )
        return
    # Functions run over the sums' memory, all rows at once, to hide their latency.
    if kind != NO_RESIDUAL and end.residual_first:
        end_columns(
            True, False, kind, m, sums, ld, scale, bias, factors, values, ld, n, residual, ldr, end
        )
        kind = NO_RESIDUAL
    else:
        end_columns(
            True, False, NO_RESIDUAL, m, sums, ld, scale, bias, factors, values, ld, n, NULL, 0, end
        )
    if end.pre != NULL:
        end.pre(m * ld, values, values, end.pre_p0, end.pre_p1)
    if end.post != NULL:
        if kind != NO_RESIDUAL:
            end_columns(
                False, False, kind, m, sums, ld, scale, bias, factors, values, ld, n, residual, ldr,
                end,
            )
        kind = NO_RESIDUAL
        end.post(m * ld, values, values, end.post_p0, end.post_p1)
    end_columns(
        False, end.to_bytes, kind, m, sums, ld, scale, bias, factors, y, ldy, n, residual, ldr, end
    )


cdef void f32_end(
    Py_ssize_t m, float* sums, void* y, Py_ssize_t ldy, Py_ssize_t n, const void* residual,
    Py_ssize_t ldr, const sums_end_t* end,
) noexcept nogil:
    """Turn sums with their biases (m, n rounded up to vectors) into y; they are overwritten."""
    cdef Py_ssize_t ld = (n + LANES - 1) // LANES * LANES, i
    cdef vf32 low = splat(end.lo), high = splat(end.hi)
    cdef int kind = NO_RESIDUAL
    if residual != NULL:
        kind = BYTE_RESIDUAL if end.residual_in_bytes else FLOAT_RESIDUAL
    if kind != NO_RESIDUAL and end.residual_first:
        end_columns(
            False, False, kind, m, <int32_t*> sums, ld, sums, sums, NULL, sums, ld, n, residual,
            ldr, end,
        )
        kind = NO_RESIDUAL
    i = 0
    while i < m * ld:
        store(sums + i, vmin(high, vmax(low, load(sums + i))))
        i += LANES
    if end.pre != NULL:
        end.pre(m * ld, sums, sums, end.pre_p0, end.pre_p1)
    if end.post != NULL:
        if kind != NO_RESIDUAL:
            end_columns(
                False, False, kind, m, <int32_t*> sums, ld, sums, sums, NULL, sums, ld, n, residual,
                ldr, end,
            )
        kind = NO_RESIDUAL
        end.post(m * ld, sums, sums, end.post_p0, end.post_p1)
    end_columns(
        False, end.to_bytes, kind, m, <int32_t*> sums, ld, sums, sums, NULL, y, ldy, n, residual,
        ldr, end,
    )


cdef int largest_magnitude(const float* x, Py_ssize_t n) noexcept nogil:
    """Return the bits of the largest |x[i]|; above INFINITY_BITS if one is NaN.

    As integers, the bits of floats without sign have the order of the floats.
    """
    cdef vi32 top = splat_int(0), magnitude = splat_int(SIGN_BITS)
    cdef Py_ssize_t i = 0
    while i + LANES <= n:
        top = larger_int(top, bits(load(x + i)) & magnitude)
        i += LANES
    if i < n:
        top = larger_int(top, bits(load_n(x + i, rest_of(n - i))) & magnitude)
    return largest_int(top)


cdef void f32_quantize_rows(
    const float* x, Py_ssize_t x_row, Py_ssize_t rows, Py_ssize_t n, uint8_t* y, Py_ssize_t y_row,
    Py_ssize_t width, float* factors,
) noexcept nogil:
    cdef vf32 scale
    cdef vi32 zero = splat_int(BYTE_ZERO)
    cdef Py_ssize_t i, k
    cdef int top
    cdef float largest
    for i in range(rows):
        top = largest_magnitude(x, n)
        memcpy(&largest, &top, sizeof(float))
        k = 0
        if top < INFINITY_BITS and largest >= SMALLEST:
            factors[i] = largest / BYTE_LIMIT
            scale = splat(BYTE_LIMIT / largest)
            while k + LANES <= n:
                store_bytes(y + k, nearest_int(rounded(load(x + k) * scale)) + zero, LANES)
                k += LANES
            if k < n:
                store_bytes(
                    y + k, nearest_int(rounded(load_n(x + k, rest_of(n - k)) * scale)) + zero,
                    rest_of(n - k),
                )
            k = n
        else:  # all zero, or not finite, which makes all results of the row NaN
            factors[i] = 0.0 if top < INFINITY_BITS else NAN
        memset(y + k, BYTE_ZERO, width - k)
        x += x_row
        y += y_row


cdef void fill_dot(kernels_t* k) noexcept:
    k.dot_mr = DOT_ROWS
    k.dot_is_native = DOT_IS_NATIVE
    k.u8s8_gemm[0] = NULL
    enter_dot(k.u8s8_gemm)
    k.u8s8_end = end_sums
    k.f32_end = f32_end
    k.f32_quantize_rows = f32_quantize_rows
