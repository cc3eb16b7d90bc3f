/* Depthwise convolution of bytes by the instruction that sums four products.

   The four bytes of a lane are four taps of one channel.  Rows of pixels hold one byte of each channel,
   so four rows are interleaved, channel by channel; the interleaving works within 128 bits and leaves
   64 channels in the order that packing the results undoes.  Weights are packed in that order.

   The taps of a quad are those of one column of the window, so adjacent windows share columns: each
   column is interleaved once and added to all windows that contain it, whose sums stay in registers
   while the window moves on.  Columns of five rows take two quads. */
#ifndef KUIPER_DOT_DEPTHWISE_H
#define KUIPER_DOT_DEPTHWISE_H

#include "dot_tile.h"

enum {
    KP_DW_CHANNELS = 64,                        /* of a block: a vector of bytes */
    KP_DW_LINES = 8,                            /* most rows of a window in columns */
    KP_DW_SUMS = 8,                             /* pixels whose sums pass through memory at a time */
    KP_DW_HEAD = 3 * 4 * KP_DW_CHANNELS         /* biases, scales and first values of the sums */
};

#define KP_DW_OUT                                                                                 \
    const char *weights, const float *factor, char *y, ptrdiff_t ldy, const char *residual,       \
        ptrdiff_t ldr, const kp_sums_end *end

#define KP_DW_LINES_OF                                                                            \
    Py_ssize_t kh, Py_ssize_t channels, Py_ssize_t n_rows, Py_ssize_t count,                      \
        const uint8_t *const *rows, Py_ssize_t first, Py_ssize_t width, Py_ssize_t ldx,           \
        const uint8_t *zeros

typedef void (*kp_dw_pixels_fn)(
    Py_ssize_t taps, Py_ssize_t channels, const uint8_t *const *pixels, const void *weights,
    const float *factor, void *y, Py_ssize_t ldy, const void *residual, Py_ssize_t ldr,
    const kp_sums_end *end);
typedef void (*kp_dw_rows_fn)(
    KP_DW_LINES_OF, const void *weights, const float *factor, void *y, Py_ssize_t ldy,
    const void *residual, Py_ssize_t ldr, const kp_sums_end *end);

/* How the sums of a block end; vectors, on cache lines, in the order of the interleaving. */
typedef struct {
    kp_vi32 start[4] KP_ON_LINES;
    kp_vf32 unit[4], shift[4];
    kp_byte_bounds bounds;
    __mmask64 some;                             /* the channels */
    uint8_t *y;                                 /* results in bytes, or NULL: */
    ptrdiff_t ldy;
    int32_t *sums;                              /* sums, in the order of the channels */
    ptrdiff_t lds;
} kp_dw_end;

/* The 128 bits j of vector i become the 128 bits i of vector j. */
KP_INLINE void kp_dw_turn(const kp_vi32 *x, kp_vi32 *y) {
    __m512i a = (__m512i)x[0], b = (__m512i)x[1], c = (__m512i)x[2], d = (__m512i)x[3];
    __m512i ab = _mm512_shuffle_i32x4(a, b, 0x44), AB = _mm512_shuffle_i32x4(a, b, 0xEE);
    __m512i cd = _mm512_shuffle_i32x4(c, d, 0x44), CD = _mm512_shuffle_i32x4(c, d, 0xEE);
    y[0] = (kp_vi32)_mm512_shuffle_i32x4(ab, cd, 0x88);
    y[1] = (kp_vi32)_mm512_shuffle_i32x4(ab, cd, 0xDD);
    y[2] = (kp_vi32)_mm512_shuffle_i32x4(AB, CD, 0x88);
    y[3] = (kp_vi32)_mm512_shuffle_i32x4(AB, CD, 0xDD);
}

/* Keeps the vectors of *e out of registers, which sums need more. */
#define kp_in_memory(e) __asm__("" : "+r"(e) : : "memory")

