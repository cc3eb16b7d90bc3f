"""Interpolation: images resized along their spatial axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from kuiper._kernels.spatial import pool_windows, resampling
from kuiper._kernels.spatial.pool import PoolStep
from kuiper._kernels.spatial.resampling import Taps
from kuiper._kernels.spatial.resize import ResizeStep
from kuiper.errors import ShapeError
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.axes import require_float32
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.image import extents_of, image_input, image_output, spatial_extents
from kuiper.ops.core.record import FOLLOWS, Record, T, record
from kuiper.ops.core.schema import AnyArgument, Bool, Float, Ints, Known, Numbers, Str, Tensor
from kuiper.ops.product.linear import product

__all__ = ["Interpolate", "UpsampleBilinear", "UpsampleNearest", "bind_taps", "resize_array"]

FLOAT32 = np.dtype(np.float32)

# The numbers of spatial axes that each mode supports.
MODES = {
    "nearest": (1, 2, 3),
    "nearest-exact": (1, 2, 3),
    "area": (1, 2, 3),
    "linear": (1,),
    "bilinear": (2,),
    "bicubic": (2,),
    "trilinear": (3,),
}


@record("nn.Upsample", "F.interpolate", "F.upsample")
class Interpolate(Record[T]):
    """An image resized to `size`, or by `scale_factor`.

    ``nearest`` takes ``x[floor(i * r)]``, ``nearest-exact`` ``x[floor((i + 0.5) * r)]``, the linear
    modes and ``bicubic`` the weighted neighbours of ``(i + 0.5) * r - 0.5``, or of
    ``i * (L - 1) / (O - 1)`` with `align_corners`; ``area`` is an adaptive mean.  The ratio r is
    1 / scale_factor if that is given, else L / O; O is floor(L * scale_factor).

    Input (n, c, l), (n, c, h, w) or (n, c, d, h, w).  Source: torch.nn.functional.interpolate.

    Raises
    ------
    ShapeError
        If the mode does not support the input's rank or type, not exactly one of `size` and
        `scale_factor` is given, an extent becomes 0 or infinite, or `antialias` is set.
    """

    batch = "samples"
    input: T = Tensor()
    size: tuple[int, ...] | None = Ints(default=None, minimum=1, nullable=True)
    scale_factor: tuple[float, ...] | None = Numbers(default=None, nullable=True)
    mode: str = Str(tuple(MODES), "nearest")
    align_corners: Any = AnyArgument(None)
    recompute_scale_factor: Any = AnyArgument(None)
    antialias: Any = AnyArgument(None)
    layout = Layout.LIKE
    bfloat16 = FOLLOWS
    fixed: ClassVar[dict[Any, Any]] = {}  # arguments that an older name implies

    def targets(self: Interpolate[Known]) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
        """Return the output's spatial extents, and the scales that set the positions, if any."""
        return _target(self)

    def infer(self: Interpolate[TensorSpec]) -> TensorSpec:
        vars(self).update(self.fixed)
        extents, _ = self.targets()
        if 0 in self.input.shape[2:]:
            raise ShapeError(f"cannot resize an input of shape {self.input.shape} to {extents}")
        return TensorSpec((*self.input.shape[:2], *extents), self.input.dtype)

    def bind(self: Interpolate[TensorView], b: Binder) -> None:
        vars(self).update(self.fixed)
        extents, scales = self.targets()
        spatial = len(extents)
        if self.input.size == 0:
            b.output()
            return
        is_bfloat16 = BFLOAT16 in (self.input.dtype, b.output_dtype())
        is_float32 = self.input.dtype == np.float32 or is_bfloat16
        if self.mode == "area" and is_float32:
            _bind_area(self, b, extents)
            return
        taps = [
            _taps(self, extent, out, scale)
            for extent, out, scale in zip(self.input.shape[2:], extents, scales, strict=True)
        ]
        if is_bfloat16 and self.input.rank == 4 and _repeat_pixels(self.input, b, taps):
            return
        if not is_float32:
            if self.input.rank == 4 and _repeat_pixels(self.input, b, taps):
                return
            by_axis = dict(enumerate(taps, start=2))
            b.python(lambda x: resize_array(x, by_axis), [self.input], [b.output()])
            return
        bind_taps(self.input, b, [resampling.identity_taps(1)] * (3 - spatial) + taps)


