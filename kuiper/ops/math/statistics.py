"""Statistics: truth, counts, sums, deviations and covariances."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from kuiper._kernels.data.order import ExtremeStep
from kuiper.errors import ShapeError
from kuiper.expression import Call, Literal, Ref
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import reduced_axes, reduced_shape
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
from kuiper.ops.core.rows import MAX_EXTENT, bind_reduction
from kuiper.ops.core.schema import Bool, DType, Int, Ints, Scalar, Tensor, schema
from kuiper.ops.core.typed import TypedProgram, has_kernels, write_cast
from kuiper.ops.math.elementwise import bind_tree, computed

__all__ = ["AMinMax", "All", "Any", "CountNonzero", "Deviation", "NanSum"]

INT64 = np.dtype(np.int64)


def _axes(a: typing.Any) -> tuple[int, ...]:
    return reduced_axes(getattr(a, "dim", None), a.input.shape)


def _reduced(a: typing.Any, dtype: typing.Any) -> TensorSpec:
    shape = reduced_shape(a.input.shape, _axes(a), getattr(a, "keepdim", False))
    return TensorSpec(shape, dtype)


def _where(a: typing.Any) -> dict[str, typing.Any]:
    """Return the arguments of numpy's reductions."""
    return {"axis": _axes(a), "keepdims": getattr(a, "keepdim", False)}


def _widened(dtype: np.dtype) -> np.dtype:
    """Return the dtype of sums and products: int64 for integers and booleans."""
    return INT64 if dtype.kind in "biu" else dtype


class _Float32Reduction(KernelRecord[T]):
    """Base of the reductions with kernels for float32 only."""

    input: T

    def axes(self: _Float32Reduction[typing.Any]) -> tuple[int, ...]:
        return _axes(self)

    def reduce(self: _Float32Reduction[TensorView], b: Binder, axes: tuple[int, ...]) -> None:
        """Add the steps of the kernels."""
        raise NotImplementedError

    def steps(self: _Float32Reduction[TensorView], b: Binder) -> None:
        axes, x = self.axes(), self.input
        if x.dtype == b.output_spec().dtype == np.float32 and x.size and axes:
            self.reduce(b, axes)
        else:
            self.in_numpy(b)


# -- truth and counts --------------------------------------------------------------------------


def _write_truth(b: Binder, x: TensorView, y: TensorView) -> None:
    """Add the step that writes 1 for the elements of `x` that are not zero, else 0."""
    program = TypedProgram(b)
    truth = program.call("unequal", x.dtype, program.load(x, x.dtype), program.load(0, x.dtype))
    if y.dtype != np.bool_:
        program.call("convert", y.dtype, truth)
    b.step(program.step(y))


