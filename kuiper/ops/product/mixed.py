"""Convolutions of bytes by Winograd's algorithm in bfloat16.

A model of the precision bfloat16 may compute a convolution of bytes so where that is faster than
exact sums: bytes less their zero point are exact in bfloat16, transformed patches and transformed
filters are rounded.  Weights carry the scales.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper._kernels.micro import dispatch
from kuiper.ir.view import TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.epilogue import Epilogue
from kuiper.ops.product.algorithms.base import MAX_ERROR_DILUTED, Choice, Convolution
from kuiper.ops.product.algorithms.winograd_pairs import WinogradPairs
from kuiper.ops.product.filters import Filters
from kuiper.ops.product.geometry import Geometry

__all__ = ["mixed_winograd"]

# The greatest estimated time relative to implicit GEMM of pairs, in which an instruction does half
# as many products as one of bytes.
MAX_COST = 0.5
# Weights whose products with bytes may be larger are not transformed: no sum may overflow.
MAX_WEIGHT = 1e30


class _Dequantized(Filters):
    """Filters of bytes, times the scales of weight and input."""

    def __init__(self, weight: TensorView, scales: np.ndarray, bias: TensorView | None) -> None:
        super().__init__(weight, bias, weight.shape)
        self._scales = scales.reshape(-1, 1, 1, 1)

    @property
    def in_file(self) -> Any:
        """None: the file has bytes."""
        return None

    def __getitem__(self, rows: slice) -> np.ndarray:
        return super().__getitem__(rows) * self._scales[rows]

    def weight(self) -> np.ndarray:
        return self[0 : self.shape[0]]


def mixed_winograd(
    a: Any, b: Binder, x: TensorView, y: TensorView, geometry: Geometry, epilogue: Epilogue | None
) -> bool:
    """Add the steps of a convolution of bytes by Winograd's algorithm; tell whether it is faster.

    Parameters
    ----------
    a : QuantizedConv
    b : Binder
        Of a model of any precision.
    x, y : TensorView
        Channels-last.
    geometry : Geometry
    epilogue : Epilogue or None
    """
    if not b.in_bfloat16 or not dispatch.has_bfloat16_products():
        return False
    with np.errstate(over="ignore"):
        scales = np.asarray(a.weight_scale.constant) * np.float32(a.input_scale)
        largest = 255 * 128 * np.abs(scales).max(initial=0) * (a.weight.size // max(len(scales), 1))
    if not largest < MAX_WEIGHT:
        return False
    filters = _Dequantized(a.weight, scales, a.bias)
    c = Convolution(x, y, filters, geometry, a.groups, epilogue)
    c.max_error = MAX_ERROR_DILUTED
    algorithm = WinogradPairs(c)
    if algorithm.refusal() or algorithm.cost() > MAX_COST:
        return False
    for step in algorithm.bind(b, a.input_zero_point):
        step.algorithm = Choice(algorithm.name, {})
        b.step(step)
    return True
