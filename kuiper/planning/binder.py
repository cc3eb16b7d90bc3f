"""The binder, through which a record requests memory and adds the steps of its operator."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._kernels.micro import dispatch
from kuiper._kernels.micro.packed import FLOAT_BYTES, PackedMatrix, split_memory
from kuiper._runtime.pages import PagePool, aligned_empty
from kuiper.ir import Operand, Operator, PostOp
from kuiper.ir.view import BufferKind, Layout, TensorSpec, TensorView
from kuiper.ops import find_record
from kuiper.ops.core.binder import OutputLayout
from kuiper.ops.core.schema import StaticValue
from kuiper.planning.arena import ALIGNMENT, guard_bytes
from kuiper.planning.plan import PythonStep

if TYPE_CHECKING:
    from kuiper.planning.planner import Planner

__all__ = ["Binder", "has_layout", "same_memory"]


class Binder:
    """The argument of a record's `bind`: hands out memory and takes the steps of one operator.

    Attributes
    ----------
    operator : Operator
    n_threads : int
    """

    def __init__(self, planner: Planner, operator: Operator) -> None:
        self._planner = planner
        self.operator = operator
        self.n_threads = planner.n_threads

    @property
    def post_ops(self) -> tuple[PostOp, ...]:
        """The fused elementwise operators that the steps must apply to output 0."""
        return self.operator.post_ops

    @property
    def in_bfloat16(self) -> bool:
        """Whether the precision of the model is bfloat16."""
        return self._planner.bfloat16 is not None

    @property
    def tolerates_errors(self) -> bool:
        """Whether little of the operator's errors reaches the results of the model."""
        return self.operator in self._planner.tolerant

    def output_spec(self, index: int = 0) -> TensorSpec:
        """Return the inferred shape and dtype of an output."""
        return self._planner.specs[self.operator.outputs[index]]

    def output_dtype(self, index: int = 0) -> np.dtype:
        """Return the element type in which an output is stored."""
        return self._planner.stored_dtype(self.operator.outputs[index])

    def feeds_only(self, *types: str) -> bool:
        """Tell whether only operators of these types read output 0."""
        uses = self.operator.outputs[0].uses
        return all(use.operator.type in types for use in uses)

    def operand_view(self, slot: int) -> TensorView:
        """Return the view of input number `slot`."""
        return self._planner.values[self.operator.inputs[slot]]

    def contiguous(self, value: TensorView) -> TensorView:
        """Return `value` in C order, copied if it is not."""
        return value if value.is_contiguous else self._copied(value, Layout.CONTIGUOUS)

    def channels_last(self, value: TensorView) -> TensorView:
        """Return a 4-d `value` channels-last, copied if it is not."""
        return value if value.is_channels_last else self._copied(value, Layout.CHANNELS_LAST)

    def padded_rows(self, value: TensorView) -> TensorView:
        """Return a copy in C order, with rows padded by :func:`~kuiper.ir.view.padded_row`."""
        return self._copied(value, Layout.PADDED_ROWS)

    def stored(self, value: TensorView, dtype: np.dtype) -> TensorView:
        """Return `value` in float32 or bfloat16, converted if it is in the other one."""
        return self._planner.converted(value, dtype, self.operator.name)

    def _copied(self, value: TensorView, layout: str) -> TensorView:
        return self._planner.copied(value, value.dtype, layout, self.operator.name)

    def output(
        self, index: int = 0, layout: OutputLayout = Layout.CONTIGUOUS,
        reuse: TensorView | None = None,
    ) -> TensorView:  # fmt: skip
        """Return the memory for an output.

        Parameters
        ----------
        index : int
            Number of the output.
        layout : str, sequence of int or TensorView
            A constant of :class:`~kuiper.ir.view.Layout`, the order of axes from the slowest, or a
            view whose order of axes to follow.
        reuse : TensorView, optional
            An input to overwrite, if no later step reads it.

        Returns
        -------
        TensorView
            Possibly a slice of a larger tensor, with its row stride and offset.
        """
        planner = self._planner
        operand = self.operator.outputs[index]
        spec = planner.specs[operand]
        target = planner.targets.get(operand)
        order: str | Sequence[int]
        order = _layout_of(layout, spec) if isinstance(layout, TensorView) else layout
        if order == Layout.PADDED_ROWS and target is not None:
            order = Layout.CONTIGUOUS
        if target is not None and (
            find_record(self.operator.type).joined_axis is not None or has_layout(target, order)
        ):
            planner.define(operand, target)
            return target
        if reuse is not None and target is None and self._may_overwrite(reuse, operand, order):
            value = reuse.with_layout(reuse.shape, reuse.strides)
            # The buffer changes: copies of its old content, and of others into it, are invalid.
            for key in planner.copies_of.pop(reuse.slot, ()):
                copy = planner.copies.pop(key, None)
                if copy is not None:
                    planner.copy_source.pop(copy.buffer, None)
        elif isinstance(order, str):
            value = planner.allocate(spec.shape, planner.stored_dtype(operand), order)
        else:  # a permutation of the axes
            shape = [spec.shape[d] for d in order]
            value = planner.allocate(shape, planner.stored_dtype(operand))
            value = value.permute(np.argsort(order).tolist())
        planner.define(operand, value)
        return value

    def _may_overwrite(
        self, value: TensorView, output: Operand, layout: str | Sequence[int]
    ) -> bool:
        planner = self._planner
        if (
            value.buffer.kind != BufferKind.ARENA
            or value.shape != planner.specs[output].shape
            or value.dtype != planner.stored_dtype(output)
            or not has_layout(value, layout)
            or (0 in value.strides and _repeats(value))
        ):
            return False
        inputs = set(self.operator.inputs)
        if planner.is_live(value.buffer, inputs):
            return False
        # Whatever this operator reads from the buffer must be exactly the overwritten elements.
        return all(
            not isinstance(other, TensorView)
            or other.buffer is not value.buffer
            or same_memory(other, value)
            for other in (planner.values[operand] for operand in inputs)
        )

    def alias(self, value: TensorView, index: int = 0) -> None:
        """Let an output be a view of other memory; this adds no step."""
        self._planner.define(self.operator.outputs[index], value)

    def static(self, value: Any, index: int = 0) -> None:
        """Let an output be a static value: a number, list, string or None."""
        self._planner.define(self.operator.outputs[index], StaticValue(value))

    def constant(self, array: np.ndarray) -> TensorView:
        """Return the view of a constant array."""
        return self._planner.constant_view(TensorSpec(array.shape, array.dtype, array))

    def cached(self, key: Hashable, make: Callable[[], np.ndarray]) -> TensorView:
        """Return a constant that `make` computes once per model and instruction set."""
        return self.constant(make() if self._varies() else self._cached(key, make))

    def packed(self, matrices: Sequence[PackedMatrix], fill: Callable[..., None]) -> TensorView:
        """Return packed weights, which `fill` writes once per model and instruction set.

        Parameters
        ----------
        matrices : sequence of PackedMatrix
            Of one element type; adjacent in memory, at the offsets of
            :func:`~kuiper._kernels.micro.packed.panel_offsets`.
        fill : callable
            ``fill(*arrays)`` writes one array per matrix, of the shape of the matrix.

        Returns
        -------
        TensorView
            Of the shape of a single matrix; 1-d for several.
        """

        def make() -> np.ndarray:
            n_floats = sum(m.n_bytes for m in matrices) // FLOAT_BYTES
            memory = aligned_empty((n_floats,), self._page_pool())
            typed = memory.view(matrices[0].dtype)
            fill(*split_memory(typed, matrices))
            return typed if len(matrices) > 1 else typed.reshape(matrices[0].shape)

        return self.cached(tuple([matrix.key for matrix in matrices]), make)

    def transformed(
        self, matrix: PackedMatrix, make: Callable[[bool, PagePool | None], Any], later: bool
    ) -> Any:
        """Return filters that `make` transforms once per model and instruction set.

        Parameters
        ----------
        matrix : PackedMatrix
        make : callable
            ``make(later, pool)`` returns the filters, in memory of `pool` if that is not None.
        later : bool
            Whether the model's finalizer transforms them between runs, by their method `advance`;
            see :meth:`kuiper._runtime.weights.Finalizer.defer`.
        """
        pool = self._page_pool()
        if pool is None:
            return make(False, None)
        if not later:
            return self._cached(matrix.key, lambda: make(False, pool))
        defer = self._planner.cache.finalizer.defer
        return self._cached(matrix.key, lambda: defer(make(True, pool)))

    def _page_pool(self) -> PagePool | None:
        """Return the memory of the model's weights; None for a weight of this plan only."""
        return None if self._varies() else self._planner.cache.pages

    def _cached(self, key: Hashable, make: Callable[[], Any]) -> Any:
        attributes = tuple(self.operator.attributes.values())
        full_key = (self.operator.name, key, *map(id, attributes), dispatch.active_name())
        # Keep the attributes alive, so that their ids are not reused.
        return self._planner.cache.get(full_key, lambda: (make(), attributes))[0]

    def _varies(self) -> bool:
        """Tell whether an input is constant in this plan but may differ in the next one."""
        specs = self._planner.specs
        for operand in self.operator.inputs:
            spec = specs[operand]
            if (
                isinstance(spec, TensorSpec)
                and spec.source is not None
                and operand.required_producer.type != "pnnx.Attribute"
            ):
                return True
        return False

    def scratch(self, n_bytes: int) -> TensorView:
        """Return memory of one step, of which each thread has its own copy."""
        n_bytes = -(-n_bytes // ALIGNMENT) * ALIGNMENT  # threads must not share a cache line
        share = n_bytes + guard_bytes()
        buffer = self._planner.add_buffer(share * self.n_threads, BufferKind.SCRATCH)
        buffer.bytes_per_thread = share
        return TensorView(buffer, (n_bytes,), (1,), 0, np.uint8)

    def context_state(self, n_bytes: int) -> TensorView:
        """Return per-context state: zeros before the first run, then kept from run to run."""
        buffer = self._planner.add_buffer(n_bytes, BufferKind.CONTEXT)
        return TensorView(buffer, (n_bytes,), (1,), 0, np.uint8)

    def temporary(
        self, shape: Sequence[int], dtype: Any = np.float32, layout: str = Layout.CONTIGUOUS
    ) -> TensorView:
        """Return memory that lives from the first step that uses it to the last."""
        return self._planner.allocate(shape, dtype, layout)

    def copy(self, source: TensorView, target: TensorView) -> None:
        """Add a step that copies between views of equal shape."""
        self._planner.add_copy(source, target, self.operator.name)

    def step(self, step: Any) -> None:
        """Add a step."""
        self._planner.add_step(step, self.operator.name)

    def python(
        self,
        function: Callable[..., Any],
        inputs: Sequence[TensorView],
        outputs: Sequence[TensorView],
        quiet: bool = True,
    ) -> None:
        """Add a step that calls `function` on arrays, without numpy's warnings if `quiet`."""
        self.step(PythonStep(function, inputs, outputs, self.operator.name, quiet))


def _repeats(value: TensorView) -> bool:
    return any(n > 1 and s == 0 for n, s in zip(value.shape, value.strides, strict=True))


def same_memory(a: TensorView, b: TensorView) -> bool:
    """Tell whether two views are the same elements of the same buffer in the same order."""
    return a.buffer is b.buffer and a.offset == b.offset and a.same_layout(b)


def has_layout(value: TensorView, layout: str | Sequence[int]) -> bool:
    """Tell whether a view has a layout: a word, or the order of axes from the slowest."""
    if isinstance(layout, str):
        return value.is_channels_last if layout == Layout.CHANNELS_LAST else value.is_contiguous
    return value.permute(layout).is_contiguous


def _layout_of(value: TensorView, spec: TensorSpec) -> str | tuple[int, ...]:
    """Return the layout word, or the order of axes, of an output that follows `value`."""
    if value.shape == spec.shape:
        if value.is_contiguous:
            return Layout.CONTIGUOUS
        if value.is_channels_last:
            return Layout.CHANNELS_LAST
        order = sorted(range(value.rank), key=lambda d: (-value.strides[d], d))
        return tuple(order)
    if value.rank == spec.rank == 4 and value.is_channels_last and not value.is_contiguous:
        return Layout.CHANNELS_LAST
    return Layout.CONTIGUOUS
