# Depthwise convolution: every channel has taps of its own, so vectors run across channels.

from kuiper._kernels.micro.table cimport (
    DW_ROW, MAX_DW_KW, MAX_DW_M, MAX_DW_STEP, dwconv_fn, dwrow_fn,
)

cdef extern from "_kernels/simd/heights.h" nogil:
    void enter_dwconv "kp_enter_dwconv"(dwconv_fn* table) noexcept
    void enter_dwrow "kp_enter_dwrow"(dwrow_fn* table, int n_steps) noexcept

# Vectors of channels at a time: enough sums in flight to hide the FMA's latency.
cdef enum:
    DW_NV = 2
    DW_NV_FEW = 4  # for few pixels


cdef inline void dwconv_block(
    int m, int nv, bint scattered, bint whole, Py_ssize_t taps, const float* const* pixels,
    const Py_ssize_t* steps, Py_ssize_t c, long n, const float* w, float* y, Py_ssize_t ldy,
    const float* residual, Py_ssize_t ldr, vf32 low, vf32 high,
) noexcept nogil:
    """All taps for `m` pixels and `nv` vectors of channels, or one of which `n` count.

    Known to the compiler: `m`, `nv`, `whole`, and `scattered` (every pixel has its own pointer).
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
                acc[i][j] += (load(pixel + j * LANES) if whole else load_n(pixel, n)) * tap[j]
            if not scattered:
                pixel += steps[t]
    for i in range(m):
        for j in range(nv):
            if whole:
                if residual != NULL:
                    acc[i][j] += load(residual + i * ldr + c + j * LANES)
                store(y + i * ldy + c + j * LANES, vmin(high, vmax(low, acc[i][j])))
            else:
                if residual != NULL:
                    acc[i][j] += load_n(residual + i * ldr + c, n)
                store_n(y + i * ldy + c, vmin(high, vmax(low, acc[i][j])), n)


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
                m, DW_NV_FEW, scattered, True, taps, pixels, steps, c, LANES, w, y, ldy, residual,
                ldr, low, high,
            )
            w += DW_NV_FEW * block
            c += DW_NV_FEW * LANES
    while c + DW_NV * LANES <= channels:
        dwconv_block(
            m, DW_NV, scattered, True, taps, pixels, steps, c, LANES, w, y, ldy, residual, ldr,
            low, high,
        )
        w += DW_NV * block
        c += DW_NV * LANES
    while c + LANES <= channels:
        dwconv_block(
            m, 1, scattered, True, taps, pixels, steps, c, LANES, w, y, ldy, residual, ldr, low,
            high,
        )
        w += block
        c += LANES
    if c < channels:
        dwconv_block(
            m, 1, scattered, False, taps, pixels, steps, c, channels - c, w, y, ldy, residual, ldr,
            low, high,
        )


# Windows of 3, 5 or 7 columns that follow each other in a row: a pixel is loaded once for all
# windows that see it.

cdef inline const float* dw_column(
    int kw, int s, int j, bint whole, const float* pixel, Py_ssize_t step, long n,
    const vf32* tap, vf32* acc,
) noexcept nogil:
    """Add column j of a row of pixels to all windows that see it; return the next one."""
    cdef vf32 x
    cdef int v
    if j >= (DW_ROW - 1) * s + kw:
        return pixel
    x = load(pixel) if whole else load_n(pixel, n)
    for v in range(kw):
        # It is column v of the window of pixel (j - v) / s, if there is one.
        if j >= v and (j - v) % s == 0 and j - v < DW_ROW * s:
            acc[(j - v) // s] += x * tap[v]
    return pixel + step


cdef inline void dwrow_block(
    int kw, int s, bint whole, Py_ssize_t kh, const float* const* rows, const Py_ssize_t* steps,
    Py_ssize_t c, long n, const float* w, float* y, Py_ssize_t ldy, const float* residual,
    Py_ssize_t ldr, vf32 low, vf32 high,
) noexcept nogil:
    """DW_ROW pixels of one vector of channels, of which n count unless it is `whole`."""
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
        # One call for each column, since compilers do not unroll a loop of so many.
        pixel = dw_column(kw, s, 0, whole, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 1, whole, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 2, whole, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 3, whole, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 4, whole, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 5, whole, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 6, whole, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 7, whole, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 8, whole, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 9, whole, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 10, whole, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 11, whole, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 12, whole, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 13, whole, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 14, whole, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 15, whole, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 16, whole, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 17, whole, pixel, steps[u], n, &tap[0], &acc[0])
        pixel = dw_column(kw, s, 18, whole, pixel, steps[u], n, &tap[0], &acc[0])
    for i in range(DW_ROW):
        if whole:
            if residual != NULL:
                acc[i] += load(residual + i * ldr + c)
            store(y + i * ldy + c, vmin(high, vmax(low, acc[i])))
        else:
            if residual != NULL:
                acc[i] += load_n(residual + i * ldr + c, n)
            store_n(y + i * ldy + c, vmin(high, vmax(low, acc[i])), n)


cdef inline void dwrow_pixels "kp_dwrow_pixels"(
    int kw, int s, Py_ssize_t kh, Py_ssize_t channels, const float* const* rows,
    const Py_ssize_t* steps, const float* w, float* y, Py_ssize_t ldy, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    cdef vf32 low = splat(lo), high = splat(hi)
    cdef Py_ssize_t c = 0, block = (kh * kw + 1) * LANES
    while c + LANES <= channels:
        dwrow_block(
            kw, s, True, kh, rows, steps, c, LANES, w, y, ldy, residual, ldr, low, high
        )
        w += block
        c += LANES
    if c < channels:
        dwrow_block(
            kw, s, False, kh, rows, steps, c, channels - c, w, y, ldy, residual, ldr, low, high
        )


cdef void fill_dwconv(kernels_t* k) noexcept:
    # DW_NV sums for each pixel have to fit the registers.
    k.dw_m = 8 if REGISTERS == 32 else 4
    enter_dwconv(k.f32_dwconv)
    enter_dwrow(&k.f32_dwrow[0][0], MAX_DW_STEP + 1)
