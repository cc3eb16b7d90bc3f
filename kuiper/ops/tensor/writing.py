"""Tensors with a part overwritten: written in place if nothing else reads the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.expression.promotion import is_number
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.axes import axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import NumpyRecord, convert
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.schema import Int, Known, Tensor
from kuiper.ops.core.typed import write_cast
from kuiper.ops.tensor.concat import is_at
from kuiper.ops.tensor.slice import OPEN, Slice, cut_out, wrapped_index

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["Copy", "Fill", "SelectScatter", "SliceCopy", "SliceScatter"]


@record("Tensor.copy")
class Copy(Record[T]):
    """`src` expanded to the shape of `self` and cast to its type.

    Before planning, the pass write_views replaces each copy into a slice of another tensor.
    Source: torch.Tensor.copy_.

    Raises
    ------
    ShapeError
        If `src` does not broadcast to `self`.
    """

    batch = NoBatchRule("a pass replaces each copy into a slice")
    self: T = Tensor()
    src: T = Tensor()

    def infer(self: Copy[TensorSpec]) -> TensorSpec:
        target = vars(self)["self"]
        _check_source(target.shape, self.src, [])
        return TensorSpec(target.shape, target.dtype)

    def bind(self: Copy[TensorView], b: Binder) -> None:
        y = b.output()
        if self.src.dtype == y.dtype:
            b.copy(self.src.expand(y.shape), y)
        else:
            write_cast(b, self.src, y)


@record("Tensor.fill")
class Fill(NumpyRecord[T]):
    """A tensor of the input's shape and dtype filled with `value`.

    Source: torch.Tensor.fill_.
    """

    batch = "like_input"
    input: T = Tensor()
    value: Any = Tensor(number=True, rank=0)

    def is_known(self: Fill[Known]) -> Any:
        return is_number(self.value) or self.value.is_constant

    def compute(self: Fill[np.ndarray]) -> Any:
        return np.full(self.input.shape, convert(self.value, self.input.dtype))


def _overwrite(
    b: Binder, x: TensorView, source: TensorView, cuts: Sequence[tuple[Any, ...]]
) -> None:
    """Bind output 0 to a copy of `x` with `source` written to the ranges and indices `cuts`.

    If `x` has no other reader, only `source` is copied.
    """
    y = b.output(layout=x, reuse=x)
    if not is_at(x, y):
        b.copy(x, y)
    target = cut_out(y, cuts)
    if source.dtype == y.dtype:
        b.copy(source.expand(target.shape), target)
    else:
        write_cast(b, source, target)


def _check_source(
    shape: Sequence[int], source: TensorSpec, cuts: Sequence[tuple[Any, ...]]
) -> None:
    extents: list[int | None] = list(shape)
    for axis, cut in cuts:
        extents[axis] = len(cut) if isinstance(cut, range) else None
    selected = tuple(n for n in extents if n is not None)
    try:
        fits = np.broadcast_shapes(source.shape, selected) == selected
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(f"'src' has shape {source.shape}, which does not fit into {selected}")


@record("Tensor.slice_copy")
class SliceCopy(Slice[T], ahead=True):
    """A copy of the input with another tensor written to ranges and indices of it.

    The ranges are those of Tensor.slice.  Source: torch.Tensor.__setitem__, as pnnx merges it.

    Raises
    ------
    ShapeError
        If `src` does not broadcast to the selection.
    """

    input: T = Tensor(aliases=("self",))
    src: T = Tensor()
    layout = Layout.LIKE

    def infer(self: SliceCopy[TensorSpec]) -> TensorSpec:
        _check_source(self.input.shape, self.src, self._cuts())
        return TensorSpec(self.input.shape, self.input.dtype)

    def bind(self: SliceCopy[TensorView], b: Binder) -> None:
        _overwrite(b, self.input, self.src, self._cuts())

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        a = c.a
        axes = [c.dim(d) for d in (a.dim if a.dims is None else a.dims)]
        selects = (a.select if a.dims is None else a.selects) or [OPEN] * len(axes)
        # `src` lacks the axes that are indexed.
        pairs = zip(axes, selects, strict=True)
        gone = [axis for axis, index in pairs if index not in (None, OPEN)]
        kept = [axis for axis in range(a.input.rank) if axis not in gone]
        c.require(len(kept) == a.src.rank)
        batch = c.batch_of(a.input)
        if batch is None:
            written = c.first_batch(a.src)
            batch = written._replace(axis=kept[written.axis])
        c.require(batch.axis not in axes)
        c.spread(a.input, batch)
        c.spread(a.src, batch._replace(axis=kept.index(batch.axis)))
        return batch


class _Scatter(Record[T]):
    """Base of the records that overwrite a part of one axis."""

    batch = NoBatchRule("rare: no known export uses it with another batch")
    input: T = Tensor()
    src: T = Tensor()
    layout = Layout.LIKE

    def cuts(self: _Scatter[Any]) -> list[tuple[Any, ...]]:
        """Return the overwritten part: (axis, range or index)."""
        raise NotImplementedError

    def infer(self: _Scatter[TensorSpec]) -> TensorSpec:
        _check_source(self.input.shape, self.src, self.cuts())
        return TensorSpec(self.input.shape, self.input.dtype)

    def bind(self: _Scatter[TensorView], b: Binder) -> None:
        _overwrite(b, self.input, self.src, self.cuts())


@record("torch.slice_scatter")
class SliceScatter(_Scatter[T]):
    """A copy of the input with another tensor written to a range of one axis.

    Source: torch.slice_scatter.

    Raises
    ------
    ShapeError
        If `src` does not fit the range.
    """

    dim: int = Int(0)
    start: int | None = Int(None, nullable=True)
    end: int | None = Int(None, nullable=True)
    step: int = Int(1, minimum=1)

    def cuts(self: SliceScatter[Known]) -> list[tuple[Any, ...]]:
        axis = axis_of(self.dim, self.input.shape)
        bounds = slice(self.start, self.end, self.step).indices(self.input.shape[axis])
        return [(axis, range(*bounds))]


@record("aten::select_scatter")
class SelectScatter(_Scatter[T]):
    """A copy of the input with another tensor written to one index of an axis.

    Source: torch.select_scatter.

    Raises
    ------
    ShapeError
        If `dim` is no axis, `index` is out of range, or `src` does not fit.
    """

    dim: int = Int()
    index: int = Int()

    def cuts(self: SelectScatter[Known]) -> list[tuple[Any, ...]]:
        axis = axis_of(self.dim, self.input.shape)
        return [(axis, wrapped_index(self.index, self.input.shape[axis], axis))]
