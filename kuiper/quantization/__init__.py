"""Quantization: graphs whose dense products are sums of products of bytes.

``weights.py`` turns a weight into bytes and scales, and measures the error; ``dynamic.py`` replaces
Linear layers by layers that quantize their input as it comes.
"""

from __future__ import annotations

from kuiper.quantization.dynamic import QuantizedLayer, quantizable, quantize, quantize_layers

__all__ = ["QuantizedLayer", "quantizable", "quantize", "quantize_layers"]