/* Store the sums of a pixel, or their end. */
KP_INLINE void kp_dw_put(
    int to_bytes, int whole, const kp_vi32 *acc, ptrdiff_t i, const kp_dw_end *e
) {
    if (to_bytes) {
        kp_vf32 v[4];
        KP_UNROLL
        for (int q = 0; q < 4; q++)
            v[q] = kp_rounded(kp_floats(acc[q]) * e->unit[q]) + e->shift[q];
        __m512i bytes = kp_to_bytes(v[0], v[1], v[2], v[3], &e->bounds);
        if (whole) _mm512_storeu_si512(e->y + i * e->ldy, bytes);
        else _mm512_mask_storeu_epi8(e->y + i * e->ldy, e->some, bytes);
    } else {
        kp_vi32 v[4];
        kp_dw_turn(acc, v);
        for (int q = 0; q * KP_LANES < e->lds; q++)
            kp_store_ints(e->sums + i * e->lds + q * KP_LANES, v[q]);
    }
}

/* Four vectors of bytes as quads of adjacent bytes. */
KP_INLINE void kp_dw_quads(
    int whole, __mmask64 some, const uint8_t *a, const uint8_t *b, const uint8_t *c, const uint8_t *d,
    __m512i *quads
) {
    __m512i x[4];
    x[0] = whole ? _mm512_loadu_si512(a) : _mm512_maskz_loadu_epi8(some, a);
    x[1] = whole ? _mm512_loadu_si512(b) : _mm512_maskz_loadu_epi8(some, b);
    x[2] = whole ? _mm512_loadu_si512(c) : _mm512_maskz_loadu_epi8(some, c);
    x[3] = whole ? _mm512_loadu_si512(d) : _mm512_maskz_loadu_epi8(some, d);
    __m512i ab = _mm512_unpacklo_epi8(x[0], x[1]), AB = _mm512_unpackhi_epi8(x[0], x[1]);
    __m512i cd = _mm512_unpacklo_epi8(x[2], x[3]), CD = _mm512_unpackhi_epi8(x[2], x[3]);
    quads[0] = _mm512_unpacklo_epi16(ab, cd);
    quads[1] = _mm512_unpackhi_epi16(ab, cd);
    quads[2] = _mm512_unpacklo_epi16(AB, CD);
    quads[3] = _mm512_unpackhi_epi16(AB, CD);
}

/* The rows of windows, at some column, as numbers: those of pixels outside are never used. */
typedef struct {
    uintptr_t pixel[KP_DW_LINES];
    ptrdiff_t step[KP_DW_LINES];                /* between the pixels of a row; 0 outside the image */
    ptrdiff_t column, width;                    /* of the image */
    uintptr_t zeros;                            /* the pixel of other columns */
} kp_dw_lines;

/* Add column j of a window to the sums of all windows that contain it: acc[at] are those of the first
   window, the next ones follow in the ring.  Lines move on by one column. */
KP_INLINE void kp_dw_column(
    int kw, int s, int at, int j, int whole, __mmask64 some, kp_dw_lines *lines, const int8_t *w,
    kp_vi32 (*acc)[4]
) {
    const int groups = (kw + 3) / 4, ring = (kw + s - 1) / s;
    uintptr_t inside = (uintptr_t)0 - ((size_t)lines->column < (size_t)lines->width);
    KP_UNROLL
    for (int g = 0; g < groups; g++) {
        __m512i quads[4];
        const uint8_t *p[4];
        KP_UNROLL
        for (int r = 0; r < 4; r++) {
            uintptr_t pixel = lines->pixel[4 * g + r];
            p[r] = (const uint8_t *)(lines->zeros ^ ((lines->zeros ^ pixel) & inside));
        }
        kp_dw_quads(whole, some, p[0], p[1], p[2], p[3], quads);
        KP_UNROLL
        for (int v = 0; v < kw; v++) {
            if (j < v || (j - v) % s) continue;
            KP_UNROLL
            for (int q = 0; q < 4; q++) {
                const int8_t *tap = w + ((v * groups + g) * 4 + q) * KP_DW_CHANNELS;
                kp_vi32 *sum = &acc[(at + (j - v) / s) % ring][q];
                *sum = kp_dot(*sum, quads[q], kp_load_signed(tap));
            }
        }
    }
    KP_UNROLL
    for (int r = 0; r < 4 * groups; r++) lines->pixel[r] += (uintptr_t)lines->step[r];
    lines->column++;
}

