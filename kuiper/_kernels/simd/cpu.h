/* Which variants may run: those in this build (setup.py defines KUIPER_HAS_...) whose instructions the
   CPU has and whose registers the operating system saves; __builtin_cpu_supports checks both by cpuid
   and xgetbv.  Every 64-bit Arm has NEON. */
#ifndef KUIPER_CPU_H
#define KUIPER_CPU_H

#if defined(KUIPER_HAS_AVX2)
static inline int kp_cpu_has_avx2(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
static inline int kp_cpu_has_avx2(void) { return 0; }
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

#if defined(KUIPER_HAS_NEON)
static inline int kp_cpu_has_neon(void) { return 1; }
#else
static inline int kp_cpu_has_neon(void) { return 0; }
#endif

#endif
