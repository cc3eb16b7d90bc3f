"""Order: sorting, medians, quantiles, and searches in sorted lines."""

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
from kuiper.ops.core.axes import axis_of, reduced_axes, reduced_shape
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord, NumpyRecord, Overloaded, checked_index
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.rows import MAX_EXTENT, lines_of
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

__all__ = ["ArgSort", "KthValue", "Median", "SearchSorted", "Sort", "TopK"]

FLOAT32 = np.dtype(np.float32)
INT64 = np.dtype(np.int64)


def _sorted_indices(array: np.ndarray, axis: int, descending: bool = False) -> np.ndarray:
    """Return the indices that sort an array stably; NaN counts as the greatest."""
    if array.ndim == 0:
        return np.zeros((), INT64)
    if array.dtype.kind == "b":
        array = array.view(np.uint8)
    if not descending:
        return np.argsort(array, axis=axis, kind="stable")
    # Flip input and result, which keeps the order of equal elements.  Negation would not do:
    # integers overflow, and a negated NaN still comes last.
    order = np.argsort(np.flip(array, axis), axis=axis, kind="stable")
    return array.shape[axis] - 1 - np.flip(order, axis)


def _can_sort(x: TensorView, axis: int) -> bool:
    """Tell whether there is a kernel for a dtype and extent."""
    return x.dtype.name in SORT_DTYPES and x.rank > 0 and x.shape[axis] < MAX_EXTENT


def _sort_lines(
    b: Binder,
    x: TensorView,
    axis: int,
    descending: bool,
    values: TensorView | None,
    indices: TensorView | None,
    k: int | None = None,
) -> None:
    """Add the step that sorts each line along an axis, or finds the first `k` in order."""
    extent = x.shape[axis]
    k = extent if k is None else k
    if x.size == 0 or k == 0:
        return
    lines = b.contiguous(x).view(lines_of(x.shape, axis))
    scratch = b.scratch(sort_bytes(extent, x.dtype))
    b.step(SortStep(lines, values, indices, k, descending, scratch))


class _Sorting(Overloaded[T], KernelRecord[T]):
    """Base of the sorts, which have a second overload with the argument `stable`."""

    batch = "along_axes"
    overloads = (
        schema(input=Tensor(), dim=Int(-1), descending=Bool(False)),
        schema(input=Tensor(), stable=AnyArgument(), dim=Int(-1), descending=Bool(False)),
    )
    input: T
    dim: int
    descending: bool

    def axis(self: _Sorting[Any]) -> int:
        return axis_of(self.dim, self.input.shape or (1,))


@record("aten::sort")
class Sort(_Sorting[T]):
    """The elements along an axis in stable order, and their indices.

    NaN is greater than anything.  Source: torch.sort.
    """

    def result(self: Sort[TensorSpec]) -> Any:
        self.axis()
        return TensorSpec(self.input.shape, self.input.dtype), TensorSpec(self.input.shape, INT64)

    def compute(self: Sort[np.ndarray]) -> Any:
        indices = _sorted_indices(self.input, self.axis(), self.descending)
        if self.input.ndim == 0:
            return self.input, indices
        return np.take_along_axis(self.input, indices, self.axis()), indices

    def steps(self: Sort[TensorView], b: Binder) -> None:
        if _can_sort(self.input, self.axis()):
            indices = b.output(1) if self.n_outputs > 1 else None
            _sort_lines(b, self.input, self.axis(), self.descending, b.output(0), indices)
        else:
            self.in_numpy(b)


@record("aten::argsort")
class ArgSort(_Sorting[T]):
    """The indices that sort the elements along an axis stably.

    Source: torch.argsort.
    """

    def result(self: ArgSort[TensorSpec]) -> TensorSpec:
        self.axis()
        return TensorSpec(self.input.shape, INT64)

    def compute(self: ArgSort[np.ndarray]) -> Any:
        return _sorted_indices(self.input, self.axis(), self.descending)

    def steps(self: ArgSort[TensorView], b: Binder) -> None:
        if _can_sort(self.input, self.axis()):
            _sort_lines(b, self.input, self.axis(), self.descending, None, b.output())
        else:
            self.in_numpy(b)


@record("aten::msort")
class MSort(KernelRecord[T]):
    """The elements along the first axis in order.

    Source: torch.msort.
    """

    batch = NoBatchRule("it sorts along the first axis, across the members")
    input: T = Tensor()

    def compute(self: MSort[np.ndarray]) -> Any:
        return np.sort(self.input, axis=0, kind="stable") if self.input.ndim else self.input

    def steps(self: MSort[TensorView], b: Binder) -> None:
        if _can_sort(self.input, 0):
            _sort_lines(b, self.input, 0, False, b.output(), None)
        else:
            self.in_numpy(b)


