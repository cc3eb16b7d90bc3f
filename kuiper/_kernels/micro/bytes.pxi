# Tensors of bytes with one scale and zero point.
#
# Each product is rounded before the next operation, so that all variants have the same bits.


cdef inline vi32 byte_lanes(vf32 x, vf32 inverse, vf32 low, vf32 high, vi32 zero) noexcept nogil:
    """rint(x * inverse) + zero; low and high are 0 and 255 less `zero`.

    Both bounds are integers, so it is the same to clamp before rounding, which keeps the lanes
    within 32 bits.
    """
    return nearest_int(number(vmin(high, vmax(low, rounded(x * inverse))))) + zero


cdef void f32_to_u8(
    Py_ssize_t n, const float* x, uint8_t* y, float inverse, int zero
) noexcept nogil:
    cdef vf32 factor = splat(inverse)
    cdef vf32 low = splat(<float> -zero), high = splat(<float> (255 - zero))
    cdef vi32 shift = splat_int(zero)
    cdef Py_ssize_t i = 0
    while i + LANES <= n:
        store_bytes(y + i, byte_lanes(load(x + i), factor, low, high, shift), LANES)
        i += LANES
    if i < n:
        store_bytes(
            y + i, byte_lanes(load_n(x + i, rest_of(n - i)), factor, low, high, shift),
            rest_of(n - i),
        )


cdef void u8_to_f32(
    Py_ssize_t n, const uint8_t* x, float* y, float scale, int zero
) noexcept nogil:
    cdef vf32 factor = splat(scale), shift = splat(<float> zero)
    cdef Py_ssize_t i = 0
    while i + LANES <= n:
        store(y + i, (load_bytes(x + i, LANES) - shift) * factor)
        i += LANES
    if i < n:
        store_n(y + i, (load_bytes(x + i, rest_of(n - i)) - shift) * factor, rest_of(n - i))


cdef void fill_bytes(kernels_t* k) noexcept:
    k.f32_to_u8 = f32_to_u8
    k.u8_to_f32 = u8_to_f32
