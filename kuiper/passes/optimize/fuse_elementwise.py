"""Fuse chains of elementwise operators into one expression, which sweeps over memory once.

::

    pnnx.Expression e 3 1 x s t y expr=add(mul(@0,@1),@2)
    nn.ReLU         a 1 1 y z                      ->  relu(add(mul(@0,@1),@2)) of x, s, t

An operator is inlined into its only reader if both results have the same shape.  A smaller tensor,
which the reader broadcasts, is cheaper to compute once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kuiper.expression import CustomCall, Node, Ref, inline, parse
from kuiper.expression.functions import CUSTOM
from kuiper.ir import Graph, Operand, Operator
from kuiper.ops import function_of, record_or_none
from kuiper.ops.math.elementwise import Formula
from kuiper.ops.nn.activation import activation_tree
from kuiper.passes.optimize.match import arguments_of, is_float32, same_shape

__all__ = ["expression_of", "fuse_elementwise", "is_elementwise"]

# The operands and temporaries of a program must fit in the L1 cache together.
MAX_OPERANDS = 8
MAX_NODES = 48


def fuse_elementwise(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Fuse elementwise operators on float32 tensors."""
    for op in graph.topological_order():
        if not is_elementwise(op, specs):
            continue
        tree, operands = expression_of(op, specs)
        absorbed: list[Operator] = []
        # An expression may have operands that it does not reference.
        for operand in dict.fromkeys(operands[k] for k in tree.references()):
            producer = operand.producer
            if (
                producer is None
                or not is_elementwise(producer, specs)
                or not _all_uses_by(operand, op)
                or not same_shape(operand, op.outputs[0], specs)
            ):
                continue
            inner, inner_operands = expression_of(producer, specs)
            joined, together = inline(tree, operands, operand, inner, inner_operands)
            if len(together) <= MAX_OPERANDS and joined.size <= MAX_NODES:
                tree, operands = joined, together
                absorbed.append(producer)
        if absorbed:
            _become(graph, op, tree, operands)
            for producer in absorbed:
                graph.remove_operator(producer)


def is_elementwise(op: Operator, specs: dict[Operand, Any]) -> bool:
    """Tell whether an operator is elementwise arithmetic of float32."""
    if len(op.outputs) != 1 or not is_float32(op.outputs[0], specs):
        return False
    if not all(is_float32(operand, specs) for operand in op.inputs):
        return False
    if op.type == "pnnx.Expression":
        return len(op.inputs) > 0 and not _calls_custom_function(op)
    record = record_or_none(op.type)
    if record is None:
        return False
    if record.activation is not None:
        return len(op.inputs) == 1
    return _formula(op, specs) is not None


def _calls_custom_function(op: Operator) -> bool:
    """Tell whether numpy evaluates an expression, since a user has defined one of its functions."""
    if not CUSTOM:
        return False
    expr = op.params["expr"]
    tree = expr if isinstance(expr, Node) else parse(expr, len(op.inputs))
    return any(isinstance(node, CustomCall) for node in tree.preorder())


def expression_of(op: Operator, specs: dict[Operand, Any]) -> tuple[Node, Sequence[Operand]]:
    """Return the tree of an elementwise operator, and its operands."""
    if op.type == "pnnx.Expression":
        expr = op.params["expr"]
        return (expr if isinstance(expr, Node) else parse(expr, len(op.inputs))), op.inputs
    found = _formula(op, specs)
    if found is not None:
        return found
    function, parameters = function_of(arguments_of(op, specs))
    return activation_tree(function, parameters, Ref(0)), op.inputs


def _formula(op: Operator, specs: dict[Operand, Any]) -> tuple[Node, Sequence[Operand]] | None:
    """Return the expression that the record of an operator gives for it, and its operands."""
    record = record_or_none(op.type)
    if record is None or record.activation is not None or not issubclass(record, Formula):
        return None
    # A separate spec per operand, so that identity tells the operands apart.
    own = {x: specs[x].twin() for x in op.inputs}
    by_spec = {id(spec): operand for operand, spec in own.items()}
    formula = arguments_of(op, own)
    assert isinstance(formula, Formula)
    tree, found = formula.formula()
    if not all(id(spec) in by_spec for spec in found):
        return None  # it reads attributes, which are not operands
    return tree, [by_spec[id(spec)] for spec in found]


def _all_uses_by(operand: Operand, op: Operator) -> bool:
    return operand.uses != () and all(use.operator is op for use in operand.uses)


def _become(graph: Graph, op: Operator, tree: Node, operands: Sequence[Operand]) -> None:
    """Turn an operator into an expression."""
    op.type = "pnnx.Expression"
    op.params = {"expr": tree}
    graph.set_inputs(op, operands)
