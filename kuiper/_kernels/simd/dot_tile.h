/* The register tile of integer products: m rows of unsigned bytes by 1 or 2 vectors of columns.

   As the tile of gemm.pxi, for four terms at a time.  In C for the unroll pragma of tile.h. */
#ifndef KUIPER_DOT_TILE_H
#define KUIPER_DOT_TILE_H

#include <Python.h>

#include "dot_end.h"

/* sums[i][j] = start[j] + the products of row i and column vector j. */
KP_INLINE void kp_dot_sums(
    int m, int nv, ptrdiff_t taps, ptrdiff_t quads, const uint8_t *const *rows,
    const int8_t *terms, ptrdiff_t distance, const int32_t *start, kp_vi32 (*sums)[2]
) {
    const uint8_t *row[KP_DOT_ROWS];
    kp_vi32 first[2], lack[2] = {kp_splat_int(0), kp_splat_int(0)};
    KP_UNROLL
    for (int j = 0; j < nv; j++) first[j] = kp_load_ints(start + j * KP_LANES);
    KP_UNROLL
    for (int i = 0; i < m; i++) {
        KP_UNROLL
        for (int j = 0; j < nv; j++) sums[i][j] = first[j];
    }
    for (ptrdiff_t t = 0; t < taps; t++) {
        KP_UNROLL
        for (int i = 0; i < m; i++) row[i] = rows[i];
        rows += m;
        for (ptrdiff_t k = 0; k < quads; k++) {
            kp_signed_quads b[2];
            kp_prefetch((const float *)(terms + distance));
            if (KP_LANES > 8) kp_prefetch((const float *)(terms + distance + 64));
            KP_UNROLL
            for (int j = 0; j < nv; j++) b[j] = kp_load_signed(terms + j * 4 * KP_LANES);
            terms += 4 * KP_DOT_COLUMNS;
            KP_UNROLL
            for (int j = 0; j < nv; j++) lack[j] = kp_dot_lack(lack[j], b[j]);
            KP_UNROLL
            for (int i = 0; i < m; i++) {
                kp_unsigned_quads a = kp_splat_unsigned(kp_quad(row[i] + 4 * k));
                KP_UNROLL
                for (int j = 0; j < nv; j++) sums[i][j] = kp_dot(sums[i][j], a, b[j]);
            }
        }
    }
    if (!KP_DOT_LACKS) return;
    KP_UNROLL
    for (int i = 0; i < m; i++) {
        KP_UNROLL
        for (int j = 0; j < nv; j++) sums[i][j] -= lack[j];
    }
}

/* Any end of m rows of sums in memory, dot.pxi; gcc would make one for each height. */
KP_ALONE static void kp_end_sums(
    Py_ssize_t m, int32_t *sums, const float *scale, const float *bias, KP_DOT_OUT);

/* Other ends pass through memory, which costs 5 to 20 % of the shortest sums (64 terms): one for
   each height and width would be forty times as long. */
KP_INLINE void kp_dot_rows(int m, int nv, KP_DOT_SUM, KP_DOT_OUT) {
    kp_vi32 sums[KP_DOT_ROWS][2];
    int32_t stored[KP_DOT_ROWS * 2 * KP_LANES] KP_ON_LINES;
    const float *bias = (const float *)panel, *scale = bias + KP_DOT_COLUMNS;
    const int32_t *start = (const int32_t *)(scale + KP_DOT_COLUMNS);
    const int8_t *terms = (const int8_t *)(start + KP_DOT_COLUMNS);
    kp_dot_sums(m, nv, taps, quads, rows, terms, distance, start, sums);
    if (end->in_registers && (!residual || end->residual_in_bytes)) {
        ptrdiff_t depth = 4 * taps * quads;
        if (kp_dot_bytes(
                m, nv, sums, scale, bias, depth, factors, y, ldy, n, residual, ldr, end))
            return;
    }
    KP_UNROLL
    for (int i = 0; i < m; i++) {
        KP_UNROLL
        for (int j = 0; j < nv; j++) kp_store_ints(stored + (i * nv + j) * KP_LANES, sums[i][j]);
    }
    kp_end_sums(m, stored, scale, bias, factors, y, ldy, n, residual, ldr, end);
}

#define KP_DOT(m)                                                                                 \
    static void kp_dot_##m(KP_DOT_SUM, KP_DOT_OUT) {                                              \
        if (n <= KP_LANES)                                                                        \
            kp_dot_rows(m, 1, taps, quads, rows, panel, distance, factors, y, ldy, n, residual,   \
                        ldr, end);                                                                \
        else                                                                                      \
            kp_dot_rows(m, 2, taps, quads, rows, panel, distance, factors, y, ldy, n, residual,   \
                        ldr, end);                                                                \
    }
#define KP_DOT_HEIGHTS_4(F) F(1) F(2) F(3) F(4)
#define KP_DOT_HEIGHTS_6(F) KP_DOT_HEIGHTS_4(F) F(5) F(6)
#define KP_DOT_HEIGHTS_8(F) KP_DOT_HEIGHTS_6(F) F(7) F(8)
#define KP_DOT_HEIGHTS_12(F) KP_DOT_HEIGHTS_8(F) F(9) F(10) F(11) F(12)
#if KP_DOT_ROWS == 14
#define KP_DOT_HEIGHTS(F) KP_DOT_HEIGHTS_12(F) F(13) F(14)
#elif KP_DOT_ROWS == 12
#define KP_DOT_HEIGHTS(F) KP_DOT_HEIGHTS_12(F)
#elif KP_DOT_ROWS == 8
#define KP_DOT_HEIGHTS(F) KP_DOT_HEIGHTS_8(F)
#elif KP_DOT_ROWS == 6
#define KP_DOT_HEIGHTS(F) KP_DOT_HEIGHTS_6(F)
#else
#define KP_DOT_HEIGHTS(F) KP_DOT_HEIGHTS_4(F)
#endif

KP_DOT_HEIGHTS(KP_DOT)
#define KP_ENTER(m) table[m] = kp_dot_##m;
static void kp_enter_dot(kp_dot_fn *table) { KP_DOT_HEIGHTS(KP_ENTER) }
#undef KP_ENTER

#endif
