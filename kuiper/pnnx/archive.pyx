"""The ``.bin`` archive: a ZIP file whose entries are stored, never compressed.

Each entry holds the raw bytes of one attribute.  pnnx wrote 32-bit ZIP until 2023 and writes ZIP64
headers since; :class:`Archive` reads both through the central directory.

The reader is strict.  A ZIP file stores most facts twice (in the directory and in the local
header), and readers that trust different copies see different weights.  So both copies must agree,
sizes and offsets are compared with the file in unsigned 64-bit arithmetic that cannot overflow, and
entries may not share bytes.  Once checked, entries are read without further checks.

Of a large file only the structure is read at once.  Its descriptor stays open, so that entries are
read on demand and need not stay in memory.  The file is never mapped: truncating a mapped file
kills the process at the next access, and overwriting it changes the weights of a model in use.
"""

import errno
import os
import stat
import time
import weakref
from functools import partial

import numpy as np

from libc.stdint cimport uint32_t, uint64_t

from kuiper._runtime.stored_rows import StoredRows
from kuiper._support.memory import check_max_memory, memory_text
from kuiper.errors import ModelFormatError
from kuiper.pnnx._messages import listing, plural, recognise

__all__ = ["Archive"]

cdef enum:
    LOCAL_SIGNATURE = 0x04034B50
    CENTRAL_SIGNATURE = 0x02014B50
    END_SIGNATURE = 0x06054B50
    END64_SIGNATURE = 0x06064B50
    LOCATOR64_SIGNATURE = 0x07064B50

    LOCAL_BYTES = 30
    CENTRAL_BYTES = 46
    END_BYTES = 22
    END64_BYTES = 56
    LOCATOR64_BYTES = 20

    # Bits of the flag word.
    ENCRYPTED = 0x0001 | 0x0040 | 0x2000
    DATA_DESCRIPTOR = 0x0008
    PATCHED = 0x0020
    UTF8_NAME = 0x0800

cdef uint32_t FULL16 = 0xFFFF
cdef uint32_t FULL32 = 0xFFFFFFFF


cdef inline uint32_t load16(const unsigned char* p) noexcept nogil:
    return <uint32_t> p[0] | <uint32_t> p[1] << 8


cdef inline uint32_t load32(const unsigned char* p) noexcept nogil:
    return load16(p) | load16(p + 2) << 16


cdef inline uint64_t load64(const unsigned char* p) noexcept nogil:
    return <uint64_t> load32(p) | <uint64_t> load32(p + 4) << 32


cdef inline bint within(uint64_t offset, uint64_t size, uint64_t limit) noexcept nogil:
    """Tell whether offset + size <= limit, without overflow."""
    return offset <= limit and size <= limit - offset


cdef struct Header:
    # The fields of an entry that the directory and the local header share.
    uint32_t flags
    uint32_t method
    uint32_t crc
    uint64_t packed_bytes
    uint64_t nbytes
    uint64_t offset  # of the local header, in bytes; in the directory only
    uint32_t disk    # in the directory only


cdef enum:
    WINDOW_BYTES = 4096          # minimum read while parsing
    WHOLE_BYTES = 1 << 20        # smaller files are read at once
    SOON_BYTES = 1 << 16         # entries of an open file up to this size are read at once
    CHECK_BYTES = 1 << 18        # a part of an entry that stays in the cache for its checksum
    MAX_OPEN = 64                # files that stay open at the same time
    SETTLED_SECONDS = 3          # file systems round times to up to 2 s

# Windows has no preadv, but open files cannot be deleted or replaced there either.
CAN_READ_AT = hasattr(os, "preadv")

NOTHING = np.zeros(1, np.uint8)[:0]

_open_files = weakref.WeakSet()


