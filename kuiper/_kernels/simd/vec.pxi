# The vector type of the micro-kernels, see vec.h: to Cython `vf32` is a float, so that `a * b + c`
# compiles; to the C compiler it is a register of LANES floats.

from libc.stdint cimport uint8_t

from kuiper._kernels.simd.bfloat16 cimport bfloat16_t

cdef extern from "_kernels/simd/vec.h" nogil:
    ctypedef float vf32 "kp_vf32"
    ctypedef int vi32 "kp_vi32"
    ctypedef float f32_any "kp_f32_any"                         # at any byte address
    enum:
        LANES "KP_LANES"
        REGISTERS "KP_REGISTERS"
        PERMUTES "KP_PERMUTES"
        FUSES "KP_FUSES"
    vf32 load "kp_load"(const float*) noexcept
    vf32 load_any "kp_load_any"(const f32_any*) noexcept
    # n < LANES values at any byte address, then zeros
    vf32 load_n "kp_load_n"(const float*, long) noexcept
    void store "kp_store"(float*, vf32) noexcept
    void stream "kp_stream"(float*, vf32) noexcept              # a cache line, around the caches
    void store_n "kp_store_n"(float*, vf32, long) noexcept
    vf32 accumulate "kp_accumulate"(vf32, vf32, vf32) noexcept  # acc + a * b
    void set_aside "kp_set_aside"(float*) noexcept              # in memory, during a loop
    long rest_of "kp_rest"(long n) noexcept                     # n, which is < LANES
    void prefetch "kp_prefetch"(const float*) noexcept
    vf32 splat "kp_splat"(float) noexcept
    vi32 splat_int "kp_splat_int"(int) noexcept
    vi32 bits "kp_bits"(vf32) noexcept
    vf32 from_bits "kp_from_bits"(vi32) noexcept
    vi32 vlt "kp_lt"(vf32, vf32) noexcept
    vi32 vle "kp_le"(vf32, vf32) noexcept
    vi32 veq "kp_eq"(vf32, vf32) noexcept
    vi32 veq_int "kp_eq_int"(vi32, vi32) noexcept
    vf32 select "kp_select"(vi32, vf32, vf32) noexcept
    vf32 scaled "kp_scaled"(vf32, vf32) noexcept                # x 2^n for whole n, |n| <= 252
    vf32 vmax "kp_max"(vf32, vf32) noexcept                     # the second if either is NaN
    vf32 vmin "kp_min"(vf32, vf32) noexcept
    vf32 vsqrt "kp_sqrt"(vf32) noexcept
    vf32 rounded "kp_rounded"(vf32) noexcept
    vf32 vfloor "kp_floor"(vf32) noexcept
    vf32 vceil "kp_ceil"(vf32) noexcept
    vf32 vtrunc "kp_trunc"(vf32) noexcept
    vf32 vrint "kp_rint"(vf32) noexcept
    vf32 permute "kp_permute"(vf32, vi32) noexcept              # lane i is lane index[i] of v
    float reduce_add "kp_reduce_add"(vf32) noexcept
    float reduce_max "kp_reduce_max"(vf32) noexcept

cdef extern from "_kernels/simd/bfloat16.h" nogil:
    vf32 load_bf16 "kp_load_bf16"(const bfloat16_t*) noexcept
    vf32 load_bf16_n "kp_load_bf16_n"(const bfloat16_t*, long) noexcept         # n < LANES
    void store_bf16 "kp_store_bf16"(bfloat16_t*, vf32) noexcept                 # to nearest even
    void store_bf16_n "kp_store_bf16_n"(bfloat16_t*, vf32, long) noexcept
    vi32 load_pairs "kp_load_pairs"(const bfloat16_t*) noexcept                 # 2 LANES values
    void store_pairs "kp_store_pairs"(bfloat16_t*, vf32, vf32) noexcept
    vf32 first_of_pairs "kp_first_of_pairs"(vi32) noexcept
    vf32 second_of_pairs "kp_second_of_pairs"(vi32) noexcept
    # vectors of even and of odd values, in the order of memory
    void store_zipped_bf16 "kp_store_zipped_bf16"(bfloat16_t*, vf32, vf32) noexcept
    void store_zipped "kp_store_zipped"(float*, vf32, vf32) noexcept

cdef extern from "_kernels/simd/dot.h" nogil:
    vf32 load_bytes "kp_load_bytes"(const uint8_t*, long) noexcept              # n <= LANES


cdef inline vf32 nan_max(vf32 a, vf32 b) noexcept nogil:
    """The greater of two; NaN if either is NaN."""
    # vmax returns its second operand if either is NaN, so one of the two is NaN.  The bitwise OR of
    # equal numbers is that number, and of a NaN and anything a NaN.
    return from_bits(bits(vmax(a, b)) | bits(vmax(b, a)))


cdef inline vf32 load_first(const float* x, long n) noexcept nogil:
    """The first n <= LANES values, then zeros; a plain load where n is the constant LANES."""
    return load(x) if n == LANES else load_n(x, n)


cdef inline void store_first(float* y, vf32 v, long n) noexcept nogil:
    if n == LANES:
        store(y, v)
    else:
        store_n(y, v, n)


cdef inline vf32 load_bf16_first(const bfloat16_t* x, long n) noexcept nogil:
    """As `load_first`."""
    return load_bf16(x) if n == LANES else load_bf16_n(x, n)


cdef inline void store_bf16_first(bfloat16_t* y, vf32 v, long n) noexcept nogil:
    if n == LANES:
        store_bf16(y, v)
    else:
        store_bf16_n(y, v, n)


cdef inline void store_result(
    float* y, vf32 v, const float* residual, Py_ssize_t offset, vf32 low, vf32 high, long n
) noexcept nogil:
    """y = clamp(v + residual[offset:]) for n <= LANES values; residual may be NULL."""
    if residual != NULL:
        v += load_first(residual + offset, n)
    store_first(y, vmin(high, vmax(low, v)), n)
