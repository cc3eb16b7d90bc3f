# Packing: one panel of a matrix, from any strides to the order in which the GEMM tile reads it.

from libc.string cimport memcpy, memset

from kuiper._runtime.stored_rows cimport stored_t
from kuiper._kernels.micro.table cimport kernels_t


cdef struct panels_t:            # what threads need to pack some
    const kernels_t* kernels
    stored_t where               # of the columns, if not in memory
    const float* first           # of the columns in memory
    Py_ssize_t column            # strides, in floats
    Py_ssize_t channel
    const Py_ssize_t* offsets    # of the taps
    Py_ssize_t columns
    Py_ssize_t taps
    Py_ssize_t channels
    const float* bias
    float* space                 # for the columns of a panel, for each thread
    float* out
    int failures                   # panels that could not be read


# Biases of zeros where there are none.
cdef const float[::1] biases(object bias, Py_ssize_t columns)
# How far the taps are from the first one.
cdef const Py_ssize_t[::1] tap_offsets(Py_ssize_t taps, Py_ssize_t apart)
# What is known of columns in memory; the caller says where they go.
cdef panels_t panels_of_columns(
    const float[:, :, :] weight, const float[::1] bias, const Py_ssize_t[::1] offsets
)


cdef inline void pack_panel(
    const kernels_t* kernels, const float* w, Py_ssize_t column_stride, Py_ssize_t n_taps,
    const Py_ssize_t* tap_offsets, Py_ssize_t channels, Py_ssize_t channel_stride,
    const float* bias, Py_ssize_t count, float* panel,
) noexcept nogil:
    """Pack `count` columns: biases (zeros where bias is NULL), then taps x channels rows of nr.

    Weights and biases may start at any byte.
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
