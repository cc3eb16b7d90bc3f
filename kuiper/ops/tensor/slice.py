"""Splits and slices: views, which cost nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import axes_of, axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import NoBatchRule, record
from kuiper.ops.core.schema import (
    AnyArgument,
    Int,
    Ints,
    StaticValue,
    Tensor,
    Tensors,
    ValuesNeeded,
)
from kuiper.ops.tensor.shape import View

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = [
    "Chunk",
    "Narrow",
    "Select",
    "Slice",
    "SliceIndexes",
    "Split",
    "TensorSplit",
    "Unbind",
]

# How PNNX writes an open end and, in `selects`, a range instead of an index.
OPEN = 2**31 - 1


def _pieces(a: SimpleNamespace, input: Any, lengths: Sequence[int], axis: int) -> Any:
    """Return the specs of consecutive ranges of an axis, as one list if there is one output."""
    shape = input.shape
    specs = [TensorSpec((*shape[:axis], n, *shape[axis + 1 :]), input.dtype) for n in lengths]
    if a.n_outputs == len(specs):
        return tuple(specs)
    if a.n_outputs == 1:
        return StaticValue(tuple(specs))
    raise ShapeError(
        f"axis {axis} of an input of shape {shape} gives {len(specs)} ranges, expected "
        f"{a.n_outputs}, one per output"
    )


def _bind_pieces(
    a: SimpleNamespace, b: Binder, input: TensorView, lengths: Sequence[int], axis: int
) -> None:
    starts = itertools.accumulate(lengths, initial=0)
    views = [input.narrow(axis, start, n) for start, n in zip(starts, lengths, strict=False)]
    _bind_views(a, b, views)


def _bind_views(a: SimpleNamespace, b: Binder, views: Sequence[TensorView]) -> None:
    if a.n_outputs != len(views):
        b.static(tuple(views))
        return
    for index, view in enumerate(views):
        b.alias(view, index)


def _equal_pieces(extent: int, length: int) -> list[int]:
    """Return the lengths of equal ranges, of which the last may be shorter."""
    if extent == 0:
        return [0]
    return [min(length, extent - start) for start in range(0, extent, length)]


def _batch_of_pieces(c: TracedCall, input: TensorSpec) -> list[BatchAxis]:
    batch = c.first_batch(input)
    c.require(
        not isinstance(c.outputs[0], StaticValue) and batch.axis != axis_of(c.a.dim, input.shape)
    )
    return [batch] * len(c.op.outputs)


def _batch_without_axis(c: TracedCall) -> BatchAxis:
    """Return the batch axis after the axis `dim` is dropped."""
    batch, axis = c.first_batch(c.a.input), c.dim(c.a.dim)
    c.require(batch.axis != axis)
    return batch._replace(axis=batch.axis - (axis < batch.axis))


@record("torch.chunk", "Tensor.chunk", "aten::unsafe_chunk")
class Chunk(View):
    """At most `chunks` ranges of length ``ceil(n / chunks)``; the last may be shorter.

    Source: torch.chunk.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or there are not as many ranges as outputs.
    """

    arguments = (Tensor("input"), Int("chunks", minimum=1), Int("dim", 0))

    @staticmethod
    def _lengths(a: SimpleNamespace) -> Any:
        axis = axis_of(a.dim, a.input.shape)
        extent = a.input.shape[axis]
        if extent == 0:
            return axis, [0] * a.chunks
        return axis, _equal_pieces(extent, -(-extent // a.chunks))

    @staticmethod
    def infer(a: SimpleNamespace) -> Any:
        axis, lengths = Chunk._lengths(a)
        return _pieces(a, a.input, lengths, axis)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        axis, lengths = Chunk._lengths(a)
        _bind_pieces(a, b, a.input, lengths, axis)

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
class Split(View):
    """Ranges of one length, of which the last may be shorter, or of the given lengths.

    Source: torch.split.

    Raises
    ------
    ShapeError
        If `dim` is no axis, the lengths do not add up to its extent, or do not match the outputs.
    """

    arguments = (Tensor("tensor"), Ints("split_size_or_sections", minimum=0), Int("dim", 0))

    @staticmethod
    def _lengths(a: SimpleNamespace) -> Any:
        axis = axis_of(a.dim, a.tensor.shape)
        extent, sizes = a.tensor.shape[axis], a.split_size_or_sections
        if len(sizes) == 1 and sizes[0] > 0:
            return axis, _equal_pieces(extent, sizes[0])
        if sum(sizes) != extent:
            raise ShapeError(
                f"'split_size_or_sections' is {sizes}, which does not add up to {extent}, the "
                f"extent of axis {axis} of an input of shape {a.tensor.shape}"
            )
        return axis, list(sizes)

    @staticmethod
    def infer(a: SimpleNamespace) -> Any:
        axis, lengths = Split._lengths(a)
        return _pieces(a, a.tensor, lengths, axis)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        axis, lengths = Split._lengths(a)
        _bind_pieces(a, b, a.tensor, lengths, axis)

    @staticmethod
    def batch(c: TracedCall) -> list[BatchAxis]:
        return _batch_of_pieces(c, c.a.tensor)


@record("torch.tensor_split", "Tensor.tensor_split")
class TensorSplit(View):
    """`sections` ranges, the first ``n % sections`` one longer, or ranges between `indices`.

    Source: torch.tensor_split.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or neither `sections` nor `indices` is given.
    """

    arguments = (
        Tensor("input"),
        Int("sections", None, minimum=1),
        Ints("indices", default=None),
        Int("dim", 0),
    )

    @staticmethod
    def _lengths(a: SimpleNamespace) -> Any:
        axis = axis_of(a.dim, a.input.shape)
        extent = a.input.shape[axis]
        if a.sections is not None:
            length, longer = divmod(extent, a.sections)
            return axis, [length + (i < longer) for i in range(a.sections)], None
        if a.indices is None:
            raise ShapeError("neither 'sections' nor 'indices' is given")
        # As in slices, indices may decrease or lie past the end.
        cuts = [0, *a.indices, extent]
        ranges = [slice(*pair).indices(extent)[:2] for pair in itertools.pairwise(cuts)]
        return axis, [max(0, stop - start) for start, stop in ranges], [r[0] for r in ranges]

    @staticmethod
    def infer(a: SimpleNamespace) -> Any:
        axis, lengths, _ = TensorSplit._lengths(a)
        return _pieces(a, a.input, lengths, axis)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        axis, lengths, starts = TensorSplit._lengths(a)
        if starts is None:
            _bind_pieces(a, b, a.input, lengths, axis)
            return
        _bind_views(
            a, b, [a.input.narrow(axis, s, n) for s, n in zip(starts, lengths, strict=True)]
        )

    @staticmethod
    def batch(c: TracedCall) -> list[BatchAxis]:
        return _batch_of_pieces(c, c.a.input)


@record("torch.unbind", "Tensor.unbind", "aten::unbind_copy")
class Unbind(View):
    """One output per index of an axis, which is dropped.

    Source: torch.unbind.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or its extent is not the number of outputs.
    """

    arguments = (Tensor("input"), Int("dim", 0))

    @staticmethod
    def infer(a: SimpleNamespace) -> Any:
        axis = axis_of(a.dim, a.input.shape)
        shape = (*a.input.shape[:axis], *a.input.shape[axis + 1 :])
        specs = tuple(TensorSpec(shape, a.input.dtype) for _ in range(a.input.shape[axis]))
        if a.n_outputs == 1 != len(specs):
            return StaticValue(specs)
        if a.n_outputs != len(specs):
            raise ShapeError(f"axis {axis} of {a.input.shape} does not give {a.n_outputs} outputs")
        return specs

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        axis = axis_of(a.dim, a.input.shape)
        _bind_views(a, b, [a.input.select(axis, i) for i in range(a.input.shape[axis])])

    @staticmethod
    def batch(c: TracedCall) -> list[BatchAxis]:
        return [_batch_without_axis(c)] * len(c.op.outputs)


@record("Tensor.slice")
class Slice(View):
    """A range of one axis, or ranges and indices of several axes.

    ``dim, start, end, step`` is one range.  ``dims, starts, ends, steps, selects`` are several;
    where ``selects[i]`` is not 2147483647 it is an index and the axis is dropped.  All `dims` are
    axes of the input.  Negative bounds count from the end; an end of 2147483647 is open.
    Source: torch.Tensor.__getitem__, as pnnx merges it.

    Raises
    ------
    ShapeError
        If an axis is none of the input's, an index is out of range, or a step is below 1.
    """

    arguments = (
        Tensor("input"),
        Ints("dim", length=1, default=(0,)),
        Ints("start", length=1, default=None, nullable=True),
        Ints("end", length=1, default=None, nullable=True),
        Ints("step", length=1, default=None, nullable=True),
        Ints("select", length=1, default=None, nullable=True),
        Ints("dims", default=None),
        Ints("starts", default=None, nullable=True),
        Ints("ends", default=None, nullable=True),
        Ints("steps", default=None, nullable=True),
        Ints("selects", default=None, nullable=True),
    )

    @staticmethod
    def _cuts(a: SimpleNamespace) -> list[tuple[Any, ...]]:
        """Return (axis, range or index) for each axis that is sliced."""
        plural = "" if a.dims is None else "s"
        dims = a.dim if a.dims is None else a.dims
        axes = axes_of(dims, a.input.shape, "dim" + plural)
        lists = []
        for name in ("start", "end", "step", "select"):
            items = getattr(a, name + plural)
            items = (None,) * len(axes) if items is None else items
            if len(items) != len(axes):
                raise ShapeError(f"'{name}{plural}' is {items}, expected {len(axes)} integers")
            lists.append(items)
        cuts: list[tuple[int, int | range]] = []
        for axis, start, end, step, select in zip(axes, *lists, strict=True):
            extent = a.input.shape[axis]
            if select is not None and select != OPEN:
                cuts.append((axis, _wrapped(select, extent, axis)))
                continue
            step = 1 if step is None else step
            if step < 1:
                raise ShapeError(f"'step' is {step}, expected an integer >= 1")
            end = None if end is None or end >= OPEN else end
            cuts.append((axis, range(*slice(start, end, step).indices(extent))))
        return cuts

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        shape = list(a.input.shape)
        for axis, cut in Slice._cuts(a):
            shape[axis] = len(cut) if isinstance(cut, range) else None
        return TensorSpec([n for n in shape if n is not None], a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        b.alias(cut_out(a.input, Slice._cuts(a)))

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
    """Return the view of some ranges and indices; `cuts` are (axis, range or index)."""
    # From the last axis to the first, so that a dropped axis does not renumber the others.
    for axis, cut in sorted(cuts, key=lambda cut: -cut[0]):
        if isinstance(cut, range):
            value = value.narrow(axis, cut.start if len(cut) else 0, len(cut), cut.step)
        else:
            value = value.select(axis, cut)
    return value


def _wrapped(index: int, extent: int, axis: int) -> int:
    if not -extent <= index < extent:
        raise ShapeError(f"index {index} is out of range for axis {axis} of extent {extent}")
    return index % extent


@record("pnnx.SliceIndexes")
class SliceIndexes(View):
    """A list of integers, some of which are operands: the bounds of a slice.

    Source: pnnx.

    Raises
    ------
    ShapeError
        If an item is no integer.
    ValuesNeeded
        If an item is computed while the model runs.
    """

    batch = NoBatchRule("a list of numbers holds one of each member")
    arguments = (Tensors("inputs"), AnyArgument("indexes"))

    @staticmethod
    def _list(a: SimpleNamespace) -> tuple[int, ...]:
        indexes = a.indexes if isinstance(a.indexes, tuple | list) else (a.indexes,)
        return tuple(SliceIndexes._number(a, item) for item in indexes)

    @staticmethod
    def _number(a: SimpleNamespace, item: Any) -> int:
        if isinstance(item, int):
            return item
        if isinstance(item, str) and item[:1] == "@" and item[1:].isdigit():
            number = int(item[1:])
            operand = a.inputs[number] if number < len(a.inputs) else None
            value = (
                operand.value
                if isinstance(operand, StaticValue)
                else getattr(operand, "constant", None)
            )
            if value is not None and np.size(value) == 1:
                try:
                    return int(np.asarray(value).item())
                except (TypeError, ValueError, OverflowError):
                    raise ShapeError(f"index {item} is {value!r}, expected an integer") from None
            if isinstance(operand, TensorSpec) and operand.size == 1:
                raise ValuesNeeded(f"index {item} is computed while the model runs", [operand])
            raise ShapeError(f"index {item} is {operand!r}, expected a number known while planning")
        raise ShapeError(f"'indexes' holds {item!r}, expected an integer or @k")

    @staticmethod
    def infer(a: SimpleNamespace) -> StaticValue:
        return StaticValue(SliceIndexes._list(a))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        b.static(SliceIndexes._list(a))


@record("Tensor.select", "torch.select", "aten::select_copy")
class Select(View):
    """The slice at one index of an axis, which is dropped.

    Source: torch.select.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or `index` is out of its range.
    """

    arguments = (Tensor("input"), Int("dim"), Int("index"))

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        axis = axis_of(a.dim, a.input.shape)
        _wrapped(a.index, a.input.shape[axis], axis)
        return TensorSpec((*a.input.shape[:axis], *a.input.shape[axis + 1 :]), a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        axis = axis_of(a.dim, a.input.shape)
        b.alias(a.input.select(axis, _wrapped(a.index, a.input.shape[axis], axis)))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        return _batch_without_axis(c)


@record("torch.narrow", "Tensor.narrow", "aten::narrow_copy")
class Narrow(View):
    """The range ``[start, start + length)`` of an axis.

    Source: torch.narrow.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or the range does not lie inside it.
    """

    batch = "along_axes"
    arguments = (Tensor("input"), Int("dim"), Int("start"), Int("length", minimum=0))

    @staticmethod
    def _start(a: SimpleNamespace) -> tuple[int, int]:
        axis = axis_of(a.dim, a.input.shape)
        extent = a.input.shape[axis]
        start = a.start + extent if a.start < 0 else a.start
        if not 0 <= start <= extent - a.length:
            raise ShapeError(
                f"{a.length} elements from {a.start} on exceed axis {axis} of extent {extent}"
            )
        return axis, start

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        axis, _ = Narrow._start(a)
        shape = (*a.input.shape[:axis], a.length, *a.input.shape[axis + 1 :])
        return TensorSpec(shape, a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        axis, start = Narrow._start(a)
        b.alias(a.input.narrow(axis, start, a.length))
