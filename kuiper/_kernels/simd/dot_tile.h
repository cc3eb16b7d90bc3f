/* The register tile of integer products: m rows of unsigned bytes by 1 or 2 vectors of columns.

   As the tile of gemm.pxi, for four terms at a time.  In C for the unroll pragma of tile.h. */
#ifndef KUIPER_DOT_TILE_H
#define KUIPER_DOT_TILE_H

#include <Python.h>

#include "dot.h"
#include "sums.h"
#include "tile.h"

#if defined(__GNUC__)
#define KP_ON_LINES __attribute__((aligned(64)))
#else
#define KP_ON_LINES
#endif

#if defined(__GNUC__) && !defined(__clang__)
#define KP_ALONE __attribute__((noinline, noclone))
#else
#define KP_ALONE
#endif

enum { KP_DOT_COLUMNS = 2 * KP_LANES };

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

#define KP_DOT_SUM                                                                                \
    Py_ssize_t taps, Py_ssize_t quads, const uint8_t *const *rows, const void *panel,             \
        Py_ssize_t distance
#define KP_DOT_OUT                                                                                \
    const float *factors, void *y, Py_ssize_t ldy, Py_ssize_t n, const void *residual,            \
        Py_ssize_t ldr, const kp_sums_end *end

typedef void (*kp_dot_fn)(KP_DOT_SUM, KP_DOT_OUT);

/* Any end of m rows of sums in memory, dot.pxi; gcc would make one for each height. */
KP_ALONE static void kp_end_sums(
    Py_ssize_t m, int32_t *sums, const float *scale, const float *bias, KP_DOT_OUT);

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
