/* Compare the tile of simd/dot_tile.h with sums of products in plain C, for all heights and widths.
   Prints the differences; the last line states the width of the vectors. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "_kernels/simd/dot_tile.h"

enum { TAPS = 2, QUADS = 5, TERMS = 4 * TAPS * QUADS, HEAD = 3 * 4 * KP_DOT_COLUMNS };

static int faults = 0;
static int32_t got[KP_DOT_ROWS * KP_DOT_COLUMNS];

/* The sums in memory: rows of whole vectors. */
static void kp_end_sums(
    Py_ssize_t m, int32_t *sums, const float *scale, const float *bias, KP_DOT_OUT
) {
    Py_ssize_t width = (n + KP_LANES - 1) / KP_LANES * KP_LANES;
    (void)scale, (void)bias, (void)factors, (void)y, (void)ldy, (void)residual, (void)ldr, (void)end;
    memcpy(got, sums, (size_t)(m * width) * sizeof *got);
}

static uint32_t state = 1;
static uint32_t number(void) { return (state = state * 1664525 + 1013904223) >> 16; }

int main(void) {
    static uint8_t a[KP_DOT_ROWS][TERMS];
    static char panel[HEAD + TERMS * KP_DOT_COLUMNS] KP_ON_LINES;
    const uint8_t *rows[TAPS * KP_DOT_ROWS];
    int8_t *b = (int8_t *)panel + HEAD; /* (terms / 4, columns, 4) */
    int32_t *start = (int32_t *)panel + 2 * KP_DOT_COLUMNS;
    kp_dot_fn table[KP_DOT_ROWS + 1];
    kp_sums_end end;
    float factor = 1;
    memset(&end, 0, sizeof end);
    kp_enter_dot(table);
    for (int round = 0; round < 60; round++) {
        /* First the extremes, whose sums of two products do not fit 16 bits. */
        for (int i = 0; i < KP_DOT_ROWS * TERMS; i++)
            a[0][i] = (uint8_t)(round == 0 ? 255 : round == 1 ? 255 * (i & 1) : number());
        for (int i = 0; i < TERMS * KP_DOT_COLUMNS; i++)
            b[i] = (int8_t)(round == 0 ? -128 : round == 1 ? (i & 2 ? 127 : -128) : (int)number());
        for (int j = 0; j < KP_DOT_COLUMNS; j++) start[j] = (int32_t)(number() << 8) - (1 << 23);
        for (int m = 1; m <= KP_DOT_ROWS; m++) {
            for (int t = 0; t < TAPS; t++)
                for (int i = 0; i < m; i++) rows[t * m + i] = a[i] + 4 * t * QUADS;
            for (int n = 1; n <= KP_DOT_COLUMNS; n++) {
                int width = (n + KP_LANES - 1) / KP_LANES * KP_LANES;
                table[m](TAPS, QUADS, rows, panel, 0, &factor, NULL, 0, n, NULL, 0, &end);
                for (int i = 0; i < m; i++)
                    for (int j = 0; j < n; j++) {
                        int64_t sum = start[j];
                        for (int k = 0; k < TERMS; k++)
                            sum += a[i][k] * b[(k / 4 * KP_DOT_COLUMNS + j) * 4 + k % 4];
                        if (got[i * width + j] != sum) {
                            printf("m %d, n %d, row %d, column %d: %d, expected %lld\n", m, n, i, j,
                                   got[i * width + j], (long long)sum);
                            faults++;
                        }
                    }
            }
        }
    }
    printf("lanes %d, rows %d, native %d\n", KP_LANES, KP_DOT_ROWS, KP_DOT_IS_NATIVE);
    return faults != 0;
}
