# Tensors of bytes with one scale and zero point.
#
# Each product is rounded before the next operation, so that all variants have the same bits.

cdef extern from "_kernels/simd/bytes.h" nogil:
    enum:
        NARROW "KP_NARROW"
        WIDE "KP_WIDE"
    ctypedef struct narrow_bytes "kp_narrow":
        pass
    ctypedef struct wide_bytes "kp_wide":
        pass
    const uint8_t* zero_bytes "kp_zero_bytes"                 # WIDE zeros
    narrow_bytes narrow_load "kp_narrow_load"(const uint8_t*) noexcept
    narrow_bytes narrow_load_n "kp_narrow_load_n"(const uint8_t*, long) noexcept  # n < NARROW
    narrow_bytes narrow_max "kp_narrow_max"(narrow_bytes, narrow_bytes) noexcept
    void narrow_store "kp_narrow_store"(uint8_t*, narrow_bytes) noexcept
    void narrow_store_n "kp_narrow_store_n"(uint8_t*, narrow_bytes, long) noexcept
    wide_bytes wide_load "kp_wide_load"(const uint8_t*) noexcept
    wide_bytes wide_max "kp_wide_max"(wide_bytes, wide_bytes) noexcept
    void wide_store "kp_wide_store"(uint8_t*, wide_bytes) noexcept
    void lookup_items "kp_lookup_items"(
        Py_ssize_t, const uint8_t*, uint8_t*, const uint8_t*
    ) noexcept
    void lookup_vectors "kp_lookup_vectors"(
        Py_ssize_t, const uint8_t*, uint8_t*, const uint8_t*
    ) noexcept
    bint looks_up_vectors "kp_looks_up_vectors"() noexcept


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


# Maxima of windows, see pool.pxi -------------------------------------------------------------

cdef inline void max_wide(
    const uint8_t* x, const Py_ssize_t* rows, Py_ssize_t n_rows, Py_ssize_t n_columns,
    Py_ssize_t column, uint8_t* y,
) noexcept nogil:
    cdef wide_bytes top = wide_load(zero_bytes)
    cdef Py_ssize_t r, k
    for r in range(n_rows):
        for k in range(n_columns):
            top = wide_max(top, wide_load(x + rows[r] + k * column))
    wide_store(y, top)


cdef inline void max_narrow(
    const uint8_t* x, const Py_ssize_t* rows, Py_ssize_t n_rows, Py_ssize_t n_columns,
    Py_ssize_t column, uint8_t* y, long n,
) noexcept nogil:
    """The maxima of n <= NARROW channels."""
    cdef narrow_bytes top = narrow_load(zero_bytes)
    cdef Py_ssize_t r, k
    for r in range(n_rows):
        for k in range(n_columns):
            if n == NARROW:
                top = narrow_max(top, narrow_load(x + rows[r] + k * column))
            else:
                top = narrow_max(top, narrow_load_n(x + rows[r] + k * column, n))
    if n == NARROW:
        narrow_store(y, top)
    else:
        narrow_store_n(y, top, n)


cdef void u8_pool_max(
    const uint8_t* x, Py_ssize_t x_step, const Py_ssize_t* rows, Py_ssize_t n_rows,
    Py_ssize_t n_columns, Py_ssize_t column, uint8_t* y, Py_ssize_t y_step, Py_ssize_t count,
    Py_ssize_t channels,
) noexcept nogil:
    cdef Py_ssize_t i, c
    for i in range(count):
        c = 0
        while c + WIDE <= channels:
            max_wide(x + c, rows, n_rows, n_columns, column, y + c)
            c += WIDE
        while c + NARROW <= channels:
            max_narrow(x + c, rows, n_rows, n_columns, column, y + c, NARROW)
            c += NARROW
        if c < channels and channels >= NARROW:
            # The last vector overlaps the one before.
            c = channels - NARROW
            max_narrow(x + c, rows, n_rows, n_columns, column, y + c, NARROW)
        elif c < channels:
            max_narrow(x + c, rows, n_rows, n_columns, column, y + c, channels - c)
        x += x_step
        y += y_step


cdef void u8_lookup(
    Py_ssize_t n, const uint8_t* x, uint8_t* y, const uint8_t* table
) noexcept nogil:
    lookup_items(n, x, y, table)


cdef void u8_lookup_fast(
    Py_ssize_t n, const uint8_t* x, uint8_t* y, const uint8_t* table
) noexcept nogil:
    lookup_vectors(n, x, y, table)


cdef void fill_bytes(kernels_t* k) noexcept:
    k.f32_to_u8 = f32_to_u8
    k.u8_to_f32 = u8_to_f32
    k.u8_pool_max = u8_pool_max
    k.u8_lookup = u8_lookup_fast if looks_up_vectors() else u8_lookup
