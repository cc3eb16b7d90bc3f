"""Images read at places computed at run time: grids, regions, deformable convolution."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._kernels.linear import linear
from kuiper._kernels.micro import packing
from kuiper._kernels.micro.packed import PackedMatrix
from kuiper._kernels.spatial.sample import DeformStep, GridPlanesStep, GridSampleStep, RoiAlignStep
from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.image import image_input, image_output
from kuiper.ops.core.numpy_step import KernelRecord
from kuiper.ops.core.record import NoBatchRule, Record, record
from kuiper.ops.core.schema import Bool, Float, Int, Ints, Str, Tensor
from kuiper.ops.product.linear import product

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["AffineGrid", "DeformConv2d", "GridSample", "RoiAlign"]

FLOAT32 = np.dtype(np.float32)

# Up to so many channels an image is read as it lies, even if a vector spans several pixels.
MAX_PLANES = 16
MIN_VECTOR = 8
MAX_EXTENT = 1 << 22

# Points along one axis of a region's cell; a file that asks for more would run for ever.
MAX_RATIO = 4096


def _check_floats(*tensors: Any) -> None:
    for tensor in tensors:
        if tensor is not None and tensor.dtype != FLOAT32:
            raise ShapeError(f"an input is {tensor.dtype}, expected float32")


class _Word(Str):
    """A word, or its number among them: functions that others are made of have it so."""

    def convert(self, value: Any) -> Any:
        if (
            isinstance(value, int)
            and not isinstance(value, bool)
            and 0 <= value < len(self.choices)
        ):
            return self.choices[value]
        return super().convert(value)


@record("F.grid_sample", "aten::grid_sampler_2d", "aten::grid_sampler_3d")
class GridSample(Record):
    """An image, or a volume, read at the places of a grid, from -1 to 1 along each axis.

    Input (n, c, h, w), grid (n, oh, ow, 2) with the horizontal place first; or (n, c, d, h, w)
    and (n, od, oh, ow, 3).  Places outside give zeros, or what the border or its reflection has.
    Source: torch.nn.functional.grid_sample.
    """

    arguments = (
        Tensor("input", rank=(4, 5)),
        Tensor("grid", rank=(4, 5)),
        _Word("mode", ("bilinear", "nearest", "bicubic"), "bilinear"),
        _Word("padding_mode", ("zeros", "border", "reflection"), "zeros"),
        Bool("align_corners", False),
    )
    layout = "channels_last"

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        spatial = a.input.rank - 2
        _check_floats(a.input, a.grid)
        if a.grid.rank != a.input.rank or (a.grid.shape[0], a.grid.shape[-1]) != (
            a.input.shape[0],
            spatial,
        ):
            raise ShapeError(
                f"'grid' has shape {a.grid.shape}, expected ({a.input.shape[0]}, ..., {spatial}) "
                f"of rank {a.input.rank} for an input of shape {a.input.shape}"
            )
        if 0 in a.input.shape[1:]:
            raise ShapeError(f"the input has shape {a.input.shape}, nothing to read")
        if spatial == 3 and a.mode == "bicubic":
            raise ShapeError("'mode' is bicubic, expected bilinear or nearest for a volume")
        return TensorSpec((*a.input.shape[:2], *a.grid.shape[1:-1]))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        spatial = a.input.rank - 2
        points = math.prod(a.grid.shape[1:-1])
        if _is_planar(a):
            y = b.output(layout=a.input)
            if y.size:
                batch, channels, *extents = a.input.shape
                x = a.input.reshape((batch, channels, math.prod(extents)))
                if x is None:
                    x = b.contiguous(a.input).view((batch, channels, math.prod(extents)))
                grid = b.contiguous(a.grid).view((batch, points, spatial))
                y = y.view((batch, channels, points))
                b.step(GridPlanesStep(x, grid, y, extents, a.mode, a.padding_mode, a.align_corners))
            return
        y = image_output(b, spatial)
        if y.size == 0:
            return
        x, grid = image_input(b, a.input, spatial), b.contiguous(a.grid)
        grid = grid.view((a.grid.shape[0], points, spatial))
        b.step(
            GridSampleStep(
                x, grid, y, a.input.shape[2:], a.mode, a.padding_mode, a.align_corners,
                b.scratch(16 * x.shape[1]),
            )
        )  # fmt: skip

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        batch = c.first_batch(c.a.input, c.a.grid)
        c.require(batch.axis == 0)
        for spec in (c.a.input, c.a.grid):
            c.spread(spec, batch)
        return batch


def _is_planar(a: SimpleNamespace) -> bool:
    """Tell whether an image is better read a channel at a time."""
    channels, *extents = a.input.shape[1:]
    # Pixels are told apart by 32 bits; one may be part of a longer row of channels.
    spread = math.prod(extents) * max(map(abs, a.input.strides[-1:]), default=1)
    if a.mode == "bicubic" or max(extents) > MAX_EXTENT or spread >= 1 << 31:
        return False
    is_vector = a.input.strides[1] == 1 and channels >= MIN_VECTOR
    return channels <= MAX_PLANES and not is_vector


@record("F.affine_grid")
class AffineGrid(KernelRecord):
    """The places of the pixels of an image after an affine map: a grid for F.grid_sample.

    Source: torch.nn.functional.affine_grid.
    """

    batch = NoBatchRule("its size counts the members as a number")
    arguments = (
        Tensor("theta", rank=3),
        Ints("size", minimum=1),
        Bool("align_corners", False),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        spatial = len(a.size) - 2
        if spatial not in (2, 3) or a.theta.shape != (a.size[0], spatial, spatial + 1):
            raise ShapeError(
                f"'theta' has shape {a.theta.shape} and 'size' is {a.size}, expected (n, 2, 3) and "
                "(n, c, h, w), or (n, 3, 4) and (n, c, d, h, w)"
            )
        if a.theta.dtype.kind != "f":
            raise ShapeError(f"'theta' is {a.theta.dtype}, expected float32")
        return TensorSpec((a.size[0], *a.size[2:], spatial), a.theta.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        points = _pixels(a).astype(a.theta.dtype) @ np.swapaxes(a.theta, 1, 2)
        return points.reshape(a.size[0], *a.size[2:], -1)

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        if a.theta.dtype != FLOAT32:
            cls.in_numpy(a, b)
            return
        pixels = b.cached(("grid", *a.size[2:], a.align_corners), lambda: _pixels(a))
        y, spatial = b.output(), len(a.size) - 2
        y = y.view((a.size[0], math.prod(a.size[2:]), spatial))
        product(b, pixels, a.theta.permute((0, 2, 1)), y)


def _pixels(a: SimpleNamespace) -> np.ndarray:
    """Return the places of the pixels of an image, innermost axis first, each with a 1 behind."""
    places = []
    for extent in a.size[2:]:
        line = np.linspace(-1, 1, extent) if extent > 1 else np.zeros(1)
        if not a.align_corners:
            line = line * (extent - 1) / extent
        places.append(line.astype(np.float32))
    grid = np.meshgrid(*places, indexing="ij")
    base = np.stack([*reversed(grid), np.ones(a.size[2:], np.float32)], -1)
    return np.ascontiguousarray(base.reshape(-1, base.shape[-1]))


@record("torchvision.ops.RoIAlign", "torchvision.ops.roi_align")
class RoiAlign(Record):
    """Regions of images resized: each cell is the mean of some points between pixels.

    Input (n, c, h, w), boxes (k, 5): number of the image, left, top, right and bottom, in units
    of which `spatial_scale` makes pixels.  A box of an image that is not there gives NaN.
    Source: torchvision.ops.roi_align.
    """

    batch = NoBatchRule("its boxes name the member that they are of")
    arguments = (
        Tensor("input", rank=4),
        Tensor("boxes", rank=2, aliases=("rois",)),
        Ints("output_size", length=2, minimum=1),
        Float("spatial_scale", 1.0),
        Int("sampling_ratio", -1),
        Bool("aligned", False),
    )
    layout = "channels_last"

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        _check_floats(a.input, a.boxes)
        if a.boxes.shape[1] != 5:
            raise ShapeError(f"'boxes' has shape {a.boxes.shape}, expected (k, 5)")
        if 0 in a.input.shape[2:]:
            raise ShapeError(f"the input has shape {a.input.shape}, nothing to read")
        if a.sampling_ratio > MAX_RATIO:
            raise ShapeError(
                f"'sampling_ratio' is {a.sampling_ratio}, expected at most {MAX_RATIO}"
            )
        return TensorSpec((a.boxes.shape[0], a.input.shape[1], *a.output_size))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        y = b.output(layout="channels_last")
        if y.size == 0:
            return
        x, boxes = b.channels_last(a.input), b.contiguous(a.boxes)
        ratio = max(a.sampling_ratio, 0)
        scratch = b.scratch(4 * x.shape[1])
        b.step(RoiAlignStep(x, boxes, y, a.spatial_scale, ratio, a.aligned, scratch))


@record("torchvision.ops.DeformConv2d")
class DeformConv2d(Record):
    """Convolution whose taps are moved by offsets that are computed, each scaled by a mask.

    Input (n, c, h, w), offset (n, 2 * groups * taps, oh, ow) with the vertical part first, mask
    (n, groups * taps, oh, ow), weight (out_channels, c / groups, kh, kw).  Pixels are read between
    places, zeros outside; then it is a matrix product.  Source: torchvision.ops.deform_conv2d.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (
        Tensor("input", rank=4),
        Tensor("offset", rank=4),
        Tensor("mask", optional=True, rank=4),
        Tensor("weight", rank=4),
        Tensor("bias", optional=True),
        Int("in_channels", None, minimum=1),
        Int("out_channels", None, minimum=1),
        Ints("kernel_size", length=2, default=None, minimum=1, nullable=True),
        Ints("stride", length=2, default=(1, 1), minimum=1),
        Ints("padding", length=2, default=(0, 0), minimum=0),
        Ints("dilation", length=2, default=(1, 1), minimum=1),
        Int("groups", 1, minimum=1),
    )
    layout = "channels_last"

    @staticmethod
    def _deformed(a: SimpleNamespace) -> int:
        """Return how many groups of channels have offsets of their own."""
        return a.offset.shape[1] // (2 * math.prod(a.weight.shape[2:]))

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        _check_floats(a.input, a.offset, a.mask, a.weight, a.bias)
        n, channels, *extents = a.input.shape
        out_channels, own, *taps = a.weight.shape
        if 0 in a.weight.shape:
            raise ShapeError(f"'weight' has shape {a.weight.shape}, expected extents >= 1")
        for name, got in (
            ("in_channels", own * a.groups),
            ("out_channels", out_channels),
            ("kernel_size", tuple(taps)),
        ):
            said = getattr(a, name)
            if said is not None and said != got:
                raise ShapeError(
                    f"'{name}' is {said}, but 'weight' {a.weight.shape} makes it {got}"
                )
        if not a.weight.is_constant or not (a.bias is None or a.bias.is_constant):
            raise ShapeError("'weight' is computed at run time, expected a constant")
        if channels != own * a.groups or out_channels % a.groups:
            raise ShapeError(
                f"the input has {channels} channels and 'weight' is {a.weight.shape}, which do not "
                f"fit {a.groups} groups"
            )
        if a.bias is not None and a.bias.shape != (out_channels,):
            raise ShapeError(f"'bias' has shape {a.bias.shape}, expected ({out_channels},)")
        out = tuple(
            (extent + 2 * pad - dilation * (tap - 1) - 1) // stride + 1
            for extent, pad, dilation, tap, stride in zip(
                extents, a.padding, a.dilation, taps, a.stride, strict=True
            )
        )
        if min(out) < 1:
            raise ShapeError(f"the window does not fit into an input of shape {a.input.shape}")
        deformed, count = DeformConv2d._deformed(a), math.prod(taps)
        if deformed < 1 or channels % deformed or a.offset.shape != (n, 2 * deformed * count, *out):
            raise ShapeError(
                f"'offset' has shape {a.offset.shape}, expected ({n}, {2 * count} * groups, "
                f"{out[0]}, {out[1]}) with groups that divide {channels} channels"
            )
        if a.mask is not None and a.mask.shape != (n, deformed * count, *out):
            raise ShapeError(
                f"'mask' has shape {a.mask.shape}, expected {(n, deformed * count, *out)}"
            )
        return TensorSpec((n, out_channels, *out))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        y = b.output(layout="channels_last")
        if y.size == 0:
            return
        out_channels, own, *taps = a.weight.shape
        pixels, count = y.size // out_channels, math.prod(taps)
        windows = b.temporary((pixels, a.groups, count, own))
        mask = None if a.mask is None else b.channels_last(a.mask)
        b.step(
            DeformStep(
                b.channels_last(a.input), b.channels_last(a.offset), mask, windows, a.groups,
                DeformConv2d._deformed(a), taps, a.stride, a.padding, a.dilation,
            )
        )  # fmt: skip
        rows = y.with_layout((pixels, out_channels), (y.row_stride, 1))
        each = out_channels // a.groups
        for group in range(a.groups):
            x = windows.select(1, group).reshape((pixels, count * own))
            panels = _panels(a, b, group * each, each)
            b.step(linear.LinearStep(x, panels, rows.narrow(1, group * each, each)))


