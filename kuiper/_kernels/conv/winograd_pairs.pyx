"""Winograd convolution F(t x t, 3x3) of images in bfloat16 or of bytes, with a stride of 1.

The stages are those of winograd.pyx: transform patches of (t + 2) x (t + 2) pixels to frequencies,
multiply by the filters of each frequency, transform the products back.  Transforms and sums are in
float32; images, transformed patches and transformed filters are in bfloat16.

Blocked, each thread takes a block of tiles through all stages in its own workspace.  Staged, one
step per stage splits the products by frequency.  Both compute the same bits.  A tile with a
non-finite value is computed again by the definition, from filters that are packed for the first
such tile.  Images of bytes have filters small enough that there is none.
"""

import numpy as np

from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint8_t, uint16_t, uintptr_t

from kuiper._kernels.conv.epilogue cimport (
    epilogue_t, is_in_tile, make_epilogue, make_sums_end, residual_bytes_at,
)
from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.micro.packing cimport pack_panel
from kuiper._kernels.micro.table cimport (
    LINE_FLOATS, MAX_TILE_ROWS, PAIRED_VECTORS, bf16_end_fn, byte_prefetch_distance, kernels_t,
    sums_end_t,
)
from kuiper._kernels.simd.bfloat16 cimport bfloat16_t
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start
from kuiper._runtime.thread_pool cimport parallel_for

from kuiper._kernels.micro.packing import n_panels, parts
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import padded_row

cdef extern from "_runtime/work_shares.h" nogil:
    void record_error "kp_record_error"(long long* error_slot, long long value) noexcept
    void publish "kp_publish"(const char** where, const char* address) noexcept
    const char* acquire "kp_acquire"(const char* const* where) noexcept

cdef enum:
    MAX_FREQUENCIES = 36
    MAX_TILE_PIXELS = 16
    END_CHANNELS = 64            # of the outputs that pass through memory at a time
    TAPS = 9


# -- filters -----------------------------------------------------------------------------------

def padded_channels(Py_ssize_t channels):
    """Return the number of transformed channels: whole groups of vectors."""
    group = PAIRED_VECTORS * active().lanes
    return ceil_div(channels, group) * group


def transformed_order(Py_ssize_t channels):
    """Return the channels in the order of transformed ones; what exceeds them is missing."""
    order = np.arange(padded_channels(channels)).reshape(-1, active().lanes, PAIRED_VECTORS)
    return order.swapaxes(1, 2).ravel()


cdef struct filters_t:           # a job: panels to transform
    const kernels_t* kernels
    int tile
    Py_ssize_t channels          # padded
    const float* source          # (columns, 9 * channels)
    Py_ssize_t columns
    float* space                 # per thread: packed taps, and a row of transformed filters
    Py_ssize_t space_size        # in floats
    char* out                    # (frequencies, panels, panel_bytes), from the first panel on
    Py_ssize_t frequency         # distance of frequencies, in bytes
    Py_ssize_t panel_bytes


