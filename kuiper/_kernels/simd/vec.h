/* One vector of floats, as wide as the instruction set that this file is compiled for.

   The vector extensions of GCC and clang provide + - * / and comparisons, so micro-kernels read like
   scalar code; operations without a C operator are below.  Without the extensions, or with
   KUIPER_NO_VECTORS, a vector has one lane, which is slow but correct.  KUIPER_NEON selects Arm's
   intrinsics; without it a build for Arm uses the extensions only, like one for any other machine. */
#ifndef KUIPER_VEC_H
#define KUIPER_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(KUIPER_NO_VECTORS) || !defined(__GNUC__)
#define KP_LANES 1
#elif defined(__AVX512F__)
#define KP_AVX512 1
#define KP_LANES 16
#elif defined(__AVX__)
#define KP_AVX 1
#define KP_LANES 8
#elif defined(__SSE2__)
#define KP_SSE 1
#define KP_LANES 4
#elif defined(KUIPER_NEON)
#define KP_NEON 1
#define KP_LANES 4
#else
#define KP_LANES 4
#endif

#if KP_AVX512 || KP_AVX || KP_SSE
#include <immintrin.h>
#elif KP_NEON
#include <arm_neon.h>
#endif

/* Whether optimising compilers contract a product and a sum into one FMA, which rounds once. */
#if (defined(__FMA__) || defined(__ARM_FEATURE_FMA)) && !defined(KUIPER_UNFUSED)
#define KP_FUSES 1
#else
#define KP_FUSES 0
#endif

/* Number of vector registers, which determines the sizes of tiles. */
#if KP_AVX512 || KP_NEON
#define KP_REGISTERS 32
#else
#define KP_REGISTERS 16
#endif

#if KP_LANES > 1

typedef float kp_vf32 __attribute__((vector_size(4 * KP_LANES), aligned(4), may_alias));
typedef int32_t kp_vi32 __attribute__((vector_size(4 * KP_LANES), aligned(4), may_alias));

/* Floats at any byte address, such as weights in a file. */
typedef float kp_f32_any __attribute__((aligned(1), may_alias));
typedef float kp_vf32_any __attribute__((vector_size(4 * KP_LANES), aligned(1), may_alias));

static inline kp_vf32 kp_load(const float *p) { return *(const kp_vf32 *)p; }
static inline kp_vf32 kp_load_any(const kp_f32_any *p) { return *(const kp_vf32_any *)p; }
static inline void kp_store(float *p, kp_vf32 v) { *(kp_vf32 *)p = v; }
/* x - 0 keeps every x, -0.0 included, so the compiler turns it into a plain broadcast. */
static inline kp_vf32 kp_splat(float x) { kp_vf32 zero = {0}; return x - zero; }
static inline kp_vi32 kp_splat_int(int32_t x) { kp_vi32 zero = {0}; return x - zero; }

#else

typedef float kp_vf32;
typedef int32_t kp_vi32;
#if defined(__GNUC__)
typedef float kp_f32_any __attribute__((aligned(1), may_alias));
#else
typedef float kp_f32_any;
#endif

static inline kp_vf32 kp_load(const float *p) { return *p; }
static inline kp_vf32 kp_load_any(const kp_f32_any *p) { return *p; }
static inline void kp_store(float *p, kp_vf32 v) { *p = v; }
static inline kp_vf32 kp_splat(float x) { return x; }
static inline kp_vi32 kp_splat_int(int32_t x) { return x; }

#endif

/* For loops that use all registers, in which gcc would otherwise spill and copy sums:
   kp_accumulate overwrites acc with acc + a * b, where gcc sometimes overwrites a factor;
   kp_set_aside keeps a value that is used only after the loop in memory. */
#if KP_AVX512 && KP_FUSES && !defined(__clang__)
static inline kp_vf32 kp_accumulate(kp_vf32 acc, kp_vf32 a, kp_vf32 b) {
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
}
static inline void kp_set_aside(float *x) { __asm__("" : "+m"(*x)); }
#else
static inline kp_vf32 kp_accumulate(kp_vf32 acc, kp_vf32 a, kp_vf32 b) { return acc + a * b; }
static inline void kp_set_aside(float *x) { (void)x; }
#endif

