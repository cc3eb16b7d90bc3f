"""Indexed views: iteration over the elements of a tensor at computed indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kuiper._kernels.data.indexing import AxisIndex, GatherStep, ScatterStep
from kuiper._runtime.step import ERROR_SLOT_BYTES
from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import checked_index
from kuiper.ops.core.typed import cast
from kuiper.ops.tensor.concat import is_at

__all__ = [
    "INT64",
    "NUMBERS",
    "IndexedView",
    "along",
    "check_index",
    "copied",
    "flat",
    "indexed_elements",
    "integers",
    "spread",
    "subscript_of",
]

INT64 = np.dtype(np.int64)

# The dtypes that kernels reduce while they scatter.
NUMBERS = (np.float32, np.float64, np.int32, np.int64)


def along(shape: Sequence[int], axis: int, extent: int) -> tuple[int, ...]:
    """Return a shape with another extent of one axis."""
    return (*shape[:axis], extent, *shape[axis + 1 :])


def integers(b: Binder, index: Any) -> TensorView:
    """Return indices in the type that kernels read."""
    if isinstance(index, np.ndarray):
        return b.constant(np.require(index, INT64, "C"))
    return index if index.dtype == np.int32 else cast(b, index, INT64)


def flat(value: TensorView) -> TensorView:
    """Return a 0-d view as a vector."""
    return value.view((1,)) if value.rank == 0 else value


def spread(value: TensorView, shape: Sequence[int], axes: Sequence[int]) -> TensorView:
    """Return a view broadcast to a shape; `axes` are its axes in that shape."""
    strides = [0] * len(shape)
    for axis, extent, stride in zip(axes, value.shape, value.strides, strict=True):
        strides[axis] = 0 if extent == 1 else stride
    return value.with_layout(shape, strides)


class IndexedView:
    """The elements of a tensor at computed indices, as the operand of a gather or a scatter.

    Parameters
    ----------
    b : Binder
    tensor : TensorView
        The tensor to read or write.
    shape : sequence of int
        The shape of the view.
    kept : sequence of (int, int)
        Pairs of an axis of the view and the axis of the tensor that it follows.
    negative : bool, default=False
        Whether indices may count from the end.
    """

    def __init__(
        self,
        b: Binder,
        tensor: TensorView,
        shape: Sequence[int],
        kept: Sequence[tuple[int, int]],
        negative: bool = False,
    ) -> None:
        self.b, self.tensor, self.shape, self.negative = b, tensor, tuple(shape), negative
        self.strides = [0] * len(self.shape)
        for axis, own in kept:
            self.strides[axis] = tensor.strides[own]
        self.lanes = [axis in dict(kept) for axis in range(len(self.shape))]
        self.indices: list[AxisIndex] = []
        self.extents: list[int] = []

    def add(self, index: Any, own: int, axes: Sequence[int]) -> None:
        """Index the axis `own` of the tensor; `axes` are the axes of `index` in the view's shape.

        Raises
        ------
        ShapeError
            If the axis is empty.
        """
        extent = self.tensor.shape[own]
        if extent == 0:
            raise ShapeError("every index is out of range for an axis of extent 0")
        index = spread(integers(self.b, index), self.shape, axes)
        self.indices.append(AxisIndex(index, extent, self.tensor.strides[own], self.negative))
        self.extents.append(extent)

    def _fault(self) -> tuple[TensorView, str]:
        extents = " or ".join(map(str, dict.fromkeys(self.extents)))
        label = self.b.operator.label.replace("{", "{{").replace("}", "}}")
        text = f"{label}: index {{}} is out of range for an axis of extent {extents}"
        return self.b.context_state(ERROR_SLOT_BYTES), text

    def gather(self, y: TensorView) -> None:
        """Add the step that copies the elements to `y`, of the view's shape."""
        self.b.step(GatherStep(self.tensor, y, self.strides, self.indices, *self._fault()))

    def scatter(self, source: TensorView, kind: str = "put") -> None:
        """Add the step that stores `source` to the elements, or reduces it into them."""
        source = source.expand(self.shape)
        self.b.step(
            ScatterStep(
                source, self.tensor, self.strides, self.indices, self.lanes, kind, *self._fault()
            )
        )


def copied(b: Binder, x: TensorView, *others: Any) -> TensorView:
    """Return output 0, filled with the input; the input's own memory if nothing else reads it."""
    apart = all(not isinstance(v, TensorView) or v.buffer is not x.buffer for v in others)
    y = b.output(reuse=x if apart else None)
    if not is_at(x, y):
        b.copy(x, y)
    return y


def indexed_elements(b: Binder, tensor: TensorView, index: TensorView, axis: int) -> IndexedView:
    """Return the view with one index per element, along an axis."""
    axes = range(len(index.shape))
    subscript = IndexedView(b, tensor, index.shape, [(d, d) for d in axes if d != axis])
    subscript.add(index, axis, axes)
    return subscript


def check_index(index: TensorSpec, shape: Sequence[int], axis: int, name: str = "input") -> None:
    """Raise ShapeError if an index exceeds a tensor on another axis than `axis`."""
    # A 0-d tensor counts as a vector of one element.
    pairs = list(zip(index.shape or (1,), shape or (1,), strict=False))
    same_rank = len(pairs) == max(len(index.shape), len(shape), 1)
    fits = same_rank and all(n <= m or d == axis for d, (n, m) in enumerate(pairs))
    if not fits or index.dtype.kind not in "iu":
        raise ShapeError(
            f"'index' is {index}, expected integers of a shape within that of '{name}', {shape}, "
            f"apart from axis {axis}"
        )


def subscript_of(index: np.ndarray, axis: int, extent: int) -> tuple[Any, ...]:
    """Return the numpy subscript for one index per element, along an axis."""
    grid = list(np.ogrid[tuple(slice(n) for n in index.shape)])
    grid[axis] = checked_index(index, extent)
    return tuple(grid)
