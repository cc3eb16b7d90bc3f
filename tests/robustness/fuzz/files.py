"""The two files of a model as editable lists, without kuiper's reader and writer.

The written files need not be valid: counts may be wrong, names duplicate, sizes false.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass, field
from struct import pack

__all__ = ["ITEM_BYTES", "Line", "archive_bytes", "read_lines", "read_members", "write_lines"]

MAGIC = "7767517"

# Bytes per element in an archive.
ITEM_BYTES = {
    "f32": 4, "f64": 8, "f16": 2, "bf16": 2, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u8": 1,
    "bool": 1, "c32": 4, "c64": 8, "c128": 16,
}  # fmt: skip


@dataclass
class Line:
    """One operator of a ``.param`` text; `fields` are pairs of a key with its sign, and a value."""

    type: str
    name: str
    inputs: list[str]
    outputs: list[str]
    fields: list[list[str]] = field(default_factory=list)

    def text(self) -> str:
        """Return the line as text."""
        words = [self.type, self.name, str(len(self.inputs)), str(len(self.outputs))]
        words += [*self.inputs, *self.outputs, *("=".join(pair) for pair in self.fields)]
        return " ".join(words)


def read_lines(param: bytes) -> list[Line]:
    """Read a valid text."""
    lines = []
    for raw in param.decode().splitlines()[2:]:
        words = raw.split()
        if not words:
            continue
        n_inputs, n_outputs = int(words[2]), int(words[3])
        middle, end = 4 + n_inputs, 4 + n_inputs + n_outputs
        fields = [word.split("=", 1) for word in words[end:]]
        lines.append(Line(words[0], words[1], words[4:middle], words[middle:end], fields))
    return lines


def write_lines(lines: list[Line]) -> bytes:
    """Write a text with a correct header."""
    operands = {name for line in lines for name in line.outputs}
    body = "".join(line.text() + "\n" for line in lines)
    return f"{MAGIC}\n{len(lines)} {len(operands)}\n{body}".encode()


def read_members(archive: bytes) -> dict[str, bytes]:
    """Read a valid archive."""
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        return {name: file.read(name) for name in file.namelist()}


def archive_bytes(members: dict[str, bytes]) -> bytes:
    """Write a plain ZIP archive of stored entries."""
    body, directory = bytearray(), bytearray()
    for name, data in members.items():
        raw = name.encode()
        # flags, method, time, date, CRC-32, both sizes, lengths of name and extra field
        header = pack("<HHHHIIIHH", 0, 0, 0, 0, zlib.crc32(data), len(data), len(data), len(raw), 0)
        directory += pack("<IH", 0x02014B50, 0) + pack("<H", 0) + header
        directory += pack("<HHHII", 0, 0, 0, 0, len(body)) + raw
        body += pack("<IH", 0x04034B50, 0) + header + raw + data
    end = pack(
        "<IHHHHIIH", 0x06054B50, 0, 0, len(members), len(members), len(directory), len(body), 0
    )
    return bytes(body + directory + end)
