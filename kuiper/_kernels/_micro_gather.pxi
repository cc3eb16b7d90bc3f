# Copies the receptive field of one output pixel side by side.


cdef void gather(
    Py_ssize_t n_runs, Py_ssize_t length, const float* origin, const Py_ssize_t* offsets,
    Py_ssize_t offset_stride, float* field,
) noexcept nogil:
    cdef Py_ssize_t r, j
    cdef const float* source
    if length <= LANES:
        for r in range(n_runs):
            source = origin + offsets[r * offset_stride]
            if length == LANES:
                store(field, load(source))
            else:
                store_n(field, load_n(source, length), length)
            field += length
        return
    for r in range(n_runs):
        source = origin + offsets[r * offset_stride]
        j = 0
        while j + LANES <= length:
            store(field + j, load(source + j))
            j += LANES
        if j < length:
            store_n(field + j, load_n(source + j, length - j), length - j)
        field += length


cdef void fill_gather(kernels_t* k) noexcept:
    k.gather = gather
