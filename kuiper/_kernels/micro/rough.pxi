# Functions for results that are rounded to bfloat16, or to bytes in a model of that precision.
#
# Rounding to bfloat16 changes a result by up to 2^-8 of it.  The errors here are small beside that,
# and the functions take 0.3 to 0.5 of the time of those of activations.pxi.

cimport kuiper._kernels.micro.functions as fn
from kuiper._kernels.micro.table cimport kernels_t

cdef extern from "_kernels/simd/rough.h" nogil:
    vf32 rough_exp2 "kp_rough_exp2"(vf32) noexcept
    vf32 rough_inverse "kp_rough_inverse"(vf32) noexcept


cdef inline vf32 rough_exp_term(vf32 x) noexcept nogil:
    """As exp_term, within 1.2e-4 of it for x < 80."""
    return select(vlt(splat(87.0), x), splat(0.0), rough_exp2(x * splat(-1.44269504)))


cdef inline vf32 rough_sigmoid(vf32 x) noexcept nogil:
    """2e-4 of the result for x > -80."""
    return rough_inverse(splat(1.0) + rough_exp2(x * splat(-1.44269504)))


cdef inline vf32 rough_gelu(vf32 x) noexcept nogil:
    """1.4e-4 absolute.

    A polynomial of x^2 approximates the normal distribution less 1/2, over x; beyond 4 it is that
    at 4, where the distribution is 3e-5 from 0 or 1.
    """
    cdef vf32 c = vmin(splat(4.0), vmax(splat(-4.0), x)), z = c * c
    cdef vf32 p = splat(-1.1625864e-9)
    p = p * z + splat(9.601905e-8)
    p = p * z + splat(-3.4634315e-6)
    p = p * z + splat(7.25017e-5)
    p = p * z + splat(-0.0009910045)
    p = p * z + splat(0.009452085)
    p = p * z + splat(-0.065804034)
    p = p * z + splat(0.39863223)
    # Not below 0, for large negative x would make much of it.
    return x * vmax(splat(0.0), p * c + splat(0.5))


cdef void bf16_sigmoid(Py_ssize_t n, const float* x, float* y, float p0, float p1) noexcept nogil:
    cdef Py_ssize_t i = 0
    while i + LANES <= n:
        store(y + i, rough_sigmoid(load(x + i)))
        i += LANES
    if i < n:
        store_n(y + i, rough_sigmoid(load_n(x + i, rest_of(n - i))), rest_of(n - i))


cdef void bf16_silu(Py_ssize_t n, const float* x, float* y, float p0, float p1) noexcept nogil:
    cdef Py_ssize_t i = 0
    cdef vf32 v
    while i + LANES <= n:
        v = load(x + i)
        store(y + i, v * rough_sigmoid(v))
        i += LANES
    if i < n:
        v = load_n(x + i, rest_of(n - i))
        store_n(y + i, v * rough_sigmoid(v), rest_of(n - i))


cdef void bf16_gelu(Py_ssize_t n, const float* x, float* y, float p0, float p1) noexcept nogil:
    cdef Py_ssize_t i = 0
    while i + LANES <= n:
        store(y + i, rough_gelu(load(x + i)))
        i += LANES
    if i < n:
        store_n(y + i, rough_gelu(load_n(x + i, rest_of(n - i))), rest_of(n - i))


cdef void fill_rough(kernels_t* k) noexcept:
    k.bf16_unary[<int> fn.SIGMOID] = bf16_sigmoid
    k.bf16_unary[<int> fn.SILU] = bf16_silu
    k.bf16_unary[<int> fn.GELU] = bf16_gelu
