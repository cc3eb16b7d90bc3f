"""Normalisation by statistics of the input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kuiper._kernels.rows.normalize import (
    GroupNormStep,
    LayerNormStep,
    LocalResponseNormStep,
    local_response_scratch,
    narrow_rows_bytes,
)
from kuiper.errors import ShapeError
from kuiper.expression import Call, Literal, Ref
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.axes import axes_of, require_float32
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.image import image_input, image_output
from kuiper.ops.core.record import FOLLOWS, Record, T, record
from kuiper.ops.core.rows import as_rows, bind_reduction, memory_order
from kuiper.ops.core.schema import AnyArgument, Bool, Float, Int, Ints, Tensor
from kuiper.ops.math.elementwise import bind_tree
from kuiper.ops.math.reduce import Norm, norm_of, norm_power
from kuiper.ops.nn.batch_norm import BatchNorm

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["GroupNorm", "InstanceNorm", "LayerNorm", "LocalResponseNorm", "Normalize", "RMSNorm"]

FLOAT32 = np.dtype(np.float32)
MACHINE_EPSILON = float(np.finfo(np.float32).eps)


def _check_factors(a: Record[Any], shape: Sequence[int]) -> None:
    """Raise ShapeError unless weight and bias are missing or of this shape."""
    for name in ("weight", "bias"):
        value = getattr(a, name, None)
        if value is not None and value.shape != tuple(shape):
            raise ShapeError(f"'{name}' has shape {value.shape}, expected {tuple(shape)}")


def _factor(b: Binder, value: TensorView | None) -> TensorView | None:
    return None if value is None else b.contiguous(b.stored(value, FLOAT32))


# -- rows --------------------------------------------------------------------------------------


@record("nn.LayerNorm", "F.layer_norm")
class LayerNorm(Record[T]):
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last axes.

    Mean and biased variance are those of the last ``len(normalized_shape)`` axes.
    Source: torch.nn.LayerNorm.

    Raises
    ------
    ShapeError
        If the last axes, the weight or the bias are not of `normalized_shape`, or not float32.
    """

    input: T = Tensor()
    weight: T | None = Tensor(optional=True)
    bias: T | None = Tensor(optional=True)
    normalized_shape: tuple[int, ...] = Ints(minimum=1)
    eps: float | None = Float(1e-5)
    elementwise_affine: bool = Bool(True)
    layout = Layout.LIKE
    bfloat16 = FOLLOWS
    normalizes_rows = True
    centred: ClassVar[bool] = True

    def infer(self: LayerNorm[TensorSpec]) -> TensorSpec:
        require_float32(self.input)
        count = len(self.normalized_shape)
        if count == 0 or self.input.shape[-count:] != self.normalized_shape:
            raise ShapeError(
                f"the input has shape {self.input.shape}, expected its last axes to be "
                f"{self.normalized_shape}"
            )
        _check_factors(self, self.normalized_shape)
        return TensorSpec(self.input.shape)

    def bind(self: LayerNorm[TensorView], b: Binder) -> None:
        x = self.input
        if x.size == 0:
            b.output()
            return
        axes = range(x.rank - len(self.normalized_shape), x.rank)
        order = memory_order(x)
        rows = as_rows(x, order, axes)
        # The weights are in the order of the axes, so the elements of a row have to be.
        if rows is None or rows.shape[2] != 1 or not _is_sorted(x, order, axes):
            x = b.contiguous(x)
            order = list(range(x.rank))
            rows = as_rows(x, order, axes)
        y = as_rows(b.output(layout=x, reuse=x), order, axes)
        assert rows is not None  # contiguous at the latest
        assert y is not None
        n = math.prod(self.normalized_shape)
        rows, y = (v.reshape((v.shape[0], n)) for v in (rows, y))
        weight, bias = _factor(b, self.weight), _factor(b, getattr(self, "bias", None))
        eps = MACHINE_EPSILON if self.eps is None else self.eps
        in_bfloat16 = BFLOAT16 in (x.dtype, b.output_dtype())
        line = b.scratch(narrow_rows_bytes(n)) if in_bfloat16 else None
        b.step(LayerNormStep(rows, y, weight, bias, eps, self.centred, line))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        c.require_shared(c.a.weight, getattr(c.a, "bias", None))
        batch = c.first_batch(c.a.input)
        c.require(batch.axis < c.a.input.rank - len(c.a.normalized_shape))
        return batch


