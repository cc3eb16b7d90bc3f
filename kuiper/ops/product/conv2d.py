"""Convolution and transposed convolution."""

from __future__ import annotations

import math
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np

from kuiper._kernels.conv import conv
from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec, Value
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.epilogue import activation_post, make_post, residual_value
from kuiper.ops.core.record import NoBatchRule, Record, record
from kuiper.ops.core.schema import Argument, Float, Ints, Str, Tensor
from kuiper.ops.product.algorithms import (
    count_work,
    image_steps,
    implicit_step,
    scaled_step,
    window_taps,
)
from kuiper.ops.product.filters import (
    Filters,
    depthwise_blocks,
    pack_at_run_time,
    pack_groups,
    panel_offsets,
)
from kuiper.ops.product.geometry import COMMON, Geometry, check_weight, for_axes, per_axis

__all__ = ["Conv", "Conv1d", "ConvTranspose", "ConvTranspose1d", "ExpandDepthwise"]

# What an inverted residual keeps of its wide image: it shares the L2 cache with weights and images.
RING_BYTES = 400 << 10


@record("nn.Conv2d", "F.conv2d")
class Conv(Record):
    """Cross-correlation of an input with filters.

    ``y[n, o, i, j] = bias[o] + sum x[n, c, i * s + u * d - p, j * s + v * d - p] * w[o, c, u, v]``

    Input (n, c, h, w) or (c, h, w), weight (out, in / groups, kh, kw).  `input_scale`, of shape
    (n, c, 1, 1), comes from the pass `fuse_gate` alone.
    Source: torch.nn.Conv2d.
    """

    batch = "convolution"
    arguments: tuple[Argument, ...] = (
        *COMMON,
        Ints("padding", default=(0,), minimum=0, words=("same", "valid")),
        Str("padding_mode", ("zeros", "reflect", "replicate", "circular"), "zeros"),
        Tensor("input_scale", optional=True, internal=True),
    )
    layout = "channels_last"
    post_ops = True

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        spatial = a.weight.rank - 2
        check_weight(a, spatial, in_axis=1)
        geometry = Geometry(a, spatial)
        extents = (1,) * (2 - spatial) + a.input.shape[a.input.rank - spatial :]
        out = geometry.output_extents(*extents)
        if min(out) < 1:
            raise ShapeError(
                f"the kernel {a.weight.shape[2:]} with dilation {a.dilation} is larger than the "
                f"padded input {a.input.shape}"
            )
        batch = a.input.shape[: a.input.rank - spatial - 1]
        scale = getattr(a, "input_scale", None)
        if scale is not None and (
            a.input.rank != 4
            or scale.shape != (*a.input.shape[:2], 1, 1)
            or scale.dtype != np.float32
            or (a.groups, geometry.kernel, geometry.stride) != (1, (1, 1), (1, 1))
            or any(geometry.padding)
        ):
            raise ShapeError(
                f"'input_scale' has shape {scale.shape}, expected one number for each channel of "
                f"the input {a.input.shape}, and a 1x1 kernel {geometry.kernel} without padding"
            )
        return TensorSpec((*batch, a.weight.shape[0], *out[2 - spatial :]))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        spatial = a.weight.rank - 2
        geometry = Geometry(a, spatial)
        x = _as_image(a.input, spatial)
        top, bottom, left, right = geometry.padding
        if a.padding_mode != "zeros" and any(geometry.padding):
            from kuiper.ops.tensor.padding import pad_spatial

            x = pad_spatial(b, x, (left, right, top, bottom), a.padding_mode, 0.0)
            top = bottom = left = right = 0
        filters = Filters(a.weight, a.bias, (*a.weight.shape[:2], *geometry.kernel))
        y, image, residual = _output(a, b, spatial)
        post = make_post(b, residual)
        taps = window_taps(geometry, (top, left))
        size = (image.shape[2], image.shape[3])
        out_channels, in_channels = filters.shape[:2]
        scale = getattr(a, "input_scale", None)
        if scale is not None:
            if not filters.is_constant:
                raise ShapeError("'input_scale' expects a weight and a bias that the file holds")
            step = scaled_step(b, x, scale, image, filters, post)
        elif not filters.is_constant:
            x = b.channels_last(x)
            packed, offsets = pack_at_run_time(
                b, a, filters, a.groups, [list(np.ndindex(geometry.kernel))], by_column=True
            )
            step = implicit_step(
                b, x, image, packed, [(0, 0, *size, taps, offsets[0])], geometry.stride, (1, 1),
                a.groups, in_channels, out_channels // a.groups, post,
            )  # fmt: skip
            count_work(step, x, image, filters)
        else:
            step = image_steps(b, x, image, filters, geometry, (top, left), a.groups, post)
        b.step(step)
        _finish(b, y, image, spatial)


