# Attention in bfloat16: what becomes of the scores, and of the sums over values.
#
# Terms are rounded before they are summed over the values, and divided by their sum after it: a
# division per result instead of one per score.

from libc.math cimport INFINITY
from libc.string cimport memset


cdef inline vf32 shifted_scores(
    float* scores, vf32 scale, const float* added, Py_ssize_t j, long n
) noexcept nogil:
    """Scale n scores, and add what is added to them, in place."""
    cdef vf32 t = load_first(scores + j, n) * scale
    if added != NULL:
        t += load_first(added + j, n)
    store_first(scores + j, t, n)
    return t


cdef void bf16_exp_rows(
    Py_ssize_t m, Py_ssize_t n, float* scores, Py_ssize_t ld, float scale, const float* added,
    Py_ssize_t added_row, bint may_hide, bfloat16_t* terms, Py_ssize_t terms_row, float* sums,
) noexcept nogil:
    cdef Py_ssize_t i, j
    cdef vf32 top, total, v
    cdef float* row
    # All rows first: loads right after stores to the same addresses would stall.
    for i in range(m):
        row, top, j = scores + i * ld, splat(-INFINITY), 0
        while j + LANES <= n:
            top = nan_max(top, shifted_scores(row, splat(scale), added, j, LANES))
            j += LANES
        if j < n:
            v = nan_max(top, shifted_scores(row, splat(scale), added, j, rest_of(n - j)))
            top = select(first_lanes(rest_of(n - j)), v, top)
        sums[i] = across(REDUCE_MAX, top)
        if added != NULL:
            added += added_row
    for i in range(m):
        row, total, j = scores + i * ld, splat(0), 0
        if may_hide and sums[i] == -INFINITY:
            memset(terms + i * terms_row, 0, n * sizeof(bfloat16_t))
            sums[i] = 1
            continue
        top = splat(sums[i])
        while j + LANES <= n:
            v = rough_exp_term(top - load(row + j))
            store_bf16(terms + i * terms_row + j, v)
            total += v
            j += LANES
        if j < n:
            v = rough_exp_term(top - load_n(row + j, rest_of(n - j)))
            store_bf16_n(terms + i * terms_row + j, v, rest_of(n - j))
            total += select(first_lanes(rest_of(n - j)), v, splat(0))
        sums[i] = across(REDUCE_SUM, total)


cdef void bf16_divide_rows(
    Py_ssize_t m, Py_ssize_t n, const float* x, Py_ssize_t x_row, const float* divisors, void* y,
    Py_ssize_t y_row, bint to_bfloat16,
) noexcept nogil:
    cdef Py_ssize_t i, j
    cdef long some
    cdef vf32 factor, v
    for i in range(m):
        factor = splat(1 / divisors[i])
        j = 0
        while j < n:
            some = <long> least(LANES, n - j)
            v = load_first(x + i * x_row + j, some) * factor
            if to_bfloat16:
                store_bf16_first(<bfloat16_t*> y + i * y_row + j, v, some)
            else:
                store_first(<float*> y + i * y_row + j, v, some)
            j += LANES


cdef void fill_attend(kernels_t* k) noexcept:
    k.bf16_exp_rows = bf16_exp_rows
    k.bf16_divide_rows = bf16_divide_rows
