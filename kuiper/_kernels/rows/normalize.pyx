"""Normalisation by statistics of the input: layer, RMS, group, instance and local response norm."""

from libc.math cimport sqrtf

from kuiper._kernels.micro.dispatch cimport active
from kuiper._runtime.step cimport Step, at, at_or_null, ceil_div, ref_t, shard_start
from kuiper._kernels.micro.narrow cimport round_rows, rows_together, widen_rows
from kuiper._kernels.micro.table cimport REDUCE_DEVIATIONS, REDUCE_SUM, kernels_t
from kuiper._kernels.simd.bfloat16 cimport bfloat16_t

from kuiper.ir.dtypes import BFLOAT16

cdef enum:
    SHARD_TERMS = 4096  # fewest elements of a shard that are worth a thread
    SHARDS_WANTED = 8   # of a group norm
    BLOCK_PIXELS = 128  # of a group norm: a chunk of their channels stays in the cache


cdef struct layer_norm_t:
    const kernels_t* kernels
    ref_t x
    ref_t y
    ref_t weight
    ref_t bias
    bint centred
    float eps
    Py_ssize_t rows
    Py_ssize_t n            # elements of a row
    Py_ssize_t x_row        # row strides, in elements
    Py_ssize_t y_row
    ref_t line              # rows of floats, if x or y is in bfloat16
    Py_ssize_t together     # their number
    bint from_bfloat16
    bint to_bfloat16


