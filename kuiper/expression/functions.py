"""The elementwise functions: one row each.

The parser reads the number of arguments, promotion the dtypes, evaluation the numpy function,
lowering the instruction, `text` the infix operator.  From the same rows ``setup.py`` generates the
loops of the micro-kernels, the indices of their table and the operations of chains.

To add a function, add a row here and the vector function that `vector` names to the micro-kernels.
The build executes this module alone, so it imports nothing from the package.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["CAST", "CUSTOM", "EXTENDED", "FUNCTIONS", "PNNX", "Function"]

# Classes of dtypes, as sets of numpy's kinds.  Where a class has no integers, these become float32.
ALL = "biufc"
REAL = "biuf"
NUMBERS = "iufc"
REAL_NUMBERS = "iuf"
BITS = "biu"
INTEGERS = "iu"
FLOATS = "f"
FLOATS_AND_COMPLEX = "fc"


class Function:
    """One elementwise function.

    Attributes
    ----------
    name : str
    operands : int
        Number of arguments that broadcast.
    parameters : tuple of (float or None)
        Defaults of the arguments after the operands, which are numbers; None without a default.
    min_arity, max_arity : int
        Number of arguments in an expression.
    kinds : str
        The dtypes of the operands, as kinds of numpy.  Without ``i``, integers and bools are
        converted to float32.
    array : callable or None
        The function of numpy arrays of one dtype.
    vector : tuple of str
        The micro-kernel's function of float32 vectors, by default ``v`` and the name.  A second one
        computes arguments beyond CIRCULAR_LIMIT.  Empty for a function without a kernel.
    cost : int
        In additions.
    is_link : bool
        Whether chains, which keep a value in registers, may contain the function.
    swapped : str or None
        The link that computes the function if the value in registers is the second operand.
    typed : str or None
        The kernel for operands of any dtype.
    same_as : tuple or None
        The function that computes this one, and the values of its parameters.
    infix : str or None
        Python's operator.
    """

    __slots__ = (
        "array", "cost", "infix", "is_link", "kinds", "max_arity", "min_arity", "name", "operands",
        "parameters", "same_as", "swapped", "typed", "vector",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        operands: int = 1,
        kinds: str = REAL,
        array: Callable[..., Any] | None = None,
        *,
        parameters: tuple[float | None, ...] = (),
        vector: tuple[str, ...] | None = None,
        cost: int | None = None,
        link: bool = False,
        swapped: str | None = None,
        typed: str | None = None,
        same_as: tuple[Any, ...] | None = None,
        infix: str | None = None,
        min_arity: int | None = None,
    ) -> None:
        self.name = name
        self.operands = operands
        self.parameters = parameters
        self.max_arity = operands + len(parameters)
        self.min_arity = operands + parameters.count(None) if min_arity is None else min_arity
        self.kinds = kinds
        self.array = array
        self.vector = (f"v{name}",) if vector is None and same_as is None else vector or ()
        self.is_link = link
        self.cost = cost or (1 if link else 8)
        self.swapped = swapped
        self.typed = typed
        self.same_as = same_as
        self.infix = infix

    def __repr__(self) -> str:
        return f"Function({self.name!r})"

    @property
    def is_of_one_vector(self) -> bool:
        """Whether it has a float32 kernel that takes one operand and no parameters."""
        return self.operands == 1 and not self.parameters and bool(self.vector)

    @property
    def arity(self) -> str:
        """The number of arguments in words, for messages."""
        if self.min_arity != self.max_arity:
            return f"{self.min_arity} to {self.max_arity} arguments"
        return "1 argument" if self.min_arity == 1 else f"{self.min_arity} arguments"


# Meanings in numpy -----------------------------------------------------------------------------


def _check_divisor(divisor: Any) -> None:
    if divisor.dtype.kind in "iu" and not divisor.all():
        raise ZeroDivisionError


def _floor_divide(a: Any, b: Any) -> Any:
    _check_divisor(b)
    return np.floor_divide(a, b)


def _remainder(a: Any, b: Any) -> Any:
    _check_divisor(b)
    if a.dtype.kind in "iu":
        return np.remainder(a, b)
    # A remainder of 0 has the sign of the divisor in numpy, and that of the dividend in PyTorch.
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


def _fmod(a: Any, b: Any) -> Any:
    _check_divisor(b)
    return np.fmod(a, b)


def _pow(a: Any, b: Any) -> Any:
    if a.dtype.kind not in "iu" or b.dtype.kind == "u" or (b >= 0).all():
        return np.power(a, b)
    # 1 / a ** n, truncated, is 0 unless a is 1 or -1.
    odd = (b & 1).astype(bool)
    reciprocal = np.where(a == 1, 1, np.where(a == -1, np.where(odd, -1, 1), 0))
    return np.where(b < 0, reciprocal, np.power(a, np.maximum(b, 0)))


def _sign(x: Any) -> Any:
    # PyTorch gives 0 for NaN, and +0 for -0.
    return x if x.dtype.kind == "b" else (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


def _rounding(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rounding function that leaves integers alone."""
    return lambda x: x if x.dtype.kind in "iu" else function(x)


