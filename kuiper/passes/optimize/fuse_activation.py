"""Fuse an activation into the dense product of which it is the only reader.

::

    nn.Conv2d conv 1 1 x y          nn.Conv2d conv 1 1 x z   -> nn.ReLU
    nn.ReLU   act  1 1 y z
"""

from __future__ import annotations

from typing import Any

from kuiper.ir import Graph, Operand, Operator, PostOp
from kuiper.ops import record_or_none
from kuiper.passes.optimize.match import arguments_of, is_float32, only_reader, take_over_output

__all__ = ["fuse_activation", "try_fuse_activation"]


def fuse_activation(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Fuse activations into operators whose records support post-ops."""
    for op in graph:
        if _takes_post_ops(op) and not op.post_ops:
            try_fuse_activation(graph, specs, op)


def try_fuse_activation(graph: Graph, specs: dict[Operand, Any], op: Operator) -> bool:
    """Fuse the activation that is the only reader of `op`; return whether there was one."""
    reader = only_reader(op.outputs[0])
    if reader is None:
        return False
    record = record_or_none(reader.type)
    if record is None or record.activation is None or not is_float32(reader.outputs[0], specs):
        return False
    if len(reader.inputs) != 1 or reader.post_ops:
        return False
    arguments = vars(arguments_of(reader, specs))
    arguments.pop("input")
    op.post_ops = (*op.post_ops, PostOp(reader.type, arguments))
    take_over_output(graph, op, reader)
    return True


def _takes_post_ops(op: Operator) -> bool:
    record = record_or_none(op.type)
    return record is not None and record.post_ops and len(op.outputs) == 1