@record("torch.topk")
class TopK(Record[T]):
    """The `k` largest or smallest elements along an axis, in order, and their indices.

    Source: torch.topk.
    """

    batch = "along_axes"
    input: T = Tensor()
    k: int = Int(minimum=0)
    dim: int = Int(-1)
    largest: bool = Bool(True)
    sorted: bool = Bool(True)

    def infer(self: TopK[TensorSpec]) -> Any:
        extents = self.input.shape or (1,)
        axis = axis_of(self.dim, extents)
        if self.k > extents[axis]:
            raise ShapeError(
                f"'k' is {self.k}, expected at most {extents[axis]}, the extent of axis {axis} "
                f"of an input of shape {self.input.shape}"
            )
        shape = (*extents[:axis], self.k, *extents[axis + 1 :]) if self.input.rank else ()
        return TensorSpec(shape, self.input.dtype), TensorSpec(shape, np.int64)

    def bind(self: TopK[TensorView], b: Binder) -> None:
        if self.input.rank == 0:
            # PyTorch returns the only element, even if k is 0.
            b.alias(self.input)
            if self.n_outputs > 1:
                b.alias(b.constant(np.zeros((), np.int64)), 1)
            return
        axis = axis_of(self.dim, self.input.shape)
        if _can_sort(self.input, axis):
            indices = b.output(1) if self.n_outputs > 1 else None
            _sort_lines(b, self.input, axis, self.largest, b.output(0), indices, self.k)
            return

        def topk(array: Any) -> Any:
            order = _sorted_indices(array, axis, self.largest)
            indices = np.take(order, np.arange(self.k), axis=axis)
            return np.take_along_axis(array, indices, axis=axis), indices

        outputs = [b.output(index) for index in range(self.n_outputs)]
        b.python(lambda array: topk(array)[: self.n_outputs], [self.input], outputs)


# -- one element of the order ------------------------------------------------------------------


class _Ranked(Overloaded[T], KernelRecord[T]):
    """Base of the records that take one element of each sorted line, and its index."""

    batch = "reduction"
    runs_in_numpy = False
    kind: ClassVar[str]  # of the kernel
    input: T
    dim: int | None
    keepdim: bool

    def spec(self: _Ranked[Any], dtype: Any) -> TensorSpec:
        if getattr(self, "dim", None) is None:
            return TensorSpec((), dtype)
        axes = reduced_axes(self.dim, self.input.shape)
        return TensorSpec(reduced_shape(self.input.shape, axes, self.keepdim), dtype)

    def extent(self: _Ranked[TensorSpec]) -> int:
        """Return the length of the lines, 1 for a 0-d tensor."""
        axes = reduced_axes(getattr(self, "dim", None), self.input.shape)
        return math.prod(self.input.shape[d] for d in axes)

    def result(self: _Ranked[TensorSpec]) -> Any:
        dim = getattr(self, "dim", None)
        # PyTorch's median of an empty float tensor is NaN.
        if self.extent() == 0 and (dim is not None or self.input.dtype.kind != "f"):
            raise ShapeError(f"the input has shape {self.input.shape}, nothing to take")
        values = self.spec(self.input.dtype)
        return values if dim is None else (values, self.spec(INT64))

    def rank(self: _Ranked[Any], line: np.ndarray) -> np.ndarray:
        """Return for each line along the last axis the rank of the element to take."""
        raise NotImplementedError

    def compute(self: _Ranked[np.ndarray]) -> Any:
        dim: Any = getattr(self, "dim", None)
        x = self.input
        whole = dim is None
        if whole and x.size == 0:
            return np.full((), np.nan, x.dtype)
        x = x.reshape(-1) if whole or not x.ndim else np.moveaxis(x, dim, -1)
        rank = self.rank(x)[..., np.newaxis]
        indices = np.take_along_axis(_sorted_indices(x, -1), rank, -1)
        values, shape = np.take_along_axis(x, indices, -1), self.spec(INT64).shape
        return values.reshape(shape) if whole else (values.reshape(shape), indices.reshape(shape))

    def steps(self: _Ranked[TensorView], b: Binder) -> None:
        dim = getattr(self, "dim", None)
        x = b.contiguous(self.input)
        x = x.view((x.size,)) if dim is None or not x.rank else x
        axis = 0 if dim is None else axis_of(dim, x.shape)
        if not _can_sort(x, axis):
            self.in_numpy(b)
            return
        values, indices = b.output(), b.output(1) if self.n_outputs > 1 else None
        if x.size == 0:
            if values.size:
                b.step(FillStep(values, math.nan))
            return
        lines = x.view(lines_of(x.shape, axis))
        scratch = b.scratch(sort_bytes(x.shape[axis], x.dtype))
        b.step(RankStep(lines, values, indices, self.kind, getattr(self, "k", 0), scratch))


