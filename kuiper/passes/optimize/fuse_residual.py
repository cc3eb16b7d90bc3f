"""Fuse a residual sum into the dense product of which it is the only reader.

::

    nn.Conv2d       conv 1 1 x y             nn.Conv2d conv 2 1 x r z   -> add(r)
    pnnx.Expression sum  2 1 y r z expr=add(@0,@1)

The activation after the sum is fused too.  Both summands must have the same shape: a broadcast sum
is no residual.
"""

from __future__ import annotations

from typing import Any

from kuiper.expression.functions import CUSTOM
from kuiper.ir import Graph, Operand, Operator, PostOp
from kuiper.ops import record_or_none
from kuiper.passes.optimize.fuse_activation import try_fuse_activation
from kuiper.passes.optimize.match import is_float32, only_reader, same_shape, take_over_output

__all__ = ["fuse_residual"]

SUMS = ("add(@0,@1)", "add(@1,@0)")


def fuse_residual(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Fuse residual sums and the activations that follow them."""
    position = {op: i for i, op in enumerate(graph.topological_order())}
    for op in graph.find("pnnx.Expression"):
        if op.params.get("expr") not in SUMS or len(op.inputs) != 2 or "add" in CUSTOM:
            continue
        result = op.outputs[0]
        candidates = [
            (position[operand.required_producer], operand, other)
            for operand, other in (op.inputs, op.inputs[::-1])
            if operand is not other
            and _can_take_sum(operand, op)
            and is_float32(result, specs)
            and same_shape(operand, result, specs)
            and same_shape(other, result, specs)
        ]
        if not candidates:
            continue
        # Fuse into the later producer, so that the other summand is complete when it runs.
        _, operand, other = max(candidates, key=lambda c: c[0])
        producer = operand.required_producer
        graph.set_inputs(producer, [*producer.inputs, other], [*producer.input_keys, None])
        slot = len(producer.inputs) - 1
        producer.post_ops = (*producer.post_ops, PostOp("add", {}, slot))
        take_over_output(graph, producer, op)
        try_fuse_activation(graph, specs, producer)


def _can_take_sum(operand: Operand, op: Operator) -> bool:
    producer = operand.producer
    if only_reader(operand) is not op or producer is None or len(producer.outputs) != 1:
        return False
    record = record_or_none(producer.type)
    return (
        record is not None
        and record.post_ops
        and all(post.type != "add" for post in producer.post_ops)
    )
