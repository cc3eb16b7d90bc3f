"""Evaluation of an expression on values: numbers, numpy arrays, None, strings and lists.

Semantics are PyTorch's: promotion with weak numbers, true division, half-to-even rounding, the
sign rules of ``remainder`` and ``fmod``, NaN that wins in ``max`` and ``min``.  float16 is computed
in float32 and rounded once.  Used for shapes when a plan is made, and at run time for tensors that
are not float32; float32 tensors go through :mod:`kuiper.expression.lowering`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kuiper.errors import ExpressionError
from kuiper.expression.promotion import is_number, result_dtype
from kuiper.expression.tree import Call, Literal, Node, Ref
from kuiper.expression.vocabulary import CASTS, PARAMETRIC

__all__ = ["apply", "evaluate", "size"]


def evaluate(tree: Node, operands: Sequence[Any]) -> Any:
    """Compute an expression.

    Parameters
    ----------
    tree : Node
    operands : sequence
        What ``@k`` stands for: Python numbers, bools, None, strings, lists of these, arrays.

    Returns
    -------
    int, float, complex, bool, None, str, numpy.ndarray or list
        Results of array operators are arrays, 0-d ones included.

    Raises
    ------
    ExpressionError
        With the place in the text, where an operand is missing, an operator does not take its
        arguments, shapes do not broadcast, or there is no value.
    """
    stack: list[Any] = []
    for node in tree.postorder():
        if isinstance(node, Literal):
            stack.append(node.value)
        elif isinstance(node, Ref):
            stack.append(operand(node, operands))
        else:
            count = len(node.children)
            values = stack[len(stack) - count :]
            del stack[len(stack) - count :]
            stack.append(call(node, values) if isinstance(node, Call) else values)
    return stack[0]


def operand(node: Ref, operands: Sequence[Any]) -> Any:
    """Look up a reference."""
    if node.index >= len(operands):
        raise node.error(f"@{node.index} refers to none of the {len(operands)} operands")
    return operands[node.index]


def call(node: Call, values: list[Any]) -> Any:
    """Apply an operator, adding the place to its errors."""
    try:
        return apply(node.name, values)
    except ExpressionError as error:
        raise node.error(error.message) from None


def apply(name: str, values: list[Any]) -> Any:
    """Apply an operator to values; see :func:`evaluate`."""
    if name == "size":
        return size(*values)
    for value in values:
        if not is_number(value) and not isinstance(value, (np.ndarray, np.generic)):
            raise ExpressionError(f"{name} takes numbers and arrays, got {describe(value)}")
    if all(map(is_number, values)):
        from kuiper.expression.scalars import apply_to_numbers

        return apply_to_numbers(name, values)
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
    compute = np.dtype(np.float32) if dtype == np.float16 else dtype
    function = _FUNCTIONS[name]
    parameters = [v for v in values[1:] if name in PARAMETRIC]
    arrays = values[:1] if name in PARAMETRIC else values
    if name in PARAMETRIC and not all(map(is_number, parameters)):
        raise ExpressionError(f"the parameters of {name} must be numbers")
    try:
        with np.errstate(all="ignore"):
            arrays = [convert(value, dtype).astype(compute, copy=False) for value in arrays]
            return np.asarray(function(*arrays, *parameters)).astype(result, copy=False)
    except ExpressionError:
        raise
    except ValueError:
        shapes = " and ".join(str(np.shape(value)) for value in arrays)
        raise ExpressionError(f"{name}: shapes {shapes} do not broadcast") from None


def convert(value: Any, dtype: np.dtype) -> np.ndarray:
    """Bring an argument to the dtype that is computed in; integers wrap, as in PyTorch."""
    if isinstance(value, int) and dtype.kind in "iu":
        if not -(1 << 63) <= value < 1 << 63:
            raise ExpressionError(f"{value} has more than 64 bits")
        return np.asarray(value, np.int64).astype(dtype)
    return np.asarray(value).astype(dtype, copy=False)


def size(value: Any, axis: Any = None) -> Any:
    """Return one extent of an array, or all.

    Parameters
    ----------
    value
        Anything with `shape`.
    axis : int or 0-d array, optional
        Negative ones count from the end.
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
    """Name a value's kind for a message."""
    if value is None:
        return "None"
    if isinstance(value, str):
        return f"the word {value!r}"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__} {value!r}" if shape is None else f"a tensor of shape {shape}"


# Functions over arrays of one dtype ------------------------------------------------------------


def _refuse_zero(divisor: np.ndarray) -> None:
    if divisor.dtype.kind in "iu" and not divisor.all():
        raise ExpressionError("integer division by zero")


def _floor_divide(a: Any, b: Any) -> Any:
    _refuse_zero(b)
    return np.floor_divide(a, b)


