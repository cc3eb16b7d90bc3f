"""The text of a tree: infix notation and outline."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kuiper.expression.functions import EXTENDED
from kuiper.expression.tree import Call, List, Literal, Node, Ref

__all__ = ["infix", "outline"]

# Precedence of Python's operators.
_PRECEDENCE = {"|": 1, "^": 2, "&": 3, "<<": 4, ">>": 4, "+": 5, "-": 5}
_PRECEDENCE |= {"*": 6, "/": 6, "//": 6, "%": 6, "**": 8}
_UNARY = 7
_ATOM = 9


def infix(tree: Node, names: Sequence[str] | None = None) -> str:
    """Write an expression in Python's notation, with as few parentheses as possible.

    Parameters
    ----------
    tree : Node
    names : sequence of str, optional
        Names of the operands; by default ``@0``, ``@1``, ...

    Returns
    -------
    str

    Examples
    --------
    >>> from kuiper.expression import parse
    >>> infix(parse("add(@0,mul(@1,neg(sub(@2,3))))"))
    '@0 + @1 * -(@2 - 3)'
    """
    return tree.transform(partial(_written, names))[0]


def _written(
    names: Sequence[str] | None, node: Node, parts: list[tuple[str, int]]
) -> tuple[str, int]:
    """Return the text of a node and the precedence of its outermost operator."""
    if isinstance(node, Ref):
        return (node.text if names is None else names[node.index]), _ATOM
    if isinstance(node, Literal):
        if isinstance(node.value, complex):
            return f"({node.text})", _ATOM
        return node.text, _UNARY if node.text.startswith("-") else _ATOM
    texts = [text for text, _ in parts]
    if isinstance(node, List):
        return f"[{', '.join(texts)}]", _ATOM
    # None for a cast and for a function of users
    function = EXTENDED.get(node.text) if isinstance(node, Call) else None
    symbol = None if function is None else function.infix
    if symbol is None:
        return f"{node.text}({', '.join(texts)})", _ATOM
    if len(parts) == 1:
        return symbol + _wrapped(parts[0], _UNARY), _UNARY
    level = _PRECEDENCE[symbol]
    # Only ** is right-associative, and its right operand needs no parentheses around a sign.
    left, right = (level + 1, _UNARY) if symbol == "**" else (level, level + 1)
    return f"{_wrapped(parts[0], left)} {symbol} {_wrapped(parts[1], right)}", level


def _wrapped(part: tuple[str, int], least: int) -> str:
    text, level = part
    return text if level >= least else f"({text})"


def outline(tree: Node) -> str:
    """Write the tree with one node per line.

    Parameters
    ----------
    tree : Node

    Returns
    -------
    str
        Several lines, without a newline at the end.

    Examples
    --------
    >>> from kuiper.expression import parse
    >>> print(outline(parse("add(mul(@0,@1),2)")))
    add
    ├── mul
    │   ├── @0
    │   └── @1
    └── 2
    """
    lines: list[str] = []
    stack: list[tuple[Node, str, str]] = [(tree, "", "")]
    while stack:
        node, first, rest = stack.pop()
        lines.append(first + node.text)
        for position, child in enumerate(reversed(node.children)):
            is_last = position == 0
            stack.append(
                (
                    child,
                    rest + ("└── " if is_last else "├── "),
                    rest + ("    " if is_last else "│   "),
                )
            )
    return "\n".join(lines)
