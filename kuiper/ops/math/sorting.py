"""Order: sorting, medians, and places in what is sorted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kuiper._kernels.data.move import FillStep
from kuiper._kernels.data.order import (
    INTERPOLATIONS,
    SORT_DTYPES,
    QuantileStep,
    RankStep,
    SearchStep,
    SortStep,
    sort_bytes,
)
from kuiper.errors import ShapeError
from kuiper.expression.promotion import is_number
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord, NumpyRecord, Overloaded, checked_index
from kuiper.ops.core.record import NoBatchRule, T, record
from kuiper.ops.core.rows import lines_of
from kuiper.ops.core.schema import (
    AnyArgument,
    Argument,
    Bool,
    Int,
    Known,
    Scalar,
    Str,
    Tensor,
    field,
    schema,
)
from kuiper.ops.core.typed import cast

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = [
    "ArgSort",
    "KthValue",
    "Median",
    "SearchSorted",
    "Sort",
    "can_sort",
    "sort_lines",
    "sorted_places",
]

FLOAT32 = np.dtype(np.float32)
INT64 = np.dtype(np.int64)

# What can be searched in, or for.
_SEARCHED = frozenset(("float32", "uint8", "int8", "int16", "int32", "int64"))


def sorted_places(array: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Return the places of the elements in order; equal ones keep theirs, NaN is the greatest."""
    if array.ndim == 0:
        return np.zeros((), INT64)
    if array.dtype.kind == "b":
        array = array.view(np.uint8)
    if not descending:
        return np.argsort(array, axis=axis, kind="stable")
    # Backwards twice, so that equal elements keep their order: negated integers would overflow,
    # and a negated NaN is still the last.
    order = np.argsort(np.flip(array, axis), axis=axis, kind="stable")
    return array.shape[axis] - 1 - np.flip(order, axis)


# Lines are numbered with 32 bits where elements have no more.
MAX_EXTENT = 1 << 31


def can_sort(x: TensorView, axis: int) -> bool:
    """Tell whether there is a kernel for a dtype and extent."""
    return x.dtype.name in SORT_DTYPES and x.rank > 0 and x.shape[axis] < MAX_EXTENT


def sort_lines(
    b: Binder,
    x: TensorView,
    axis: int,
    k: int,
    descending: bool,
    values: TensorView | None,
    places: TensorView | None,
) -> None:
    """Add the step that puts the first k of each line along an axis in order."""
    if x.size == 0 or k == 0:
        return
    extent = x.shape[axis]
    rows = b.contiguous(x).view(lines_of(x.shape, axis))
    b.step(SortStep(rows, values, places, k, descending, b.scratch(sort_bytes(extent, x.dtype))))


def _take(array: np.ndarray, places: np.ndarray, axis: int) -> np.ndarray:
    return np.take_along_axis(array, places, axis) if array.ndim else array


class _Sorting(Overloaded[T], KernelRecord[T]):
    """Base of the sorts; with the argument `stable` they have one overload more."""

    batch = "along_axes"
    overloads = (
        schema(input=Tensor(), dim=Int(-1), descending=Bool(False)),
        schema(input=Tensor(), stable=AnyArgument(), dim=Int(-1), descending=Bool(False)),
    )

    def axis(self: _Sorting[Any]) -> int:
        return axis_of(self.dim, self.input.shape or (1,))


@record("aten::sort")
class Sort(_Sorting[T]):
    """The elements along an axis in order, and their places; equal ones keep theirs.

    NaN is greater than anything.  Source: torch.sort.
    """

    def result(self: Sort[TensorSpec]) -> Any:
        self.axis()
        return TensorSpec(self.input.shape, self.input.dtype), TensorSpec(self.input.shape, INT64)

    def compute(self: Sort[np.ndarray]) -> Any:
        places = sorted_places(self.input, self.axis(), self.descending)
        return _take(self.input, places, self.axis()), places

    def steps(self: Sort[TensorView], b: Binder) -> None:
        axis = self.axis()
        if not can_sort(self.input, axis):
            self.in_numpy(b)
            return
        places = b.output(1) if self.n_outputs > 1 else None
        sort_lines(
            b, self.input, axis, self.input.shape[axis], self.descending, b.output(0), places
        )


