/* Weights rounded to bfloat16 such that the sums of their errors stay small.

   Inputs of a layer are rarely centred: after a ReLU they are all positive, and the errors of the
   weights, rounded each to its nearest value, add up in proportion to the mean of the inputs.  Here
   a weight near the middle between two values takes the one that brings the sum of the errors so
   far closer to 0.  An error grows by a tenth of a unit at most. */
#ifndef KUIPER_KEEP_SUMS_H
#define KUIPER_KEEP_SUMS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "pair_tile.h"

enum {
    KP_UNIT = 0x10000,       /* in the last place of bfloat16, in the bits of a float */
    KP_NEAR = KP_UNIT / 20,  /* the middle */
    KP_LARGE = 0x7f7f0000    /* the next value is infinity; also infinity and NaN */
};

static inline float kp_float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Round rows of KP_PAIR_COLUMNS weights, one sum per column; large ones are left as they are. */
static void kp_keep_sums(ptrdiff_t rows, float *panel) {
    float errors[KP_PAIR_COLUMNS] = {0};
    for (; rows > 0; rows--, panel += KP_PAIR_COLUMNS) {
        for (int j = 0; j < KP_PAIR_COLUMNS; j++) {
            uint32_t bits, low;
            memcpy(&bits, panel + j, sizeof bits);
            low = bits & (KP_UNIT - 1);
            float lower = kp_float_of(bits - low), upper = kp_float_of(bits - low + KP_UNIT);
            float if_lower = errors[j] + (lower - panel[j]);
            float if_upper = errors[j] + (upper - panel[j]);
            int is_nearer = low + ((bits >> 16) & 1) > KP_UNIT / 2;
            int is_better = fabsf(if_upper) < fabsf(if_lower);
            int is_near_middle = low - (KP_UNIT / 2 - KP_NEAR) < 2 * KP_NEAR;
            int is_up = is_near_middle ? is_better : is_nearer;
            int is_large = (bits & 0x7fffffff) >= KP_LARGE;
            panel[j] = is_large ? panel[j] : is_up ? upper : lower;
            errors[j] = is_large ? errors[j] : is_up ? if_upper : if_lower;
        }
    }
}

#endif
