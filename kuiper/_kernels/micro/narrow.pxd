# Rows in bfloat16 for kernels of floats: some rows at a time are widened, or rounded, in the cache.

from kuiper._kernels.micro.element_functions cimport Type
from kuiper._kernels.micro.table cimport kernels_t
from kuiper._kernels.simd.bfloat16 cimport bfloat16_t

cdef enum:
    ROWS_FLOATS = 4096   # of the rows that are widened together: 16 KB


cdef inline Py_ssize_t rows_together(Py_ssize_t n) noexcept nogil:
    """Return how many rows of n elements are widened together."""
    return max(ROWS_FLOATS // max(n, 1), 1)


cdef inline void widen_rows(
    const kernels_t* kernels, const bfloat16_t* x, Py_ssize_t x_row, Py_ssize_t rows, Py_ssize_t n,
    float* y,
) noexcept nogil:
    """y[i * n + k] = x[i * x_row + k]"""
    cdef Py_ssize_t i
    if x_row == n:
        n *= rows
        rows = 1
    for i in range(rows):
        kernels.typed_convert(Type.BFLOAT16, Type.FLOAT32, n, x + i * x_row, y + i * n)


cdef inline void round_rows(
    const kernels_t* kernels, const float* x, Py_ssize_t rows, Py_ssize_t n, bfloat16_t* y,
    Py_ssize_t y_row,
) noexcept nogil:
    """y[i * y_row + k] = x[i * n + k], to nearest even."""
    cdef Py_ssize_t i
    if y_row == n:
        n *= rows
        rows = 1
    for i in range(rows):
        kernels.f32_to_bf16(n, x + i * n, y + i * y_row)
