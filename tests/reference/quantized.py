"""Quantization to integers and back."""

from __future__ import annotations

import numpy as np

from .registry import reference

_RANGES = {12: (-128, 127), 13: (0, 255), 14: (-(2**31), 2**31 - 1)}
_NAMES = {"torch.qint8": 12, "torch.quint8": 13, "torch.qint32": 14}


def _rounded(input, scale, zero_point, low, high):
    inverse = np.float32(1) / np.float32(scale)
    integers = np.rint(np.float32(input) * inverse) + zero_point
    return (np.clip(integers, low, high).astype(np.float64) - zero_point) * scale


@reference("torch.quantize_per_tensor", "aten::quantize_per_tensor", "nn.quantized.Quantize")
def quantize(input, scale, zero_point, dtype):
    """Round to the values that the quantized integers represent."""
    return _rounded(input, scale, zero_point, *_RANGES[_NAMES.get(dtype, dtype)])


@reference("torch.dequantize", "aten::dequantize", "nn.quantized.DeQuantize")
def dequantize(input):
    """Return the input: quantized tensors are kept as the values they represent."""
    return input


@reference("aten::fake_quantize_per_tensor_affine")
def fake_quantize(input, scale, zero_point, low, high):
    """Round to multiples of a scale."""
    return _rounded(input, scale, zero_point, low, high)


@reference("aten::fake_quantize_per_channel_affine")
def fake_quantize_channels(input, scale, zero_point, axis, low, high):
    """Round to multiples of a scale per channel."""
    lines = np.moveaxis(input, axis, 0)
    each = zip(lines, scale, zero_point, strict=True)
    return np.moveaxis(np.stack([_rounded(*one, low, high) for one in each]), 0, axis)
