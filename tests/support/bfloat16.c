/* Compare simd/bfloat16.h with the definition of rounding to nearest even, in exact arithmetic.
   Prints the differences; the last line states the width of the vectors. */
#include <stdio.h>
#include <stdlib.h>

#include "_kernels/simd/bfloat16.h"

static int faults = 0;

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static int is_nan(kp_bf16 half) { return (half & 0x7FFF) > 0x7F80; }

/* The nearer of the two neighbours, as magnitudes; the even one if they are equally near. */
static kp_bf16 nearest(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    kp_bf16 low = (kp_bf16)(bits >> 16), high = (kp_bf16)(low + 1);
    double below = fabs((double)float_of((uint32_t)low << 16)), at = fabs((double)x);
    /* Beyond the largest finite value, where the next one would be 2^128. */
    double above = (high & 0x7FFF) == 0x7F80 ? ldexp(1, 128) : fabs((double)float_of((uint32_t)high << 16));
    if ((bits & 0x7FFFFFFF) == 0x7F800000 || at == below) return low;
    if (at - below == above - at) return low & 1 ? high : low;
    return at - below < above - at ? low : high;
}

/* What one instruction makes of denormal floats. */
static int becomes_zero(float x) {
#if defined(__AVX512BF16__)
    return x != 0 && fabsf(x) < ldexpf(1, -126);
#else
    (void)x;
    return 0;
#endif
}

/* Heap memory of exactly the needed length, so that a sanitizer detects accesses beyond the end. */
static void check(const float *x, long n) {
    kp_bf16 *y = malloc((size_t)n * sizeof *y + !n);
    float back[KP_LANES], exact[KP_LANES];
    if (n == KP_LANES) kp_store_bf16(y, kp_load(x));
    else kp_store_bf16_n(y, kp_load(x), n);
    kp_store(back, n == KP_LANES ? kp_load_bf16(y) : kp_load_bf16_n(y, n));
    for (long i = 0; i < n; i++) {
        int same = y[i] == nearest(x[i]);
        if (x[i] != x[i]) same = is_nan(y[i]) && (y[i] & 0x40);
        if (becomes_zero(x[i])) same = !(y[i] & 0x7FFF);
        if (!same) {
            printf("%.9g becomes %04x, expected %04x\n", x[i], y[i], nearest(x[i]));
            faults++;
        }
        exact[i] = float_of((uint32_t)y[i] << 16);
    }
    for (long i = n; i < KP_LANES; i++) exact[i] = 0;
    if (memcmp(back, exact, sizeof exact)) {
        printf("load_bf16_n: another value than was stored, n = %ld\n", n);
        faults++;
    }
    free(y);
}

static void check_pairs(void) {
    kp_bf16 x[2 * KP_LANES];
    float first[KP_LANES], second[KP_LANES];
    for (int i = 0; i < 2 * KP_LANES; i++) x[i] = (kp_bf16)(0xBF80 + 7 * i);
    kp_store(first, kp_first_of_pairs(kp_load_pairs(x)));
    kp_store(second, kp_second_of_pairs(kp_load_pairs(x)));
    for (int i = 0; i < KP_LANES; i++)
        if (first[i] != float_of((uint32_t)x[2 * i] << 16) || second[i] != float_of((uint32_t)x[2 * i + 1] << 16)) {
            printf("pair %d: %g and %g\n", i, first[i], second[i]);
            faults++;
        }
}

int main(void) {
    /* Upper halves: zeros, denormals, the smallest and largest numbers, infinity, NaN; each with lower
       halves around the points where the rounding changes. */
    static const uint32_t upper[] = {
        0x0000, 0x0001, 0x0002, 0x007F, 0x0080, 0x3F7F, 0x3F80, 0x3F81, 0x42FF, 0x7F7E, 0x7F7F,
        0x7F80, 0x7FA0, 0x7FC0, 0x7FFF,
    };
    static const uint32_t lower[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
    enum { UPPER = sizeof upper / sizeof *upper, LOWER = sizeof lower / sizeof *lower };
    float all[2 * UPPER * LOWER + KP_LANES], x[KP_LANES];
    int count = 0;
    for (int u = 0; u < UPPER; u++)
        for (int l = 0; l < LOWER; l++) {
            all[count++] = float_of(upper[u] << 16 | lower[l]);
            all[count++] = float_of(0x80000000 | upper[u] << 16 | lower[l]);
        }
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < KP_LANES; k++) x[k] = all[(i + k) % count];
        for (long n = 0; n <= KP_LANES; n++) check(x, n);
    }
    uint32_t random = 1;
    for (int i = 0; i < 100000; i++) {
        for (int k = 0; k < KP_LANES; k++) x[k] = float_of(random = random * 1664525 + 1013904223);
        check(x, KP_LANES);
    }
    check_pairs();
    printf("lanes %d, registers %d\n", KP_LANES, KP_REGISTERS);
    return faults != 0;
}
