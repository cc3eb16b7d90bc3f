# The variant avx2, with products of bytes by the instruction that sums four of them.

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New

from kuiper._kernels.micro.table cimport kernels_t

cdef extern from "_kernels/simd/variant.h":
    pass

include "../simd/vec.pxi"
include "dot.pxi"

cdef kernels_t kernels


def extended(table):
    """Return the table of avx2 with other integer kernels, as a capsule."""
    global kernels
    kernels = (<const kernels_t*> PyCapsule_GetPointer(table, "kuiper.kernels"))[0]
    fill_dot(&kernels)
    return PyCapsule_New(&kernels, "kuiper.kernels", NULL)
