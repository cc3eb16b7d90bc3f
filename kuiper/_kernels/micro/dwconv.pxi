# Depthwise convolution: a filter per channel, so vectors run across channels.

from libc.stdint cimport int32_t, uint8_t

from kuiper._kernels.micro.table cimport (
    DW_ROW, MAX_DW_KW, MAX_DW_M, MAX_DW_STEP, bf16_dwconv_fn, dwconv_fn, dwrow_fn, sums_end_t,
    u8_dwconv_fn, u8_dwrow_fn,
)

cdef extern from "_kernels/simd/heights.h" nogil:
    void enter_dwconv "kp_enter_dwconv"(dwconv_fn* table) noexcept
    void enter_dwrow "kp_enter_dwrow"(dwrow_fn* table, int n_steps) noexcept
    void enter_narrow_dwconv "kp_enter_narrow_dwconv"(bf16_dwconv_fn* table) noexcept
    void enter_narrow_dwrow "kp_enter_narrow_dwrow"(bf16_dwconv_fn* table, int n_steps) noexcept
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


# Adjacent windows of 3, 5 or 7 columns: a pixel is loaded once for all windows that contain it.

# The elements of pixels.  Two vectors of bfloat16 are loaded at once and widened to even and odd
# channels, by one instruction each.
cdef enum:
    DW_FLOATS
    DW_BYTES
    DW_HALVES
    DW_EVEN_HALVES
    DW_ODD_HALVES


cdef inline vf32 dw_pixel(int kind, const char* pixel, long n) noexcept nogil:
    """The first n channels of one vector; `kind` is a constant."""
    if kind == DW_BYTES:
        return load_bytes(<const uint8_t*> pixel, n)
    if kind == DW_HALVES:
        return load_bf16_first(<const bfloat16_t*> pixel, n)
    if kind == DW_EVEN_HALVES:
        return first_of_pairs(load_pairs(<const bfloat16_t*> pixel))
    if kind == DW_ODD_HALVES:
        return second_of_pairs(load_pairs(<const bfloat16_t*> pixel))
    return load_first(<const float*> pixel, n)


