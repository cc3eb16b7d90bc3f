"""Tokens: the words of an expression, with their positions in the text."""

from __future__ import annotations

import enum
from typing import NamedTuple

__all__ = ["Token", "TokenType"]


class TokenType(enum.Enum):
    """The lexical class of a token; the parser interprets names."""

    REFERENCE = "reference"  # @0
    INTEGER = "integer"  # -1
    FLOAT = "float"  # 1.000000e-5, inf, nan.0
    COMPLEX = "complex"  # 1.2e+00-9.0e-01j
    NAME = "name"  # add, torch.float, True, ij
    LEFT_PARENTHESIS = "("
    RIGHT_PARENTHESIS = ")"
    LEFT_BRACKET = "["
    RIGHT_BRACKET = "]"
    COMMA = ","

    def __repr__(self) -> str:
        return f"TokenType.{self.name}"


class Token(NamedTuple):
    """One token.

    Attributes
    ----------
    type : TokenType
    start, end : int
        The token is ``text_of_the_expression[start:end]``.
    text : str
    """

    type: TokenType
    start: int
    end: int
    text: str
