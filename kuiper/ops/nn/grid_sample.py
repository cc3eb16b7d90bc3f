"""Images sampled at computed positions: grids, regions of interest, deformable convolution."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._kernels.linear import linear
from kuiper._kernels.micro import packing
from kuiper._kernels.micro.packed import PackedMatrix
from kuiper._kernels.spatial.sample import DeformStep, GridPlanesStep, GridSampleStep, RoiAlignStep
from kuiper.errors import ShapeError
from kuiper.expression import Call, Ref
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.axes import reshaped
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.image import image_input, image_output
from kuiper.ops.core.numpy_step import KernelRecord
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.schema import Bool, Float, Int, Ints, Known, StrArgument, Tensor, field
from kuiper.ops.math.elementwise import write_tree
from kuiper.ops.product.linear import product

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["AffineGrid", "DeformConv2d", "GridSample", "RoiAlign"]

FLOAT32 = np.dtype(np.float32)

MAX_PLANES = 16  # channels up to which an image that is not channels-last is sampled by plane
MIN_VECTOR = 8  # channels from which a channels-last pixel fills a vector
MAX_EXTENT = 1 << 22

# Sampling points along one axis of a region's cell; more would let a bad file run without end.
MAX_RATIO = 4096


def _check_floats(*tensors: Any) -> None:
    for tensor in tensors:
        if tensor is not None and tensor.dtype != FLOAT32:
            raise ShapeError(f"an input is {tensor.dtype}, expected float32")


class _Word(StrArgument):
    """A word or its index among the choices, as PyTorch's internal functions pass it."""

    def convert(self, value: Any) -> Any:
        if type(value) is int and 0 <= value < len(self.choices):
            return self.choices[value]
        return super().convert(value)