def _is_sorted(x: TensorView, order: Sequence[int], axes: Sequence[int]) -> bool:
    taken = [d for d in order if d in axes and x.shape[d] != 1]
    return taken == sorted(taken)


@record("nn.RMSNorm", "F.rms_norm")
class RMSNorm(LayerNorm[T]):
    """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last axes.

    `eps` defaults to float32's machine epsilon.  Source: torch.nn.RMSNorm.
    """

    bias = None
    eps: float | None = Float(None, nullable=True)
    centred: ClassVar[bool] = False


# -- groups of channels ------------------------------------------------------------------------


def _bind_groups(
    a: GroupNorm[TensorView] | InstanceNorm[TensorView], b: Binder, groups: int
) -> None:
    x = a.input
    if x.size == 0:
        b.output()
        return
    batch, channels = x.shape[:2]
    weight, bias = _factor(b, a.weight), _factor(b, a.bias)
    scratch = b.scratch(16 * channels)
    pixels = math.prod(x.shape[2:])
    if x.is_channels_last:
        y = b.output(layout=x, reuse=x)
    else:
        x = b.contiguous(x)
        y = b.output(reuse=x).view((batch, channels, 1, pixels))
        x = x.view(y.shape)
    b.step(GroupNormStep(x, y, weight, bias, groups, a.eps, scratch))


@record("nn.GroupNorm", "F.group_norm")
class GroupNorm(Record[T]):
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over groups of channels.

    Mean and biased variance are those of ``c / num_groups`` channels of one sample; weight and
    bias are per channel.  Source: torch.nn.GroupNorm.

    Raises
    ------
    ShapeError
        If the groups do not divide the channels, or a tensor has the wrong shape or type.
    """

    input: T = Tensor()
    weight: T | None = Tensor(optional=True)
    bias: T | None = Tensor(optional=True)
    num_groups: int = Int(minimum=1)
    num_channels: int | None = Int(None, minimum=1)
    eps: float = Float(1e-5)
    affine: bool = Bool(True)
    layout = Layout.LIKE

    def infer(self: GroupNorm[TensorSpec]) -> TensorSpec:
        require_float32(self.input)
        if self.input.rank < 2 or self.input.shape[1] % self.num_groups:
            raise ShapeError(
                f"the input has shape {self.input.shape}, expected (n, c, ...) with channels "
                f"divisible by {self.num_groups} groups"
            )
        if self.num_channels not in (None, self.input.shape[1]):
            raise ShapeError(
                f"the input has shape {self.input.shape}, expected {self.num_channels} channels"
            )
        _check_factors(self, self.input.shape[1:2])
        return TensorSpec(self.input.shape)

    def bind(self: GroupNorm[TensorView], b: Binder) -> None:
        _bind_groups(self, b, self.num_groups)

    @staticmethod
    def batch(c: TracedCall) -> list[BatchAxis]:
        return c.samples(is_batched=True)


@record("nn.InstanceNorm1d", "nn.InstanceNorm2d", "nn.InstanceNorm3d", "F.instance_norm")
class InstanceNorm(Record[T]):
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` per channel of each sample.

    Mean and biased variance are those of the sample.  A module with `track_running_stats` uses
    stored ones, as a batch norm does; pnnx never exports the function in that form.
    Source: torch.nn.InstanceNorm2d.

    Raises
    ------
    ShapeError
        If the input has no spatial axis, or a tensor has the wrong shape or type.
    """

    batch = "samples"
    input: T = Tensor()
    running_mean: T | None = Tensor(optional=True)
    running_var: T | None = Tensor(optional=True)
    weight: T | None = Tensor(optional=True)
    bias: T | None = Tensor(optional=True)
    num_features: int | None = Int(None, minimum=1)
    eps: float = Float(1e-5)
    affine: bool = Bool(False)
    track_running_stats: bool = Bool(False)
    use_input_stats: Any = AnyArgument(None)
    momentum: Any = AnyArgument(None)
    cudnn_enabled: Any = AnyArgument(None)
    layout = Layout.LIKE

    def infer(self: InstanceNorm[TensorSpec]) -> Any:
        if self.track_running_stats:
            return BatchNorm[TensorSpec](**vars(self)).infer()
        require_float32(self.input)
        if self.input.rank < 3:
            raise ShapeError(f"the input has shape {self.input.shape}, expected (n, c, ...)")
        channels = self.input.shape[1]
        # Like PyTorch, ignore num_features unless there are factors.
        if self.affine and self.num_features not in (None, channels):
            raise ShapeError(
                f"the input has shape {self.input.shape}, expected {self.num_features} channels"
            )
        _check_factors(self, (channels,))
        return TensorSpec(self.input.shape)

    def bind(self: InstanceNorm[TensorView], b: Binder) -> None:
        if self.track_running_stats:
            BatchNorm[TensorView](**vars(self)).bind(b)
            return
        _bind_groups(self, b, self.input.shape[1])


