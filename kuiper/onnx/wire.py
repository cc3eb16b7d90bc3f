"""The wire format of ONNX files: protobuf messages, read without a library.

::

    bytes ── fields of a message ──> Model ── graph ──> nodes, initializers ── Blob ──> file

A message is a sequence of fields; each has a number, one of four encodings and a value.  A class
per kind of message lists the fields that kuiper reads, others are skipped.  Numbers of a file are
compared with the bytes that are left before they are used, and the memory that the messages take is
counted, so that reading is linear in the size of the file and nothing is allocated for a number
that is only claimed.

The elements of tensors are not read: a :class:`Blob` says where they are.  Only the parts of a
large file between them pass through memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kuiper.errors import GraphError, ModelFormatError

__all__ = [
    "AttributeMessage",
    "Blob",
    "FunctionMessage",
    "GraphMessage",
    "Message",
    "ModelMessage",
    "NodeMessage",
    "SourceFile",
    "TensorMessage",
    "ValueInfo",
    "read_model",
]

WHOLE_BYTES = 1 << 20  # a smaller file is read at once
SOON_BYTES = 1 << 16  # elements of an open file up to this size are read at once
WINDOW_BYTES = 1 << 18  # minimum read of a large file
HEAD_BYTES = 20  # a field's number and its value or length: two integers of up to 10 bytes
MAX_TEXT = 1 << 20  # bytes of a name
MAX_DEPTH = 64  # of messages inside messages: a graph inside a node takes three
# Upper bound of the memory that a message or an element of a list takes, in bytes.
FIELD_BYTES = 256

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Fields = dict[int, tuple[str, Any, bool]]


class Blob(NamedTuple):
    """Bytes of a file that have not been read."""

    first: int
    nbytes: int


class Message:
    """A message; the fields that a file omits have the values of the class.

    Attributes
    ----------
    FIELDS : dict of int to (str, str or type, bool)
        Name, kind and whether the field is a list, by number.  The kind is ``"int"``, ``"float"``,
        ``"text"``, ``"blob"`` or the class of a message.
    """

    FIELDS: ClassVar[Fields] = {}


class Entry(Message):
    """A pair of texts."""

    key = value = ""
    FIELDS: ClassVar[Fields] = {1: ("key", "text", False), 2: ("value", "text", False)}


class Opset(Message):
    """The version of a domain's operators."""

    domain = ""
    version = 0
    FIELDS: ClassVar[Fields] = {1: ("domain", "text", False), 2: ("version", "int", False)}


class Dimension(Message):
    """An extent: a number, a name or neither."""

    value: int | None = None
    name = ""
    FIELDS: ClassVar[Fields] = {1: ("value", "int", False), 2: ("name", "text", False)}


class Extents(Message):
    """A shape."""

    dims: Sequence[Dimension] = ()
    FIELDS: ClassVar[Fields] = {1: ("dims", Dimension, True)}


class TensorType(Message):
    """An element type by its number, and a shape if it is known."""

    element = 0
    shape: Extents | None = None
    FIELDS: ClassVar[Fields] = {1: ("element", "int", False), 2: ("shape", Extents, False)}


class TypeMessage(Message):
    """The type of a value; `tensor` is None for sequences, maps and the like."""

    tensor: TensorType | None = None
    FIELDS: ClassVar[Fields] = {1: ("tensor", TensorType, False)}


class ValueInfo(Message):
    """The name and the type of a value."""

    name = ""
    type: TypeMessage | None = None
    FIELDS: ClassVar[Fields] = {1: ("name", "text", False), 2: ("type", TypeMessage, False)}


