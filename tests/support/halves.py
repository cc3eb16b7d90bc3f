"""bfloat16 in numpy, which has no such type: its bits, and the values that they stand for."""

from __future__ import annotations

import numpy as np

from kuiper.ir.dtypes import BFLOAT16

__all__ = ["halves_of", "relative_error", "rounded", "values_of"]


def halves_of(x: np.ndarray) -> np.ndarray:
    """Round finite floats to the nearest bfloat16, from halves to even."""
    words = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16).view(BFLOAT16)


def values_of(x: np.ndarray) -> np.ndarray:
    """Return the floats that an array of bfloat16 stands for."""
    bits = np.ascontiguousarray(x).view(np.uint16).astype(np.uint32)
    return (bits << 16).view(np.float32)


def rounded(x: np.ndarray) -> np.ndarray:
    """Return floats rounded to bfloat16."""
    return values_of(halves_of(x))


def relative_error(got: np.ndarray, exact: np.ndarray) -> float:
    """Return the norm of the difference, divided by the norm of the exact result."""
    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact))
