# The input pixels of each output pixel of a convolution; see window.pyx.

from libc.stdint cimport uint8_t

from kuiper._kernels.simd.bfloat16 cimport bfloat16_t
from kuiper._runtime.step cimport ceil_div

ctypedef fused element_t:
    float
    bfloat16_t
    uint8_t

cdef struct tap_t:
    Py_ssize_t dy            # from the output pixel's origin in the input, in pixels
    Py_ssize_t dx
    Py_ssize_t offset        # the same in elements

cdef struct phase_t:
    Py_ssize_t first_h       # first output row and column of the phase
    Py_ssize_t first_w
    Py_ssize_t height        # output rows and columns in the phase
    Py_ssize_t width
    Py_ssize_t n_taps
    tap_t* taps              # (n_taps,)
    Py_ssize_t weight        # start of its panels, in elements
    Py_ssize_t min_dy        # extremes of the taps and 0
    Py_ssize_t max_dy
    Py_ssize_t min_dx
    Py_ssize_t max_dx

cdef struct window_t:
    Py_ssize_t n             # images
    Py_ssize_t in_h
    Py_ssize_t in_w
    Py_ssize_t ldx           # from pixel to pixel, in elements
    Py_ssize_t out_h
    Py_ssize_t out_w
    Py_ssize_t ldy
    Py_ssize_t in_step_h     # input rows between consecutive output rows of a phase
    Py_ssize_t in_step_w
    Py_ssize_t out_step      # output rows between consecutive output rows of a phase
    Py_ssize_t out_step_w
    Py_ssize_t n_phases
    phase_t* phases          # (n_phases,)


cdef class Window:
    cdef window_t w


cdef inline bint is_inside(
    const window_t* w, const phase_t* phase, Py_ssize_t ih, Py_ssize_t iw, Py_ssize_t last_iw
) noexcept nogil:
    """Tell whether all taps of the pixels with origins (ih, iw) to (ih, last_iw) are inside."""
    return (
        ih + phase.min_dy >= 0 and ih + phase.max_dy < w.in_h
        and iw + phase.min_dx >= 0 and last_iw + phase.max_dx < w.in_w
    )


cdef inline void point_inside(
    const phase_t* phase, const element_t* origin, Py_ssize_t step, Py_ssize_t m,
    const element_t** rows,
) noexcept nogil:
    """Fill rows[t * m + i] for inner pixels of one row, `step` elements apart."""
    cdef Py_ssize_t t, i
    cdef const element_t* first
    for t in range(phase.n_taps):
        first = origin + phase.taps[t].offset
        for i in range(m):
            rows[i] = first + i * step
        rows += m


cdef inline void point_rows(
    const window_t* w, const phase_t* phase, const element_t* x, const element_t* zeros,
    Py_ssize_t pixel, Py_ssize_t m, const element_t** rows,
) noexcept nogil:
    """Fill rows[t * m + i] with the address of tap t of output pixel `pixel + i` of the phase.

    Taps outside the image are at `zeros`.
    """
    cdef Py_ssize_t ow = pixel % phase.width
    cdef Py_ssize_t oh = pixel // phase.width % phase.height
    cdef Py_ssize_t image = pixel // phase.width // phase.height
    cdef Py_ssize_t i, t, ih = oh * w.in_step_h, iw = ow * w.in_step_w, n_taps = phase.n_taps
    cdef const element_t* origin = x + ((image * w.in_h + ih) * w.in_w + iw) * w.ldx
    if ow + m <= phase.width and is_inside(w, phase, ih, iw, iw + (m - 1) * w.in_step_w):
        point_inside(phase, origin, w.in_step_w * w.ldx, m, rows)
        return
    for i in range(m):
        ih, iw = oh * w.in_step_h, ow * w.in_step_w
        origin = x + ((image * w.in_h + ih) * w.in_w + iw) * w.ldx
        if is_inside(w, phase, ih, iw, iw):
            for t in range(n_taps):
                rows[t * m + i] = origin + phase.taps[t].offset
        else:
            for t in range(n_taps):
                if (
                    0 <= ih + phase.taps[t].dy < w.in_h and 0 <= iw + phase.taps[t].dx < w.in_w
                ):
                    rows[t * m + i] = origin + phase.taps[t].offset
                else:
                    rows[t * m + i] = zeros
        ow += 1
        if ow == phase.width:
            ow = 0
            oh += 1
            if oh == phase.height:
                oh = 0
                image += 1


cdef inline Py_ssize_t output_pixel(
    const window_t* w, const phase_t* phase, Py_ssize_t pixel
) noexcept nogil:
    """Return the index in the output of pixel number `pixel` of a phase."""
    cdef Py_ssize_t ow = pixel % phase.width
    cdef Py_ssize_t oh = pixel // phase.width % phase.height
    cdef Py_ssize_t image = pixel // phase.width // phase.height
    return (
        (image * w.out_h + phase.first_h + oh * w.out_step) * w.out_w
        + phase.first_w + ow * w.out_step_w
    )


cdef inline void point_lines(
    const window_t* w, const phase_t* phase, Py_ssize_t kernel_h, Py_ssize_t kernel_w,
    const element_t* x, const element_t* zeros, Py_ssize_t pixel, const element_t** rows,
    Py_ssize_t* steps,
) noexcept nogil:
    """Fill rows[u] with the address of row u of output pixel `pixel`'s window, and steps[u] with
    the distance between its pixels: 0 for a row outside the image, which is at `zeros`.

    No row crosses a side border; the taps are those of a kernel, row by row.
    """
    cdef Py_ssize_t image = pixel // (w.out_w * w.out_h), ow = pixel % w.out_w
    cdef Py_ssize_t ih = pixel // w.out_w % w.out_h * w.in_step_h, u, row
    for u in range(kernel_h):
        row = ih + phase.taps[u * kernel_w].dy
        if 0 <= row < w.in_h:
            rows[u] = x + (
                (image * w.in_h + row) * w.in_w + ow * w.in_step_w + phase.taps[0].dx
            ) * w.ldx
            steps[u] = w.ldx
        else:
            rows[u] = zeros
            steps[u] = 0


cdef inline void inner_columns(
    const window_t* w, const phase_t* phase, Py_ssize_t* left, Py_ssize_t* right
) noexcept nogil:
    """Set the range of output columns, left to right - 1, no tap of which crosses a side border."""
    left[0] = ceil_div(max(0, -phase.min_dx), w.in_step_w)
    right[0] = max(left[0], ceil_div(max(0, w.in_w - phase.max_dx), w.in_step_w))
