"""Remove arithmetic that changes nothing from expressions.

::

    mul(@0,1)   div(@0,1)   sub(@0,0)   pow(@0,1)   neg(neg(@0))   ->   @0

The rules hold for every float32, including NaN, infinities and -0.0; ``x + 0`` stays, because it
turns -0.0 into 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kuiper.expression import Call, Literal, Node, Ref, compact, parse, stored
from kuiper.ir import Graph, Operand
from kuiper.passes.optimize.match import is_float32, same_shape

__all__ = ["simplify_expression"]

# The neutral second argument of each function.
NEUTRAL = {"mul": 1, "div": 1, "sub": 0, "pow": 1}


def simplify_expression(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Simplify the expressions on float32 tensors."""
    for op in graph.find("pnnx.Expression"):
        if not op.inputs or not all(is_float32(o, specs) for o in (*op.inputs, *op.outputs)):
            continue
        expr = op.params["expr"]
        tree = expr if isinstance(expr, Node) else parse(expr, len(op.inputs))
        simpler = tree.transform(_simplify)
        if simpler == tree:
            continue
        simpler, operands = compact(simpler, op.inputs)
        if isinstance(simpler, Ref) and same_shape(operands[0], op.outputs[0], specs):
            graph.replace_uses(op.outputs[0], operands[0])
            graph.remove_operator(op)
        elif not isinstance(simpler, Ref):
            op.params = {"expr": stored(simpler)}
            graph.set_inputs(op, operands)


def _simplify(node: Node, children: Sequence[Node]) -> Node:
    node = node.with_children(children)
    if not isinstance(node, Call):
        return node
    if node.name == "neg" and isinstance(children[0], Call) and children[0].name == "neg":
        return children[0].children[0]
    if len(children) == 2 and node.name in NEUTRAL:
        left, right = children
        if _is_number(right, NEUTRAL[node.name]) and not isinstance(left, Literal):
            return left
        if node.name == "mul" and _is_number(left, 1) and not isinstance(right, Literal):
            return right
    return node


def _is_number(node: Node, number: int) -> bool:
    return (
        isinstance(node, Literal)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
        and node.value == number
        and str(node.value)[0] != "-"
    )