/* Whole windows kw wide and s apart, for one block of channels. */
KP_INLINE void kp_dw_windows(
    int kw, int s, int to_bytes, int whole, ptrdiff_t count, kp_dw_lines lines, const int8_t *w,
    const kp_dw_end *e
) {
    const int ring = (kw + s - 1) / s;
    kp_vi32 acc[5][4];
    ptrdiff_t i = 0;
    kp_in_memory(e);
    KP_UNROLL
    for (int r = 0; r < ring; r++) {
        KP_UNROLL
        for (int q = 0; q < 4; q++) acc[r][q] = e->start[q];
    }
    KP_UNROLL
    for (int j = 0; j < kw - s; j++)
        kp_dw_column(kw, s, 0, j, whole, e->some, &lines, w, acc);
    for (;;) {
#define KP_DW_WINDOW(at)                                                                          \
    if (at < ring) {                                                                              \
        if (i == count) return;                                                                   \
        kp_dw_column(kw, s, at, kw - s, whole, e->some, &lines, w, acc);                          \
        if (s > 1) kp_dw_column(kw, s, at, kw - 1, whole, e->some, &lines, w, acc);               \
        kp_dw_put(to_bytes, whole, acc[at], i, e);                                                \
        KP_UNROLL                                                                                 \
        for (int q = 0; q < 4; q++) acc[at][q] = e->start[q];                                     \
        i++;                                                                                      \
    }
        KP_DW_WINDOW(0)
        KP_DW_WINDOW(1)
        KP_DW_WINDOW(2)
        KP_DW_WINDOW(3)
        KP_DW_WINDOW(4)
#undef KP_DW_WINDOW
    }
}

/* Pixels with one pointer per pixel and tap, for one block of channels. */
KP_INLINE void kp_dw_scattered(
    int to_bytes, ptrdiff_t m, ptrdiff_t quads, const uint8_t *const *pixels, ptrdiff_t c,
    const int8_t *w, const kp_dw_end *e
) {
    for (ptrdiff_t i = 0; i < m; i++) {
        const uint8_t *const *p = pixels + i;
        const int8_t *taps = w;
        kp_vi32 acc[4];
        KP_UNROLL
        for (int q = 0; q < 4; q++) acc[q] = e->start[q];
        for (ptrdiff_t t = 0; t < quads; t++) {
            __m512i x[4];
            kp_dw_quads(0, e->some, p[0] + c, p[m] + c, p[2 * m] + c, p[3 * m] + c, x);
            KP_UNROLL
            for (int q = 0; q < 4; q++)
                acc[q] = kp_dot(acc[q], x[q], kp_load_signed(taps + q * KP_DW_CHANNELS));
            p += 4 * m;
            taps += 4 * KP_DW_CHANNELS;
        }
        kp_dw_put(to_bytes, 0, acc, i, e);
    }
}

