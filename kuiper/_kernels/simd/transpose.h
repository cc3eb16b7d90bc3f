/* Transposition of a square of LANES vectors of LANES elements, in registers.

   Stage d swaps the off-diagonal blocks of d x d elements; stages LANES / 2, ..., 2, 1 transpose
   (J. O. Eklundh, IEEE Trans. Computers C-21, 1972).  The elements may be any 32-bit type. */
#ifndef KUIPER_TRANSPOSE_H
#define KUIPER_TRANSPOSE_H

#include "vec.h"

#if KP_LANES > 1

#if defined(__clang__) || __GNUC__ >= 12
#define KP_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define KP_PICK(a, b, ...) __builtin_shuffle(a, b, (kp_vi32){__VA_ARGS__})
#endif

/* One stage over all pairs of rows (i, i + d); LOW and HIGH are the lanes of the pair for each. */
#define KP_SWAP_BLOCKS(v, d, LOW, HIGH)              \
    for (int i = 0; i < KP_LANES; i++) {             \
        if (i & (d)) continue;                       \
        kp_vf32 a = (v)[i], b = (v)[i + (d)];        \
        (v)[i] = KP_PICK(a, b, LOW);                 \
        (v)[i + (d)] = KP_PICK(a, b, HIGH);          \
    }
#define KP_LIST(...) __VA_ARGS__

static inline void kp_transpose_square(kp_vf32 *v) {
#if KP_LANES == 16
    KP_SWAP_BLOCKS(v, 8, KP_LIST(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
                   KP_LIST(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
    KP_SWAP_BLOCKS(v, 4, KP_LIST(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
                   KP_LIST(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
    KP_SWAP_BLOCKS(v, 2, KP_LIST(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
                   KP_LIST(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
    KP_SWAP_BLOCKS(v, 1, KP_LIST(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
                   KP_LIST(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#elif KP_LANES == 8
    KP_SWAP_BLOCKS(v, 4, KP_LIST(0, 1, 2, 3, 8, 9, 10, 11), KP_LIST(4, 5, 6, 7, 12, 13, 14, 15))
    KP_SWAP_BLOCKS(v, 2, KP_LIST(0, 1, 8, 9, 4, 5, 12, 13), KP_LIST(2, 3, 10, 11, 6, 7, 14, 15))
    KP_SWAP_BLOCKS(v, 1, KP_LIST(0, 8, 2, 10, 4, 12, 6, 14), KP_LIST(1, 9, 3, 11, 5, 13, 7, 15))
#else
    KP_SWAP_BLOCKS(v, 2, KP_LIST(0, 1, 4, 5), KP_LIST(2, 3, 6, 7))
    KP_SWAP_BLOCKS(v, 1, KP_LIST(0, 4, 2, 6), KP_LIST(1, 5, 3, 7))
#endif
}

#else

static inline void kp_transpose_square(kp_vf32 *v) { (void)v; }

#endif

#endif
