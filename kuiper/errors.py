"""The one exception tree of kuiper.

Everything that kuiper raises on purpose derives from :class:`KuiperError`.
A message says where (file, line, operator name and type), what was found,
what was expected and, where it is known, what to do.
"""

from __future__ import annotations

__all__ = [
    "ExpressionError",
    "GraphError",
    "InputError",
    "KuiperError",
    "MissingPackageError",
    "ModelFormatError",
    "OperatorError",
    "ShapeError",
    "UnsupportedOperatorError",
]


class KuiperError(Exception):
    """Base class of every error that kuiper raises on purpose."""


class ModelFormatError(KuiperError, ValueError):
    """A ``.param`` or ``.bin`` file is damaged, truncated or not a PNNX file."""


class GraphError(KuiperError, ValueError):
    """A graph breaks one of its rules: a cycle, two producers, a dangling operand."""


class OperatorError(KuiperError, ValueError):
    """An attribute or operand of one operator has a wrong type or value."""


class ShapeError(OperatorError):
    """The shapes or dtypes that reach an operator do not fit it."""


class UnsupportedOperatorError(KuiperError, NotImplementedError):
    """A model holds operators that kuiper has no record for; all are listed."""


class MissingPackageError(KuiperError, ImportError):
    """Something needs a package that kuiper itself does not; the message says which."""


class InputError(KuiperError, ValueError):
    """An array handed to a model has the wrong name, count, dtype, rank or shape."""


class ExpressionError(KuiperError, ValueError):
    """An expression is malformed, or its evaluation meets values it cannot take.

    Parameters
    ----------
    message : str
        What is wrong.
    text : str, optional
        The expression; shown under the message with a caret below `position`.
    position : int, optional
        Zero-based offset into `text`.
    """

    def __init__(self, message: str, text: str | None = None, position: int | None = None) -> None:
        self.message = message
        self.text = text
        self.position = position
        super().__init__(message if text is None else self._with_caret(text))

    def _with_caret(self, text: str) -> str:
        if self.position is None:
            return f"{self.message}\n  {text}"
        # Long expressions are cut to a window, so that the caret stays on the screen.
        start = max(0, self.position - 60)
        window = text[start : self.position + 60].expandtabs(1).replace("\n", " ")
        caret = " " * (self.position - start) + "^"
        return f"{self.message} at column {self.position + 1}\n  {window}\n  {caret}"


def unforeseen(where: str, error: Exception) -> OperatorError:
    """Return the error for arguments that a record does not refuse but cannot take either.

    A file may say anything; who loads it is promised errors of this package, whatever it says.
    """
    return OperatorError(
        f"{where}: cannot be computed with its arguments ({type(error).__name__}: {error})"
    )
