"""Comparisons, logic and bits: tensors of bools and integers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from kuiper._value import TensorSpec
from kuiper.errors import ShapeError
from kuiper.expression.promotion import result_type
from kuiper.ops._numpy import NumpyRecord, broadcast, convert
from kuiper.ops._record import record
from kuiper.ops._schema import Tensor

__all__ = ["BITS", "COMPARISONS", "LOGIC"]

# PyTorch's name, the formula, numpy's function.
COMPARISONS = (
    ("eq", "input == other", np.equal),
    ("ne", "input != other", np.not_equal),
    ("lt", "input < other", np.less),
    ("le", "input <= other", np.less_equal),
    ("gt", "input > other", np.greater),
    ("ge", "input >= other", np.greater_equal),
)

LOGIC = (
    ("logical_and", "input and other", np.logical_and),
    ("logical_or", "input or other", np.logical_or),
    ("logical_xor", "either input or other", np.logical_xor),
    ("logical_not", "not input", np.logical_not),
)

BITS = (
    ("bitwise_and", "input & other", np.bitwise_and),
    ("bitwise_or", "input | other", np.bitwise_or),
    ("bitwise_xor", "input ^ other", np.bitwise_xor),
    ("bitwise_not", "~input", np.invert),
    ("bitwise_left_shift", "input << other", np.left_shift),
    ("bitwise_right_shift", "input >> other", np.right_shift),
)


class Comparison(NumpyRecord):
    """Base of the records made from :data:`COMPARISONS`."""

    arguments = (Tensor("input"), Tensor("other", number=True))
    function: Callable[..., Any]

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(broadcast(a.input, a.other), np.bool_)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        dtype = result_type([a.input, a.other])
        return cls.function(convert(a.input, dtype), convert(a.other, dtype))


class Logic(NumpyRecord):
    """Base of the records made from :data:`LOGIC`; what is not zero is true."""

    function: Callable[..., Any]

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(broadcast(*_operands(cls, a)), np.bool_)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        return cls.function(*_operands(cls, a))


class Bits(NumpyRecord):
    """Base of the records made from :data:`BITS`; of bools they are logic."""

    function: Callable[..., Any]

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        operands = _operands(cls, a)
        dtype = result_type(operands)
        if dtype.kind not in "biu" or (dtype.kind == "b" and "shift" in cls.__name__):
            raise ShapeError(f"its operands are {dtype}, expected integers")
        return TensorSpec(broadcast(*operands), dtype)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        operands = _operands(cls, a)
        dtype = result_type(operands)
        return cls.function(*(convert(operand, dtype) for operand in operands))


def _operands(cls: type[NumpyRecord], a: SimpleNamespace) -> list[Any]:
    return [getattr(a, argument.name) for argument in cls.arguments]


def _register(base: type[NumpyRecord], name: str, formula: str, function: np.ufunc) -> None:
    arguments = (Tensor("input"), Tensor("other", number=True))[: function.nin]
    cls = type(
        name,
        (base,),
        {
            "__doc__": f"``{formula}``, element by element.\n\nSource: torch.{name}.",
            "__module__": __name__,
            "arguments": arguments,
            "function": function,
        },
    )
    record(f"torch.{name}")(cls)


for _base, _rows in ((Comparison, COMPARISONS), (Logic, LOGIC), (Bits, BITS)):
    for _row in _rows:
        _register(_base, *_row)