/* Return how the sums of n channels end: in bytes, if that takes no more than registers. */
static kp_dw_end kp_dw_end_of(
    ptrdiff_t n, ptrdiff_t taps, const char *weights, const float *factor, char *y, ptrdiff_t ldy,
    const char *residual, const kp_sums_end *end, int32_t *sums
) {
    const float *bias = (const float *)weights, *scale = bias + KP_DW_CHANNELS;
    const int32_t *start = (const int32_t *)(scale + KP_DW_CHANNELS);
    kp_dw_end e;
    kp_vi32 unit[4], shift[4], first[4];
    int fits = end->in_registers && !residual;
    e.some = n < KP_DW_CHANNELS ? ((__mmask64)1 << n) - 1 : ~(__mmask64)0;
    e.bounds = kp_byte_bounds_of(end);
    for (int q = 0; q < 4; q++) {
        kp_vf32 u = kp_rounded(kp_load(scale + q * KP_LANES) * kp_splat(*factor));
        kp_vf32 s = kp_load(bias + q * KP_LANES);
        fits = fits && kp_fits_bytes(u, s, taps, NULL, end);
        unit[q] = kp_bits(u);
        shift[q] = kp_bits(s);
        first[q] = kp_load_ints(start + q * KP_LANES);
    }
    kp_dw_turn(first, e.start);
    kp_dw_turn(unit, (kp_vi32 *)e.unit);
    kp_dw_turn(shift, (kp_vi32 *)e.shift);
    e.y = fits ? (uint8_t *)y : NULL;
    e.ldy = ldy;
    e.sums = sums;
    e.lds = (n + KP_LANES - 1) / KP_LANES * KP_LANES;
    return e;
}

/* End the sums in memory of m pixels from pixel i on, of the n channels from c on. */
static void kp_dw_end_sums(
    ptrdiff_t m, ptrdiff_t i, ptrdiff_t n, ptrdiff_t c, int32_t *sums, KP_DW_OUT
) {
    const float *bias = (const float *)weights;
    ptrdiff_t size = end->to_bytes ? 1 : sizeof(float);
    ptrdiff_t residual_size = end->residual_in_bytes ? 1 : sizeof(float);
    if (residual) residual += (i * ldr + c) * residual_size;
    y += (i * ldy + c) * size;
    kp_end_sums(
        m, sums, bias + KP_DW_CHANNELS, bias, factor, y, ldy, n, residual, ldr, end
    );
}

/* The lines of a row of windows from channel c on; quads are filled up with the last line, whose
   further weights are 0. */
KP_INLINE kp_dw_lines kp_dw_lines_of(
    int n, ptrdiff_t kh, const uint8_t *const *rows, ptrdiff_t first, ptrdiff_t width, ptrdiff_t ldx,
    const uint8_t *zeros, ptrdiff_t c
) {
    kp_dw_lines lines;
    for (int r = 0; r < n; r++) {
        const uint8_t *row = rows[r < kh ? r : kh - 1];
        lines.step[r] = row ? ldx : 0;
        lines.pixel[r] = (uintptr_t)(row ? row : zeros) + (uintptr_t)(first * lines.step[r] + c);
    }
    lines.column = first;
    lines.width = width;
    lines.zeros = (uintptr_t)(zeros + c);
    return lines;
}

KP_INLINE void kp_dw_rows(int kw, int s, KP_DW_LINES_OF, KP_DW_OUT) {
    const int n_lines = (kw + 3) / 4 * 4;
    const ptrdiff_t block = KP_DW_HEAD + (ptrdiff_t)kw * n_lines * KP_DW_CHANNELS;
    int32_t sums[KP_DW_SUMS * KP_DW_CHANNELS] KP_ON_LINES;
    for (ptrdiff_t c = 0; c < channels; c += KP_DW_CHANNELS, weights += block) {
        ptrdiff_t n = channels - c < KP_DW_CHANNELS ? channels - c : KP_DW_CHANNELS;
        const int8_t *w = (const int8_t *)weights + KP_DW_HEAD;
        kp_dw_end e = kp_dw_end_of(n, kh * kw, weights, factor, y + c, ldy, residual, end, sums);
        for (ptrdiff_t i = 0; i < n_rows; i++) {
            kp_dw_lines lines = kp_dw_lines_of(
                n_lines, kh, rows + i * kh, first, width, ldx, zeros, c);
            if (e.y && n == KP_DW_CHANNELS) {
                kp_dw_windows(kw, s, 1, 1, count, lines, w, &e);
                e.y += count * ldy;
            } else if (e.y) {
                kp_dw_windows(kw, s, 1, 0, count, lines, w, &e);
                e.y += count * ldy;
            } else {
                for (ptrdiff_t j = 0; j < count; j += KP_DW_SUMS) {
                    ptrdiff_t m = count - j < KP_DW_SUMS ? count - j : KP_DW_SUMS;
                    kp_dw_windows(kw, s, 0, 0, m, lines, w, &e);
                    kp_dw_end_sums(
                        m, i * count + j, n, c, sums, weights, factor, y, ldy, residual, ldr, end);
                    for (int r = 0; r < n_lines; r++)
                        lines.pixel[r] += (uintptr_t)(KP_DW_SUMS * s * lines.step[r]);
                    lines.column += KP_DW_SUMS * s;
                }
            }
        }
    }
}

