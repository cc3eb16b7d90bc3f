"""Target ``bin``: archives of weights."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from random import Random
from struct import pack_into

from kuiper.errors import ModelFormatError
from kuiper.pnnx.archive import Archive
from kuiper.pnnx.archive_writer import write_archive

from ...support import load_cases
from .chance import INTEGERS, edit_bytes, often, pick
from .files import archive_bytes

__all__ = ["SPLIT", "check", "make", "mutate"]

SPLIT = None

_SIGNATURES = (b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"PK\6\7")

# Offset and format of the fields of each record.
_FIELDS = {
    b"PK\3\4": ((4, 2), (6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2), (30, 1)),
    b"PK\1\2": (
        (4, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (34, 2),
        (42, 4), (46, 1),
    ),
    b"PK\5\6": ((4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)),
    b"PK\6\6": ((4, 8), (16, 4), (20, 4), (24, 8), (32, 8), (40, 8), (48, 8)),
    b"PK\6\7": ((4, 4), (8, 8), (16, 4)),
}  # fmt: skip


@cache
def _archives() -> tuple[bytes, ...]:
    found = [case.bin for case in load_cases("operators") if 22 < len(case.bin) < 3000]
    small = {"op.weight": b"12345678", "op.bias": b"", "ünïcode.w": bytes(33)}
    target = io.BytesIO()
    write_archive(target, list(small.items()))
    return (*found[::7], archive_bytes(small), archive_bytes({}), target.getvalue())


def make(random: Random) -> bytes:
    """Return a damaged archive."""
    return mutate(pick(random, _archives()), random)


def mutate(data: bytes, random: Random) -> bytes:
    """Change fields of the records, or any bytes."""
    if often(random, 0.3):
        return edit_bytes(random, data)
    changed = bytearray(data)
    for _ in range(1 + random.randrange(3)):
        signature = pick(random, _SIGNATURES)
        found = _find_all(data, signature)
        if not found:
            continue
        start = pick(random, found)
        offset, size = pick(random, _FIELDS[signature])
        at = start + offset
        if at + size > len(changed):
            continue
        old = int.from_bytes(changed[at : at + size], "little")
        nearby = (old + 1, old - 1, old + len(data), old * 2, -old)
        new = pick(random, nearby if often(random, 0.5) else (*INTEGERS, len(data)))
        pack_into(f"<{size}s", changed, at, (new % 256**size).to_bytes(size, "little"))
    data = bytes(changed)
    return edit_bytes(random, data) if often(random, 0.2) else data


def _find_all(data: bytes, signature: bytes) -> list[int]:
    found = []
    at = data.find(signature)
    while at >= 0:
        found.append(at)
        at = data.find(signature, at + 1)
    return found


def check(data: bytes) -> str:
    """Read an archive and compare its entries with zipfile's."""
    try:
        archive = Archive(data)
    except ModelFormatError as error:
        if not str(error).startswith("<bytes>"):
            raise AssertionError("the message does not name the file") from error
        return "refused"
    assert sum(archive[name].size for name in archive) <= len(data)
    try:
        archive.check_crc()
        is_whole = True
    except ModelFormatError:
        is_whole = False
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as other:
            names = other.namelist()
            theirs = {}
            for name in names if is_whole else ():
                # zipfile decodes a name without the UTF-8 flag as code page 437.
                flag = other.getinfo(name).flag_bits & 0x800
                theirs[name if flag else name.encode("cp437").decode()] = other.read(name)
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, EOFError, RuntimeError):
        return "read, zipfile refuses it"
    assert len(names) == len(archive), f"zipfile finds {len(names)} entries, kuiper {len(archive)}"
    if not is_whole:
        return "read, damaged data"
    for name in archive:
        assert theirs[name] == archive[name].tobytes(), f"zipfile reads other bytes of '{name}'"
    return "read"
