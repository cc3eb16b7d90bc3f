/* The types of a tile of integer products, and the end of its sums in registers. */
#ifndef KUIPER_DOT_END_H
#define KUIPER_DOT_END_H

#include <Python.h>

#include "dot.h"
#include "sums.h"
#include "tile.h"

enum { KP_DOT_COLUMNS = 2 * KP_LANES };

#define KP_DOT_SUM                                                                                \
    Py_ssize_t taps, Py_ssize_t quads, const uint8_t *const *rows, const void *panel,             \
        Py_ssize_t distance
#define KP_DOT_OUT                                                                                \
    const float *factors, void *y, Py_ssize_t ldy, Py_ssize_t n, const void *residual,            \
        Py_ssize_t ldr, const kp_sums_end *end

typedef void (*kp_dot_fn)(KP_DOT_SUM, KP_DOT_OUT);

#if KP_AVX512

/* The end of results in bytes that are numbers below 2^30, by packing integers with saturation. */
typedef struct {
    kp_vf32 inverse;
    __m512i zero;        /* 16-bit integers */
    __m512i low, high;   /* bytes */
} kp_byte_bounds;

KP_INLINE kp_byte_bounds kp_byte_bounds_of(const kp_sums_end *end) {
    kp_byte_bounds b = {
        kp_splat(end->inverse_scale), _mm512_set1_epi16((short)end->zero),
        _mm512_set1_epi8((char)end->low), _mm512_set1_epi8((char)end->high)};
    return b;
}

/* Whether the results of columns with these scales and biases are such numbers. */
KP_INLINE int kp_fits_bytes(
    kp_vf32 unit, kp_vf32 shift, ptrdiff_t terms, const void *residual, const kp_sums_end *end
) {
    kp_vf32 most = kp_splat(255.0f * 128.0f * (float)terms);
    kp_vf32 more = kp_splat(residual ? 255.0f * fabsf(end->residual_scale) : 0.0f);
    kp_vf32 reach = most * unit + kp_max(shift, -shift) + more;
    __m512 result = (__m512)(reach * kp_splat(end->inverse_scale));
    return _mm512_cmp_ps_mask(result, _mm512_set1_ps(1073741824.0f), _CMP_LT_OQ) == 0xFFFF;
}

/* 64 bytes; in each 128 bits four lanes of a, four of b, four of c and four of d. */
KP_INLINE __m512i kp_to_bytes(
    kp_vf32 a, kp_vf32 b, kp_vf32 c, kp_vf32 d, const kp_byte_bounds *e
) {
    kp_vf32 by = e->inverse;
    __m512i ab = _mm512_packs_epi32((__m512i)kp_nearest(a * by), (__m512i)kp_nearest(b * by));
    __m512i cd = _mm512_packs_epi32((__m512i)kp_nearest(c * by), (__m512i)kp_nearest(d * by));
    __m512i x = _mm512_packus_epi16(_mm512_adds_epi16(ab, e->zero), _mm512_adds_epi16(cd, e->zero));
    return _mm512_min_epu8(e->high, _mm512_max_epu8(e->low, x));
}

/* 128 bits of a vector; k is a constant, once loops are unrolled. */
KP_INLINE __m128i kp_part(__m512i x, int k) {
    switch (k) {
    case 0: return _mm512_castsi512_si128(x);
    case 1: return _mm512_extracti32x4_epi32(x, 1);
    case 2: return _mm512_extracti32x4_epi32(x, 2);
    default: return _mm512_extracti32x4_epi32(x, 3);
    }
}

/* The end in registers: results in bytes, clamped, after a residual in bytes if there is one.  Returns
   whether the results are such numbers; else nothing is stored. */