@record("F.upsample_nearest", "nn.UpsamplingNearest2d")
class UpsampleNearest(Interpolate[T]):
    """An image resized by taking the nearest pixel, ``x[floor(i * r)]``.

    Source: torch.nn.UpsamplingNearest2d.
    """

    fixed: ClassVar[dict[Any, Any]] = {"mode": "nearest"}


@record("F.upsample_bilinear", "nn.UpsamplingBilinear2d")
class UpsampleBilinear(Interpolate[T]):
    """An image resized by linear interpolation with aligned corners.

    Source: torch.nn.UpsamplingBilinear2d.
    """

    fixed: ClassVar[dict[Any, Any]] = {"mode": "bilinear", "align_corners": True}


@record("aten::_upsample_nearest_exact3d")
class NearestExact(Interpolate[T]):
    """A volume resized by taking the nearest pixel, ``x[floor((i + 0.5) * r)]``.

    Source: torch.nn.functional.interpolate with mode="nearest-exact".

    Raises
    ------
    ShapeError
        If `size` has not three extents, or a scale is not positive and finite.
    """

    input: T = Tensor(rank=5)
    size: tuple[int, ...] = Ints(minimum=1)
    scale_factor = recompute_scale_factor = None
    mode = "nearest-exact"
    align_corners = antialias = None
    scales_d: float | None = Float(None, nullable=True)
    scales_h: float | None = Float(None, nullable=True)
    scales_w: float | None = Float(None, nullable=True)

    def targets(self: NearestExact[Known]) -> Any:
        extents = extents_of("size", self.size, 3, "numbers")
        scales = self.scales_d, self.scales_h, self.scales_w
        if any(scale is not None and not 0 < scale < math.inf for scale in scales):
            raise ShapeError(f"its scales are {scales}, expected numbers above 0")
        return extents, scales


class _Antialiased(Record[T]):
    """A plane resized with a filter that is stretched over all pixels under an output pixel.

    Each axis is a product with a matrix of weights, most of them zero.

    Raises
    ------
    ShapeError
        If the input is not float32, neither `output_size` nor two scales are given, an extent
        becomes 0, or a scale is not positive and finite.
    """

    batch = "samples"
    input: T = Tensor(rank=4)
    output_size: tuple[int, ...] | None = Ints(default=None, minimum=1, nullable=True)
    align_corners: bool = Bool(False)
    scales: tuple[float, ...] | None = Numbers(default=None, nullable=True)
    scales_w: tuple[float, ...] | None = Numbers(default=None, nullable=True)
    reach: ClassVar[float] = 1.0  # half the width of the filter, in pixels of the larger plane

    @staticmethod
    def weigh(gap: np.ndarray) -> np.ndarray:
        """Return the filter's value at a distance."""
        raise NotImplementedError

    def _target(self: _Antialiased[Known]) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
        scales: tuple[Any, ...] = (None, None)
        if self.scales is not None:
            more = () if len(self.scales) == 2 else self.scales_w or ()
            scales = (*self.scales, *more)
            if len(scales) != 2:
                raise ShapeError(f"the scales are {scales}, expected two numbers")
        if self.output_size is not None:
            return extents_of("output_size", self.output_size, 2, "numbers"), scales
        if None in scales or not all(math.isfinite(scale) for scale in scales):
            raise ShapeError(f"it has no 'output_size', and its scales are {scales}")
        return _scaled("scales", self.input.shape, scales), scales

    def infer(self: _Antialiased[TensorSpec]) -> TensorSpec:
        extents, scales = self._target()
        require_float32(self.input)
        if min(extents) < 1 or 0 in self.input.shape[2:]:
            raise ShapeError(f"cannot resize an input of shape {self.input.shape} to {extents}")
        if any(scale is not None and not 0 < scale < math.inf for scale in scales):
            raise ShapeError(f"its scales are {scales}, expected numbers above 0")
        return TensorSpec((*self.input.shape[:2], *extents))

    def bind(self: _Antialiased[TensorView], b: Binder) -> None:
        y = b.output()
        if y.size == 0:
            return
        (rows, columns), scales = self._target()
        *planes, height, width = self.input.shape
        count = math.prod(planes)
        by_row, by_column = (
            b.constant(self._matrix(extent, out, scale, self.align_corners))
            for extent, out, scale in zip((height, width), (rows, columns), scales, strict=True)
        )
        x = b.contiguous(self.input).view((count, height, width))
        wide = b.temporary((count, height, columns))
        product(b, x, by_column.permute((1, 0)).expand((count, width, columns)), wide)
        y = y.view((count, rows, columns))
        product(b, by_row.expand((count, rows, height)), wide, y)

    @classmethod
    def _matrix(cls, extent: int, out: int, scale: float | None, align_corners: bool) -> Any:
        """Return the weights: (output pixels, input pixels)."""
        if align_corners:
            ratio = (extent - 1) / (out - 1) if out > 1 else 0.0
        else:
            ratio = extent / out if scale is None else 1 / scale
        support = cls.reach * max(ratio, 1.0)
        weights = np.zeros((out, extent), np.float32)
        for i in range(out):
            centre = ratio * (i + 0.5)
            first = max(int(centre - support + 0.5), 0)
            last = min(int(centre + support + 0.5), extent)
            gaps = (np.arange(first, last) - centre + 0.5) / max(ratio, 1.0)
            values = cls.weigh(np.abs(gaps))
            weights[i, first:last] = values / (values.sum() or 1.0)
        return weights


