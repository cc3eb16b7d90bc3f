# Depthwise convolution: a filter per channel, so vectors run across channels.

from libc.stdint cimport int32_t, uint8_t

from kuiper._kernels.micro.table cimport (
    DW_ROW, MAX_DW_M, MAX_DW_STEP, dwconv_fn, dwrow_fn, sums_end_t, u8_dwconv_fn, u8_dwrow_fn,
)

cdef extern from "_kernels/simd/heights.h" nogil:
    void enter_dwconv "kp_enter_dwconv"(dwconv_fn* table) noexcept
    void enter_dwrow "kp_enter_dwrow"(dwrow_fn* table, int n_steps) noexcept
    void enter_byte_dwconv "kp_enter_byte_dwconv"(u8_dwconv_fn* table) noexcept
    void enter_byte_dwrow "kp_enter_byte_dwrow"(u8_dwrow_fn* table, int n_steps) noexcept

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


# Adjacent windows; see dwrow.pxi.

cdef inline void dwrow_block(
    int kw, int s, Py_ssize_t kh, const float* const* rows, const Py_ssize_t* steps, Py_ssize_t c,
    long n, const float* w, float* y, Py_ssize_t ldy, const float* residual, Py_ssize_t ldr,
    vf32 low, vf32 high,
) noexcept nogil:
    """DW_ROW pixels of the first n channels of one vector."""
    cdef vf32[DW_ROW] acc
    cdef int i
    dwrow_sums(DW_FLOATS, kw, s, kh, <const char* const*> rows, steps, 0, c, n, w, &acc[0])
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


# The same for bytes, with exact sums, which pass through memory to their end.

cdef enum:
    BYTE_HEADS = 3  # rows before the taps: biases, scales, first values of the sums


cdef inline void end_bytes(
    int m, const vf32* acc, Py_ssize_t c, long n, const float* w, const float* factor, void* y,
    Py_ssize_t ldy, const void* residual, Py_ssize_t ldr, const sums_end_t* end,
) noexcept nogil:
    """End the sums of m pixels of the first n channels of one vector."""
    cdef int32_t[MAX_DW_M * LANES] sums
    cdef int i
    for i in range(m):
        store_ints(&sums[i * LANES], nearest_int(acc[i]))
    y = <char*> y + c * (1 if end.to_bytes else <Py_ssize_t> sizeof(float))
    if residual != NULL:
        residual = <const char*> residual + (
            c * (1 if end.residual_in_bytes else <Py_ssize_t> sizeof(float))
        )
    end_sums(m, &sums[0], w + LANES, w, factor, y, ldy, n, residual, ldr, end)


cdef inline void byte_dwconv_block(
    int m, Py_ssize_t taps, const uint8_t* const* pixels, Py_ssize_t c, long n, const float* w,
    vf32* acc,
) noexcept nogil:
    cdef vf32 tap = load(w)
    cdef Py_ssize_t t
    cdef int i
    for i in range(m):
        acc[i] = tap
    for t in range(taps):
        w += LANES
        tap = load(w)
        for i in range(m):
            acc[i] += load_bytes(pixels[t * m + i] + c, n) * tap


cdef inline void byte_dwconv_pixels "kp_byte_dwconv_pixels"(
    int m, Py_ssize_t taps, Py_ssize_t channels, const uint8_t* const* pixels,
    const void* weights, const float* factor, void* y, Py_ssize_t ldy, const void* residual,
    Py_ssize_t ldr, const sums_end_t* end,
) noexcept nogil:
    cdef const float* w = <const float*> weights
    cdef vf32[MAX_DW_M] acc
    cdef Py_ssize_t c = 0
    while c + LANES <= channels:
        byte_dwconv_block(m, taps, pixels, c, LANES, w + (BYTE_HEADS - 1) * LANES, &acc[0])
        end_bytes(m, &acc[0], c, LANES, w, factor, y, ldy, residual, ldr, end)
        w += (BYTE_HEADS + taps) * LANES
        c += LANES
    if c < channels:
        byte_dwconv_block(
            m, taps, pixels, c, rest_of(channels - c), w + (BYTE_HEADS - 1) * LANES, &acc[0]
        )
        end_bytes(m, &acc[0], c, rest_of(channels - c), w, factor, y, ldy, residual, ldr, end)


cdef inline void byte_dwrow_pixels "kp_byte_dwrow_pixels"(
    int kw, int s, Py_ssize_t kh, Py_ssize_t channels, Py_ssize_t count,
    const uint8_t* const* rows, const Py_ssize_t* steps, const void* weights, const float* factor,
    void* y, Py_ssize_t ldy, const void* residual, Py_ssize_t ldr, const sums_end_t* end,
) noexcept nogil:
    cdef vf32[DW_ROW] acc
    cdef Py_ssize_t i = 0, c, first, y_step = ldy if end.to_bytes else ldy * <int> sizeof(float)
    cdef Py_ssize_t r_step = ldr if end.residual_in_bytes else ldr * <int> sizeof(float)
    cdef const char* const* lines = <const char* const*> rows
    cdef const float* w
    cdef const char* r = NULL
    cdef char* out
    while i < count:
        # The last windows may overlap earlier ones and store the same values again.
        first = min(i, count - DW_ROW)
        w = <const float*> weights
        out = <char*> y + first * y_step
        if residual != NULL:
            r = <const char*> residual + first * r_step
        c = 0
        while c + LANES <= channels:
            dwrow_sums(
                DW_BYTES, kw, s, kh, lines, steps, first, c, LANES, w + (BYTE_HEADS - 1) * LANES,
                &acc[0],
            )
            end_bytes(DW_ROW, &acc[0], c, LANES, w, factor, out, ldy, r, ldr, end)
            w += (BYTE_HEADS + kh * kw) * LANES
            c += LANES
        if c < channels:
            dwrow_sums(
                DW_BYTES, kw, s, kh, lines, steps, first, c, rest_of(channels - c),
                w + (BYTE_HEADS - 1) * LANES, &acc[0],
            )
            end_bytes(DW_ROW, &acc[0], c, rest_of(channels - c), w, factor, out, ldy, r, ldr, end)
        i += DW_ROW


cdef void fill_dwconv(kernels_t* k) noexcept:
    # DW_NV sums per pixel have to fit the registers.
    k.dw_m = 8 if REGISTERS == 32 else 4
    enter_dwconv(k.f32_dwconv)
    enter_dwrow(&k.f32_dwrow[0][0], MAX_DW_STEP + 1)
    enter_byte_dwconv(k.u8_dwconv)
    enter_byte_dwrow(&k.u8_dwrow[0][0], MAX_DW_STEP + 1)
