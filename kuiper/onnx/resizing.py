"""Resize and Upsample: PyTorch's operator where it means the same, else `kuiper.Resize`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kuiper.onnx.builder import Builder
from kuiper.onnx.registry import op
from kuiper.onnx.values import Size

__all__: list[str] = []

CENTRES = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")


class Rules(NamedTuple):
    """How the pixels of the result are computed."""

    mode: str
    coordinates: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    policy: str = "stretch"
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
    return _resized(b, x, list(range(x.rank)), factors, [], Rules(name, "asymmetric", "floor"))


@op("Resize", since=10)
def resize_10(b: Builder, x: Any, scales: Any, *, mode: str = "nearest") -> Any:
    rules = Rules(mode, "asymmetric", "floor")
    return _resized(b, x, list(range(x.rank)), b.numbers(scales, "scales"), [], rules)


@op("Resize", since=11)
def resize(
    b: Builder, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None, *,
    antialias: int = 0, axes: Any = None, coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Any:  # fmt: skip
    rules = Rules(
        mode, coordinate_transformation_mode, nearest_mode, keep_aspect_ratio_policy,
        cubic_coeff_a, bool(exclude_outside), bool(antialias), extrapolation_value,
    )  # fmt: skip
    along = list(range(x.rank)) if axes is None else [b.axis(a, x.rank) for a in axes]
    factors: list[Any] = []
    targets: list[Any] = []
    if sizes is not None and sizes.shape != (0,):
        targets = b.numbers(sizes, "sizes")
    else:
        factors = b.numbers(scales, "scales") if scales is not None else []
    if len(factors or targets) != len(along):
        raise b.error(f"has {len(factors or targets)} scales or sizes for {len(along)} axes")
    bounds = None
    if rules.coordinates == "tf_crop_and_resize":
        bounds = b.numbers(roi, "roi") if roi is not None else []
    return _resized(b, x, along, factors, targets, rules, bounds)


def _resized(
    b: Builder, x: Any, along: list[int], factors: list[Any], sizes: list[Any], rules: Rules,
    bounds: Any = None,
) -> Any:  # fmt: skip
    """Return a tensor that has, along axes, the extents `sizes` or multiples of its extents."""
    if x.dtype.kind in "iu" and rules.mode == "linear":  # the means are rounded towards zero
        means = _resized(b, b.cast(b.ref(x), np.float32), along, factors, sizes, rules, bounds)
        return b.cast(means, x.dtype)
    extents = b.extents(x)
    if sizes:
        same = [_same(extents[axis], m) for axis, m in zip(along, sizes, strict=True)]
    else:
        same = [not isinstance(f, Size) and f == 1.0 for f in factors]
    if bounds is None:
        if all(same):
            return x
        if rules.policy == "stretch" or not sizes:  # what stays need not be named
            moved = [i for i, stays in enumerate(same) if not stays]
            along = [along[i] for i in moved]
            factors = [factors[i] for i in moved] if factors else []
            sizes = [sizes[i] for i in moved] if sizes else []
            found = _torch(extents, along, factors, sizes, rules)
            if found is not None:
                return b.emit("F.interpolate", x, **found)
    return b.emit(
        "kuiper.Resize", x, axes=along, size=sizes or None, scales=factors or None, roi=bounds,
        **rules._asdict(),
    )  # fmt: skip


def _same(n: Any, wanted: Any) -> bool:
    """Tell whether an extent is known to be the wanted one."""
    if isinstance(n, Size):
        return isinstance(wanted, Size) and n._same(wanted)
    return not isinstance(wanted, Size) and n == wanted


def _torch(
    extents: list[Any], along: list[int], factors: list[Any], sizes: list[Any], rules: Rules
) -> dict[str, Any] | None:
    """Return the arguments of PyTorch's operator, None if it computes something else."""
    rank = len(extents)
    if rank < 3 or min(along) < 2 or rules.excludes or rules.antialias or rules.cubic != -0.75:
        return None
    name = {
        "nearest": {3: "nearest", 4: "nearest", 5: "nearest"},
        "linear": {3: "linear", 4: "bilinear", 5: "trilinear"},
        "cubic": {4: "bicubic"},
    }.get(rules.mode, {}).get(rank)  # fmt: skip
    if name is None or any(isinstance(f, Size) for f in factors):
        return None
    by_axis = dict(zip(along, sizes or factors, strict=True))
    if sizes:
        targets = [by_axis.get(axis, extents[axis]) for axis in range(2, rank)]
    else:
        factors = [float(by_axis.get(axis, 1.0)) for axis in range(2, rank)]
        targets = [n * f for n, f in zip(extents[2:], factors, strict=True)]
    is_whole = all(isinstance(n, Size) or n == int(n) for n in targets)
    align: bool | None = None
    if name == "nearest":
        # No centre of an integer multiple lies between two pixels.
        whole = not sizes and all(f.is_integer() for f in factors)
        centred = rules.coordinates in CENTRES and rules.rounding.startswith("round") and whole
        if not centred and (rules.coordinates != "asymmetric" or rules.rounding != "floor"):
            return None
    elif rules.coordinates == "align_corners":
        if not is_whole or (not sizes and any(isinstance(n, Size) for n in targets)):
            return None
        align = True
    else:
        # PyTorch's centre of a single pixel is that of the input.
        one = any(isinstance(n, int | float) and n < 2 for n in targets)
        if rules.coordinates not in CENTRES or (one and rules.coordinates[0] == "p"):
            return None
        if rules.coordinates == "half_pixel_symmetric" and not is_whole:
            return None
        align = False
    params: dict[str, Any] = {"mode": name}
    if align is not None:
        params["align_corners"] = align
    if sizes:
        return params | {"size": targets}
    if align:
        return params | {"size": [int(n) for n in targets]}
    return params | {"scale_factor": tuple(factors), "recompute_scale_factor": False}
