"""Reductions over axes, scans, and what picks elements by size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from kuiper._kernels.data.order import EXTREME_DTYPES, SCAN_DTYPES, ExtremeStep, ScanStep
from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import axes_of, axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import deviation, mean, variance
from kuiper.ops.core.record import Record, T, record
from kuiper.ops.core.rows import as_rows, bind_reduction, lines_of, memory_order
from kuiper.ops.core.schema import AnyArgument, Bool, Int, Ints, Known, Scalar, Tensor
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


class _Reduction(Record[T]):
    """A reduction over the axes `dim`, all of them where it is absent."""

    batch = "reduction"
    input: T = Tensor()
    dim: tuple[int, ...] | None = Ints(default=None, nullable=True)
    keepdim: bool = Bool(False)
    dtype: Any = AnyArgument(None)
    kind: ClassVar[str] = "sum"
    # What numpy makes of the other dtypes.
    function: ClassVar[Callable[..., Any]] = np.sum
    only_floats: ClassVar[bool] = False
    widens_integers: ClassVar[bool] = False  # to int64
    of_nothing: ClassVar[bool] = True  # whether a reduction of no elements has a value

    def _axes(self: _Reduction[Known]) -> tuple[int, ...]:
        if self.dim is None or self.dim == ():
            return tuple(range(self.input.rank))
        # A 0-d tensor has no axis, but PyTorch lets it be reduced over axis 0 or -1.
        return axes_of(self.dim, self.input.shape or (1,)) if self.input.rank else ()

    def infer(self: _Reduction[TensorSpec]) -> Any:
        return self._spec()

    def _spec(self: _Reduction[TensorSpec]) -> TensorSpec:
        axes, shape, dtype = self._axes(), self.input.shape, self.input.dtype
        if self.only_floats and dtype.kind not in "fc":
            raise ShapeError(f"the input is {dtype}, expected float32")
        if not self.of_nothing and math.prod(shape[d] for d in axes) == 0:
            raise ShapeError(f"the input has shape {shape}, nothing to reduce along {axes}")
        if self.widens_integers and dtype.kind in "biu":
            dtype = np.dtype(np.int64)
        return TensorSpec(_reduced_shape(shape, axes, self.keepdim), dtype)

    def bind(self: _Reduction[TensorView], b: Binder) -> None:
        self._bind(b, self.kind, type(self).function)

    def _bind(
        self: _Reduction[TensorView],
        b: Binder,
        kind: str | None,
        function: Callable[..., Any],
        correction: float = 0.0,
    ) -> None:
        axes, x = self._axes(), self.input
        if b.output_spec().size == 0:
            b.output()
            return
        if x.dtype != np.float32 or kind is None:
            b.python(
                lambda array: function(array, axis=axes, keepdims=self.keepdim), [x], [b.output()]
            )
            return
        bind_reduction(b, x, axes, self.keepdim, kind, correction)


def _reduced_shape(shape: Sequence[int], axes: Sequence[int], keepdim: bool) -> list[int]:
    if keepdim:
        return [1 if d in axes else n for d, n in enumerate(shape)]
    return [n for d, n in enumerate(shape) if d not in axes]


@record("torch.sum")
class Sum(_Reduction[T]):
    """The sum; integers and booleans add up in int64.

    Source: torch.sum.
    """

    widens_integers: ClassVar[bool] = True


@record("torch.mean")
class Mean(_Reduction[T]):
    """The arithmetic mean.

    Source: torch.mean.
    """

    kind: ClassVar[str] = "mean"
    function: ClassVar[Callable[..., Any]] = staticmethod(mean)
    only_floats: ClassVar[bool] = True


@record("torch.prod")
class Prod(_Reduction[T]):
    """The product; integers and booleans multiply in int64.

    Source: torch.prod.
    """

    kind: ClassVar[str] = "prod"
    function: ClassVar[Callable[..., Any]] = np.prod
    widens_integers: ClassVar[bool] = True


@record("torch.amax")
class AMax(_Reduction[T]):
    """The maximum; NaN where there is one.

    Source: torch.amax.
    """

    kind: ClassVar[str] = "max"
    function: ClassVar[Callable[..., Any]] = np.max
    of_nothing: ClassVar[bool] = False


@record("torch.amin")
class AMin(_Reduction[T]):
    """The minimum; NaN where there is one.

    Source: torch.amin.
    """

    kind: ClassVar[str] = "min"
    function: ClassVar[Callable[..., Any]] = np.min
    of_nothing: ClassVar[bool] = False


@record("torch.logsumexp")
class LogSumExp(_Reduction[T]):
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
class Var(_Reduction[T]):
    """The variance, ``sum((x - mean) ** 2) / (n - correction)``; `unbiased` is a correction of 1.

    Source: torch.var.
    """

    dtype = None
    unbiased: float | None = Scalar(None, nullable=True)
    correction: float | None = Scalar(None, nullable=True)
    kind: ClassVar[str] = "var"
    function: ClassVar[Callable[..., Any]] = staticmethod(variance)
    only_floats: ClassVar[bool] = True

    def _correction(self) -> float:
        # pnnx writes a correction of 2 as unbiased=2.
        given = self.unbiased if self.correction is None else self.correction
        return 1.0 if given is None else float(given)

    def bind(self: Var[TensorView], b: Binder) -> None:
        less = self._correction()

        def with_correction(array: Any, **where: Any) -> Any:
            return type(self).function(array, ddof=less, **where)

        self._bind(b, self.kind, with_correction, less)


@record("torch.std")
class Std(Var[T]):
    """The root of the variance.

    Source: torch.std.
    """

    kind: ClassVar[str] = "std"
    function: ClassVar[Callable[..., Any]] = staticmethod(deviation)


@record("torch.norm")
class Norm(_Reduction[T], ahead=True):
    """The p-norm, ``sum(abs(x) ** p) ** (1 / p)``; `fro` is 2, `inf` the largest absolute value.

    Source: torch.norm.
    """

    input: T = Tensor()
    p: Any = AnyArgument(2.0)
    only_floats: ClassVar[bool] = True
    kinds: ClassVar[dict[Any, Any]] = {
        1.0: "norm1",
        2.0: "norm2",
        math.inf: "norm_inf",
        -math.inf: "norm_minus_inf",
    }

    def infer(self: Norm[TensorSpec]) -> Any:
        norm_power(self.p)
        return super().infer()

    def bind(self: Norm[TensorView], b: Binder) -> None:
        p = norm_power(self.p)
        self._bind(b, self.kinds.get(p), partial(norm_of, p=p))


def norm_power(p: Any) -> float:
    """Return the p of a p-norm, which may be a word."""
    try:
        return 2.0 if p in (None, "fro") else float(p)
    except (TypeError, ValueError):
        raise ShapeError(f"'p' is {p!r}, expected a number, fro or inf") from None


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


class _Extreme(_Reduction[T]):
    """The greatest or least element, and along one axis its place."""

    dim: tuple[int, ...] | None = Ints(length=1, default=None, nullable=True)
    dtype = None
    of_nothing: ClassVar[bool] = False
    place: ClassVar[Callable[..., Any]] = np.argmax
    is_min: ClassVar[bool] = False

    def infer(self: _Extreme[TensorSpec]) -> Any:
        spec = super().infer()
        if self.n_outputs > 1 and not self.dim:
            raise ShapeError(
                "there are places to be found as well, but no 'dim' to find them along"
            )
        return (spec, TensorSpec(spec.shape, np.int64)) if self.n_outputs > 1 else spec

    def bind(self: _Extreme[TensorView], b: Binder) -> None:
        if self.n_outputs == 1:
            super().bind(b)
            return
        axes = self._axes()
        axis = axes[0] if axes else None
        if self._has_kernel(self.input):
            self._find(self.input, axis, b, b.output(0), b.output(1))
            return

        def both(array: Any) -> Any:
            places = type(self).place(array, axis=axis, keepdims=self.keepdim)
            return type(self).function(array, axis=axis, keepdims=self.keepdim), places

        b.python(both, [self.input], [b.output(0), b.output(1)])

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
class Max(_Extreme[T]):
    """The maximum, and with `dim` the place of the first one along that axis.

    Source: torch.max.
    """

    kind: ClassVar[str] = "max"
    function: ClassVar[Callable[..., Any]] = np.max


@record("torch.min")
class Min(_Extreme[T]):
    """The minimum, and with `dim` the place of the first one along that axis.

    Source: torch.min.
    """

    kind: ClassVar[str] = "min"
    function: ClassVar[Callable[..., Any]] = np.min
    place: ClassVar[Callable[..., Any]] = np.argmin
    is_min: ClassVar[bool] = True


@record("torch.argmax")
class ArgMax(_Extreme[T]):
    """The place of the first maximum along `dim`, or in the flattened tensor.

    Source: torch.argmax.
    """

    def infer(self: ArgMax[TensorSpec]) -> TensorSpec:
        return TensorSpec(self._spec().shape, np.int64)

    def bind(self: ArgMax[TensorView], b: Binder) -> None:
        axis = self._axes()[0] if self.dim is not None and self.input.rank else None
        if self._has_kernel(self.input):
            self._find(self.input, axis, b, None, b.output())
            return
        b.python(
            lambda array: type(self).place(array, axis=axis, keepdims=self.keepdim),
            [self.input],
            [b.output()],
        )


@record("torch.argmin")
class ArgMin(ArgMax[T]):
    """The place of the first minimum along `dim`, or in the flattened tensor.

    Source: torch.argmin.
    """

    place: ClassVar[Callable[..., Any]] = np.argmin
    is_min: ClassVar[bool] = True


@record("torch.topk")
class TopK(Record[T]):
    """The `k` largest or smallest elements along an axis, in order, and their places.

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
            # Of one element PyTorch gives it, even where k is 0.
            b.alias(self.input)
            if self.n_outputs > 1:
                b.alias(b.constant(np.zeros((), np.int64)), 1)
            return
        axis = axis_of(self.dim, self.input.shape)
        if can_sort(self.input, axis):
            places = b.output(1) if self.n_outputs > 1 else None
            sort_lines(b, self.input, axis, self.k, self.largest, b.output(0), places)
            return

        def topk(array: Any) -> Any:
            order = sorted_places(array, axis, self.largest)
            places = np.take(order, np.arange(self.k), axis=axis)
            return np.take_along_axis(array, places, axis=axis), places

        outputs = [b.output(index) for index in range(self.n_outputs)]
        b.python(lambda array: topk(array)[: self.n_outputs], [self.input], outputs)