class TensorMessage(Message):
    """A tensor; its elements are in one of six lists or in another file."""

    name = ""
    dims: Sequence[int] = ()
    element = 0
    segment: Blob | None = None
    floats: Sequence[Any] = ()
    int32s: Sequence[Any] = ()
    texts: Sequence[Any] = ()
    int64s: Sequence[Any] = ()
    doubles: Sequence[Any] = ()
    uint64s: Sequence[Any] = ()
    raw: Blob | None = None
    external: Sequence[Entry] = ()
    location = 0
    FIELDS: ClassVar[Fields] = {
        1: ("dims", "int", True),
        2: ("element", "int", False),
        3: ("segment", "blob", False),
        4: ("floats", "packed", True),
        5: ("int32s", "packed", True),
        6: ("texts", "blob", True),
        7: ("int64s", "packed", True),
        8: ("name", "text", False),
        9: ("raw", "blob", False),
        10: ("doubles", "packed", True),
        11: ("uint64s", "packed", True),
        13: ("external", Entry, True),
        14: ("location", "int", False),
    }


class AttributeMessage(Message):
    """An argument of a node."""

    name = ""
    reference = ""  # the name of the argument of the function that gives the value
    kind = 0
    float = 0.0
    int = 0
    text: Blob | None = None
    tensor: TensorMessage | None = None
    graph: GraphMessage | None = None
    floats: Sequence[Any] = ()
    ints: Sequence[Any] = ()
    texts: Sequence[Blob] = ()
    tensors: Sequence[TensorMessage] = ()


class NodeMessage(Message):
    """An operator with the names of its inputs and outputs."""

    name = type = domain = overload = ""
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    attributes: Sequence[AttributeMessage] = ()
    FIELDS: ClassVar[Fields] = {
        1: ("inputs", "text", True),
        2: ("outputs", "text", True),
        3: ("name", "text", False),
        4: ("type", "text", False),
        5: ("attributes", AttributeMessage, True),
        7: ("domain", "text", False),
        8: ("overload", "text", False),
    }


class GraphMessage(Message):
    """Nodes in an order in which they can run, and tensors."""

    name = ""
    nodes: Sequence[NodeMessage] = ()
    tensors: Sequence[TensorMessage] = ()
    inputs: Sequence[ValueInfo] = ()
    outputs: Sequence[ValueInfo] = ()
    values: Sequence[ValueInfo] = ()
    sparse: Sequence[Message] = ()
    FIELDS: ClassVar[Fields] = {
        1: ("nodes", NodeMessage, True),
        2: ("name", "text", False),
        5: ("tensors", TensorMessage, True),
        11: ("inputs", ValueInfo, True),
        12: ("outputs", ValueInfo, True),
        13: ("values", ValueInfo, True),
        15: ("sparse", Message, True),
    }


AttributeMessage.FIELDS = {
    1: ("name", "text", False),
    2: ("float", "float", False),
    3: ("int", "int", False),
    4: ("text", "blob", False),
    5: ("tensor", TensorMessage, False),
    6: ("graph", GraphMessage, False),
    7: ("floats", "float", True),
    8: ("ints", "int", True),
    9: ("texts", "blob", True),
    10: ("tensors", TensorMessage, True),
    20: ("kind", "int", False),
    21: ("reference", "text", False),
}


class FunctionMessage(Message):
    """An operator that is made of others."""

    name = domain = overload = ""
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    arguments: Sequence[str] = ()
    defaults: Sequence[AttributeMessage] = ()
    nodes: Sequence[NodeMessage] = ()
    opsets: Sequence[Opset] = ()
    FIELDS: ClassVar[Fields] = {
        1: ("name", "text", False),
        4: ("inputs", "text", True),
        5: ("outputs", "text", True),
        6: ("arguments", "text", True),
        7: ("nodes", NodeMessage, True),
        9: ("opsets", Opset, True),
        10: ("domain", "text", False),
        11: ("defaults", AttributeMessage, True),
        13: ("overload", "text", False),
    }


class ModelMessage(Message):
    """A file."""

    ir_version = 0
    producer = ""
    graph: GraphMessage | None = None
    opsets: Sequence[Opset] = ()
    functions: Sequence[FunctionMessage] = ()
    FIELDS: ClassVar[Fields] = {
        1: ("ir_version", "int", False),
        2: ("producer", "text", False),
        7: ("graph", GraphMessage, False),
        8: ("opsets", Opset, True),
        25: ("functions", FunctionMessage, True),
    }


