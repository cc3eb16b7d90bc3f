"""Tensors of bytes: the operators that make, read and move them, and checks of parameters."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING

from kuiper.errors import OperatorError, ShapeError

if TYPE_CHECKING:
    from kuiper.ir import Operator

__all__ = [
    "CHOICES", "DEQUANTIZE", "JOINS", "MAX_POOLS", "MAX_SCALE", "MIN_SCALE", "MOVES", "QUANTIZE",
    "RESIZES", "check_quantization", "verify_quantization",
]  # fmt: skip

QUANTIZE, DEQUANTIZE = "kuiper.QuantizeLinear", "kuiper.DequantizeLinear"

# Operators whose results are elements of one tensor: all of them, or those that are chosen.
CHOICES = frozenset([
    "Tensor.narrow", "Tensor.select", "Tensor.slice", "torch.narrow", "torch.select",
])  # fmt: skip
MOVES = CHOICES | frozenset([
    "Tensor.chunk", "Tensor.flatten", "Tensor.permute", "Tensor.reshape", "Tensor.squeeze",
    "Tensor.transpose", "Tensor.unflatten", "Tensor.unsqueeze", "Tensor.view", "nn.ChannelShuffle",
    "nn.Flatten", "nn.PixelShuffle", "nn.PixelUnshuffle", "nn.Unflatten", "torch.chunk",
    "torch.flatten", "torch.permute", "torch.reshape", "torch.split", "torch.squeeze",
    "torch.tensor_split", "torch.transpose", "torch.unflatten", "torch.unsqueeze",
])  # fmt: skip
# Operators whose result is made of the elements of several tensors.
JOINS = frozenset(["torch.cat", "torch.concat", "torch.stack"])
MAX_POOLS = frozenset([
    "F.max_pool1d", "F.max_pool2d", "F.max_pool3d", "nn.MaxPool1d", "nn.MaxPool2d", "nn.MaxPool3d",
])  # fmt: skip
# Those of their modes that take the nearest element only move bytes.
RESIZES = frozenset([
    "F.interpolate", "F.upsample", "F.upsample_nearest", "nn.Upsample", "nn.UpsamplingNearest2d",
])  # fmt: skip

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


def verify_quantization(op: Operator, prefix: str = "") -> None:
    """Check the scale and the zero point of an operator, which must be parameters of its file.

    Passes compare them and hand them from operator to operator.

    Raises
    ------
    OperatorError
        If one is missing among the parameters, of another type, or out of range.
    """
    for name, type in (("scale", numbers.Real), ("zero_point", numbers.Integral)):
        given = op.params.get(prefix + name)
        if not isinstance(given, type) or isinstance(given, bool):
            expected = "a number" if type is numbers.Real else "an integer"
            raise OperatorError(
                f"{op.label}: the parameter '{prefix}{name}' is {given!r}, expected {expected}"
            )
    try:
        check_quantization(op.params[f"{prefix}scale"], op.params[f"{prefix}zero_point"], prefix)
    except ShapeError as error:
        raise OperatorError(f"{op.label}: {error}") from None
