"""Restore the rounding of integer division.

pnnx writes ``torch.div(x, y, rounding_mode="floor")`` as a true division, whose result would be
floating-point.  An annotated integer type shows that it was rounded down::

    pnnx.Expression e 1 1 x y expr=div(@0,80) #x=(1,300)i64 #y=(1,300)i64
                                ->   pnnx.Expression e 1 1 x y expr=floor_divide(@0,80)

What proves the change:

- The inputs and the result are annotated as integers, and all functions and numbers of the
  expression map integers to integers, a true division apart.  With a true division in it, the
  result would be floating-point, so each division was rounded.
- It was rounded down: pnnx writes ``rounding_mode="trunc"`` as ``floor_divide``.

An expression with a cast, a float or a function of floats is not changed, nor is one with an
operand of another or of an unknown type.  For floats, the file does not tell the two divisions
apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from kuiper.expression import Call, Literal, Node, parse
from kuiper.ir import Graph

__all__ = ["restore_quotients"]

_INTEGERS = {"i8", "i16", "i32", "i64", "u8"}

# Functions that map integers to integers, including the rounded `div`.
_CLOSED = {
    "add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "neg", "abs", "sign", "max",
    "min", "maximum", "minimum", "square", "size",
}  # fmt: skip


def restore_quotients(graph: Graph) -> None:
    """Round the quotients of expressions whose values are all integers."""
    for op in graph.find("pnnx.Expression"):
        text = str(op.params.get("expr"))
        if (
            "div(" not in text
            or not op.inputs
            or any(o.dtype not in _INTEGERS for o in (*op.inputs, *op.outputs))
        ):
            continue
        tree = parse(text, len(op.inputs))
        if any(_may_be_float(node) for node in tree.preorder()):
            continue
        rounded = str(tree.transform(_round))
        if rounded != str(tree):
            op.params = {**op.params, "expr": rounded}


def _may_be_float(node: Node) -> bool:
    if isinstance(node, Call):
        return node.name not in _CLOSED
    return isinstance(node, Literal) and type(node.value) is not int


def _round(node: Node, children: Sequence[Node]) -> Node:
    if isinstance(node, Call) and node.name == "div":
        return Call("floor_divide", tuple(children))
    return node.with_children(children)