def transform_filters(weight, int tile, int n_threads, uint16_t[:, :, :, ::1] out):
    """Transform 3x3 filters and pack them into panels of pairs.

    Parameters
    ----------
    weight : array, shape (out_channels, in_channels, 3, 3), float32
        May be an object with a shape whose slices are such arrays.
    tile : int
        Side of a tile, 2 or 4.
    n_threads : int
    out : array, shape (frequencies, panels, rows, nr), uint16
    """
    cdef filters_t job
    cdef float[:, ::1] space
    cdef const float[:, ::1] source
    channels = weight.shape[1]
    order = transformed_order(channels)
    job.kernels, job.tile, job.channels = active(), tile, len(order)
    job.space_size = (1 + TAPS * job.channels + (tile + 2) * (1 + job.channels)) * job.kernels.nr
    space = np.empty((max(n_threads, 1), job.space_size), np.float32)
    job.space = &space[0, 0]
    job.panel_bytes = 2 * out.shape[2] * out.shape[3]
    job.frequency = job.panel_bytes * out.shape[1]
    for rows in parts(weight, n_threads):
        filters = weight[rows].reshape(-1, channels, TAPS)
        padded = np.zeros((len(filters), len(order), TAPS), np.float32)
        padded[:, :channels] = filters
        source = padded[:, order].reshape(len(filters), -1)
        job.source, job.columns = &source[0, 0], source.shape[0]
        job.out = <char*> &out[0, rows.start // job.kernels.nr, 0, 0]
        with nogil:
            parallel_for(transform_panel, &job, ceil_div(job.columns, job.kernels.nr), n_threads)


cdef void transform_panel(void* job, Py_ssize_t panel, Py_ssize_t rank) noexcept nogil:
    cdef filters_t* some = <filters_t*> job
    cdef const kernels_t* kernels = some.kernels
    cdef Py_ssize_t nr = kernels.nr, terms = TAPS * some.channels, no_offset = 0, row, i, j
    cdef Py_ssize_t points = some.tile + 2, apart = (1 + some.channels) * nr
    cdef float* taps = some.space + rank * some.space_size
    cdef float* panels = taps + (1 + terms) * nr
    pack_panel(
        kernels, some.source + panel * nr * terms, terms, 1, &no_offset, terms, 1, NULL,
        min(nr, some.columns - panel * nr), taps,
    )
    for row in range(points):
        kernels.f32_wino_filter[some.tile][1](
            <int> row, some.channels, taps + nr, panels + nr, apart
        )
        for i in range(points):
            for j in range(nr):
                panels[i * apart + j] = 0  # the output transform adds the biases
            kernels.bf16_keep_sums(some.channels, panels + i * apart + nr)
            kernels.bf16_pack(
                1, some.channels, panels + i * apart, NULL, 0,
                some.out + (row * points + i) * some.frequency + panel * some.panel_bytes,
            )


# -- steps -------------------------------------------------------------------------------------

def workspace(int tile, Py_ssize_t tiles, Py_ssize_t in_channels, Py_ssize_t out_channels):
    """Return the distances of frequencies: in the input in bfloat16, in the products in floats.

    Odd numbers of cache lines, as :func:`.winograd.frequency_stride`.
    """
    lines = ceil_div(tiles * row_of(padded_channels(in_channels)), 2 * LINE_FLOATS) | 1
    products = ceil_div(tiles * padded_row(out_channels), LINE_FLOATS) | 1
    return lines * 2 * LINE_FLOATS, products * LINE_FLOATS


cdef Py_ssize_t row_of(Py_ssize_t channels):
    """Return the distance of tiles in the transformed input; rows may not share cache sets."""
    return channels + 2 * LINE_FLOATS if channels % 1024 == 0 else channels


cdef struct wino_pairs_t:
    const kernels_t* kernels
    int tile
    ref_t x                      # (n, in_h, in_w, in_channels), bfloat16 or bytes
    bint is_bytes
    float zero                   # point of bytes
    ref_t weights                # (frequencies, panels, panel_bytes)
    ref_t bias                   # (out_channels,), float32
    ref_t y                      # (n, out_h, out_w, out_channels), bfloat16, float32 or bytes
    ref_t v                      # (frequencies, tiles, padded channels), bfloat16
    ref_t m                      # (frequencies, tiles, out_channels), float32
    ref_t error_slot
    const char* filters          # panels of pairs by the definition, once they are needed
    void* step                   # the step that packs them
    const char* zeros            # (in_channels,): a pixel outside the image
    Py_ssize_t n
    Py_ssize_t in_h
    Py_ssize_t in_w
    Py_ssize_t ldx
    Py_ssize_t out_h
    Py_ssize_t out_w
    Py_ssize_t ldy
    Py_ssize_t y_bytes           # of an element
    Py_ssize_t in_channels
    Py_ssize_t channels          # padded
    Py_ssize_t out_channels
    Py_ssize_t panel_bytes
    Py_ssize_t ldv
    Py_ssize_t ldm
    Py_ssize_t v_stride          # from frequency to frequency, in elements
    Py_ssize_t m_stride
    Py_ssize_t pad_top
    Py_ssize_t pad_left
    Py_ssize_t tiles_h           # of an image
    Py_ssize_t tiles_w
    Py_ssize_t block             # tiles
    int stage                    # -1: all
    epilogue_t epilogue
    sums_end_t end
    bint is_simple               # whether the transform of the output does all of the epilogue


cdef class WinogradPairsStep(Step):
    """3x3 convolution of images in bfloat16, or a stage of it.

    Parameters
    ----------
    stage : int
        -1 for a whole convolution, blocked; 0 transforms the input, 1 multiplies, 2 transforms
        back.
    tile : int
        Side of a tile, 2 or 4.
    x : TensorView, bfloat16 or uint8
        Channels-last.
    weights : TensorView, shape (frequencies, panels, rows, nr)
        Of :func:`transform_filters`.
    filters : object
        The source of `weights`: `weight()` returns them, (out_channels, in_channels, 3, 3), and
        `bias()` their biases or None.  Called for the first tile that is computed by the
        definition.
    bias : TensorView, shape (out_channels,)
    y : TensorView, bfloat16 or float32; or, of bytes, uint8 or float32
        Channels-last.
    error_slot : TensorView
        Per-context state: an error_slot_t.
    v, m : TensorView
        Memory of the frequencies of a block of tiles, see :func:`workspace`: scratch if blocked.
    block : int
        Tiles; all of them if staged.
    padding : (int, int)
        Top and left.
    epilogue : Epilogue or None
    zero : int, default=0
        The byte that stands for 0.  The filters of bytes have their scale, and all sums are finite.
    """

    cdef wino_pairs_t p
    cdef object filters
    cdef object failure

    def __init__(
        self, stage, tile, x, weights, filters, bias, y, error_slot, v, m, block, padding,
        epilogue=None, zero=0,
    ):
        self.p.is_bytes, self.p.zero = x.dtype == np.uint8, zero
        zeros = np.full(x.dtype.itemsize * x.shape[1], zero, np.uint8)
        cdef uint8_t[::1] zero_view = zeros
        self.keep = (zeros,)
        self.filters = filters
        self.p.kernels, self.p.step = active(), <void*> self
        self.p.tile, self.p.stage, self.p.block = tile, stage, block
        self.p.x, self.p.y, self.p.bias = self.ref(x), self.ref(y), self.ref(bias)
        self.p.weights, self.p.v, self.p.m = self.ref(weights), self.ref(v), self.ref(m)
        self.error_slot = self.p.error_slot = self.ref(error_slot)
        self.p.zeros = <const char*> &zero_view[0]
        self.p.n, self.p.in_channels, self.p.in_h, self.p.in_w = x.shape
        _, self.p.out_channels, self.p.out_h, self.p.out_w = y.shape
        self.p.ldx, self.p.ldy, self.p.y_bytes = x.row_stride, y.row_stride, y.dtype.itemsize
        self.p.channels = padded_channels(self.p.in_channels)
        self.p.panel_bytes = 2 * weights.shape[2] * weights.shape[3]
        self.p.ldv, self.p.ldm = row_of(self.p.channels), padded_row(self.p.out_channels)
        self.p.v_stride, self.p.m_stride = workspace(
            tile, block, self.p.in_channels, self.p.out_channels
        )
        self.p.pad_top, self.p.pad_left = padding
        self.p.tiles_h = ceil_div(self.p.out_h, tile)
        self.p.tiles_w = ceil_div(self.p.out_w, tile)
        self.p.epilogue = make_epilogue(self, epilogue)
        self.p.end = make_sums_end(&self.p.epilogue, epilogue, y.dtype == BFLOAT16)
        self.p.is_simple = self.p.end.to_bfloat16 and is_in_tile(&self.p.epilogue) and (
            not self.p.epilogue.has_residual or self.p.end.residual_in_bfloat16
        )
        self.run = wino_pairs_run
        self.params = &self.p
        self._count(x, weights, y)

    cdef _count(self, x, weights, y):
        """Set what the profile shows, and the number of shards."""
        cdef Py_ssize_t tiles = self.p.n * self.p.tiles_h * self.p.tiles_w
        cdef Py_ssize_t points = (self.p.tile + 2) * (self.p.tile + 2)
        forth, back = (288, 208) if self.p.tile == 4 else (32, 36)
        flops = (
            forth * tiles * self.p.in_channels,
            2.0 * points * tiles * self.p.in_channels * self.p.out_channels,
            back * tiles * self.p.out_channels,
        )
        between = 2 * points * tiles * self.p.channels, 4 * points * tiles * self.p.out_channels
        n_bytes = (
            x.n_bytes + between[0], between[0] + weights.n_bytes + between[1],
            between[1] + y.n_bytes,
        )
        names = ("winograd_input", "winograd_gemm", "winograd_output")
        if self.p.stage < 0:
            self.kind, self.flops = "conv_winograd", sum(flops)
            self.bytes = x.n_bytes + weights.n_bytes + y.n_bytes
            self.max_shards = max(ceil_div(tiles, max(self.p.block, 1)), 1)
        else:
            self.kind, self.flops = names[self.p.stage], flops[self.p.stage]
            self.bytes = n_bytes[self.p.stage]
            shards = points * n_panels(self.p.out_channels) if self.p.stage == 1 else tiles
            self.max_shards = max(shards, 1)

    cdef object exception(self, int64_t value):
        return self.failure

    cdef pack_filters(self):
        """Return the filters as panels of pairs."""
        cdef const kernels_t* kernels = self.p.kernels
        cdef Py_ssize_t nr = kernels.nr, channels = self.p.in_channels, start
        cdef Py_ssize_t panels = ceil_div(self.p.out_channels, nr), terms = TAPS * channels, q
        cdef Py_ssize_t depth = 4 * nr * (1 + TAPS * ceil_div(channels, 2))
        cdef Py_ssize_t[TAPS] offsets
        cdef const float[:, ::1] weight = self.filters.weight().reshape(-1, terms)
        given = self.filters.bias()
        cdef const float[::1] bias = (
            np.zeros(self.p.out_channels, np.float32) if given is None
            else np.ascontiguousarray(given)
        )
        cdef float[::1] floats = np.empty((1 + terms) * nr, np.float32)
        cdef uint8_t[::1] out = np.empty(panels * depth, np.uint8)
        for q in range(TAPS):
            offsets[q] = q
        for q in range(panels):
            start = q * nr
            pack_panel(
                kernels, &weight[start, 0], terms, TAPS, offsets, channels, TAPS, &bias[start],
                min(nr, self.p.out_channels - start), &floats[0],
            )
            kernels.bf16_pack(TAPS, channels, &floats[0], NULL, 0, &out[q * depth])
        return np.asarray(out)

    cdef bint read_filters(self) noexcept:
        """Pack the filters for this and all later tiles; return False on failure."""
        try:
            array = self.pack_filters()
            self.keep = (*self.keep, array)
            publish(&self.p.filters, <const char*> <uintptr_t> array.ctypes.data)
        except BaseException as error:
            self.failure = error.with_traceback(None)
            return False
        return True


cdef struct position_t:
    Py_ssize_t image
    Py_ssize_t h                 # row and column of the first output
    Py_ssize_t w
    Py_ssize_t rows              # outputs inside the image
    Py_ssize_t columns


cdef inline position_t position_of(const wino_pairs_t* p, Py_ssize_t tile) noexcept nogil:
    cdef position_t position
    position.image = tile // (p.tiles_h * p.tiles_w)
    position.h = tile // p.tiles_w % p.tiles_h * p.tile
    position.w = tile % p.tiles_w * p.tile
    position.rows = min(p.tile, p.out_h - position.h)
    position.columns = min(p.tile, p.out_w - position.w)
    return position


cdef void transform_input(
    const wino_pairs_t* p, char* const* slots, Py_ssize_t tile, bfloat16_t* v
) noexcept nogil:
    """Write the frequencies of one tile, all channels, to v[f * v_stride + c]."""
    cdef const char* x = at(slots, p.x)
    cdef const char* row
    cdef (const char*)[MAX_FREQUENCIES] pixels
    cdef position_t position = position_of(p, tile)
    cdef Py_ssize_t ldx = p.ldx * (sizeof(uint8_t) if p.is_bytes else sizeof(bfloat16_t))
    cdef Py_ssize_t patch = p.tile + 2, i, j, h, w
    for i in range(patch):
        h = position.h - p.pad_top + i
        row = x + ((position.image * p.in_h + h) * p.in_w + position.w - p.pad_left) * ldx
        for j in range(patch):
            w = position.w - p.pad_left + j
            if 0 <= h < p.in_h and 0 <= w < p.in_w:
                pixels[patch * i + j] = row + j * ldx
            else:
                pixels[patch * i + j] = p.zeros
    if p.is_bytes:
        p.kernels.u8_wino_input[p.tile](
            p.in_channels, <const uint8_t* const*> pixels, p.zero, v, p.v_stride
        )
    else:
        p.kernels.bf16_wino_input[p.tile](
            p.in_channels, <const bfloat16_t* const*> pixels, v, p.v_stride
        )


cdef void multiply(
    const wino_pairs_t* p, char* const* slots, Py_ssize_t f, Py_ssize_t panel, Py_ssize_t tiles,
    const bfloat16_t* v, float* m,
) noexcept nogil:
    """Multiply all tiles by one panel of the filters of one frequency."""
    cdef const kernels_t* kernels = p.kernels
    cdef (const bfloat16_t*)[MAX_TILE_ROWS] rows
    cdef Py_ssize_t nr = kernels.nr, panels = ceil_div(p.out_channels, nr), g, i, start, height
    cdef Py_ssize_t groups = ceil_div(tiles, kernels.pair_mr)
    cdef const char* weights = at(slots, p.weights) + (f * panels + panel) * p.panel_bytes
    v += f * p.v_stride
    m += f * p.m_stride + panel * nr
    for g in range(groups):
        start = g * tiles // groups
        height = (g + 1) * tiles // groups - start
        for i in range(height):
            rows[i] = v + (start + i) * p.ldv
        kernels.bf16_gemm[height](
            1, p.channels, <const bfloat16_t* const*> rows, weights,
            byte_prefetch_distance(g, p.panel_bytes, nr), m + start * p.ldm, p.ldm,
            min(nr, p.out_channels - panel * nr), NULL, 0, NULL,
        )


cdef bint transform_through_memory(
    const wino_pairs_t* p, char* const* slots, const position_t* position, Py_ssize_t pixel,
    const float* m,
) noexcept nogil:
    """Transform the products of one tile and apply any epilogue; return whether all are finite."""
    cdef float[MAX_TILE_PIXELS * END_CHANNELS] outputs
    cdef const float* bias = <const float*> at(slots, p.bias)
    cdef Py_ssize_t first = 0, count, column, i, ldr = p.epilogue.ldr
    cdef bint is_finite = True
    cdef bf16_end_fn end = p.kernels.f32_end if p.is_bytes else p.kernels.bf16_end
    while first < p.out_channels:
        count = min(<Py_ssize_t> END_CHANNELS, p.out_channels - first)
        column = ceil_div(count, p.kernels.lanes) * p.kernels.lanes
        is_finite &= p.kernels.f32_wino_output[p.tile][1](
            count, m + first, p.m_stride, bias + first, &outputs[0], p.tile * column, column,
            p.tile, p.tile, NULL, 0, 0, -INFINITY, INFINITY, False,
        )
        for i in range(position.rows):
            end(
                position.columns, &outputs[i * p.tile * column],
                at(slots, p.y) + ((pixel + i * p.out_w) * p.ldy + first) * p.y_bytes, p.ldy, count,
                residual_bytes_at(&p.epilogue, &p.end, slots, (pixel + i * p.out_w) * ldr + first),
                ldr, &p.end,
            )
        first += count
    return is_finite


cdef void transform_output(
    const wino_pairs_t* p, char* const* slots, Py_ssize_t tile, const float* m
) noexcept nogil:
    """Write the outputs of one tile from its products m[f * m_stride]."""
    cdef position_t position = position_of(p, tile)
    cdef Py_ssize_t pixel = (position.image * p.out_h + position.h) * p.out_w + position.w
    cdef Py_ssize_t ldr = p.epilogue.ldr
    cdef bint is_finite
    if p.is_simple:
        is_finite = p.kernels.bf16_wino_output[p.tile](
            p.out_channels, m, p.m_stride, <const float*> at(slots, p.bias),
            <bfloat16_t*> at(slots, p.y) + pixel * p.ldy, p.out_w * p.ldy, p.ldy, position.rows,
            position.columns,
            <const bfloat16_t*> residual_bytes_at(&p.epilogue, &p.end, slots, pixel * ldr),
            p.out_w * ldr, ldr, p.epilogue.lo, p.epilogue.hi,
        )
    else:
        is_finite = transform_through_memory(p, slots, &position, pixel, m)
    if not is_finite and not p.is_bytes and has_filters(p, slots):
        direct_tile(p, slots, &position, pixel)


cdef bint has_filters(const wino_pairs_t* p, char* const* slots) noexcept nogil:
    """Tell whether the filters are packed; pack them if not."""
    cdef bint are_there = acquire(&p.filters) != NULL
    if not are_there:
        with gil:
            are_there = (<WinogradPairsStep> p.step).read_filters()
        if not are_there:
            record_error(<long long*> at(slots, p.error_slot), 0)
    return are_there


cdef void direct_tile(
    const wino_pairs_t* p, char* const* slots, const position_t* tile, Py_ssize_t pixel
) noexcept nogil:
    """Write the outputs of one tile by the definition: each depends on its own window only."""
    cdef const kernels_t* kernels = p.kernels
    cdef const bfloat16_t* x = <const bfloat16_t*> at(slots, p.x)
    cdef (const bfloat16_t*)[TAPS] rows
    cdef Py_ssize_t nr = kernels.nr, panel, n, i, j, tap, h, w, out
    cdef Py_ssize_t depth = 4 * nr * (1 + TAPS * ceil_div(p.in_channels, 2))
    for i in range(tile.rows):
        for j in range(tile.columns):
            for tap in range(TAPS):
                h = tile.h + i - p.pad_top + tap // 3
                w = tile.w + j - p.pad_left + tap % 3
                rows[tap] = <const bfloat16_t*> p.zeros
                if 0 <= h < p.in_h and 0 <= w < p.in_w:
                    rows[tap] = x + ((tile.image * p.in_h + h) * p.in_w + w) * p.ldx
            out = pixel + i * p.out_w + j
            for panel in range(ceil_div(p.out_channels, nr)):
                n = min(nr, p.out_channels - panel * nr)
                kernels.bf16_gemm[1](
                    TAPS, p.in_channels, <const bfloat16_t* const*> rows,
                    p.filters + panel * depth, 0,
                    at(slots, p.y) + (out * p.ldy + panel * nr) * p.y_bytes, p.ldy, n,
                    residual_bytes_at(
                        &p.epilogue, &p.end, slots, out * p.epilogue.ldr + panel * nr
                    ),
                    p.epilogue.ldr, &p.end,
                )


cdef void wino_pairs_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Convolve images in bfloat16 by 3x3 filters and apply the epilogue.

    Layout : x (n, h, w, ic) -> y (n, oh, ow, oc), any row strides
    Needs  : filters packed for the table's tile
    Threads: over blocks of tiles; staged over tiles, or frequencies x panels
    Source : Lavin, Gray (2015), algorithm 1
    """
    cdef const wino_pairs_t* p = <const wino_pairs_t*> params
    cdef bfloat16_t* v = <bfloat16_t*> at(slots, p.v)
    cdef float* m = <float*> at(slots, p.m)
    cdef Py_ssize_t tiles = p.n * p.tiles_h * p.tiles_w, blocks = ceil_div(tiles, p.block)
    cdef Py_ssize_t panels = ceil_div(p.out_channels, p.kernels.nr)
    cdef Py_ssize_t products = (p.tile + 2) * (p.tile + 2) * panels, b, t, q, first, count
    if p.stage == 1:
        for q in range(
            shard_start(products, shard, n_shards), shard_start(products, shard + 1, n_shards)
        ):
            multiply(p, slots, q // panels, q % panels, tiles, v, m)
        return
    if p.stage >= 0:
        for t in range(
            shard_start(tiles, shard, n_shards), shard_start(tiles, shard + 1, n_shards)
        ):
            if p.stage == 0:
                transform_input(p, slots, t, v + t * p.ldv)
            else:
                transform_output(p, slots, t, m + t * p.ldm)
        return
    for b in range(shard_start(blocks, shard, n_shards), shard_start(blocks, shard + 1, n_shards)):
        first = b * tiles // blocks
        count = (b + 1) * tiles // blocks - first
        for t in range(count):
            transform_input(p, slots, first + t, v + t * p.ldv)
        for q in range(products):
            multiply(p, slots, q // panels, q % panels, count, v, m)
        for t in range(count):
            transform_output(p, slots, first + t, m + t * p.ldm)
