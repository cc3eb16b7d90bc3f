"""Operators that move elements about and compute nothing.

Most are views: another window of the same memory, made while planning, free at run time.  The
others are one strided copy each, in whatever layout the input has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from kuiper._value import TensorSpec, Value
from kuiper.errors import ShapeError
from kuiper.expression.promotion import promote
from kuiper.ops._binder import Binder
from kuiper.ops._record import Record, record
from kuiper.ops._schema import (
    Any_,
    Argument,
    Bool,
    Float,
    Host,
    Int,
    Ints,
    Str,
    Tensor,
    Tensors,
    ValuesNeeded,
)

__all__ = [
    "Cat",
    "ChannelShuffle",
    "Chunk",
    "Expand",
    "ExpandAs",
    "Flatten",
    "Flip",
    "Identity",
    "Narrow",
    "Permute",
    "PixelShuffle",
    "PixelUnshuffle",
    "Repeat",
    "Reshape",
    "ReshapeAs",
    "Roll",
    "Select",
    "Slice",
    "SliceIndexes",
    "Split",
    "Squeeze",
    "Stack",
    "T",
    "TensorSplit",
    "Tile",
    "Transpose",
    "Unbind",
    "Unflatten",
    "Unsqueeze",
]

# How PNNX writes "to the end" and, among selects, "a range, not an index".
OPEN = 2**31 - 1


def axis_of(dim: int, shape: Sequence[int], name: str = "dim") -> int:
    """Return `dim` counted from the front, or raise ShapeError."""
    rank = len(shape)
    if rank == 0:
        raise ShapeError(f"the input is a 0-d tensor, expected it to have an axis for '{name}'")
    if not -rank <= dim < rank:
        raise ShapeError(
            f"'{name}' is {dim}, expected {-rank} to {rank - 1} for an input of shape {shape}"
        )
    return dim % rank


def axes_of(dims: Sequence[int], shape: Sequence[int], name: str = "dim") -> tuple[int, ...]:
    """Return several axes counted from the front; they must differ."""
    axes = tuple(axis_of(dim, shape, name) for dim in dims)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"'{name}' is {tuple(dims)}, which names an axis twice")
    return axes


def split_axis(value: Value, axis: int, extents: Sequence[int]) -> Value:
    """Return the view with one axis cut into several, slowest first."""
    strides = [value.strides[axis] * math.prod(extents[i + 1 :]) for i in range(len(extents))]
    return value.with_layout(
        (*value.shape[:axis], *extents, *value.shape[axis + 1 :]),
        (*value.strides[:axis], *strides, *value.strides[axis + 1 :]),
    )


def reshaped(b: Binder, value: Value, shape: Sequence[int]) -> None:
    """Bind output 0 to `value` in another shape: a view where the strides allow it, else a copy."""
    view = value.reshape(shape)
    if view is not None:
        b.alias(view)
        return
    b.copy(value, b.output().viewed(value.shape))


class View(Record):
    """A record whose output is always a view of its input."""

    layout = "view"


@record("Tensor.reshape", "Tensor.view", "torch.reshape", "aten::view_copy")
class Reshape(View):
    """The same elements, in their order, in another shape.

    One extent may be -1 and is found from the others.  A 0 copies the extent of the same axis, as
    files made from ONNX mean it; PyTorch has no use for a 0 unless the input is empty.
    Source: torch.Tensor.reshape.
    """

    # pnnx names the input of a reshaped attention mask by the mask; see `restore_masks`.
    arguments = (Tensor("input", aliases=("attn_mask", "mask")), Ints("shape"))

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(_resolve_shape(a.shape, a.input), a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        reshaped(b, a.input, _resolve_shape(a.shape, a.input))


def _resolve_shape(wanted: Sequence[int], input: TensorSpec | Value) -> tuple[int, ...]:
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
class ReshapeAs(View):
    """The elements of one tensor in the shape of another.

    Source: torch.Tensor.reshape_as.
    """

    arguments = (Tensor("input"), Tensor("other"))

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        if a.input.size != a.other.size:
            raise ShapeError(
                f"cannot give an input of shape {a.input.shape} the shape {a.other.shape}"
            )
        return TensorSpec(a.other.shape, a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        reshaped(b, a.input, a.other.shape)


@record("torch.flatten", "Tensor.flatten", "nn.Flatten")
class Flatten(View):
    """The axes from `start_dim` to `end_dim`, both included, as one.

    Source: torch.flatten, torch.nn.Flatten.
    """

    # The defaults are the module's; files write both arguments of the function.
    arguments = (Tensor("input"), Int("start_dim", 1), Int("end_dim", -1))

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        shape = a.input.shape or (1,)
        start = axis_of(a.start_dim, shape, "start_dim")
        end = axis_of(a.end_dim, shape, "end_dim")
        if start > end:
            raise ShapeError(
                f"'start_dim' is axis {start} and 'end_dim' axis {end} of an input of shape {shape}"
            )
        return TensorSpec(
            (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]), a.input.dtype
        )

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        reshaped(b, a.input, Flatten.infer(a).shape)


@record("Tensor.unflatten", "torch.unflatten", "nn.Unflatten")
class Unflatten(View):
    """One axis cut into several, of which one may be -1.

    Source: torch.unflatten, torch.nn.Unflatten.
    """

    arguments = (
        Tensor("input"),
        Int("dim"),
        Ints("sizes", default=None),
        Ints("unflattened_size", default=None),
    )

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        axis = axis_of(a.dim, a.input.shape)
        extent = a.input.shape[axis]
        sizes = list((a.sizes if a.sizes is not None else a.unflattened_size) or ())
        known = math.prod(n for n in sizes if n != -1)
        if sizes.count(-1) == 1 and known and extent % known == 0:
            sizes[sizes.index(-1)] = extent // known
        if min(sizes, default=-1) < 0 or math.prod(sizes) != extent:
            raise ShapeError(f"cannot cut axis {axis} of extent {extent} into {tuple(sizes)}")
        shape = (*a.input.shape[:axis], *sizes, *a.input.shape[axis + 1 :])
        return TensorSpec(shape, a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        axis = axis_of(a.dim, a.input.shape)
        shape = Unflatten.infer(a).shape
        b.alias(split_axis(a.input, axis, shape[axis : len(shape) - a.input.rank + axis + 1]))


@record("Tensor.permute", "torch.permute", "aten::permute_copy")
class Permute(View):
    """The axes in another order: axis i of the output is axis ``dims[i]`` of the input.

    Source: torch.permute.
    """

    arguments = (Tensor("input"), Ints("dims"))

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        axes = axes_of(a.dims, a.input.shape, "dims")
        if len(axes) != a.input.rank:
            raise ShapeError(
                f"'dims' is {a.dims}, expected {a.input.rank} axes for shape {a.input.shape}"
            )
        return TensorSpec([a.input.shape[axis] for axis in axes], a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        b.alias(a.input.permute(axes_of(a.dims, a.input.shape, "dims")))


def swapped(rank: int, first: int, second: int) -> list[int]:
    dims = list(range(rank))
    dims[first], dims[second] = second, first
    return dims


@record("torch.transpose", "Tensor.transpose", "aten::transpose_copy")
class Transpose(View):
    """Two axes swapped.

    Source: torch.transpose.
    """

    arguments = (Tensor("input"), Int("dim0"), Int("dim1"))

    @staticmethod
    def _dims(a: SimpleNamespace) -> list[int]:
        shape = a.input.shape or (1,)
        first, second = axis_of(a.dim0, shape, "dim0"), axis_of(a.dim1, shape, "dim1")
        return swapped(a.input.rank, first, second) if a.input.rank else []

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec([a.input.shape[d] for d in Transpose._dims(a)], a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        b.alias(a.input.permute(Transpose._dims(a)))


@record("torch.t", "Tensor.t", "aten::t_copy")
class T(View):
    """A matrix transposed; tensors of fewer axes stay as they are.

    Source: torch.t.
    """

    arguments = (Tensor("input", rank=(0, 1, 2)),)

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(a.input.shape[::-1], a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        b.alias(a.input.permute(range(a.input.rank - 1, -1, -1)))


@record("torch.squeeze", "Tensor.squeeze", "aten::squeeze_copy")
class Squeeze(View):
    """Without the axes `dim` (all, where absent) that have extent 1; others stay.

    Source: torch.squeeze.
    """

    arguments = (Tensor("input"), Ints("dim", default=None, nullable=True))

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        shape = a.input.shape
        gone = set(range(len(shape))) if a.dim is None else set(axes_of(a.dim, shape or (1,)))
        return TensorSpec(
            [n for d, n in enumerate(shape) if n != 1 or d not in gone], a.input.dtype
        )

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        reshaped(b, a.input, Squeeze.infer(a).shape)


@record("torch.unsqueeze", "Tensor.unsqueeze", "aten::unsqueeze_copy")
class Unsqueeze(View):
    """With axes of extent 1 put in, where `dim` counts the axes of the output.

    Source: torch.unsqueeze.
    """

    arguments = (Tensor("input"), Ints("dim"))

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        rank = a.input.rank + len(a.dim)
        axes = axes_of(a.dim, (1,) * rank)
        extents = iter(a.input.shape)
        return TensorSpec([1 if d in axes else next(extents) for d in range(rank)], a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        reshaped(b, a.input, Unsqueeze.infer(a).shape)


# -- repetition --------------------------------------------------------------------------------


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
class Expand(View):
    """Axes of extent 1 repeated without a copy; -1 keeps an axis, axes may be added in front.

    Source: torch.Tensor.expand.
    """

    # pnnx called the argument `shape` until 2022.
    arguments = (
        Tensor("input"),
        Ints("sizes", default=None),
        Bool("implicit", False),
        Ints("shape", default=None),
    )

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        sizes = a.shape if a.sizes is None else a.sizes
        if sizes is None:
            raise ShapeError("argument 'sizes' is missing, expected integers")
        return TensorSpec(_expanded_shape(a.input.shape, sizes), a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        b.alias(a.input.expand(Expand.infer(a).shape))


@record("Tensor.expand_as")
class ExpandAs(View):
    """Axes of extent 1 repeated to the shape of another tensor.

    Source: torch.Tensor.expand_as.
    """

    arguments = (Tensor("input"), Tensor("other"))

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(_expanded_shape(a.input.shape, a.other.shape), a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        b.alias(a.input.expand(a.other.shape))


def _infer_repeat(input: TensorSpec, repeats: Sequence[int]) -> TensorSpec:
    if min(repeats, default=0) < 0:
        raise ShapeError(f"the numbers of repeats are {tuple(repeats)}, expected >= 0")
    shape = (1,) * (len(repeats) - input.rank) + input.shape
    return TensorSpec([n * r for n, r in zip(shape, repeats, strict=True)], input.dtype)


def _bind_repeat(input: Value, repeats: Sequence[int], b: Binder) -> None:
    """Copy with a loop over the repeats beside each axis; the input's stride along it is 0."""
    x = input.viewed((1,) * (len(repeats) - input.rank) + input.shape)
    y = b.output()
    shape, x_strides, y_strides = [], [], []
    for axis, repeat in enumerate(repeats):
        extent = x.shape[axis]
        shape += [repeat, extent]
        x_strides += [0, x.strides[axis]]
        y_strides += [extent * y.strides[axis], y.strides[axis]]
    b.copy(x.with_layout(shape, x_strides), y.with_layout(shape, y_strides))


