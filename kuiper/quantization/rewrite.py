"""Write the operators of bytes into a graph.

::

    nn.Conv2d  conv  1 1 x y  @weight=(16,8,3,3)f32 @bias=(16)f32
    ->
    kuiper.QuantizeLinear  conv.in  1 1 x x_bytes  scale=0.02 zero_point=128
    nn.quantized.Conv2d    conv     1 1 x_bytes y  input_scale=0.02 input_zero_point=128
        @weight=(16,8,3,3)i8 @weight_scale=(16)f32 @bias=(16)f32
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from kuiper.ir import Attribute, Graph, Operand, Operator
from kuiper.ops.core.quantization import DEQUANTIZE, QUANTIZE
from kuiper.quantization.selection import PRODUCTS, Selection
from kuiper.quantization.weights import QuantizedWeight, quantize_weight

__all__ = ["Quantization", "write_bytes"]


class Quantization(NamedTuple):
    """The scale and the zero point of a tensor of bytes."""

    scale: float
    zero_point: int


def write_bytes(
    graph: Graph,
    selection: Selection,
    quantizations: Mapping[Operand, Quantization],
    weights: dict[str, QuantizedWeight] | None = None,
) -> None:
    """Quantize the selected products of a graph and convert their tensors, in place.

    Parameters
    ----------
    graph : Graph
    selection : Selection
        Of this graph.
    quantizations : mapping of Operand to Quantization
        One for each tensor of the selection.
    weights : dict of str to QuantizedWeight, optional
        Weights by the name of the product; those that are missing are rounded and added.

    Raises
    ------
    InputError
        If a weight contains an infinity or NaN.
    """
    weights = {} if weights is None else weights
    rescaled = [
        (link, quantizations[link.operand], quantizations[link.reader.outputs[0]])
        for link in selection.links
    ]
    quantized: dict[Operand, Operand] = {}
    floats: dict[Operand, Operand] = {}
    products = set(selection.products)
    for operand in selection.tensors:
        how = quantizations[operand]
        readers = [use for use in operand.uses if use.operator.type != "pnnx.Output"]
        quantized[operand] = _convert(graph, operand, QUANTIZE, how, operand, "bytes")
        others = [use for use in readers if use.operator not in products]
        if others:
            floats[operand] = _convert(
                graph, quantized[operand], DEQUANTIZE, how, operand, "rounded"
            )
        for op in dict.fromkeys(use.operator for use in readers):
            new = quantized[operand] if op in products else floats[operand]
            _replace(graph, op, operand, new)
    copies: dict[tuple[Operand, Quantization], Operand] = {}
    for link, own, shared in rescaled:
        if own == shared:
            continue
        source, key = floats[link.operand], (link.operand, shared)
        if key not in copies:
            bytes = _convert(graph, source, QUANTIZE, shared, link.operand, "rescaled_bytes")
            copies[key] = _convert(graph, bytes, DEQUANTIZE, shared, link.operand, "rescaled")
        _replace(graph, link.reader, source, copies[key])
    for op in selection.products:
        if op.name not in weights:
            weights[op.name] = quantize_weight(op.attributes["weight"], op.label)
        source = next(x for x, bytes in quantized.items() if bytes is op.inputs[0])
        _quantize_product(op, weights[op.name], quantizations[source])


def _convert(
    graph: Graph, source: Operand, type: str, how: Quantization, origin: Operand, word: str
) -> Operand:
    """Add a conversion of a tensor, and return its result."""
    producer = origin.required_producer
    dtype = "u8" if type == QUANTIZE else "f32"
    name = graph.unique_name(f"{origin.name}_{word}")
    result = graph.add_operand(name, origin.shape, dtype)
    graph.add_operator(
        type, graph.unique_name(f"{producer.name}.{word}"), [source], [result],
        params=how._asdict(), location=producer.location,
    )  # fmt: skip
    return result


def _replace(graph: Graph, op: Operator, old: Operand, new: Operand) -> None:
    """Let an operator read another operand."""
    inputs = [new if operand is old else operand for operand in op.inputs]
    graph.set_inputs(op, inputs, op.input_keys)


def _quantize_product(op: Operator, weight: QuantizedWeight, source: Quantization) -> None:
    op.type = PRODUCTS[op.type]
    op.params = {
        **op.params,
        "input_scale": source.scale,
        "input_zero_point": source.zero_point,
    }
    attributes = {**op.attributes, "weight": weight.values, "weight_scale": weight.scale}
    if "bias" in attributes and attributes["bias"].dtype != "f32":
        attributes["bias"] = Attribute.from_array(attributes["bias"].numpy().astype(np.float32))
    op.attributes = attributes
