"""Compute equal operators on the same operands once.

::

    nn.ReLU a 1 1 x y                 nn.ReLU a 1 1 x y
    nn.ReLU b 1 1 x z           ->
    torch.cat c 2 1 y z w             torch.cat c 2 1 y y w
"""

from __future__ import annotations

from typing import Any

from kuiper.ir import Graph, Operand, Operator
from kuiper.ops import record_or_none

__all__ = ["eliminate_common"]

# Comparing larger weights costs more than it saves.
MAX_BYTES = 1 << 16


def eliminate_common(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Replace the outputs of a repeated operator by those of the first."""
    first: dict[tuple[Any, ...], Operator] = {}
    # Most operators differ in type or inputs; the parameters and the bytes of the weights, which
    # may have to be read from the file, are compared for the others alone.
    alike: dict[tuple[Any, ...], Operator | None] = {}
    for op in graph.topological_order():
        inputs = (op.type, op.input_keys, *op._inputs)
        if inputs not in alike:
            alike[inputs] = op
            continue
        earliest = alike[inputs]
        if earliest is not None:
            alike[inputs] = None
            if (key := _key(earliest)) is not None:
                first[key] = earliest
        key = _key(op)
        if key is None:
            continue
        twin = first.setdefault(key, op)
        if twin is op:
            continue
        for mine, theirs in zip(op.outputs, twin.outputs, strict=True):
            graph.replace_uses(mine, theirs)
        graph.remove_operator(op)


def _key(op: Operator) -> tuple[Any, ...] | None:
    """Return a key that is equal for equal results; None if they must not be shared."""
    record = record_or_none(op.type)
    if record is None or not record.is_pure or op.post_ops:
        return None
    if sum(a.nbytes for a in op.attributes.values()) > MAX_BYTES:
        return None
    return (
        op.type,
        len(op.outputs),
        tuple(operand.name for operand in op.inputs),
        op.input_keys,
        # 1, 1.0 and True compare equal, but their text differs.
        tuple(sorted((key, repr(value), str(value)) for key, value in op.params.items())),
        tuple(sorted((key, a.shape, a.dtype, a.raw.tobytes()) for key, a in op.attributes.items())),
    )
