"""The exceptions of kuiper, all derived from :class:`KuiperError`.

A message says where (file, line, operator name and type), what was found, what was expected and,
if known, what to do.
"""

from __future__ import annotations

__all__ = [
    "DatasetError",
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
    """Base class of all errors that kuiper raises deliberately."""


class ModelFormatError(KuiperError, ValueError):
    """A ``.param`` or ``.bin`` file is damaged, truncated or not a PNNX file."""


class GraphError(KuiperError, ValueError):
    """A graph breaks one of its rules: a cycle, two producers, a dangling operand."""


class OperatorError(KuiperError, ValueError):
    """An attribute or operand of one operator has a wrong type or value."""


class ShapeError(OperatorError):
    """The shapes or dtypes that reach an operator do not fit it."""


class UnsupportedOperatorError(KuiperError, NotImplementedError):
    """A model has operators without a record in kuiper; the message lists all of them."""


class MissingPackageError(KuiperError, ImportError):
    """An optional package is not installed; the message names it."""


class InputError(KuiperError, ValueError):
    """An array handed to a model has the wrong name, count, dtype, rank or shape."""


class DatasetError(KuiperError, ValueError):
    """A data set cannot be read as asked, or a folder holds results of another run."""


class ExpressionError(KuiperError, ValueError):
    """An expression is malformed, or its evaluation meets invalid values.

    Parameters
    ----------
    message : str
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
        # A window of 120 characters keeps the caret on the screen.
        start = max(0, self.position - 60)
        window = text[start : self.position + 60].expandtabs(1).replace("\n", " ")
        caret = " " * (self.position - start) + "^"
        return f"{self.message} at column {self.position + 1}\n  {window}\n  {caret}"


def unforeseen(where: str, error: Exception) -> OperatorError:
    """Wrap an exception that a record raised on arguments which it did not reject.

    A file may contain any arguments, and loading it only raises errors of this package.
    """
    return OperatorError(
        f"{where}: cannot be computed with its arguments ({type(error).__name__}: {error})"
    )
