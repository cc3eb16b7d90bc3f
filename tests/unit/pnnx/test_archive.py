"""The ``.bin`` archive: both forms of ZIP, views, and attacks on the reader; against zipfile."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import struct
import sys
import threading
import time
import zipfile
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kuiper.errors import ModelFormatError
from kuiper.pnnx.archive import Archive
from kuiper.pnnx.archive_writer import write_archive

MEMBERS = {
    "fc.weight": bytes(range(100, 124)),
    "empty": b"",
    "fc.bias": b"\x01\x02\x03",
    "ü.é": b"xy",
}
FULL = 0xFFFFFFFF


def header(part: str, name: str, data: bytes, offset: int, changes: dict) -> dict:
    """Return the fields of one ``local`` or ``central`` header with some changed."""
    fields = {
        "signature": b"PK\3\4" if part == "local" else b"PK\1\2",
        "flags": 0,
        "method": 0,
        "crc": zlib.crc32(data),
        "packed": len(data),
        "size": len(data),
        "name": name.encode(),
        "extra": b"",
        "comment": b"",
        "disk": 0,
        "offset": offset,
    } | {key.removeprefix(f"{part}_"): changes[key] for key in changes if key.startswith(part)}
    fields.setdefault("name_bytes", len(fields["name"]))
    fields.setdefault("extra_bytes", len(fields["extra"]))
    return fields


def classic(members=None, **changes) -> bytes:
    """Write the 32-bit form by hand, as pnnx did until 2023.

    `changes` sets fields of headers: those of `header` above with the prefix ``local_`` or
    ``central_``, for the first entry only, and those below with the prefix ``end_``.
    """
    members = MEMBERS if members is None else members
    first = next(iter(members), None)
    body, directory = b"", b""
    for name, data in members.items():
        offset = len(body)
        own = changes if name == first else {}
        f = header("local", name, data, offset, own)
        body += f["signature"] + struct.pack(
            "<5H3I2H", 0, f["flags"], f["method"], 0, 0, f["crc"], f["packed"], f["size"],
            f["name_bytes"], f["extra_bytes"],
        ) + f["name"] + f["extra"] + data  # fmt: skip
        f = header("central", name, data, offset, own)
        directory += f["signature"] + struct.pack(
            "<6H3I5H2I", 0, 0, f["flags"], f["method"], 0, 0, f["crc"], f["packed"], f["size"],
            f["name_bytes"], f["extra_bytes"], len(f["comment"]), f["disk"], 0, 0, f["offset"],
        ) + f["name"] + f["extra"] + f["comment"]  # fmt: skip
    end = {
        "disk": 0,
        "first_disk": 0,
        "here": len(members),
        "count": len(members),
        "bytes": len(directory),
        "offset": len(body),
        "comment": b"",
    } | {key.removeprefix("end_"): changes[key] for key in changes if key.startswith("end_")}
    return body + changes.get("gap", b"") + directory + changes.get("tail", b"") + struct.pack(
        "<4s4H2IH", b"PK\5\6", end["disk"], end["first_disk"], end["here"], end["count"],
        end["bytes"], end["offset"], len(end["comment"]),
    ) + end["comment"]  # fmt: skip


def zip64(members=None) -> bytes:
    file = io.BytesIO()
    write_archive(file, (MEMBERS if members is None else members).items())
    return file.getvalue()


def python_zip(members=None, **options) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in (MEMBERS if members is None else members).items():
            with archive.open(zipfile.ZipInfo(name), "w", **options) as entry:
                entry.write(data)
    return file.getvalue()


FORMS = {
    "classic": classic,
    "zip64": zip64,
    "zipfile": python_zip,
    "zipfile zip64": lambda members=None: python_zip(members, force_zip64=True),
}


# -- reading ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(
    "source", ["path", "PathLike", "bytes", "bytearray", "memoryview", "array"]
)
def test_every_form_from_every_source(form, source, tmp_path):
    data = form()
    path = tmp_path / "m.bin"
    path.write_bytes(data)
    archive = Archive(
        {
            "path": str(path),
            "PathLike": path,
            "bytes": data,
            "bytearray": bytearray(data),
            "memoryview": memoryview(data),
            "array": np.frombuffer(data, np.uint8),
        }[source]
    )
    archive.check_crc()
    assert archive.filename == (str(path) if "ath" in source else "<bytes>")
    assert len(archive) == len(MEMBERS)
    assert archive.names() == list(archive) == list(MEMBERS)
    assert "fc.bias" in archive
    assert "fc" not in archive
    for name, expected in MEMBERS.items():
        view = archive[name]
        assert (view.dtype, view.shape) == (np.uint8, (len(expected),))
        assert view.tobytes() == expected
        assert not view.flags.writeable
    with pytest.raises(KeyError, match="nothing"):
        archive["nothing"]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_archive_without_entries(form):
    assert len(Archive(form({}))) == 0


def test_views_share_and_keep_alive_the_bytes_that_were_read(tmp_path):
    path = tmp_path / "m.bin"
    path.write_bytes(zip64())
    archive = Archive(path)
    first, second = archive["fc.weight"], archive["fc.weight"]
    assert np.shares_memory(first, second)
    del archive, second
    os.unlink(path)
    gc.collect()
    assert first.tobytes() == MEMBERS["fc.weight"]


@pytest.mark.parametrize("change", ["truncate", "overwrite", "replace", "remove"])
def test_a_file_that_changes_afterwards(change, tmp_path):
    """Not even a bus error: the bytes are those at the time of reading."""
    path = tmp_path / "m.bin"
    weight = np.arange(1 << 18, dtype=np.uint8)  # many pages
    data = io.BytesIO()
    write_archive(data, [("w", weight)])
    path.write_bytes(data.getvalue())
    archive = Archive(path)
    if change == "truncate":
        os.truncate(path, 0)
    elif change == "overwrite":
        with open(path, "r+b") as file:
            file.write(b"\xff" * len(data.getvalue()))
    elif change == "replace":
        other = tmp_path / "other"
        other.write_bytes(b"\xff" * len(data.getvalue()))
        os.replace(other, path)
    else:
        os.unlink(path)
    archive.check_crc()
    assert np.array_equal(archive["w"], weight)


def test_a_file_that_shrinks_while_it_is_read(monkeypatch, tmp_path):
    path = tmp_path / "m.bin"
    path.write_bytes(zip64())
    real = os.fstat

    def larger(descriptor):
        status = real(descriptor)
        names = [name for name in dir(status) if name.startswith("st_")]
        fields = {name: getattr(status, name) for name in names}
        return SimpleNamespace(**{**fields, "st_size": len(zip64()) + 5})

    monkeypatch.setattr(os, "fstat", larger)
    with pytest.raises(ModelFormatError, match="was changed while it was in use"):
        Archive(path)


def _huge(size: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after the data of one entry of `size` bytes."""
    data = bytearray(zip64({"w": b""}))
    directory = data.index(b"PK\1\2")
    end = data.index(b"PK\6\6")
    struct.pack_into("<2Q", data, 35, size, size)
    struct.pack_into("<2Q", data, directory + 51, size, size)
    struct.pack_into("<Q", data, end + 48, directory + size)
    struct.pack_into("<Q", data, data.index(b"PK\6\7") + 8, end + size)
    return bytes(data[:directory]), bytes(data[directory:])


