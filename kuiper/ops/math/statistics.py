"""Truth, counts, deviations and scans: reductions that TorchScript's names stand for."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from kuiper._kernels.data.order import (
    RUNNING_DTYPES,
    ExtremeStep,
    LogSumScanStep,
    RunningExtremeStep,
)
from kuiper.errors import ShapeError
from kuiper.expression import Call, Literal, Ref
from kuiper.expression.promotion import result_type
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import axes_of, axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import (
    KernelRecord,
    NumpyRecord,
    Overloaded,
    Schemas,
    broadcast,
    convert,
    deviation,
    mean,
    variance,
)
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.rows import bind_reduction, lines_of
from kuiper.ops.core.schema import Bool, DType, Int, Ints, Known, Scalar, Tensor, schema
from kuiper.ops.core.typed import TypedProgram, has_kernels, write_cast
from kuiper.ops.math.elementwise import bind_tree, write_tree
from kuiper.ops.math.reduce import MAX_EXTENT, Norm, norm_of

__all__ = ["AMinMax", "All", "Any", "CountNonzero", "CumMax", "Deviation", "Diff", "NanSum"]

INT64 = np.dtype(np.int64)


def _axes(a: Record[typing.Any]) -> tuple[int, ...]:
    dim = getattr(a, "dim", None)
    if dim is None or dim == ():
        return tuple(range(len(a.input.shape)))
    if not a.input.shape:
        axes_of(dim if isinstance(dim, tuple) else (dim,), (1,))
        return ()
    return axes_of(dim if isinstance(dim, tuple) else (dim,), a.input.shape)


def _reduced(a: Record[typing.Any], dtype: typing.Any) -> TensorSpec:
    axes, keepdim = _axes(a), getattr(a, "keepdim", False)
    shape = [1 if d in axes else n for d, n in enumerate(a.input.shape) if keepdim or d not in axes]
    return TensorSpec(shape, dtype)


def _is_float32(a: Record[typing.Any], b: Binder) -> bool:
    """Tell whether input and output have kernels, and something to compute."""
    return a.input.dtype == b.output_spec().dtype == np.float32 and a.input.size > 0


# -- truth and counts --------------------------------------------------------------------------


class _Truth(Overloaded[T], KernelRecord[T]):
    batch = "reduction"
    runs_in_numpy = False
    is_min: bool
    overloads = (
        schema(input=Tensor()),
        schema(input=Tensor(), dim=Ints(nullable=True), keepdim=Bool(False)),
    )
    function: Callable[..., typing.Any]

    def result(self: _Truth[TensorSpec]) -> typing.Any:
        # Bytes stay bytes, as they were PyTorch's truth values once.
        return _reduced(self, np.uint8 if self.input.dtype == np.uint8 else np.bool_)

    def compute(self: _Truth[np.ndarray]) -> typing.Any:
        return type(self).function(
            self.input, axis=_axes(self), keepdims=getattr(self, "keepdim", False)
        )

    def steps(self: _Truth[TensorView], b: Binder) -> None:
        x, axes = self.input, _axes(self)
        terms = math.prod(x.shape[d] for d in axes)
        if not has_kernels(x.dtype) or x.size == 0 or x.size >= MAX_EXTENT:
            self.in_numpy(b)
            return
        y = b.output()
        # Of truth values any is the greatest and all the least.
        if x.dtype != np.bool_:
            truth = b.temporary(x.shape, np.bool_)
            program = TypedProgram(b)
            program.call("unequal", x.dtype, program.load(x, x.dtype), program.load(0, x.dtype))
            b.step(program.step(truth))
            x = truth
        rows = b.contiguous(x.permute([*(d for d in range(x.rank) if d not in axes), *axes]))
        b.step(ExtremeStep(rows.view((y.size, terms, 1)), y, None, self.is_min))


@record("aten::any")
class Any(_Truth[T]):
    """Whether any element is not zero.

    Source: torch.any.
    """

    function: Callable[..., typing.Any] = staticmethod(np.any)
    is_min = False


@record("aten::all")
class All(_Truth[T]):
    """Whether no element is zero.

    Source: torch.all.
    """

    function: Callable[..., typing.Any] = staticmethod(np.all)
    is_min = True


@record("aten::count_nonzero")
class CountNonzero(KernelRecord[T]):
    """How many elements are not zero.

    Source: torch.count_nonzero.
    """

    batch = "reduction"
    input: T = Tensor()
    dim: tuple[int, ...] | None = Ints(default=None, nullable=True)

    def result(self: CountNonzero[TensorSpec]) -> typing.Any:
        return _reduced(self, INT64)

    def compute(self: CountNonzero[np.ndarray]) -> typing.Any:
        return np.count_nonzero(self.input, axis=_axes(self))

    def steps(self: CountNonzero[TensorView], b: Binder) -> None:
        x, axes = self.input, _axes(self)
        # Sums of ones are whole as long as they have no more than 24 bits.
        if not has_kernels(x.dtype) or not 0 < x.size < 1 << 24 or not axes:
            self.in_numpy(b)
            return
        ones = b.temporary(x.shape)
        program = TypedProgram(b)
        truth = program.call("unequal", x.dtype, program.load(x, x.dtype), program.load(0, x.dtype))
        program.call("convert", ones.dtype, truth)
        b.step(program.step(ones))
        counts = bind_reduction(b, ones, axes, False, "sum", is_output=False)
        write_cast(b, counts, b.output())


# -- sums and products -------------------------------------------------------------------------


@record("aten::prod")
class ProductOfAll(KernelRecord[T]):
    """The product of all elements; integers and booleans multiply in int64.

    Source: torch.prod.
    """

    batch = NoBatchRule("it multiplies all members")
    input: T = Tensor()
    dtype: np.dtype | None = DType(None)

    def result(self: ProductOfAll[typing.Any]) -> TensorSpec:
        dtype = self.input.dtype
        return TensorSpec((), self.dtype or (INT64 if dtype.kind in "biu" else dtype))

    def compute(self: ProductOfAll[np.ndarray]) -> typing.Any:
        return np.prod(convert(self.input, self.result().dtype))

    def steps(self: ProductOfAll[TensorView], b: Binder) -> None:
        if _is_float32(self, b) and self.input.rank:
            bind_reduction(b, self.input, tuple(range(self.input.rank)), False, "prod")
        else:
            self.in_numpy(b)


@record("aten::sum_to_size")
class SumToSize(KernelRecord[T]):
    """The sum over the axes that `size` has with an extent of 1, or not at all.

    Source: torch.Tensor.sum_to_size.
    """

    batch = NoBatchRule("its size says what to sum over, as numbers")
    input: T = Tensor()
    size: tuple[int, ...] = Ints(minimum=0)

    def result(self: SumToSize[typing.Any]) -> TensorSpec:
        if broadcast(self.input, TensorSpec(self.size)) != self.input.shape:
            raise ShapeError(
                f"'size' is {self.size}, to which {self.input.shape} cannot be reduced"
            )
        dtype = self.input.dtype
        return TensorSpec(self.size, INT64 if dtype.kind in "biu" else dtype)

    def axes(self: SumToSize[typing.Any]) -> tuple[int, ...]:
        lead = len(self.input.shape) - len(self.size)
        return *range(lead), *(lead + d for d, n in enumerate(self.size) if n == 1)

    def compute(self: SumToSize[np.ndarray]) -> typing.Any:
        return self.input.sum(self.axes(), self.result().dtype).reshape(self.size)

    def steps(self: SumToSize[TensorView], b: Binder) -> None:
        axes = self.axes()
        if not _is_float32(self, b) or not axes:
            self.in_numpy(b)
            return
        sums = bind_reduction(b, self.input, axes, True, "sum", is_output=False)
        b.alias(b.contiguous(sums).view(self.size))


class _WithoutNan(KernelRecord[T]):
    """Base of the reductions that leave NaN out."""

    batch = "reduction"
    input: T = Tensor()
    dim: tuple[int, ...] | None = Ints(default=None, nullable=True)
    keepdim: bool = Bool(False)
    dtype: np.dtype | None = DType(None)


@record("aten::nansum")
class NanSum(_WithoutNan[T]):
    """The sum of the elements that are not NaN.

    Source: torch.nansum.
    """

    def result(self: NanSum[typing.Any]) -> typing.Any:
        dtype = self.input.dtype
        return _reduced(self, self.dtype or (INT64 if dtype.kind in "biu" else dtype))

    def compute(self: NanSum[np.ndarray]) -> typing.Any:
        return np.nansum(
            convert(self.input, self.result().dtype), axis=_axes(self), keepdims=self.keepdim
        )

    def steps(self: NanSum[TensorView], b: Binder) -> None:
        axes = _axes(self)
        if not _is_float32(self, b) or not axes:
            self.in_numpy(b)
            return
        numbers = b.temporary(self.input.shape)
        write_tree(b, Call("nan_to", [Ref(0), Literal(0.0)]), [self.input], numbers)
        bind_reduction(b, numbers, axes, self.keepdim, "sum")


@record("aten::nanmean")
class NanMean(_WithoutNan[T]):
    """The mean of the elements that are not NaN.

    Source: torch.nanmean.
    """

    def result(self: NanMean[TensorSpec]) -> typing.Any:
        if self.input.dtype.kind != "f":
            raise ShapeError(f"the input is {self.input.dtype}, expected float32")
        return _reduced(self, self.dtype or self.input.dtype)

    def compute(self: NanMean[np.ndarray]) -> typing.Any:
        where: dict[str, typing.Any] = {"axis": _axes(self), "keepdims": self.keepdim}
        return np.nansum(self.input, **where) / np.sum(~np.isnan(self.input), **where)

    def steps(self: NanMean[TensorView], b: Binder) -> None:
        axes = _axes(self)
        if not _is_float32(self, b) or not axes:
            self.in_numpy(b)
            return
        sums = []
        # Then ones in the place of numbers; what divides an infinite sum does not matter.
        for number in (Ref(0), Call("add", [Call("mul", [Ref(0), Literal(0.0)]), Literal(1.0)])):
            kept = b.temporary(self.input.shape)
            write_tree(b, Call("nan_to", [number, Literal(0.0)]), [self.input], kept)
            sums.append(bind_reduction(b, kept, axes, self.keepdim, "sum", is_output=False))
        bind_tree(b, Call("div", [Ref(0), Ref(1)]), sums)


@record("aten::dist")
class Distance(KernelRecord[T]):
    """The p-norm of the difference of two tensors.

    Source: torch.dist.
    """

    batch = NoBatchRule("it adds up the differences of all members")
    input: T = Tensor()
    other: T = Tensor()
    p: float = Scalar(2)

    def result(self: Distance[TensorSpec]) -> TensorSpec:
        broadcast(self.input, self.other)
        if isinstance(self.p, complex):
            raise ShapeError(f"'p' is {self.p}, expected a real number")
        return TensorSpec((), result_type([self.input, self.other]))

    def compute(self: Distance[np.ndarray]) -> typing.Any:
        return norm_of(np.asarray(self.input - self.other), float(self.p), None, False)

    def steps(self: Distance[TensorView], b: Binder) -> None:
        kind, shape = Norm.kinds.get(self.p), broadcast(self.input, self.other)
        if kind is None or not _is_float32(self, b) or self.other.dtype != np.float32 or not shape:
            self.in_numpy(b)
            return
        gaps = b.temporary(shape)
        write_tree(b, Call("sub", [Ref(0), Ref(1)]), [self.input, self.other], gaps)
        bind_reduction(b, gaps, tuple(range(len(shape))), False, kind)


# -- deviations --------------------------------------------------------------------------------


class Deviation(Schemas[T], Record[T]):
    """Base of the variances and deviations that torch.var and torch.std do not stand for."""

    batch = "reduction"
    overloads = (
        schema(input=Tensor(), correction=Bool(True)),
        schema(
            input=Tensor(),
            dim=Ints(default=None, nullable=True),
            correction=Scalar(True, nullable=True),
            keepdim=Bool(False),
        ),
    )
    kinds: ClassVar[tuple[str, ...]] = ()
    functions: ClassVar[dict[typing.Any, typing.Any]] = {
        "var": variance,
        "std": deviation,
        "mean": mean,
    }

    def infer(self: Deviation[TensorSpec]) -> typing.Any:
        a = self.read()
        if a.input.dtype.kind != "f":
            raise ShapeError(f"the input is {a.input.dtype}, expected float32")
        if isinstance(getattr(a, "correction", None), complex):
            raise ShapeError(f"'correction' is {a.correction}, expected a real number")
        return tuple(_reduced(a, a.input.dtype) for _ in a.kinds)

    def bind(self: Deviation[TensorView], b: Binder) -> None:
        a = self.read()
        axes, keepdim = _axes(a), getattr(a, "keepdim", False)
        less = 1.0 if a.correction is None else float(a.correction)
        for index, kind in enumerate(a.kinds[: a.n_outputs]):
            own = 0.0 if kind == "mean" else less
            if a.input.dtype == np.float32 and a.input.size and b.output_spec(index).size:
                y = bind_reduction(b, a.input, axes, keepdim, kind, own, is_output=False)
                b.alias(y, index)
                continue
            options = {"axis": axes, "keepdims": keepdim}
            if kind != "mean":
                options["ddof"] = less
            function = a.functions[kind]
            b.python(lambda x, f=function, o=options: f(x, **o), [a.input], [b.output(index)])


@record("aten::var")
class Variance(Deviation[T]):
    """The variance of all elements.

    Source: torch.var.
    """

    kinds = ("var",)


@record("aten::std")
class StandardDeviation(Deviation[T]):
    """The root of the variance of all elements.

    Source: torch.std.
    """

    kinds = ("std",)


@record("aten::var_mean")
class VarianceAndMean(Deviation[T]):
    """The variance and the mean.

    Source: torch.var_mean.
    """

    kinds = ("var", "mean")


@record("aten::std_mean")
class DeviationAndMean(Deviation[T]):
    """The root of the variance, and the mean.

    Source: torch.std_mean.
    """

    kinds = ("std", "mean")


@record("aten::aminmax")
class AMinMax(Overloaded[T], KernelRecord[T]):
    """The minimum and the maximum.

    Source: torch.aminmax.
    """

    batch = "reduction"
    overloads = (schema(input=Tensor(), dim=Int(None, nullable=True), keepdim=Bool(False)),)
    runs_in_numpy = False

    def result(self: AMinMax[TensorSpec]) -> typing.Any:
        if 0 in [self.input.shape[d] for d in _axes(self)]:
            raise ShapeError(f"the input has shape {self.input.shape}, nothing to reduce")
        return _reduced(self, self.input.dtype), _reduced(self, self.input.dtype)

    def compute(self: AMinMax[np.ndarray]) -> typing.Any:
        where = {"axis": _axes(self), "keepdims": self.keepdim}
        return np.min(self.input, **where), np.max(self.input, **where)

    def steps(self: AMinMax[TensorView], b: Binder) -> None:
        axes = _axes(self)
        if not _is_float32(self, b) or not axes:
            self.in_numpy(b)
            return
        for index, kind in enumerate(("min", "max")[: self.n_outputs]):
            b.alias(bind_reduction(b, self.input, axes, self.keepdim, kind, is_output=False), index)


# -- scans -------------------------------------------------------------------------------------


class _Running(KernelRecord[T]):
    """A running extreme, and the place of its last occurrence so far."""

    batch = "along_axes"
    input: T = Tensor()
    dim: int = Int()
    ufunc: ClassVar[np.ufunc]
    is_min: ClassVar[bool] = False

    def result(self: _Running[TensorSpec]) -> typing.Any:
        axis_of(self.dim, self.input.shape or (1,))
        return TensorSpec(self.input.shape, self.input.dtype), TensorSpec(self.input.shape, INT64)

    def compute(self: _Running[np.ndarray]) -> typing.Any:
        x = np.atleast_1d(self.input)
        values = type(self).ufunc.accumulate(x, axis=self.dim)
        places = np.arange(x.shape[self.dim]).reshape(
            [-1 if d == self.dim % x.ndim else 1 for d in range(x.ndim)]
        )
        reached = np.where((x == values) | (x != x), places, 0)
        found = np.maximum.accumulate(reached, axis=self.dim)
        return values.reshape(self.input.shape), found.reshape(self.input.shape)

    def steps(self: _Running[TensorView], b: Binder) -> None:
        if self.input.dtype.name not in RUNNING_DTYPES:
            self.in_numpy(b)
            return
        values, places = b.output(), b.output(1) if self.n_outputs > 1 else None
        if values.size:
            rows = lines_of(self.input.shape, self.dim)
            x = b.contiguous(self.input).view(rows)
            places = None if places is None else places.view(rows)
            b.step(RunningExtremeStep(x, values.view(rows), places, self.is_min))


@record("aten::cummax")
class CumMax(_Running[T]):
    """The running maximum along an axis, and its place.

    Source: torch.cummax.
    """

    ufunc = np.maximum


@record("aten::cummin")
class CumMin(_Running[T]):
    """The running minimum along an axis, and its place.

    Source: torch.cummin.
    """

    ufunc = np.minimum
    is_min = True


@record("aten::logcumsumexp")
class LogCumSumExp(KernelRecord[T]):
    """The logarithm of the running sum of exponentials along an axis.

    Source: torch.logcumsumexp.
    """

    batch = "along_axes"
    input: T = Tensor()
    dim: int = Int()

    def result(self: LogCumSumExp[TensorSpec]) -> TensorSpec:
        axis_of(self.dim, self.input.shape or (1,))
        return TensorSpec(self.input.shape, self.input.dtype)

    def compute(self: LogCumSumExp[np.ndarray]) -> typing.Any:
        x = np.atleast_1d(self.input).astype(np.float64)
        return np.logaddexp.accumulate(x, axis=self.dim).reshape(self.input.shape)

    def steps(self: LogCumSumExp[TensorView], b: Binder) -> None:
        if self.input.dtype != np.float32:
            self.in_numpy(b)
            return
        y = b.output()
        if y.size:
            rows = lines_of(self.input.shape, self.dim)
            b.step(LogSumScanStep(b.contiguous(self.input).view(rows), y.view(rows)))


@record("aten::diff")
class Diff(KernelRecord[T]):
    """Differences of neighbours along an axis, `n` times.

    Source: torch.diff.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    input: T = Tensor()
    n: int = Int(1, minimum=0)
    dim: int = Int(-1)
    prepend: T | None = Tensor(optional=True)
    append: T | None = Tensor(optional=True)

    def result(self: Diff[TensorSpec]) -> TensorSpec:
        axis = axis_of(self.dim, self.input.shape)
        shape, dtype = list(self.input.shape), self.input.dtype
        if not shape:
            raise ShapeError("the input has no axis to take differences along")
        for more in (self.prepend, self.append):
            if more is not None:
                rest = [n for d, n in enumerate(more.shape) if d != axis]
                fits = rest == [n for d, n in enumerate(shape) if d != axis]
                if not fits or more.rank != len(shape) or more.dtype != dtype:
                    raise ShapeError(f"cannot join {more!r} to {self.input!r} along axis {axis}")
                shape[axis] += more.shape[axis]
        shape[axis] = max(shape[axis] - self.n, 0)
        return TensorSpec(shape, dtype)

    def compute(self: Diff[np.ndarray]) -> typing.Any:
        parts = [x for x in (self.prepend, self.input, self.append) if x is not None]
        return np.diff(np.concatenate(parts, self.dim), self.n, self.dim)

    def steps(self: Diff[TensorView], b: Binder) -> None:
        if self.n == 0 or not _is_float32(self, b):
            self.in_numpy(b)
            return
        axis, x = axis_of(self.dim, self.input.shape), self.input
        parts = [part for part in (self.prepend, x, self.append) if part is not None]
        if len(parts) > 1:
            shape = list(x.shape)
            shape[axis] = sum(part.shape[axis] for part in parts)
            x, start = b.temporary(shape), 0
            for part in parts:
                b.copy(part, x.narrow(axis, start, part.shape[axis]))
                start += part.shape[axis]
        y = b.output()
        for left in range(self.n - 1, -1, -1) if y.size else ():
            shape = list(x.shape)
            shape[axis] -= 1
            gaps = b.temporary(shape) if left else y
            ends = [x.narrow(axis, start, shape[axis]) for start in (1, 0)]
            write_tree(b, Call("sub", [Ref(0), Ref(1)]), ends, gaps)
            x = gaps


