# Convolution to at most FEW_OUTPUTS channels; see simd/few_outputs.h.

from kuiper._kernels.micro.table cimport FEW_OUTPUTS

cdef extern from "_kernels/simd/few_outputs.h" nogil:
    void few_outputs_sums "kp_few_outputs"(
        int pixels, int n, Py_ssize_t taps, Py_ssize_t channels, const float* const* rows,
        Py_ssize_t apart, const float* weight, float* sums,
    ) noexcept


cdef inline void few_outputs_tiles(
    int pixels, int n, Py_ssize_t m, Py_ssize_t taps, Py_ssize_t channels,
    const float* const* rows, const float* weight, float* sums,
) noexcept nogil:
    """The sums of m pixels, `pixels` at a time; `pixels` and `n` are constants."""
    cdef Py_ssize_t i = 0
    while i + pixels <= m:
        few_outputs_sums(pixels, n, taps, channels, rows + i, m, weight, sums + i * n)
        i += pixels
    while i < m:
        few_outputs_sums(1, n, taps, channels, rows + i, m, weight, sums + i * n)
        i += 1


cdef void f32_few_outputs(
    Py_ssize_t m, Py_ssize_t taps, Py_ssize_t channels, const float* const* rows,
    const float* weight, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    cdef float[MAX_MR * FEW_OUTPUTS] sums
    cdef vf32 bias = load(weight), low = splat(lo), high = splat(hi)
    cdef Py_ssize_t i
    weight += LANES
    # As many pixels as have sums in half of the registers.
    if n == 1:
        few_outputs_tiles(REGISTERS // 4, 1, m, taps, channels, rows, weight, sums)
    elif n == 2:
        few_outputs_tiles(REGISTERS // 4, 2, m, taps, channels, rows, weight, sums)
    elif n == 3:
        few_outputs_tiles(REGISTERS // 8, 3, m, taps, channels, rows, weight, sums)
    else:
        few_outputs_tiles(REGISTERS // 8, 4, m, taps, channels, rows, weight, sums)
    for i in range(m):
        store_result(
            y + i * ldy, load_first(sums + i * n, n) + bias, residual, i * ldr, low, high, n
        )


cdef void fill_few_outputs(kernels_t* k) noexcept:
    k.f32_few_outputs = f32_few_outputs