class _Truth(Overloaded[T], KernelRecord[T]):
    """Base of `any` and `all`: the maximum and minimum of truth values."""

    batch = "reduction"
    runs_in_numpy = False
    is_min: bool
    overloads = (
        schema(input=Tensor()),
        schema(input=Tensor(), dim=Ints(nullable=True), keepdim=Bool(False)),
    )
    function: Callable[..., typing.Any]
    input: T

    def result(self: _Truth[TensorSpec]) -> typing.Any:
        # PyTorch once had uint8 for truth values and still returns it for uint8.
        return _reduced(self, np.uint8 if self.input.dtype == np.uint8 else np.bool_)

    def compute(self: _Truth[np.ndarray]) -> typing.Any:
        return type(self).function(self.input, **_where(self))

    def steps(self: _Truth[TensorView], b: Binder) -> None:
        x, axes = self.input, _axes(self)
        terms = math.prod(x.shape[d] for d in axes)
        if not has_kernels(x.dtype) or x.size == 0 or x.size >= MAX_EXTENT:
            self.in_numpy(b)
            return
        y = b.output()
        if x.dtype != np.bool_:
            truth = b.temporary(x.shape, np.bool_)
            _write_truth(b, x, truth)
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
    """The number of elements that are not zero.

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
        # float32 sums of ones are exact up to 2 ** 24.
        if not has_kernels(x.dtype) or not 0 < x.size < 1 << 24 or not axes:
            self.in_numpy(b)
            return
        ones = b.temporary(x.shape)
        _write_truth(b, x, ones)
        counts = bind_reduction(b, ones, axes, False, "sum", is_output=False)
        write_cast(b, counts, b.output())


# -- sums and products -------------------------------------------------------------------------


@record("aten::prod")
class ProductOfAll(_Float32Reduction[T]):
    """The product of all elements; integers and booleans multiply in int64.

    Source: torch.prod.
    """

    batch = NoBatchRule("it multiplies all members")
    input: T = Tensor()
    dtype: np.dtype | None = DType(None)

    def result(self: ProductOfAll[typing.Any]) -> TensorSpec:
        return TensorSpec((), self.dtype or _widened(self.input.dtype))

    def compute(self: ProductOfAll[np.ndarray]) -> typing.Any:
        return np.prod(convert(self.input, self.result().dtype))

    def reduce(self: ProductOfAll[TensorView], b: Binder, axes: tuple[int, ...]) -> None:
        bind_reduction(b, self.input, axes, False, "prod")


@record("aten::sum_to_size")
class SumToSize(_Float32Reduction[T]):
    """The sum over the axes that `size` lacks or has with extent 1.

    Source: torch.Tensor.sum_to_size.
    """

    batch = NoBatchRule("`size` is a constant that holds the extent of the batch")
    input: T = Tensor()
    size: tuple[int, ...] = Ints(minimum=0)

    def result(self: SumToSize[typing.Any]) -> TensorSpec:
        if broadcast(self.input, TensorSpec(self.size)) != self.input.shape:
            raise ShapeError(
                f"'size' is {self.size}, to which {self.input.shape} cannot be reduced"
            )
        return TensorSpec(self.size, _widened(self.input.dtype))

    def axes(self: SumToSize[typing.Any]) -> tuple[int, ...]:
        lead = len(self.input.shape) - len(self.size)
        return *range(lead), *(lead + d for d, n in enumerate(self.size) if n == 1)

    def compute(self: SumToSize[np.ndarray]) -> typing.Any:
        return self.input.sum(self.axes(), self.result().dtype).reshape(self.size)

    def reduce(self: SumToSize[TensorView], b: Binder, axes: tuple[int, ...]) -> None:
        sums = bind_reduction(b, self.input, axes, True, "sum", is_output=False)
        b.alias(b.contiguous(sums).view(self.size))


@record("aten::nansum")
class NanSum(_Float32Reduction[T]):
    """The sum of the elements that are not NaN.

    Source: torch.nansum.
    """

    batch = "reduction"
    input: T = Tensor()
    dim: tuple[int, ...] | None = Ints(default=None, nullable=True)
    keepdim: bool = Bool(False)
    dtype: np.dtype | None = DType(None)

    def result(self: NanSum[typing.Any]) -> typing.Any:
        return _reduced(self, self.dtype or _widened(self.input.dtype))

    def compute(self: NanSum[np.ndarray]) -> typing.Any:
        return np.nansum(convert(self.input, self.result().dtype), **_where(self))

    def reduce(self: NanSum[TensorView], b: Binder, axes: tuple[int, ...]) -> None:
        numbers = computed(b, Call("nan_to", [Ref(0), Literal(0.0)]), [self.input])
        bind_reduction(b, numbers, axes, self.keepdim, "sum")


@record("aten::nanmean")
class NanMean(NanSum[T]):
    """The mean of the elements that are not NaN.

    Source: torch.nanmean.
    """

    def result(self: NanMean[TensorSpec]) -> typing.Any:
        if self.input.dtype.kind != "f":
            raise ShapeError(f"the input is {self.input.dtype}, expected float32")
        return _reduced(self, self.dtype or self.input.dtype)

    def compute(self: NanMean[np.ndarray]) -> typing.Any:
        where = _where(self)
        return np.nansum(self.input, **where) / np.sum(~np.isnan(self.input), **where)

    def reduce(self: NanMean[TensorView], b: Binder, axes: tuple[int, ...]) -> None:
        # x * 0 + 1 is 1 for numbers.  It is NaN, so not counted, for infinities, whose sum is
        # infinite or NaN whatever the count.
        one = Call("add", [Call("mul", [Ref(0), Literal(0.0)]), Literal(1.0)])
        sums = []
        for term in (Ref(0), one):
            kept = computed(b, Call("nan_to", [term, Literal(0.0)]), [self.input])
            sums.append(bind_reduction(b, kept, axes, self.keepdim, "sum", is_output=False))
        bind_tree(b, Call("div", [Ref(0), Ref(1)]), sums)


# -- deviations and extremes -------------------------------------------------------------------


class Deviation(Schemas[T], Record[T]):
    """Base of the variances and deviations under their TorchScript names."""

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
    functions: ClassVar[dict[str, typing.Any]] = {"var": variance, "std": deviation, "mean": mean}
    input: T
    correction: typing.Any

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
        correction = 1.0 if a.correction is None else float(a.correction)
        for index, kind in enumerate(a.kinds[: a.n_outputs]):
            own = 0.0 if kind == "mean" else correction
            if a.input.dtype == np.float32 and a.input.size and b.output_spec(index).size:
                y = bind_reduction(b, a.input, axes, keepdim, kind, own, is_output=False)
                b.alias(y, index)
                continue
            options = _where(a) if kind == "mean" else {**_where(a), "ddof": correction}
            function = a.functions[kind]
            b.python(lambda x, f=function, o=options: f(x, **o), [a.input], [b.output(index)])


@record("aten::var")
class Variance(Deviation[T]):
    """The variance.

    Source: torch.var.
    """

    kinds = ("var",)


@record("aten::std")
class StandardDeviation(Deviation[T]):
    """The standard deviation: the root of the variance.

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
    """The standard deviation and the mean.

    Source: torch.std_mean.
    """

    kinds = ("std", "mean")


