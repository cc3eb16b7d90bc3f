"""PyTorch's rules for the dtype of a result.

Operands have three priorities: arrays with axes, 0-d arrays, Python numbers.  An operand of a lower
priority changes the result only if its category (bool, integer, float, complex) is higher than that
of all operands of higher priority.  So ``float32_array * 2.0`` is float32, and
``int64_array * 2.0`` becomes float32, the default.

Source: torch.result_type and c10/core/ScalarType.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kuiper.errors import ExpressionError
from kuiper.expression.functions import EXTENDED, Function
from kuiper.ir.dtypes import DTYPES

__all__ = ["CASTS", "is_number", "promote", "result_dtype", "result_type"]

BOOL = np.dtype(np.bool_)
INT64 = np.dtype(np.int64)
FLOAT32 = np.dtype(np.float32)
COMPLEX64 = np.dtype(np.complex64)

# A cast is the name of one of PyTorch's dtypes; without brackets the same word is the dtype itself.
CASTS: dict[str, np.dtype] = {
    name: dtype.value
    for dtype in DTYPES.values()
    if dtype.name not in ("bf16", "c32")
    for name in (dtype.torch, f"torch.{dtype.value.name}")
}


def is_number(value: Any) -> bool:
    """Tell whether `value` is a Python number; numpy's scalars count as 0-d arrays."""
    return isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic)


def promote(a: np.dtype, b: np.dtype) -> np.dtype:
    """Return the common dtype of two operands of equal priority.

    PyTorch keeps the float of a float and an integer, where numpy widens it (int32 + float32 is
    float64).
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
    """Return the dtype in which PyTorch combines `values`.

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
    assert result is not None  # `values` is not empty
    return result


def result_dtype(name: str, values: Sequence[Any]) -> tuple[np.dtype, np.dtype]:
    """Return the dtypes of a function's computation and of its result.

    Parameters
    ----------
    name : str
        A cast or an elementwise function; not ``size``.
    values : sequence
        Its arguments, at least one of which is not a Python number.

    Raises
    ------
    ExpressionError
        If PyTorch does not define the function for the dtype.
    """
    if name in CASTS:
        return CASTS[name], CASTS[name]
    if name == "int":
        return INT64, INT64
    function = EXTENDED[name]
    dtype = result_type(values[:1] if function.parameters else values)
    if dtype.kind in "biu" and "i" not in function.kinds:
        dtype = FLOAT32
    if name == "square" and dtype.kind == "b":
        dtype = INT64
    if dtype.kind not in function.kinds:
        raise ExpressionError(_refusal(function, dtype))
    if name == "abs" and dtype.kind == "c":
        return dtype, np.zeros(0, dtype).real.dtype
    return dtype, dtype


def _refusal(function: Function, dtype: np.dtype) -> str:
    if dtype.kind == "b":
        return f"{function.name} is not defined for bool tensors"
    if "f" not in function.kinds:
        return f"{function.name} takes integers or bools, got {dtype}"
    return f"{function.name} is not defined for complex numbers"
