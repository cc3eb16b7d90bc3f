/* Sums of products of unsigned by signed bytes, four at a time, in 32 bits without saturation.

   One lane of a vector is one sum.  The four signed bytes of a lane are four terms of one column of B;
   the unsigned bytes are four terms of one row of A, the same in every lane.  All ways below give the
   same integers.

   KP_DOT_IS_NATIVE: one instruction does it (AVX-512 VNNI, AVX-VNNI, Arm's dot product).  Other x86
   processors multiply 16-bit integers and add pairs of them; the 8-bit form of that instruction
   saturates.  KP_DOT_ROWS is the number of rows whose sums, with two vectors of B, fit the registers.

   Arm's instruction takes two signed bytes, so the terms of A are 128 less there, and the sums lack
   128 times the weights: KP_DOT_LACKS. */
#ifndef KUIPER_DOT_H
#define KUIPER_DOT_H

#include "vec.h"

/* Four adjacent bytes of a row, as the bits of an integer. */
static inline int32_t kp_quad(const uint8_t *p) {
    int32_t quad;
    memcpy(&quad, p, 4);
    return quad;
}

#if defined(__AVX512VNNI__) && KP_AVX512

#define KP_DOT_IS_NATIVE 1
#define KP_DOT_ROWS 14
typedef __m512i kp_signed_quads;
typedef __m512i kp_unsigned_quads;

static inline kp_signed_quads kp_load_signed(const int8_t *p) { return _mm512_loadu_si512(p); }
static inline kp_unsigned_quads kp_splat_unsigned(int32_t quad) { return _mm512_set1_epi32(quad); }
/* With the intrinsic gcc 12 keeps the sums of tall tiles in memory. */
static inline kp_vi32 kp_dot(kp_vi32 acc, kp_unsigned_quads a, kp_signed_quads b) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
}

#elif defined(__AVXVNNI__) && KP_AVX

#define KP_DOT_IS_NATIVE 1
#define KP_DOT_ROWS 6
typedef __m256i kp_signed_quads;
typedef __m256i kp_unsigned_quads;

/* KUIPER_EVEX: the same instruction as AVX-512 encodes it, for tests on processors without this one. */
#if defined(KUIPER_EVEX)
#define KP_DPBUSD "vpdpbusd"
#else
#define KP_DPBUSD "%{vex%} vpdpbusd"
#endif

static inline kp_signed_quads kp_load_signed(const int8_t *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}
static inline kp_unsigned_quads kp_splat_unsigned(int32_t quad) { return _mm256_set1_epi32(quad); }
static inline kp_vi32 kp_dot(kp_vi32 acc, kp_unsigned_quads a, kp_signed_quads b) {
    __asm__(KP_DPBUSD " %2, %1, %0" : "+x"(acc) : "x"(a), "x"(b));
    return acc;
}

#elif KP_NEON && defined(__ARM_FEATURE_DOTPROD)

#define KP_DOT_IS_NATIVE 1
#define KP_DOT_ROWS 8
#define KP_DOT_LACKS 1
typedef int8x16_t kp_signed_quads;
typedef int8x16_t kp_unsigned_quads;

static inline kp_signed_quads kp_load_signed(const int8_t *p) { return vld1q_s8(p); }
static inline kp_unsigned_quads kp_splat_unsigned(int32_t quad) {
    return vreinterpretq_s8_s32(vdupq_n_s32((int32_t)((uint32_t)quad ^ 0x80808080u)));
}
static inline kp_vi32 kp_dot(kp_vi32 acc, kp_unsigned_quads a, kp_signed_quads b) {
    return (kp_vi32)vdotq_s32((int32x4_t)acc, a, b);
}
/* Subtract what the sums of all rows lack. */
static inline kp_vi32 kp_dot_lack(kp_vi32 acc, kp_signed_quads b) {
    return (kp_vi32)vdotq_s32((int32x4_t)acc, vdupq_n_s8(-128), b);
}

#elif KP_AVX512 || (KP_AVX && defined(__AVX2__)) || KP_SSE

#define KP_DOT_IS_NATIVE 0
#if KP_AVX512
#define KP_DOT_ROWS 12
typedef __m512i kp_vi16;
#define KP_16(name) _mm512_##name
#define KP_LOAD_BYTES(p) _mm512_loadu_si512(p)
#define KP_EVEN_BYTES(v) _mm512_and_si512(v, _mm512_set1_epi16(0xFF))
#elif KP_AVX
#define KP_DOT_ROWS 4
typedef __m256i kp_vi16;
#define KP_16(name) _mm256_##name
#define KP_LOAD_BYTES(p) _mm256_loadu_si256((const __m256i *)(p))
#define KP_EVEN_BYTES(v) _mm256_and_si256(v, _mm256_set1_epi16(0xFF))
#else
#define KP_DOT_ROWS 4
typedef __m128i kp_vi16;
#define KP_16(name) _mm_##name
#define KP_LOAD_BYTES(p) _mm_loadu_si128((const __m128i *)(p))
#define KP_EVEN_BYTES(v) _mm_and_si128(v, _mm_set1_epi16(0xFF))
#endif