class _Scan(Record[T]):
    """A running sum or product along an axis."""

    batch = "along_axes"
    input: T = Tensor()
    dim: int = Int()
    dtype: Any = AnyArgument(None)
    function: ClassVar[Callable[..., Any]] = np.cumsum

    def infer(self: _Scan[TensorSpec]) -> TensorSpec:
        axis_of(self.dim, self.input.shape or (1,))
        dtype = np.int64 if self.input.dtype.kind in "biu" else self.input.dtype
        return TensorSpec(self.input.shape, dtype)

    def bind(self: _Scan[TensorView], b: Binder) -> None:
        dtype = b.output_spec().dtype
        if self.input.dtype.name in SCAN_DTYPES and self.input.rank:
            rows = lines_of(self.input.shape, axis_of(self.dim, self.input.shape))
            x, y = b.contiguous(self.input), b.output()
            b.step(ScanStep(x.view(rows), y.view(rows), type(self).function is np.cumprod))
            return

        def scan(array: Any) -> Any:
            if array.ndim == 0:
                return array
            # float32 sums that run over thousands of terms keep their digits in float64.
            inner = np.float64 if array.dtype.kind == "f" else dtype
            return type(self).function(array, axis=self.dim, dtype=inner)

        b.python(scan, [self.input], [b.output()])


@record("torch.cumsum")
class CumSum(_Scan[T]):
    """The running sum along an axis.

    Source: torch.cumsum.
    """


@record("torch.cumprod")
class CumProd(_Scan[T]):
    """The running product along an axis.

    Source: torch.cumprod.
    """

    function: ClassVar[Callable[..., Any]] = np.cumprod