/* Store an aligned cache line around the caches (AVX-512); otherwise as kp_store.  Other threads see
   the line after the storing thread's next locked operation, such as the end of a step. */
#if KP_AVX512
static inline void kp_stream(float *p, kp_vf32 v) { _mm512_stream_ps(p, (__m512)v); }
#else
static inline void kp_stream(float *p, kp_vf32 v) { kp_store(p, v); }
#endif

/* Prefetch a cache line into the L2 cache; the address may be invalid. */
#if defined(__GNUC__)
static inline void kp_prefetch(const float *p) { __builtin_prefetch(p, 0, 2); }
#else
static inline void kp_prefetch(const float *p) { (void)p; }
#endif

/* n, which is less than KP_LANES: the compiler can drop code for whole vectors. */
static inline long kp_rest(long n) {
#if defined(__GNUC__)
    if (n >= KP_LANES) __builtin_unreachable();
#endif
    return n;
}

static inline kp_vi32 kp_bits(kp_vf32 v) { kp_vi32 b; memcpy(&b, &v, sizeof b); return b; }
static inline kp_vf32 kp_from_bits(kp_vi32 b) { kp_vf32 v; memcpy(&v, &b, sizeof v); return v; }

/* Comparisons give all ones or all zeros per lane. */
#if KP_LANES > 1
static inline kp_vi32 kp_lt(kp_vf32 a, kp_vf32 b) { return a < b; }
static inline kp_vi32 kp_le(kp_vf32 a, kp_vf32 b) { return a <= b; }
static inline kp_vi32 kp_eq(kp_vf32 a, kp_vf32 b) { return a == b; }
static inline kp_vi32 kp_eq_int(kp_vi32 a, kp_vi32 b) { return a == b; }
#else
static inline kp_vi32 kp_lt(kp_vf32 a, kp_vf32 b) { return -(a < b); }
static inline kp_vi32 kp_le(kp_vf32 a, kp_vf32 b) { return -(a <= b); }
static inline kp_vi32 kp_eq(kp_vf32 a, kp_vf32 b) { return -(a == b); }
static inline kp_vi32 kp_eq_int(kp_vi32 a, kp_vi32 b) { return -(a == b); }
#endif
static inline kp_vf32 kp_select(kp_vi32 mask, kp_vf32 a, kp_vf32 b) {
    return kp_from_bits((kp_bits(a) & mask) | (kp_bits(b) & ~mask));
}

/* x 2^n for 1/2 <= x < 2 and whole n, -252 <= n <= 254; rounds once, also to denormals. */
#if KP_AVX512
static inline kp_vf32 kp_scaled(kp_vf32 x, kp_vf32 n) {
    /* Mask the lanes that underflow to 0: on Intel processors a vector with such a lane takes as long
       as two hundred others. */
    __mmask16 stays = _mm512_cmp_ps_mask((__m512)n, _mm512_set1_ps(-150.0f), _CMP_NLT_UQ);
    return (kp_vf32)_mm512_maskz_scalef_ps(stays, (__m512)x, (__m512)n);
}
#else
static inline kp_vf32 kp_scaled(kp_vf32 x, kp_vf32 n) {
    /* Floats near 3 2^22 are 1 apart, so the low bits of the sum are n. */
    kp_vi32 whole = kp_bits(n + kp_splat(12582912.0f)) - kp_splat_int(0x4B400000);
    kp_vi32 half = whole >> 1;
    return x * kp_from_bits((half + kp_splat_int(127)) << 23)
             * kp_from_bits((whole - half + kp_splat_int(127)) << 23);
}
#endif

