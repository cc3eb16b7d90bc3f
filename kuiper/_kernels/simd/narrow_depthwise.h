/* One micro-kernel of depthwise windows of bfloat16 per height, and one per width and stride of a
   row; see heights.h, which a variant for bfloat16 alone does not include. */
#ifndef KUIPER_NARROW_DEPTHWISE_H
#define KUIPER_NARROW_DEPTHWISE_H

#include <Python.h>
#include <stdint.h>

#include "sizes.h"
#include "sums.h"

/* The factors of windows, of which only rows have `steps`. */
#define KP_NARROW_SUM                                                                             \
    Py_ssize_t taps, Py_ssize_t channels, const uint16_t *const *pixels, const Py_ssize_t *steps, \
        const float *weights
#define KP_NARROW_OUT                                                                             \
    void *y, Py_ssize_t ldy, const void *residual, Py_ssize_t ldr, const kp_sums_end *end

typedef void (*kp_narrow_dwconv_fn)(KP_NARROW_SUM, KP_NARROW_OUT);

static CYTHON_INLINE void kp_narrow_dwconv_pixels(int m, KP_NARROW_SUM, KP_NARROW_OUT);
static CYTHON_INLINE void kp_narrow_dwrow_pixels(int kw, int s, KP_NARROW_SUM, KP_NARROW_OUT);

#define KP_NARROW_DWCONV(m)                                                                       \
    static void kp_narrow_dwconv_##m(KP_NARROW_SUM, KP_NARROW_OUT) {                              \
        kp_narrow_dwconv_pixels(                                                                  \
            m, taps, channels, pixels, steps, weights, y, ldy, residual, ldr, end                 \
        );                                                                                        \
    }
#define KP_NARROW_DWROW(kw, s)                                                                    \
    static void kp_narrow_dwrow_##kw##_##s(KP_NARROW_SUM, KP_NARROW_OUT) {                        \
        kp_narrow_dwrow_pixels(                                                                   \
            kw, s, taps, channels, pixels, steps, weights, y, ldy, residual, ldr, end             \
        );                                                                                        \
    }

KP_HEIGHTS_8(KP_NARROW_DWCONV)
KP_WINDOWS(KP_NARROW_DWROW)

#define KP_ENTER(m) table[m] = kp_narrow_dwconv_##m;
static void kp_enter_narrow_dwconv(kp_narrow_dwconv_fn *table) { KP_HEIGHTS_8(KP_ENTER) }
#undef KP_ENTER
#define KP_ENTER(kw, s) table[kw * n_steps + s] = kp_narrow_dwrow_##kw##_##s;
static void kp_enter_narrow_dwrow(kp_narrow_dwconv_fn *table, int n_steps) {
    KP_WINDOWS(KP_ENTER)
}
#undef KP_ENTER

#endif
