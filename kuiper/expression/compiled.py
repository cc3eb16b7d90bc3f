"""Expressions as functions of arrays: ``compile("add(@0,mul(@1,2))")(a, b)``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kuiper._kernels import elementwise
from kuiper.errors import ExpressionError
from kuiper.expression._syntax import ExpressionParser
from kuiper.expression.evaluation import evaluate
from kuiper.expression.lowering import Deferred, ElementwiseProgram, fold
from kuiper.expression.promotion import is_number
from kuiper.expression.tree import Node

__all__ = ["CompiledExpression", "compile"]

MAX_PROGRAMS = 64  # kept per expression; one for every combination of shapes


class _Spec:
    """The shape of a float32 array."""

    dtype = np.dtype(np.float32)

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape


class CompiledExpression:
    """A function of the operands of an expression.

    Attributes
    ----------
    tree : Node
    n_operands : int
        How many arguments a call takes.
    """

    def __init__(self, tree: Node):
        self.tree = tree
        self.n_operands = max(tree.references(), default=-1) + 1
        self._programs: dict[tuple, object] = {}

    def __call__(self, *operands):
        """Compute the expression.

        Parameters
        ----------
        *operands : array, number, bool, None, str or list
            What ``@0``, ``@1``, ... stand for.  Where all arrays are float32, arithmetic is one
            pass over memory; other dtypes follow the promotion rules of PyTorch with numpy.

        Returns
        -------
        numpy.ndarray, number, bool, None, str or list
        """
        if len(operands) < self.n_operands:
            raise ExpressionError(
                f"{len(operands)} operands given, the expression refers to {self.n_operands}",
                str(self.tree),
            )
        arrays = [x for x in operands if isinstance(x, np.ndarray)]
        if not arrays or not all(x.dtype == np.float32 and x.flags.aligned for x in arrays):
            return evaluate(self.tree, operands)
        return _run(self._folded(operands), operands)

    def _folded(self, operands: Sequence):
        key = None
        if all(isinstance(x, np.ndarray) or is_number(x) for x in operands):
            key = tuple(
                x.shape if isinstance(x, np.ndarray) else (type(x), repr(x)) for x in operands
            )
        if key in self._programs:
            return self._programs[key]
        folded = fold(
            self.tree, [_Spec(x.shape) if isinstance(x, np.ndarray) else x for x in operands]
        )
        if key is not None and len(self._programs) < MAX_PROGRAMS:
            self._programs[key] = folded
        return folded

    def __repr__(self) -> str:
        return f"compile({str(self.tree)!r})"


def _run(folded, operands: Sequence):
    """Compute what folding left; lists may hold programs."""
    if isinstance(folded, ElementwiseProgram):
        return elementwise.compute(folded, operands)
    if isinstance(folded, Deferred):
        return folded.run(operands)
    if isinstance(folded, list):
        return [_run(item, operands) for item in folded]
    return folded


def compile(expression: str | Node, *, extended: bool = True) -> CompiledExpression:
    """Make a function of an expression.

    Parameters
    ----------
    expression : str or Node
    extended : bool, default True
        Also know activations such as ``relu`` and ``silu``.

    Returns
    -------
    CompiledExpression

    Examples
    --------
    >>> import numpy as np
    >>> f = compile("add(@0,mul(@1,2))")
    >>> f(np.ones(3, np.float32), np.arange(3, dtype=np.float32))
    array([1., 3., 5.], dtype=float32)
    """
    if isinstance(expression, str):
        expression = ExpressionParser(expression, extended=extended).parse()
    return CompiledExpression(expression)
