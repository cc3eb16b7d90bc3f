"""Restore the axes that constant indices add to a tensor.

pnnx writes of each constant index as many numbers as its first axis has.  Of the indices of a key
mask, ``mask[arange(n)[:, None, None, None], arange(l)[None, None, None, :]]``, the file has this::

    Tensor.index i 1 1 m y expr=[[0],[0]] #m=(1,18)bool #y=(1,1,1,18)bool
                                ->   torch.unsqueeze i_1 1 1 m a dim=1
                                     torch.unsqueeze i   1 1 a y dim=2

The annotated shape shows that numbers are missing.  What proves each change:

- An index of an axis of extent 1 is 0, however many numbers are missing.
- An index with several numbers is complete if the axis of the result that it counts is the last one
  with an extent other than 1, and an index of one element is complete.  If all are complete or 0,
  and count from 0 to the end of their axes, they select everything in order.
- A bool tensor (n, keys) that becomes (n, 1, 1, keys) and reaches an attention or a softmax through
  elementwise and shape operators alone is a mask of keys.  Attention has its keys in the order of
  the tensor; so does its mask.

All else is refused, because the file does not determine the result: among others a permutation that
begins with 0, a table that is indexed by a matrix, and a constant bool index of several axes.
Without annotations, or if the file has all numbers, nothing is changed.
"""

from __future__ import annotations

import math
from itertools import combinations

from kuiper.errors import OperatorError
from kuiper.ir import Graph, Operator
from kuiper.ir.attribute import Shape
from kuiper.passes.literals import literal_indices

__all__ = ["restore_indices"]

# The operators through which a mask of keys reaches an attention, and the attentions.
_CARRIES = {
    "pnnx.Expression", "Tensor.expand", "Tensor.masked_fill", "Tensor.reshape", "Tensor.slice",
    "Tensor.to", "torch.bitwise_and", "torch.bitwise_not", "torch.logical_and", "torch.logical_not",
    "torch.masked_fill", "torch.unsqueeze", "torch.where",
}  # fmt: skip
_ATTENTIONS = {
    "F.scaled_dot_product_attention", "F.softmax", "nn.MultiheadAttention", "nn.Softmax",
}  # fmt: skip


def restore_indices(graph: Graph) -> None:
    """Replace every `Tensor.index` whose constant indices are incomplete.

    Raises
    ------
    OperatorError
        If the file does not determine its result.
    """
    for op in graph.find("Tensor.index"):
        if len(op.inputs) != 1 or len(op.outputs) != 1 or not op.outputs[0].uses:
            continue
        items = literal_indices(op.params.get("expr"), bools=True)
        source, result = op.inputs[0].shape, op.outputs[0].shape
        if items is None or source is None or result is None or len(items) > len(source):
            continue
        lists = [one for one in items if one is not None]
        # Complete lists have one axis in common.
        missing = len(result) - (len(source) - len(lists) + 1)
        has_bools = any(isinstance(n, bool) for one in lists for n in one)
        if missing and has_bools:
            raise _refusal(op)
        if missing <= 0 or has_bools:
            continue
        first = next(number for number, one in enumerate(items) if one is not None)
        start = first if None not in items[first : first + len(lists)] else 0
        found = result[start : start + missing + 1]
        if len(lists) == len(items) and result[missing + 1 :] == source[len(lists) :]:
            kept = _kept_axes(op, source[: len(lists)], found, lists)
            if kept is not None:
                added = [axis for axis in range(len(found)) if axis not in kept]
                _unsqueeze(graph, op, added, whole=True)
                continue
        if set(found) != {1}:
            raise _refusal(op)
        # It selects one element, and the lists have its index.
        _unsqueeze(graph, op, [start] * missing)


def _refusal(op: Operator) -> OperatorError:
    return OperatorError(
        f"{op.label}: the result was {op.outputs[0].shape} for an input of {op.inputs[0].shape} "
        f"when the model was traced, but the file has only the first of the indices, "
        f"{op.params['expr']}; write the model with indices of one axis, and reshape what they "
        "select"
    )


def _kept_axes(
    op: Operator, source: Shape, result: Shape, lists: list[list[int]]
) -> tuple[int, ...] | None:
    """Return the axes of the result that are those of the input, in order; None if not proven."""
    if any(
        one != list(range(len(one))) or len(one) not in (1, extent)
        for one, extent in zip(lists, source, strict=True)
    ):
        return None
    if not all(
        extent == 1 or (len(one) == extent and _is_complete(extent, result))
        for one, extent in zip(lists, source, strict=True)
    ) and not _is_key_mask(op):
        return None
    fitting = [
        kept
        for kept in combinations(range(len(result)), len(source))
        if all(
            result[axis] == (source[kept.index(axis)] if axis in kept else 1)
            for axis in range(len(result))
        )
    ]
    # Extents of 1 leave a choice: put the last axis as late and the first as early as possible.
    return max(fitting, key=lambda axes: (axes[-1], -axes[0]), default=None)


def _is_complete(count: int, result: Shape) -> bool:
    """Tell whether an index with `count` numbers has one axis only, whatever axis it counts."""
    return all(
        math.prod(n or 0 for n in result[axis + 1 :]) == 1
        for axis, extent in enumerate(result)
        if extent == count
    )


def _is_key_mask(op: Operator) -> bool:
    """Tell whether a bool tensor (n, keys) becomes a mask (n, 1, 1, keys) of an attention."""
    source, result = op.inputs[0], op.outputs[0]
    if source.dtype != "bool" or source.shape is None or len(source.shape) != 2:
        return False
    if result.shape != (source.shape[0], 1, 1, source.shape[1]):
        return False
    waiting, seen = [result], {result}
    while waiting:
        for reader in waiting.pop().consumers:
            if reader.type in _ATTENTIONS:
                return True
            if reader.type in _CARRIES:
                waiting += [operand for operand in reader.outputs if operand not in seen]
                seen.update(reader.outputs)
    return False


def _unsqueeze(graph: Graph, op: Operator, axes: list[int], whole: bool = False) -> None:
    """Add axes of extent 1 to the result of an operator, or, if `whole`, to its input instead."""
    result, name = op.outputs[0], op.name
    if whole:
        value = op.inputs[0]
        graph.set_outputs(op, [])
        graph.remove_operator(op)
    else:
        value = graph.add_operand(graph.unique_name(f"{name}_out"), None, result.dtype)
        graph.set_outputs(op, [value])
    for number, axis in enumerate(axes):
        last = number == len(axes) - 1
        target = result
        if not last:
            target = graph.add_operand(
                graph.unique_name(f"{name}_out_{number + 1}"), None, result.dtype
            )
        graph.add_operator(
            "torch.unsqueeze",
            name if last and whole else graph.unique_name(f"{name}_{number + 1}"),
            [value],
            [target],
            params={"dim": axis},
            location=op.location,
        )
        value = target
