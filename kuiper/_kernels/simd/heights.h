/* One micro-kernel per tile height, and one per width and stride of a row of depthwise windows.

   The inline bodies in micro/ take these sizes as parameters.  A macro wraps each body once per size
   as a constant, so that loops unroll, and kp_enter_... stores the wrappers in a table.
   The epilogue is four plain arguments: a pointer to a struct costs tiles of short sums (16 terms)
   about 2 %.  `products` is a void * because product_t (table.pxd) is unknown to C. */
#ifndef KUIPER_HEIGHTS_H
#define KUIPER_HEIGHTS_H

#include <Python.h>
#include <stdint.h>

#include "sizes.h"
#include "sums.h"

#define KP_HEIGHTS_14(F) KP_HEIGHTS_8(F) F(9) F(10) F(11) F(12) F(13) F(14)

/* The factors of a sum: rows times one panel, or rows times one panel per product. */
#define KP_GEMM_SUM                                                                               \
    Py_ssize_t taps, Py_ssize_t kc, const float *const *rows, const float *panel, Py_ssize_t distance
#define KP_CHAIN_SUM                                                                              \
    int n_products, const void *products, Py_ssize_t taps, Py_ssize_t kc, Py_ssize_t distance,    \
        int first
/* The factors of depthwise windows. */
#define KP_DEPTHWISE_SUM                                                                          \
    Py_ssize_t taps, Py_ssize_t channels, const float *const *pixels, const Py_ssize_t *steps,    \
        const float *weights
/* The same of bytes, and what becomes of exact sums (table.pxd). */
#define KP_BYTE_SUM                                                                               \
    Py_ssize_t taps, Py_ssize_t channels, const uint8_t *const *pixels
#define KP_BYTE_ROW                                                                               \
    Py_ssize_t kh, Py_ssize_t channels, Py_ssize_t count, const uint8_t *const *rows,             \
        const Py_ssize_t *steps
#define KP_BYTE_OUT                                                                               \
    const void *weights, const float *factor, void *y, Py_ssize_t ldy, const void *residual,     \
        Py_ssize_t ldr, const kp_sums_end *end
/* The result: y = clamp(sum + residual). */
#define KP_OUT float *y, Py_ssize_t ldy
#define KP_EPILOGUE const float *residual, Py_ssize_t ldr, float lo, float hi

typedef void (*kp_gemm_fn)(KP_GEMM_SUM, KP_OUT, Py_ssize_t n, KP_EPILOGUE);
typedef void (*kp_chain_fn)(KP_CHAIN_SUM, KP_OUT, Py_ssize_t n, KP_EPILOGUE);
typedef void (*kp_depthwise_fn)(KP_DEPTHWISE_SUM, KP_OUT, KP_EPILOGUE);
typedef void (*kp_byte_dwconv_fn)(KP_BYTE_SUM, KP_BYTE_OUT);
typedef void (*kp_byte_dwrow_fn)(KP_BYTE_ROW, KP_BYTE_OUT);

static CYTHON_INLINE void kp_gemm_rows(int m, KP_GEMM_SUM, KP_OUT, Py_ssize_t n, KP_EPILOGUE);
static CYTHON_INLINE void kp_chain_rows(int m, KP_CHAIN_SUM, KP_OUT, Py_ssize_t n, KP_EPILOGUE);
static CYTHON_INLINE void kp_dwconv_pixels(
    int m, int scattered, KP_DEPTHWISE_SUM, KP_OUT, KP_EPILOGUE);
static CYTHON_INLINE void kp_dwrow_pixels(int kw, int s, KP_DEPTHWISE_SUM, KP_OUT, KP_EPILOGUE);
static CYTHON_INLINE void kp_byte_dwconv_pixels(int m, KP_BYTE_SUM, KP_BYTE_OUT);
static CYTHON_INLINE void kp_byte_dwrow_pixels(int kw, int s, KP_BYTE_ROW, KP_BYTE_OUT);

#define KP_GEMM(m)                                                                                \
    static void kp_gemm_##m(KP_GEMM_SUM, KP_OUT, Py_ssize_t n, KP_EPILOGUE) {                     \
        kp_gemm_rows(m, taps, kc, rows, panel, distance, y, ldy, n, residual, ldr, lo, hi);       \
    }