/* max and min return the second operand if either is NaN: max(bound, x) keeps a NaN in x. */
#if KP_AVX512
static inline kp_vf32 kp_max(kp_vf32 a, kp_vf32 b) { return (kp_vf32)_mm512_max_ps((__m512)a, (__m512)b); }
static inline kp_vf32 kp_min(kp_vf32 a, kp_vf32 b) { return (kp_vf32)_mm512_min_ps((__m512)a, (__m512)b); }
static inline kp_vf32 kp_sqrt(kp_vf32 v) { return (kp_vf32)_mm512_sqrt_ps((__m512)v); }
static inline kp_vf32 kp_floor(kp_vf32 v) { return (kp_vf32)_mm512_roundscale_ps((__m512)v, 9); }
static inline kp_vf32 kp_ceil(kp_vf32 v) { return (kp_vf32)_mm512_roundscale_ps((__m512)v, 10); }
static inline kp_vf32 kp_trunc(kp_vf32 v) { return (kp_vf32)_mm512_roundscale_ps((__m512)v, 11); }
static inline kp_vf32 kp_rint(kp_vf32 v) { return (kp_vf32)_mm512_roundscale_ps((__m512)v, 8); }
static inline kp_vf32 kp_load_n(const float *p, long n) {
    return (kp_vf32)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
static inline void kp_store_n(float *p, kp_vf32 v, long n) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
}
#elif KP_AVX
static inline kp_vf32 kp_max(kp_vf32 a, kp_vf32 b) { return (kp_vf32)_mm256_max_ps((__m256)a, (__m256)b); }
static inline kp_vf32 kp_min(kp_vf32 a, kp_vf32 b) { return (kp_vf32)_mm256_min_ps((__m256)a, (__m256)b); }
static inline kp_vf32 kp_sqrt(kp_vf32 v) { return (kp_vf32)_mm256_sqrt_ps((__m256)v); }
static inline kp_vf32 kp_floor(kp_vf32 v) { return (kp_vf32)_mm256_round_ps((__m256)v, 9); }
static inline kp_vf32 kp_ceil(kp_vf32 v) { return (kp_vf32)_mm256_round_ps((__m256)v, 10); }
static inline kp_vf32 kp_trunc(kp_vf32 v) { return (kp_vf32)_mm256_round_ps((__m256)v, 11); }
static inline kp_vf32 kp_rint(kp_vf32 v) { return (kp_vf32)_mm256_round_ps((__m256)v, 8); }
static inline __m256i kp_first_n(long n) {
    static const int32_t ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(ones + 8 - n));
}
static inline kp_vf32 kp_load_n(const float *p, long n) {
    return (kp_vf32)_mm256_maskload_ps(p, kp_first_n(n));
}
static inline void kp_store_n(float *p, kp_vf32 v, long n) {
    _mm256_maskstore_ps(p, kp_first_n(n), (__m256)v);
}
#elif KP_SSE
static inline kp_vf32 kp_max(kp_vf32 a, kp_vf32 b) { return (kp_vf32)_mm_max_ps((__m128)a, (__m128)b); }
static inline kp_vf32 kp_min(kp_vf32 a, kp_vf32 b) { return (kp_vf32)_mm_min_ps((__m128)a, (__m128)b); }
static inline kp_vf32 kp_sqrt(kp_vf32 v) { return (kp_vf32)_mm_sqrt_ps((__m128)v); }
static inline kp_vi32 kp_to_int(kp_vf32 v) { return (kp_vi32)_mm_cvttps_epi32((__m128)v); }
static inline kp_vf32 kp_to_float(kp_vi32 v) { return (kp_vf32)_mm_cvtepi32_ps((__m128i)v); }
/* SSE2 rounds by conversion to integers; floats >= 2^23 are integers already, and NaN is kept. */
static inline kp_vf32 kp_if_small(kp_vf32 v, kp_vi32 whole) {
    kp_vi32 sign = kp_bits(v) & kp_splat_int(INT32_MIN);
    kp_vi32 is_small = kp_lt(kp_from_bits(kp_bits(v) ^ sign), kp_splat(8388608.0f));
    return kp_select(is_small, kp_from_bits(kp_bits(kp_to_float(whole)) | sign), v);
}
static inline kp_vf32 kp_trunc(kp_vf32 v) { return kp_if_small(v, kp_to_int(v)); }
static inline kp_vf32 kp_rint(kp_vf32 v) { return kp_if_small(v, (kp_vi32)_mm_cvtps_epi32((__m128)v)); }
static inline kp_vf32 kp_floor(kp_vf32 v) {
    kp_vf32 t = kp_trunc(v);
    return t - kp_from_bits(kp_lt(v, t) & kp_bits(kp_splat(1.0f)));
}
static inline kp_vf32 kp_ceil(kp_vf32 v) {
    kp_vf32 t = kp_trunc(v); /* t - -1 and t - 0: t + 0 would turn -0.0 into 0.0 */
    return t - kp_from_bits(kp_lt(t, v) & kp_bits(kp_splat(-1.0f)));
}
static inline __m128 kp_load_1(const float *p) { return _mm_set_ss(*(const kp_f32_any *)p); }
static inline kp_vf32 kp_load_n(const float *p, long n) {
    if (n == 0) return kp_splat(0.0f);
    if (n == 1) return (kp_vf32)kp_load_1(p);
    __m128 low = _mm_loadl_pi(_mm_setzero_ps(), (const __m64 *)p);
    return (kp_vf32)(n == 3 ? _mm_movelh_ps(low, kp_load_1(p + 2)) : low);
}
static inline void kp_store_n(float *p, kp_vf32 v, long n) {
    if (n >= 2) _mm_storel_pi((__m64 *)p, (__m128)v);
    if (n == 1) _mm_store_ss(p, (__m128)v);
    if (n == 3) _mm_store_ss(p + 2, _mm_movehl_ps((__m128)v, (__m128)v));
}
#elif KP_NEON
/* The instructions for maximum and minimum differ from x86's for NaN and for 0.0 and -0.0. */
static inline kp_vf32 kp_max(kp_vf32 a, kp_vf32 b) {
    float32x4_t x = (float32x4_t)a, y = (float32x4_t)b;
    return (kp_vf32)vbslq_f32(vcgtq_f32(x, y), x, y);
}
static inline kp_vf32 kp_min(kp_vf32 a, kp_vf32 b) {
    float32x4_t x = (float32x4_t)a, y = (float32x4_t)b;
    return (kp_vf32)vbslq_f32(vcltq_f32(x, y), x, y);
}
static inline kp_vf32 kp_sqrt(kp_vf32 v) { return (kp_vf32)vsqrtq_f32((float32x4_t)v); }
static inline kp_vf32 kp_floor(kp_vf32 v) { return (kp_vf32)vrndmq_f32((float32x4_t)v); }
static inline kp_vf32 kp_ceil(kp_vf32 v) { return (kp_vf32)vrndpq_f32((float32x4_t)v); }
static inline kp_vf32 kp_trunc(kp_vf32 v) { return (kp_vf32)vrndq_f32((float32x4_t)v); }
static inline kp_vf32 kp_rint(kp_vf32 v) { return (kp_vf32)vrndnq_f32((float32x4_t)v); }
static inline kp_vf32 kp_load_n(const float *p, long n) {
    float32x4_t v = vdupq_n_f32(0.0f);
    if (n >= 2) v = vcombine_f32(vld1_f32(p), vdup_n_f32(0.0f));
    if (n == 1) v = vld1q_lane_f32(p, v, 0);
    if (n == 3) v = vld1q_lane_f32(p + 2, v, 2);
    /* Hides how v depends on n: for n = 0 gcc would otherwise hoist products of v into the branches,
       where they are rounded before they are added. */
    __asm__ volatile("" : "+w"(v));
    return (kp_vf32)v;
}
static inline void kp_store_n(float *p, kp_vf32 v, long n) {
    float32x4_t x = (float32x4_t)v;
    if (n >= 2) vst1_f32(p, vget_low_f32(x));
    if (n == 1) vst1q_lane_f32(p, x, 0);
    if (n == 3) vst1q_lane_f32(p + 2, x, 2);
}
#else
static inline kp_vf32 kp_max(kp_vf32 a, kp_vf32 b) { return kp_select(kp_lt(b, a), a, b); }
static inline kp_vf32 kp_min(kp_vf32 a, kp_vf32 b) { return kp_select(kp_lt(a, b), a, b); }
#define KP_EACH_LANE(name, scalar)                                                \
    static inline kp_vf32 name(kp_vf32 v) {                                       \
        float x[KP_LANES];                                                        \
        memcpy(x, &v, sizeof x);                                                  \
        for (int i = 0; i < KP_LANES; i++) x[i] = scalar(x[i]);                   \
        memcpy(&v, x, sizeof v);                                                  \
        return v;                                                                 \
    }
