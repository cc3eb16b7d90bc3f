# Loops around the elementwise functions, and the tables of them.
#
# A tail shorter than a vector goes through the same function as everything else, so that a value
# does not depend on where in a tensor it stands, nor on how the work was split.

from kuiper._kernels.elementwise cimport elementwise as fn
from kuiper._kernels.micro.table cimport MAX_LINKS, chain_t, link_t, rows_t

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
    """As map_1, with the function that also takes large arguments only where there are any."""
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
    """y[j] = f(a[j], b[j]), where an operand that does not move is one number; y may be a or b."""
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
    """y[i, j] = f(a[i, j], b[i, j]) over rows of possibly broadcast operands."""
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
    GROUP = 8  # vectors that go through a chain together: enough to hide the choice of operations


cdef inline vf32 vload(vf32 r, vf32 x) noexcept nogil:
    return x


cdef inline vf32 vsub_from(vf32 r, vf32 x) noexcept nogil:
    return x - r


cdef inline vf32 vdiv_into(vf32 r, vf32 x) noexcept nogil:
    return x / r


cdef inline void link_x(
    vector_2 f, int n_vectors, vf32* r, bint moves, const float* x, Py_ssize_t n
) noexcept nogil:
    """r = f(r, x) for vectors of which the last holds n values."""
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
    """r = r + x * z for vectors of which the last holds n values."""
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


cdef inline void run_links(
    int m, const chain_t* chain, float* const* x, const float* const* z, Py_ssize_t j,
    Py_ssize_t n, float* y,
) noexcept nogil:
    """Run a chain over m vectors from column j on, the last of which holds n values."""
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
        if code == <int> fn.LINK_LOAD:
            link_x(vload, m, r, moves, operand, n)
        elif code == <int> fn.LINK_STORE:
            link_store(m, r, operand, n)
        elif code == <int> fn.LINK_ADD:
            link_x(vadd, m, r, moves, operand, n)
        elif code == <int> fn.LINK_ADD_PRODUCT:
            link_product(m, r, moves, operand, link.z_moves, z[i] + (j if link.z_moves else 0), n)
        elif code == <int> fn.LINK_SUB:
            link_x(vsub, m, r, moves, operand, n)
        elif code == <int> fn.LINK_SUB_FROM:
            link_x(vsub_from, m, r, moves, operand, n)
        elif code == <int> fn.LINK_MUL:
            link_x(vmul, m, r, moves, operand, n)
        elif code == <int> fn.LINK_DIV:
            link_x(vdiv, m, r, moves, operand, n)
        elif code == <int> fn.LINK_DIV_INTO:
            link_x(vdiv_into, m, r, moves, operand, n)
        elif code == <int> fn.LINK_MAX:
            link_x(vmaximum, m, r, moves, operand, n)
        elif code == <int> fn.LINK_MIN:
            link_x(vminimum, m, r, moves, operand, n)
        elif code == <int> fn.LINK_PRELU:
            link_x(vprelu, m, r, moves, operand, n)
        elif code == <int> fn.LINK_NEG:
            link_1(vneg, m, r)
        elif code == <int> fn.LINK_ABS:
            link_1(vabs, m, r)
        elif code == <int> fn.LINK_FLOOR:
            link_1(vfloor, m, r)
        elif code == <int> fn.LINK_CEIL:
            link_1(vceil, m, r)
        elif code == <int> fn.LINK_TRUNC:
            link_1(vtrunc, m, r)
        elif code == <int> fn.LINK_ROUND:
            link_1(vrint, m, r)
        elif code == <int> fn.LINK_SQUARE:
            link_1(vsquare, m, r)
        elif code == <int> fn.LINK_SQRT:
            link_1(vsqrt, m, r)
        elif code == <int> fn.LINK_RSQRT:
            link_1(vrsqrt, m, r)
        elif code == <int> fn.LINK_RECIPROCAL:
            link_1(vreciprocal, m, r)
        elif code == <int> fn.LINK_RELU:
            link_1(vrelu, m, r)
        elif code == <int> fn.LINK_HARDSIGMOID:
            link_1(vhardsigmoid, m, r)
        elif code == <int> fn.LINK_HARDSWISH:
            link_1(vhardswish, m, r)
        elif code == <int> fn.LINK_LEAKY_RELU:
            link_3(vleaky_relu, m, r, link)
        elif code == <int> fn.LINK_CLAMP:
            link_3(vclamp, m, r, link)
        elif code == <int> fn.LINK_NAN_TO:
            link_3(vnan_to, m, r, link)
        elif code == <int> fn.LINK_INF_TO:
            link_3(vinf_to, m, r, link)
    link_store(m, r, y + j, n)