cdef class LayerNormStep(Step):
    """Normalises rows: y = (x - mean) / sqrt(variance + eps) * weight + bias.

    Parameters
    ----------
    x, y : TensorView, shape (rows, n), float32 or bfloat16
        Elements of a row are adjacent.  y may be x.
    weight, bias : TensorView or None, shape (n,)
    eps : float
    centred : bool, default=True
        Whether to subtract the mean; if not, the variance is the mean square (RMS norm).
    line : TensorView, optional
        Scratch memory of :func:`narrow_rows_bytes`, if x or y is in bfloat16.
    """

    cdef layer_norm_t p

    def __init__(self, x, y, weight, bias, eps, centred=True, line=None):
        self.p.kernels = active()
        self.p.x, self.p.y = self.ref(x), self.ref(y)
        self.p.weight, self.p.bias = self.ref(weight), self.ref(bias)
        self.p.eps, self.p.centred = eps, centred
        self.p.rows, self.p.n = x.shape
        self.p.x_row, self.p.y_row = x.strides[0], y.strides[0]
        self.p.line, self.p.together = self.ref(line), rows_together(self.p.n)
        self.p.from_bfloat16, self.p.to_bfloat16 = x.dtype == BFLOAT16, y.dtype == BFLOAT16
        self.run = layer_norm_run if line is None else layer_norm_narrow_run
        self.params = &self.p
        self.max_shards = max(min(self.p.rows, x.size // SHARD_TERMS), 1)
        self.kind = "layer_norm" if centred else "rms_norm"
        self.flops = 8.0 * x.size
        self.bytes = float(x.n_bytes + y.n_bytes)


def narrow_rows_bytes(Py_ssize_t n):
    """Return the bytes of scratch for rows of n elements in bfloat16."""
    return 4 * n * rows_together(n)


cdef void layer_norm_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Each row in three passes over the cache: mean, mean squared deviation, result.

    Layout : x (rows, n) -> y (rows, n), any row stride
    Needs  : n > 0; x and y identical or disjoint
    Threads: over rows; no sum is split
    Source : torch.nn.LayerNorm, RMSNorm
    """
    cdef const layer_norm_t* p = <const layer_norm_t*> params
    cdef Py_ssize_t start = shard_start(p.rows, shard, n_shards)
    p.kernels.f32_layer_norm_rows(
        p.centred,
        <const float*> at(slots, p.x) + start * p.x_row, p.x_row,
        <float*> at(slots, p.y) + start * p.y_row, p.y_row,
        shard_start(p.rows, shard + 1, n_shards) - start, p.n,
        <const float*> at_or_null(slots, p.weight), <const float*> at_or_null(slots, p.bias), p.eps,
    )


cdef void layer_norm_narrow_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """The same, of rows that are widened before or rounded afterwards, in the cache.

    Layout : x (rows, n) -> y (rows, n), any row stride
    Needs  : n > 0; x and y identical or disjoint
    Threads: over rows; no sum is split
    Source : torch.nn.LayerNorm, RMSNorm
    """
    cdef const layer_norm_t* p = <const layer_norm_t*> params
    cdef float* lines = <float*> at(slots, p.line)
    cdef Py_ssize_t row = shard_start(p.rows, shard, n_shards), count
    cdef Py_ssize_t stop = shard_start(p.rows, shard + 1, n_shards)
    while row < stop:
        count = min(p.together, stop - row)
        if p.from_bfloat16:
            widen_rows(
                p.kernels, <const bfloat16_t*> at(slots, p.x) + row * p.x_row, p.x_row, count, p.n,
                lines,
            )
        p.kernels.f32_layer_norm_rows(
            p.centred,
            lines if p.from_bfloat16 else <const float*> at(slots, p.x) + row * p.x_row,
            p.n if p.from_bfloat16 else p.x_row,
            lines if p.to_bfloat16 else <float*> at(slots, p.y) + row * p.y_row,
            p.n if p.to_bfloat16 else p.y_row,
            count, p.n, <const float*> at_or_null(slots, p.weight),
            <const float*> at_or_null(slots, p.bias), p.eps,
        )
        if p.to_bfloat16:
            round_rows(
                p.kernels, lines, count, p.n, <bfloat16_t*> at(slots, p.y) + row * p.y_row, p.y_row
            )
        row += count


cdef struct group_norm_t:
    const kernels_t* kernels
    ref_t x
    ref_t y
    ref_t weight
    ref_t bias
    ref_t scratch
    float eps
    Py_ssize_t batch
    Py_ssize_t channels
    Py_ssize_t pixels           # of an image
    Py_ssize_t per_group        # channels of a group
    Py_ssize_t block            # channels of a work item, whole groups
    Py_ssize_t n_blocks
    Py_ssize_t ldx              # pixel strides, in elements; channels-last only
    Py_ssize_t ldy


cdef class GroupNormStep(Step):
    """Normalises each group of channels of an image by its mean and variance.

    Parameters
    ----------
    x, y : TensorView, shape (n, c, h, w)
        Both channels-last, or both in C order.  y may be x.
    weight, bias : TensorView or None, shape (c,)
    groups : int
        1 normalises whole images; c normalises single channels (instance norm).
    eps : float
    scratch : TensorView
        4 floats per channel.
    """

    cdef group_norm_t p

    def __init__(self, x, y, weight, bias, groups, eps, scratch):
        cdef Py_ssize_t n_groups = groups, wanted
        self.p.kernels = active()
        self.p.x, self.p.y, self.p.scratch = self.ref(x), self.ref(y), self.ref(scratch)
        self.p.weight, self.p.bias = self.ref(weight), self.ref(bias)
        self.p.eps = eps
        self.p.batch, self.p.channels = x.shape[0], x.shape[1]
        self.p.pixels = x.shape[2] * x.shape[3]
        self.p.per_group = self.p.channels // n_groups
        self.params = &self.p
        if x.is_channels_last:
            self.p.ldx, self.p.ldy = x.row_stride, y.row_stride
            # Whole groups of 1 to 4 vectors of channels, few enough for SHARDS_WANTED shards.
            wanted = ceil_div(self.p.batch * self.p.channels, SHARDS_WANTED)
            wanted = min(max(wanted, active().lanes), 4 * active().lanes)
            self.p.block = self.p.per_group * ceil_div(wanted, self.p.per_group)
            self.p.n_blocks = ceil_div(self.p.channels, self.p.block)
            self.run = group_norm_channels_last_run
            self.max_shards = max(self.p.batch * self.p.n_blocks, 1)
        else:
            self.run = group_norm_planar_run
            self.max_shards = max(self.p.batch * n_groups, 1)
        self.kind = "group_norm"
        self.flops = 8.0 * x.size
        self.bytes = 2.0 * x.n_bytes + y.n_bytes


cdef void group_norm_channels_last_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Mean and variance of each channel, combined per group, then the pixels.

    Layout : x (n, h, w, c) -> y (n, h, w, c), any pixel stride
    Needs  : groups divide the channels; x and y identical or disjoint
    Threads: over images x blocks of channels that hold whole groups; no sum is split
    Source : torch.nn.GroupNorm, InstanceNorm2d
    """
    cdef const group_norm_t* p = <const group_norm_t*> params
    cdef Py_ssize_t items = p.batch * p.n_blocks, item, first, count, c, offset, pixel, pixels
    cdef float* mean = <float*> at(slots, p.scratch)
    cdef float* square = mean + p.channels
    cdef float* block_mean = square + p.channels
    cdef float* block_square = block_mean + p.channels
    cdef float* factor = block_mean
    cdef float* shift = block_square
    cdef const float* weight = <const float*> at_or_null(slots, p.weight)
    cdef const float* bias = <const float*> at_or_null(slots, p.bias)
    cdef const float* x
    cdef float deviation
    for item in range(shard_start(items, shard, n_shards), shard_start(items, shard + 1, n_shards)):
        first = item % p.n_blocks * p.block
        count = min(p.block, p.channels - first)
        offset = item // p.n_blocks * p.pixels
        x = <const float*> at(slots, p.x) + offset * p.ldx + first
        # Blocks of pixels stay in the cache for both passes.  Their means and squares are combined
        # as by Chan, Golub and LeVeque (The American Statistician 37, 1983).
        pixel = 0
        while pixel < p.pixels:
            pixels = min(BLOCK_PIXELS, p.pixels - pixel)
            p.kernels.f32_reduce_columns(
                REDUCE_SUM, x + pixel * p.ldx, p.ldx, pixels, count, NULL, block_mean
            )
            for c in range(count):
                block_mean[c] /= <float> pixels
            p.kernels.f32_reduce_columns(
                REDUCE_DEVIATIONS, x + pixel * p.ldx, p.ldx, pixels, count, block_mean,
                block_square,
            )
            for c in range(count):
                if pixel == 0:
                    mean[c], square[c] = block_mean[c], block_square[c]
                    continue
                deviation = block_mean[c] - mean[c]
                mean[c] += deviation * (<float> pixels / <float> (pixel + pixels))
                square[c] += block_square[c] + deviation * deviation * (
                    <float> pixel * (<float> pixels / <float> (pixel + pixels))
                )
            pixel += pixels
        join_groups(mean, square, count, p.per_group, p.pixels)
        for c in range(count):
            factor[c] = 1 / sqrtf(square[c] + p.eps)
            if weight != NULL:
                factor[c] *= weight[first + c]
            shift[c] = bias[first + c] if bias != NULL else 0
        p.kernels.f32_normalize_columns(
            x, p.ldx, <float*> at(slots, p.y) + offset * p.ldy + first, p.ldy,
            p.pixels, count, mean, factor, shift,
        )


cdef inline void join_groups(
    float* mean, float* square, Py_ssize_t channels, Py_ssize_t per_group, Py_ssize_t pixels
) noexcept nogil:
    """Turn means and sums of squared differences of channels into means and variances of groups."""
    cdef Py_ssize_t start = 0, c
    cdef double centre, total, difference
    while start < channels:
        centre = total = 0
        for c in range(start, start + per_group):
            centre += mean[c]
        centre /= per_group
        for c in range(start, start + per_group):
            difference = mean[c] - centre
            total += square[c] + difference * difference * pixels
        total /= <double> (per_group * pixels)
        for c in range(start, start + per_group):
            mean[c] = <float> centre
            square[c] = <float> total
        start += per_group


cdef void group_norm_planar_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Mean and variance of each group, which is contiguous, then its channels.

    Layout : x (n, c, h, w) -> y (n, c, h, w), C order
    Needs  : groups divide the channels; x and y identical or disjoint
    Threads: over images x groups; no sum is split
    Source : torch.nn.GroupNorm, InstanceNorm2d
    """
    cdef const group_norm_t* p = <const group_norm_t*> params
    cdef Py_ssize_t items = p.batch * p.channels // p.per_group, item, c, channel
    cdef Py_ssize_t terms = p.per_group * p.pixels
    cdef const float* weight = <const float*> at_or_null(slots, p.weight)
    cdef const float* bias = <const float*> at_or_null(slots, p.bias)
    cdef const float* x
    cdef float* y
    cdef float mean, square, factor
    for item in range(shard_start(items, shard, n_shards), shard_start(items, shard + 1, n_shards)):
        x = <const float*> at(slots, p.x) + item * terms
        y = <float*> at(slots, p.y) + item * terms
        p.kernels.f32_reduce_rows(REDUCE_SUM, x, 0, 1, terms, NULL, &mean)
        mean /= <float> terms
        p.kernels.f32_reduce_rows(REDUCE_DEVIATIONS, x, 0, 1, terms, &mean, &square)
        for c in range(p.per_group):
            channel = item * p.per_group % p.channels + c
            factor = 1 / sqrtf(square / <float> terms + p.eps)
            if weight != NULL:
                factor *= weight[channel]
            p.kernels.f32_normalize_flat(
                x + c * p.pixels, y + c * p.pixels, p.pixels, mean, factor,
                bias[channel] if bias != NULL else 0,
            )


cdef struct local_response_norm_t:
    const kernels_t* kernels
    ref_t x
    ref_t y
    ref_t scratch
    Py_ssize_t rows             # pixels
    Py_ssize_t channels
    Py_ssize_t size             # channels of a window
    Py_ssize_t ldx              # pixel strides, in elements
    Py_ssize_t ldy
    float alpha                 # divided by size
    float beta
    float k


cdef class LocalResponseNormStep(Step):
    """y[c] = x[c] / (k + alpha / size * sum_i x[i]^2)^beta over the `size` channels i around c.

    Parameters
    ----------
    x, y : TensorView, shape (n, c, h, w), channels-last
        y may be x.
    size : int
    alpha, beta, k : float
    scratch : TensorView
        :func:`local_response_scratch` bytes.
    """

    cdef local_response_norm_t p

    def __init__(self, x, y, size, alpha, beta, k, scratch):
        self.p.kernels = active()
        self.p.x, self.p.y, self.p.scratch = self.ref(x), self.ref(y), self.ref(scratch)
        self.p.channels = x.shape[1]
        self.p.rows = x.shape[0] * x.shape[2] * x.shape[3]
        self.p.ldx, self.p.ldy = x.row_stride, y.row_stride
        self.p.size = size
        # The mean counts the missing channels at the borders, too.
        self.p.alpha, self.p.beta, self.p.k = alpha / size, beta, k
        self.run = local_response_norm_run
        self.params = &self.p
        self.max_shards = max(min(self.p.rows, x.size // SHARD_TERMS), 1)
        self.kind = "local_response_norm"
        self.flops = (40.0 + size) * x.size
        self.bytes = float(x.n_bytes + y.n_bytes)


def local_response_scratch(channels, size):
    """Return the bytes of scratch that a :class:`LocalResponseNormStep` needs."""
    return 4 * (channels + active().lanes + size)


cdef void local_response_norm_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Each channel divided by a power of the mean square of the channels around it.

    Layout : x (n, h, w, c) -> y (n, h, w, c), any pixel stride
    Needs  : x and y identical or disjoint
    Threads: over pixels; no shared writes
    Source : torch.nn.LocalResponseNorm
    """
    cdef const local_response_norm_t* p = <const local_response_norm_t*> params
    cdef Py_ssize_t row
    for row in range(
        shard_start(p.rows, shard, n_shards), shard_start(p.rows, shard + 1, n_shards)
    ):
        p.kernels.f32_local_response_norm(
            <const float*> at(slots, p.x) + row * p.ldx,
            <float*> at(slots, p.y) + row * p.ldy,
            p.channels, p.size, p.alpha, p.beta, p.k, <float*> at(slots, p.scratch),
        )
