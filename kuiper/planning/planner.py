"""The planner: makes a plan from a graph and the shapes of its inputs.

It makes four passes over the graph, each in topological order:

1. *Infer* (:mod:`kuiper.planning.infer`) the shape and dtype of every operand that the graph passes
   have left without.
2. *Alias* operands: give them a target in the memory of another one.  The inputs of a concatenation
   are written into its output, the results of the model into the caller's arrays.
3. *Bind* (:mod:`kuiper.planning.binder`): the record of each operator adds its steps and chooses
   the layout of its outputs; views add no step.
4. *Arrange* (:mod:`kuiper.planning.arena`) the buffers of the arena: those whose lifetimes overlap
   do not overlap in memory.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from kuiper._runtime.executor import ArenaPool
from kuiper._runtime.weights import WeightCache
from kuiper._support.memory import memory_text
from kuiper.errors import OperatorError, ShapeError
from kuiper.expression.functions import CUSTOM
from kuiper.ir import Graph, Operand, Operator
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import (
    Buffer,
    BufferKind,
    Layout,
    Source,
    TensorSpec,
    TensorView,
    channels_last_strides,
    contiguous_strides,
    padded_row,
)
from kuiper.ops import find_record, record_or_none
from kuiper.ops.core.resolve import resolve
from kuiper.ops.core.schema import StaticValue
from kuiper.planning.arena import arrange, guard_bytes
from kuiper.planning.binder import Binder, has_layout, same_memory
from kuiper.planning.infer import (
    attribute_specs,
    call_record,
    check_sizes,
    infer_outputs,
    leaf_operands,
    tensors_in,
)
from kuiper.planning.plan import Plan
from kuiper.planning.storage import bfloat16_operands, float32_reasons, takes_bfloat16
from kuiper.planning.tolerance import tolerant_operators

FLOAT32 = np.dtype(np.float32)

# Products read four bytes at a time, and up to three beyond the last one of a tensor.
QUAD_BYTES = 4

__all__ = ["make_plan"]


def make_plan(
    graph: Graph,
    inputs: Mapping[Operand, TensorSpec],
    n_threads: int,
    cache: WeightCache | None = None,
    arenas: ArenaPool | None = None,
    max_memory: int = sys.maxsize,
    specs: Mapping[Operand, Any] | None = None,
    attributes: Mapping[Operator, Mapping[str, TensorSpec]] | None = None,
    precision: str = "float32",
) -> Plan:
    """Compile a graph for given input shapes.

    Parameters
    ----------
    graph : Graph
        After the passes.
    inputs : mapping of Operand to (TensorSpec or StaticValue)
        One entry per graph input.  Constants and static values are not inputs of the plan; each
        tensor in a list is one.
    n_threads : int
    cache : WeightCache, optional
        The packed weights of the model.
    arenas : ArenaPool, optional
        The arenas of the model.
    max_memory : int
        Maximum size of the operands of a run, in bytes.
    specs : mapping of Operand to (TensorSpec or StaticValue), optional
        Specs of operands that need not be inferred, `inputs` included; passes keep them up to date.
    attributes : mapping of Operator to dict, optional
        The specs of the weights of all operators.
    precision : str
        ``"float32"``, or ``"bfloat16"`` to store operands in it; see
        :mod:`kuiper.planning.storage`.

    Returns
    -------
    Plan

    Raises
    ------
    OperatorError, ShapeError
        If an operator does not support its inputs, or the plan exceeds `max_memory`.
    """
    planner = Planner(graph, inputs, n_threads, WeightCache() if cache is None else cache)
    planner.infer({} if specs is None else specs, attributes)
    if precision == "bfloat16":
        planner.choose_storage()
    return planner.plan(ArenaPool() if arenas is None else arenas, max_memory)


class Planner:
    """The state of planning one graph.

    Attributes
    ----------
    specs : dict of Operand to (TensorSpec or StaticValue)
    values : dict of Operand to (TensorView or StaticValue)
        Of the operators that are bound.
    targets : dict of Operand to TensorView
        Memory of another tensor that an operand is written to.
    pending : dict of Operand to int
        Number of consumers that are not bound yet.
    aliases : dict of Buffer to set of Operand
        The operands that lie in a buffer.
    bfloat16 : set of Operand or None
        The operands stored in bfloat16; None if the precision is float32.
    tolerant : set of Operator
        See :mod:`kuiper.planning.tolerance`; empty if the precision is float32.
    copies : dict
        Copies in another layout or element type, by source, layout and type.
    copies_of : dict of int to list
        Keys of `copies`, by the slots of source and copy.
    copy_source : dict of Buffer to Buffer
        The source of a copy, whose later readers share it.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[Operand, TensorSpec],
        n_threads: int,
        cache: WeightCache,
    ) -> None:
        self.graph = graph
        self.order = graph.topological_order()
        self.input_specs = inputs
        self.n_threads = n_threads
        self.cache = cache
        self.specs: dict[Operand, Any] = {}
        self.attribute_specs: Mapping[Operator, Mapping[str, TensorSpec]] = {}
        self.values: dict[Operand, Any] = {}
        self.bfloat16: set[Operand] | None = None
        self.tolerant: Set[Operator] = frozenset()
        self.targets: dict[Operand, TensorView] = {}
        self.buffers: list[Buffer] = []
        self.steps: list[Any] = []
        self.pending = {operand: len(operand.consumers) for operand in graph.operands}
        self.aliases: dict[Buffer, set[Operand]] = {}
        self.copies: dict[tuple[Any, ...], TensorView] = {}
        self.copies_of: dict[int, list[tuple[Any, ...]]] = {}
        self.copy_source: dict[Buffer, Buffer] = {}
        self.constants: dict[int, TensorView] = {}

    def infer(
        self,
        known: Mapping[Operand, Any],
        attributes: Mapping[Operator, Mapping[str, TensorSpec]] | None = None,
    ) -> None:
        if attributes is None:
            attributes = {operator: attribute_specs(operator) for operator in self.order}
        self.attribute_specs = attributes
        for operator in self.order:
            outputs = operator.outputs
            if all(operand in known for operand in outputs):
                self.specs.update([(operand, known[operand]) for operand in outputs])
            else:
                self.specs.update(
                    infer_outputs(operator, self.specs, self.input_specs, attributes[operator])
                )

    def choose_storage(self) -> None:
        """Choose the operands stored in bfloat16, and find those whose errors may be larger."""
        results = {leaf for operand in self.graph.outputs for leaf in leaf_operands(operand)}
        self.bfloat16 = bfloat16_operands(self.order, self.specs, results)
        self.tolerant = tolerant_operators(self.order, self.specs, results)

    def stored_dtype(self, operand: Operand) -> np.dtype:
        """Return the dtype of an operand in memory."""
        if self.bfloat16 is not None and operand in self.bfloat16:
            return BFLOAT16
        dtype: np.dtype = self.specs[operand].dtype
        return dtype

    def plan(self, arenas: ArenaPool, max_memory: int) -> Plan:
        check_sizes(self.specs, max_memory)
        groups = [leaf_operands(operand) for operand in self.graph.outputs]
        self.target_outputs([leaf for group in groups for leaf in group])
        self.target_concatenations()
        for operator in self.order:
            self.bind(operator)
        finished = self.finish_outputs()
        outputs = [value for values in finished for value in values]
        counts = [sum(len(finished.pop(0)) for _ in group) for group in groups]
        in_arena = [b for b in self.buffers if b.kind in (BufferKind.ARENA, BufferKind.SCRATCH)]
        arena_bytes = arrange(in_arena, guard_bytes())
        self.check_total(arena_bytes, max_memory)
        inputs = [
            value
            for operand in self.graph.inputs
            for value in tensors_in(self.values[operand])
            if value.buffer.kind == BufferKind.INPUT
        ]
        plan = Plan(
            self.steps, self.buffers, arena_bytes, inputs, outputs, counts, self.n_threads, arenas
        )
        if self.bfloat16 is not None:
            plan.float32_reasons = float32_reasons(self.order, self.values, self.steps)
        return plan

    def check_total(self, arena_bytes: int, max_memory: int) -> None:
        total = arena_bytes + sum(b.n_bytes for b in self.buffers if b.kind == BufferKind.OUTPUT)
        if total <= max_memory:
            return
        size, operand, tensor = max(
            (
                (tensor.n_bytes, operand, tensor)
                for operand, spec in self.specs.items()
                for tensor in tensors_in(spec)
            ),
            key=lambda item: item[0],
        )
        raise ShapeError(
            f"a run would take {memory_text(total)} for its operands, more than the "
            f"{memory_text(max_memory)} of max_memory; the largest is '{operand.name}', {tensor}, "
            f"{memory_text(size)}, of {operand.required_producer.label}"
        )

    # -- targets ---------------------------------------------------------------------------

    def target_outputs(self, operands: Sequence[Operand]) -> None:
        """Let the producer of each result write into the caller's array."""
        self.output_views: list[tuple[Operand, TensorView | None]] = []
        for operand in operands:
            spec = self.specs[operand]
            if not isinstance(spec, TensorSpec):
                self.output_views.append((operand, None))
                continue
            target = self.allocate_output(spec)
            self.output_views.append((operand, target))
            if operand.required_producer.type not in ("pnnx.Input", "pnnx.Attribute"):
                self.targets.setdefault(operand, target)

    def target_concatenations(self) -> None:
        """Let the producers of a concatenation's inputs write into its output.

        In reverse order, so that a concatenation that feeds another one lies inside it: a dense
        block grows in one buffer.
        """
        records = {type: record_or_none(type) for type in {op.type for op in self.order}}
        joining = {type for type, r in records.items() if r and r.joined_axis is not None}
        if not joining:
            return
        layouts = self.predict_layouts()
        for operator in reversed(self.order):
            record = records[operator.type]
            if record is None or operator.type not in joining:
                continue
            output = operator.outputs[0]
            spec = self.specs[output]
            dim = resolve(operator, record, self.specs, {}).joined_axis()
            if spec.rank == 4 and dim == 1 and layouts[output] == Layout.CHANNELS_LAST:
                layout = Layout.CHANNELS_LAST
            elif math.prod(spec.shape[:dim]) == 1 and layouts[output] == Layout.CONTIGUOUS:
                layout = Layout.CONTIGUOUS
            else:
                continue
            # Leave out a `dim` that is an operand, and empty tensors of rank 1.
            joined = [
                operand
                for operand, key in zip(operator.inputs, operator.input_keys, strict=True)
                if key is None and self.specs[operand].shape != (0,)
            ]
            starts = np.cumsum([0] + [self.specs[o].shape[dim] for o in joined]).tolist()
            times = Counter(operator.inputs)
            movable = {
                operand
                for operand in joined
                if self.may_have_target(operand, layouts, layout)
                and times[operand] == 1
                and self.stored_dtype(operand) == self.stored_dtype(output)
            }
            if not movable:
                continue
            target = self.targets.get(output)
            if target is None or not has_layout(target, layout):
                target = self.allocate(spec.shape, self.stored_dtype(output), layout)
                self.targets[output] = target
            self.aliases.setdefault(target.buffer, set()).add(output)
            for operand, start in zip(joined, starts, strict=False):
                if operand in movable:
                    self.targets[operand] = target.narrow(
                        dim, start, self.specs[operand].shape[dim]
                    )
                    self.aliases.setdefault(target.buffer, set()).add(operand)

    def may_have_target(
        self, operand: Operand, layouts: Mapping[Operand, str], layout: str
    ) -> bool:
        producer = operand.required_producer
        return (
            operand not in self.targets
            and layouts[operand] == layout
            and producer.type not in ("pnnx.Input", "pnnx.Attribute")
            and find_record(producer.type).layout != Layout.VIEW
        )

    def predict_layouts(self) -> dict[Operand, str]:
        """Predict each operand's layout from its producer's record, before operators are bound."""
        layouts: dict[Operand, str] = {}
        for operator in self.order:
            record = record_or_none(operator.type)
            layout = Layout.CONTIGUOUS if record is None else record.layout
            if layout in (Layout.LIKE, Layout.VIEW):
                sources = [layouts[o] for o in operator.inputs if o in layouts]
                is_image = Layout.CHANNELS_LAST in sources
                layout = Layout.CHANNELS_LAST if is_image else Layout.CONTIGUOUS
            for operand in operator.outputs:
                rank = getattr(self.specs.get(operand), "rank", 0)
                layouts[operand] = layout if rank == 4 else Layout.CONTIGUOUS
        return layouts

    # -- bind ------------------------------------------------------------------------------

    def bind(self, operator: Operator) -> None:
        if operator.type == "pnnx.Output":
            return
        if operator.type == "pnnx.Input":
            operand = operator.outputs[0]
            self.define(operand, self.input_view(self.specs[operand]))
            return
        record = find_record(operator.type)
        outputs = operator.outputs
        specs = [self.specs[operand] for operand in outputs]
        if all(map(_is_known, specs)):
            for operand, spec in zip(outputs, specs, strict=True):
                self.values[operand] = spec  # shape arithmetic: done when shapes were inferred
        elif _can_be_skipped(operator) and all(map(_is_empty, specs)):
            for operand, spec in zip(outputs, specs, strict=True):  # no elements, nothing to do
                target = self.targets.get(operand)
                self.define(operand, target or self.allocate(spec.shape, spec.dtype))
        else:
            attributes = {
                key: self.constant_view(spec)
                for key, spec in self.attribute_specs[operator].items()
            }
            narrow = {}
            if self.bfloat16 is not None and not takes_bfloat16(record):
                narrow = self.widen_inputs(operator)
            arguments = resolve(operator, record, self.values, attributes)
            arguments.n_outputs = len(outputs)
            call_record(operator, "prepare", arguments.bind, Binder(self, operator))
            self.values.update(narrow)
            for operand, spec in zip(outputs, specs, strict=True):
                value = self.values.get(operand)
                if isinstance(spec, TensorSpec) and not (
                    isinstance(value, TensorView)
                    and value.shape == spec.shape
                    and (value.dtype == spec.dtype or _is_narrow(value, spec))
                ):
                    raise OperatorError(
                        f"{operator.label}: its record bound '{operand.name}' to {value}, but "
                        f"inferred {spec}"
                    )
        for operand in dict.fromkeys(operator.inputs):
            self.pending[operand] -= 1

    def input_view(self, spec: Any) -> Any:
        """Return the value of a graph input: a view of the caller's memory, or a known value."""
        if isinstance(spec, StaticValue):
            return StaticValue(self.input_view(spec.value))
        if isinstance(spec, tuple | list):
            return tuple(map(self.input_view, spec))
        if not isinstance(spec, TensorSpec):
            return spec
        if spec.is_constant:
            return self.constant_view(spec)
        return self.allocate(spec.shape, spec.dtype, kind=BufferKind.INPUT)

    def define(self, operand: Operand, value: Any) -> None:
        self.values[operand] = value
        for view in tensors_in(value):
            self.aliases.setdefault(view.buffer, set()).add(operand)

    def is_live(self, buffer: Buffer, inputs: Set[Operand]) -> bool:
        """Tell whether an operator after the reader of `inputs` reads a buffer or a copy of it.

        Each operator of a chain that overwrites a buffer adds an alias; dead ones are removed, so
        that a chain of n operators takes O(n) time.
        """
        home: Buffer | None = buffer
        while home is not None:
            aliases = self.aliases.get(home, set())
            dead, live = [], False
            for alias in aliases:
                pending = self.pending[alias]
                if pending > (alias in inputs):
                    live = True
                    break
                if pending == 0:
                    dead.append(alias)
            aliases.difference_update(dead)
            if live:
                return True
            home = self.copy_source.get(home)
        return False

    def finish_outputs(self) -> list[list[Any]]:
        """Copy the results that are not in the caller's arrays yet; return the views of each."""
        outputs = []
        for operand, target in self.output_views:
            value = self.values[operand]
            if isinstance(value, StaticValue) and not _holds_tensors(value.value):
                outputs.append([value.value])
                continue
            outputs.append([])
            for view in tensors_in(value):
                output = self.allocate_output(_as_result(view)) if target is None else target
                if not same_memory(view, output):
                    self.add_copy(view, output, "pnnx.Output")
                outputs[-1].append(output)
        return outputs

    def allocate_output(self, spec: TensorSpec | TensorView) -> TensorView:
        return self.allocate(spec.shape, spec.dtype, kind=BufferKind.OUTPUT)

    def allocate(
        self, shape: Sequence[int], dtype: Any, layout: str = Layout.CONTIGUOUS,
        kind: BufferKind = BufferKind.ARENA,
    ) -> TensorView:  # fmt: skip
        n_elements = math.prod(shape)
        if layout == Layout.CHANNELS_LAST:
            row_stride = padded_row(shape[1])
            strides = channels_last_strides(shape, row_stride)
            n_elements = n_elements // max(shape[1], 1) * row_stride
        elif layout == Layout.PADDED_ROWS:
            row_stride = padded_row(shape[-1])
            strides = (*contiguous_strides((*shape[:-1], row_stride))[:-1], 1)
            n_elements = n_elements // max(shape[-1], 1) * row_stride
        else:
            strides = contiguous_strides(shape)
        n_bytes = n_elements * np.dtype(dtype).itemsize
        if kind == BufferKind.ARENA and dtype == np.uint8:
            n_bytes += QUAD_BYTES - 1  # products read bytes in quads
        buffer = self.add_buffer(n_bytes, kind)
        return TensorView(buffer, shape, strides, 0, dtype)

    def add_buffer(self, n_bytes: int, kind: BufferKind, source: Source = None) -> Buffer:
        buffer = Buffer(len(self.buffers), n_bytes, kind, source)
        self.buffers.append(buffer)
        return buffer

    def widen_inputs(self, operator: Operator) -> dict[Operand, Any]:
        """Convert the inputs of an operator that takes float32 only; return them unconverted."""
        narrow = {}
        for operand in dict.fromkeys(operator.inputs):
            value = self.values[operand]
            self.values[operand] = self.widened(value, operator.name)
            if self.values[operand] is not value:
                narrow[operand] = value
        return narrow

    def widened(self, value: Any, name: str) -> Any:
        """Return a value with all tensors in bfloat16 converted, those of lists included."""
        if isinstance(value, TensorView):
            return self.converted(value, FLOAT32, name) if value.dtype == BFLOAT16 else value
        if isinstance(value, StaticValue):
            inner = self.widened(value.value, name)
            return value if inner is value.value else StaticValue(inner)
        if isinstance(value, tuple | list):
            items = [self.widened(item, name) for item in value]
            if any(a is not b for a, b in zip(items, value, strict=True)):
                return type(value)(items)
        return value

    def converted(self, value: TensorView, dtype: np.dtype, name: str) -> TensorView:
        """Return `value` in an element type and its layout; a conversion is shared."""
        if value.dtype == dtype:
            return value
        is_image = value.is_channels_last and not value.is_contiguous
        layout = Layout.CHANNELS_LAST if is_image else Layout.CONTIGUOUS
        return self.copied(value, dtype, layout, name)

    def copied(self, value: TensorView, dtype: np.dtype, layout: str, name: str) -> TensorView:
        """Return a copy of `value`, which later operators share, in a layout and element type."""
        key = (value.slot, value.offset, value.shape, value.strides, layout, dtype)
        if key not in self.copies:
            copy = self.allocate(value.shape, dtype, layout)
            self.add_copy(value, copy, name)
            self.copies[key] = copy
            for slot in (value.slot, copy.slot):
                self.copies_of.setdefault(slot, []).append(key)
            # Later readers of `value` share the copy, so the copy is live as long as `value`.
            self.copy_source[copy.buffer] = value.buffer
        return self.copies[key]

    def constant_view(self, spec: TensorSpec) -> TensorView:
        """Return the view of a constant; there is one buffer per array."""
        source = spec.source
        view = self.constants.get(id(source))
        if view is None:
            buffer = self.add_buffer(spec.n_bytes, BufferKind.CONSTANT, source)
            strides = contiguous_strides(spec.shape)
            view = TensorView(buffer, spec.shape, strides, 0, spec.dtype, source)
            self.constants[id(source)] = view
        return view

    def add_copy(self, source: TensorView, target: TensorView, name: str) -> None:
        if source.dtype == target.dtype:
            from kuiper._kernels.data.move import CopyStep

            self.add_step(CopyStep(source, target), name)
        else:
            from kuiper._kernels.elementwise.typed import TypedStep

            step = TypedStep([(source, target.dtype)], [], target)
            step.kind = "convert"
            self.add_step(step, name)

    def add_step(self, step: Any, name: str) -> None:
        step.name = name
        number = len(self.steps)
        self.steps.append(step)
        for slot in step.slots:
            buffer = self.buffers[slot]
            if buffer.first < 0:
                buffer.first = number
            buffer.last = number


def _is_narrow(value: TensorView, spec: TensorSpec) -> bool:
    """Tell whether a float32 tensor lies in bfloat16: as it was chosen, or as a view of another."""
    return value.dtype == BFLOAT16 and spec.dtype == FLOAT32


def _as_result(view: TensorView) -> TensorSpec:
    """Return the spec of a tensor for the caller, who gets no bfloat16."""
    return TensorSpec(view.shape, FLOAT32 if view.dtype == BFLOAT16 else view.dtype)


def _can_be_skipped(operator: Operator) -> bool:
    """Tell whether an operator has nothing to do if its results have no elements."""
    if CUSTOM and operator.type == "pnnx.Expression":
        return False  # the result of a user's function may have other shapes for other values
    return find_record(operator.type).is_pure


def _is_known(spec: Any) -> bool:
    return isinstance(spec, StaticValue) and not _holds_tensors(spec.value)


def _is_empty(spec: Any) -> bool:
    return isinstance(spec, TensorSpec) and spec.size == 0


def _holds_tensors(value: Any) -> bool:
    return next(tensors_in(value), None) is not None
