"""What a record's `bind` works with, as a type: the planner is on a higher floor."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from kuiper._kernels.micro.packed import PackedMatrix
from kuiper.ir import Operator, PostOp
from kuiper.ir.view import TensorSpec, Value

__all__ = ["Binder", "Layout"]


# A word, the order of axes from the slowest, or a value whose order of axes to follow.
Layout: TypeAlias = "str | Sequence[int] | Value"


class Binder(Protocol):
    """Hands out memory and takes steps.

    :class:`kuiper.planning.planner.Binder` documents each method.

    Attributes
    ----------
    operator : Operator
        The one being bound.
    n_threads : int
    post_ops : tuple of PostOp
        The fused elementwise steps that the operator has to apply to its output.
    """

    operator: Operator
    n_threads: int

    @property
    def post_ops(self) -> tuple[PostOp, ...]: ...
    def output_spec(self, index: int = 0) -> TensorSpec: ...
    def feeds_only(self, *types: str) -> bool: ...
    def operand_value(self, slot: int) -> Value: ...
    def contiguous(self, value: Value) -> Value: ...
    def channels_last(self, value: Value) -> Value: ...
    def spaced_rows(self, value: Value) -> Value: ...
    def output(
        self, index: int = 0, layout: Layout = "contiguous", reuse: Value | None = None
    ) -> Value: ...
    def alias(self, value: Value, index: int = 0) -> None: ...
    def host(self, value: Any, index: int = 0) -> None: ...
    def constant(self, array: np.ndarray) -> Value: ...
    def cached(self, key: Hashable, make: Callable[[], np.ndarray]) -> Value: ...
    def packed(self, matrices: Sequence[PackedMatrix], fill: Callable[..., None]) -> Value: ...
    def transformed(
        self, matrix: PackedMatrix, make: Callable[[bool], Any], later: bool
    ) -> Any: ...
    def scratch(self, n_bytes: int) -> Value: ...
    def own(self, n_bytes: int) -> Value: ...
    def temporary(
        self, shape: Sequence[int], dtype: Any = np.float32, layout: str = "contiguous"
    ) -> Value: ...
    def copy(self, source: Value, target: Value) -> None: ...
    def step(self, step: Any) -> None: ...
    def python(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        quiet: bool = True,
    ) -> None: ...