@record("aten::argsort")
class ArgSort(_Sorting[T]):
    """The places of the elements along an axis in order; equal ones keep theirs.

    Source: torch.argsort.
    """

    def result(self: ArgSort[TensorSpec]) -> TensorSpec:
        self.axis()
        return TensorSpec(self.input.shape, INT64)

    def compute(self: ArgSort[np.ndarray]) -> Any:
        return sorted_places(self.input, self.axis(), self.descending)

    def steps(self: ArgSort[TensorView], b: Binder) -> None:
        axis = self.axis()
        if can_sort(self.input, axis):
            sort_lines(
                b, self.input, axis, self.input.shape[axis], self.descending, None, b.output()
            )
        else:
            self.in_numpy(b)


@record("aten::msort")
class MSort(KernelRecord[T]):
    """The elements along the first axis in order.

    Source: torch.msort.
    """

    batch = NoBatchRule("it sorts along the first axis, across the members")
    input: T = Tensor()

    def result(self: MSort[TensorSpec]) -> TensorSpec:
        return TensorSpec(self.input.shape, self.input.dtype)

    def compute(self: MSort[np.ndarray]) -> Any:
        return np.sort(self.input, axis=0, kind="stable") if self.input.ndim else self.input

    def steps(self: MSort[TensorView], b: Binder) -> None:
        if can_sort(self.input, 0):
            sort_lines(b, self.input, 0, self.input.shape[0], False, b.output(), None)
        else:
            self.in_numpy(b)


# -- one place of the order --------------------------------------------------------------------


def axis_extent(dim: int, shape: tuple[int, ...]) -> int:
    """Return the extent of an axis; a 0-d tensor has one of 1."""
    shape = shape or (1,)
    return shape[axis_of(dim, shape)]


class _Ranked(Overloaded[T], KernelRecord[T]):
    """Base of what takes one element of each line in order, and tells its place."""

    batch = "reduction"
    runs_in_numpy = False
    kind: ClassVar[str]  # of the kernel

    def spec(self: _Ranked[Any], dtype: Any) -> TensorSpec:
        if getattr(self, "dim", None) is None:
            return TensorSpec((), dtype)
        shape = self.input.shape or (1,)
        axis = axis_of(self.dim, shape)
        kept = (*shape[:axis], 1, *shape[axis + 1 :])
        kept = kept if self.keepdim else (*shape[:axis], *shape[axis + 1 :])
        return TensorSpec(kept if self.input.shape else (), dtype)

    def result(self: _Ranked[TensorSpec]) -> Any:
        dim = getattr(self, "dim", None)
        taken = self.input.size if dim is None else axis_extent(dim, self.input.shape)
        # Of nothing at all, PyTorch's median is no number.
        if taken == 0 and (dim is not None or self.input.dtype.kind != "f"):
            raise ShapeError(f"the input has shape {self.input.shape}, nothing to take")
        values = self.spec(self.input.dtype)
        if getattr(self, "dim", None) is None:
            return values
        return values, self.spec(INT64)

    def rank(self: _Ranked[Any], line: np.ndarray) -> np.ndarray:
        """Return for each line of the last axis which element of its order is taken."""
        raise NotImplementedError

    def compute(self: _Ranked[np.ndarray]) -> Any:
        whole = getattr(self, "dim", None) is None
        if whole and self.input.size == 0:
            return np.full((), np.nan, self.input.dtype)
        x = (
            self.input.reshape(-1)
            if whole or not self.input.ndim
            else np.moveaxis(self.input, self.dim, -1)
        )
        order = sorted_places(x, -1, False)
        rank = self.rank(x)[..., np.newaxis]
        places = np.take_along_axis(order, rank, -1)
        values = np.take_along_axis(x, places, -1)
        if whole:
            return values.reshape(())
        shape = self.spec(INT64).shape
        return values.reshape(shape), places.reshape(shape)

    def steps(self: _Ranked[TensorView], b: Binder) -> None:
        dim = getattr(self, "dim", None)
        x = b.contiguous(self.input)
        x = x.view((x.size,)) if dim is None or not x.rank else x
        axis = 0 if dim is None else axis_of(dim, x.shape)
        if not can_sort(x, axis):
            self.in_numpy(b)
            return
        values, places = b.output(), b.output(1) if self.n_outputs > 1 else None
        if x.size == 0:
            if values.size:
                b.step(FillStep(values, math.nan))
            return
        lines = x.view(lines_of(x.shape, axis))
        scratch = b.scratch(sort_bytes(x.shape[axis], x.dtype))
        b.step(RankStep(lines, values, places, self.kind, getattr(self, "k", 0), scratch))