class File:
    """An open file that any thread may read at any offset.

    Parameters
    ----------
    path : str or bytes
    filename : str
        Name in messages.

    Attributes
    ----------
    size : int
    is_regular : bool
        False for a pipe, whose size is unknown.

    Raises
    ------
    OSError
        If the file cannot be opened.
    """

    def __init__(self, path, filename):
        self.filename = filename
        # os.open makes the descriptor non-inheritable; O_BINARY exists on Windows only.
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        status = os.fstat(self._descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), filename)
        self.is_regular = stat.S_ISREG(status.st_mode)
        self.size = status.st_size
        self._facts = _facts(status)
        self._is_settled = _is_settled(self._facts)
        self._verified = {}  # first byte of an entry -> file identity when its checksum matched

    def __del__(self, close=os.close):
        descriptor, self._descriptor = getattr(self, "_descriptor", -1), -1
        if descriptor >= 0:
            close(descriptor)

    def keep_open(self) -> bool:
        """Tell whether the file may stay open; if not, it must be read now.

        A file that was just written could change again without a new modification time.
        """
        if CAN_READ_AT and self._is_settled and len(_open_files) < MAX_OPEN:
            _open_files.add(self)
        return self in _open_files

    def stored_rows(self, read, first, row_bytes):
        """Return the contiguous rows that begin at byte `first`; see :class:`StoredRows`."""
        return StoredRows(read, self._descriptor, first, row_bytes, *self._facts)

    def read_stream(self) -> bytes:
        """Read a pipe to its end."""
        with open(self._descriptor, "rb", closefd=False) as stream:
            return stream.read()

    def read(self, first, nbytes, entry=None):
        """Return bytes of the file as it was when opened: a read-only array.

        Parameters
        ----------
        first, nbytes : int
        entry : (int, int, int), optional
            First byte, size and CRC-32 of the entry that holds the bytes.  If the file was written
            to since, the read succeeds only if the entry still has its checksum.

        Raises
        ------
        ModelFormatError
            If the bytes changed or the file cannot be read any more.
        """
        data, facts = self._read(first, nbytes)
        is_same = facts == self._facts
        if not is_same and entry is not None:
            start, size, crc = entry
            is_same = facts is not None and facts == self._verified.get(start)
            if not is_same:
                import zlib

                whole, facts = self._read(start, size)
                is_same = zlib.crc32(whole) == crc
                data = whole[first - start:first - start + nbytes]
                if is_same and facts is not None and _is_settled(facts):
                    self._verified[start] = facts
        if not is_same:
            raise ModelFormatError(
                f"{self.filename}: the file was changed while it was in use, and bytes {first} to "
                f"{first + nbytes} are not what they were; load the model again"
            )
        data.flags.writeable = False
        return data

    def _read(self, first, nbytes):
        """Return bytes and the identity of the file; None for the latter if it is too short."""
        data = np.empty(nbytes, np.uint8)
        view = memoryview(data)
        found = 0
        try:
            while found < nbytes:
                if CAN_READ_AT:
                    count = os.preadv(self._descriptor, [view[found:]], first + found)
                else:
                    os.lseek(self._descriptor, first + found, os.SEEK_SET)
                    part = os.read(self._descriptor, nbytes - found)
                    count = len(part)
                    view[found:found + count] = part
                if count == 0:
                    return data[:found], None
                found += count
            # After the read, so that a concurrent write is detected.
            return data, _facts(os.fstat(self._descriptor))
        except OSError as error:
            raise ModelFormatError(
                f"{self.filename}: bytes {first} to {first + nbytes} cannot be read any more "
                f"({error.strerror}); load the model again"
            ) from error


