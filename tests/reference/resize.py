"""Resampling of the spatial axes: nearest, linear, cubic.

Positions are computed in float32 where PyTorch does so, because nearest-neighbour resizing picks
another pixel when a position falls on the other side of an integer.
"""

from __future__ import annotations

import math

import numpy as np

from .registry import reference


@reference("nn.Upsample", "F.upsample", "F.interpolate")
def interpolate(
    input,
    *,
    size=None,
    scale_factor=None,
    mode="nearest",
    align_corners=None,
    recompute_scale_factor=None,
    **_,
):
    """Resize to `size`, or by `scale_factor`."""
    extents = input.shape[2:]
    if size is not None:
        size = (size,) * len(extents) if isinstance(size, int) else tuple(int(n) for n in size)
        factors = [None] * len(extents)
    else:
        scale = scale_factor if isinstance(scale_factor, tuple) else (scale_factor,) * len(extents)
        size = tuple(math.floor(n * f) for n, f in zip(extents, scale, strict=True))
        factors = [None] * len(extents) if recompute_scale_factor else scale
    y = input
    for axis, (out, factor) in enumerate(zip(size, factors, strict=True), start=2):
        if mode in ("nearest", "nearest-exact"):
            shift = np.float32(0.5 if mode == "nearest-exact" else 0)
            y = np.take(y, _nearest(y.shape[axis], out, factor, shift), axis=axis)
        elif mode in ("linear", "bilinear", "trilinear"):
            y = _linear(y, axis, out, factor, bool(align_corners))
        elif mode == "bicubic":
            y = _cubic(y, axis, out, factor, bool(align_corners))
        else:
            raise ValueError(f"no reference for mode {mode}")
    return y


@reference("F.upsample_nearest", "nn.UpsamplingNearest2d")
def upsample_nearest(input, *, size=None, scale_factor=None, **_):
    """Nearest-neighbour resize."""
    return interpolate(input, size=size, scale_factor=scale_factor, mode="nearest")


@reference("F.upsample_bilinear", "nn.UpsamplingBilinear2d")
def upsample_bilinear(input, *, size=None, scale_factor=None, **_):
    """Bilinear resize; these two names always align the corners."""
    return interpolate(
        input, size=size, scale_factor=scale_factor, mode="bilinear", align_corners=True
    )


def _step(extent, out, factor):
    """Input pixels per output pixel, from the factor if one was given."""
    return np.float32(1.0 / factor) if factor is not None else np.float32(extent) / np.float32(out)


def _nearest(extent, out, factor, shift):
    centres = np.arange(out, dtype=np.float32) + shift
    positions = np.floor(centres * _step(extent, out, factor))
    return np.minimum(positions.astype(np.int64), extent - 1)


def _linear(x, axis, out, factor, align_corners):
    extent = x.shape[axis]
    if extent == out:
        return x
    position = np.maximum(_positions(extent, out, factor, align_corners), 0)
    left = np.minimum(position.astype(np.int64), extent - 1)
    right = np.minimum(left + 1, extent - 1)
    share = (position - left).astype(np.float64)
    share = share.reshape(-1, *[1] * (x.ndim - axis - 1))
    return np.take(x, left, axis=axis) * (1 - share) + np.take(x, right, axis=axis) * share


def _positions(extent, out, factor, align_corners):
    """Input coordinate of the centre of each output pixel."""
    steps = np.arange(out, dtype=np.float32)
    if align_corners:
        return steps * (np.float32(extent - 1) / np.float32(out - 1) if out > 1 else 0)
    half = np.float32(0.5)
    return (steps + half) * _step(extent, out, factor) - half


def _cubic(x, axis, out, factor, align_corners):
    """Four taps of the cubic kernel with a = -0.75; taps outside read the edge."""
    extent = x.shape[axis]
    position = _positions(extent, out, factor, align_corners).astype(np.float64)
    left = np.floor(position).astype(np.int64)
    share = position - left
    y = 0
    for tap in range(-1, 3):
        distance = np.abs(share - tap)
        near = 1.25 * distance**3 - 2.25 * distance**2 + 1
        far = -0.75 * (distance**3 - 5 * distance**2 + 8 * distance - 4)
        weight = np.where(distance <= 1, near, far).reshape(-1, *[1] * (x.ndim - axis - 1))
        y = y + weight * np.take(x, np.clip(left + tap, 0, extent - 1), axis=axis)
    return y


def _antialiased(input, size, align_corners, scales, radius, weigh):
    y = input
    for axis, (out, scale) in enumerate(zip(size, scales, strict=True), start=2):
        extent = input.shape[axis]
        ratio = extent / out if scale is None else 1 / scale
        if align_corners:
            ratio = (extent - 1) / max(out - 1, 1)
        width = max(ratio, 1)
        parts = []
        for i in range(out):
            centre = ratio * (i + 0.5)
            first = max(int(centre - radius * width + 0.5), 0)
            last = min(int(centre + radius * width + 0.5), extent)
            weights = np.array([weigh(abs(j + 0.5 - centre) / width) for j in range(first, last)])
            taken = np.take(y, range(first, last), axis)
            parts.append(np.tensordot(taken, weights / weights.sum(), (axis, 0)))
        y = np.stack(parts, axis)
    return y


