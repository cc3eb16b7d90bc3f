"""Views, concatenations and splits under the further names that PyTorch has for them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.axes import axes_of, axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.schema import (
    Argument,
    Int,
    Ints,
    Known,
    StaticValue,
    Str,
    Tensor,
    TensorList,
    ValuesNeeded,
    field,
)
from kuiper.ops.tensor.concat import Cat, check_tensors
from kuiper.ops.tensor.permute import backwards
from kuiper.ops.tensor.shape import Permutation, Reshaped, View, swapped
from kuiper.ops.tensor.slice import TensorSplit

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["AsStrided", "BatchedTranspose", "MeshGrid", "MoveDim", "Rot90", "SlidingWindow"]


@record("aten::movedim", "aten::moveaxis")
class MoveDim(Permutation[T]):
    """Axes moved to other positions; the others keep their order.

    Source: torch.movedim.

    Raises
    ------
    ShapeError
        If `source` and `destination` differ in length.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    source: tuple[int, ...] = Ints()
    destination: tuple[int, ...] = Ints()

    def permutation(self: MoveDim[Known]) -> list[int]:
        shape = self.input.shape or (1,)
        sources = axes_of(self.source, shape, "source")
        targets = axes_of(self.destination, shape, "destination")
        if len(sources) != len(targets):
            raise ShapeError(f"'source' is {self.source} and 'destination' {self.destination}")
        rest = iter([d for d in range(len(shape)) if d not in sources])
        moved = dict(zip(targets, sources, strict=True))
        return [moved[d] if d in moved else next(rest) for d in range(self.input.rank)]


@record("aten::numpy_T")
class Reversed(Permutation[T]):
    """The axes in reverse order.

    Source: torch.Tensor.T.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")

    def permutation(self: Reversed[Known]) -> Sequence[int]:
        return range(self.input.rank - 1, -1, -1)


@record("aten::mT", "aten::mH", "aten::matrix_H", "aten::adjoint")
class BatchedTranspose(Permutation[T]):
    """Real matrices transposed.

    Source: torch.Tensor.mT, torch.Tensor.mH, torch.Tensor.H.

    Raises
    ------
    ShapeError
        If the input has fewer than two axes, or is complex.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")

    def permutation(self: BatchedTranspose[Known]) -> list[int]:
        rank = self.input.rank
        if rank < 2 or self.input.dtype.kind == "c":
            raise ShapeError(f"the input is {self.input!r}, expected matrices of real numbers")
        return swapped(rank, rank - 2, rank - 1)


