"""Compute operators while planning if all their inputs are constants.

::

    pnnx.Attribute a 0 1 x @data=(4)f32
    pnnx.Expression e 1 1 x y expr=mul(@0,2)      ->   pnnx.Attribute e.folded 0 1 y @data=(4)f32

pnnx does most of this at its default optimisation level.  This pass serves files of lower levels,
and constants that other passes make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kuiper.ir import Attribute, Graph, Operand, Operator
from kuiper.ir.view import TensorSpec
from kuiper.ops import record_or_none

__all__ = ["fold_constants"]

# Computing a larger result in each run is cheaper than keeping it.
MAX_BYTES = 1 << 24


def fold_constants(
    graph: Graph,
    specs: dict[Operand, Any],
    evaluate: Callable[[Graph], list[np.ndarray]] | None = None,
) -> None:
    """Replace constant operators by their results.

    Parameters
    ----------
    graph : Graph
    specs : dict of Operand to (TensorSpec or StaticValue)
    evaluate : callable, optional
        Runs a graph without inputs and returns its outputs; without it nothing is folded.
    """
    if evaluate is None:
        return
    constant: set[Operand] = set()
    folded: list[Operator] = []
    for op in graph.topological_order():
        if op.type == "pnnx.Attribute":
            constant.update(op.outputs)
        elif all(operand in constant for operand in op.inputs) and _can_fold(op, specs):
            constant.update(op.outputs)
            folded.append(op)
    ends = [
        operand
        for op in folded
        for operand in op.outputs
        if any(reader not in folded for reader in operand.consumers)
    ]
    if not ends:
        return
    results = evaluate(graph.subgraph([], ends))
    for operand, array in zip(ends, results, strict=True):
        op = operand.required_producer
        kept = [other for other in op.outputs if other is not operand]
        graph.set_outputs(op, kept)
        graph.add_operator(
            "pnnx.Attribute", graph.unique_name(f"{op.name}.folded"), [], [operand],
            attributes={"data": Attribute.from_array(array)}, location=op.location,
        )  # fmt: skip
        specs[operand] = TensorSpec(array.shape, array.dtype, array)
    for op in reversed(folded):
        if not any(operand.uses for operand in op.outputs):
            graph.remove_operator(op)


def _can_fold(op: Operator, specs: dict[Operand, Any]) -> bool:
    record = record_or_none(op.type)
    return (
        len(op.inputs) > 0
        and record is not None
        and record.is_pure
        and not op.post_ops
        and all(_is_small(specs.get(operand)) for operand in op.outputs)
    )


def _is_small(spec: Any) -> bool:
    # A constant of half precision would be widened again: weights are.
    return isinstance(spec, TensorSpec) and spec.n_bytes <= MAX_BYTES and spec.dtype != np.float16
