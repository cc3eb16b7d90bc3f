"""Weights that are still in a file: any thread reads them, and takes no lock for it."""

MOST = 2**64 - 1


cdef class StoredRows:
    """The rows of a weight in an open file: its parts along the first axis.

    Parameters
    ----------
    read : callable
        ``read(start, stop)`` returns the bytes of some rows, and raises if they are not what they
        were.  It keeps the file open.
    descriptor : int
    first : int
        Where row 0 begins in the file.
    row_bytes : int
    device, inode, size, time : int
        Of the file when it was opened, as :func:`os.fstat` says; the time of its last change is in
        nanoseconds.
    """

    def __init__(self, read, descriptor, first, row_bytes, device, inode, size, time):
        cdef stored_t* where = &self.where
        self._read = read
        where.descriptor, where.first, where.row_bytes = descriptor, first, row_bytes
        # A system may count them from below zero.
        where.device, where.inode = device & MOST, inode & MOST
        where.size, where.time = size, time

    def read(self, start, stop):
        """Return the bytes of the rows from `start` to `stop`."""
        return self._read(start, stop)

    def behind(self, start):
        """Return the same without the rows before `start`."""
        cdef const stored_t* where = &self.where

        def read(first, last):
            return self._read(start + first, start + last)

        return StoredRows(
            read, where.descriptor, where.first + start * where.row_bytes, where.row_bytes,
            where.device, where.inode, where.size, where.time,
        )


cdef stored_t where_stored(object weight) except *:
    """Return where the rows of something with an `in_file` are; nowhere for other weights."""
    cdef stored_t nowhere
    rows = getattr(weight, "in_file", None)
    if isinstance(rows, StoredRows):
        return (<StoredRows> rows).where
    nowhere.descriptor = -1
    return nowhere
