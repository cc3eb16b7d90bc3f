"""ncnn's dialect: shape expressions such as ``-1,*(0h,2),+(1c,2)``.

The layers Reshape, Crop and Interp compute extents with it.  A text is a list of items.  An item is
an extent of an input (``0w``: blob 0, width; also h, d, c, and n for the batch), a number, or an
operator with its arguments in brackets.  Numbers are 32-bit integers or float32; the value of each
item is truncated to an integer.

This module computes the same results as ncnn if they are defined:

* ``+ - * // max min`` of integers are integers; ``//`` and the final truncation round towards zero.
* ``//`` with a float is the floor of the quotient.
* ``/ pow fmod remainder atan2 logaddexp`` and all functions are float32.
* ``trunc ceil floor round`` give integers; ``round`` rounds halves away from zero.
* ``2.0`` is the integer 2, ``1e1`` the float 10.

It raises an error for texts that crash ncnn, or whose result there cannot be intended:

======================  ==========================================================================
text                    ncnn
======================  ==========================================================================
``10w``                 10, because a reference has an id of one digit
``0W``, ``12abc``       the number at the start, the rest is ignored
``+(2)``                the process crashes
``+,0w,2``              as ``+(0w,2)`` in the sum, as three items in the rank
``remainder(-4,2)``     2: the divisor is added even to a remainder of 0
``and(1.5,1)``          the bits of the float
``lshift(1,40)``        undefined, as are sums and products of more than 32 bits
``sqrt(-1)``            NaN, whose conversion to an integer is undefined
``/(1,0)`` as an item   infinity, truncated to some integer
======================  ==========================================================================

Source: ncnn, src/expression.cpp.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from kuiper.errors import ExpressionError
from kuiper.expression.tree import Call, List, Literal, Node

__all__ = ["OPERATORS", "BlobExtent", "Extents", "count_blobs", "eval_list", "parse", "to_text"]

# Operator -> number of arguments.
OPERATORS: dict[str, int] = dict.fromkeys(
    (
        "+", "-", "*", "/", "//", "max", "min", "pow", "fmod", "remainder", "atan2", "logaddexp",
        "and", "or", "xor", "lshift", "rshift",
    ),
    2,
) | dict.fromkeys(
    (
        "trunc", "ceil", "floor", "round", "abs", "neg", "sign", "square", "sqrt", "rsqrt",
        "reciprocal", "exp", "log", "log10", "erf", "sin", "asin", "cos", "acos", "tan", "atan",
        "sinh", "asinh", "cosh", "acosh", "tanh", "atanh",
    ),
    1,
)  # fmt: skip

MAX_DEPTH = 255  # a .param file holds at most 255 characters

_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_TOKEN = re.compile(r"[^(),]+|[(),]")
_REFERENCE = re.compile(r"[0-9][whdcn]")
_LONG_REFERENCE = re.compile(r"[0-9]{2,}[whdcn]")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Extents(NamedTuple):
    """The extents of a blob; those of axes that it lacks are 1."""

    w: int = 1
    h: int = 1
    d: int = 1
    c: int = 1
    n: int = 1

    @classmethod
    def of(cls, shape: Sequence[int], batch: int = 1) -> Extents:
        """Return the extents of a shape of up to four axes, outermost first, without the batch.

        Examples
        --------
        >>> Extents.of((3, 224, 320))
        Extents(w=320, h=224, d=1, c=3, n=1)
        """
        axes = AXES[len(shape)] if len(shape) < len(AXES) else None
        if axes is None:
            raise ExpressionError(f"a blob has up to 4 axes, got shape {tuple(shape)}")
        return cls(**dict(zip(axes, shape, strict=True)), n=batch)


# The names of the axes of a blob, by rank, outermost first.
AXES = ("", "w", "hw", "chw", "cdhw")


class BlobExtent(Node):
    """``0w``: one extent of an input.

    Attributes
    ----------
    blob : int
        0 to 9.
    axis : str
        One of ``w h d c n``.
    """

    __slots__ = ("axis", "blob")

    def __init__(
        self,
        blob: int,
        axis: str,
        source: str | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> None:
        super().__init__((), source, start, end)
        self.blob = blob
        self.axis = axis

    @property
    def text(self) -> str:
        return f"{self.blob}{self.axis}"

    def _key(self) -> tuple[Any, ...]:
        return (BlobExtent, self.blob, self.axis)


def count_blobs(text: str) -> int:
    """Return how many inputs an expression requires: the highest id plus 1, or 0 without ids.

    Like ncnn's ``count_expression_blobs``, this examines single words: the text may be malformed.

    Examples
    --------
    >>> count_blobs("-1,*(0h,2),+(1c,2)")
    2
    """
    words = _TOKEN.findall(text)
    return max((int(w[0]) + 1 for w in words if _REFERENCE.fullmatch(w)), default=0)


def to_text(tree: Node) -> str:
    """Write a tree in ncnn's language; a list has no brackets."""
    return ",".join(map(str, tree.children)) if isinstance(tree, List) else str(tree)


