"""Restore the axes that constant indices add to a tensor.

pnnx flattens a constant index of several axes to its first axis.  Of the indices of a key mask,
``mask[arange(n)[:, None, None, None], arange(l)]``, the file has only this::

    Tensor.index i 1 1 m y expr=[[0],[0]] #m=(1,18)bool #y=(1,1,1,18)bool
                                ->   torch.unsqueeze i_1 1 1 m a dim=1
                                     torch.unsqueeze i   1 1 a y dim=2

The annotated shape shows that indices are missing.  If the result has the extents of the input in
order, with axes of extent 1 between them, and each remaining index counts from 0, the indices are
assumed to select everything in order, as in the attention masks of most text models.  Anything else
is refused, because the file does not determine the indices.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from kuiper.errors import OperatorError
from kuiper.ir import Graph, Operator
from kuiper.passes.literals import literal_indices

__all__ = ["restore_indices"]


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
        items = literal_indices(op.params.get("expr"))
        if items is None:
            continue
        source, result = op.inputs[0].shape, op.outputs[0].shape
        if source is None or result is None or None in (*source, *result):
            continue
        lists = [one for one in items if one is not None]
        # Complete lists have one axis in common.
        missing = len(result) - (len(source) - len(lists) + 1)
        if missing <= 0 or len(items) > len(source):
            continue
        first = next(number for number, one in enumerate(items) if one is not None)
        start = first if None not in items[first : first + len(lists)] else 0
        found = result[start : start + missing + 1]
        axes = None
        if len(lists) == len(items) and result[missing + 1 :] == source[len(lists) :]:
            axes = _added_axes(source[: len(lists)], found, lists)
        if axes is not None:
            _unsqueeze(graph, op, axes, whole=True)
        elif set(found) == {1}:  # it selects one element, and the lists have its index
            _unsqueeze(graph, op, [start] * missing)
        else:
            raise OperatorError(
                f"{op.label}: the result was {result} for an input of {source} when the model was "
                f"traced, but the file has only the first of the indices, {op.params['expr']}; "
                "write the model with indices of one axis, and reshape what they select"
            )


def _added_axes(
    source: tuple[Any, ...], result: tuple[Any, ...], lists: list[list[int]]
) -> list[int] | None:
    """Return the axes that are new in the result, if the indices may select everything in order."""
    if any(
        one != list(range(len(one))) or len(one) not in (1, extent)
        for one, extent in zip(lists, source, strict=True)
    ):
        return None
    fitting = [
        kept
        for kept in combinations(range(len(result)), len(source))
        if all(
            result[axis] == (source[kept.index(axis)] if axis in kept else 1)
            for axis in range(len(result))
        )
    ]
    if not fitting:
        return None
    # Extents of 1 leave a choice: put the last axis as late and the first as early as possible.
    kept = max(fitting, key=lambda axes: (axes[-1], -axes[0]))
    return [axis for axis in range(len(result)) if axis not in kept]


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
