# Depthwise convolution: every channel has taps of its own, so vectors run across channels.

cdef enum:
    DW_M = 4  # pixels that share one load of a tap's weights


cdef inline void dwconv_block(
    int m, Py_ssize_t taps, const float* const* rows, Py_ssize_t c, const float* w, vf32* acc
) noexcept nogil:
    """Accumulate one vector of channels for `m` pixels; `m` is known to the compiler."""
    cdef vf32 tap = load(w)
    cdef Py_ssize_t t
    cdef int i
    for i in range(m):
        acc[i] = tap
    for t in range(taps):
        w += LANES
        tap = load(w)
        for i in range(m):
            acc[i] += load(rows[t * m + i] + c) * tap


cdef inline void dwconv_pixels(
    int m, Py_ssize_t taps, Py_ssize_t channels, const float* const* rows, const float* w,
    float* y, Py_ssize_t ldy, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    cdef vf32[DW_M] acc
    cdef vf32 low = splat(lo), high = splat(hi), tap, v
    cdef Py_ssize_t c = 0, t, rest
    cdef int i
    while c + LANES <= channels:
        dwconv_block(m, taps, rows, c, w, &acc[0])
        w += (taps + 1) * LANES
        for i in range(m):
            if residual != NULL:
                acc[i] += load(residual + i * ldr + c)
            store(y + i * ldy + c, vmin(high, vmax(low, acc[i])))
        c += LANES
    rest = channels - c
    if rest == 0:
        return
    for i in range(m):
        v = load(w)
        for t in range(taps):
            tap = load(w + (t + 1) * LANES)
            v += load_n(rows[t * m + i] + c, rest) * tap
        if residual != NULL:
            v += load_n(residual + i * ldr + c, rest)
        store_n(y + i * ldy + c, vmin(high, vmax(low, v)), rest)


cdef void dwconv(
    Py_ssize_t m, Py_ssize_t taps, Py_ssize_t channels, const float* const* rows,
    const float* weights, float* y, Py_ssize_t ldy,
    const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    if m == 4:
        dwconv_pixels(4, taps, channels, rows, weights, y, ldy, residual, ldr, lo, hi)
    elif m == 3:
        dwconv_pixels(3, taps, channels, rows, weights, y, ldy, residual, ldr, lo, hi)
    elif m == 2:
        dwconv_pixels(2, taps, channels, rows, weights, y, ldy, residual, ldr, lo, hi)
    else:
        dwconv_pixels(1, taps, channels, rows, weights, y, ldy, residual, ldr, lo, hi)


cdef void fill_dwconv(kernels_t* k) noexcept:
    k.dw_m = DW_M
    k.dwconv = dwconv
