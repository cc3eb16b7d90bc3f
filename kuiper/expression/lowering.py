"""From a tree to something that runs: shapes become numbers, float32 arithmetic a program.

:func:`fold` evaluates whatever does not depend on the contents of tensors.  What is left is, where
it is float32 throughout, an :class:`ElementwiseProgram`: a straight line of instructions over
virtual registers that the elementwise engine runs in one pass over memory.  What is left of any
other dtype is a :class:`Deferred` tree for :func:`kuiper.expression.evaluation.evaluate`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kuiper._support.struct import Fields
from kuiper.errors import ExpressionError
from kuiper.expression import evaluation
from kuiper.expression.promotion import FLOAT32, is_number, result_dtype
from kuiper.expression.tree import Call, Literal, Node, Ref
from kuiper.expression.vocabulary import words

__all__ = [
    "Argument",
    "Deferred",
    "ElementwiseProgram",
    "Instruction",
    "broadcast",
    "fold",
    "lower",
]


class Argument(NamedTuple):
    """What an instruction reads.

    Attributes
    ----------
    kind : str
        ``"input"``, ``"register"`` or ``"constant"``.
    value : int or float
        The number of the input or register, or the constant itself.
    """

    kind: str
    value: int | float


class Instruction(NamedTuple):
    """One elementwise operation on float32; instruction number i computes register i.

    Attributes
    ----------
    name : str
        An operator of :data:`kuiper.expression.vocabulary.EXTENDED`, or ``copy``.
    arguments : tuple of Argument
        One or two.
    parameters : tuple of float
        Fixed numbers such as a slope; at most two.
    """

    name: str
    arguments: tuple[Argument, ...]
    parameters: tuple[float, ...] = ()


class ElementwiseProgram(Fields):
    """A float32 expression as a straight line of instructions.

    Attributes
    ----------
    sources : tuple of (int or numpy.ndarray)
        What feeds each input: the number of an operand, or a constant array.
    instructions : tuple of Instruction
        The last one computes the result.
    shape : tuple of int
        The shape of the result, to which every input broadcasts.
    """

    sources: tuple[int | np.ndarray, ...]
    instructions: tuple[Instruction, ...]
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype:
        """The only one that programs compute in."""
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


class Deferred(Fields):
    """An expression for run time, evaluated on arrays.

    Attributes
    ----------
    tree : Node
        What is left after folding.
    sources : tuple of (int or numpy.ndarray)
        What ``@k`` of `tree` stands for: the number of an operand, or a constant array.
    shape : tuple of int
    dtype : numpy.dtype
    """

    tree: Node
    sources: tuple[int | np.ndarray, ...]
    shape: tuple[int, ...]
    dtype: np.dtype

    def run(self, operands: Sequence[Any]) -> np.ndarray:
        """Compute the value from the values of the operands.

        Parameters
        ----------
        operands : sequence
            Arrays and numbers, for ``@0``, ``@1``, ...

        Returns
        -------
        numpy.ndarray
        """
        values = [operands[s] if isinstance(s, int) else s for s in self.sources]
        return np.asarray(evaluation.evaluate(self.tree, values))


class _Symbol(Fields):
    """A tensor whose contents are not known yet."""

    tree: Node
    shape: tuple[int, ...]
    dtype: np.dtype


def is_host(value: Any) -> bool:
    """Tell whether the value itself is known, not just its shape and dtype."""
    if isinstance(value, (np.ndarray, np.generic)):
        return True
    return not (hasattr(value, "shape") and hasattr(value, "dtype"))


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that `shapes` broadcast to.

    Raises
    ------
    ExpressionError
        If they do not.
    """
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, extent in enumerate(shape, rank - len(shape)):
            if extent != 1 and result[axis] not in (1, extent):
                raise ExpressionError(
                    f"shapes {' and '.join(str(tuple(s)) for s in shapes)} do not broadcast"
                )
            if extent != 1:
                result[axis] = extent
    return tuple(result)


def fold(tree: Node, operands: Sequence[Any]) -> Any:
    """Evaluate what is known, and prepare the rest.

    Parameters
    ----------
    tree : Node
    operands : sequence
        What ``@k`` stands for: a host value (number, bool, None, string, list, numpy array), or for
        a tensor computed at run time anything with `shape` (tuple of int) and `dtype`.

    Returns
    -------
    host value, ElementwiseProgram, Deferred, or a list of these
        A host value where no tensor's contents matter.

    Raises
    ------
    ExpressionError
        As :func:`kuiper.expression.evaluation.evaluate`, for whatever shapes and dtypes can tell.
    """
    folder = _Folder(operands)
    return folder.finish(folder.walk(tree))