class SourceFile:
    """The bytes of a file: in memory, or in an open file that is read on demand.

    Parameters
    ----------
    source : str, os.PathLike or bytes-like
        A small file is read at once.
    name : str
        In messages.

    Attributes
    ----------
    size : int
    name : str

    Raises
    ------
    OSError
        If the file cannot be read.
    """

    def __init__(self, source: Any, name: str) -> None:
        self.name = name
        self._file: Any = None
        if isinstance(source, (str, os.PathLike)):
            from kuiper.pnnx.archive import File

            file = File(os.fspath(source), name)
            if file.is_regular and file.size >= WHOLE_BYTES and file.keep_open():
                self._file, self.size = file, file.size
                return
            source = file.read(0, file.size) if file.is_regular else file.read_stream()
        self._array = np.frombuffer(source, np.uint8)
        self._array.flags.writeable = False
        self.size = self._array.size

    def read(self, first: int, nbytes: int) -> np.ndarray:
        """Return bytes of the file: a read-only array, a view of the file if it is in memory."""
        if self._file is None:
            return self._array[first : first + nbytes]
        return self._file.read(first, nbytes)

    def rows(self, blob: Blob, count: int) -> Any:
        """Return the bytes of `count` rows, or their reader: the source of an `Attribute`."""
        if self._file is None or blob.nbytes <= SOON_BYTES:
            return self.read(*blob)
        row = blob.nbytes // count
        return self._file.stored_rows(partial(self._part, blob.first, row), blob.first, row)

    def _part(self, first: int, row: int, start: int, stop: int) -> np.ndarray:
        return self.read(first + start * row, (stop - start) * row)


def read_model(file: SourceFile, max_memory: int) -> ModelMessage:
    """Return the model that a file holds.

    Parameters
    ----------
    file : SourceFile
    max_memory : int
        Bytes that the messages may take.

    Raises
    ------
    ModelFormatError
        If the file is damaged, truncated or of another format.
    GraphError
        If the messages might take more than `max_memory`.
    """
    model = _Reader(file, max_memory).message(ModelMessage, 0, file.size, 0)
    assert isinstance(model, ModelMessage)
    return model


