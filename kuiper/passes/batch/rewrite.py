"""Write a batch size into a graph wherever a search has found the traced one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kuiper.ir import Operand, Operator
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.batch import BatchAxis, TracedCall
from kuiper.ops.core.schema import StaticValue
from kuiper.passes.batch.members import write_member_count, write_row_offsets

if TYPE_CHECKING:
    from kuiper.passes.batch.search import BatchSearch

__all__ = ["Written", "write_batch"]


Written: TypeAlias = "Literal['nothing', 'axes', 'extent']"


def write_batch(search: BatchSearch, batch: int) -> Written:
    """Write the batch size into the graph of a search, in place; return what that depends on."""
    for op, call in search.calls.items():
        for key, (value, index) in call.rewrites.items():
            axis = search.axes[op.outputs[0]]
            extent = axis.outer * batch * axis.inner
            _set_param(search, op, key, (*value[:index], extent, *value[index + 1 :]))
        for spec, axis in call.repeats:
            _repeat(search, op, spec, axis, batch)
        if call.as_groups:
            _group(search, op, call, batch)
    for op in search.counting:
        write_member_count(search.graph, op, batch)
    for op in search.listing:
        write_row_offsets(search, op, batch)
    for op in search.copying:
        _set_param(search, op, "shape", (0, *search.call(op).a.shape[1:]))
    if search.counting or search.listing:
        return "extent"
    if any(call.rewrites or call.repeats or call.as_groups for call in search.calls.values()):
        return "extent"
    return "axes" if search.copying else "nothing"


def _set_param(search: BatchSearch, op: Operator, key: str, value: tuple[int, ...]) -> None:
    """Set a parameter; remove the operand that was its value, if any."""
    slots = [
        slot for slot, operand in enumerate(op.inputs)
        if not isinstance(search.specs.get(operand), StaticValue)
    ]  # fmt: skip
    if len(slots) < len(op.inputs):
        keys = [op.input_keys[slot] for slot in slots]
        search.graph.set_inputs(op, [op.inputs[slot] for slot in slots], keys)
    op.params = {**op.params, key: value}


def _repeat(search: BatchSearch, op: Operator, spec: TensorSpec, axis: int, batch: int) -> None:
    """Repeat a constant for each member: a view if the axis has extent 1, otherwise copies."""
    graph = search.graph
    source = next(operand for operand in op.inputs if search.specs.get(operand) is spec)
    type, other = ("Tensor.expand", -1) if spec.shape[axis] == 1 else ("Tensor.repeat", 1)
    sizes = [batch if d == axis else other for d in range(spec.rank)]
    shape = [n * batch if d == axis else n for d, n in enumerate(spec.shape)]
    name = graph.unique_name(f"{source.name}_batch")
    result = graph.add_operand(name, tuple(shape), source.dtype)
    params: dict[str, Any] = {"sizes": tuple(sizes)}
    graph.add_operator(type, name, [source], [result], params=params, location=op.location)
    inputs = [result if operand is source else operand for operand in op.inputs]
    graph.set_inputs(op, inputs, op.input_keys)


def _group(search: BatchSearch, op: Operator, call: TracedCall, batch: int) -> None:
    """Let a convolution compute its members as groups of one image."""
    graph = search.graph
    op.params = {**op.params, "groups": call.a.groups // search.traced * batch}
    others = (0,) * (call.a.input.rank - 2)

    def reshape(name: str, source: Operand, target: Operand, first: int) -> None:
        params = {"shape": (first, -1, *others)}
        graph.add_operator(
            "Tensor.reshape", name, [source], [target], params=params, location=op.location
        )

    source, result = op.inputs[0], op.outputs[0]
    if search.axes.get(source) == BatchAxis(0):
        name = graph.unique_name(f"{source.name}_members")
        joined = graph.add_operand(name, None, source.dtype)
        reshape(name, source, joined, 1)
        graph.set_inputs(op, [joined, *op.inputs[1:]], op.input_keys)
    if search.axes[result] == BatchAxis(0):
        name = graph.unique_name(f"{result.name}_members")
        joined = graph.add_operand(name, None, result.dtype)
        graph.set_outputs(op, [joined])
        reshape(name, joined, result, batch)
