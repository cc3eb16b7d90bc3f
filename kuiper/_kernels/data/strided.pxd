# The iterator over any number of strided operands of one shape.
#
# Drivers split their work into an inner block, which a kernel computes, and the loops around it.
# `strided_t` describes these loops; `cursor_t` is one iteration of them: an index per loop and an
# offset per operand.  Strides are in bytes or elements, as the driver needs; those of broadcast
# operands are 0.  The loops come from loops.py, merged as far as possible.

cdef enum:
    MAX_LOOPS = 16
    MAX_OPERANDS = 65      # 64 inputs of an elementwise program and its result

cdef struct strided_t:
    int rank                     # number of loops
    int n_operands
    Py_ssize_t count             # number of iterations, the product of the extents
    Py_ssize_t[MAX_LOOPS] extent
    const Py_ssize_t* stride     # (rank, n_operands)

cdef struct cursor_t:
    Py_ssize_t[MAX_LOOPS] index
    Py_ssize_t[MAX_OPERANDS] offset


cdef inline bytearray fill_strided(strided_t* p, loops, int n_operands):
    """Store loops, a sequence of (extent, strides), slowest first.

    Returns
    -------
    bytearray
        The memory of `p.stride`; it must live as long as `p`.
    """
    cdef int axis, k
    cdef bytearray memory
    cdef Py_ssize_t* stride
    if len(loops) > MAX_LOOPS or n_operands > MAX_OPERANDS:
        raise ValueError(
            f"{n_operands} operands need {len(loops)} loops; at most {MAX_OPERANDS} operands and "
            f"{MAX_LOOPS} loops are possible"
        )
    memory = bytearray(len(loops) * n_operands * sizeof(Py_ssize_t))
    stride = <Py_ssize_t*> <char*> memory
    p.rank, p.n_operands, p.count, p.stride = len(loops), n_operands, 1, stride
    for axis, (extent, strides) in enumerate(loops):
        p.extent[axis] = extent
        p.count *= p.extent[axis]
        for k in range(n_operands):
            stride[axis * n_operands + k] = strides[k]
    return memory


# `n` is p.n_operands: as a constant it lets the compiler unroll the loops over operands.

cdef inline void seek(
    const strided_t* p, int n, cursor_t* cursor, Py_ssize_t position
) noexcept nogil:
    """Move to iteration `position`, counted with the last loop fastest."""
    cdef int axis, k
    cdef const Py_ssize_t* stride
    for k in range(n):
        cursor.offset[k] = 0
    for axis in range(p.rank - 1, -1, -1):
        stride = p.stride + axis * n
        cursor.index[axis] = position % p.extent[axis]
        position //= p.extent[axis]
        for k in range(n):
            cursor.offset[k] += cursor.index[axis] * stride[k]


cdef inline void advance(const strided_t* p, int n, cursor_t* cursor) noexcept nogil:
    """Move to the next iteration; the first one follows the last."""
    cdef int axis, k
    cdef const Py_ssize_t* stride = p.stride + p.rank * n
    for axis in range(p.rank - 1, -1, -1):
        stride -= n
        if cursor.index[axis] + 1 < p.extent[axis]:
            cursor.index[axis] += 1
            for k in range(n):
                cursor.offset[k] += stride[k]
            return
        for k in range(n):
            cursor.offset[k] -= cursor.index[axis] * stride[k]
        cursor.index[axis] = 0
