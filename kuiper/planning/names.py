r"""Names of a model's inputs and outputs, as its source calls them.

pnnx numbers all operands, so names are an extra parameter of the operators at both ends, which
other readers of the format ignore::

    pnnx.Input  pnnx_input_0  0 1 0 names=(input_ids) #0=(1,8)i64
    pnnx.Output pnnx_output_0 1 0 9 names=(logits,hidden.0,hidden.1)

One name per tensor, for an output that is a (nested) tuple depth first.  Characters that would end
a value or an element of a list are written as ``\xNN``, and so is the first one of a name that
would read back as a number.
"""

from __future__ import annotations

from collections.abc import Sequence

from kuiper.errors import GraphError, InputError
from kuiper.ir import Graph, Operand, Operator
from kuiper.planning.infer import leaf_operands
from kuiper.pnnx import values
from kuiper.pnnx._messages import plural

__all__ = ["INPUT", "OUTPUT", "names_at", "tensors_at", "write_names"]

INPUT, OUTPUT = "pnnx.Input", "pnnx.Output"


def tensors_at(graph: Graph, end: str) -> list[tuple[Operator, list[Operand]]]:
    """Return the operators at one end of a graph, `INPUT` or `OUTPUT`, and the tensors of each."""
    return [
        (op, [leaf for operand in (*op.inputs, *op.outputs) for leaf in leaf_operands(operand)])
        for op in graph
        if op.type == end
    ]


def names_at(graph: Graph, end: str) -> list[str]:
    """Return the name of each tensor at one end: that of the source, else that of the operand.

    Raises
    ------
    GraphError
        If an operator has another number of names than tensors, or two tensors have one name.
    """
    found: list[str] = []
    given: set[str] = set()
    for op, tensors in tensors_at(graph, end):
        written = op.params.get("names")
        if written is None:
            found += [operand.name for operand in tensors]
            continue
        parts = written if isinstance(written, tuple | list) else (written,)
        names = [_decoded(str(part)) for part in parts]
        if len(names) != len(tensors):
            raise GraphError(
                f"{op.label}: names has {plural(len(names), 'name')}, expected {len(tensors)}, "
                "one per tensor"
            )
        for name in names:
            if name in given:
                raise GraphError(f"{op.label}: a second tensor is called '{name}'; rename one")
            given.add(name)
        found += names
    return found


def write_names(graph: Graph, end: str, names: Sequence[str]) -> None:
    """Give the tensors at one end names, in order.

    Raises
    ------
    InputError
        If the number of names is wrong, or one is empty or given twice.
    """
    ends = tensors_at(graph, end)
    count = sum(len(tensors) for _, tensors in ends)
    what = "input" if end == INPUT else "output"
    if isinstance(names, str):
        names = [names]
    if not isinstance(names, list | tuple):
        raise InputError(f"{what}_names is {names!r}, expected a list of strings")
    if len(names) != count:
        raise InputError(
            f"{what}_names: got {plural(len(names), 'name')} ({', '.join(names) or 'none'}), "
            f"expected {count}, one per {what}"
        )
    for number, name in enumerate(names):
        if not isinstance(name, str) or not name or name in names[:number]:
            raise InputError(
                f"{what}_names: got {name!r} for {what} {number}, expected a string that no other "
                f"{what} has"
            )
    rest = iter(names)
    for op, tensors in ends:
        op.params["names"] = tuple(_encoded(next(rest)) for _ in tensors)


def _encoded(name: str) -> str:
    """Escape what the format cannot express in a list of strings."""
    unsafe = set("(),[]%\\")

    def escape(text: str) -> str:
        return "".join(f"\\x{byte:02x}" for byte in text.encode())

    text = "".join(
        escape(char) if char in unsafe or char.isspace() or char < " " else char for char in name
    )
    return text if values.parse(text) == text else escape(text[0]) + text[1:]


def _decoded(text: str) -> str:
    """Reverse `_encoded`."""
    if "\\x" not in text:
        return text
    import re

    return re.sub(
        r"(?:\\x[0-9a-f]{2})+",
        lambda match: bytes.fromhex(match[0].replace("\\x", "")).decode(errors="replace"),
        text,
    )