def _remainder(a: Any, b: Any) -> Any:
    _refuse_zero(b)
    if a.dtype.kind in "iu":
        return np.remainder(a, b)
    # numpy gives an exact remainder the sign of the divisor; PyTorch leaves the dividend's.
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


def _fmod(a: Any, b: Any) -> Any:
    _refuse_zero(b)
    return np.fmod(a, b)


def _pow(a: Any, b: Any) -> Any:
    if a.dtype.kind not in "iu" or b.dtype.kind == "u" or (b >= 0).all():
        return np.power(a, b)
    # 1 / a ** n truncated: only 1 and -1 leave anything.
    odd = (b & 1).astype(bool)
    reciprocal = np.where(a == 1, 1, np.where(a == -1, np.where(odd, -1, 1), 0))
    return np.where(b < 0, reciprocal, np.power(a, np.maximum(b, 0)))


def _sign(x: Any) -> Any:
    # PyTorch gives 0 for NaN, and +0 for -0.
    return x if x.dtype.kind == "b" else (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


def _rounding(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a rounding function that leaves integers alone."""
    return lambda x: x if x.dtype.kind in "iu" else function(x)


_erf_object = np.frompyfunc(math.erf, 1, 1)


def _erf(x: Any) -> Any:
    return np.asarray(_erf_object(x.astype(np.float64)), dtype=np.float64)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _relu(x: Any) -> Any:
    return np.where(x < 0, x.dtype.type(0), x)  # keeps NaN and -0


def _clamp(x: Any, low: Any, high: Any) -> Any:
    return np.minimum(np.maximum(x, low), high)


def _gelu(x: Any) -> Any:
    return x * 0.5 * (1 + _erf(x * math.sqrt(0.5)))


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _elu(x: Any, alpha: Any = 1.0) -> Any:
    return np.where(x <= 0, alpha * np.expm1(np.minimum(x, 0)), x)


def _celu(x: Any, alpha: Any = 1.0) -> Any:
    return np.where(x <= 0, alpha * np.expm1(np.minimum(x, 0) / alpha), x)


# Self-normalising networks fix these two constants (Klambauer et al. 2017, appendix).
_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805


def _softplus(x: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Any:
    return np.where(x * beta > threshold, x, np.logaddexp(0, x * beta) / beta)


def _softshrink(x: Any, bound: Any = 0.5) -> Any:
    return np.where(x > bound, x - bound, np.where(x < -bound, x + bound, x * 0))


def _hardshrink(x: Any, bound: Any = 0.5) -> Any:
    return np.where((x >= -bound) & (x <= bound), x.dtype.type(0), x)


def _inf_to(x: Any, high: Any, low: Any) -> Any:
    return np.where(
        np.isposinf(x), x.dtype.type(high), np.where(np.isneginf(x), x.dtype.type(low), x)
    )


def _xlogy(x: Any, y: Any) -> Any:
    return np.where(np.isnan(y), y, np.where(x == 0, 0, x * np.log(y)))


def _heaviside(x: Any, y: Any) -> Any:
    return np.where(x == 0, y, (x > 0).astype(y.dtype))


def _threshold(x: Any, threshold: Any, value: Any) -> Any:
    return np.where(x <= threshold, np.asarray(value).astype(x.dtype), x)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "fmod": _fmod,
    "pow": _pow,
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
    "abs": np.abs,
    "neg": np.negative,
    "sign": _sign,
    "square": np.square,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "erf": _erf,
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
    "floor": _rounding(np.floor),
    "ceil": _rounding(np.ceil),
    "trunc": _rounding(np.trunc),
    "round": _rounding(np.rint),
    "relu": _relu,
    "relu6": lambda x: _clamp(x, x.dtype.type(0), x.dtype.type(6)),
    "leaky_relu": lambda x, slope=0.01: np.where(x < 0, x * slope, x),
    "prelu": lambda x, weight: np.where(x < 0, x * weight, x),
    "clamp": _clamp,
    "sigmoid": _sigmoid,
    "logsigmoid": lambda x: -np.logaddexp(0, -x),
    "hardsigmoid": lambda x: _clamp(x + 3, 0, 6) / 6,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "hardswish": lambda x: x * _clamp(x + 3, 0, 6) / 6,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "elu": _elu,
    "celu": _celu,
    "selu": lambda x: _SELU_SCALE * _elu(x, _SELU_ALPHA),
    "softplus": _softplus,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "tanhshrink": lambda x: x - np.tanh(x),
    "hardshrink": _hardshrink,
    "softshrink": _softshrink,
    "threshold": _threshold,
    "log2": np.log2,
    "exp2": np.exp2,
    "nan_to": lambda x, value: np.where(np.isnan(x), x.dtype.type(value), x),
    "inf_to": _inf_to,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "hypot": np.hypot,
    "copysign": np.copysign,
    "xlogy": _xlogy,
    "heaviside": _heaviside,
    "nextafter": np.nextafter,
}
