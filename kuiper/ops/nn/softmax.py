"""Softmax and its variants, and the gated linear unit."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from kuiper._kernels.rows.softmax import SoftmaxStep, scratch_bytes
from kuiper.errors import ShapeError
from kuiper.expression import Call, Ref
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.axes import axis_of, require_floats
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import FOLLOWS, Record, T, record
from kuiper.ops.core.rows import as_rows, memory_order
from kuiper.ops.core.schema import AnyArgument, Int, Ints, Known, Tensor
from kuiper.ops.math.elementwise import bind_tree

FLOAT32 = np.dtype(np.float32)

__all__ = ["GLU", "LogSoftmax", "Softmax", "Softmax2d", "Softmin"]


@record("nn.Softmax", "F.softmax")
class Softmax(Record[T]):
    """``exp(x) / sum(exp(x))`` along an axis.

    Source: torch.nn.functional.softmax.

    Raises
    ------
    ShapeError
        If the input has no axis `dim`, or is no tensor of floats.
    """

    batch = "along_axes"

    # The default of `dim` is axis 0 of tensors of rank 0, 1 and 3, else axis 1.
    input: T = Tensor()
    dim: tuple[int, ...] | None = Ints(length=1, default=None, nullable=True)
    dtype: Any = AnyArgument(None)
    layout = Layout.LIKE
    bfloat16 = FOLLOWS
    scale: ClassVar[float] = 1.0
    is_log: ClassVar[bool] = False

    def _axis(self: Softmax[Known]) -> int:
        if self.dim is None:
            return 0 if self.input.rank in (0, 1, 3) else 1
        return axis_of(self.dim[0], self.input.shape or (1,))

    def infer(self: Softmax[TensorSpec]) -> TensorSpec:
        self._axis()
        require_floats(self.input)
        return TensorSpec(self.input.shape, self.input.dtype)

    def bind(self: Softmax[TensorView], b: Binder) -> None:
        axis, x = self._axis(), self.input
        if x.dtype not in (np.float32, BFLOAT16) or x.rank == 0:
            b.python(lambda array: self._array(array, axis), [x], [b.output()])
            return
        if x.size == 0:
            b.output()
            return
        order = memory_order(x)
        rows = as_rows(x, order, [axis])
        if rows is None:
            x = b.contiguous(x)
            order = list(range(x.rank))
            rows = as_rows(x, order, [axis])
        assert rows is not None  # contiguous at the latest
        in_bfloat16 = BFLOAT16 in (rows.dtype, b.output_dtype())
        if in_bfloat16 and rows.shape[2] > 1:
            # Before the output, which may overwrite x and with it what was converted.
            rows = b.stored(rows, FLOAT32)
        y = as_rows(b.output(layout=x, reuse=x), order, [axis])
        assert y is not None
        wide = y
        if in_bfloat16 and rows.shape[2] > 1 and y.dtype != FLOAT32:
            wide = b.temporary(y.shape, FLOAT32)
        scratch = b.scratch(scratch_bytes(rows, in_bfloat16))
        b.step(SoftmaxStep(rows, wide, scratch, self.is_log, self.scale))
        if wide is not y:
            b.copy(wide, y)

    @classmethod
    def _array(cls, x: np.ndarray, axis: int) -> np.ndarray:
        """Return the softmax of an array of a type or rank without kernel."""
        if x.ndim == 0:
            return cls._array(x.reshape(1), 0).reshape(())
        x = x * x.dtype.type(cls.scale)
        x = x - x.max(axis, keepdims=True)
        total = np.exp(x).sum(axis, keepdims=True)
        return x - np.log(total) if cls.is_log else np.exp(x) / total


@record("nn.LogSoftmax", "F.log_softmax")
class LogSoftmax(Softmax[T]):
    """``x - log(sum(exp(x)))`` along an axis.

    Source: torch.nn.functional.log_softmax.
    """

    is_log: ClassVar[bool] = True


@record("nn.Softmin", "F.softmin")
class Softmin(Softmax[T]):
    """``exp(-x) / sum(exp(-x))`` along an axis.

    Source: torch.nn.functional.softmin.
    """

    scale: ClassVar[float] = -1.0


@record("nn.Softmax2d")
class Softmax2d(Softmax[T]):
    """Softmax over the channels of each pixel, in (n, c, h, w) or (c, h, w).

    Source: torch.nn.Softmax2d.
    """

    batch = "samples"
    input: T = Tensor(rank=(3, 4))
    dim = dtype = None

    def _axis(self: Softmax2d[Known]) -> int:
        return self.input.rank - 3


@record("nn.GLU", "F.glu")
class GLU(Record[T]):
    """``first * sigmoid(second)`` of the two halves of an axis.

    Source: torch.nn.functional.glu.

    Raises
    ------
    ShapeError
        If the axis is missing or odd, or the input is no tensor of floats.
    """

    batch = "along_axes"
    input: T = Tensor()
    dim: int = Int(-1)
    layout = Layout.LIKE

    def infer(self: GLU[TensorSpec]) -> TensorSpec:
        axis = axis_of(self.dim, self.input.shape)
        if self.input.shape[axis] % 2:
            raise ShapeError(
                f"the input has shape {self.input.shape}, expected axis {axis} to be even"
            )
        require_floats(self.input)
        shape = list(self.input.shape)
        shape[axis] //= 2
        return TensorSpec(shape, self.input.dtype)

    def bind(self: GLU[TensorView], b: Binder) -> None:
        axis = axis_of(self.dim, self.input.shape)
        half = self.input.shape[axis] // 2
        halves = [self.input.narrow(axis, start, half) for start in (0, half)]
        if self.input.dtype != np.float32:
            b.python(lambda x, gate: x / (1 + np.exp(-gate)), halves, [b.output()])
            return
        bind_tree(b, Call("mul", [Ref(0), Call("sigmoid", [Ref(1)])]), halves)
