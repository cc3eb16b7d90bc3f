/* The register tile of a convolution to few channels: vectors run along the input channels.

   The tile of tile.h has a lane per output channel, of which 3 of 16 would work for three channels.
   Here all lanes work, and are summed once at the end of a pixel.  In C for the unroll pragma of
   tile.h. */
#ifndef KUIPER_FEW_OUTPUTS_H
#define KUIPER_FEW_OUTPUTS_H

#include "lanes.h"
#include "tile.h"

/* sums[i, j] for `pixels` pixels and n channels: the sum over taps t and channels c of
   rows[t * apart + i][c] * weight[t, c / KP_LANES, j, c % KP_LANES]. */
KP_INLINE void kp_few_outputs(
    int pixels, int n, ptrdiff_t taps, ptrdiff_t channels, const float *const *rows,
    ptrdiff_t apart, const float *weight, float *sums
) {
    kp_vf32 acc[8][4], x, zero = kp_splat(0);
    const float *row[8];
    ptrdiff_t whole = channels / KP_LANES * KP_LANES;
    long rest = (long)(channels - whole);
    KP_UNROLL
    for (int i = 0; i < pixels; i++) {
        KP_UNROLL
        for (int j = 0; j < n; j++) acc[i][j] = zero;
    }
    for (ptrdiff_t t = 0; t < taps; t++) {
        KP_UNROLL
        for (int i = 0; i < pixels; i++) row[i] = rows[i];
        rows += apart;
        for (ptrdiff_t c = 0; c < whole; c += KP_LANES) {
            KP_UNROLL
            for (int i = 0; i < pixels; i++) {
                x = kp_load(row[i] + c);
                KP_UNROLL
                for (int j = 0; j < n; j++) acc[i][j] += x * kp_load(weight + j * KP_LANES);
            }
            weight += n * KP_LANES;
        }
        if (rest) {
            KP_UNROLL
            for (int i = 0; i < pixels; i++) {
                x = kp_load_n(row[i] + whole, rest);
                KP_UNROLL
                for (int j = 0; j < n; j++) acc[i][j] += x * kp_load(weight + j * KP_LANES);
            }
            weight += n * KP_LANES;
        }
    }
    KP_UNROLL
    for (int i = 0; i < pixels; i++) {
        KP_UNROLL
        for (int j = 0; j < n; j++) {
            x = acc[i][j];
            if (KP_LANES > 8) x += kp_swap_8(x);
            if (KP_LANES > 4) x += kp_swap_4(x);
            if (KP_LANES > 2) x += kp_swap_2(x);
            if (KP_LANES > 1) x += kp_swap_1(x);
            sums[i * n + j] = kp_lane_0(x);
        }
    }
}

#endif
