/* Products of bfloat16 and of bytes in tile registers: up to 32 rows by one panel.

   Registers 0 to 3 have the sums, two by two; 4 and 5 rows of A; 6 and 7 columns of a panel.  A step
   multiplies 64 bytes of each row.  The second 16 rows are the last 16, so heights between share
   rows with the first 16: the same sums, stored twice.

   A register is loaded from rows at a constant distance.  Those of a convolution have one except at
   the end of a line of pixels; other rows, fewer than 16, and taps that are not whole steps are
   copied first.  The terms of all taps then follow each other, as their weights do in the panel, and
   only the last step is padded. */
#ifndef KUIPER_AMX_TILE_H
#define KUIPER_AMX_TILE_H

#include "amx.h"
#include "dot_end.h"
#include "pair_end.h"

enum {
    KP_AMX_MAX_ROWS = 2 * KP_AMX_ROWS,
    KP_AMX_PANEL_ROW = 2 * KP_AMX_BYTES, /* bytes of a row of pairs or quads */
    KP_AMX_PANEL_STEP = KP_AMX_ROWS * KP_AMX_PANEL_ROW,
    KP_AMX_BLOCK = 8 * KP_AMX_BYTES /* bytes of each row that are copied at a time */
};

typedef struct {
    ptrdiff_t m, taps;
    ptrdiff_t used, span; /* bytes of a tap: its terms; and the same in whole pairs or quads */
    const char *const *rows; /* (taps, m) */
    const char *weights;
    ptrdiff_t distance; /* of the prefetch; 0: none */
} kp_amx_operands;

typedef struct {
    ptrdiff_t tap, byte;
} kp_amx_offset;

/* Whether the rows of a tap are at a constant distance. */
static inline int kp_amx_is_even(const char *const *rows, ptrdiff_t m) {
    ptrdiff_t step = rows[1] - rows[0], differs = 0;
    for (ptrdiff_t i = 2; i < m; i++) differs |= (rows[i] - rows[i - 1]) ^ step;
    return !differs;
}

/* Copy `width` bytes of each row, from an offset on, and zeros up to a whole step.  A row may run over
   into the next, which is copied after it. */
static kp_amx_offset kp_amx_copy(
    const kp_amx_operands *o, kp_amx_offset from, ptrdiff_t width, char *to, ptrdiff_t step
) {
    kp_amx_offset at = from;
    for (ptrdiff_t i = 0; i < o->m; i++, to += step) {
        const char *row = o->rows[from.tap * o->m + i];
        ptrdiff_t done = 0;
        at = from;
        while (done < width) {
            ptrdiff_t some = o->span - at.byte, known = o->used - at.byte;
            if (some > KP_AMX_BYTES) some = KP_AMX_BYTES;
            if (some > width - done) some = width - done;
            if (known > some) known = some;
            __mmask64 mask = known == KP_AMX_BYTES ? ~(__mmask64)0 : ((__mmask64)1 << known) - 1;
            _mm512_storeu_si512(to + done, _mm512_maskz_loadu_epi8(mask, row + at.byte));
            done += some;
            at.byte += some;
            if (at.byte == o->span) {
                at.byte = 0;
                at.tap++;
                if (done < width) row = o->rows[at.tap * o->m + i];
            }
        }
        if (width % KP_AMX_BYTES) _mm512_storeu_si512(to + width, _mm512_setzero_si512());
    }
    return at;
}

#define KP_AMX_DOT(c, a, b)                                                                       \
    do {                                                                                          \
        if (of_bytes) kp_amx_dot_bytes(c, a, b);                                                  \
        else kp_amx_dot_pairs(c, a, b);                                                           \
    } while (0)

/* Add the products of a step: `last` is the first of the last 16 rows. */
KP_INLINE void kp_amx_step(
    int of_bytes, int tall, int nv, const char *a, const char *last, ptrdiff_t step, const char *b
) {
    kp_amx_load(6, b, KP_AMX_PANEL_ROW);
    kp_amx_load(4, a, step);
    if (nv > 1) kp_amx_load(7, b + KP_AMX_BYTES, KP_AMX_PANEL_ROW);
    if (tall) kp_amx_load(5, last, step);
    KP_AMX_DOT(0, 4, 6);
    if (nv > 1) KP_AMX_DOT(1, 4, 7);
    if (tall) KP_AMX_DOT(2, 5, 6);
    if (tall && nv > 1) KP_AMX_DOT(3, 5, 7);
}

