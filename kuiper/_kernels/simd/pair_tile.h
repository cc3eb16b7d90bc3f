/* The register tile of products of bfloat16: m rows by 1 or 2 vectors of columns, sums in floats.

   One lane of a vector is one sum.  The pair of a lane are two terms of one column of B; the pair of
   a row of A is the same in every lane.  KP_PAIRS_ARE_NATIVE: one instruction adds both products;
   elsewhere pairs are widened by a shift and a mask.  KP_PAIR_ROWS is the number of rows whose sums,
   with two vectors of B, fit the registers.  In C for the unroll pragma of tile.h. */
#ifndef KUIPER_PAIR_TILE_H
#define KUIPER_PAIR_TILE_H

#include <Python.h>

#include "pair_end.h"

/* Two adjacent values of a row, as the bits of an integer; and the last one alone, before a 0. */
static inline int32_t kp_pair(const kp_bf16 *p) {
    int32_t pair;
    memcpy(&pair, p, 4);
    return pair;
}

#if KP_AVX512 && defined(__AVX512BF16__)

#define KP_PAIRS_ARE_NATIVE 1
#define KP_PAIR_ROWS 14
typedef kp_vi32 kp_pairs;

static inline kp_pairs kp_pairs_of(kp_vi32 pairs) { return pairs; }
/* With the intrinsic gcc 12 keeps the sums of tall tiles in memory. */
static inline kp_vf32 kp_pair_dot(kp_vf32 acc, kp_pairs a, kp_pairs b) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
}

#else

#define KP_PAIRS_ARE_NATIVE 0
#if KP_AVX512 || KP_NEON
#define KP_PAIR_ROWS 12
#else
#define KP_PAIR_ROWS 4
#endif
typedef struct { kp_vf32 first, second; } kp_pairs;

static inline kp_pairs kp_pairs_of(kp_vi32 pairs) {
    kp_pairs wide = {kp_first_of_pairs(pairs), kp_second_of_pairs(pairs)};
    return wide;
}
static inline kp_vf32 kp_pair_dot(kp_vf32 acc, kp_pairs a, kp_pairs b) {
    acc = kp_accumulate(acc, a.first, b.first);
    return kp_accumulate(acc, a.second, b.second);
}

#endif

/* Add the products of a pair of each row; `terms` is 2, or 1 where the row ends. */
KP_INLINE void kp_pair_products(
    int m, int nv, int terms, const kp_bf16 *const *row, ptrdiff_t k, const kp_bf16 *weights,
    ptrdiff_t distance, kp_vf32 (*sums)[2]
) {
    kp_pairs b[2];
    const char *ahead = (const char *)weights + distance;
    kp_prefetch((const float *)ahead);
    if (KP_LANES > 8) kp_prefetch((const float *)(ahead + 64));
    KP_UNROLL
    for (int j = 0; j < nv; j++) b[j] = kp_pairs_of(kp_load_pairs(weights + j * 2 * KP_LANES));
    KP_UNROLL
    for (int i = 0; i < m; i++) {
        /* What follows the last term may be NaN, and times 0 would stay NaN. */
        int32_t pair = terms == 2 ? kp_pair(row[i] + k) : (int32_t)row[i][k];
        kp_pairs a = kp_pairs_of(kp_splat_int(pair));
        KP_UNROLL
        for (int j = 0; j < nv; j++) sums[i][j] = kp_pair_dot(sums[i][j], a, b[j]);
    }
}

/* sums[i][j] = bias[j] + the products of row i and column vector j. */
KP_INLINE void kp_pair_sums(
    int m, int nv, ptrdiff_t taps, ptrdiff_t terms, const kp_bf16 *const *rows,
    const kp_bf16 *weights, ptrdiff_t distance, const float *bias, kp_vf32 (*sums)[2]
) {
    const kp_bf16 *row[KP_PAIR_ROWS];
    kp_tile_start(m, nv, sums, bias);
    for (ptrdiff_t t = 0; t < taps; t++) {
        KP_UNROLL
        for (int i = 0; i < m; i++) row[i] = rows[i];
        rows += m;
        for (ptrdiff_t k = 0; k + 2 <= terms; k += 2) {
            kp_pair_products(m, nv, 2, row, k, weights, distance, sums);
            weights += 2 * KP_PAIR_COLUMNS;
        }
        if (terms & 1) {
            kp_pair_products(m, nv, 1, row, terms - 1, weights, distance, sums);
            weights += 2 * KP_PAIR_COLUMNS;
        }
    }
}