def _cubic_of_pil(x):
    if x < 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0


def _of_size(input, size, scales):
    scales = (None, None) if scales is None else scales
    return size or [int(n * s) for n, s in zip(input.shape[2:], scales, strict=True)], scales


@reference("aten::_upsample_bilinear2d_aa")
def upsample_bilinear_aa(input, size, align_corners, scales=None, *_):
    """Triangular weights as wide as two output pixels."""
    return _antialiased(
        input, *_arguments(input, size, align_corners, scales), 1, lambda x: max(1 - x, 0)
    )


@reference("aten::_upsample_bicubic2d_aa")
def upsample_bicubic_aa(input, size, align_corners, scales=None, *_):
    """Cubic weights as wide as four output pixels."""
    return _antialiased(input, *_arguments(input, size, align_corners, scales), 2, _cubic_of_pil)


def _arguments(input, size, align_corners, scales):
    size, scales = _of_size(input, size, scales)
    return size, align_corners, scales


@reference("aten::_upsample_nearest_exact3d")
def nearest_exact(input, size, *scales):
    """Nearest-neighbour resize with exact centres."""
    if any(scale is not None for scale in scales):
        raise NotImplementedError(f"scales {scales}")
    return interpolate(input, size=size, mode="nearest-exact")


@reference("kuiper.Resize")
def resize(
    input, *, axes, size=None, scales=None, roi=None, mode="nearest", coordinates="half_pixel",
    rounding="round_prefer_floor", policy="stretch", cubic=-0.75, excludes=False,
    antialias=False, outside=0.0, **_,
):  # fmt: skip
    """Resize as ONNX does, pixel by pixel."""
    y = input
    inside = np.array(True)
    extents = [input.shape[axis] for axis in axes]
    if policy != "stretch":
        ratios = [m / n for m, n in zip(size, extents, strict=True)]
        ratio = min(ratios) if policy == "not_larger" else max(ratios)
        size, scales = [math.floor(n * ratio + 0.5) for n in extents], [ratio] * len(axes)
    elif size is not None:
        scales = [m / n for m, n in zip(size, extents, strict=True)]
    for number, (axis, n, scale) in enumerate(zip(axes, extents, scales, strict=True)):
        scale = np.float32(scale)
        out = math.floor(n * scale) if size is None else size[number]
        matrix = np.zeros((out, n))
        within = np.ones(out, bool)
        for i in range(out):
            ends = None if roi is None else (roi[number], roi[number + len(axes)])
            at = np.float32(_position(i, n, out, scale, coordinates, ends))
            within[i] = coordinates != "tf_crop_and_resize" or 0 <= at <= n - 1
            for j, weight in _weights(at, n, scale, mode, rounding, cubic, antialias):
                if 0 <= j < n or not excludes:
                    matrix[i, min(max(j, 0), n - 1)] += weight
            matrix[i] /= matrix[i].sum()
        y = np.moveaxis(np.tensordot(matrix, y, (1, axis)), 0, axis).astype(input.dtype)
        shape = [-1 if k == axis else 1 for k in range(input.ndim)]
        inside = inside & within.reshape(shape)
    return np.where(inside, y, input.dtype.type(outside))


def _position(i, n, out, scale, coordinates, ends):
    f = np.float32
    if coordinates == "align_corners":
        return f(i * (n - 1)) / f(max(out - 1, 1))
    if coordinates == "asymmetric":
        return f(i) / scale
    if coordinates == "tf_half_pixel_for_nn":
        return f(i + 0.5) / scale
    if coordinates == "tf_crop_and_resize":
        first, last = map(f, ends)
        if out == 1:
            return f(0.5) * (first + last) * f(n - 1)
        return first * f(n - 1) + f(i) * (last - first) * f(n - 1) / f(out - 1)
    if coordinates == "pytorch_half_pixel" and out == 1:
        return f(0)
    shift = f(n) / 2 * (1 - f(out) / (scale * f(n)))
    position = f(i + 0.5) / scale - f(0.5)
    return position + shift if coordinates == "half_pixel_symmetric" else position


def _weights(at, n, scale, mode, rounding, cubic, antialias):
    if mode == "nearest":
        half = {"round_prefer_floor": math.ceil(at - np.float32(0.5)),
                "round_prefer_ceil": math.floor(at + np.float32(0.5))}  # fmt: skip
        nearest = {"floor": math.floor(at), "ceil": math.ceil(at)} | half
        yield min(max(nearest[rounding], 0), n - 1), 1.0
        return
    narrow = min(float(scale), 1.0) if antialias else 1.0
    reach = math.ceil(2 / narrow)
    for j in range(math.floor(at) - reach, math.floor(at) + reach + 1):
        d = abs(float(at) - j) * narrow
        if mode == "linear":
            yield j, max(1 - d, 0.0)
        elif d < 1:
            yield j, ((cubic + 2) * d - (cubic + 3)) * d * d + 1
        elif d < 2:
            yield j, ((cubic * d - 5 * cubic) * d + 8 * cubic) * d - 4 * cubic