/* Sums (m, nv vectors), rows `ld` bytes apart: `first` of each column + the products.  Fewer than 16
   rows are stored as 16. */
KP_INLINE void kp_amx_sums(
    int of_bytes, int tall, int nv, const kp_amx_operands *o, const void *first, void *sums,
    ptrdiff_t ld
) {
    /* A copy of rows, and weights of the last step; a row that is copied may run over. */
    char copied[KP_AMX_MAX_ROWS * KP_AMX_BLOCK + KP_AMX_BYTES] KP_ON_LINES;
    char rest[KP_AMX_PANEL_STEP] KP_ON_LINES;
    const ptrdiff_t total = o->taps * o->span, last = o->m - KP_AMX_ROWS; /* the first of the last 16 rows */
    const ptrdiff_t whole = (total + KP_AMX_BYTES - 1) / KP_AMX_BYTES * KP_AMX_BYTES;
    const ptrdiff_t pitch = whole < KP_AMX_BLOCK ? whole : KP_AMX_BLOCK;
    const int in_steps = o->span % KP_AMX_BYTES == 0;
    const char *b = o->weights;
    kp_amx_offset at = {0, 0};
    kp_amx_load(0, first, 0);
    if (nv > 1) kp_amx_load(1, (const char *)first + KP_AMX_BYTES, 0);
    if (tall) kp_amx_load(2, first, 0);
    if (tall && nv > 1) kp_amx_load(3, (const char *)first + KP_AMX_BYTES, 0);
    if (last < 0) memset(copied + o->m * pitch, 0, (size_t)(-last * pitch));
    for (ptrdiff_t left = total; left > 0;) {
        const char *const *rows = o->rows + at.tap * o->m;
        const char *a = copied;
        ptrdiff_t width = left, step = pitch, k = 0;
        if (in_steps && o->used == o->span && at.byte == 0 && last >= 0 &&
            kp_amx_is_even(rows, o->m)) {
            a = rows[0];
            step = rows[1] - rows[0];
            width = o->span;
            at.tap++;
        } else {
            if (in_steps && width > o->span - at.byte) width = o->span - at.byte;
            if (width > KP_AMX_BLOCK) width = KP_AMX_BLOCK;
            at = kp_amx_copy(o, at, width, copied, pitch);
        }
        for (; k + KP_AMX_BYTES <= width; k += KP_AMX_BYTES, b += KP_AMX_PANEL_STEP) {
            kp_amx_step(of_bytes, tall, nv, a + k, a + k + last * step, step, b);
            if (o->distance)
                for (int i = 0; i < KP_AMX_PANEL_STEP; i += KP_AMX_BYTES)
                    kp_prefetch((const float *)(b + o->distance + i));
        }
        if (k < width) {
            /* What follows the panel may be NaN, and times 0 would stay NaN. */
            size_t known = (size_t)((width - k) / 4 * KP_AMX_PANEL_ROW);
            memcpy(rest, b, known);
            memset(rest + known, 0, sizeof rest - known);
            kp_amx_step(of_bytes, tall, nv, a + k, a + k + last * step, step, rest);
        }
        left -= width;
    }
    kp_amx_store(0, sums, ld);
    if (nv > 1) kp_amx_store(1, (char *)sums + KP_AMX_BYTES, ld);
    if (tall) kp_amx_store(2, (char *)sums + last * ld, ld);
    if (tall && nv > 1) kp_amx_store(3, (char *)sums + last * ld + KP_AMX_BYTES, ld);
}

/* One function for each kind, height and width; `tall` is more than 16 rows. */
#define KP_AMX_SUMS(of_bytes, tall, nv)                                                           \
    KP_ALONE static void kp_amx_sums_##of_bytes##tall##nv(                                        \
        const kp_amx_operands *o, const void *first, void *sums, ptrdiff_t ld                     \
    ) {                                                                                           \
        kp_amx_sums(of_bytes, tall, nv, o, first, sums, ld);                                      \
    }
KP_AMX_SUMS(0, 0, 1)
KP_AMX_SUMS(0, 0, 2)
KP_AMX_SUMS(0, 1, 1)
KP_AMX_SUMS(0, 1, 2)
KP_AMX_SUMS(1, 0, 1)
KP_AMX_SUMS(1, 0, 2)
KP_AMX_SUMS(1, 1, 1)
KP_AMX_SUMS(1, 1, 2)

typedef void (*kp_amx_sums_fn)(
    const kp_amx_operands *o, const void *first, void *sums, ptrdiff_t ld);
