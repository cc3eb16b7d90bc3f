"""Shape inference of a graph whose operators repeat, as the layers of a transformer do.

Operators are *twins* if they differ in names, operands and the values of weights alone.  One is
inferred per plan and kind of inputs; its twins on equal inputs take its result.  What is equal is
proved, not assumed: equal specs of one plan are one object, and a result that depends on the values
of a weight is not shared.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from kuiper.ir import Graph, Operand, Operator
from kuiper.ir.view import Source, TensorSpec
from kuiper.ops import record_or_none
from kuiper.ops.core.resolve import settle
from kuiper.ops.core.schema import StaticValue, ValuesNeeded
from kuiper.planning.infer import attribute_specs, infer_operator, infer_outputs, tensors_in

__all__ = ["TwinInference"]


class TwinInference:
    """Infers the shapes of one graph, which must not change, for any inputs.

    Parameters
    ----------
    graph : Graph
    """

    def __init__(self, graph: Graph) -> None:
        numbers: dict[Hashable, int] = {}
        self._rows: list[_Row] = []
        for op in graph.topological_order():
            if op.type != "pnnx.Output":
                key = _likeness(op)
                number = None if key is None else numbers.setdefault(key, len(numbers))
                self._rows.append(_Row(op, number))

    def infer(self, inputs: Mapping[Operand, TensorSpec]) -> dict[Operand, Any] | None:
        """Return the specs of all operands, as ``infer_known`` does; None if some need values."""
        specs: dict[Operand, Any] = {}
        # The ids in the keys stay unique, because `specs` and `equal` refer to the objects.
        results: dict[tuple[int, ...], list[Any]] = {}
        equal: dict[Hashable, Any] = {}
        try:
            for row in self._rows:
                if row.number is None:
                    found = infer_outputs(row.operator, specs, inputs, row.attributes)
                    specs.update((o, _one_of(equal, spec)) for o, spec in found.items())
                    continue
                key = (row.number, *[id(specs[operand]) for operand in row.inputs])
                shared = results.get(key)
                if shared is None:
                    made = infer_operator(row.operator, specs, row.watched)
                    if row.has_read(made):
                        specs.update(infer_operator(row.operator, specs, row.attributes))
                        continue
                    shared = results[key] = [_one_of(equal, spec) for spec in made.values()]
                specs.update(zip(row.operator.outputs, shared, strict=True))
        except ValuesNeeded:
            return None
        return specs


class _Row:
    """An operator with what its inference needs.

    Attributes
    ----------
    operator : Operator
    number : int or None
        Of its twins; None if it shares nothing.
    inputs : tuple of Operand
    attributes : dict of str to TensorSpec
    watched : dict of str to _WatchedSpec
        The same weights, for an inference that may not depend on their values.
    """

    __slots__ = ("attributes", "inputs", "number", "operator", "watched")

    def __init__(self, operator: Operator, number: int | None) -> None:
        self.operator, self.number = operator, number
        self.inputs = operator.inputs
        self.attributes = attribute_specs(operator)
        record = record_or_none(operator.type)
        if record is not None:
            settle(operator, record)
        self.watched = {key: _WatchedSpec(spec) for key, spec in self.attributes.items()}

    def has_read(self, results: Mapping[Operand, Any]) -> bool:
        """Tell whether values of a weight were read, or are part of the results."""
        watched = self.watched.values()
        return any(spec.is_read for spec in watched) or any(
            isinstance(tensor, _WatchedSpec)
            for result in results.values()
            for tensor in tensors_in(result, TensorSpec)
        )


class _WatchedSpec(TensorSpec):
    """The spec of a weight that notes whether its values are asked for."""

    __slots__ = ("_source", "is_read")

    def __init__(self, spec: TensorSpec) -> None:
        self.shape, self.dtype = spec.shape, spec.dtype
        self._source = spec.source
        self.is_read = False

    @property
    def source(self) -> Source:  # type: ignore[override]
        self.is_read = True
        return self._source


def _likeness(op: Operator) -> Hashable:
    """Return a key that twins share; None for an operator that must be inferred itself."""
    record = record_or_none(op.type)
    if record is None or not record.__module__.startswith("kuiper.") or not op.inputs:
        return None
    return (
        op.type,
        record,
        len(op.outputs),
        op.input_keys,
        tuple([post.slot for post in op.post_ops]),
        # 1, 1.0 and True compare equal, but their text differs.
        tuple([(key, repr(value), str(value)) for key, value in op.params.items()]),
        tuple([(key, a.shape, a.dtype) for key, a in op.attributes.items()]),
    )


def _one_of(equal: dict[Hashable, Any], spec: Any) -> Any:
    """Return the first of all specs or static values that are interchangeable with this one."""
    if type(spec) is TensorSpec:
        return spec if spec.source is not None else equal.setdefault((spec.shape, spec.dtype), spec)
    if isinstance(spec, StaticValue):
        value = spec.value
        if type(value) is int:
            return equal.setdefault(value, spec)
        if type(value) in (tuple, list) and all(type(item) is int for item in value):
            return equal.setdefault((type(value), *value), spec)
    return spec