static void kp_dw_pixels(
    ptrdiff_t m, ptrdiff_t taps, ptrdiff_t channels, const uint8_t *const *pixels, KP_DW_OUT
) {
    const ptrdiff_t block = KP_DW_HEAD + taps * KP_DW_CHANNELS;
    int32_t sums[KP_DW_SUMS * KP_DW_CHANNELS] KP_ON_LINES;
    for (ptrdiff_t c = 0; c < channels; c += KP_DW_CHANNELS, weights += block) {
        ptrdiff_t n = channels - c < KP_DW_CHANNELS ? channels - c : KP_DW_CHANNELS;
        const int8_t *w = (const int8_t *)weights + KP_DW_HEAD;
        kp_dw_end e = kp_dw_end_of(n, taps, weights, factor, y + c, ldy, residual, end, sums);
        if (e.y) {
            kp_dw_scattered(1, m, taps / 4, pixels, c, w, &e);
        } else {
            kp_dw_scattered(0, m, taps / 4, pixels, c, w, &e);
            kp_dw_end_sums(m, 0, n, c, sums, weights, factor, y, ldy, residual, ldr, end);
        }
    }
}

#define KP_DW_ROW(kw, s)                                                                          \
    static void kp_dw_rows_##kw##_##s(                                                            \
        KP_DW_LINES_OF, const void *weights, const float *factor, void *y, Py_ssize_t ldy,        \
        const void *residual, Py_ssize_t ldr, const kp_sums_end *end                              \
    ) {                                                                                           \
        kp_dw_rows(kw, s, kh, channels, n_rows, count, rows, first, width, ldx, zeros,            \
                   (const char *)weights, factor, (char *)y, ldy, (const char *)residual, ldr,    \
                   end);                                                                          \
    }
#define KP_DW_PIXELS(m)                                                                           \
    static void kp_dw_pixels_##m(                                                                 \
        Py_ssize_t taps, Py_ssize_t channels, const uint8_t *const *pixels, const void *weights,  \
        const float *factor, void *y, Py_ssize_t ldy, const void *residual, Py_ssize_t ldr,       \
        const kp_sums_end *end                                                                    \
    ) {                                                                                           \
        kp_dw_pixels(m, taps, channels, pixels, (const char *)weights, factor, (char *)y, ldy,    \
                     (const char *)residual, ldr, end);                                           \
    }

#define KP_DW_ROWS(F) F(3, 1) F(3, 2) F(5, 1) F(5, 2)
#define KP_DW_COUNTS(F) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8)
KP_DW_ROWS(KP_DW_ROW)
KP_DW_COUNTS(KP_DW_PIXELS)

#define KP_ENTER(m) pixels[m] = kp_dw_pixels_##m;
#define KP_ENTER_ROW(kw, s) rows[kw * n_steps + s] = kp_dw_rows_##kw##_##s;
/* pixels[m], and rows[kw][s] with n_steps columns. */
static void kp_enter_dot_depthwise(kp_dw_pixels_fn *pixels, kp_dw_rows_fn *rows, int n_steps) {
    KP_DW_COUNTS(KP_ENTER)
    KP_DW_ROWS(KP_ENTER_ROW)
}
#undef KP_ENTER
#undef KP_ENTER_ROW

#endif
