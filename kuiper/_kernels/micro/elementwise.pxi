# Loops over rows for the elementwise functions, and chains of functions.
#
# A tail shorter than a vector uses the same vector function, so that a result depends neither on
# the position of the element nor on the shards.

from kuiper._kernels.micro.table cimport (
    LINK_ADD_PRODUCT, LINK_LOAD, LINK_STORE, MAX_LINKS, MAX_UNARY, N_LINKS, chain_t, link_t, rows_t,
)

ctypedef vf32 (*vector_2)(vf32, vf32) noexcept nogil
ctypedef vf32 (*vector_3)(vf32, vf32, vf32) noexcept nogil


cdef inline void map_1(vector_1 f, Py_ssize_t n, const float* x, float* y) noexcept nogil:
    """y[i] = f(x[i]); y may be x."""
    cdef Py_ssize_t i = 0
    while i + LANES <= n:
        store(y + i, f(load(x + i)))
        i += LANES
    if i < n:
        store_n(y + i, f(load_n(x + i, n - i)), n - i)


cdef inline void map_3(
    vector_3 f, Py_ssize_t n, const float* x, float* y, float p0, float p1
) noexcept nogil:
    """y[i] = f(x[i], p0, p1); y may be x."""
    cdef vf32 p = splat(p0), q = splat(p1)
    cdef Py_ssize_t i = 0
    while i + LANES <= n:
        store(y + i, f(load(x + i), p, q))
        i += LANES
    if i < n:
        store_n(y + i, f(load_n(x + i, n - i), p, q), n - i)


cdef inline void map_circular(
    vector_1 f, vector_1 f_far, Py_ssize_t n, const float* x, float* y
) noexcept nogil:
    """As map_1; f_far, which is exact for large arguments, runs only if x contains one."""
    cdef vf32 limit = splat(CIRCULAR_LIMIT)
    cdef vi32 is_far = splat_int(0)
    cdef float[MAX_LANES] lanes
    cdef bint any_far = False
    cdef Py_ssize_t i = 0
    while i + LANES <= n:
        is_far |= vlt(limit, vabs(load(x + i)))
        i += LANES
    if i < n:
        is_far |= vlt(limit, vabs(load_n(x + i, n - i)))
    store(lanes, select(is_far, limit, splat(0.0)))
    for i in range(LANES):
        any_far |= lanes[i] != 0
    if any_far:
        map_1(f_far, n, x, y)
    else:
        map_1(f, n, x, y)


cdef inline void map_row(
    vector_2 f, Py_ssize_t n, const float* a, bint a_moves, const float* b, bint b_moves, float* y
) noexcept nogil:
    """y[j] = f(a[j], b[j]), an operand that does not move being a[0] or b[0]; y may be a or b."""
    cdef vf32 va = splat(a[0]), vb = splat(b[0])
    cdef Py_ssize_t j = 0
    while j + LANES <= n:
        if a_moves:
            va = load(a + j)
        if b_moves:
            vb = load(b + j)
        store(y + j, f(va, vb))
        j += LANES
    if j < n:
        if a_moves:
            va = load_n(a + j, n - j)
        if b_moves:
            vb = load_n(b + j, n - j)
        store_n(y + j, f(va, vb), n - j)


cdef inline void map_2(vector_2 f, const rows_t* r) noexcept nogil:
    """y[i, j] = f(a[i, j], b[i, j]); strides of 0 broadcast."""
    cdef const float* a = r.a
    cdef const float* b = r.b
    cdef float* y = r.y
    cdef Py_ssize_t i
    for i in range(r.n_rows):
        if r.a_column and r.b_column:
            map_row(f, r.n_columns, a, True, b, True, y)
        elif r.a_column:
            map_row(f, r.n_columns, a, True, b, False, y)
        else:
            map_row(f, r.n_columns, a, False, b, r.b_column != 0, y)
        a += r.a_row
        b += r.b_row
        y += r.y_row


# Chains ----------------------------------------------------------------------------------------

cdef enum:
    GROUP = 8  # vectors per dispatch of a link: enough to amortize it


cdef inline vf32 vload(vf32 r, vf32 x) noexcept nogil:
    return x


cdef inline vf32 vsub_from(vf32 r, vf32 x) noexcept nogil:
    return x - r


cdef inline vf32 vdiv_into(vf32 r, vf32 x) noexcept nogil:
    return x / r