@record("kuiper.ExpandDepthwise")
class ExpandDepthwise(Record):
    """A 1x1 convolution, an activation, and a depthwise convolution, in one sweep.

    Made by the pass `fuse_expand` of two operators; `expand_weight` (c, in, 1, 1), `expand_bias`
    and `activation` are the first one's, the rest is the second one's.
    """

    batch = NoBatchRule("passes make it after the batch was unfrozen")
    arguments = (
        Tensor("input", rank=4),
        Tensor("expand_weight", rank=4),
        Tensor("expand_bias", optional=True),
        Str("activation", default=None),
        Float("activation_p0", 0.0),
        Float("activation_p1", 0.0),
        Tensor("weight", rank=4),
        Tensor("bias", optional=True),
        Ints("stride", default=(1,), minimum=1),
        Ints("dilation", default=(1,), minimum=1),
        Ints("padding", default=(0,), minimum=0, words=("same", "valid")),
    )
    internal = True
    layout = "channels_last"
    post_ops = True

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        height, width = Geometry(a, 2).output_extents(*a.input.shape[2:])
        return TensorSpec((a.input.shape[0], a.weight.shape[0], height, width))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        from kuiper._kernels.conv import expand_depthwise as kernel

        geometry = Geometry(a, 2)
        x = b.channels_last(a.input)
        image, _, residual = _output(a, b, 2)
        expand = Filters(a.expand_weight, a.expand_bias, a.expand_weight.shape)
        filters = Filters(a.weight, a.bias, a.weight.shape)
        act = None
        if a.activation is not None:
            act = activation_post(a.activation, (a.activation_p0, a.activation_p1))
        channels, in_channels = a.expand_weight.shape[:2]
        first = b.packed("expand", lambda: pack_groups([expand], expand.bias(), 1, b.n_threads))
        second = b.packed("depthwise", lambda: depthwise_blocks(filters))
        windows = (
            geometry.kernel, geometry.stride, geometry.dilation,
            (geometry.padding[0], geometry.padding[2]),
        )  # fmt: skip
        ring = kernel.Ring(x, image, *windows, RING_BYTES)
        step = kernel.ExpandDepthwiseStep(
            x, first, second, image, b.scratch(ring.n_bytes), ring, *windows, act,
            make_post(b, residual),
        )  # fmt: skip
        taps = geometry.kernel[0] * geometry.kernel[1]
        step.flops = 2.0 * (x.size * channels + image.size * taps)
        step.bytes = 4.0 * (x.size + image.size + channels * (in_channels + taps))
        b.step(step)


# Each place in the stride of a transposed convolution costs time when it is planned.
MAX_PHASES = 1 << 16


