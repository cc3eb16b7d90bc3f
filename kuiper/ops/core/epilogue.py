"""Epilogues: the fused elementwise functions and the residual sum at the end of a product.

A dense product computes ``y = post(pre(x @ w + bias) + residual)``; each of pre, post and residual
is optional.  Clamps, and a residual without pre-activation, are applied in the tile's registers.
"""

from __future__ import annotations

from kuiper.ir import PostOp
from kuiper.ir.view import TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.quantization import QUANTIZE
from kuiper.ops.core.record import find_record, function_of

__all__ = [
    "Epilogue",
    "activation_epilogue",
    "activation_of",
    "make_epilogue",
    "residual_view",
]

INFINITY = float("inf")


def _clamp(name: str, parameters: tuple[float, ...]) -> tuple[float, float] | None:
    """Return the bounds of an activation that is a clamp, None for another function."""
    if name == "clamp":
        low, high = parameters
        return low, high
    return {"relu": (0.0, INFINITY), "relu6": (0.0, 6.0)}.get(name)


class Epilogue:
    """The operations after the sum of products.

    Attributes
    ----------
    clamp : (float, float) or None
        Applied in registers, after a residual that is added there.
    residual : TensorView or None
    ldr : int
        The row stride of the residual.
    residual_in_tile : bool
        Whether the residual is added in registers.
    pre_activation, post_activation : (int, float, float) or None
        Number and parameters of an elementwise function.
    in_bfloat16 : bool
        Whether the model's precision is bfloat16: functions of results in bytes may be less exact.
    output : (float, int) or None
        Scale and zero point of a result in bytes.
    residual_quantization : (float, int) or None
        Scale and zero point of a residual in bytes.
    """

    __slots__ = (
        "clamp",
        "in_bfloat16",
        "ldr",
        "output",
        "post_activation",
        "pre_activation",
        "residual",
        "residual_in_tile",
        "residual_quantization",
    )

    def __init__(self) -> None:
        self.clamp: tuple[float, float] | None = None
        self.in_bfloat16 = False
        self.residual: TensorView | None = None
        self.ldr = 0
        self.residual_in_tile = False
        self.pre_activation: tuple[int, float, float] | None = None
        self.post_activation: tuple[int, float, float] | None = None
        self.output: tuple[float, int] | None = None
        self.residual_quantization: tuple[float, int] | None = None

    def narrow(self, axis: int, start: int, length: int) -> Epilogue:
        """Return the epilogue for a range of images (axis 0) or of channels (axis 1)."""
        residual = self.residual
        return self.with_residual(residual and residual.narrow(axis, start, length))

    def with_residual(self, residual: TensorView | None) -> Epilogue:
        """Return the same epilogue with another residual."""
        epilogue = Epilogue()
        for name in self.__slots__:
            setattr(epilogue, name, getattr(self, name))
        epilogue.residual = residual
        if residual is not None:
            epilogue.ldr = _row_stride(residual)
        return epilogue


def _function(name: str, parameters: tuple[float, ...]) -> tuple[int, float, float]:
    from kuiper._kernels.elementwise import elementwise  # most epilogues are clamps, without it

    if name == "relu6":
        name, parameters = "clamp", (0.0, 6.0)
    p0, p1 = (*parameters, 0.0, 0.0)[:2]
    return elementwise.unary_number(name), p0, p1


def make_epilogue(b: Binder, residual: TensorView | None) -> Epilogue | None:
    """Return the epilogue of the operator being bound, None if it has no post-ops.

    Parameters
    ----------
    b : Binder
    residual : TensorView or None
        The residual of a fused sum, in the layout of the output; see :func:`residual_view`.
    """
    if not b.post_ops:
        return None
    epilogue = Epilogue()
    epilogue.in_bfloat16 = b.in_bfloat16
    post_ops = b.post_ops
    if post_ops[-1].type == QUANTIZE:
        epilogue.output = _quantization(post_ops[-1])
        post_ops = post_ops[:-1]
    kinds = [p.type for p in post_ops]
    at = kinds.index("add") if "add" in kinds else len(kinds)
    before, after = (
        [activation_of(p) for p in some] for some in (post_ops[:at], post_ops[at + 1 :])
    )
    if at == len(kinds):
        if before:
            _put_last(epilogue, before[0])
        return epilogue
    assert residual is not None  # an `add` post-op always has a residual
    if residual.dtype == "uint8":
        epilogue.residual_quantization = _quantization(post_ops[at])
    epilogue.residual = residual
    epilogue.ldr = _row_stride(residual)
    epilogue.residual_in_tile = not before
    if before:
        epilogue.clamp = _clamp(*before[0])
        if epilogue.clamp is None:
            epilogue.pre_activation = _function(*before[0])
    if after and epilogue.residual_in_tile:
        _put_last(epilogue, after[0])
    elif after:
        epilogue.post_activation = _function(*after[0])
    return epilogue


def _row_stride(residual: TensorView) -> int:
    return residual.row_stride if residual.rank == 4 else residual.strides[0]


def _quantization(post: PostOp) -> tuple[float, int]:
    return post.params["scale"], post.params["zero_point"]


def _put_last(epilogue: Epilogue, activation: tuple[str, tuple[float, ...]]) -> None:
    epilogue.clamp = _clamp(*activation)
    if epilogue.clamp is None:
        epilogue.post_activation = _function(*activation)


def activation_of(post: PostOp) -> tuple[str, tuple[float, ...]]:
    """Return the name and parameters of the function that a post-op applies."""
    return function_of(find_record(post.type)(**post.params))


def activation_epilogue(name: str, parameters: tuple[float, ...]) -> Epilogue:
    """Return the epilogue that applies one function."""
    epilogue = Epilogue()
    _put_last(epilogue, (name, parameters))
    return epilogue


def residual_view(b: Binder) -> TensorView | None:
    """Return the residual of a fused sum, None without one."""
    for post in b.post_ops:
        if post.type == "add" and post.slot is not None:
            return b.operand_view(post.slot)
    return None