_BY_AXIS = schema(input=Tensor(), dim=Int(), keepdim=Bool(False))


@record("aten::median")
class Median(_Ranked[T]):
    """The element in the middle, the lower of two, and along an axis its place; or a NaN.

    Source: torch.median.
    """

    overloads = (_BY_AXIS, schema(input=Tensor()))
    kind = "median"

    def rank(self: Median[Known], line: Any) -> Any:
        middle = np.full(line.shape[:-1], (line.shape[-1] - 1) // 2)
        if line.dtype.kind != "f":
            return middle
        # NaN is the last of the order, so a line with one has it there first.
        gaps = np.isnan(line).sum(-1)
        return np.where(gaps > 0, line.shape[-1] - gaps, middle)


@record("aten::nanmedian")
class NanMedian(_Ranked[T]):
    """The element in the middle of those that are not NaN, the lower of two, and its place.

    Source: torch.nanmedian.
    """

    overloads = Median.overloads
    kind = "nanmedian"

    def rank(self: NanMedian[Known], line: Any) -> Any:
        count = line.shape[-1] - (np.isnan(line).sum(-1) if line.dtype.kind == "f" else 0)
        return np.maximum(np.broadcast_to(count - 1, line.shape[:-1]), 0) // 2


@record("aten::kthvalue")
class KthValue(_Ranked[T]):
    """The `k`-th smallest element along an axis, and its place.

    Source: torch.kthvalue.
    """

    overloads = (schema(input=Tensor(), k=Int(minimum=1), dim=Int(-1), keepdim=Bool(False)),)
    kind = "kthvalue"

    def result(self: KthValue[TensorSpec]) -> Any:
        extent = axis_extent(self.dim, self.input.shape)
        if self.k > extent:
            raise ShapeError(
                f"'k' is {self.k}, expected at most {extent}, the extent of axis {self.dim}"
            )
        return super().result()

    def rank(self: KthValue[Known], line: Any) -> Any:
        return np.full(line.shape[:-1], self.k - 1)


@record("aten::mode")
class Mode(_Ranked[T]):
    """The commonest element along an axis, the least of several, and its last place.

    Source: torch.mode.
    """

    overloads = (schema(input=Tensor(), dim=Int(-1), keepdim=Bool(False)),)
    kind = "mode"

    def rank(self: Mode[Known], line: Any) -> Any:
        ordered = np.sort(line, axis=-1, kind="stable")
        places = np.broadcast_to(np.arange(line.shape[-1]), line.shape)
        starts = np.ones(line.shape, bool)
        starts[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
        first = np.maximum.accumulate(np.where(starts, places, 0), -1)
        # How far each element is from the first of its kind; the farthest ends the longest run.
        return np.argmax(places - first, axis=-1)


class _Levels(Argument):
    """Fractions between 0 and 1: a number, or a tensor of rank 0 or 1."""

    expected = "a number or a tensor of rank 0 or 1"

    def convert(self, value: Any) -> Any:
        if hasattr(value, "shape"):
            if len(value.shape) > 1:
                raise ValueError
            return value
        return float(value)


# Ranks are computed in float32, which has all whole numbers up to here.
MAX_RANKED = 1 << 24


@record("aten::quantile")
class Quantile(Overloaded[T], KernelRecord[T]):
    """The value below which the fraction `q` of the elements along an axis lies.

    Between two elements it is interpolated.  Source: torch.quantile.
    """

    batch = NoBatchRule("its result has an axis more where it is for several probabilities")
    overloads = (
        schema(
            input=Tensor(),
            q=field(_Levels)(),
            dim=Int(None, nullable=True),
            keepdim=Bool(False),
            interpolation=Str(tuple(INTERPOLATIONS), "linear"),
        ),
    )
    runs_in_numpy = False
    skips_nan: ClassVar[bool] = False

    def result(self: Quantile[Any]) -> TensorSpec:
        if self.input.dtype.kind != "f":
            raise ShapeError(f"the input is {self.input.dtype}, expected float32")
        if self.input.size == 0:
            raise ShapeError(f"the input has shape {self.input.shape}, nothing to take")
        shape = self.input.shape or (1,)
        axes = range(len(shape)) if self.dim is None else (axis_of(self.dim, shape),)
        rest = [1 if d in axes else n for d, n in enumerate(shape) if self.keepdim or d not in axes]
        extent = math.prod(shape[d] for d in axes)
        if extent > MAX_RANKED:
            raise ShapeError(f"there are {extent} elements to rank, expected at most {MAX_RANKED}")
        levels = self.q.shape if hasattr(self.q, "shape") else ()
        return TensorSpec((*levels, *rest), self.input.dtype)

    def compute(self: Quantile[np.ndarray]) -> Any:
        q = _checked_levels(np.asarray(self.q, self.input.dtype))
        lines = (
            self.input.reshape(1, -1) if self.dim is None else np.moveaxis(self.input, self.dim, -1)
        )
        lines = np.sort(lines.reshape(-1, lines.shape[-1]), -1)
        gaps = np.isnan(lines).sum(-1)
        last = (lines.shape[-1] - 1 - (gaps if self.skips_nan else 0 * gaps)).astype(q.dtype)
        ranks = np.maximum(q.reshape(-1, 1) * last, 0)
        if not self.skips_nan:
            ranks = np.where(gaps > 0, last, ranks)
        y = _interpolated(lines, ranks, self.interpolation)
        return y.reshape(tuple(self.result().shape))

    def steps(self: Quantile[TensorView], b: Binder) -> None:
        is_tensor = hasattr(self.q, "shape")
        x = b.contiguous(self.input)
        axis = 0 if self.dim is None or not x.rank else axis_of(self.dim, x.shape)
        x = x.view((x.size,)) if self.dim is None or not x.rank else x
        if (is_tensor and not self.q.is_constant) or x.dtype != FLOAT32 or not can_sort(x, axis):
            self.in_numpy(b)
            return
        known = np.asarray(self.q.constant if is_tensor else self.q, x.dtype)
        levels = b.constant(np.atleast_1d(_checked_levels(known)))
        y, lines = b.output(), x.view(lines_of(x.shape, axis))
        if y.size:
            scratch = b.scratch(sort_bytes(x.shape[axis], x.dtype))
            b.step(QuantileStep(lines, levels, y, self.interpolation, self.skips_nan, scratch))


def _checked_levels(q: np.ndarray) -> np.ndarray:
    if not (np.all(q >= 0) and np.all(q <= 1)):
        raise ShapeError(f"'q' is {q.tolist()}, expected fractions between 0 and 1")
    return q


def _interpolated(lines: np.ndarray, ranks: np.ndarray, interpolation: str) -> np.ndarray:
    """Return what ranks (levels, lines) in sorted lines stand for, by PyTorch's formulas."""
    rounding = {"lower": np.floor, "higher": np.ceil, "nearest": np.rint}.get(interpolation)
    ranks = ranks if rounding is None else rounding(ranks)
    places = np.arange(len(lines))
    below = lines[places, np.floor(ranks).astype(INT64)]
    if rounding is not None:
        return below
    above = lines[places, np.ceil(ranks).astype(INT64)]
    weight = np.full_like(ranks, 0.5) if interpolation == "midpoint" else ranks - np.floor(ranks)
    gap = above - below
    return np.where(weight < 0.5, below + weight * gap, above - gap * (1 - weight))


@record("aten::nanquantile")
class NanQuantile(Quantile[T]):
    """The value below which the fraction `q` of the elements that are not NaN lies.

    Source: torch.nanquantile.
    """

    skips_nan: ClassVar[bool] = True


# -- places in what is sorted ------------------------------------------------------------------


def _found(boundaries: np.ndarray, values: np.ndarray, right: bool) -> np.ndarray:
    return np.searchsorted(boundaries, values, "right" if right else "left")


class _Searched(KernelRecord[T]):
    @staticmethod
    def spec(values: Any, out_int32: bool) -> TensorSpec:
        shape = values.shape if hasattr(values, "shape") else ()
        return TensorSpec(shape, np.int32 if out_int32 else INT64)

    @classmethod
    def search(cls, b: Binder, lines: TensorView, values: Any, right: bool) -> bool:
        """Bind output 0 to where values belong in lines, if there is a kernel for their dtypes."""
        if is_number(values):
            values = b.constant(np.asarray(values, INT64 if isinstance(values, int) else FLOAT32))
        kinds = {lines.dtype.kind, values.dtype.kind}
        if not {lines.dtype.name, values.dtype.name} <= _SEARCHED:
            return False
        dtype = FLOAT32 if "f" in kinds else INT64
        if len(kinds) > 1 and lines.dtype != dtype and lines.dtype.itemsize > 2:
            return False  # large integers would be rounded
        y = b.output()
        if y.size:
            x, found = b.contiguous(cast(b, lines, dtype)), b.contiguous(cast(b, values, dtype))
            outer = 1 if lines.rank == 1 else math.prod(lines.shape[:-1])
            shape = (outer, y.size // outer)
            b.step(
                SearchStep(
                    x.view((outer, lines.shape[-1])), found.view(shape), y.view(shape), right
                )
            )
        return True


@record("aten::searchsorted")
class SearchSorted(_Searched[T]):
    """Where in sorted lines the values belong: in front of equal elements, or behind with `right`.

    Source: torch.searchsorted.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    sorted_sequence: T = Tensor()
    values: Any = Tensor(number=True)
    out_int32: bool = Bool(False)
    right: bool = Bool(False)
    side: str | None = Str(("left", "right"), None)
    sorter: T | None = Tensor(optional=True)

    def result(self: SearchSorted[TensorSpec]) -> Any:
        lines, values = self.sorted_sequence, self.values
        many = lines.rank != 1
        if many and (not hasattr(values, "shape") or values.shape[:-1] != lines.shape[:-1]):
            raise ShapeError(
                f"'values' is {values!r}, expected the same lines as in 'sorted_sequence', "
                f"{lines.shape}"
            )
        if self.sorter is not None and (
            self.sorter.shape != lines.shape or self.sorter.dtype.kind not in "iu"
        ):
            raise ShapeError(
                f"'sorter' is {self.sorter!r}, expected integers of shape {lines.shape}"
            )
        return self.spec(values, self.out_int32)

    def compute(self: SearchSorted[np.ndarray]) -> Any:
        lines, right = self.sorted_sequence, self.right or self.side == "right"
        if self.sorter is not None:
            lines = np.take_along_axis(lines, checked_index(self.sorter, lines.shape[-1]), -1)
        if lines.ndim == 1:
            return _found(lines, np.asarray(self.values), right)
        values = self.values.reshape(-1, self.values.shape[-1])
        lines = lines.reshape(-1, lines.shape[-1])
        pairs = zip(lines, values, strict=True)
        return np.stack([_found(x, y, right) for x, y in pairs]).reshape(self.values.shape)

    def steps(self: SearchSorted[TensorView], b: Binder) -> None:
        right = self.right or self.side == "right"
        if self.sorter is not None or not self.search(b, self.sorted_sequence, self.values, right):
            self.in_numpy(b)


@record("aten::bucketize")
class Bucketize(_Searched[T]):
    """Between which boundaries the values lie: how many are below, or not above with `right`.

    Source: torch.bucketize.
    """

    input: Any = Tensor(number=True)
    boundaries: T = Tensor(rank=1)
    out_int32: bool = Bool(False)
    right: bool = Bool(False)

    def result(self: Bucketize[TensorSpec]) -> Any:
        return self.spec(self.input, self.out_int32)

    def compute(self: Bucketize[np.ndarray]) -> Any:
        return _found(self.boundaries, np.asarray(self.input), self.right)

    def steps(self: Bucketize[TensorView], b: Binder) -> None:
        if not self.search(b, self.boundaries, self.input, self.right):
            self.in_numpy(b)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        c.require_shared(c.a.boundaries)
        return c.first_batch(c.a.input)


# -- counts ------------------------------------------------------------------------------------


@record("aten::histc")
class Histogram(NumpyRecord[T]):
    """How many elements lie in each of `bins` equal parts of the range from `min` to `max`.

    Where both are equal the range is that of the elements.  Source: torch.histc.
    """

    batch = NoBatchRule("it counts the values of all members")
    input: T = Tensor()
    bins: int = Int(100, minimum=1)
    min: float = Scalar(0)
    max: float = Scalar(0)

    def result(self: Histogram[TensorSpec]) -> TensorSpec:
        if not -math.inf < self.min <= self.max < math.inf:
            raise ShapeError(
                f"'min' is {self.min} and 'max' {self.max}, expected a range of numbers"
            )
        return TensorSpec((self.bins,), self.input.dtype)

    def compute(self: Histogram[np.ndarray]) -> Any:
        x, low, high = self.input.astype(np.float64), self.min, self.max
        if low == high and x.size:
            low, high = x.min(), x.max()
        if not np.isfinite([low, high]).all():
            raise ShapeError(f"its elements reach from {low} to {high}, expected finite ones")
        if low == high:
            low, high = low - 1, high + 1
        return np.histogram(x[(x >= low) & (x <= high)], self.bins, (low, high))[0]
