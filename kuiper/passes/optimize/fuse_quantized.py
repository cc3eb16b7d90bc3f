"""Keep tensors between products of bytes in bytes.

::

    kuiper.DequantizeLinear deq  1 1 r_bytes r scale=.. zero_point=..
    nn.quantized.Conv2d     conv 2 1 x r y  -> add(r) -> nn.ReLU
    kuiper.QuantizeLinear   q    1 1 y z scale=.. zero_point=..
    ->
    nn.quantized.Conv2d     conv 2 1 x r_bytes z -> add(r_bytes) -> nn.ReLU -> QuantizeLinear

The epilogue of the product computes the same floats in the same order, so no bit changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper.ir import Attribute, Graph, Operand, Operator, PostOp
from kuiper.ops import record_or_none
from kuiper.ops.core.quantization import DEQUANTIZE, QUANTIZE
from kuiper.passes.optimize.match import only_reader, take_over_output

__all__ = [
    "DEQUANTIZE",
    "eliminate_quantized",
    "fold_channel_factors",
    "fuse_quantized",
    "same_quantization",
]

PRODUCTS = ("nn.quantized.Conv2d", "nn.quantized.Linear")
FACTORS = ("div(@0,@1)", "mul(@0,@1)")


def eliminate_quantized(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Replace bytes that are dequantized and quantized again by the bytes themselves.

    Both operators must have the same scale and zero point.  Then the byte is computed again: for
    v = byte - zero_point, of magnitude up to 255, ``v * scale * (1 / scale)`` has a relative error
    of less than four roundings, 2**-22, and rounds to v.
    """
    for op in list(graph.find(QUANTIZE)):
        producer = op.inputs[0].producer
        if producer is not None and producer.type == DEQUANTIZE and same_quantization(producer, op):
            graph.replace_uses(op.outputs[0], producer.inputs[0])
            graph.remove_operator(op)


def fold_channel_factors(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Fold a factor or a divisor per channel into the scales of the product of bytes before it.

    Quantization-aware training divides by the scale of a batch normalisation in front of it::

        nn.quantized.Conv2d conv 1 1 x y                   nn.quantized.Conv2d conv 1 1 x z
        pnnx.Expression     e    2 1 y c z expr=div(@0,@1)    ->
    """
    for op in graph.find("pnnx.Expression"):
        y = op.inputs[0] if len(op.inputs) == 2 else None
        if y is None or str(op.params.get("expr")) not in FACTORS:
            continue
        producer, constant = y.producer, specs[op.inputs[1]].source
        if (
            producer is None
            or producer.type not in PRODUCTS
            or producer.post_ops
            or constant is None
            or only_reader(y) is not op
            or specs[op.inputs[1]].shape != _channels_alone(producer.type, specs[y].shape)
            or specs[op.outputs[0]] != specs[y]
        ):
            continue
        sources = (constant, *producer.attributes.values())
        key = ("fold_channel_factors", producer.name, *map(id, sources))
        if key not in graph.derived:
            factors = specs[op.inputs[1]].constant.reshape(-1).astype(np.float64)
            if str(op.params["expr"]) == FACTORS[0]:
                factors = 1.0 / factors
            # Keep the sources alive, so that their ids are not reused.
            graph.derived[key] = (_scaled(producer.attributes, factors), sources)
        producer.attributes = {**producer.attributes, **graph.derived[key][0]}
        take_over_output(graph, producer, op)


def _channels_alone(type: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of one number per channel of a product's result."""
    return (1, shape[1], 1, 1) if type == "nn.quantized.Conv2d" else (shape[-1],)


def _scaled(attributes: Any, factors: np.ndarray) -> dict[str, Attribute]:
    names = [name for name in ("weight_scale", "bias") if name in attributes]
    return {
        name: Attribute.from_array((attributes[name].numpy() * factors).astype(np.float32))
        for name in names
    }


def fuse_quantized(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Let products of bytes read residuals in bytes, and write bytes."""
    for op in graph:
        record = record_or_none(op.type)
        if record is None or not record.computes_bytes:
            continue
        _fuse_residual(graph, specs, op)
        reader = only_reader(op.outputs[0])
        if reader is not None and reader.type == QUANTIZE:
            op.post_ops = (*op.post_ops, PostOp(QUANTIZE, dict(reader.params)))
            take_over_output(graph, op, reader)


def _fuse_residual(graph: Graph, specs: dict[Operand, Any], op: Operator) -> None:
    for number, post in enumerate(op.post_ops):
        if post.type != "add" or post.slot is None:
            continue
        producer = op.inputs[post.slot].producer
        if producer is None or producer.type != DEQUANTIZE:
            continue
        inputs = list(op.inputs)
        inputs[post.slot] = producer.inputs[0]
        graph.set_inputs(op, inputs, op.input_keys)
        fused = PostOp("add", dict(producer.params), post.slot)
        op.post_ops = (*op.post_ops[:number], fused, *op.post_ops[number + 1 :])


def same_quantization(a: Operator, b: Operator) -> bool:
    """Tell whether two operators have the same scale and zero point."""
    return a.params["zero_point"] == b.params["zero_point"] and np.float32(
        a.params["scale"]
    ) == np.float32(b.params["scale"])
