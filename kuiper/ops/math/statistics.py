"""Truth, counts, deviations and scans: reductions that TorchScript's names stand for."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from types import SimpleNamespace
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
from kuiper.ir.view import TensorSpec
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
from kuiper.ops.core.record import NoBatchRule, Record, record
from kuiper.ops.core.rows import bind_reduction, lines_of
from kuiper.ops.core.schema import Bool, DType, Int, Ints, Scalar, Tensor
from kuiper.ops.core.typed import TypedProgram, has_kernels, write_cast
from kuiper.ops.math.elementwise import bind_tree, write_tree
from kuiper.ops.math.reduce import MAX_EXTENT, Norm, norm_of

__all__ = ["AMinMax", "AllTrue", "AnyTrue", "CountNonzero", "CumMax", "Deviation", "Diff", "NanSum"]

INT64 = np.dtype(np.int64)


def _axes(a: SimpleNamespace) -> tuple[int, ...]:
    dim = getattr(a, "dim", None)
    if dim is None or dim == ():
        return tuple(range(len(a.input.shape)))
    if not a.input.shape:
        axes_of(dim if isinstance(dim, tuple) else (dim,), (1,))
        return ()
    return axes_of(dim if isinstance(dim, tuple) else (dim,), a.input.shape)


def _reduced(a: SimpleNamespace, dtype: typing.Any) -> TensorSpec:
    axes, keepdim = _axes(a), getattr(a, "keepdim", False)
    shape = [1 if d in axes else n for d, n in enumerate(a.input.shape) if keepdim or d not in axes]
    return TensorSpec(shape, dtype)


def _is_float32(a: SimpleNamespace, b: Binder) -> bool:
    """Tell whether input and output have kernels, and something to compute."""
    return a.input.dtype == b.output_spec().dtype == np.float32 and a.input.size > 0


# -- truth and counts --------------------------------------------------------------------------


class _Truth(Overloaded, KernelRecord):
    batch = "reduction"
    runs_in_numpy = False
    is_min: bool
    overloads = (
        (Tensor("input"),),
        (Tensor("input"), Ints("dim", nullable=True), Bool("keepdim", False)),
    )
    function: Callable[..., typing.Any]

    @classmethod
    def result(cls, a: SimpleNamespace) -> typing.Any:
        # Bytes stay bytes, as they were PyTorch's truth values once.
        return _reduced(a, np.uint8 if a.input.dtype == np.uint8 else np.bool_)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> typing.Any:
        return cls.function(a.input, axis=_axes(a), keepdims=getattr(a, "keepdim", False))

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        x, axes = a.input, _axes(a)
        terms = math.prod(x.shape[d] for d in axes)
        if not has_kernels(x.dtype) or x.size == 0 or x.size >= MAX_EXTENT:
            cls.in_numpy(a, b)
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
        b.step(ExtremeStep(rows.view((y.size, terms, 1)), y, None, cls.is_min))


@record("aten::any")
class AnyTrue(_Truth):
    """Whether any element is not zero.

    Source: torch.any.
    """

    function: Callable[..., typing.Any] = staticmethod(np.any)
    is_min = False


@record("aten::all")
class AllTrue(_Truth):
    """Whether no element is zero.

    Source: torch.all.
    """

    function: Callable[..., typing.Any] = staticmethod(np.all)
    is_min = True


@record("aten::count_nonzero")
class CountNonzero(KernelRecord):
    """How many elements are not zero.

    Source: torch.count_nonzero.
    """

    batch = "reduction"
    arguments = (Tensor("input"), Ints("dim", default=None, nullable=True))

    @staticmethod
    def result(a: SimpleNamespace) -> typing.Any:
        return _reduced(a, INT64)

    @staticmethod
    def compute(a: SimpleNamespace) -> typing.Any:
        return np.count_nonzero(a.input, axis=_axes(a))

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        x, axes = a.input, _axes(a)
        # Sums of ones are whole as long as they have no more than 24 bits.
        if not has_kernels(x.dtype) or not 0 < x.size < 1 << 24 or not axes:
            cls.in_numpy(a, b)
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
class ProductOfAll(KernelRecord):
    """The product of all elements; integers and booleans multiply in int64.

    Source: torch.prod.
    """

    batch = NoBatchRule("it multiplies all members")
    arguments = (Tensor("input"), DType("dtype", None))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        dtype = a.input.dtype
        return TensorSpec((), a.dtype or (INT64 if dtype.kind in "biu" else dtype))

    @staticmethod
    def compute(a: SimpleNamespace) -> typing.Any:
        return np.prod(convert(a.input, ProductOfAll.result(a).dtype))

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        if _is_float32(a, b) and a.input.rank:
            bind_reduction(b, a.input, tuple(range(a.input.rank)), False, "prod")
        else:
            cls.in_numpy(a, b)


@record("aten::sum_to_size")
class SumToSize(KernelRecord):
    """The sum over the axes that `size` has with an extent of 1, or not at all.

    Source: torch.Tensor.sum_to_size.
    """

    batch = NoBatchRule("its size says what to sum over, as numbers")
    arguments = (Tensor("input"), Ints("size", minimum=0))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        if broadcast(a.input, TensorSpec(a.size)) != a.input.shape:
            raise ShapeError(f"'size' is {a.size}, to which {a.input.shape} cannot be reduced")
        dtype = a.input.dtype
        return TensorSpec(a.size, INT64 if dtype.kind in "biu" else dtype)

    @staticmethod
    def axes(a: SimpleNamespace) -> tuple[int, ...]:
        lead = len(a.input.shape) - len(a.size)
        return *range(lead), *(lead + d for d, n in enumerate(a.size) if n == 1)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> typing.Any:
        return a.input.sum(cls.axes(a), cls.result(a).dtype).reshape(a.size)

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        axes = cls.axes(a)
        if not _is_float32(a, b) or not axes:
            cls.in_numpy(a, b)
            return
        sums = bind_reduction(b, a.input, axes, True, "sum", is_output=False)
        b.alias(b.contiguous(sums).view(a.size))


_WITHOUT_NAN = (
    Tensor("input"),
    Ints("dim", default=None, nullable=True),
    Bool("keepdim", False),
    DType("dtype", None),
)


@record("aten::nansum")
class NanSum(KernelRecord):
    """The sum of the elements that are not NaN.

    Source: torch.nansum.
    """

    batch = "reduction"
    arguments = _WITHOUT_NAN

    @staticmethod
    def result(a: SimpleNamespace) -> typing.Any:
        dtype = a.input.dtype
        return _reduced(a, a.dtype or (INT64 if dtype.kind in "biu" else dtype))

    @staticmethod
    def compute(a: SimpleNamespace) -> typing.Any:
        return np.nansum(
            convert(a.input, NanSum.result(a).dtype), axis=_axes(a), keepdims=a.keepdim
        )

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        axes = _axes(a)
        if not _is_float32(a, b) or not axes:
            cls.in_numpy(a, b)
            return
        numbers = b.temporary(a.input.shape)
        write_tree(b, Call("nan_to", [Ref(0), Literal(0.0)]), [a.input], numbers)
        bind_reduction(b, numbers, axes, a.keepdim, "sum")


@record("aten::nanmean")
class NanMean(KernelRecord):
    """The mean of the elements that are not NaN.

    Source: torch.nanmean.
    """

    batch = "reduction"
    arguments = _WITHOUT_NAN

    @staticmethod
    def result(a: SimpleNamespace) -> typing.Any:
        if a.input.dtype.kind != "f":
            raise ShapeError(f"the input is {a.input.dtype}, expected float32")
        return _reduced(a, a.dtype or a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> typing.Any:
        where = {"axis": _axes(a), "keepdims": a.keepdim}
        return np.nansum(a.input, **where) / np.sum(~np.isnan(a.input), **where)

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        axes = _axes(a)
        if not _is_float32(a, b) or not axes:
            cls.in_numpy(a, b)
            return
        sums = []
        # Then ones in the place of numbers; what divides an infinite sum does not matter.
        for number in (Ref(0), Call("add", [Call("mul", [Ref(0), Literal(0.0)]), Literal(1.0)])):
            kept = b.temporary(a.input.shape)
            write_tree(b, Call("nan_to", [number, Literal(0.0)]), [a.input], kept)
            sums.append(bind_reduction(b, kept, axes, a.keepdim, "sum", is_output=False))
        bind_tree(b, Call("div", [Ref(0), Ref(1)]), sums)


@record("aten::dist")
class Distance(KernelRecord):
    """The p-norm of the difference of two tensors.

    Source: torch.dist.
    """

    batch = NoBatchRule("it adds up the differences of all members")
    arguments = (Tensor("input"), Tensor("other"), Scalar("p", 2))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        broadcast(a.input, a.other)
        if isinstance(a.p, complex):
            raise ShapeError(f"'p' is {a.p}, expected a real number")
        return TensorSpec((), result_type([a.input, a.other]))

    @staticmethod
    def compute(a: SimpleNamespace) -> typing.Any:
        return norm_of(np.asarray(a.input - a.other), float(a.p), None, False)

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        kind, shape = Norm.kinds.get(a.p), broadcast(a.input, a.other)
        if kind is None or not _is_float32(a, b) or a.other.dtype != np.float32 or not shape:
            cls.in_numpy(a, b)
            return
        gaps = b.temporary(shape)
        write_tree(b, Call("sub", [Ref(0), Ref(1)]), [a.input, a.other], gaps)
        bind_reduction(b, gaps, tuple(range(len(shape))), False, kind)


# -- deviations --------------------------------------------------------------------------------


class Deviation(Schemas, Record):
    """Base of the variances and deviations that torch.var and torch.std do not stand for."""

    batch = "reduction"
    overloads = (
        (Tensor("input"), Bool("correction", True)),
        (
            Tensor("input"),
            Ints("dim", default=None, nullable=True),
            Scalar("correction", True, nullable=True),
            Bool("keepdim", False),
        ),
    )
    kinds: ClassVar[tuple[str, ...]] = ()
    functions: ClassVar[dict[typing.Any, typing.Any]] = {
        "var": variance,
        "std": deviation,
        "mean": mean,
    }

    @classmethod
    def infer(cls, a: SimpleNamespace) -> typing.Any:
        a = cls.read(a)
        if a.input.dtype.kind != "f":
            raise ShapeError(f"the input is {a.input.dtype}, expected float32")
        if isinstance(getattr(a, "correction", None), complex):
            raise ShapeError(f"'correction' is {a.correction}, expected a real number")
        return tuple(_reduced(a, a.input.dtype) for _ in cls.kinds)

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        a = cls.read(a)
        axes, keepdim = _axes(a), getattr(a, "keepdim", False)
        less = 1.0 if a.correction is None else float(a.correction)
        for index, kind in enumerate(cls.kinds[: a.n_outputs]):
            own = 0.0 if kind == "mean" else less
            if a.input.dtype == np.float32 and a.input.size and b.output_spec(index).size:
                y = bind_reduction(b, a.input, axes, keepdim, kind, own, is_output=False)
                b.alias(y, index)
                continue
            options = {"axis": axes, "keepdims": keepdim}
            if kind != "mean":
                options["ddof"] = less
            function = cls.functions[kind]
            b.python(lambda x, f=function, o=options: f(x, **o), [a.input], [b.output(index)])


@record("aten::var")
class Variance(Deviation):
    """The variance of all elements.

    Source: torch.var.
    """

    kinds = ("var",)


@record("aten::std")
class StandardDeviation(Deviation):
    """The root of the variance of all elements.

    Source: torch.std.
    """

    kinds = ("std",)


@record("aten::var_mean")
class VarianceAndMean(Deviation):
    """The variance and the mean.

    Source: torch.var_mean.
    """

    kinds = ("var", "mean")


@record("aten::std_mean")
class DeviationAndMean(Deviation):
    """The root of the variance, and the mean.

    Source: torch.std_mean.
    """

    kinds = ("std", "mean")


@record("aten::aminmax")
class AMinMax(Overloaded, KernelRecord):
    """The minimum and the maximum.

    Source: torch.aminmax.
    """

    batch = "reduction"
    overloads = ((Tensor("input"), Int("dim", None, nullable=True), Bool("keepdim", False)),)
    runs_in_numpy = False

    @staticmethod
    def result(a: SimpleNamespace) -> typing.Any:
        if 0 in [a.input.shape[d] for d in _axes(a)]:
            raise ShapeError(f"the input has shape {a.input.shape}, nothing to reduce")
        return _reduced(a, a.input.dtype), _reduced(a, a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> typing.Any:
        where = {"axis": _axes(a), "keepdims": a.keepdim}
        return np.min(a.input, **where), np.max(a.input, **where)

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        axes = _axes(a)
        if not _is_float32(a, b) or not axes:
            cls.in_numpy(a, b)
            return
        for index, kind in enumerate(("min", "max")[: a.n_outputs]):
            b.alias(bind_reduction(b, a.input, axes, a.keepdim, kind, is_output=False), index)


# -- scans -------------------------------------------------------------------------------------


class _Running(KernelRecord):
    """A running extreme, and the place of its last occurrence so far."""

    batch = "along_axes"
    arguments = (Tensor("input"), Int("dim"))
    ufunc: ClassVar[np.ufunc]
    is_min: ClassVar[bool] = False

    @staticmethod
    def result(a: SimpleNamespace) -> typing.Any:
        axis_of(a.dim, a.input.shape or (1,))
        return TensorSpec(a.input.shape, a.input.dtype), TensorSpec(a.input.shape, INT64)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> typing.Any:
        x = np.atleast_1d(a.input)
        values = cls.ufunc.accumulate(x, axis=a.dim)
        places = np.arange(x.shape[a.dim]).reshape(
            [-1 if d == a.dim % x.ndim else 1 for d in range(x.ndim)]
        )
        reached = np.where((x == values) | (x != x), places, 0)
        found = np.maximum.accumulate(reached, axis=a.dim)
        return values.reshape(a.input.shape), found.reshape(a.input.shape)

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        if a.input.dtype.name not in RUNNING_DTYPES:
            cls.in_numpy(a, b)
            return
        values, places = b.output(), b.output(1) if a.n_outputs > 1 else None
        if values.size:
            rows = lines_of(a.input.shape, a.dim)
            x = b.contiguous(a.input).view(rows)
            places = None if places is None else places.view(rows)
            b.step(RunningExtremeStep(x, values.view(rows), places, cls.is_min))


@record("aten::cummax")
class CumMax(_Running):
    """The running maximum along an axis, and its place.

    Source: torch.cummax.
    """

    ufunc = np.maximum


@record("aten::cummin")
class CumMin(_Running):
    """The running minimum along an axis, and its place.

    Source: torch.cummin.
    """

    ufunc = np.minimum
    is_min = True


@record("aten::logcumsumexp")
class LogCumSumExp(KernelRecord):
    """The logarithm of the running sum of exponentials along an axis.

    Source: torch.logcumsumexp.
    """

    batch = "along_axes"
    arguments = (Tensor("input"), Int("dim"))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        axis_of(a.dim, a.input.shape or (1,))
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> typing.Any:
        x = np.atleast_1d(a.input).astype(np.float64)
        return np.logaddexp.accumulate(x, axis=a.dim).reshape(a.input.shape)

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        if a.input.dtype != np.float32:
            cls.in_numpy(a, b)
            return
        y = b.output()
        if y.size:
            rows = lines_of(a.input.shape, a.dim)
            b.step(LogSumScanStep(b.contiguous(a.input).view(rows), y.view(rows)))


@record("aten::diff")
class Diff(KernelRecord):
    """Differences of neighbours along an axis, `n` times.

    Source: torch.diff.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (
        Tensor("input"),
        Int("n", 1, minimum=0),
        Int("dim", -1),
        Tensor("prepend", optional=True),
        Tensor("append", optional=True),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        axis = axis_of(a.dim, a.input.shape)
        shape, dtype = list(a.input.shape), a.input.dtype
        if not shape:
            raise ShapeError("the input has no axis to take differences along")
        for more in (a.prepend, a.append):
            if more is not None:
                rest = [n for d, n in enumerate(more.shape) if d != axis]
                fits = rest == [n for d, n in enumerate(shape) if d != axis]
                if not fits or more.rank != len(shape) or more.dtype != dtype:
                    raise ShapeError(f"cannot join {more!r} to {a.input!r} along axis {axis}")
                shape[axis] += more.shape[axis]
        shape[axis] = max(shape[axis] - a.n, 0)
        return TensorSpec(shape, dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> typing.Any:
        parts = [x for x in (a.prepend, a.input, a.append) if x is not None]
        return np.diff(np.concatenate(parts, a.dim), a.n, a.dim)

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        if a.n == 0 or not _is_float32(a, b):
            cls.in_numpy(a, b)
            return
        axis, x = axis_of(a.dim, a.input.shape), a.input
        parts = [part for part in (a.prepend, x, a.append) if part is not None]
        if len(parts) > 1:
            shape = list(x.shape)
            shape[axis] = sum(part.shape[axis] for part in parts)
            x, start = b.temporary(shape), 0
            for part in parts:
                b.copy(part, x.narrow(axis, start, part.shape[axis]))
                start += part.shape[axis]
        y = b.output()
        for left in range(a.n - 1, -1, -1) if y.size else ():
            shape = list(x.shape)
            shape[axis] -= 1
            gaps = b.temporary(shape) if left else y
            ends = [x.narrow(axis, start, shape[axis]) for start in (1, 0)]
            write_tree(b, Call("sub", [Ref(0), Ref(1)]), ends, gaps)
            x = gaps


@record("aten::cov")
class Covariance(NumpyRecord):
    """The covariances of rows of observations, each of which may have weights.

    Source: torch.cov.
    """

    batch = NoBatchRule("it compares all rows")
    arguments = (
        Tensor("input", rank=(0, 1, 2)),
        Int("correction", 1),
        Tensor("fweights", optional=True, rank=(0, 1)),
        Tensor("aweights", optional=True, rank=(0, 1)),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        if a.input.dtype.kind != "f":
            raise ShapeError(f"the input is {a.input.dtype}, expected float32")
        count = a.input.shape[-1] if a.input.rank else 1
        for name in ("fweights", "aweights"):
            weights = getattr(a, name)
            if weights is not None and weights.size != count:
                raise ShapeError(f"'{name}' has shape {weights.shape}, expected ({count},)")
        rows = a.input.shape[0] if a.input.rank == 2 else None
        return TensorSpec(() if rows is None else (rows, rows), a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> typing.Any:
        x = np.atleast_2d(a.input).astype(np.float64)
        # As np.cov, which would warn where there are no more observations than the correction.
        ones = np.ones(x.shape[1])
        important = ones if a.aweights is None else np.atleast_1d(a.aweights)
        weights = important * (ones if a.fweights is None else np.atleast_1d(a.fweights))
        if (important < 0).any() or (weights < 0).any():
            raise ShapeError("a weight is negative")
        total = weights.sum()
        off = x - (x * weights).sum(1, keepdims=True) / total
        less = a.correction * (weights * important).sum() / total
        y = (off * weights) @ off.T / np.maximum(total - less, 0.0)
        return y.reshape(x.shape[:1] * 2 if a.input.ndim == 2 else ())


@record("aten::corrcoef")
class Correlation(NumpyRecord):
    """The correlations of rows of observations.

    Source: torch.corrcoef.
    """

    batch = NoBatchRule("it compares all rows")
    arguments = (Tensor("input", rank=(0, 1, 2)),)

    @staticmethod
    def result(a: SimpleNamespace) -> typing.Any:
        return Covariance.result(SimpleNamespace(input=a.input, fweights=None, aweights=None))

    @staticmethod
    def compute(a: SimpleNamespace) -> typing.Any:
        x = np.atleast_2d(a.input).astype(np.float64)
        # As np.corrcoef, which would warn where there is one observation or none.
        off = x - x.sum(1, keepdims=True) / x.shape[1]
        sums = off @ off.T
        roots = np.sqrt(np.diag(sums))
        y = np.clip(sums / roots[:, None] / roots, -1.0, 1.0)
        return y.reshape(x.shape[:1] * 2 if a.input.ndim == 2 else ())


# -- integrals and slopes ----------------------------------------------------------------------


class _Trapezoids(Overloaded):
    """Base of the sums of trapezoids; their widths are the differences of `x`, or `dx`."""

    batch = NoBatchRule("rare: no known export uses it with another batch")
    overloads = (
        (Tensor("y"), Tensor("x"), Int("dim", -1)),
        (Tensor("y"), Scalar("dx", 1), Int("dim", -1)),
    )

    @staticmethod
    def _axis(a: SimpleNamespace) -> int:
        axis = axis_of(a.dim, a.y.shape)
        x = getattr(a, "x", None)
        if x is not None:
            fits = x.rank > 0 and (
                x.shape == (a.y.shape[axis],)
                if x.rank == 1
                else x.rank == a.y.rank and x.shape[axis] == a.y.shape[axis]
            )
            if not fits:
                raise ShapeError(f"'x' has shape {x.shape}, which does not go with {a.y.shape}")
            if x.rank > 1:
                broadcast(x, a.y)
        return axis

    @staticmethod
    def _dtype(a: SimpleNamespace) -> np.dtype:
        dtype = result_type([a.y] if getattr(a, "x", None) is None else [a.y, a.x])
        return np.dtype(np.float32) if dtype.kind in "biu" else dtype

    @staticmethod
    def _shape(a: SimpleNamespace) -> list[int]:
        x = getattr(a, "x", None)
        return list(broadcast(a.y, x) if x is not None and x.rank > 1 else a.y.shape)

    @staticmethod
    def areas(a: SimpleNamespace) -> np.ndarray:
        """Return the area between each pair of neighbours."""
        y = np.moveaxis(a.y, a.dim, -1)
        widths = getattr(a, "dx", None)
        if widths is None:
            x = a.x if a.x.ndim == 1 else np.moveaxis(a.x, a.dim, -1)
            widths = np.diff(x, axis=-1)
        return (y[..., 1:] + y[..., :-1]) * widths / 2


@record("aten::trapezoid", "aten::trapz")
class Trapezoid(_Trapezoids):
    """The integral along an axis, by trapezoids.

    Source: torch.trapezoid.
    """

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        axis, shape = cls._axis(a), cls._shape(a)
        del shape[axis]
        return TensorSpec(shape, cls._dtype(a))

    @classmethod
    def compute(cls, a: SimpleNamespace) -> typing.Any:
        return cls.areas(a).sum(-1)


@record("aten::cumulative_trapezoid")
class CumulativeTrapezoid(_Trapezoids):
    """The integral along an axis up to each place but the first, by trapezoids.

    Source: torch.cumulative_trapezoid.
    """

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        axis, shape = cls._axis(a), cls._shape(a)
        shape[axis] = max(shape[axis] - 1, 0)
        return TensorSpec(shape, cls._dtype(a))

    @classmethod
    def compute(cls, a: SimpleNamespace) -> typing.Any:
        return np.moveaxis(np.cumsum(cls.areas(a), axis=-1), -1, a.dim)
