/* Tile registers: 16 rows of 64 bytes each, and the instructions of AMX on them.

   The registers have one configuration in kuiper, of 16 whole rows; what is narrower or lower is
   padded in memory.  The kernel of Linux gives the registers to a process that asks for them
   (cpu.h).  Other code of the thread may configure them differently: kp_amx_configure looks, which
   costs a tenth of configuring them.  They are released after a thread's share of a job, for
   registers in use make a change of threads dearer and keep the core awake.

   As assembly, for the intrinsics of gcc 12 do not say that they read and write memory.
   KUIPER_EMULATE_AMX does the same in C, for tests on other processors. */
#ifndef KUIPER_AMX_H
#define KUIPER_AMX_H

#include <stdint.h>
#include <string.h>

#include <immintrin.h>

enum { KP_AMX_ROWS = 16, KP_AMX_BYTES = 64 };

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} kp_amx_config;

#define KP_AMX_EIGHT(x) {x, x, x, x, x, x, x, x}
static const kp_amx_config kp_amx_wanted __attribute__((aligned(64))) = {
    1, 0, {0}, KP_AMX_EIGHT(KP_AMX_BYTES), KP_AMX_EIGHT(KP_AMX_ROWS)};

static inline int kp_amx_differs(const kp_amx_config *now) {
    __m512i other = _mm512_load_si512(now);
    return _mm512_cmpneq_epi64_mask(other, _mm512_load_si512(&kp_amx_wanted)) != 0;
}

#if defined(KUIPER_EMULATE_AMX)

#include <math.h>
#include <stdlib.h>

static _Thread_local kp_amx_config kp_amx_now __attribute__((aligned(64)));
static _Thread_local uint8_t kp_amx_tile[8][KP_AMX_ROWS][KP_AMX_BYTES];

static inline void kp_amx_configure(void) {
    if (!kp_amx_differs(&kp_amx_now)) return;
    kp_amx_now = kp_amx_wanted;
    memset(kp_amx_tile, 0, sizeof kp_amx_tile);
}
static inline void kp_amx_release(void) { memset(&kp_amx_now, 0, sizeof kp_amx_now); }

static inline void kp_amx_zero(int tile) { memset(kp_amx_tile[tile], 0, sizeof kp_amx_tile[tile]); }
static inline void kp_amx_load(int tile, const void *from, ptrdiff_t step) {
    if (kp_amx_differs(&kp_amx_now)) abort();
    for (int i = 0; i < KP_AMX_ROWS; i++)
        memcpy(kp_amx_tile[tile][i], (const char *)from + i * step, KP_AMX_BYTES);
}
static inline void kp_amx_store(int tile, void *to, ptrdiff_t step) {
    if (kp_amx_differs(&kp_amx_now)) abort();
    for (int i = 0; i < KP_AMX_ROWS; i++)
        memcpy((char *)to + i * step, kp_amx_tile[tile][i], KP_AMX_BYTES);
}

static inline float kp_amx_flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
static inline float kp_amx_term(const uint8_t *p) {
    uint32_t bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float x;
    memcpy(&x, &bits, sizeof x);
    return kp_amx_flushed(x);
}
/* First and second terms of pairs have a sum each, and the two are added to what was there. */
static inline void kp_amx_dot_pairs(int c, int a, int b) {
    if (kp_amx_differs(&kp_amx_now)) abort();
    for (int i = 0; i < KP_AMX_ROWS; i++)
        for (int j = 0; j < KP_AMX_ROWS; j++) {
            float sums[2] = {0, 0}, sum;
            uint8_t *at = kp_amx_tile[c][i] + 4 * j;
            memcpy(&sum, at, sizeof sum);
            for (int k = 0; k < KP_AMX_ROWS; k++)
                for (int q = 0; q < 2; q++) {
                    float x = kp_amx_term(kp_amx_tile[a][i] + 4 * k + 2 * q);
                    float w = kp_amx_term(kp_amx_tile[b][k] + 4 * j + 2 * q);
                    sums[q] = kp_amx_flushed(fmaf(x, w, sums[q]));
                }
            sum = kp_amx_flushed(kp_amx_flushed(sum) + kp_amx_flushed(sums[0] + sums[1]));
            memcpy(at, &sum, sizeof sum);
        }
}
/* Unsigned bytes of a, signed bytes of b. */
static inline void kp_amx_dot_bytes(int c, int a, int b) {
    if (kp_amx_differs(&kp_amx_now)) abort();
    for (int i = 0; i < KP_AMX_ROWS; i++)
        for (int j = 0; j < KP_AMX_ROWS; j++) {
            uint32_t sum; /* wraps */
            uint8_t *at = kp_amx_tile[c][i] + 4 * j;
            memcpy(&sum, at, sizeof sum);
            for (int k = 0; k < KP_AMX_BYTES; k++) {
                int8_t w = (int8_t)kp_amx_tile[b][k / 4][4 * j + k % 4];
                sum += (uint32_t)(kp_amx_tile[a][i][k] * w);
            }
            memcpy(at, &sum, sizeof sum);
        }
}

#else

static inline void kp_amx_configure(void) {
    kp_amx_config now __attribute__((aligned(64)));
    __asm__ volatile("sttilecfg %0" : "=m"(now));
    if (__builtin_expect(kp_amx_differs(&now), 0))
        __asm__ volatile("ldtilecfg %0" : : "m"(kp_amx_wanted));
}
static inline void kp_amx_release(void) { __asm__ volatile("tilerelease"); }

/* Numbers of tiles are constants of the instruction. */
#define kp_amx_zero(tile) __asm__ volatile("tilezero %%tmm" #tile ::: )
#define kp_amx_load(tile, from, step)                                                             \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"((const void *)(from)),              \
                     "r"((ptrdiff_t)(step)) : "memory")
#define kp_amx_store(tile, to, step)                                                              \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"((void *)(to)),                  \
                     "r"((ptrdiff_t)(step)) : "memory")
#define kp_amx_dot_pairs(c, a, b)                                                                 \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: )
#define kp_amx_dot_bytes(c, a, b)                                                                 \
    __asm__ volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: )

#endif

#endif
