"""Reductions over axes: sums, means, deviations, norms and extremes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np

from kuiper._kernels.data.order import EXTREME_DTYPES, ExtremeStep
from kuiper._kernels.spatial import pool_windows
from kuiper._kernels.spatial.pool import PoolStep
from kuiper.errors import ShapeError
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import TensorSpec, TensorView, channels_last_strides
from kuiper.ops.core.axes import reduced_axes, reduced_shape
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import deviation, mean, variance
from kuiper.ops.core.record import FOLLOWS, Record, T, record
from kuiper.ops.core.rows import MAX_EXTENT, as_rows, bind_reduction, lines_of, memory_order
from kuiper.ops.core.schema import AnyArgument, Bool, Ints, Known, Scalar, Tensor

FLOAT32 = np.dtype(np.float32)

__all__ = ["ArgMax", "Max", "Mean", "Norm", "Sum", "Var", "norm_of", "norm_power"]


class _Reduction(Record[T]):
    """Base of the reductions over the axes `dim`, by default over all."""

    batch = "reduction"
    input: T = Tensor()
    dim: tuple[int, ...] | None = Ints(default=None, nullable=True)
    keepdim: bool = Bool(False)
    dtype: Any = AnyArgument(None)
    kind: ClassVar[str] = "sum"
    function: ClassVar[Callable[..., Any]] = np.sum  # for the dtypes that have no kernel
    only_floats: ClassVar[bool] = False
    widens_integers: ClassVar[bool] = False  # to int64
    of_nothing: ClassVar[bool] = True  # whether a reduction over no elements has a value

    def _axes(self: _Reduction[Known]) -> tuple[int, ...]:
        return reduced_axes(self.dim, self.input.shape)

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
        return TensorSpec(reduced_shape(shape, axes, self.keepdim), dtype)

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

    takes_means = True
    bfloat16 = FOLLOWS
    kind: ClassVar[str] = "mean"
    function: ClassVar[Callable[..., Any]] = staticmethod(mean)
    only_floats: ClassVar[bool] = True

    def bind(self: Mean[TensorView], b: Binder) -> None:
        x, axes = self.input, self._axes()
        dtypes = x.dtype, b.output_dtype()
        if BFLOAT16 not in dtypes or not x.size:
            super().bind(b)
        elif dtypes == (BFLOAT16, BFLOAT16) and x.rank == 4 and sorted(axes) == [2, 3]:
            y = b.output()
            windows = [pool_windows.adaptive_windows(n, 1) for n in (1, *x.shape[2:])]
            shape = (*x.shape[:2], 1, 1)
            image = y.with_layout(shape, channels_last_strides(shape, y.strides[0]))
            scratch = b.scratch(pool_windows.scratch_bytes(windows))
            b.step(PoolStep(b.channels_last(x), image, windows, "mean", scratch, None, 0))
        else:
            wide = bind_reduction(
                b, b.stored(x, FLOAT32), axes, self.keepdim, "mean", is_output=False
            )
            b.copy(wide, b.output())


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
    """The maximum; NaN if any element is NaN.

    Source: torch.amax.
    """

    kind: ClassVar[str] = "max"
    function: ClassVar[Callable[..., Any]] = np.max
    of_nothing: ClassVar[bool] = False


@record("torch.amin")
class AMin(_Reduction[T]):
    """The minimum; NaN if any element is NaN.

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
    function: ClassVar[Callable[..., Any]] = np.logaddexp.reduce
    only_floats: ClassVar[bool] = True


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

    def bind(self: Var[TensorView], b: Binder) -> None:
        # pnnx writes a correction of 2 as unbiased=2.
        given = self.unbiased if self.correction is None else self.correction
        correction = 1.0 if given is None else float(given)
        function = partial(type(self).function, ddof=correction)
        self._bind(b, self.kind, function, correction)


