"""Lowering: a float32 tree becomes a program for the elementwise kernels.

An :class:`ElementwiseProgram` is a straight line of instructions over virtual registers; the
kernels run it in one sweep over memory.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kuiper._support.struct import Struct
from kuiper.errors import ExpressionError
from kuiper.expression.functions import FUNCTIONS, Function
from kuiper.expression.promotion import FLOAT32
from kuiper.expression.tree import Call, Literal, Node, Ref

__all__ = ["ElementwiseProgram", "Instruction", "ProgramValue", "lower"]


class ProgramValue(NamedTuple):
    """An argument of an instruction.

    Attributes
    ----------
    kind : str
        ``"input"``, ``"register"`` or ``"constant"``.
    value : int or float
        The index of the input or register, or the constant itself.
    """

    kind: str
    value: int | float


class Instruction(NamedTuple):
    """One elementwise function of float32; instruction i computes register i.

    Attributes
    ----------
    name : str
        A key of :data:`kuiper.expression.functions.FUNCTIONS` with a float32 kernel.
    arguments : tuple of ProgramValue
        One or two.
    parameters : tuple of float
        Fixed numbers such as a slope; at most two.
    """

    name: str
    arguments: tuple[ProgramValue, ...]
    parameters: tuple[float, ...] = ()


class ElementwiseProgram(Struct):
    """A float32 expression as a straight line of instructions.

    Attributes
    ----------
    sources : tuple of (int or numpy.ndarray)
        For each input the index of an operand, or a constant array.
    instructions : tuple of Instruction
        The last one computes the result.
    shape : tuple of int
        The shape of the result; every input broadcasts to it.
    passes : dict
        What the kernel finds out about the instructions, for programs of other shapes as well.
    """

    sources: tuple[int | np.ndarray, ...]
    instructions: tuple[Instruction, ...]
    shape: tuple[int, ...]
    passes: dict[Any, Any]

    @property
    def dtype(self) -> np.dtype:
        """The dtype of every program."""
        return FLOAT32

    def __str__(self) -> str:
        """List the instructions in a readable form."""
        letter = {"input": "in", "register": "r"}
        lines = []
        for number, step in enumerate(self.instructions):
            arguments = [
                repr(a.value) if a.kind == "constant" else f"{letter[a.kind]}{a.value}"
                for a in step.arguments
            ]
            arguments += [f"{p!r}" for p in step.parameters]
            lines.append(f"r{number} = {step.name}({', '.join(arguments)})")
        return "\n".join(lines)


# Casts that change nothing on float32.
_NO_OPS = frozenset(["torch.float", "torch.float32"])

_COMMUTATIVE = frozenset(["add", "mul"])

# PyTorch replaces pow by these functions too; they are far cheaper.
_POWERS = {0.5: "sqrt", 2.0: "square", -0.5: "rsqrt", -1.0: "reciprocal"}


def lower(
    tree: Node, sources: tuple[int | np.ndarray, ...], shape: tuple[int, ...]
) -> ElementwiseProgram | None:
    """Compile a float32 tree.

    Parameters
    ----------
    tree : Node
        References index the `sources`.
    sources : tuple of (int or numpy.ndarray)
    shape : tuple of int

    Returns
    -------
    ElementwiseProgram or None
        None if an intermediate value is not float32.

    Raises
    ------
    ExpressionError
        If the parameter of a function is not a number.
    """
    builder = _Builder()
    values: dict[int, ProgramValue] = {}  # by id of the node
    for node in _evaluation_order(tree):
        if isinstance(node, Ref):
            values[id(node)] = ProgramValue("input", node.index)
        elif isinstance(node, Literal):
            if isinstance(node.value, complex):
                return None
            values[id(node)] = ProgramValue("constant", to_float32(node.value))
        elif isinstance(node, Call) and node.name in _NO_OPS:
            values[id(node)] = values[id(node.children[0])]
        else:
            function = FUNCTIONS.get(node.text) if isinstance(node, Call) else None
            if function is None or not (function.vector or function.same_as):
                return None
            try:
                arguments = [values[id(child)] for child in node.children]
                values[id(node)] = builder.call(function, arguments)
            except ExpressionError as error:
                raise node.error(error.message) from None
    return ElementwiseProgram(sources, builder.finish(values[id(tree)]), shape, {})


def _evaluation_order(tree: Node) -> list[Node]:
    """List nodes, children before parents, in an order that keeps few temporaries live.

    The child that needs more temporaries comes first, before the result of the other one is live
    (Sethi and Ullman, 1970).
    """
    needs: dict[int, int] = {}
    for node in tree.postorder():
        wanted = sorted((needs[id(child)] for child in node.children), reverse=True)
        # The results of earlier children are live while a later child is computed.
        own = 1 if node.children else 0
        needs[id(node)] = max([own, *(need + waiting for waiting, need in enumerate(wanted))])
    order: list[Node] = []
    stack = [(tree, False)]
    while stack:
        node, is_open = stack.pop()
        if is_open or not node.children:
            order.append(node)
            continue
        stack.append((node, True))
        by_need = sorted(node.children, key=lambda child: needs[id(child)], reverse=True)
        stack.extend((child, False) for child in reversed(by_need))
    return order


def to_float32(value: Any) -> float:
    """Round a number to float32, overflowing to infinity."""
    with np.errstate(all="ignore"):
        return float(np.float32(value))


class _Builder:
    """Emits instructions; equal ones only once."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.known: dict[tuple[Any, ...], ProgramValue] = {}

    def emit(
        self, name: str, *arguments: ProgramValue, parameters: tuple[float, ...] = ()
    ) -> ProgramValue:
        """Add an instruction unless there is an equal one; return its register."""
        if name in _COMMUTATIVE:
            arguments = tuple(sorted(arguments))
        # repr keeps 0.0 and -0.0 apart, which compare equal.
        key = (name, repr(arguments), repr(parameters))
        if key not in self.known:
            self.instructions.append(Instruction(name, arguments, parameters))
            self.known[key] = ProgramValue("register", len(self.instructions) - 1)
        return self.known[key]

    def call(self, function: Function, arguments: list[ProgramValue]) -> ProgramValue:
        """Emit a function of the language."""
        if function.same_as:
            name, *constants = function.same_as
            function = FUNCTIONS[name]
            arguments = [*arguments, *(ProgramValue("constant", c) for c in constants)]
        name = function.name
        if function.parameters:
            return self.parametric(function, arguments)
        if name == "clamp":
            return self.clamp(*arguments)
        last = arguments[-1]
        if _is_identity(name, last):
            return arguments[0]
        if name == "pow" and last.kind == "constant" and last.value in _POWERS:
            return self.emit(_POWERS[last.value], arguments[0])
        if name == "pow" and last.kind == "constant" and last.value == 3.0:
            return self.emit("mul", self.emit("square", arguments[0]), arguments[0])
        if name == "div" and last.kind == "constant" and _has_exact_reciprocal(last.value):
            return self.emit("mul", arguments[0], ProgramValue("constant", 1.0 / last.value))
        return self.emit(name, *arguments)

    def parametric(self, function: Function, arguments: list[ProgramValue]) -> ProgramValue:
        """Emit a function whose arguments after the first are fixed numbers."""
        given = arguments[1:]
        if any(argument.kind != "constant" for argument in given):
            raise ExpressionError(f"the parameters of {function.name} must be numbers")
        numbers = [argument.value for argument in given] + [*function.parameters[len(given) :]]
        # Only a tree made by hand can lack a number without a default.
        parameters = tuple(float(number or 0.0) for number in numbers)
        return self.emit(function.name, arguments[0], parameters=parameters)

    def clamp(self, x: ProgramValue, low: ProgramValue, high: ProgramValue) -> ProgramValue:
        """Emit one instruction for fixed bounds, two for tensors."""
        if low.kind == high.kind == "constant":
            return self.emit("clamp", x, parameters=(float(low.value), float(high.value)))
        return self.emit("min", self.emit("max", x, low), high)

    def finish(self, result: ProgramValue) -> tuple[Instruction, ...]:
        """Remove instructions that the result does not need, and renumber the rest."""
        if result.kind != "register":
            result = self.emit("copy", result)
        needed = {result.value}
        for index in range(int(result.value), -1, -1):
            if index in needed:
                needed.update(
                    a.value for a in self.instructions[index].arguments if a.kind == "register"
                )
        number = {index: i for i, index in enumerate(sorted(needed))}
        return tuple(
            instruction._replace(
                arguments=tuple(
                    ProgramValue("register", number[a.value]) if a.kind == "register" else a
                    for a in instruction.arguments
                )
            )
            for index, instruction in enumerate(self.instructions)
            if index in needed
        )


# The second operand with which a function returns the first one unchanged, NaN and the sign of 0
# included.
_NEUTRAL = {"mul": 1.0, "div": 1.0, "pow": 1.0, "sub": 0.0, "add": -0.0}


def _is_identity(name: str, last: ProgramValue) -> bool:
    neutral = _NEUTRAL.get(name)
    # repr distinguishes -0 from 0: x + 0 turns -0 into 0, but x + -0 does not.
    return neutral is not None and last.kind == "constant" and repr(last.value) == repr(neutral)


def _has_exact_reciprocal(value: float) -> bool:
    """Tell whether multiplication by 1 / value gives the bits of division by value."""
    return (
        math.isfinite(value)
        and value != 0
        and math.frexp(abs(value))[0] == 0.5
        and (2.0**-120 < abs(value) < 2.0**120)
    )
