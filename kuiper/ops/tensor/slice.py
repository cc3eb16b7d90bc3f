"""Splits and slices: views, which cost nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import axes_of, axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.schema import (
    AnyArgument,
    Int,
    Ints,
    Known,
    StaticValue,
    Tensor,
    Tensors,
    ValuesNeeded,
)
from kuiper.ops.tensor.shape import View

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["Chunk", "Narrow", "Select", "Slice", "SliceIndexes", "Split", "TensorSplit", "Unbind"]

# How PNNX writes an open end and, in `selects`, a range instead of an index.
OPEN = 2**31 - 1


class _Ranges(View[T]):
    """Base of the records whose outputs are ranges of one axis of the first argument."""

    dim: int

    def source(self) -> T:
        """Return the tensor that is split."""
        raise NotImplementedError

    def ranges(self: _Ranges[Any], extent: int, axis: int) -> Sequence[tuple[int, int]]:
        """Return the start and length of each range."""
        raise NotImplementedError

    def infer(self: _Ranges[TensorSpec]) -> Any:
        """Return the spec of each range; one list of all of them if there is one output."""
        x = self.source()
        shape, axis = x.shape, axis_of(self.dim, x.shape)
        ranges = self.ranges(shape[axis], axis)
        specs = [TensorSpec((*shape[:axis], n, *shape[axis + 1 :]), x.dtype) for _, n in ranges]
        if self.n_outputs == len(specs):
            return tuple(specs)
        if self.n_outputs == 1:
            return StaticValue(tuple(specs))
        raise ShapeError(
            f"axis {axis} of an input of shape {shape} gives {len(specs)} ranges, expected "
            f"{self.n_outputs}, one per output"
        )

    def bind(self: _Ranges[TensorView], b: Binder) -> None:
        x = self.source()
        axis = axis_of(self.dim, x.shape)
        _bind_views(self, b, [x.narrow(axis, *r) for r in self.ranges(x.shape[axis], axis)])

    @staticmethod
    def batch(c: TracedCall) -> list[BatchAxis]:
        x = c.a.source()
        batch, axis = c.first_batch(x), axis_of(c.a.dim, x.shape)
        c.require(not isinstance(c.outputs[0], StaticValue) and batch.axis != axis)
        return [batch] * len(c.op.outputs)


def _bind_views(a: Record[TensorView], b: Binder, views: Sequence[TensorView]) -> None:
    if a.n_outputs != len(views):
        b.static(tuple(views))
        return
    for index, view in enumerate(views):
        b.alias(view, index)


def _consecutive(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return the start and length of ranges that follow each other."""
    return list(zip(itertools.accumulate(lengths, initial=0), lengths, strict=False))


def _equal_pieces(extent: int, length: int) -> list[int]:
    """Return the lengths of equal ranges; the last may be shorter."""
    if extent == 0:
        return [0]
    return [min(length, extent - start) for start in range(0, extent, length)]


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _batch_without_axis(c: TracedCall) -> BatchAxis:
    """Return the batch axis after the axis `dim` is dropped."""
    batch, axis = c.first_batch(c.a.input), c.dim(c.a.dim)
    c.require(batch.axis != axis)
    return batch._replace(axis=batch.axis - (axis < batch.axis))


