"""Split an expression that is a list of tensors into one expression per item and a list.

::

    pnnx.Expression e 2 1 a b c expr=[add(@0,1),mul(@1,2)]

    pnnx.Expression e_0 1 1 a c_0 expr=add(@0,1)
    pnnx.Expression e_1 1 1 b c_1 expr=mul(@0,2)
    prim::ListConstruct e 2 1 c_0 c_1 c
"""

from __future__ import annotations

from typing import Any

from kuiper.expression import List, Ref, compact, parse
from kuiper.ir import Graph, Operand
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
        result, location = op.outputs[0], op.location
        if not isinstance(tree, List) or not _has_tensors(specs.get(result)):
            continue
        if not result.uses:
            continue  # dead; removed later
        inputs, name = op.inputs, op.name
        graph.set_outputs(op, [])
        items = []
        for number, item in enumerate(tree.children):
            if isinstance(item, Ref):
                items.append(inputs[item.index])
                continue
            small, used = compact(item, inputs)
            operand = graph.add_operand(graph.unique_name(f"{result.name}_{number}"))
            graph.add_operator(
                "pnnx.Expression", graph.unique_name(f"{name}_{number}"), used, [operand],
                params={"expr": small}, location=location,
            )  # fmt: skip
            part = specs[result].value[number]
            specs[operand] = part if isinstance(part, TensorSpec) else StaticValue(part)
            items.append(operand)
        graph.remove_operator(op)
        graph.add_operator("prim::ListConstruct", name, items, [result], location=location)


def _has_tensors(spec: Any) -> bool:
    return isinstance(spec, StaticValue) and any(
        isinstance(i, TensorSpec) for i in spec.value or ()
    )