@pytest.mark.skipif(sys.platform != "linux", reason="wants a file system with holes")
@pytest.mark.parametrize(
    ("head", "tail", "message"),
    [
        (b"", b"", "not a ZIP archive: expected to start with b'PK'"),
        (b"", classic(), "does not end at the end record"),
        (*_huge(1 << 42), "memory"),
    ],
)
def test_a_file_of_terabytes(head, tail, message, tmp_path):
    path = tmp_path / "m.bin"
    with open(path, "wb") as file:
        file.write(head)
        file.truncate((1 << 42) + len(head))
        file.seek((1 << 42) + len(head))
        file.write(tail)
    start = time.process_time()
    with pytest.raises(ModelFormatError, match=message):
        Archive(path)
    assert time.process_time() - start < 1


def test_views_share_the_bytes():
    data = bytearray(classic())
    view = Archive(data)["fc.weight"]
    data[data.index(MEMBERS["fc.weight"])] = 77
    assert view[0] == 77
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_a_pipe_is_read(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(zip64()))
    writer.start()
    archive = Archive(path)
    writer.join()
    assert archive["fc.bias"].tobytes() == MEMBERS["fc.bias"]


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        Archive(tmp_path / "nothing.bin")


def test_comments_are_allowed():
    data = classic(end_comment=b"about", central_comment=b"x" * 9)
    assert Archive(data)["fc.bias"].tobytes() == MEMBERS["fc.bias"]
    assert len(Archive(classic(end_comment=b"c" * 65535))) == len(MEMBERS)


