# Adjacent depthwise windows of 3, 5 or 7 columns: a pixel is loaded once for all windows that
# contain it.

from libc.stdint cimport uint8_t

from kuiper._kernels.micro.table cimport DW_ROW, MAX_DW_KW

# The elements of pixels.  Two vectors of bfloat16 are loaded at once and widened to even and odd
# channels, by one instruction each.
cdef enum:
    DW_FLOATS
    DW_BYTES
    DW_HALVES
    DW_EVEN_HALVES
    DW_ODD_HALVES


cdef inline vf32 dw_pixel(int kind, const char* pixel, long n) noexcept nogil:
    """The first n channels of one vector; `kind` is a constant."""
    if kind == DW_BYTES:
        return load_bytes(<const uint8_t*> pixel, n)
    if kind == DW_HALVES:
        return load_bf16_first(<const bfloat16_t*> pixel, n)
    if kind == DW_EVEN_HALVES:
        return first_of_pairs(load_pairs(<const bfloat16_t*> pixel))
    if kind == DW_ODD_HALVES:
        return second_of_pairs(load_pairs(<const bfloat16_t*> pixel))
    return load_first(<const float*> pixel, n)


cdef inline const char* dw_column(
    int kind, int kw, int s, int j, const char* pixel, Py_ssize_t step, long n,
    const vf32* tap, vf32* acc,
) noexcept nogil:
    """Add column j of a row of pixels to all windows that contain it; return the next pixel."""
    cdef vf32 x
    cdef int v
    if j >= (DW_ROW - 1) * s + kw:
        return pixel
    x = dw_pixel(kind, pixel, n)
    for v in range(kw):
        # Column v of the window of output pixel (j - v) / s, if that is one.
        if j >= v and (j - v) % s == 0 and j - v < DW_ROW * s:
            acc[(j - v) // s] += x * tap[v]
    return pixel + step


cdef inline void dwrow_sums(
    int kind, int kw, int s, Py_ssize_t kh, const char* const* rows, const Py_ssize_t* steps,
    Py_ssize_t first, Py_ssize_t c, long n, const float* w, vf32* acc,
) noexcept nogil:
    """Sum DW_ROW windows, from number `first` on, of the first n channels of one vector.

    w: first values, then taps.

    The sums of bytes are exact: they are integers below 2^24.
    """
    cdef vf32[MAX_DW_KW] tap
    cdef const char* pixel
    cdef Py_ssize_t u, step, size = 2
    cdef int i, v
    if kind == DW_BYTES:
        size = 1
    elif kind == DW_FLOATS:
        size = sizeof(float)
    for i in range(DW_ROW):
        acc[i] = load(w)
    for u in range(kh):
        for v in range(kw):
            w += LANES
            tap[v] = load(w)
        step = steps[u] * size
        pixel = rows[u] + first * s * step + c * size
        # One call per column: compilers do not unroll a loop of 19.
        pixel = dw_column(kind, kw, s, 0, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 1, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 2, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 3, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 4, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 5, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 6, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 7, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 8, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 9, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 10, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 11, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 12, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 13, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 14, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 15, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 16, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 17, pixel, step, n, &tap[0], acc)
        pixel = dw_column(kind, kw, s, 18, pixel, step, n, &tap[0], acc)