_BY_AXIS = schema(input=Tensor(), dim=Int(), keepdim=Bool(False))


@record("aten::median")
class Median(_Ranked[T]):
    """The median, the lower of two, and along an axis its index; NaN if any element is NaN.

    Source: torch.median.
    """

    overloads = (_BY_AXIS, schema(input=Tensor()))
    kind = "median"

    def rank(self: Median[Known], line: Any) -> Any:
        middle = np.full(line.shape[:-1], (line.shape[-1] - 1) // 2)
        if line.dtype.kind != "f":
            return middle
        # NaN sorts last: take the first one of a line that has any.
        nans = np.isnan(line).sum(-1)
        return np.where(nans > 0, line.shape[-1] - nans, middle)


@record("aten::nanmedian")
class NanMedian(Median[T]):
    """The median of the elements that are not NaN, the lower of two, and its index.

    Source: torch.nanmedian.
    """

    kind = "nanmedian"

    def rank(self: NanMedian[Known], line: Any) -> Any:
        count = line.shape[-1] - (np.isnan(line).sum(-1) if line.dtype.kind == "f" else 0)
        return np.maximum(np.broadcast_to(count - 1, line.shape[:-1]), 0) // 2


@record("aten::kthvalue")
class KthValue(_Ranked[T]):
    """The `k`-th smallest element along an axis, and its index.

    Source: torch.kthvalue.
    """

    overloads = (schema(input=Tensor(), k=Int(minimum=1), dim=Int(-1), keepdim=Bool(False)),)
    kind = "kthvalue"
    k: int

    def result(self: KthValue[TensorSpec]) -> Any:
        extent = self.extent()
        if self.k > extent:
            raise ShapeError(
                f"'k' is {self.k}, expected at most {extent}, the extent of axis {self.dim}"
            )
        return super().result()

    def rank(self: KthValue[Known], line: Any) -> Any:
        return np.full(line.shape[:-1], self.k - 1)


@record("aten::mode")
class Mode(_Ranked[T]):
    """The commonest element along an axis, the least of several, and its last index.

    Source: torch.mode.
    """

    overloads = (schema(input=Tensor(), dim=Int(-1), keepdim=Bool(False)),)
    kind = "mode"

    def rank(self: Mode[Known], line: Any) -> Any:
        ordered = np.sort(line, axis=-1, kind="stable")
        indices = np.broadcast_to(np.arange(line.shape[-1]), line.shape)
        starts = np.ones(line.shape, bool)
        starts[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
        first = np.maximum.accumulate(np.where(starts, indices, 0), -1)
        # The element farthest from the start of its run ends the longest run.
        return np.argmax(indices - first, axis=-1)


class _Levels(Argument):
    """Fractions between 0 and 1: a number, or a tensor of rank 0 or 1."""

    expected = "a number or a tensor of rank 0 or 1"

    def convert(self, value: Any) -> Any:
        if hasattr(value, "shape"):
            if len(value.shape) > 1:
                raise ValueError
            return value
        return float(value)


# Ranks are computed in float32, which holds all integers up to this one.
MAX_RANKED = 1 << 24


@record("aten::quantile")
class Quantile(Overloaded[T], KernelRecord[T]):
    """The value below which a fraction `q` of the elements along an axis lies.

    A value between two elements is interpolated.  Source: torch.quantile.
    """

    batch = NoBatchRule("several probabilities give the result another axis")
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
    input: T
    q: T
    dim: int | None
    keepdim: bool
    interpolation: str

    def result(self: Quantile[Any]) -> TensorSpec:
        if self.input.dtype.kind != "f":
            raise ShapeError(f"the input is {self.input.dtype}, expected float32")
        if self.input.size == 0:
            raise ShapeError(f"the input has shape {self.input.shape}, nothing to take")
        shape = self.input.shape or (1,)
        axes = reduced_axes(self.dim, shape)
        extent = math.prod(shape[d] for d in axes)
        if extent > MAX_RANKED:
            raise ShapeError(f"there are {extent} elements to rank, expected at most {MAX_RANKED}")
        levels = self.q.shape if hasattr(self.q, "shape") else ()
        return TensorSpec((*levels, *reduced_shape(shape, axes, self.keepdim)), self.input.dtype)

    def compute(self: Quantile[np.ndarray]) -> Any:
        q = _checked_levels(np.asarray(self.q, self.input.dtype))
        lines = (
            self.input.reshape(1, -1) if self.dim is None else np.moveaxis(self.input, self.dim, -1)
        )
        lines = np.sort(lines.reshape(-1, lines.shape[-1]), -1)
        nans = np.isnan(lines).sum(-1)
        last = (lines.shape[-1] - 1 - (nans if self.skips_nan else 0 * nans)).astype(q.dtype)
        ranks = np.maximum(q.reshape(-1, 1) * last, 0)
        if not self.skips_nan:
            ranks = np.where(nans > 0, last, ranks)
        y = _interpolated(lines, ranks, self.interpolation)
        return y.reshape(tuple(self.result().shape))

    def steps(self: Quantile[TensorView], b: Binder) -> None:
        is_tensor = hasattr(self.q, "shape")
        x = b.contiguous(self.input)
        axis = 0 if self.dim is None or not x.rank else axis_of(self.dim, x.shape)
        x = x.view((x.size,)) if self.dim is None or not x.rank else x
        if (is_tensor and not self.q.is_constant) or x.dtype != FLOAT32 or not _can_sort(x, axis):
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
    """Return the values at ranks (levels, lines) of sorted lines, by PyTorch's formulas."""
    rounding = {"lower": np.floor, "higher": np.ceil, "nearest": np.rint}.get(interpolation)
    ranks = ranks if rounding is None else rounding(ranks)
    line = np.arange(len(lines))
    below = lines[line, np.floor(ranks).astype(INT64)]
    if rounding is not None:
        return below
    above = lines[line, np.ceil(ranks).astype(INT64)]
    weight = np.full_like(ranks, 0.5) if interpolation == "midpoint" else ranks - np.floor(ranks)
    gap = above - below
    return np.where(weight < 0.5, below + weight * gap, above - gap * (1 - weight))


@record("aten::nanquantile")
class NanQuantile(Quantile[T]):
    """The value below which a fraction `q` of the elements that are not NaN lies.

    Source: torch.nanquantile.
    """

    skips_nan: ClassVar[bool] = True


# -- searches in sorted lines ------------------------------------------------------------------


# The dtypes that the kernel searches in, or for.
_SEARCHED = frozenset(("float32", "uint8", "int8", "int16", "int32", "int64"))


def _found(lines: np.ndarray, values: np.ndarray, right: bool) -> np.ndarray:
    return np.searchsorted(lines, values, "right" if right else "left")


class _Searched(KernelRecord[T]):
    """Base of the searches for values in sorted lines."""

    @staticmethod
    def spec(values: Any, out_int32: bool) -> TensorSpec:
        shape = values.shape if hasattr(values, "shape") else ()
        return TensorSpec(shape, np.int32 if out_int32 else INT64)

    @classmethod
    def search(cls, b: Binder, lines: TensorView, values: Any, right: bool) -> bool:
        """Bind output 0 to the indices of values in lines; return False if there is no kernel."""
        if is_number(values):
            values = b.constant(np.asarray(values, INT64 if isinstance(values, int) else FLOAT32))
        kinds = {lines.dtype.kind, values.dtype.kind}
        if not {lines.dtype.name, values.dtype.name} <= _SEARCHED:
            return False
        dtype = FLOAT32 if "f" in kinds else INT64
        if len(kinds) > 1 and lines.dtype != dtype and lines.dtype.itemsize > 2:
            return False  # float32 would round large integers
        y = b.output()
        if y.size:
            x, found = b.contiguous(cast(b, lines, dtype)), b.contiguous(cast(b, values, dtype))
            outer = 1 if lines.rank == 1 else math.prod(lines.shape[:-1])
            shape = (outer, y.size // outer)
            x = x.view((outer, lines.shape[-1]))
            b.step(SearchStep(x, found.view(shape), y.view(shape), right))
        return True


@record("aten::searchsorted")
class SearchSorted(_Searched[T]):
    """The index of each value in a sorted line: before equal elements, or after them if `right`.

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
    """The number of boundaries below each value, or not above it if `right`.

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
    """The number of elements in each of `bins` equal parts of the range from `min` to `max`.

    If both are equal, the range is that of the elements.  Source: torch.histc.
    """

    batch = NoBatchRule("it counts the values of all members")
    input: T = Tensor()
    bins: int = Int(100, minimum=1)
    min: float = Scalar(0)
    max: float = Scalar(0)

    def result(self: Histogram[TensorSpec]) -> TensorSpec:
        if not -math.inf < self.min <= self.max < math.inf:
            raise ShapeError(f"'min' is {self.min}, 'max' is {self.max}, expected a finite range")
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
