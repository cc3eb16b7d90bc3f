"""Evaluation of ``pnnx.Expression``: prefix tokens, read from right to left with one stack.

Brackets and commas are skipped, since every function has a fixed number of operands.
"""

from __future__ import annotations

import re

import numpy as np

from .activation import erf
from .registry import reference

BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "floor_divide": np.floor_divide,
    "remainder": np.remainder,
    "fmod": np.fmod,
    "pow": np.power,
    "atan2": np.arctan2,
    "logaddexp": np.logaddexp,
    "max": np.maximum,
    "min": np.minimum,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
    "size": lambda x, axis: np.shape(x)[axis],
}

UNARY = {
    "abs": np.abs,
    "neg": np.negative,
    "sign": np.sign,
    "square": np.square,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / np.asarray(x, np.float64),
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "erf": erf,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.round,
    "int": lambda x: np.trunc(x).astype(np.int64),
}

_WORDS = {"None": None, "True": True, "False": False}


@reference("pnnx.Expression")
def evaluate(*operands, expr):
    """Evaluate the expression `expr`, whose operands are ``@k``."""
    stack: list = []
    for token in reversed(re.findall(r"[^(),\[\]]+|[\[\]]", expr)):
        if token == "]":
            stack.append("]")
        elif token == "[":
            items = []
            while not isinstance(stack[-1], str):
                items.append(stack.pop())
            stack[-1] = tuple(items)
        elif token.startswith("@"):
            stack.append(operands[int(token[1:])])
        elif token in BINARY:
            first, second = stack.pop(), stack.pop()
            stack.append(BINARY[token](first, second))
        elif token in UNARY:
            stack.append(UNARY[token](stack.pop()))
        elif token in _WORDS:
            stack.append(_WORDS[token])
        else:
            stack.append(_literal(token))
    if len(stack) != 1:
        raise ValueError(f"{len(stack)} values are left over in {expr}")
    return stack[0]


def _literal(token: str) -> int | float | complex | str:
    """Read a number, or a word that is an argument of the operator to its left."""
    kinds = (complex,) if re.fullmatch(r".*[0-9]j", token) else (int, float)
    for kind in kinds:
        try:
            return kind(token.replace("+-", "-"))
        except ValueError:
            continue
    return token
