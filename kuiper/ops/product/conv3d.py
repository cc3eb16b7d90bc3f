"""Convolution and transposed convolution of volumes."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from kuiper._kernels.conv import conv3d, winograd
from kuiper._kernels.micro import packing
from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec, Value
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.epilogue import make_post, residual_value
from kuiper.ops.core.record import Record, record
from kuiper.ops.product.algorithms import image_steps
from kuiper.ops.product.conv2d import Conv, ConvTranspose
from kuiper.ops.product.filters import Filters, pack_at_run_time, pack_groups, panel_offsets
from kuiper.ops.product.geometry import check_weight, for_axes, per_axis
from kuiper.ops.product.winograd import winograd_steps, winograd_tile
from kuiper.ops.tensor.padding import pad_spatial

__all__ = ["Conv3d", "ConvTranspose3d"]

# From (n, c, d, h, w) to how volumes lie in memory, and back.
CHANNELS_LAST = (0, 2, 3, 4, 1)
CHANNELS_SECOND = (0, 4, 1, 2, 3)


class _Geometry:
    """A convolution's arguments, one number per axis.

    Attributes
    ----------
    kernel, stride, dilation : (int, int, int)
    padding : list of (int, int)
        In front of and behind each axis.
    """

    def __init__(self, a: SimpleNamespace) -> None:
        self.kernel = a.weight.shape[2:]
        self.stride = per_axis(a.stride, 3)
        self.dilation = per_axis(a.dilation, 3)
        if a.padding == "valid":
            self.padding = [(0, 0)] * 3
        elif a.padding == "same":
            # The odd one goes to the far side, as in PyTorch.
            totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel, strict=True)]
            self.padding = [(total // 2, total - total // 2) for total in totals]
        elif len(a.padding) == 6:
            # Both sides of each axis, last axis first, as F.pad has them.
            self.padding = [tuple(a.padding[2 * i : 2 * i + 2]) for i in (2, 1, 0)]
        else:
            self.padding = [(p, p) for p in per_axis(a.padding, 3)]

    def output_extents(self, extents: Any) -> tuple[int, ...]:
        return tuple(
            (extent + sum(pad) - d * (k - 1) - 1) // s + 1
            for extent, pad, k, s, d in zip(
                extents, self.padding, self.kernel, self.stride, self.dilation, strict=True
            )
        )


@record("nn.Conv3d", "F.conv3d")
class Conv3d(Record):
    """Cross-correlation of volumes with filters.

    Input (n, c, d, h, w) or (c, d, h, w), weight (out, in / groups, kd, kh, kw).
    Source: torch.nn.Conv3d.
    """

    batch = "convolution"
    arguments = for_axes(Conv.arguments, 3)
    post_ops = True

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        check_weight(a, 3, in_axis=1)
        out = _Geometry(a).output_extents(a.input.shape[-3:])
        if min(out) < 1:
            raise ShapeError(
                f"the kernel {a.weight.shape[2:]} with dilation {a.dilation} is larger than the "
                f"padded input {a.input.shape}"
            )
        return TensorSpec((*a.input.shape[:-4], a.weight.shape[0], *out))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        geometry = _Geometry(a)
        x = a.input
        padding = geometry.padding
        if a.padding_mode != "zeros" and any(map(any, padding)):
            margins = [side for pair in reversed(padding) for side in pair]
            x = pad_spatial(b, x, margins, a.padding_mode)
            padding = [(0, 0)] * 3
        x = _channels_last(b, x)
        y = _output(a, b)
        step = _step(a, b, geometry, padding, x, y)
        step.flops = 2.0 * y.size * a.weight.size / a.weight.shape[0]
        step.bytes = 4.0 * (x.size + y.size + a.weight.size)
        b.step(step)


def _step(
    a: SimpleNamespace, b: Binder, geometry: _Geometry, padding: Any, x: Value, y: Value
) -> Any:
    """Choose the way of (n, d, h, w, c) to its convolution; its last step is left to be added."""
    out_channels, in_channels = a.weight.shape[:2]
    filters = Filters(a.weight, a.bias, _flat(a.weight.shape))
    post = make_post(b, _residual(b))
    if filters.is_constant and (flat := _flattened(geometry, padding)):
        return image_steps(
            b, flat.view(x), flat.view(y), filters, flat, flat.origin, a.groups, post
        )  # fmt: skip
    if filters.is_constant and (tile := _winograd_tile(a, b, geometry)):
        planes = winograd.Planes(
            x.shape[1], y.shape[1], geometry.kernel[0], geometry.stride[0], geometry.dilation[0],
            padding[0][0],
        )  # fmt: skip
        return winograd_steps(
            b, tile, geometry.stride[1], _planes(x), _planes(y), _ByPlane(a),
            (padding[1][0], padding[2][0]), post, planes,
        )  # fmt: skip
    is_depthwise = a.groups == out_channels == x.shape[4] > 1 and filters.is_constant

    def pack() -> np.ndarray:
        weight = filters.weight()
        if is_depthwise:
            return packing.pack_depthwise(weight.reshape(out_channels, -1), filters.bias())
        return pack_groups([weight], filters.bias(), a.groups, b.n_threads)

    if filters.is_constant:
        packed = b.packed("conv3d", pack)
    else:
        places = list(np.ndindex(*filters.shape[2:]))
        packed, _ = pack_at_run_time(b, a, filters, a.groups, [places], by_column=True)
    taps = [
        tuple(
            k * d - before
            for k, d, (before, _) in zip(place, geometry.dilation, padding, strict=True)
        )
        for place in np.ndindex(geometry.kernel)
    ]
    window = conv3d.VolumeWindow(
        x, y, geometry.stride, (1, 1, 1), [((0, 0, 0), y.shape[1:4], taps, 0)]
    )
    return conv3d.VolumeConvStep(
        x, packed, y, window, a.groups, in_channels, out_channels // a.groups,
        b.scratch(conv3d.volume_scratch_bytes(len(taps), is_depthwise)), post, is_depthwise,
    )  # fmt: skip


@record("nn.ConvTranspose3d", "F.conv_transpose3d")
class ConvTranspose3d(Record):
    """Transposed convolution of volumes: the adjoint of a convolution with the same arguments.

    Output extent ``(l - 1) * stride - 2 * padding + dilation * (k - 1) + output_padding + 1``.
    The extents of the stride have a product of 65536 at most.
    Input (n, c, d, h, w) or (c, d, h, w), weight (in, out / groups, kd, kh, kw).
    Source: torch.nn.ConvTranspose3d.
    """

    batch = "convolution"
    arguments = for_axes(ConvTranspose.arguments, 3)
    post_ops = True

    @staticmethod
    def infer(a: SimpleNamespace) -> Any:
        return ConvTranspose.infer(a)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        geometry = _Geometry(a)
        x = _channels_last(b, a.input)
        y = _output(a, b)
        groups, kernel = a.groups, geometry.kernel
        in_channels, out_channels = a.weight.shape[0] // groups, a.weight.shape[1]
        filters = Filters(a.weight, a.bias, _flat(a.weight.shape))
        phases, tap_lists = _phases(geometry, y.shape[1:4])

        def pack() -> np.ndarray:
            # (in, out / groups, kernel) -> (out, in / groups, kernel), as a convolution has it.
            grouped = filters.weight().reshape(groups, in_channels, out_channels, *kernel)
            forward = grouped.swapaxes(1, 2).reshape(groups * out_channels, in_channels, *kernel)
            parts = [
                np.stack([forward[:, :, d, h, w] for d, h, w in taps], axis=2)
                if taps
                else forward[:, :, :0, 0, 0]
                for taps in tap_lists
            ]
            return pack_groups(parts, filters.bias(), groups, b.n_threads)

        if filters.is_constant:
            packed = b.packed("conv_transpose3d", pack)
            offsets = panel_offsets(tap_lists, groups, in_channels, out_channels)
        else:
            flat = [[(d * kernel[1] + h, w) for d, h, w in taps] for taps in tap_lists]
            packed, offsets = pack_at_run_time(b, a, filters, groups, flat, by_column=False)
        phases = [(*phase, offsets[kind]) for *phase, kind in phases]
        window = conv3d.VolumeWindow(x, y, (1, 1, 1), geometry.stride, phases)
        step = conv3d.VolumeConvStep(
            x, packed, y, window, groups, in_channels, out_channels,
            b.scratch(conv3d.volume_scratch_bytes(window.max_taps)), make_post(b, _residual(b)),
        )  # fmt: skip
        step.kind = "conv_transpose3d"
        step.flops = 2.0 * x.size * a.weight.size / a.weight.shape[0]
        step.bytes = 4.0 * (x.size + y.size + a.weight.size)
        b.step(step)


def _flat(shape: Any) -> tuple[int, ...]:
    """Return a weight's shape with depth and height of the kernel as one axis."""
    return (*shape[:2], shape[2] * shape[3], shape[4])


