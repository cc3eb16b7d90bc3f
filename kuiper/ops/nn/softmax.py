"""Softmax, its relatives, and the gated linear unit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import numpy as np

from kuiper._kernels.rows.softmax import SoftmaxStep, scratch_bytes
from kuiper.errors import ShapeError
from kuiper.expression import Call, Ref
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.axes import axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import Record, record
from kuiper.ops.core.rows import as_rows, memory_order
from kuiper.ops.core.schema import AnyArgument, Argument, Int, Ints, Tensor
from kuiper.ops.math.elementwise import bind_tree

__all__ = ["GLU", "LogSoftmax", "Softmax", "Softmax2d", "Softmin"]


@record("nn.Softmax", "F.softmax")
class Softmax(Record):
    """``exp(x) / sum(exp(x))`` along an axis.

    Source: torch.nn.functional.softmax.
    """

    batch = "along_axes"

    # Without `dim` PyTorch takes axis 0 of tensors of rank 0, 1 and 3, else axis 1.
    arguments: tuple[Argument, ...] = (
        Tensor("input"),
        Ints("dim", length=1, default=None, nullable=True),
        AnyArgument("dtype", None),
    )
    layout = "like"
    scale: ClassVar[float] = 1.0
    is_log: ClassVar[bool] = False

    @classmethod
    def _axis(cls, a: SimpleNamespace) -> int:
        if a.dim is None:
            return 0 if a.input.rank in (0, 1, 3) else 1
        return axis_of(a.dim[0], a.input.shape or (1,))

    @classmethod
    def infer(cls, a: SimpleNamespace) -> TensorSpec:
        cls._axis(a)
        if a.input.dtype.kind != "f":
            raise ShapeError(f"the input is {a.input.dtype}, expected float32")
        return TensorSpec(a.input.shape, a.input.dtype)

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        axis, x = cls._axis(a), a.input
        if x.dtype != np.float32 or x.rank == 0:
            b.python(lambda array: cls._array(array, axis), [x], [b.output()])
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
        y = as_rows(b.output(layout=x, reuse=x), order, [axis])
        b.step(SoftmaxStep(rows, y, b.scratch(scratch_bytes(rows)), cls.is_log, cls.scale))

    @classmethod
    def _array(cls, x: np.ndarray, axis: int) -> np.ndarray:
        """Compute what has no kernel: float64, float16 and 0-d tensors."""
        if x.ndim == 0:
            return cls._array(x.reshape(1), 0).reshape(())
        x = x * x.dtype.type(cls.scale)
        x = x - x.max(axis, keepdims=True)
        total = np.exp(x).sum(axis, keepdims=True)
        return x - np.log(total) if cls.is_log else np.exp(x) / total


@record("nn.LogSoftmax", "F.log_softmax")
class LogSoftmax(Softmax):
    """``x - log(sum(exp(x)))`` along an axis.

    Source: torch.nn.functional.log_softmax.
    """

    is_log: ClassVar[bool] = True


@record("nn.Softmin", "F.softmin")
class Softmin(Softmax):
    """``exp(-x) / sum(exp(-x))`` along an axis.

    Source: torch.nn.functional.softmin.
    """

    scale: ClassVar[float] = -1.0


@record("nn.Softmax2d")
class Softmax2d(Softmax):
    """Softmax over the channels of each pixel, in (n, c, h, w) or (c, h, w).

    Source: torch.nn.Softmax2d.
    """

    batch = "samples"
    arguments = (Tensor("input", rank=(3, 4)),)

    @classmethod
    def _axis(cls, a: SimpleNamespace) -> int:
        return a.input.rank - 3


@record("nn.GLU", "F.glu")
class GLU(Record):
    """``first * sigmoid(second)`` of the two halves of an axis.

    Source: torch.nn.functional.glu.
    """

    batch = "along_axes"
    arguments = (Tensor("input"), Int("dim", -1))
    layout = "like"

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        axis = axis_of(a.dim, a.input.shape)
        if a.input.shape[axis] % 2:
            raise ShapeError(
                f"the input has shape {a.input.shape}, expected axis {axis} to be even"
            )
        if a.input.dtype.kind != "f":
            raise ShapeError(f"the input is {a.input.dtype}, expected float32")
        shape = list(a.input.shape)
        shape[axis] //= 2
        return TensorSpec(shape, a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        axis = axis_of(a.dim, a.input.shape)
        half = a.input.shape[axis] // 2
        halves = [a.input.narrow(axis, start, half) for start in (0, half)]
        if a.input.dtype != np.float32:
            b.python(lambda x, gate: x / (1 + np.exp(-gate)), halves, [b.output()])
            return
        bind_tree(b, Call("mul", [Ref(0), Call("sigmoid", [Ref(1)])]), halves)
