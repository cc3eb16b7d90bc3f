# The variant avx512 with its extensions, and products of bfloat16 and of bytes in tile registers.

include "extension.pxi"

from kuiper._kernels.micro.table cimport bf16_end_fn, bf16_gemm_fn, u8s8_end_fn, u8s8_gemm_fn

cdef extern from "_kernels/simd/amx_tile.h" nogil:
    enum:
        TILE_ROWS "KP_AMX_MAX_ROWS"
    void enter_amx "kp_enter_amx"(
        bf16_gemm_fn* pairs, u8s8_gemm_fn* dots, bf16_end_fn end_pairs, u8s8_end_fn end_dots
    ) noexcept
    void release "kp_amx_release"() noexcept
    double multiply_adds "kp_amx_multiply_adds"(Py_ssize_t rounds, float* sink) noexcept


cdef void release_tiles() noexcept nogil:
    release()


cdef void fill_extension(kernels_t* k) noexcept:
    k.pair_mr = k.dot_mr = TILE_ROWS
    k.pair_rate = 32
    enter_amx(k.bf16_gemm, k.u8s8_gemm, k.bf16_end, k.u8s8_end)
    k.bf16_multiply_adds = multiply_adds
    k.release_tiles = release_tiles