def test_unknown_extra_fields_are_skipped():
    extra = struct.pack("<2H3s", 0x5455, 3, b"abc")
    data = classic(
        {"a": b"12"}, local_extra=extra, central_extra=extra + struct.pack("<2H", 0xCAFE, 0)
    )
    assert Archive(data)["a"].tobytes() == b"12"


# -- damage and attacks ----------------------------------------------------------------------


def extra64(*values: int, size: int | None = None) -> bytes:
    data = struct.pack(f"<{len(values)}Q", *values)
    return struct.pack("<2H", 1, len(data) if size is None else size) + data


def cut(data: bytes, count: int) -> bytes:
    return data[: len(data) - count]


def patched(data: bytes, signature: bytes, offset: int, new: bytes) -> bytes:
    """Overwrite bytes at `offset` from the last occurrence of `signature`."""
    at = data.rindex(signature) + offset
    return data[:at] + new + data[at + len(new) :]


ONE = {"a": b"12345678"}  # data at bytes 31 to 39, directory from 39, 47 bytes, end at 86
END64 = b"PK\6\6"
LOCATOR = b"PK\6\7"
ATTACKS = {
    "empty": (b"", "m.bin: the file is empty, expected a ZIP archive"),
    "short": (b"PK", "not a ZIP archive: expected to start with b'PK', found b'PK'"),
    "html": (b"<!doctype html>" + b" " * 99, "not an archive: it is a web page (HTML)"),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\n", "it is a git-lfs pointer"),
    "param": (b"7767517\n2 1\npnnx.Input 0 1 0\n", "it is a .param file; are the two"),
    "other": (b"\x00" * 400, "not a ZIP archive: expected to start with b'PK', found b'\\x00"),
    "truncated": (
        cut(classic(ONE), 1),
        "the archive has no end record in its 107 bytes; the file is truncated, copy or export",
    ),
    "truncated zip64": (cut(zip64(), 30), "the file is truncated"),
    "more bytes": (classic(ONE) + b"\n", "the archive has no end record in its 109 bytes"),
    "start cut": (classic(ONE)[5:], "the directory of 47 bytes at byte 39 does not end at the end"),
    "signature central": (
        classic(ONE, central_signature=b"PK\1\3"),
        "no directory record at byte 39 for entry 1 of 1",
    ),
    "signature local": (
        classic(ONE, local_signature=b"PK\3\5"),
        "entry 'a': no local header at byte 0",
    ),
    "two disks": (classic(ONE, end_disk=1), "the archive is split over several files"),
    "first disk": (classic(ONE, end_first_disk=1), "the archive is split over several files"),
    "entries elsewhere": (classic(ONE, end_here=0), "the archive is split over several files"),
    "entry elsewhere": (classic(ONE, central_disk=3), "entry 'a' lies in part 3 of a split"),
    "count too large": (
        classic(ONE, end_here=9, end_count=9),
        "the end record promises 9 entries; the directory has room for 1",
    ),
    "count too small": (
        classic(end_here=1, end_count=1),
        "the directory has 155 bytes after its 1 entry, at byte 230",
    ),
    "directory offset": (classic(ONE, end_offset=40), "does not end at the end record, byte 86"),
    "directory offset huge": (classic(ONE, end_offset=FULL - 1), "does not end at the end record"),
    "directory bytes": (classic(ONE, end_bytes=46), "the directory of 46 bytes at byte 39 does"),
    "directory tail": (
        classic(ONE, tail=b"\0" * 9, end_bytes=56),
        "the directory has 9 bytes after its 1 entry, at byte 86",
    ),
    "end without zip64": (
        classic(ONE, end_offset=FULL),
        "the end record at byte 86 needs a ZIP64 locator, found none",
    ),
    "compressed": (
        classic(ONE, local_method=8, central_method=8),
        "entry 'a' is compressed (method 8), expected stored (method 0)",
    ),
    "compressed locally": (classic(ONE, local_method=8), "contradicts the directory"),
    "encrypted": (classic(ONE, central_flags=1), "entry 'a' is encrypted (flags 0x0001)"),
    "strongly encrypted": (classic(ONE, central_flags=0x41), "entry 'a' is encrypted"),
    "data descriptor": (
        classic(ONE, local_flags=8, central_flags=8),
        "entry 'a' has its sizes after its data (flag bit 3)",
    ),
    "flags differ": (classic(ONE, local_flags=2), "(flags 2, method 0,"),
    "crc differs": (classic(ONE, local_crc=1), "CRC-32 00000001, 8 bytes) contradicts the direct"),
    "size differs": (classic(ONE, local_size=7), "7 bytes) contradicts the directory"),
    "packed differs": (
        classic(ONE, central_packed=4),
        "entry 'a' is stored, but takes 4 bytes for 8",
    ),
    "packed differs locally": (classic(ONE, local_packed=4), "contradicts the directory"),
    "name differs": (
        classic(ONE, local_name=b"b"),
        "entry 'a': the local header at byte 0 is called b'b'",
    ),
    "name empty": (classic({"": b"1"}), "the entry name b'' at byte"),
    "name with zero": (classic({"a\0": b"1"}), "the entry name b'a\\x00' at byte"),
    "name not utf-8": (
        classic(ONE, local_name=b"\xff", central_name=b"\xff"),
        "the entry name b'\\xff' at byte 85 is not UTF-8",
    ),
    "name outside": (
        classic(ONE, central_name_bytes=2),
        "the directory record at byte 39 does not fit into the directory, which ends at byte 86",
    ),
    "name outside locally": (
        classic(ONE, local_name_bytes=65535),
        "entry 'a': the local header at byte 0 is cut off",
    ),
    "extra outside": (classic(ONE, central_extra_bytes=1), "does not fit into the directory"),
    "extra cut": (
        classic(ONE, central_extra=b"\1\0\1"),
        "entry 'a': the extra field at byte 86 is cut off",
    ),
    "extra too long": (
        classic(ONE, central_extra=b"\1\0\5\0abcd"),
        "entry 'a': the extra field at byte 86 says 5 bytes, 4 are left",
    ),
    "size outside": (
        classic(ONE, **dict.fromkeys(
            ["local_size", "local_packed", "central_size", "central_packed"], 9)),
        "entry 'a' takes 9 bytes from byte 31, but the directory begins at byte 39",
    ),
    "size huge": (
        classic(ONE, **dict.fromkeys(
            ["local_size", "local_packed", "central_size", "central_packed"], FULL - 1)),
        "entry 'a' takes 4294967294 bytes from byte 31, but the directory begins at byte 39",
    ),
    "size too small": (
        classic(ONE, **dict.fromkeys(
            ["local_size", "local_packed", "central_size", "central_packed"], 7)),
        "bytes 38 to 39, between entry 'a' and the directory, belong to no entry",
    ),
    "offset outside": (
        classic(ONE, central_offset=39),
        "entry 'a' begins at byte 39, but the directory begins at byte 39",
    ),
    "offset in the directory": (classic(ONE, central_offset=10), "but the directory begins at"),
    "offset elsewhere": (
        classic({"a": b"12345678" * 9}, central_offset=1),
        "entry 'a': no local header at byte 1",
    ),
    "twice the name": (
        classic({"a": b"1", "b": b"2"}, local_name=b"b", central_name=b"b"),
        "two entries are called 'b'",
    ),
    "twice the entry": (
        # The first directory record becomes a copy of the second.
        classic({"b": b"1", "a": b"1"}, central_name=b"a", central_offset=32),
        "two entries are called 'a'",
    ),
    "gap": (
        classic(ONE, gap=b"\0\0", end_offset=41),
        "bytes 39 to 41, between entry 'a' and the directory, belong to no entry",
    ),
    "overlap": (
        # The second local header and its entry lie within the data of the first.
        None,
        "entry 'in' begins at byte 33, inside entry 'out', which ends at byte",
    ),
    "zip64 missing": (
        classic(ONE, central_size=FULL, central_packed=FULL),
        "entry 'a' needs a ZIP64 extra field, found none",
    ),
    "zip64 short": (
        classic(ONE, central_size=FULL, central_packed=FULL, central_extra=extra64(8)),
        "entry 'a': its ZIP64 extra field is too short",
    ),
    "zip64 no disk": (
        classic(ONE, central_disk=0xFFFF, central_extra=extra64()),
        "entry 'a': its ZIP64 extra field is too short",
    ),
    "zip64 twice": (
        classic(ONE, central_extra=extra64(8) + extra64(8)),
        "entry 'a' has two ZIP64 extra fields",
    ),
    "zip64 size overflows": (
        classic(
            ONE,
            local_size=FULL, local_packed=FULL, local_extra=extra64(2**64 - 31, 2**64 - 31),
            central_size=FULL, central_packed=FULL, central_extra=extra64(2**64 - 31, 2**64 - 31),
            end_offset=59,
        ),
        "entry 'a' takes 18446744073709551585 bytes from byte 51, but the directory begins at",
    ),
    "zip64 offset overflows": (
        classic(ONE, central_offset=FULL, central_extra=extra64(2**64 - 1)),
        "entry 'a' begins at byte 18446744073709551615, but the directory begins at byte 39",
    ),
    "locator points beyond the end": (
        patched(zip64(ONE), LOCATOR, 8, struct.pack("<Q", 10**6)),
        "points to byte 1000000, after itself",
    ),
    "locator overflows": (
        patched(zip64(ONE), LOCATOR, 8, struct.pack("<Q", 2**64 - 8)),
        "points to byte 18446744073709551608, after itself",
    ),
    "locator points elsewhere": (
        patched(zip64(ONE), LOCATOR, 8, struct.pack("<Q", 1)),
        "no ZIP64 end record at byte 1",
    ),
    "locator of two disks": (
        patched(zip64(ONE), LOCATOR, 16, struct.pack("<I", 2)),
        "the archive is split over several files",
    ),
    "end64 size": (
        patched(zip64(ONE), END64, 4, struct.pack("<Q", 45)),
        "says 45 bytes, but 44 lie before the locator",
    ),
    "end64 disk": (
        patched(zip64(ONE), END64, 16, struct.pack("<I", 1)),
        "the archive is split over several files",
    ),
    "end64 count": (
        patched(zip64(ONE), END64, 24, struct.pack("<QQ", 2**63, 2**63)),
        "the end record promises 9223372036854775808 entries; the directory has room for 1",
    ),
    "end64 directory overflows": (
        patched(zip64(ONE), END64, 40, struct.pack("<QQ", 2**64 - 1, 2)),
        "the directory of 18446744073709551615 bytes at byte 2 does not end at the end record",
    ),
    "end64 against end": (
        patched(zip64(ONE), b"PK\5\6", 16, struct.pack("<I", 7)),
        "contradict each other",
    ),
}  # fmt: skip