def _facts(status) -> tuple:
    """Return the identity of a file: changed by a write, unchanged by renaming or deleting."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_settled(facts) -> bool:
    """Tell whether a write from now on would change the modification time."""
    return time.time() - facts[-1] / 1e9 > SETTLED_SECONDS


cdef class ByteWindow:
    """A sliding window on a file, or all bytes of an archive in memory.

    Parameters
    ----------
    file : File or None
        Source of further bytes; None if `data` is the whole archive.
    data : numpy.ndarray, uint8
        The initial bytes.
    """

    cdef object file
    cdef const unsigned char[::1] data
    cdef uint64_t first          # offset of `data` in the file, in bytes

    def __init__(self, file, data):
        self.file, self.data = file, data

    cdef const unsigned char* at(self, uint64_t offset, uint64_t nbytes) except NULL:
        """Return the address of bytes within the file; valid until the next call."""
        cdef uint64_t length = <uint64_t> self.data.shape[0]
        if offset < self.first or not within(offset - self.first, nbytes, length):
            length = min(max(nbytes, <uint64_t> WINDOW_BYTES), self.file.size - offset)
            self.data = self.file.read(offset, length)
            self.first = offset
        return &self.data[0] + (offset - self.first)


cdef class Archive:
    """The entries of a ``.bin`` file, as read-only arrays of bytes.

    Parameters
    ----------
    source : str, os.PathLike or bytes-like
        A small file is read at once, a large one entry by entry on demand.  An object with the
        buffer protocol is used in place.
    filename : str, optional
        Name in messages; by default the path, or ``"<bytes>"``.

    Raises
    ------
    ModelFormatError
        If the file is not a ZIP archive of stored entries, is truncated, contradicts itself (the
        message names the entry and the bytes) or is larger than the memory.
    OSError
        If the file cannot be read.

    Notes
    -----
    Arrays stay valid without the archive.  Changes to a file that was read at once have no effect.
    A large file that is replaced or deleted keeps its contents; if it is written to, reading an
    entry raises ModelFormatError unless the entry still has its checksum.
    """

    cdef uint64_t _size
    cdef dict _entries  # name -> (first byte of the data, bytes, CRC-32)
    cdef object _file   # None if `_array` holds all bytes
    cdef object _array
    cdef ByteWindow _heads      # on the local headers
    cdef ByteWindow _directory  # on the directory and the end records
    cdef readonly str filename

    def __init__(self, source, filename=None):
        self._entries = {}
        if hasattr(source, "__fspath__") or isinstance(source, str):
            path = os.fspath(source)
            self.filename = os.fsdecode(path) if filename is None else filename
            file = File(path, self.filename)
            if file.is_regular and file.size >= WHOLE_BYTES:
                self._read_large(file)
                return
            source = file.read(0, file.size) if file.is_regular else file.read_stream()
        else:
            self.filename = "<bytes>" if filename is None else filename
            source = memoryview(source).cast("B")
        self._size = len(source)
        if self._size == 0:
            raise self._error("the file is empty, expected a ZIP archive")
        self._array = np.frombuffer(source, np.uint8)
        self._array.flags.writeable = False
        self._heads = self._directory = ByteWindow(None, self._array)
        self._read_directory()

    cdef int _read_large(self, file) except -1:
        """Read the directory, and the entries too unless they can be read on demand."""
        self._size = file.size
        self._heads, self._directory = ByteWindow(file, NOTHING), ByteWindow(file, NOTHING)
        self._read_directory()
        self._heads = self._directory = None
        if file.size > check_max_memory(None):
            raise self._error(
                f"the file has {memory_text(file.size)}, more than this machine's "
                f"{memory_text(check_max_memory(None))} of memory"
            )
        if file.keep_open():
            self._file = file
            return 0
        try:
            self._array = file.read(0, file.size)
        except MemoryError:
            raise self._error(
                f"there is too little memory for its {memory_text(file.size)}"
            ) from None
        return 0

    def names(self) -> list[str]:
        """Return the names of the entries, in the order of the directory."""
        return list(self._entries)

    def __len__(self):
        return len(self._entries)

    def __contains__(self, name):
        return name in self._entries

    def __iter__(self):
        return iter(self._entries)

    def __getitem__(self, name):
        """Return the bytes of an entry: read-only, uint8, 1-d; a view if they are in memory.

        Raises
        ------
        ModelFormatError
            If the entry was changed after the file was opened.
        """
        return self._part(name, 1, 0, 1)

    def _part(self, name, count, start, stop):
        """Return the bytes of rows [start, stop) of an entry with `count` rows."""
        cdef tuple entry = self._entries[name]
        row = entry[1] // count
        first, nbytes = entry[0] + start * row, (stop - start) * row
        if self._file is None:
            return self._array[first:first + nbytes]
        return self._file.read(first, nbytes, entry)

    def n_bytes(self, name) -> int:
        """Return the size of an entry."""
        return self._entries[name][1]

    def source(self, name, shape):
        """Return the bytes of an entry, or a :class:`StoredRows` over axis 0 of `shape`."""
        cdef tuple entry = self._entries[name]
        if self._file is None or entry[1] <= SOON_BYTES:
            return self[name]
        return self._file.stored_rows(
            partial(self._part, name, shape[0]), entry[0], entry[1] // shape[0]
        )

    def check_crc(self) -> None:
        """Compare the CRC-32 of every entry with its data.

        A large file is read in parts, which are not kept: this takes no memory, and about 0.4 ms
        per MB where the file is in the page cache.

        Raises
        ------
        ModelFormatError
            If any differ; all of them are listed.  Also if the file changed since it was opened.
        """
        damaged = []
        for name, (first, nbytes, expected) in self._entries.items():
            found = self._crc(first, nbytes)
            if found != expected:
                damaged.append(
                    f"'{name}' (bytes {first} to {first + nbytes}): CRC-32 {found:08x}, "
                    f"expected {expected:08x}"
                )
        if damaged:
            raise ModelFormatError(
                f"{self.filename}: the data of {len(damaged)} of "
                f"{plural(len(self._entries), 'entry', 'entries')} is damaged: "
                f"{listing(damaged)}; copy or export the file again"
            )

    def _crc(self, first, nbytes):
        """Return the CRC-32 of bytes of the archive."""
        import zlib

        if self._file is None:
            return zlib.crc32(self._array[first:first + nbytes])
        crc = 0
        for start in range(first, first + nbytes, CHECK_BYTES):
            crc = zlib.crc32(
                self._file.read(start, min(CHECK_BYTES, first + nbytes - start)), crc
            )
        return crc

    # -- the directory ---------------------------------------------------------------------

    cdef object _error(self, str message):
        return ModelFormatError(f"{self.filename}: {message}")

    cdef bint _signature_at(
        self, ByteWindow window, uint64_t offset, uint32_t signature
    ) except? True:
        return within(offset, 4, self._size) and load32(window.at(offset, 4)) == signature

    cdef uint64_t _find_end(self) except? 0:
        """Return the offset of the end record, which only a comment may follow."""
        cdef uint64_t comment, longest
        cdef const unsigned char* last
        if self._size < END_BYTES:
            raise self._error(self._not_an_archive())
        longest = min(self._size - END_BYTES, <uint64_t> 0xFFFF)
        last = self._directory.at(self._size - END_BYTES - longest, END_BYTES + longest) + longest
        for comment in range(longest + 1):
            if load32(last - comment) == END_SIGNATURE and load16(last - comment + 20) == comment:
                return self._size - END_BYTES - comment
        raise self._error(self._not_an_archive())

    cdef str _not_an_archive(self):
        cdef uint64_t length = min(self._size, <uint64_t> 256)
        cdef bytes head = self._heads.at(0, length)[:length]
        if head.startswith(b"PK\3\4"):
            return (
                f"the archive has no end record in its {self._size} bytes; the file is "
                "truncated, copy or export it again"
            )
        hint = recognise(head)
        if hint:
            return f"not an archive: {hint}"
        if head.startswith(b"7767517"):
            return "not an archive: it is a .param file; are the two files swapped?"
        return f"not a ZIP archive: expected to start with b'PK', found {head[:8]!r}"

    cdef int _read_directory(self) except -1:
        cdef uint64_t end = self._find_end()
        cdef const unsigned char* p = self._directory.at(end, END_BYTES)
        cdef uint32_t disk = load16(p + 4), first_disk = load16(p + 6)
        cdef uint64_t here = load16(p + 8), count = load16(p + 10)
        cdef uint64_t nbytes = load32(p + 12), first = load32(p + 16)
        cdef uint64_t locator, end64
        cdef bint zip64 = (
            here == FULL16 or count == FULL16 or nbytes == FULL32 or first == FULL32
        )

        if end >= LOCATOR64_BYTES and self._signature_at(
            self._directory, end - LOCATOR64_BYTES, LOCATOR64_SIGNATURE
        ):
            locator = end - LOCATOR64_BYTES
            p = self._directory.at(locator, LOCATOR64_BYTES)
            end64 = load64(p + 8)
            if load32(p + 4) != 0 or load32(p + 16) > 1:
                raise self._error("the archive is split over several files, expected one")
            if not within(end64, END64_BYTES, locator):
                raise self._error(
                    f"the ZIP64 locator at byte {locator} points to byte {end64}, after itself"
                )
            if not self._signature_at(self._directory, end64, END64_SIGNATURE):
                raise self._error(f"no ZIP64 end record at byte {end64}")
            p = self._directory.at(end64, END64_BYTES)
            if load64(p + 4) != locator - end64 - 12:
                raise self._error(
                    f"the ZIP64 end record at byte {end64} says {load64(p + 4)} bytes, "
                    f"but {locator - end64 - 12} lie before the locator"
                )
            # Fields that the classic record does not defer to this one must agree.
            if (
                here not in (FULL16, load64(p + 24)) or count not in (FULL16, load64(p + 32))
                or nbytes not in (FULL32, load64(p + 40)) or first not in (FULL32, load64(p + 48))
            ):
                raise self._error(
                    f"the end records at bytes {end64} and {end} contradict each other"
                )
            if disk == FULL16:
                disk = load32(p + 16)
            if first_disk == FULL16:
                first_disk = load32(p + 20)
            here, count = load64(p + 24), load64(p + 32)
            nbytes, first = load64(p + 40), load64(p + 48)
            end = end64
        elif zip64:
            raise self._error(f"the end record at byte {end} needs a ZIP64 locator, found none")

        if disk != 0 or first_disk != 0 or here != count:
            raise self._error("the archive is split over several files, expected one")
        if not within(first, nbytes, end) or first + nbytes != end:
            raise self._error(
                f"the directory of {nbytes} bytes at byte {first} does not end at the end "
                f"record, byte {end}; the file is truncated or has extra bytes"
            )
        if count > nbytes // CENTRAL_BYTES:
            raise self._error(
                f"the end record promises {plural(count, 'entry', 'entries')}; the directory "
                f"has room for {nbytes // CENTRAL_BYTES}"
            )
        self._read_entries(first, end, count)
        return 0

    cdef int _read_entries(self, uint64_t first, uint64_t end, uint64_t count) except -1:
        cdef uint64_t at = first, number, name_bytes, extra_bytes, comment_bytes, last
        cdef uint64_t data
        cdef Header header
        cdef const unsigned char* p
        cdef list spans = []
        cdef str name

        for number in range(count):
            if not within(at, CENTRAL_BYTES, end) or not self._signature_at(
                self._directory, at, CENTRAL_SIGNATURE
            ):
                raise self._error(
                    f"no directory record at byte {at} for entry {number + 1} of {count}"
                )
            p = self._directory.at(at, CENTRAL_BYTES)
            name_bytes, extra_bytes = load16(p + 28), load16(p + 30)
            comment_bytes = load16(p + 32)
            if not within(at + CENTRAL_BYTES, name_bytes + extra_bytes + comment_bytes, end):
                raise self._error(
                    f"the directory record at byte {at} does not fit into the directory, "
                    f"which ends at byte {end}"
                )
            header = Header(
                flags=load16(p + 8), method=load16(p + 10), crc=load32(p + 16),
                packed_bytes=load32(p + 20), nbytes=load32(p + 24), offset=load32(p + 42),
                disk=load16(p + 34),
            )
            at += CENTRAL_BYTES
            name = self._name(at, name_bytes)
            at += name_bytes
            self._read_zip64(&header, self._directory, at, extra_bytes, name)
            at += extra_bytes + comment_bytes
            self._check_header(&header, name)
            data = self._check_local(&header, name, first)
            if name in self._entries:
                raise self._error(f"two entries are called '{name}'")
            self._entries[name] = (data, header.nbytes, header.crc)
            spans.append((header.offset, data + header.nbytes, f"entry '{name}'"))
        if at != end:
            raise self._error(
                f"the directory has {end - at} bytes after its "
                f"{plural(count, 'entry', 'entries')}, at byte {at}"
            )
        # Entries tile the file: without overlap and without gaps.
        spans.sort()
        spans.append((first, first, "the directory"))
        last, other = 0, "the start of the file"
        for start, stop, label in spans:
            if start < last:
                raise self._error(
                    f"{label} begins at byte {start}, inside {other}, which ends at byte {last}"
                )
            if start > last:
                raise self._error(
                    f"bytes {last} to {start}, between {other} and {label}, belong to no entry"
                )
            last, other = stop, label
        return 0

    cdef str _name(self, uint64_t at, uint64_t nbytes):
        cdef bytes raw = self._directory.at(at, nbytes)[:nbytes]
        if not raw or b"\0" in raw:
            raise self._error(f"the entry name {raw!r} at byte {at} is not a name")
        try:
            # pnnx writes the bytes of the name as they are, without the UTF-8 flag.
            return raw.decode()
        except UnicodeDecodeError:
            raise self._error(f"the entry name {raw!r} at byte {at} is not UTF-8") from None

    cdef int _read_zip64(
        self, Header* header, ByteWindow window, uint64_t at, uint64_t nbytes, str name
    ) except -1:
        """Replace all-ones fields of a header by those of its ZIP64 extra field."""
        cdef uint64_t end = at + nbytes, stop, size
        cdef const unsigned char* p
        cdef uint32_t id
        cdef bint found = False
        while at < end:
            if not within(at, 4, end):
                raise self._error(f"entry '{name}': the extra field at byte {at} is cut off")
            p = window.at(at, 4)
            id, size = load16(p), load16(p + 2)
            at += 4
            if not within(at, size, end):
                raise self._error(
                    f"entry '{name}': the extra field at byte {at - 4} says {size} bytes, "
                    f"{end - at} are left"
                )
            stop = at + size
            if id == 1:
                if found:
                    raise self._error(f"entry '{name}' has two ZIP64 extra fields")
                found = True
                if header.nbytes == FULL32:
                    header.nbytes = self._take64(window, &at, stop, name)
                if header.packed_bytes == FULL32:
                    header.packed_bytes = self._take64(window, &at, stop, name)
                if header.offset == FULL32:
                    header.offset = self._take64(window, &at, stop, name)
                if header.disk == FULL16:
                    if not within(at, 4, stop):
                        raise self._error(f"entry '{name}': its ZIP64 extra field is too short")
                    header.disk = load32(window.at(at, 4))
            at = stop
        if not found and (
            header.nbytes == FULL32 or header.packed_bytes == FULL32 or header.offset == FULL32
        ):
            raise self._error(f"entry '{name}' needs a ZIP64 extra field, found none")
        return 0

    cdef uint64_t _take64(
        self, ByteWindow window, uint64_t* at, uint64_t stop, str name
    ) except? 0:
        if not within(at[0], 8, stop):
            raise self._error(f"entry '{name}': its ZIP64 extra field is too short")
        at[0] += 8
        return load64(window.at(at[0] - 8, 8))

    cdef int _check_header(self, Header* header, str name) except -1:
        if header.method != 0:
            raise self._error(
                f"entry '{name}' is compressed (method {header.method}), expected stored "
                "(method 0); write the archive without compression"
            )
        if header.flags & (ENCRYPTED | PATCHED):
            raise self._error(f"entry '{name}' is encrypted (flags 0x{header.flags:04x})")
        if header.flags & DATA_DESCRIPTOR:
            raise self._error(
                f"entry '{name}' has its sizes after its data (flag bit 3), expected them "
                "before it; is this an archive of pnnx?"
            )
        if header.disk != 0:
            raise self._error(f"entry '{name}' lies in part {header.disk} of a split archive")
        if header.nbytes != header.packed_bytes:
            raise self._error(
                f"entry '{name}' is stored, but takes {header.packed_bytes} bytes for "
                f"{header.nbytes}"
            )
        return 0

    cdef uint64_t _check_local(self, Header* header, str name, uint64_t limit) except? 0:
        """Compare an entry's local header with the directory; return the offset of its data.

        `limit` is the first byte of the directory, where all entries must have ended.
        """
        cdef uint64_t at = header.offset, name_bytes, extra_bytes
        cdef Header local
        cdef const unsigned char* p
        if not within(at, LOCAL_BYTES, limit):
            raise self._error(
                f"entry '{name}' begins at byte {at}, but the directory begins at byte {limit}"
            )
        if not self._signature_at(self._heads, at, LOCAL_SIGNATURE):
            raise self._error(f"entry '{name}': no local header at byte {at}")
        p = self._heads.at(at, LOCAL_BYTES)
        name_bytes, extra_bytes = load16(p + 26), load16(p + 28)
        if not within(at + LOCAL_BYTES, name_bytes + extra_bytes, limit):
            raise self._error(f"entry '{name}': the local header at byte {at} is cut off")
        local = Header(
            flags=load16(p + 6), method=load16(p + 8), crc=load32(p + 14),
            packed_bytes=load32(p + 18), nbytes=load32(p + 22), offset=0, disk=0,
        )
        at += LOCAL_BYTES
        called = <bytes> self._heads.at(at, name_bytes)[:name_bytes]
        if called != name.encode():
            raise self._error(
                f"entry '{name}': the local header at byte {header.offset} is called {called!r}"
            )
        at += name_bytes
        self._read_zip64(&local, self._heads, at, extra_bytes, name)
        at += extra_bytes
        if (
            local.flags != header.flags or local.method != header.method
            or local.crc != header.crc or local.packed_bytes != header.packed_bytes
            or local.nbytes != header.nbytes
        ):
            raise self._error(
                f"entry '{name}': the local header at byte {header.offset} (flags "
                f"{local.flags}, method {local.method}, CRC-32 {local.crc:08x}, "
                f"{local.nbytes} bytes) contradicts the directory (flags {header.flags}, "
                f"method {header.method}, CRC-32 {header.crc:08x}, {header.nbytes} bytes)"
            )
        if not within(at, header.nbytes, limit):
            raise self._error(
                f"entry '{name}' takes {header.nbytes} bytes from byte {at}, but the directory "
                f"begins at byte {limit}"
            )
        return at
