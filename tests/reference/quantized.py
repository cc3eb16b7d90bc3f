"""Quantization to integers and back."""

from __future__ import annotations

import numpy as np

from .attention import multihead_attention
from .convolution import conv2d
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


@reference("aten::fused_moving_avg_obs_fake_quant")
def observed_fake_quantize(
    input, observes, quantizes, low, high, scale, zero_point, average, quant_min, quant_max, *_
):
    """Round to multiples of a scale, as far as quantization is on."""
    if not np.all(quantizes):
        return input
    return _rounded(input, np.ravel(scale)[0], np.ravel(zero_point)[0], quant_min, quant_max)


@reference("kuiper.QuantizeLinear")
def quantize_linear(input, scale, zero_point):
    """Round to bytes."""
    inverse = np.float32(1) / np.float32(scale)
    integers = np.rint(np.float32(input) * inverse).astype(np.float64) + zero_point
    return np.clip(integers, 0, 255).astype(np.uint8)


@reference("kuiper.DequantizeLinear")
def dequantize_linear(input, scale, zero_point):
    """Return the values that bytes stand for."""
    return (input.astype(np.float64) - zero_point) * np.float32(scale)


@reference("nn.quantized.Conv2d")
def quantized_conv(
    input, weight, bias=None, *, weight_scale, input_scale, input_zero_point, **options
):
    """Convolve the integers, then scale."""
    sums = conv2d(input.astype(np.float64) - input_zero_point, weight.astype(np.float64), **options)
    y = sums * (weight_scale.astype(np.float64) * input_scale)[:, None, None]
    return y if isinstance(bias, bool) or bias is None else y + bias[:, None, None]


@reference("nn.quantized.Linear")
def quantized_linear(input, weight, weight_scale, bias=None, *, input_scale, input_zero_point, **_):
    """Multiply the integers, then scale."""
    sums = (input.astype(np.float64) - input_zero_point) @ weight.astype(np.float64).T
    y = sums * (weight_scale.astype(np.float64) * input_scale)
    return y if isinstance(bias, bool) or bias is None else y + bias


def _multiply(input, weight):
    """Return x W^T, for rows of x rounded to 127 steps up to their largest magnitude."""
    x = np.float32(input)
    largest = np.abs(x).max(-1, keepdims=True)
    whole = np.rint(x * (np.float32(127) / largest)).astype(np.float64)
    return np.matmul(whole, weight.T) * (largest.astype(np.float64) / 127)


@reference("nn.quantized.dynamic.Linear")
def dynamic_linear(input, weight, weight_scale, bias=None, **_):
    """Return the linear layer of rounded rows."""
    y = _multiply(input, weight * weight_scale[:, np.newaxis])
    return y if isinstance(bias, bool) or bias is None else y + bias


@reference("nn.quantized.dynamic.MultiheadAttention")
def dynamic_attention(*inputs, in_proj_scale, out_proj_scale, **options):
    """Return attention between linear layers of rounded rows."""
    for name, scale in (("in_proj_weight", in_proj_scale), ("out_proj.weight", out_proj_scale)):
        options[name] = options[name] * scale[:, np.newaxis]
    return multihead_attention(*inputs, multiply=_multiply, **options)