@record("torch.chunk", "Tensor.chunk", "aten::unsafe_chunk")
class Chunk(_Ranges[T]):
    """At most `chunks` ranges of length ``ceil(n / chunks)``; the last may be shorter.

    Source: torch.chunk.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or there are not as many ranges as outputs.
    """

    input: T = Tensor()
    chunks: int = Int(minimum=1)
    dim: int = Int(0)

    def source(self) -> T:
        return self.input

    def ranges(self: Chunk[Known], extent: int, axis: int) -> list[tuple[int, int]]:
        if extent == 0:
            return [(0, 0)] * self.chunks
        return _consecutive(_equal_pieces(extent, -(-extent // self.chunks)))

    @staticmethod
    def batch(c: TracedCall) -> list[BatchAxis]:
        axis = axis_of(c.a.dim, c.a.input.shape)
        batch = c.first_batch(c.a.input)
        c.require(not isinstance(c.outputs[0], StaticValue))
        if batch.axis == axis:
            # For example two images of each member that share one batch.
            c.require(batch.outer % c.a.chunks == 0)
            batch = batch._replace(outer=batch.outer // c.a.chunks)
        return [batch] * len(c.op.outputs)


@record(
    "torch.split",
    "Tensor.split",
    "aten::unsafe_split",
    "aten::unsafe_split_with_sizes",
    "aten::split_copy",
    "aten::split_with_sizes_copy",
)
class Split(_Ranges[T]):
    """Ranges of one length, the last of which may be shorter, or of the given lengths.

    Source: torch.split.

    Raises
    ------
    ShapeError
        If `dim` is no axis, the lengths do not add up to its extent, or do not match the outputs.
    """

    tensor: T = Tensor()
    split_size_or_sections: tuple[int, ...] = Ints(minimum=0)
    dim: int = Int(0)

    def source(self) -> T:
        return self.tensor

    def ranges(self: Split[Known], extent: int, axis: int) -> list[tuple[int, int]]:
        sizes = self.split_size_or_sections
        if len(sizes) == 1 and sizes[0] > 0:
            return _consecutive(_equal_pieces(extent, sizes[0]))
        if sum(sizes) != extent:
            raise ShapeError(
                f"'split_size_or_sections' is {sizes}, which does not add up to {extent}, the "
                f"extent of axis {axis} of an input of shape {self.tensor.shape}"
            )
        return _consecutive(sizes)


@record("torch.tensor_split", "Tensor.tensor_split")
class TensorSplit(_Ranges[T]):
    """`sections` ranges, the first ``n % sections`` one longer, or ranges between `indices`.

    Source: torch.tensor_split.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or neither `sections` nor `indices` is given.
    """

    input: T = Tensor()
    sections: int | None = Int(None, minimum=1)
    indices: tuple[int, ...] | None = Ints(default=None)
    dim: int = Int(0)

    def source(self) -> T:
        return self.input

    def ranges(self: TensorSplit[Known], extent: int, axis: int) -> list[tuple[int, int]]:
        if self.sections is not None:
            length, longer = divmod(extent, self.sections)
            return _consecutive([length + (i < longer) for i in range(self.sections)])
        if self.indices is None:
            raise ShapeError("neither 'sections' nor 'indices' is given")
        # As in slices, indices may decrease or exceed the extent.
        cuts = [0, *self.indices, extent]
        bounds = [slice(*pair).indices(extent)[:2] for pair in itertools.pairwise(cuts)]
        return [(start, max(0, stop - start)) for start, stop in bounds]


@record("torch.unbind", "Tensor.unbind", "aten::unbind_copy")
class Unbind(View[T]):
    """One output per index of an axis, which is dropped.

    Source: torch.unbind.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or its extent is not the number of outputs.
    """

    input: T = Tensor()
    dim: int = Int(0)

    def infer(self: Unbind[TensorSpec]) -> Any:
        axis = axis_of(self.dim, self.input.shape)
        x, shape = self.input, _without(self.input.shape, axis)
        specs = tuple(TensorSpec(shape, x.dtype) for _ in range(x.shape[axis]))
        if self.n_outputs == 1 != len(specs):
            return StaticValue(specs)
        if self.n_outputs != len(specs):
            raise ShapeError(
                f"axis {axis} of {self.input.shape} does not give {self.n_outputs} outputs"
            )
        return specs

    def bind(self: Unbind[TensorView], b: Binder) -> None:
        axis = axis_of(self.dim, self.input.shape)
        _bind_views(self, b, [self.input.select(axis, i) for i in range(self.input.shape[axis])])

    @staticmethod
    def batch(c: TracedCall) -> list[BatchAxis]:
        return [_batch_without_axis(c)] * len(c.op.outputs)


@record("Tensor.slice")
class Slice(View[T]):
    """A range of one axis, or ranges and indices of several axes.

    ``dim, start, end, step`` is one range.  ``dims, starts, ends, steps, selects`` are several;
    unless ``selects[i]`` is 2147483647 it is an index and the axis is dropped.  All `dims` are
    axes of the input.  Negative bounds count from the end; an end of 2147483647 is open.
    Source: torch.Tensor.__getitem__, as pnnx merges it.

    Raises
    ------
    ShapeError
        If an item of `dims` is no axis, an index is out of range, or a step is below 1.
    """

    input: T = Tensor()
    dim: tuple[int, ...] = Ints(length=1, default=(0,))
    start: tuple[int, ...] | None = Ints(length=1, default=None, nullable=True)
    end: tuple[int, ...] | None = Ints(length=1, default=None, nullable=True)
    step: tuple[int, ...] | None = Ints(length=1, default=None, nullable=True)
    select: tuple[int, ...] | None = Ints(length=1, default=None, nullable=True)
    dims: tuple[int, ...] | None = Ints(default=None)
    starts: tuple[int, ...] | None = Ints(default=None, nullable=True)
    ends: tuple[int, ...] | None = Ints(default=None, nullable=True)
    steps: tuple[int, ...] | None = Ints(default=None, nullable=True)
    selects: tuple[int, ...] | None = Ints(default=None, nullable=True)

    def _cuts(self: Slice[Known]) -> list[tuple[Any, ...]]:
        """Return (axis, range or index) for each axis that is sliced."""
        plural = "" if self.dims is None else "s"
        dims = self.dim if self.dims is None else self.dims
        axes = axes_of(dims, self.input.shape, "dim" + plural)
        lists = []
        for name in ("start", "end", "step", "select"):
            items = getattr(self, name + plural)
            items = (None,) * len(axes) if items is None else items
            if len(items) != len(axes):
                raise ShapeError(f"'{name}{plural}' is {items}, expected {len(axes)} integers")
            lists.append(items)
        cuts: list[tuple[int, int | range]] = []
        for axis, start, end, step, select in zip(axes, *lists, strict=True):
            extent = self.input.shape[axis]
            if select is not None and select != OPEN:
                cuts.append((axis, wrapped_index(select, extent, axis)))
                continue
            step = 1 if step is None else step
            if step < 1:
                raise ShapeError(f"'step' is {step}, expected an integer >= 1")
            end = None if end is None or end >= OPEN else end
            cuts.append((axis, range(*slice(start, end, step).indices(extent))))
        return cuts

    def infer(self: Slice[TensorSpec]) -> TensorSpec:
        shape: list[int | None] = list(self.input.shape)
        for axis, cut in self._cuts():
            shape[axis] = len(cut) if isinstance(cut, range) else None
        return TensorSpec([n for n in shape if n is not None], self.input.dtype)

    def bind(self: Slice[TensorView], b: Binder) -> None:
        b.alias(cut_out(self.input, self._cuts()))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        batch, a = c.first_batch(c.a.input), c.a
        plural = "" if a.dims is None else "s"
        axes = [c.dim(d) for d in (a.dim if a.dims is None else a.dims)]
        lists = [getattr(a, key + plural) for key in ("start", "end", "step", "select")]
        dropped = 0
        for number, axis in enumerate(axes):
            start, end, step, select = (items and items[number] for items in lists)
            if select is not None and select != OPEN:
                c.require(axis != batch.axis)
                dropped += axis < batch.axis
            elif axis == batch.axis:
                c.require(not start and (end is None or end >= OPEN) and step in (None, 1))
        return batch._replace(axis=batch.axis - dropped)


def cut_out(value: TensorView, cuts: Sequence[tuple[Any, ...]]) -> TensorView:
    """Return the view of the ranges and indices `cuts`: (axis, range or index)."""
    # Start with the last axis: dropping it does not renumber the others.
    for axis, cut in sorted(cuts, key=lambda cut: -cut[0]):
        if isinstance(cut, range):
            value = value.narrow(axis, cut.start if len(cut) else 0, len(cut), cut.step)
        else:
            value = value.select(axis, cut)
    return value


def wrapped_index(index: int, extent: int, axis: int) -> int:
    """Return an index counted from the start; raise ShapeError if it is out of range."""
    if not -extent <= index < extent:
        raise ShapeError(f"index {index} is out of range for axis {axis} of extent {extent}")
    return index % extent


@record("pnnx.SliceIndexes")
class SliceIndexes(View[T]):
    """A list of integers, some of which are operands: the bounds of a slice.

    Source: pnnx.

    Raises
    ------
    ShapeError
        If an item is no integer.
    ValuesNeeded
        If an item is computed while the model runs.
    """

    batch = NoBatchRule("its list holds a number per member")
    inputs: list[T] = Tensors()
    indexes: Any = AnyArgument()

    def _list(self: SliceIndexes[Known]) -> tuple[int, ...]:
        indexes = self.indexes if isinstance(self.indexes, tuple | list) else (self.indexes,)
        return tuple(self._number(item) for item in indexes)

    def _number(self: SliceIndexes[Known], item: Any) -> int:
        if isinstance(item, int):
            return item
        if isinstance(item, str) and item[:1] == "@" and item[1:].isdigit():
            number = int(item[1:])
            operand: Any = self.inputs[number] if number < len(self.inputs) else None
            name = "value" if isinstance(operand, StaticValue) else "constant"
            value = getattr(operand, name, None)
            if value is not None and np.size(value) == 1:
                try:
                    return int(np.asarray(value).item())
                except (TypeError, ValueError, OverflowError):
                    raise ShapeError(f"index {item} is {value!r}, expected an integer") from None
            if isinstance(operand, TensorSpec) and operand.size == 1:
                raise ValuesNeeded(f"index {item} is computed while the model runs", [operand])
            raise ShapeError(f"index {item} is {operand!r}, expected a number known while planning")
        raise ShapeError(f"'indexes' holds {item!r}, expected an integer or @k")

    def infer(self: SliceIndexes[TensorSpec]) -> StaticValue:
        return StaticValue(self._list())

    def bind(self: SliceIndexes[TensorView], b: Binder) -> None:
        b.static(self._list())


@record("Tensor.select", "torch.select", "aten::select_copy")
class Select(View[T]):
    """The slice at one index of an axis, which is dropped.

    Source: torch.select.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or `index` is out of its range.
    """

    input: T = Tensor()
    dim: int = Int()
    index: int = Int()

    def infer(self: Select[TensorSpec]) -> TensorSpec:
        axis = axis_of(self.dim, self.input.shape)
        wrapped_index(self.index, self.input.shape[axis], axis)
        return TensorSpec(_without(self.input.shape, axis), self.input.dtype)

    def bind(self: Select[TensorView], b: Binder) -> None:
        axis = axis_of(self.dim, self.input.shape)
        b.alias(self.input.select(axis, wrapped_index(self.index, self.input.shape[axis], axis)))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        return _batch_without_axis(c)


@record("torch.narrow", "Tensor.narrow", "aten::narrow_copy")
class Narrow(View[T]):
    """The range ``[start, start + length)`` of an axis.

    Source: torch.narrow.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or the range exceeds it.
    """

    batch = "along_axes"
    input: T = Tensor()
    dim: int = Int()
    start: int = Int()
    length: int = Int(minimum=0)

    def _start(self: Narrow[Known]) -> tuple[int, int]:
        axis = axis_of(self.dim, self.input.shape)
        extent = self.input.shape[axis]
        start = self.start + extent if self.start < 0 else self.start
        if not 0 <= start <= extent - self.length:
            raise ShapeError(
                f"{self.length} elements from {self.start} on exceed axis {axis} of extent {extent}"
            )
        return axis, start

    def infer(self: Narrow[TensorSpec]) -> TensorSpec:
        axis, _ = self._start()
        shape = (*self.input.shape[:axis], self.length, *self.input.shape[axis + 1 :])
        return TensorSpec(shape, self.input.dtype)

    def bind(self: Narrow[TensorView], b: Binder) -> None:
        axis, start = self._start()
        b.alias(self.input.narrow(axis, start, self.length))
