"""Operators that only move or choose elements work on bytes.

::

    kuiper.DequantizeLinear d1 1 1 a x scale=0.02 zero_point=128
    nn.quantized.Conv2d     c  1 1 b y
    torch.cat               m  2 1 x y z dim=1
    kuiper.QuantizeLinear   q  1 1 z p scale=0.05 zero_point=3
    ->
    kuiper.DequantizeLinear d1 1 1 a x scale=0.02 zero_point=128
    kuiper.QuantizeLinear   q1 1 1 x s scale=0.05 zero_point=3
    nn.quantized.Conv2d     c  1 1 b y
    kuiper.QuantizeLinear   q2 1 1 y t scale=0.05 zero_point=3
    torch.cat               m  2 1 s t p dim=1

A QuantizeLinear moves to the front of a concatenation, a view, a slice, a maximum or a repetition of
pixels; later passes join it with the product before it, or with a DequantizeLinear of the same
scale.  Where no QuantizeLinear follows, a DequantizeLinear moves after the operator, unless that
enlarges its tensor::

    kuiper.DequantizeLinear d 1 1 a x scale=0.02 zero_point=128      nn.MaxPool2d            m 1 1 a y
    nn.MaxPool2d            m 1 1 x z                            ->  kuiper.DequantizeLinear d 1 1 y z

Both maps are the same for each element and monotone, so they commute with these operators.  For a
maximum of NaN they would not: a QuantizeLinear moves to the front of a maximum only if its operand
has none.
"""  # noqa: E501

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper.ir import Graph, Operand, Operator
from kuiper.ir.view import TensorSpec
from kuiper.ops import record_or_none
from kuiper.ops.core.quantization import (
    DEQUANTIZE,
    JOINS,
    MAX_POOLS,
    MOVES,
    QUANTIZE,
    RESIZES,
)
from kuiper.passes.optimize.fuse_elementwise import is_elementwise
from kuiper.passes.optimize.fuse_quantized import same_quantization
from kuiper.passes.optimize.match import is_float32, only_reader

__all__ = ["move_quantized"]

# Activations whose result is finite if their operand is.
FINITE = frozenset([
    "F.hardswish", "F.hardtanh", "F.leaky_relu", "F.relu", "F.relu6", "F.silu", "nn.Hardswish",
    "nn.Hardtanh", "nn.LeakyReLU", "nn.ReLU", "nn.ReLU6", "nn.SiLU",
])  # fmt: skip
# With smaller biases, and smaller scales of an exact sum, a result is far from infinity.
MAX_BIAS, MAX_SCALE = 1e25, 1e15
# Of the moving operators in a row that a QuantizeLinear may pass at once.
MAX_DEPTH = 16


