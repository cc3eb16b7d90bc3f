"""Reductions over axes, scans, and what picks elements by size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from kuiper._kernels.data.order import EXTREME_DTYPES, SCAN_DTYPES, ExtremeStep, ScanStep
from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import axes_of, axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import deviation, mean, variance
from kuiper.ops.core.record import Record, record
from kuiper.ops.core.rows import as_rows, bind_reduction, lines_of, memory_order
from kuiper.ops.core.schema import AnyArgument, Argument, Bool, Int, Ints, Scalar, Tensor
from kuiper.ops.math.sorting import can_sort, sort_lines, sorted_places

__all__ = [
    "AMax",
    "AMin",
    "ArgMax",
    "ArgMin",
    "CumProd",
    "CumSum",
    "LogSumExp",
    "Max",
    "Mean",
    "Min",
    "Norm",
    "Prod",
    "Std",
    "Sum",
    "TopK",
    "Var",
]


class _Reduction(Record):
    """A reduction over the axes `dim`, all of them where it is absent."""

    batch = "reduction"
    arguments: tuple[Argument, ...] = (
        Tensor("input"),
        Ints("dim", default=None, nullable=True),
        Bool("keepdim", False),
        AnyArgument("dtype", None),
    )
    kind: ClassVar[str] = "sum"
    # What numpy makes of the other dtypes.
    function: ClassVar[Callable[..., Any]] = np.sum
    only_floats: ClassVar[bool] = False
    widens_integers: ClassVar[bool] = False  # to int64
    of_nothing: ClassVar[bool] = True  # whether a reduction of no elements has a value

    @classmethod
    def _axes(cls, a: SimpleNamespace) -> tuple[int, ...]:
        if a.dim is None or a.dim == ():
            return tuple(range(a.input.rank))
        # A 0-d tensor has no axis, but PyTorch lets it be reduced over axis 0 or -1.
        return axes_of(a.dim, a.input.shape or (1,)) if a.input.rank else ()

    @classmethod
    def infer(cls, a: SimpleNamespace) -> Any:
        return cls._spec(a)

    @classmethod
    def _spec(cls, a: SimpleNamespace) -> TensorSpec:
        axes, shape, dtype = cls._axes(a), a.input.shape, a.input.dtype
        if cls.only_floats and dtype.kind not in "fc":
            raise ShapeError(f"the input is {dtype}, expected float32")
        if not cls.of_nothing and math.prod(shape[d] for d in axes) == 0:
            raise ShapeError(f"the input has shape {shape}, nothing to reduce along {axes}")
        if cls.widens_integers and dtype.kind in "biu":
            dtype = np.dtype(np.int64)
        return TensorSpec(_reduced_shape(shape, axes, a.keepdim), dtype)

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        cls._bind(a, b, cls.kind, cls.function)

    @classmethod
    def _bind(
        cls,
        a: SimpleNamespace,
        b: Binder,
        kind: str | None,
        function: Callable[..., Any],
        correction: float = 0.0,
    ) -> None:
        axes, x = cls._axes(a), a.input
        if b.output_spec().size == 0:
            b.output()
            return
        if x.dtype != np.float32 or kind is None:
            b.python(
                lambda array: function(array, axis=axes, keepdims=a.keepdim), [x], [b.output()]
            )
            return
        bind_reduction(b, x, axes, a.keepdim, kind, correction)


def _reduced_shape(shape: Sequence[int], axes: Sequence[int], keepdim: bool) -> list[int]:
    if keepdim:
        return [1 if d in axes else n for d, n in enumerate(shape)]
    return [n for d, n in enumerate(shape) if d not in axes]


@record("torch.sum")
class Sum(_Reduction):
    """The sum; integers and booleans add up in int64.

    Source: torch.sum.
    """

    widens_integers: ClassVar[bool] = True


@record("torch.mean")
class Mean(_Reduction):
    """The arithmetic mean.

    Source: torch.mean.
    """

    kind: ClassVar[str] = "mean"
    function: ClassVar[Callable[..., Any]] = staticmethod(mean)
    only_floats: ClassVar[bool] = True


@record("torch.prod")
class Prod(_Reduction):
    """The product; integers and booleans multiply in int64.

    Source: torch.prod.
    """

    kind: ClassVar[str] = "prod"
    function: ClassVar[Callable[..., Any]] = np.prod
    widens_integers: ClassVar[bool] = True


@record("torch.amax")
class AMax(_Reduction):
    """The maximum; NaN where there is one.

    Source: torch.amax.
    """

    kind: ClassVar[str] = "max"
    function: ClassVar[Callable[..., Any]] = np.max
    of_nothing: ClassVar[bool] = False


@record("torch.amin")
class AMin(_Reduction):
    """The minimum; NaN where there is one.

    Source: torch.amin.
    """

    kind: ClassVar[str] = "min"
    function: ClassVar[Callable[..., Any]] = np.min
    of_nothing: ClassVar[bool] = False


@record("torch.logsumexp")
class LogSumExp(_Reduction):
    """``log(sum(exp(x)))``, shifted by the maximum so that nothing overflows.

    Source: torch.logsumexp.
    """

    kind: ClassVar[str] = "logsumexp"
    only_floats: ClassVar[bool] = True

    @staticmethod
    def function(array: Any, axis: Any, keepdims: Any) -> Any:
        """Compute it for float64."""
        return np.logaddexp.reduce(array, axis=axis, keepdims=keepdims)


@record("torch.var")
class Var(_Reduction):
    """The variance, ``sum((x - mean) ** 2) / (n - correction)``; `unbiased` is a correction of 1.

    Source: torch.var.
    """

    arguments = (
        *_Reduction.arguments[:3],
        Scalar("unbiased", None, nullable=True),
        Scalar("correction", None, nullable=True),
    )
    kind: ClassVar[str] = "var"
    function: ClassVar[Callable[..., Any]] = staticmethod(variance)
    only_floats: ClassVar[bool] = True

    @staticmethod
    def correction(a: SimpleNamespace) -> float:
        # pnnx writes a correction of 2 as unbiased=2.
        given = a.unbiased if a.correction is None else a.correction
        return 1.0 if given is None else float(given)

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        less = cls.correction(a)

        def with_correction(array: Any, **where: Any) -> Any:
            return cls.function(array, ddof=less, **where)

        cls._bind(a, b, cls.kind, with_correction, less)


@record("torch.std")
class Std(Var):
    """The root of the variance.

    Source: torch.std.
    """

    kind: ClassVar[str] = "std"
    function: ClassVar[Callable[..., Any]] = staticmethod(deviation)


@record("torch.norm")
class Norm(_Reduction):
    """The p-norm, ``sum(abs(x) ** p) ** (1 / p)``; `fro` is 2, `inf` the largest absolute value.

    Source: torch.norm.
    """

    arguments: tuple[Argument, ...] = (
        Tensor("input"),
        AnyArgument("p", 2.0),
        *_Reduction.arguments[1:],
    )
    only_floats: ClassVar[bool] = True
    kinds: ClassVar[dict[Any, Any]] = {
        1.0: "norm1",
        2.0: "norm2",
        math.inf: "norm_inf",
        -math.inf: "norm_minus_inf",
    }

    @staticmethod
    def power(a: SimpleNamespace) -> float:
        try:
            return 2.0 if a.p in (None, "fro") else float(a.p)
        except (TypeError, ValueError):
            raise ShapeError(f"'p' is {a.p!r}, expected a number, fro or inf") from None

    @classmethod
    def infer(cls, a: SimpleNamespace) -> Any:
        cls.power(a)
        return super().infer(a)

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        p = cls.power(a)
        cls._bind(a, b, cls.kinds.get(p), partial(norm_of, p=p))


def norm_of(array: np.ndarray, p: float, axis: Any, keepdims: bool) -> np.ndarray:
    """Return the p-norm over some axes, for any p and dtype."""
    size = np.abs(array)
    if math.isinf(p):
        return (np.max if p > 0 else np.min)(size, axis=axis, keepdims=keepdims)
    if p == 0:
        return np.count_nonzero(size, axis=axis, keepdims=keepdims)
    total = (size.astype(np.float64) ** p).sum(axis=axis, keepdims=keepdims)
    return total ** (1 / p)


# -- places ------------------------------------------------------------------------------------


class _Extreme(_Reduction):
    """The greatest or least element, and along one axis its place."""

    arguments = (
        Tensor("input"),
        Ints("dim", length=1, default=None, nullable=True),
        Bool("keepdim", False),
    )
    of_nothing: ClassVar[bool] = False
    place: ClassVar[Callable[..., Any]] = np.argmax
    is_min: ClassVar[bool] = False

    @classmethod
    def infer(cls, a: SimpleNamespace) -> Any:
        spec = super().infer(a)
        if a.n_outputs > 1 and not a.dim:
            raise ShapeError(
                "there are places to be found as well, but no 'dim' to find them along"
            )
        return (spec, TensorSpec(spec.shape, np.int64)) if a.n_outputs > 1 else spec

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        if a.n_outputs == 1:
            super().bind(a, b)
            return
        axes = cls._axes(a)
        axis = axes[0] if axes else None
        if cls._has_kernel(a.input):
            cls._find(a.input, axis, b, b.output(0), b.output(1))
            return

        def both(array: Any) -> Any:
            places = cls.place(array, axis=axis, keepdims=a.keepdim)
            return cls.function(array, axis=axis, keepdims=a.keepdim), places

        b.python(both, [a.input], [b.output(0), b.output(1)])

    @staticmethod
    def _has_kernel(x: TensorView) -> bool:
        return x.dtype.name in EXTREME_DTYPES and x.size < MAX_EXTENT

    @classmethod
    def _find(
        cls,
        x: TensorView,
        axis: int | None,
        b: Binder,
        values: TensorView | None,
        places: TensorView,
    ) -> None:
        """Add the step that looks along one axis, or through the whole tensor (None)."""
        if places.size == 0:
            return
        rows = None
        if axis is None:
            rows = b.contiguous(x).view((1, x.size, 1))
        else:
            order = memory_order(x)
            kept = [d for d in order if d != axis and x.shape[d] != 1]
            if kept == sorted(kept):  # else results would not be in C order
                rows = as_rows(x, order, [axis])
        if rows is None:
            axis = axis or 0
            shape = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
            rows = b.contiguous(x).view(shape)
        b.step(ExtremeStep(rows, values, places, cls.is_min))


# Places are counted with 32 bits.
MAX_EXTENT = 1 << 31


@record("torch.max")
class Max(_Extreme):
    """The maximum, and with `dim` the place of the first one along that axis.

    Source: torch.max.
    """

    kind: ClassVar[str] = "max"
    function: ClassVar[Callable[..., Any]] = np.max


@record("torch.min")
class Min(_Extreme):
    """The minimum, and with `dim` the place of the first one along that axis.

    Source: torch.min.
    """

    kind: ClassVar[str] = "min"
    function: ClassVar[Callable[..., Any]] = np.min
    place: ClassVar[Callable[..., Any]] = np.argmin
    is_min: ClassVar[bool] = True


@record("torch.argmax")
class ArgMax(_Extreme):
    """The place of the first maximum along `dim`, or in the flattened tensor.

    Source: torch.argmax.
    """

    @classmethod
    def infer(cls, a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(cls._spec(a).shape, np.int64)

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        axis = cls._axes(a)[0] if a.dim is not None and a.input.rank else None
        if cls._has_kernel(a.input):
            cls._find(a.input, axis, b, None, b.output())
            return
        b.python(
            lambda array: cls.place(array, axis=axis, keepdims=a.keepdim), [a.input], [b.output()]
        )


@record("torch.argmin")
class ArgMin(ArgMax):
    """The place of the first minimum along `dim`, or in the flattened tensor.

    Source: torch.argmin.
    """

    place: ClassVar[Callable[..., Any]] = np.argmin
    is_min: ClassVar[bool] = True


@record("torch.topk")
class TopK(Record):
    """The `k` largest or smallest elements along an axis, in order, and their places.

    Source: torch.topk.
    """

    batch = "along_axes"
    arguments = (
        Tensor("input"),
        Int("k", minimum=0),
        Int("dim", -1),
        Bool("largest", True),
        Bool("sorted", True),
    )

    @staticmethod
    def infer(a: SimpleNamespace) -> Any:
        extents = a.input.shape or (1,)
        axis = axis_of(a.dim, extents)
        if a.k > extents[axis]:
            raise ShapeError(
                f"'k' is {a.k}, expected at most {extents[axis]}, the extent of axis {axis} "
                f"of an input of shape {a.input.shape}"
            )
        shape = (*extents[:axis], a.k, *extents[axis + 1 :]) if a.input.rank else ()
        return TensorSpec(shape, a.input.dtype), TensorSpec(shape, np.int64)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        if a.input.rank == 0:
            # Of one element PyTorch gives it, even where k is 0.
            b.alias(a.input)
            if a.n_outputs > 1:
                b.alias(b.constant(np.zeros((), np.int64)), 1)
            return
        axis = axis_of(a.dim, a.input.shape)
        if can_sort(a.input, axis):
            places = b.output(1) if a.n_outputs > 1 else None
            sort_lines(b, a.input, axis, a.k, a.largest, b.output(0), places)
            return

        def topk(array: Any) -> Any:
            order = sorted_places(array, axis, a.largest)
            places = np.take(order, np.arange(a.k), axis=axis)
            return np.take_along_axis(array, places, axis=axis), places

        outputs = [b.output(index) for index in range(a.n_outputs)]
        b.python(lambda array: topk(array)[: a.n_outputs], [a.input], outputs)


class _Scan(Record):
    """A running sum or product along an axis."""

    batch = "along_axes"
    arguments = (Tensor("input"), Int("dim"), AnyArgument("dtype", None))
    function: ClassVar[Callable[..., Any]] = np.cumsum

    @classmethod
    def infer(cls, a: SimpleNamespace) -> TensorSpec:
        axis_of(a.dim, a.input.shape or (1,))
        dtype = np.int64 if a.input.dtype.kind in "biu" else a.input.dtype
        return TensorSpec(a.input.shape, dtype)

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        dtype = b.output_spec().dtype
        if a.input.dtype.name in SCAN_DTYPES and a.input.rank:
            rows = lines_of(a.input.shape, axis_of(a.dim, a.input.shape))
            x, y = b.contiguous(a.input), b.output()
            b.step(ScanStep(x.view(rows), y.view(rows), cls.function is np.cumprod))
            return

        def scan(array: Any) -> Any:
            if array.ndim == 0:
                return array
            # float32 sums that run over thousands of terms keep their digits in float64.
            inner = np.float64 if array.dtype.kind == "f" else dtype
            return cls.function(array, axis=a.dim, dtype=inner)

        b.python(scan, [a.input], [b.output()])


@record("torch.cumsum")
class CumSum(_Scan):
    """The running sum along an axis.

    Source: torch.cumsum.
    """


@record("torch.cumprod")
class CumProd(_Scan):
    """The running product along an axis.

    Source: torch.cumprod.
    """

    function: ClassVar[Callable[..., Any]] = np.cumprod
