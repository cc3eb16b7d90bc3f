"""Shape inference: shape and dtype of every operand, or its value where shapes alone tell it.

Numbers and lists that are made of shapes are computed here and are gone afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kuiper._support.memory import memory_text
from kuiper.errors import KuiperError, OperatorError, ShapeError, unforeseen
from kuiper.ir import Graph, Operand, Operator
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops import find_record
from kuiper.ops.core.schema import StaticValue, ValuesNeeded, attribute_spec, resolve

__all__ = [
    "attribute_specs",
    "check_sizes",
    "infer_known",
    "infer_operator",
    "infer_outputs",
    "infer_specs",
    "leaf_operands",
    "n_bytes",
    "tensors_in",
]


def check_sizes(specs: Mapping[Operand, Any], max_memory: int) -> None:
    """Raise ShapeError if one operand alone is larger than `max_memory` bytes."""
    for operand, spec in specs.items():
        for tensor in tensors_in(spec):
            # An array without elements must have strides as well, which are made of its extents.
            if tensor.size == 0 and math.prod(n for n in tensor.shape if n) >= 1 << 58:
                raise ShapeError(
                    f"{operand.required_producer.label}: its output '{operand.name}', {tensor}, "
                    "has extents that no array has"
                )
            if n_bytes(tensor) > max_memory:
                raise ShapeError(
                    f"{operand.required_producer.label}: its output '{operand.name}', {tensor}, "
                    f"{memory_text(n_bytes(tensor))}, more than the {memory_text(max_memory)} of "
                    "max_memory"
                )


def n_bytes(spec: TensorSpec) -> int:
    """Return the size of a tensor that lies without gaps."""
    return spec.size * spec.dtype.itemsize


def infer_specs(graph: Graph, inputs: Mapping[Operand, Any]) -> dict[Operand, Any]:
    """Return the shape and dtype (or the known value) of every operand.

    Raises
    ------
    OperatorError, ShapeError
        If an operator cannot take what reaches it; ValuesNeeded, a ShapeError, if a shape depends
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
    """Infer as far as shapes alone lead.

    Parameters
    ----------
    graph : Graph
    inputs : mapping of Operand to (TensorSpec or StaticValue)
    prepare : callable, optional
        ``prepare(operator, specs)`` may change the parameters of each operator first.

    Returns
    -------
    specs : dict
        As :func:`infer_specs`, for the operands that can be told.
    waiting : dict of Operator to tuple of Operand
        The operators whose inputs are among these but whose outputs are not, with the inputs whose
        values must be known to plan them; with none where the operator has to be computed.
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
    """Return the specs of the outputs of any operator of a graph."""
    if operator.type == "pnnx.Output":
        return {}
    if operator.type == "pnnx.Input":
        return {operator.outputs[0]: inputs[operator.outputs[0]]}
    return infer_operator(operator, specs, attributes)


def attribute_specs(operator: Operator) -> dict[str, TensorSpec]:
    """Return what planning sees of an operator's weights."""
    return {key: attribute_spec(a) for key, a in operator.attributes.items()}


def infer_operator(
    operator: Operator,
    specs: Mapping[Operand, Any],
    attributes: Mapping[str, TensorSpec] | None = None,
) -> dict[Operand, Any]:
    """Return the specs of an operator's outputs.

    Parameters
    ----------
    operator : Operator
    specs : mapping of Operand to (TensorSpec or StaticValue)
        Those of its inputs.
    attributes : mapping of str to TensorSpec, optional
        Those of its attributes, where they are made already.
    """
    record = find_record(operator.type)
    attributes = attribute_specs(operator) if attributes is None else attributes
    arguments = resolve(operator, record, specs, attributes)
    arguments.n_outputs = len(operator.outputs)
    try:
        results = arguments.infer()
    except ValuesNeeded as error:
        raise ValuesNeeded(f"{operator.label}: {error}", error.specs) from None
    except OperatorError as error:
        raise type(error)(f"{operator.label}: {error}") from error.__cause__
    except MemoryError:
        raise ShapeError(f"{operator.label}: there is too little memory to compute it") from None
    except KuiperError:
        raise
    except Exception as error:
        raise unforeseen(operator.label, error) from error
    if not isinstance(results, tuple | list):
        results = (results,)
    if len(results) < len(operator.outputs):
        raise OperatorError(
            f"{operator.label}: has {len(operator.outputs)} outputs, expected {len(results)}"
        )
    for result in results[: len(operator.outputs)]:
        if isinstance(result, TensorSpec) and min(result.shape, default=1) < 0:
            raise ShapeError(f"{operator.label}: its output would have shape {result.shape}")
    return dict(zip(operator.outputs, results, strict=False))


def leaf_operands(operand: Operand) -> list[Operand]:
    """Return the operands of a possibly nested tuple, depth first."""
    producer = operand.producer
    if producer is not None and producer.type in ("prim::TupleConstruct", "prim::ListConstruct"):
        return [leaf for item in producer.inputs for leaf in leaf_operands(item)]
    return [operand]


def tensors_in(value: Any) -> Iterator[Any]:
    """Yield the tensor (a spec or a place), or those in a (nested) list."""
    if isinstance(value, TensorSpec | TensorView):
        yield value
    elif isinstance(value, StaticValue):
        yield from tensors_in(value.value)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
