"""Order: sorting, medians, and places in what is sorted."""

from __future__ import annotations

import math
from types import SimpleNamespace
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
from kuiper.ops.core.record import NoBatchRule, record
from kuiper.ops.core.rows import lines_of
from kuiper.ops.core.schema import AnyArgument, Argument, Bool, Int, Scalar, Str, Tensor
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


class _Sorting(Overloaded, KernelRecord):
    """Base of the sorts; with the argument `stable` they have one overload more."""

    batch = "along_axes"
    overloads: tuple[tuple[Argument, ...], ...] = (
        (Tensor("input"), Int("dim", -1), Bool("descending", False)),
        (Tensor("input"), AnyArgument("stable"), Int("dim", -1), Bool("descending", False)),
    )

    @staticmethod
    def axis(a: SimpleNamespace) -> int:
        return axis_of(a.dim, a.input.shape or (1,))


@record("aten::sort")
class Sort(_Sorting):
    """The elements along an axis in order, and their places; equal ones keep theirs.

    NaN is greater than anything.  Source: torch.sort.
    """

    @classmethod
    def result(cls, a: SimpleNamespace) -> Any:
        cls.axis(a)
        return TensorSpec(a.input.shape, a.input.dtype), TensorSpec(a.input.shape, INT64)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        places = sorted_places(a.input, cls.axis(a), a.descending)
        return _take(a.input, places, cls.axis(a)), places

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        axis = cls.axis(a)
        if not can_sort(a.input, axis):
            cls.in_numpy(a, b)
            return
        places = b.output(1) if a.n_outputs > 1 else None
        sort_lines(b, a.input, axis, a.input.shape[axis], a.descending, b.output(0), places)


@record("aten::argsort")
class ArgSort(_Sorting):
    """The places of the elements along an axis in order; equal ones keep theirs.

    Source: torch.argsort.
    """

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        cls.axis(a)
        return TensorSpec(a.input.shape, INT64)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        return sorted_places(a.input, cls.axis(a), a.descending)

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        axis = cls.axis(a)
        if can_sort(a.input, axis):
            sort_lines(b, a.input, axis, a.input.shape[axis], a.descending, None, b.output())
        else:
            cls.in_numpy(a, b)


@record("aten::msort")
class MSort(KernelRecord):
    """The elements along the first axis in order.

    Source: torch.msort.
    """

    batch = NoBatchRule("it sorts along the first axis, across the members")
    arguments = (Tensor("input"),)

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.sort(a.input, axis=0, kind="stable") if a.input.ndim else a.input

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        if can_sort(a.input, 0):
            sort_lines(b, a.input, 0, a.input.shape[0], False, b.output(), None)
        else:
            cls.in_numpy(a, b)


# -- one place of the order --------------------------------------------------------------------


def axis_extent(dim: int, shape: tuple[int, ...]) -> int:
    """Return the extent of an axis; a 0-d tensor has one of 1."""
    shape = shape or (1,)
    return shape[axis_of(dim, shape)]


class _Ranked(Overloaded, KernelRecord):
    """Base of what takes one element of each line in order, and tells its place."""

    batch = "reduction"
    runs_in_numpy = False
    kind: ClassVar[str]  # of the kernel

    @staticmethod
    def spec(a: SimpleNamespace, dtype: Any) -> TensorSpec:
        if getattr(a, "dim", None) is None:
            return TensorSpec((), dtype)
        shape = a.input.shape or (1,)
        axis = axis_of(a.dim, shape)
        kept = (*shape[:axis], 1, *shape[axis + 1 :])
        kept = kept if a.keepdim else (*shape[:axis], *shape[axis + 1 :])
        return TensorSpec(kept if a.input.shape else (), dtype)

    @classmethod
    def result(cls, a: SimpleNamespace) -> Any:
        dim = getattr(a, "dim", None)
        taken = a.input.size if dim is None else axis_extent(dim, a.input.shape)
        # Of nothing at all, PyTorch's median is no number.
        if taken == 0 and (dim is not None or a.input.dtype.kind != "f"):
            raise ShapeError(f"the input has shape {a.input.shape}, nothing to take")
        values = cls.spec(a, a.input.dtype)
        if getattr(a, "dim", None) is None:
            return values
        return values, cls.spec(a, INT64)

    @staticmethod
    def rank(a: SimpleNamespace, line: np.ndarray) -> np.ndarray:
        """Return for each line of the last axis which element of its order is taken."""
        raise NotImplementedError

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        whole = getattr(a, "dim", None) is None
        if whole and a.input.size == 0:
            return np.full((), np.nan, a.input.dtype)
        x = a.input.reshape(-1) if whole or not a.input.ndim else np.moveaxis(a.input, a.dim, -1)
        order = sorted_places(x, -1, False)
        rank = cls.rank(a, x)[..., np.newaxis]
        places = np.take_along_axis(order, rank, -1)
        values = np.take_along_axis(x, places, -1)
        if whole:
            return values.reshape(())
        shape = cls.spec(a, INT64).shape
        return values.reshape(shape), places.reshape(shape)

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        dim = getattr(a, "dim", None)
        x = b.contiguous(a.input)
        x = x.view((x.size,)) if dim is None or not x.rank else x
        axis = 0 if dim is None else axis_of(dim, x.shape)
        if not can_sort(x, axis):
            cls.in_numpy(a, b)
            return
        values, places = b.output(), b.output(1) if a.n_outputs > 1 else None
        if x.size == 0:
            if values.size:
                b.step(FillStep(values, math.nan))
            return
        lines = x.view(lines_of(x.shape, axis))
        scratch = b.scratch(sort_bytes(x.shape[axis], x.dtype))
        b.step(RankStep(lines, values, places, cls.kind, getattr(a, "k", 0), scratch))


