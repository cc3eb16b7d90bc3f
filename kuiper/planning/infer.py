"""Shape inference: the shape and dtype of every operand, or its value if shapes determine it.

Numbers and lists computed from shapes become static values here; they need no steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from kuiper._support.memory import memory_text
from kuiper.errors import KuiperError, OperatorError, ShapeError, unforeseen
from kuiper.ir import Graph, Operand, Operator
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops import find_record
from kuiper.ops.core.quantization import QUANTIZE
from kuiper.ops.core.resolve import resolve
from kuiper.ops.core.schema import StaticValue, ValuesNeeded, attribute_spec

__all__ = [
    "attribute_specs",
    "call_record",
    "check_sizes",
    "infer_known",
    "infer_operator",
    "infer_outputs",
    "infer_specs",
    "leaf_operands",
    "tensors_in",
]


def check_sizes(specs: Mapping[Operand, Any], max_memory: int) -> None:
    """Raise ShapeError if one operand alone is larger than `max_memory` bytes."""
    for operand, spec in specs.items():
        if type(spec) is TensorSpec and 0 < spec.n_bytes <= max_memory:
            continue
        for tensor in tensors_in(spec):
            # The strides of an empty array are products of its extents, and must fit 64 bits.
            if tensor.size == 0 and math.prod(n for n in tensor.shape if n) >= 1 << 58:
                raise ShapeError(
                    f"{operand.required_producer.label}: its output '{operand.name}', {tensor}, "
                    "has extents that no array has"
                )
            if tensor.n_bytes > max_memory:
                raise ShapeError(
                    f"{operand.required_producer.label}: its output '{operand.name}', {tensor}, "
                    f"{memory_text(tensor.n_bytes)}, more than the {memory_text(max_memory)} of "
                    "max_memory"
                )


def infer_specs(graph: Graph, inputs: Mapping[Operand, Any]) -> dict[Operand, Any]:
    """Return the spec or the static value of every operand.

    Raises
    ------
    OperatorError, ShapeError
        If an operator does not support its inputs; ValuesNeeded, a ShapeError, if a shape depends
        on values that the graph computes.
    """
    specs: dict[Operand, Any] = {}
    for operator in graph.topological_order():
        specs.update(infer_outputs(operator, specs, inputs))
    return specs


def infer_known(
    graph: Graph,
    inputs: Mapping[Operand, Any],
    prepare: Callable[[Operator, Mapping[Operand, Any]], None] | None = None,
) -> tuple[dict[Operand, Any], dict[Operator, tuple[Operand, ...]]]:
    """Infer all operands before the data-dependent operators.

    Parameters
    ----------
    graph : Graph
    inputs : mapping of Operand to (TensorSpec or StaticValue)
    prepare : callable, optional
        ``prepare(operator, specs)`` may change the parameters of each operator first.

    Returns
    -------
    specs : dict
        As :func:`infer_specs`, of the operands that do not depend on data.
    waiting : dict of Operator to tuple of Operand
        The data-dependent operators, with the inputs whose values are needed to plan them; without
        any if the operator must run to determine its output shape.
    """
    specs: dict[Operand, Any] = {}
    waiting: dict[Operator, tuple[Operand, ...]] = {}
    for operator in graph.topological_order():
        if all(operand in specs for operand in operator.inputs):
            if prepare is not None:
                prepare(operator, specs)
            try:
                specs.update(infer_outputs(operator, specs, inputs))
            except ValuesNeeded as error:
                waiting[operator] = tuple(
                    operand
                    for operand in dict.fromkeys(operator.inputs)
                    if any(
                        spec is other
                        for spec in tensors_in(specs[operand])
                        for other in error.specs
                    )
                )
    return specs, waiting


def infer_outputs(
    operator: Operator,
    specs: Mapping[Operand, Any],
    inputs: Mapping[Operand, TensorSpec],
    attributes: Mapping[str, TensorSpec] | None = None,
) -> dict[Operand, Any]:
    """Return the specs of an operator's outputs, ``pnnx.Input`` and ``pnnx.Output`` included."""
    if operator.type == "pnnx.Output":
        return {}
    if operator.type == "pnnx.Input":
        return {operator.outputs[0]: inputs[operator.outputs[0]]}
    return infer_operator(operator, specs, attributes)


def attribute_specs(operator: Operator) -> dict[str, TensorSpec]:
    """Return the specs of an operator's weights."""
    return {key: attribute_spec(a) for key, a in operator.attributes.items()}


def infer_operator(
    operator: Operator,
    specs: Mapping[Operand, Any],
    attributes: Mapping[str, TensorSpec] | None = None,
) -> dict[Operand, Any]:
    """Return the specs of the outputs of an operator with a record.

    Parameters
    ----------
    operator : Operator
    specs : mapping of Operand to (TensorSpec or StaticValue)
        Of its inputs.
    attributes : mapping of str to TensorSpec, optional
        By default :func:`attribute_specs`.
    """
    record = find_record(operator.type)
    attributes = attribute_specs(operator) if attributes is None else attributes
    arguments = resolve(operator, record, specs, attributes)
    arguments.n_outputs = len(operator.outputs)
    results = call_record(operator, "compute", arguments.infer)
    if not isinstance(results, tuple | list):
        results = (results,)
    if len(results) < len(operator.outputs):
        raise OperatorError(
            f"{operator.label}: has {len(operator.outputs)} outputs, expected {len(results)}"
        )
    for result in results[: len(operator.outputs)]:
        if isinstance(result, TensorSpec) and min(result.shape, default=1) < 0:
            raise ShapeError(f"{operator.label}: its output would have shape {result.shape}")
    found = dict(zip(operator.outputs, results, strict=False))
    if operator.post_ops and operator.post_ops[-1].type == QUANTIZE:
        found[operator.outputs[0]] = TensorSpec(results[0].shape, np.uint8)
    return found


def call_record(operator: Operator, verb: str, method: Callable[..., Any], *arguments: Any) -> Any:
    """Call a method of an operator's record; put the operator's label in front of its errors."""
    try:
        return method(*arguments)
    except ValuesNeeded as error:
        raise ValuesNeeded(f"{operator.label}: {error}", error.specs) from None
    except OperatorError as error:
        raise type(error)(f"{operator.label}: {error}") from error.__cause__
    except MemoryError:
        raise ShapeError(f"{operator.label}: there is too little memory to {verb} it") from None
    except KuiperError:
        raise
    except Exception as error:
        raise unforeseen(operator.label, error) from error


def leaf_operands(operand: Operand) -> list[Operand]:
    """Return the operand, or those of the (nested) tuple or list that it is, depth first."""
    producer = operand.producer
    if producer is not None and producer.type in ("prim::TupleConstruct", "prim::ListConstruct"):
        return [leaf for item in producer.inputs for leaf in leaf_operands(item)]
    return [operand]


def tensors_in(value: Any, kinds: Any = (TensorSpec, TensorView)) -> Iterator[Any]:
    """Yield the tensor (a spec or a view, unless `kinds` says otherwise), or those in a list."""
    if isinstance(value, kinds):
        yield value
    elif isinstance(value, StaticValue):
        yield from tensors_in(value.value, kinds)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item, kinds)