class _ByPlane(Filters):
    """Filters (out, in, kd, 3, 3) as (out, kd * in, 3, 3), slice by slice."""

    def __init__(self, a: SimpleNamespace) -> None:
        out_channels, in_channels, depth, *kernel = a.weight.shape
        super().__init__(a.weight, a.bias, (out_channels, depth * in_channels, *kernel))
        self._volumes = (in_channels, depth, *kernel)

    @property
    def in_file(self) -> None:
        """They do not lie in their file in this order."""
        return None

    def __getitem__(self, rows: slice) -> np.ndarray:
        filters = super().__getitem__(rows).reshape(-1, *self._volumes)
        by_plane = np.ascontiguousarray(filters.swapaxes(1, 2))
        return by_plane.reshape(len(filters), *self.shape[1:])


def _winograd_tile(a: SimpleNamespace, b: Binder, geometry: _Geometry) -> int:
    """Return the side of Winograd's tiles, plane by plane, or 0 if the definition is faster."""
    out_channels, in_channels, depth = a.weight.shape[:3]
    if depth > winograd.MOST_DEPTH or a.groups > 1:
        return 0
    plane = SimpleNamespace(
        kernel=geometry.kernel[1:], stride=geometry.stride[1:], dilation=geometry.dilation[1:]
    )
    extents = b.output_spec().shape[-3:]
    shape = (out_channels, depth * in_channels)
    return winograd_tile(plane, shape, extents[1:], extents[0])


