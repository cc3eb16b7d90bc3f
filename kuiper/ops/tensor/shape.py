"""Tensors in another shape, or with their axes in another order.

They are views, made while planning and free at run time; a reshape copies if the strides do not
allow a view.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kuiper.errors import ShapeError
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.axes import axes_of, axis_of, split_axis
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import Record, T, record
from kuiper.ops.core.schema import Bool, Float, Int, Ints, Known, Str, Tensor

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = [
    "Flatten",
    "Identity",
    "MatrixTranspose",
    "Permute",
    "Reshape",
    "ReshapeAs",
    "Squeeze",
    "Transpose",
    "Unchanged",
    "Unflatten",
    "Unsqueeze",
    "View",
]


class View(Record[T]):
    """A record whose output is always a view of its input."""

    layout = Layout.VIEW


class Reshaped(View[T]):
    """Base of the records whose output has the input's elements in the same order."""

    input: T = Tensor()

    def bind(self: Reshaped[TensorView], b: Binder) -> None:
        view = self.input.reshape(b.output_spec().shape)
        if view is None:  # the strides do not allow a view
            b.copy(self.input, b.output().view(self.input.shape))
        else:
            b.alias(view)


class Permutation(View[T]):
    """Base of the records whose output is the input with its axes permuted."""

    input: T = Tensor()

    def permutation(self: Permutation[Any]) -> Sequence[int]:
        """Return the input's axes in the order of the output."""
        raise NotImplementedError

    def infer(self: Permutation[TensorSpec]) -> TensorSpec:
        shape = self.input.shape
        return TensorSpec([shape[axis] for axis in self.permutation()], self.input.dtype)

    def bind(self: Permutation[TensorView], b: Binder) -> None:
        b.alias(self.input.permute(self.permutation()))


@record("Tensor.reshape", "Tensor.view", "torch.reshape", "aten::view_copy")
class Reshape(Reshaped[T]):
    """The elements in the same order and another shape.

    An extent of -1 follows from the others.  A 0 copies the extent of the same axis, as in ONNX;
    PyTorch allows a 0 only if the input is empty.
    Source: torch.Tensor.reshape.

    Raises
    ------
    ShapeError
        If `shape` has another number of elements, or more than one -1.
    """

    batch = "reshape"

    # pnnx gives the input of a reshaped attention mask the keyword of the mask.
    input: T = Tensor(aliases=("attn_mask", "mask"))
    shape: tuple[int, ...] = Ints()

    def infer(self: Reshape[TensorSpec]) -> TensorSpec:
        return TensorSpec(_resolve_shape(self.shape, self.input), self.input.dtype)


def _resolve_shape(wanted: Sequence[int], input: TensorSpec) -> tuple[int, ...]:
    """Return the extents that a reshape of `input` to `wanted` gives."""
    shape = list(wanted)
    if input.size > 0:
        for axis, extent in enumerate(shape):
            if extent == 0:
                if axis >= input.rank:
                    raise ShapeError(
                        f"'shape' is {wanted}, but axis {axis} of the input has no extent"
                    )
                shape[axis] = input.shape[axis]
    if shape.count(-1) > 1 or min(shape, default=0) < -1:
        raise ShapeError(f"'shape' is {wanted}, expected extents >= 0 and at most one -1")
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        shape[shape.index(-1)] = input.size // known if known else 0
    if math.prod(shape) != input.size:
        raise ShapeError(
            f"cannot give {input.size} elements of shape {input.shape} the shape {wanted}; "
            "a model exported for one input size keeps that size in its reshapes, export it with "
            "a second inputshape2= to free it"
        )
    return tuple(shape)


@record("Tensor.reshape_as", "Tensor.view_as", "aten::view_as")
class ReshapeAs(Reshaped[T]):
    """The elements of one tensor in the shape of another.

    Source: torch.Tensor.reshape_as.

    Raises
    ------
    ShapeError
        If the other tensor has another number of elements.
    """

    other: T = Tensor()

    def infer(self: ReshapeAs[TensorSpec]) -> TensorSpec:
        if self.input.size != self.other.size:
            raise ShapeError(
                f"cannot give an input of shape {self.input.shape} the shape {self.other.shape}"
            )
        return TensorSpec(self.other.shape, self.input.dtype)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        source, batch = c.first_batch(c.a.input), c.first_batch(c.a.other)
        c.require(batch in c.reshaped_axes(c.a.input, source, c.a.other.shape))
        return batch


