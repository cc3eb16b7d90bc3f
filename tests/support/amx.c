/* Compare the products of simd/amx_tile.h with sums in plain C, for all heights and many widths.
   Prints the differences, at most 20; the last line states the size of the tile. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "_kernels/simd/cpu.h"

#include "_kernels/simd/amx_tile.h"

enum { MAX_TAPS = 3, MAX_BYTES = 1100, MAX_ROWS = KP_AMX_MAX_ROWS, COLUMNS = KP_PAIR_COLUMNS };
enum { HEAD = 3 * 4 * COLUMNS, GAP = 12, LDY = COLUMNS + 3 };

static char a[MAX_TAPS][MAX_ROWS + 1][MAX_BYTES + GAP];
static char panel[HEAD + MAX_TAPS * MAX_BYTES * COLUMNS] KP_ON_LINES;
static int32_t sums_of_dots[MAX_ROWS * COLUMNS];
static int faults = 0;

static void end_dots(
    Py_ssize_t m, int32_t *sums, const float *scale, const float *bias, KP_DOT_OUT
) {
    Py_ssize_t width = (n + KP_LANES - 1) / KP_LANES * KP_LANES;
    (void)scale, (void)bias, (void)factors, (void)y, (void)ldy, (void)residual, (void)ldr, (void)end;
    memcpy(sums_of_dots, sums, (size_t)(m * width) * sizeof *sums);
}

static uint32_t state = 1;
static uint32_t number(void) { return (state = state * 1664525 + 1013904223) >> 16; }

/* Whole numbers, whose sums are exact in float32 in any order. */
static kp_bf16 half(void) {
    float x = (float)((int)(number() % 33) - 16);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (kp_bf16)(bits >> 16);
}
static float value(kp_bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

static void expect(const char *kind, int m, int n, int i, int j, double got, double expected) {
    if (got == expected || faults++ >= 20) return;
    printf("%s: m %d, n %d, row %d, column %d: %g, expected %g\n", kind, m, n, i, j, got, expected);
}

/* Pointers to the rows of all taps: at one distance, or with a gap in the middle. */
static void point(const char **rows, int taps, int m, int is_even) {
    for (int t = 0; t < taps; t++)
        for (int i = 0; i < m; i++) rows[t * m + i] = a[t][i + (!is_even && i > m / 2)];
}

static void check_pairs(const kp_pair_fn *table, int taps, int terms, int m, int n, int is_even) {
    const char *rows[MAX_TAPS * MAX_ROWS];
    float y[MAX_ROWS * LDY], *bias = (float *)panel;
    kp_bf16 *b = (kp_bf16 *)(bias + COLUMNS);
    const int pairs = (terms + 1) / 2, size = taps * pairs * COLUMNS * 2;
    for (int i = 0; i < COLUMNS; i++) bias[i] = (float)(int)(number() % 100);
    for (int i = 0; i < size; i++) b[i] = terms % 2 && i / (2 * COLUMNS) % pairs == pairs - 1 && i % 2 ? 0 : half();
    for (int i = 0; i < 2 * COLUMNS; i++) b[size + i] = 0x7FC0; /* NaN after the panel */
    for (int t = 0; t < taps; t++)
        for (int i = 0; i <= MAX_ROWS; i++) {
            kp_bf16 *row = (kp_bf16 *)a[t][i];
            for (int k = 0; k < terms; k++) row[k] = half();
            row[terms] = 0x7FC0; /* and after each row */
        }
    point(rows, taps, m, is_even);
    table[m](taps, terms, (const kp_bf16 *const *)rows, panel, 0, y, LDY, n, NULL, 0, NULL);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = bias[j];
            for (int t = 0; t < taps; t++)
                for (int k = 0; k < terms; k++) {
                    const kp_bf16 *row = (const kp_bf16 *)rows[t * m + i];
                    sum += value(row[k]) * value(b[((t * pairs + k / 2) * COLUMNS + j) * 2 + k % 2]);
                }
            expect("bfloat16", m, n, i, j, y[i * LDY + j], sum);
        }
}

static void check_bytes(const kp_dot_fn *table, int taps, int quads, int m, int n, int is_even) {
    const char *rows[MAX_TAPS * MAX_ROWS];
    const int width = n <= KP_LANES ? KP_LANES : COLUMNS, terms = 4 * quads;
    int32_t *start = (int32_t *)panel + 2 * COLUMNS;
    int8_t *b = (int8_t *)panel + HEAD;
    kp_sums_end end;
    float factor = 1;
    memset(&end, 0, sizeof end);
    for (int i = 0; i < COLUMNS; i++) start[i] = (int32_t)(number() << 8) - (1 << 23);
    for (int i = 0; i < taps * terms * COLUMNS; i++) b[i] = (int8_t)number();
    for (int t = 0; t < taps; t++)
        for (int i = 0; i <= MAX_ROWS; i++)
            for (int k = 0; k < terms; k++) a[t][i][k] = (char)number();
    point(rows, taps, m, is_even);
    table[m](taps, quads, (const uint8_t *const *)rows, panel, 64, &factor, NULL, 0, n, NULL, 0, &end);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            int64_t sum = start[j];
            for (int t = 0; t < taps; t++)
                for (int k = 0; k < terms; k++)
                    sum += (uint8_t)rows[t * m + i][k] *
                           b[((t * quads + k / 4) * COLUMNS + j) * 4 + k % 4];
            expect("bytes", m, n, i, j, sums_of_dots[i * width + j], (double)sum);
        }
}

int main(void) {
    /* Bytes of a row: fewer than a step, whole steps, more than are copied at a time. */
    static const int terms[] = {1, 2, 21, 32, 63, 64, 200, 288, 320};
    static const int widths[] = {1, 15, 16, 17, 31, 32};
    kp_pair_fn pairs[MAX_ROWS + 1];
    kp_dot_fn dots[MAX_ROWS + 1];
    if (!kp_cpu_has_amx()) return 2;
    kp_enter_amx(pairs, dots, NULL, end_dots);
    for (int m = 1; m <= MAX_ROWS; m++)
        for (unsigned s = 0; s < sizeof terms / sizeof *terms; s++)
            for (unsigned w = 0; w < sizeof widths / sizeof *widths; w++)
                for (int taps = 1; taps <= MAX_TAPS; taps += 2) {
                    /* Each height with all numbers of terms; the rest in turns. */
                    if ((m + s + w) % 3 && m % 16) continue;
                    int is_even = (m + s + w) % 2;
                    check_pairs(pairs, taps, terms[s], m, widths[w], is_even);
                    check_bytes(dots, taps, (terms[s] + 1) / 2, m, widths[w], is_even);
                    kp_amx_release();
                }
    float sink = 0;
    if (kp_amx_multiply_adds(12, &sink) != 2.0 * 2 * 4 * 16 * 16 * 32 || sink != 32) faults++;
    kp_amx_release();
    printf("rows %d, columns %d\n", KP_AMX_MAX_ROWS, COLUMNS);
    return faults != 0;
}
