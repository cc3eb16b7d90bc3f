"""The epilogue of dense products; see epilogue.pxd."""

from libc.math cimport INFINITY
from libc.string cimport memset

from kuiper._kernels.micro.dispatch cimport active
from kuiper._runtime.step cimport Step


cdef post_t make_post(object step, object post) except *:
    """Return the C form of a :class:`~kuiper.ops.core.epilogue.Post`, for `step`."""
    cdef post_t p
    cdef Step owner = step
    memset(&p, 0, sizeof(post_t))
    p.lo, p.hi = -INFINITY, INFINITY
    if post is None:
        return p
    if post.clamp is not None:
        p.lo, p.hi = post.clamp
    if post.residual is not None:
        p.has_residual = True
        p.residual_in_tile = post.residual_in_tile
        p.residual = owner.ref(post.residual)
        p.residual_pitch = post.residual_pitch
    if post.before is not None:
        p.before = active().unary[<int> post.before[0]]
        p.before_p0, p.before_p1 = post.before[1], post.before[2]
    if post.after is not None:
        p.after = active().unary[<int> post.after[0]]
        p.after_p0, p.after_p1 = post.after[1], post.after[2]
    return p