# Reading ---------------------------------------------------------------------------------------


def parse(text: str) -> List:
    """Parse an expression.

    Parameters
    ----------
    text : str

    Returns
    -------
    List
        Its items consist of :class:`BlobExtent`, Literal and Call.

    Raises
    ------
    ExpressionError
        If the text is malformed; with the position.
    """
    words = [(m.group(), m.start()) for m in _TOKEN.finditer(text) if m.group().strip()]
    open_calls: list[tuple[str, int]] = []
    items: list[list[Node]] = [[]]
    wants_item = True
    for i, (word, start) in enumerate(words):
        follows = words[i + 1][0] if i + 1 < len(words) else ""
        name = word.strip()
        if word == ",":
            if wants_item:
                raise ExpressionError("an item is missing before ','", text, start)
            wants_item = True
        elif word == ")":
            if not open_calls:
                raise ExpressionError("')' closes nothing", text, start)
            operator, position = open_calls.pop()
            arguments = items.pop()
            if wants_item and arguments:
                raise ExpressionError("an item is missing before ')'", text, start)
            if len(arguments) != OPERATORS[operator]:
                count = OPERATORS[operator]
                raise ExpressionError(
                    f"{operator} takes {count} argument{'s'[: count - 1]}, got {len(arguments)}",
                    text,
                    position,
                )
            items[-1].append(Call(operator, arguments, text, position, start + 1))
            wants_item = False
        elif word == "(":
            if i == 0 or words[i - 1][0].strip() not in OPERATORS:
                raise ExpressionError("'(' without an operator before it", text, start)
        elif not wants_item:
            raise ExpressionError(f"a comma is missing before {name!r}", text, start)
        elif name in OPERATORS:
            if follows != "(":
                raise ExpressionError(f"the brackets of {name} are missing", text, start)
            if len(open_calls) == MAX_DEPTH:
                raise ExpressionError(
                    f"brackets are nested more than {MAX_DEPTH} deep", text, start
                )
            open_calls.append((name, start))
            items.append([])
        else:
            items[-1].append(_leaf(name, text, start + word.index(name)))
            wants_item = False
    if open_calls:
        raise ExpressionError("a bracket is never closed", text, open_calls[-1][1])
    if wants_item:
        message = "an item is missing at the end" if items[0] else "the expression is empty"
        raise ExpressionError(message, text, max(len(text) - 1, 0))
    return List(items[0], text, 0, len(text))


def _leaf(word: str, text: str, start: int) -> Node:
    span = (text, start, start + len(word))
    if _REFERENCE.fullmatch(word):
        return BlobExtent(int(word[0]), word[1], *span)
    if _INTEGER.fullmatch(word):
        value: int | float = int(word) if len(word) < 20 else _INT_MAX + 1
    elif _DECIMAL.fullmatch(word):
        # ncnn reads an integer if the digits at the start are the whole value: 2.0, but not 1e1.
        value = float(word)
        start_of_word = _INTEGER.match(word)
        if start_of_word and int(start_of_word.group()) == value:
            value = int(value)
    elif _LONG_REFERENCE.fullmatch(word):
        raise ExpressionError(
            f"{word!r} is no reference: the ids of inputs are 0 to 9", text, start
        )
    else:
        raise ExpressionError(f"{word!r} is no operator, number or extent such as 0w", text, start)
    if isinstance(value, int) and not _INT_MIN <= value <= _INT_MAX:
        raise ExpressionError("the integer does not fit 32 bits", text, start)
    return Literal(value, word, *span)


# Evaluation ------------------------------------------------------------------------------------


def eval_list(expression: str | Node, shapes: Sequence[Sequence[int] | Extents]) -> list[int]:
    """Compute the items of an expression, as ncnn's ``eval_list_expression``.

    Parameters
    ----------
    expression : str or Node
    shapes : sequence of (sequence of int, or Extents)
        The shapes of the inputs: up to four extents, outermost first and without the batch, or
        :class:`Extents` with the batch.

    Returns
    -------
    list of int
        The value of each item, in the order of the text.

    Raises
    ------
    ExpressionError
        If the text is malformed, an input is missing, or an item has no integer value.

    Examples
    --------
    >>> eval_list("-1,*(0h,2),+(1c,2)", [(3, 8, 8), (5, 4, 4)])
    [-1, 16, 7]
    """
    tree = parse(expression) if isinstance(expression, str) else expression
    blobs = [s if isinstance(s, Extents) else Extents.of(s) for s in shapes]
    items = tree.children if isinstance(tree, List) else (tree,)
    return [_truncated(_evaluate(item, blobs), item) for item in items]


