"""Programs of elementwise functions of any type, as records write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kuiper._kernels.typed import TYPES, TypedStep
from kuiper._value import Value
from kuiper.expression.promotion import is_number
from kuiper.ops._binder import Binder
from kuiper.ops._numpy import convert

__all__ = ["TypedProgram", "bind_function", "cast", "has_kernels", "write_cast"]


def has_kernels(*dtypes: np.dtype) -> bool:
    """Tell whether elements of all these types have kernels: all real ones have."""
    return all(dtype.name in TYPES for dtype in dtypes)


class TypedProgram:
    """A program while it is written.

    Values are named by what `load` and `call` return.

    Parameters
    ----------
    b : Binder
    """

    def __init__(self, b: Binder) -> None:
        self.b = b
        self.inputs: list[tuple[Value, np.dtype]] = []
        self.instructions: list[tuple[str, np.dtype, tuple[Any, ...]]] = []

    def load(self, operand: Any, dtype: np.dtype) -> tuple[str, int]:
        """Take a number or tensor in a type; what is known is converted now."""
        if is_number(operand) or operand.constant is not None:
            operand = cast(self.b, operand, dtype)
        self.inputs.append((operand, dtype))
        return "input", len(self.inputs) - 1

    def call(self, name: str, dtype: np.dtype, *arguments: tuple[str, int]) -> tuple[str, int]:
        """Apply a function of :mod:`kuiper._kernels.typed` to values of a type."""
        self.instructions.append((name, dtype, arguments))
        return "result", len(self.instructions) - 1

    def step(self, y: Value) -> TypedStep:
        """Return the step that writes the last value to `y`."""
        count = len(self.inputs)
        instructions = [
            (name, dtype, tuple(n if kind == "input" else count + n for kind, n in arguments))
            for name, dtype, arguments in self.instructions
        ]
        inputs = [(value.expand(y.shape), dtype) for value, dtype in self.inputs]
        return TypedStep(inputs, instructions, y)

    def finish(self) -> None:
        """Bind output 0 to the last value; it lies like the first operand of its shape."""
        shape = self.b.output_spec().shape
        whole = [v for v, _ in self.inputs if v.shape == shape and v.buffer.kind != "constant"]
        like = next((v for v in whole if not v.is_contiguous), "contiguous")
        self.b.step(self.step(self.b.output(layout=like)))


def bind_function(b: Binder, name: str, dtype: np.dtype, operands: Sequence[Any]) -> None:
    """Bind output 0 to a function of one or two numbers and tensors, computed in a type."""
    program = TypedProgram(b)
    program.call(name, dtype, *[program.load(operand, dtype) for operand in operands])
    program.finish()


def cast(b: Binder, value: Any, dtype: np.dtype) -> Value:
    """Return a number or tensor as a tensor of another dtype; what is known costs no step."""
    if is_number(value):
        return b.constant(np.require(convert(value, dtype), requirements="C"))
    if value.dtype == dtype:
        return value
    if value.constant is not None:
        known = np.asarray(value.constant, value.dtype)
        return b.constant(np.require(convert(known, dtype), requirements="C"))
    other = b.temporary(value.shape, dtype)
    write_cast(b, value, other)
    return other


def write_cast(b: Binder, value: Value, y: Value) -> None:
    """Add the step that writes a tensor, repeated to `y`'s shape, to `y` as its dtype."""
    if has_kernels(value.dtype, y.dtype):
        b.step(TypedStep([(value.expand(y.shape), y.dtype)], [], y))
    else:
        dtype, shape = y.dtype, y.shape
        b.python(lambda array: np.broadcast_to(convert(array, dtype), shape), [value], [y])
