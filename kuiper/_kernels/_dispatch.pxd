from kuiper._kernels._table cimport kernels_t

cdef const kernels_t* active() noexcept nogil
