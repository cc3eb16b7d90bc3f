"""Comparisons, logic and bits: tensors of bools and integers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.expression.promotion import is_number, result_type
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord, broadcast, convert
from kuiper.ops.core.record import record
from kuiper.ops.core.schema import Tensor
from kuiper.ops.core.typed import bind_function, has_kernels

__all__ = ["BITS", "COMPARISONS", "LOGIC"]

# PyTorch's name, the formula, numpy's function, the kernel's; where there is a star in front, its
# operands change places.
COMPARISONS = (
    ("eq", "input == other", np.equal, "equal"),
    ("ne", "input != other", np.not_equal, "unequal"),
    ("lt", "input < other", np.less, "less"),
    ("le", "input <= other", np.less_equal, "less_equal"),
    ("gt", "input > other", np.greater, "*less"),
    ("ge", "input >= other", np.greater_equal, "*less_equal"),
)

LOGIC = (
    ("logical_and", "input and other", np.logical_and, "and"),
    ("logical_or", "input or other", np.logical_or, "or"),
    ("logical_xor", "either input or other", np.logical_xor, "xor"),
    ("logical_not", "not input", np.logical_not, "xor"),
)

BITS = (
    ("bitwise_and", "input & other", np.bitwise_and, "and"),
    ("bitwise_or", "input | other", np.bitwise_or, "or"),
    ("bitwise_xor", "input ^ other", np.bitwise_xor, "xor"),
    ("bitwise_not", "~input", np.invert, "xor"),
    ("bitwise_left_shift", "input << other", np.left_shift, "shift_left"),
    ("bitwise_right_shift", "input >> other", np.right_shift, "shift_right"),
)

BOOL = np.dtype(np.bool_)


class _Table(KernelRecord):
    """Base of the records made from the tables."""

    batch = "elementwise"
    layout = "like"
    function: np.ufunc
    kernel: str

    @classmethod
    def operands(cls, a: SimpleNamespace) -> list[Any]:
        return [getattr(a, argument.name) for argument in cls.arguments]

    @classmethod
    def computed_in(cls, a: SimpleNamespace) -> np.dtype:
        """Return the dtype that the operands are converted to."""
        return result_type(cls.operands(a))

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        dtype = cls.computed_in(a)
        return cls.function(*(convert(operand, dtype) for operand in cls.operands(a)))

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        operands, dtype = cls.operands(a), cls.computed_in(a)
        # The kernels of logic and of bits have no `not`: it is "either the input or all bits".
        if len(operands) == 1:
            operands.append(True if dtype == BOOL else -1)
        if cls.kernel.startswith("*"):
            operands.reverse()
        tensors = [operand.dtype for operand in operands if not is_number(operand)]
        if has_kernels(dtype, *tensors):
            bind_function(b, cls.kernel.removeprefix("*"), dtype, operands)
        else:
            cls.in_numpy(a, b)


class Comparison(_Table):
    """Base of the records made from :data:`COMPARISONS`."""

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(broadcast(a.input, a.other), BOOL)


class Logic(_Table):
    """Base of the records made from :data:`LOGIC`; what is not zero is true."""

    @classmethod
    def computed_in(cls, a: SimpleNamespace) -> np.dtype:
        return BOOL

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(broadcast(*cls.operands(a)), BOOL)


class Bits(_Table):
    """Base of the records made from :data:`BITS`; of bools they are logic."""

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        operands = cls.operands(a)
        dtype = result_type(operands)
        if dtype.kind not in "biu" or (dtype.kind == "b" and "shift" in cls.__name__):
            raise ShapeError(f"its operands are {dtype}, expected integers")
        return TensorSpec(broadcast(*operands), dtype)


def _register(base: type[_Table], name: str, formula: str, function: np.ufunc, kernel: str) -> None:
    arguments = (Tensor("input"), Tensor("other", number=True))[: function.nin]
    cls = type(
        name,
        (base,),
        {
            "__doc__": f"``{formula}``, element by element.\n\nSource: torch.{name}.",
            "__module__": __name__,
            "arguments": arguments,
            "function": function,
            "kernel": kernel,
        },
    )
    record(f"torch.{name}")(cls)


for _base, _rows in ((Comparison, COMPARISONS), (Logic, LOGIC), (Bits, BITS)):
    for _row in _rows:
        _register(_base, *_row)