def overlapping() -> bytes:
    inner = (
        b"PK\3\4" + struct.pack("<5H3I2H", 0, 0, 0, 0, 0, zlib.crc32(b"zz"), 2, 2, 2, 0) + b"inzz"
    )
    data = classic({"out": inner, "in": b"zz"}, central_size=len(inner))
    # The directory points 'in' into the data of 'out', and ends the entries there.
    second = data.rindex(b"PK\1\2")
    data = data[: second + 42] + struct.pack("<I", 33) + data[second + 46 :]
    return data


@pytest.mark.parametrize(("data", "message"), ATTACKS.values(), ids=ATTACKS)
def test_attacks_are_reported(data, message):
    with pytest.raises(ModelFormatError) as caught:
        Archive(overlapping() if data is None else data, "m.bin")
    assert message in str(caught.value)
    assert str(caught.value).startswith("m.bin: ")


def test_the_attacks_modify_a_valid_file():
    assert Archive(classic(ONE))["a"].tobytes() == b"12345678"
    assert len(classic(ONE)) == 108
    assert classic(ONE).index(b"PK\1\2") == 39


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_truncation_is_detected(form):
    data = form()
    for length in range(len(data)):
        with pytest.raises(ModelFormatError):
            Archive(data[:length])


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_changed_byte_is_detected_or_harmless(form):
    """A changed byte outside the data is refused, unless nothing depends on its field."""
    data = form()
    for position in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            other = bytearray(data)
            other[position] ^= change
            with contextlib.suppress(ModelFormatError):
                archive = Archive(other)
                assert [len(archive[name]) for name in archive] == list(map(len, MEMBERS.values()))