/* Terms 0 and 2, and terms 1 and 3, as 16-bit integers. */
typedef struct { kp_vi16 even, odd; } kp_signed_quads;
typedef struct { kp_vi16 even, odd; } kp_unsigned_quads;

static inline kp_signed_quads kp_load_signed(const int8_t *p) {
    kp_vi16 v = KP_LOAD_BYTES(p);
    kp_signed_quads b = {KP_16(srai_epi16)(KP_16(slli_epi16)(v, 8), 8), KP_16(srai_epi16)(v, 8)};
    return b;
}
static inline kp_unsigned_quads kp_splat_unsigned(int32_t quad) {
    kp_vi16 v = KP_16(set1_epi32)(quad);
    kp_unsigned_quads a = {KP_EVEN_BYTES(v), KP_16(srli_epi16)(v, 8)};
    return a;
}
static inline kp_vi32 kp_dot(kp_vi32 acc, kp_unsigned_quads a, kp_signed_quads b) {
    acc += (kp_vi32)KP_16(madd_epi16)(a.even, b.even);
    return acc + (kp_vi32)KP_16(madd_epi16)(a.odd, b.odd);
}

#else

#define KP_DOT_IS_NATIVE 0
#define KP_DOT_ROWS 4
typedef struct { kp_vi32 term[4]; } kp_signed_quads;
typedef struct { kp_vi32 term[4]; } kp_unsigned_quads;

static inline kp_signed_quads kp_load_signed(const int8_t *p) {
    kp_signed_quads b;
    for (int t = 0; t < 4; t++) {
        int32_t x[KP_LANES];
        for (int i = 0; i < KP_LANES; i++) x[i] = p[4 * i + t];
        memcpy(&b.term[t], x, sizeof x);
    }
    return b;
}
static inline kp_unsigned_quads kp_splat_unsigned(int32_t quad) {
    kp_unsigned_quads a;
    uint8_t x[4];
    memcpy(x, &quad, 4);
    for (int t = 0; t < 4; t++) a.term[t] = kp_splat_int(x[t]);
    return a;
}
static inline kp_vi32 kp_dot(kp_vi32 acc, kp_unsigned_quads a, kp_signed_quads b) {
    for (int t = 0; t < 4; t++) acc += a.term[t] * b.term[t];
    return acc;
}

#endif

#ifndef KP_DOT_LACKS
#define KP_DOT_LACKS 0
static inline kp_vi32 kp_dot_lack(kp_vi32 acc, kp_signed_quads b) {
    (void)b;
    return acc;
}
#endif

/* Lanes as floats, exact up to 2^24, else rounded to nearest even. */
static inline kp_vf32 kp_floats(kp_vi32 v) {
#if KP_LANES == 1
    return (float)v;
#else
    typedef int32_t kp_ints __attribute__((vector_size(4 * KP_LANES)));
    typedef float kp_reals __attribute__((vector_size(4 * KP_LANES)));
    return (kp_vf32)__builtin_convertvector((kp_ints)v, kp_reals);
#endif
}
/* Lanes rounded to the nearest integers, to even ones from halves; for |v| < 2^31. */
static inline kp_vi32 kp_nearest(kp_vf32 v) {
#if KP_AVX512
    return (kp_vi32)_mm512_cvtps_epi32((__m512)v);
#elif KP_AVX
    return (kp_vi32)_mm256_cvtps_epi32((__m256)v);
#elif KP_SSE
    return (kp_vi32)_mm_cvtps_epi32((__m128)v);
#elif KP_NEON
    return (kp_vi32)vcvtnq_s32_f32((float32x4_t)v);
#elif KP_LANES == 1
    return (int32_t)kp_rint(v);
#else
    typedef int32_t kp_ints __attribute__((vector_size(4 * KP_LANES)));
    typedef float kp_reals __attribute__((vector_size(4 * KP_LANES)));
    return (kp_vi32)__builtin_convertvector((kp_reals)kp_rint(v), kp_ints);
#endif
}

/* The low bytes of the first n lanes. */
static inline void kp_store_bytes(uint8_t *p, kp_vi32 v, long n) {
#if KP_AVX512
    __m128i bytes = _mm512_cvtepi32_epi8((__m512i)v);
    if (n == KP_LANES) _mm_storeu_si128((__m128i *)p, bytes);
    else _mm_mask_storeu_epi8(p, (__mmask16)((1u << n) - 1), bytes);
#else
#if KP_AVX
    __m256i x = (__m256i)(v & kp_splat_int(255));
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extractf128_si256(x, 1));
    __m128i bytes = _mm_packus_epi16(words, words);
