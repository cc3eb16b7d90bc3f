"""Segments: run a model whose shapes depend on values that it computes.

The number of boxes that a detector keeps is not known before it runs.  Such a graph is cut at its
data-dependent operators.  Each segment is planned when the shapes of its inputs are known::

    x --[segment 1]--> scores, mask --[masked_select]--> (37,) --[segment 2, for (37,)]--> y

A graph is cut for one of two reasons:

* The shape of a result depends on data (a mask, non-maximum suppression).  The operator runs
  between two segments; the next plan depends on the shape of its result.
* An argument that determines a shape is a tensor (the end of a slice).  The input is *pinned*: the
  next plan holds for one value of it.

Planning takes about 1 ms, so the most recent segments are cached by shapes and pinned values.  A
graph without data-dependent operators has one :class:`~kuiper.planning.plan.Plan` and no segments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, Literal

import numpy as np

from kuiper.ir import Graph, Operand, Operator
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.schema import StaticValue
from kuiper.passes.restore.refine_shapes import refine_shapes
from kuiper.planning.infer import (
    attribute_specs,
    infer_known,
    infer_operator,
    leaf_operands,
    tensors_in,
)
from kuiper.planning.plan import Plan

__all__ = ["SegmentedPlan"]

# Makes the plan of a segment from its graph, the specs of its inputs and those of all operands.
Compile = Callable[[Graph, dict[Operand, Any], dict[Operand, Any]], Plan]


class SegmentedPlan:
    """The plan of a graph with data-dependent operators.

    Parameters
    ----------
    graph : Graph
    inputs : mapping of Operand to TensorSpec
    compile : callable
        ``compile(graph, inputs, specs)`` makes the plan of a segment.
    lock : context manager
        Held while a segment is found or made.

    Attributes
    ----------
    n_threads : int
    is_segmented : bool
    """

    SEGMENTS_KEPT = 128
    is_segmented: Literal[True] = True

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[Operand, TensorSpec],
        compile: Compile,
        lock: AbstractContextManager[Any],
    ) -> None:
        self._groups = [[leaf.name for leaf in leaf_operands(operand)] for operand in graph.outputs]
        self._input_names = [operand.name for operand in inputs]
        self._compile = compile
        self._lock = lock
        self._later: OrderedDict[tuple[Any, ...], _Segment] = OrderedDict()
        # Leave out dead operators and the tuples that only bundle results.
        wanted = dict.fromkeys(name for group in self._groups for name in group)
        needed = graph.subgraph([operand.name for operand in inputs], list(wanted))
        specs = {needed.operand(operand.name): spec for operand, spec in inputs.items()}
        self._first = _Segment(needed, specs, compile)
        self.n_threads = self.first_plan.n_threads

    def __repr__(self) -> str:
        count = 1 + len(self._later)  # without the lock: a debugger may ask while it is held
        return f"<kuiper plan in segments: {count} planned, the first {self.first_plan!r}>"

    @property
    def first_plan(self) -> Plan:
        """The plan of the first segment."""
        return self._first.plan

    @property
    def float32_reasons(self) -> dict[str, str] | None:
        """Those of all cached segments, see :class:`~kuiper.planning.plan.Plan`."""
        with self._lock:
            plans = [self.first_plan, *[segment.plan for segment in self._later.values()]]
        known = [plan.float32_reasons for plan in plans if plan.float32_reasons is not None]
        return {name: why for reasons in known for name, why in reasons.items()} if known else None

    @property
    def arena_bytes(self) -> int:
        """Size of the largest arena of the cached segments."""
        with self._lock:
            segments = [self._first, *self._later.values()]
        return max(segment.plan.arena_bytes for segment in segments)

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run on arrays and return the outputs as a list."""
        return [array for group in self.run_grouped(inputs) for array in group]

    def run_grouped(self, inputs: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        """Run on arrays and return the arrays of each output of the graph: several for a list."""
        values: dict[str, Any] = dict(zip(self._input_names, inputs, strict=True))
        for segment in self._segments(values):
            segment.run(values)
        return self._results(values, inputs)

    def profile(self, inputs: Sequence[np.ndarray]) -> tuple[list[Any], np.ndarray]:
        """Run once; return all steps, data-dependent operators included, and their seconds."""
        values: dict[str, Any] = dict(zip(self._input_names, inputs, strict=True))
        steps: list[Any] = []
        seconds: list[float] = []
        for segment in self._segments(values):
            steps += [*segment.plan.steps, *segment.data_dependent]
            seconds += segment.run_timed(values)
        return steps, np.array(seconds)

    def _segments(self, values: Mapping[str, Any]) -> Iterator[_Segment]:
        """Yield the segments in order; find each one when the previous one has run."""
        segment = self._first
        yield segment
        while segment.rest is not None:
            segment = self._next(segment, values)
            yield segment

    def _next(self, segment: _Segment, values: Mapping[str, Any]) -> _Segment:
        key = (segment, *(_key(values[name], name in segment.pinned) for name in segment.passed_on))
        with self._lock:
            later = self._later.get(key)
            if later is None:
                later = segment.next(values, self._compile)
                self._later[key] = later
                if len(self._later) > self.SEGMENTS_KEPT:
                    self._later.popitem(last=False)
            else:
                self._later.move_to_end(key)
            return later

    def _results(self, values: Mapping[str, Any], inputs: Any) -> list[list[np.ndarray]]:
        """Return the outputs as arrays that the caller owns."""
        others = {id(array) for array in inputs}
        results: list[list[np.ndarray]] = []
        for group in self._groups:
            results.append([])
            for name in group:
                for array in _output_arrays(values[name]):
                    if id(array) in others or array.base is not None or not array.flags.writeable:
                        array = array.copy()
                    others.add(id(array))
                    results[-1].append(array)
        return results


class _Segment:
    """A plan, the data-dependent operators that read its results, and the graph after them.

    Each run has a table of values by the names of operands: an array, a tuple for a list, or a spec
    of a value that is known while planning.

    Attributes
    ----------
    plan : Plan
    data_dependent : list of _DataDependentOperator
    rest : Graph or None
        The graph after these operators.
    passed_on : list of str
        The inputs of `rest`.
    pinned : set of str
        The inputs of `rest` whose values its plan depends on.
    """

    def __init__(
        self, graph: Graph, inputs: Mapping[Operand, Any], compile: Compile, prepare: Any = None
    ) -> None:
        specs, waiting = infer_known(graph, inputs, prepare)
        computed = [op for op, operands in waiting.items() if not operands]
        selected = {operand for op in computed for operand in op.outputs}
        self.data_dependent = [_DataDependentOperator(op) for op in computed]
        self.pinned = {operand.name for operands in waiting.values() for operand in operands}

        later = [
            op
            for op in graph
            if op not in computed and not all(operand in specs for operand in op.outputs)
        ]
        passed_on = [o for op in later for o in op.inputs if o in specs or o in selected]
        left = [o for o in graph.outputs if o not in specs and o not in selected]
        self.rest = graph.subgraph(passed_on, left) if left else None
        self.passed_on = list(dict.fromkeys(operand.name for operand in passed_on))

        read = [*passed_on, *(o for op in computed for o in op.inputs), *graph.outputs]
        read = [operand for operand in dict.fromkeys(read) if operand in specs]
        self._known = {o.name: specs[o] for o in read if _is_known(specs[o])}
        made = [
            o for o in read if not _is_known(specs[o]) and o.required_producer.type != "pnnx.Input"
        ]
        self._made = [(operand.name, specs[operand]) for operand in made]
        self._taken = [operand.name for operand in graph.inputs if not _is_known(inputs[operand])]
        first = graph.subgraph(graph.inputs, made)
        of_first = {first.operand(o.name): s for o, s in specs.items() if first.has_operand(o.name)}
        self.plan = compile(first, {o: of_first[o] for o in first.inputs}, of_first)

    def run(self, values: dict[str, Any]) -> None:
        """Run on values of the table, and add the results to it."""
        self._store(values, self.plan.run(self._inputs(values)))
        for operator in self.data_dependent:
            operator.run(values)

    def run_timed(self, values: dict[str, Any]) -> list[float]:
        """As :meth:`run`; return the seconds of each step and each data-dependent operator."""
        results, taken = self.plan.run_timed(self._inputs(values))
        seconds = taken.tolist()
        self._store(values, results)
        for operator in self.data_dependent:
            start = perf_counter()
            operator.run(values)
            seconds.append(perf_counter() - start)
        return seconds

    def _inputs(self, values: Mapping[str, Any]) -> list[np.ndarray]:
        return [array for name in self._taken for array in tensors_in(values[name], np.ndarray)]

    def _store(self, values: dict[str, Any], results: Sequence[np.ndarray]) -> None:
        # The outputs of a plan include the known values in lists.
        computed = zip(results, self.plan.outputs, strict=True)
        arrays = iter([array for array, spec in computed if isinstance(spec, TensorSpec)])
        for name, spec in self._made:
            values[name] = _filled(spec, arrays)
        values.update(self._known)

    def next(self, values: Mapping[str, Any], compile: Compile) -> _Segment:
        """Return the next segment, for the shapes and pinned values in the table."""
        assert self.rest is not None
        rest = self.rest.copy()  # refine_shapes writes the extents of this run into it
        specs = {
            operand: _spec(values[operand.name], operand.name in self.pinned)
            for operand in rest.inputs
        }
        return _Segment(rest, specs, compile, refine_shapes)


class _DataDependentOperator:
    """An operator that runs between two segments; profiles list it as a step.

    With the values of all inputs at hand, shape inference computes the result as a constant.
    """

    algorithm: Any = None
    kind = "python"
    flops = saved_flops = 0.0

    def __init__(self, operator: Operator) -> None:
        self.name = operator.name
        self.bytes = 0.0
        self._operator = operator
        self._attributes = {
            key: TensorSpec(spec.shape, spec.dtype, spec.constant)  # in memory for every run
            for key, spec in attribute_specs(operator).items()
        }

    def run(self, values: dict[str, Any]) -> None:
        operator = self._operator
        specs = {operand: _spec(values[operand.name], True) for operand in operator.inputs}
        results = infer_operator(operator, specs, self._attributes)
        for operand, result in results.items():
            values[operand.name] = _value(result)


# -- values in the table -----------------------------------------------------------------------


def _is_known(spec: Any) -> bool:
    """Tell whether a value is known while planning."""
    return all(tensor.is_constant for tensor in tensors_in(spec))


def _filled(spec: Any, arrays: Iterator[np.ndarray]) -> Any:
    """Return a spec with its tensors replaced by arrays, and lists by tuples."""
    if isinstance(spec, TensorSpec):
        return next(arrays)
    if isinstance(spec, StaticValue):
        spec = spec.value
    return tuple(_filled(item, arrays) for item in spec) if isinstance(spec, tuple | list) else spec


def _value(result: Any) -> Any:
    """Return the table's value for a result that was inferred from constants."""
    if isinstance(result, TensorSpec):
        return np.require(result.constant, result.dtype, ["C", "A"])
    if isinstance(result, StaticValue) and next(tensors_in(result), None) is not None:
        return _value(result.value)
    return tuple(map(_value, result)) if isinstance(result, tuple | list) else result


def _spec(value: Any, is_constant: bool) -> Any:
    """Return the spec of a value of the table."""

    def nested(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return TensorSpec(value.shape, value.dtype, value if is_constant else None)
        return tuple(map(nested, value)) if isinstance(value, tuple) else value

    return StaticValue(nested(value)) if isinstance(value, tuple) else nested(value)


def _key(value: Any, is_pinned: bool) -> Any:
    """Return what the next plan depends on: a shape, or a shape and a pinned value."""
    if isinstance(value, np.ndarray):
        return (value.shape, value.tobytes()) if is_pinned else value.shape
    if isinstance(value, tuple):
        return tuple(_key(item, is_pinned) for item in value)
    return None  # a known value, which the previous segment determines


def _output_arrays(value: Any) -> list[np.ndarray]:
    """Return the arrays that the caller gets for an output."""
    if isinstance(value, np.ndarray | tuple):
        return list(tensors_in(value, np.ndarray))
    tensors = list(tensors_in(value))
    if tensors:
        return [np.array(tensor.constant, tensor.dtype) for tensor in tensors]
    return [np.array(value.value)]