@record("aten::ravel")
class Ravel(Reshaped[T]):
    """The tensor flattened to one axis.

    Source: torch.ravel.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")

    def infer(self: Ravel[TensorSpec]) -> TensorSpec:
        return TensorSpec((self.input.size,), self.input.dtype)


def _extended(shape: tuple[int, ...], rank: int, before: Sequence[int]) -> tuple[int, ...]:
    """Return a shape with extents of 1 up to a rank; ``before[len(shape)]`` of them come first."""
    missing = rank - len(shape)
    if missing <= 0:
        return shape
    ahead = before[len(shape)]
    return (1,) * ahead + shape + (1,) * (missing - ahead)


def _at_least(name: str, rank: int, before: Sequence[int]) -> None:
    """Register a view with axes of extent 1 added to tensors of a lower rank."""

    class AtLeast(Reshaped[T]):
        batch = NoBatchRule("rare: no known export uses it with another batch")

        def infer(self: AtLeast[TensorSpec]) -> TensorSpec:
            return TensorSpec(_extended(self.input.shape, rank, before), self.input.dtype)

    AtLeast.__name__ = AtLeast.__qualname__ = f"AtLeast{rank}D"
    AtLeast.__doc__ = (
        f"The input, with axes of extent 1 added up to a rank of {rank}.\n\nSource: torch.{name}."
    )
    record(f"aten::{name}")(AtLeast)


_at_least("atleast_1d", 1, (0,))
_at_least("atleast_2d", 2, (0, 1))
_at_least("atleast_3d", 3, (0, 1, 0))


@record("aten::unfold", "aten::unfold_copy")
class SlidingWindow(View[T]):
    """Windows of an axis, `step` apart; the elements of a window are a new last axis.

    Source: torch.Tensor.unfold.

    Raises
    ------
    ShapeError
        If `dimension` is no axis, or shorter than `size`.
    """

    input: T = Tensor()
    dimension: int = Int()
    size: int = Int(minimum=0)
    step: int = Int(minimum=1)

    def _axis(self: SlidingWindow[Known]) -> int:
        axis = axis_of(self.dimension, self.input.shape or (1,), "dimension")
        extent = (self.input.shape or (1,))[axis]
        if self.size > extent:
            raise ShapeError(f"'size' is {self.size}, expected at most {extent}, the axis's extent")
        return axis

    def infer(self: SlidingWindow[TensorSpec]) -> TensorSpec:
        axis = self._axis()
        if self.input.rank == 0:
            return TensorSpec((self.size,), self.input.dtype)
        shape = list(self.input.shape)
        shape[axis] = (shape[axis] - self.size) // self.step + 1
        return TensorSpec((*shape, self.size), self.input.dtype)

    def bind(self: SlidingWindow[TensorView], b: Binder) -> None:
        spec = b.output_spec()
        if spec.size == 0:
            b.output()
            return
        if self.input.rank == 0:
            b.alias(self.input.view((1,)))
            return
        strides = list(self.input.strides)
        axis = self._axis()
        strides[axis] *= self.step
        b.alias(self.input.with_layout(spec.shape, (*strides, self.input.strides[axis])))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        batch = c.first_batch(c.a.input)
        c.require(batch.axis != c.dim(c.a.dimension))
        return batch


@record("torch.as_strided", "Tensor.as_strided", "aten::as_strided_copy")
class AsStrided(Record[T]):
    """A view of the contiguous input with explicit sizes, strides and offset.

    Source: torch.as_strided.

    Raises
    ------
    ShapeError
        If `size` and `stride` differ in length, or lead outside the input.
    """

    batch = NoBatchRule("its strides may reach any member")
    input: T = Tensor()
    size: tuple[int, ...] = Ints(minimum=0)
    stride: tuple[int, ...] = Ints(minimum=0)
    storage_offset: int | None = Int(0, minimum=0, nullable=True)

    def infer(self: AsStrided[TensorSpec]) -> TensorSpec:
        if len(self.size) != len(self.stride):
            raise ShapeError(f"'size' is {self.size} and 'stride' {self.stride}, expected as many")
        pairs = zip(self.size, self.stride, strict=True)
        last = (self.storage_offset or 0) + sum((n - 1) * s for n, s in pairs)
        if 0 not in self.size and last >= self.input.size:
            raise ShapeError(
                f"the last element would be number {last} of an input of {self.input.size} elements"
            )
        return TensorSpec(self.size, self.input.dtype)

    def bind(self: AsStrided[TensorView], b: Binder) -> None:
        if 0 in self.size:
            b.output()
            return
        x = b.contiguous(self.input)
        b.alias(x.with_layout(self.size, self.stride, self.storage_offset or 0))


@record("aten::meshgrid")
class MeshGrid(View[T]):
    """Vectors expanded to one shape, the i-th along axis i; ``xy`` swaps the first two axes.

    Source: torch.meshgrid.

    Raises
    ------
    ShapeError
        If an input is no vector.
    """

    batch = NoBatchRule("it combines all elements")
    tensors: tuple[T, ...] = TensorList()
    indexing: str = Str(("ij", "xy"), "ij")

    def _axes(self: MeshGrid[Known]) -> list[int]:
        """Return the axis of each vector."""
        axes = list(range(len(self.tensors)))
        if self.indexing == "xy" and len(axes) > 1:
            axes[:2] = 1, 0
        return axes

    def _shape(self: MeshGrid[Known]) -> tuple[int, ...]:
        if any(tensor.rank > 1 for tensor in self.tensors):
            raise ShapeError(f"its inputs are {self.tensors}, expected vectors")
        axes = self._axes()
        return tuple(self.tensors[axes.index(d)].size for d in range(len(axes)))

    def infer(self: MeshGrid[TensorSpec]) -> StaticValue:
        shape = self._shape()
        return StaticValue(tuple(TensorSpec(shape, tensor.dtype) for tensor in self.tensors))

    def bind(self: MeshGrid[TensorView], b: Binder) -> None:
        shape = self._shape()
        grids = []
        for tensor, axis in zip(self.tensors, self._axes(), strict=True):
            strides = [0] * len(shape)
            strides[axis] = tensor.strides[0] if tensor.rank else 0
            grids.append(tensor.with_layout(shape, strides))
        b.static(tuple(grids))


@record("aten::broadcast_tensors")
class BroadcastTensors(View[T]):
    """Tensors expanded to their common shape.

    Source: torch.broadcast_tensors.

    Raises
    ------
    ShapeError
        If the shapes do not broadcast.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    tensors: tuple[T, ...] = TensorList()

    def _shape(self: BroadcastTensors[Known]) -> tuple[int, ...]:
        shapes = [tensor.shape for tensor in self.tensors]
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            listed = " and ".join(map(str, shapes))
            raise ShapeError(f"the shapes {listed} do not broadcast") from None

    def infer(self: BroadcastTensors[TensorSpec]) -> StaticValue:
        shape = self._shape()
        return StaticValue(tuple(TensorSpec(shape, tensor.dtype) for tensor in self.tensors))

    def bind(self: BroadcastTensors[TensorView], b: Binder) -> None:
        shape = self._shape()
        b.static(tuple(tensor.expand(shape) for tensor in self.tensors))


