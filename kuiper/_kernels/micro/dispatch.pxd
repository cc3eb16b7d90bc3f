from kuiper._kernels.micro.table cimport kernels_t

cdef const kernels_t* active() noexcept nogil
