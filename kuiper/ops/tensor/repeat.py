"""Repetition: expansions are views with a stride of 0, repeats are copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import FOLLOWS, Record, T, record
from kuiper.ops.core.schema import Bool, Ints, Known, Tensor
from kuiper.ops.tensor.shape import View

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["Expand", "ExpandAs", "Repeat", "Tile"]


def _expanded_shape(shape: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    lead = len(sizes) - len(shape)
    fits = lead >= 0 and all(
        size == extent or (size == -1 and d >= lead) or (extent == 1 and size >= 0)
        for d, (extent, size) in enumerate(zip((1,) * lead + tuple(shape), sizes, strict=True))
    )
    if not fits:
        raise ShapeError(f"cannot expand shape {tuple(shape)} to {tuple(sizes)}")
    return tuple(shape[d - lead] if size == -1 else size for d, size in enumerate(sizes))


@record("Tensor.expand", "aten::broadcast_to", "aten::expand_copy")
class Expand(View[T]):
    """Axes of extent 1 expanded without a copy; -1 keeps an axis, and leading axes may be added.

    Source: torch.Tensor.expand.

    Raises
    ------
    ShapeError
        If `sizes` is missing, or an axis has neither extent 1 nor its size.
    """

    # pnnx gives the input of an expanded attention mask the keyword of the mask, and called the
    # sizes `shape` until 2022.
    input: T = Tensor(aliases=("attn_mask", "mask"))
    sizes: tuple[int, ...] | None = Ints(default=None)
    implicit: bool = Bool(False)
    shape: tuple[int, ...] | None = Ints(default=None)

    def infer(self: Expand[Any]) -> TensorSpec:
        sizes = self.shape if self.sizes is None else self.sizes
        if sizes is None:
            raise ShapeError("argument 'sizes' is missing, expected integers")
        return TensorSpec(_expanded_shape(self.input.shape, sizes), self.input.dtype)

    def bind(self: Expand[TensorView], b: Binder) -> None:
        b.alias(self.input.expand(self.infer().shape))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        batch = c.first_batch(c.a.input)
        key = "shape" if c.a.sizes is None else "sizes"
        sizes = getattr(c.a, key)
        axis = batch.axis + len(sizes) - c.a.input.rank
        if sizes[axis] != -1:
            c.require(sizes[axis] == c.a.input.shape[batch.axis])
            c.rewrites[key] = sizes, axis
        return batch._replace(axis=axis)


@record("Tensor.expand_as")
class ExpandAs(View[T]):
    """Axes of extent 1 expanded to the shape of another tensor.

    Source: torch.Tensor.expand_as.

    Raises
    ------
    ShapeError
        If an axis has neither extent 1 nor that of the other tensor.
    """

    input: T = Tensor()
    other: T = Tensor()

    def infer(self: ExpandAs[TensorSpec]) -> TensorSpec:
        return TensorSpec(_expanded_shape(self.input.shape, self.other.shape), self.input.dtype)

    def bind(self: ExpandAs[TensorView], b: Binder) -> None:
        b.alias(self.input.expand(self.other.shape))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        c.require(c.batch_of(c.a.other) is not None)
        return c.broadcast([c.a.input, c.a.other], c.a.other.rank)


def _infer_repeat(input: TensorSpec, repeats: Sequence[int]) -> TensorSpec:
    if min(repeats, default=0) < 0:
        raise ShapeError(f"the numbers of repeats are {tuple(repeats)}, expected >= 0")
    shape = (1,) * (len(repeats) - input.rank) + input.shape
    return TensorSpec([n * r for n, r in zip(shape, repeats, strict=True)], input.dtype)


def _bind_repeat(input: TensorView, repeats: Sequence[int], b: Binder) -> None:
    """Copy with one more axis per axis, along which the input has a stride of 0."""
    x = input.view((1,) * (len(repeats) - input.rank) + input.shape)
    y = b.output()
    shape, x_strides, y_strides = [], [], []
    for axis, repeat in enumerate(repeats):
        extent = x.shape[axis]
        shape += [repeat, extent]
        x_strides += [0, x.strides[axis]]
        y_strides += [extent * y.strides[axis], y.strides[axis]]
    b.copy(x.with_layout(shape, x_strides), y.with_layout(shape, y_strides))


def _batch_of_repeats(c: TracedCall, repeats: Sequence[int]) -> BatchAxis:
    batch, rank = c.first_batch(c.a.input), c.a.input.rank
    axis = batch.axis + c.outputs[0].rank - rank
    own = batch.axis + len(repeats) - rank  # torch.tile pads with ones in front
    times = repeats[own] if own >= 0 else 1
    return c.at(axis, batch.outer * times, batch.inner)


@record("Tensor.repeat")
class Repeat(Record[T]):
    """The tensor repeated along its axes; `sizes` may be longer than the rank.

    Source: torch.Tensor.repeat.

    Raises
    ------
    ShapeError
        If `sizes` is shorter than the rank, or holds a negative number.
    """

    input: T = Tensor()
    sizes: tuple[int, ...] = Ints()
    bfloat16 = FOLLOWS

    def infer(self: Repeat[TensorSpec]) -> Any:
        if len(self.sizes) < self.input.rank:
            raise ShapeError(
                f"'sizes' is {self.sizes}, expected at least {self.input.rank} integers for an "
                f"input of shape {self.input.shape}"
            )
        return _infer_repeat(self.input, self.sizes)

    def bind(self: Repeat[TensorView], b: Binder) -> None:
        _bind_repeat(self.input, self.sizes, b)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        return _batch_of_repeats(c, c.a.sizes)


@record("torch.tile", "Tensor.tile")
class Tile(Record[T]):
    """The tensor repeated along its axes; `dims` is padded with ones on the left.

    Source: torch.tile.

    Raises
    ------
    ShapeError
        If `dims` holds a negative number.
    """

    input: T = Tensor()
    dims: tuple[int, ...] = Ints()
    bfloat16 = FOLLOWS

    def _repeats(self: Tile[Known]) -> tuple[int, ...]:
        return (1,) * (self.input.rank - len(self.dims)) + self.dims

    def infer(self: Tile[TensorSpec]) -> Any:
        return _infer_repeat(self.input, self._repeats())

    def bind(self: Tile[TensorView], b: Binder) -> None:
        _bind_repeat(self.input, self._repeats(), b)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        return _batch_of_repeats(c, c.a.dims)