@record("aten::cov")
class Covariance(NumpyRecord[T]):
    """The covariances of rows of observations, each of which may have weights.

    Source: torch.cov.
    """

    batch = NoBatchRule("it compares all rows")
    input: T = Tensor(rank=(0, 1, 2))
    correction: int = Int(1)
    fweights: T | None = Tensor(optional=True, rank=(0, 1))
    aweights: T | None = Tensor(optional=True, rank=(0, 1))

    def result(self: Covariance[TensorSpec]) -> TensorSpec:
        if self.input.dtype.kind != "f":
            raise ShapeError(f"the input is {self.input.dtype}, expected float32")
        count = self.input.shape[-1] if self.input.rank else 1
        for name in ("fweights", "aweights"):
            weights = getattr(self, name)
            if weights is not None and weights.size != count:
                raise ShapeError(f"'{name}' has shape {weights.shape}, expected ({count},)")
        rows = self.input.shape[0] if self.input.rank == 2 else None
        return TensorSpec(() if rows is None else (rows, rows), self.input.dtype)

    def compute(self: Covariance[np.ndarray]) -> typing.Any:
        x = np.atleast_2d(self.input).astype(np.float64)
        # As np.cov, which would warn where there are no more observations than the correction.
        ones = np.ones(x.shape[1])
        important = ones if self.aweights is None else np.atleast_1d(self.aweights)
        weights = important * (ones if self.fweights is None else np.atleast_1d(self.fweights))
        if (important < 0).any() or (weights < 0).any():
            raise ShapeError("a weight is negative")
        total = weights.sum()
        off = x - (x * weights).sum(1, keepdims=True) / total
        less = self.correction * (weights * important).sum() / total
        y = (off * weights) @ off.T / np.maximum(total - less, 0.0)
        return y.reshape(x.shape[:1] * 2 if self.input.ndim == 2 else ())