@record("nn.LocalResponseNorm", "F.local_response_norm")
class LocalResponseNorm(Record[T]):
    """``x / (k + alpha * mean) ** beta``, with the mean of the squares of `size` channels around x.

    Channels out of range count as zero.  Source: torch.nn.LocalResponseNorm.

    Raises
    ------
    ShapeError
        If the input has no spatial axis or is not float32.
    """

    batch = "samples"
    input: T = Tensor()
    size: int = Int(minimum=1)
    alpha: float = Float(1e-4)
    beta: float = Float(0.75)
    k: float = Float(1.0)
    layout = Layout.CHANNELS_LAST

    def infer(self: LocalResponseNorm[TensorSpec]) -> TensorSpec:
        require_float32(self.input)
        if self.input.rank < 3:
            raise ShapeError(f"the input has shape {self.input.shape}, expected (n, c, ...)")
        return TensorSpec(self.input.shape)

    def bind(self: LocalResponseNorm[TensorView], b: Binder) -> None:
        if self.input.size == 0:
            b.output()
            return
        x, spatial = self.input, self.input.rank - 2
        if spatial > 3:
            x = b.contiguous(x).view((*x.shape[:2], math.prod(x.shape[2:-1]), x.shape[-1]))
            x = b.channels_last(x)
            y = b.temporary(x.shape, np.float32, Layout.CHANNELS_LAST)
        else:
            x, y = image_input(b, x, spatial), image_output(b, spatial)
        scratch = b.scratch(local_response_scratch(x.shape[1], self.size))
        b.step(LocalResponseNormStep(x, y, self.size, self.alpha, self.beta, self.k, scratch))
        if spatial > 3:
            b.copy(y, b.output().view(y.shape))


@record("F.normalize")
class Normalize(Record[T]):
    """``x / max(norm, eps)`` with the p-norm along an axis.

    Source: torch.nn.functional.normalize.

    Raises
    ------
    ShapeError
        If the input has no axis `dim` or is not float32, or `p` is no number.
    """

    batch = "along_axes"
    input: T = Tensor()
    p: Any = AnyArgument(2.0)
    dim: tuple[int, ...] = Ints(default=(1,))
    eps: float = Float(1e-12)
    layout = Layout.LIKE

    def infer(self: Normalize[TensorSpec]) -> TensorSpec:
        require_float32(self.input)
        norm_power(self.p)
        axes_of(self.dim, self.input.shape or (1,))
        return TensorSpec(self.input.shape)

    def bind(self: Normalize[TensorView], b: Binder) -> None:
        x, p = self.input, norm_power(self.p)
        axes = axes_of(self.dim, x.shape) if x.rank else ()
        if x.size == 0:
            b.output()
        elif p in Norm.kinds:
            norm = bind_reduction(b, x, axes, True, Norm.kinds[p], is_output=False)
            floor = Call("maximum", [Ref(1), Literal(self.eps)])
            bind_tree(b, Call("div", [Ref(0), floor]), [x, norm])
        else:
            b.python(
                lambda array: array / np.maximum(norm_of(array, p, axes, True), self.eps),
                [x],
                [b.output()],
            )
