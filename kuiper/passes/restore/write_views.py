"""Turn a write into a view into a copy of the whole tensor with the new values.

::

    Tensor.slice  v 1 1 x v dim=0 start=0 end=2 step=1       Tensor.slice v 1 1 x v ...
    Tensor.select w 1 1 v w dim=1 index=3              ->    Tensor.select w 1 1 v w ...
    Tensor.copy   c 2 1 w s y $self=w $src=s                 aten::select_scatter c_1 2 1 v s v2 ...
                                                             Tensor.slice_copy c 2 1 x v2 y ...

At optlevel=1 pnnx writes a `Tensor.copy` for a write into a view; later operators read its output
as the whole tensor.  At optlevel=2 pnnx does this rewrite itself.

What proves each change:

- The output is the whole tensor if it has the annotated shape of the tensor at which the slices and
  selects begin, and that is no view itself.  A file without these shapes is refused, because older
  exports give the output the shape of the part.
- pnnx lets later operators read the output in the stead of the tensor, of its slices and of its
  selects, but not of other views.  So an operator after the write that reads, for example, an
  earlier transposition of the tensor may mean the values before the write or those after it, and is
  refused.  One before the write is right.

A copy into a whole tensor is left as it is, but the second rule holds for it too.
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
        If a copy writes through a view of another kind, or the file does not say whether an
        operator reads a view before or after the write.
    """
    copies = []
    order = {operator: number for number, operator in enumerate(graph)}
    for copy in graph.find("Tensor.copy"):
        keys = dict(zip(copy.input_keys, copy.inputs, strict=True))
        if len(copy.outputs) != 1 or keys.keys() != {"self", "src"}:
            continue  # the record refuses it
        views = _views(keys["self"], copy)
        _check_other_views(_viewed(views[-1]) if views else keys["self"], copy, order)
        if views:
            copies.append((copy, views, keys["src"]))
    for copy, views, source in copies:
        result = copy.outputs[0]
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
    known = None not in (target.shape, copy.outputs[0].shape)
    if (known and target.shape != copy.outputs[0].shape) or _is_view(target.producer):
        raise OperatorError(
            f"{copy.label}: it writes into a view of another kind than slices and selects, made "
            f"by {'an input' if target.producer is None else target.producer.label}; export with "
            "the default optlevel=2"
        )
    if views and not known:
        raise OperatorError(
            f"{copy.label}: the file does not say whether its result is the part that it writes or "
            "the whole tensor; export again with 'inputshape=', which adds the shapes"
        )
    return views


def _check_other_views(target: Operand, copy: Operator, order: dict[Operator, int]) -> None:
    """Refuse a write into a tensor of which another view than slices is read after the write."""
    waiting = [(target, False)]
    for operand, is_other in waiting:  # grows
        for reader in operand.consumers:
            if is_other and order[reader] > order[copy]:
                raise OperatorError(
                    f"{copy.label}: {reader.label} reads '{operand.name}', a view of the tensor "
                    f"'{target.name}' that this operator writes to, and the file does not say "
                    "whether before or after the write; write the model without changing a tensor "
                    "that has such a view"
                )
            if _is_view(reader) and reader.inputs[0] is operand:
                other = is_other or reader.type not in WRITES
                waiting += [(view, other) for view in reader.outputs]


def _is_view(producer: Operator | None) -> bool:
    if producer is None:
        return False
    if producer.type.endswith((".clone", "_copy")):
        return False  # a copy
    record = record_or_none(producer.type)
    if producer.type.startswith("prim::") or producer.type == "pnnx.Attribute":
        return False  # lists and constants
    return record is not None and record.layout == Layout.VIEW


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
