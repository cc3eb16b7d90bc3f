# Depthwise convolution of images in bfloat16, to bfloat16 or float32.

from kuiper._kernels.micro.table cimport (
    DW_ROW, MAX_DW_M, MAX_DW_STEP, bf16_dwconv_fn, sums_end_t,
)

cdef extern from "_kernels/simd/narrow_depthwise.h" nogil:
    void enter_narrow_dwconv "kp_enter_narrow_dwconv"(bf16_dwconv_fn* table) noexcept
    void enter_narrow_dwrow "kp_enter_narrow_dwrow"(bf16_dwconv_fn* table, int n_steps) noexcept


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


cdef void fill_narrow_dwconv(kernels_t* k) noexcept:
    enter_narrow_dwconv(k.bf16_dwconv)
    enter_narrow_dwrow(&k.bf16_dwrow[0][0], MAX_DW_STEP + 1)
