"""Remove operators that change nothing, or whose results are not read."""

from __future__ import annotations

from typing import Any

from kuiper.ir import Graph, Operand
from kuiper.ops import record_or_none

__all__ = ["eliminate_dead", "eliminate_identity"]


def eliminate_identity(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Replace the output of each identity by its input; outputs of the model keep their names."""
    for op in graph:
        record = record_or_none(op.type)
        # With several inputs, only the record knows which one is returned.
        if record is not None and record.identity and len(op.inputs) == 1:
            graph.replace_uses(op.outputs[0], op.inputs[0])
            graph.remove_operator(op)


def eliminate_dead(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Remove operators whose outputs are not read."""
    for op in reversed(graph.topological_order()):
        if op.type in ("pnnx.Input", "pnnx.Output"):
            continue
        if not any(operand.uses for operand in op.outputs):
            graph.remove_operator(op)
