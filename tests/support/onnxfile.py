"""ONNX files for tests, written without the `onnx` package.

A message is bytes; functions return messages, and take those of inner messages::

    model(graph([node("Relu", "x", "y")], [value("x", np.float32, (2, 3))], [value("y")]))
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

__all__ = [
    "ELEMENTS", "Message", "fields", "frozen", "function", "graph", "model", "node", "single",
    "tensor", "value", "varint",
]  # fmt: skip

ELEMENTS = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7,
    "bool": 9, "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "complex64": 14,
    "complex128": 15, "bfloat16": 16,
}  # fmt: skip


class Message(bytes):
    """A graph or a tensor as the value of an attribute; `kind` is the field that holds it."""

    kind: int


def varint(number: int) -> bytes:
    """Return an integer in seven bits per byte."""
    number &= (1 << 64) - 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def field(number: int, content: int | float | str | bytes) -> bytes:
    """Return a field of a message."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    if isinstance(content, float):
        return varint(number << 3 | 5) + struct.pack("<f", content)
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield number, content and all bytes of each field of a message; numbers have no content."""
    at = 0

    def integer() -> int:
        nonlocal at
        shift = found = 0
        while True:
            byte = message[at]
            at += 1
            found |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return found

    while at < len(message):
        start = at
        tag = integer()
        content = b""
        if tag & 7 == 2:
            size = integer()
            content = message[at : at + size]
            at += size
        elif tag & 7 == 0:
            integer()
        else:
            at += 4 if tag & 7 == 5 else 8
        yield tag >> 3, content, message[start:at]


def tensor(name: str, array: Any, *, listed: bool = False, external: Any = None) -> Message:
    """Return a tensor: raw bytes, numbers of the message, or a reference to another file."""
    array = np.asarray(array)
    kind = ELEMENTS[array.dtype.name]
    dims = b"".join(field(1, n) for n in array.shape)
    head = dims + field(2, kind) + field(8, name)
    if external is not None:
        pairs = (field(1, key) + field(2, str(text)) for key, text in external.items())
        data = b"".join(field(13, pair) for pair in pairs) + field(14, 1)
    elif not listed:
        data = field(9, array.astype(array.dtype.newbyteorder("<")).tobytes())
    elif array.dtype == np.float32:
        data = field(4, array.astype("<f4").tobytes())
    elif array.dtype == np.float64:
        data = field(10, array.astype("<f8").tobytes())
    else:
        bits = array.view(np.uint16) if array.dtype == np.float16 else array
        where = 7 if array.dtype == np.int64 else 5
        data = field(where, b"".join(varint(int(n)) for n in bits.ravel()))
    found = Message(head + data)
    found.kind = 4
    return found


def value(
    name: str, dtype: Any = np.float32, shape: Iterable[int | str | None] | None = None
) -> bytes:
    """Return the name and type of an input or output; texts and None are open extents."""
    kind = ELEMENTS[dtype if isinstance(dtype, str) else np.dtype(dtype).name]
    content = field(1, kind)
    if shape is not None:
        dims = b"".join(
            field(1, b"" if n is None else field(2, n) if isinstance(n, str) else field(1, n))
            for n in shape
        )
        content += field(2, dims)
    return field(1, name) + field(2, field(1, content))


def attribute(name: str, content: Any) -> bytes:
    """Return an argument of a node."""
    head = field(1, name)
    if isinstance(content, Message):
        return head + field(5 if content.kind == 4 else 6, content) + field(20, content.kind)
    if isinstance(content, np.ndarray):
        return head + field(5, tensor("", content)) + field(20, 4)
    if isinstance(content, bool | int):
        return head + field(3, int(content)) + field(20, 2)
    if isinstance(content, float):
        return head + field(2, content) + field(20, 1)
    if isinstance(content, str):
        return head + field(4, content) + field(20, 3)
    if content and isinstance(content[0], str):
        return head + b"".join(field(9, text) for text in content) + field(20, 8)
    if content and isinstance(content[0], float):
        return head + b"".join(field(7, float(n)) for n in content) + field(20, 6)
    return head + b"".join(field(8, int(n)) for n in content) + field(20, 7)


def node(
    type: str, inputs: str, outputs: str, name: str = "", *, domain: str = "", **arguments: Any
) -> bytes:
    """Return a node; names are separated by spaces, and ``-`` is a value that is left out."""
    found = b"".join(field(1, "" if key == "-" else key) for key in inputs.split())
    found += b"".join(field(2, "" if key == "-" else key) for key in outputs.split())
    found += field(3, name) + field(4, type)
    found += b"".join(field(5, attribute(key, content)) for key, content in arguments.items())
    return found + (field(7, domain) if domain else b"")


def graph(
    nodes: Iterable[bytes], inputs: Iterable[bytes], outputs: Iterable[bytes],
    tensors: Iterable[bytes] = (), values: Iterable[bytes] = (),
) -> Message:  # fmt: skip
    """Return a graph."""
    parts = [field(1, each) for each in nodes] + [field(2, "test")]
    for number, messages in ((5, tensors), (11, inputs), (12, outputs), (13, values)):
        parts += [field(number, each) for each in messages]
    found = Message(b"".join(parts))
    found.kind = 5
    return found


def function(
    name: str, inputs: str, outputs: str, nodes: Iterable[bytes], *, domain: str = "local",
    arguments: str = "", opset: int = 20,
) -> bytes:  # fmt: skip
    """Return a function: an operator made of nodes."""
    parts = [field(1, name), *(field(4, key) for key in inputs.split())]
    parts += [field(5, key) for key in outputs.split()]
    parts += [field(6, key) for key in arguments.split()]
    parts += [field(7, each) for each in nodes]
    return b"".join(parts) + field(9, field(2, opset)) + field(10, domain)


def model(
    graph: bytes, opset: int = 20, functions: Iterable[bytes] = (),
    domains: Mapping[str, int] | None = None,
) -> bytes:  # fmt: skip
    """Return a file."""
    parts = [field(1, 8), field(2, "kuiper's tests"), field(7, graph)]
    for domain, version in {"": opset, **(domains or {})}.items():
        parts.append(field(8, field(1, domain) + field(2, version)))
    return b"".join(parts) + b"".join(field(25, each) for each in functions)


def single(
    type: str, arrays: Mapping[str, Any], outputs: str = "y", *, opset: int = 20,
    known: Mapping[str, Any] | None = None, domain: str = "", open: bool = False, **arguments: Any,
) -> bytes:  # fmt: skip
    """Return the file of one node, whose inputs are `arrays`, then the constants `known`."""
    known = known or {}
    inputs = [
        value(key, array.dtype, [None] * array.ndim if open else array.shape)
        for key, array in arrays.items()
    ]
    one = node(type, " ".join([*arrays, *known]), outputs, "n", domain=domain, **arguments)
    tensors = [tensor(key, array) for key, array in known.items()]
    domains = {domain: 1} if domain else None
    found = graph([one], inputs, [value(key) for key in outputs.split()], tensors)
    return model(found, opset, domains=domains)


def frozen(file: bytes, values: Mapping[str, Any]) -> bytes:
    """Return a model in which inputs are constants."""
    more = b"".join(field(5, tensor(name, array)) for name, array in values.items())
    return b"".join(
        field(7, content + more) if number == 7 else whole
        for number, content, whole in fields(file)
    )
