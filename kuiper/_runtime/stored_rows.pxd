# Rows of a weight that are still in a file: how kernels read them.


cdef extern from "_runtime/read_rows.h" nogil:
    ctypedef struct stored_t "kp_stored":
        int descriptor               # of the open file; -1 where there is none
        long long first              # byte of row 0
        long long row_bytes
        unsigned long long device    # of the file when it was opened, as all below
        unsigned long long inode
        long long size
        long long time               # of its last change, in nanoseconds

    # Tells whether they were all there and the file is unchanged.  If not, whoever has them as
    # Python does knows more about it.
    bint read_rows "kp_read_rows"(
        const stored_t* where, Py_ssize_t start, Py_ssize_t stop, char* to
    ) noexcept


cdef class StoredRows:
    cdef stored_t where
    cdef object _read


cdef stored_t where_stored(object weight) except *
