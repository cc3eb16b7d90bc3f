# Depthwise convolution: a filter per channel, so vectors run across channels.

from kuiper._kernels.micro.table cimport (
    DW_ROW, MAX_DW_KW, MAX_DW_M, MAX_DW_STEP, dwconv_fn, dwrow_fn,
)

cdef extern from "_kernels/simd/heights.h" nogil:
    void enter_dwconv "kp_enter_dwconv"(dwconv_fn* table) noexcept
    void enter_dwrow "kp_enter_dwrow"(dwrow_fn* table, int n_steps) noexcept

# Vectors of channels at a time: enough independent sums to hide the FMA's latency.
cdef enum:
    DW_NV = 2
    DW_NV_FEW = 4  # for at most 3 pixels


cdef inline void dwconv_block(
    int m, int nv, bint scattered, Py_ssize_t taps, const float* const* pixels,
    const Py_ssize_t* steps, Py_ssize_t c, long n, const float* w, float* y, Py_ssize_t ldy,
    const float* residual, Py_ssize_t ldr, vf32 low, vf32 high,
) noexcept nogil:
    """All taps for `m` pixels and `nv` vectors of channels, or the first n channels of one vector.

    `m`, `nv` and `scattered` (a pointer per pixel and tap) are constants, as is n = LANES.
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
                acc[i][j] += load_first(pixel + j * LANES, n) * tap[j]
            if not scattered:
                pixel += steps[t]
    for i in range(m):
        for j in range(nv):
            store_result(
                y + i * ldy + c + j * LANES, acc[i][j], residual, i * ldr + c + j * LANES, low,
                high, n,
            )


cdef inline void dwconv_pixels "kp_dwconv_pixels"(
    int m, bint scattered, Py_ssize_t taps, Py_ssize_t channels, const float* const* pixels,
    const Py_ssize_t* steps, const float* w, float* y, Py_ssize_t ldy,
    const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    cdef vf32 low = splat(lo), high = splat(hi)
    cdef Py_ssize_t c = 0, block = (taps + 1) * LANES
    if m <= 3:
        while c + DW_NV_FEW * LANES <= channels:
            dwconv_block(
                m, DW_NV_FEW, scattered, taps, pixels, steps, c, LANES, w, y, ldy, residual, ldr,
                low, high,
            )
            w += DW_NV_FEW * block
            c += DW_NV_FEW * LANES
    while c + DW_NV * LANES <= channels:
        dwconv_block(
            m, DW_NV, scattered, taps, pixels, steps, c, LANES, w, y, ldy, residual, ldr, low, high,
        )
        w += DW_NV * block
        c += DW_NV * LANES
    while c + LANES <= channels:
        dwconv_block(
            m, 1, scattered, taps, pixels, steps, c, LANES, w, y, ldy, residual, ldr, low, high,
        )
        w += block
        c += LANES
    if c < channels:
        dwconv_block(
            m, 1, scattered, taps, pixels, steps, c, rest_of(channels - c), w, y, ldy, residual,
            ldr, low, high,
        )


# Adjacent windows of 3, 5 or 7 columns: a pixel is loaded once for all windows that contain it.

cdef inline const float* dw_column(
    int kw, int s, int j, const float* pixel, Py_ssize_t step, long n, const vf32* tap, vf32* acc
) noexcept nogil:
    """Add column j of a row of pixels to all windows that contain it; return the next pixel."""
    cdef vf32 x
    cdef int v
    if j >= (DW_ROW - 1) * s + kw:
        return pixel
    x = load_first(pixel, n)
    for v in range(kw):
        # Column v of the window of output pixel (j - v) / s, if that is one.
        if j >= v and (j - v) % s == 0 and j - v < DW_ROW * s:
            acc[(j - v) // s] += x * tap[v]
    return pixel + step


cdef inline void dwrow_block(
    int kw, int s, Py_ssize_t kh, const float* const* rows, const Py_ssize_t* steps, Py_ssize_t c,
    long n, const float* w, float* y, Py_ssize_t ldy, const float* residual, Py_ssize_t ldr,
    vf32 low, vf32 high,
) noexcept nogil:
    """DW_ROW pixels of the first n channels of one vector."""
    cdef vf32[DW_ROW] acc
    cdef vf32[MAX_DW_KW] tap
    cdef const float* pixel
    cdef Py_ssize_t u
    cdef int i, v
    for i in range(DW_ROW):
        acc[i] = load(w)
    for u in range(kh):
        for v in range(kw):
            w += LANES
            tap[v] = load(w)
        pixel = rows[u] + c
        # One call per column: compilers do not unroll a loop of 19.
        pixel = dw_column(kw, s, 0, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 1, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 2, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 3, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 4, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 5, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 6, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 7, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 8, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 9, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 10, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 11, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 12, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 13, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 14, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 15, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 16, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 17, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 18, pixel, steps[u], n, &tap[0], &acc[0])
    for i in range(DW_ROW):
        store_result(y + i * ldy + c, acc[i], residual, i * ldr + c, low, high, n)


cdef inline void dwrow_pixels "kp_dwrow_pixels"(
    int kw, int s, Py_ssize_t kh, Py_ssize_t channels, const float* const* rows,
    const Py_ssize_t* steps, const float* w, float* y, Py_ssize_t ldy, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    cdef vf32 low = splat(lo), high = splat(hi)
    cdef Py_ssize_t c = 0, block = (kh * kw + 1) * LANES
    while c + LANES <= channels:
        dwrow_block(kw, s, kh, rows, steps, c, LANES, w, y, ldy, residual, ldr, low, high)
        w += block
        c += LANES
    if c < channels:
        dwrow_block(
            kw, s, kh, rows, steps, c, rest_of(channels - c), w, y, ldy, residual, ldr, low, high
        )


cdef void fill_dwconv(kernels_t* k) noexcept:
    # DW_NV sums per pixel have to fit the registers.
    k.dw_m = 8 if REGISTERS == 32 else 4
    enter_dwconv(k.f32_dwconv)
    enter_dwrow(&k.f32_dwrow[0][0], MAX_DW_STEP + 1)
