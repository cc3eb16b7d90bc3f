# Strassen's algorithm around the register tile: sums of rows before it, a chain of products whose
# partial sums are stored, sums of tiles after it.

from kuiper._kernels.micro.table cimport product_t

cdef extern from "_kernels/simd/tile.h" nogil:
    void tile_bias "kp_tile_bias"(int m, int nv, vf32 (*acc)[NV], const float* bias) noexcept
    void tile_add "kp_tile_add"(int m, int nv, vf32 (*acc)[NV], const float* tile) noexcept
    void tile_save "kp_tile_save"(int m, int nv, vf32 (*acc)[NV], float* tile) noexcept

cdef extern from "_kernels/simd/heights.h" nogil:
    void enter_chain "kp_enter_chain"(void* table) noexcept


cdef bint f32_strassen_sums(
    Py_ssize_t n, Py_ssize_t half, const float* const* up, const float* const* down, float* sums,
    Py_ssize_t row_stride, Py_ssize_t stride,
) noexcept nogil:
    cdef Py_ssize_t i, c
    cdef const float* x
    cdef const float* y
    cdef vf32 x1, y1, s0, s1, s2, s3
    # Zero times a sum is zero unless the sum is infinite or NaN.
    cdef vf32 checked = splat(0.0), zero = splat(0.0)
    for i in range(n):
        x = up[i]
        y = down[i]
        c = 0
        while c < half:
            x1, y1 = load(x + c), load(y + c)
            s0 = y1 + load(y + half + c)
            s1 = s0 - x1
            s2 = x1 - y1
            s3 = load(x + half + c) - s1
            store(sums + c, s0)
            store(sums + stride + c, s1)
            store(sums + 2 * stride + c, s2)
            store(sums + 3 * stride + c, s3)
            checked += s2 * zero
            checked += s3 * zero
            c += LANES
        sums += row_stride
    return reduce_add(checked) == 0


cdef inline void chain_rows "kp_chain_rows"(
    int m, int n_products, const void* products, Py_ssize_t taps, Py_ssize_t kc,
    Py_ssize_t distance, int first, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    """gemm_tile for a sum of products, adding and storing tiles between them."""
    cdef const product_t* product = <const product_t*> products
    cdef vf32[MAX_MR][NV] acc
    cdef (const float*)[MAX_MR] row
    cdef const float* const* rows
    cdef const float* panel
    cdef Py_ssize_t t
    cdef int i, q
    set_aside(&lo)
    set_aside(&hi)
    tile_start(m, NV, acc, product.panel)
    for q in range(n_products):
        if product.added != NULL:
            tile_add(m, NV, acc, product.added)
        panel, rows = product.panel, product.rows
        if q > 0 and q + 1 == n_products:
            tile_bias(m, NV, acc, panel)
        panel += NV * LANES
        for t in range(taps):
            for i in range(m):
                row[i] = rows[i]
            rows += m
            panel = tile_products(
                m, NV, 2 if NV * LANES > LINE_FLOATS else 1, kc, row, panel, distance, acc
            )
        if product.saved != NULL:
            tile_save(m, NV, acc, product.saved)
        product += 1
    if n <= LANES:
        tile_end(m, 1, acc, first, y, ldy, n, residual, ldr, lo, hi)
    else:
        tile_end(m, NV, acc, first, y, ldy, n, residual, ldr, lo, hi)


cdef void f32_tile_sum(
    int m, int first, Py_ssize_t n, const float* a, const float* b, const float* bias,
    const float* residual, Py_ssize_t ldr, float* y, Py_ssize_t ldy, float lo, float hi,
) noexcept nogil:
    cdef int i
    cdef Py_ssize_t j
    cdef vf32 low = splat(lo), high = splat(hi), value
    for i in range(first, m):
        j = 0
        while j < n:
            value = load(a + i * NV * LANES + j) + load(b + i * NV * LANES + j) + load(bias + j)
            store_result(
                y + i * ldy + j, value, residual, i * ldr + j, low, high, least(LANES, n - j)
            )
            j += LANES


cdef void fill_strassen(kernels_t* k) noexcept:
    k.f32_strassen_sums = f32_strassen_sums
    k.f32_tile_sum = f32_tile_sum
    k.f32_gemm_chain[0] = NULL
    enter_chain(<void*> k.f32_gemm_chain)
