"""Views and concatenations that PyTorch has further names for."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import axes_of, axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import NoBatchRule, Record, record
from kuiper.ops.core.schema import (
    Argument,
    Int,
    Ints,
    StaticValue,
    Str,
    Tensor,
    TensorList,
    ValuesNeeded,
)
from kuiper.ops.tensor.concat import Cat, check_tensors
from kuiper.ops.tensor.permute import backwards
from kuiper.ops.tensor.shape import View, reshaped, swapped
from kuiper.ops.tensor.slice import TensorSplit

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["AsStrided", "MatrixTranspose", "MeshGrid", "MoveDim", "Rot90", "SlidingWindow"]


@record("aten::movedim", "aten::moveaxis")
class MoveDim(View):
    """Axes moved to other positions; the others keep their order.

    Source: torch.movedim.

    Raises
    ------
    ShapeError
        If `source` and `destination` are not as many axes.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (Tensor("input"), Ints("source"), Ints("destination"))

    @staticmethod
    def _dims(a: SimpleNamespace) -> list[int]:
        shape = a.input.shape or (1,)
        sources = axes_of(a.source, shape, "source")
        targets = axes_of(a.destination, shape, "destination")
        if len(sources) != len(targets):
            raise ShapeError(f"'source' is {a.source} and 'destination' {a.destination}")
        rest = iter([d for d in range(len(shape)) if d not in sources])
        moved = dict(zip(targets, sources, strict=True))
        return [moved[d] if d in moved else next(rest) for d in range(a.input.rank)]

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec([a.input.shape[d] for d in MoveDim._dims(a)], a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        b.alias(a.input.permute(MoveDim._dims(a)))


@record("aten::numpy_T")
class Reversed(View):
    """The axes in reverse order.

    Source: torch.Tensor.T.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (Tensor("input"),)

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(a.input.shape[::-1], a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        b.alias(a.input.permute(range(a.input.rank - 1, -1, -1)))


@record("aten::mT", "aten::mH", "aten::matrix_H", "aten::adjoint")
class MatrixTranspose(View):
    """Real matrices transposed.

    Source: torch.Tensor.mT, torch.Tensor.mH, torch.Tensor.H.

    Raises
    ------
    ShapeError
        If the input has fewer than two axes, or is complex.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (Tensor("input"),)

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        if a.input.rank < 2 or a.input.dtype.kind == "c":
            raise ShapeError(f"the input is {a.input!r}, expected matrices of real numbers")
        return TensorSpec((*a.input.shape[:-2], *a.input.shape[:-3:-1]), a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        rank = a.input.rank
        b.alias(a.input.permute(swapped(rank, rank - 2, rank - 1)))


@record("aten::ravel")
class Ravel(View):
    """The tensor flattened to one axis.

    Source: torch.ravel.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (Tensor("input"),)

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec((a.input.size,), a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        reshaped(b, a.input, (a.input.size,))


def _at_least(name: str, rank: int, positions: Sequence[int]) -> None:
    """Register a view with axes of extent 1 added to tensors of a lower rank."""

    class AtLeast(View):
        batch = NoBatchRule("rare: no known export uses it with another batch")
        arguments = (Tensor("input"),)

        @staticmethod
        def infer(a: SimpleNamespace) -> TensorSpec:
            shape = a.input.shape
            if len(shape) < rank:
                before = positions[len(shape)]
                shape = (1,) * before + shape + (1,) * (rank - before - len(shape))
            return TensorSpec(shape, a.input.dtype)

        @staticmethod
        def bind(a: SimpleNamespace, b: Binder) -> None:
            reshaped(b, a.input, b.output_spec().shape)

    AtLeast.__name__ = AtLeast.__qualname__ = f"AtLeast{rank}D"
    AtLeast.__doc__ = (
        f"The input with axes of extent 1, so that there are {rank} or more.\n\n"
        f"Source: torch.{name}."
    )
    record(f"aten::{name}")(AtLeast)


_at_least("atleast_1d", 1, (0,))
_at_least("atleast_2d", 2, (0, 1))
_at_least("atleast_3d", 3, (0, 1, 0))


@record("aten::unfold", "aten::unfold_copy")
class SlidingWindow(View):
    """Windows of an axis, `step` apart; the elements of a window are a new last axis.

    Source: torch.Tensor.unfold.

    Raises
    ------
    ShapeError
        If `dimension` is no axis, or shorter than `size`.
    """

    arguments = (Tensor("input"), Int("dimension"), Int("size", minimum=0), Int("step", minimum=1))

    @staticmethod
    def _axis(a: SimpleNamespace) -> int:
        axis = axis_of(a.dimension, a.input.shape or (1,), "dimension")
        extent = (a.input.shape or (1,))[axis]
        if a.size > extent:
            raise ShapeError(f"'size' is {a.size}, expected at most {extent}, the axis's extent")
        return axis

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        axis = SlidingWindow._axis(a)
        if a.input.rank == 0:
            return TensorSpec((a.size,), a.input.dtype)
        shape = list(a.input.shape)
        shape[axis] = (shape[axis] - a.size) // a.step + 1
        return TensorSpec((*shape, a.size), a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        spec = b.output_spec()
        if spec.size == 0:
            b.output()
            return
        if a.input.rank == 0:
            b.alias(a.input.reshape((1,)))
            return
        strides = list(a.input.strides)
        axis = SlidingWindow._axis(a)
        strides[axis] *= a.step
        b.alias(a.input.with_layout(spec.shape, (*strides, a.input.strides[axis])))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        batch = c.first_batch(c.a.input)
        c.require(batch.axis != c.dim(c.a.dimension))
        return batch


@record("torch.as_strided", "Tensor.as_strided", "aten::as_strided_copy")
class AsStrided(Record):
    """A view of the contiguous input with explicit sizes, strides and offset.

    Source: torch.as_strided.

    Raises
    ------
    ShapeError
        If `size` and `stride` differ in length, or lead outside the input.
    """

    batch = NoBatchRule("its strides lead to any member")
    arguments = (
        Tensor("input"),
        Ints("size", minimum=0),
        Ints("stride", minimum=0),
        Int("storage_offset", 0, minimum=0, nullable=True),
    )

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        if len(a.size) != len(a.stride):
            raise ShapeError(f"'size' is {a.size} and 'stride' {a.stride}, expected as many")
        pairs = zip(a.size, a.stride, strict=True)
        last = (a.storage_offset or 0) + sum((n - 1) * s for n, s in pairs)
        if 0 not in a.size and last >= a.input.size:
            raise ShapeError(
                f"the last element would be number {last} of an input of {a.input.size} elements"
            )
        return TensorSpec(a.size, a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        if 0 in a.size:
            b.output()
            return
        x = b.contiguous(a.input)
        b.alias(x.with_layout(a.size, a.stride, a.storage_offset or 0))


@record("aten::meshgrid")
class MeshGrid(View):
    """Vectors expanded to one shape, the i-th along axis i; ``xy`` swaps the first two axes.

    Source: torch.meshgrid.

    Raises
    ------
    ShapeError
        If an input is no vector.
    """

    batch = NoBatchRule("it combines all elements")
    arguments = (TensorList("tensors"), Str("indexing", ("ij", "xy"), "ij"))

    @staticmethod
    def _axes(a: SimpleNamespace) -> list[int]:
        """Return the axis of each vector."""
        axes = list(range(len(a.tensors)))
        if a.indexing == "xy" and len(axes) > 1:
            axes[:2] = 1, 0
        return axes

    @staticmethod
    def _shape(a: SimpleNamespace) -> tuple[int, ...]:
        if any(tensor.rank > 1 for tensor in a.tensors):
            raise ShapeError(f"its inputs are {a.tensors}, expected vectors")
        axes = MeshGrid._axes(a)
        return tuple(a.tensors[axes.index(d)].size for d in range(len(axes)))

    @staticmethod
    def infer(a: SimpleNamespace) -> StaticValue:
        shape = MeshGrid._shape(a)
        return StaticValue(tuple(TensorSpec(shape, tensor.dtype) for tensor in a.tensors))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        shape = MeshGrid._shape(a)
        grids = []
        for tensor, axis in zip(a.tensors, MeshGrid._axes(a), strict=True):
            strides = [0] * len(shape)
            strides[axis] = tensor.strides[0] if tensor.rank else 0
            grids.append(tensor.with_layout(shape, strides))
        b.static(tuple(grids))


@record("aten::broadcast_tensors")
class BroadcastTensors(View):
    """Tensors expanded to their common shape.

    Source: torch.broadcast_tensors.

    Raises
    ------
    ShapeError
        If the shapes do not broadcast.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (TensorList("tensors"),)

    @staticmethod
    def _shape(a: SimpleNamespace) -> tuple[int, ...]:
        shapes = [tensor.shape for tensor in a.tensors]
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            listed = " and ".join(map(str, shapes))
            raise ShapeError(f"the shapes {listed} do not broadcast") from None

    @staticmethod
    def infer(a: SimpleNamespace) -> StaticValue:
        shape = BroadcastTensors._shape(a)
        return StaticValue(tuple(TensorSpec(shape, tensor.dtype) for tensor in a.tensors))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        shape = BroadcastTensors._shape(a)
        b.static(tuple(tensor.expand(shape) for tensor in a.tensors))


@record("aten::rot90")
class Rot90(Record):
    """The plane of two axes rotated by `k` quarter turns, from the first axis to the second.

    Source: torch.rot90.

    Raises
    ------
    ShapeError
        If `dims` is not two axes of the input.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (Tensor("input"), Int("k", 1), Ints("dims", length=2, default=(0, 1)))

    @staticmethod
    def _axes(a: SimpleNamespace) -> tuple[int, ...]:
        return axes_of(a.dims, a.input.shape, "dims")

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        first, second = Rot90._axes(a)
        shape = list(a.input.shape)
        if a.k % 2:
            shape[first], shape[second] = shape[second], shape[first]
        return TensorSpec(shape, a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        first, second = Rot90._axes(a)
        x, quarters = a.input, a.k % 4
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

    class Flipped(Record):
        batch = NoBatchRule("rare: no known export uses it with another batch")
        arguments = (Tensor("input"),)
        layout = "like"

        @staticmethod
        def infer(a: SimpleNamespace) -> TensorSpec:
            if a.input.rank < rank:
                raise ShapeError(f"the input has shape {a.input.shape}, expected {rank} axes")
            return TensorSpec(a.input.shape, a.input.dtype)

        @staticmethod
        def bind(a: SimpleNamespace, b: Binder) -> None:
            b.copy(backwards(a.input, (axis,)), b.output(layout=a.input))

    Flipped.__name__ = Flipped.__qualname__ = name.title()
    Flipped.__doc__ = f"The elements along axis {axis} in reverse order.\n\nSource: torch.{name}."
    record(f"aten::{name}")(Flipped)


_flipped("fliplr", 1, 2)
_flipped("flipud", 0, 1)


def _joined(name: str, rank: int, before: Sequence[int], axes: tuple[int, int], text: str) -> None:
    """Register a concatenation along an axis that depends on the rank.

    Tensors of fewer axes than `rank` get axes of extent 1: `before` says for each rank how many of
    them in front.  `axes` are those for what was of rank 1 or less, and for the others.
    """

    class Joined(Record):
        batch = NoBatchRule("rare: no known export uses it with another batch")
        arguments = (TensorList("tensors"),)

        @staticmethod
        def shapes(a: SimpleNamespace) -> tuple[list[tuple[int, ...]], int]:
            check_tensors(a.tensors)
            shapes = []
            for tensor in a.tensors:
                shape, missing = tensor.shape, rank - tensor.rank
                if missing > 0:
                    ahead = before[tensor.rank]
                    shape = (1,) * ahead + shape + (1,) * (missing - ahead)
                shapes.append(shape)
            return shapes, axes[a.tensors[0].rank > 1]

        @staticmethod
        def infer(a: SimpleNamespace) -> Any:
            shapes, axis = Joined.shapes(a)
            specs = [TensorSpec(s, t.dtype) for s, t in zip(shapes, a.tensors, strict=True)]
            return Cat.infer(SimpleNamespace(tensors=specs, dim=axis))

        @staticmethod
        def bind(a: SimpleNamespace, b: Binder) -> None:
            shapes, axis = Joined.shapes(a)
            y, start = b.output(), 0
            for tensor, shape in zip(a.tensors, shapes, strict=True):
                target = y.narrow(axis, start, shape[axis])
                start += shape[axis]
                if tensor.dtype != y.dtype:
                    b.python(lambda x, s=shape: x.reshape(s), [tensor], [target])
                else:
                    # Inserting axes of extent 1 is always a view.
                    b.copy(tensor.reshape(shape), target)

    Joined.__name__ = Joined.__qualname__ = name.title().replace("_", "")
    Joined.__doc__ = f"{text}\n\nSource: torch.{name}."
    record(f"aten::{name}")(Joined)


_joined(
    "hstack", 1, (0,), (0, 1), "Tensors side by side: joined along axis 1, vectors along axis 0."
)
_joined("vstack", 2, (0, 1), (0, 0), "Tensors one above the other, vectors as rows.")
_joined(
    "dstack",
    3,
    (0, 1, 0),
    (2, 2),
    "Tensors of three axes or fewer joined along axis 2.",
)
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


class _Cut(View):
    """Base of the splits that take sections or indices as one argument.

    Raises
    ------
    ShapeError
        If the input has too few axes, or there are fewer than one section.
    ValuesNeeded
        If the indices are computed while the model runs.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments: tuple[Argument, ...] = (
        Tensor("input"),
        _Sections("indices_or_sections"),
        Int("dim", 0),
    )

    @classmethod
    def axis(cls, a: SimpleNamespace) -> int:
        return axis_of(a.dim, a.input.shape)

    @classmethod
    def _cut(cls, a: SimpleNamespace) -> SimpleNamespace:
        axis, wanted = cls.axis(a), a.indices_or_sections
        if isinstance(wanted, TensorSpec):
            raise ValuesNeeded("the split indices are computed while the model runs", [wanted])
        whole = isinstance(wanted, int)
        if whole and wanted < 1:
            raise ShapeError(f"'indices_or_sections' is {wanted}, expected 1 or more sections")
        return SimpleNamespace(
            input=a.input,
            sections=wanted if whole else None,
            indices=None if whole else wanted,
            dim=axis,
            n_outputs=a.n_outputs,
        )

    @classmethod
    def infer(cls, a: SimpleNamespace) -> Any:
        return TensorSplit.infer(cls._cut(a))

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        TensorSplit.bind(cls._cut(a), b)


@record("aten::tensor_split")
class CutAt(_Cut):
    """An axis split into sections, or at indices, that may be computed.

    Source: torch.tensor_split.
    """


def _cut_along(name: str, axis: int, rank: int, text: str) -> None:
    """Register a split whose axis follows from its name."""

    class Cut(_Cut):
        arguments = _Cut.arguments[:2]

        @classmethod
        def axis(cls, a: SimpleNamespace) -> int:
            if a.input.rank < rank:
                raise ShapeError(f"the input has shape {a.input.shape}, expected {rank} axes")
            return min(axis, a.input.rank - 1)

    Cut.__name__ = Cut.__qualname__ = name.title()
    Cut.__doc__ = f"{text}\n\nSource: torch.{name}."
    record(f"aten::{name}")(Cut)


_cut_along("hsplit", 1, 1, "Equal sections of axis 1, or of a vector, or splits at indices.")
_cut_along("vsplit", 0, 2, "Equal sections of axis 0, or splits at indices.")
_cut_along("dsplit", 2, 3, "Equal sections of axis 2, or splits at indices.")