@settings(max_examples=400, derandomize=True, database=None, deadline=None)
@given(
    st.sampled_from(sorted(FORMS)),
    st.lists(
        st.tuples(
            st.floats(0, 0.999),
            st.sampled_from([b"", b"\0", b"\xff" * 4, b"\xff" * 8, b"PK\5\6", b"PK\1\2", b"\1\0"]),
            st.integers(0, 8),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_mutated_bytes_give_one_kind_of_error(form, edits):
    data = FORMS[form]()
    for fraction, new, removed in edits:
        position = int(fraction * len(data))
        data = data[:position] + new + data[position + removed :]
    with contextlib.suppress(ModelFormatError):
        archive = Archive(data)
        assert sum(archive[name].size for name in archive) <= len(data)
        archive.check_crc()


def test_crc_check_names_all_damaged_entries():
    data = bytearray(zip64())
    for name in ("fc.weight", "fc.bias"):
        data[data.index(MEMBERS[name])] ^= 1
    archive = Archive(bytes(data), "m.bin")
    with pytest.raises(ModelFormatError) as caught:
        archive.check_crc()
    text = str(caught.value)
    start = data.index(MEMBERS["fc.weight"][1:]) - 1
    assert text.startswith("m.bin: the data of 2 of 4 entries is damaged: 'fc.weight' (bytes ")
    assert f"bytes {start} to {start + 24}" in text
    assert f"expected {zlib.crc32(MEMBERS['fc.weight']):08x}" in text
    assert "'fc.bias'" in text
    assert "'ü.é'" not in text


# -- writing ---------------------------------------------------------------------------------


def test_written_archive_is_read_by_zipfile():
    members = {name: data for name, data in MEMBERS.items() if name.isascii()}
    with zipfile.ZipFile(io.BytesIO(zip64(members))) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == members


def test_written_archive_has_the_bytes_of_pnnx():
    """The bytes that pnnx 20261020 writes for one attribute 'w.data' = b'1234'."""
    crc = struct.pack("<I", zlib.crc32(b"1234"))
    zeros, ones = bytes(10), b"\xff" * 8
    field = b"\1\0\x1c\0" + struct.pack("<QQ", 4, 4)
    local = b"PK\3\4" + zeros + crc + ones + b"\6\0\x20\0w.data" + field + bytes(12) + b"1234"
    central = b"PK\1\2" + zeros + b"\0\0" + crc + ones + b"\6\0\x20\0\0\0\xff\xff" + bytes(6)
    central += b"\xff" * 4 + b"w.data" + field + bytes(12)
    end = b"PK\6\6" + struct.pack("<QIIIQQQQ", 44, 0, 0, 0, 1, 1, len(central), len(local))
    end += b"PK\6\7" + struct.pack("<IQI", 0, len(local) + len(central), 1)
    end += b"PK\5\6" + b"\xff" * 16 + b"\0\0"
    assert zip64({"w.data": b"1234"}) == local + central + end


def test_an_empty_archive_has_98_bytes():
    assert len(zip64({})) == 98


def test_writer_takes_any_buffer_and_never_seeks():
    class Stream:
        def __init__(self):
            self.parts = []

        def write(self, data):
            self.parts.append(bytes(data))

    stream = Stream()
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_archive(stream, [("a", array), ("b", memoryview(b"xy"))])
    archive = Archive(b"".join(stream.parts))
    assert archive["a"].tobytes() == array.tobytes()
    assert archive["b"].tobytes() == b"xy"


@pytest.mark.parametrize("names", [["a", "a"], [""], ["x" * 65536]], ids=["twice", "none", "long"])
def test_writer_refuses_names(names):
    with pytest.raises(ValueError, match="the archive cannot have an entry"):
        write_archive(io.BytesIO(), [(name, b"") for name in names])


@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=8),
        st.binary(max_size=40),
        max_size=6,
    )
)
def test_round_trip(members):
    for data in (zip64(members), classic(members)):
        archive = Archive(data)
        archive.check_crc()
        assert {name: archive[name].tobytes() for name in archive} == members


def test_many_entries_take_linear_time():
    members = {f"layer{i}.weight": b"1234" for i in range(70_000)}
    archive = Archive(zip64(members))
    assert len(archive) == 70_000
    assert archive["layer69999.weight"].tobytes() == b"1234"
