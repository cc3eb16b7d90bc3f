# What a micro-kernel variant offers: function pointers and tile sizes.
#
# One filled `kernels_t` exists per instruction set (_micro_<isa>.pyx).  Drivers read the table and
# never ask for the CPU.  Declarations only; no memoryviews here, or every importer would carry them.

cdef enum:
    MAX_MR = 14

# y[i, j] = clamp(bias[j] + sum_t sum_k rows[t * m + i][k] * panel[t * kc + k, j] + residual[i, j])
#
# m, the number of rows, is fixed per function; n <= nr columns are stored.  The panel starts with
# nr biases.  residual may be NULL.
ctypedef void (*gemm_fn)(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    float* y, Py_ssize_t ldy, Py_ssize_t n,
    const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil

# y[b * ldy + a] = x[a * ldx + b] for a < n_a, b < n_b; elements of any 32-bit type
ctypedef void (*transpose_fn)(
    const float* x, Py_ssize_t ldx, float* y, Py_ssize_t ldy, Py_ssize_t n_a, Py_ssize_t n_b,
) noexcept nogil

ctypedef struct kernels_t:
    int lanes
    # GEMM: rows and columns of the register tile; gemm[m] handles m rows, 1 <= m <= mr
    int mr
    int nr
    gemm_fn[MAX_MR + 1] gemm
    # data movement
    transpose_fn transpose