@record("Tensor.repeat")
class Repeat(Record):
    """The tensor repeated along its axes; `sizes` may be longer than the rank.

    Source: torch.Tensor.repeat.
    """

    arguments = (Tensor("input"), Ints("sizes"))

    @staticmethod
    def infer(a: SimpleNamespace) -> Any:
        if len(a.sizes) < a.input.rank:
            raise ShapeError(
                f"'sizes' is {a.sizes}, expected at least {a.input.rank} integers for an input of "
                f"shape {a.input.shape}"
            )
        return _infer_repeat(a.input, a.sizes)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        _bind_repeat(a.input, a.sizes, b)


@record("torch.tile", "Tensor.tile")
class Tile(Record):
    """The tensor repeated along its axes; `dims` is filled with ones on the left.

    Source: torch.tile.
    """

    arguments = (Tensor("input"), Ints("dims"))

    @staticmethod
    def _repeats(a: SimpleNamespace) -> tuple[int, ...]:
        return (1,) * (a.input.rank - len(a.dims)) + a.dims

    @staticmethod
    def infer(a: SimpleNamespace) -> Any:
        return _infer_repeat(a.input, Tile._repeats(a))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        _bind_repeat(a.input, Tile._repeats(a), b)


# -- joins -------------------------------------------------------------------------------------


