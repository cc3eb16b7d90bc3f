"""Reshapes that froze the batch at export copy it instead, so the model takes any batch.

With a single ``inputshape`` pnnx writes every target of a reshape as the traced numbers, the batch
included. Where the numbers behind the first have the same product before and after, the first axis
is carried over unchanged, whatever it is::

    Tensor.reshape r 1 1 x y shape=(1,1280) #x=(1,1280,1,1)f32   ->   shape=(0,1280)

(A zero copies the extent of the input.)  A reshape that mixes the batch with other axes stays as
it is.
"""

from __future__ import annotations

import math

from kuiper.ir import Graph, Operator

__all__ = ["free_batch"]

RESHAPES = ("Tensor.reshape", "Tensor.view")


def free_batch(graph: Graph) -> None:
    """Free the leading extent of every reshape that provably keeps it; needs annotations only."""
    for op in graph:
        if op.type in RESHAPES and _keeps_first_axis(op):
            op.params = {**op.params, "shape": (0, *op.params["shape"][1:])}


def _keeps_first_axis(op: Operator) -> bool:
    target = op.params.get("shape")
    before, after = op.inputs[0].shape, op.outputs[0].shape
    if not isinstance(target, tuple) or not before or not after or len(target) != len(after):
        return False
    if None in before or None in after or 0 in before or target[0] < 1:
        return False
    if -1 in target:
        return False  # takes any batch as it is, and means what it says
    return target[0] == before[0] == after[0] and math.prod(before[1:]) == math.prod(after[1:])
