"""User-defined functions of expressions: :func:`function` names a function of numpy arrays."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from kuiper.errors import KuiperError
from kuiper.expression import forget_parsed
from kuiper.expression.evaluation import describe
from kuiper.expression.functions import CUSTOM, EXTENDED
from kuiper.expression.promotion import CASTS, is_number
from kuiper.expression.syntax import Tokenizer
from kuiper.expression.tokens import TokenType
from kuiper.expression.tree import CustomCall
from kuiper.ir.dtypes import from_numpy

__all__ = ["CustomFunction", "function"]

F = TypeVar("F", bound=Callable[..., Any])

_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*", re.ASCII)
# Words with another meaning in the language; shape arithmetic depends on the functions among them.
_RESERVED = frozenset(["None", "True", "False", "int", "size", *CASTS])

# The number of arguments that `*args` takes.
_MANY = 1000


class CustomFunction:
    """A function of users; it has the attributes of a built-in one that the parser reads.

    Attributes
    ----------
    name : str
    function : callable
    min_arity, max_arity : int
        Number of positional arguments.
    """

    __slots__ = ("function", "max_arity", "min_arity", "name")

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function = name, function
        self.min_arity, self.max_arity = _arity(name, function)

    @property
    def arity(self) -> str:
        """The number of arguments in words, for messages."""
        least, most = self.min_arity, self.max_arity
        if most == _MANY:
            return f"at least {least} argument{'s' * (least != 1)}"
        if least != most:
            return f"{least} to {most} arguments"
        return f"{least} argument{'s' * (least != 1)}"

    def __call__(self, node: CustomCall, values: Sequence[Any]) -> Any:
        """Return the result for numbers and arrays; errors point at the node.

        Raises
        ------
        ExpressionError
            If an argument is neither a number nor an array, the function raises an exception, or
            its result is no tensor or not the planned one.
        """
        for value in values:
            if not is_number(value) and not isinstance(value, np.ndarray | np.generic):
                raise node.error(f"{self.name} takes numbers and arrays, got {describe(value)}")
        try:
            result = self.function(*values)
        except MemoryError:
            raise
        except Exception as error:
            raise node.error(
                f"the function {self.name} raised {type(error).__name__}: {error}"
            ) from error
        if all(map(is_number, values)) and is_number(_plain(result)):
            return _plain(result)
        if not isinstance(result, np.ndarray | np.generic):
            raise node.error(
                f"the function {self.name} returned {_described(result)}, expected an array"
            )
        array = np.asarray(result)
        try:
            from_numpy(array.dtype)
        except KeyError:
            raise node.error(
                f"the function {self.name} returned an array of {array.dtype}, which no tensor has"
            ) from None
        if node.planned is not None and node.planned != (array.shape, array.dtype):
            shape, dtype = node.planned
            raise node.error(
                f"the function {self.name} returned {array.dtype} {array.shape}, but {dtype} "
                f"{shape} for zeros while planning; shapes that depend on values need "
                "@kuiper.operator(..., data_dependent=True)"
            )
        return array


def _plain(value: Any) -> Any:
    """Return a scalar of numpy as a Python number."""
    return value.item() if isinstance(value, np.generic) else value


def _described(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _arity(name: str, function: Callable[..., Any]) -> tuple[int, int]:
    """Return the least and the greatest number of positional arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions in C, and numpy's before 2.4
        n_in = getattr(function, "nin", None)
        if n_in is None:
            raise KuiperError(
                f"{_location(function)} has no signature, which the number of arguments of the "
                f"expression function {name!r} follows; wrap it in a function that has one"
            ) from None
        return n_in, n_in
    if isinstance(function, np.ufunc):  # their other arguments are options
        return function.nin, function.nin
    least = most = 0
    for parameter in parameters:
        required = parameter.default is parameter.empty
        if parameter.kind is parameter.VAR_POSITIONAL:
            most = _MANY
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            least, most = least + required, max(most, min(most + 1, _MANY))
        elif parameter.kind is parameter.KEYWORD_ONLY and required:
            raise KuiperError(
                f"{_location(function)} needs the keyword {parameter.name!r}, but an expression "
                f"passes arguments by position alone; give it a default"
            )
    if most == 0:
        raise KuiperError(
            f"{_location(function)} takes no arguments; an expression function takes at least one"
        )
    return least, most


def function(name: str, *, replace: bool = False) -> Callable[[F], F]:
    """Define a function of expressions by a function of numpy arrays.

    Parameters
    ----------
    name : str
        In the expression: letters, digits and underscores, in parts that dots separate.
    replace : bool, default=False
        Whether it may replace another function of this name, or one of the language, such as
        ``relu``.  Models loaded before use the new function in the plans that they make from then
        on.  The operators of kuiper that compute such a function keep their own.

    Returns
    -------
    callable
        A decorator for a function ``f(*values)`` that returns one array.  Tensors reach it as
        arrays that it must not write to, numbers as Python numbers.  Its positional parameters,
        with their defaults, give the number of arguments.  Planning calls it on arrays of zeros to
        learn the shape and the type of its result, which may not depend on values.  It must be
        pure: constant arguments are evaluated once.  An exception that it raises is the cause of
        an OperatorError that names the operator, or of an ExpressionError outside of a model.

    Raises
    ------
    KuiperError
        From the decorator, if `name` is no name or a word of the language, if the function has no
        positional arguments or a required keyword, or if there is a function of the name already
        and `replace` is false.

    Examples
    --------
    >>> import numpy as np, kuiper
    >>> @kuiper.expression.function("docs.swish")
    ... def swish(x, beta=1.0):
    ...     return x / (1 + np.exp(-beta * x))
    >>> kuiper.expression.compile("docs.swish(@0,2)")(np.zeros(2, np.float32))
    array([0., 0.], dtype=float32)
    """
    if not isinstance(name, str) or not _is_name(name):
        raise KuiperError(
            f"{name!r} is no name of an expression function; expected letters, digits, '_' and "
            "'.', and no digit first"
        )
    if name in _RESERVED:
        raise KuiperError(
            f"{name!r} is a word of the language of expressions, which no function may replace"
        )

    def register(defined: F) -> F:
        if not callable(defined):
            raise KuiperError(f"{defined!r} is no function, so it cannot be {name!r}")
        new = CustomFunction(name, defined)
        first = CUSTOM.get(name)
        if not replace and (name in EXTENDED if first is None else first.function is not defined):
            owner = (
                "the language of expressions has a function"
                if first is None
                else f"{_location(first.function)} is the function"
            )
            raise KuiperError(
                f"{owner} {name!r}: {_location(defined)} would replace it; pass "
                f"kuiper.expression.function({name!r}, replace=True) if it shall, or choose "
                "another name"
            )
        CUSTOM[name] = new
        forget_parsed()
        return defined

    return register


def _is_name(text: str) -> bool:
    tokens = Tokenizer(text).tokens if _NAME.fullmatch(text) else ()
    # Some that consist of letters are numbers: inf, nanj.
    return len(tokens) == 1 and tokens[0].type is TokenType.NAME


def _location(function: Callable[..., Any]) -> str:
    """Return the name of a function, and its file and line if it is written in Python."""
    name = getattr(function, "__qualname__", repr(function))
    code = getattr(function, "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"
