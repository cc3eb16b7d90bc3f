# Convolutions of few channels per group: a vector of outputs spans several groups.
#
# An output channel is a sum over the `terms` channels of its group.  The channels of all groups in
# a vector of outputs are adjacent in the input and fit one vector; a permutation of it moves term j
# of each output to the output's lane, so all lanes multiply.  A panel of the GEMM would use only as
# many columns as one group has outputs.

from kuiper._kernels.micro.table cimport GROUPED_PIXELS


cdef inline void grouped_block(
    Py_ssize_t taps, Py_ssize_t terms, const float* const* pixels, Py_ssize_t offset, long span,
    const float* input_lanes, const float* weights, int first, float* y, Py_ssize_t ldy,
    Py_ssize_t n, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    cdef vf32[GROUPED_PIXELS][NV] acc
    cdef vf32[GROUPED_PIXELS] x
    cdef vf32 weight
    cdef vi32 lane
    cdef Py_ssize_t t, j
    cdef int i
    tile_start(GROUPED_PIXELS, 1, acc, weights)
    weights += LANES
    for t in range(taps):
        for i in range(GROUPED_PIXELS):
            x[i] = load_first(pixels[i] + offset, span)
        pixels += GROUPED_PIXELS
        for j in range(terms):
            lane = bits(load(input_lanes + j * LANES))
            weight = load(weights)
            weights += LANES
            for i in range(GROUPED_PIXELS):
                acc[i][0] += permute(x[i], lane) * weight
    tile_end(GROUPED_PIXELS, 1, acc, first, y, ldy, n, residual, ldr, lo, hi)


cdef void f32_grouped(
    Py_ssize_t taps, Py_ssize_t terms, Py_ssize_t per_group, Py_ssize_t channels,
    const float* const* pixels, const float* input_lanes, const float* weights, int first, float* y,
    Py_ssize_t ldy, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil:
    cdef Py_ssize_t o = 0, n, offset = 0
    cdef long span
    while o < channels:
        n = least(LANES, channels - o)
        span = n // per_group * terms
        if span == LANES:
            grouped_block(
                taps, terms, pixels, offset, LANES, input_lanes, weights, first, y + o, ldy, n,
                residual + o if residual != NULL else NULL, ldr, lo, hi,
            )
        else:
            grouped_block(
                taps, terms, pixels, offset, rest_of(span), input_lanes, weights, first, y + o,
                ldy, n, residual + o if residual != NULL else NULL, ldr, lo, hi,
            )
        weights += (1 + taps * terms) * LANES
        offset += span
        o += LANES


cdef void fill_grouped(kernels_t* k) noexcept:
    k.f32_grouped = NULL
    if PERMUTES:
        k.f32_grouped = f32_grouped
