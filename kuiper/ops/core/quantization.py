"""Tensors of bytes: the operators that make and read them, and the checks of their parameters."""

from __future__ import annotations

from kuiper.errors import ShapeError

__all__ = ["DEQUANTIZE", "MAX_SCALE", "MIN_SCALE", "QUANTIZE", "check_quantization"]

QUANTIZE, DEQUANTIZE = "kuiper.QuantizeLinear", "kuiper.DequantizeLinear"

# Of a scale; within, the scale and its inverse are far from the limits of float32.
MIN_SCALE, MAX_SCALE = 1e-30, 1e30


def check_quantization(scale: float, zero_point: int, name: str = "") -> None:
    """Check the scale and the zero point of a tensor of bytes.

    Raises
    ------
    ShapeError
        If the scale is not from 1e-30 to 1e30, or the zero point is no byte.
    """
    if not MIN_SCALE <= scale <= MAX_SCALE:
        raise ShapeError(f"'{name}scale' is {scale}, expected {MIN_SCALE} to {MAX_SCALE}")
    if not 0 <= zero_point <= 255:
        raise ShapeError(f"'{name}zero_point' is {zero_point}, expected 0 to 255")
