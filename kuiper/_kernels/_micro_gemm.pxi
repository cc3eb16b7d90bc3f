# The register tile of every dense product: convolution, Linear, matmul.
#
# m x NV vectors of accumulators stay in registers over the whole reduction, so the tile is bound
# by the FMA units and not by loads.  Rows of A are read where they lie, through one pointer per row
# and tap (channels-last pixels; padding points to a row of zeros); B comes in packed panels.

from kuiper._kernels._table cimport MAX_MR

cdef enum:
    NV = 2  # vectors per row of the tile; a panel of which half is used takes a tile of one


cdef inline void gemm_tile(
    int m, int nv, Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    Py_ssize_t ahead, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    """The tile for a height `m` and width `nv` that the compiler knows, so that loops unroll."""
    cdef vf32[MAX_MR][NV] acc
    cdef vf32[NV] b
    cdef vf32 a, low = splat(lo), high = splat(hi)
    cdef (const float*)[MAX_MR] row
    cdef Py_ssize_t t, k
    cdef int i, j
    for j in range(nv):
        b[j] = load(panel + j * LANES)
    panel += NV * LANES
    for i in range(m):
        for j in range(nv):
            acc[i][j] = b[j]
    for t in range(taps):
        for i in range(m):
            row[i] = rows[i]
        rows += m
        for k in range(kc):
            prefetch(panel + ahead)
            for j in range(nv):
                b[j] = load(panel + j * LANES)
            panel += NV * LANES
            for i in range(m):
                a = splat(row[i][k])
                for j in range(nv):
                    acc[i][j] += a * b[j]
    for i in range(m):
        for j in range(nv):
            if n == nv * LANES or j < nv - 1:
                if residual != NULL:
                    acc[i][j] += load(residual + i * ldr + j * LANES)
                store(y + i * ldy + j * LANES, vmin(high, vmax(low, acc[i][j])))
            else:
                if residual != NULL:
                    acc[i][j] += load_n(residual + i * ldr + j * LANES, n - j * LANES)
                store_n(
                    y + i * ldy + j * LANES, vmin(high, vmax(low, acc[i][j])), n - j * LANES
                )


cdef void gemm_1(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    Py_ssize_t ahead, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    if n > LANES:
        gemm_tile(1, 2, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)
    else:
        gemm_tile(1, 1, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_2(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    Py_ssize_t ahead, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    if n > LANES:
        gemm_tile(2, 2, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)
    else:
        gemm_tile(2, 1, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_3(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    Py_ssize_t ahead, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    if n > LANES:
        gemm_tile(3, 2, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)
    else:
        gemm_tile(3, 1, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_4(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    Py_ssize_t ahead, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    if n > LANES:
        gemm_tile(4, 2, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)
    else:
        gemm_tile(4, 1, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_5(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    Py_ssize_t ahead, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    if n > LANES:
        gemm_tile(5, 2, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)
    else:
        gemm_tile(5, 1, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_6(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    Py_ssize_t ahead, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    if n > LANES:
        gemm_tile(6, 2, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)
    else:
        gemm_tile(6, 1, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_7(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    Py_ssize_t ahead, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    if n > LANES:
        gemm_tile(7, 2, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)
    else:
        gemm_tile(7, 1, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_8(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    Py_ssize_t ahead, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    if n > LANES:
        gemm_tile(8, 2, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)
    else:
        gemm_tile(8, 1, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_9(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    Py_ssize_t ahead, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    if n > LANES:
        gemm_tile(9, 2, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)
    else:
        gemm_tile(9, 1, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_10(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    Py_ssize_t ahead, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    if n > LANES:
        gemm_tile(10, 2, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)
    else:
        gemm_tile(10, 1, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_11(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    Py_ssize_t ahead, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    if n > LANES:
        gemm_tile(11, 2, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)
    else:
        gemm_tile(11, 1, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_12(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    Py_ssize_t ahead, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    if n > LANES:
        gemm_tile(12, 2, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)
    else:
        gemm_tile(12, 1, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_13(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    Py_ssize_t ahead, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    if n > LANES:
        gemm_tile(13, 2, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)
    else:
        gemm_tile(13, 1, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)


cdef void gemm_14(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    Py_ssize_t ahead, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    if n > LANES:
        gemm_tile(14, 2, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)
    else:
        gemm_tile(14, 1, taps, kc, rows, panel, ahead, y, ldy, n, residual, ldr, lo, hi)


cdef void fill_gemm(kernels_t* k) noexcept:
    # The tallest tile whose accumulators, NV panel vectors and one broadcast fit the registers.
    # (On Arm 14 would fit as well, but clang then keeps some of them in memory.)
    k.mr = 14 if LANES == 16 else 12 if REGISTERS == 32 else 6
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
