# Convolution to a few channels, NARROW_CHANNELS at the most; see simd/narrow.h.

from kuiper._kernels.micro.table cimport NARROW_CHANNELS

cdef extern from "_kernels/simd/narrow.h" nogil:
    void narrow_sums "kp_narrow"(
        int pixels, int n, Py_ssize_t taps, Py_ssize_t channels, const float* const* rows,
        Py_ssize_t apart, const float* weight, float* sums,
    ) noexcept


cdef inline void narrow_tiles(
    int pixels, int n, Py_ssize_t m, Py_ssize_t taps, Py_ssize_t channels,
    const float* const* rows, const float* weight, float* sums,
) noexcept nogil:
    """The sums of m pixels, so many at a time, for numbers that the compiler knows."""
    cdef Py_ssize_t i = 0
    while i + pixels <= m:
        narrow_sums(pixels, n, taps, channels, rows + i, m, weight, sums + i * n)
        i += pixels
    while i < m:
        narrow_sums(1, n, taps, channels, rows + i, m, weight, sums + i * n)
        i += 1


cdef inline vf32 few(const float* x, Py_ssize_t n) noexcept nogil:
    return load(x) if n == LANES else load_n(x, n)


cdef void narrow(
    Py_ssize_t m, Py_ssize_t taps, Py_ssize_t channels, const float* const* rows,
    const float* weight, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    cdef float[MAX_MR * NARROW_CHANNELS] sums
    cdef vf32 bias = load(weight), v
    cdef Py_ssize_t i
    weight += LANES
    # As many pixels as let the sums take half of the registers.
    if n == 1:
        narrow_tiles(REGISTERS // 4, 1, m, taps, channels, rows, weight, sums)
    elif n == 2:
        narrow_tiles(REGISTERS // 4, 2, m, taps, channels, rows, weight, sums)
    elif n == 3:
        narrow_tiles(REGISTERS // 8, 3, m, taps, channels, rows, weight, sums)
    else:
        narrow_tiles(REGISTERS // 8, 4, m, taps, channels, rows, weight, sums)
    for i in range(m):
        v = few(sums + i * n, n) + bias
        if residual != NULL:
            v += few(residual + i * ldr, n)
        v = vmin(splat(hi), vmax(splat(lo), v))
        if n == LANES:
            store(y + i * ldy, v)
        else:
            store_n(y + i * ldy, v, n)


cdef void fill_narrow(kernels_t* k) noexcept:
    k.narrow = narrow