/* Any end of m rows of sums in memory, pairs.pxi; gcc would make one for each height. */
KP_ALONE static void kp_end_float_sums(Py_ssize_t m, float *sums, KP_PAIR_OUT);

KP_INLINE void kp_pair_rows(int m, int nv, KP_PAIR_SUM, KP_PAIR_OUT) {
    kp_vf32 sums[KP_PAIR_ROWS][2];
    float stored[KP_PAIR_ROWS * 2 * KP_LANES] KP_ON_LINES;
    const float *bias = (const float *)panel;
    const kp_bf16 *weights = (const kp_bf16 *)(bias + KP_PAIR_COLUMNS);
    kp_pair_sums(m, nv, taps, terms, rows, weights, distance, bias, sums);
    if (!end) {
        kp_tile_end(m, nv, sums, 0, (float *)y, ldy, n, NULL, 0, -INFINITY, INFINITY);
        return;
    }
#if KP_PAIRS_ARE_NATIVE
    if (end->to_bfloat16 && !end->pre && !end->post &&
        (!residual || (end->residual_first && end->residual_in_bfloat16))) {
        kp_pair_end(m, nv, sums, y, ldy, n, residual, ldr, end);
        return;
    }
#endif
    kp_tile_save(m, nv, sums, stored);
    kp_end_float_sums(m, stored, y, ldy, n, residual, ldr, end);
}

#define KP_PAIR_GEMM(m)                                                                           \
    static void kp_pair_##m(KP_PAIR_SUM, KP_PAIR_OUT) {                                           \
        if (n <= KP_LANES)                                                                        \
            kp_pair_rows(m, 1, taps, terms, rows, panel, distance, y, ldy, n, residual, ldr, end);\
        else                                                                                      \
            kp_pair_rows(m, 2, taps, terms, rows, panel, distance, y, ldy, n, residual, ldr, end);\
    }
#define KP_PAIR_HEIGHTS_4(F) F(1) F(2) F(3) F(4)
#define KP_PAIR_HEIGHTS_12(F) KP_PAIR_HEIGHTS_4(F) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12)
#if KP_PAIR_ROWS == 14
#define KP_PAIR_HEIGHTS(F) KP_PAIR_HEIGHTS_12(F) F(13) F(14)
#elif KP_PAIR_ROWS == 12
#define KP_PAIR_HEIGHTS(F) KP_PAIR_HEIGHTS_12(F)
#else
#define KP_PAIR_HEIGHTS(F) KP_PAIR_HEIGHTS_4(F)
#endif

KP_PAIR_HEIGHTS(KP_PAIR_GEMM)
#define KP_ENTER(m) table[m] = kp_pair_##m;
static void kp_enter_pairs(kp_pair_fn *table) { KP_PAIR_HEIGHTS(KP_ENTER) }
#undef KP_ENTER

/* Products in registers, in as many independent sums as the tile has, without memory; returns the
   number of operations.  sink: any number in, a sum out. */
static double kp_pair_multiply_adds(Py_ssize_t rounds, float *sink) {
    kp_vf32 sums[KP_PAIR_ROWS][2];
    /* Pairs (2, 2) and (0.25, 0.25): sums grow by one and stay finite. */
    kp_vi32 a = kp_splat_int(0x40004000), b = kp_splat_int(0x3E803E80);
    KP_UNROLL
    for (int i = 0; i < KP_PAIR_ROWS; i++) {
        KP_UNROLL
        for (int j = 0; j < 2; j++) sums[i][j] = kp_splat(sink[0] + (float)(2 * i + j));
    }
    for (Py_ssize_t k = 0; k < rounds; k++) {
        kp_pairs of_b = kp_pairs_of(b);
        KP_UNROLL
        for (int i = 0; i < KP_PAIR_ROWS; i++) {
            /* As new to the compiler as a pair that was loaded. */
            kp_pairs of_a = kp_pairs_of(kp_bits(kp_rounded(kp_from_bits(a))));
            KP_UNROLL
            for (int j = 0; j < 2; j++) sums[i][j] = kp_pair_dot(sums[i][j], of_a, of_b);
        }
    }
    kp_vf32 total = kp_splat(0);
    KP_UNROLL
    for (int i = 0; i < KP_PAIR_ROWS; i++) {
        KP_UNROLL
        for (int j = 0; j < 2; j++) total += sums[i][j];
    }
    sink[0] = kp_reduce_add(total);
    return 2.0 * 2 * KP_LANES * KP_PAIR_ROWS * 2 * (double)rounds;
}

#endif