static const kp_amx_sums_fn kp_amx_sums_of[2][2][2] = {
    {{kp_amx_sums_001, kp_amx_sums_002}, {kp_amx_sums_011, kp_amx_sums_012}},
    {{kp_amx_sums_101, kp_amx_sums_102}, {kp_amx_sums_111, kp_amx_sums_112}},
};

/* Any end of m rows of sums in memory, from the table of the variant. */
typedef void (*kp_pair_end_fn)(Py_ssize_t m, float *sums, KP_PAIR_OUT);
typedef void (*kp_dot_end_fn)(
    Py_ssize_t m, int32_t *sums, const float *scale, const float *bias, KP_DOT_OUT);
static kp_pair_end_fn kp_end_pairs;
static kp_dot_end_fn kp_end_dots;

/* Rows of sums as float32, or as bfloat16 where pair_end.h has the end in registers. */
KP_INLINE void kp_amx_end_rows(int nv, Py_ssize_t m, const float *sums, KP_PAIR_OUT) {
    for (Py_ssize_t i = 0; i < m; i++, sums += nv * KP_LANES) {
        kp_vf32 row[1][2];
        for (int j = 0; j < nv; j++) row[0][j] = kp_load(sums + j * KP_LANES);
        if (!end) {
            kp_tile_end(1, nv, row, 0, (float *)y + i * ldy, 0, n, NULL, 0, -INFINITY, INFINITY);
            continue;
        }
        const kp_bf16 *r = (const kp_bf16 *)residual;
        kp_pair_end(1, nv, row, (kp_bf16 *)y + i * ldy, 0, n, r ? r + i * ldr : NULL, 0, end);
    }
}

KP_ALONE static void kp_amx_pairs(Py_ssize_t m, KP_PAIR_SUM, KP_PAIR_OUT) {
    float stored[KP_AMX_MAX_ROWS * KP_PAIR_COLUMNS] KP_ON_LINES;
    const float *bias = (const float *)panel;
    const int nv = n <= KP_LANES ? 1 : 2;
    const kp_amx_sums_fn sum = kp_amx_sums_of[0][m > KP_AMX_ROWS][nv - 1];
    const kp_amx_operands o = {
        m, taps, 2 * terms, 4 * ((terms + 1) / 2), (const char *const *)rows,
        (const char *)(bias + KP_PAIR_COLUMNS), distance};
    kp_amx_configure();
    if (!end && n == nv * KP_LANES && m >= KP_AMX_ROWS) {
        sum(&o, bias, y, ldy * (ptrdiff_t)sizeof(float));
        return;
    }
    sum(&o, bias, stored, nv * KP_AMX_BYTES);
    if (end && (!end->to_bfloat16 || end->pre || end->post ||
                (residual && !(end->residual_first && end->residual_in_bfloat16))))
        kp_end_pairs(m, stored, y, ldy, n, residual, ldr, end);
    else if (nv > 1) kp_amx_end_rows(2, m, stored, y, ldy, n, residual, ldr, end);
    else kp_amx_end_rows(1, m, stored, y, ldy, n, residual, ldr, end);
}

/* `rows` rows of sums as bytes, by the end in registers; whether it could. */
KP_INLINE int kp_amx_end_bytes(
    int rows, int nv, const int32_t *sums, const float *scale, const float *bias, ptrdiff_t terms,
    KP_DOT_OUT
) {
    kp_vi32 v[4][2];
    KP_UNROLL
    for (int i = 0; i < rows; i++) {
        KP_UNROLL
        for (int j = 0; j < nv; j++) v[i][j] = kp_load_ints(sums + (i * nv + j) * KP_LANES);
    }
    return kp_dot_bytes(rows, nv, v, scale, bias, terms, factors, y, ldy, n, residual, ldr, end);
}

KP_INLINE int kp_amx_all_bytes(
    int nv, Py_ssize_t m, const int32_t *sums, const float *scale, const float *bias,
    ptrdiff_t terms, KP_DOT_OUT
) {
    const uint8_t *r = (const uint8_t *)residual;
    uint8_t *out = (uint8_t *)y;
    while (m > 0) {
        const int rows = m < 4 ? 1 : 4;
        int fits;
        if (rows == 4)
            fits = kp_amx_end_bytes(4, nv, sums, scale, bias, terms, factors, out, ldy, n, r, ldr, end);
        else
            fits = kp_amx_end_bytes(1, nv, sums, scale, bias, terms, factors, out, ldy, n, r, ldr, end);
        if (!fits) return 0; /* the same for all rows */
        m -= rows;
        sums += rows * nv * KP_LANES;
        out += rows * ldy;
        if (r) r += rows * ldr;
    }
    return 1;
}