@record("aten::corrcoef")
class Correlation(NumpyRecord[T]):
    """The correlations of rows of observations.

    Source: torch.corrcoef.
    """

    batch = NoBatchRule("it compares all rows")
    input: T = Tensor(rank=(0, 1, 2))

    def result(self: Correlation[TensorSpec]) -> typing.Any:
        return Covariance(input=self.input, fweights=None, aweights=None).result()

    def compute(self: Correlation[np.ndarray]) -> typing.Any:
        x = np.atleast_2d(self.input).astype(np.float64)
        # As np.corrcoef, which would warn where there is one observation or none.
        off = x - x.sum(1, keepdims=True) / x.shape[1]
        sums = off @ off.T
        roots = np.sqrt(np.diag(sums))
        y = np.clip(sums / roots[:, None] / roots, -1.0, 1.0)
        return y.reshape(x.shape[:1] * 2 if self.input.ndim == 2 else ())


# -- integrals and slopes ----------------------------------------------------------------------


class _Trapezoids(Overloaded[T]):
    """Base of the sums of trapezoids; their widths are the differences of `x`, or `dx`."""

    batch = NoBatchRule("rare: no known export uses it with another batch")
    overloads = (
        schema(y=Tensor(), x=Tensor(), dim=Int(-1)),
        schema(y=Tensor(), dx=Scalar(1), dim=Int(-1)),
    )

    def _axis(self: _Trapezoids[Known]) -> int:
        axis = axis_of(self.dim, self.y.shape)
        x = getattr(self, "x", None)
        if x is not None:
            fits = x.rank > 0 and (
                x.shape == (self.y.shape[axis],)
                if x.rank == 1
                else x.rank == self.y.rank and x.shape[axis] == self.y.shape[axis]
            )
            if not fits:
                raise ShapeError(f"'x' has shape {x.shape}, which does not go with {self.y.shape}")
            if x.rank > 1:
                broadcast(x, self.y)
        return axis

    def _dtype(self: _Trapezoids[Known]) -> np.dtype:
        dtype = result_type([self.y] if getattr(self, "x", None) is None else [self.y, self.x])
        return np.dtype(np.float32) if dtype.kind in "biu" else dtype

    def _shape(self: _Trapezoids[Known]) -> list[int]:
        x = getattr(self, "x", None)
        return list(broadcast(self.y, x) if x is not None and x.rank > 1 else self.y.shape)

    def areas(self: _Trapezoids[typing.Any]) -> np.ndarray:
        """Return the area between each pair of neighbours."""
        y = np.moveaxis(self.y, self.dim, -1)
        widths = getattr(self, "dx", None)
        if widths is None:
            x = self.x if self.x.ndim == 1 else np.moveaxis(self.x, self.dim, -1)
            widths = np.diff(x, axis=-1)
        return (y[..., 1:] + y[..., :-1]) * widths / 2


@record("aten::trapezoid", "aten::trapz")
class Trapezoid(_Trapezoids[T]):
    """The integral along an axis, by trapezoids.

    Source: torch.trapezoid.
    """

    def result(self: Trapezoid[TensorSpec]) -> TensorSpec:
        axis, shape = self._axis(), self._shape()
        del shape[axis]
        return TensorSpec(shape, self._dtype())

    def compute(self: Trapezoid[np.ndarray]) -> typing.Any:
        return self.areas().sum(-1)


@record("aten::cumulative_trapezoid")
class CumulativeTrapezoid(_Trapezoids[T]):
    """The integral along an axis up to each place but the first, by trapezoids.

    Source: torch.cumulative_trapezoid.
    """

    def result(self: CumulativeTrapezoid[TensorSpec]) -> TensorSpec:
        axis, shape = self._axis(), self._shape()
        shape[axis] = max(shape[axis] - 1, 0)
        return TensorSpec(shape, self._dtype())

    def compute(self: CumulativeTrapezoid[np.ndarray]) -> typing.Any:
        return np.moveaxis(np.cumsum(self.areas(), axis=-1), -1, self.dim)
