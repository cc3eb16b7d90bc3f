"""Permutations of elements: strided copies in the layout of the input."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kuiper.errors import ShapeError
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.axes import axes_of, axis_of, split_axis
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import FOLLOWS, Record, T, record
from kuiper.ops.core.schema import Int, Ints, Tensor
from kuiper.ops.tensor.shape import swapped

__all__ = ["ChannelShuffle", "Flip", "PixelShuffle", "PixelUnshuffle", "Roll"]


@record(
    "nn.ChannelShuffle",
    "F.channel_shuffle",
    "torch.channel_shuffle",
    "aten::native_channel_shuffle",
    "aten::channel_shuffle",
)
class ChannelShuffle(Record[T]):
    """Channels interleaved: (groups, c / groups) becomes (c / groups, groups).

    ``y[n, j * groups + i] = x[n, i * (c / groups) + j]``.  Source: torch.nn.ChannelShuffle.

    Raises
    ------
    ShapeError
        If the channels are not divisible by `groups`.
    """

    batch = "samples"
    input: T = Tensor()
    groups: int = Int(minimum=1)
    layout = Layout.LIKE
    bfloat16 = FOLLOWS

    def infer(self: ChannelShuffle[TensorSpec]) -> TensorSpec:
        if self.input.rank < 3 or self.input.shape[1] % self.groups:
            raise ShapeError(
                f"the input has shape {self.input.shape}, expected (n, c, ...) with channels "
                f"divisible by {self.groups} groups"
            )
        return TensorSpec(self.input.shape, self.input.dtype)

    def bind(self: ChannelShuffle[TensorView], b: Binder) -> None:
        channels = self.input.shape[1]
        x = split_axis(self.input, 1, (self.groups, channels // self.groups))
        y = split_axis(b.output(layout=self.input), 1, (channels // self.groups, self.groups))
        b.copy(x.permute(swapped(x.rank, 1, 2)), y)


@record("nn.PixelShuffle", "F.pixel_shuffle", "torch.pixel_shuffle")
class PixelShuffle(Record[T]):
    """Channels moved to space: (c * r * r, h, w) becomes (c, h * r, w * r).

    Source: torch.nn.PixelShuffle.

    Raises
    ------
    ShapeError
        If the channels are not divisible by ``upscale_factor ** 2``.
    """

    batch = "samples"
    input: T = Tensor()
    upscale_factor: int = Int(minimum=1)
    layout = Layout.LIKE
    bfloat16 = FOLLOWS

    def infer(self: PixelShuffle[TensorSpec]) -> TensorSpec:
        r = self.upscale_factor
        if self.input.rank < 3 or self.input.shape[-3] % (r * r):
            raise ShapeError(
                f"the input has shape {self.input.shape}, expected (..., c, h, w) with channels "
                f"divisible by {r} * {r}"
            )
        *batch, channels, height, width = self.input.shape
        return TensorSpec((*batch, channels // (r * r), height * r, width * r), self.input.dtype)

    def bind(self: PixelShuffle[TensorView], b: Binder) -> None:
        r, lead = self.upscale_factor, self.input.rank - 3
        y = b.output(layout=self.input)
        x = split_axis(self.input, lead, (y.shape[lead], r, r))
        # (c, r, r, h, w) -> (c, h, r, w, r)
        order = [*range(lead), *(lead + d for d in (0, 3, 1, 4, 2))]
        b.copy(x.permute(order), _split_pixels(y, r, self.input.shape[-2:]))


@record("nn.PixelUnshuffle", "F.pixel_unshuffle", "torch.pixel_unshuffle")
class PixelUnshuffle(Record[T]):
    """Space moved to channels: (c, h * r, w * r) becomes (c * r * r, h, w).

    Source: torch.nn.PixelUnshuffle.

    Raises
    ------
    ShapeError
        If height or width is not divisible by `downscale_factor`.
    """

    batch = "samples"
    input: T = Tensor()
    downscale_factor: int = Int(minimum=1)
    layout = Layout.LIKE
    bfloat16 = FOLLOWS

    def infer(self: PixelUnshuffle[TensorSpec]) -> TensorSpec:
        r = self.downscale_factor
        if self.input.rank < 3 or self.input.shape[-1] % r or self.input.shape[-2] % r:
            raise ShapeError(
                f"the input has shape {self.input.shape}, expected (..., c, h, w) with height and "
                f"width divisible by {r}"
            )
        *batch, channels, height, width = self.input.shape
        return TensorSpec((*batch, channels * r * r, height // r, width // r), self.input.dtype)

    def bind(self: PixelUnshuffle[TensorView], b: Binder) -> None:
        r, lead = self.downscale_factor, self.input.rank - 3
        y = b.output(layout=self.input)
        x = _split_pixels(self.input, r, y.shape[-2:])
        # (c, h, r, w, r) -> (c, r, r, h, w)
        order = [*range(lead), *(lead + d for d in (0, 2, 4, 1, 3))]
        b.copy(x.permute(order), split_axis(y, lead, (self.input.shape[lead], r, r)))


def _split_pixels(value: TensorView, r: int, size: Sequence[int]) -> TensorView:
    """View (..., h * r, w * r) as (..., h, r, w, r)."""
    rank = value.rank
    return split_axis(split_axis(value, rank - 1, (size[1], r)), rank - 2, (size[0], r))


@record("torch.flip", "Tensor.flip")
class Flip(Record[T]):
    """The elements along some axes in reverse order.

    Source: torch.flip.

    Raises
    ------
    ShapeError
        If `dims` holds a number that is no axis of the input, or an axis twice.
    """

    batch = "along_axes"
    input: T = Tensor()
    dims: tuple[int, ...] = Ints()
    layout = Layout.LIKE
    bfloat16 = FOLLOWS

    def infer(self: Flip[TensorSpec]) -> TensorSpec:
        axes_of(self.dims, self.input.shape or (1,), "dims")
        return TensorSpec(self.input.shape, self.input.dtype)

    def bind(self: Flip[TensorView], b: Binder) -> None:
        x = self.input
        x = backwards(x, axes_of(self.dims, x.shape, "dims")) if x.rank else x
        b.copy(x, b.output(layout=self.input))


def backwards(x: TensorView, axes: Sequence[int]) -> TensorView:
    """Return the view with some axes reversed."""
    for axis in axes if x.size else ():
        x = x.narrow(axis, x.shape[axis] - 1, x.shape[axis], -1)
    return x


@record("torch.roll", "Tensor.roll")
class Roll(Record[T]):
    """Elements rotated along axes; without `dims`, along the flattened tensor.

    Source: torch.roll.

    Raises
    ------
    ShapeError
        If there are not as many `shifts` as `dims`, or one of `dims` is no axis.
    """

    batch = "along_axes"
    input: T = Tensor()
    shifts: tuple[int, ...] = Ints()
    dims: tuple[int, ...] | None = Ints(default=None, nullable=True)
    layout = Layout.LIKE
    bfloat16 = FOLLOWS

    def infer(self: Roll[TensorSpec]) -> TensorSpec:
        dims = self.dims or ()
        for dim in dims:
            axis_of(dim, self.input.shape, "dims")
        if len(self.shifts) != (len(dims) or 1):
            raise ShapeError(f"'shifts' is {self.shifts}, expected as many as 'dims' {self.dims}")
        return TensorSpec(self.input.shape, self.input.dtype)

    def bind(self: Roll[TensorView], b: Binder) -> None:
        if self.dims:
            x, y = self.input, b.output(layout=self.input)
            shifts = [0] * x.rank  # the shifts of an axis that is named twice add up
            for dim, shift in zip(self.dims, self.shifts, strict=True):
                shifts[axis_of(dim, x.shape)] += shift
        else:
            flat = (self.input.size,)
            x, y = b.contiguous(self.input).view(flat), b.output().view(flat)
            shifts = list(self.shifts)
        if x.size == 0 or x.rank == 0:
            b.copy(x, y)
            return
        # Each rotated axis is split in two; every combination of the halves is one copy.
        halves = []
        for axis, shift in enumerate(shifts):
            extent = x.shape[axis]
            shift %= extent
            ends = [(0, shift, extent - shift), (extent - shift, 0, shift)]
            halves.append([(axis, *end) for end in ends if end[2]])
        for combination in itertools.product(*halves):
            source, target = x, y
            for axis, source_start, target_start, length in combination:
                source = source.narrow(axis, source_start, length)
                target = target.narrow(axis, target_start, length)
            b.copy(source, target)
