# Transposition of 32-bit matrices, for all changes of layout.  The source may start at any byte
# address, as weights in a file do.

cdef extern from "_kernels/simd/transpose.h" nogil:
    void transpose_square "kp_transpose_square"(vf32*) noexcept

cdef enum:
    MAX_LANES = 16  # Cython needs constant array lengths


cdef inline Py_ssize_t least(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    return a if a < b else b


cdef inline void transpose_tile(
    const f32_any* x, Py_ssize_t ldx, float* y, Py_ssize_t ldy
) noexcept nogil:
    cdef vf32[MAX_LANES] v
    cdef int i
    for i in range(LANES):
        v[i] = load_any(x + i * ldx)
    transpose_square(v)
    for i in range(LANES):
        store(y + i * ldy, v[i])


cdef inline void transpose_edge(
    const f32_any* x, Py_ssize_t ldx, float* y, Py_ssize_t ldy, Py_ssize_t n_a, Py_ssize_t n_b,
) noexcept nogil:
    """A tile of fewer than LANES rows or columns."""
    cdef vf32[MAX_LANES] v
    cdef int i
    for i in range(LANES):
        v[i] = splat(0)
    for i in range(n_a):
        if n_b < LANES:
            v[i] = load_n(<const float*> x + i * ldx, n_b)
        else:
            v[i] = load_any(x + i * ldx)
    transpose_square(v)
    for i in range(n_b):
        if n_a < LANES:
            store_n(y + i * ldy, v[i], n_a)
        else:
            store(y + i * ldy, v[i])


cdef inline void interleave(
    int n_a, const f32_any* x, Py_ssize_t ldx, float* y, Py_ssize_t n_b
) noexcept nogil:
    """A few rows to packed columns; `n_a` is a constant, so the compiler interleaves vectors."""
    cdef Py_ssize_t a, b
    for b in range(n_b):
        for a in range(n_a):
            y[b * n_a + a] = x[a * ldx + b]


cdef inline void deinterleave(
    int n_b, const f32_any* x, float* y, Py_ssize_t ldy, Py_ssize_t n_a
) noexcept nogil:
    """Packed rows of a few elements to columns; `n_b` is a constant."""
    cdef Py_ssize_t a, b
    for a in range(n_a):
        for b in range(n_b):
            y[b * ldy + a] = x[a * n_b + b]


cdef void b32_transpose(
    const float* source, Py_ssize_t ldx, float* y, Py_ssize_t ldy, Py_ssize_t n_a, Py_ssize_t n_b,
) noexcept nogil:
    """Transpose a matrix of 32-bit elements of any type.

    Layout : source (n_a, n_b), rows ldx apart, at any byte address -> y (n_b, n_a), rows ldy apart
    Needs  : source and y do not overlap
    Threads: none; callers split the matrix
    Source : Eklundh's butterfly on tiles of LANES x LANES
    """
    cdef const f32_any* x = <const f32_any*> source
    cdef Py_ssize_t tiles_a = (n_a + LANES - 1) // LANES, tiles_b = (n_b + LANES - 1) // LANES
    # Rows a power of two apart share few cache sets, so lines could be evicted before the next tile
    # uses their other half: go along those rows first.
    cdef bint along_y = (ldy & -ldy) > (ldx & -ldx)
    cdef Py_ssize_t i, j, a, b
    if n_a >= LANES and n_b >= LANES:
        # The last tile of a row or column overlaps the one before and writes the same values again.
        for i in range(tiles_b if along_y else tiles_a):
            for j in range(tiles_a if along_y else tiles_b):
                a = least((j if along_y else i) * LANES, n_a - LANES)
                b = least((i if along_y else j) * LANES, n_b - LANES)
                transpose_tile(x + a * ldx + b, ldx, y + b * ldy + a, ldy)
    elif n_a == 2 and ldy == 2:
        interleave(2, x, ldx, y, n_b)
    elif n_a == 3 and ldy == 3:
        interleave(3, x, ldx, y, n_b)
    elif n_a == 4 and ldy == 4:
        interleave(4, x, ldx, y, n_b)
    elif n_b == 2 and ldx == 2:
        deinterleave(2, x, y, ldy, n_a)
    elif n_b == 3 and ldx == 3:
        deinterleave(3, x, y, ldy, n_a)
    elif n_b == 4 and ldx == 4:
        deinterleave(4, x, y, ldy, n_a)
    elif LANES > 1 and least(n_a, n_b) > LANES // 4:
        for i in range(tiles_a):
            a = i * LANES
            for j in range(tiles_b):
                b = j * LANES
                transpose_edge(
                    x + a * ldx + b, ldx, y + b * ldy + a, ldy,
                    least(n_a - a, LANES), least(n_b - b, LANES),
                )
    else:
        for b in range(n_b):
            for a in range(n_a):
                y[b * ldy + a] = x[a * ldx + b]


cdef void fill_move(kernels_t* k) noexcept:
    k.b32_transpose = b32_transpose
