"""Tensors of bytes: a scale and a zero point, checked."""

from __future__ import annotations

import numpy as np

from kuiper.errors import ShapeError

__all__ = ["bytes_of", "check_quantization"]


def check_quantization(scale: float, zero_point: int, name: str = "") -> None:
    """Check the scale and the zero point of a tensor of bytes.

    Raises
    ------
    ShapeError
        If the scale, as float32, is not positive, finite and invertible, or the zero point is no
        byte.
    """
    with np.errstate(all="ignore"):
        value = np.float32(scale)
        inverse = np.float32(1) / value
    if not (value > 0 and np.isfinite(value) and np.isfinite(inverse) and inverse > 0):
        raise ShapeError(
            f"'{name}scale' is {scale}, expected a positive float32 whose inverse is finite"
        )
    if not 0 <= zero_point <= 255:
        raise ShapeError(f"'{name}zero_point' is {zero_point}, expected 0 to 255")


def bytes_of(values, scale, zero):
    inverse = np.float32(1) / np.float32(scale)
    v = np.rint(values * inverse) + np.float32(zero)
    return np.nan_to_num(np.clip(v, 0, 255), nan=float(zero)).astype(np.uint8)
