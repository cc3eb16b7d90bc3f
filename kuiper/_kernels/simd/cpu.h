/* Which variants may run: those in this build (setup.py defines KUIPER_HAS_...) whose instructions the
   CPU has and whose registers the operating system saves; __builtin_cpu_supports checks both by cpuid
   and xgetbv.  Every 64-bit Arm has NEON. */
#ifndef KUIPER_CPU_H
#define KUIPER_CPU_H

#include <string.h>

#if defined(KUIPER_HAS_AVX2)
static inline int kp_cpu_has_avx2(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
static inline int kp_cpu_has_avx2(void) { return 0; }
#endif

#if defined(KUIPER_HAS_AVX_VNNI)
#include <cpuid.h>

static inline int kp_cpu_has_avx_vnni(void) {
    if (!kp_cpu_has_avx2()) return 0;
#if defined(KUIPER_EVEX)
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl");
#else
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || a < 1) return 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
#endif
}
#else
static inline int kp_cpu_has_avx_vnni(void) { return 0; }
#endif

#if defined(KUIPER_HAS_AVX512)
static inline int kp_cpu_has_avx512(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
}
#else
static inline int kp_cpu_has_avx512(void) { return 0; }
#endif

#if defined(KUIPER_HAS_AVX512_VNNI)
static inline int kp_cpu_has_avx512_vnni(void) {
    return kp_cpu_has_avx512() && __builtin_cpu_supports("avx512vnni");
}
#else
static inline int kp_cpu_has_avx512_vnni(void) { return 0; }
#endif

/* Whether the processor announces the instructions, and whether it executes them: a virtual machine
   may hide them.  The trial is for a user who asks for them by name. */
#if defined(KUIPER_HAS_AVX512_BF16)
#include <setjmp.h>
#include <signal.h>

static inline int kp_cpu_has_avx512_bf16(void) {
    return kp_cpu_has_avx512() && __builtin_cpu_supports("avx512bf16");
}

static sigjmp_buf kp_before_trial;
static void kp_end_trial(int number) { siglongjmp(kp_before_trial, number); }

static inline int kp_cpu_runs_avx512_bf16(void) {
    static volatile int known = -1;
    struct sigaction guard, before;
    if (known >= 0) return known;
    if (kp_cpu_has_avx512_bf16() || !kp_cpu_has_avx512()) return known = kp_cpu_has_avx512_bf16();
    memset(&guard, 0, sizeof guard);
    guard.sa_handler = kp_end_trial;
    sigemptyset(&guard.sa_mask);
    if (sigaction(SIGILL, &guard, &before)) return known = 0;
    if (!sigsetjmp(kp_before_trial, 1)) {
        __asm__ volatile(".byte 0x62, 0xF2, 0x7E, 0x48, 0x52, 0xC0" ::: "xmm0"); /* vdpbf16ps */
        known = 1;
    } else {
        known = 0;
    }
    sigaction(SIGILL, &before, NULL);
    return known;
}
#else
static inline int kp_cpu_has_avx512_bf16(void) { return 0; }
static inline int kp_cpu_runs_avx512_bf16(void) { return 0; }
#endif

/* Tile registers with products of bfloat16 and of bytes.  Linux gives their 8 KB to processes that ask
   for them: before that an instruction on tiles is a fault. */
#if defined(KUIPER_HAS_AMX) && defined(KUIPER_EMULATE_AMX)
static inline int kp_cpu_has_amx(void) {
    return kp_cpu_has_avx512_vnni() && kp_cpu_has_avx512_bf16();
}
#elif defined(KUIPER_HAS_AMX) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { KP_REQUEST_PERMISSION = 0x1023, KP_TILE_DATA = 18 }; /* of arch_prctl(2) */

static inline int kp_ask_for_amx(void) {
    const unsigned needed = 1u << 22 | 1u << 24 | 1u << 25; /* AMX-BF16, AMX-TILE, AMX-INT8 */
    unsigned a, b, c, d, saved, high;
    if (!kp_cpu_has_avx512_vnni() || !kp_cpu_has_avx512_bf16()) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & needed) != needed) return 0;
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if ((saved >> 17 & 3) != 3) return 0;
    return syscall(SYS_arch_prctl, KP_REQUEST_PERMISSION, KP_TILE_DATA) == 0;
}
static inline int kp_cpu_has_amx(void) {
    static volatile int known = -1;
    if (known < 0) known = kp_ask_for_amx();
    return known;
}
#else
static inline int kp_cpu_has_amx(void) { return 0; }
#endif

#if defined(KUIPER_HAS_NEON)
static inline int kp_cpu_has_neon(void) { return 1; }
#else
static inline int kp_cpu_has_neon(void) { return 0; }
#endif

/* All of Apple's processors have the dot product. */
#if defined(KUIPER_HAS_NEON_DOT) && defined(__APPLE__)
static inline int kp_cpu_has_neon_dot(void) { return 1; }
#elif defined(KUIPER_HAS_NEON_DOT) && defined(__linux__)
#include <sys/auxv.h>
static inline int kp_cpu_has_neon_dot(void) { return getauxval(AT_HWCAP) >> 20 & 1; }
#else
static inline int kp_cpu_has_neon_dot(void) { return 0; }
#endif

#endif
