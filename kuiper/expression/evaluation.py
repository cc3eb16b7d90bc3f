"""Evaluation of an expression on values: numbers, numpy arrays, None, strings and lists.

The semantics are PyTorch's: promotion with weak numbers, true division, half-to-even rounding, the
sign rules of ``remainder`` and ``fmod``, and NaN propagation in ``max`` and ``min``.  float16 is
computed in float32 and rounded once.  The planner evaluates shapes with this module; plans evaluate
tensors without a kernel.  float32 uses :mod:`kuiper.expression.lowering`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from kuiper.errors import ExpressionError
from kuiper.expression.functions import EXTENDED, Function
from kuiper.expression.promotion import CASTS, is_number, result_dtype
from kuiper.expression.tree import Call, CustomCall, Literal, Node, Ref

__all__ = ["apply", "evaluate", "size"]


def evaluate(tree: Node, operands: Sequence[Any]) -> Any:
    """Compute an expression.

    Parameters
    ----------
    tree : Node
    operands : sequence
        The values of ``@k``: Python numbers, bools, None, strings, lists of these, or arrays.

    Returns
    -------
    int, float, complex, bool, None, str, numpy.ndarray or list
        Functions of arrays return arrays, possibly 0-d.

    Raises
    ------
    ExpressionError
        If an operand is missing, a function does not accept its arguments, shapes do not broadcast,
        or the result is undefined.  The message has the position in the text.
    """

    def visit(node: Node, values: list[Any]) -> Any:
        if isinstance(node, Literal):
            return node.value
        if isinstance(node, Ref):
            return operand(node, operands)
        if isinstance(node, CustomCall):
            return node.function(node, values)
        return call(node, values) if isinstance(node, Call) else values

    return tree.transform(visit)


def operand(node: Ref, operands: Sequence[Any]) -> Any:
    """Return the value of a reference."""
    if node.index >= len(operands):
        raise node.error(f"@{node.index} refers to none of the {len(operands)} operands")
    return operands[node.index]


def call(node: Call, values: list[Any]) -> Any:
    """Apply a function; its errors point at the node."""
    try:
        return apply(node.name, values)
    except ExpressionError as error:
        raise node.error(error.message) from None


def apply(name: str, values: list[Any]) -> Any:
    """Apply a function to values; see :func:`evaluate`."""
    if name == "size":
        return size(*values)
    for value in values:
        if not is_number(value) and not isinstance(value, (np.ndarray, np.generic)):
            raise ExpressionError(f"{name} takes numbers and arrays, got {describe(value)}")
    if all(map(is_number, values)):
        from kuiper.expression.scalars import apply_to_numbers

        return apply_to_numbers(name, values, partial(_apply_to_number, name))
    if name == "int":
        if values[0].size != 1:
            raise ExpressionError(f"int takes one element, got shape {values[0].shape}")
        return apply("int", [values[0].item()])
    dtype, result = result_dtype(name, values)
    if name == "pow" and dtype.kind in "iu" and is_number(values[1]) and values[1] < 0:
        raise ExpressionError("pow of integers takes no negative exponent")
    if name in CASTS:
        with np.errstate(all="ignore"):
            return np.asarray(values[0]).astype(result)
    return _apply_to_arrays(EXTENDED[name], values, dtype, result)


def _apply_to_number(name: str, *values: Any) -> Any:
    return apply(name, [np.asarray(float(values[0])), *values[1:]]).item()


def _apply_to_arrays(
    function: Function, values: list[Any], dtype: np.dtype, result: np.dtype
) -> np.ndarray:
    """Compute a function in `dtype` (float16 in float32), and return it as `result`."""
    count = 1 if function.parameters else len(values)
    arrays, parameters = values[:count], values[count:]
    if not all(map(is_number, parameters)):
        raise ExpressionError(f"the parameters of {function.name} must be numbers")
    compute = np.dtype(np.float32) if dtype == np.float16 else dtype
    assert function.array is not None  # only int and size have none
    try:
        with np.errstate(all="ignore"):
            arrays = [convert(value, dtype).astype(compute, copy=False) for value in arrays]
            return np.asarray(function.array(*arrays, *parameters)).astype(result, copy=False)
    except ExpressionError:
        raise
    except ZeroDivisionError:
        raise ExpressionError("integer division by zero") from None
    except ValueError:
        shapes = " and ".join(str(np.shape(value)) for value in arrays)
        raise ExpressionError(f"{function.name}: shapes {shapes} do not broadcast") from None


def convert(value: Any, dtype: np.dtype) -> np.ndarray:
    """Convert an argument to the dtype of the computation; integers wrap, as in PyTorch."""
    if isinstance(value, int) and dtype.kind in "iu":
        if not -(1 << 63) <= value < 1 << 63:
            raise ExpressionError(f"{value} has more than 64 bits")
        return np.asarray(value, np.int64).astype(dtype)
    return np.asarray(value).astype(dtype, copy=False)


def size(value: Any, axis: Any = None) -> Any:
    """Return one extent of a tensor, or the list of all.

    Parameters
    ----------
    value
        Anything with `shape`.
    axis : int or 0-d array, optional
        Negative axes count from the end.
    """
    shape = getattr(value, "shape", None)
    if shape is None:
        raise ExpressionError(f"size takes a tensor, got {describe(value)}")
    if axis is None:
        return list(shape)
    if isinstance(axis, (np.ndarray, np.generic)) and axis.size == 1:
        axis = axis.item()
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise ExpressionError(f"the axis of size must be an integer, got {describe(axis)}")
    if not -len(shape) <= axis < len(shape):
        raise ExpressionError(f"axis {axis} is out of range for shape {tuple(shape)}")
    return shape[axis]


def describe(value: Any) -> str:
    """Describe a value for a message."""
    if value is None:
        return "None"
    if isinstance(value, str):
        return f"the word {value!r}"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__} {value!r}" if shape is None else f"a tensor of shape {shape}"
