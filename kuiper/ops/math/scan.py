"""Along one axis: running sums and extremes, differences, integrals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from kuiper._kernels.data.order import (
    RUNNING_DTYPES,
    SCAN_DTYPES,
    LogSumScanStep,
    RunningExtremeStep,
    ScanStep,
)
from kuiper.errors import ShapeError
from kuiper.expression import Call, Ref
from kuiper.expression.promotion import result_type
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord, Overloaded, broadcast
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.rows import lines_of
from kuiper.ops.core.schema import AnyArgument, Int, Known, Scalar, Tensor, schema
from kuiper.ops.math.elementwise import computed, write_tree

__all__ = ["CumMax", "CumProd", "CumSum", "Diff"]


# -- running sums and extremes -----------------------------------------------------------------


class _Scan(Record[T]):
    """Base of the running sum and product along an axis."""

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
            lines = lines_of(self.input.shape, self.dim)
            x, y = b.contiguous(self.input), b.output()
            b.step(ScanStep(x.view(lines), y.view(lines), type(self).function is np.cumprod))
            return

        def scan(array: Any) -> Any:
            if array.ndim == 0:
                return array
            # A float32 sum over thousands of terms would lose digits.
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


@record("aten::logcumsumexp")
class LogCumSumExp(KernelRecord[T]):
    """The logarithm of the running sum of exponentials along an axis.

    Source: torch.logcumsumexp.
    """

    batch = "along_axes"
    input: T = Tensor()
    dim: int = Int()

    def result(self: LogCumSumExp[TensorSpec]) -> Any:
        axis_of(self.dim, self.input.shape or (1,))
        return TensorSpec(self.input.shape, self.input.dtype)

    def compute(self: LogCumSumExp[np.ndarray]) -> Any:
        x = np.atleast_1d(self.input).astype(np.float64)
        return np.logaddexp.accumulate(x, axis=self.dim).reshape(self.input.shape)

    def steps(self: LogCumSumExp[TensorView], b: Binder) -> None:
        if self.input.dtype != np.float32:
            self.in_numpy(b)
            return
        y = b.output()
        if y.size:
            lines = lines_of(self.input.shape, self.dim)
            b.step(LogSumScanStep(b.contiguous(self.input).view(lines), y.view(lines)))


@record("aten::cummax")
class CumMax(KernelRecord[T]):
    """The running maximum along an axis, and the index of its last occurrence so far.

    Source: torch.cummax.
    """

    batch = "along_axes"
    input: T = Tensor()
    dim: int = Int()
    ufunc: ClassVar[np.ufunc] = np.maximum

    def result(self: CumMax[TensorSpec]) -> Any:
        axis_of(self.dim, self.input.shape or (1,))
        shape = self.input.shape
        return TensorSpec(shape, self.input.dtype), TensorSpec(shape, np.int64)

    def compute(self: CumMax[np.ndarray]) -> Any:
        x = np.moveaxis(np.atleast_1d(self.input), self.dim, -1)
        values = type(self).ufunc.accumulate(x, axis=-1)
        reached = np.where((x == values) | (x != x), np.arange(x.shape[-1]), 0)
        indices = np.maximum.accumulate(reached, axis=-1)
        shape = self.input.shape
        return tuple(np.moveaxis(y, -1, self.dim).reshape(shape) for y in (values, indices))

    def steps(self: CumMax[TensorView], b: Binder) -> None:
        if self.input.dtype.name not in RUNNING_DTYPES:
            self.in_numpy(b)
            return
        values, *indices = (b.output(index) for index in range(self.n_outputs))
        if values.size:
            lines = lines_of(self.input.shape, self.dim)
            x, values = b.contiguous(self.input).view(lines), values.view(lines)
            found = indices[0].view(lines) if indices else None
            b.step(RunningExtremeStep(x, values, found, type(self).ufunc is np.minimum))


@record("aten::cummin")
class CumMin(CumMax[T]):
    """The running minimum along an axis, and the index of its last occurrence so far.

    Source: torch.cummin.
    """

    ufunc = np.minimum


# -- differences and integrals -----------------------------------------------------------------


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

    def _parts(self: Diff[Any]) -> list[Any]:
        return [x for x in (self.prepend, self.input, self.append) if x is not None]

    def result(self: Diff[TensorSpec]) -> TensorSpec:
        axis = axis_of(self.dim, self.input.shape)
        shape, dtype = list(self.input.shape), self.input.dtype
        for more in (self.prepend, self.append):
            if more is not None:
                rest = [n for d, n in enumerate(more.shape) if d != axis]
                fits = rest == [n for d, n in enumerate(shape) if d != axis]
                if not fits or more.rank != len(shape) or more.dtype != dtype:
                    raise ShapeError(f"cannot join {more!r} to {self.input!r} along axis {axis}")
                shape[axis] += more.shape[axis]
        shape[axis] = max(shape[axis] - self.n, 0)
        return TensorSpec(shape, dtype)

    def compute(self: Diff[np.ndarray]) -> Any:
        return np.diff(np.concatenate(self._parts(), self.dim), self.n, self.dim)

    def steps(self: Diff[TensorView], b: Binder) -> None:
        x, parts = self.input, self._parts()
        if self.n == 0 or x.dtype != np.float32 or x.size == 0:
            self.in_numpy(b)
            return
        axis = axis_of(self.dim, x.shape)
        if len(parts) > 1:
            shape = list(x.shape)
            shape[axis] = sum(part.shape[axis] for part in parts)
            x, start = b.temporary(shape), 0
            for part in parts:
                b.copy(part, x.narrow(axis, start, part.shape[axis]))
                start += part.shape[axis]
        y, tree = b.output(), Call("sub", [Ref(0), Ref(1)])
        for left in range(self.n - 1, -1, -1) if y.size else ():
            ends = [x.narrow(axis, start, x.shape[axis] - 1) for start in (1, 0)]
            if left:
                x = computed(b, tree, ends)
            else:
                write_tree(b, tree, ends, y)


class _Trapezoids(Overloaded[T]):
    """Base of the sums of trapezoids, whose widths are `dx` or the differences of `x`."""

    batch = NoBatchRule("rare: no known export uses it with another batch")
    overloads = (
        schema(y=Tensor(), x=Tensor(), dim=Int(-1)),
        schema(y=Tensor(), dx=Scalar(1), dim=Int(-1)),
    )
    y: T
    x: T
    dx: float
    dim: int

    def _spec(self: _Trapezoids[Known]) -> tuple[int, list[int], np.dtype]:
        """Return the axis, and the shape and dtype of the areas before the axis is reduced."""
        x, shape = getattr(self, "x", None), self.y.shape
        axis = axis_of(self.dim, shape)
        if x is not None:
            fits = x.shape == (shape[axis],) or (
                x.rank > 1 and x.rank == self.y.rank and x.shape[axis] == shape[axis]
            )
            if not fits:
                raise ShapeError(f"'x' has shape {x.shape}, which does not fit the {shape} of 'y'")
            shape = broadcast(x, self.y) if x.rank > 1 else shape
        dtype = result_type([self.y] if x is None else [self.y, x])
        return axis, list(shape), np.dtype(np.float32) if dtype.kind in "biu" else dtype

    def areas(self: _Trapezoids[Any]) -> np.ndarray:
        """Return the area between each pair of neighbours."""
        y = np.moveaxis(self.y, self.dim, -1)
        widths = getattr(self, "dx", None)
        if widths is None:
            x = self.x if self.x.ndim == 1 else np.moveaxis(self.x, self.dim, -1)
            widths = np.diff(x, axis=-1)
        return (y[..., 1:] + y[..., :-1]) * widths / 2


@record("aten::trapezoid", "aten::trapz")
class Trapezoid(_Trapezoids[T]):
    """The integral along an axis by the trapezoidal rule.

    Source: torch.trapezoid.
    """

    def result(self: Trapezoid[TensorSpec]) -> TensorSpec:
        axis, shape, dtype = self._spec()
        del shape[axis]
        return TensorSpec(shape, dtype)

    def compute(self: Trapezoid[np.ndarray]) -> Any:
        return self.areas().sum(-1)


@record("aten::cumulative_trapezoid")
class CumulativeTrapezoid(_Trapezoids[T]):
    """The running integral along an axis by the trapezoidal rule, from the second element on.

    Source: torch.cumulative_trapezoid.
    """

    def result(self: CumulativeTrapezoid[TensorSpec]) -> TensorSpec:
        axis, shape, dtype = self._spec()
        shape[axis] = max(shape[axis] - 1, 0)
        return TensorSpec(shape, dtype)

    def compute(self: CumulativeTrapezoid[np.ndarray]) -> Any:
        return np.moveaxis(np.cumsum(self.areas(), axis=-1), -1, self.dim)
