/* The outer loops of a register tile, which load its first values and store its results.

   They are in C for one pragma.  gcc unrolls outermost loops after it has assigned registers, and an
   array indexed by a loop variable cannot be in registers: all accumulators would be stored and loaded
   again before and after the sums.  (clang unrolls earlier.) */
#ifndef KUIPER_TILE_H
#define KUIPER_TILE_H

#include <stddef.h>

#include "vec.h"

#if defined(__GNUC__)
#define KP_INLINE static inline __attribute__((always_inline))
#else
#define KP_INLINE static inline
#endif

#if defined(__GNUC__) && !defined(__clang__)
#define KP_UNROLL _Pragma("GCC unroll 16")
#define KP_ALONE __attribute__((noinline, noclone))
#else
#define KP_UNROLL
#define KP_ALONE
#endif

#if defined(__GNUC__)
#define KP_ON_LINES __attribute__((aligned(64)))
#else
#define KP_ON_LINES
#endif

/* acc[i][j] = bias[j] for rows i < m and vectors j < nv <= 2. */
KP_INLINE void kp_tile_start(int m, int nv, kp_vf32 (*acc)[2], const float *bias) {
    kp_vf32 b[2];
    KP_UNROLL
    for (int j = 0; j < nv; j++) b[j] = kp_load(bias + j * KP_LANES);
    KP_UNROLL
    for (int i = 0; i < m; i++) {
        KP_UNROLL
        for (int j = 0; j < nv; j++) acc[i][j] = b[j];
    }
}

/* acc[i][j] += bias[j] */
KP_INLINE void kp_tile_bias(int m, int nv, kp_vf32 (*acc)[2], const float *bias) {
    kp_vf32 b[2];
    KP_UNROLL
    for (int j = 0; j < nv; j++) b[j] = kp_load(bias + j * KP_LANES);
    KP_UNROLL
    for (int i = 0; i < m; i++) {
        KP_UNROLL
        for (int j = 0; j < nv; j++) acc[i][j] += b[j];
    }
}

/* acc[i][j] += tile[i, j]; tile (m, nv * KP_LANES) */
KP_INLINE void kp_tile_add(int m, int nv, kp_vf32 (*acc)[2], const float *tile) {
    KP_UNROLL
    for (int i = 0; i < m; i++) {
        KP_UNROLL
        for (int j = 0; j < nv; j++) acc[i][j] += kp_load(tile + (i * nv + j) * KP_LANES);
    }
}

/* tile[i, j] = acc[i][j]; tile (m, nv * KP_LANES) */
KP_INLINE void kp_tile_save(int m, int nv, kp_vf32 (*acc)[2], float *tile) {
    KP_UNROLL
    for (int i = 0; i < m; i++) {
        KP_UNROLL
        for (int j = 0; j < nv; j++) kp_store(tile + (i * nv + j) * KP_LANES, acc[i][j]);
    }
}

/* y[i, j] = clamp(acc[i][j] + residual[i, j]) for rows first <= i < m and n columns. */
KP_INLINE void kp_tile_end(
    int m, int nv, kp_vf32 (*acc)[2], int first, float *y, ptrdiff_t ldy, ptrdiff_t n,
    const float *residual, ptrdiff_t ldr, float lo, float hi
) {
    kp_vf32 low = kp_splat(lo), high = kp_splat(hi);
    KP_UNROLL
    for (int i = 0; i < m; i++) {
        if (i < first) continue;
        KP_UNROLL
        for (int j = 0; j < nv; j++) {
            float *out = y + i * ldy + j * KP_LANES;
            ptrdiff_t at = i * ldr + j * KP_LANES;
            long rest = (long)(n - j * KP_LANES);
            if (n == nv * KP_LANES || j < nv - 1) {
                if (residual) acc[i][j] += kp_load(residual + at);
                kp_store(out, kp_min(high, kp_max(low, acc[i][j])));
            } else {
                if (residual) acc[i][j] += kp_load_n(residual + at, rest);
                kp_store_n(out, kp_min(high, kp_max(low, acc[i][j])), rest);
            }
        }
    }
}

#endif