class _Folder:
    """One folding: the operands, and the constant arrays met on the way."""

    def __init__(self, operands: Sequence[Any]) -> None:
        self.operands = operands
        self.constants: list[np.ndarray] = []

    def walk(self, tree: Node) -> Any:
        """Return the value of a tree: a host value, a symbol, or a list of values."""
        stack: list[Any] = []
        for node in tree.postorder():
            if isinstance(node, Literal):
                stack.append(node.value)
            elif isinstance(node, Ref):
                value = evaluation.operand(node, self.operands)
                if not is_host(value):
                    value = _Symbol(node, tuple(value.shape), np.dtype(value.dtype))
                stack.append(value)
            else:
                count = len(node.children)
                values = stack[len(stack) - count :]
                del stack[len(stack) - count :]
                stack.append(self.call(node, values) if isinstance(node, Call) else values)
        return stack[0]

    def call(self, node: Call, values: list[Any]) -> Any:
        """Apply an operator to values of which some may be symbols."""
        if not any(isinstance(value, _Symbol) for value in values):
            return evaluation.call(node, values)
        try:
            if node.name == "size":
                return evaluation.size(*values)
            for value in values:
                if not is_number(value) and not hasattr(value, "shape"):
                    raise ExpressionError(
                        f"{node.name} takes numbers and tensors, got {evaluation.describe(value)}"
                    )
            _, dtype = result_dtype(node.name, values)
            shape = broadcast([() if is_number(v) else tuple(v.shape) for v in values])
            if node.name == "int" and math.prod(shape) != 1:
                raise ExpressionError(f"int takes one element, got shape {shape}")
        except ExpressionError as error:
            raise node.error(error.message) from None
        if node.name == "int":
            shape = ()
        return _Symbol(node.with_children([self.residual(v) for v in values]), shape, dtype)

    def residual(self, value: Any) -> Node:
        """Return the tree that stands for a value in what is left."""
        if isinstance(value, _Symbol):
            return value.tree
        if is_number(value):
            return Literal(value)
        self.constants.append(np.asarray(value))
        return Ref(len(self.operands) + len(self.constants) - 1)

    def finish(self, value: Any) -> Any:
        """Turn symbols, also those inside lists, into programs or deferred trees."""
        if isinstance(value, list):
            # Lists inside lists are as deep as the text, which the parser limits.
            return [self.finish(item) for item in value]
        if not isinstance(value, _Symbol):
            return value
        order = value.tree.references()
        n_operands = len(self.operands)
        sources = tuple(k if k < n_operands else self.constants[k - n_operands] for k in order)
        tree = value.tree.substitute({k: Ref(i) for i, k in enumerate(order)})
        dtypes = [self.operands[s].dtype if isinstance(s, int) else s.dtype for s in sources]
        if value.dtype == FLOAT32 and all(dtype == FLOAT32 for dtype in dtypes):
            program = lower(tree, sources, value.shape)
            if program is not None:
                return program
        return Deferred(tree, sources, value.shape, value.dtype)


# Lowering --------------------------------------------------------------------------------------

# Casts that change nothing on float32.
_NO_OPS = frozenset(["torch.float", "torch.float32"])

_SYNONYMS = {"maximum": "max", "minimum": "min"}

_COMMUTATIVE = frozenset(["add", "mul"])

# pow with one of these exponents is what PyTorch computes as well, and far cheaper.
_POWERS = {0.5: "sqrt", 2.0: "square", -0.5: "rsqrt", -1.0: "reciprocal"}

# Operators whose arguments behind the first are numbers in the instruction, with their defaults.
_PARAMETERS: dict[str, tuple[float, ...]] = {
    "leaky_relu": (0.01,),
    "elu": (1.0,),
    "celu": (1.0,),
    "softplus": (1.0, 20.0),
    "hardshrink": (0.5,),
    "softshrink": (0.5,),
    "threshold": (0.0, 0.0),
    "nan_to": (0.0,),
    "inf_to": (0.0, 0.0),
}

# What leaves float32 on the way: casts to other dtypes and operators on integers.
_NOT_FLOAT32 = frozenset(words("int and or xor lshift rshift"))