_erf_object = np.frompyfunc(math.erf, 1, 1)


def _erf(x: Any) -> Any:
    return np.asarray(_erf_object(x.astype(np.float64)), dtype=np.float64)


def _clamp(x: Any, low: Any, high: Any) -> Any:
    return np.minimum(np.maximum(x, low), high)


def _relu(x: Any) -> Any:
    return np.where(x < 0, x.dtype.type(0), x)  # keeps NaN and -0


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


def _threshold(x: Any, threshold: Any, value: Any) -> Any:
    return np.where(x <= threshold, np.asarray(value).astype(x.dtype), x)


def _inf_to(x: Any, high: Any, low: Any) -> Any:
    high, low = x.dtype.type(high), x.dtype.type(low)
    return np.where(np.isposinf(x), high, np.where(np.isneginf(x), low, x))


def _xlogy(x: Any, y: Any) -> Any:
    return np.where(np.isnan(y), y, np.where(x == 0, 0, x * np.log(y)))


def _heaviside(x: Any, y: Any) -> Any:
    return np.where(x == 0, y, (x > 0).astype(y.dtype))


# The rows --------------------------------------------------------------------------------------

# Functions of ``pnnx.Expression``.
_PNNX_ROWS = (
    Function("add", 2, ALL, np.add, infix="+", typed="add", link=True, swapped="add"),
    Function(
        "sub", 2, NUMBERS, np.subtract, infix="-", typed="subtract", link=True, swapped="sub_from"
    ),
    Function("mul", 2, ALL, np.multiply, infix="*", typed="multiply", link=True, swapped="mul"),
    Function(
        "div", 2, FLOATS_AND_COMPLEX, np.true_divide, infix="/", typed="divide", link=True,
        swapped="div_into",
    ),
    Function("floor_divide", 2, REAL_NUMBERS, _floor_divide, infix="//", typed="floor_divide"),
    Function("remainder", 2, REAL_NUMBERS, _remainder, infix="%", typed="remainder"),
    Function("pow", 2, ALL, _pow, infix="**"),
    Function("and", 2, BITS, np.bitwise_and, infix="&", typed="and", vector=()),
    Function("or", 2, BITS, np.bitwise_or, infix="|", typed="or", vector=()),
    Function("xor", 2, BITS, np.bitwise_xor, infix="^", typed="xor", vector=()),
    Function("lshift", 2, INTEGERS, np.left_shift, infix="<<", typed="shift_left", vector=()),
    Function("rshift", 2, INTEGERS, np.right_shift, infix=">>", typed="shift_right", vector=()),
    Function("fmod", 2, REAL_NUMBERS, _fmod),
    Function("atan2", 2, FLOATS, np.arctan2),
    Function("logaddexp", 2, FLOATS, np.logaddexp),
    Function(
        "max", 2, REAL, np.maximum, typed="maximum", vector=("vmaximum",), link=True, swapped="max"
    ),
    Function(
        "min", 2, REAL, np.minimum, typed="minimum", vector=("vminimum",), link=True, swapped="min"
    ),
    Function("maximum", 2, REAL, np.maximum, typed="maximum", same_as=("max",)),
    Function("minimum", 2, REAL, np.minimum, typed="minimum", same_as=("min",)),
    Function("abs", 1, NUMBERS, np.abs, typed="absolute", link=True),
    Function("neg", 1, NUMBERS, np.negative, infix="-", link=True),
    Function("sign", 1, REAL, _sign, cost=1),
    Function("square", 1, ALL, np.square, link=True),
    Function("sqrt", 1, FLOATS_AND_COMPLEX, np.sqrt, link=True),
    Function("rsqrt", 1, FLOATS_AND_COMPLEX, lambda x: 1 / np.sqrt(x), link=True),
    Function("reciprocal", 1, FLOATS_AND_COMPLEX, lambda x: 1 / x, link=True),
    Function("exp", 1, FLOATS_AND_COMPLEX, np.exp),
    Function("expm1", 1, FLOATS_AND_COMPLEX, np.expm1),
    Function("log", 1, FLOATS_AND_COMPLEX, np.log),
    Function("log10", 1, FLOATS_AND_COMPLEX, np.log10),
    Function("log1p", 1, FLOATS_AND_COMPLEX, np.log1p),
    Function("erf", 1, FLOATS, _erf),
    Function("sin", 1, FLOATS_AND_COMPLEX, np.sin, vector=("vsin", "vsin_far")),
    Function("cos", 1, FLOATS_AND_COMPLEX, np.cos, vector=("vcos", "vcos_far")),
    Function("tan", 1, FLOATS_AND_COMPLEX, np.tan, vector=("vtan", "vtan_far")),
    Function("asin", 1, FLOATS_AND_COMPLEX, np.arcsin),
    Function("acos", 1, FLOATS_AND_COMPLEX, np.arccos),
    Function("atan", 1, FLOATS_AND_COMPLEX, np.arctan),
    Function("sinh", 1, FLOATS_AND_COMPLEX, np.sinh),
    Function("cosh", 1, FLOATS_AND_COMPLEX, np.cosh),
    Function("tanh", 1, FLOATS_AND_COMPLEX, np.tanh),
    Function("asinh", 1, FLOATS_AND_COMPLEX, np.arcsinh),
    Function("acosh", 1, FLOATS_AND_COMPLEX, np.arccosh),
    Function("atanh", 1, FLOATS_AND_COMPLEX, np.arctanh),
    Function("floor", 1, REAL_NUMBERS, _rounding(np.floor), link=True),
    Function("ceil", 1, REAL_NUMBERS, _rounding(np.ceil), link=True),
    Function("trunc", 1, REAL_NUMBERS, _rounding(np.trunc), link=True),
    Function("round", 1, REAL_NUMBERS, _rounding(np.rint), vector=("vrint",), link=True),
    Function("int", 1, ALL, vector=()),
    Function("size", 2, ALL, vector=(), min_arity=1),
)  # fmt: skip