@record("torch.std")
class Std(Var[T]):
    """The standard deviation: the root of the variance.

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
    """Return the p of a p-norm as a number, or raise ShapeError."""
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


# -- extremes and their indices ----------------------------------------------------------------


class _Extreme(_Reduction[T]):
    """Base of the maximum and minimum, with their index along one axis."""

    dim: tuple[int, ...] | None = Ints(length=1, default=None, nullable=True)
    dtype = None
    of_nothing: ClassVar[bool] = False
    find: ClassVar[Callable[..., Any]] = np.argmax
    is_min: ClassVar[bool] = False

    def infer(self: _Extreme[TensorSpec]) -> Any:
        spec = super().infer()
        if self.n_outputs > 1 and not self.dim:
            raise ShapeError("'dim' is missing, expected the axis of the second output's indices")
        return (spec, TensorSpec(spec.shape, np.int64)) if self.n_outputs > 1 else spec

    def bind(self: _Extreme[TensorView], b: Binder) -> None:
        if self.n_outputs == 1:
            super().bind(b)
            return
        axes = self._axes()
        axis = axes[0] if axes else None
        if self._has_kernel(self.input):
            self._bind_kernel(b, axis, b.output(0), b.output(1))
            return

        def both(array: Any) -> Any:
            where = {"axis": axis, "keepdims": self.keepdim}
            return type(self).function(array, **where), type(self).find(array, **where)

        b.python(both, [self.input], [b.output(0), b.output(1)])

    @staticmethod
    def _has_kernel(x: TensorView) -> bool:
        return x.dtype.name in EXTREME_DTYPES and x.size < MAX_EXTENT

    def _bind_kernel(
        self: _Extreme[TensorView],
        b: Binder,
        axis: int | None,
        values: TensorView | None,
        indices: TensorView,
    ) -> None:
        """Add the step that searches along one axis, or the whole tensor (None)."""
        if indices.size == 0:
            return
        x, rows = self.input, None
        if axis is None:
            rows = b.contiguous(x).view((1, x.size, 1))
        else:
            order = memory_order(x)
            kept = [d for d in order if d != axis and x.shape[d] != 1]
            if kept == sorted(kept):  # else results would not be in C order
                rows = as_rows(x, order, [axis])
        if rows is None:
            rows = b.contiguous(x).view(lines_of(x.shape, axis or 0))
        b.step(ExtremeStep(rows, values, indices, self.is_min))


@record("torch.max")
class Max(_Extreme[T]):
    """The maximum, and with `dim` its first index along that axis.

    Source: torch.max.
    """

    kind: ClassVar[str] = "max"
    function: ClassVar[Callable[..., Any]] = np.max


@record("torch.min")
class Min(_Extreme[T]):
    """The minimum, and with `dim` its first index along that axis.

    Source: torch.min.
    """

    kind: ClassVar[str] = "min"
    function: ClassVar[Callable[..., Any]] = np.min
    find: ClassVar[Callable[..., Any]] = np.argmin
    is_min: ClassVar[bool] = True


@record("torch.argmax")
class ArgMax(_Extreme[T]):
    """The first index of the maximum along `dim`, or in the flattened tensor.

    Source: torch.argmax.
    """

    def infer(self: ArgMax[TensorSpec]) -> TensorSpec:
        return TensorSpec(self._spec().shape, np.int64)

    def bind(self: ArgMax[TensorView], b: Binder) -> None:
        axis = self._axes()[0] if self.dim is not None and self.input.rank else None
        if self._has_kernel(self.input):
            self._bind_kernel(b, axis, None, b.output())
            return
        where = {"axis": axis, "keepdims": self.keepdim}
        b.python(lambda array: type(self).find(array, **where), [self.input], [b.output()])


@record("torch.argmin")
class ArgMin(ArgMax[T]):
    """The first index of the minimum along `dim`, or in the flattened tensor.

    Source: torch.argmin.
    """

    find: ClassVar[Callable[..., Any]] = np.argmin
    is_min: ClassVar[bool] = True
