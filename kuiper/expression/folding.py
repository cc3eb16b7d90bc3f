"""Folding: evaluation of all that does not depend on the values of tensors.

:func:`fold` replaces shapes by numbers.  The rest becomes an
:class:`kuiper.expression.lowering.ElementwiseProgram` if all of it is float32, otherwise a
:class:`Deferred` tree for :func:`kuiper.expression.evaluation.evaluate`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kuiper._support.struct import Struct
from kuiper.errors import ExpressionError
from kuiper.expression import evaluation
from kuiper.expression.lowering import ElementwiseProgram, lower
from kuiper.expression.promotion import FLOAT32, is_number, result_dtype
from kuiper.expression.tree import Call, CustomCall, Literal, Node, Ref

__all__ = ["Deferred", "broadcast", "fold"]


class Deferred(Struct):
    """An expression for run time, evaluated on arrays.

    Attributes
    ----------
    tree : Node
        The expression after folding.
    sources : tuple of (int or numpy.ndarray)
        For each ``@k`` of `tree` the index of an operand, or a constant array.
    shape : tuple of int
    dtype : numpy.dtype
    """

    tree: Node
    sources: tuple[int | np.ndarray, ...]
    shape: tuple[int, ...]
    dtype: np.dtype

    def run(self, operands: Sequence[Any]) -> np.ndarray:
        """Compute the value from the operands.

        Parameters
        ----------
        operands : sequence
            Arrays and numbers, indexed by `sources`.

        Returns
        -------
        numpy.ndarray
        """
        values = [operands[s] if isinstance(s, int) else s for s in self.sources]
        return np.asarray(evaluation.evaluate(self.tree, values))


class _Symbol(Struct):
    """A tensor whose values are unknown while folding."""

    tree: Node
    shape: tuple[int, ...]
    dtype: np.dtype


def is_static(value: Any) -> bool:
    """Tell whether a value, rather than only its shape and dtype, is known."""
    if isinstance(value, (np.ndarray, np.generic)):
        return True
    return not (hasattr(value, "shape") and hasattr(value, "dtype"))


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape to which `shapes` broadcast.

    Raises
    ------
    ExpressionError
        If they do not broadcast.
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
    """Evaluate the known parts of an expression, and prepare the rest.

    Parameters
    ----------
    tree : Node
    operands : sequence
        The values of ``@k``: static values (number, bool, None, string, list, numpy array), or, for
        tensors computed at run time, objects with `shape` (tuple of int) and `dtype`.

    Returns
    -------
    static value, ElementwiseProgram, Deferred, or a list of these
        A static value if the result does not depend on the values of tensors.

    Raises
    ------
    ExpressionError
        As :func:`kuiper.expression.evaluation.evaluate`, as far as shapes and dtypes determine it.
    """
    kinds = None if any(map(is_static, operands)) else tuple([_kind(o) for o in operands])
    if kinds is not None and tree.folded is not None and kinds in tree.folded:
        found = tree.folded[kinds]
        # An error of the shapes needs the node at fault, which the folder finds.
        with contextlib.suppress(ExpressionError):
            return _with_shape(found, broadcast([operands[k].shape for k in found.sources]))
    folder = _Folder(operands)
    result = folder.finish(tree.transform(folder.visit))
    if kinds is not None and isinstance(result, ElementwiseProgram | Deferred):
        if tree.folded is None:
            tree.folded = {}
        if not any(map(_reads_shapes, tree.preorder())):
            tree.folded[kinds] = result
    return result


# Functions whose results depend on the extents of tensors, and not only on their ranks.
_READS_SHAPES = frozenset(["size", "int"])


def _reads_shapes(node: Node) -> bool:
    return isinstance(node, CustomCall) or (isinstance(node, Call) and node.name in _READS_SHAPES)


def _with_shape(found: ElementwiseProgram | Deferred, shape: tuple[int, ...]) -> Any:
    """Return the same result for operands of other shapes."""
    if isinstance(found, Deferred):
        return Deferred(found.tree, found.sources, shape, found.dtype)
    return ElementwiseProgram(found.sources, found.instructions, shape, found.passes)


def _kind(tensor: Any) -> tuple[Any, int]:
    """Return what the program of an expression depends on; 0-d tensors promote otherwise."""
    return tensor.dtype, len(tensor.shape)


def _zeros(symbol: _Symbol) -> np.ndarray:
    zeros = np.zeros(symbol.shape, symbol.dtype)
    zeros.flags.writeable = False  # as are the arrays of a run
    return zeros


class _Folder:
    """The state of one folding: the operands, and the constant arrays found so far."""

    def __init__(self, operands: Sequence[Any]) -> None:
        self.operands = operands
        self.constants: list[np.ndarray] = []

    def visit(self, node: Node, values: list[Any]) -> Any:
        """Return the value of a node: a static value, a symbol, or a list of values."""
        if isinstance(node, Literal):
            return node.value
        if isinstance(node, Ref):
            value = evaluation.operand(node, self.operands)
            if is_static(value):
                return value
            return _Symbol(node, tuple(value.shape), np.dtype(value.dtype))
        if isinstance(node, CustomCall):
            return self.custom_call(node, values)
        return self.call(node, values) if isinstance(node, Call) else values

    def call(self, node: Call, values: list[Any]) -> Any:
        """Apply a function to values, which may be symbols."""
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

    def custom_call(self, node: CustomCall, values: list[Any]) -> Any:
        """Apply a user's function to zeros for the tensors whose values are unknown."""
        known = [_zeros(v) if isinstance(v, _Symbol) else v for v in values]
        result = node.function(node, known)
        if not any(isinstance(value, _Symbol) for value in values):
            return result
        children = [self.residual(v) for v in values]
        plan = (result.shape, result.dtype)
        return _Symbol(node.with_plan(children, *plan), *plan)

    def residual(self, value: Any) -> Node:
        """Return the tree that computes a value in the expression after folding."""
        if isinstance(value, _Symbol):
            return value.tree
        if is_number(value):
            return Literal(value)
        self.constants.append(np.asarray(value))
        return Ref(len(self.operands) + len(self.constants) - 1)

    def finish(self, value: Any) -> Any:
        """Turn symbols, lists of them included, into programs or deferred trees."""
        if isinstance(value, list):
            # The parser limits the depth of nested lists.
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
