"""Segments: how a model runs whose shapes depend on values that it computes.

How many boxes a detector finds is known when it has found them, so no plan can be made before.
Such a graph is cut: what shapes alone can plan is the first segment; the operators that wait are
computed on what it leaves; what follows is planned for the shapes that came out, and may be cut
again.  ::

    x --[plan]--> scores, mask --[masked_select]--> (37,) --[plan for (37,)]--> y

An operator waits for one of two reasons.  Either its result has as many elements as its input says
(a mask, non-maximum suppression): it is computed, and the next plan depends on the shape alone.  Or
a number that it takes is a tensor (the end of a slice): the next plan is made for that number.

Planning takes about a millisecond, so the plans behind a cut are kept for the shapes (and numbers)
that occurred last.  A graph that is never cut has no segments: its plan runs by itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any

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

# Makes the plan of a graph without cuts, given the specs of its inputs and of all its operands.
Compile = Callable[[Graph, dict[Operand, Any], dict[Operand, Any]], Plan]


class SegmentedPlan:
    """What stands for a plan where a model is cut.

    Parameters
    ----------
    graph : Graph
    inputs : mapping of Operand to TensorSpec
    compile : callable
        ``compile(graph, inputs, specs)`` makes the plan of a part.
    lock : context manager
        Held while a segment is looked up or made.

    Attributes
    ----------
    n_threads : int
    """

    SEGMENTS_KEPT = 128

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
        # Without what nobody reads, and without the tuples that only bundle results.
        wanted = dict.fromkeys(name for group in self._groups for name in group)
        needed = graph.subgraph([operand.name for operand in inputs], list(wanted))
        specs = {needed.operand(operand.name): spec for operand, spec in inputs.items()}
        self._first = _Segment(needed, specs, compile)
        self.n_threads = self.first_plan.n_threads

    @property
    def first_plan(self) -> Plan:
        """The plan in front of the first cut."""
        return self._first.plan

    @property
    def arena_bytes(self) -> int:
        """Size of the largest arena of the segments at hand."""
        with self._lock:
            segments = [self._first, *self._later.values()]
        return max(segment.plan.arena_bytes for segment in segments)

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run on arrays and return the outputs as a list."""
        return [array for group in self.run_grouped(inputs) for array in group]

    def run_grouped(self, inputs: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        """Run on arrays and return for each output of the graph the arrays that it stands for."""
        values: dict[str, Any] = dict(zip(self._input_names, inputs, strict=True))
        for segment in self._segments(values):
            segment.run(values)
        return self._results(values, inputs)

    def profile(self, inputs: Sequence[np.ndarray]) -> tuple[list[Any], np.ndarray]:
        """Run once; return the steps of all segments, operators at cuts included, and seconds."""
        values: dict[str, Any] = dict(zip(self._input_names, inputs, strict=True))
        steps: list[Any] = []
        seconds: list[float] = []
        for segment in self._segments(values):
            steps += [*segment.plan.steps, *segment.data_dependent]
            seconds += segment.run_timed(values)
        return steps, np.array(seconds)

    def _segments(self, values: Mapping[str, Any]) -> Iterator[_Segment]:
        """Yield one segment after the other; each is looked up when those before it have run."""
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
                later = segment.behind(values, self._compile)
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
    """A plan, the operators that wait for its results, and the graph behind them.

    Operands go by their names.  What they hold stands in a table that belongs to one run: an array,
    a tuple for a list, or a spec where it is known without running.

    Attributes
    ----------
    plan : Plan
    data_dependent : list of _DataDependentOperator
        The operators that are computed on its results.
    rest : Graph or None
        What is left to do then.
    passed_on : list of str
        The inputs of `rest`.
    pinned : set of str
        Those of them that `rest` is planned for one value of.
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
        """Compute what the segment makes of the table, and add it."""
        self._store(values, self.plan.run(self._inputs(values)))
        for operator in self.data_dependent:
            operator.run(values)

    def run_timed(self, values: dict[str, Any]) -> list[float]:
        """Do the same; return the seconds of each step and of each operator behind them."""
        results, taken = self.plan.run_timed(self._inputs(values))
        seconds = taken.tolist()
        self._store(values, results)
        for operator in self.data_dependent:
            start = perf_counter()
            operator.run(values)
            seconds.append(perf_counter() - start)
        return seconds

    def _inputs(self, values: Mapping[str, Any]) -> list[np.ndarray]:
        return [array for name in self._taken for array in _arrays_in(values[name])]

    def _store(self, values: dict[str, Any], results: Sequence[np.ndarray]) -> None:
        # A list that the graph builds has what is known of it among the outputs as well.
        computed = zip(results, self.plan.outputs, strict=True)
        arrays = iter([array for array, spec in computed if isinstance(spec, TensorSpec)])
        for name, spec in self._made:
            values[name] = _filled(spec, arrays)
        values.update(self._known)

    def behind(self, values: Mapping[str, Any], compile: Compile) -> _Segment:
        """Return the next segment, for the shapes and numbers in the table."""
        assert self.rest is not None  # whoever asks has seen that something is left
        rest = self.rest.copy()  # what is refined in it holds for these shapes
        specs = {
            operand: _spec(values[operand.name], operand.name in self.pinned)
            for operand in rest.inputs
        }
        return _Segment(rest, specs, compile, refine_shapes)


class _DataDependentOperator:
    """An operator that is computed between two plans; a step as far as profiles go.

    Its record knows how to infer constants from constants, and with all inputs at hand that is
    what they are.
    """

    algorithm: Any = None
    kind = "python"
    flops = 0.0

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


# -- what stands in the table ------------------------------------------------------------------


def _is_known(spec: Any) -> bool:
    """Tell whether a value is known while planning."""
    return all(tensor.is_constant for tensor in tensors_in(spec))


def _filled(spec: Any, arrays: Iterator[np.ndarray]) -> Any:
    """Return a spec with arrays in the place of its tensors, and tuples for lists."""
    if isinstance(spec, TensorSpec):
        return next(arrays)
    if isinstance(spec, StaticValue):
        spec = spec.value
    return tuple(_filled(item, arrays) for item in spec) if isinstance(spec, tuple | list) else spec


def _value(result: Any) -> Any:
    """Return what the table holds for a result that was inferred from constants."""
    if isinstance(result, TensorSpec):
        return np.require(result.constant, result.dtype, ["C", "A"])
    if isinstance(result, StaticValue) and next(tensors_in(result), None) is not None:
        return _value(result.value)
    return tuple(map(_value, result)) if isinstance(result, tuple | list) else result


def _spec(value: Any, is_constant: bool) -> Any:
    """Return the spec of what stands in the table."""
    if isinstance(value, np.ndarray):
        return TensorSpec(value.shape, value.dtype, value if is_constant else None)
    if isinstance(value, tuple):
        return StaticValue(_list_spec(value, is_constant))
    return value


def _list_spec(value: Any, is_constant: bool) -> Any:
    if isinstance(value, tuple):
        return tuple(_list_spec(item, is_constant) for item in value)
    return _spec(value, is_constant)


def _key(value: Any, is_pinned: bool) -> Any:
    """Return what the plan behind a cut depends on."""
    if isinstance(value, np.ndarray):
        return (value.shape, value.tobytes()) if is_pinned else value.shape
    if isinstance(value, tuple):
        return tuple(_key(item, is_pinned) for item in value)
    return None  # known before, so it belongs to the segment


def _arrays_in(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _arrays_in(item)


def _output_arrays(value: Any) -> list[np.ndarray]:
    """Return the arrays that the caller gets for an output."""
    if isinstance(value, np.ndarray | tuple):
        return list(_arrays_in(value))
    tensors = list(tensors_in(value))
    if tensors:
        return [np.array(tensor.constant, tensor.dtype) for tensor in tensors]
    return [np.array(value.value)]
