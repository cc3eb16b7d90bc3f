"""The graph after the passes, kept for plans of other input shapes.

Passes read little of the specs: usually that two shapes are equal, seldom an extent.  While they
run, each operand has a *recorded* spec, which notes what is read of it.  For other input shapes, a
run of the passes would do the same, and is skipped, if every note holds for the new specs::

    fuse_residual reads x == y          notes "x and y are equal"        holds for any length
    fuse_gate     tells of x and g      notes "g is a gate of x"         holds for many sizes
    some pass     reads x.shape         notes "x has shape (1, 8)"       holds for this size alone

The dtypes and ranks of all operands, and the records of all types, are compared without a note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kuiper.ir import Graph, Operand, Operator
from kuiper.ir.view import Source, TensorSpec
from kuiper.ops import record_or_none
from kuiper.ops.core.resolve import settle
from kuiper.ops.core.schema import StaticValue
from kuiper.passes import PassReport
from kuiper.planning.infer import attribute_specs, tensors_in
from kuiper.planning.twins import TwinInference

__all__ = ["KeptGraphs"]

Optimize = Callable[[Graph, dict[Operand, Any]], tuple[PassReport, ...]]


class Optimized(NamedTuple):
    """A graph after the passes, which nothing may change.

    Attributes
    ----------
    graph : Graph
    specs : dict of Operand to (TensorSpec or StaticValue)
        Of its operands, for one set of input shapes.
    attributes : dict of Operator to dict, or None
        The specs of the weights of each operator, if they are kept.
    """

    graph: Graph
    specs: dict[Operand, Any]
    attributes: dict[Operator, dict[str, TensorSpec]] | None


class KeptGraphs:
    """One graph before the passes, and the graphs that the passes have made of it.

    Parameters
    ----------
    prepared : Graph
        Before the passes; nothing may change it any more.
    optimize : callable
        ``optimize(graph, specs)`` runs the passes in place and returns their reports.

    Attributes
    ----------
    prepared : Graph
    """

    MAX_GRAPHS = 3
    MAX_MISSES = 6  # in a row: then the passes depend on every extent, and nothing more is kept

    def __init__(self, prepared: Graph, optimize: Optimize) -> None:
        self.prepared = prepared
        self._optimize = optimize
        self._twins: TwinInference | None = None
        self._graphs: list[_KeptGraph] = []  # the most recently used first
        self._misses = 0

    def infer(self, inputs: Mapping[Operand, TensorSpec]) -> dict[Operand, Any] | None:
        """Return the specs of all operands of `prepared`; None if some depend on data."""
        if self._twins is None:
            self._twins = TwinInference(self.prepared)
        return self._twins.infer(inputs)

    def find(self, specs: Mapping[Operand, Any]) -> tuple[Optimized, tuple[PassReport, ...]]:
        """Return the graph after the passes for some specs of `prepared`, and their reports."""
        for number, kept in enumerate(self._graphs):
            if kept.fits(specs):
                self._misses = 0
                self._graphs.insert(0, self._graphs.pop(number))
                return kept.optimized(specs), kept.passes
        self._misses += 1
        if self._misses > self.MAX_MISSES:
            self._graphs.clear()
            graph = self.prepared.copy()
            own = {graph.operand(operand.name): spec for operand, spec in specs.items()}
            passes = self._optimize(graph, own)
            return Optimized(graph, own, None), passes
        kept = _KeptGraph(self.prepared, specs, self._optimize)
        self._graphs = [kept, *self._graphs[: self.MAX_GRAPHS - 1]]
        return kept.optimized(specs), kept.passes


class _KeptGraph:
    """A graph after the passes, with the conditions under which other shapes lead to it.

    Parameters
    ----------
    prepared : Graph
        Before the passes; it is copied.
    specs : mapping of Operand to (TensorSpec or StaticValue)
        Of all operands of `prepared`.
    optimize : callable

    Attributes
    ----------
    graph : Graph
        After the passes.
    passes : tuple of PassReport
    """

    def __init__(self, prepared: Graph, specs: Mapping[Operand, Any], optimize: Optimize) -> None:
        self.graph = prepared.copy()
        self._notes = _Notes()
        self._signatures = [(operand, _signature(spec)) for operand, spec in specs.items()]
        self._records = {type: record_or_none(type) for type in prepared.type_counts()}
        recorded = {
            self.graph.operand(operand.name): self._notes.recorded(operand, spec)
            for operand, spec in specs.items()
        }
        self.passes = optimize(self.graph, recorded)
        self._specs = [(o, recorded[o]) for o in self.graph.operands if o in recorded]
        # A list that a pass makes of recorded specs would need the same list of new ones.
        self._is_plain = not any(
            isinstance(tensor, _RecordedSpec)
            for _, spec in self._specs
            if not isinstance(spec, _RECORDED)
            for tensor in tensors_in(spec, TensorSpec)
        )
        self._attributes = {op: attribute_specs(op) for op in self.graph}
        for op in self.graph:
            record = record_or_none(op.type)
            if record is not None:
                settle(op, record)

    def fits(self, specs: Mapping[Operand, Any]) -> bool:
        """Tell whether the passes would do the same for other specs of `prepared`."""
        return (
            self._is_plain
            and len(specs) == len(self._signatures)
            and all(_signature(specs.get(o)) == found for o, found in self._signatures)
            and all(record_or_none(type) is found for type, found in self._records.items())
            and self._notes.hold(specs)
        )

    def optimized(self, specs: Mapping[Operand, Any]) -> Optimized:
        """Return the graph for specs of `prepared` that fit."""
        own = {
            operand: specs[spec.origin] if isinstance(spec, _RECORDED) else spec
            for operand, spec in self._specs
        }
        return Optimized(self.graph, own, self._attributes)


class _Notes:
    """What was read of recorded specs.

    Attributes
    ----------
    shapes : dict of Operand to tuple of int
    sources : dict of Operand to (numpy.ndarray, Attribute or None)
    values : dict of Operand to object
        Of static values.
    equalities : dict of (Operand, Operand) to bool
        Whether two specs are equal.
    predicates : list of (callable, tuple of Operand, object)
        What a pure function of the shapes of some operands has told.
    """

    def __init__(self) -> None:
        self.shapes: dict[Operand, tuple[int, ...]] = {}
        self.sources: dict[Operand, Source] = {}
        self.values: dict[Operand, Any] = {}
        self.equalities: dict[tuple[Operand, Operand], bool] = {}
        self.predicates: list[tuple[Callable[..., bool], tuple[Operand, ...], bool]] = []

    def recorded(self, operand: Operand, spec: Any) -> Any:
        """Return a spec or static value that notes what is read of it."""
        if isinstance(spec, StaticValue):
            return _RecordedValue(operand, spec, self)
        return _RecordedSpec(operand, spec, self)

    def hold(self, specs: Mapping[Operand, Any]) -> bool:
        """Tell whether the same would be read of other specs."""
        return (
            all(specs[o].shape == shape for o, shape in self.shapes.items())
            and all(specs[o].source is source for o, source in self.sources.items())
            and all((specs[a] == specs[b]) is found for (a, b), found in self.equalities.items())
            and all(_same(specs[o].value, value) for o, value in self.values.items())
            and all(
                tell(*[specs[o].shape for o in operands]) == found
                for tell, operands, found in self.predicates
            )
        )


class _RecordedSpec(TensorSpec):
    """A spec of `origin` that notes the reading of its shape, its values and its equality."""

    __slots__ = ("_notes", "_spec", "origin")

    def __init__(self, origin: Operand, spec: TensorSpec, notes: _Notes) -> None:
        self.origin = origin
        self.dtype = spec.dtype
        self._spec = spec
        self._notes = notes

    @property
    def rank(self) -> int:
        return len(self._spec.shape)  # compared without a note

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self._notes.shapes.setdefault(self.origin, self._spec.shape)

    @property
    def source(self) -> Source:  # type: ignore[override]
        return self._notes.sources.setdefault(self.origin, self._spec.source)

    def tells(self, predicate: Callable[..., bool], *others: TensorSpec) -> bool:
        specs = [spec for spec in (self, *others) if isinstance(spec, _RecordedSpec)]
        if len(specs) <= len(others):  # a pass has made one of them, from shapes that are noted
            return super().tells(predicate, *others)
        found = bool(predicate(*[spec._spec.shape for spec in specs]))
        origins = tuple([spec.origin for spec in specs])
        self._notes.predicates.append((predicate, origins, found))
        return found

    def twin(self) -> TensorSpec:
        return _RecordedSpec(self.origin, self._spec, self._notes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _RecordedSpec):
            return super().__eq__(other)
        found = self._spec == other._spec
        return self._notes.equalities.setdefault((self.origin, other.origin), found)

    __hash__ = None


class _RecordedValue(StaticValue):
    """A static value of `origin` that notes when it is read."""

    __slots__ = ("_notes", "_value", "origin")

    def __init__(self, origin: Operand, value: StaticValue, notes: _Notes) -> None:
        self.origin = origin
        self._value = value.value
        self._notes = notes

    @property
    def value(self) -> Any:
        return self._notes.values.setdefault(self.origin, self._value)


_RECORDED = (_RecordedSpec, _RecordedValue)


def _signature(spec: Any) -> Any:
    """Return what is compared of every spec: dtype and rank, None for a static value."""
    return (spec.dtype, len(spec.shape)) if isinstance(spec, TensorSpec) else None


def _same(a: Any, b: Any) -> bool:
    """Tell whether two static values are interchangeable; 1, 1.0 and True are not."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Sequence) and not isinstance(a, str):
        return len(a) == len(b) and all(map(_same, a, b))
    return a is b or (isinstance(a, bool | int | str) and a == b)
