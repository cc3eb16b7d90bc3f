"""Quantization: graphs whose dense products are sums of products of bytes.

::

    entry         quantize(): a model in, a quantized model out
    dynamic       Linear layers that quantize their input as it comes
    static        calibration data -> scales -> graphs of bytes:
      attention     multi-head attention -> its linear layers
      smoothing     ranges of channels -> the weights that read them
      selection     which products, and which tensors are stored in bytes
      calibration   runs the model and shows tensors to observers
      observers     minimum, maximum and histogram -> scale and zero point
      rewrite       writes the operators of bytes
      correction    biases, so that rounding moves no mean
      sensitivity   the error of each product; which stay in float
    weights       a weight -> bytes and scales
"""

from __future__ import annotations

from kuiper.quantization.dynamic import QuantizedLayer, quantizable, quantize_layers
from kuiper.quantization.entry import quantize

__all__ = ["QuantizedLayer", "quantizable", "quantize", "quantize_layers"]
