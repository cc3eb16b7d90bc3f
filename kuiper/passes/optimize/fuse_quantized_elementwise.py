"""Elementwise arithmetic between tensors of bytes loads bytes and stores bytes.

::

    kuiper.DequantizeLinear d 1 1 a x scale=0.02 zero_point=128
    pnnx.Expression         e 2 1 x y z expr=silu(add(@0,@1))
    kuiper.QuantizeLinear   q 1 1 z b scale=0.05 zero_point=3
    ->
    kuiper.QuantizedExpression e 2 1 a y b expr=silu(add(@0,@1)) scales=(0.02,0,0.05) zero_points=(128,0,3)

Inputs that are bytes are read as bytes, whatever else reads their floats.  The result becomes bytes
if only the QuantizeLinear reads it.  A pair of DequantizeLinear and QuantizeLinear with different
scales is the expression ``@0``.

The same kernel computes the same floats, so no bit changes.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kuiper.expression import Node, Ref
from kuiper.ir import Graph, Operand, Operator
from kuiper.ops.core.quantization import DEQUANTIZE, QUANTIZE
from kuiper.passes.optimize.fuse_elementwise import expression_of, is_elementwise
from kuiper.passes.optimize.match import only_reader, take_over_output

__all__ = ["fuse_quantized_elementwise"]


def fuse_quantized_elementwise(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Let elementwise operators read and write bytes."""
    for op in list(graph):
        if op.type == QUANTIZE:
            producer = op.inputs[0].producer
            if producer is not None and producer.type == DEQUANTIZE:
                _become(graph, op, Ref(0), op.inputs, op)
        elif is_elementwise(op, specs):
            reader = only_reader(op.outputs[0])
            quantize = reader if reader is not None and reader.type == QUANTIZE else None
            tree, operands = expression_of(op, specs)
            if quantize is None and not any(map(_bytes_of, operands)):
                continue
            _become(graph, op, tree, operands, quantize)
            if quantize is not None:
                take_over_output(graph, op, quantize)


def _bytes_of(operand: Operand) -> Operator | None:
    """Return the DequantizeLinear that computes an operand."""
    producer = operand.producer
    return producer if producer is not None and producer.type == DEQUANTIZE else None


def _become(
    graph: Graph, op: Operator, tree: Node, operands: Sequence[Operand], quantize: Operator | None
) -> None:
    """Turn an operator into an expression of bytes."""
    inputs: list[Operand] = []
    scales: list[float] = []
    zero_points: list[int] = []
    for operand in operands:
        source = _bytes_of(operand)
        inputs.append(operand if source is None else source.inputs[0])
        scales.append(0.0 if source is None else source.params["scale"])
        zero_points.append(0 if source is None else source.params["zero_point"])
    scales.append(0.0 if quantize is None else quantize.params["scale"])
    zero_points.append(0 if quantize is None else quantize.params["zero_point"])
    op.type = "kuiper.QuantizedExpression"
    op.params = {"expr": tree, "scales": tuple(scales), "zero_points": tuple(zero_points)}
    graph.set_inputs(op, inputs)