def move_quantized(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Move QuantizeLinear to the front of moving operators, and DequantizeLinear after them."""
    waiting = graph.find(QUANTIZE)
    while waiting:
        waiting.extend(_move_to_front(graph, specs, waiting.pop()))
    for op in graph.topological_order():
        if op.type in MOVES or op.type in JOINS or op.type in MAX_POOLS:
            _move_after(graph, specs, op)


def _move_to_front(graph: Graph, specs: dict[Operand, Any], quantize: Operator) -> list[Operator]:
    """Move a QuantizeLinear and its equals over the operator before them; return the new ones."""
    op = quantize.inputs[0].producer if quantize.inputs else None
    if op is None or not _moves(op, specs):
        return []
    readers = [only_reader(output) for output in op.outputs]
    equal = [r for r in readers if r is not None and _are_equal(r, quantize)]
    if len(equal) < len(readers) or not _gains(op, quantize, specs):
        return []
    inserted: list[Operator] = []
    replaced: dict[Operand, Operand] = {}
    for operand in dict.fromkeys(_data(op, specs)):
        bytes_ = _byte_operand(graph, specs, operand)
        replaced[operand] = bytes_
        name = graph.unique_name(f"{quantize.name}.{len(inserted)}")
        inserted.append(
            graph.add_operator(
                QUANTIZE, name, [operand], [bytes_], params=quantize.params,
                location=quantize.location,
            )
        )  # fmt: skip
    graph.set_inputs(op, [replaced.get(x, x) for x in op.inputs], op.input_keys)
    results = [reader.outputs[0] for reader in equal]
    for reader in equal:
        graph.set_outputs(reader, [])
        graph.remove_operator(reader)
    graph.set_outputs(op, results)
    return inserted


def _move_after(graph: Graph, specs: dict[Operand, Any], op: Operator) -> None:
    """Move the DequantizeLinear of all operands over an operator."""
    if not _moves(op, specs):
        return
    operands = _data(op, specs)
    sources = [operand.producer for operand in operands]
    first = sources[0]
    if first is None or not all(
        source is not None and source.type == DEQUANTIZE and same_quantization(source, first)
        for source in sources
    ):
        return
    if op.type not in MAX_POOLS and any(only_reader(operand) is not op for operand in operands):
        return  # their floats are needed anyway
    if op.type in MAX_POOLS and not _is_plain(op):
        return
    replaced = {x: source.inputs[0] for x, source in zip(operands, sources, strict=True) if source}
    graph.set_inputs(op, [replaced.get(x, x) for x in op.inputs], op.input_keys)
    results = tuple(op.outputs)
    inner = [_byte_operand(graph, specs, result) for result in results]
    graph.set_outputs(op, inner)
    for number, (source, result) in enumerate(zip(inner, results, strict=True)):
        if not result.uses:
            continue
        name = graph.unique_name(f"{first.name}.{op.name}.{number}")
        params, location = first.params, first.location
        graph.add_operator(DEQUANTIZE, name, [source], [result], params=params, location=location)


def _moves(op: Operator, specs: dict[Operand, Any]) -> bool:
    """Tell whether an operator only moves or chooses elements of float32 tensors."""
    data = _data(op, specs)
    if op.post_ops or not data or (op.type in JOINS and len(data) < len(op.inputs)):
        return False  # a tensor of another type is converted by a concatenation
    if op.type in MAX_POOLS:
        is_move = len(op.outputs) == 1
    else:
        is_move = op.type in MOVES or op.type in JOINS
        is_move = is_move or (op.type in RESIZES and _repeats(op, specs))
    return is_move and all(is_float32(output, specs) for output in op.outputs)


def _repeats(op: Operator, specs: dict[Operand, Any]) -> bool:
    """Tell whether a resizing of an image repeats each pixel the same number of times."""
    if op.params.get("mode", "nearest") != "nearest":
        return False
    return bool(specs[op.outputs[0]].tells(_are_multiples, specs[op.inputs[0]]))


def _are_multiples(large: tuple[int, ...], small: tuple[int, ...]) -> bool:
    if len(large) != 4 or len(small) != 4 or 0 in small:
        return False
    return all(n % m == 0 for n, m in zip(large, small, strict=True))


def _data(op: Operator, specs: dict[Operand, Any]) -> list[Operand]:
    """Return the tensors that an operator moves; its other operands are numbers."""
    return [operand for operand in op.inputs if is_float32(operand, specs)]


def _are_equal(a: Operator, b: Operator) -> bool:
    return a.type == b.type and same_quantization(a, b)


def _gains(
    op: Operator, quantize: Operator, specs: dict[Operand, Any], depth: int = MAX_DEPTH
) -> bool:
    """Tell whether bytes in front of an operator are less work than after it."""
    operands = dict.fromkeys(_data(op, specs))
    if op.type in MAX_POOLS:
        return all(_joins(x, op, quantize, specs, depth) for x in operands) and not any(
            _may_be_nan(x, specs) for x in operands
        )
    return any(_joins(x, op, quantize, specs, depth) for x in operands)


def _joins(
    x: Operand, reader: Operator, quantize: Operator, specs: dict[Operand, Any], depth: int
) -> bool:
    """Tell whether a QuantizeLinear of an operand costs next to nothing."""
    producer = x.producer
    if producer is None:
        return False
    if producer.type == DEQUANTIZE:
        # Of larger tensors than the result, other scales would be more work.
        return reader.type not in MAX_POOLS or same_quantization(producer, quantize)
    if only_reader(x) is not reader:
        return False
    if _moves(producer, specs):
        return (
            depth > 0
            and len(producer.outputs) == 1
            and _gains(producer, quantize, specs, depth - 1)
        )
    return _computes_bytes(producer) or (
        reader.type not in MAX_POOLS and is_elementwise(producer, specs)
    )


def _computes_bytes(op: Operator) -> bool:
    record = record_or_none(op.type)
    return record is not None and record.computes_bytes


def _may_be_nan(x: Operand, specs: dict[Operand, Any]) -> bool:
    """Tell whether a tensor may hold a NaN, as far as the operators that moved it show."""
    waiting, seen = [x], {x}
    while waiting:
        producer = waiting.pop().producer
        if producer is None:
            return True
        if producer.type == DEQUANTIZE:
            continue
        if not _moves(producer, specs):
            if _result_may_be_nan(producer):
                return True
            continue
        for operand in _data(producer, specs):
            if operand not in seen:
                seen.add(operand)
                waiting.append(operand)
    return False


def _result_may_be_nan(producer: Operator) -> bool:
    if not _computes_bytes(producer) or any(p.type not in FINITE for p in producer.post_ops):
        return True
    bias, scale = (producer.attributes.get(key) for key in ("bias", "weight_scale"))
    if scale is None or not (scale.numpy() * producer.params["input_scale"] < MAX_SCALE).all():
        return True
    return bias is not None and not (np.abs(bias.numpy()) < MAX_BIAS).all()


def _is_plain(op: Operator) -> bool:
    """Tell whether each window of a maximum has a pixel of the input."""
    return bool(np.all(np.asarray(op.params.get("dilation", 1)) == 1))


def _byte_operand(graph: Graph, specs: dict[Operand, Any], like: Operand) -> Operand:
    """Add an operand for the bytes of another one."""
    operand = graph.add_operand(graph.unique_name(f"{like.name}.bytes"), like.shape, "u8")
    specs[operand] = TensorSpec(specs[like].shape, np.uint8)
    return operand