def _flattened(geometry: _Geometry, padding: Any) -> SimpleNamespace | None:
    """Return the convolution of images that one of volumes is, or None.

    A window of one plane moves over images, the planes.  One of a single column moves over images
    whose rows are whole planes.
    """
    kernel, stride, dilation = geometry.kernel, geometry.stride, geometry.dilation
    front, top, left = padding
    if kernel[1:] == stride[1:] == (1, 1) and not any((*top, *left)):
        return SimpleNamespace(
            kernel=(kernel[0], 1), stride=(stride[0], 1), dilation=(dilation[0], 1),
            origin=(front[0], 0), view=_rows,
        )  # fmt: skip
    if kernel[0] == stride[0] == 1 and not any(front):
        return SimpleNamespace(
            kernel=kernel[1:], stride=stride[1:], dilation=dilation[1:],
            origin=(top[0], left[0]), view=_planes,
        )  # fmt: skip
    return None


def _rows(volumes: Value) -> Value:
    """View (n, d, h, w, c) without gaps as images (n, c, d, h * w)."""
    n, depth, height, width, channels = volumes.shape
    row = height * width * channels
    return volumes.with_layout(
        (n, channels, depth, height * width), (depth * row, 1, row, channels)
    )


def _planes(volumes: Value) -> Value:
    """View (n, d, h, w, c) without gaps as images (n * d, c, h, w)."""
    n, depth, height, width, channels = volumes.shape
    row = width * channels
    return volumes.with_layout(
        (n * depth, channels, height, width), (height * row, 1, row, channels)
    )


def _channels_last(b: Binder, value: Value) -> Value:
    """View (n, c, d, h, w) or (c, d, h, w) as (n, d, h, w, c) without gaps; copy where needed."""
    if value.rank == 4:
        value = value.with_layout((1, *value.shape), (value.size, *value.strides))
    return b.contiguous(value.permute(CHANNELS_LAST))


def _output(a: SimpleNamespace, b: Binder) -> Value:
    """Return the output as (n, d, h, w, c) without gaps."""
    if a.input.rank == 5:
        return b.output(layout=CHANNELS_LAST).permute(CHANNELS_LAST)
    channels, *extents = b.output_spec().shape
    y = b.temporary((1, *extents, channels))
    b.alias(y.permute(CHANNELS_SECOND).select(0, 0))
    return y


def _residual(b: Binder) -> Value | None:
    """Return the other summand of a fused sum as rows of channels."""
    residual = residual_value(b)
    if residual is None:
        return None
    residual = _channels_last(b, residual)
    return residual.reshape((math.prod(residual.shape[:4]), residual.shape[4]))


def _phases(geometry: _Geometry, extents: Any) -> Any:
    """Split the output voxels by their place in the stride.

    All voxels of one phase see the same taps of the kernel, at the same distance: output voxel
    ``q * s + r`` sees tap u of the input voxel ``q + (r + p - u * d) / s`` where that is whole.

    Returns
    -------
    phases : list of (first, extent, [(dz, dy, dx)], kind)
    taps : list of ((d, h, w), ...)
        Which taps of the kernel the phases of each kind take.
    """
    per_axis_choices = []
    for axis in range(3):
        stride, dilation = geometry.stride[axis], geometry.dilation[axis]
        padding, kernel = geometry.padding[axis][0], geometry.kernel[axis]
        per_axis_choices.append(
            [
                (
                    first,
                    -(-(extents[axis] - first) // stride),
                    [
                        (u, (first + padding - u * dilation) // stride)
                        for u in range(kernel)
                        if (first + padding - u * dilation) % stride == 0
                    ],
                )
                for first in range(min(stride, extents[axis]))
            ]
        )
    phases: list[tuple[Any, ...]] = []
    kinds: dict[tuple[tuple[int, ...], ...], int] = {}
    for choice in itertools.product(*per_axis_choices):
        firsts, counts, taps = zip(*choice, strict=True)
        combined = list(itertools.product(*taps))
        taken = tuple(tuple(u for u, _ in tap) for tap in combined)
        seen = [tuple(place for _, place in tap) for tap in combined]
        phases.append((firsts, counts, seen, kinds.setdefault(taken, len(kinds))))
    return phases, list(kinds)