@np.errstate(all="ignore")  # a literal, too, may overflow float32
def _evaluate(tree: Node, blobs: Sequence[Extents]) -> int | np.float32:
    def visit(node: Node, values: list[Any]) -> int | np.float32:
        if isinstance(node, BlobExtent):
            if node.blob >= len(blobs):
                raise node.error(f"{node.text} refers to none of the {len(blobs)} inputs")
            return getattr(blobs[node.blob], node.axis)
        if isinstance(node, Literal):
            return node.value if isinstance(node.value, int) else np.float32(node.value)
        if isinstance(node, Call):
            return _apply(node, values)
        raise node.error(f"{node.text} does not belong to ncnn's language")

    return tree.transform(visit)


def _apply(node: Call, values: list[Any]) -> int | np.float32:
    name = node.text
    are_integers = all(isinstance(value, int) for value in values)
    if name in _ROUNDINGS:
        return values[0] if are_integers else _to_integer(_ROUNDINGS[name](values[0]), node)
    if name in _BITS:
        if not are_integers:
            raise node.error(f"{name} takes integers")
        if name in ("lshift", "rshift") and not 0 <= values[1] < 32:
            raise node.error(f"{name} by {values[1]} bits is not defined")
        return _to_integer(_BITS[name](*values), node)
    if are_integers and name in _INTEGERS:
        if name == "//" and values[1] == 0:
            raise node.error("division by zero")
        return _to_integer(_INTEGERS[name](*values), node)
    floats = [np.float32(value) for value in values]
    result = (
        _remainder(floats[0], floats[1], node) if name == "remainder" else _FLOATS[name](*floats)
    )
    if result != result:
        arguments = ",".join(f"{value:g}" for value in floats)
        raise node.error(f"{name}({arguments}) has no value")
    return np.float32(result)


def _to_integer(value: Any, node: Node) -> int:
    if not _INT_MIN <= value <= _INT_MAX:  # NaN is on neither side
        raise node.error(f"{node.text} gives {value}, which is no 32-bit integer")
    return int(value)


def _truncated(value: int | np.float32, node: Node) -> int:
    return value if isinstance(value, int) else _to_integer(np.trunc(value), node)


def _remainder(a: np.float32, b: np.float32, node: Node) -> np.float32:
    rest = np.fmod(a, b)
    if a * b < 0:
        if rest == 0:
            raise node.error(
                f"ncnn gives {b:g} for remainder({a:g},{b:g}); use fmod, or operands of one sign"
            )
        rest += b
    return rest


def _round_away(x: np.float32) -> float:
    return math.copysign(math.floor(abs(float(x)) + 0.5), x) if math.isfinite(x) else float(x)


def _divide_towards_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_ROUNDINGS: dict[str, Callable[..., Any]] = {
    "trunc": np.trunc,
    "ceil": np.ceil,
    "floor": np.floor,
    "round": _round_away,
}

_BITS: dict[str, Callable[..., Any]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "lshift": lambda a, b: a << b,
    "rshift": lambda a, b: a >> b,
}

_INTEGERS: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": _divide_towards_zero,
    "max": max,
    "min": min,
    "abs": abs,
    "neg": lambda a: -a,
    "sign": lambda a: (a > 0) - (a < 0),
    "square": lambda a: a * a,
}

_FLOATS: dict[str, Callable[..., Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "//": lambda a, b: np.floor(np.divide(a, b)),
    "max": max,
    "min": min,
    "pow": np.power,
    "fmod": np.fmod,
    "atan2": np.arctan2,
    "logaddexp": np.logaddexp,
    "abs": np.abs,
    "neg": np.negative,
    "sign": np.sign,
    "square": np.square,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: np.float32(1) / np.sqrt(a),
    "reciprocal": lambda a: np.float32(1) / a,
    "exp": np.exp,
    "log": np.log,
    "log10": np.log10,
    "erf": math.erf,
    "sin": np.sin,
    "asin": np.arcsin,
    "cos": np.cos,
    "acos": np.arccos,
    "tan": np.tan,
    "atan": np.arctan,
    "sinh": np.sinh,
    "asinh": np.arcsinh,
    "cosh": np.cosh,
    "acosh": np.arccosh,
    "tanh": np.tanh,
    "atanh": np.arctanh,
}
