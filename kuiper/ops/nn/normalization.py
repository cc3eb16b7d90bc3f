"""Normalisation by statistics of the input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kuiper._kernels.rows.normalize import (
    GroupNormStep,
    LayerNormStep,
    LocalResponseNormStep,
    local_response_scratch,
)
from kuiper.errors import ShapeError
from kuiper.expression import Call, Literal, Ref
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import axes_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.image import image_input, image_output
from kuiper.ops.core.record import Record, record
from kuiper.ops.core.rows import as_rows, bind_reduction, memory_order
from kuiper.ops.core.schema import AnyArgument, Argument, Bool, Float, Int, Ints, Tensor
from kuiper.ops.math.elementwise import bind_tree
from kuiper.ops.math.reduce import Norm, norm_of
from kuiper.ops.nn.batch_norm import BatchNorm

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = [
    "GroupNorm",
    "InstanceNorm",
    "LayerNorm",
    "LocalResponseNorm",
    "Normalize",
    "RMSNorm",
]

MACHINE_EPSILON = float(np.finfo(np.float32).eps)


def _check_float(input: TensorSpec) -> None:
    if input.dtype != np.float32:
        raise ShapeError(f"the input is {input.dtype}, expected float32")


def _check_factors(a: SimpleNamespace, shape: Sequence[int]) -> None:
    """Refuse a weight or bias of another shape."""
    for name in ("weight", "bias"):
        value = getattr(a, name, None)
        if value is not None and value.shape != tuple(shape):
            raise ShapeError(f"'{name}' has shape {value.shape}, expected {tuple(shape)}")


def _factor(b: Binder, value: TensorView | None) -> TensorView | None:
    return None if value is None else b.contiguous(value)


# -- rows --------------------------------------------------------------------------------------


@record("nn.LayerNorm", "F.layer_norm")
class LayerNorm(Record):
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last axes.

    Mean and biased variance are those of the last ``len(normalized_shape)`` axes.
    Source: torch.nn.LayerNorm.
    """

    arguments: tuple[Argument, ...] = (
        Tensor("input"),
        Tensor("weight", optional=True),
        Tensor("bias", optional=True),
        Ints("normalized_shape", minimum=1),
        Float("eps", 1e-5),
        Bool("elementwise_affine", True),
    )
    layout = "like"
    centred: ClassVar[bool] = True

    @classmethod
    def infer(cls, a: SimpleNamespace) -> TensorSpec:
        _check_float(a.input)
        count = len(a.normalized_shape)
        if count == 0 or a.input.shape[-count:] != a.normalized_shape:
            raise ShapeError(
                f"the input has shape {a.input.shape}, expected its last axes to be "
                f"{a.normalized_shape}"
            )
        _check_factors(a, a.normalized_shape)
        return TensorSpec(a.input.shape)

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        x = a.input
        if x.size == 0:
            b.output()
            return
        axes = range(x.rank - len(a.normalized_shape), x.rank)
        order = memory_order(x)
        rows = as_rows(x, order, axes)
        # The weights come in the axes' own order.
        if rows is None or rows.shape[2] != 1 or not _is_sorted(x, order, axes):
            x = b.contiguous(x)
            order = list(range(x.rank))
            rows = as_rows(x, order, axes)
        y = as_rows(b.output(layout=x, reuse=x), order, axes)
        assert rows is not None  # of C order, if of nothing better
        assert y is not None
        n = math.prod(a.normalized_shape)
        rows, y = (v.reshape((v.shape[0], n)) for v in (rows, y))
        weight, bias = _factor(b, a.weight), _factor(b, getattr(a, "bias", None))
        eps = MACHINE_EPSILON if a.eps is None else a.eps
        b.step(LayerNormStep(rows, y, weight, bias, eps, cls.centred))

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
class RMSNorm(LayerNorm):
    """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last axes.

    Without `eps` it is float32's machine epsilon.  Source: torch.nn.RMSNorm.
    """

    arguments = (
        Tensor("input"),
        Tensor("weight", optional=True),
        Ints("normalized_shape", minimum=1),
        Float("eps", None, nullable=True),
        Bool("elementwise_affine", True),
    )
    centred: ClassVar[bool] = False


# -- groups of channels ------------------------------------------------------------------------


def _bind_groups(a: SimpleNamespace, b: Binder, groups: int, eps: float) -> None:
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
    b.step(GroupNormStep(x, y, weight, bias, groups, eps, scratch))


