# The register tile of every dense product: convolution, Linear, matmul.
#
# m x NV vectors of accumulators stay in registers over the whole sum, so FMA units and not loads
# limit the tile.  Rows of A are read without packing, through one pointer per row and tap
# (channels-last pixels; padding points to a row of zeros); B comes in packed panels.

from kuiper._kernels.micro.table cimport LINE_FLOATS, MAX_MR, ROW_PANELS, SOLE_TILE, gemm_fn

cdef enum:
    NV = 2  # vectors per row of the tile; 1 if at most half of the panel's columns are used
    # Heights of sole tiles, which are common for Winograd's small planes.  Other heights do without
    # the second copy of the loop.
    MIN_SOLE = 8
    MAX_SOLE = 12


cdef extern from "_kernels/simd/tile.h" nogil:
    void tile_start "kp_tile_start"(int m, int nv, vf32 (*acc)[NV], const float* bias) noexcept
    void tile_end "kp_tile_end"(
        int m, int nv, vf32 (*acc)[NV], int first, float* y, Py_ssize_t ldy, Py_ssize_t n,
        const float* residual, Py_ssize_t ldr, float lo, float hi,
    ) noexcept

cdef extern from "_kernels/simd/heights.h" nogil:
    void enter_gemm "kp_enter_gemm"(gemm_fn* table) noexcept


cdef inline void tile_terms(
    int m, int nv, int lines, const float** row, Py_ssize_t k, const float* panel,
    Py_ssize_t distance, vf32 (*acc)[NV],
) noexcept nogil:
    """Add the products of element k of each row; prefetch `lines` cache lines of the panel."""
    cdef vf32[NV] b
    cdef vf32 a
    cdef int i, j
    for j in range(lines):
        prefetch(panel + distance + j * LINE_FLOATS)
    for j in range(nv):
        b[j] = load(panel + j * LANES)
    for i in range(m):
        a = splat(row[i][k])
        if nv == 1:  # the FMA takes b from memory
            acc[i][0] += a * b[0]
        else:
            for j in range(nv):
                acc[i][j] = accumulate(acc[i][j], a, b[j])


cdef inline const float* tile_products(
    int m, int nv, int lines, Py_ssize_t kc, const float** row, const float* panel,
    Py_ssize_t distance, vf32 (*acc)[NV],
) noexcept nogil:
    """Add the products of kc elements of each row; return the panel after them.

    With 8 lanes an iteration takes two elements: such a tile has so few products that the loop
    counter would be every tenth instruction.
    """
    cdef Py_ssize_t k = 0
    if LANES == 8:
        while k + 2 <= kc:
            tile_terms(m, nv, lines, row, k, panel, distance, acc)
            tile_terms(m, nv, lines, row, k + 1, panel + NV * LANES, distance, acc)
            panel += 2 * NV * LANES
            k += 2
    while k < kc:
        tile_terms(m, nv, lines, row, k, panel, distance, acc)
        panel += NV * LANES
        k += 1
    return panel


