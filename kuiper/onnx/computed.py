"""Axes, steps and extents that a run computes: shape arithmetic on all axes, not a choice of some.

Whether an axis is among the computed ones is a number, 0 or 1, that weights extents and bounds of
each axis::

    Slice(x, starts=(s), ends=(e), axes=(a))  ->  axis d: from hit*s to hit*e + (1-hit)*size(x,d)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kuiper.onnx.builder import Builder
from kuiper.onnx.tensors import MAX_RANK
from kuiper.onnx.values import Size

__all__ = [
    "axes_of", "centred", "reduced_extents", "reshaped", "sliced", "spread", "squeezed",
    "unsqueezed",
]  # fmt: skip


def axes_of(b: Builder, axes: Any) -> list[Any]:
    """Return computed axes; arithmetic on them takes time by the square of their number."""
    found = b.numbers(axes, "axes")
    if len(found) > MAX_RANK:
        raise b.error(f"has {len(found)} axes, expected up to {MAX_RANK}")
    return found


def _equal(a: Any, b: Any) -> Any:
    """Return 1 if two whole numbers are equal, else 0."""
    gap = a - b
    if isinstance(gap, Size):
        return (1 - gap.apply("abs")).apply("max", 0)
    return int(gap == 0)


def _hits(axes: Sequence[Any], rank: int) -> list[list[Any]]:
    """Return, for each axis of a tensor, whether each of `axes` is it."""
    return [[_equal(a % rank, d) for a in axes] for d in range(rank)]


def _total(items: Sequence[Any]) -> Any:
    result: Any = 0
    for item in items:
        result = result + item
    return result


def _dot(hits: Sequence[Any], values: Sequence[Any]) -> Any:
    return _total([hit * value for hit, value in zip(hits, values, strict=True)])


def unsqueezed(b: Builder, x: Any, axes: Any) -> Any:
    """Return a tensor with more axes of extent 1."""
    extents, added = b.extents(x), axes_of(b, axes)
    rank = len(extents) + len(added)
    shape, used = [], 0
    for hits in _hits(added, rank):
        is_new = _total(hits)
        kept = [_equal(used, i) for i in range(len(extents))]
        shape.append(is_new + (1 - is_new) * _dot(kept, extents))
        used = used + (1 - is_new)
    return reshaped(b, x, shape)


def squeezed(b: Builder, x: Any, axes: Any) -> Any:
    """Return a tensor without some of its axes of extent 1."""
    extents, dropped = b.extents(x), axes_of(b, axes)
    kept = [1 - _total(hits) for hits in _hits(dropped, len(extents))]
    shape = []
    for position in range(len(extents) - len(dropped)):
        picked = [is_kept * _equal(_total(kept[:d]), position) for d, is_kept in enumerate(kept)]
        shape.append(_dot(picked, extents))
    return reshaped(b, x, shape)


def reshaped(b: Builder, x: Any, shape: list[Any]) -> Any:
    """Return a tensor in another shape, of which at least the rank is known."""
    result = b.emit("Tensor.reshape", x, shape=shape)
    return b.declared(result, x.dtype, [None] * len(shape)) if result.shape is None else result


def spread(pads: Sequence[Any], axes: Sequence[Any], rank: int) -> list[Any]:
    """Return amounts before and after all axes, of those of some."""
    hits, count = _hits(axes, rank), len(axes)
    return [_dot(hit, part) for part in (pads[:count], pads[count:]) for hit in hits]


def reduced_extents(extents: Sequence[Any], axes: Sequence[Any]) -> list[Any]:
    """Return extents that are 1 along some axes."""
    hits = [_total(hit) for hit in _hits(axes, len(extents))]
    return [hit + (1 - hit) * n for hit, n in zip(hits, extents, strict=True)]


def centred(n: Any, target: Any) -> tuple[Any, Any]:
    """Return the amounts before and after an axis that centre it in another extent.

    They are negative if the axis is cropped.
    """
    more, less = _largest(target - n, 0), _largest(n - target, 0)
    before = more // 2 - less // 2
    return before, more - less - before


def sliced(
    b: Builder, x: Any, starts: Sequence[Any], ends: Sequence[Any], axes: Any, steps: Any
) -> Any:
    """Return a slice along axes, or by steps, that a run computes."""
    rank, count = x.rank, len(starts)
    along = list(range(count)) if axes is None else axes_of(b, axes)
    by = [1] * count if steps is None else b.numbers(steps, "steps")
    if not count == len(ends) == len(along) == len(by):
        raise b.error("starts, ends, axes and steps differ in length")
    result = b.ref(x)
    extents = b.extents(x)
    for d, hits in enumerate(_hits(along, rank)):
        stays, n = 1 - _total(hits), extents[d]
        if isinstance(stays, int) and stays == 1:
            continue
        step = _dot(hits, by) + stays
        ahead = _ahead(step)
        # Backwards, the last index is n - 1, and the end may be before the first one.
        first = _bounded(_dot(hits, starts), n, 0, n - 1 + ahead)
        last = _bounded(_dot(hits, ends) + stays * n, n, ahead - 1, n - 1 + ahead)
        # Nothing is between bounds in the other order.
        last = ahead * _largest(last, first) + (1 - ahead) * _least(last, first)
        index = b.emit("torch.arange", start=first, end=last, step=step, dtype="torch.long")
        result = b.emit("torch.index_select", result, dim=d, index=index)
    return result


def _ahead(step: Any) -> Any:
    """Return 1 for a step forwards, 0 backwards."""
    if isinstance(step, Size):
        return step.apply("max", 0).apply("min", 1)
    return int(step > 0)


def _bounded(bound: Any, n: Any, low: Any, high: Any) -> Any:
    """Return a bound that may count from the end, clipped."""
    negative = _ahead(0 - bound)
    return _least(_largest(bound + negative * n, low), high)


def _largest(a: Any, b: Any) -> Any:
    return _call("max", a, b)


def _least(a: Any, b: Any) -> Any:
    return _call("min", a, b)


def _call(name: str, a: Any, b: Any) -> Any:
    if isinstance(a, Size):
        return a.apply(name, b)
    if isinstance(b, Size):
        return b.apply(name, a)
    return max(a, b) if name == "max" else min(a, b)
