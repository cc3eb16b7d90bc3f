/* bfloat16, the upper half of a float, to and from vectors of floats.

   Stores round to nearest even; NaN stays NaN, quiet.  With AVX512_BF16 the rounding is one
   instruction, which also takes denormal floats as 0; by integers, as here, they are rounded too. */
#ifndef KUIPER_BFLOAT16_H
#define KUIPER_BFLOAT16_H

#include "transpose.h"

typedef uint16_t kp_bf16;

#if KP_AVX512 && defined(__AVX512BW__) && defined(__AVX512VL__)
#define KP_BF16_AVX512 1
#elif KP_AVX && defined(__AVX2__)
#define KP_BF16_AVX2 1
#elif KP_SSE
#define KP_BF16_SSE 1
#elif KP_NEON
#define KP_BF16_NEON 1
#endif

/* Floats whose upper halves are the rounded values; the lower halves are not cleared.

   Adding half of a unit in the last place, less one bit if the value is even, carries into the
   exponent where it has to, up to infinity.  All numbers stay below the bits of NaN. */
static inline kp_vi32 kp_bf16_rounded(kp_vf32 v) {
#if KP_BF16_AVX512
    __m512i bits = (__m512i)v;
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    __mmask16 is_nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    return (kp_vi32)_mm512_mask_or_epi32(up, is_nan, bits, _mm512_set1_epi32(0x400000));
#elif KP_LANES > 1
    typedef uint32_t kp_words __attribute__((vector_size(4 * KP_LANES)));
    kp_words bits = (kp_words)kp_bits(v);
    kp_vi32 up = (kp_vi32)(bits + 0x7FFF + ((bits >> 16) & 1));
    kp_vi32 is_number = kp_eq(v, v);
    return (up & is_number) | ((kp_vi32)(bits | 0x400000) & ~is_number);
#else
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    bits = v == v ? bits + 0x7FFF + ((bits >> 16) & 1) : bits | 0x400000;
    memcpy(&v, &bits, sizeof v);
    return kp_bits(v);
#endif
}

static inline kp_vf32 kp_load_bf16(const kp_bf16 *p) {
#if KP_BF16_AVX512
    __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return (kp_vf32)_mm512_slli_epi32(words, 16);
#elif KP_BF16_AVX2
    __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return (kp_vf32)_mm256_slli_epi32(words, 16);
#elif KP_BF16_SSE
    __m128i half = _mm_loadl_epi64((const __m128i *)p);
    return (kp_vf32)_mm_unpacklo_epi16(_mm_setzero_si128(), half);
#elif KP_BF16_NEON
    return (kp_vf32)vshll_n_u16(vld1_u16(p), 16);
#else
    uint32_t bits[KP_LANES];
    kp_vf32 v;
    for (int i = 0; i < KP_LANES; i++) bits[i] = (uint32_t)p[i] << 16;
    memcpy(&v, bits, sizeof v);
    return v;
#endif
}

#if KP_BF16_AVX512
static inline __m256i kp_bf16_halves(kp_vf32 v) {
#if defined(__AVX512BF16__)
    return (__m256i)_mm512_cvtneps_pbh((__m512)v);
#else
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)kp_bf16_rounded(v), 16));
#endif
}
#endif

static inline void kp_store_bf16(kp_bf16 *p, kp_vf32 v) {
#if KP_BF16_AVX512
    _mm256_storeu_si256((__m256i *)p, kp_bf16_halves(v));
#elif KP_BF16_AVX2
    /* An arithmetic shift, for packing clamps to signed halves. */
    __m256i words = _mm256_srai_epi32((__m256i)kp_bf16_rounded(v), 16);
    __m128i low = _mm256_castsi256_si128(words), high = _mm256_extracti128_si256(words, 1);
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi32(low, high));
#elif KP_BF16_SSE
    __m128i words = _mm_srai_epi32((__m128i)kp_bf16_rounded(v), 16);
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi32(words, words));
#elif KP_BF16_NEON
    vst1_u16(p, vshrn_n_u32((uint32x4_t)kp_bf16_rounded(v), 16));
