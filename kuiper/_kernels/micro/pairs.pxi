# Products of bfloat16 (simd/pair_tile.h), and what becomes of their sums.

from libc.math cimport INFINITY
from libc.string cimport memcpy

from kuiper._kernels.micro.table cimport bf16_gemm_fn, sums_end_t

cdef extern from "_kernels/simd/pair_tile.h" nogil:
    enum:
        PAIR_COLUMNS "KP_PAIR_COLUMNS"
        PAIR_ROWS "KP_PAIR_ROWS"
        PAIRS_ARE_NATIVE "KP_PAIRS_ARE_NATIVE"
    void enter_pairs "kp_enter_pairs"(bf16_gemm_fn* table) noexcept
    double bf16_multiply_adds "kp_pair_multiply_adds"(Py_ssize_t rounds, float* sink) noexcept

cdef extern from "_kernels/simd/keep_sums.h" nogil:
    void keep_sums "kp_keep_sums"(Py_ssize_t rows, float* panel) noexcept


cdef inline void add_residual_rows(
    Py_ssize_t m, float* sums, Py_ssize_t ld, Py_ssize_t n, const void* residual, Py_ssize_t ldr,
    bint in_bfloat16,
) noexcept nogil:
    """sums[i, j] += residual[i, j]"""
    cdef const bfloat16_t* halves = <const bfloat16_t*> residual
    cdef const float* floats_of_r = <const float*> residual
    cdef Py_ssize_t i, j
    cdef long some
    cdef vf32 r
    for i in range(m):
        j = 0
        while j < n:
            some = min(<Py_ssize_t> LANES, n - j)
            if in_bfloat16:
                r = load_bf16(halves + j) if some == LANES else load_bf16_n(halves + j, some)
            else:
                r = load(floats_of_r + j) if some == LANES else load_n(floats_of_r + j, some)
            store(sums + j, load(sums + j) + r)
            j += LANES
        sums += ld
        halves += ldr
        floats_of_r += ldr


cdef inline void store_sums(
    Py_ssize_t m, const float* sums, Py_ssize_t ld, void* y, Py_ssize_t ldy, Py_ssize_t n,
    bint to_bfloat16,
) noexcept nogil:
    cdef bfloat16_t* halves = <bfloat16_t*> y
    cdef float* wide = <float*> y
    cdef Py_ssize_t i, j
    for i in range(m):
        j = 0
        while j + LANES <= n:
            if to_bfloat16:
                store_bf16(halves + j, load(sums + j))
            else:
                store(wide + j, load(sums + j))
            j += LANES
        if j < n:
            if to_bfloat16:
                store_bf16_n(halves + j, load(sums + j), rest_of(n - j))
            else:
                store_n(wide + j, load(sums + j), rest_of(n - j))
        sums += ld
        halves += ldy
        wide += ldy


cdef void end_float_sums "kp_end_float_sums"(
    Py_ssize_t m, float* sums, void* y, Py_ssize_t ldy, Py_ssize_t n, const void* residual,
    Py_ssize_t ldr, const sums_end_t* end,
) noexcept nogil:
    """Turn sums (m, n rounded up to vectors) into y, as sums_end_t says; they are overwritten.

    Functions run over all rows at once, to hide their latency.
    """
    cdef Py_ssize_t ld = (n + LANES - 1) // LANES * LANES, i
    cdef vf32 low = splat(end.lo), high = splat(end.hi)
    if residual != NULL and end.residual_first:
        add_residual_rows(m, sums, ld, n, residual, ldr, end.residual_in_bfloat16)
    i = 0 if end.lo > -INFINITY or end.hi < INFINITY else m * ld
    while i < m * ld:
        store(sums + i, vmin(high, vmax(low, load(sums + i))))
        i += LANES
    if end.pre != NULL:
        end.pre(m * ld, sums, sums, end.pre_p0, end.pre_p1)
    if residual != NULL and not end.residual_first:
        add_residual_rows(m, sums, ld, n, residual, ldr, end.residual_in_bfloat16)
    if end.post != NULL:
        end.post(m * ld, sums, sums, end.post_p0, end.post_p1)
    store_sums(m, sums, ld, y, ldy, n, end.to_bfloat16)


cdef void bf16_pack(
    Py_ssize_t taps, Py_ssize_t channels, const float* panel, const float* factors,
    Py_ssize_t step, void* pairs,
) noexcept nogil:
    cdef bfloat16_t* out = <bfloat16_t*> (<float*> pairs + PAIR_COLUMNS)
    cdef Py_ssize_t t, c
    cdef vf32 first, second
    cdef int j
    memcpy(pairs, panel, PAIR_COLUMNS * sizeof(float))
    for t in range(taps):
        c = 0
        while c < channels:
            panel += PAIR_COLUMNS
            for j in range(2):
                first, second = load(panel + j * LANES), splat(0.0)
                if c + 1 < channels:
                    second = load(panel + PAIR_COLUMNS + j * LANES)
                if factors != NULL:
                    first = rounded(first * splat(factors[c * step]))
                    if c + 1 < channels:
                        second = rounded(second * splat(factors[(c + 1) * step]))
                store_pairs(out, first, second)
                out += 2 * LANES
            if c + 1 < channels:
                panel += PAIR_COLUMNS
            c += 2


cdef void f32_to_bf16(Py_ssize_t n, const float* x, bfloat16_t* y) noexcept nogil:
    cdef Py_ssize_t i = 0
    while i + LANES <= n:
        store_bf16(y + i, load(x + i))
        i += LANES
    if i < n:
        store_bf16_n(y + i, load_n(x + i, rest_of(n - i)), rest_of(n - i))


cdef void fill_pairs(kernels_t* k) noexcept:
    k.f32_to_bf16 = f32_to_bf16
    k.bf16_end = end_float_sums
    k.bf16_keep_sums = keep_sums
    k.bf16_pack = bf16_pack
    k.pair_mr = PAIR_ROWS
    k.pairs_are_native = PAIRS_ARE_NATIVE
    k.pair_rate = 4 if PAIRS_ARE_NATIVE else 2
    k.bf16_gemm[0] = NULL
    enter_pairs(k.bf16_gemm)
    k.bf16_multiply_adds = bf16_multiply_adds
