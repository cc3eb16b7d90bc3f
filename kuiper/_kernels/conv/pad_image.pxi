# Images of few channels in narrow elements, with a border of zeros: a row of a filter is then a run
# of adjacent numbers, whichever pixel it starts at.

cdef struct pad_image_t:
    const kernels_t* kernels
    ref_t x                      # (n, c, in_h, in_w), float32 or bytes
    ref_t y                      # (n, out_h, out_w, c), bfloat16 or bytes
    ref_t scratch                # (channels, in_w), bfloat16
    bint is_bytes
    int zero                     # byte of the border
    Py_ssize_t n
    Py_ssize_t channels
    Py_ssize_t in_h
    Py_ssize_t out_h
    Py_ssize_t out_w
    Py_ssize_t top
    Py_ssize_t left
    Py_ssize_t columns           # of the input that lie in y
    Py_ssize_t image_stride      # of x, in elements
    Py_ssize_t channel_stride
    Py_ssize_t row_stride
    bint is_planar               # rows of one channel are contiguous; else pixels are


cdef class PadImageStep(Step):
    """Surrounds images of few channels with zeros, and rounds floats to bfloat16.

    Parameters
    ----------
    x : TensorView, shape (n, c, h, w), float32 or uint8
        Gapless pixels; or, of float32, contiguous rows of each channel.
    y : TensorView, shape (n, c, out_h, out_w), bfloat16 or uint8
        Channels-last, gapless.
    origin : (int, int)
        Row and column of y of the first pixel of x; what does not fit is left out.
    scratch : TensorView
        :func:`pad_image_scratch_bytes` for each thread.
    zero : int, default=0
        The byte that stands for 0.
    """

    cdef pad_image_t p

    def __init__(self, x, y, origin, scratch, zero=0):
        self.p.kernels = active()
        self.p.is_bytes, self.p.zero = x.dtype == np.uint8, zero
        self.p.x, self.p.y, self.p.scratch = self.ref(x), self.ref(y), self.ref(scratch)
        self.p.n, self.p.channels, self.p.in_h, in_w = x.shape
        _, _, self.p.out_h, self.p.out_w = y.shape
        self.p.top, self.p.left = origin
        self.p.columns = max(min(in_w, self.p.out_w - self.p.left), 0)
        self.p.image_stride, self.p.channel_stride, self.p.row_stride, column = x.strides
        self.p.is_planar = column == 1
        self.run = pad_image_run
        self.params = &self.p
        self.kind = "pad_image"
        self.bytes = x.n_bytes + y.n_bytes
        self.max_shards = max(self.p.n * self.p.out_h // 16, 1)


def pad_image_scratch_bytes(x):
    """Return the bytes of scratch per thread."""
    return 2 * x.shape[1] * x.shape[3]


cdef void pad_image_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Round images and surround them with zeros.

    Layout : x (n, c, h, w) or (n, h, w, c) -> y (n, oh, ow, c)
    Needs  : gapless pixels, or of floats contiguous rows of a channel
    Threads: over rows of y
    Source : none
    """
    cdef const pad_image_t* p = <const pad_image_t*> params
    cdef Py_ssize_t rows = p.n * p.out_h, length = p.out_w * p.channels, row, h, c
    cdef Py_ssize_t start = p.left * p.channels, stop = start + p.columns * p.channels
    cdef Py_ssize_t size = sizeof(uint8_t) if p.is_bytes else sizeof(bfloat16_t)
    cdef const float* x
    cdef char* y
    cdef bfloat16_t* lines = <bfloat16_t*> at(slots, p.scratch)
    for row in range(shard_start(rows, shard, n_shards), shard_start(rows, shard + 1, n_shards)):
        y = at(slots, p.y) + row * length * size
        h = row % p.out_h - p.top
        if h < 0 or h >= p.in_h or p.columns == 0:
            memset(y, p.zero, length * size)
            continue
        memset(y, p.zero, start * size)
        memset(y + stop * size, p.zero, (length - stop) * size)
        h = row // p.out_h * p.image_stride + h * p.row_stride
        if p.is_bytes:
            memcpy(y + start, at(slots, p.x) + h, stop - start)
            continue
        x = <const float*> at(slots, p.x) + h
        if not p.is_planar:
            p.kernels.f32_to_bf16(stop - start, x, <bfloat16_t*> y + start)
            continue
        for c in range(p.channels):
            p.kernels.f32_to_bf16(p.columns, x + c * p.channel_stride, lines + c * p.columns)
        if p.channels == 3:
            interleave(3, p.columns, lines, <bfloat16_t*> y + start)
        else:
            interleave(p.channels, p.columns, lines, <bfloat16_t*> y + start)


cdef inline void interleave(
    Py_ssize_t channels, Py_ssize_t columns, const bfloat16_t* lines, bfloat16_t* y
) noexcept nogil:
    """y[j * channels + c] = lines[c * columns + j]"""
    cdef Py_ssize_t j, c
    for j in range(columns):
        for c in range(channels):
            y[j * channels + c] = lines[c * columns + j]
