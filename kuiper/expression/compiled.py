"""Expressions as functions of arrays: ``compile("add(@0,mul(@1,2))")(a, b)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kuiper._kernels.elementwise import elementwise
from kuiper._support.threads import get_num_threads
from kuiper.errors import ExpressionError
from kuiper.expression.evaluation import evaluate
from kuiper.expression.folding import Deferred, fold
from kuiper.expression.lowering import ElementwiseProgram
from kuiper.expression.promotion import is_number
from kuiper.expression.syntax import ExpressionParser
from kuiper.expression.tree import Node
from kuiper.ir.view import TensorSpec

__all__ = ["CompiledExpression", "compile"]

MAX_PROGRAMS = 64  # cached per expression, one for each combination of shapes and strides


class CompiledExpression:
    """A function of the operands of an expression.

    Attributes
    ----------
    tree : Node
    n_operands : int
        Number of arguments that a call takes.
    """

    def __init__(self, tree: Node) -> None:
        self.tree = tree
        self.n_operands = max(tree.references(), default=-1) + 1
        self._programs: dict[tuple[Any, ...], object] = {}
        self._prepared: dict[tuple[Any, ...], elementwise.PreparedProgram] = {}

    def __call__(self, *operands: Any, out: np.ndarray | None = None) -> Any:
        """Compute the expression.

        Parameters
        ----------
        *operands : array, number, bool, None, str or list
            The values of ``@0``, ``@1``, ...  If all arrays are float32, arithmetic takes one sweep
            over memory; other dtypes are evaluated with numpy, by PyTorch's promotion rules.
        out : numpy.ndarray, optional
            Receives the result, which must be one array; may be an operand of the same shape.

        Returns
        -------
        numpy.ndarray, number, bool, None, str or list

        Raises
        ------
        ExpressionError
            If operands are missing or have the wrong kind or shape, the result is undefined, or it
            does not have the shape of `out`.
        """
        if len(operands) < self.n_operands:
            raise ExpressionError(
                f"{len(operands)} operands given, the expression refers to {self.n_operands}",
                str(self.tree),
            )
        arrays = [x for x in operands if isinstance(x, np.ndarray)]
        if not arrays or not all(x.dtype == np.float32 and x.flags.aligned for x in arrays):
            return _stored(evaluate(self.tree, operands), out)
        key = _key(operands)
        folded = None if key is None else self._programs.get(key)
        if folded is None:
            specs = [TensorSpec(x.shape) if isinstance(x, np.ndarray) else x for x in operands]
            folded = fold(self.tree, specs)
            self._keep(self._programs, key, folded)
        if not isinstance(folded, ElementwiseProgram):
            return _stored(_run(folded, operands), out)
        if out is None or not _can_take(out, folded, arrays):
            return _stored(
                self._compute(key, folded, operands, np.empty(folded.shape, np.float32)), out
            )
        return self._compute(key, folded, operands, out)

    def _compute(
        self, key: Any, program: ElementwiseProgram, operands: Sequence[Any], out: np.ndarray
    ) -> Any:
        key = key and (
            key,
            *(x.strides for x in operands if isinstance(x, np.ndarray)),
            out.strides,
        )
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = elementwise.PreparedProgram(program, operands, out)
            self._keep(self._prepared, key, prepared)
        n_threads = min(get_num_threads(), prepared.max_shards)
        return prepared.run(operands, out, n_threads, n_threads)

    @staticmethod
    def _keep(cache: dict[Any, Any], key: Any, value: Any) -> None:
        if key is not None and len(cache) < MAX_PROGRAMS:
            cache[key] = value

    def __repr__(self) -> str:
        return f"compile({str(self.tree)!r})"


def _key(operands: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the key of a program in the cache, or None if the operands cannot have one."""
    if not all(isinstance(x, np.ndarray) or is_number(x) for x in operands):
        return None
    return tuple(x.shape if isinstance(x, np.ndarray) else (type(x), repr(x)) for x in operands)


def _can_take(out: np.ndarray, program: ElementwiseProgram, arrays: Sequence[np.ndarray]) -> bool:
    """Tell whether a program may write its result directly to `out`."""
    return (
        out.shape == program.shape
        and out.dtype == np.float32
        and out.flags.aligned
        and all(stride > 0 for stride in out.strides)
        and not any(_overlaps(out, x) for x in arrays)
    )


def _overlaps(out: np.ndarray, array: np.ndarray) -> bool:
    """Tell whether writing to `out` could change elements of `array` before they are read."""
    if out is array or not np.may_share_memory(out, array):
        return False
    same_memory = out.ctypes.data == array.ctypes.data and out.strides == array.strides
    return not (same_memory and out.shape == array.shape)


def _stored(result: Any, out: np.ndarray | None) -> Any:
    if out is None:
        return result
    if not isinstance(result, np.ndarray) or result.shape != out.shape:
        what = f"shape {result.shape}" if isinstance(result, np.ndarray) else repr(result)
        raise ExpressionError(f"the result is {what}, which out of shape {out.shape} cannot take")
    out[...] = result
    return out


def _run(folded: Any, operands: Sequence[Any]) -> Any:
    """Compute the result of folding, a list of programs included."""
    if isinstance(folded, ElementwiseProgram):
        return elementwise.compute(folded, operands)
    if isinstance(folded, Deferred):
        return folded.run(operands)
    if isinstance(folded, list):
        return [_run(item, operands) for item in folded]
    return folded


def compile(expression: str | Node, *, extended: bool = True) -> CompiledExpression:
    """Compile an expression into a function.

    Parameters
    ----------
    expression : str or Node
    extended : bool, default True
        Accept activations such as ``relu`` and ``silu``.

    Returns
    -------
    CompiledExpression

    Raises
    ------
    ExpressionError
        If the text is malformed.

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
