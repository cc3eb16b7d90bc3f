"""Post-ops: which of an operator's fused elementwise steps run where.

A dense product ends ``y = after(before(x @ w + bias) + residual)``, any part of which may be
missing.  Clamps, and a residual sum that comes first, happen in the registers of the tile.
"""

from __future__ import annotations

from types import SimpleNamespace

from kuiper._kernels import elementwise
from kuiper._value import Value
from kuiper.ops._record import find_record

__all__ = ["Post", "make_post", "residual_value"]

INFINITY = float("inf")

# Activations that are a clamp: they cost nothing in registers.
CLAMPS = {"relu": lambda p0, p1: (0.0, INFINITY), "relu6": lambda p0, p1: (0.0, 6.0), "clamp": lambda p0, p1: (p0, p1)}


class Post:
    """What happens after the sum.

    Attributes
    ----------
    clamp : (float, float) or None
        Applied in registers, after a residual that is summed there.
    residual : Value or None
    residual_pitch : int
    residual_in_tile : bool
    before, after : (int, float, float) or None
        Number and parameters of an elementwise function.
    """

    __slots__ = ("after", "before", "clamp", "residual", "residual_in_tile", "residual_pitch")

    def __init__(self):
        self.clamp = None
        self.residual: Value | None = None
        self.residual_pitch = 0
        self.residual_in_tile = False
        self.before = None
        self.after = None


def activation_of(post_op) -> tuple[str, float, float]:
    """Return (name, p0, p1) of the elementwise function that a fused activation is."""
    rule = find_record(post_op.type)
    fake = SimpleNamespace(**dict(post_op.params))
    return rule.activation(fake)


def make_post(b, residual: Value | None) -> Post | None:
    """Return the post-ops of the operator being bound, None where it has none.

    Parameters
    ----------
    b : Binder
    residual : Value or None
        The other summand, in the layout of the output; see :func:`residual_value`.
    """
    if not b.post_ops:
        return None
    post = Post()
    first_sum = next((i for i, p in enumerate(b.post_ops) if p.type == "add"), None)
    activations = [activation_of(p) if p.type != "add" else None for p in b.post_ops]
    if first_sum is None:
        _put_last(post, activations[0])
        return post
    post.residual = residual
    post.residual_pitch = residual.pitch if residual.rank == 4 else residual.strides[0]
    post.residual_in_tile = first_sum == 0
    if first_sum == 1:
        name, p0, p1 = activations[0]
        if name in CLAMPS:
            post.clamp = CLAMPS[name](p0, p1)
        else:
            post.before = (elementwise.unary_number(name), p0, p1)
    if first_sum + 1 < len(activations):
        if post.residual_in_tile:
            _put_last(post, activations[first_sum + 1])
        else:
            name, p0, p1 = activations[first_sum + 1]
            post.after = (elementwise.unary_number(name), p0, p1)
    return post


def _put_last(post: Post, activation) -> None:
    name, p0, p1 = activation
    if name in CLAMPS:
        post.clamp = CLAMPS[name](p0, p1)
    else:
        post.after = (elementwise.unary_number(name), p0, p1)


def residual_value(b) -> Value | None:
    """Return the other summand of a fused sum, None without one."""
    for post_op in b.post_ops:
        if post_op.type == "add":
            return b.operand_value(post_op.slot)
    return None