@record("torch.flatten", "Tensor.flatten", "nn.Flatten")
class Flatten(Reshaped[T]):
    """The axes from `start_dim` to `end_dim`, both included, merged into one.

    Source: torch.flatten, torch.nn.Flatten.

    Raises
    ------
    ShapeError
        If `start_dim` or `end_dim` is no axis, or they are in the wrong order.
    """

    # The defaults of the module; for the function, files hold both arguments.
    start_dim: int = Int(1)
    end_dim: int = Int(-1)

    def infer(self: Flatten[TensorSpec]) -> TensorSpec:
        shape = self.input.shape or (1,)
        start = axis_of(self.start_dim, shape, "start_dim")
        end = axis_of(self.end_dim, shape, "end_dim")
        if start > end:
            raise ShapeError(
                f"'start_dim' is axis {start} and 'end_dim' axis {end} of an input of shape {shape}"
            )
        return TensorSpec(
            (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]), self.input.dtype
        )

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        batch, shape = c.first_batch(c.a.input), c.a.input.shape
        start, end = c.dim(c.a.start_dim), c.dim(c.a.end_dim)
        if batch.axis < start:
            return batch
        if batch.axis > end:
            return batch._replace(axis=batch.axis - (end - start))
        before = math.prod(shape[start : batch.axis])
        after = math.prod(shape[batch.axis + 1 : end + 1])
        return c.at(start, before * batch.outer, batch.inner * after)


@record("Tensor.unflatten", "torch.unflatten", "nn.Unflatten")
class Unflatten(View[T]):
    """One axis split into several; one extent may be -1.

    Source: torch.unflatten, torch.nn.Unflatten.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or the sizes do not multiply to its extent.
    """

    input: T = Tensor()
    dim: int = Int()
    sizes: tuple[int, ...] | None = Ints(default=None)
    unflattened_size: tuple[int, ...] | None = Ints(default=None)

    def infer(self: Unflatten[Any]) -> TensorSpec:
        axis = axis_of(self.dim, self.input.shape)
        extent = self.input.shape[axis]
        sizes = list((self.sizes if self.sizes is not None else self.unflattened_size) or ())
        known = math.prod(n for n in sizes if n != -1)
        if sizes.count(-1) == 1 and known and extent % known == 0:
            sizes[sizes.index(-1)] = extent // known
        if min(sizes, default=-1) < 0 or math.prod(sizes) != extent:
            raise ShapeError(f"cannot cut axis {axis} of extent {extent} into {tuple(sizes)}")
        shape = (*self.input.shape[:axis], *sizes, *self.input.shape[axis + 1 :])
        return TensorSpec(shape, self.input.dtype)

    def bind(self: Unflatten[TensorView], b: Binder) -> None:
        axis = axis_of(self.dim, self.input.shape)
        shape = self.infer().shape
        b.alias(split_axis(self.input, axis, shape[axis : len(shape) - self.input.rank + axis + 1]))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        batch, axis = c.first_batch(c.a.input), c.dim(c.a.dim)
        c.require(batch.axis != axis)
        added = c.outputs[0].rank - c.a.input.rank
        return batch._replace(axis=batch.axis + (added if axis < batch.axis else 0))


@record("Tensor.permute", "torch.permute", "aten::permute_copy")
class Permute(Permutation[T]):
    """The axes permuted: axis i of the output is axis ``dims[i]`` of the input.

    Source: torch.permute.

    Raises
    ------
    ShapeError
        If `dims` is no permutation of the axes.
    """

    dims: tuple[int, ...] = Ints()

    def permutation(self: Permute[Known]) -> Sequence[int]:
        axes = axes_of(self.dims, self.input.shape, "dims")
        if len(axes) != self.input.rank:
            raise ShapeError(
                f"'dims' is {self.dims}, expected {self.input.rank} axes for shape "
                f"{self.input.shape}"
            )
        return axes

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        batch = c.first_batch(c.a.input)
        return batch._replace(axis=c.dims().index(batch.axis))


def swapped(rank: int, first: int, second: int) -> list[int]:
    dims = list(range(rank))
    dims[first], dims[second] = second, first
    return dims


