# The outputs of one tile by the definition of a convolution.
#
# A pixel that is not finite, or that overflows in a transform, invalidates all outputs of its tile,
# because each product mixes many pixels.  The tile is computed again from the stored filters:
#
#     sums[filter, pixel] = sum_k taps[filter][k] * fields[k, pixel]
#
# for k = (channel, plane, row, column).
# The filters are the rows of A and not the panel, because they are stored in rows.  A few filters
# and planes at a time fit buffers on the stack, so no scratch memory is reserved for such tiles.

from libc.math cimport ldexp, NAN
from libc.stdint cimport uint16_t
from libc.string cimport memcpy, memset

cdef enum:
    DIRECT_PLANES = 8                    # per product
    DIRECT_TAPS = 9 * DIRECT_PLANES
    DIRECT_FILTERS = 8 * MAX_MR
    MAX_NR = 2 * LINE_FLOATS             # two vectors, see NV in micro/gemm.pxi


cdef inline float widened(uint16_t half) noexcept nogil:
    """Return the value of a float16."""
    cdef int exponent = half >> 10 & 31, digits = half & 1023
    cdef float value
    if exponent == 31:
        value = NAN if digits else INFINITY
    elif exponent == 0:
        value = <float> ldexp(digits, -24)
    else:
        value = <float> ldexp(1024 + digits, exponent - 25)
    return -value if half & 0x8000 else value


cdef inline const float* load_taps(
    const winograd_t* p, Py_ssize_t first, Py_ssize_t count, float* taps
) noexcept nogil:
    """Return a pointer to `count` taps, through a copy in `taps` if float16 or unaligned."""
    cdef const char* source = p.filters + first * (2 if p.filters_are_halves else 4)
    cdef uint16_t half
    cdef Py_ssize_t k
    if p.filters_are_halves:
        for k in range(count):
            memcpy(&half, source + 2 * k, 2)
            taps[k] = widened(half)
    elif <uintptr_t> source % 4:
        memcpy(taps, source, 4 * count)
    else:
        return <const float*> source
    return taps


cdef void load_fields(
    const winograd_t* p, const float* x, const tile_position_t* tile, Py_ssize_t pixel,
    Py_ssize_t first, Py_ssize_t count, float* field, Py_ssize_t nr,
) noexcept nogil:
    """Write `count` planes of the receptive field of one output to field[k * nr]."""
    cdef Py_ssize_t top = (tile.h + pixel // tile.columns) * p.stride - p.pad_top
    cdef Py_ssize_t left = (tile.w + pixel % tile.columns) * p.stride - p.pad_left
    cdef Py_ssize_t i, plane, h, w, tap, before = tile.volume * p.in_d
    cdef const float* source
    for i in range(count):
        plane = tile.plane * p.stride_d + (first + i) % p.kernel_d * p.dilation_d - p.front
        for tap in range(9):
            h, w = top + tap // 3, left + tap % 3
            source = p.zeros
            if 0 <= plane < p.in_d and 0 <= h < p.in_h and 0 <= w < p.in_w:
                source = x + (((before + plane) * p.in_h + h) * p.in_w + w) * p.ldx
            field[(9 * i + tap) * nr] = source[(first + i) // p.kernel_d]


cdef void direct_sums(
    const winograd_t* p, const float* x, const tile_position_t* tile, Py_ssize_t pixel,
    Py_ssize_t n, Py_ssize_t first, Py_ssize_t count, float* sums,
) noexcept nogil:
    """Write sums[filter * nr + output] for `count` filters from `first` on and n outputs."""
    cdef float[(1 + DIRECT_TAPS) * MAX_NR] panel
    cdef float[MAX_MR * DIRECT_TAPS] taps
    cdef (const float*)[MAX_MR] rows
    cdef Py_ssize_t nr = p.kernels.nr, mr = p.kernels.mr, at = 0, planes, o, height, i, j
    cdef Py_ssize_t all_planes = p.in_channels * p.kernel_d
    memset(&panel[0], 0, sizeof(panel))  # no bias, and zeros in unused columns
    memset(sums, 0, count * nr * sizeof(float))
    while at < all_planes:
        planes = min(DIRECT_PLANES, all_planes - at)
        for j in range(n):
            load_fields(p, x, tile, pixel + j, at, planes, &panel[nr + j], nr)
        o = 0
        while o < count:
            height = min(mr, count - o)
            for i in range(height):
                rows[i] = load_taps(
                    p, 9 * ((first + o + i) * all_planes + at), 9 * planes,
                    &taps[i * DIRECT_TAPS],
                )
            p.kernels.f32_gemm[height](
                1, 9 * planes, <const float* const*> rows, &panel[0], 0, sums + o * nr, nr, n,
                sums + o * nr, nr, -INFINITY, INFINITY,
            )
            o += height
        at += planes


cdef void direct_tile(
    const winograd_t* p, char* const* slots, const tile_position_t* tile, float* y,
    const float* residual
) noexcept nogil:
    """Write the outputs of one tile, plus bias and residual, clamped.

    Replaces the kernel's `wino_output`: here each output depends on its own window only.
    """
    cdef float[DIRECT_FILTERS * MAX_NR] sums
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* bias = <const float*> at(slots, p.bias)
    cdef Py_ssize_t nr = p.kernels.nr, n_pixels = tile.rows * tile.columns
    cdef Py_ssize_t first = 0, o, n, count, i, j, pixel
    cdef float value
    while first < n_pixels:
        n, o = min(nr, n_pixels - first), 0
        while o < p.out_channels:
            count = min(DIRECT_FILTERS, p.out_channels - o)
            direct_sums(p, x, tile, first, n, o, count, &sums[0])
            for j in range(n):
                pixel = (first + j) // tile.columns * p.out_w + (first + j) % tile.columns
                for i in range(count):
                    value = sums[i * nr + j] + bias[o + i]
                    if residual != NULL:
                        value += residual[pixel * p.epilogue.ldr + o + i]
                    # This form of the clamp keeps NaN.
                    value = p.epilogue.lo if value < p.epilogue.lo else value
                    value = p.epilogue.hi if value > p.epilogue.hi else value
                    y[pixel * p.ldy + o + i] = value
            o += count
        first += n
