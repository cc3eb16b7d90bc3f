/* What the CPU offers and the operating system saves on a context switch: the compiler's runtime asks
   cpuid and xgetbv. */
#ifndef KUIPER_CPU_H
#define KUIPER_CPU_H

#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
static inline int kp_cpu_has_avx2(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
static inline int kp_cpu_has_avx512(void) {
    return kp_cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
}
#else
static inline int kp_cpu_has_avx2(void) { return 0; }
static inline int kp_cpu_has_avx512(void) { return 0; }
#endif

#endif