@record("aten::_upsample_bilinear2d_aa")
class AntialiasedBilinear(_Antialiased[T]):
    """A plane resized with a triangular filter that widens as the plane shrinks.

    Source: torch.nn.functional.interpolate with antialias=True.
    """

    @staticmethod
    def weigh(gap: Any) -> Any:
        return np.maximum(1 - gap, 0)


@record("aten::_upsample_bicubic2d_aa")
class AntialiasedBicubic(_Antialiased[T]):
    """A plane resized with a cubic filter that widens as the plane shrinks.

    Source: torch.nn.functional.interpolate with antialias=True.
    """

    reach: ClassVar[float] = 2.0

    @staticmethod
    def weigh(gap: Any) -> Any:
        a = -0.5  # as in PIL; without antialiasing it is -0.75
        near = ((a + 2) * gap - (a + 3)) * gap * gap + 1
        far = (((gap - 5) * gap + 8) * gap - 4) * a
        return np.where(gap < 1, near, np.where(gap < 2, far, 0))


def _target(a: Interpolate[Any]) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """Return the output's spatial extents, and the scales that set the positions, if any."""
    spatial = a.input.rank - 2
    if spatial not in MODES[a.mode]:
        ranks = " or ".join(str(n + 2) for n in MODES[a.mode])
        raise ShapeError(
            f"the input has shape {a.input.shape}, expected rank {ranks} for mode '{a.mode}'"
        )
    if a.antialias:
        raise ShapeError("'antialias' is True, which is not supported")
    is_float = a.input.dtype.kind == "f" or a.input.dtype == BFLOAT16
    if not is_float and not a.mode.startswith("nearest"):
        raise ShapeError(f"the input is {a.input.dtype}, expected float32 for mode '{a.mode}'")
    if (a.size is None) == (a.scale_factor is None):
        raise ShapeError(
            f"'size' is {a.size} and 'scale_factor' is {a.scale_factor}, expected one of them"
        )
    if a.size is not None:
        return extents_of("size", a.size, spatial, "numbers"), (None,) * spatial
    scales = extents_of("scale_factor", a.scale_factor or (), spatial, "numbers")
    extents = _scaled("scale_factor", a.input.shape, scales)
    if min(extents) < 1:
        raise ShapeError(
            f"'scale_factor' is {scales}, which leaves nothing of an input of shape {a.input.shape}"
        )
    return extents, (None,) * spatial if a.recompute_scale_factor else scales


def _scaled(name: str, shape: tuple[int, ...], scales: Sequence[float]) -> tuple[int, ...]:
    """Return the spatial extents of a shape times the scales, rounded down."""
    products = [extent * scale for extent, scale in zip(shape[2:], scales, strict=True)]
    if not all(map(math.isfinite, products)):
        raise ShapeError(
            f"'{name}' is {scales}, with which an input of shape {shape} has no finite extents"
        )
    return tuple(map(math.floor, products))


