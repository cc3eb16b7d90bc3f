# The ceiling of arithmetic: multiply-adds in registers, without memory.

cdef enum:
    # Independent sums, 3 per 4 registers: a core that starts two (four of NEON) multiply-adds per
    # cycle, each of which takes four or five cycles, needs ten (sixteen) of them.
    CEILING_ROWS = REGISTERS // 4
    CEILING_COLUMNS = 3


cdef double f32_multiply_adds(Py_ssize_t rounds, float* sink) noexcept nogil:
    cdef vf32[CEILING_ROWS][CEILING_COLUMNS] sums
    cdef vf32 half = splat(0.5), one = splat(1.0), total = splat(0.0)
    cdef Py_ssize_t k
    cdef int i, j
    for i in range(CEILING_ROWS):
        for j in range(CEILING_COLUMNS):
            sums[i][j] = splat(sink[0] + <float> (CEILING_COLUMNS * i + j))
    for k in range(rounds):
        for i in range(CEILING_ROWS):
            for j in range(CEILING_COLUMNS):
                sums[i][j] = sums[i][j] * half + one  # approaches 2: no denormal, no infinity
    for i in range(CEILING_ROWS):
        for j in range(CEILING_COLUMNS):
            total += sums[i][j]
    sink[0] = reduce_add(total)
    return 2.0 * LANES * CEILING_ROWS * CEILING_COLUMNS * rounds


cdef void fill_ceiling(kernels_t* k) noexcept:
    k.f32_multiply_adds = f32_multiply_adds
