"""Weights that are still in a file: any thread reads them without a lock."""

UINT64 = 2**64 - 1


cdef class StoredRows:
    """The rows of a weight in an open file: its slices along the first axis.

    Parameters
    ----------
    read : callable
        ``read(start, stop)`` returns the bytes of rows [start, stop) and raises if the file has
        changed.  It keeps the file open.
    descriptor : int
    first : int
        Byte offset of row 0 in the file.
    row_bytes : int
    device, inode, size, time : int
        Identity of the file when it was opened, from :func:`os.fstat`; `time` is the last
        modification in nanoseconds.
    """

    def __init__(self, read, descriptor, first, row_bytes, device, inode, size, time):
        cdef stored_t* where = &self.where
        self._read = read
        where.descriptor, where.first, where.row_bytes = descriptor, first, row_bytes
        # Some systems have negative numbers.
        where.device, where.inode = device & UINT64, inode & UINT64
        where.size, where.time = size, time

    def read(self, start, stop):
        """Return the bytes of the rows from `start` to `stop`."""
        return self._read(start, stop)

    def from_row(self, start):
        """Return the rows from `start` on."""
        cdef const stored_t* where = &self.where

        def read(first, last):
            return self._read(start + first, start + last)

        return StoredRows(
            read, where.descriptor, where.first + start * where.row_bytes, where.row_bytes,
            where.device, where.inode, where.size, where.time,
        )


cdef stored_t where_stored(object weight) except *:
    """Return the location of a weight's `in_file` rows; descriptor -1 for other weights."""
    cdef stored_t nowhere
    rows = getattr(weight, "in_file", None)
    if isinstance(rows, StoredRows):
        return (<StoredRows> rows).where
    nowhere.descriptor = -1
    return nowhere
