# What happens to a tile of a dense product after the sum: activation, residual sum, activation.
#
# Clamps and a residual sum that comes first cost nothing: they happen in registers, before the tile
# is stored.  Other functions run over the tile while it is in the L1 cache.

from kuiper._runtime.step cimport ref_t
from kuiper._kernels.micro.table cimport kernels_t, unary_fn

ctypedef struct post_t:
    float lo                # clamp inside the tile
    float hi
    bint has_residual
    bint residual_in_tile
    ref_t residual
    Py_ssize_t residual_pitch
    unary_fn before         # activation ahead of a residual sum outside the tile
    float before_p0
    float before_p1
    unary_fn after          # last activation
    float after_p0
    float after_p1


cdef inline bint is_in_tile(const post_t* post) noexcept nogil:
    """Whether the micro-kernel does it all, so that nobody reads a stored tile again."""
    return post.after == NULL and post.before == NULL and (
        post.residual_in_tile or not post.has_residual
    )


cdef inline void post_tile(
    const post_t* post, Py_ssize_t rows, Py_ssize_t cols, float* y, Py_ssize_t ldy,
    const float* residual, Py_ssize_t ldr,
) noexcept nogil:
    """Do to a stored tile what the micro-kernel did not."""
    cdef Py_ssize_t _i, j
    cdef bint adds = post.has_residual and not post.residual_in_tile
    if is_in_tile(post):
        return
    if ldy == cols and not adds:
        # One long row: functions of many operations hide their latency.
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