def _taps(a: Interpolate[TensorView], extent: int, out: int, scale: float | None) -> Taps:
    if a.mode == "nearest" and a.input.rank == 4 and out in (extent, 2 * extent):
        # PyTorch ignores the exact scale of an image (not of a line or a volume) whose extent
        # stays or doubles.
        scale = None
    if a.mode.startswith("nearest"):
        return resampling.nearest_taps(extent, out, scale, a.mode == "nearest-exact")
    if a.mode == "bicubic":
        return resampling.cubic_taps(extent, out, scale, bool(a.align_corners))
    return resampling.linear_taps(extent, out, scale, bool(a.align_corners))


def bind_taps(x: TensorView, b: Binder, taps: Sequence[Taps]) -> None:
    """Add the steps that resize an image of floats along d, h and w, with 1, 2 or 4 taps each."""
    spatial = x.rank - 2
    depth, height, width = spatial_extents(x.shape, spatial)
    planes, rows, columns = taps
    if not depth == len(planes) == 1:
        rows = resampling.product_taps(planes, rows, height)
    image = x.reshape((*x.shape[:2], depth * height, width))
    if image is not None and image.is_channels_last:
        x, y = image, image_output(b, spatial)
    else:
        # Each plane is an image of one channel.
        count = x.shape[0] * x.shape[1]
        x = b.contiguous(x).view((count, 1, depth * height, width))
        y = b.output().view((count, 1, len(rows), len(columns)))
    n_bytes = resampling.scratch_bytes(rows, columns, x.shape[1])
    if BFLOAT16 in (x.dtype, y.dtype):
        n_bytes += 4 * x.shape[1] * (x.shape[3] + len(columns))
    b.step(ResizeStep(x, y, rows, columns, b.scratch(n_bytes)))


def _repeat_pixels(x: TensorView, b: Binder, taps: Sequence[Taps]) -> bool:
    """Bind the output to a copy, if the taps repeat each pixel the same number of times."""
    n, c, *extents = x.shape
    factors = [len(axis) // extent for axis, extent in zip(taps, extents, strict=True)]
    for axis, extent, factor in zip(taps, extents, factors, strict=True):
        if axis.count != 1 or len(axis) != extent * factor:
            return False
        if not np.array_equal(axis.indices.reshape(-1), np.arange(len(axis)) // max(factor, 1)):
            return False
    (height, width), (down, across) = extents, factors
    y = b.output(layout=x)
    shape = n, c, height, down, width, across
    batch, channel, row, column = y.strides
    target = y.with_layout(shape, (batch, channel, row * down, row, column * across, column))
    batch, channel, row, column = x.strides
    b.copy(x.with_layout(shape, (batch, channel, row, 0, column, 0)), target)
    return True


def _bind_area(a: Interpolate[TensorView], b: Binder, extents: Sequence[int]) -> None:
    spatial = len(extents)
    sizes = (1,) * (3 - spatial) + tuple(extents)
    windows = [
        pool_windows.adaptive_windows(extent, out)
        for extent, out in zip(spatial_extents(a.input.shape, spatial), sizes, strict=True)
    ]
    scratch = b.scratch(pool_windows.scratch_bytes(windows))
    x = image_input(b, b.stored(a.input, FLOAT32), spatial)
    output = image_output(b, spatial)
    y = output
    if output.dtype != FLOAT32:
        y = b.temporary(output.shape, layout=Layout.CHANNELS_LAST)
    b.step(PoolStep(x, y, windows, "mean", scratch))
    if y is not output:
        b.copy(y, output)


def resize_array(x: np.ndarray, taps: Mapping[int, Taps]) -> np.ndarray:
    """Resize an array of any dtype, axis by axis."""
    for axis, tap in taps.items():
        if tap.count == 1:
            x = np.take(x, tap.indices[:, 0], axis)
            continue
        shape = (-1,) + (1,) * (x.ndim - axis - 1)
        x = sum(
            np.take(x, tap.indices[:, k], axis) * tap.weights[:, k].reshape(shape).astype(x.dtype)
            for k in range(tap.count)
        )
    return x
