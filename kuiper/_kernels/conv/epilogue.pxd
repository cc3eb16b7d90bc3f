# The epilogue of a dense product: activation, residual sum, activation.
#
# Clamps, and a residual sum without an activation before it, happen in registers before the tile is
# stored.  Other functions run over the stored tile while it is in the L1 cache.

from kuiper._runtime.step cimport at, ref_t
from kuiper._kernels.micro.table cimport kernels_t, sums_end_t, unary_fn

ctypedef struct epilogue_t:
    float lo                   # bounds of the clamp in registers
    float hi
    bint has_residual
    bint residual_in_tile      # whether the micro-kernel adds it, in registers
    ref_t residual             # (rows, columns) of the result
    Py_ssize_t ldr             # row stride of the residual, in elements
    unary_fn pre_activation    # before a residual sum on the stored tile; or NULL
    float pre_p0
    float pre_p1
    unary_fn post_activation   # after it; or NULL
    float post_p0
    float post_p1


cdef inline const float* residual_at(
    const epilogue_t* epilogue, char* const* slots, Py_ssize_t offset
) noexcept nogil:
    """Return the address of the residual's element `offset`, or NULL without a residual."""
    if not epilogue.has_residual:
        return NULL
    return <const float*> at(slots, epilogue.residual) + offset


cdef inline const void* residual_bytes_at(
    const epilogue_t* epilogue, const sums_end_t* end, char* const* slots, Py_ssize_t offset
) noexcept nogil:
    """Return the same address if the residual may be in bytes or in bfloat16."""
    if not epilogue.has_residual:
        return NULL
    if end.residual_in_bfloat16:
        return at(slots, epilogue.residual) + 2 * offset
    if end.residual_in_bytes:
        return at(slots, epilogue.residual) + offset
    return <const float*> at(slots, epilogue.residual) + offset


cdef inline bint is_in_tile(const epilogue_t* epilogue) noexcept nogil:
    """Tell whether the micro-kernel applies all of the epilogue, before it stores a tile."""
    return epilogue.post_activation == NULL and epilogue.pre_activation == NULL and (
        epilogue.residual_in_tile or not epilogue.has_residual
    )


cdef inline void finish_tile(
    const epilogue_t* epilogue, Py_ssize_t rows, Py_ssize_t cols, float* y, Py_ssize_t ldy,
    const float* residual, Py_ssize_t ldr,
) noexcept nogil:
    """Apply the part of the epilogue that the micro-kernel left to the stored tile."""
    cdef Py_ssize_t _i, j
    cdef bint adds = epilogue.has_residual and not epilogue.residual_in_tile
    if is_in_tile(epilogue):
        return
    if ldy == cols and not adds:
        # One long row, to hide the latency of long functions.
        cols *= rows
        rows = 1
    for _i in range(rows):
        if epilogue.pre_activation != NULL:
            epilogue.pre_activation(cols, y, y, epilogue.pre_p0, epilogue.pre_p1)
        if adds:
            for j in range(cols):
                y[j] += residual[j]
            residual += ldr
        if epilogue.post_activation != NULL:
            epilogue.post_activation(cols, y, y, epilogue.post_p0, epilogue.post_p1)
        y += ldy


cdef epilogue_t make_epilogue(object step, object epilogue) except *


# The same for sums of products of bfloat16 or of bytes, whose residual and result may be either.
# Functions of results that are rounded to bfloat16 may have errors that are small beside that.
cdef sums_end_t make_sums_end(const epilogue_t* p, object epilogue, bint to_bfloat16=*) except *
