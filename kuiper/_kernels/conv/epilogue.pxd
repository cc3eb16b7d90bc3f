# The epilogue of a dense product: activation, residual sum, activation.
#
# Clamps, and a residual sum without an activation before it, happen in registers before the tile is
# stored.  Other functions run over the stored tile while it is in the L1 cache.

from kuiper._runtime.step cimport ref_t
from kuiper._kernels.micro.table cimport kernels_t, unary_fn

ctypedef struct post_t:
    float lo                # bounds of the clamp in registers
    float hi
    bint has_residual
    bint residual_in_tile
    ref_t residual
    Py_ssize_t residual_pitch
    unary_fn before         # activation before a residual sum on the stored tile
    float before_p0
    float before_p1
    unary_fn after          # last activation
    float after_p0
    float after_p1


cdef inline bint is_in_tile(const post_t* post) noexcept nogil:
    """Tell whether the micro-kernel does all of it, so that stored tiles are not read again."""
    return post.after == NULL and post.before == NULL and (
        post.residual_in_tile or not post.has_residual
    )


cdef inline void post_tile(
    const post_t* post, Py_ssize_t rows, Py_ssize_t cols, float* y, Py_ssize_t ldy,
    const float* residual, Py_ssize_t ldr,
) noexcept nogil:
    """Apply the part of the epilogue that the micro-kernel left to the stored tile."""
    cdef Py_ssize_t _i, j
    cdef bint adds = post.has_residual and not post.residual_in_tile
    if is_in_tile(post):
        return
    if ldy == cols and not adds:
        # One long row hides the latency of long functions.
        cols *= rows
        rows = 1
    for _i in range(rows):
        if post.before != NULL:
            post.before(cols, y, y, post.before_p0, post.before_p1)
        if adds:
            for j in range(cols):
                y[j] += residual[j]
            residual += ldr
        if post.after != NULL:
            post.after(cols, y, y, post.after_p0, post.after_p1)
        y += ldy


cdef post_t make_post(object step, object post) except *
