/* Vectors of unsigned bytes, for maxima and for tables of 256 bytes. */
#ifndef KUIPER_BYTES_H
#define KUIPER_BYTES_H

#include "vec.h"

/* A wide vector has as many bytes as a vector of floats, a narrow one 16. */
#define KP_NARROW 16
#if KP_LANES > 4
#define KP_WIDE (4 * KP_LANES)
#else
#define KP_WIDE KP_NARROW
#endif

#if KP_SSE || KP_AVX || KP_AVX512
typedef __m128i kp_narrow;
static inline kp_narrow kp_narrow_load(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }
static inline void kp_narrow_store(uint8_t *p, kp_narrow v) { _mm_storeu_si128((__m128i *)p, v); }
static inline kp_narrow kp_narrow_max(kp_narrow a, kp_narrow b) { return _mm_max_epu8(a, b); }
#elif KP_NEON
typedef uint8x16_t kp_narrow;
static inline kp_narrow kp_narrow_load(const uint8_t *p) { return vld1q_u8(p); }
static inline void kp_narrow_store(uint8_t *p, kp_narrow v) { vst1q_u8(p, v); }
static inline kp_narrow kp_narrow_max(kp_narrow a, kp_narrow b) { return vmaxq_u8(a, b); }
#else
typedef struct { uint8_t byte[KP_NARROW]; } kp_narrow;
static inline kp_narrow kp_narrow_load(const uint8_t *p) {
    kp_narrow v;
    memcpy(v.byte, p, KP_NARROW);
    return v;
}
static inline void kp_narrow_store(uint8_t *p, kp_narrow v) { memcpy(p, v.byte, KP_NARROW); }
static inline kp_narrow kp_narrow_max(kp_narrow a, kp_narrow b) {
    for (int i = 0; i < KP_NARROW; i++) a.byte[i] = a.byte[i] > b.byte[i] ? a.byte[i] : b.byte[i];
    return a;
}
#endif

/* The first n < KP_NARROW bytes, then zeros. */
static inline kp_narrow kp_narrow_load_n(const uint8_t *p, long n) {
    uint8_t bytes[KP_NARROW] = {0};
    memcpy(bytes, p, (size_t)n);
    return kp_narrow_load(bytes);
}
static inline void kp_narrow_store_n(uint8_t *p, kp_narrow v, long n) {
    uint8_t bytes[KP_NARROW];
    kp_narrow_store(bytes, v);
    memcpy(p, bytes, (size_t)n);
}

#if KP_AVX512 && defined(__AVX512BW__)
typedef __m512i kp_wide;
static inline kp_wide kp_wide_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
static inline void kp_wide_store(uint8_t *p, kp_wide v) { _mm512_storeu_si512(p, v); }
static inline kp_wide kp_wide_max(kp_wide a, kp_wide b) { return _mm512_max_epu8(a, b); }
#elif KP_AVX && defined(__AVX2__)
typedef __m256i kp_wide;
static inline kp_wide kp_wide_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline void kp_wide_store(uint8_t *p, kp_wide v) { _mm256_storeu_si256((__m256i *)p, v); }
static inline kp_wide kp_wide_max(kp_wide a, kp_wide b) { return _mm256_max_epu8(a, b); }
#else
#undef KP_WIDE
#define KP_WIDE KP_NARROW
typedef kp_narrow kp_wide;
static inline kp_wide kp_wide_load(const uint8_t *p) { return kp_narrow_load(p); }
static inline void kp_wide_store(uint8_t *p, kp_wide v) { kp_narrow_store(p, v); }
static inline kp_wide kp_wide_max(kp_wide a, kp_wide b) { return kp_narrow_max(a, b); }
#endif

static const uint8_t kp_zero_bytes[KP_WIDE];

/* y[i] = table[x[i]] for i < n; y may be x. */
static inline void kp_lookup_items(ptrdiff_t n, const uint8_t *x, uint8_t *y, const uint8_t *table) {
    for (ptrdiff_t i = 0; i < n; i++) y[i] = table[x[i]];
}

#if KP_AVX512 && defined(__AVX512BW__) && defined(__GNUC__)
/* Two instructions look 64 bytes up in either half of the table, where the processor has them. */
__attribute__((target("avx512vbmi"))) static void kp_lookup_vectors(
    ptrdiff_t n, const uint8_t *x, uint8_t *y, const uint8_t *table
) {
    __m512i t0 = _mm512_loadu_si512(table), t1 = _mm512_loadu_si512(table + 64);
    __m512i t2 = _mm512_loadu_si512(table + 128), t3 = _mm512_loadu_si512(table + 192);
    for (ptrdiff_t i = 0; i < n; i += 64) {
        __mmask64 some = n - i < 64 ? ((__mmask64)1 << (n - i)) - 1 : ~(__mmask64)0;
        __m512i v = _mm512_maskz_loadu_epi8(some, x + i);
        __m512i low = _mm512_permutex2var_epi8(t0, v, t1), high = _mm512_permutex2var_epi8(t2, v, t3);
        _mm512_mask_storeu_epi8(y + i, some, _mm512_mask_blend_epi8(_mm512_movepi8_mask(v), low, high));
    }
}
static inline int kp_looks_up_vectors(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512vbmi");
}
#else
static inline void kp_lookup_vectors(ptrdiff_t n, const uint8_t *x, uint8_t *y, const uint8_t *table) {
    kp_lookup_items(n, x, y, table);
}
static inline int kp_looks_up_vectors(void) { return 0; }
#endif

#endif
