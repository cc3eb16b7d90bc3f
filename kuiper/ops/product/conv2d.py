"""Convolution and transposed convolution of images and sequences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.epilogue import activation_epilogue, make_epilogue, residual_view
from kuiper.ops.core.record import STARTS, NoBatchRule, T, record
from kuiper.ops.core.schema import Float, Ints, Str, Tensor
from kuiper.ops.product.algorithms import Convolution, bind_convolution, only_gemm
from kuiper.ops.product.algorithms.gemm import gemm_step, scaled_step
from kuiper.ops.product.filters import Filters, pack_at_run_time
from kuiper.ops.product.geometry import (
    ConvolutionRecord,
    Geometry,
    check_weight,
    output_spec,
    per_axis,
)

__all__ = ["Conv", "Conv1d", "ConvTranspose", "ConvTranspose1d", "ExpandDepthwise"]

FLOAT32 = np.dtype(np.float32)


@record("nn.Conv2d", "F.conv2d")
class Conv(ConvolutionRecord[T]):
    """Cross-correlation of an input with filters.

    ``y[n, o, i, j] = bias[o] + sum x[n, c, i * s + u * d - p, j * s + v * d - p] * w[o, c, u, v]``

    Input (n, c, h, w) or (c, h, w), weight (out, in / groups, kh, kw).  Only the pass `fuse_gate`
    sets `input_scale`, of shape (n, c, 1, 1).
    Source: torch.nn.Conv2d.

    Raises
    ------
    ShapeError
        If the arguments, the bias or the input contradict the weight, a tensor is not float32, or
        the kernel is larger than the padded input.
    """

    padding: tuple[int, ...] | str = Ints(default=(0,), minimum=0, words=("same", "valid"))
    padding_mode: str = Str(("zeros", "reflect", "replicate", "circular"), "zeros")
    input_scale: T | None = Tensor(optional=True, internal=True)
    layout = Layout.CHANNELS_LAST
    bfloat16 = STARTS

    def infer(self: Conv[TensorSpec]) -> TensorSpec:
        spec = output_spec(self)
        geometry = Geometry.of(self)
        scale = self.input_scale
        if scale is not None and (
            self.input.rank != 4
            or scale.shape != (*self.input.shape[:2], 1, 1)
            or scale.dtype != np.float32
            or (self.groups, geometry.kernel, geometry.stride) != (1, (1, 1), (1, 1))
            or any(map(any, geometry.padding))
        ):
            raise ShapeError(
                f"'input_scale' has shape {scale.shape}, expected one number for each channel of "
                f"the input {self.input.shape}, and a 1x1 kernel {geometry.kernel} without padding"
            )
        return spec

    def bind(self: Conv[TensorView], b: Binder) -> None:
        spatial = self.weight.rank - 2
        geometry = Geometry.of(self)
        x = _as_image(self.input, spatial)
        if self.padding_mode != "zeros" and any(map(any, geometry.padding)):
            from kuiper.ops.tensor.padding import pad_spatial

            (top, bottom), (left, right) = geometry.padding
            x = b.stored(x, FLOAT32)
            x = pad_spatial(b, x, (left, right, top, bottom), self.padding_mode, 0.0)
            geometry = geometry.unpadded()
        filters = Filters(self.weight, self.bias, (*self.weight.shape[:2], *geometry.kernel))
        y, image, residual = _output(self, b, spatial)
        residual = residual_in_float32(b, residual, x, image)
        c = Convolution(x, image, filters, geometry, self.groups, make_epilogue(b, residual))
        scale = self.input_scale
        if scale is not None:
            if not filters.is_constant:
                raise ShapeError("'input_scale' expects a weight and a bias that the file holds")
            b.step(scaled_step(b, c, b.stored(scale, FLOAT32)))
        elif filters.is_constant:
            bind_convolution(b, c)
        else:
            b.step(run_time_step(self, b, c))
        _finish(b, y, image, spatial)


def residual_in_float32(
    b: Binder, residual: TensorView | None, x: TensorView, y: TensorView
) -> TensorView | None:
    """Return a residual, which products from float32 to float32 read in float32."""
    if residual is None or residual.dtype != BFLOAT16 or BFLOAT16 in (x.dtype, y.dtype):
        return residual
    return b.stored(residual, FLOAT32)


def run_time_step(a: ConvolutionRecord[TensorView], b: Binder, c: Convolution) -> Any:
    """Return the step of a convolution with computed filters; add the steps that pack them."""
    x = c.x if c.is_volume else b.channels_last(c.x)
    tap_lists = [list(np.ndindex(c.geometry.kernel))]
    packed, offsets = pack_at_run_time(b, a, c.filters, tap_lists, by_column=True)
    phases = [((0,) * len(c.size), c.size, c.geometry.taps(), offsets[0])]
    if c.in_bfloat16:
        from kuiper.ops.product.algorithms.bfloat16 import pairs_at_run_time, pairs_step

        counts = [len(taps) for taps in tap_lists]
        packed, _ = pairs_at_run_time(b, packed, c.out_channels, c.in_channels, c.groups, counts)
        step = c.count(pairs_step(b, c, packed, phases, c.geometry.stride))
    else:
        step = c.count(gemm_step(b, x, c, packed, phases, c.geometry.stride))
    step.algorithm = only_gemm("the filters are computed at run time")
    return step


@record("kuiper.ExpandDepthwise")
class ExpandDepthwise(ConvolutionRecord[T]):
    """A 1x1 convolution, an activation, and a depthwise convolution in one sweep.

    The pass `fuse_expand` makes it of two operators; `expand_weight` (c, in, 1, 1), `expand_bias`
    and `expand_function` belong to the first, the other arguments to the second.
    """

    batch = NoBatchRule("passes make it after the batch was unfrozen")
    input: T = Tensor(rank=4)
    expand_weight: T = Tensor(rank=4)
    expand_bias: T | None = Tensor(optional=True)
    expand_function: str | None = Str(default=None)
    expand_p0: float = Float(0.0)
    expand_p1: float = Float(0.0)
    padding: tuple[int, ...] | str = Ints(default=(0,), minimum=0, words=("same", "valid"))
    in_channels = out_channels = kernel_size = None
    internal = True
    layout = Layout.CHANNELS_LAST
    bfloat16 = STARTS

    def infer(self: ExpandDepthwise[TensorSpec]) -> TensorSpec:
        out = Geometry.of(self).output_extents(self.input.shape[2:])
        return TensorSpec((self.input.shape[0], self.weight.shape[0], *out))

    def bind(self: ExpandDepthwise[TensorView], b: Binder) -> None:
        from kuiper.ops.product.algorithms.expand import expand_step

        x = b.channels_last(self.input)
        image, _, residual = _output(self, b, 2)
        expand = Filters(self.expand_weight, self.expand_bias, self.expand_weight.shape)
        filters = Filters(self.weight, self.bias, self.weight.shape)
        act = None
        if self.expand_function is not None:
            act = activation_epilogue(self.expand_function, (self.expand_p0, self.expand_p1))
        channels = self.weight.shape[0]
        residual = residual_in_float32(b, residual, x, image)
        c = Convolution(x, image, filters, Geometry.of(self), channels, make_epilogue(b, residual))
        if c.in_bfloat16:
            c.x = b.channels_last(b.stored(x, BFLOAT16))
        b.step(expand_step(b, c, expand, act))


# Bounds the time to plan a transposed convolution, which grows with the phases of its stride.
MAX_PHASES = 1 << 16


@record("nn.ConvTranspose2d", "F.conv_transpose2d")
class ConvTranspose(ConvolutionRecord[T]):
    """Transposed convolution: the adjoint of a convolution with the same arguments.

    Output extent ``(l - 1) * stride - 2 * padding + dilation * (k - 1) + output_padding + 1``.
    Input (n, c, h, w) or (c, h, w), weight (in, out / groups, kh, kw).
    Source: torch.nn.ConvTranspose2d.

    Raises
    ------
    ShapeError
        As for a convolution, if `output_padding` is not less than the stride or the dilation, or
        if the strides have a product above 65536.
    """

    padding: tuple[int, ...] = Ints(default=(0,), minimum=0)
    output_padding: tuple[int, ...] = Ints(default=(0,), minimum=0)
    layout = Layout.CHANNELS_LAST
    bfloat16 = STARTS

    def infer(self: ConvTranspose[TensorSpec]) -> TensorSpec:
        spatial = self.weight.rank - 2
        check_weight(self, spatial, in_axis=0)
        if len(self.padding) not in (1, spatial):
            raise ShapeError(f"'padding' is {self.padding}, expected {spatial} integers")
        extents = self.input.shape[self.input.rank - spatial :]
        stride, padding, dilation, output_padding = (
            per_axis(items, spatial)
            for items in (self.stride, self.padding, self.dilation, self.output_padding)
        )
        kernel = self.weight.shape[2:]
        out = tuple(
            (extent - 1) * s - 2 * p + d * (k - 1) + more + 1
            for extent, s, p, d, k, more in zip(
                extents, stride, padding, dilation, kernel, output_padding, strict=True
            )
        )
        limits = map(max, stride, dilation)
        if any(more >= limit for more, limit in zip(output_padding, limits, strict=True)):
            raise ShapeError(
                f"'output_padding' is {self.output_padding}, expected less than stride "
                f"{self.stride} or dilation {self.dilation}"
            )
        if min(out) < 1:
            raise ShapeError(f"the output of an input {self.input.shape} would be {out}")
        phases = math.prod(map(min, stride, out))
        if phases > MAX_PHASES:
            raise ShapeError(
                f"'stride' is {self.stride}, which makes {phases} phases of an output of "
                f"{out}, at most {MAX_PHASES} are supported"
            )
        batch = self.input.shape[: self.input.rank - spatial - 1]
        return TensorSpec((*batch, self.weight.shape[1] * self.groups, *out))

    def bind(self: ConvTranspose[TensorView], b: Binder) -> None:
        from kuiper.ops.product.transposed import transposed_step

        spatial = self.weight.rank - 2
        x = b.channels_last(_as_image(self.input, spatial))
        y, image, residual = _output(self, b, spatial)
        residual = residual_in_float32(b, residual, x, image)
        b.step(transposed_step(self, b, Geometry.of(self), x, image, make_epilogue(b, residual)))
        _finish(b, y, image, spatial)


def _as_image(value: TensorView, spatial: int) -> TensorView:
    """View (n, c, l), (c, h, w) or (c, l) as (n, c, h, w)."""
    if value.rank == spatial + 1:
        value = value.with_layout((1, *value.shape), (value.size, *value.strides))
    if spatial == 1:
        n, c, width = value.shape
        value = value.with_layout((n, c, 1, width), (*value.strides[:2], 0, value.strides[2]))
        # The row stride of a single row is arbitrary: choose that of a channels-last image.
        strides = (*value.strides[:2], value.strides[3] * width, value.strides[3])
        value = value.with_layout(value.shape, strides)
    return value


def _output(a: ConvolutionRecord[TensorView], b: Binder, spatial: int) -> Any:
    """Return the output, its channels-last image, and the residual as an image.

    The output is None if `_finish` has to make it a view of the image.
    """
    residual = residual_view(b)
    if a.input.rank == 4 and spatial == 2:
        y = b.output(layout=Layout.CHANNELS_LAST)
        return y, y, None if residual is None else b.channels_last(residual)
    spec = b.output_spec()
    shape = spec.shape
    if a.input.rank == spatial + 1:
        shape = (1, *shape)
    if spatial == 1:
        shape = (*shape[:2], 1, shape[2])
    image = b.temporary(shape, b.output_dtype(), Layout.CHANNELS_LAST)
    if residual is not None:
        residual = b.channels_last(_as_image(residual, spatial))
    return None, image, residual


def _finish(b: Binder, y: Any, image: Any, spatial: int) -> None:
    """Make an output that is no image a view of the computed image."""
    if y is not None:
        return
    axes = [0, 1, 2, 3] if spatial == 2 else [0, 1, 3]
    if b.output_spec().rank == spatial + 1:
        axes = axes[1:]
    b.alias(image.with_layout([image.shape[d] for d in axes], [image.strides[d] for d in axes]))


@record("nn.Conv1d", "F.conv1d")
class Conv1d(Conv[T]):
    """Cross-correlation of sequences with filters.

    Input (n, c, l) or (c, l), weight (out, in / groups, k).  Source: torch.nn.Conv1d.
    """

    weight: T = Tensor(rank=3)
    input_scale = None


@record("nn.ConvTranspose1d", "F.conv_transpose1d")
class ConvTranspose1d(ConvTranspose[T]):
    """Transposed convolution of sequences: the adjoint of a convolution with the same arguments.

    Input (n, c, l) or (c, l), weight (in, out / groups, k).  Source: torch.nn.ConvTranspose1d.
    """

    weight: T = Tensor(rank=3)
