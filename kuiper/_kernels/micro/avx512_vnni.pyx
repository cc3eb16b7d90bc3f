# The variant avx512, with products of bytes by the instruction that sums four of them.

include "extension.pxi"
include "dot.pxi"
include "dot_depthwise.pxi"


cdef void fill_extension(kernels_t* k) noexcept:
    fill_dot(k)
    fill_dot_depthwise(k)
