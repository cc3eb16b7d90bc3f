# An extension of a variant: <extension>.pyx includes this file, then its micro-kernels, and defines
# fill_extension, which enters them.

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New

from kuiper._kernels.micro.table cimport kernels_t

cdef extern from "_kernels/simd/variant.h":
    pass

include "../simd/vec.pxi"

cdef kernels_t kernels


def extended(table):
    """Return the table of a variant with the kernels of this extension, as a capsule."""
    global kernels
    kernels = (<const kernels_t*> PyCapsule_GetPointer(table, "kuiper.kernels"))[0]
    fill_extension(&kernels)
    return PyCapsule_New(&kernels, "kuiper.kernels", NULL)
