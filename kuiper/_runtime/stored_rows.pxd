# How kernels read the rows of a weight that is still in a file.


cdef extern from "_runtime/read_rows.h" nogil:
    ctypedef struct stored_t "kp_stored":
        int descriptor               # of the open file; -1 without one
        long long first              # byte offset of row 0
        long long row_bytes
        unsigned long long device    # identity of the file when it was opened: from here on
        unsigned long long inode
        long long size               # bytes
        long long time               # of the last modification, in ns

    # Returns whether all rows were read and the file is unchanged.  If not, reading them through
    # Python raises the proper error.
    bint read_rows "kp_read_rows"(
        const stored_t* where, Py_ssize_t start, Py_ssize_t stop, char* to
    ) noexcept


cdef class StoredRows:
    cdef stored_t where
    cdef object _read


cdef stored_t where_stored(object weight) except *
