"""Take out operators that change nothing."""

from __future__ import annotations

from typing import Any

from kuiper.ir import Graph, Operand
from kuiper.ops import find_record

__all__ = ["eliminate_dead", "eliminate_identity"]


def eliminate_identity(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Let the readers of an identity read its input; outputs of the model keep their names."""
    for op in graph:
        rule = find_record(op.type)
        # A second input can only be one that does not count; which one that is, the record knows.
        if rule is not None and rule.identity and len(op.inputs) == 1:
            graph.replace_uses(op.outputs[0], op.inputs[0])
            graph.remove_operator(op)


def eliminate_dead(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Drop operators whose outputs nothing reads."""
    for op in reversed(graph.topological_order()):
        if op.type in ("pnnx.Input", "pnnx.Output"):
            continue
        if not any(operand.uses for operand in op.outputs):
            graph.remove_operator(op)