@record("aten::rot90")
class Rot90(Record[T]):
    """The plane of two axes rotated by `k` quarter turns, from the first axis to the second.

    Source: torch.rot90.

    Raises
    ------
    ShapeError
        If `dims` is not two axes of the input.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    input: T = Tensor()
    k: int = Int(1)
    dims: tuple[int, ...] = Ints(length=2, default=(0, 1))

    def _axes(self: Rot90[Known]) -> tuple[int, ...]:
        return axes_of(self.dims, self.input.shape, "dims")

    def infer(self: Rot90[TensorSpec]) -> TensorSpec:
        first, second = self._axes()
        shape = list(self.input.shape)
        if self.k % 2:
            shape[first], shape[second] = shape[second], shape[first]
        return TensorSpec(shape, self.input.dtype)

    def bind(self: Rot90[TensorView], b: Binder) -> None:
        first, second = self._axes()
        x, quarters = self.input, self.k % 4
        if quarters == 0:
            b.alias(x)
            return
        # One quarter turn reverses the second axis, three reverse the first, two reverse both.
        turned = {1: (second,), 2: (first, second), 3: (first,)}[quarters]
        x = backwards(x, turned)
        if quarters % 2:
            x = x.permute(swapped(x.rank, first, second))
        b.copy(x, b.output())


def _flipped(name: str, axis: int, rank: int) -> None:
    """Register a flip of one axis."""

    class Flipped(Record[T]):
        batch = NoBatchRule("rare: no known export uses it with another batch")
        input: T = Tensor()
        layout = Layout.LIKE

        def infer(self: Flipped[TensorSpec]) -> TensorSpec:
            if self.input.rank < rank:
                raise ShapeError(f"the input has shape {self.input.shape}, expected {rank} axes")
            return TensorSpec(self.input.shape, self.input.dtype)

        def bind(self: Flipped[TensorView], b: Binder) -> None:
            b.copy(backwards(self.input, (axis,)), b.output(layout=self.input))

    Flipped.__name__ = Flipped.__qualname__ = name.title()
    Flipped.__doc__ = f"The elements along axis {axis} in reverse order.\n\nSource: torch.{name}."
    record(f"aten::{name}")(Flipped)


_flipped("fliplr", 1, 2)
_flipped("flipud", 0, 1)


def _joined(name: str, rank: int, before: Sequence[int], axes: tuple[int, int], text: str) -> None:
    """Register a concatenation along an axis that depends on the rank.

    Tensors of a lower rank are extended to `rank` with `before`, see :func:`_extended`.  `axes` are
    the axis for a first tensor of rank 1 or less, and for any other.
    """

    class Joined(Record[T]):
        batch = NoBatchRule("rare: no known export uses it with another batch")
        tensors: tuple[T, ...] = TensorList()

        def shapes(self: Joined[Known]) -> tuple[list[tuple[int, ...]], int]:
            check_tensors(self.tensors)
            shapes = [_extended(tensor.shape, rank, before) for tensor in self.tensors]
            return shapes, axes[self.tensors[0].rank > 1]

        def infer(self: Joined[TensorSpec]) -> Any:
            shapes, axis = self.shapes()
            specs = [TensorSpec(s, t.dtype) for s, t in zip(shapes, self.tensors, strict=True)]
            return Cat(tensors=specs, dim=axis).infer()

        def bind(self: Joined[TensorView], b: Binder) -> None:
            shapes, axis = self.shapes()
            y, start = b.output(), 0
            for tensor, shape in zip(self.tensors, shapes, strict=True):
                target = y.narrow(axis, start, shape[axis])
                start += shape[axis]
                if tensor.dtype != y.dtype:
                    b.python(lambda x, s=shape: x.reshape(s), [tensor], [target])
                else:
                    # Inserting axes of extent 1 is always a view.
                    b.copy(tensor.view(shape), target)

    Joined.__name__ = Joined.__qualname__ = name.title().replace("_", "")
    Joined.__doc__ = f"{text}\n\nSource: torch.{name}."
    record(f"aten::{name}")(Joined)


_joined(
    "hstack", 1, (0,), (0, 1), "Tensors side by side: joined along axis 1, vectors along axis 0."
)
_joined("vstack", 2, (0, 1), (0, 0), "Tensors one above the other, vectors as rows.")
_joined("dstack", 3, (0, 1, 0), (2, 2), "Tensors of three axes or fewer joined along axis 2.")
_joined("column_stack", 2, (0, 0), (1, 1), "Tensors side by side, vectors as columns.")


# -- splits ------------------------------------------------------------------------------------


class _Sections(Argument):
    """A number of sections, or a tuple of indices to split at, possibly as a tensor."""

    expected = "an integer or integers"
    is_numeric = True

    def convert(self, value: Any) -> Any:
        if isinstance(value, TensorSpec | TensorView):
            if value.dtype.kind not in "iu" or value.rank > 1:
                raise ValueError
            if not value.is_constant:
                return value
            value = np.asarray(value.constant).tolist()
        if isinstance(value, bool):
            raise ValueError
        if isinstance(value, tuple | list):
            return tuple(operator.index(item) for item in value)
        return operator.index(value)


class _Cut(View[T]):
    """Base of the splits that take sections or indices as one argument.

    Raises
    ------
    ShapeError
        If the input has too few axes, or less than one section is wanted.
    ValuesNeeded
        If the indices are computed while the model runs.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    input: T = Tensor()
    indices_or_sections: Any = field(_Sections)()
    dim: int = Int(0)

    def axis(self: _Cut[Known]) -> int:
        return axis_of(self.dim, self.input.shape)

    def _cut(self: _Cut[Any]) -> TensorSplit[Any]:
        axis, wanted = self.axis(), self.indices_or_sections
        if isinstance(wanted, TensorSpec):
            raise ValuesNeeded("the split indices are computed while the model runs", [wanted])
        whole = isinstance(wanted, int)
        if whole and wanted < 1:
            raise ShapeError(f"'indices_or_sections' is {wanted}, expected 1 or more sections")
        sections, indices = (wanted, None) if whole else (None, wanted)
        return TensorSplit(
            input=self.input, sections=sections, indices=indices, dim=axis, n_outputs=self.n_outputs
        )

    def infer(self: _Cut[TensorSpec]) -> Any:
        return self._cut().infer()

    def bind(self: _Cut[TensorView], b: Binder) -> None:
        self._cut().bind(b)


@record("aten::tensor_split")
class CutAt(_Cut[T]):
    """An axis split into sections, or at indices; both may be computed.

    Source: torch.tensor_split.
    """


def _cut_along(name: str, axis: int, rank: int, text: str) -> None:
    """Register a split whose axis follows from its name."""

    class Cut(_Cut[T]):
        dim = 0

        def axis(self: Cut[Known]) -> int:
            if self.input.rank < rank:
                raise ShapeError(f"the input has shape {self.input.shape}, expected {rank} axes")
            return min(axis, self.input.rank - 1)

    Cut.__name__ = Cut.__qualname__ = name.title()
    Cut.__doc__ = f"{text}\n\nSource: torch.{name}."
    record(f"aten::{name}")(Cut)


_cut_along("hsplit", 1, 1, "Equal sections of axis 1, or of a vector, or splits at indices.")
_cut_along("vsplit", 0, 2, "Equal sections of axis 0, or splits at indices.")
_cut_along("dsplit", 2, 3, "Equal sections of axis 2, or splits at indices.")
