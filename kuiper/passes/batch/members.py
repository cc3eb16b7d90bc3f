"""Indices that count the members of a batch, or list rows of each member."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from kuiper.expression import List, Literal, Ref, parse
from kuiper.ir import Attribute, Graph, Operand, Operator
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.batch import BatchAxis
from kuiper.passes.literals import literal_indices

if TYPE_CHECKING:
    from kuiper.passes.batch.search import BatchSearch

__all__ = [
    "counts_members",
    "index_source",
    "lists_rows_of_members",
    "looks_up",
    "write_member_count",
    "write_row_offsets",
]


def counts_members(search: BatchSearch, op: Operator) -> bool:
    """Tell whether an operator is ``x[arange(batch), i, ...]``, one index per member.

    Text models select the last token of each sentence with it.
    """
    first, *others = _indices(search, op) or [(None, set())]
    if not others or search.axes.get(op.inputs[0]) != BatchAxis(0) or first[0] is None:
        return False
    return np.array_equal(first[0], np.arange(search.traced)) and all(
        axes == {BatchAxis(0)} or (constant is not None and constant.size == 1)
        for constant, axes in others
    )


def lists_rows_of_members(search: BatchSearch, op: Operator) -> BatchAxis | None:
    """Return the batch axis of ``x[indices]`` if both hold one member after the other.

    Point-cloud models select the neighbours of each point with it.  A file that was traced with one
    member lacks the offset of each member's rows, which is 0 then; it has to be added.
    """
    indices = _indices(search, op)
    if search.traced != 1 or len(indices) != 1 or len(op.inputs) != 2:
        return None
    known, axes = indices[0]
    rows = search.axes.get(op.inputs[0])
    if known is not None or len(axes) != 1 or not isinstance(rows, BatchAxis):
        return None
    batch = axes.pop()
    if not isinstance(batch, BatchAxis) or rows[:2] != (0, 1) or batch[:2] != (0, 1):
        return None
    return batch


def looks_up(search: BatchSearch, op: Operator) -> BatchAxis | None:
    """Return the batch axis of ``table[None, indices, ...]`` if all members share the table.

    Each member has indices of its own, such as the ids of its words.
    """
    source = op.inputs[1].producer if len(op.inputs) == 2 else None
    if source is None or source.type != "pnnx.Expression" or search.axes.get(op.inputs[0]):
        return None
    tree = parse(str(source.params.get("expr")), len(source.inputs))
    if not isinstance(tree, List):
        return None
    whole = [isinstance(item, Literal) and item.value is None for item in tree.children]
    if all(whole):
        return None
    first, last = whole.index(False), len(whole) - whole[::-1].index(False)
    items = tree.children[first:last]
    if any(whole[first:last]) or not all(isinstance(item, Ref) for item in items):
        return None
    operands = [source.inputs[cast("Ref", item).index] for item in items]
    specs = [search.specs.get(operand) for operand in operands]
    if any(not isinstance(s, TensorSpec) or s.dtype.kind not in "iu" for s in specs):
        return None
    # Counted from the end, since the indices are broadcast.
    rank = max(cast("TensorSpec", s).rank for s in specs)
    found, others = set(), []
    for operand, spec in zip(operands, specs, strict=True):
        batch = search.axes.get(operand)
        if isinstance(batch, BatchAxis):
            found.add(batch._replace(axis=rank - cast("TensorSpec", spec).rank + batch.axis))
        elif batch is not None:
            return None
        else:
            others.append(cast("TensorSpec", spec))
    if len(found) != 1:
        return None
    batch = found.pop()
    at = [batch.axis - rank + s.rank for s in others]
    if any(axis >= 0 and s.shape[axis] != 1 for s, axis in zip(others, at, strict=True)):
        return None  # indices that all members share along the axis of the batch
    return batch._replace(axis=first + batch.axis)


def index_source(op: Operator) -> Operator:
    """Return the operator that makes the list of indices of `op`."""
    return cast("Operator", op.inputs[1].producer)


def _indices(search: BatchSearch, op: Operator) -> list[tuple[np.ndarray | None, set[Any]]]:
    """Return, for each index, its values if they are known and the batch axes of its operands.

    The list is empty unless all indices are integer vectors, of the first axes in order.
    """
    found: list[tuple[np.ndarray | None, set[Any]]] = []
    if len(op.inputs) == 1:
        lists = literal_indices(op.params.get("expr"))
        return [(np.array(one), set()) for one in lists] if lists and None not in lists else []
    source = op.inputs[1].producer
    if len(op.inputs) != 2 or source is None or source.type != "pnnx.Expression":
        return []
    tree = parse(str(source.params.get("expr")), len(source.inputs))
    if not isinstance(tree, List):
        return []
    for item in tree.children:
        read = [source.inputs[n.index] for n in item.preorder() if isinstance(n, Ref)]
        specs = [search.specs.get(operand) for operand in read]
        if not read or any(
            not isinstance(s, TensorSpec) or s.rank != 1 or s.dtype.kind not in "iu" for s in specs
        ):
            return []
        known = getattr(specs[0], "constant", None) if isinstance(item, Ref) else None
        found.append((known, {search.axes.get(operand) for operand in read}))
    return found


def write_member_count(graph: Graph, op: Operator, batch: int) -> None:
    """Let the first index of an operator count `batch` members."""
    if len(op.inputs) == 1:
        lists = literal_indices(op.params["expr"]) or []
        text = ",".join(str(one).replace(" ", "") for one in [[*range(batch)], *lists[1:]])
        op.params = {**op.params, "expr": f"[{text}]"}
        return
    source = index_source(op)
    tree = parse(str(source.params["expr"]), len(source.inputs))
    first = cast("Ref", tree.children[0]).index
    members = _constant(graph, op, f"{op.name}_members", np.arange(batch))
    inputs = [members if n == first else o for n, o in enumerate(source.inputs)]
    _write_indices(graph, op, f"{op.name}_list", inputs, str(source.params["expr"]))


def write_row_offsets(search: BatchSearch, op: Operator, batch: int) -> None:
    """Turn indices into the rows of one member into indices into the rows of all members."""
    graph = search.graph
    (indices,) = index_source(op).inputs
    spec, rows = search.specs[indices], search.specs[op.inputs[0]].shape[0]
    first_rows = np.repeat(np.arange(batch) * rows, spec.shape[0])
    offsets = _constant(graph, op, f"{op.name}_rows", first_rows)
    # The quotient by the number of rows is 0, or -1 for an index counted from the end.  Any other
    # index is out of range: move it past all rows, so that it does not select another member's.
    times = f"floor_divide(@0,{rows})"
    beyond = f"mul(mul({times},add({times},1)),{rows * batch})"
    text = f"[add(add(remainder(@0,{rows}),@1),{beyond})]"
    _write_indices(graph, op, f"{op.name}_indices", [indices, offsets], text)


def _constant(graph: Graph, op: Operator, name: str, array: np.ndarray) -> Operand:
    """Add an integer constant to the graph."""
    name = graph.unique_name(name)
    result = graph.add_operand(name, array.shape, "i64")
    graph.add_operator(
        "pnnx.Attribute", name, [], [result],
        attributes={"data": Attribute.from_array(array)}, location=op.location,
    )  # fmt: skip
    return result


def _write_indices(graph: Graph, op: Operator, name: str, inputs: list[Operand], text: str) -> None:
    """Let an expression compute the indices of an operator."""
    name = graph.unique_name(name)
    result = graph.add_operand(name)
    graph.add_operator(
        "pnnx.Expression", name, inputs, [result], params={"expr": text}, location=op.location
    )
    graph.set_inputs(op, [op.inputs[0], result], op.input_keys)
