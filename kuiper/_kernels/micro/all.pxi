# All micro-kernels of one instruction-set variant: <isa>.pyx includes only this file, and setup.py
# sets its compiler flags.

from cpython.pycapsule cimport PyCapsule_New

from kuiper._kernels.micro.table cimport kernels_t

cdef extern from "_kernels/simd/variant.h":
    pass

include "../simd/vec.pxi"
include "move.pxi"
include "pool.pxi"
include "resize.pxi"
include "rows.pxi"
include "gemm.pxi"
include "few_outputs.pxi"
include "dot.pxi"
include "pairs.pxi"
include "bytes.pxi"
include "strassen.pxi"
include "dwrow.pxi"
include "dwconv.pxi"
include "narrow_dwconv.pxi"
include "grouped.pxi"
include "winograd_points.pxi"
include "winograd_strided.pxi"
include "winograd.pxi"
include "winograd_pairs.pxi"
include "math.pxi"
include "activations.pxi"
include "elementwise.pxi"
include "typed.pxi"
include "grid.pxi"
include "ceiling.pxi"

cdef kernels_t kernels


cdef void fill_table() noexcept:
    kernels.lanes = LANES
    fill_move(&kernels)
    fill_pool(&kernels)
    fill_resize(&kernels)
    fill_rows(&kernels)
    fill_gemm(&kernels)
    fill_few_outputs(&kernels)
    fill_dot(&kernels)
    fill_pairs(&kernels)
    fill_bytes(&kernels)
    fill_strassen(&kernels)
    fill_dwconv(&kernels)
    fill_narrow_dwconv(&kernels)
    fill_grouped(&kernels)
    fill_winograd(&kernels)
    fill_winograd_pairs(&kernels)
    fill_elementwise(&kernels)
    fill_typed(&kernels)
    fill_grid(&kernels)
    fill_ceiling(&kernels)


fill_table()


def table():
    """Return the table of this variant for `dispatch`, as a capsule."""
    return PyCapsule_New(&kernels, "kuiper.kernels", NULL)