@record("F.grid_sample", "aten::grid_sampler_2d", "aten::grid_sampler_3d")
class GridSample(Record[T]):
    """An image or a volume, sampled at the positions of a grid, from -1 to 1 along each axis.

    Input (n, c, h, w), grid (n, oh, ow, 2) with the horizontal coordinate first; or
    (n, c, d, h, w) and (n, od, oh, ow, 3).  `padding_mode` says what positions outside read: zeros,
    the border or its reflection.  Source: torch.nn.functional.grid_sample.

    Raises
    ------
    ShapeError
        If the shapes do not match, a tensor is not float32, or a volume is sampled bicubically.
    """

    input: T = Tensor(rank=(4, 5))
    grid: T = Tensor(rank=(4, 5))
    mode: Any = field(_Word)(("bilinear", "nearest", "bicubic"), "bilinear")
    padding_mode: Any = field(_Word)(("zeros", "border", "reflection"), "zeros")
    align_corners: bool = Bool(False)
    layout = Layout.CHANNELS_LAST

    def infer(self: GridSample[TensorSpec]) -> TensorSpec:
        spatial = self.input.rank - 2
        _check_floats(self.input, self.grid)
        n, grid = self.input.shape[0], self.grid.shape
        if len(grid) != self.input.rank or (grid[0], grid[-1]) != (n, spatial):
            raise ShapeError(
                f"'grid' has shape {grid}, expected ({n}, ..., {spatial}) of rank "
                f"{self.input.rank} for an input of shape {self.input.shape}"
            )
        if 0 in self.input.shape[1:]:
            raise ShapeError(f"the input has shape {self.input.shape}, nothing to read")
        if spatial == 3 and self.mode == "bicubic":
            raise ShapeError("'mode' is bicubic, expected bilinear or nearest for a volume")
        return TensorSpec((*self.input.shape[:2], *self.grid.shape[1:-1]))

    def bind(self: GridSample[TensorView], b: Binder) -> None:
        spatial = self.input.rank - 2
        points = math.prod(self.grid.shape[1:-1])
        if _is_planar(self):
            y = b.output(layout=self.input)
            if y.size:
                batch, channels, *extents = self.input.shape
                x = reshaped(b, self.input, (batch, channels, math.prod(extents)))
                grid = b.contiguous(self.grid).view((batch, points, spatial))
                y = y.view((batch, channels, points))
                b.step(
                    GridPlanesStep(
                        x, grid, y, extents, self.mode, self.padding_mode, self.align_corners
                    )
                )
            return
        y = image_output(b, spatial)
        if y.size == 0:
            return
        x, grid = image_input(b, self.input, spatial), b.contiguous(self.grid)
        grid = grid.view((self.grid.shape[0], points, spatial))
        b.step(
            GridSampleStep(
                x, grid, y, self.input.shape[2:], self.mode, self.padding_mode, self.align_corners,
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


def _is_planar(a: GridSample[TensorView]) -> bool:
    """Whether it is faster to sample one channel at a time."""
    channels, *extents = a.input.shape[1:]
    # The kernel has 32-bit offsets of pixels; a pixel may be part of a longer row of channels.
    spread = math.prod(extents) * max(map(abs, a.input.strides[-1:]), default=1)
    if a.mode == "bicubic" or max(extents) > MAX_EXTENT or spread >= 1 << 31:
        return False
    is_vector = a.input.strides[1] == 1 and channels >= MIN_VECTOR
    return channels <= MAX_PLANES and not is_vector


@record("F.affine_grid")
class AffineGrid(KernelRecord[T]):
    """The positions of an image's pixels after an affine map: a grid for F.grid_sample.

    Source: torch.nn.functional.affine_grid.

    Raises
    ------
    ShapeError
        If `theta` is no map of floats for each image of `size`.
    """

    batch = NoBatchRule("its size counts the members as a number")
    theta: T = Tensor(rank=3)
    size: tuple[int, ...] = Ints(minimum=1)
    align_corners: bool = Bool(False)

    def result(self: AffineGrid[TensorSpec]) -> TensorSpec:
        spatial = len(self.size) - 2
        if spatial not in (2, 3) or self.theta.shape != (self.size[0], spatial, spatial + 1):
            raise ShapeError(
                f"'theta' has shape {self.theta.shape} and 'size' is {self.size}, expected "
                "(n, 2, 3) and (n, c, h, w), or (n, 3, 4) and (n, c, d, h, w)"
            )
        if self.theta.dtype.kind != "f":
            raise ShapeError(f"'theta' is {self.theta.dtype}, expected float32")
        return TensorSpec((self.size[0], *self.size[2:], spatial), self.theta.dtype)

    def compute(self: AffineGrid[np.ndarray]) -> Any:
        points = _pixels(self).astype(self.theta.dtype) @ np.swapaxes(self.theta, 1, 2)
        return points.reshape(self.size[0], *self.size[2:], -1)

    def steps(self: AffineGrid[TensorView], b: Binder) -> None:
        if self.theta.dtype != FLOAT32:
            self.in_numpy(b)
            return
        pixels = b.cached(("grid", *self.size[2:], self.align_corners), lambda: _pixels(self))
        y, spatial = b.output(), len(self.size) - 2
        y = y.view((self.size[0], math.prod(self.size[2:]), spatial))
        product(b, pixels, self.theta.permute((0, 2, 1)), y)


def _pixels(a: AffineGrid[Any]) -> np.ndarray:
    """Return the homogeneous coordinates of all pixels, innermost axis first: (x, y, 1)."""
    lines = []
    for extent in a.size[2:]:
        line = np.linspace(-1, 1, extent) if extent > 1 else np.zeros(1)
        if not a.align_corners:
            line = line * (extent - 1) / extent
        lines.append(line.astype(np.float32))
    grid = np.meshgrid(*lines, indexing="ij")
    base = np.stack([*reversed(grid), np.ones(a.size[2:], np.float32)], -1)
    return np.ascontiguousarray(base.reshape(-1, base.shape[-1]))


@record("torchvision.ops.RoIAlign", "torchvision.ops.roi_align")
class RoiAlign(Record[T]):
    """Regions of images, resized: each cell is the mean of bilinear samples.

    Input (n, c, h, w), boxes (k, 5): index of the image, left, top, right and bottom; coordinates
    times `spatial_scale` are pixels.  A box whose image index is out of range gives NaN.
    Source: torchvision.ops.roi_align.

    Raises
    ------
    ShapeError
        If a tensor has the wrong shape or type, or `sampling_ratio` exceeds 4096.
    """

    batch = NoBatchRule("its boxes hold indices of batch members")
    input: T = Tensor(rank=4)
    boxes: T = Tensor(rank=2, aliases=("rois",))
    output_size: tuple[int, ...] = Ints(length=2, minimum=1)
    spatial_scale: float = Float(1.0)
    sampling_ratio: int = Int(-1)
    aligned: bool = Bool(False)
    layout = Layout.CHANNELS_LAST
    maximum = False  # of the pixels instead of the mean

    def infer(self: RoiAlign[TensorSpec]) -> TensorSpec:
        _check_floats(self.input, self.boxes)
        if self.boxes.shape[1] != 5:
            raise ShapeError(f"'boxes' has shape {self.boxes.shape}, expected (k, 5)")
        if 0 in self.input.shape[2:]:
            raise ShapeError(f"the input has shape {self.input.shape}, nothing to read")
        if self.sampling_ratio > MAX_RATIO:
            raise ShapeError(
                f"'sampling_ratio' is {self.sampling_ratio}, expected at most {MAX_RATIO}"
            )
        return TensorSpec((self.boxes.shape[0], self.input.shape[1], *self.output_size))

    def bind(self: RoiAlign[TensorView], b: Binder) -> None:
        y = b.output(layout=Layout.CHANNELS_LAST)
        if y.size == 0:
            return
        x, boxes = b.channels_last(self.input), b.contiguous(self.boxes)
        ratio = max(self.sampling_ratio, 0)
        scratch = b.scratch(4 * x.shape[1])
        b.step(
            RoiAlignStep(
                x, boxes, y, self.spatial_scale, ratio, self.aligned, scratch, self.maximum
            )
        )


@record("torchvision.ops.DeformConv2d")
class DeformConv2d(Record[T]):
    """Convolution whose taps are moved by computed offsets and scaled by a mask.

    Input (n, c, h, w), offset (n, 2 * groups * taps, oh, ow) with the vertical part first, mask
    (n, groups * taps, oh, ow), weight (out_channels, c / groups, kh, kw).  Taps are sampled
    bilinearly, with zeros outside; a matrix product follows.
    Source: torchvision.ops.deform_conv2d.

    Raises
    ------
    ShapeError
        If the arguments contradict the weight, or a shape does not match.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    input: T = Tensor(rank=4)
    offset: T = Tensor(rank=4)
    mask: T | None = Tensor(optional=True, rank=4)
    weight: T = Tensor(rank=4)
    bias: T | None = Tensor(optional=True)
    in_channels: int | None = Int(None, minimum=1)
    out_channels: int | None = Int(None, minimum=1)
    kernel_size: tuple[int, ...] | None = Ints(length=2, default=None, minimum=1, nullable=True)
    stride: tuple[int, ...] = Ints(length=2, default=(1, 1), minimum=1)
    padding: tuple[int, ...] = Ints(length=2, default=(0, 0), minimum=0)
    dilation: tuple[int, ...] = Ints(length=2, default=(1, 1), minimum=1)
    groups: int = Int(1, minimum=1)
    layout = Layout.CHANNELS_LAST

    def _deformed(self: DeformConv2d[Known]) -> int:
        """Return the number of channel groups, each with its own offsets."""
        return self.offset.shape[1] // (2 * math.prod(self.weight.shape[2:]))

    def infer(self: DeformConv2d[TensorSpec]) -> TensorSpec:
        _check_floats(self.input, self.offset, self.mask, self.weight, self.bias)
        n, channels, *extents = self.input.shape
        out_channels, own, *taps = self.weight.shape
        if 0 in self.weight.shape:
            raise ShapeError(f"'weight' has shape {self.weight.shape}, expected extents >= 1")
        for name, got in (
            ("in_channels", own * self.groups),
            ("out_channels", out_channels),
            ("kernel_size", tuple(taps)),
        ):
            said = getattr(self, name)
            if said is not None and said != got:
                raise ShapeError(
                    f"'{name}' is {said}, but 'weight' {self.weight.shape} makes it {got}"
                )
        if channels != own * self.groups or out_channels % self.groups:
            raise ShapeError(
                f"the input has {channels} channels and 'weight' is {self.weight.shape}, which "
                f"do not fit {self.groups} groups"
            )
        if self.bias is not None and self.bias.shape != (out_channels,):
            raise ShapeError(f"'bias' has shape {self.bias.shape}, expected ({out_channels},)")
        out = tuple(
            (extent + 2 * pad - dilation * (tap - 1) - 1) // stride + 1
            for extent, pad, dilation, tap, stride in zip(
                extents, self.padding, self.dilation, taps, self.stride, strict=True
            )
        )
        if min(out) < 1:
            raise ShapeError(f"the window does not fit into an input of shape {self.input.shape}")
        deformed, count = self._deformed(), math.prod(taps)
        if (
            deformed < 1
            or channels % deformed
            or self.offset.shape != (n, 2 * deformed * count, *out)
        ):
            raise ShapeError(
                f"'offset' has shape {self.offset.shape}, expected ({n}, {2 * count} * groups, "
                f"{out[0]}, {out[1]}) with groups that divide {channels} channels"
            )
        if self.mask is not None and self.mask.shape != (n, deformed * count, *out):
            raise ShapeError(
                f"'mask' has shape {self.mask.shape}, expected {(n, deformed * count, *out)}"
            )
        return TensorSpec((n, out_channels, *out))

    def bind(self: DeformConv2d[TensorView], b: Binder) -> None:
        y = b.output(layout=Layout.CHANNELS_LAST)
        if y.size == 0:
            return
        out_channels, own, *taps = self.weight.shape
        pixels, count = y.size // out_channels, math.prod(taps)
        windows = b.temporary((pixels, self.groups, count, own))
        mask = None if self.mask is None else b.channels_last(self.mask)
        b.step(
            DeformStep(
                b.channels_last(self.input), b.channels_last(self.offset), mask, windows,
                self.groups, self._deformed(), taps, self.stride, self.padding, self.dilation,
            )
        )  # fmt: skip
        rows = y.with_layout((pixels, out_channels), (y.row_stride, 1))
        each = out_channels // self.groups
        is_known = all(v is None or v.is_constant for v in (self.weight, self.bias))
        columns = None if is_known else _columns(self, b)
        depth = count * own
        lines = windows.view((pixels, self.groups * depth))
        for group in range(self.groups):
            x, part = lines.narrow(1, group * depth, depth), rows.narrow(1, group * each, each)
            if columns is None:
                b.step(linear.LinearStep(x, _panels(self, b, group * each, each), part))
            else:
                product(b, x, columns.narrow(1, group * each, each), part)
        if columns is not None and self.bias is not None:
            add = Call("add", (Ref(0), Ref(1)))
            write_tree(b, add, [rows, self.bias.view((1, out_channels))], rows)


def _columns(a: DeformConv2d[TensorView], b: Binder) -> TensorView:
    """Return computed weights as a matrix (taps * channels, out_channels), the order of windows."""
    out_channels, own, *taps = a.weight.shape
    count = math.prod(taps)
    matrix = b.temporary((count, own, out_channels))
    weight = b.contiguous(a.weight).view((out_channels, own, count))
    b.copy(weight.permute((2, 1, 0)), matrix)
    return matrix.view((count * own, out_channels))


def _panels(a: DeformConv2d[Any], b: Binder, start: int, length: int) -> TensorView:
    """Return the packed weights of `length` output channels from `start` on."""

    def fill(memory: np.ndarray) -> None:
        weight = np.asarray(a.weight.constant, np.float32)[start : start + length]
        columns = weight.reshape(*weight.shape[:2], -1).transpose(0, 2, 1)
        bias = None
        if a.bias is not None:
            bias = np.ascontiguousarray(a.bias.constant[start : start + length], np.float32)
        packing.pack_panels(columns, bias, b.n_threads, memory)

    depth = math.prod(a.weight.shape[1:])
    return b.packed([PackedMatrix(length, depth, part=start)], fill)


# -- functions with numbered arguments ---------------------------------------------------------


class _Numbered(Record[T]):
    """Base of torchvision functions whose arguments pnnx numbers; bound as their modules."""

    batch = NoBatchRule("rare: no known export uses it with another batch")
    layout = Layout.CHANNELS_LAST

    def translated(self: _Numbered[Any]) -> Record[Any]:
        raise NotImplementedError

    def infer(self: _Numbered[TensorSpec]) -> Any:
        return self.translated().infer()

    def bind(self: _Numbered[TensorView], b: Binder) -> None:
        self.translated().bind(b)


@record("pnnx.custom_op.torchvision.roi_align")
class RoiAlignFunction(_Numbered[T]):
    """The function of torchvision.ops.RoIAlign, with numbered arguments.

    Source: torchvision.ops.roi_align.
    """

    arg_0: T = Tensor(rank=4)
    arg_1: T = Tensor(rank=2)
    arg_2: float = Float()
    arg_3: int = Int(minimum=1)
    arg_4: int = Int(minimum=1)
    arg_5: int = Int()
    arg_6: bool = Bool()

    def translated(self: RoiAlignFunction[Any]) -> RoiAlign[Any]:
        return RoiAlign(
            input=self.arg_0, boxes=self.arg_1, spatial_scale=self.arg_2,
            output_size=(self.arg_3, self.arg_4), sampling_ratio=self.arg_5, aligned=self.arg_6,
        )  # fmt: skip


@record("pnnx.custom_op.torchvision.deform_conv2d")
class DeformConv2dFunction(_Numbered[T]):
    """The function of torchvision.ops.DeformConv2d, with numbered arguments.

    Source: torchvision.ops.deform_conv2d.

    Raises
    ------
    ShapeError
        As the module, or if a stride, a dilation or the number of groups is 0.
    """

    arg_0: T = Tensor()
    arg_1: T = Tensor()
    arg_2: T = Tensor()
    arg_3: T = Tensor()
    arg_4: T = Tensor()
    arg_5: int = Int(minimum=0)
    arg_6: int = Int(minimum=0)
    arg_7: int = Int(minimum=0)
    arg_8: int = Int(minimum=0)
    arg_9: int = Int(minimum=0)
    arg_10: int = Int(minimum=0)
    arg_11: int = Int(minimum=0)
    arg_12: int = Int(minimum=0)
    arg_13: bool = Bool()

    def translated(self: DeformConv2dFunction[Any]) -> DeformConv2d[Any]:
        for name, tensor in (("arg_0", self.arg_0), ("arg_1", self.arg_1), ("arg_2", self.arg_2)):
            if tensor.rank != 4:
                raise ShapeError(f"'{name}' has shape {tensor.shape}, expected rank 4")
        if min(self.arg_5, self.arg_6, self.arg_9, self.arg_10, self.arg_11) < 1:
            raise ShapeError("a stride, a dilation or the number of groups is 0, expected >= 1")
        return DeformConv2d(
            input=self.arg_0, weight=self.arg_1, offset=self.arg_2, bias=self.arg_4,
            mask=self.arg_3 if self.arg_13 else None, stride=(self.arg_5, self.arg_6),
            padding=(self.arg_7, self.arg_8), dilation=(self.arg_9, self.arg_10),
            groups=self.arg_11, in_channels=None, out_channels=None, kernel_size=None,
        )  # fmt: skip