@record("nn.ConvTranspose2d", "F.conv_transpose2d")
class ConvTranspose(Record):
    """Transposed convolution: the adjoint of a convolution with the same arguments.

    Output extent ``(l - 1) * stride - 2 * padding + dilation * (k - 1) + output_padding + 1``.
    The extents of the stride have a product of 65536 at most.
    Input (n, c, h, w) or (c, h, w), weight (in, out / groups, kh, kw).
    Source: torch.nn.ConvTranspose2d.
    """

    batch = "convolution"
    arguments: tuple[Argument, ...] = (
        *COMMON,
        Ints("padding", default=(0,), minimum=0),
        Ints("output_padding", default=(0,), minimum=0),
    )
    layout = "channels_last"
    post_ops = True

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        spatial = a.weight.rank - 2
        check_weight(a, spatial, in_axis=0)
        if len(a.padding) not in (1, spatial):
            raise ShapeError(f"'padding' is {a.padding}, expected {spatial} integers")
        extents = a.input.shape[a.input.rank - spatial :]
        out = tuple(
            (extent - 1) * s - 2 * p + d * (k - 1) + more + 1
            for extent, s, p, d, k, more in zip(
                extents,
                per_axis(a.stride, spatial),
                per_axis(a.padding, spatial),
                per_axis(a.dilation, spatial),
                a.weight.shape[2:],
                per_axis(a.output_padding, spatial),
                strict=True,
            )
        )
        for more, s, d in zip(
            per_axis(a.output_padding, spatial),
            per_axis(a.stride, spatial),
            per_axis(a.dilation, spatial),
            strict=True,
        ):
            if more >= max(s, d):
                raise ShapeError(
                    f"'output_padding' is {a.output_padding}, expected less than stride {a.stride} "
                    f"or dilation {a.dilation}"
                )
        if min(out) < 1:
            raise ShapeError(f"the output of an input {a.input.shape} would be {out}")
        phases = math.prod(map(min, per_axis(a.stride, spatial), out))
        if phases > MAX_PHASES:
            raise ShapeError(
                f"'stride' is {a.stride}, which makes {phases} kinds of places in an output of "
                f"{out}, at most {MAX_PHASES} are supported"
            )
        batch = a.input.shape[: a.input.rank - spatial - 1]
        return TensorSpec((*batch, a.weight.shape[1] * a.groups, *out))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        spatial = a.weight.rank - 2
        geometry = Geometry(a, spatial)
        x = b.channels_last(_as_image(a.input, spatial))
        y, image, residual = _output(a, b, spatial)
        post = make_post(b, residual)
        filters = Filters(a.weight, a.bias, (*a.weight.shape[:2], *geometry.kernel))
        phases, tap_lists = _phases(geometry, image.shape[2:])
        groups = a.groups
        in_channels, out_channels = filters.shape[0] // groups, filters.shape[1]

        is_narrow = (
            filters.is_constant
            and groups == 1
            and conv.is_narrow(min(map(len, tap_lists)), in_channels, out_channels)
        )

        def pack() -> np.ndarray:
            # (in, out / groups, kh, kw) -> (out, in / groups, kh, kw), as a convolution has it.
            grouped = filters.weight().reshape(groups, in_channels, out_channels, *geometry.kernel)
            swapped = grouped.transpose(0, 2, 1, 3, 4)
            forward = swapped.reshape(groups * out_channels, in_channels, *geometry.kernel)
            parts = [
                np.stack([forward[:, :, u, v] for u, v in taps], axis=2)
                if taps
                else forward[:, :, :0, 0]
                for taps in tap_lists
            ]
            if is_narrow:
                return conv.pack_narrow(parts, filters.bias())
            return pack_groups(parts, filters.bias(), groups, b.n_threads)

        if is_narrow:
            packed = b.packed("conv_transpose narrow", pack)
            sizes = [conv.narrow_floats(len(t), in_channels, out_channels) for t in tap_lists]
            offsets = [0, *accumulate(sizes)]
        elif filters.is_constant:
            packed = b.packed("conv_transpose", pack)
            offsets = panel_offsets(tap_lists, groups, in_channels, out_channels)
        else:
            packed, offsets = pack_at_run_time(b, a, filters, groups, tap_lists, by_column=False)
        phases = [(*phase, offsets[kind]) for *phase, kind in phases]
        step = implicit_step(
            b, x, image, packed, phases, (1, 1), geometry.stride, groups, in_channels, out_channels,
            post, is_narrow,
        )  # fmt: skip
        step.kind = "conv_transpose"
        step.flops = 2.0 * x.size * a.weight.size / a.weight.shape[0]
        step.bytes = 4.0 * (x.size + image.size + a.weight.size)
        b.step(step)
        _finish(b, y, image, spatial)


