# The variant neon, with products of bytes by the instruction that sums four of them.

include "extension.pxi"
include "dot.pxi"


cdef void fill_extension(kernels_t* k) noexcept:
    fill_dot(k)