def lower(
    tree: Node, sources: tuple[int | np.ndarray, ...], shape: tuple[int, ...]
) -> ElementwiseProgram | None:
    """Compile a float32 tree.

    Parameters
    ----------
    tree : Node
        References number the `sources`; numbers are literals.
    sources : tuple of (int or numpy.ndarray)
    shape : tuple of int

    Returns
    -------
    ElementwiseProgram or None
        None where an intermediate value is not float32.
    """
    builder = _Builder()
    values: dict[int, Argument] = {}  # by id of the node
    for node in _evaluation_order(tree):
        if isinstance(node, Ref):
            values[id(node)] = Argument("input", node.index)
        elif isinstance(node, Literal):
            if isinstance(node.value, complex):
                return None
            values[id(node)] = Argument("constant", to_float32(node.value))
        elif isinstance(node, Call) and node.name in _NO_OPS:
            values[id(node)] = values[id(node.children[0])]
        elif isinstance(node, Call) and not (
            node.name in _NOT_FLOAT32 or node.name.startswith("torch.")
        ):
            try:
                arguments = [values[id(child)] for child in node.children]
                values[id(node)] = builder.call(node.name, arguments)
            except ExpressionError as error:
                raise node.error(error.message) from None
        else:
            return None
    return ElementwiseProgram(sources, builder.finish(values[id(tree)]), shape)


def _evaluation_order(tree: Node) -> list[Node]:
    """List nodes, children before parents, so that few results have to be kept at a time.

    Of two children the one that needs more temporaries comes first: while it is computed, nothing
    of the other one waits (Sethi and Ullman, 1970).
    """
    needs: dict[int, int] = {}
    for node in tree.postorder():
        wanted = sorted((needs[id(child)] for child in node.children), reverse=True)
        # Each further child is computed while the results of those before it wait.
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
    """Emits instructions, computing equal ones once."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.known: dict[tuple[Any, ...], Argument] = {}

    def emit(self, name: str, *arguments: Argument, parameters: tuple[float, ...] = ()) -> Argument:
        """Add an instruction, or find the one that computes the same."""
        if name in _COMMUTATIVE:
            arguments = tuple(sorted(arguments))
        # repr keeps 0.0 and -0.0 apart, which compare equal.
        key = (name, repr(arguments), repr(parameters))
        if key not in self.known:
            self.instructions.append(Instruction(name, arguments, parameters))
            self.known[key] = Argument("register", len(self.instructions) - 1)
        return self.known[key]

    def call(self, name: str, arguments: list[Argument]) -> Argument:
        """Emit an operator of the language."""
        name = _SYNONYMS.get(name, name)
        if name in _PARAMETERS:
            return self.parametric(name, arguments)
        if name == "clamp":
            return self.clamp(*arguments)
        if name == "relu6":
            return self.clamp(arguments[0], Argument("constant", 0.0), Argument("constant", 6.0))
        last = arguments[-1]
        if _is_identity(name, last):
            return arguments[0]
        if name == "pow" and last.kind == "constant" and last.value in _POWERS:
            return self.emit(_POWERS[last.value], arguments[0])
        if name == "pow" and last.kind == "constant" and last.value == 3.0:
            return self.emit("mul", self.emit("square", arguments[0]), arguments[0])
        if name == "div" and last.kind == "constant" and _has_exact_reciprocal(last.value):
            return self.emit("mul", arguments[0], Argument("constant", 1.0 / last.value))
        return self.emit(name, *arguments)

    def parametric(self, name: str, arguments: list[Argument]) -> Argument:
        """Emit an operator with fixed numbers behind its argument."""
        defaults = _PARAMETERS[name]
        given = arguments[1:]
        if any(argument.kind != "constant" for argument in given):
            raise ExpressionError(f"the parameters of {name} must be numbers")
        parameters = tuple(float(a.value) for a in given) + defaults[len(given) :]
        return self.emit(name, arguments[0], parameters=parameters)

    def clamp(self, x: Argument, low: Argument, high: Argument) -> Argument:
        """Emit one instruction for fixed bounds, two for tensors."""
        if low.kind == high.kind == "constant":
            return self.emit("clamp", x, parameters=(float(low.value), float(high.value)))
        return self.emit("min", self.emit("max", x, low), high)

    def finish(self, result: Argument) -> tuple[Instruction, ...]:
        """Drop what the result does not need and number the rest."""
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
                    Argument("register", number[a.value]) if a.kind == "register" else a
                    for a in instruction.arguments
                )
            )
            for index, instruction in enumerate(self.instructions)
            if index in needed
        )


# Operators that change nothing with this constant behind, not even NaN or the sign of 0.
_NEUTRAL = {"mul": 1.0, "div": 1.0, "pow": 1.0, "sub": 0.0, "add": -0.0}


def _is_identity(name: str, last: Argument) -> bool:
    neutral = _NEUTRAL.get(name)
    # repr tells -0 from 0: x + 0 turns -0 into 0, x + -0 does not.
    return neutral is not None and last.kind == "constant" and repr(last.value) == repr(neutral)


def _has_exact_reciprocal(value: float) -> bool:
    """Tell whether multiplying by 1 / value gives the same bits as dividing by value."""
    return (
        math.isfinite(value)
        and value != 0
        and math.frexp(abs(value))[0] == 0.5
        and (2.0**-120 < abs(value) < 2.0**120)
    )