@record("aten::aminmax")
class AMinMax(Overloaded[T], _Float32Reduction[T]):
    """The minimum and the maximum.

    Source: torch.aminmax.
    """

    batch = "reduction"
    overloads = (schema(input=Tensor(), dim=Int(None, nullable=True), keepdim=Bool(False)),)
    runs_in_numpy = False
    keepdim: bool

    def result(self: AMinMax[TensorSpec]) -> typing.Any:
        if 0 in [self.input.shape[d] for d in _axes(self)]:
            raise ShapeError(f"the input has shape {self.input.shape}, nothing to reduce")
        return _reduced(self, self.input.dtype), _reduced(self, self.input.dtype)

    def compute(self: AMinMax[np.ndarray]) -> typing.Any:
        return np.min(self.input, **_where(self)), np.max(self.input, **_where(self))

    def reduce(self: AMinMax[TensorView], b: Binder, axes: tuple[int, ...]) -> None:
        for index, kind in enumerate(("min", "max")[: self.n_outputs]):
            b.alias(bind_reduction(b, self.input, axes, self.keepdim, kind, is_output=False), index)


# -- covariances -------------------------------------------------------------------------------


@record("aten::cov")
class Covariance(NumpyRecord[T]):
    """The covariances of rows of observations, which may have weights.

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
        # np.cov would warn if there are no more observations than the correction.
        ones = np.ones(x.shape[1])
        important = ones if self.aweights is None else np.atleast_1d(self.aweights)
        weights = important * (ones if self.fweights is None else np.atleast_1d(self.fweights))
        if (important < 0).any() or (weights < 0).any():
            raise ShapeError("the weights hold a negative number, expected numbers >= 0")
        total = weights.sum()
        off = x - (x * weights).sum(1, keepdims=True) / total
        less = self.correction * (weights * important).sum() / total
        y = (off * weights) @ off.T / np.maximum(total - less, 0.0)
        return y.reshape(x.shape[:1] * 2 if self.input.ndim == 2 else ())


@record("aten::corrcoef")
class Correlation(Covariance[T]):
    """The correlations of rows of observations.

    Source: torch.corrcoef.
    """

    correction = 1
    fweights = aweights = None

    def compute(self: Correlation[np.ndarray]) -> typing.Any:
        x = np.atleast_2d(self.input).astype(np.float64)
        # np.corrcoef would warn if there are fewer than two observations.
        off = x - x.sum(1, keepdims=True) / x.shape[1]
        sums = off @ off.T
        roots = np.sqrt(np.diag(sums))
        y = np.clip(sums / roots[:, None] / roots, -1.0, 1.0)
        return y.reshape(x.shape[:1] * 2 if self.input.ndim == 2 else ())