def check_tensors(tensors: Any) -> list[Any]:
    """Refuse an empty list and whatever is no tensor."""
    for number, tensor in enumerate(tensors):
        if not isinstance(tensor, TensorSpec | Value):
            raise ShapeError(f"input {number} is {tensor!r}, expected a tensor")
    if not tensors:
        raise ShapeError("it has no inputs, expected one or more tensors")
    return tensors


def _common_dtype(tensors: Any) -> np.dtype:
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = promote(dtype, tensor.dtype)
    return dtype


def is_at(value: Value, place: Value) -> bool:
    return (
        value.buffer is place.buffer and value.offset == place.offset and value.same_layout(place)
    )


@record("torch.cat", "torch.concat")
class Cat(Record):
    """Tensors joined along an axis.

    Inputs whose producers wrote them into the output already cost nothing; the others are copied.
    Source: torch.cat.
    """

    arguments = (Tensors("tensors"), Int("dim", 0))
    layout = "like"

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        tensors = check_tensors(a.tensors)
        # PyTorch lets 1-d tensors without elements stand for "nothing" whatever the others are.
        full = [t for t in tensors if t.shape != (0,)] or tensors[:1]
        axis = axis_of(a.dim, full[0].shape)
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

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        dtype = _common_dtype(a.tensors)
        full = [t for t in a.tensors if t.shape != (0,)] or a.tensors[:1]
        axis = axis_of(a.dim, full[0].shape)
        if any(t.dtype != dtype for t in full):
            b.python(lambda *arrays: np.concatenate(arrays, axis).astype(dtype), full, [b.output()])
            return
        joined = _adjacent(full, axis)
        if joined is not None:
            b.alias(joined)
            return
        y = b.output(layout=next((t for t in full if _is_image(t)), full[0]))
        start = 0
        for x in full:
            place = y.narrow(axis, start, x.shape[axis])
            if not is_at(x, place):
                b.copy(x, place)
            start += x.shape[axis]


