/* Powers and inverses for results that are rounded to bfloat16: errors below 2^-12, for a third of the
   time of exact ones. */
#ifndef KUIPER_ROUGH_H
#define KUIPER_ROUGH_H

#include "vec.h"

/* 2^x within 1.1e-4 of it; NaN, 0 and infinity as they should be. */
static inline kp_vf32 kp_rough_exp2(kp_vf32 x) {
    kp_vf32 f = (kp_vf32)_mm512_reduce_ps((__m512)x, 0); /* x less the nearest integer */
    kp_vf32 p = kp_splat(0.055008605f);
    p = p * f + kp_splat(0.24221101f);
    p = p * f + kp_splat(0.69328296f);
    p = p * f + kp_splat(1.0f);
    return (kp_vf32)_mm512_scalef_ps((__m512)p, (__m512)(x - f));
}

/* 1 / x within 6.2e-5 of it. */
static inline kp_vf32 kp_rough_inverse(kp_vf32 x) { return (kp_vf32)_mm512_rcp14_ps((__m512)x); }

#endif
