"""PyTorch's rules for the dtype of a result.

Three kinds of operands count differently: arrays with axes most, 0-d arrays less, Python numbers
least.  An operand of a lesser kind changes the result only where its category (bool, integer,
float, complex) is above that of the greater kinds; so ``float32_array * 2.0`` stays float32 and
``int64_array * 2.0`` becomes float32, the default.

Source: torch.result_type and c10/core/ScalarType.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kuiper.errors import ExpressionError
from kuiper.expression.vocabulary import CASTS, PARAMETRIC, words
from kuiper.ir.dtypes import DTYPES

__all__ = ["is_number", "promote", "result_dtype", "result_type"]

BOOL = np.dtype(np.bool_)
INT64 = np.dtype(np.int64)
FLOAT32 = np.dtype(np.float32)
COMPLEX64 = np.dtype(np.complex64)

# Operators whose result is a float even for integers.
_FLOAT = frozenset(
    words(
        "div atan2 logaddexp sqrt rsqrt reciprocal exp expm1 log log10 log1p erf sin cos tan "
        "asin acos atan sinh cosh tanh asinh acosh atanh sigmoid logsigmoid hardsigmoid silu "
        "hardswish mish gelu gelu_tanh elu celu selu softplus softsign tanhshrink leaky_relu "
        "hardshrink softshrink log2 exp2 hypot copysign xlogy"
    )
)

_BITWISE = frozenset(words("and or xor lshift rshift"))

# What PyTorch refuses for bool tensors.
_NOT_BOOL = frozenset(
    words("sub neg abs floor ceil trunc round floor_divide remainder fmod lshift rshift relu")
)

_COMPLEX = frozenset(
    words(
        "add sub mul div pow neg abs square sqrt rsqrt reciprocal exp expm1 log log10 log1p "
        "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid silu tanhshrink "
        "log2 exp2"
    )
)


def is_number(value: Any) -> bool:
    """Tell whether `value` is a Python number; numpy's scalars count as 0-d arrays."""
    return isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic)


def promote(a: np.dtype, b: np.dtype) -> np.dtype:
    """Return the common dtype of two arrays of equal kind.

    numpy widens where a float cannot hold every integer (int32 + float32 is float64); PyTorch keeps
    the float.
    """
    if a.kind in "biu" and b.kind in "biu":
        return np.promote_types(a, b)
    if a.kind in "biu":
        return b
    if b.kind in "biu":
        return a
    return np.promote_types(a, b)


def _number_dtype(value: Any) -> np.dtype:
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        return INT64
    return COMPLEX64 if isinstance(value, complex) else FLOAT32


def _combine(higher: np.dtype | None, lower: np.dtype | None) -> np.dtype | None:
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.kind == "c":
        return higher
    if higher.kind == "f":
        return promote(higher, COMPLEX64) if lower.kind == "c" else higher
    if higher.kind == "b" or lower.kind in "fc":
        return promote(higher, lower)
    return higher


def result_type(values: Sequence[Any]) -> np.dtype:
    """Return the dtype that PyTorch computes in when `values` meet.

    Parameters
    ----------
    values : sequence
        Python numbers, and anything with `shape` and `dtype`.
    """
    by_kind: list[np.dtype | None] = [None, None, None]  # arrays with axes, 0-d arrays, numbers
    for value in values:
        if is_number(value):
            kind, dtype = 2, _number_dtype(value)
        else:
            kind, dtype = (0 if len(value.shape) else 1), np.dtype(value.dtype)
        known = by_kind[kind]
        by_kind[kind] = dtype if known is None else promote(known, dtype)
    result = _combine(by_kind[0], _combine(by_kind[1], by_kind[2]))
    assert result is not None  # there is a value
    return result


def result_dtype(name: str, values: Sequence[Any]) -> tuple[np.dtype, np.dtype]:
    """Return the dtypes that an operator computes in and answers in.

    Parameters
    ----------
    name : str
        An operator over arrays; not ``size``.
    values : sequence
        Its arguments, at least one of which is no Python number.

    Raises
    ------
    ExpressionError
        Where PyTorch does not define the operator for the dtype.
    """
    if name in CASTS:
        dtype = DTYPES[CASTS[name]].value
        return dtype, dtype
    if name == "int":
        return INT64, INT64
    dtype = result_type(values[:1] if name in PARAMETRIC else values)
    if name in _FLOAT and dtype.kind in "biu":
        dtype = FLOAT32
    if name == "square" and dtype.kind == "b":
        dtype = INT64
    if name in _BITWISE and dtype.kind not in "biu":
        raise ExpressionError(f"{name} takes integers or bools, got {dtype}")
    if name in _NOT_BOOL and dtype.kind == "b":
        raise ExpressionError(f"{name} is not defined for bool tensors")
    if dtype.kind == "c" and name not in _COMPLEX:
        raise ExpressionError(f"{name} is not defined for complex numbers")
    if name == "abs" and dtype.kind == "c":
        return dtype, np.zeros(0, dtype).real.dtype
    return dtype, dtype
