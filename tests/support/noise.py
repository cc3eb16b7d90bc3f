"""Reproducible noise: the same key gives the same numbers on every machine and numpy version.

numpy guarantees the *bits* of PCG64 but not how ``Generator`` converts them to floats, so float32
values are made exactly from 24 raw bits each.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

__all__ = ["integers", "uniform"]


def uniform(key: str, shape: tuple[int, ...], low: float = -1.0, high: float = 1.0) -> np.ndarray:
    """Return float32 noise of `shape` in [low, high), seeded by `key`."""
    fractions = (_bits(key, math.prod(shape)) >> 40).astype(np.float64) / 2.0**24
    return (low + (high - low) * fractions).astype(np.float32).reshape(shape)


def integers(key: str, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
    """Return int64 noise of `shape` in [low, high), seeded by `key`."""
    span = np.uint64(high - low)
    return ((_bits(key, math.prod(shape)) >> 11) % span).astype(np.int64).reshape(shape) + low


def _bits(key: str, count: int) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "little")
    return np.random.PCG64(seed).random_raw(count)
