"""What convolutions are told: their arguments, and what these must agree on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.ops.core.schema import Argument, Int, Ints, Tensor

__all__ = ["COMMON", "Geometry", "check_weight", "for_axes", "per_axis"]

COMMON = (
    Tensor("input"),
    Tensor("weight", rank=4),
    Tensor("bias", optional=True),
    Int("in_channels", None, minimum=1),
    Int("out_channels", None, minimum=1),
    Ints("kernel_size", default=None, minimum=1),
    Ints("stride", default=(1,), minimum=1),
    Ints("dilation", default=(1,), minimum=1),
    Int("groups", 1, minimum=1),
)


def for_axes(arguments: tuple[Argument, ...], spatial: int) -> tuple[Argument, ...]:
    """Return the arguments of a 2-d convolution for another number of spatial axes."""
    weight = Tensor("weight", rank=spatial + 2)
    return tuple(
        weight if argument.name == "weight" else argument
        for argument in arguments
        if not argument.internal
    )


class Geometry:
    """A convolution's arguments, brought to two spatial axes.

    Attributes
    ----------
    kernel, stride, dilation : (int, int)
    padding : (int, int, int, int)
        Top, bottom, left, right.
    """

    def __init__(self, a: SimpleNamespace, spatial: int) -> None:
        lead = (1,) * (2 - spatial)
        self.kernel = lead + tuple(a.weight.shape[2:])
        self.stride = lead + per_axis(a.stride, spatial)
        self.dilation = lead + per_axis(a.dilation, spatial)
        if a.padding == "valid":
            sides = [(0, 0)] * spatial
        elif a.padding == "same":
            # The odd one goes to the far side, as in PyTorch.
            totals = [
                d * (k - 1)
                for d, k in zip(
                    self.dilation[2 - spatial :], self.kernel[2 - spatial :], strict=True
                )
            ]
            sides = [(total // 2, total - total // 2) for total in totals]
        elif len(a.padding) == 2 * spatial:
            # Both sides of each axis, last axis first, as F.pad has them.
            sides = [a.padding[2 * i : 2 * i + 2] for i in reversed(range(spatial))]
        else:
            sides = [(p, p) for p in per_axis(a.padding, spatial)]
        sides = [(0, 0)] * (2 - spatial) + sides
        self.padding = (*sides[0], *sides[1])

    def output_extents(self, height: int, width: int) -> tuple[int, int]:
        top, bottom, left, right = self.padding
        return tuple(
            (extent + pad - d * (k - 1) - 1) // s + 1
            for extent, pad, k, s, d in zip(
                (height, width),
                (top + bottom, left + right),
                self.kernel,
                self.stride,
                self.dilation,
                strict=True,
            )
        )


def per_axis(items: Any, spatial: int) -> tuple[int, ...]:
    return tuple(items) * spatial if len(items) == 1 else tuple(items)


def check_weight(a: SimpleNamespace, spatial: int, in_axis: int) -> None:
    """Compare the weight's shape with what the module says of itself."""
    if a.weight.rank != spatial + 2:
        raise ShapeError(f"'weight' has shape {a.weight.shape}, expected rank {spatial + 2}")
    channels, filters = a.weight.shape[in_axis], a.weight.shape[1 - in_axis]
    in_channels = channels * a.groups if in_axis == 1 else channels
    out_channels = filters if in_axis == 1 else filters * a.groups
    for name, got in (("in_channels", in_channels), ("out_channels", out_channels)):
        said = getattr(a, name)
        if said is not None and said != got:
            raise ShapeError(f"'{name}' is {said}, but 'weight' {a.weight.shape} makes it {got}")
    if in_channels % a.groups or out_channels % a.groups:
        raise ShapeError(
            f"'groups' is {a.groups}, which does not divide {in_channels} input and "
            f"{out_channels} output channels"
        )
    if a.kernel_size is not None and per_axis(a.kernel_size, spatial) != a.weight.shape[2:]:
        raise ShapeError(f"'kernel_size' is {a.kernel_size}, but 'weight' has {a.weight.shape}")
    if min(a.weight.shape[2:], default=1) < 1:
        raise ShapeError(f"'weight' has shape {a.weight.shape}, expected extents >= 1")
    for name in ("stride", "dilation", "output_padding"):
        items = getattr(a, name, None)
        if items is not None and len(items) not in (1, spatial):
            raise ShapeError(f"'{name}' is {items}, expected {spatial} integers")
    if not isinstance(a.padding, str) and len(a.padding) not in (1, spatial, 2 * spatial):
        raise ShapeError(f"'padding' is {a.padding}, expected {spatial} or {2 * spatial} integers")
    if a.bias is not None and a.bias.shape != (out_channels,):
        raise ShapeError(f"'bias' has shape {a.bias.shape}, expected ({out_channels},)")
    if a.input.rank not in (spatial + 1, spatial + 2):
        raise ShapeError(
            f"the input has shape {a.input.shape}, expected rank {spatial + 2} "
            f"(or {spatial + 1} without a batch)"
        )
    got = a.input.shape[a.input.rank - spatial - 1]
    if got != in_channels:
        raise ShapeError(
            f"the input has shape {a.input.shape} with {got} channels, expected {in_channels}"
        )
    if a.input.dtype != np.float32 or a.weight.dtype != np.float32:
        raise ShapeError(
            f"the input is {a.input.dtype} and the weight {a.weight.dtype}, expected float32"
        )