def _fits(shape: Sequence[int], other: Sequence[int], axis: int) -> bool:
    return len(shape) == len(other) and all(
        n == m for d, (n, m) in enumerate(zip(shape, other, strict=True)) if d != axis
    )


def _is_image(value: Value) -> bool:
    """Tell whether a value lies channels-last and not in C order as well."""
    return value.is_channels_last and not value.is_contiguous


def _adjacent(values: Sequence[Value], axis: int) -> Value | None:
    """Return one view of values that lie next to each other along an axis, None if they do not."""
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
class Stack(Record):
    """Tensors of one shape joined along a new axis.

    Source: torch.stack.
    """

    arguments = (Tensors("tensors"), Int("dim", 0))

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        tensors = check_tensors(a.tensors)
        shape = tensors[0].shape
        for number, tensor in enumerate(tensors):
            if tensor.shape != shape:
                raise ShapeError(f"input {number} has shape {tensor.shape}, expected {shape}")
        axis = axis_of(a.dim, (*shape, 1))
        return TensorSpec((*shape[:axis], len(tensors), *shape[axis:]), _common_dtype(tensors))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        dtype = _common_dtype(a.tensors)
        axis = axis_of(a.dim, (*a.tensors[0].shape, 1))
        y = b.output()
        if any(t.dtype != dtype for t in a.tensors):
            b.python(lambda *arrays: np.stack(arrays, axis).astype(dtype), a.tensors, [y])
            return
        for number, x in enumerate(a.tensors):
            b.copy(x, y.select(axis, number))


# -- cuts --------------------------------------------------------------------------------------


def _pieces(a: SimpleNamespace, input: Any, lengths: Sequence[int], axis: int) -> Any:
    """Return the specs of consecutive pieces of an axis, as one list where there is one output."""
    shape = input.shape
    specs = [TensorSpec((*shape[:axis], n, *shape[axis + 1 :]), input.dtype) for n in lengths]
    if a.n_outputs == len(specs):
        return tuple(specs)
    if a.n_outputs == 1:
        return Host(tuple(specs))
    raise ShapeError(
        f"axis {axis} of an input of shape {shape} gives {len(specs)} pieces, expected "
        f"{a.n_outputs}, one per output"
    )


