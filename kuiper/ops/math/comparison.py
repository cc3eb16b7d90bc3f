"""Comparisons, logic and bitwise functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.expression.promotion import is_number, result_type
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord, broadcast, convert
from kuiper.ops.core.record import T, define_record
from kuiper.ops.core.schema import Known, Tensor, schema
from kuiper.ops.core.typed import bind_function, has_kernels

__all__ = ["BITS", "COMPARISONS", "LOGIC"]

# Rows of (PyTorch's name, formula, numpy's function, kernel); a kernel with a star takes the
# operands in reverse order.
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


class _Table(KernelRecord[T]):
    """Base of the records made from the tables."""

    batch = "elementwise"
    layout = Layout.LIKE
    function: np.ufunc
    kernel: str

    def operands(self: _Table[Any]) -> list[Any]:
        return [getattr(self, argument.name) for argument in self.arguments]

    def computed_in(self: _Table[Any]) -> np.dtype:
        """Return the dtype that the operands are converted to."""
        return result_type(self.operands())

    def compute(self: _Table[np.ndarray]) -> Any:
        dtype = self.computed_in()
        return type(self).function(*(convert(operand, dtype) for operand in self.operands()))

    def steps(self: _Table[TensorView], b: Binder) -> None:
        operands, dtype = self.operands(), self.computed_in()
        # There is no `not` kernel: it is the exclusive or with all bits.
        if len(operands) == 1:
            operands.append(True if dtype == BOOL else -1)
        if self.kernel.startswith("*"):
            operands.reverse()
        tensors = [operand.dtype for operand in operands if not is_number(operand)]
        if has_kernels(dtype, *tensors):
            bind_function(b, self.kernel.removeprefix("*"), dtype, operands)
        else:
            self.in_numpy(b)


class Comparison(_Table[T]):
    """Base of the records made from :data:`COMPARISONS`."""

    input: Any
    other: Any

    def result(self: Comparison[TensorSpec]) -> TensorSpec:
        return TensorSpec(broadcast(self.input, self.other), BOOL)


class Logic(_Table[T]):
    """Base of the records made from :data:`LOGIC`; nonzero numbers are true."""

    def computed_in(self: Logic[Known]) -> np.dtype:
        return BOOL

    def result(self: Logic[TensorSpec]) -> TensorSpec:
        return TensorSpec(broadcast(*self.operands()), BOOL)


class Bits(_Table[T]):
    """Base of the records made from :data:`BITS`, which for bools are logic."""

    def result(self: Bits[TensorSpec]) -> TensorSpec:
        operands = self.operands()
        dtype = result_type(operands)
        if dtype.kind not in "biu" or (dtype.kind == "b" and "shift" in type(self).__name__):
            raise ShapeError(f"its operands are {dtype}, expected integers")
        return TensorSpec(broadcast(*operands), dtype)


for _base, _rows in ((Comparison, COMPARISONS), (Logic, LOGIC), (Bits, BITS)):
    for _name, _formula, _function, _kernel in _rows:
        define_record(
            _base,
            f"torch.{_name}",
            f"``{_formula}``, element by element",
            arguments=schema(input=Tensor(), other=Tensor(number=True))[: _function.nin],
            function=_function,
            kernel=_kernel,
        )