def _phases(geometry: Geometry, extents: Any) -> Any:
    """Split the output pixels by their place in the stride.

    All pixels of one phase see the same taps of the kernel, at the same distance: output pixel
    ``q * s + r`` sees tap u of the input pixel ``q + (r + p - u * d) / s`` where that is whole.

    Returns
    -------
    phases : list of (first_h, first_w, height, width, [(dy, dx)], kind)
    taps : list of ((u, v), ...)
        Which taps of the kernel the phases of each kind take.
    """
    by_axis = []
    for axis in range(2):
        stride, dilation = geometry.stride[axis], geometry.dilation[axis]
        padding, kernel = geometry.padding[2 * axis], geometry.kernel[axis]
        choices = []
        for first in range(min(stride, extents[axis])):
            taps = [
                (u, (first + padding - u * dilation) // stride)
                for u in range(kernel)
                if (first + padding - u * dilation) % stride == 0
            ]
            choices.append((first, -(-(extents[axis] - first) // stride), taps))
        by_axis.append(choices)
    phases: list[tuple[Any, ...]] = []
    kinds: dict[tuple[tuple[int, int], ...], int] = {}
    for first_h, height, taps_h in by_axis[0]:
        for first_w, width, taps_w in by_axis[1]:
            taken = tuple((u, v) for u, _ in taps_h for v, _ in taps_w)
            seen = [(dy, dx) for _, dy in taps_h for _, dx in taps_w]
            kind = kinds.setdefault(taken, len(kinds))
            phases.append((first_h, first_w, height, width, seen, kind))
    return phases, list(kinds)


def _as_image(value: Value, spatial: int) -> Value:
    """View (n, c, l), (c, h, w) or (c, l) as (n, c, h, w)."""
    if value.rank == spatial + 1:
        value = value.with_layout((1, *value.shape), (value.size, *value.strides))
    if spatial == 1:
        n, c, width = value.shape
        value = value.with_layout((n, c, 1, width), (*value.strides[:2], 0, value.strides[2]))
        # With one row the row stride is free; let it say what a channels-last row would.
        strides = (*value.strides[:2], value.strides[3] * width, value.strides[3])
        value = value.with_layout(value.shape, strides)
    return value


def _output(a: SimpleNamespace, b: Binder, spatial: int) -> Any:
    """Return the output, the same as a channels-last image, and the residual as an image."""
    residual = residual_value(b)
    if a.input.rank == 4 and spatial == 2:
        y = b.output(layout="channels_last")
        return y, y, None if residual is None else b.channels_last(residual)
    spec = b.output_spec()
    shape = spec.shape
    if a.input.rank == spatial + 1:
        shape = (1, *shape)
    if spatial == 1:
        shape = (*shape[:2], 1, shape[2])
    image = b.temporary(shape, np.float32, "channels_last")
    if residual is not None:
        residual = b.channels_last(_as_image(residual, spatial))
    return None, image, residual


def _finish(b: Binder, y: Any, image: Any, spatial: int) -> None:
    """Let an output that is no image be a view of the one that was computed."""
    if y is not None:
        return
    axes = [0, 1, 2, 3] if spatial == 2 else [0, 1, 3]
    if b.output_spec().rank == spatial + 1:
        axes = axes[1:]
    b.alias(image.with_layout([image.shape[d] for d in axes], [image.strides[d] for d in axes]))


@record("nn.Conv1d", "F.conv1d")
class Conv1d(Conv):
    """Cross-correlation of rows with filters.

    Input (n, c, l) or (c, l), weight (out, in / groups, k).  Source: torch.nn.Conv1d.
    """

    arguments = for_axes(Conv.arguments, 1)


@record("nn.ConvTranspose1d", "F.conv_transpose1d")
class ConvTranspose1d(ConvTranspose):
    """Transposed convolution of rows: the adjoint of a convolution with the same arguments.

    Input (n, c, l) or (c, l), weight (in, out / groups, k).  Source: torch.nn.ConvTranspose1d.
    """

    arguments = for_axes(ConvTranspose.arguments, 1)