_BY_AXIS = (Tensor("input"), Int("dim"), Bool("keepdim", False))


@record("aten::median")
class Median(_Ranked):
    """The element in the middle, the lower of two, and along an axis its place; or a NaN.

    Source: torch.median.
    """

    overloads = (_BY_AXIS, (Tensor("input"),))
    kind = "median"

    @staticmethod
    def rank(a: SimpleNamespace, line: Any) -> Any:
        middle = np.full(line.shape[:-1], (line.shape[-1] - 1) // 2)
        if line.dtype.kind != "f":
            return middle
        # NaN is the last of the order, so a line with one has it there first.
        gaps = np.isnan(line).sum(-1)
        return np.where(gaps > 0, line.shape[-1] - gaps, middle)


@record("aten::nanmedian")
class NanMedian(_Ranked):
    """The element in the middle of those that are not NaN, the lower of two, and its place.

    Source: torch.nanmedian.
    """

    overloads = Median.overloads
    kind = "nanmedian"

    @staticmethod
    def rank(a: SimpleNamespace, line: Any) -> Any:
        count = line.shape[-1] - (np.isnan(line).sum(-1) if line.dtype.kind == "f" else 0)
        return np.maximum(np.broadcast_to(count - 1, line.shape[:-1]), 0) // 2


@record("aten::kthvalue")
class KthValue(_Ranked):
    """The `k`-th smallest element along an axis, and its place.

    Source: torch.kthvalue.
    """

    overloads = ((Tensor("input"), Int("k", minimum=1), Int("dim", -1), Bool("keepdim", False)),)
    kind = "kthvalue"

    @classmethod
    def result(cls, a: SimpleNamespace) -> Any:
        extent = axis_extent(a.dim, a.input.shape)
        if a.k > extent:
            raise ShapeError(f"'k' is {a.k}, expected at most {extent}, the extent of axis {a.dim}")
        return super().result(a)

    @staticmethod
    def rank(a: SimpleNamespace, line: Any) -> Any:
        return np.full(line.shape[:-1], a.k - 1)


@record("aten::mode")
class Mode(_Ranked):
    """The commonest element along an axis, the least of several, and its last place.

    Source: torch.mode.
    """

    overloads = ((Tensor("input"), Int("dim", -1), Bool("keepdim", False)),)
    kind = "mode"

    @staticmethod
    def rank(a: SimpleNamespace, line: Any) -> Any:
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
class Quantile(Overloaded, KernelRecord):
    """The value below which the fraction `q` of the elements along an axis lies.

    Between two elements it is interpolated.  Source: torch.quantile.
    """

    batch = NoBatchRule("its result has an axis more where it is for several probabilities")
    overloads = (
        (
            Tensor("input"),
            _Levels("q"),
            Int("dim", None, nullable=True),
            Bool("keepdim", False),
            Str("interpolation", tuple(INTERPOLATIONS), "linear"),
        ),
    )
    runs_in_numpy = False
    skips_nan: ClassVar[bool] = False

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        if a.input.dtype.kind != "f":
            raise ShapeError(f"the input is {a.input.dtype}, expected float32")
        if a.input.size == 0:
            raise ShapeError(f"the input has shape {a.input.shape}, nothing to take")
        shape = a.input.shape or (1,)
        axes = range(len(shape)) if a.dim is None else (axis_of(a.dim, shape),)
        rest = [1 if d in axes else n for d, n in enumerate(shape) if a.keepdim or d not in axes]
        extent = math.prod(shape[d] for d in axes)
        if extent > MAX_RANKED:
            raise ShapeError(f"there are {extent} elements to rank, expected at most {MAX_RANKED}")
        levels = a.q.shape if hasattr(a.q, "shape") else ()
        return TensorSpec((*levels, *rest), a.input.dtype)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        q = _checked_levels(np.asarray(a.q, a.input.dtype))
        lines = a.input.reshape(1, -1) if a.dim is None else np.moveaxis(a.input, a.dim, -1)
        lines = np.sort(lines.reshape(-1, lines.shape[-1]), -1)
        gaps = np.isnan(lines).sum(-1)
        last = (lines.shape[-1] - 1 - (gaps if cls.skips_nan else 0 * gaps)).astype(q.dtype)
        ranks = np.maximum(q.reshape(-1, 1) * last, 0)
        if not cls.skips_nan:
            ranks = np.where(gaps > 0, last, ranks)
        y = _interpolated(lines, ranks, a.interpolation)
        return y.reshape(cls.result(a).shape)

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        is_tensor = hasattr(a.q, "shape")
        x = b.contiguous(a.input)
        axis = 0 if a.dim is None or not x.rank else axis_of(a.dim, x.shape)
        x = x.view((x.size,)) if a.dim is None or not x.rank else x
        if (is_tensor and not a.q.is_constant) or x.dtype != FLOAT32 or not can_sort(x, axis):
            cls.in_numpy(a, b)
            return
        known = np.asarray(a.q.constant if is_tensor else a.q, x.dtype)
        levels = b.constant(np.atleast_1d(_checked_levels(known)))
        y, lines = b.output(), x.view(lines_of(x.shape, axis))
        if y.size:
            scratch = b.scratch(sort_bytes(x.shape[axis], x.dtype))
            b.step(QuantileStep(lines, levels, y, a.interpolation, cls.skips_nan, scratch))


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
class NanQuantile(Quantile):
    """The value below which the fraction `q` of the elements that are not NaN lies.

    Source: torch.nanquantile.
    """

    skips_nan: ClassVar[bool] = True


# -- places in what is sorted ------------------------------------------------------------------


def _found(boundaries: np.ndarray, values: np.ndarray, right: bool) -> np.ndarray:
    return np.searchsorted(boundaries, values, "right" if right else "left")


class _Searched(KernelRecord):
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
class SearchSorted(_Searched):
    """Where in sorted lines the values belong: in front of equal elements, or behind with `right`.

    Source: torch.searchsorted.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (
        Tensor("sorted_sequence"),
        Tensor("values", number=True),
        Bool("out_int32", False),
        Bool("right", False),
        Str("side", ("left", "right"), None),
        Tensor("sorter", optional=True),
    )

    @classmethod
    def result(cls, a: SimpleNamespace) -> Any:
        lines, values = a.sorted_sequence, a.values
        many = lines.rank != 1
        if many and (not hasattr(values, "shape") or values.shape[:-1] != lines.shape[:-1]):
            raise ShapeError(
                f"'values' is {values!r}, expected the same lines as in 'sorted_sequence', "
                f"{lines.shape}"
            )
        if a.sorter is not None and (
            a.sorter.shape != lines.shape or a.sorter.dtype.kind not in "iu"
        ):
            raise ShapeError(f"'sorter' is {a.sorter!r}, expected integers of shape {lines.shape}")
        return cls.spec(values, a.out_int32)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        lines, right = a.sorted_sequence, a.right or a.side == "right"
        if a.sorter is not None:
            lines = np.take_along_axis(lines, checked_index(a.sorter, lines.shape[-1]), -1)
        if lines.ndim == 1:
            return _found(lines, np.asarray(a.values), right)
        values = a.values.reshape(-1, a.values.shape[-1])
        lines = lines.reshape(-1, lines.shape[-1])
        pairs = zip(lines, values, strict=True)
        return np.stack([_found(x, y, right) for x, y in pairs]).reshape(a.values.shape)

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        right = a.right or a.side == "right"
        if a.sorter is not None or not cls.search(b, a.sorted_sequence, a.values, right):
            cls.in_numpy(a, b)


@record("aten::bucketize")
class Bucketize(_Searched):
    """Between which boundaries the values lie: how many are below, or not above with `right`.

    Source: torch.bucketize.
    """

    arguments = (
        Tensor("input", number=True),
        Tensor("boundaries", rank=1),
        Bool("out_int32", False),
        Bool("right", False),
    )

    @classmethod
    def result(cls, a: SimpleNamespace) -> Any:
        return cls.spec(a.input, a.out_int32)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return _found(a.boundaries, np.asarray(a.input), a.right)

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        if not cls.search(b, a.boundaries, a.input, a.right):
            cls.in_numpy(a, b)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        c.require_shared(c.a.boundaries)
        return c.first_batch(c.a.input)


# -- counts ------------------------------------------------------------------------------------


@record("aten::histc")
class Histogram(NumpyRecord):
    """How many elements lie in each of `bins` equal parts of the range from `min` to `max`.

    Where both are equal the range is that of the elements.  Source: torch.histc.
    """

    batch = NoBatchRule("it counts the values of all members")
    arguments = (
        Tensor("input"),
        Int("bins", 100, minimum=1),
        Scalar("min", 0),
        Scalar("max", 0),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        if not -math.inf < a.min <= a.max < math.inf:
            raise ShapeError(f"'min' is {a.min} and 'max' {a.max}, expected a range of numbers")
        return TensorSpec((a.bins,), a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        x, low, high = a.input.astype(np.float64), a.min, a.max
        if low == high and x.size:
            low, high = x.min(), x.max()
        if not np.isfinite([low, high]).all():
            raise ShapeError(f"its elements reach from {low} to {high}, expected finite ones")
        if low == high:
            low, high = low - 1, high + 1
        return np.histogram(x[(x >= low) & (x <= high)], a.bins, (low, high))[0]