cdef void f32_chain(const chain_t* chain) noexcept nogil:
    """y[i, j] = the chain over row i and column j of its operands."""
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


# One function of the table each ----------------------------------------------------------------

cdef void f32_copy(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vcopy, n, x, y)


cdef void f32_abs(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vabs, n, x, y)


cdef void f32_neg(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vneg, n, x, y)


cdef void f32_sign(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vsign, n, x, y)


cdef void f32_square(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vsquare, n, x, y)


cdef void f32_sqrt(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vsqrt, n, x, y)


cdef void f32_rsqrt(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vrsqrt, n, x, y)


cdef void f32_reciprocal(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vreciprocal, n, x, y)


cdef void f32_floor(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vfloor, n, x, y)


cdef void f32_ceil(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vceil, n, x, y)


cdef void f32_trunc(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vtrunc, n, x, y)


cdef void f32_round(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vrint, n, x, y)


cdef void f32_exp(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vexp, n, x, y)


cdef void f32_exp2(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vexp2, n, x, y)


cdef void f32_expm1(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vexpm1, n, x, y)


cdef void f32_log(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vlog, n, x, y)


cdef void f32_log10(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vlog10, n, x, y)


cdef void f32_log2(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vlog2, n, x, y)


cdef void f32_log1p(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vlog1p, n, x, y)


