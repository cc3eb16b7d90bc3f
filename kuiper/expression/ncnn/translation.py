"""Translation between PNNX's expressions and ncnn's.

``[size(@0,0),8,floor_divide(size(@0,2),2),size(@0,3)]``, the shape of a reshape of (n, c, h, w),
is ``0w,//(0h,2),8,0n`` in ncnn: innermost axis first, axes by letter, inputs by their index in the
layer.  ncnn computes in float32, truncates each item, and rounds integer division towards zero, so
both languages agree on the quantities in shapes: sums, products and quotients of nonnegative
numbers.  They disagree on ``round``: PNNX rounds halves to even, ncnn away from zero.

Source: pnnx, pass_ncnn/convert_reshape_interp_expression.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kuiper.errors import ExpressionError
from kuiper.expression.ncnn.language import AXES, OPERATORS, BlobExtent, parse
from kuiper.expression.tree import Call, CustomCall, List, Literal, Node, Ref

__all__ = ["Source", "Translation", "from_ncnn", "to_ncnn"]

# PNNX's name -> ncnn's, where they differ.  If several share a name, it translates to the first.
_NAMES = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floor_divide": "//",
    "max": "max",
    "min": "min",
    "trunc": "trunc",
    "maximum": "max",
    "minimum": "min",
    "int": "trunc",
}

_NAMES_BACK: dict[str, str] = {}
for _pnnx, _ncnn in _NAMES.items():
    _NAMES_BACK.setdefault(_ncnn, _pnnx)

# Operators of ncnn whose result is an integer: always, or for integer operands.
_INTEGER = frozenset(["trunc", "ceil", "floor", "round", "and", "or", "xor", "lshift", "rshift"])
_KEEPS_INTEGER = frozenset(["+", "-", "*", "//", "max", "min", "abs", "neg", "sign", "square"])


class Source(NamedTuple):
    """An operand of an expression.

    Attributes
    ----------
    name : hashable
        Identifies the tensor, which may be several operands.
    rank : int or None
        Number of axes, including the batch; None if unknown.
    batch_axis : int or None
        The axis that is ncnn's batch, if any.
    """

    name: object
    rank: int | None
    batch_axis: int | None = None


class Translation(NamedTuple):
    """An expression in ncnn's language.

    Attributes
    ----------
    text : str
    inputs : tuple
        Names of the layer's inputs: the data first, then the operands of the expression.
    keeps_batch : bool
        Whether the items include the batch; then a Reshape needs its parameters 12 and 13.
    """

    text: str
    inputs: tuple[Any, ...]
    keeps_batch: bool


def to_ncnn(
    tree: Node,
    sources: Sequence[Source],
    data: object,
    *,
    reverse: bool = True,
    batch_item: int | None = None,
) -> Translation:
    """Translate an expression of PNNX as the pnnx converter does.

    Parameters
    ----------
    tree : Node
        A list of extents, or a single one.
    sources : sequence of Source
        The operand of each ``@k``.
    data : hashable
        The name of the layer's data, which is always input 0.
    reverse : bool, default True
        Whether to reverse the items: True for the shapes of Reshape and Interp, False for the
        starts and ends of Crop.
    batch_item : int, optional
        The index of the item that is the batch of the result.  The item is omitted unless some item
        depends on the batch of an input.

    Returns
    -------
    Translation

    Raises
    ------
    ExpressionError
        If ncnn cannot express a part of the expression; with its position.
    """
    inputs: list[Any] = [data]
    for k in tree.references():
        if k >= len(sources):
            raise tree.error(f"@{k} refers to none of the {len(sources)} operands")
        if sources[k].name not in inputs:
            inputs.append(sources[k].name)
    if len(inputs) > 10:
        raise tree.error(f"ncnn can refer to 10 inputs, the expression needs {len(inputs)}")
    root = tree.transform(lambda node, children: _to_ncnn(node, children, sources, inputs))
    if isinstance(root, Ref):
        raise root.error("a tensor is no extent; ncnn only knows the extents of tensors")
    items = list(root.children) if isinstance(root, List) else [root]
    keeps_batch = any(
        isinstance(node, BlobExtent) and node.axis == "n"
        for item in items
        for node in item.preorder()
    )
    if batch_item is not None and not keeps_batch:
        del items[batch_item]
    if reverse:
        items.reverse()
    return Translation(",".join(map(str, items)), tuple(inputs), keeps_batch)


def _to_ncnn(
    node: Node, children: Sequence[Node], sources: Sequence[Source], inputs: Sequence[Any]
) -> Node:
    if isinstance(node, Literal):
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise node.error(f"ncnn has no word for {node.text}")
        return node
    if isinstance(node, Ref):
        return node  # every function but size refuses it
    if isinstance(node, List):
        for child in children:
            _refuse_tensor(child)
            if isinstance(child, List):
                raise child.error("ncnn has no lists inside lists")
        return node.with_children(children)
    if isinstance(node, CustomCall):
        raise node.error(f"ncnn has no operator {node.text}")
    if node.text == "size":
        return _extent(node, children, sources, inputs)
    for child in children:
        _refuse_tensor(child)
    name = _NAMES.get(node.text, node.text)
    if name not in OPERATORS:
        raise node.error(f"ncnn has no operator {node.text}")
    return Call(name, children, node.source, node.start, node.end)


def _refuse_tensor(node: Node) -> None:
    if isinstance(node, Ref):
        raise node.error("a tensor is no extent; ncnn only knows the extents of tensors")


def _extent(
    node: Node, children: Sequence[Node], sources: Sequence[Source], inputs: Sequence[Any]
) -> Node:
    """Translate ``size(@k,d)``."""
    tensor = children[0]
    if not isinstance(tensor, Ref):
        raise node.error("size of something that is no tensor")
    if len(children) == 1:
        raise node.error("ncnn has no word for a whole shape")
    axis = children[1]
    if not isinstance(axis, Literal) or isinstance(axis.value, bool | float):
        raise axis.error("the axis must be an integer that is written out")
    _, rank, batch_axis = sources[tensor.index]
    if rank is None:
        raise node.error(f"the rank of @{tensor.index} is not known")
    index = axis.value + rank if axis.value < 0 else axis.value
    if not 0 <= index < rank:
        raise axis.error(f"axis {axis.value} is out of range for {rank} axes")
    blob = inputs.index(sources[tensor.index].name)
    span = (node.source, node.start, node.end)
    if index == batch_axis:
        return BlobExtent(blob, "n", *span)
    if batch_axis is not None:
        index -= batch_axis < index
        rank -= 1
    if rank >= len(AXES):
        raise node.error(f"@{tensor.index} has {rank} axes, more than ncnn's 4")
    return BlobExtent(blob, AXES[rank][index], *span)


def from_ncnn(expression: str | Node, sources: Sequence[Source], *, reverse: bool = True) -> List:
    """Translate an expression of ncnn.

    Parameters
    ----------
    expression : str or Node
    sources : sequence of Source
        The inputs of the layer: ``0w`` becomes a size of ``@0``, which is ``sources[0]``.
    reverse : bool, default True
        As in :func:`to_ncnn`.

    Returns
    -------
    List
        Its items are integers: an item that ncnn would truncate is wrapped in ``int``.

    Raises
    ------
    ExpressionError
        If the text is malformed, or refers to unknown inputs or ranks.
    """
    tree = parse(expression) if isinstance(expression, str) else expression
    items = []
    for item in tree.children if isinstance(tree, List) else (tree,):
        translated = item.transform(lambda node, children: _from_ncnn(node, children, sources))
        items.append(translated if _is_integer(item) else Call("int", [translated]))
    return List(items[::-1] if reverse else items)


def _from_ncnn(node: Node, children: Sequence[Node], sources: Sequence[Source]) -> Node:
    if isinstance(node, Literal):
        return Literal(node.value)
    if not isinstance(node, BlobExtent):
        return Call(_NAMES_BACK.get(node.text, node.text), children)
    if node.blob >= len(sources):
        raise node.error(f"{node.text} refers to none of the {len(sources)} inputs")
    _, rank, batch_axis = sources[node.blob]
    if rank is None:
        raise node.error(f"the rank of input {node.blob} is not known")
    if node.axis == "n":
        if batch_axis is None:
            return Literal(1)
        return Call("size", [Ref(node.blob), Literal(batch_axis)])
    own_rank = rank - (batch_axis is not None)
    if own_rank >= len(AXES):
        raise ExpressionError(f"input {node.blob} has {own_rank} axes, more than ncnn's 4")
    index = AXES[own_rank].find(node.axis)
    if index < 0:
        return Literal(1)  # the blob lacks the axis
    if batch_axis is not None:
        index += batch_axis <= index
    return Call("size", [Ref(node.blob), Literal(index)])


def _is_integer(tree: Node) -> bool:
    """Tell whether ncnn computes an item in integers."""

    def visit(node: Node, arguments: list[bool]) -> bool:
        if isinstance(node, Call):
            return node.name in _INTEGER or (node.name in _KEEPS_INTEGER and all(arguments))
        return isinstance(node.value, int) if isinstance(node, Literal) else True

    return tree.transform(visit)