def _bind_pieces(
    a: SimpleNamespace, b: Binder, input: Value, lengths: Sequence[int], axis: int
) -> None:
    starts = itertools.accumulate(lengths, initial=0)
    views = [input.narrow(axis, start, n) for start, n in zip(starts, lengths, strict=False)]
    _bind_views(a, b, views)


def _bind_views(a: SimpleNamespace, b: Binder, views: Sequence[Value]) -> None:
    if a.n_outputs != len(views):
        b.host(tuple(views))
        return
    for index, view in enumerate(views):
        b.alias(view, index)


def _equal_pieces(extent: int, length: int) -> list[int]:
    """Return lengths of pieces of one length, of which the last may be shorter."""
    if extent == 0:
        return [0]
    return [min(length, extent - start) for start in range(0, extent, length)]


@record("torch.chunk", "Tensor.chunk", "aten::unsafe_chunk")
class Chunk(View):
    """At most `chunks` pieces of ``ceil(n / chunks)`` places each; the last may be shorter.

    Source: torch.chunk.
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


@record(
    "torch.split",
    "Tensor.split",
    "aten::unsafe_split",
    "aten::unsafe_split_with_sizes",
    "aten::split_copy",
    "aten::split_with_sizes_copy",
)
class Split(View):
    """Pieces of one length, of which the last may be shorter, or pieces of the lengths given.

    Source: torch.split.
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


@record("torch.tensor_split", "Tensor.tensor_split")
class TensorSplit(View):
    """`sections` pieces of which the first ``n % sections`` are one longer, or cuts at `indices`.

    Source: torch.tensor_split.
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
        # Cut points may run backwards or past the end, as those of slices.
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


@record("torch.unbind", "Tensor.unbind", "aten::unbind_copy")
class Unbind(View):
    """One output for each place of an axis, which is dropped.

    Source: torch.unbind.
    """

    arguments = (Tensor("input"), Int("dim", 0))

    @staticmethod
    def infer(a: SimpleNamespace) -> Any:
        axis = axis_of(a.dim, a.input.shape)
        shape = (*a.input.shape[:axis], *a.input.shape[axis + 1 :])
        specs = tuple(TensorSpec(shape, a.input.dtype) for _ in range(a.input.shape[axis]))
        if a.n_outputs == 1 != len(specs):
            return Host(specs)
        if a.n_outputs != len(specs):
            raise ShapeError(f"axis {axis} of {a.input.shape} does not give {a.n_outputs} outputs")
        return specs

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        axis = axis_of(a.dim, a.input.shape)
        _bind_views(a, b, [a.input.select(axis, i) for i in range(a.input.shape[axis])])


@record("Tensor.slice")
class Slice(View):
    """A range of places of an axis, or ranges and single places of several axes.

    ``dim, start, end, step`` is one range.  ``dims, starts, ends, steps, selects`` are several;
    where ``selects[i]`` is not 2147483647 that place is taken and the axis dropped.  All `dims`
    are axes of the input.  Negative bounds count from the end; an end of 2147483647 is the end.
    Source: torch.Tensor.__getitem__, as pnnx merges it.
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
        """Return (axis, range or place) for each axis that is cut."""
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
                cuts.append((axis, _place(select, extent, axis)))
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


def cut_out(value: Value, cuts: Sequence[tuple[Any, ...]]) -> Value:
    """Return the view of some ranges and places; `cuts` are (axis, range or place)."""
    # From the last axis on, so that a dropped one does not shift those that follow.
    for axis, cut in sorted(cuts, key=lambda cut: -cut[0]):
        if isinstance(cut, range):
            value = value.narrow(axis, cut.start if len(cut) else 0, len(cut), cut.step)
        else:
            value = value.select(axis, cut)
    return value


def _place(index: int, extent: int, axis: int) -> int:
    if not -extent <= index < extent:
        raise ShapeError(f"index {index} is out of range for axis {axis} of extent {extent}")
    return index % extent


