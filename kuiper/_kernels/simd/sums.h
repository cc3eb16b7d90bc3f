/* What becomes of exact integer sums; table.pxd says what it means. */
#ifndef KUIPER_SUMS_H
#define KUIPER_SUMS_H

#include <Python.h>

typedef void (*kp_unary_fn)(Py_ssize_t n, const float *x, float *y, float p0, float p1);

typedef struct {
    float lo, hi;
    int factor_per_row, residual_first, residual_in_bytes;
    float residual_scale, residual_zero;
    kp_unary_fn pre;
    float pre_p0, pre_p1;
    kp_unary_fn post;
    float post_p0, post_p1;
    int to_bytes;
    float inverse_scale, zero;
    int residual_in_bfloat16, to_bfloat16;
    int low, high;    /* bounds of a result in bytes: what the clamp and the type leave */
    int in_registers; /* whether it is a clamp, after a residual if any, to bytes, by one factor */
} kp_sums_end;

#endif
