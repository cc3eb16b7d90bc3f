# Packing of a matrix of any strides into a panel that the GEMM tile reads.

from libc.string cimport memcpy, memset

from kuiper._runtime.stored_rows cimport stored_t
from kuiper._kernels.micro.table cimport bfloat16_t, kernels_t


cdef struct panels_t:            # the job of threads that pack columns into panels
    const kernels_t* kernels
    stored_t where               # columns in a file, (columns, channels, taps)
    const float* first           # columns in memory, (columns, taps, channels) of any strides
    Py_ssize_t column            # stride of columns, in floats
    Py_ssize_t channel           # stride of channels, in floats
    const Py_ssize_t* offsets    # (taps,), of each tap in a column, in floats
    Py_ssize_t columns
    Py_ssize_t taps
    Py_ssize_t channels
    const float* bias            # (columns,)
    float* space                 # (threads, nr, channels * taps), columns read from the file
    float* out                   # (panels, 1 + taps * channels, nr)
    int failures                 # panels that could not be read


# The biases, or zeros for None.
cdef const float[::1] biases(object bias, Py_ssize_t columns)
# Offsets of taps that are `apart` floats apart.
cdef const Py_ssize_t[::1] tap_offsets(Py_ssize_t taps, Py_ssize_t apart)
# The job for columns in memory; the caller sets `out`.
cdef panels_t panels_of_columns(
    const float[:, :, :] weight, const float[::1] bias, const Py_ssize_t[::1] offsets
)


cdef inline Py_ssize_t padded(Py_ssize_t columns, Py_ssize_t nr) noexcept nogil:
    """Round a number of columns up to whole panels."""
    return (columns + nr - 1) // nr * nr


cdef inline void pack_panel(
    const kernels_t* kernels, const float* w, Py_ssize_t column_stride, Py_ssize_t n_taps,
    const Py_ssize_t* tap_offsets, Py_ssize_t channels, Py_ssize_t channel_stride,
    const float* bias, Py_ssize_t count, float* panel,
) noexcept nogil:
    """Pack `count` columns: biases (zeros if bias is NULL), then taps x channels rows of nr.

    Weights and biases may start at any byte address.
    """
    cdef Py_ssize_t nr = kernels.nr, t, k, j
    cdef const float* source
    memset(panel, 0, nr * sizeof(float))
    if bias != NULL:
        memcpy(panel, bias, count * sizeof(float))
    panel += nr
    if count < nr:
        memset(panel, 0, n_taps * channels * nr * sizeof(float))
    for t in range(n_taps):
        source = w + tap_offsets[t]
        if column_stride == 1:
            for k in range(channels):
                memcpy(panel + k * nr, source + k * channel_stride, count * sizeof(float))
        elif channel_stride == 1:
            kernels.b32_transpose(source, column_stride, panel, nr, count, channels)
        else:
            for k in range(channels):
                for j in range(count):
                    memcpy(
                        panel + k * nr + j, source + j * column_stride + k * channel_stride,
                        sizeof(float),
                    )
        panel += channels * nr


cdef inline void pack_halves(
    const kernels_t* kernels, const bfloat16_t* w, Py_ssize_t column_stride,
    Py_ssize_t term_stride, Py_ssize_t terms, Py_ssize_t count, float* panel,
) noexcept nogil:
    """Pack `count` columns of bfloat16 into a panel of pairs, with biases of 0.

    Either columns or terms are adjacent.  If it is the terms, their number and the distance of
    columns are even and the first pair is aligned.
    """
    cdef Py_ssize_t nr = kernels.nr, no_offset = 0, k, j
    cdef bfloat16_t* out = <bfloat16_t*> (panel + nr)
    if term_stride == 1 and column_stride != 1:
        # A pair has the size of a float, and is only moved.
        pack_panel(
            kernels, <const float*> w, column_stride // 2, 1, &no_offset, terms // 2, 1, NULL,
            count, panel,
        )
        return
    memset(panel, 0, nr * sizeof(float))
    for k in range(0, terms, 2):
        if count < nr or k + 1 == terms:
            memset(out, 0, 2 * nr * sizeof(bfloat16_t))
        for j in range(count):
            out[2 * j] = w[j]
        if k + 1 < terms:
            for j in range(count):
                out[2 * j + 1] = w[term_stride + j]
        out += 2 * nr
        w += 2 * term_stride
