"""Resize and Upsample: PyTorch's operator where it means the same, else products and gathers.

ONNX has eight rules for the coordinates of pixels and four roundings; PyTorch has three
combinations.  The others are separable: each axis is a known matrix of weights, or a list
of indices if the nearest pixel is taken.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kuiper.onnx.builder import Builder
from kuiper.onnx.registry import op
from kuiper.onnx.values import Known, Size

__all__: list[str] = []

CENTRES = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
COORDINATES = (
    *CENTRES,
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)


class Rules(NamedTuple):
    """How the pixels of the result are computed."""

    mode: str
    coordinates: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    cubic: float = -0.75
    excludes: bool = False
    antialias: bool = False
    outside: float = 0.0


@op("Upsample")
def upsample(
    b: Builder, x: Any, scales_: Any = None, *, scales: Any = None, height_scale: float = 0.0,
    width_scale: float = 0.0, mode: str = "nearest",
) -> Any:  # fmt: skip
    if height_scale:
        factors: Any = [1.0, 1.0, height_scale, width_scale]
    else:
        factors = scales if scales_ is None else b.numbers(scales_, "scales")
    name = {"bilinear": "linear"}.get(mode, mode)
    return _resized(b, x, factors, [], Rules(name, "asymmetric", "floor"))


@op("Resize", since=10)
def resize_10(b: Builder, x: Any, scales: Any, *, mode: str = "nearest") -> Any:
    return _resized(b, x, b.numbers(scales, "scales"), [], Rules(mode, "asymmetric", "floor"))


@op("Resize", since=11)
def resize(
    b: Builder, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None, *,
    antialias: int = 0, axes: Any = None, coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Any:  # fmt: skip
    if coordinate_transformation_mode not in COORDINATES:
        raise b.error(f"coordinate_transformation_mode is '{coordinate_transformation_mode}'")
    rules = Rules(
        mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, bool(exclude_outside),
        bool(antialias), extrapolation_value,
    )  # fmt: skip
    rank = x.rank
    along = list(range(rank)) if axes is None else [b.axis(a, rank) for a in axes]
    factors: list[Any] = []
    targets: list[Any] = []
    if sizes is not None and sizes.shape != (0,):
        targets = b.extents(x)
        given = b.numbers(sizes, "sizes")
        if keep_aspect_ratio_policy != "stretch":
            given = _kept(b, x, along, given, keep_aspect_ratio_policy)
        for axis, n in zip(along, given, strict=True):
            targets[axis] = n
    else:
        factors = [1.0] * rank
        for axis, f in zip(along, b.numbers(scales, "scales"), strict=True):
            factors[axis] = f
    bounds = None
    if rules.coordinates == "tf_crop_and_resize":
        corners = b.array(roi, "roi").reshape(2, -1)
        bounds = {axis: corners[:, i].tolist() for i, axis in enumerate(along)}
    return _resized(b, x, factors, targets, rules, bounds)


def _kept(b: Builder, x: Any, along: list[int], sizes: list[Any], policy: str) -> list[Any]:
    """Return sizes of the input's proportions that fit the given ones."""
    extents = [b.extents(x)[axis] for axis in along]
    if not all(isinstance(n, int) for n in (*extents, *sizes)):
        raise b.error(f"keep_aspect_ratio_policy is '{policy}' and extents are open")
    scales = [m / n for m, n in zip(sizes, extents, strict=True)]
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [math.floor(scale * n + 0.5) for n in extents]


def _resized(
    b: Builder, x: Any, factors: list[Any], sizes: list[Any], rules: Rules, bounds: Any = None
) -> Any:
    """Return an image of the extents `sizes`, or of multiples of its extents."""
    extents = b.extents(x)
    if any(isinstance(f, Size) for f in factors):
        sizes = [
            n if isinstance(f, float) and f == 1.0 else _floored(n * f)
            for n, f in zip(extents, factors, strict=True)
        ]
        factors = []
    if sizes:
        same = [
            n._same(m) if isinstance(n, Size) else isinstance(m, int) and n == m
            for n, m in zip(extents, sizes, strict=True)
        ]
    else:
        same = [f == 1.0 for f in factors]
    if all(same) and bounds is None:
        return x
    found = _torch(extents, factors, sizes, same, rules)
    if found is not None:
        return b.emit("F.interpolate", x, **found)
    if any(isinstance(n, Size) for n in (*extents, *sizes)):
        raise b.error(
            f"resizes open extents with the mode '{rules.mode}', coordinates "
            f"'{rules.coordinates}' and rounding '{rules.rounding}'; fix the extents with "
            "shapes={...}"
        )
    return _by_axes(b, x, factors, sizes, rules, bounds or {})


def _floored(value: Any) -> Any:
    return value.apply("floor").apply("int") if isinstance(value, Size) else math.floor(value)


