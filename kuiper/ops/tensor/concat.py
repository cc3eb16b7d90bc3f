"""Concatenation: if possible, producers write each input directly into the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.expression.promotion import promote
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.axes import axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import FOLLOWS, Record, T, record
from kuiper.ops.core.schema import Int, Known, Tensors

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["Cat", "Stack"]

FLOAT32 = np.dtype(np.float32)


def check_tensors(tensors: Any) -> list[Any]:
    """Return the tensors; raise ShapeError for an empty list or an item that is no tensor."""
    for number, tensor in enumerate(tensors):
        if not isinstance(tensor, TensorSpec | TensorView):
            raise ShapeError(f"input {number} is {tensor!r}, expected a tensor")
    if not tensors:
        raise ShapeError("it has no inputs, expected one or more tensors")
    return tensors


def _common_dtype(tensors: Any) -> np.dtype:
    dtype = _dtype(tensors[0])
    for tensor in tensors[1:]:
        dtype = promote(dtype, _dtype(tensor))
    return dtype


def _dtype(tensor: Any) -> np.dtype:
    """Return the dtype of a tensor's values, whatever they are stored in."""
    return FLOAT32 if tensor.dtype == BFLOAT16 else tensor.dtype


def _join_in_numpy(
    b: Binder, join: Callable[..., np.ndarray], tensors: Sequence[TensorView], axis: int
) -> None:
    """Bind to a step that joins tensors of several dtypes."""
    dtype = _common_dtype(tensors)
    wide = [b.stored(t, FLOAT32) if t.dtype == BFLOAT16 else t for t in tensors]
    output = b.output()
    y = b.temporary(output.shape) if output.dtype == BFLOAT16 else output
    b.python(lambda *arrays: join(arrays, axis).astype(dtype), wide, [y])
    if y is not output:
        b.copy(y, output)


def is_at(value: TensorView, target: TensorView) -> bool:
    return (
        value.buffer is target.buffer
        and value.offset == target.offset
        and value.same_layout(target)
    )


@record("torch.cat", "torch.concat")
class Cat(Record[T]):
    """Tensors concatenated along an axis.

    Inputs that their producers wrote into the output cost nothing; the others are copied.
    Source: torch.cat.

    Raises
    ------
    ShapeError
        If there are no tensors, or their shapes differ along an axis other than `dim`.
    """

    tensors: list[T] = Tensors()
    dim: int = Int(0)
    layout = Layout.LIKE
    bfloat16 = FOLLOWS

    def infer(self: Cat[TensorSpec]) -> TensorSpec:
        tensors = check_tensors(self.tensors)
        # PyTorch ignores empty 1-d tensors, whatever the shapes of the others.
        full = [t for t in tensors if t.shape != (0,)] or tensors[:1]
        axis = axis_of(self.dim, full[0].shape)
        shape = full[0].shape
        if not shape:
            raise ShapeError("input 0 is a 0-d tensor, which cannot be joined")
        for number, tensor in enumerate(tensors):
            if tensor.shape != (0,) and not _fits(tensor.shape, shape, axis):
                raise ShapeError(
                    f"input {number} has shape {tensor.shape}, which does not fit {shape} apart "
                    f"from axis {axis}"
                )
        extent = sum(t.shape[axis] for t in full)
        return TensorSpec((*shape[:axis], extent, *shape[axis + 1 :]), _common_dtype(tensors))

    def bind(self: Cat[TensorView], b: Binder) -> None:
        dtype = _common_dtype(self.tensors)
        full = [t for t in self.tensors if t.shape != (0,)] or self.tensors[:1]
        axis = self.joined_axis()
        if any(_dtype(t) != dtype for t in full):
            _join_in_numpy(b, np.concatenate, full, axis)
            return
        joined = _adjacent(full, axis)
        if joined is not None and joined.dtype == b.output_dtype():
            b.alias(joined)
            return
        y = b.output(layout=next((t for t in full if _is_image(t)), full[0]))
        start = 0
        for x in full:
            target = y.narrow(axis, start, x.shape[axis])
            if not is_at(x, target):
                b.copy(x, target)
            start += x.shape[axis]

    def joined_axis(self: Cat[Known]) -> int:
        """Return the axis along which the output concatenates the inputs."""
        full = [t for t in self.tensors if t.shape != (0,)] or self.tensors[:1]
        return axis_of(self.dim, full[0].shape)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        specs = [s for s in c.a.tensors if isinstance(s, TensorSpec) and s.shape != (0,)]
        batch = c.first_batch(*specs)
        axis = axis_of(c.a.dim, specs[0].shape)
        if batch.axis == axis:
            found = [c.first_batch(s) for s in specs]
            c.require(all((b.axis, b.inner) == (axis, batch.inner) for b in found))
            return batch._replace(outer=sum(b.outer for b in found))
        for spec in specs:
            c.spread(spec, batch)
        return batch


def _fits(shape: Sequence[int], other: Sequence[int], axis: int) -> bool:
    return len(shape) == len(other) and all(
        n == m for d, (n, m) in enumerate(zip(shape, other, strict=True)) if d != axis
    )


def _is_image(value: TensorView) -> bool:
    """Whether a view is channels-last but not contiguous."""
    return value.is_channels_last and not value.is_contiguous


def _adjacent(values: Sequence[TensorView], axis: int) -> TensorView | None:
    """Return one view of all inputs if they are adjacent in memory along an axis, else None."""
    first = values[0]
    end = first.offset
    for value in values:
        if (
            value.buffer is not first.buffer
            or value.strides != first.strides
            or value.dtype != first.dtype
            or value.offset != end
        ):
            return None
        end += value.shape[axis] * value.strides[axis]
    shape = list(first.shape)
    shape[axis] = sum(value.shape[axis] for value in values)
    return first.with_layout(shape, first.strides)


@record("torch.stack")
class Stack(Record[T]):
    """Tensors of one shape concatenated along a new axis.

    Source: torch.stack.

    Raises
    ------
    ShapeError
        If there are no tensors, or their shapes differ.
    """

    tensors: list[T] = Tensors()
    dim: int = Int(0)
    bfloat16 = FOLLOWS

    def infer(self: Stack[TensorSpec]) -> TensorSpec:
        tensors = check_tensors(self.tensors)
        shape = tensors[0].shape
        for number, tensor in enumerate(tensors):
            if tensor.shape != shape:
                raise ShapeError(f"input {number} has shape {tensor.shape}, expected {shape}")
        axis = axis_of(self.dim, (*shape, 1))
        return TensorSpec((*shape[:axis], len(tensors), *shape[axis:]), _common_dtype(tensors))

    def bind(self: Stack[TensorView], b: Binder) -> None:
        dtype = _common_dtype(self.tensors)
        axis = axis_of(self.dim, (*self.tensors[0].shape, 1))
        if any(_dtype(t) != dtype for t in self.tensors):
            _join_in_numpy(b, np.stack, self.tensors, axis)
            return
        y = b.output()
        for number, x in enumerate(self.tensors):
            b.copy(x, y.select(axis, number))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        batch = c.first_batch(*c.a.tensors)
        for spec in c.a.tensors:
            c.spread(spec, batch)
        axis = c.a.dim % c.outputs[0].rank
        return batch._replace(axis=batch.axis + (axis <= batch.axis))
