"""Elementwise functions under TorchScript's names."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.expression import Call, Literal, Node, Ref
from kuiper.expression.promotion import is_number, result_type
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord, NumpyRecord, broadcast, convert
from kuiper.ops.core.record import NoBatchRule, Record, T, define_record, record
from kuiper.ops.core.schema import Bool, Float, Scalar, Tensor
from kuiper.ops.core.typed import bind_function, has_kernels
from kuiper.ops.math.elementwise import Formula

__all__ = ["BINARY", "FORMULAS", "TESTS", "AddCMul", "Lerp", "NanToNum", "Sgn", "Sinc"]

FLOAT32 = np.dtype(np.float32)


def _call(name: str, *arguments: Any) -> Node:
    return Call(name, [x if isinstance(x, Node) else Literal(x) for x in arguments])


# Rows of (PyTorch's name, summary, expression).
FORMULAS = (
    ("log2", "``log(input) / log(2)``", _call("log2", Ref(0))),
    ("exp2", "``2 ** input``", _call("exp2", Ref(0))),
    ("deg2rad", "``input * pi / 180``", _call("mul", Ref(0), math.pi / 180)),
    ("rad2deg", "``input * 180 / pi``", _call("mul", Ref(0), 180 / math.pi)),
    ("frac", "``input - trunc(input)``", _call("sub", Ref(0), _call("trunc", Ref(0)))),
)

# Rows of (name, summary, numpy's function), then the kernel, if there is one, and its second
# operand, if that is a number.
TESTS: tuple[tuple[Any, ...], ...] = (
    ("isnan", "Whether the input is NaN", np.isnan, "unequal"),
    ("isinf", "Whether the input is infinite", np.isinf, "is_infinite"),
    ("isfinite", "Whether the input is neither infinite nor NaN", np.isfinite, "is_finite"),
    ("isposinf", "Whether the input is infinity", np.isposinf, "equal", math.inf),
    ("isneginf", "Whether the input is -infinity", np.isneginf, "equal", -math.inf),
    ("signbit", "Whether the input has its sign bit set", np.signbit),
    ("isreal", "Whether the imaginary part of the input is 0", np.isreal),
)


def _log2_of_sum(x: Node, y: Node) -> Node:
    """Return the expression log2(2 ** x + 2 ** y)."""
    scale = math.log(2)
    joined = _call("logaddexp", _call("mul", x, scale), _call("mul", y, scale))
    return _call("mul", joined, 1 / scale)


# Functions of integers, which numpy computes.
BINARY: tuple[tuple[Any, ...], ...] = (
    ("gcd", "The greatest common divisor", np.gcd),
    ("lcm", "The least common multiple", np.lcm),
)

# Rows of (name, summary, expression, operands): floats only, or any real numbers.
BINARY_FORMULAS = (
    ("hypot", "``sqrt(input ** 2 + other ** 2)``", partial(_call, "hypot"), "f"),
    ("logaddexp2", "``log2(2 ** input + 2 ** other)``", _log2_of_sum, "f"),
    ("ldexp", "``input * 2 ** other``", lambda x, y: _call("mul", x, _call("exp2", y)), "any"),
    ("copysign", "``abs(input)`` with the sign of `other`", partial(_call, "copysign"), "any"),
    ("xlogy", "``input * log(other)``, 0 where `input` is 0", partial(_call, "xlogy"), "any"),
    ("nextafter", "The float next to `input` towards `other`", partial(_call, "nextafter"), "f"),
    ("heaviside", "0 below 0, `other` at 0, 1 above", partial(_call, "heaviside"), "any"),
    ("fmax", "The greater one, NaN only if both are NaN", partial(_call, "fmax"), "any"),
    ("fmin", "The lesser one, NaN only if both are NaN", partial(_call, "fmin"), "any"),
)


def _check_complex(function: Callable[..., Any], dtype: np.dtype, n_inputs: int) -> None:
    """Raise ShapeError for complex numbers that the function does not take."""
    if dtype.kind == "c":
        try:
            with np.errstate(all="ignore"):
                function(*[np.zeros(1, dtype)] * n_inputs)
        except TypeError:
            raise ShapeError(f"it would compute in {dtype}, expected real numbers") from None


class _Formula(Formula[T]):
    input: T = Tensor()
    tree: Node
    takes_complex = False

    def formula(self: _Formula[TensorSpec]) -> Any:
        if self.input.dtype.kind == "c" and not self.takes_complex:
            raise ShapeError(f"the input is {self.input.dtype}, expected real numbers")
        return self.tree, [self.input]


class _BinaryFormula(Formula[T]):
    input: T = Tensor()
    other: Any = Tensor(number=True)
    tree: Callable[[Node, Node], Node]
    takes = "any"

    def formula(self: _BinaryFormula[TensorSpec]) -> Any:
        dtype = result_type([self.input, self.other])
        if self.takes == "f" and dtype.kind != "f":
            raise ShapeError(f"its operands are {dtype}, expected floats")
        if dtype.kind == "c":
            raise ShapeError(f"it would compute in {dtype}, expected real numbers")
        if is_number(self.other):
            tree, operands = type(self).tree(Ref(0), Literal(self.other)), [self.input]
        else:
            tree, operands = type(self).tree(Ref(0), Ref(1)), [self.input, self.other]
        if dtype.kind in "biu" and isinstance(tree, Call) and tree.name in ("fmax", "fmin"):
            # Integers have no NaN, and these two functions have kernels for them.
            tree = Call({"fmax": "maximum", "fmin": "minimum"}[tree.name], tree.children)
        return tree, operands


class _Test(NumpyRecord[T]):
    batch = "elementwise"
    input: T = Tensor()
    function: Callable[..., Any]

    def result(self: _Test[TensorSpec]) -> TensorSpec:
        _check_complex(type(self).function, self.input.dtype, 1)
        return TensorSpec(self.input.shape, np.bool_)

    def compute(self: _Test[np.ndarray]) -> Any:
        return type(self).function(self.input)


class _FastTest(_Test[T], KernelRecord[T]):
    runs_in_numpy = False
    layout = Layout.LIKE
    takes: tuple[Any, ...]  # the kernel, and its second operand if that is a number

    def steps(self: _FastTest[TensorView], b: Binder) -> None:
        name, *others = self.takes
        # Integers are compared with infinity as floats.
        dtype = FLOAT32 if others and self.input.dtype.kind != "f" else self.input.dtype
        if has_kernels(self.input.dtype):
            bind_function(b, name, dtype, [self.input, *(others or [self.input])])
        else:
            self.in_numpy(b)


class _Binary(NumpyRecord[T]):
    batch = "elementwise"
    input: T = Tensor()
    other: Any = Tensor(number=True)
    function: Callable[..., Any]

    def result(self: _Binary[Any]) -> TensorSpec:
        dtype = result_type([self.input, self.other])
        if dtype.kind not in "iu":
            raise ShapeError(f"its operands are {dtype}, expected integers")
        return TensorSpec(broadcast(self.input, self.other), dtype)

    def compute(self: _Binary[np.ndarray]) -> Any:
        dtype = self.result().dtype
        return type(self).function(convert(self.input, dtype), convert(self.other, dtype))


def _define(base: type[Record[Any]], name: str, summary: str, **members: Any) -> None:
    define_record(base, f"aten::{name}", f"{summary}, element by element", **members)


for _name, _text, _tree in FORMULAS:
    _define(_Formula, _name, _text, tree=_tree, takes_complex=_name in ("log2", "exp2"))
for _name, _text, _function, _takes in BINARY_FORMULAS:
    _define(_BinaryFormula, _name, _text, tree=staticmethod(_function), takes=_takes)
for _name, _text, _ufunc, *_kernel in TESTS:
    _base = _FastTest if _kernel else _Test
    _define(_base, _name, _text, function=staticmethod(_ufunc), takes=tuple(_kernel))
for _name, _text, _ufunc in BINARY:
    _define(_Binary, _name, _text, function=staticmethod(_ufunc))


@record("aten::sgn")
class Sgn(Formula[T]):
    """``input / abs(input)``, 0 at 0, element by element.

    Source: torch.sgn.
    """

    input: T = Tensor()

    def formula(self: Sgn[TensorSpec]) -> Any:
        if self.input.dtype.kind != "c":
            return _call("sign", Ref(0)), [self.input]
        # The least normal float avoids 0 / 0 and changes no other quotient.
        size = _call("max", _call("abs", Ref(0)), float(np.finfo(np.float32).tiny))
        return _call("div", Ref(0), size), [self.input]


@record("aten::sinc")
class Sinc(Formula[T]):
    """``sin(pi * input) / (pi * input)``, 1 at 0, element by element.

    Source: torch.sinc.
    """

    input: T = Tensor()

    def formula(self: Sinc[TensorSpec]) -> Any:
        # The bound avoids 0 / 0; the result at it is 1.
        angle = _call("mul", Ref(0), math.pi)
        if self.input.dtype.kind == "c":
            angle = _call("add", angle, 1e-30)
        else:
            angle = _call("max", _call("abs", angle), 1e-30)
        return _call("div", _call("sin", angle), angle), [self.input]


@record("aten::isclose")
class IsClose(NumpyRecord[T]):
    """Whether ``abs(input - other) <= atol + rtol * abs(other)``, element by element.

    Source: torch.isclose.
    """

    batch = "elementwise"
    input: T = Tensor()
    other: T = Tensor()
    rtol: float = Float(1e-5)
    atol: float = Float(1e-8)
    equal_nan: bool = Bool(False)

    def result(self: IsClose[TensorSpec]) -> TensorSpec:
        if self.input.dtype != self.other.dtype:
            raise ShapeError(
                f"its operands are {self.input.dtype} and {self.other.dtype}, expected one dtype"
            )
        return TensorSpec(broadcast(self.input, self.other), np.bool_)

    def compute(self: IsClose[np.ndarray]) -> Any:
        return np.isclose(self.input, self.other, self.rtol, self.atol, self.equal_nan)


@record("aten::isin")
class IsIn(NumpyRecord[T]):
    """Whether each element is among `test_elements`, or with `invert` whether it is not.

    Source: torch.isin.
    """

    batch = NoBatchRule("each element is compared with the test elements of all members")
    elements: Any = Tensor(number=True)
    test_elements: Any = Tensor(number=True)
    assume_unique: bool = Bool(False)
    invert: bool = Bool(False)

    def result(self: IsIn[TensorSpec]) -> TensorSpec:
        return TensorSpec(() if is_number(self.elements) else self.elements.shape, np.bool_)

    def compute(self: IsIn[np.ndarray]) -> Any:
        return np.isin(self.elements, self.test_elements, self.assume_unique, self.invert)


@record("aten::float_power")
class FloatPower(NumpyRecord[T]):
    """``input ** exponent`` in double precision for operands of any dtype.

    Source: torch.float_power.
    """

    batch = "elementwise"
    input: Any = Tensor(number=True)
    exponent: Any = Tensor(number=True)

    def result(self: FloatPower[Any]) -> TensorSpec:
        wide = np.complex128 if result_type([self.input, self.exponent]).kind == "c" else np.float64
        return TensorSpec(broadcast(self.input, self.exponent), wide)

    def compute(self: FloatPower[np.ndarray]) -> Any:
        dtype = self.result().dtype
        return np.power(np.asarray(self.input, dtype), np.asarray(self.exponent, dtype))


@record("aten::frexp")
class Frexp(NumpyRecord[T]):
    """The mantissa from 0.5 to 1 and the binary exponent of each element.

    Source: torch.frexp.
    """

    batch = "elementwise"
    input: T = Tensor()

    def result(self: Frexp[TensorSpec]) -> Any:
        if self.input.dtype.kind != "f":
            raise ShapeError(f"the input is {self.input.dtype}, expected float32")
        shape = self.input.shape
        return TensorSpec(shape, self.input.dtype), TensorSpec(shape, np.int32)

    def compute(self: Frexp[np.ndarray]) -> Any:
        return np.frexp(self.input)


@record("aten::nan_to_num")
class NanToNum(Formula[T]):
    """The input with NaN and infinities replaced, by default by 0 and the largest floats.

    Source: torch.nan_to_num.
    """

    input: T = Tensor()
    nan: float | None = Float(None, nullable=True)
    posinf: float | None = Float(None, nullable=True)
    neginf: float | None = Float(None, nullable=True)

    def formula(self: NanToNum[TensorSpec]) -> Any:
        if self.input.dtype.kind != "f":
            return Ref(0), [self.input]
        limit = float(np.finfo(self.input.dtype).max)
        high = limit if self.posinf is None else self.posinf
        low = -limit if self.neginf is None else self.neginf
        return _call("nan_to", _call("inf_to", Ref(0), high, low), self.nan or 0.0), [self.input]


@record("aten::addcmul")
class AddCMul(Formula[T]):
    """``input + value * tensor1 * tensor2``.

    Source: torch.addcmul.
    """

    input: T = Tensor()
    tensor1: T = Tensor()
    tensor2: T = Tensor()
    value: float = Scalar(1)
    function = "mul"

    def formula(self: AddCMul[TensorSpec]) -> Any:
        scaled = Ref(1) if self.value == 1 else _call("mul", Ref(1), self.value)
        tree = _call("add", Ref(0), _call(self.function, scaled, Ref(2)))
        return tree, [self.input, self.tensor1, self.tensor2]


@record("aten::addcdiv")
class AddCDiv(AddCMul[T]):
    """``input + value * tensor1 / tensor2``.

    Source: torch.addcdiv.
    """

    function = "div"

    def formula(self: AddCDiv[TensorSpec]) -> Any:
        if self.tensor1.dtype.kind in "biu" and self.tensor2.dtype.kind in "biu":
            raise ShapeError("it would divide integers, which PyTorch refuses")
        return super().formula()


@record("aten::lerp")
class Lerp(Formula[T]):
    """``input + weight * (end - input)``.

    Source: torch.lerp.
    """

    input: T = Tensor()
    end: T = Tensor()
    weight: Any = Tensor(number=True)

    def formula(self: Lerp[TensorSpec]) -> Any:
        gap = _call("sub", Ref(1), Ref(0))
        if not is_number(self.weight):
            tree = _call("add", Ref(0), _call("mul", Ref(2), gap))
            return tree, [self.input, self.end, self.weight]
        if abs(self.weight) < 0.5:
            tree = _call("add", Ref(0), _call("mul", gap, self.weight))
        else:
            tree = _call("sub", Ref(1), _call("mul", gap, 1 - self.weight))
        return tree, [self.input, self.end]


@record("aten::erfc")
class Erfc(Formula[T]):
    """``1 - erf(input)``; 0 where erf rounds to 1 in float32.

    Source: torch.erfc.
    """

    input: T = Tensor()

    def formula(self: Erfc[TensorSpec]) -> Any:
        return _call("sub", 1, _call("erf", Ref(0))), [self.input]


@record("aten::logit")
class Logit(Formula[T]):
    """``log(x / (1 - x))``, where x is the input clamped to [eps, 1 - eps].

    Source: torch.logit.
    """

    input: T = Tensor()
    eps: float | None = Float(None, nullable=True)

    def formula(self: Logit[TensorSpec]) -> Any:
        x: Node = Ref(0)
        if self.eps is not None:
            x = _call("min", _call("max", x, self.eps), 1 - self.eps)
        return _call("log", _call("div", x, _call("sub", 1.0, x))), [self.input]
