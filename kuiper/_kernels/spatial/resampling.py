"""The taps of a resized axis: input indices and weights, rounded as in PyTorch.

Positions are computed in float32, since a rounding difference at an integer changes the nearest
index.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "Taps",
    "cubic_taps",
    "identity_taps",
    "linear_taps",
    "nearest_taps",
    "product_taps",
    "scratch_bytes",
]

ONE = np.float32(1)
HALF = np.float32(0.5)


class Taps:
    """The input elements of which each output element is a weighted sum.

    Parameters
    ----------
    indices : array_like of int, shape (outputs, taps)
    weights : array_like of float, shape (outputs, taps)
    slots : array_like of int, shape (outputs, taps), optional
        A buffer in [0, taps) for each index.  Different indices of an output have different
        buffers; an index that keeps its buffer from output to output is not loaded again.
    """

    def __init__(self, indices: Any, weights: Any, slots: Any = None) -> None:
        self.indices = np.ascontiguousarray(indices, np.int32)
        self.weights = np.ascontiguousarray(weights, np.float32)
        # The indices of one output are adjacent.
        slots = self.indices % self.count if slots is None else slots
        self.slots = np.ascontiguousarray(slots, np.int32)

    def __len__(self) -> int:
        return self.indices.shape[0]

    @property
    def count(self) -> int:
        """Taps per output: 1, 2 or 4."""
        return self.indices.shape[1]


def _ratio(extent: int, out: int, scale: float | None, align_corners: bool) -> np.float32:
    """Return the width of an output element in input elements.

    A given `scale` takes precedence over the ratio of the extents, except with `align_corners`.
    """
    if align_corners:
        return np.float32(extent - 1) / np.float32(out - 1) if out > 1 else np.float32(0)
    return np.float32(1.0 / scale) if scale is not None else np.float32(extent) / np.float32(out)


def _positions(
    extent: int, out: int, scale: float | None, align_corners: bool
) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    index = np.arange(out, dtype=np.float32)
    ratio = _ratio(extent, out, scale, align_corners)
    return index * ratio if align_corners else (index + HALF) * ratio - HALF


def identity_taps(extent: int) -> Taps:
    """Return the taps of an axis that is copied."""
    return nearest_taps(extent, extent, None, False)


def nearest_taps(extent: int, out: int, scale: float | None, exact: bool) -> Taps:
    """Return the indices ``floor(i * ratio)``, or ``floor((i + 0.5) * ratio)`` if `exact`."""
    index = np.arange(out, dtype=np.float32)
    position = (index + HALF if exact else index) * _ratio(extent, out, scale, False)
    indices = np.minimum(np.floor(position).astype(np.int64), extent - 1)
    return Taps(indices[:, np.newaxis], np.ones((out, 1)))


def linear_taps(extent: int, out: int, scale: float | None, align_corners: bool) -> Taps:
    """Return the two neighbours of each position; an axis that keeps its extent is copied."""
    if extent == out:
        return identity_taps(extent)
    position = np.maximum(_positions(extent, out, scale, align_corners), np.float32(0))
    left = np.minimum(np.floor(position).astype(np.int64), extent - 1)
    right = np.minimum(left + 1, extent - 1)
    weight = np.clip(position - left.astype(np.float32), np.float32(0), ONE)
    return Taps(np.stack([left, right], 1), np.stack([ONE - weight, weight], 1))


def cubic_taps(extent: int, out: int, scale: float | None, align_corners: bool) -> Taps:
    """Return the four neighbours of each position, clipped to the edges.

    The kernel is Keys' with a = -0.75 (R. Keys, IEEE Trans. ASSP 29, 1981).
    """
    a = np.float32(-0.75)
    position = _positions(extent, out, scale, align_corners)
    left = np.floor(position)
    t = position - left

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    indices = left.astype(np.int64)[:, np.newaxis] + np.arange(-1, 3)
    weights = np.stack([far(t + ONE), near(t), near(ONE - t), far(2 - t)], 1)
    return Taps(np.clip(indices, 0, extent - 1), weights)


def product_taps(outer: Taps, inner: Taps, inner_extent: int) -> Taps:
    """Return the taps of two axes merged into one: index ``outer * inner_extent + inner``."""

    def combined(a: Any, b: Any, combine: Any) -> Any:
        every = combine(a[:, np.newaxis, :, np.newaxis], b[np.newaxis, :, np.newaxis, :])
        return every.reshape(len(outer) * len(inner), outer.count * inner.count)

    return Taps(
        combined(outer.indices, inner.indices, lambda d, h: d * inner_extent + h),
        combined(outer.weights, inner.weights, np.multiply),
        combined(outer.slots, inner.slots, lambda d, h: d * inner.count + h),
    )


def scratch_bytes(rows: Taps, columns: Taps, channels: int) -> int:
    """Return the bytes of scratch that a step needs: a resampled input row per tap."""
    return 4 * rows.count * len(columns) * channels if rows.count > 1 else 0
