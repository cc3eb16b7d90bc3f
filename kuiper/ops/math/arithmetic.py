"""Elementwise functions under TorchScript's names."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.expression import Call, Literal, Node, Ref
from kuiper.expression.promotion import is_number, result_type
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord, NumpyRecord, broadcast, convert
from kuiper.ops.core.record import NoBatchRule, record
from kuiper.ops.core.schema import Bool, Float, Scalar, Tensor
from kuiper.ops.core.typed import bind_function, has_kernels
from kuiper.ops.math.elementwise import Formula

__all__ = ["BINARY", "FORMULAS", "TESTS", "AddCMul", "Lerp", "NanToNum", "Sgn", "Sinc"]

FLOAT32 = np.dtype(np.float32)


def _call(name: str, *arguments: Any) -> Node:
    return Call(name, [x if isinstance(x, Node) else Literal(x) for x in arguments])


# PyTorch's name, the formula, its expression.
FORMULAS = (
    ("log2", "log(input) / log(2)", _call("log2", Ref(0))),
    ("exp2", "2 ** input", _call("exp2", Ref(0))),
    ("deg2rad", "input * pi / 180", _call("mul", Ref(0), math.pi / 180)),
    ("rad2deg", "input * 180 / pi", _call("mul", Ref(0), 180 / math.pi)),
    ("frac", "input - trunc(input)", _call("sub", Ref(0), _call("trunc", Ref(0)))),
)

# PyTorch's name, the formula, numpy's function; the kernel, if there is one.  Where a number
# follows, it is the other operand.
TESTS = (
    ("isnan", "input is not a number", np.isnan, "unequal"),
    ("isinf", "input is infinite", np.isinf, "is_infinite"),
    ("isfinite", "input is neither infinite nor NaN", np.isfinite, "is_finite"),
    ("isposinf", "input is infinity", np.isposinf, "equal", math.inf),
    ("isneginf", "input is -infinity", np.isneginf, "equal", -math.inf),
    ("signbit", "input has the sign bit", np.signbit),
    ("isreal", "the imaginary part of input is 0", np.isreal),
)


def _log2_of_sum(x: Node, y: Node) -> Node:
    """Return the expression log2(2 ** x + 2 ** y)."""
    scale = math.log(2)
    joined = _call("logaddexp", _call("mul", x, scale), _call("mul", y, scale))
    return _call("mul", joined, 1 / scale)


# What numpy computes, all of integers.
BINARY = (
    ("gcd", "the greatest common divisor", np.gcd),
    ("lcm", "the least common multiple", np.lcm),
)

# Those that are expressions, with what they take: floats only, or anything.
BINARY_FORMULAS = (
    ("hypot", "sqrt(input ** 2 + other ** 2)", partial(_call, "hypot"), "f"),
    ("logaddexp2", "log2(2 ** input + 2 ** other)", _log2_of_sum, "f"),
    ("ldexp", "input * 2 ** other", lambda x, y: _call("mul", x, _call("exp2", y)), "any"),
    ("copysign", "abs(input) with the sign of other", partial(_call, "copysign"), "any"),
    ("xlogy", "input * log(other), 0 where input is 0", partial(_call, "xlogy"), "any"),
    ("nextafter", "the float after input on the way to other", partial(_call, "nextafter"), "f"),
    ("heaviside", "0 below 0, other at 0, 1 above", partial(_call, "heaviside"), "any"),
    ("fmax", "the greater one; a NaN only where both are", partial(_call, "fmax"), "any"),
    ("fmin", "the lesser one; a NaN only where both are", partial(_call, "fmin"), "any"),
)


def _check_complex(function: Callable[..., Any], dtype: np.dtype, n_inputs: int) -> None:
    """Raise ShapeError for complex numbers, unless the function takes them."""
    if dtype.kind == "c":
        try:
            with np.errstate(all="ignore"):
                function(*[np.zeros(1, dtype)] * n_inputs)
        except TypeError:
            raise ShapeError(f"it would compute in {dtype}, expected real numbers") from None


class _Formula(Formula):
    arguments = (Tensor("input"),)
    tree: Node
    takes_complex = False

    @classmethod
    def formula(cls, a: SimpleNamespace) -> Any:
        if a.input.dtype.kind == "c" and not cls.takes_complex:
            raise ShapeError(f"the input is {a.input.dtype}, expected real numbers")
        return cls.tree, [a.input]


class _BinaryFormula(Formula):
    arguments = (Tensor("input"), Tensor("other", number=True))
    tree: Callable[[Node, Node], Node]
    takes = "any"

    @classmethod
    def formula(cls, a: SimpleNamespace) -> Any:
        dtype = result_type([a.input, a.other])
        if cls.takes == "f" and dtype.kind != "f":
            raise ShapeError(f"its operands are {dtype}, expected floats")
        if dtype.kind == "c":
            raise ShapeError(f"it would compute in {dtype}, expected real numbers")
        if is_number(a.other):
            tree, operands = cls.tree(Ref(0), Literal(a.other)), [a.input]
        else:
            tree, operands = cls.tree(Ref(0), Ref(1)), [a.input, a.other]
        if dtype.kind in "biu" and isinstance(tree, Call) and tree.name in ("fmax", "fmin"):
            # Among integers there is no NaN, and the other words have kernels.
            tree = Call({"fmax": "maximum", "fmin": "minimum"}[tree.name], tree.children)
        return tree, operands


class _Test(NumpyRecord):
    batch = "elementwise"
    arguments = (Tensor("input"),)
    function: Callable[..., Any]

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        _check_complex(cls.function, a.input.dtype, 1)
        return TensorSpec(a.input.shape, np.bool_)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        return cls.function(a.input)


class _FastTest(_Test, KernelRecord):
    runs_in_numpy = False
    layout = "like"
    takes: tuple[Any, ...]  # the kernel, and perhaps its other operand

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        name, *others = cls.takes
        # An integer is compared with infinity as a float.
        dtype = FLOAT32 if others and a.input.dtype.kind != "f" else a.input.dtype
        if has_kernels(a.input.dtype):
            bind_function(b, name, dtype, [a.input, *(others or [a.input])])
        else:
            cls.in_numpy(a, b)


class _Binary(NumpyRecord):
    batch = "elementwise"
    arguments = (Tensor("input"), Tensor("other", number=True))
    function: Callable[..., Any]

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        dtype = result_type([a.input, a.other])
        if dtype.kind not in "iu":
            raise ShapeError(f"its operands are {dtype}, expected integers")
        return TensorSpec(broadcast(a.input, a.other), dtype)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        dtype = cls.result(a).dtype
        return cls.function(convert(a.input, dtype), convert(a.other, dtype))


def _register(
    base: type[NumpyRecord], name: str, formula: str, function: Callable[..., Any], *takes: Any
) -> None:
    members = {
        "__doc__": f"``{formula}``, element by element.\n\nSource: torch.{name}.",
        "__module__": __name__,
        "function": staticmethod(function),
    }
    if takes:
        members["takes"] = takes
    record(f"aten::{name}")(type(name, (base,), members))


for _name, _text, _tree in FORMULAS:
    record(f"aten::{_name}")(
        type(
            _name,
            (_Formula,),
            {
                "__doc__": f"``{_text}``, element by element.\n\nSource: torch.{_name}.",
                "__module__": __name__,
                "tree": _tree,
                "takes_complex": _name in ("log2", "exp2"),
            },
        )
    )

for _name, _text, _function, _takes in BINARY_FORMULAS:
    record(f"aten::{_name}")(
        type(
            _name,
            (_BinaryFormula,),
            {
                "__doc__": f"``{_text}``, element by element.\n\nSource: torch.{_name}.",
                "__module__": __name__,
                "tree": staticmethod(_function),
                "takes": _takes,
            },
        )
    )

for _base, _rows in ((_Test, TESTS), (_Binary, BINARY)):
    for _row in _rows:
        _register(_FastTest if _base is _Test and len(_row) > 3 else _base, *_row)


@record("aten::sgn")
class Sgn(Formula):
    """``input / abs(input), 0 at 0``, element by element.

    Source: torch.sgn.
    """

    arguments = (Tensor("input"),)

    @staticmethod
    def formula(a: SimpleNamespace) -> Any:
        if a.input.dtype.kind != "c":
            return _call("sign", Ref(0)), [a.input]
        # The least float changes no other size, and lets 0 stay 0.
        size = _call("max", _call("abs", Ref(0)), float(np.finfo(np.float32).tiny))
        return _call("div", Ref(0), size), [a.input]


@record("aten::sinc")
class Sinc(Formula):
    """``sin(pi * input) / (pi * input), 1 at 0``, element by element.

    Source: torch.sinc.
    """

    arguments = (Tensor("input"),)

    @staticmethod
    def formula(a: SimpleNamespace) -> Any:
        # Of what is so small it is 1.
        angle = _call("mul", Ref(0), math.pi)
        if a.input.dtype.kind == "c":
            angle = _call("add", angle, 1e-30)
        else:
            angle = _call("max", _call("abs", angle), 1e-30)
        return _call("div", _call("sin", angle), angle), [a.input]


@record("aten::isclose")
class IsClose(NumpyRecord):
    """Whether ``abs(input - other) <= atol + rtol * abs(other)``, element by element.

    Source: torch.isclose.
    """

    batch = "elementwise"
    arguments = (
        Tensor("input"),
        Tensor("other"),
        Float("rtol", 1e-5),
        Float("atol", 1e-8),
        Bool("equal_nan", False),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        if a.input.dtype != a.other.dtype:
            raise ShapeError(f"its operands are {a.input.dtype} and {a.other.dtype}")
        return TensorSpec(broadcast(a.input, a.other), np.bool_)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.isclose(a.input, a.other, a.rtol, a.atol, a.equal_nan)


@record("aten::isin")
class IsIn(NumpyRecord):
    """Whether each element is one of `test_elements`, or is none if `invert`.

    Source: torch.isin.
    """

    batch = NoBatchRule("each element is compared with the test elements of all members")
    arguments = (
        Tensor("elements", number=True),
        Tensor("test_elements", number=True),
        Bool("assume_unique", False),
        Bool("invert", False),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(() if is_number(a.elements) else a.elements.shape, np.bool_)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.isin(a.elements, a.test_elements, a.assume_unique, a.invert)


@record("aten::float_power")
class FloatPower(NumpyRecord):
    """``input ** exponent`` in double precision, whatever the types.

    Source: torch.float_power.
    """

    batch = "elementwise"
    arguments = (Tensor("input", number=True), Tensor("exponent", number=True))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        wide = np.complex128 if result_type([a.input, a.exponent]).kind == "c" else np.float64
        return TensorSpec(broadcast(a.input, a.exponent), wide)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        dtype = FloatPower.result(a).dtype
        return np.power(np.asarray(a.input, dtype), np.asarray(a.exponent, dtype))


@record("aten::frexp")
class Frexp(NumpyRecord):
    """A mantissa of 0.5 to 1 and an exponent of 2 for each element.

    Source: torch.frexp.
    """

    batch = "elementwise"
    arguments = (Tensor("input"),)

    @staticmethod
    def result(a: SimpleNamespace) -> Any:
        if a.input.dtype.kind != "f":
            raise ShapeError(f"the input is {a.input.dtype}, expected float32")
        return TensorSpec(a.input.shape, a.input.dtype), TensorSpec(a.input.shape, np.int32)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.frexp(a.input)


@record("aten::nan_to_num")
class NanToNum(Formula):
    """NaN and the infinities replaced by numbers: 0 and the largest ones by default.

    Source: torch.nan_to_num.
    """

    arguments = (
        Tensor("input"),
        Float("nan", None, nullable=True),
        Float("posinf", None, nullable=True),
        Float("neginf", None, nullable=True),
    )

    @staticmethod
    def formula(a: SimpleNamespace) -> Any:
        if a.input.dtype.kind != "f":
            return Ref(0), [a.input]
        limit = float(np.finfo(a.input.dtype).max)
        high = limit if a.posinf is None else a.posinf
        low = -limit if a.neginf is None else a.neginf
        return _call("nan_to", _call("inf_to", Ref(0), high, low), a.nan or 0.0), [a.input]


# -- of three tensors --------------------------------------------------------------------------


def _scaled(tree: Any, value: Any) -> Any:
    return tree if value == 1 else Call("mul", [tree, Literal(value)])


@record("aten::addcmul")
class AddCMul(Formula):
    """``input + value * tensor1 * tensor2``.

    Source: torch.addcmul.
    """

    arguments = (Tensor("input"), Tensor("tensor1"), Tensor("tensor2"), Scalar("value", 1))

    @staticmethod
    def formula(a: SimpleNamespace) -> Any:
        product = Call("mul", [_scaled(Ref(1), a.value), Ref(2)])
        return Call("add", [Ref(0), product]), [a.input, a.tensor1, a.tensor2]


@record("aten::addcdiv")
class AddCDiv(Formula):
    """``input + value * tensor1 / tensor2``.

    Source: torch.addcdiv.
    """

    arguments = AddCMul.arguments

    @staticmethod
    def formula(a: SimpleNamespace) -> Any:
        if a.tensor1.dtype.kind in "biu" and a.tensor2.dtype.kind in "biu":
            raise ShapeError("it would divide integers, which PyTorch refuses")
        quotient = Call("div", [_scaled(Ref(1), a.value), Ref(2)])
        return Call("add", [Ref(0), quotient]), [a.input, a.tensor1, a.tensor2]


@record("aten::lerp")
class Lerp(Formula):
    """``input + weight * (end - input)``.

    Source: torch.lerp.
    """

    arguments = (Tensor("input"), Tensor("end"), Tensor("weight", number=True))

    @staticmethod
    def formula(a: SimpleNamespace) -> Any:
        gap = Call("sub", [Ref(1), Ref(0)])
        if is_number(a.weight):
            if abs(a.weight) < 0.5:
                tree = Call("add", [Ref(0), Call("mul", [gap, Literal(a.weight)])])
            else:
                tree = Call("sub", [Ref(1), Call("mul", [gap, Literal(1 - a.weight)])])
            return tree, [a.input, a.end]
        tree = Call("add", [Ref(0), Call("mul", [Ref(2), gap])])
        return tree, [a.input, a.end, a.weight]


@record("aten::erfc")
class Erfc(Formula):
    """``1 - erf(input)``; what is less than float32 tells apart from 1 is 0.

    Source: torch.erfc.
    """

    arguments = (Tensor("input"),)

    @staticmethod
    def formula(a: SimpleNamespace) -> Any:
        return Call("sub", [Literal(1), Call("erf", [Ref(0)])]), [a.input]


@record("aten::logit")
class Logit(Formula):
    """``log(x / (1 - x))`` of the input, which `eps` keeps away from 0 and 1.

    Source: torch.logit.
    """

    arguments = (Tensor("input"), Float("eps", None, nullable=True))

    @staticmethod
    def formula(a: SimpleNamespace) -> Any:
        x: Node = Ref(0)
        if a.eps is not None:
            x = Call("min", [Call("max", [x, Literal(a.eps)]), Literal(1 - a.eps)])
        return Call("log", [Call("div", [x, Call("sub", [Literal(1.0), x])])]), [a.input]