class _Reader:
    """Reads messages through a window on a file: a message at a time, fields in order."""

    def __init__(self, file: SourceFile, max_memory: int) -> None:
        self.file = file
        self.max_memory = max_memory
        self.left = max_memory // FIELD_BYTES
        self.data = b""  # the window
        self.base = 0  # offset of its first byte

    def error(self, at: int, text: str) -> ModelFormatError:
        return ModelFormatError(
            f"{self.file.name}: at byte {at}: {text}; the file is damaged or no ONNX model"
        )

    def window(self, at: int, nbytes: int) -> None:
        """Make sure that bytes of the file are in the window; fewer at the end of the file."""
        size = min(max(nbytes, WINDOW_BYTES), self.file.size - at)
        self.data = self.file.read(at, size).tobytes()
        self.base = at

    def number(self, at: int, stop: int) -> tuple[int, int]:
        """Return an integer of up to ten bytes in the window, and the offset after it."""
        data, start = self.data, at - self.base
        value = shift = 0
        for byte in data[start : min(start + 10, stop - self.base)]:
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value & 0xFFFF_FFFF_FFFF_FFFF, at + shift // 7
        raise self.error(at, "an integer does not end")

    def message(self, cls: type[Message], at: int, stop: int, depth: int) -> Message:
        """Return the message in the bytes from `at` to `stop`."""
        if depth > MAX_DEPTH:
            raise self.error(at, f"messages are nested more than {MAX_DEPTH} deep")
        self.count(1)
        message = cls()
        values = vars(message)
        fields = cls.FIELDS
        while at < stop:
            start = at
            head = min(at + HEAD_BYTES, stop)
            if at < self.base or head > self.base + len(self.data):
                self.window(at, HEAD_BYTES)
            byte = self.data[at - self.base]
            tag, at = (byte, at + 1) if byte < 128 else self.number(at, stop)
            number, wire = tag >> 3, tag & 7
            if wire == BYTES:
                if at >= stop:
                    raise self.error(start, "a field ends before its value")
                byte = self.data[at - self.base]
                value, at = (byte, at + 1) if byte < 128 else self.number(at, stop)
                end = at + value
                if end > stop:
                    raise self.error(
                        start, f"a field has {value} bytes, but only {stop - at} are left"
                    )
            elif wire == VARINT:
                value, end = self.number(at, stop)
            elif wire in (FIXED32, FIXED64):
                end = at + (4 if wire == FIXED32 else 8)
                value = 0
                if end > stop:
                    raise self.error(start, "a number is cut off")
            else:
                raise self.error(start, f"a field has the encoding {wire}, expected 0, 1, 2 or 5")
            if number == 0:
                raise self.error(start, "a field has the number 0")
            field = fields.get(number)
            if field is not None:
                name, kind, is_list = field
                if isinstance(kind, str):
                    found = self.scalar(field, wire, value, at, end)
                elif wire != BYTES:
                    raise self.error(start, f"'{name}' is a number, expected a message")
                else:
                    found = self.message(kind, at, end, depth + 1)
                if not is_list:
                    values[name] = found
                elif isinstance(found, list):
                    self.count(len(found))
                    values.setdefault(name, []).extend(found)
                else:
                    self.count(1)
                    values.setdefault(name, []).append(found)
            at = end
        return message

    def count(self, number: int) -> None:
        self.left -= number
        if self.left < 0:
            raise GraphError(
                f"{self.file.name}: its graph may take more than the {self.max_memory} bytes of "
                "max_memory; pass a larger one if you trust the file"
            )

    def scalar(self, field: tuple[str, str, bool], wire: int, value: int, at: int, end: int) -> Any:
        """Return the value of a field that is no message; a list for packed numbers."""
        name, kind, is_list = field
        if kind == "text":
            if wire == BYTES and end - at <= MAX_TEXT:
                try:
                    return self.bytes(at, end).decode()
                except UnicodeDecodeError:
                    raise self.error(at, "a text is not UTF-8") from None
        elif kind == "blob":
            if wire == BYTES:
                return Blob(at, end - at)
        elif kind == "packed":
            return Blob(at, end - at)  # a single number is a list of one
        elif kind == "int":
            if wire == VARINT:
                return value - (1 << 64) if value >> 63 else value
            if wire == BYTES and is_list:
                self.count((end - at) // 8)
                return decode_varints(self.bytes(at, end), self.error, at).tolist()
        elif wire == FIXED32:
            return float(np.frombuffer(self.bytes(at, end), "<f4")[0])
        elif wire == BYTES and is_list and (end - at) % 4 == 0:
            self.count((end - at) // 4)
            return np.frombuffer(self.bytes(at, end), "<f4").tolist()
        raise self.error(at, f"'{name}' has the encoding {wire}, which is no {kind}")

    def bytes(self, at: int, end: int) -> bytes:
        if at < self.base or end > self.base + len(self.data):
            self.window(at, end - at)
        return self.data[at - self.base : end - self.base]


def decode_varints(
    data: bytes, error: Callable[[int, str], ModelFormatError], at: int = 0
) -> np.ndarray:
    """Return the integers of up to ten bytes each in `data`, as int64.

    Parameters
    ----------
    data : bytes
    error : callable
        ``error(offset, text)`` makes the exception for damaged data.
    at : int
        Offset of the first byte, for messages.
    """
    raw = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(raw < 128)
    if raw.size and (not last.size or last[-1] != raw.size - 1):
        raise error(at, "an integer does not end")
    first = np.concatenate([[0], last[:-1] + 1]) if last.size else last
    lengths = last - first + 1
    if lengths.size and lengths.max() > 10:
        raise error(at, "an integer does not end")
    values = np.zeros(last.size, np.uint64)
    for byte in range(int(lengths.max(initial=0))):
        has = lengths > byte
        bits = raw[first[has] + byte].astype(np.uint64) & np.uint64(127)
        values[has] |= bits << np.uint64(7 * byte)
    return values.view(np.int64)