#elif KP_SSE
    __m128i low = (__m128i)(v & kp_splat_int(255));
    __m128i words = _mm_packs_epi32(low, low);
    __m128i bytes = _mm_packus_epi16(words, words);
#elif KP_NEON
    uint16x4_t words = vmovn_u32((uint32x4_t)v);
    uint8x8_t bytes = vmovn_u16(vcombine_u16(words, words));
#else
    int32_t x[KP_LANES];
    uint8_t bytes[KP_LANES];
    memcpy(x, &v, sizeof x);
    for (int i = 0; i < KP_LANES; i++) bytes[i] = (uint8_t)x[i];
#endif
    if (n == KP_LANES) memcpy(p, &bytes, KP_LANES);
    else memcpy(p, &bytes, (size_t)n);
#endif
}

/* Pairs of bytes, n <= 2 KP_LANES in all: the first as the lowest bits of a lane, the second as the
   next ones. */
static inline kp_vi32 kp_load_byte_pairs(const uint8_t *p, long n) {
    uint8_t bytes[2 * KP_LANES] = {0};
    if (n == 2 * KP_LANES) memcpy(bytes, p, 2 * KP_LANES);
    else memcpy(bytes, p, (size_t)n);
#if KP_AVX512
    return (kp_vi32)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)bytes));
#elif KP_AVX && defined(__AVX2__)
    return (kp_vi32)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)bytes));
#else
    int32_t pairs[KP_LANES];
    kp_vi32 v;
    for (int i = 0; i < KP_LANES; i++) pairs[i] = bytes[2 * i] | bytes[2 * i + 1] << 8;
    memcpy(&v, pairs, sizeof v);
    return v;
#endif
}

/* The first or the second byte of each pair. */
static inline kp_vi32 kp_byte_of_pairs(kp_vi32 pairs, int second) {
    if (second) return (kp_vi32)(pairs >> 8);
    return (kp_vi32)(pairs & kp_splat_int(0xFF));
}

/* n bytes as the first lanes, the other lanes are 0. */
static inline kp_vf32 kp_load_bytes(const uint8_t *p, long n) {
#if KP_AVX512
    __m128i bytes = n == KP_LANES ? _mm_loadu_si128((const __m128i *)p)
                                  : _mm_maskz_loadu_epi8((__mmask16)((1u << n) - 1), p);
    return kp_floats((kp_vi32)_mm512_cvtepu8_epi32(bytes));
#else
    uint8_t bytes[KP_LANES] = {0};
    if (n == KP_LANES) memcpy(bytes, p, KP_LANES);
    else memcpy(bytes, p, (size_t)n);
#if KP_AVX && defined(__AVX2__)
    return kp_floats((kp_vi32)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)bytes)));
#elif KP_SSE
    __m128i zero = _mm_setzero_si128();
    __m128i words = _mm_unpacklo_epi8(_mm_cvtsi32_si128(kp_quad(bytes)), zero);
    return kp_floats((kp_vi32)_mm_unpacklo_epi16(words, zero));
#else
    float x[KP_LANES];
    kp_vf32 v;
    for (int i = 0; i < KP_LANES; i++) x[i] = bytes[i];
    memcpy(&v, x, sizeof v);
    return v;
#endif
#endif
}

/* v, with 0 in the lanes that are NaN.  x86 needs it not where only the low byte of an integer is
   stored: there NaN becomes the integer 2^31. */
static inline kp_vf32 kp_number(kp_vf32 v) {
#if KP_AVX512 || KP_AVX || KP_SSE
    return v;
#else
    return kp_from_bits(kp_bits(v) & kp_eq(v, v));
#endif
}

static inline kp_vi32 kp_larger_int(kp_vi32 a, kp_vi32 b) {
#if KP_LANES > 1
    kp_vi32 mask = a > b;
    return (a & mask) | (b & ~mask);
#else
    return a > b ? a : b;
#endif
}
static inline int32_t kp_largest_int(kp_vi32 v) {
    int32_t x[KP_LANES], top;
    memcpy(x, &v, sizeof x);
    top = x[0];
    for (int i = 1; i < KP_LANES; i++) top = x[i] > top ? x[i] : top;
    return top;
}

static inline kp_vi32 kp_load_ints(const int32_t *p) {
    kp_vi32 v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void kp_store_ints(int32_t *p, kp_vi32 v) { memcpy(p, &v, sizeof v); }

#endif