KP_ALONE static void kp_amx_dots(Py_ssize_t m, KP_DOT_SUM, KP_DOT_OUT) {
    int32_t stored[KP_AMX_MAX_ROWS * KP_DOT_COLUMNS] KP_ON_LINES;
    const float *bias = (const float *)panel, *scale = bias + KP_DOT_COLUMNS;
    const int32_t *start = (const int32_t *)(scale + KP_DOT_COLUMNS);
    const int nv = n <= KP_LANES ? 1 : 2;
    const ptrdiff_t terms = 4 * taps * quads;
    const kp_amx_operands o = {
        m, taps, 4 * quads, 4 * quads, (const char *const *)rows,
        (const char *)(start + KP_DOT_COLUMNS), distance};
    kp_amx_configure();
    kp_amx_sums_of[1][m > KP_AMX_ROWS][nv - 1](&o, start, stored, nv * KP_AMX_BYTES);
    if (end->in_registers && (!residual || end->residual_in_bytes)) {
        if (nv > 1 ? kp_amx_all_bytes(2, m, stored, scale, bias, terms, factors, y, ldy, n, residual,
                                      ldr, end)
                   : kp_amx_all_bytes(1, m, stored, scale, bias, terms, factors, y, ldy, n, residual,
                                      ldr, end))
            return;
    }
    kp_end_dots(m, stored, scale, bias, factors, y, ldy, n, residual, ldr, end);
}

#define KP_AMX_HEIGHTS_8(F, first)                                                                \
    F(first##1) F(first##2) F(first##3) F(first##4) F(first##5) F(first##6) F(first##7) F(first##8)
#define KP_AMX_HEIGHTS(F)                                                                         \
    KP_AMX_HEIGHTS_8(F, ) F(9) F(10) KP_AMX_HEIGHTS_8(F, 1) F(19) F(20) KP_AMX_HEIGHTS_8(F, 2)    \
    F(29) F(30) F(31) F(32)

#define KP_AMX_GEMM(m)                                                                            \
    static void kp_amx_pairs_##m(KP_PAIR_SUM, KP_PAIR_OUT) {                                      \
        kp_amx_pairs(m, taps, terms, rows, panel, distance, y, ldy, n, residual, ldr, end);       \
    }                                                                                             \
    static void kp_amx_dots_##m(KP_DOT_SUM, KP_DOT_OUT) {                                         \
        kp_amx_dots(m, taps, quads, rows, panel, distance, factors, y, ldy, n, residual, ldr,     \
                    end);                                                                         \
    }
KP_AMX_HEIGHTS(KP_AMX_GEMM)

#define KP_ENTER(m) pairs[m] = kp_amx_pairs_##m, dots[m] = kp_amx_dots_##m;
static void kp_enter_amx(
    kp_pair_fn *pairs, kp_dot_fn *dots, kp_pair_end_fn end_pairs, kp_dot_end_fn end_dots
) {
    KP_AMX_HEIGHTS(KP_ENTER)
    kp_end_pairs = end_pairs;
    kp_end_dots = end_dots;
}
#undef KP_ENTER

/* As kp_pair_multiply_adds, in tile registers; four products of tiles take 64 cycles. */
static double kp_amx_multiply_adds(Py_ssize_t rounds, float *sink) {
    int32_t a[KP_AMX_ROWS], b[KP_AMX_ROWS];
    float sums[KP_AMX_ROWS][KP_AMX_ROWS];
    for (int i = 0; i < KP_AMX_ROWS; i++) a[i] = 0x40004000, b[i] = 0x3E803E80;
    kp_amx_configure();
    kp_amx_zero(0);
    kp_amx_zero(1);
    kp_amx_zero(2);
    kp_amx_zero(3);
    kp_amx_load(4, a, 0);
    kp_amx_load(6, b, 0);
    rounds = (rounds + 5) / 6;
    for (Py_ssize_t k = 0; k < rounds; k++) {
        kp_amx_dot_pairs(0, 4, 6);
        kp_amx_dot_pairs(1, 4, 6);
        kp_amx_dot_pairs(2, 4, 6);
        kp_amx_dot_pairs(3, 4, 6);
    }
    kp_amx_store(0, sums, KP_AMX_BYTES);
    sink[0] += sums[0][0];
    return 2.0 * 4 * KP_AMX_ROWS * KP_AMX_ROWS * (KP_AMX_BYTES / 2) * (double)rounds;
}

#endif