# Functions that only graph passes and records use.
_EXTENDED_ROWS = (
    Function("relu", 1, REAL_NUMBERS, _relu, link=True),
    Function(
        "relu6", 1, REAL, lambda x: _clamp(x, x.dtype.type(0), x.dtype.type(6)),
        same_as=("clamp", 0.0, 6.0),
    ),
    Function(
        "leaky_relu", 1, FLOATS, lambda x, slope=0.01: np.where(x < 0, x * slope, x),
        parameters=(0.01,), link=True,
    ),
    Function("prelu", 2, REAL, lambda x, weight: np.where(x < 0, x * weight, x), link=True),
    # Bounds that are numbers become parameters of the instruction; others make two instructions.
    Function("clamp", 3, REAL, _clamp, link=True),
    Function("sigmoid", 1, FLOATS_AND_COMPLEX, lambda x: 1 / (1 + np.exp(-x))),
    Function("logsigmoid", 1, FLOATS, lambda x: -np.logaddexp(0, -x)),
    Function("hardsigmoid", 1, FLOATS, lambda x: _clamp(x + 3, 0, 6) / 6, link=True),
    Function("silu", 1, FLOATS_AND_COMPLEX, lambda x: x / (1 + np.exp(-x))),
    Function("hardswish", 1, FLOATS, lambda x: x * _clamp(x + 3, 0, 6) / 6, link=True),
    Function("mish", 1, FLOATS, lambda x: x * np.tanh(_softplus(x))),
    Function("gelu", 1, FLOATS, lambda x: x * 0.5 * (1 + _erf(x * math.sqrt(0.5)))),
    Function("gelu_tanh", 1, FLOATS, _gelu_tanh),
    Function("elu", 1, FLOATS, _elu, parameters=(1.0,)),
    Function("celu", 1, FLOATS, _celu, parameters=(1.0,)),
    Function("selu", 1, FLOATS, lambda x: _SELU_SCALE * _elu(x, _SELU_ALPHA)),
    Function("softplus", 1, FLOATS, _softplus, parameters=(1.0, 20.0)),
    Function("softsign", 1, FLOATS, lambda x: x / (1 + np.abs(x)), cost=1),
    Function("tanhshrink", 1, FLOATS_AND_COMPLEX, lambda x: x - np.tanh(x)),
    Function("hardshrink", 1, FLOATS, _hardshrink, parameters=(0.5,), cost=1),
    Function("softshrink", 1, FLOATS, _softshrink, parameters=(0.5,), cost=1),
    Function("threshold", 1, REAL, _threshold, parameters=(None, None), cost=1),
    Function("log2", 1, FLOATS_AND_COMPLEX, np.log2),
    Function("exp2", 1, FLOATS_AND_COMPLEX, np.exp2),
    Function(
        "nan_to", 1, REAL, lambda x, value: np.where(np.isnan(x), x.dtype.type(value), x),
        parameters=(None,), link=True,
    ),
    Function("inf_to", 1, REAL, _inf_to, parameters=(None, None), link=True),
    Function("fmax", 2, REAL, np.fmax),
    Function("fmin", 2, REAL, np.fmin),
    Function("hypot", 2, FLOATS, np.hypot),
    Function("copysign", 2, FLOATS, np.copysign, cost=1),
    Function("xlogy", 2, FLOATS, _xlogy),
    Function("heaviside", 2, REAL, _heaviside, cost=1),
    Function("nextafter", 2, REAL, np.nextafter),
)  # fmt: skip

# An instruction only, for a program whose result is an input; expressions have no name for it.
_COPY = Function("copy", cost=1)

# The arguments of every cast; promotion.CASTS has their names.
CAST = Function("cast", vector=())

PNNX: dict[str, Function] = {row.name: row for row in _PNNX_ROWS}
EXTENDED: dict[str, Function] = PNNX | {row.name: row for row in _EXTENDED_ROWS}
FUNCTIONS: dict[str, Function] = {"copy": _COPY} | EXTENDED

# The functions that users have defined (:mod:`kuiper.expression.custom`), by name.
CUSTOM: dict[str, Any] = {}
