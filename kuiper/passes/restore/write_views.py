"""Turn a write into a view into a copy of the whole tensor with the new values.

::

    Tensor.slice  v 1 1 x v dim=0 start=0 end=2 step=1       Tensor.slice v 1 1 x v ...
    Tensor.select w 1 1 v w dim=1 index=3              ->    Tensor.select w 1 1 v w ...
    Tensor.copy   c 2 1 w s y $self=w $src=s                 aten::select_scatter c_1 2 1 v s v2 ...
                                                             Tensor.slice_copy c 2 1 x v2 y ...

At optlevel=1 pnnx writes a `Tensor.copy` for a write into a view; later operators read its output
as the whole tensor.  At optlevel=2 pnnx does this rewrite itself.
"""

from __future__ import annotations

from kuiper.errors import OperatorError
from kuiper.ir import Graph, Operand, Operator
from kuiper.ir.view import Layout
from kuiper.ops import record_or_none

__all__ = ["write_views"]

# For each operator that selects a part, the one that writes it.
WRITES = {"Tensor.slice": "Tensor.slice_copy", "Tensor.select": "aten::select_scatter"}
TARGET = {"Tensor.slice_copy": "self", "aten::select_scatter": "input"}


def write_views(graph: Graph) -> None:
    """Rewrite every `Tensor.copy` into slices or selects of another tensor.

    Raises
    ------
    OperatorError
        If a copy writes through a view of another kind.
    """
    for copy in graph.find("Tensor.copy"):
        keys = dict(zip(copy.input_keys, copy.inputs, strict=True))
        if len(copy.outputs) != 1 or keys.keys() != {"self", "src"}:
            continue  # the record refuses it
        views = _views(keys["self"], copy)
        if not views:
            continue
        result, source = copy.outputs[0], keys["src"]
        if not result.uses:
            graph.remove_operator(copy)
            continue
        graph.set_outputs(copy, [])
        graph.remove_operator(copy)
        for number, view in enumerate(views):
            last = number == len(views) - 1
            name = copy.name if last else graph.unique_name(f"{copy.name}_{number + 1}")
            written = result if last else graph.add_operand(graph.unique_name(f"{name}_out"))
            source = _write(graph, view, source, written, name, copy)


def _views(target: Operand, copy: Operator) -> list[Operator]:
    """Return the slices and selects that lead from a tensor to its view `target`, last first."""
    views: list[Operator] = []
    while target.producer is not None and target.producer.type in WRITES:
        views.append(target.producer)
        target = _viewed(target.producer)
    known = target.shape is not None and copy.outputs[0].shape is not None
    fits = not known or target.shape == copy.outputs[0].shape
    if not fits or _is_view(target.producer):
        raise OperatorError(
            f"{copy.label}: it writes into a view of another kind than slices and selects, made "
            f"by {'an input' if target.producer is None else target.producer.label}; export with "
            "the default optlevel=2"
        )
    return views


def _is_view(producer: Operator | None) -> bool:
    if producer is None:
        return False
    if producer.type.endswith((".clone", "_copy")):
        return False  # a copy
    record = record_or_none(producer.type)
    plumbing = ("pnnx.Attribute", "prim::TupleUnpack", "prim::ListUnpack")
    return record is not None and record.layout == Layout.VIEW and producer.type not in plumbing


def _viewed(view: Operator) -> Operand:
    """Return the input of a slice or select."""
    keys = list(view.input_keys)
    return view.inputs[keys.index("input") if "input" in keys else 0]


def _write(
    graph: Graph, view: Operator, source: Operand, result: Operand, name: str, copy: Operator
) -> Operand:
    """Add the operator that replaces the part that `view` selects by `source`."""
    base = _viewed(view)
    type = WRITES[view.type]
    rest = [
        (operand, key)
        for operand, key in zip(view.inputs, view.input_keys, strict=True)
        if key not in (None, "input")
    ]
    graph.add_operator(
        type,
        name,
        [base, source, *(operand for operand, _ in rest)],
        [result],
        params=view.params,
        input_keys=[TARGET[type], "src", *(key for _, key in rest)],
        location=copy.location,
    )
    return result
