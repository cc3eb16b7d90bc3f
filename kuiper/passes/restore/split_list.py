"""Split an expression that is a list of tensors into one expression per item and a list.

::

    pnnx.Expression e 2 1 a b c expr=[add(@0,1),mul(@1,2)]

    pnnx.Expression e_0 1 1 a c_0 expr=add(@0,1)
    pnnx.Expression e_1 1 1 b c_1 expr=mul(@0,2)
    prim::ListConstruct e 2 1 c_0 c_1 c

A list in the list is split as well.  What proves the change: the text says which items the list
has, and shape inference which of them are tensors.  A list of numbers alone, such as a shape, is
not changed.
"""

from __future__ import annotations

from typing import Any

from kuiper.expression import List, Ref, compact, parse
from kuiper.ir import Graph, Operand, Operator
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.schema import StaticValue

__all__ = ["split_list"]


def split_list(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Split every expression that is a list with tensors in it."""
    for op in graph.find("pnnx.Expression"):
        text = op.params.get("expr")
        if not isinstance(text, str) or not text.startswith("["):
            continue
        tree = parse(text, len(op.inputs))
        result = op.outputs[0]
        if not isinstance(tree, List) or not _has_tensors(specs.get(result)):
            continue
        if not result.uses:
            continue  # dead; removed later
        graph.set_outputs(op, [])
        items = _split(graph, specs, op, tree, specs[result].value, result.name)
        graph.remove_operator(op)
        graph.add_operator("prim::ListConstruct", op.name, items, [result], location=op.location)


def _split(
    graph: Graph, specs: dict[Operand, Any], op: Operator, tree: List, values: Any, name: str
) -> list[Operand]:
    """Return the operands of a list's items, for each of which there is an operator."""
    operands = []
    for number, (item, value) in enumerate(zip(tree.children, values, strict=True)):
        if isinstance(item, Ref):
            operands.append(op.inputs[item.index])
            continue
        operand = graph.add_operand(graph.unique_name(f"{name}_{number}"))
        specs[operand] = value if isinstance(value, TensorSpec) else StaticValue(value)
        if isinstance(item, List) and _has_tensors(specs[operand]):
            type, params = "prim::ListConstruct", {}
            inputs = _split(graph, specs, op, item, value, operand.name)
        else:
            type = "pnnx.Expression"
            small, inputs = compact(item, op.inputs)
            params = {"expr": small}
        part = graph.unique_name(f"{op.name}_{number}")
        graph.add_operator(type, part, inputs, [operand], params=params, location=op.location)
        operands.append(operand)
    return operands


def _has_tensors(spec: Any) -> bool:
    return isinstance(spec, StaticValue) and _holds_tensors(spec.value)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_holds_tensors, value))
    return isinstance(value, TensorSpec)