cdef inline void link_x(
    vector_2 f, int n_vectors, vf32* r, bint moves, const float* x, Py_ssize_t n
) noexcept nogil:
    """r = f(r, x) for vectors, the last with n elements."""
    cdef vf32 same
    cdef int v
    if not moves:
        same = splat(x[0])
        for v in range(n_vectors):
            r[v] = f(r[v], same)
    elif n_vectors == 1 and n < LANES:
        r[0] = f(r[0], load_n(x, n))
    else:
        for v in range(n_vectors):
            r[v] = f(r[v], load(x + v * LANES))


cdef inline void link_product(
    int n_vectors, vf32* r, bint x_moves, const float* x, bint z_moves, const float* z, Py_ssize_t n
) noexcept nogil:
    """r = r + x * z for vectors, the last with n elements."""
    cdef vf32 vx = splat(x[0]), vz = splat(z[0])
    cdef bint is_part = n_vectors == 1 and n < LANES
    cdef int v
    for v in range(n_vectors):
        if x_moves:
            vx = load_n(x, n) if is_part else load(x + v * LANES)
        if z_moves:
            vz = load_n(z, n) if is_part else load(z + v * LANES)
        r[v] = r[v] + rounded(vx * vz)


cdef inline void link_store(int n_vectors, const vf32* r, float* x, Py_ssize_t n) noexcept nogil:
    cdef int v
    if n_vectors == 1 and n < LANES:
        store_n(x, r[0], n)
    else:
        for v in range(n_vectors):
            store(x + v * LANES, r[v])


cdef inline void link_1(vector_1 f, int n_vectors, vf32* r) noexcept nogil:
    cdef int v
    for v in range(n_vectors):
        r[v] = f(r[v])


cdef inline void link_3(
    vector_3 f, int n_vectors, vf32* r, const link_t* link
) noexcept nogil:
    cdef vf32 p = splat(link.p0), q = splat(link.p1)
    cdef int v
    for v in range(n_vectors):
        r[v] = f(r[v], p, q)


# Generated by setup.py: f32_NAME for each row of kuiper/expression/functions.py, run_link and
# fill_functions.
include "f32_functions.pxi"


cdef inline void run_links(
    int m, const chain_t* chain, float* const* x, const float* const* z, Py_ssize_t j,
    Py_ssize_t n, float* y,
) noexcept nogil:
    """Run a chain over m vectors from column j on, the last with n elements."""
    cdef vf32[GROUP] r
    cdef const link_t* link
    cdef float* operand
    cdef bint moves
    cdef int i, v, code
    for v in range(m):
        r[v] = splat(0.0)
    for i in range(chain.n_links):
        link = &chain.links[i]
        code, moves = link.code, link.moves
        operand = x[i] + (j if moves else 0)
        if code == LINK_LOAD:
            link_x(vload, m, r, moves, operand, n)
        elif code == LINK_STORE:
            link_store(m, r, operand, n)
        elif code == LINK_ADD_PRODUCT:
            link_product(m, r, moves, operand, link.z_moves, z[i] + (j if link.z_moves else 0), n)
        else:
            run_link(code - N_LINKS, m, r, link, moves, operand, n)
    link_store(m, r, y + j, n)


cdef void f32_chain(const chain_t* chain) noexcept nogil:
    """y[i, j] = the chain of its operands at [i, j]."""
    cdef (float*)[MAX_LINKS] x
    cdef (const float*)[MAX_LINKS] z
    cdef float* y = chain.y
    cdef Py_ssize_t i, j, columns = chain.n_columns
    cdef int k
    for k in range(chain.n_links):
        x[k], z[k] = chain.links[k].x, chain.links[k].z
    for i in range(chain.n_rows):
        j = 0
        while j + GROUP * LANES <= columns:
            run_links(GROUP, chain, x, z, j, LANES, y)
            j += GROUP * LANES
        if j + GROUP // 2 * LANES <= columns:
            run_links(GROUP // 2, chain, x, z, j, LANES, y)
            j += GROUP // 2 * LANES
        if j + GROUP // 4 * LANES <= columns:
            run_links(GROUP // 4, chain, x, z, j, LANES, y)
            j += GROUP // 4 * LANES
        while j < columns:
            run_links(1, chain, x, z, j, least(LANES, columns - j), y)
            j += LANES
        for k in range(chain.n_links):
            x[k] += chain.links[k].row
            z[k] += chain.links[k].z_row
        y += chain.y_row


cdef void fill_elementwise(kernels_t* k) noexcept:
    cdef int i
    k.f32_chain = f32_chain
    fill_functions(k)
    for i in range(MAX_UNARY):
        k.bf16_unary[i] = k.f32_unary[i]
