"""Post-ops: which of an operator's fused elementwise steps run where.

A dense product ends ``y = after(before(x @ w + bias) + residual)``, any part of which may be
missing.  Clamps, and a residual sum that comes first, happen in the registers of the tile.
"""

from __future__ import annotations

from types import SimpleNamespace

from kuiper.ir import PostOp
from kuiper.ir.view import Value
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import function_of

__all__ = ["Post", "activation_of", "activation_post", "make_post", "residual_value"]

INFINITY = float("inf")


def _clamp(name: str, parameters: tuple[float, ...]) -> tuple[float, float] | None:
    """Return the bounds of an activation that is a clamp: it costs nothing in registers."""
    if name == "clamp":
        low, high = parameters
        return low, high
    return {"relu": (0.0, INFINITY), "relu6": (0.0, 6.0)}.get(name)


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

    def __init__(self) -> None:
        self.clamp: tuple[float, float] | None = None
        self.residual: Value | None = None
        self.residual_pitch = 0
        self.residual_in_tile = False
        self.before: tuple[int, float, float] | None = None
        self.after: tuple[int, float, float] | None = None

    def narrow(self, axis: int, start: int, length: int) -> Post:
        """Return the same for some images of the batch (axis 0) or some channels (1)."""
        post = Post()
        for name in self.__slots__:
            setattr(post, name, getattr(self, name))
        if post.residual is not None:
            post.residual = post.residual.narrow(axis, start, length)
        return post


def _function(name: str, parameters: tuple[float, ...]) -> tuple[int, float, float]:
    from kuiper._kernels.elementwise import elementwise  # clamps, which most are, do without

    if name == "relu6":
        name, parameters = "clamp", (0.0, 6.0)
    p0, p1 = (*parameters, 0.0, 0.0)[:2]
    return elementwise.unary_number(name), p0, p1


def make_post(b: Binder, residual: Value | None) -> Post | None:
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
    kinds = [p.type for p in b.post_ops]
    at = kinds.index("add") if "add" in kinds else len(kinds)
    before, after = (
        [activation_of(p) for p in some] for some in (b.post_ops[:at], b.post_ops[at + 1 :])
    )
    if at == len(kinds):
        _put_last(post, before[0])
        return post
    assert residual is not None  # whoever has a sum among the post-ops has its other summand
    post.residual = residual
    post.residual_pitch = residual.pitch if residual.rank == 4 else residual.strides[0]
    post.residual_in_tile = not before
    if before:
        post.clamp = _clamp(*before[0])
        if post.clamp is None:
            post.before = _function(*before[0])
    if after and post.residual_in_tile:
        _put_last(post, after[0])
    elif after:
        post.after = _function(*after[0])
    return post


def _put_last(post: Post, activation: tuple[str, tuple[float, ...]]) -> None:
    post.clamp = _clamp(*activation)
    if post.clamp is None:
        post.after = _function(*activation)


def activation_of(post: PostOp) -> tuple[str, tuple[float, ...]]:
    """Return the function that a post-op applies, and its parameters."""
    return function_of(post.type, SimpleNamespace(**post.params))


def activation_post(name: str, parameters: tuple[float, ...]) -> Post:
    """Return what applies one function."""
    post = Post()
    _put_last(post, (name, parameters))
    return post


def residual_value(b: Binder) -> Value | None:
    """Return the other summand of a fused sum, None without one."""
    slots = (post.slot for post in b.post_ops if post.type == "add")
    return next((b.operand_value(slot) for slot in slots if slot is not None), None)
