/* The types of a tile of products of bfloat16, and the end of its sums in registers. */
#ifndef KUIPER_PAIR_END_H
#define KUIPER_PAIR_END_H

#include <Python.h>

#include "bfloat16.h"
#include "sums.h"
#include "tile.h"

enum { KP_PAIR_COLUMNS = 2 * KP_LANES };

#define KP_PAIR_SUM                                                                               \
    Py_ssize_t taps, Py_ssize_t terms, const kp_bf16 *const *rows, const void *panel,             \
        Py_ssize_t distance
#define KP_PAIR_OUT                                                                               \
    void *y, Py_ssize_t ldy, Py_ssize_t n, const void *residual, Py_ssize_t ldr,                  \
        const kp_sums_end *end

typedef void (*kp_pair_fn)(KP_PAIR_SUM, KP_PAIR_OUT);

#if KP_AVX512 && defined(__AVX512BF16__)
/* The end in registers: results in bfloat16, clamped, after a residual in bfloat16 if any. */
KP_INLINE void kp_pair_end(int m, int nv, kp_vf32 (*sums)[2], KP_PAIR_OUT) {
    __mmask32 some = n >= 32 ? ~(__mmask32)0 : ((__mmask32)1 << n) - 1;
    kp_vf32 low = kp_splat(end->lo), high = kp_splat(end->hi);
    const kp_bf16 *r = (const kp_bf16 *)residual;
    KP_UNROLL
    for (int i = 0; i < m; i++) {
        kp_bf16 *out = (kp_bf16 *)y + i * ldy;
        if (r) {
            __m512i halves = _mm512_maskz_loadu_epi16(some, r + i * ldr);
            __m512i wide = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(halves));
            sums[i][0] += (kp_vf32)_mm512_slli_epi32(wide, 16);
            if (nv > 1) {
                wide = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(halves, 1));
                sums[i][1] += (kp_vf32)_mm512_slli_epi32(wide, 16);
            }
        }
        KP_UNROLL
        for (int j = 0; j < nv; j++) sums[i][j] = kp_min(high, kp_max(low, sums[i][j]));
        if (nv > 1) {
            __m512bh both = _mm512_cvtne2ps_pbh((__m512)sums[i][nv - 1], (__m512)sums[i][0]);
            _mm512_mask_storeu_epi16(out, some, (__m512i)both);
        } else {
            _mm256_mask_storeu_epi16(out, (__mmask16)some, kp_bf16_halves(sums[i][0]));
        }
    }
}
#endif

#endif
