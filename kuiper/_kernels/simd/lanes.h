/* Lanes of one vector: masks of the first lanes, exchanges between halves. */
#ifndef KUIPER_LANES_H
#define KUIPER_LANES_H

#include "transpose.h"

/* All bits set in the first n lanes, 0 <= n <= KP_LANES, zeros in the others. */
static inline kp_vi32 kp_first_lanes(long n) {
    static const int32_t ones[2 * 16] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    kp_vi32 mask;
    memcpy(&mask, ones + 16 - n, sizeof mask);
    return mask;
}

/* Lane i of the result is lane i ^ distance; the vector itself if it has no such lanes. */
#if KP_LANES == 16
static inline kp_vf32 kp_swap_8(kp_vf32 v) {
    return KP_PICK(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
}
static inline kp_vf32 kp_swap_4(kp_vf32 v) {
    return KP_PICK(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
}
static inline kp_vf32 kp_swap_2(kp_vf32 v) {
    return KP_PICK(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
}
static inline kp_vf32 kp_swap_1(kp_vf32 v) {
    return KP_PICK(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
}
#elif KP_LANES == 8
static inline kp_vf32 kp_swap_8(kp_vf32 v) { return v; }
static inline kp_vf32 kp_swap_4(kp_vf32 v) { return KP_PICK(v, v, 4, 5, 6, 7, 0, 1, 2, 3); }
static inline kp_vf32 kp_swap_2(kp_vf32 v) { return KP_PICK(v, v, 2, 3, 0, 1, 6, 7, 4, 5); }
static inline kp_vf32 kp_swap_1(kp_vf32 v) { return KP_PICK(v, v, 1, 0, 3, 2, 5, 4, 7, 6); }
#elif KP_LANES == 4
static inline kp_vf32 kp_swap_8(kp_vf32 v) { return v; }
static inline kp_vf32 kp_swap_4(kp_vf32 v) { return v; }
static inline kp_vf32 kp_swap_2(kp_vf32 v) { return KP_PICK(v, v, 2, 3, 0, 1); }
static inline kp_vf32 kp_swap_1(kp_vf32 v) { return KP_PICK(v, v, 1, 0, 3, 2); }
#else
static inline kp_vf32 kp_swap_8(kp_vf32 v) { return v; }
static inline kp_vf32 kp_swap_4(kp_vf32 v) { return v; }
static inline kp_vf32 kp_swap_2(kp_vf32 v) { return v; }
static inline kp_vf32 kp_swap_1(kp_vf32 v) { return v; }
#endif

#if KP_LANES > 1
static inline float kp_lane_0(kp_vf32 v) { return v[0]; }
#else
static inline float kp_lane_0(kp_vf32 v) { return v; }
#endif

#endif
