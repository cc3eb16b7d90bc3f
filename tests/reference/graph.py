"""Reads and evaluates a PNNX graph in the simplest correct way.

Independent of kuiper's own reader on purpose, so that a misread parameter cannot cancel out between
the engine and its reference.
"""

from __future__ import annotations

import ast
import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .registry import REFERENCES

__all__ = ["Node", "read_graph", "run_graph", "trace_graph"]

_DTYPES = {
    "f16": "<f2",
    "f32": "<f4",
    "f64": "<f8",
    "i8": "i1",
    "i16": "<i2",
    "i32": "<i4",
    "i64": "<i8",
    "u8": "u1",
    "bool": "?",
    "c64": "<c8",
}

# Operators of which a file has only the outputs that are read, in any order.
_PARTIAL = (
    "torch.max", "torch.min", "nn.MultiheadAttention", "nn.LSTM", "nn.GRU", "nn.RNN",
    "nn.quantized.dynamic.MultiheadAttention",
)  # fmt: skip


@dataclass(frozen=True)
class Node:
    """One line of a ``.param`` file.

    `keys` holds the keyword or None of each input; attributes are widened to float64; `shapes` has
    the shapes of operands where the line states them, with None for an unknown extent.
    """

    type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    keys: tuple[str | None, ...]
    params: Mapping[str, Any]
    attributes: Mapping[str, np.ndarray]
    shapes: Mapping[str, tuple[int | None, ...]]


def read_graph(param: bytes, archive: bytes) -> list[Node]:
    """Read the two files of a model."""
    with zipfile.ZipFile(io.BytesIO(archive)) as weights:
        return [
            _read_line(line.split(), weights)
            for line in param.decode().splitlines()[2:]
            if line.strip()
        ]


def _read_line(words: list[str], weights: zipfile.ZipFile) -> Node:
    kind, name = words[:2]
    n_inputs, n_outputs = int(words[2]), int(words[3])
    inputs = tuple(words[4 : 4 + n_inputs])
    outputs = tuple(words[4 + n_inputs : 4 + n_inputs + n_outputs])
    keys: list[str | None] = [None] * n_inputs
    params: dict[str, Any] = {}
    attributes: dict[str, np.ndarray] = {}
    shapes: dict[str, tuple[int | None, ...]] = {}
    for word in words[4 + n_inputs + n_outputs :]:
        key, value = word.split("=", 1)
        if key.startswith("@"):
            shape, dtype = value[1:].split(")")
            array = np.frombuffer(weights.read(f"{name}.{key[1:]}"), _DTYPES[dtype])
            array = array.reshape([int(n) for n in shape.split(",") if n])
            attributes[key[1:]] = _widen(array)
        elif key.startswith("$"):
            # An operand may fill several inputs: take the next one without a keyword.
            slot = next(i for i in range(n_inputs) if inputs[i] == value and keys[i] is None)
            keys[slot] = key[1:]
        elif key.startswith("#"):
            extents = value[1:].split(")")[0].split(",")
            shapes[key[1:]] = tuple(None if n == "?" else int(n) for n in extents if n)
        else:
            params[key] = value if key in ("expr", "equation") else _read_value(value)
    return Node(kind, name, inputs, outputs, tuple(keys), params, attributes, shapes)


def _read_value(text: str) -> Any:
    if text in ("None", "()", "[]"):
        return None
    if text[0] in "([":
        return tuple(_read_value(item) for item in text[1:-1].split(","))
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return float(text) if text in ("inf", "-inf") else text


def _widen(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def run_graph(
    nodes: Sequence[Node],
    inputs: Sequence[np.ndarray],
    operators: Mapping[str, Callable] = REFERENCES,
    prepare: Callable[[np.ndarray], Any] = _widen,
) -> list[Any]:
    """Evaluate a graph and return its outputs, nested ones flattened.

    Parameters
    ----------
    nodes : sequence of Node
    inputs : sequence of numpy.ndarray
        In the order of the ``pnnx.Input`` lines.
    operators : mapping, optional
        Operator type to a function of positional operands and keyword arguments.
    prepare : callable, optional
        Applied to every input and attribute; by default widens floats to float64.
    """
    values = trace_graph(nodes, inputs, operators, prepare)
    outputs = [values[node.inputs[0]] for node in nodes if node.type == "pnnx.Output"]
    return _flatten(outputs)


def trace_graph(
    nodes: Sequence[Node],
    inputs: Sequence[np.ndarray],
    operators: Mapping[str, Callable] = REFERENCES,
    prepare: Callable[[np.ndarray], Any] = _widen,
) -> dict[str, Any]:
    """Evaluate a graph like :func:`run_graph`, but return every operand by name."""
    waiting = list(inputs)
    values: dict[str, Any] = {}
    for node in nodes:
        operands = [values[name] for name in node.inputs]
        if node.type == "pnnx.Input":
            values[node.outputs[0]] = prepare(waiting.pop(0))
        elif node.type == "pnnx.Attribute":
            values[node.outputs[0]] = prepare(node.attributes["data"])
        elif node.type != "pnnx.Output":
            produced = _call(node, operands, operators[node.type], prepare)
            if node.type in _PARTIAL and isinstance(produced, tuple):
                produced = _pick(node, list(produced))
            elif len(node.outputs) == 1:
                produced = (produced,)
            values.update(zip(node.outputs, produced, strict=True))
    return values


def _call(node: Node, operands: list, function: Callable, prepare: Callable) -> Any:
    if node.type == "pnnx.Expression":
        # Keywords may be left over from the replaced operator; operands count by position.
        return function(*operands, expr=node.params["expr"])
    keyed = list(zip(operands, node.keys, strict=True))
    named = dict(node.params)
    named |= {key: prepare(array) for key, array in node.attributes.items()}
    named |= {key: value for value, key in keyed if key is not None}
    return function(*(value for value, key in keyed if key is None), **named)


def _pick(node: Node, produced: list) -> list:
    """Return the first result with the shape of each output of a line, or else the first one."""
    picked = []
    for name in node.outputs:
        shape = node.shapes.get(name, ())
        fitting = [
            i
            for i, y in enumerate(produced)
            if y.ndim == len(shape)
            and all(b in (a, None) for a, b in zip(y.shape, shape, strict=True))
        ]
        picked.append(produced.pop(fitting[0] if fitting else 0))
    return picked


def _flatten(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in _flatten(item)]
    return [value]
