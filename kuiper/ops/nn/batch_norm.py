"""Batch normalisation with stored statistics: one scale and one shift per channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.expression import Call, Literal, Node, Ref
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.axes import require_float32
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import Record, T, record
from kuiper.ops.core.schema import Bool, Float, Int, Tensor
from kuiper.ops.math.elementwise import bind_tree, write_tree

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["BatchNorm", "scale_and_shift"]


def scale_and_shift(
    running_mean: Any, running_var: Any, weight: Any, bias: Any, eps: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return float64 (scale, shift) for which ``y = x * scale + shift``.

    ``y = (x - mean) / sqrt(var + eps) * weight + bias``; `weight` and `bias` may be None.
    """
    scale = 1.0 / np.sqrt(np.asarray(running_var, np.float64) + eps)
    if weight is not None:
        scale = scale * np.asarray(weight, np.float64)
    shift = -np.asarray(running_mean, np.float64) * scale
    if bias is not None:
        shift = shift + np.asarray(bias, np.float64)
    return scale, shift


@record("nn.BatchNorm1d", "nn.BatchNorm2d", "nn.BatchNorm3d", "F.batch_norm")
class BatchNorm(Record[T]):
    """``(x - running_mean) / sqrt(running_var + eps) * weight + bias`` per channel (axis 1).

    A pass folds it into the preceding convolution or into arithmetic; see
    :mod:`kuiper.passes.optimize.fold_batch_norm`.  Source: torch.nn.BatchNorm2d in eval mode.

    Raises
    ------
    ShapeError
        If a tensor is not float32, or a statistic or factor has not one element per channel.
    """

    input: T = Tensor()
    running_mean: T = Tensor(rank=1)
    running_var: T = Tensor(rank=1)
    weight: Any = Tensor(optional=True, rank=1)
    bias: Any = Tensor(optional=True, rank=1)
    eps: float = Float(1e-5)
    num_features: int | None = Int(None, minimum=1)
    affine: bool = Bool(True)
    layout = Layout.LIKE

    def infer(self: BatchNorm[TensorSpec]) -> TensorSpec:
        if self.input.rank < 2:
            raise ShapeError(f"the input has shape {self.input.shape}, expected rank 2 or more")
        channels = self.input.shape[1]
        for name in ("running_mean", "running_var", "weight", "bias"):
            value = getattr(self, name)
            if value is not None and value.shape != (channels,):
                raise ShapeError(
                    f"'{name}' has shape {value.shape}, but the input {self.input.shape} has "
                    f"{channels} channels"
                )
            if value is not None and value.dtype != np.float32:
                raise ShapeError(f"'{name}' is {value.dtype}, expected float32")
        require_float32(self.input)
        return TensorSpec(self.input.shape)

    def bind(self: BatchNorm[TensorView], b: Binder) -> None:
        statistics = [self.running_mean, self.running_var, self.weight, self.bias]
        along = (-1,) + (1,) * (self.input.rank - 2)
        tree: Node
        if all(v is None or v.is_constant for v in statistics):
            mean, variance, weight, bias = (None if v is None else v.constant for v in statistics)
            operands = [
                b.constant(values.astype(np.float32).reshape(along))
                for values in scale_and_shift(mean, variance, weight, bias, self.eps)
            ]
            tree = Call("add", [Call("mul", [Ref(0), Ref(1)]), Ref(2)])
            bind_tree(b, tree, [self.input, *operands])
            return
        channels = (self.input.shape[1],)
        scale, shift = b.temporary(channels), b.temporary(channels)
        if channels != (0,):
            deviation = Call("sqrt", [Call("add", [Ref(0), Literal(self.eps)])])
            weight = Literal(1.0) if self.weight is None else Ref(1)
            write_tree(b, Call("div", [weight, deviation]), [self.running_var, self.weight], scale)
            product = Call("mul", [Ref(0), Ref(1)])
            tree = Call("neg", [product]) if self.bias is None else Call("sub", [Ref(2), product])
            write_tree(b, tree, [self.running_mean, scale, self.bias], shift)
        tree = Call("add", [Call("mul", [Ref(0), Ref(1)]), Ref(2)])
        columns = [value.view((value.size, *along[1:])) for value in (scale, shift)]
        bind_tree(b, tree, [self.input, *columns])

    @staticmethod
    def batch(c: TracedCall) -> list[BatchAxis]:
        return c.samples(is_batched=True)
