/* Compare each function of simd/vec.h, simd/lanes.h and simd/transpose.h with plain C, lane by lane and bit by bit.
   Prints the differences; the last line states the width of the vectors. */
#include <stdio.h>
#include <stdlib.h>

#include "_kernels/simd/lanes.h"

static int faults = 0;

static void expect(const char *name, kp_vf32 result, const float *expected) {
    float got[KP_LANES];
    kp_store(got, result);
    for (int i = 0; i < KP_LANES; i++) {
        int both_nan = got[i] != got[i] && expected[i] != expected[i];
        if (!both_nan && memcmp(&got[i], &expected[i], sizeof(float))) {
            printf("%s: lane %d is %.9g, expected %.9g\n", name, i, got[i], expected[i]);
            faults++;
        }
    }
}

#define EXPECT(name, call, scalar)                             \
    do {                                                       \
        for (int i = 0; i < KP_LANES; i++) want[i] = (scalar); \
        expect(name, (call), want);                            \
    } while (0)

static void check_arithmetic(const float *x, const float *y) {
    float want[KP_LANES];
    kp_vf32 a = kp_load(x), b = kp_load(y);
    EXPECT("floor", kp_floor(a), floorf(x[i]));
    EXPECT("ceil", kp_ceil(a), ceilf(x[i]));
    EXPECT("trunc", kp_trunc(a), truncf(x[i]));
    EXPECT("rint", kp_rint(a), rintf(x[i]));
    EXPECT("sqrt", kp_sqrt(a), sqrtf(x[i]));
    EXPECT("max", kp_max(a, b), x[i] > y[i] ? x[i] : y[i]);
    EXPECT("min", kp_min(a, b), x[i] < y[i] ? x[i] : y[i]);
    EXPECT("less", kp_select(kp_lt(a, b), a, b), x[i] < y[i] ? x[i] : y[i]);
    EXPECT("less or equal", kp_select(kp_le(a, b), b, a), x[i] <= y[i] ? y[i] : x[i]);
    EXPECT("equal", kp_select(kp_eq(a, b), kp_splat(1), kp_splat(2)), x[i] == y[i] ? 1 : 2);
    EXPECT("splat", kp_splat(x[0]), x[0]);
    EXPECT("rounded", kp_rounded(a), x[i]);
}

/* Heap memory of exactly the needed length, so that a sanitizer detects accesses beyond the end. */
static void check_ends(long n) {
    float want[KP_LANES];
    float *x = malloc((size_t)n * sizeof(float) + !n), *y = malloc((size_t)n * sizeof(float) + !n);
    for (long i = 0; i < n; i++) x[i] = (float)(i + 1);
    EXPECT("load_n", kp_load_n(x, n), i < n ? (float)(i + 1) : 0.0f);
    kp_store_n(y, kp_load_n(x, n), n);
    if (memcmp(x, y, (size_t)n * sizeof(float))) {
        printf("store_n: differs from what was loaded, n = %ld\n", n);
        faults++;
    }
    EXPECT("first_lanes", kp_select(kp_first_lanes(n), kp_splat(1), kp_splat(0)), i < n ? 1.0f : 0.0f);
    free(x);
    free(y);
}

static void check_lanes(void) {
    float x[KP_LANES], want[KP_LANES], sum = 0;
    kp_vf32 rows[KP_LANES];
    for (int i = 0; i < KP_LANES; i++) x[i] = (float)(i + 1);
    for (int i = 0; i < KP_LANES; i++) sum += x[i];
    EXPECT("swap_8", kp_swap_8(kp_load(x)), x[KP_LANES > 8 ? i ^ 8 : i]);
    EXPECT("swap_4", kp_swap_4(kp_load(x)), x[KP_LANES > 4 ? i ^ 4 : i]);
    EXPECT("swap_2", kp_swap_2(kp_load(x)), x[KP_LANES > 2 ? i ^ 2 : i]);
    EXPECT("swap_1", kp_swap_1(kp_load(x)), x[KP_LANES > 1 ? i ^ 1 : i]);
    for (int step = 0; step < KP_LANES; step++) {
        int32_t from[KP_LANES];
        kp_vi32 order;
        for (int i = 0; i < KP_LANES; i++) from[i] = (i * step + i / 3) % KP_LANES;
        memcpy(&order, from, sizeof order);
        EXPECT("permute", kp_permute(kp_load(x), order), x[from[i]]);
    }
    EXPECT("reduce_add", kp_splat(kp_reduce_add(kp_load(x))), sum);
    EXPECT("reduce_max", kp_splat(kp_reduce_max(kp_load(x))), (float)KP_LANES);
    EXPECT("lane_0", kp_splat(kp_lane_0(kp_load(x))), x[0]);
    for (int row = 0; row < KP_LANES; row++) {
        for (int i = 0; i < KP_LANES; i++) x[i] = (float)(100 * row + i);
        rows[row] = kp_load(x);
    }
    kp_transpose_square(rows);
    for (int row = 0; row < KP_LANES; row++) EXPECT("transpose", rows[row], (float)(100 * i + row));
}

/* Numbers from 1/2 to 2 that round up, down and to even if the result is denormal. */
static void check_scaled(void) {
    float x[KP_LANES], want[KP_LANES];
    for (int i = 0; i < KP_LANES; i++) x[i] = (i % 2 ? 0.5f : 1.0f) * (1.0f + (float)(i * 524287 % 8388608) / 8388608);
    for (int n = -252; n <= 254; n++)
        EXPECT("scaled", kp_scaled(kp_load(x), kp_splat((float)n)), ldexpf(x[i], n));
}

int main(void) {
    static const float special[] = {
        0.0f,       -0.0f,       1.0f,    -1.0f,   0.5f,    -0.5f,         1.5f,        2.5f,
        -2.5f,      NAN,         INFINITY, -INFINITY, 1e-40f, -1e-40f,      8388607.5f,  8388608.0f,
        -8388609.0f, 3e9f,       -3e9f,   3.4e38f, 0.49999997f, -0.49999997f, 2147483648.0f,
    };
    const int count = sizeof special / sizeof *special;
    float x[KP_LANES], y[KP_LANES];
    for (int a = 0; a < count; a++)
        for (int b = 0; b < count; b++) {
            for (int i = 0; i < KP_LANES; i++) {
                x[i] = special[(a + i) % count];
                y[i] = special[(b + 3 * i) % count];
            }
            check_arithmetic(x, y);
        }
    for (long n = 0; n < KP_LANES; n++) check_ends(n);
    check_lanes();
    check_scaled();
    printf("lanes %d, registers %d\n", KP_LANES, KP_REGISTERS);
    return faults != 0;
}
