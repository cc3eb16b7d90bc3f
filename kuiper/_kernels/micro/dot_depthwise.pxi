# Depthwise convolution of bytes by the instruction that sums four products
# (simd/dot_depthwise.h): only for variants that set dw_takes_quads.

from kuiper._kernels.micro.table cimport MAX_DW_STEP, u8_dwconv_fn, u8_dwrows_fn

cdef extern from "_kernels/simd/dot_depthwise.h" nogil:
    void enter_dot_depthwise "kp_enter_dot_depthwise"(
        u8_dwconv_fn* pixels, u8_dwrows_fn* rows, int n_steps
    ) noexcept


cdef void fill_dot_depthwise(kernels_t* k) noexcept:
    k.dw_takes_quads = True
    enter_dot_depthwise(k.u8_dwconv, &k.u8_dwrows[0][0], MAX_DW_STEP + 1)