cdef inline const char* dw_column(
    int kind, int kw, int s, int j, const char* pixel, Py_ssize_t step, long n,
    const vf32* tap, vf32* acc,
) noexcept nogil:
    """Add column j of a row of pixels to all windows that contain it; return the next pixel."""
    cdef vf32 x
    cdef int v
    if j >= (DW_ROW - 1) * s + kw:
        return pixel
    x = dw_pixel(kind, pixel, n)
    for v in range(kw):
        # Column v of the window of output pixel (j - v) / s, if that is one.
        if j >= v and (j - v) % s == 0 and j - v < DW_ROW * s:
            acc[(j - v) // s] += x * tap[v]
    return pixel + step


cdef inline void dwrow_sums(
    int kind, int kw, int s, Py_ssize_t kh, const char* const* rows, const Py_ssize_t* steps,
    Py_ssize_t first, Py_ssize_t c, long n, const float* w, vf32* acc,
) noexcept nogil:
    """Sum DW_ROW windows, from number `first` on, of the first n channels of one vector.

    w: first values, then taps.

    The sums of bytes are exact: they are integers below 2^24.
    """
    cdef vf32[MAX_DW_KW] tap
    cdef const char* pixel
    cdef Py_ssize_t u, step, size = 2
    cdef int i, v
    if kind == DW_BYTES:
        size = 1
    elif kind == DW_FLOATS:
        size = sizeof(float)
    for i in range(DW_ROW):
        acc[i] = load(w)
    for u in range(kh):
        for v in range(kw):
            w += LANES
            tap[v] = load(w)
        step = steps[u] * size
        pixel = rows[u] + first * s * step + c * size
        # One call per column: compilers do not unroll a loop of 19.
        pixel = dw_column(kind, kw, s, 0, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 1, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 2, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 3, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 4, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 5, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 6, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 7, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 8, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 9, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 10, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 11, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 12, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 13, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 14, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 15, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 16, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 17, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 18, pixel, step, n, &tap[0], acc)


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


# The same from images in bfloat16, to bfloat16 or float32.

cdef inline bint ends_in_registers(const void* residual, const sums_end_t* end) noexcept nogil:
    """Tell whether results are clamped, after a residual in bfloat16 if any, to bfloat16."""
    return end.to_bfloat16 and end.pre == NULL and end.post == NULL and (
        residual == NULL or (end.residual_first and end.residual_in_bfloat16)
    )


cdef inline const void* residual_of(
    const void* residual, Py_ssize_t c, const sums_end_t* end
) noexcept nogil:
    if residual == NULL:
        return NULL
    return <const char*> residual + c * (2 if end.residual_in_bfloat16 else 4)


cdef inline void end_zipped(
    int m, const vf32* even, const vf32* odd, Py_ssize_t c, void* y, Py_ssize_t ldy,
    const void* residual, Py_ssize_t ldr, const sums_end_t* end,
) noexcept nogil:
    """End the sums of m pixels and two vectors of channels."""
    cdef float[MAX_DW_M * 2 * LANES] sums
    cdef vf32 low, high, first, second
    cdef vi32 pairs
    cdef Py_ssize_t size
    cdef int i
    residual = residual_of(residual, c, end)
    if ends_in_registers(residual, end):
        low, high = splat(end.lo), splat(end.hi)
        for i in range(m):
            first, second = even[i], odd[i]
            if residual != NULL:
                pairs = load_pairs(<const bfloat16_t*> residual + i * ldr)
                first += first_of_pairs(pairs)
                second += second_of_pairs(pairs)
            store_zipped_bf16(
                <bfloat16_t*> y + i * ldy + c, vmin(high, vmax(low, first)),
                vmin(high, vmax(low, second)),
            )
        return
    for i in range(m):
        store_zipped(&sums[i * 2 * LANES], even[i], odd[i])
    size = 2 if end.to_bfloat16 else 4
    end_float_sums(m, &sums[0], <char*> y + c * size, ldy, 2 * LANES, residual, ldr, end)


cdef inline void end_vectors(
    int m, const vf32* acc, Py_ssize_t c, long n, void* y, Py_ssize_t ldy, const void* residual,
    Py_ssize_t ldr, const sums_end_t* end,
) noexcept nogil:
    """End the sums of m pixels and the first n channels of one vector."""
    cdef float[MAX_DW_M * LANES] sums
    cdef vf32 low, high, v
    cdef Py_ssize_t size = 2 if end.to_bfloat16 else 4
    cdef int i
    residual = residual_of(residual, c, end)
    if ends_in_registers(residual, end):
        low, high = splat(end.lo), splat(end.hi)
        for i in range(m):
            v = acc[i]
            if residual != NULL:
                v += load_bf16_first(<const bfloat16_t*> residual + i * ldr, n)
            store_bf16_first(<bfloat16_t*> y + i * ldy + c, vmin(high, vmax(low, v)), n)
        return
    for i in range(m):
        store(&sums[i * LANES], acc[i])
    end_float_sums(m, &sums[0], <char*> y + c * size, ldy, n, residual, ldr, end)


cdef inline void narrow_dwconv_pairs(
    int m, Py_ssize_t taps, const bfloat16_t* const* pixels, Py_ssize_t c, const float* w,
    vf32* even, vf32* odd,
) noexcept nogil:
    """Sum all taps of m pixels and two vectors of channels."""
    cdef Py_ssize_t t, block = (taps + 1) * LANES
    cdef vf32 first = load(w), second = load(w + block)
    cdef vi32 pairs
    cdef int i
    for i in range(m):
        even[i], odd[i] = first, second
    for t in range(taps):
        w += LANES
        first, second = load(w), load(w + block)
        for i in range(m):
            pairs = load_pairs(pixels[i] + c)
            even[i] += first_of_pairs(pairs) * first
            odd[i] += second_of_pairs(pairs) * second
        pixels += m


cdef inline void narrow_dwconv_vector(
    int m, Py_ssize_t taps, const bfloat16_t* const* pixels, Py_ssize_t c, long n, const float* w,
    vf32* acc,
) noexcept nogil:
    """Sum all taps of m pixels and the first n channels of one vector."""
    cdef vf32 tap = load(w)
    cdef Py_ssize_t t
    cdef int i
    for i in range(m):
        acc[i] = tap
    for t in range(taps):
        w += LANES
        tap = load(w)
        for i in range(m):
            acc[i] += load_bf16_first(pixels[i] + c, n) * tap
        pixels += m


cdef inline void narrow_dwconv_pixels "kp_narrow_dwconv_pixels"(
    int m, Py_ssize_t taps, Py_ssize_t channels, const bfloat16_t* const* pixels,
    const Py_ssize_t* steps, const float* w, void* y, Py_ssize_t ldy, const void* residual,
    Py_ssize_t ldr, const sums_end_t* end,
) noexcept nogil:
    cdef vf32[MAX_DW_M] even
    cdef vf32[MAX_DW_M] odd
    cdef Py_ssize_t c = 0, block = (taps + 1) * LANES
    while c + 2 * LANES <= channels:
        narrow_dwconv_pairs(m, taps, pixels, c, w, &even[0], &odd[0])
        end_zipped(m, &even[0], &odd[0], c, y, ldy, residual, ldr, end)
        w += 2 * block
        c += 2 * LANES
    if c + LANES <= channels:
        narrow_dwconv_vector(m, taps, pixels, c, LANES, w, &even[0])
        end_vectors(m, &even[0], c, LANES, y, ldy, residual, ldr, end)
        w += block
        c += LANES
    if c < channels:
        narrow_dwconv_vector(m, taps, pixels, c, rest_of(channels - c), w, &even[0])
        end_vectors(m, &even[0], c, rest_of(channels - c), y, ldy, residual, ldr, end)


cdef inline void narrow_dwrow_pixels "kp_narrow_dwrow_pixels"(
    int kw, int s, Py_ssize_t kh, Py_ssize_t channels, const bfloat16_t* const* pixels,
    const Py_ssize_t* steps, const float* w, void* y, Py_ssize_t ldy, const void* residual,
    Py_ssize_t ldr, const sums_end_t* end,
) noexcept nogil:
    cdef vf32[DW_ROW] even
    cdef vf32[DW_ROW] odd
    cdef const char* const* rows = <const char* const*> pixels
    cdef Py_ssize_t c = 0, block = (kh * kw + 1) * LANES
    while c + 2 * LANES <= channels:
        dwrow_sums(DW_EVEN_HALVES, kw, s, kh, rows, steps, 0, c, LANES, w, &even[0])
        dwrow_sums(DW_ODD_HALVES, kw, s, kh, rows, steps, 0, c, LANES, w + block, &odd[0])
        end_zipped(DW_ROW, &even[0], &odd[0], c, y, ldy, residual, ldr, end)
        w += 2 * block
        c += 2 * LANES
    if c + LANES <= channels:
        dwrow_sums(DW_HALVES, kw, s, kh, rows, steps, 0, c, LANES, w, &even[0])
        end_vectors(DW_ROW, &even[0], c, LANES, y, ldy, residual, ldr, end)
        w += block
        c += LANES
    if c < channels:
        dwrow_sums(
            DW_HALVES, kw, s, kh, rows, steps, 0, c, rest_of(channels - c), w, &even[0]
        )
        end_vectors(DW_ROW, &even[0], c, rest_of(channels - c), y, ldy, residual, ldr, end)


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
    enter_narrow_dwconv(k.bf16_dwconv)
    enter_narrow_dwrow(&k.bf16_dwrow[0][0], MAX_DW_STEP + 1)
    enter_byte_dwconv(k.u8_dwconv)
    enter_byte_dwrow(&k.u8_dwrow[0][0], MAX_DW_STEP + 1)
