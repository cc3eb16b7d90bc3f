"""The functions of PNNX's language on Python numbers: ordinary Python arithmetic.

Such numbers are shapes, bounds and factors.  An undefined result (division by zero, the root of a
negative number, an integer of more than 64 bits) is an error, since a shape cannot be infinite.
"""

from __future__ import annotations

import cmath
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from kuiper.errors import ExpressionError
from kuiper.expression.promotion import CASTS

__all__ = ["apply_to_numbers"]

_INT64_BITS = 63


def apply_to_numbers(name: str, values: list[Any], otherwise: Callable[..., Any]) -> Any:
    """Apply a function to Python numbers.

    Parameters
    ----------
    name : str
    values : list of (bool, int, float or complex)
    otherwise : callable
        Computes the functions that this module lacks.

    Raises
    ------
    ExpressionError
        If the result is undefined or an integer of more than 64 bits.
    """
    function = _FUNCTIONS.get(name, otherwise)
    try:
        result = function(*values)
    except ZeroDivisionError:
        raise ExpressionError(f"division by zero in {_written(name, values)}") from None
    except (ValueError, OverflowError, TypeError) as error:
        raise ExpressionError(f"{_written(name, values)} has no value: {error}") from None
    if isinstance(result, int) and not -(1 << _INT64_BITS) <= result < 1 << _INT64_BITS:
        raise ExpressionError(f"{_written(name, values)} does not fit 64 bits")
    return result


def _written(name: str, values: list[Any]) -> str:
    return f"{name}({','.join(map(repr, values))})"


def _function(name: str) -> Callable[..., Any]:
    """Return a function of `math`, which uses `cmath` for complex numbers."""
    real, cplx = getattr(math, name), getattr(cmath, name, None)

    def call(x: Any) -> Any:
        return cplx(x) if isinstance(x, complex) and cplx is not None else real(x)

    return call


def _fmod(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        rest = abs(a) % abs(b)
        return -rest if a < 0 else rest
    if b == 0:
        raise ZeroDivisionError
    return math.fmod(a, b)


def _pow(a: Any, b: Any) -> Any:
    # Check first: Python would compute 9 ** 9 ** 9 for hours.
    if isinstance(a, int) and isinstance(b, int) and abs(a) > 1:
        if b > _INT64_BITS:
            raise OverflowError("the integer does not fit 64 bits")
        if b < 0:
            return float(a) ** b
    return a**b


def _lshift(a: Any, b: Any) -> Any:
    if a and b > _INT64_BITS:
        raise OverflowError("the integer does not fit 64 bits")
    return a << b


def _maximum(a: Any, b: Any) -> Any:
    return math.nan if a != a or b != b else max(a, b)


def _minimum(a: Any, b: Any) -> Any:
    return math.nan if a != a or b != b else min(a, b)


def _logaddexp(a: Any, b: Any) -> Any:
    return float(np.logaddexp(float(a), float(b)))


def _sign(x: Any) -> Any:
    return type(x)((x > 0) - (x < 0)) if not isinstance(x, bool) else x


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "fmod": _fmod,
    "pow": _pow,
    "atan2": math.atan2,
    "logaddexp": _logaddexp,
    "max": _maximum,
    "min": _minimum,
    "maximum": _maximum,
    "minimum": _minimum,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "lshift": _lshift,
    "rshift": operator.rshift,
    "abs": abs,
    "neg": operator.neg,
    "sign": _sign,
    "square": lambda x: x * x,
    "rsqrt": lambda x: 1 / _function("sqrt")(x),
    "reciprocal": lambda x: 1 / x,
    "log10": _function("log10"),
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "int": int,
}
_FUNCTIONS |= {
    name: _function(name)
    for name in (
        "sqrt", "exp", "expm1", "log", "log1p", "erf", "sin", "cos", "tan", "asin", "acos", "atan",
        "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    )
}  # fmt: skip
_TYPES = {"b": bool, "i": int, "u": int, "f": float, "c": complex}
_FUNCTIONS |= {name: _TYPES[dtype.kind] for name, dtype in CASTS.items()}