@record("pnnx.SliceIndexes")
class SliceIndexes(View):
    """A list of integers, some of which are operands: the bounds of a slice.

    Source: pnnx.
    """

    arguments = (Tensors("inputs"), Any_("indexes"))

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
                operand.value if isinstance(operand, Host) else getattr(operand, "constant", None)
            )
            if value is not None and np.size(value) == 1:
                return int(np.asarray(value).item())
            if isinstance(operand, TensorSpec) and operand.size == 1:
                raise ValuesNeeded(f"index {item} is computed while the model runs", [operand])
            raise ShapeError(f"index {item} is {operand!r}, expected a number known while planning")
        raise ShapeError(f"'indexes' holds {item!r}, expected an integer or @k")

    @staticmethod
    def infer(a: SimpleNamespace) -> Host:
        return Host(SliceIndexes._list(a))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        b.host(SliceIndexes._list(a))


@record("Tensor.select", "torch.select", "aten::select_copy")
class Select(View):
    """One place of an axis, which is dropped.

    Source: torch.select.
    """

    arguments = (Tensor("input"), Int("dim"), Int("index"))

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        axis = axis_of(a.dim, a.input.shape)
        _place(a.index, a.input.shape[axis], axis)
        return TensorSpec((*a.input.shape[:axis], *a.input.shape[axis + 1 :]), a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        axis = axis_of(a.dim, a.input.shape)
        b.alias(a.input.select(axis, _place(a.index, a.input.shape[axis], axis)))


@record("torch.narrow", "Tensor.narrow", "aten::narrow_copy")
class Narrow(View):
    """`length` places of an axis from `start` on.

    Source: torch.narrow.
    """

    arguments = (Tensor("input"), Int("dim"), Int("start"), Int("length", minimum=0))

    @staticmethod
    def _start(a: SimpleNamespace) -> tuple[int, int]:
        axis = axis_of(a.dim, a.input.shape)
        extent = a.input.shape[axis]
        start = a.start + extent if a.start < 0 else a.start
        if not 0 <= start <= extent - a.length:
            raise ShapeError(
                f"{a.length} places from {a.start} on do not lie in axis {axis} of extent {extent}"
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


# -- rearrangements that need a copy -----------------------------------------------------------


@record(
    "nn.ChannelShuffle",
    "F.channel_shuffle",
    "torch.channel_shuffle",
    "aten::native_channel_shuffle",
    "aten::channel_shuffle",
)
class ChannelShuffle(Record):
    """Channels dealt out: (groups, c / groups) becomes (c / groups, groups).

    ``y[n, j * groups + i] = x[n, i * (c / groups) + j]``.  Source: torch.nn.ChannelShuffle.
    """

    arguments = (Tensor("input"), Int("groups", minimum=1))
    layout = "like"

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        if a.input.rank < 3 or a.input.shape[1] % a.groups:
            raise ShapeError(
                f"the input has shape {a.input.shape}, expected (n, c, ...) with channels "
                f"divisible by {a.groups} groups"
            )
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        channels = a.input.shape[1]
        x = split_axis(a.input, 1, (a.groups, channels // a.groups))
        y = split_axis(b.output(layout=a.input), 1, (channels // a.groups, a.groups))
        b.copy(x.permute(swapped(x.rank, 1, 2)), y)


@record("nn.PixelShuffle", "F.pixel_shuffle", "torch.pixel_shuffle")
class PixelShuffle(Record):
    """Channels spread over space: (c * r * r, h, w) becomes (c, h * r, w * r).

    Source: torch.nn.PixelShuffle.
    """

    arguments = (Tensor("input"), Int("upscale_factor", minimum=1))
    layout = "like"

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        r = a.upscale_factor
        if a.input.rank < 3 or a.input.shape[-3] % (r * r):
            raise ShapeError(
                f"the input has shape {a.input.shape}, expected (..., c, h, w) with channels "
                f"divisible by {r} * {r}"
            )
        *batch, channels, height, width = a.input.shape
        return TensorSpec((*batch, channels // (r * r), height * r, width * r), a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        r, lead = a.upscale_factor, a.input.rank - 3
        y = b.output(layout=a.input)
        x = split_axis(a.input, lead, (y.shape[lead], r, r))
        # (c, r, r, h, w) -> (c, h, r, w, r)
        order = [*range(lead), *(lead + d for d in (0, 3, 1, 4, 2))]
        b.copy(x.permute(order), _split_pixels(y, r, a.input.shape[-2:]))


@record("nn.PixelUnshuffle", "F.pixel_unshuffle", "torch.pixel_unshuffle")
class PixelUnshuffle(Record):
    """Space gathered into channels: (c, h * r, w * r) becomes (c * r * r, h, w).

    Source: torch.nn.PixelUnshuffle.
    """

    arguments = (Tensor("input"), Int("downscale_factor", minimum=1))
    layout = "like"

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        r = a.downscale_factor
        if a.input.rank < 3 or a.input.shape[-1] % r or a.input.shape[-2] % r:
            raise ShapeError(
                f"the input has shape {a.input.shape}, expected (..., c, h, w) with height and "
                f"width divisible by {r}"
            )
        *batch, channels, height, width = a.input.shape
        return TensorSpec((*batch, channels * r * r, height // r, width // r), a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        r, lead = a.downscale_factor, a.input.rank - 3
        y = b.output(layout=a.input)
        x = _split_pixels(a.input, r, y.shape[-2:])
        # (c, h, r, w, r) -> (c, r, r, h, w)
        order = [*range(lead), *(lead + d for d in (0, 2, 4, 1, 3))]
        b.copy(x.permute(order), split_axis(y, lead, (a.input.shape[lead], r, r)))


def _split_pixels(value: Value, r: int, size: Sequence[int]) -> Value:
    """View (..., h * r, w * r) as (..., h, r, w, r)."""
    rank = value.rank
    return split_axis(split_axis(value, rank - 1, (size[1], r)), rank - 2, (size[0], r))


@record("torch.flip", "Tensor.flip")
class Flip(Record):
    """The places of some axes in reverse order.

    Source: torch.flip.
    """

    arguments = (Tensor("input"), Ints("dims"))
    layout = "like"

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        axes_of(a.dims, a.input.shape or (1,), "dims")
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        x = a.input
        x = backwards(x, axes_of(a.dims, x.shape, "dims")) if x.rank else x
        b.copy(x, b.output(layout=a.input))


def backwards(x: Value, axes: Sequence[int]) -> Value:
    """Return the view with the places of some axes in reverse order."""
    for axis in axes if x.size else ():
        x = x.narrow(axis, x.shape[axis] - 1, x.shape[axis], -1)
    return x


@record("torch.roll", "Tensor.roll")
class Roll(Record):
    """Places moved along axes, those pushed out coming back in; without `dims` the tensor as a row.

    Source: torch.roll.
    """

    arguments = (Tensor("input"), Ints("shifts"), Ints("dims", default=None, nullable=True))
    layout = "like"

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        dims = a.dims or ()
        for dim in dims:
            axis_of(dim, a.input.shape, "dims")
        if len(a.shifts) != (len(dims) or 1):
            raise ShapeError(f"'shifts' is {a.shifts}, expected as many as 'dims' {a.dims}")
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        if a.dims:
            x, y = a.input, b.output(layout=a.input)
            shifts = [0] * x.rank  # an axis that is named twice moves by both shifts
            for dim, shift in zip(a.dims, a.shifts, strict=True):
                shifts[axis_of(dim, x.shape)] += shift
        else:
            x, y = (
                b.contiguous(a.input).viewed((a.input.size,)),
                b.output().viewed((a.input.size,)),
            )
            shifts = a.shifts
        if x.size == 0 or x.rank == 0:
            b.copy(x, y)
            return
        # Each axis that moves is cut in two; every combination of pieces is one copy.
        pieces = []
        for axis, shift in enumerate(shifts):
            extent = x.shape[axis]
            shift %= extent
            ends = [(0, shift, extent - shift), (extent - shift, 0, shift)]
            pieces.append([(axis, *end) for end in ends if end[2]])
        for combination in itertools.product(*pieces):
            source, target = x, y
            for axis, source_start, target_start, length in combination:
                source = source.narrow(axis, source_start, length)
                target = target.narrow(axis, target_start, length)
            b.copy(source, target)


# -- nothing at all ----------------------------------------------------------------------------


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
class Identity(View):
    """The input itself: copies nobody can tell from the original, and dropout at inference.

    Source: torch.nn.Dropout in evaluation mode, torch.clone.
    """

    identity = True

    arguments: tuple[Argument, ...] = (
        Tensor("input"),
        Float("p", 0.5),
        Bool("training", False),
        Bool("inplace", False),
        Str("memory_format", default=None),
    )

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(a.input.shape, a.input.dtype, a.input.source)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        b.alias(a.input)