KP_INLINE int kp_dot_bytes(
    int m, int nv, kp_vi32 (*sums)[2], const float *scale, const float *bias, ptrdiff_t terms, KP_DOT_OUT
) {
    const int rows = 4 / nv; /* of a vector of bytes */
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    const uint8_t *r = (const uint8_t *)residual;
    kp_byte_bounds bounds = kp_byte_bounds_of(end);
    kp_vf32 unit[2], shift[2];
    KP_UNROLL
    for (int j = 0; j < nv; j++) {
        unit[j] = kp_rounded(kp_load(scale + j * KP_LANES) * kp_splat(factors[0]));
        shift[j] = kp_load(bias + j * KP_LANES);
        if (!kp_fits_bytes(unit[j], shift[j], terms, residual, end)) return 0;
    }
    KP_UNROLL
    for (int i = 0; i < m; i += rows) {
        kp_vf32 v[4];
        KP_UNROLL
        for (int q = 0; q < 4; q++) {
            int row = i + q / nv, j = q % nv;
            if (row >= m) {
                v[q] = v[q - nv];
                continue;
            }
            v[q] = kp_rounded(kp_floats(sums[row][j]) * unit[j]) + shift[j];
            if (r) {
                const uint8_t *at = r + row * ldr + j * KP_LANES;
                kp_vf32 x = n == nv * KP_LANES || j < nv - 1 ? kp_load_bytes(at, KP_LANES)
                                                             : kp_load_bytes(at, n - j * KP_LANES);
                v[q] += kp_rounded((x - kp_splat(end->residual_zero)) * kp_splat(end->residual_scale));
            }
        }
        __m512i bytes = _mm512_permutexvar_epi32(order, kp_to_bytes(v[0], v[1], v[2], v[3], &bounds));
        KP_UNROLL
        for (int k = 0; k < rows; k++) {
            if (i + k >= m) continue;
            uint8_t *out = (uint8_t *)y + (i + k) * ldy;
            if (nv == 2) {
                __m256i row = k ? _mm512_extracti64x4_epi64(bytes, 1) : _mm512_castsi512_si256(bytes);
                if (n == 2 * KP_LANES) _mm256_storeu_si256((__m256i *)out, row);
                else _mm256_mask_storeu_epi8(out, ((__mmask32)1 << n) - 1, row);
            } else {
                __m128i row = kp_part(bytes, k);
                if (n == KP_LANES) _mm_storeu_si128((__m128i *)out, row);
                else _mm_mask_storeu_epi8(out, (__mmask16)((1u << n) - 1), row);
            }
        }
    }
    return 1;
}

#else

/* The end in registers: results in bytes, clamped, after a residual in bytes if there is one. */
KP_INLINE int kp_dot_bytes(
    int m, int nv, kp_vi32 (*sums)[2], const float *scale, const float *bias, ptrdiff_t terms, KP_DOT_OUT
) {
    (void)terms;
    kp_vf32 unit[2], shift[2], inverse = kp_splat(end->inverse_scale);
    kp_vf32 low = kp_splat(end->low - end->zero);
    kp_vf32 high = kp_splat(end->high - end->zero);
    kp_vi32 zero = kp_splat_int((int32_t)end->zero);
    const uint8_t *r = (const uint8_t *)residual;
    KP_UNROLL
    for (int j = 0; j < nv; j++) {
        unit[j] = kp_rounded(kp_load(scale + j * KP_LANES) * kp_splat(factors[0]));
        shift[j] = kp_load(bias + j * KP_LANES);
    }
    KP_UNROLL
    for (int i = 0; i < m; i++) {
        KP_UNROLL
        for (int j = 0; j < nv; j++) {
            uint8_t *out = (uint8_t *)y + i * ldy + j * KP_LANES;
            long rest = n - j * KP_LANES;
            kp_vf32 v = kp_rounded(kp_floats(sums[i][j]) * unit[j]) + shift[j];
            if (r) {
                const uint8_t *at = r + i * ldr + j * KP_LANES;
                kp_vf32 x = n == nv * KP_LANES || j < nv - 1 ? kp_load_bytes(at, KP_LANES)
                                                             : kp_load_bytes(at, rest);
                v += kp_rounded((x - kp_splat(end->residual_zero)) * kp_splat(end->residual_scale));
            }
            v = kp_number(kp_min(high, kp_max(low, kp_rounded(v * inverse))));
            if (n == nv * KP_LANES || j < nv - 1)
                kp_store_bytes(out, kp_nearest(v) + zero, KP_LANES);
            else
                kp_store_bytes(out, kp_nearest(v) + zero, rest);
        }
    }
    return 1;
}

#endif

#endif
