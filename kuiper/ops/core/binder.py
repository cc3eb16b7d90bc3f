"""The interface that a record's `bind` works with; the planner implements it on a higher floor."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:  # every record imports this module
    from kuiper._kernels.micro.packed import PackedMatrix
    from kuiper._runtime.pages import PagePool
    from kuiper.ir import Operator, PostOp
    from kuiper.ir.view import TensorSpec, TensorView

__all__ = ["Binder", "OutputLayout"]


# A `Layout`, the order of axes from the slowest, or a view whose order of axes to follow.
OutputLayout: TypeAlias = "str | Sequence[int] | TensorView"


class Binder(Protocol):
    """Hands out memory and takes steps.

    :class:`kuiper.planning.binder.Binder` documents each method.

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
    def operand_view(self, slot: int) -> TensorView: ...
    def contiguous(self, value: TensorView) -> TensorView: ...
    def channels_last(self, value: TensorView) -> TensorView: ...
    def padded_rows(self, value: TensorView) -> TensorView: ...
    def output(
        self, index: int = 0, layout: OutputLayout = ..., reuse: TensorView | None = None
    ) -> TensorView: ...
    def alias(self, value: TensorView, index: int = 0) -> None: ...
    def static(self, value: Any, index: int = 0) -> None: ...
    def constant(self, array: np.ndarray) -> TensorView: ...
    def cached(self, key: Hashable, make: Callable[[], np.ndarray]) -> TensorView: ...
    def packed(self, matrices: Sequence[PackedMatrix], fill: Callable[..., None]) -> TensorView: ...
    def transformed(
        self, matrix: PackedMatrix, make: Callable[[bool, PagePool | None], Any], later: bool
    ) -> Any: ...
    def scratch(self, n_bytes: int) -> TensorView: ...
    def context_state(self, n_bytes: int) -> TensorView: ...
    def temporary(
        self, shape: Sequence[int], dtype: Any = np.float32, layout: str = ...
    ) -> TensorView: ...
    def copy(self, source: TensorView, target: TensorView) -> None: ...
    def step(self, step: Any) -> None: ...
    def python(
        self,
        function: Callable[..., Any],
        inputs: Sequence[TensorView],
        outputs: Sequence[TensorView],
        quiet: bool = True,
    ) -> None: ...
