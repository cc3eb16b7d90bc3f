# The variant avx512, with products of bfloat16 by the instruction that sums two of them.

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New

from kuiper._kernels.micro.table cimport kernels_t

cdef extern from "_kernels/simd/variant.h":
    pass

include "../simd/vec.pxi"
include "pairs.pxi"
include "dwrow.pxi"
include "narrow_dwconv.pxi"
include "winograd_points.pxi"
include "winograd_pairs.pxi"
include "move.pxi"
include "math.pxi"
include "rows.pxi"
include "attend.pxi"

cdef kernels_t kernels


def extended(table):
    """Return a table of avx512 with other kernels for bfloat16, as a capsule."""
    global kernels
    kernels = (<const kernels_t*> PyCapsule_GetPointer(table, "kuiper.kernels"))[0]
    fill_pairs(&kernels)
    fill_narrow_dwconv(&kernels)
    fill_winograd_pairs(&kernels)
    fill_attend(&kernels)
    return PyCapsule_New(&kernels, "kuiper.kernels", NULL)
