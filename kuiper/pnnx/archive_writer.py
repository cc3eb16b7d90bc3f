"""Write the ``.bin`` archive; separate from the reader, so that loading does not import it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Any, BinaryIO

__all__ = ["write_archive"]

FULL16 = 0xFFFF  # "see the ZIP64 record"
FULL32 = 0xFFFFFFFF


def write_archive(file: BinaryIO, members: Iterable[tuple[str, Any]]) -> None:
    """Write a ``.bin`` archive, byte for byte as current pnnx does.

    Parameters
    ----------
    file : binary file object
        Written from its current position, without seeking.
    members : iterable of (str, bytes-like)
        Name and data of each entry, in order.

    Raises
    ------
    ValueError
        If two members have the same name, or a name is empty or longer than 65535 bytes.
    """
    directory = []
    names = set()
    offset = 0
    for name, data in members:
        data = memoryview(data).cast("B")
        raw = name.encode()
        if name in names or not 0 < len(raw) <= FULL16:
            raise ValueError(f"the archive cannot have an entry (or a second one) called {name!r}")
        names.add(name)
        crc, size = zlib.crc32(data), len(data)
        local = struct.pack("<I5H3I2H", 0x04034B50, *[0] * 5, crc, FULL32, FULL32, len(raw), 32)
        local += raw + struct.pack("<2H3QI", 1, 28, size, size, 0, 0)
        file.write(local)
        file.write(data)
        directory.append(
            struct.pack(
                "<I6H3I5H2I", 0x02014B50, *[0] * 6, crc, FULL32, FULL32,
                len(raw), 32, 0, FULL16, 0, 0, FULL32,
            )
            + raw
            + struct.pack("<2H3QI", 1, 28, size, size, offset, 0)
        )  # fmt: skip
        offset += len(local) + size
    records = b"".join(directory)
    count, end = len(directory), offset + len(records)
    file.write(
        records
        + struct.pack("<IQ2H2I4Q", 0x06064B50, 44, *[0] * 4, count, count, len(records), offset)
        + struct.pack("<IIQI", 0x07064B50, 0, end, 1)
        + struct.pack("<I4H2IH", 0x06054B50, *[FULL16] * 4, FULL32, FULL32, 0)
    )