def _panels(a: SimpleNamespace, b: Binder, start: int, length: int) -> TensorView:
    """Return the packed weights of some output channels."""

    def fill(memory: np.ndarray) -> None:
        weight = np.asarray(a.weight.constant, np.float32)[start : start + length]
        columns = weight.reshape(*weight.shape[:2], -1).transpose(0, 2, 1)
        bias = None
        if a.bias is not None:
            bias = np.ascontiguousarray(a.bias.constant[start : start + length], np.float32)
        packing.pack_panels(columns, bias, b.n_threads, memory)

    depth = math.prod(a.weight.shape[1:])
    return b.packed([PackedMatrix(length, depth, part=start)], fill)


# -- the same as operators of a library --------------------------------------------------------


class _Numbered(Record):
    """Base of the functions, whose arguments pnnx numbers; they are modules in other words."""

    batch = NoBatchRule("rare: no known export uses it with another batch")

    module: type[Record]
    translated: Callable[[Any], Any]

    @classmethod
    def infer(cls, a: SimpleNamespace) -> Any:
        return cls.module.infer(cls.translated(a))

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        cls.module.bind(cls.translated(a), b)


@record("pnnx.custom_op.torchvision.roi_align")
class RoiAlignFunction(_Numbered):
    """Regions of images resized, as torchvision.ops.RoIAlign does.

    Source: torchvision.ops.roi_align.
    """

    arguments = (
        Tensor("arg_0", rank=4),
        Tensor("arg_1", rank=2),
        Float("arg_2"),
        Int("arg_3", minimum=1),
        Int("arg_4", minimum=1),
        Int("arg_5"),
        Bool("arg_6"),
    )
    layout = "channels_last"
    module = RoiAlign

    @staticmethod
    def translated(a: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(
            input=a.arg_0, boxes=a.arg_1, spatial_scale=a.arg_2, output_size=(a.arg_3, a.arg_4),
            sampling_ratio=a.arg_5, aligned=a.arg_6,
        )  # fmt: skip


@record("pnnx.custom_op.torchvision.deform_conv2d")
class DeformConv2dFunction(_Numbered):
    """Convolution whose taps are moved, as torchvision.ops.DeformConv2d does it.

    Source: torchvision.ops.deform_conv2d.
    """

    arguments = (
        *(Tensor(f"arg_{number}") for number in range(5)),
        *(Int(f"arg_{number}", minimum=0) for number in range(5, 13)),
        Bool("arg_13"),
    )
    layout = "channels_last"
    module = DeformConv2d

    @staticmethod
    def translated(a: SimpleNamespace) -> SimpleNamespace:
        for name, tensor in (("arg_0", a.arg_0), ("arg_1", a.arg_1), ("arg_2", a.arg_2)):
            if tensor.rank != 4:
                raise ShapeError(f"'{name}' has shape {tensor.shape}, expected rank 4")
        if min(a.arg_5, a.arg_6, a.arg_9, a.arg_10, a.arg_11) < 1:
            raise ShapeError("a stride, a dilation or the number of groups is 0, expected >= 1")
        return SimpleNamespace(
            input=a.arg_0, weight=a.arg_1, offset=a.arg_2, mask=a.arg_3 if a.arg_13 else None,
            bias=a.arg_4, stride=(a.arg_5, a.arg_6), padding=(a.arg_7, a.arg_8),
            dilation=(a.arg_9, a.arg_10), groups=a.arg_11, in_channels=None, out_channels=None,
            kernel_size=None,
        )  # fmt: skip
