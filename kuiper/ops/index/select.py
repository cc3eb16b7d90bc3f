"""Selection: results whose shape depends on the values of a tensor.

The planner ends a segment before such an operator if its values are computed at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._kernels.spatial import boxes
from kuiper.errors import ShapeError
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.axes import axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import (
    MAX_CONSTANT_BYTES,
    DataDependent,
    NumpyRecord,
    Overloaded,
    broadcast,
)
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.schema import (
    AnyArgument,
    Bool,
    FloatArgument,
    Int,
    Ints,
    StaticValue,
    Tensor,
    TensorArgument,
    ValuesNeeded,
    field,
    schema,
)

if TYPE_CHECKING:
    from typing_extensions import Self

    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["BinCount", "Item", "MaskedSelect", "Nms", "NonZero", "RepeatInterleave", "Unique"]


# -- indices -----------------------------------------------------------------------------------


@record("aten::nonzero", "aten::argwhere")
class NonZero(DataDependent[T]):
    """The indices of the nonzero elements, one per row.

    Source: torch.nonzero, torch.argwhere.
    """

    batch = NoBatchRule("it makes one list of the indices of all members")
    input: T = Tensor()

    def compute(self: NonZero[np.ndarray]) -> Any:
        return np.argwhere(self.input)


@record("aten::nonzero_numpy", "aten::where")
class NonZeroTuple(DataDependent[T]):
    """The indices of the nonzero elements, as one vector per axis.

    Source: torch.nonzero(as_tuple=True), torch.where with one argument.
    """

    batch = NoBatchRule("it makes lists of the indices of all members")
    condition: T = Tensor()

    def infer(self: NonZeroTuple[TensorSpec]) -> StaticValue:
        return StaticValue(super().infer())

    def bind(self: NonZeroTuple[TensorView], b: Binder) -> None:
        found: Any = b.output_spec()  # the StaticValue of `infer`
        b.static(tuple(b.constant(spec.constant) for spec in found.value))

    def compute(self: NonZeroTuple[np.ndarray]) -> Any:
        return np.nonzero(np.atleast_1d(self.condition))


@record("torch.masked_select")
class MaskedSelect(DataDependent[T]):
    """The elements of the input where the mask is true.

    Source: torch.masked_select.
    """

    batch = NoBatchRule("it makes one list of the elements of all members")
    input: T = Tensor()
    mask: T = Tensor()

    def compute(self: MaskedSelect[np.ndarray]) -> Any:
        shape = broadcast(self.input, self.mask)
        return np.broadcast_to(self.input, shape)[np.broadcast_to(self.mask, shape).astype(bool)]


# -- repetition --------------------------------------------------------------------------------


class _Repeats(TensorArgument):
    """A number of repeats, or a tensor with one per element."""

    expected = "an integer >= 0 or a tensor of them"

    def __init__(self) -> None:
        super().__init__(rank=(0, 1))

    def convert(self, value: Any) -> Any:
        if isinstance(value, TensorSpec | TensorView):
            return super().convert(value)
        return Int(minimum=0).convert(value)


@record("torch.repeat_interleave", "Tensor.repeat_interleave")
class RepeatInterleave(NumpyRecord[T]):
    """Each element repeated `repeats` times, along `dim` or of the flattened tensor.

    A tensor of repeats has one number per element.  Source: torch.repeat_interleave.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or `repeats` is not one number >= 0 per element.
    ValuesNeeded
        If `repeats` is computed at run time.
    """

    runs_in_numpy = False  # usually one strided copy
    data_dependent = True
    input: T = Tensor()
    repeats: Any = field(_Repeats)()
    dim: tuple[int, ...] | None = Ints(length=1, default=None, nullable=True)
    output_size: Any = AnyArgument(None)

    def _axis(self: RepeatInterleave[Any]) -> int | None:
        return None if self.dim is None else axis_of(self.dim[0], self.input.shape)

    def result(self: RepeatInterleave[TensorSpec]) -> TensorSpec:
        axis = self._axis()
        shape = list(self.input.shape) if axis is not None else [self.input.size]
        axis = axis or 0
        if isinstance(self.repeats, int):
            shape[axis] *= self.repeats
        else:
            shape[axis] = int(_repeats_of(self.repeats, shape[axis]).sum())
        return TensorSpec(shape, self.input.dtype)

    def bind(self: RepeatInterleave[TensorView], b: Binder) -> None:
        if not isinstance(self.repeats, int) or b.output_spec().constant is not None:
            super().bind(b)
            return
        x, y, axis = self.input, b.output(), self._axis()
        axis = x.rank if axis is None else axis + 1
        shape = (*x.shape[:axis], self.repeats, *x.shape[axis:])
        b.copy(x.with_layout(shape, (*x.strides[:axis], 0, *x.strides[axis:])), y.view(shape))

    def compute(self: RepeatInterleave[np.ndarray]) -> Any:
        return np.repeat(self.input, self.repeats, self._axis())

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        c.require(hasattr(c.a, "input") and c.a.dim is not None)
        batch = c.first_batch(c.a.input)
        if c.dim(c.a.dim[0]) != batch.axis:
            return batch
        c.require(isinstance(c.a.repeats, int))
        return batch._replace(inner=batch.inner * c.a.repeats)


@record("aten::repeat_interleave")
class RepeatedIndices(Overloaded[T], RepeatInterleave[T]):
    """Each index i of the tensor of repeats, ``repeats[i]`` times.

    With an input and `dim` it repeats the input like the record above.
    Source: torch.repeat_interleave with one argument.
    """

    runs_in_numpy = True
    overloads = (
        schema(repeats=Tensor(rank=1), output_size=AnyArgument(None)),
        RepeatInterleave.arguments,
    )

    def read(self) -> Self:
        found = super().read()
        is_tensor = not isinstance(found.repeats, int)
        if hasattr(found, "input") and is_tensor and found.repeats.rank == 0:
            # One number for all elements, usually a constant.
            found.repeats = int(_repeats_of(found.repeats, 1)[0])
        return found

    def result(self: RepeatedIndices[TensorSpec]) -> TensorSpec:
        if hasattr(self, "input"):
            return super().result()
        count = int(_repeats_of(self.repeats, self.repeats.size).sum())
        return TensorSpec((count,), self.repeats.dtype)

    def compute(self: RepeatedIndices[np.ndarray]) -> Any:
        if hasattr(self, "input"):
            return super().compute()
        return np.repeat(np.arange(self.repeats.size), self.repeats)


def _repeats_of(repeats: TensorSpec, extent: int) -> np.ndarray:
    """Return the number of repeats per index of an axis."""
    if repeats.size not in (1, extent):
        raise ShapeError(f"'repeats' has shape {repeats.shape}, expected {extent} numbers")
    if repeats.constant is None:
        raise ValuesNeeded("the shape of its result depends on numbers of repeats")
    numbers = np.broadcast_to(repeats.constant, (extent,))
    least = min(numbers, default=0)
    if repeats.dtype.kind not in "iu" or least < 0:
        raise ShapeError(
            f"'repeats' is {repeats.dtype} with minimum {least}, expected integers >= 0"
        )
    return numbers


# -- unique values -----------------------------------------------------------------------------


NO_INDICES = np.zeros(0, np.int64)


@record("aten::_unique2")
class Unique(DataDependent[T]):
    """The unique values, sorted; the index of each element's value; the counts.

    The second and third output are empty unless requested.  Source: torch.unique.
    """

    batch = NoBatchRule("it collects the values of all members")
    input: T = Tensor()
    sorted: bool = Bool(True)
    return_inverse: bool = Bool(False)
    return_counts: bool = Bool(False)

    def compute(self: Unique[np.ndarray]) -> Any:
        x = self.input
        values, inverse, counts = np.unique(
            x.reshape(-1), return_inverse=True, return_counts=True, equal_nan=False
        )
        return (
            values,
            inverse.reshape(x.shape) if self.return_inverse else NO_INDICES,
            counts if self.return_counts else NO_INDICES,
        )


@record("aten::unique_dim")
class UniqueDim(Unique[T], ahead=True):
    """The unique slices of an axis, sorted; the index of each slice; the counts.

    Source: torch.unique with `dim`.
    """

    input: T = Tensor()
    dim: int = Int()

    def compute(self: UniqueDim[np.ndarray]) -> Any:
        axis = axis_of(self.dim, self.input.shape)
        values, inverse, counts = np.unique(
            self.input, return_inverse=True, return_counts=True, axis=axis, equal_nan=False
        )
        return values, inverse.reshape(-1), counts


@record("aten::unique_consecutive")
class UniqueConsecutive(DataDependent[T]):
    """The values, or slices along `dim`, without those equal to their predecessor.

    The second and third output are the index of each element's value and the counts, empty unless
    requested.  Source: torch.unique_consecutive.
    """

    batch = NoBatchRule("it collects the values of all members")
    input: T = Tensor()
    return_inverse: bool = Bool(False)
    return_counts: bool = Bool(False)
    dim: int | None = Int(None, nullable=True)

    def compute(self: UniqueConsecutive[np.ndarray]) -> Any:
        x = self.input.reshape(-1) if self.dim is None else self.input
        axis = 0 if self.dim is None else axis_of(self.dim, x.shape)
        rows = np.moveaxis(x, axis, 0)
        differs = (rows[1:] != rows[:-1]).any(tuple(range(1, rows.ndim)))
        first = np.concatenate([np.full(min(len(rows), 1), True), differs])
        inverse = np.cumsum(first) - 1
        counts = np.bincount(inverse, minlength=0)
        return (
            np.moveaxis(rows[first], 0, axis),
            inverse.reshape(self.input.shape if self.dim is None else -1)
            if self.return_inverse or self.dim is not None
            else NO_INDICES,
            counts if self.return_counts or self.dim is not None else NO_INDICES,
        )


@record("aten::bincount")
class BinCount(DataDependent[T]):
    """The count of each number, or the sum of its weights.

    Source: torch.bincount.
    """

    batch = NoBatchRule("it counts the values of all members")
    input: T = Tensor(rank=1)
    weights: T | None = Tensor(optional=True)
    minlength: int = Int(0, minimum=0)

    def compute(self: BinCount[np.ndarray]) -> Any:
        if self.input.dtype.kind not in "iu":
            raise ShapeError(f"the input is {self.input.dtype}, expected integers")
        if self.weights is not None and self.weights.dtype.kind == "c":
            raise ShapeError(f"'weights' are {self.weights.dtype}, expected real numbers")
        if self.input.size and self.input.min() < 0:
            raise ShapeError(f"the input holds {self.input.min()}, expected integers >= 0")
        bins = max(int(self.input.max()) + 1 if self.input.size else 0, self.minlength)
        if 8 * bins > MAX_CONSTANT_BYTES:
            raise ShapeError(f"its result would have {bins} elements, more than 2 GiB of them")
        if self.input.size == 0:
            return np.zeros(bins, np.int64)  # even if there are weights
        counts = np.bincount(self.input, self.weights, self.minlength)
        # float32 weights give float32, others float64.
        narrow = self.weights is not None and self.weights.dtype == np.float32
        return counts.astype(np.float32) if narrow else counts


# -- boxes -------------------------------------------------------------------------------------


class _Threshold(FloatArgument):
    aliases = ("arg_2",)


@record("pnnx.custom_op.torchvision.nms", "torchvision::nms", "torchvision.ops.nms")
class Nms(DataDependent[T]):
    """The boxes whose overlap with each better one is at most a threshold, best first.

    A box is (x1, y1, x2, y2); the overlap of two boxes is the area of their intersection over that
    of their union.  Source: torchvision.ops.nms.

    Raises
    ------
    ShapeError
        If there are not four coordinates per score, or they are complex.
    """

    batch = NoBatchRule("boxes of all members suppress each other")
    boxes: T = Tensor(rank=2, aliases=("arg_0", "dets"))
    scores: T = Tensor(rank=1, aliases=("arg_1",))
    iou_threshold: Any = field(_Threshold)()

    def infer(self: Nms[TensorSpec]) -> Any:
        if self.boxes.shape != (self.scores.size, 4):
            raise ShapeError(
                f"'boxes' has shape {self.boxes.shape}, expected {(self.scores.size, 4)} for "
                f"{self.scores.size} scores"
            )
        if "c" in (self.boxes.dtype.kind, self.scores.dtype.kind):
            raise ShapeError("'boxes' or 'scores' are complex numbers, which have no order")
        return super().infer()

    def compute(self: Nms[np.ndarray]) -> Any:
        order = np.argsort(-self.scores, kind="stable")
        dtype = np.float64 if self.boxes.dtype == np.float64 else np.float32
        sorted_boxes = np.ascontiguousarray(self.boxes[order], dtype)
        return order[boxes.suppress(sorted_boxes, self.iou_threshold)]


# -- numbers -----------------------------------------------------------------------------------


@record("aten::item")
class Item(Record[T]):
    """The only element of a tensor, as a number.

    Source: torch.Tensor.item.

    Raises
    ------
    ShapeError
        If the input does not have exactly one element.
    """

    batch = NoBatchRule("it is one number")
    input: T = Tensor()
    layout = Layout.VIEW

    def infer(self: Item[TensorSpec]) -> Any:
        _check_single(self.input)
        if self.input.is_constant:
            return StaticValue(np.asarray(self.input.constant).item())
        return TensorSpec((), self.input.dtype)

    def bind(self: Item[TensorView], b: Binder) -> None:
        b.alias(self.input.view(()))


@record("aten::Float")
class ToFloat(NumpyRecord[T]):
    """The only element of a tensor, as a float.

    Source: TorchScript's ``float(x)``.

    Raises
    ------
    ShapeError
        If the input does not have exactly one element.
    """

    batch = NoBatchRule("it is one number")
    input: T = Tensor()

    def result(self: ToFloat[TensorSpec]) -> TensorSpec:
        _check_single(self.input)
        return TensorSpec((), np.float64)

    def compute(self: ToFloat[np.ndarray]) -> Any:
        return self.input.reshape(())


def _check_single(tensor: TensorSpec) -> None:
    if tensor.size != 1:
        raise ShapeError(f"the input has shape {tensor.shape}, expected one element")
