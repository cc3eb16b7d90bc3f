"""Programs of elementwise functions on elements of any type, and their construction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kuiper._kernels.elementwise.typed import TYPES, TypedStep, is_possible
from kuiper.expression import Call, Literal, Node, Ref
from kuiper.expression.functions import EXTENDED
from kuiper.expression.promotion import is_number, result_dtype
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import BufferKind, Layout, TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import convert

__all__ = ["TypedProgram", "bind_function", "cast", "has_kernels", "typed_program", "write_cast"]

BOOL = np.dtype(np.bool_)
FLOAT32 = np.dtype(np.float32)


def has_kernels(*dtypes: np.dtype) -> bool:
    """Whether elements of all these types have kernels, as all real types do."""
    return all(dtype.name in TYPES for dtype in dtypes)


class TypedProgram:
    """A program under construction; `load` and `call` return names of values.

    Parameters
    ----------
    b : Binder
    """

    def __init__(self, b: Binder) -> None:
        self.b = b
        self.inputs: list[tuple[TensorView, np.dtype]] = []
        self.instructions: list[tuple[str, np.dtype, tuple[Any, ...]]] = []

    def load(self, operand: Any, dtype: np.dtype) -> tuple[str, int]:
        """Add an input: a number or tensor in a type.  A constant is converted at once."""
        if is_number(operand) or operand.constant is not None:
            operand = cast(self.b, operand, dtype)
        self.inputs.append((operand, dtype))
        return "input", len(self.inputs) - 1

    def call(self, name: str, dtype: np.dtype, *arguments: tuple[str, int]) -> tuple[str, int]:
        """Apply a function of :mod:`kuiper._kernels.elementwise.typed` to values of a type."""
        self.instructions.append((name, dtype, arguments))
        return "result", len(self.instructions) - 1

    def _numbered(self) -> list[tuple[str, np.dtype, tuple[int, ...]]]:
        count = len(self.inputs)
        return [
            (name, dtype, tuple(n if kind == "input" else count + n for kind, n in arguments))
            for name, dtype, arguments in self.instructions
        ]

    @property
    def is_possible(self) -> bool:
        """Whether it is short enough for a step."""
        return is_possible(len(self.inputs), self._numbered())

    def step(self, y: TensorView) -> TypedStep:
        """Return the step that writes the last value to `y`."""
        inputs = [(value.expand(y.shape), dtype) for value, dtype in self.inputs]
        return TypedStep(inputs, self._numbered(), y)

    def finish(self) -> None:
        """Bind output 0 to the last value, in the layout of the first operand of its shape."""
        shape = self.b.output_spec().shape
        whole = [
            v for v, _ in self.inputs if v.shape == shape and v.buffer.kind != BufferKind.CONSTANT
        ]
        like = next((v for v in whole if not v.is_contiguous), Layout.CONTIGUOUS)
        output = self.b.output(layout=like)
        y = self.b.temporary(shape) if output.dtype == BFLOAT16 else output
        self.b.step(self.step(y))
        if y is not output:
            self.b.copy(y, output)


def bind_function(b: Binder, name: str, dtype: np.dtype, operands: Sequence[Any]) -> None:
    """Bind output 0 to a function of one or two operands, computed in a type."""
    program = TypedProgram(b)
    program.call(name, dtype, *[program.load(operand, dtype) for operand in operands])
    program.finish()


def cast(b: Binder, value: Any, dtype: np.dtype) -> TensorView:
    """Return a number or tensor as a tensor of another dtype; a constant needs no step."""
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


def write_cast(b: Binder, value: TensorView, y: TensorView) -> None:
    """Add the step that broadcasts a tensor to `y` and casts it to its dtype."""
    if has_kernels(value.dtype, y.dtype):
        b.step(TypedStep([(value.expand(y.shape), y.dtype)], [], y))
    else:
        dtype, shape = y.dtype, y.shape
        b.python(lambda array: np.broadcast_to(convert(array, dtype), shape), [value], [y])


# -- expressions -------------------------------------------------------------------------------

# The logical functions that arithmetic on bools stands for.
_OF_BOOLS = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}

_ROUNDING = frozenset(["floor", "ceil", "trunc", "round"])


class _Impossible(Exception):
    """An expression has a function or type without a kernel."""


def typed_program(b: Binder, tree: Node, operands: Sequence[TensorView]) -> TypedProgram | None:
    """Return the program of an expression over tensors of any type.

    Parameters
    ----------
    b : Binder
    tree : Node
        References are indices of operands.
    operands : sequence of TensorView

    Returns
    -------
    TypedProgram or None
        None if a function or type in it has no kernel, or it is too long for a step.
    """
    try:
        program = _Lowering(b, operands).run(tree)
    except _Impossible:
        return None
    return program if program.is_possible else None


class _Lowering:
    """The translation of a tree to instructions, with PyTorch's type promotion."""

    def __init__(self, b: Binder, operands: Sequence[TensorView]) -> None:
        self.program = TypedProgram(b)
        self.operands = operands
        self.loaded: dict[tuple[Any, np.dtype], tuple[str, int]] = {}
        self.names: dict[int, tuple[str, int]] = {}  # of results, by id of their specs
        self.known: list[TensorSpec] = []  # the specs of results

    def run(self, tree: Node) -> TypedProgram:
        if not isinstance(tree.transform(self.visit), TensorSpec):
            raise _Impossible
        return self.program

    def visit(self, node: Node, values: list[Any]) -> Any:
        if isinstance(node, Ref):
            return self.operands[node.index]
        if isinstance(node, Call):
            return self.call(node.name, values)
        if isinstance(node, Literal) and isinstance(node.value, bool | int | float):
            return node.value
        raise _Impossible

    def argument(self, value: Any, dtype: np.dtype) -> tuple[str, int]:
        """Return the name of a value in a type."""
        if isinstance(value, TensorSpec):
            name = self.names[id(value)]
            return name if value.dtype == dtype else self.program.call("convert", dtype, name)
        # repr distinguishes 0.0 from -0.0 and 1 from True, which compare equal.
        key = (repr(value) if is_number(value) else id(value)), dtype
        if key not in self.loaded:
            self.loaded[key] = self.program.load(value, dtype)
        return self.loaded[key]

    def call(self, name: str, values: list[Any]) -> Any:
        if name in ("int", "size") or all(map(is_number, values)):
            raise _Impossible
        dtype, result = result_dtype(name, values)
        if not has_kernels(dtype, result, *(v.dtype for v in values if not is_number(v))):
            raise _Impossible
        x, *others = [self.argument(value, dtype) for value in values]
        function = EXTENDED.get(name)  # None for a cast
        if function is None or (name in _ROUNDING and dtype.kind in "iu"):
            found = x if x[0] == "result" else self.program.call("convert", dtype, x)
        elif function.typed and others:
            found = self.binary(function.typed, dtype, x, others[0], values[1])
        elif name == "neg":
            found = self.program.call("multiply", dtype, x, self.argument(-1, dtype))
        elif function.typed:
            found = self.program.call(function.typed, dtype, x)
        elif name == "square":
            found = self.program.call("multiply", dtype, x, x)
        elif function.is_of_one_vector and dtype == FLOAT32:
            found = self.program.call(name, dtype, x)
        else:
            raise _Impossible
        self.known.append(TensorSpec((1,) * _rank(values), result))
        self.names[id(self.known[-1])] = found
        return self.known[-1]

    def binary(
        self, name: str, dtype: np.dtype, x: tuple[str, int], y: tuple[str, int], divisor: Any
    ) -> tuple[str, int]:
        if dtype == BOOL:
            name = _OF_BOOLS.get(name, name)
        # The integer kernel cannot report a division by 0.
        if name in ("floor_divide", "remainder") and (
            dtype.kind not in "iu" or not is_number(divisor) or not convert(divisor, dtype)
        ):
            raise _Impossible
        return self.program.call(name, dtype, x, y)


def _rank(values: Sequence[Any]) -> int:
    """Return the rank of the broadcast values; type promotion needs no more of the shape."""
    return max(len(value.shape) for value in values if not is_number(value))
