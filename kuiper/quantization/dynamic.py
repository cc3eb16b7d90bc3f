"""Dynamic quantization: Linear layers with weights of one byte.

The input of a layer is quantized row by row in each run, so no calibration data is needed::

    nn.Linear  fc  1 1 x y  bias=True @weight=(64,256)f32 @bias=(64)f32
    ->
    nn.quantized.dynamic.Linear  fc  1 1 x y  bias=True
        @weight=(64,256)i8 @weight_scale=(64)f32 @bias=(64)f32
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kuiper.errors import InputError
from kuiper.ir import Graph, Operator
from kuiper.ops.product.dynamic_linear import MAX_TERMS
from kuiper.quantization.selection import FLOATS, MIN_ELEMENTS, matching
from kuiper.quantization.weights import quantize_weight

__all__ = ["QuantizedLayer", "quantizable", "quantize_layers"]

# By operator type: the name of the scale of each weight.
SCALES = {
    "nn.Linear": {"weight": "weight_scale"},
    "nn.MultiheadAttention": {
        "in_proj_weight": "in_proj_scale",
        "out_proj.weight": "out_proj_scale",
    },
}


class QuantizedLayer(NamedTuple):
    """What :func:`kuiper.quantize` did to one operator.

    Attributes
    ----------
    name : str
    shape : tuple of int
        Of the weight, (out_features, in_features).
    sqnr : float
        Signal-to-noise ratio of the weight, in dB.
    """

    name: str
    shape: tuple[int, ...]
    sqnr: float


def quantizable(graph: Graph, keep: Iterable[str] = ()) -> list[Operator]:
    """Return the operators of a graph that :func:`kuiper.quantize` would replace.

    Parameters
    ----------
    graph : Graph
    keep : iterable of str
        As for :func:`kuiper.quantize`.

    Raises
    ------
    InputError
        If a pattern of `keep` matches none of these operators.
    """
    layers = [op for op in graph if _is_candidate(op)]
    kept = matching(layers, keep)
    return [op for op in layers if op.name not in kept]


def _is_candidate(op: Operator) -> bool:
    weights = [op.attributes.get(name) for name in SCALES.get(op.type, ())]
    return bool(weights) and all(
        weight is not None
        and weight.dtype in FLOATS
        and len(weight.shape) == 2
        and math.prod(weight.shape) >= MIN_ELEMENTS
        and weight.shape[1] <= MAX_TERMS
        for weight in weights
    )


def quantize_layers(graph: Graph, layers: Sequence[Operator]) -> Iterator[QuantizedLayer]:
    """Quantize layers of a graph, which changes, one by one.

    Parameters
    ----------
    graph : Graph
    layers : sequence of Operator
        Some of those that :func:`quantizable` returns.

    Raises
    ------
    InputError
        As for :func:`kuiper.quantize`.
    """
    if not layers:
        raise InputError(
            f"there is no layer to quantize among the {len(graph)} operators, expected nn.Linear "
            f"or nn.MultiheadAttention with constant weights of at least {MIN_ELEMENTS} elements"
        )
    for op in layers:
        yield from _quantize_layer(op)


def _quantize_layer(op: Operator) -> Iterator[QuantizedLayer]:
    attributes = dict(op.attributes)
    for name, scale in SCALES[op.type].items():
        weight = attributes[name]
        quantized = quantize_weight(weight, op.label)
        attributes[name], attributes[scale] = quantized.values, quantized.scale
        word = op.name if name == "weight" else f"{op.name}.{name.removesuffix('.weight')}"
        yield QuantizedLayer(word, weight.shape, quantized.sqnr)
    op.attributes = attributes
    op.type = op.type.replace("nn.", "nn.quantized.dynamic.", 1)