@record("torch.transpose", "Tensor.transpose", "aten::transpose_copy")
class Transpose(Permutation[T]):
    """Two axes swapped.

    Source: torch.transpose.

    Raises
    ------
    ShapeError
        If `dim0` or `dim1` is no axis of the input.
    """

    dim0: int = Int()
    dim1: int = Int()

    def permutation(self: Transpose[Known]) -> list[int]:
        shape = self.input.shape or (1,)
        first, second = axis_of(self.dim0, shape, "dim0"), axis_of(self.dim1, shape, "dim1")
        return swapped(self.input.rank, first, second) if self.input.rank else []

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        batch = c.first_batch(c.a.input)
        return batch._replace(axis=c.a.permutation().index(batch.axis))


@record("torch.t", "Tensor.t", "aten::t_copy")
class MatrixTranspose(Permutation[T]):
    """A matrix transposed; a tensor with fewer axes is unchanged.

    Source: torch.t.
    """

    input: T = Tensor(rank=(0, 1, 2))

    def permutation(self: MatrixTranspose[Known]) -> Sequence[int]:
        return range(self.input.rank - 1, -1, -1)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        batch = c.first_batch(c.a.input)
        return batch._replace(axis=c.a.input.rank - 1 - batch.axis)


@record("torch.squeeze", "Tensor.squeeze", "aten::squeeze_copy")
class Squeeze(Reshaped[T]):
    """The input without those of the axes `dim` (by default all) that have extent 1.

    Source: torch.squeeze.

    Raises
    ------
    ShapeError
        If `dim` holds a number that is no axis of the input.
    """

    dim: tuple[int, ...] | None = Ints(default=None, nullable=True)

    def infer(self: Squeeze[TensorSpec]) -> TensorSpec:
        shape = self.input.shape
        gone = set(range(len(shape))) if self.dim is None else set(axes_of(self.dim, shape or (1,)))
        return TensorSpec(
            [n for d, n in enumerate(shape) if n != 1 or d not in gone], self.input.dtype
        )

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        batch, axes = c.first_batch(c.a.input), c.dims()
        c.require(batch.axis not in axes)
        gone = sum(axis < batch.axis and c.a.input.shape[axis] == 1 for axis in axes)
        return batch._replace(axis=batch.axis - gone)


@record("torch.unsqueeze", "Tensor.unsqueeze", "aten::unsqueeze_copy")
class Unsqueeze(Reshaped[T]):
    """The input with axes of extent 1 inserted; `dim` counts the axes of the output.

    Source: torch.unsqueeze.

    Raises
    ------
    ShapeError
        If `dim` holds a number that is no axis of the output.
    """

    dim: tuple[int, ...] = Ints()

    def infer(self: Unsqueeze[TensorSpec]) -> TensorSpec:
        rank = self.input.rank + len(self.dim)
        axes = axes_of(self.dim, (1,) * rank)
        extents = iter(self.input.shape)
        return TensorSpec(
            [1 if d in axes else next(extents) for d in range(rank)], self.input.dtype
        )

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        batch, rank = c.first_batch(c.a.input), c.outputs[0].rank
        added = {d % rank for d in c.a.dim}
        return batch._replace(axis=[d for d in range(rank) if d not in added][batch.axis])


class Unchanged(View[T]):
    """Base of the operators whose result is their input."""

    batch = "like_input"
    identity = True
    input: T = Tensor()

    def infer(self: Unchanged[TensorSpec]) -> TensorSpec:
        return TensorSpec(self.input.shape, self.input.dtype, self.input.source)

    def bind(self: Unchanged[TensorView], b: Binder) -> None:
        b.alias(self.input)


@record(
    "nn.Identity",
    "nn.Dropout",
    "nn.Dropout1d",
    "nn.Dropout2d",
    "nn.Dropout3d",
    "nn.AlphaDropout",
    "nn.FeatureAlphaDropout",
    "F.dropout",
    "F.dropout1d",
    "F.dropout2d",
    "F.dropout3d",
    "F.alpha_dropout",
    "F.feature_alpha_dropout",
    "torch.clone",
    "torch.detach",
    "Tensor.clone",
    "Tensor.contiguous",
    "Tensor.detach",
)
class Identity(Unchanged[T]):
    """The input itself: copies of immutable tensors, and dropout at inference.

    Source: torch.nn.Dropout in evaluation mode, torch.clone.
    """

    p: float = Float(0.5)
    training: bool = Bool(False)
    inplace: bool = Bool(False)
    memory_format: str | None = Str(default=None)
