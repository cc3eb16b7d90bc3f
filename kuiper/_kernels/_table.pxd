# What a micro-kernel variant offers: function pointers and tile sizes.
#
# One filled `kernels_t` exists per instruction set (_micro_<isa>.pyx).  Drivers read the table and
# never ask for the CPU.  Declarations only; no memoryviews here, or every importer would carry
# them.

from libc.stdint cimport int64_t

cdef enum:
    MAX_MR = 14
    MAX_DW_M = 8

# y[b * ldy + a] = x[a * ldx + b] for a < n_a, b < n_b; elements of any 32-bit type
ctypedef void (*transpose_fn)(
    const float* x, Py_ssize_t ldx, float* y, Py_ssize_t ldy, Py_ssize_t n_a, Py_ssize_t n_b,
) noexcept nogil

# Windows over channels-last pixels: y[i * y_step + c] = max, or sum / divisor, over r < n_rows and
# k < n_columns of x[i * x_step + rows[r] + k * column + c], for i < count and c < channels.
ctypedef void (*pool_fn)(
    const float* x, Py_ssize_t x_step, const Py_ssize_t* rows, Py_ssize_t n_rows,
    Py_ssize_t n_columns, Py_ssize_t column, float* y, Py_ssize_t y_step, Py_ssize_t count,
    Py_ssize_t channels, float divisor,
) noexcept nogil

# The maximum of one window and its place, places[r] + k * place_column; of equal ones the first, of
# NaNs the last.
ctypedef void (*pool_argmax_fn)(
    const float* x, const Py_ssize_t* rows, Py_ssize_t n_rows, Py_ssize_t n_columns,
    Py_ssize_t column, Py_ssize_t channels, const int* places, int place_column,
    float* y, int64_t* indices,
) noexcept nogil

# Resampling of one row, for i < count and c < channels, with 1, 2 or 4 taps:
# y[i * y_step + c] = sum_k weights[i * taps + k] * x[offsets[i * taps + k] + c].
ctypedef void (*resize_columns_fn)(
    int taps, const float* x, const int* offsets, const float* weights, float* y,
    Py_ssize_t y_step, Py_ssize_t count, Py_ssize_t channels,
) noexcept nogil

# y[i] = sum_k weights[k] * rows[k][i] for i < count; 2 or 4 taps.
ctypedef void (*resize_rows_fn)(
    int taps, const float* const* rows, const float* weights, float* y, Py_ssize_t count,
) noexcept nogil

# y[i, j] = clamp(bias[j] + sum_t sum_k rows[t * m + i][k] * panel[t * kc + k, j] + residual[i, j])
#
# m, the number of rows, is fixed per function; n <= nr columns are stored.  The panel starts with
# nr biases.  residual may be NULL.
ctypedef void (*gemm_fn)(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    float* y, Py_ssize_t ldy, Py_ssize_t n,
    const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil

# y[i] = f(x[i]; p0, p1) for i < n; y may be x.  Functions are numbered in elementwise.pxd.
ctypedef void (*unary_fn)(Py_ssize_t n, const float* x, float* y, float p0, float p1) noexcept nogil

# y[i, j] = f(a[i, j], b[i, j]): two-dimensional operands with any row stride; the column stride of
# a and b is 1, or 0 where the operand is broadcast along its row.  y may be a or b where these lie
# alike.
ctypedef struct rows_t:
    Py_ssize_t n_rows
    Py_ssize_t n_columns
    const float* a
    Py_ssize_t a_row
    Py_ssize_t a_column
    const float* b
    Py_ssize_t b_row
    Py_ssize_t b_column
    float* y
    Py_ssize_t y_row

ctypedef void (*binary_fn)(const rows_t* rows) noexcept nogil

# A chain of cheap operations on one running value, which stays in registers: a link loads it,
# stores it, or replaces it by an operation on it and, for most, on an operand of its own.
cdef enum:
    MAX_LINKS = 48

ctypedef struct link_t:
    int code               # see Link in elementwise.pxd
    bint moves             # whether the operand moves along the row
    float* x               # written by a link that stores
    Py_ssize_t row         # stride of the operand
    Py_ssize_t ahead       # how far ahead to ask for it, in elements; 0 = not at all
    float p0
    float p1

ctypedef struct chain_t:
    int n_links
    Py_ssize_t n_rows
    Py_ssize_t n_columns
    float* y               # may be an operand that lies alike
    Py_ssize_t y_row
    link_t[MAX_LINKS] links

ctypedef void (*chain_fn)(const chain_t* chain) noexcept nogil

# Depthwise taps, for m pixels (fixed per function) and all channels:
#     y[i, c] = clamp(bias[c] + sum_t pixels[t][i * steps[t] + c] * weight[t, c] + residual[i, c])
# or, where steps is NULL, with pixels[t * m + i][c].
# Weights come in blocks of `lanes` channels: bias, then the taps.
ctypedef void (*dwconv_fn)(
    Py_ssize_t taps, Py_ssize_t channels, const float* const* pixels, const Py_ssize_t* steps,
    const float* weights, float* y, Py_ssize_t ldy,
    const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil

# Winograd F(4x4, 3x3), one tile, all channels.
# Input: 36 pixels, row by row -> v[f * stride + c].
# Output: m[f * stride + c] -> the first rows x columns of 4x4 pixels, plus bias and residual,
# clamped.
ctypedef void (*wino_input_fn)(
    Py_ssize_t channels, const float* const* pixels, float* v, Py_ssize_t stride
) noexcept nogil
ctypedef void (*wino_output_fn)(
    Py_ssize_t channels, const float* m, Py_ssize_t stride, const float* bias,
    float* y, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows, Py_ssize_t columns,
    const float* residual, Py_ssize_t r_row, Py_ssize_t r_column, float lo, float hi,
) noexcept nogil

cdef enum:
    MAX_UNARY = 64
    MAX_BINARY = 16

ctypedef struct kernels_t:
    int lanes
    # data movement
    transpose_fn transpose
    # pooling
    pool_fn pool_max
    pool_fn pool_mean
    pool_argmax_fn pool_argmax
    # resampling
    resize_columns_fn resize_columns
    resize_rows_fn resize_rows
    # GEMM: rows and columns of the register tile; gemm[m] handles m rows, 1 <= m <= mr
    int mr
    int nr
    gemm_fn[MAX_MR + 1] gemm
    # depthwise convolution: dwconv[m] handles m pixels, 1 <= m <= dw_m
    int dw_m
    dwconv_fn[MAX_DW_M + 1] dwconv
    wino_input_fn wino_input
    wino_output_fn wino_output
    # elementwise functions of one tensor and of two, by number
    unary_fn[MAX_UNARY] unary
    binary_fn[MAX_BINARY] binary
    chain_fn chain
