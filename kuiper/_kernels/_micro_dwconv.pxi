# Depthwise convolution: every channel has taps of its own, so vectors run across channels.

from kuiper._kernels._table cimport MAX_DW_M

# Vectors of channels at a time: enough sums in flight to hide the FMA's latency.
cdef enum:
    DW_NV = 2
    DW_NV_FEW = 4  # for few pixels


cdef inline void dwconv_block(
    int m, int nv, bint scattered, Py_ssize_t taps, const float* const* pixels,
    const Py_ssize_t* steps, Py_ssize_t c, const float* w, float* y, Py_ssize_t ldy,
    const float* residual, Py_ssize_t ldr, vf32 low, vf32 high,
) noexcept nogil:
    """All taps for `m` pixels and `nv` vectors of channels.

    These two and `scattered` (every pixel has a pointer of its own) are known to the compiler.
    """
    cdef vf32[MAX_DW_M][DW_NV_FEW] acc
    cdef vf32[DW_NV_FEW] tap
    cdef const float* pixel = NULL
    cdef Py_ssize_t t, block = (taps + 1) * LANES
    cdef int i, j
    for j in range(nv):
        tap[j] = load(w + j * block)
        for i in range(m):
            acc[i][j] = tap[j]
    for t in range(taps):
        w += LANES
        for j in range(nv):
            tap[j] = load(w + j * block)
        if not scattered:
            pixel = pixels[t] + c
        for i in range(m):
            if scattered:
                pixel = pixels[t * m + i] + c
            for j in range(nv):
                acc[i][j] += load(pixel + j * LANES) * tap[j]
            if not scattered:
                pixel += steps[t]
    for i in range(m):
        for j in range(nv):
            if residual != NULL:
                acc[i][j] += load(residual + i * ldr + c + j * LANES)
            store(y + i * ldy + c + j * LANES, vmin(high, vmax(low, acc[i][j])))