#define KP_CHAIN(m)                                                                               \
    static void kp_chain_##m(KP_CHAIN_SUM, KP_OUT, Py_ssize_t n, KP_EPILOGUE) {                   \
        kp_chain_rows(                                                                            \
            m, n_products, products, taps, kc, distance, first, y, ldy, n, residual, ldr, lo, hi  \
        );                                                                                        \
    }
#define KP_DWCONV(m)                                                                              \
    static void kp_dwconv_##m(KP_DEPTHWISE_SUM, KP_OUT, KP_EPILOGUE) {                            \
        if (steps)                                                                                \
            kp_dwconv_pixels(                                                                     \
                m, 0, taps, channels, pixels, steps, weights, y, ldy, residual, ldr, lo, hi       \
            );                                                                                    \
        else                                                                                      \
            kp_dwconv_pixels(                                                                     \
                m, 1, taps, channels, pixels, steps, weights, y, ldy, residual, ldr, lo, hi       \
            );                                                                                    \
    }
#define KP_DWROW(kw, s)                                                                           \
    static void kp_dwrow_##kw##_##s(KP_DEPTHWISE_SUM, KP_OUT, KP_EPILOGUE) {                      \
        kp_dwrow_pixels(                                                                          \
            kw, s, taps, channels, pixels, steps, weights, y, ldy, residual, ldr, lo, hi          \
        );                                                                                        \
    }
#define KP_BYTE_DWCONV(m)                                                                         \
    static void kp_byte_dwconv_##m(KP_BYTE_SUM, KP_BYTE_OUT) {                                    \
        kp_byte_dwconv_pixels(                                                                    \
            m, taps, channels, pixels, weights, factor, y, ldy, residual, ldr, end                \
        );                                                                                        \
    }
#define KP_BYTE_DWROW(kw, s)                                                                      \
    static void kp_byte_dwrow_##kw##_##s(KP_BYTE_ROW, KP_BYTE_OUT) {                              \
        kp_byte_dwrow_pixels(                                                                     \
            kw, s, kh, channels, count, rows, steps, weights, factor, y, ldy, residual, ldr, end  \
        );                                                                                        \
    }

KP_HEIGHTS_14(KP_GEMM)
KP_HEIGHTS_14(KP_CHAIN)
KP_HEIGHTS_8(KP_DWCONV)
KP_WINDOWS(KP_DWROW)
KP_HEIGHTS_8(KP_BYTE_DWCONV)
KP_BYTE_WINDOWS(KP_BYTE_DWROW)

#define KP_ENTER(m) table[m] = kp_gemm_##m;
static void kp_enter_gemm(kp_gemm_fn *table) { KP_HEIGHTS_14(KP_ENTER) }
#undef KP_ENTER
#define KP_ENTER(m) table[m] = kp_chain_##m;
static void kp_enter_chain(kp_chain_fn *table) { KP_HEIGHTS_14(KP_ENTER) }
#undef KP_ENTER
#define KP_ENTER(m) table[m] = kp_dwconv_##m;
static void kp_enter_dwconv(kp_depthwise_fn *table) { KP_HEIGHTS_8(KP_ENTER) }
#undef KP_ENTER
/* table[kw][s], with n_steps columns. */
#define KP_ENTER(kw, s) table[kw * n_steps + s] = kp_dwrow_##kw##_##s;
static void kp_enter_dwrow(kp_depthwise_fn *table, int n_steps) { KP_WINDOWS(KP_ENTER) }
#undef KP_ENTER
#define KP_ENTER(m) table[m] = kp_byte_dwconv_##m;
static void kp_enter_byte_dwconv(kp_byte_dwconv_fn *table) { KP_HEIGHTS_8(KP_ENTER) }
#undef KP_ENTER
#define KP_ENTER(kw, s) table[kw * n_steps + s] = kp_byte_dwrow_##kw##_##s;
static void kp_enter_byte_dwrow(kp_byte_dwrow_fn *table, int n_steps) {
    KP_BYTE_WINDOWS(KP_ENTER)
}
#undef KP_ENTER

#endif
