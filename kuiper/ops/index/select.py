"""Selection: results whose shape depends on the values of a tensor.

A model is cut in front of such an operator wherever the values are computed while it runs.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._kernels.spatial import boxes
from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import (
    MAX_CONSTANT_BYTES,
    DataDependent,
    NumpyRecord,
    Overloaded,
    broadcast,
)
from kuiper.ops.core.record import NoBatchRule, Record, record
from kuiper.ops.core.schema import (
    AnyArgument,
    Bool,
    Float,
    Int,
    Ints,
    StaticValue,
    Tensor,
    ValuesNeeded,
)

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["BinCount", "Item", "MaskedSelect", "Nms", "NonZero", "RepeatInterleave", "Unique"]


# -- indices -----------------------------------------------------------------------------------


@record("aten::nonzero", "aten::argwhere")
class NonZero(DataDependent):
    """The indices of the nonzero elements, one per row.

    Source: torch.nonzero, torch.argwhere.
    """

    batch = NoBatchRule("it makes one list of the indices of all members")
    arguments = (Tensor("input"),)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.argwhere(a.input)


@record("aten::nonzero_numpy", "aten::where")
class NonZeroTuple(DataDependent):
    """The indices of the nonzero elements, as one vector per axis.

    Source: torch.nonzero(as_tuple=True), torch.where with one argument.
    """

    batch = NoBatchRule("it makes lists of the indices of all members")
    arguments = (Tensor("condition"),)

    @classmethod
    def infer(cls, a: SimpleNamespace) -> StaticValue:
        return StaticValue(super().infer(a))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        host: Any = b.output_spec()  # the list of arrays that infer returned
        b.static(tuple(b.constant(spec.constant) for spec in host.value))

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.nonzero(np.atleast_1d(a.condition))


@record("torch.masked_select")
class MaskedSelect(DataDependent):
    """The elements of the input where the mask is true.

    Source: torch.masked_select.
    """

    batch = NoBatchRule("it makes one list of the elements of all members")
    arguments = (Tensor("input"), Tensor("mask"))

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        shape = broadcast(a.input, a.mask)
        return np.broadcast_to(a.input, shape)[np.broadcast_to(a.mask, shape).astype(bool)]


# -- repetition --------------------------------------------------------------------------------


class _Repeats(Tensor):
    """A number of repeats, or a tensor with one per element."""

    expected = "an integer >= 0 or a tensor of them"

    def __init__(self) -> None:
        super().__init__("repeats", rank=(0, 1))

    def convert(self, value: Any) -> Any:
        if isinstance(value, TensorSpec | TensorView):
            return super().convert(value)
        return Int("repeats", minimum=0).convert(value)


@record("torch.repeat_interleave", "Tensor.repeat_interleave")
class RepeatInterleave(NumpyRecord):
    """Each element repeated `repeats` times, along `dim` or of the flattened tensor.

    A tensor of repeats has a number per element.  Source: torch.repeat_interleave.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or `repeats` is not one number >= 0 per element.
    ValuesNeeded
        If `repeats` is computed while the model runs.
    """

    runs_in_numpy = False  # one strided copy, as a rule
    data_dependent = True
    arguments = (
        Tensor("input"),
        _Repeats(),
        Ints("dim", length=1, default=None, nullable=True),
        AnyArgument("output_size", None),
    )

    @staticmethod
    def _axis(a: SimpleNamespace) -> int | None:
        return None if a.dim is None else axis_of(a.dim[0], a.input.shape)

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        axis = cls._axis(a)
        shape = list(a.input.shape) if axis is not None else [a.input.size]
        axis = axis or 0
        if isinstance(a.repeats, int):
            shape[axis] *= a.repeats
        else:
            shape[axis] = int(_repeats_of(a.repeats, shape[axis]).sum())
        return TensorSpec(shape, a.input.dtype)

    @classmethod
    def infer(cls, a: SimpleNamespace) -> Any:
        return cls.result(a) if isinstance(a.repeats, int) else super().infer(a)

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        if not isinstance(a.repeats, int):
            super().bind(a, b)
            return
        x, y, axis = a.input, b.output(), cls._axis(a)
        axis = x.rank if axis is None else axis + 1
        shape = (*x.shape[:axis], a.repeats, *x.shape[axis:])
        b.copy(x.with_layout(shape, (*x.strides[:axis], 0, *x.strides[axis:])), y.view(shape))

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        return np.repeat(a.input, a.repeats, cls._axis(a))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        c.require(hasattr(c.a, "input") and c.a.dim is not None)
        batch = c.first_batch(c.a.input)
        if c.dim(c.a.dim[0]) != batch.axis:
            return batch
        c.require(isinstance(c.a.repeats, int))
        return batch._replace(inner=batch.inner * c.a.repeats)


@record("aten::repeat_interleave")
class RepeatedPlaces(Overloaded):
    """Each index repeated as often as the tensor says there.

    With an input, a tensor of repeats and `dim` it is torch.repeat_interleave.

    Source: torch.repeat_interleave with one argument.
    """

    batch = RepeatInterleave.batch
    data_dependent = True
    overloads = (
        (Tensor("repeats", rank=1), AnyArgument("output_size", None)),
        RepeatInterleave.arguments,
    )

    @classmethod
    def read(cls, a: SimpleNamespace) -> SimpleNamespace:
        a = super().read(a)
        if hasattr(a, "input") and not isinstance(a.repeats, int) and a.repeats.rank == 0:
            # One number for all elements, usually a constant.
            a.repeats = int(_repeats_of(a.repeats, 1)[0])
        return a

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        found = cls.read(a)
        if isinstance(found.repeats, int) and b.output_spec().constant is None:
            RepeatInterleave.bind(found, b)
        else:
            super().bind(a, b)

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        if hasattr(a, "input"):
            return RepeatInterleave.result(a)
        return TensorSpec((int(_repeats_of(a.repeats, a.repeats.size).sum()),), a.repeats.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        if hasattr(a, "input"):
            return RepeatInterleave.compute(a)
        return np.repeat(np.arange(a.repeats.size), a.repeats)


def _repeats_of(repeats: TensorSpec, extent: int) -> np.ndarray:
    """Return the number of repeats per index of an axis."""
    if repeats.size not in (1, extent):
        raise ShapeError(f"'repeats' has shape {repeats.shape}, expected {extent} numbers")
    if repeats.constant is None:
        raise ValuesNeeded("the shape of its result depends on numbers of repeats")
    numbers = np.broadcast_to(repeats.constant, (extent,))
    if repeats.dtype.kind not in "iu" or min(numbers, default=0) < 0:
        raise ShapeError("'repeats' holds something else than integers >= 0")
    return numbers


# -- unique values -----------------------------------------------------------------------------


def _flags(*names: str) -> tuple[Bool, ...]:
    return tuple(Bool(name, False) for name in names)


NO_INDICES = np.zeros(0, np.int64)


@record("aten::_unique2")
class Unique(DataDependent):
    """The unique values, sorted; the index of each element's value; the counts.

    The second and third output are empty unless asked for.  Source: torch.unique.
    """

    batch = NoBatchRule("it collects the values of all members")
    arguments = (Tensor("input"), Bool("sorted", True), *_flags("return_inverse", "return_counts"))

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        x = a.input
        values, inverse, counts = np.unique(
            x.reshape(-1), return_inverse=True, return_counts=True, equal_nan=False
        )
        return (
            values,
            inverse.reshape(x.shape) if a.return_inverse else NO_INDICES,
            counts if a.return_counts else NO_INDICES,
        )


@record("aten::unique_dim")
class UniqueDim(DataDependent):
    """The unique slices of an axis, sorted; the index of each slice; the counts.

    Source: torch.unique with `dim`.
    """

    batch = NoBatchRule("it collects the values of all members")
    arguments = (
        Tensor("input"),
        Int("dim"),
        Bool("sorted", True),
        *_flags("return_inverse", "return_counts"),
    )

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        axis = axis_of(a.dim, a.input.shape)
        values, inverse, counts = np.unique(
            a.input, return_inverse=True, return_counts=True, axis=axis, equal_nan=False
        )
        return values, inverse.reshape(-1), counts


@record("aten::unique_consecutive")
class UniqueConsecutive(DataDependent):
    """The values, or slices along `dim`, without repetitions of their predecessor.

    The second and third output say which of them stands where and how often; they are empty unless
    asked for.  Source: torch.unique_consecutive.
    """

    batch = NoBatchRule("it collects the values of all members")
    arguments = (
        Tensor("input"),
        *_flags("return_inverse", "return_counts"),
        Int("dim", None, nullable=True),
    )

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        x = a.input.reshape(-1) if a.dim is None else a.input
        axis = 0 if a.dim is None else axis_of(a.dim, x.shape)
        rows = np.moveaxis(x, axis, 0)
        differs = (rows[1:] != rows[:-1]).any(tuple(range(1, rows.ndim)))
        first = np.concatenate([np.full(min(len(rows), 1), True), differs])
        inverse = np.cumsum(first) - 1
        counts = np.bincount(inverse, minlength=0)
        return (
            np.moveaxis(rows[first], 0, axis),
            inverse.reshape(a.input.shape if a.dim is None else -1)
            if a.return_inverse or a.dim is not None
            else NO_INDICES,
            counts if a.return_counts or a.dim is not None else NO_INDICES,
        )


@record("aten::bincount")
class BinCount(DataDependent):
    """The count of each number, or the sum of its weights.

    Source: torch.bincount.
    """

    batch = NoBatchRule("it counts the values of all members")
    arguments = (
        Tensor("input", rank=1),
        Tensor("weights", optional=True),
        Int("minlength", 0, minimum=0),
    )

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        if a.input.dtype.kind not in "iu":
            raise ShapeError(f"the input is {a.input.dtype}, expected integers")
        if a.weights is not None and a.weights.dtype.kind == "c":
            raise ShapeError(f"'weights' are {a.weights.dtype}, expected real numbers")
        if a.input.size and a.input.min() < 0:
            raise ShapeError(f"the input holds {a.input.min()}, expected integers >= 0")
        bins = max(int(a.input.max()) + 1 if a.input.size else 0, a.minlength)
        if 8 * bins > MAX_CONSTANT_BYTES:
            raise ShapeError(f"its result would have {bins} elements, more than 2 GiB of them")
        if a.input.size == 0:
            return np.zeros(bins, np.int64)  # also where there are weights
        counts = np.bincount(a.input, a.weights, a.minlength)
        # Weights of float32 give float32, all others float64.
        narrow = a.weights is not None and a.weights.dtype == np.float32
        return counts.astype(np.float32) if narrow else counts


# -- boxes -------------------------------------------------------------------------------------


class _Threshold(Float):
    aliases = ("arg_2",)


@record("pnnx.custom_op.torchvision.nms", "torchvision::nms", "torchvision.ops.nms")
class Nms(DataDependent):
    """The boxes that overlap no better one by more than a threshold, best first.

    A box is (x1, y1, x2, y2); the overlap of two is the area of their intersection over that of
    their union.  Source: torchvision.ops.nms.

    Raises
    ------
    ShapeError
        If there are not four coordinates per score, or they are complex.
    """

    batch = NoBatchRule("boxes of all members suppress each other")
    arguments = (
        Tensor("boxes", rank=2, aliases=("arg_0", "dets")),
        Tensor("scores", rank=1, aliases=("arg_1",)),
        _Threshold("iou_threshold"),
    )

    @classmethod
    def infer(cls, a: SimpleNamespace) -> Any:
        if a.boxes.shape != (a.scores.size, 4):
            raise ShapeError(
                f"'boxes' has shape {a.boxes.shape}, expected {(a.scores.size, 4)} for "
                f"{a.scores.size} scores"
            )
        if "c" in (a.boxes.dtype.kind, a.scores.dtype.kind):
            raise ShapeError("'boxes' or 'scores' are complex numbers, which have no order")
        return super().infer(a)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        order = np.argsort(-a.scores, kind="stable")
        dtype = np.float64 if a.boxes.dtype == np.float64 else np.float32
        sorted_boxes = np.ascontiguousarray(a.boxes[order], dtype)
        return order[boxes.suppress(sorted_boxes, a.iou_threshold)]


# -- numbers -----------------------------------------------------------------------------------


@record("aten::item")
class Item(Record):
    """The only element of a tensor, as a number.

    Source: torch.Tensor.item.

    Raises
    ------
    ShapeError
        If the input does not have exactly one element.
    """

    batch = NoBatchRule("it is one number")
    arguments = (Tensor("input"),)
    layout = "view"

    @staticmethod
    def infer(a: SimpleNamespace) -> Any:
        _check_single(a.input)
        if a.input.is_constant:
            return StaticValue(a.input.constant.item())
        return TensorSpec((), a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        b.alias(a.input.reshape(()))


@record("aten::Float")
class ToFloat(NumpyRecord):
    """The only element of a tensor, as a float.

    Source: TorchScript's ``float(x)``.

    Raises
    ------
    ShapeError
        If the input does not have exactly one element.
    """

    batch = NoBatchRule("it is one number")
    arguments = (Tensor("input"),)

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        _check_single(a.input)
        return TensorSpec((), np.float64)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return a.input.reshape(())


def _check_single(tensor: TensorSpec) -> None:
    if tensor.size != 1:
        raise ShapeError(f"the input has shape {tensor.shape}, expected one element")