@record("nn.GroupNorm", "F.group_norm")
class GroupNorm(Record):
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over groups of channels.

    Mean and biased variance are those of ``c / num_groups`` channels of one sample; weight and
    bias are per channel.  Source: torch.nn.GroupNorm.
    """

    arguments = (
        Tensor("input"),
        Tensor("weight", optional=True),
        Tensor("bias", optional=True),
        Int("num_groups", minimum=1),
        Int("num_channels", None, minimum=1),
        Float("eps", 1e-5),
        Bool("affine", True),
    )
    layout = "like"

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        _check_float(a.input)
        if a.input.rank < 2 or a.input.shape[1] % a.num_groups:
            raise ShapeError(
                f"the input has shape {a.input.shape}, expected (n, c, ...) with channels "
                f"divisible by {a.num_groups} groups"
            )
        if a.num_channels not in (None, a.input.shape[1]):
            raise ShapeError(
                f"the input has shape {a.input.shape}, expected {a.num_channels} channels"
            )
        _check_factors(a, a.input.shape[1:2])
        return TensorSpec(a.input.shape)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        _bind_groups(a, b, a.num_groups, a.eps)

    @staticmethod
    def batch(c: TracedCall) -> list[BatchAxis]:
        return c.samples(is_batched=True)


@record("nn.InstanceNorm1d", "nn.InstanceNorm2d", "nn.InstanceNorm3d", "F.instance_norm")
class InstanceNorm(Record):
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` per channel of each sample.

    Mean and biased variance are the sample's own.  A module with `track_running_stats` uses its
    stored ones and is a batch norm; of the function files hold only the form that does not.
    Source: torch.nn.InstanceNorm2d.
    """

    batch = "samples"
    arguments = (
        Tensor("input"),
        Tensor("running_mean", optional=True),
        Tensor("running_var", optional=True),
        Tensor("weight", optional=True),
        Tensor("bias", optional=True),
        Int("num_features", None, minimum=1),
        Float("eps", 1e-5),
        Bool("affine", False),
        Bool("track_running_stats", False),
        AnyArgument("use_input_stats", None),
        AnyArgument("momentum", None),
        AnyArgument("cudnn_enabled", None),
    )
    layout = "like"

    @staticmethod
    def infer(a: SimpleNamespace) -> Any:
        if a.track_running_stats:
            return BatchNorm.infer(a)
        _check_float(a.input)
        if a.input.rank < 3:
            raise ShapeError(f"the input has shape {a.input.shape}, expected (n, c, ...)")
        channels = a.input.shape[1]
        # Without factors any channels will do, as PyTorch has it.
        if a.affine and a.num_features not in (None, channels):
            raise ShapeError(
                f"the input has shape {a.input.shape}, expected {a.num_features} channels"
            )
        _check_factors(a, (channels,))
        return TensorSpec(a.input.shape)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        if a.track_running_stats:
            BatchNorm.bind(a, b)
            return
        _bind_groups(a, b, a.input.shape[1], a.eps)


@record("nn.LocalResponseNorm", "F.local_response_norm")
class LocalResponseNorm(Record):
    """``x / (k + alpha * mean) ** beta``; the mean is of the squares of `size` channels around.

    Channels that are not there count as zero.  Source: torch.nn.LocalResponseNorm.
    """

    batch = "samples"
    arguments = (
        Tensor("input"),
        Int("size", minimum=1),
        Float("alpha", 1e-4),
        Float("beta", 0.75),
        Float("k", 1.0),
    )
    layout = "channels_last"

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        _check_float(a.input)
        if a.input.rank < 3:
            raise ShapeError(f"the input has shape {a.input.shape}, expected (n, c, ...)")
        return TensorSpec(a.input.shape)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        if a.input.size == 0:
            b.output()
            return
        x, spatial = a.input, a.input.rank - 2
        if spatial > 3:
            x = b.contiguous(x).view((*x.shape[:2], math.prod(x.shape[2:-1]), x.shape[-1]))
            x = b.channels_last(x)
            y = b.temporary(x.shape, np.float32, "channels_last")
        else:
            x, y = image_input(b, x, spatial), image_output(b, spatial)
        scratch = b.scratch(local_response_scratch(x.shape[1], a.size))
        b.step(LocalResponseNormStep(x, y, a.size, a.alpha, a.beta, a.k, scratch))
        if spatial > 3:
            b.copy(y, b.output().view(y.shape))


@record("F.normalize")
class Normalize(Record):
    """``x / max(norm, eps)`` with the p-norm along an axis.

    Source: torch.nn.functional.normalize.
    """

    batch = "along_axes"
    arguments = (
        Tensor("input"),
        AnyArgument("p", 2.0),
        Ints("dim", default=(1,)),
        Float("eps", 1e-12),
    )
    layout = "like"

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        _check_float(a.input)
        Norm.power(a)
        axes_of(a.dim, a.input.shape or (1,))
        return TensorSpec(a.input.shape)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        x, p = a.input, Norm.power(a)
        axes = axes_of(a.dim, x.shape) if x.rank else ()
        if x.size == 0:
            b.output()
        elif p in Norm.kinds:
            norm = bind_reduction(b, x, axes, True, Norm.kinds[p], is_output=False)
            floor = Call("maximum", [Ref(1), Literal(a.eps)])
            bind_tree(b, Call("div", [Ref(0), floor]), [x, norm])
        else:
            b.python(
                lambda array: array / np.maximum(norm_of(array, p, axes, True), a.eps),
                [x],
                [b.output()],
            )
