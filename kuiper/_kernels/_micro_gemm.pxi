# The register tile of every dense product: convolution, Linear, matmul.
#
# m x NV vectors of accumulators stay in registers over the whole reduction, so the tile is bound by
# the FMA units and not by loads.  Rows of A are read where they lie, through one pointer per row and
# tap (channels-last pixels; padding points to a row of zeros); B comes in packed panels.

from kuiper._kernels._table cimport MAX_MR

cdef enum:
    NV = 2  # vectors per row of the tile


cdef inline void gemm_tile(
    int m, Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    float* y, Py_ssize_t ldy, Py_ssize_t n,
    const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    """The tile for a height `m` that the compiler knows, so that every loop over it unrolls."""
    cdef vf32[MAX_MR][NV] acc
    cdef vf32[NV] b
    cdef vf32 a, low = splat(lo), high = splat(hi)
    cdef (const float*)[MAX_MR] row
    cdef Py_ssize_t t, k
    cdef int i, j
    for j in range(NV):
        b[j] = load(panel + j * LANES)
    panel += NV * LANES
    for i in range(m):
        for j in range(NV):
            acc[i][j] = b[j]
    for t in range(taps):
        for i in range(m):
            row[i] = rows[i]
        rows += m
        for k in range(kc):
            for j in range(NV):
                b[j] = load(panel + j * LANES)
            panel += NV * LANES
            for i in range(m):
                a = splat(row[i][k])
                for j in range(NV):
                    acc[i][j] += a * b[j]
    if n == NV * LANES:
        if residual != NULL:
            for i in range(m):
                for j in range(NV):
                    acc[i][j] += load(residual + i * ldr + j * LANES)
        for i in range(m):
            for j in range(NV):
                store(y + i * ldy + j * LANES, vmin(high, vmax(low, acc[i][j])))
    else:
        gemm_edge(m, &acc[0][0], y, ldy, n, residual, ldr, low, high)


cdef inline void gemm_edge(
    int m, vf32* acc, float* y, Py_ssize_t ldy, Py_ssize_t n,
    const float* residual, Py_ssize_t ldr, vf32 low, vf32 high,
) noexcept nogil:
    """Store the first `n` columns of a tile whose panel is only partly used."""
    cdef Py_ssize_t first = n if n < LANES else LANES, second = n - LANES
    cdef vf32 v
    cdef int i
    for i in range(m):
        v = acc[i * NV]
        if residual != NULL:
            v += load_n(residual + i * ldr, first) if first < LANES else load(residual + i * ldr)
        v = vmin(high, vmax(low, v))
        if first < LANES:
            store_n(y + i * ldy, v, first)
        else:
            store(y + i * ldy, v)
        if second > 0:
            v = acc[i * NV + 1]
            if residual != NULL:
                v += load_n(residual + i * ldr + LANES, second)
            store_n(y + i * ldy + LANES, vmin(high, vmax(low, v)), second)


cdef void gemm_1(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel, float* y,
    Py_ssize_t ldy, Py_ssize_t n, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    gemm_tile(1, taps, kc, rows, panel, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_2(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel, float* y,
    Py_ssize_t ldy, Py_ssize_t n, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    gemm_tile(2, taps, kc, rows, panel, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_3(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel, float* y,
    Py_ssize_t ldy, Py_ssize_t n, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    gemm_tile(3, taps, kc, rows, panel, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_4(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel, float* y,
    Py_ssize_t ldy, Py_ssize_t n, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    gemm_tile(4, taps, kc, rows, panel, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_5(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel, float* y,
    Py_ssize_t ldy, Py_ssize_t n, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    gemm_tile(5, taps, kc, rows, panel, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_6(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel, float* y,
    Py_ssize_t ldy, Py_ssize_t n, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    gemm_tile(6, taps, kc, rows, panel, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_7(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel, float* y,
    Py_ssize_t ldy, Py_ssize_t n, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    gemm_tile(7, taps, kc, rows, panel, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_8(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel, float* y,
    Py_ssize_t ldy, Py_ssize_t n, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    gemm_tile(8, taps, kc, rows, panel, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_9(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel, float* y,
    Py_ssize_t ldy, Py_ssize_t n, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    gemm_tile(9, taps, kc, rows, panel, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_10(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel, float* y,
    Py_ssize_t ldy, Py_ssize_t n, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    gemm_tile(10, taps, kc, rows, panel, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_11(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel, float* y,
    Py_ssize_t ldy, Py_ssize_t n, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    gemm_tile(11, taps, kc, rows, panel, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_12(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel, float* y,
    Py_ssize_t ldy, Py_ssize_t n, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    gemm_tile(12, taps, kc, rows, panel, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_13(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel, float* y,
    Py_ssize_t ldy, Py_ssize_t n, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    gemm_tile(13, taps, kc, rows, panel, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_14(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel, float* y,
    Py_ssize_t ldy, Py_ssize_t n, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    gemm_tile(14, taps, kc, rows, panel, y, ldy, n, residual, ldr, lo, hi)



cdef void fill_gemm(kernels_t* k) noexcept:
    # The tallest tile whose accumulators, NV panel vectors and one broadcast fit the registers.
    k.mr = 14 if LANES == 16 else 6
    k.nr = NV * LANES
    k.gemm[0] = NULL
    k.gemm[1] = gemm_1
    k.gemm[2] = gemm_2
    k.gemm[3] = gemm_3
    k.gemm[4] = gemm_4
    k.gemm[5] = gemm_5
    k.gemm[6] = gemm_6
    k.gemm[7] = gemm_7
    k.gemm[8] = gemm_8
    k.gemm[9] = gemm_9
    k.gemm[10] = gemm_10
    k.gemm[11] = gemm_11
    k.gemm[12] = gemm_12
    k.gemm[13] = gemm_13
    k.gemm[14] = gemm_14
