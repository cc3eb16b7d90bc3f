"""Queries and edits of a graph that several passes share."""

from __future__ import annotations

from typing import Any

from kuiper.ir import Graph, Operand, Operator
from kuiper.ir.view import TensorSpec
from kuiper.ops import find_record
from kuiper.ops.core.resolve import resolve
from kuiper.ops.core.schema import attribute_spec

__all__ = ["arguments_of", "is_float32", "only_reader", "same_shape", "take_over_output"]


def arguments_of(operator: Operator, specs: dict[Operand, Any]) -> Any:
    """Return the record of an operator with its arguments; tensors are specs."""
    attributes = {key: attribute_spec(a) for key, a in operator.attributes.items()}
    return resolve(operator, find_record(operator.type), specs, attributes)


def only_reader(operand: Operand) -> Operator | None:
    """Return the operator that reads `operand`, if there is exactly one use."""
    return operand.uses[0].operator if len(operand.uses) == 1 else None


def computes_from(operator: Operator, operand: Operand) -> bool:
    """Tell whether the argument `input` of an operator, rather than its weight, is `operand`."""
    if operator.inputs[0] is not operand or operator.input_keys[0] not in (None, "input"):
        return False
    posts = {post.slot for post in operator.post_ops}
    keys = enumerate(operator.input_keys[1:], 1)
    others = [slot for slot, key in keys if key is None and slot not in posts]
    return not (operator.type.startswith("nn.") and others)


def same_shape(a: Operand, b: Operand, specs: dict[Operand, Any]) -> bool:
    """Tell whether both are tensors of equal shape and dtype."""
    return isinstance(specs.get(a), TensorSpec) and specs[a] == specs.get(b)


def is_float32(operand: Operand, specs: dict[Operand, Any]) -> bool:
    """Tell whether the operand is a float32 tensor."""
    spec = specs.get(operand)
    return isinstance(spec, TensorSpec) and spec.dtype == "float32"


def take_over_output(graph: Graph, producer: Operator, absorbed: Operator) -> None:
    """Remove `absorbed`, the only reader of `producer`, and let `producer` write its output."""
    result = absorbed.outputs[0]
    kept = producer.outputs[1:]
    graph.set_outputs(absorbed, [])
    graph.remove_operator(absorbed)
    graph.set_outputs(producer, [result, *kept])