def _torch(
    extents: list[Any], factors: list[Any], sizes: list[Any], same: list[bool], rules: Rules
) -> dict[str, Any] | None:
    """Return the arguments of PyTorch's operator, None if it computes something else."""
    rank = len(extents)
    if rank < 3 or not all(same[:2]) or rules.excludes or rules.cubic != -0.75:
        return None
    name = {
        "nearest": {3: "nearest", 4: "nearest", 5: "nearest"},
        "linear": {3: "linear", 4: "bilinear", 5: "trilinear"},
        "cubic": {4: "bicubic"},
    }.get(rules.mode, {}).get(rank)  # fmt: skip
    if name is None or (rules.antialias and name not in ("bilinear", "bicubic")):
        return None
    targets = sizes[2:] or [n * f for n, f in zip(extents[2:], factors[2:], strict=True)]
    is_whole = all(isinstance(n, Size) or n == int(n) for n in targets)
    align: bool | None = None
    if name == "nearest":
        # No centre of an integer multiple lies between two pixels.
        whole = not sizes and all(float(f).is_integer() for f in factors)
        if rules.coordinates in CENTRES and rules.rounding.startswith("round") and whole:
            pass
        elif rules.coordinates != "asymmetric" or rules.rounding != "floor":
            return None
    elif rules.coordinates == "align_corners":
        if rules.antialias or not is_whole:
            return None
        align = True
    else:
        one = any(isinstance(n, int | float) and n < 2 for n in targets)
        if rules.coordinates not in CENTRES or (one and rules.coordinates[0] == "p"):
            return None
        if rules.coordinates == "half_pixel_symmetric" and not is_whole:
            return None
        align = False
    params: dict[str, Any] = {"mode": name}
    if align is not None:
        params["align_corners"] = align
    if rules.antialias:
        params["antialias"] = True
    if sizes:
        return params | {"size": sizes[2:]}
    if align and not any(isinstance(n, Size) for n in targets):
        return params | {"size": [int(n) for n in targets]}
    scale = tuple(float(f) for f in factors[2:])
    return params | {"scale_factor": scale, "recompute_scale_factor": False}


def _by_axes(
    b: Builder, x: Any, factors: list[Any], sizes: list[Any], rules: Rules, bounds: Any
) -> Any:
    """Resize axis by axis."""
    rank = x.rank
    result = b.ref(x)
    inside: list[np.ndarray] = [np.ones(1, bool)] * rank
    for axis, n in enumerate(b.extents(x)):
        scale = float(factors[axis]) if factors else sizes[axis] / n
        count = math.floor(n * scale) if factors else sizes[axis]
        if count == n and axis not in bounds and scale == 1.0:
            continue
        positions = _coordinates(n, count, scale, rules.coordinates, bounds.get(axis))
        if rules.coordinates == "tf_crop_and_resize":
            inside[axis] = (positions >= 0) & (positions <= n - 1)
        if rules.mode == "nearest":
            index = np.clip(_rounded(positions, rules.rounding), 0, n - 1).astype(np.int64)
            result = b.emit("torch.index_select", result, dim=axis, index=Known(index))
            continue
        matrix = _weights(positions, n, scale, rules).astype(np.float32)
        order = [a for a in range(rank) if a != axis] + [axis]
        moved = b.emit("Tensor.permute", result, dims=order)
        moved = b.emit("torch.matmul", moved, Known(np.ascontiguousarray(matrix.T)))
        result = b.emit("Tensor.permute", moved, dims=[order.index(a) for a in range(rank)])
    if all(each.all() for each in inside):
        return result
    mask = np.array(True)
    for axis, each in enumerate(inside):
        mask = mask & each.reshape([-1 if a == axis else 1 for a in range(rank)])
    outside = Known(np.array(rules.outside, x.dtype))
    return b.emit("torch.where", Known(mask), result, outside)


def _coordinates(n: int, count: int, scale: float, name: str, bounds: Any) -> np.ndarray:
    """Return where the pixels of the result lie in the input."""
    i = np.arange(count, dtype=np.float64)
    if name == "align_corners":
        # onnxruntime counts whole pixels, also where the scale does not give a whole number.
        return i * (n - 1) / (count - 1) if count > 1 else np.zeros(count)
    if name == "asymmetric":
        return i / scale
    if name == "tf_half_pixel_for_nn":
        return (i + 0.5) / scale
    if name == "tf_crop_and_resize":
        start, end = bounds if bounds is not None else (0.0, 1.0)
        if count > 1:
            return start * (n - 1) + i * (end - start) * (n - 1) / (count - 1)
        return np.full(count, 0.5 * (start + end) * (n - 1))
    if name == "pytorch_half_pixel" and count == 1:
        return np.zeros(1)
    found = (i + 0.5) / scale - 0.5
    if name == "half_pixel_symmetric":
        adjustment = count / (scale * n)
        found += n / 2 * (1 - adjustment)
    return found


def _rounded(positions: np.ndarray, rounding: str) -> np.ndarray:
    if rounding == "floor":
        return np.floor(positions)
    if rounding == "ceil":
        return np.ceil(positions)
    if rounding == "round_prefer_ceil":
        return np.floor(positions + 0.5)
    return np.ceil(positions - 0.5)


def _weights(positions: np.ndarray, n: int, scale: float, rules: Rules) -> np.ndarray:
    """Return the weights of the input's pixels, one row per pixel of the result."""
    stretch = min(scale, 1.0) if rules.antialias else 1.0
    reach = 2.0 if rules.mode == "cubic" else 1.0
    radius = math.ceil(reach / stretch)
    first = np.floor(positions).astype(np.int64)
    matrix = np.zeros((positions.size, n))
    for offset in range(-radius, radius + 1):
        taken = first + offset
        weight = _kernel((positions - taken) * stretch, rules)
        if rules.excludes or (rules.antialias and rules.mode != "nearest"):
            weight = np.where((taken >= 0) & (taken < n), weight, 0.0)
        np.add.at(matrix, (np.arange(positions.size), np.clip(taken, 0, n - 1)), weight)
    total = matrix.sum(1, keepdims=True)
    return matrix / np.where(total == 0, 1, total)


def _kernel(distance: np.ndarray, rules: Rules) -> np.ndarray:
    d = np.abs(distance)
    if rules.mode == "linear":
        return np.maximum(1 - d, 0)
    a = rules.cubic
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d < 1, near, np.where(d < 2, far, 0.0))
