"""The arguments of convolutions, their checks, and the geometry that they describe."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec, remembered
from kuiper.ops.core.image import check_image
from kuiper.ops.core.record import Record, T
from kuiper.ops.core.schema import Int, Ints, Known, Tensor

__all__ = ["ConvolutionRecord", "Geometry", "check_weight", "output_spec", "per_axis"]


class ConvolutionRecord(Record[T]):
    """Base of convolutions and transposed convolutions: their common arguments.

    Attributes
    ----------
    dtypes : (numpy.dtype, numpy.dtype)
        Of the input and of the weight.
    """

    batch = "convolution"
    post_ops = True
    dtypes: tuple[np.dtype, np.dtype] = np.dtype(np.float32), np.dtype(np.float32)
    input: T = Tensor()
    weight: T = Tensor(rank=4)
    bias: T | None = Tensor(optional=True)
    in_channels: int | None = Int(None, minimum=1)
    out_channels: int | None = Int(None, minimum=1)
    kernel_size: tuple[int, ...] | None = Ints(default=None, minimum=1)
    stride: tuple[int, ...] = Ints(default=(1,), minimum=1)
    dilation: tuple[int, ...] = Ints(default=(1,), minimum=1)
    groups: int = Int(1, minimum=1)
    padding: tuple[int, ...] | str


class Geometry:
    """The windows of a convolution: each field has one item per spatial axis, 2 or 3 in all.

    Attributes
    ----------
    kernel, stride, dilation : tuple of int
    padding : tuple of (int, int)
        Padding before and after the axis.
    origin : tuple of int
        Padding before the axis.
    """

    __slots__ = ("dilation", "kernel", "origin", "padding", "stride")

    def __init__(
        self,
        kernel: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        padding: tuple[tuple[int, int], ...],
    ) -> None:
        self.kernel, self.stride, self.dilation, self.padding = kernel, stride, dilation, padding
        self.origin = tuple([before for before, _ in padding])

    @classmethod
    def of(cls, a: ConvolutionRecord[Known]) -> Geometry:
        """Return the geometry of an operator; sequences become images of height 1."""
        return _geometry(a.weight.shape[2:], a.stride, a.dilation, a.padding)

    def unpadded(self) -> Geometry:
        """Return the geometry for an input that is already padded."""
        return Geometry(self.kernel, self.stride, self.dilation, ((0, 0),) * len(self.padding))

    def last(self, axes: int) -> Geometry:
        """Return the geometry of the last `axes` axes."""
        return Geometry(
            self.kernel[-axes:], self.stride[-axes:], self.dilation[-axes:], self.padding[-axes:]
        )

    def output_extents(self, extents: Sequence[int]) -> tuple[int, ...]:
        return tuple(
            (extent + sum(pad) - d * (k - 1) - 1) // s + 1
            for extent, pad, k, s, d in zip(
                extents, self.padding, self.kernel, self.stride, self.dilation, strict=True
            )
        )

    def taps(self) -> list[tuple[int, ...]]:
        """Return the offset of each tap from the input pixel at ``stride * output pixel``."""
        return [
            tuple(u * d - p for u, d, p in zip(tap, self.dilation, self.origin, strict=True))
            for tap in product(*map(range, self.kernel))
        ]


@remembered
def _geometry(
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    padding: tuple[int, ...] | str,
) -> Geometry:
    spatial = len(kernel)
    lead = max(2 - spatial, 0)
    dilation = per_axis(dilation, spatial)
    sides = ((0, 0),) * lead + _sides(padding, kernel, dilation)
    ones = (1,) * lead
    return Geometry(ones + kernel, ones + per_axis(stride, spatial), ones + dilation, sides)


def _sides(
    padding: Any, kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Return the padding before and after each axis."""
    spatial = len(kernel)
    if padding == "valid":
        return ((0, 0),) * spatial
    if padding == "same":
        # Like PyTorch, pad one more after the axis if the total is odd.
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    if len(padding) == 2 * spatial:
        # F.pad's order: both sides of each axis, last axis first.
        return tuple(tuple(padding[2 * i : 2 * i + 2]) for i in reversed(range(spatial)))
    return tuple((p, p) for p in per_axis(padding, spatial))


def per_axis(items: Any, spatial: int) -> tuple[int, ...]:
    return tuple(items) * spatial if len(items) == 1 else tuple(items)


def check_weight(a: ConvolutionRecord[TensorSpec], spatial: int, in_axis: int) -> None:
    """Raise ShapeError if the arguments, the bias or the input contradict the weight."""
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
    check_image(a.input, spatial)
    got = a.input.shape[a.input.rank - spatial - 1]
    if got != in_channels:
        raise ShapeError(
            f"the input has shape {a.input.shape} with {got} channel{'s'[: got != 1]}, expected "
            f"{in_channels}"
        )
    if (a.input.dtype, a.weight.dtype) != a.dtypes:
        expected = " and ".join(dict.fromkeys(map(str, a.dtypes)))
        raise ShapeError(
            f"the input is {a.input.dtype} and the weight {a.weight.dtype}, expected {expected}"
        )


def output_spec(a: ConvolutionRecord[TensorSpec]) -> TensorSpec:
    """Return the spec of a convolution's output.

    Raises
    ------
    ShapeError
        As :func:`check_weight`, or if the kernel is larger than the padded input.
    """
    spatial = a.weight.rank - 2
    check_weight(a, spatial, in_axis=1)
    geometry = Geometry.of(a)
    lead = len(geometry.kernel) - spatial
    extents = (1,) * lead + a.input.shape[a.input.rank - spatial :]
    out = geometry.output_extents(extents)
    if min(out) < 1:
        raise ShapeError(
            f"the kernel {a.weight.shape[2:]} with dilation {a.dilation} is larger "
            f"than the padded input {a.input.shape}"
        )
    batch = a.input.shape[: a.input.rank - spatial - 1]
    return TensorSpec((*batch, a.weight.shape[0], *out[lead:]))