KP_EACH_LANE(kp_sqrt, sqrtf)
KP_EACH_LANE(kp_floor, floorf)
KP_EACH_LANE(kp_ceil, ceilf)
KP_EACH_LANE(kp_trunc, truncf)
KP_EACH_LANE(kp_rint, rintf)
static inline kp_vf32 kp_load_n(const float *p, long n) {
    float x[KP_LANES] = {0};
    kp_vf32 v;
    memcpy(x, p, (size_t)n * sizeof(float));
    memcpy(&v, x, sizeof v);
    return v;
}
static inline void kp_store_n(float *p, kp_vf32 v, long n) { memcpy(p, &v, (size_t)n * sizeof(float)); }
#endif

/* Lane i of the result is lane index[i] of v.  KP_PERMUTES: whether this is one instruction. */
#if KP_AVX512
#define KP_PERMUTES 1
static inline kp_vf32 kp_permute(kp_vf32 v, kp_vi32 index) {
    return (kp_vf32)_mm512_permutexvar_ps((__m512i)index, (__m512)v);
}
#elif defined(__AVX2__)
#define KP_PERMUTES 1
static inline kp_vf32 kp_permute(kp_vf32 v, kp_vi32 index) {
    return (kp_vf32)_mm256_permutevar8x32_ps((__m256)v, (__m256i)index);
}
#elif KP_NEON
#define KP_PERMUTES 1
static inline kp_vf32 kp_permute(kp_vf32 v, kp_vi32 index) {
    /* The instruction permutes bytes: those of lane i are 4 i to 4 i + 3. */
    uint32x4_t from = vmlaq_n_u32(vdupq_n_u32(0x03020100), (uint32x4_t)index, 0x04040404);
    return (kp_vf32)vqtbl1q_u8((uint8x16_t)v, (uint8x16_t)from);
}
#else
#define KP_PERMUTES 0
static inline kp_vf32 kp_permute(kp_vf32 v, kp_vi32 index) {
    float x[KP_LANES], y[KP_LANES];
    int32_t from[KP_LANES];
    memcpy(x, &v, sizeof x);
    memcpy(from, &index, sizeof from);
    for (int i = 0; i < KP_LANES; i++) y[i] = x[from[i]];
    memcpy(&v, y, sizeof v);
    return v;
}
#endif

/* Horizontal reductions in a fixed order, by folding halves onto each other. */
static inline float kp_reduce_add(kp_vf32 v) {
    float x[KP_LANES];
    memcpy(x, &v, sizeof x);
    for (int half = KP_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}
static inline float kp_reduce_max(kp_vf32 v) {
    float x[KP_LANES];
    memcpy(x, &v, sizeof x);
    float best = x[0];
    for (int i = 1; i < KP_LANES; i++)
        if (x[i] > best || x[i] != x[i]) best = x[i];
    return best;
}

/* A product that must be rounded before it is added; in some variants the compiler would otherwise
   contract the two into an FMA. */
static inline kp_vf32 kp_rounded(kp_vf32 v) {
#if KP_AVX512
    __asm__("" : "+v"(v));
#elif defined(__SSE2__) && defined(__GNUC__)
    __asm__("" : "+x"(v));
#elif defined(__aarch64__) && defined(__GNUC__)
    __asm__("" : "+w"(v));
#elif defined(__GNUC__)
    __asm__("" : "+m"(v));
#endif
    return v;
}

#endif
