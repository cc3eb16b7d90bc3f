"""Counts among the tensors of a run: numbers that cannot be negative, and what follows of it."""

from __future__ import annotations

from typing import Any

from kuiper.ir import Operand
from kuiper.onnx.values import Size

__all__ = ["extent_of", "is_count", "is_true"]

# All elements of the result are elements of the first input.
MOVES = frozenset({
    "Tensor.expand", "Tensor.expand_as", "Tensor.permute", "Tensor.reshape", "Tensor.select",
    "Tensor.slice", "torch.flatten", "torch.squeeze", "torch.transpose", "torch.unsqueeze",
})  # fmt: skip
MAX_DEPTH = 20
MAX_SIZE = 1 << 20  # elements of a constant that are read


def is_count(operand: Operand) -> bool:
    """Tell whether no element of an integer tensor can be negative.

    The proof follows operators that only move elements back to a constant without negative
    elements, or to a range that starts at 0 or later and grows; anything else is not proven.
    """
    operand = _moved(operand)
    producer = operand.producer
    if producer is None:
        return False
    if producer.type == "torch.arange":
        start, step = (producer.params.get(key, n) for key, n in (("start", 0), ("step", 1)))
        is_known = all(key == "end" for key in producer.input_keys) and None not in (start, step)
        return bool(is_known and start >= 0 < step)
    constant = _constant(operand)
    return constant is not None and (constant.size == 0 or bool(constant.min() >= 0))


def is_true(operand: Operand) -> bool:
    """Tell whether a condition holds everywhere: no count is less than 0, or a negative number."""
    producer = _moved(operand).producer
    if producer is None or producer.type != "torch.ge" or len(producer.inputs) != 2:
        return False
    least = _constant(producer.inputs[1])
    return least is not None and bool((least <= 0).all()) and is_count(producer.inputs[0])


def extent_of(condition: Operand, extent: Any) -> Any:
    """Return an extent of a comparison as that of its first input: nothing else may read it."""
    producer = condition.producer
    if not isinstance(extent, Size) or producer is None or producer.type != "torch.ge":
        return extent
    x, y = producer.inputs
    if len(x.shape or ()) != len(condition.shape or ()) or any(n != 1 for n in y.shape or ()):
        return extent
    return Size("size", (x, extent.arguments[1]), extent.probes)


def _moved(operand: Operand) -> Operand:
    """Return the tensor of which an operand has the elements."""
    for _ in range(MAX_DEPTH):
        producer = operand.producer
        if producer is None or producer.type not in MOVES:
            break
        operand = producer.inputs[0]
    return operand


def _constant(operand: Operand) -> Any:
    """Return a constant of integers, None for another tensor."""
    producer = operand.producer
    if producer is None or producer.type != "pnnx.Attribute":
        return None
    found = producer.attributes["data"]
    if found.size > MAX_SIZE:
        return None
    return found.numpy() if found.dtype in ("i32", "i64", "u8") else None