cdef inline void gemm_tile(
    int m, int nv, bint is_sole, Py_ssize_t taps, Py_ssize_t kc, const float* const* rows,
    const float* panel, Py_ssize_t distance, float* y, Py_ssize_t ldy, Py_ssize_t n,
    const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    """The tile; `m`, `nv` and `is_sole` are constants, so loops unroll.

    A sole tile prefetches all lines of the next panel.
    """
    cdef vf32[MAX_MR][NV] acc
    cdef (const float*)[MAX_MR] row
    cdef Py_ssize_t t
    cdef int i
    set_aside(&lo)
    set_aside(&hi)
    tile_start(m, nv, acc, panel)
    panel += NV * LANES
    for t in range(taps):
        for i in range(m):
            row[i] = rows[i]
        rows += m
        panel = tile_products(m, nv, 2 if is_sole else 1, kc, row, panel, distance, acc)
    tile_end(m, nv, acc, 0, y, ldy, n, residual, ldr, lo, hi)


cdef inline float element(
    const float* x, const float* fifth, const float* tenth, int i, Py_ssize_t step, Py_ssize_t k
) noexcept nogil:
    """Element k of row i; rows are `step` bytes apart.

    With three base pointers, i % 5 * step is part of the address of a load.
    """
    cdef const char* base = <const char*> (x if i < 5 else fifth if i < 10 else tenth)
    return (<const float*> (base + i % 5 * step))[k]


cdef inline void strided_tile(
    int m, int nv, Py_ssize_t taps, Py_ssize_t kc, const float* const* runs, Py_ssize_t step,
    int first, const float* panel, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    """As gemm_tile, with the same bits, for rows that are `step` floats apart."""
    cdef vf32[MAX_MR][NV] acc
    cdef vf32[NV] b
    cdef vf32 a
    cdef const float* x
    cdef const float* fifth
    cdef const float* tenth
    cdef Py_ssize_t t, k
    cdef int i, j
    set_aside(&lo)
    set_aside(&hi)
    tile_start(m, nv, acc, panel)
    panel += NV * LANES
    for t in range(taps):
        x = runs[t]
        fifth, tenth = x + 5 * step, x + 10 * step
        for k in range(kc):
            for j in range(nv):
                b[j] = load(panel + j * LANES)
            panel += NV * LANES
            for i in range(m):
                a = splat(element(x, fifth, tenth, i, 4 * step, k))
                if nv == 1:
                    acc[i][0] += a * b[0]
                else:
                    for j in range(nv):
                        acc[i][j] = accumulate(acc[i][j], a, b[j])
    tile_end(m, nv, acc, first, y, ldy, n, residual, ldr, lo, hi)


cdef void f32_gemm_row(
    Py_ssize_t kc, const float* row, const float* panels, Py_ssize_t stride, float* y
) noexcept nogil:
    """One row by ROW_PANELS panels: the sums of one panel alone would wait for the FMA latency."""
    cdef vf32[ROW_PANELS][NV] acc
    cdef vf32 a
    cdef Py_ssize_t k
    cdef int q, j
    for q in range(ROW_PANELS):
        for j in range(NV):
            acc[q][j] = load(panels + q * stride + j * LANES)
    for k in range(kc):
        a = splat(row[k])
        panels += NV * LANES
        for q in range(ROW_PANELS):
            for j in range(NV):
                acc[q][j] += a * load(panels + q * stride + j * LANES)
    for q in range(ROW_PANELS):
        for j in range(NV):
            store(y + (q * NV + j) * LANES, acc[q][j])


cdef inline int tallest() noexcept nogil:
    """Return the height whose accumulators, NV panel vectors and one broadcast fit the registers.

    On Arm 14 would fit as well, but clang then spills some accumulators.
    """
    return 14 if LANES == 16 else 12 if REGISTERS == 32 else 6


cdef void f32_gemm_strided(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* runs, Py_ssize_t step, int first,
    const float* panel, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    if n > LANES:
        strided_tile(
            tallest(), 2, taps, kc, runs, step, first, panel, y, ldy, n, residual, ldr, lo, hi
        )
    else:
        strided_tile(
            tallest(), 1, taps, kc, runs, step, first, panel, y, ldy, n, residual, ldr, lo, hi
        )


cdef inline void gemm_rows "kp_gemm_rows"(
    int m, Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    Py_ssize_t distance, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    """The tile of constant height `m`, as wide as `n` needs."""
    if n <= LANES:
        gemm_tile(m, 1, False, taps, kc, rows, panel, distance, y, ldy, n, residual, ldr, lo, hi)
    elif NV * LANES > LINE_FLOATS and MIN_SOLE <= m <= MAX_SOLE and distance & SOLE_TILE:
        gemm_tile(m, 2, True, taps, kc, rows, panel, distance, y, ldy, n, residual, ldr, lo, hi)
    else:
        gemm_tile(m, 2, False, taps, kc, rows, panel, distance, y, ldy, n, residual, ldr, lo, hi)


cdef void fill_gemm(kernels_t* k) noexcept:
    k.mr = tallest()
    k.nr = NV * LANES
    k.f32_gemm_strided = f32_gemm_strided
    k.f32_gemm_row = f32_gemm_row
    k.f32_gemm[0] = NULL
    enter_gemm(k.f32_gemm)
