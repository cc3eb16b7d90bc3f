# One instruction-set variant of every micro-kernel: _micro_<isa>.pyx includes this file and nothing
# else; setup.py gives each its flags.  Everything here is a leaf: pointers and sizes in, no Python,
# no allocation, no failure.

from cpython.pycapsule cimport PyCapsule_New

from kuiper._kernels._table cimport kernels_t

cdef extern from "_variant.h":
    pass

include "_vec.pxi"
include "_micro_move.pxi"
include "_micro_pool.pxi"
include "_micro_resize.pxi"
include "_micro_rows.pxi"
include "_micro_gemm.pxi"
include "_micro_narrow.pxi"
include "_micro_strassen.pxi"
include "_micro_dwconv.pxi"
include "_micro_grouped.pxi"
include "_micro_winograd_strided.pxi"
include "_micro_winograd.pxi"
include "_micro_math.pxi"
include "_micro_activations.pxi"
include "_micro_elementwise.pxi"
include "_micro_typed.pxi"
include "_micro_grid.pxi"

cdef kernels_t kernels


cdef void fill_table() noexcept:
    kernels.lanes = LANES
    fill_move(&kernels)
    fill_pool(&kernels)
    fill_resize(&kernels)
    fill_rows(&kernels)
    fill_gemm(&kernels)
    fill_narrow(&kernels)
    fill_strassen(&kernels)
    fill_dwconv(&kernels)
    fill_grouped(&kernels)
    fill_winograd(&kernels)
    fill_elementwise(&kernels)
    fill_typed(&kernels)
    fill_grid(&kernels)


fill_table()


def table():
    """Return the table of this variant for `_dispatch`, as a capsule."""
    return PyCapsule_New(&kernels, "kuiper.kernels", NULL)