cdef inline void dwconv_pixels(
    int m, bint scattered, Py_ssize_t taps, Py_ssize_t channels, const float* const* pixels,
    const Py_ssize_t* steps, const float* w, float* y, Py_ssize_t ldy,
    const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    cdef vf32 low = splat(lo), high = splat(hi), v
    cdef Py_ssize_t c = 0, t, rest, block = (taps + 1) * LANES
    cdef const float* pixel
    cdef int i
    if m <= 3:
        while c + DW_NV_FEW * LANES <= channels:
            dwconv_block(
                m, DW_NV_FEW, scattered, taps, pixels, steps, c, w, y, ldy, residual, ldr, low, high
            )
            w += DW_NV_FEW * block
            c += DW_NV_FEW * LANES
    while c + DW_NV * LANES <= channels:
        dwconv_block(
            m, DW_NV, scattered, taps, pixels, steps, c, w, y, ldy, residual, ldr, low, high
        )
        w += DW_NV * block
        c += DW_NV * LANES
    while c + LANES <= channels:
        dwconv_block(m, 1, scattered, taps, pixels, steps, c, w, y, ldy, residual, ldr, low, high)
        w += block
        c += LANES
    rest = channels - c
    if rest == 0:
        return
    for i in range(m):
        v = load(w)
        for t in range(taps):
            pixel = pixels[t * m + i] if scattered else pixels[t] + i * steps[t]
            v += load_n(pixel + c, rest) * load(w + (t + 1) * LANES)
        if residual != NULL:
            v += load_n(residual + i * ldr + c, rest)
        store_n(y + i * ldy + c, vmin(high, vmax(low, v)), rest)


cdef void dwconv_1(
    Py_ssize_t taps, Py_ssize_t channels, const float* const* pixels, const Py_ssize_t* steps,
    const float* w, float* y, Py_ssize_t ldy, const float* residual, Py_ssize_t ldr,
    float lo, float hi,
) noexcept nogil:
    if steps == NULL:
        dwconv_pixels(1, True, taps, channels, pixels, steps, w, y, ldy, residual, ldr, lo, hi)
    else:
        dwconv_pixels(1, False, taps, channels, pixels, steps, w, y, ldy, residual, ldr, lo, hi)


cdef void dwconv_2(
    Py_ssize_t taps, Py_ssize_t channels, const float* const* pixels, const Py_ssize_t* steps,
    const float* w, float* y, Py_ssize_t ldy, const float* residual, Py_ssize_t ldr,
    float lo, float hi,
) noexcept nogil:
    if steps == NULL:
        dwconv_pixels(2, True, taps, channels, pixels, steps, w, y, ldy, residual, ldr, lo, hi)
    else:
        dwconv_pixels(2, False, taps, channels, pixels, steps, w, y, ldy, residual, ldr, lo, hi)


cdef void dwconv_3(
    Py_ssize_t taps, Py_ssize_t channels, const float* const* pixels, const Py_ssize_t* steps,
    const float* w, float* y, Py_ssize_t ldy, const float* residual, Py_ssize_t ldr,
    float lo, float hi,
) noexcept nogil:
    if steps == NULL:
        dwconv_pixels(3, True, taps, channels, pixels, steps, w, y, ldy, residual, ldr, lo, hi)
    else:
        dwconv_pixels(3, False, taps, channels, pixels, steps, w, y, ldy, residual, ldr, lo, hi)


cdef void dwconv_4(
    Py_ssize_t taps, Py_ssize_t channels, const float* const* pixels, const Py_ssize_t* steps,
    const float* w, float* y, Py_ssize_t ldy, const float* residual, Py_ssize_t ldr,
    float lo, float hi,
) noexcept nogil:
    if steps == NULL:
        dwconv_pixels(4, True, taps, channels, pixels, steps, w, y, ldy, residual, ldr, lo, hi)
    else:
        dwconv_pixels(4, False, taps, channels, pixels, steps, w, y, ldy, residual, ldr, lo, hi)


cdef void dwconv_5(
    Py_ssize_t taps, Py_ssize_t channels, const float* const* pixels, const Py_ssize_t* steps,
    const float* w, float* y, Py_ssize_t ldy, const float* residual, Py_ssize_t ldr,
    float lo, float hi,
) noexcept nogil:
    if steps == NULL:
        dwconv_pixels(5, True, taps, channels, pixels, steps, w, y, ldy, residual, ldr, lo, hi)
    else:
        dwconv_pixels(5, False, taps, channels, pixels, steps, w, y, ldy, residual, ldr, lo, hi)


cdef void dwconv_6(
    Py_ssize_t taps, Py_ssize_t channels, const float* const* pixels, const Py_ssize_t* steps,
    const float* w, float* y, Py_ssize_t ldy, const float* residual, Py_ssize_t ldr,
    float lo, float hi,
) noexcept nogil:
    if steps == NULL:
        dwconv_pixels(6, True, taps, channels, pixels, steps, w, y, ldy, residual, ldr, lo, hi)
    else:
        dwconv_pixels(6, False, taps, channels, pixels, steps, w, y, ldy, residual, ldr, lo, hi)


cdef void dwconv_7(
    Py_ssize_t taps, Py_ssize_t channels, const float* const* pixels, const Py_ssize_t* steps,
    const float* w, float* y, Py_ssize_t ldy, const float* residual, Py_ssize_t ldr,
    float lo, float hi,
) noexcept nogil:
    if steps == NULL:
        dwconv_pixels(7, True, taps, channels, pixels, steps, w, y, ldy, residual, ldr, lo, hi)
    else:
        dwconv_pixels(7, False, taps, channels, pixels, steps, w, y, ldy, residual, ldr, lo, hi)


cdef void dwconv_8(
    Py_ssize_t taps, Py_ssize_t channels, const float* const* pixels, const Py_ssize_t* steps,
    const float* w, float* y, Py_ssize_t ldy, const float* residual, Py_ssize_t ldr,
    float lo, float hi,
) noexcept nogil:
    if steps == NULL:
        dwconv_pixels(8, True, taps, channels, pixels, steps, w, y, ldy, residual, ldr, lo, hi)
    else:
        dwconv_pixels(8, False, taps, channels, pixels, steps, w, y, ldy, residual, ldr, lo, hi)


cdef void fill_dwconv(kernels_t* k) noexcept:
    # DW_NV sums for each pixel have to fit the registers.
    k.dw_m = 8 if REGISTERS == 32 else 4
    k.dwconv[1] = dwconv_1
    k.dwconv[2] = dwconv_2
    k.dwconv[3] = dwconv_3
    k.dwconv[4] = dwconv_4
    k.dwconv[5] = dwconv_5
    k.dwconv[6] = dwconv_6
    k.dwconv[7] = dwconv_7
    k.dwconv[8] = dwconv_8