cdef void f32_erf(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(verf, n, x, y)


cdef void f32_sin(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_circular(vsin, vsin_far, n, x, y)


cdef void f32_cos(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_circular(vcos, vcos_far, n, x, y)


cdef void f32_tan(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_circular(vtan, vtan_far, n, x, y)


cdef void f32_asin(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vasin, n, x, y)


cdef void f32_acos(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vacos, n, x, y)


cdef void f32_atan(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vatan, n, x, y)


cdef void f32_sinh(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vsinh, n, x, y)


cdef void f32_cosh(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vcosh, n, x, y)


cdef void f32_tanh(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vtanh, n, x, y)


cdef void f32_asinh(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vasinh, n, x, y)


cdef void f32_acosh(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vacosh, n, x, y)


cdef void f32_atanh(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vatanh, n, x, y)


cdef void f32_relu(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vrelu, n, x, y)


cdef void f32_leaky_relu(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_3(vleaky_relu, n, x, y, p, q)


cdef void f32_clamp(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_3(vclamp, n, x, y, p, q)


cdef void f32_sigmoid(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vsigmoid, n, x, y)


cdef void f32_logsigmoid(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vlogsigmoid, n, x, y)


cdef void f32_hardsigmoid(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vhardsigmoid, n, x, y)


cdef void f32_silu(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vsilu, n, x, y)


cdef void f32_hardswish(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vhardswish, n, x, y)


cdef void f32_mish(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vmish, n, x, y)


cdef void f32_gelu(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vgelu, n, x, y)


cdef void f32_gelu_tanh(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vgelu_tanh, n, x, y)


cdef void f32_elu(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_3(velu, n, x, y, p, q)


cdef void f32_celu(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_3(vcelu, n, x, y, p, q)


cdef void f32_selu(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vselu, n, x, y)


cdef void f32_softplus(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_3(vsoftplus, n, x, y, p, q)


cdef void f32_softsign(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vsoftsign, n, x, y)


cdef void f32_tanhshrink(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_1(vtanhshrink, n, x, y)


cdef void f32_hardshrink(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_3(vhardshrink, n, x, y, p, q)


cdef void f32_softshrink(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_3(vsoftshrink, n, x, y, p, q)


cdef void f32_threshold(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_3(vthreshold, n, x, y, p, q)


cdef void f32_nan_to(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_3(vnan_to, n, x, y, p, q)


cdef void f32_inf_to(Py_ssize_t n, const float* x, float* y, float p, float q) noexcept nogil:
    map_3(vinf_to, n, x, y, p, q)


cdef void f32_add(const rows_t* rows) noexcept nogil:
    map_2(vadd, rows)


cdef void f32_sub(const rows_t* rows) noexcept nogil:
    map_2(vsub, rows)


cdef void f32_mul(const rows_t* rows) noexcept nogil:
    map_2(vmul, rows)


cdef void f32_div(const rows_t* rows) noexcept nogil:
    map_2(vdiv, rows)


cdef void f32_max(const rows_t* rows) noexcept nogil:
    map_2(vmaximum, rows)


cdef void f32_min(const rows_t* rows) noexcept nogil:
    map_2(vminimum, rows)


cdef void f32_prelu(const rows_t* rows) noexcept nogil:
    map_2(vprelu, rows)


cdef void f32_pow(const rows_t* rows) noexcept nogil:
    map_2(vpow, rows)


cdef void f32_atan2(const rows_t* rows) noexcept nogil:
    map_2(vatan2, rows)


cdef void f32_logaddexp(const rows_t* rows) noexcept nogil:
    map_2(vlogaddexp, rows)


cdef void f32_fmod(const rows_t* rows) noexcept nogil:
    map_2(vfmod, rows)


cdef void f32_remainder(const rows_t* rows) noexcept nogil:
    map_2(vremainder, rows)


cdef void f32_floor_divide(const rows_t* rows) noexcept nogil:
    map_2(vfloor_divide, rows)


cdef void f32_fmax(const rows_t* rows) noexcept nogil:
    map_2(vfmax, rows)


cdef void f32_fmin(const rows_t* rows) noexcept nogil:
    map_2(vfmin, rows)


cdef void f32_hypot(const rows_t* rows) noexcept nogil:
    map_2(vhypot, rows)


cdef void f32_copysign(const rows_t* rows) noexcept nogil:
    map_2(vcopysign, rows)


cdef void f32_xlogy(const rows_t* rows) noexcept nogil:
    map_2(vxlogy, rows)


cdef void f32_heaviside(const rows_t* rows) noexcept nogil:
    map_2(vheaviside, rows)


cdef void f32_nextafter(const rows_t* rows) noexcept nogil:
    map_2(vnextafter, rows)


cdef void fill_elementwise(kernels_t* k) noexcept:
    k.chain = f32_chain
    k.unary[<int> fn.COPY] = f32_copy
    k.unary[<int> fn.ABS] = f32_abs
    k.unary[<int> fn.NEG] = f32_neg
    k.unary[<int> fn.SIGN] = f32_sign
    k.unary[<int> fn.SQUARE] = f32_square
    k.unary[<int> fn.SQRT] = f32_sqrt
    k.unary[<int> fn.RSQRT] = f32_rsqrt
    k.unary[<int> fn.RECIPROCAL] = f32_reciprocal
    k.unary[<int> fn.FLOOR] = f32_floor
    k.unary[<int> fn.CEIL] = f32_ceil
    k.unary[<int> fn.TRUNC] = f32_trunc
    k.unary[<int> fn.ROUND] = f32_round
    k.unary[<int> fn.EXP] = f32_exp
    k.unary[<int> fn.EXP2] = f32_exp2
    k.unary[<int> fn.EXPM1] = f32_expm1
    k.unary[<int> fn.LOG] = f32_log
    k.unary[<int> fn.LOG10] = f32_log10
    k.unary[<int> fn.LOG2] = f32_log2
    k.unary[<int> fn.LOG1P] = f32_log1p
    k.unary[<int> fn.ERF] = f32_erf
    k.unary[<int> fn.SIN] = f32_sin
    k.unary[<int> fn.COS] = f32_cos
    k.unary[<int> fn.TAN] = f32_tan
    k.unary[<int> fn.ASIN] = f32_asin
    k.unary[<int> fn.ACOS] = f32_acos
    k.unary[<int> fn.ATAN] = f32_atan
    k.unary[<int> fn.SINH] = f32_sinh
    k.unary[<int> fn.COSH] = f32_cosh
    k.unary[<int> fn.TANH] = f32_tanh
    k.unary[<int> fn.ASINH] = f32_asinh
    k.unary[<int> fn.ACOSH] = f32_acosh
    k.unary[<int> fn.ATANH] = f32_atanh
    k.unary[<int> fn.RELU] = f32_relu
    k.unary[<int> fn.LEAKY_RELU] = f32_leaky_relu
    k.unary[<int> fn.CLAMP] = f32_clamp
    k.unary[<int> fn.SIGMOID] = f32_sigmoid
    k.unary[<int> fn.LOGSIGMOID] = f32_logsigmoid
    k.unary[<int> fn.HARDSIGMOID] = f32_hardsigmoid
    k.unary[<int> fn.SILU] = f32_silu
    k.unary[<int> fn.HARDSWISH] = f32_hardswish
    k.unary[<int> fn.MISH] = f32_mish
    k.unary[<int> fn.GELU] = f32_gelu
    k.unary[<int> fn.GELU_TANH] = f32_gelu_tanh
    k.unary[<int> fn.ELU] = f32_elu
    k.unary[<int> fn.CELU] = f32_celu
    k.unary[<int> fn.SELU] = f32_selu
    k.unary[<int> fn.SOFTPLUS] = f32_softplus
    k.unary[<int> fn.SOFTSIGN] = f32_softsign
    k.unary[<int> fn.TANHSHRINK] = f32_tanhshrink
    k.unary[<int> fn.HARDSHRINK] = f32_hardshrink
    k.unary[<int> fn.SOFTSHRINK] = f32_softshrink
    k.unary[<int> fn.THRESHOLD] = f32_threshold
    k.unary[<int> fn.NAN_TO] = f32_nan_to
    k.unary[<int> fn.INF_TO] = f32_inf_to
    k.binary[<int> fn.ADD] = f32_add
    k.binary[<int> fn.SUB] = f32_sub
    k.binary[<int> fn.MUL] = f32_mul
    k.binary[<int> fn.DIV] = f32_div
    k.binary[<int> fn.MAX] = f32_max
    k.binary[<int> fn.MIN] = f32_min
    k.binary[<int> fn.PRELU] = f32_prelu
    k.binary[<int> fn.POW] = f32_pow
    k.binary[<int> fn.ATAN2] = f32_atan2
    k.binary[<int> fn.LOGADDEXP] = f32_logaddexp
    k.binary[<int> fn.FMOD] = f32_fmod
    k.binary[<int> fn.REMAINDER] = f32_remainder
    k.binary[<int> fn.FLOOR_DIVIDE] = f32_floor_divide
    k.binary[<int> fn.FMAX] = f32_fmax
    k.binary[<int> fn.FMIN] = f32_fmin
    k.binary[<int> fn.HYPOT] = f32_hypot
    k.binary[<int> fn.COPYSIGN] = f32_copysign
    k.binary[<int> fn.XLOGY] = f32_xlogy
    k.binary[<int> fn.HEAVISIDE] = f32_heaviside
    k.binary[<int> fn.NEXTAFTER] = f32_nextafter
