"""Resizing by the rules of ONNX: where pixels lie, which neighbours count, what is outside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kuiper._kernels.spatial import resampling
from kuiper._kernels.spatial.resampling import Taps
from kuiper.errors import ShapeError
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.batch import BatchAxis, TracedCall
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import Record, T, record
from kuiper.ops.core.schema import Bool, Float, Ints, Known, Numbers, Str, Tensor
from kuiper.ops.nn.resize import bind_taps, resize_array

__all__ = ["Resize"]

COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_half_pixel_for_nn", "tf_crop_and_resize",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
POLICIES = ("stretch", "not_larger", "not_smaller")
HALF = np.float32(0.5)


@record("kuiper.Resize")
class Resize(Record[T]):
    """A tensor resized along `axes`, to `size` or by `scales`, as by ONNX's `Resize`.

    The pixel i of the result lies at ``(i + 0.5) / scale - 0.5`` of the input with the
    `coordinates` ``half_pixel``; the other ones are as in ONNX.  `rounding` picks the nearest pixel
    there, the modes ``linear`` and ``cubic`` weigh its neighbours.  With `excludes`, neighbours
    outside of the input do not count; with `antialias`, the weights widen as the input shrinks.
    With the coordinates ``tf_crop_and_resize``, `roi` holds the first and the last position of each
    axis as fractions of the input, and pixels outside of it have the value `outside`.  With another
    `policy` than ``stretch``, `size` is a bound, and all axes have the same scale.
    Source: https://onnx.ai/onnx/operators/onnx__Resize.html.

    Raises
    ------
    ShapeError
        If not exactly one of `size` and `scales` is given, the number of their elements is not that
        of the axes, or an extent becomes 0 or infinite.
    """

    input: T = Tensor()
    axes: tuple[int, ...] = Ints()
    size: tuple[int, ...] | None = Ints(default=None, minimum=1, nullable=True)
    scales: tuple[float, ...] | None = Numbers(default=None, nullable=True)
    roi: tuple[float, ...] | None = Numbers(default=None, nullable=True)
    mode: str = Str(("nearest", "linear", "cubic"), "nearest")
    coordinates: str = Str(COORDINATES, "half_pixel")
    rounding: str = Str(ROUNDINGS, "round_prefer_floor")
    policy: str = Str(POLICIES, "stretch")
    cubic: float = Float(-0.75)
    excludes: bool = Bool(False)
    antialias: bool = Bool(False)
    outside: float = Float(0.0)
    layout = Layout.LIKE

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        batch = c.first_batch(c.a.input)
        rank = c.a.input.rank
        c.require(batch.axis not in [axis % rank for axis in c.a.axes])
        return batch

    def targets(self: Resize[Known]) -> dict[int, tuple[int, np.float32]]:
        """Return the extent and the scale of each resized axis."""
        rank, shape = self.input.rank, self.input.shape
        if any(not -rank <= axis < rank for axis in self.axes):
            raise ShapeError(f"'axes' is {self.axes}, but the input has shape {shape}")
        axes = [axis % rank for axis in self.axes]
        extents = [shape[axis] for axis in axes]
        if (self.size is None) == (self.scales is None) or len(set(axes)) != len(axes):
            raise ShapeError(
                f"'size' is {self.size} and 'scales' is {self.scales}, expected one of them, with "
                f"one number for each of the axes {self.axes}"
            )
        given: Sequence[float] = self.size or self.scales or ()
        if len(given) != len(axes):
            raise ShapeError(f"{len(given)} extents or scales for the axes {self.axes}")
        if 0 in extents:
            raise ShapeError(f"cannot resize an input of shape {shape}")
        if self.size is None:
            scales = [np.float32(scale) for scale in given]
            if any(not 0 < scale < math.inf for scale in scales):
                raise ShapeError(f"'scales' is {self.scales}, expected numbers above 0")
            found = [math.floor(n * float(f)) for n, f in zip(extents, scales, strict=True)]
        else:
            found = list(self.size)
            ratios = [m / n for m, n in zip(found, extents, strict=True)]
            if self.policy != "stretch" and ratios:
                common = min(ratios) if self.policy == "not_larger" else max(ratios)
                ratios = [common] * len(axes)
                found = [math.floor(n * common + 0.5) for n in extents]
            scales = [np.float32(ratio) for ratio in ratios]
        if min(found, default=1) < 1:
            raise ShapeError(f"nothing is left of an input of shape {shape}, resized to {found}")
        return dict(zip(axes, zip(found, scales, strict=True), strict=True))

    def infer(self: Resize[TensorSpec]) -> TensorSpec:
        targets = self.targets()
        if self.mode != "nearest" and self.input.dtype.kind != "f":
            raise ShapeError(f"the input is {self.input.dtype}, expected float32 for '{self.mode}'")
        if self.coordinates == "tf_crop_and_resize" and len(self.roi or ()) != 2 * len(self.axes):
            raise ShapeError(f"'roi' is {self.roi}, expected two numbers for each of {self.axes}")
        shape = tuple(targets.get(i, (n,))[0] for i, n in enumerate(self.input.shape))
        return TensorSpec(shape, self.input.dtype)

    def bind(self: Resize[TensorView], b: Binder) -> None:
        targets = self.targets()
        x, rank = self.input, self.input.rank
        taps, inside = {}, []
        for axis, (out, scale) in targets.items():
            positions = self._positions(axis, out, scale)
            if self.coordinates == "tf_crop_and_resize":
                within = (positions >= 0) & (positions <= x.shape[axis] - 1)
                inside.append(within.reshape([-1 if i == axis else 1 for i in range(rank)]))
            elif out == x.shape[axis] and scale == 1:
                continue
            taps[axis] = self._taps(positions, x.shape[axis], scale)
        is_image = 3 <= rank <= 5 and min(taps, default=2) >= 2 and x.dtype == np.float32
        if not inside and is_image and all(tap.count <= 4 for tap in taps.values()):
            every = [
                taps.get(i) or resampling.identity_taps(n) for i, n in enumerate(x.shape) if i >= 2
            ]
            bind_taps(x, b, [resampling.identity_taps(1)] * (5 - rank) + every)
            return
        outside = self.outside

        def resize(array: np.ndarray) -> np.ndarray:
            array = resize_array(array, taps)
            for each in inside:
                array = np.where(each, array, array.dtype.type(outside))
            return array

        b.python(resize, [x], [b.output()])

    def _positions(self: Resize[TensorView], axis: int, out: int, scale: Any) -> np.ndarray:
        """Return where the pixels of the result lie along an axis of the input."""
        n, name = np.float32(self.input.shape[axis]), self.coordinates
        i = np.arange(out, dtype=np.float32)
        if name == "align_corners":
            # As onnxruntime: whole pixels, also where the scale leaves a fraction of one.
            return i * (n - 1) / np.float32(max(out - 1, 1))
        if name == "asymmetric":
            return i / scale
        if name == "tf_half_pixel_for_nn":
            return (i + HALF) / scale
        if name == "tf_crop_and_resize":
            number = [a % self.input.rank for a in self.axes].index(axis)
            roi = self.roi or ()
            first, last = (np.float32(roi[number + k * len(self.axes)]) for k in range(2))
            if out == 1:
                return HALF * (first + last) * (n - 1) + i
            return first * (n - 1) + i * (last - first) * (n - 1) / np.float32(out - 1)
        if name == "pytorch_half_pixel" and out == 1:
            return i
        positions = (i + HALF) / scale - HALF
        if name == "half_pixel_symmetric":
            positions = positions + n / 2 * (1 - np.float32(out) / (scale * n))
        return positions

    def _taps(self: Resize[TensorView], positions: np.ndarray, n: int, scale: Any) -> Taps:
        if self.mode == "nearest":
            index = _rounded(positions, self.rounding).astype(np.int64)
            return Taps(np.clip(index, 0, n - 1)[:, np.newaxis], np.ones((index.size, 1)))
        stretch = min(float(scale), 1.0) if self.antialias else 1.0
        reach = math.ceil((2 if self.mode == "cubic" else 1) / stretch)
        left = np.floor(positions)
        indices = left.astype(np.int64)[:, np.newaxis] + np.arange(1 - reach, reach + 1)
        gaps = np.abs(positions.astype(np.float64)[:, np.newaxis] - indices) * stretch
        weights = np.maximum(1 - gaps, 0) if self.mode == "linear" else _keys(gaps, self.cubic)
        if self.excludes:
            weights = np.where((indices >= 0) & (indices < n), weights, 0)
        if self.excludes or self.antialias:
            total = weights.sum(1, keepdims=True)
            weights = weights / np.where(total == 0, 1, total)
        return Taps(np.clip(indices, 0, n - 1), weights)


def _rounded(positions: np.ndarray, rounding: str) -> np.ndarray:
    if rounding == "floor":
        return np.floor(positions)
    if rounding == "ceil":
        return np.ceil(positions)
    if rounding == "round_prefer_ceil":
        return np.floor(positions + HALF)
    return np.ceil(positions - HALF)


def _keys(gaps: np.ndarray, a: float) -> np.ndarray:
    """Return the cubic kernel of R. Keys (IEEE Trans. ASSP 29, 1981)."""
    near = ((a + 2) * gaps - (a + 3)) * gaps * gaps + 1
    far = ((a * gaps - 5 * a) * gaps + 8 * a) * gaps - 4 * a
    return np.where(gaps < 1, near, np.where(gaps < 2, far, 0.0))