#else
    kp_vi32 rounded = kp_bf16_rounded(v);
    uint32_t bits[KP_LANES];
    memcpy(bits, &rounded, sizeof bits);
    for (int i = 0; i < KP_LANES; i++) p[i] = (kp_bf16)(bits[i] >> 16);
#endif
}

/* The first n < KP_LANES values, then zeros. */
static inline kp_vf32 kp_load_bf16_n(const kp_bf16 *p, long n) {
#if KP_BF16_AVX512
    __m256i halves = _mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p);
    return (kp_vf32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
#else
    kp_bf16 halves[KP_LANES] = {0};
    memcpy(halves, p, (size_t)n * sizeof *p);
    return kp_load_bf16(halves);
#endif
}
static inline void kp_store_bf16_n(kp_bf16 *p, kp_vf32 v, long n) {
#if KP_BF16_AVX512
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), kp_bf16_halves(v));
#else
    kp_bf16 halves[KP_LANES];
    kp_store_bf16(halves, v);
    memcpy(p, halves, (size_t)n * sizeof *p);
#endif
}

/* Two adjacent values in one lane: the first is the lower half. */
static inline kp_vi32 kp_load_pairs(const kp_bf16 *p) {
    kp_vi32 pairs;
    memcpy(&pairs, p, sizeof pairs);
    return pairs;
}
/* The first n < 2 KP_LANES values, then zeros. */
static inline kp_vi32 kp_load_pairs_n(const kp_bf16 *p, long n) {
#if KP_BF16_AVX512
    return (kp_vi32)_mm512_maskz_loadu_epi16(((__mmask32)1 << n) - 1, p);
#else
    kp_bf16 halves[2 * KP_LANES] = {0};
    memcpy(halves, p, (size_t)n * sizeof *p);
    return kp_load_pairs(halves);
#endif
}
#if KP_LANES > 1
static inline kp_vf32 kp_first_of_pairs(kp_vi32 pairs) { return kp_from_bits(pairs << 16); }
#else
static inline kp_vf32 kp_first_of_pairs(kp_vi32 pairs) {
    return kp_from_bits((kp_vi32)((uint32_t)pairs << 16));
}
#endif
/* Pairs, rounded. */
static inline void kp_store_pairs(kp_bf16 *p, kp_vf32 first, kp_vf32 second) {
#if KP_LANES > 1
    typedef uint32_t kp_words __attribute__((vector_size(4 * KP_LANES)));
    kp_vi32 low = (kp_vi32)((kp_words)kp_bf16_rounded(first) >> 16);
#else
    kp_vi32 low = (kp_vi32)((uint32_t)kp_bf16_rounded(first) >> 16);
#endif
    kp_vi32 pairs = low | (kp_bf16_rounded(second) & kp_splat_int(-0x10000));
    memcpy(p, &pairs, sizeof pairs);
}
static inline kp_vf32 kp_second_of_pairs(kp_vi32 pairs) {
    return kp_from_bits(pairs & kp_splat_int(-0x10000));
}

/* Vectors of even and of odd values in the order of memory: rounded, and as floats. */
static inline void kp_store_zipped_bf16(kp_bf16 *p, kp_vf32 even, kp_vf32 odd) {
#if KP_AVX512 && defined(__AVX512BF16__)
    static const uint16_t order[32] __attribute__((aligned(64))) = {
        0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31,
    };
    __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    _mm512_storeu_si512(p, _mm512_permutexvar_epi16(_mm512_load_si512(order), halves));
#else
    kp_store_pairs(p, even, odd);
#endif
}
static inline void kp_store_zipped(float *p, kp_vf32 even, kp_vf32 odd) {
#if KP_LANES == 16
    kp_store(p, KP_PICK(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
    even = KP_PICK(even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif KP_LANES == 8
    kp_store(p, KP_PICK(even, odd, 0, 8, 1, 9, 2, 10, 3, 11));
    even = KP_PICK(even, odd, 4, 12, 5, 13, 6, 14, 7, 15);
#elif KP_LANES == 4
    kp_store(p, KP_PICK(even, odd, 0, 4, 1, 5));
    even = KP_PICK(even, odd, 2, 6, 3, 7);
#else
    kp_store(p, even);
    even = odd;
#endif
    kp_store(p + KP_LANES, even);
}

#endif
