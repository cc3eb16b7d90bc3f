# Products of unsigned by signed bytes (simd/dot_tile.h), and rows of floats as unsigned bytes.

from libc.math cimport NAN
from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memcpy, memset

from kuiper._kernels.micro.table cimport BYTE_ZERO, u8s8_gemm_fn

cdef extern from "_kernels/simd/dot_tile.h" nogil:
    enum:
        DOT_ROWS "KP_DOT_ROWS"
        DOT_IS_NATIVE "KP_DOT_IS_NATIVE"
    void enter_dot "kp_enter_dot"(u8s8_gemm_fn* table) noexcept
    vi32 nearest_int "kp_nearest"(vf32) noexcept            # to even integers from halves
    vf32 floats "kp_floats"(vi32) noexcept
    vf32 number "kp_number"(vf32) noexcept              # 0 for NaN
    vi32 load_ints "kp_load_ints"(const int32_t*) noexcept
    vf32 load_bytes "kp_load_bytes"(const uint8_t*, long) noexcept
    void store_bytes "kp_store_bytes"(uint8_t*, vi32, long) noexcept
    vi32 larger_int "kp_larger_int"(vi32, vi32) noexcept
    int largest_int "kp_largest_int"(vi32) noexcept

cdef enum:
    INFINITY_BITS = 0x7F800000
    SIGN_BITS = 0x7FFFFFFF       # all bits of a float but its sign
    BYTE_LIMIT = 127             # of a symmetric range

# Rows whose largest magnitude is smaller are zeros: its reciprocal times 127 would overflow.
cdef float SMALLEST = 1e-36


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
    k.f32_quantize_rows = f32_quantize_rows
