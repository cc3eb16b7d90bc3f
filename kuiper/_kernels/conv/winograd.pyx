"""Winograd convolution F(t x t, 3x3), which needs fewer multiplications than the definition.

A tile is t x t outputs:

==  ======  ==========================  ================
t   stride  multiplications, relative   weights, relative
==  ======  ==========================  ================
4   1       1/4                         4
2   1       4/9                         16/9
4   2       9/16                        4
==  ======  ==========================  ================

micro/winograd_strided.pxi has the transforms for a stride of 2.

Three stages: transform input patches of (t + 2) x (t + 2) pixels, (2 t + 1) x (2 t + 1) with a
stride of 2, to as many frequencies; multiply (tiles, channels) by (channels, filters) for each
frequency; transform the products back.

A volume is a sequence of planes.  Its filters have 3x3 taps per plane of the kernel, and the matrix
product has kernel_d times the terms.  A *stack* is the tiles at one (h, w) in all planes of a
volume, and is processed as a whole; a stack of an image is one tile.

If tiles do not divide the plane, those at its right and bottom edges need fewer frequencies.  Tiles
are numbered so that the tiles that need a frequency form one range: right edge, inner tiles, bottom
edge, corner.  Frequencies that the bottom edge does not need end before it; those that the right
edge does not need start after it.

``WinogradStep``
    Blocked: each thread takes a block of tiles through all stages in its own workspace, which stays
    in the L2 cache.  Best for large planes with many tiles.
``WinogradStageStep``
    Staged: one step per stage.  The products are split by frequency, so each shard reads only its
    part of the transformed weights.  Best for small planes, where the weights dominate.

Both compute every output by the same operations in the same order.  A tile with a non-finite value
is computed again by the definition, see winograd_direct.pxi.

The filters, :class:`WinogradFilters`, may be transformed after the first runs.  Until then, a run
reads and transforms each panel on use, with the same bits.
"""

from collections import namedtuple

import numpy as np

from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memset

from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.micro.packing cimport pack_panel
from kuiper._kernels.conv.epilogue cimport (
    epilogue_t, finish_tile, is_in_tile, make_epilogue, residual_at,
)
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start
from kuiper._runtime.stored_rows cimport read_rows, stored_t, where_stored
from kuiper._kernels.micro.table cimport (
    SOLE_TILE, LINE_FLOATS, MAX_MR, kernels_t, prefetch_distance, wino_needs,
)
from kuiper._runtime.thread_pool cimport parallel_for

from kuiper._runtime.pages import aligned_empty
from kuiper._kernels.micro.packing import n_panels, parts
from kuiper.ir.view import padded_row

cdef extern from "_runtime/work_shares.h" nogil:
    void count_up "kp_finish"(int* count) noexcept
    void record_error "kp_record_error"(long long* error_slot, long long value) noexcept
    void publish "kp_publish"(const char** where, const char* address) noexcept
    const char* acquire "kp_acquire"(const char* const* where) noexcept

cdef extern from "_runtime/populate.h" nogil:
    void populate "kp_populate"(char* first, Py_ssize_t n_bytes) noexcept

cdef enum:
    MAX_FREQUENCIES = 81
    MAX_DEPTH = 7                # planes of a filter
    REGIONS = 4                  # right edge, inner tiles, bottom edge, corner
    STREAMED_BYTES = 1 << 24     # larger outputs do not stay in the caches: stream the stores
    ADVANCE_BYTES = 1 << 22      # weights that one call of advance transforms


MAX_FILTER_DEPTH = MAX_DEPTH

# By (tile, stride): operations per channel of a tile in the transforms of the input and of the
# output, bias and clamp included.
TRANSFORM_FLOPS = {(4, 1): (288, 208), (2, 1): (32, 36), (4, 2): (360, 295)}

Planes = namedtuple(
    "Planes", "inputs outputs kernel stride dilation front", defaults=(1, 1, 1, 1, 1, 0)
)
Planes.__doc__ = """The window of a convolution along the depth of a volume; an image is one plane.

Attributes
----------
inputs, outputs : int
    Planes of a volume.
kernel, stride, dilation : int
    Of the window; `kernel` is at most `MAX_FILTER_DEPTH`.
front : int
    Padding before the first plane.
"""


def frequency_stride(Py_ssize_t tiles, Py_ssize_t channels):
    """Return the distance between the frequencies of `tiles` tiles, in floats.

    It is an odd number of cache lines: the transforms access all frequencies at once, and lines a
    large power of two apart would share few sets of the L1 cache.
    """
    return (ceil_div(tiles * padded_row(channels), LINE_FLOATS) | 1) * LINE_FLOATS


def n_frequencies(int tile, int stride):
    """Return the number of frequencies of a tile."""
    return ((tile - 1) * stride + 3) ** 2


include "winograd_filters.pxi"


cdef struct winograd_t:
    const kernels_t* kernels
    int tile                     # t: side of a tile, in outputs
    int stride
    int patch                    # side of a patch, in input pixels and in frequencies
    int points                   # t + 2: weights along an axis, see end_of
    ref_t x                      # (n, in_d, in_h, in_w, in_channels)
    # *weights (points^2, panels, 1 + kernel_d * in_channels, nr), NULL while filters are deferred
    const char* const* weights
    ref_t error_slot             # records that filters could not be read
    ref_t u                      # scratch for the filters of a panel, if they are deferred
    ref_t latch                  # pointer to the weights that all shards of a run use, or NULL
    # (out_channels, in_channels, kernel_d, 3, 3), as stored; NULL until direct_tile needs them
    const char* filters
    bint filters_are_halves      # float16
    void* step                   # the step that reads them
    ref_t bias                   # (out_channels,)
    ref_t y                      # (n, out_d, out_h, out_w, out_channels)
    ref_t v                      # (frequencies, tiles, in_channels): the transformed input
    ref_t m                      # (frequencies, tiles, out_channels): the products
    const float* zeros           # (in_channels,)
    Py_ssize_t n                 # volumes
    Py_ssize_t in_d
    Py_ssize_t in_h
    Py_ssize_t in_w
    Py_ssize_t ldx               # from pixel to pixel, in elements
    Py_ssize_t out_d
    Py_ssize_t out_h
    Py_ssize_t out_w
    Py_ssize_t ldy
    Py_ssize_t kernel_d
    Py_ssize_t stride_d
    Py_ssize_t dilation_d
    Py_ssize_t front
    Py_ssize_t in_channels
    Py_ssize_t out_channels
    Py_ssize_t ldv               # from tile to tile, in elements
    Py_ssize_t ldm
    Py_ssize_t v_stride          # from frequency to frequency, in elements
    Py_ssize_t m_stride
    Py_ssize_t pad_top           # in pixels
    Py_ssize_t pad_left
    Py_ssize_t tiles_h           # of a plane
    Py_ssize_t tiles_w
    Py_ssize_t block             # stacks per block; all of them when staged
    Py_ssize_t inner_h           # whole tiles along an axis
    Py_ssize_t inner_w
    Py_ssize_t[MAX_FREQUENCIES] first  # first stack that needs a frequency
    Py_ssize_t[MAX_FREQUENCIES] last   # last stack that needs a frequency, plus 1
    int stage                    # see WinogradStageStep
    bint streams                 # stores bypass the caches
    epilogue_t epilogue


cdef class _Winograd(Step):
    """Base of both forms: the parameters of :class:`WinogradStep`."""

    cdef winograd_t p
    cdef WinogradFilters weight
    cdef object filters

    cdef object exception(self, int64_t value):
        return self.weight.failure

    cdef bint read_taps(self, Py_ssize_t panel, float* taps) noexcept:
        """Read and pack the filters of a panel; return False on failure."""
        try:
            self.weight.read_taps(panel, taps)
        except BaseException as error:
            self.weight.failure = error.with_traceback(None)
            return False
        return True

    cdef bint read_filters(self) noexcept:
        """Read the filters into memory for this and all later tiles; return False on failure."""
        try:
            array = self.filters.stored()
            self.keep = (*self.keep, array)
            publish(&self.p.filters, <const char*> <uintptr_t> array.ctypes.data)
        except BaseException as error:
            self.weight.failure = error.with_traceback(None)
            return False
        return True

    cdef _fill(
        self, int tile, int stride, x, WinogradFilters weight, filters, bias, y, error_slot, u, v,
        m, block, padding, epilogue, planes,
    ):
        cdef Py_ssize_t last_h, last_w, right, inner, bottom, corner, i, j
        cdef bint at_bottom, at_right
        zeros = np.zeros(x.shape[1], np.float32)
        cdef float[::1] zero_view = zeros
        self.keep = (zeros,)
        self.filters = filters
        self.p.step = <void*> self
        self.p.filters_are_halves = filters.are_halves
        self.p.kernels = active()
        self.p.tile, self.p.stride = tile, stride
        self.p.patch, self.p.points = (tile - 1) * stride + 3, tile + 2
        self.p.x, self.p.y, self.p.bias = self.ref(x), self.ref(y), self.ref(bias)
        self.weight = weight
        self.error_slot = self.p.error_slot = self.ref(error_slot)
        self.p.weights = &weight.transformed
        if u is not None:
            self.p.u = self.ref(u)
        self.p.v, self.p.m = self.ref(v), self.ref(m)
        self.p.zeros = &zero_view[0]
        self.p.in_d, self.p.out_d = planes.inputs, planes.outputs
        self.p.kernel_d, self.p.stride_d = planes.kernel, planes.stride
        self.p.dilation_d, self.p.front = planes.dilation, planes.front
        self.p.n, self.p.in_channels, self.p.in_h, self.p.in_w = x.shape
        self.p.n //= self.p.in_d
        _, self.p.out_channels, self.p.out_h, self.p.out_w = y.shape
        self.p.ldx, self.p.ldy = x.row_stride, y.row_stride
        self.p.ldv = padded_row(self.p.in_channels)
        self.p.ldm = padded_row(self.p.out_channels)
        self.p.pad_top, self.p.pad_left = padding
        self.p.tiles_h = ceil_div(self.p.out_h, tile)
        self.p.tiles_w = ceil_div(self.p.out_w, tile)
        self.p.block = self.p.n * self.p.tiles_h * self.p.tiles_w if block is None else block
        self.p.v_stride = frequency_stride(self.p.block * self.p.in_d, self.p.in_channels)
        self.p.m_stride = frequency_stride(self.p.block * self.p.out_d, self.p.out_channels)
        self.p.inner_h, self.p.inner_w = self.p.out_h // tile, self.p.out_w // tile
        # Outputs of the last tile along each axis.
        last_h = self.p.out_h - (self.p.tiles_h - 1) * tile
        last_w = self.p.out_w - (self.p.tiles_w - 1) * tile
        right = self.p.n * self.p.inner_h * (self.p.tiles_w - self.p.inner_w)
        inner = self.p.n * self.p.inner_h * self.p.inner_w
        bottom = self.p.n * (self.p.tiles_h - self.p.inner_h) * self.p.inner_w
        corner = self.p.n * self.p.tiles_h * self.p.tiles_w - right - inner - bottom
        for i in range(self.p.patch):
            at_bottom = wino_needs(tile, stride, last_h, i)
            for j in range(self.p.patch):
                at_right = wino_needs(tile, stride, last_w, j)
                self.p.first[self.p.patch * i + j] = 0 if at_right else right
                self.p.last[self.p.patch * i + j] = (
                    right + inner + (bottom if at_bottom else 0)
                    + (corner if at_bottom and at_right else 0)
                )
        self.p.epilogue = make_epilogue(self, epilogue)
        self.p.streams = (
            4 * y.size > STREAMED_BYTES and y.row_stride % LINE_FLOATS == 0
            and self.p.kernels.lanes == LINE_FLOATS and is_in_tile(&self.p.epilogue)
        )
        self.params = &self.p

    cdef tuple _work(self):
        """Return the operations of the three stages, and the bytes of x, v, weights, m and y."""
        cdef double points = self.p.points * self.p.points
        cdef double frequencies = self.p.patch * self.p.patch
        cdef double tiles = self.p.n * self.p.tiles_h * self.p.tiles_w, products = 0
        cdef double inputs = self.p.in_d * self.p.in_channels
        cdef double outputs = self.p.out_d * self.p.out_channels
        cdef double depth = self.p.kernel_d * self.p.in_channels, columns
        cdef Py_ssize_t f
        columns = n_panels(self.p.out_channels) * self.p.kernels.nr
        for f in range(self.p.patch * self.p.patch):
            products += max(self.p.last[f] - self.p.first[f], 0)
        forth, back = TRANSFORM_FLOPS[self.p.tile, self.p.stride]
        flops = (forth * tiles * inputs, 2 * products * outputs * depth, back * tiles * outputs)
        n_bytes = (
            4 * inputs * self.p.n * self.p.in_h * self.p.in_w, 4 * frequencies * tiles * inputs,
            4 * points * (1 + depth) * columns, 4 * frequencies * tiles * outputs,
            4 * outputs * self.p.n * self.p.out_h * self.p.out_w,
        )
        return flops, n_bytes


cdef class WinogradStep(_Winograd):
    """3x3 convolution, blocked.

    Parameters
    ----------
    tile, stride : int
        Side of a tile, 2 or 4 with a stride of 1, 4 with one of 2.
    x, y : TensorView
        Channels-last; planes of volumes are consecutive images.
    weight : WinogradFilters
        Planes of the filters are consecutive channels.
    filters : object
        The source of `weight`: `stored()` returns (out_channels, in_channels, planes, 3, 3) in C
        order, at any byte address, float16 if `are_halves`, otherwise float32.  It is called when
        the first tile is computed by the definition.
    bias : TensorView, shape (out_channels,)
    error_slot : TensorView
        Per-context state: an error_slot_t.
    u : TensorView or None
        Scratch of `weight.scratch_bytes` per thread; None if the filters are transformed.
    v, m : TensorView
        Scratch per thread: :func:`n_frequencies` x :func:`frequency_stride` floats, for the tiles
        of `block` stacks and ``in_channels`` or ``out_channels``.
    block : int
        Stacks per block.
    padding : (int, int)
        Top and left.
    epilogue : Epilogue or None
    planes : Planes
    """

    def __init__(
        self, tile, stride, x, weight, filters, bias, y, error_slot, u, v, m, block, padding,
        epilogue=None,
        planes=Planes(),
    ):
        self._fill(
            tile, stride, x, weight, filters, bias, y, error_slot, u, v, m, block, padding,
            epilogue, planes
        )
        self.run = winograd_run
        self.kind = "conv_winograd"
        stacks = self.p.n * self.p.tiles_h * self.p.tiles_w
        self.max_shards = max(ceil_div(stacks, block), 1)
        flops, n_bytes = self._work()
        self.flops = sum(flops)
        self.bytes = n_bytes[0] + n_bytes[2] + n_bytes[4]  # v and m stay in the L2 cache


cdef class WinogradStageStep(_Winograd):
    """One stage of a 3x3 convolution.

    Parameters
    ----------
    stage : int
        0 transforms the input, 1 multiplies, 2 transforms back.
    latch : TensorView, shape (1,), uint64
        Stage 0 stores the pointer to the weights, or NULL, for stage 1: deferred filters may become
        available at any moment, and all shards of a run must divide the work in the same way.
    v, m : TensorView
        As for :class:`WinogradStep` with all tiles in one block, shared by all shards.
    tile, stride, x, weight, filters, bias, y, error_slot, u, padding, epilogue, planes
        As for :class:`WinogradStep`.
    """

    def __init__(
        self, stage, latch, tile, stride, x, weight, filters, bias, y, error_slot, u, v, m, padding,
        epilogue=None, planes=Planes(),
    ):
        self._fill(
            tile, stride, x, weight, filters, bias, y, error_slot, u, v, m, None, padding, epilogue,
            planes
        )
        self.p.latch = self.ref(latch)
        self.p.stage = stage
        self.run = winograd_stage_run
        self.kind = ("winograd_input", "winograd_gemm", "winograd_output")[stage]
        panels = n_panels(self.p.out_channels)
        weights = self.p.points * self.p.points
        tiles = self.p.block * (self.p.in_d if stage == 0 else self.p.out_d)
        self.max_shards = max(weights * panels if stage == 1 else tiles, 1)
        flops, n_bytes = self._work()
        self.flops = flops[stage]
        self.bytes = sum((n_bytes[:2], n_bytes[1:4], n_bytes[3:])[stage])


cdef struct tile_position_t:
    Py_ssize_t volume
    Py_ssize_t plane
    Py_ssize_t h                 # row and column of the first output
    Py_ssize_t w
    Py_ssize_t rows              # outputs inside the plane
    Py_ssize_t columns


cdef tile_position_t tile_position(
    const winograd_t* p, Py_ssize_t tile, Py_ssize_t planes
) noexcept nogil:
    """Return the position of tile number `tile`; the module docstring has the order of stacks."""
    cdef tile_position_t position
    cdef Py_ssize_t region, row = 0, column = 0, rows = 1, columns = 1
    cdef bint at_bottom, at_right
    position.plane = tile % planes
    tile //= planes
    for region in range(REGIONS):
        at_bottom = region >= 2
        at_right = region == 0 or region == 3
        row = p.inner_h if at_bottom else 0
        rows = p.tiles_h - row if at_bottom else p.inner_h
        column = p.inner_w if at_right else 0
        columns = p.tiles_w - column if at_right else p.inner_w
        if tile < p.n * rows * columns:
            break
        tile -= p.n * rows * columns
    position.volume = tile // (rows * columns)
    position.h = (row + tile // columns % rows) * p.tile
    position.w = (column + tile % columns) * p.tile
    position.rows = min(p.tile, p.out_h - position.h)
    position.columns = min(p.tile, p.out_w - position.w)
    return position


cdef void transform_input(
    const winograd_t* p, const float* x, Py_ssize_t tile, float* v
) noexcept nogil:
    """Write the frequencies of one tile, all channels, to v[f * v_stride + c]."""
    cdef (const float*)[MAX_FREQUENCIES] pixels
    cdef tile_position_t position = tile_position(p, tile, p.in_d)
    cdef Py_ssize_t plane = position.volume * p.in_d + position.plane
    cdef Py_ssize_t top = position.h * p.stride - p.pad_top
    cdef Py_ssize_t left = position.w * p.stride - p.pad_left
    cdef Py_ssize_t i, j, h, w
    cdef const float* row
    for i in range(p.patch):
        h = top + i
        row = x + ((plane * p.in_h + h) * p.in_w + left) * p.ldx
        for j in range(p.patch):
            w = left + j
            if 0 <= h < p.in_h and 0 <= w < p.in_w:
                pixels[p.patch * i + j] = row + j * p.ldx
            else:
                pixels[p.patch * i + j] = p.zeros
    p.kernels.f32_wino_input[p.tile][p.stride](
        p.in_channels, <const float* const*> pixels, position.rows, position.columns, v, p.v_stride
    )


cdef inline Py_ssize_t end_of(const winograd_t* p, Py_ssize_t point) noexcept nogil:
    """Return the end of the range of frequencies along an axis that use a point's weight.

    With a stride of 2, all remaining frequencies use the last weight.
    """
    return p.patch if point == p.points - 1 else point + 1


cdef void multiply(
    const winograd_t* p, const float* weight, Py_ssize_t q, Py_ssize_t panel, Py_ssize_t first,
    Py_ssize_t count, const float* v, float* m,
) noexcept nogil:
    """Multiply by one panel of weight q: all its frequencies, `count` stacks from `first` on."""
    cdef Py_ssize_t i = q // p.points, j = q % p.points, h, w
    for h in range(i, end_of(p, i)):
        for w in range(j, end_of(p, j)):
            multiply_one(p, weight, p.patch * h + w, panel, first, count, v, m)


cdef void multiply_deferred(
    const winograd_t* p, char* const* slots, Py_ssize_t panel, Py_ssize_t first, Py_ssize_t count,
    const float* v, float* m,
) noexcept nogil:
    """Read and transform the filters of a panel, and call `multiply` for all its weights."""
    cdef Py_ssize_t nr = p.kernels.nr, depth = p.kernel_d * p.in_channels, size = (1 + depth) * nr
    cdef Py_ssize_t row, i
    cdef float* u = <float*> at(slots, p.u)  # a row of weights, then packed and stored filters
    cdef float* taps = u + p.points * size
    cdef float* space = taps + (1 + 9 * depth) * nr
    cdef bint are_read = (<_Winograd> p.step).weight.read_stored(panel, space, taps)
    if not are_read:
        with gil:  # Python verifies the file and raises the right error
            are_read = (<_Winograd> p.step).read_taps(panel, taps)
    if not are_read:
        record_error(<long long*> at(slots, p.error_slot), 0)
        memset(taps, 0, (1 + 9 * depth) * nr * sizeof(float))
    for row in range(p.points):
        transform_row(p.kernels, p.tile, p.stride, row, depth, taps, u, size)
        for i in range(p.points):
            multiply(p, u + i * size, p.points * row + i, panel, first, count, v, m)


cdef void multiply_transformed(
    const winograd_t* p, const float* weights, Py_ssize_t q, Py_ssize_t panel, Py_ssize_t first,
    Py_ssize_t count, const float* v, float* m,
) noexcept nogil:
    """Call `multiply` for one panel of transformed weights."""
    cdef Py_ssize_t nr = p.kernels.nr, panels = (p.out_channels + nr - 1) // nr
    weights += (q * panels + panel) * (1 + p.kernel_d * p.in_channels) * nr
    multiply(p, weights, q, panel, first, count, v, m)


cdef void point_planes(
    const winograd_t* p, const float* v, Py_ssize_t first, Py_ssize_t count, const float** rows
) noexcept nogil:
    """Fill rows[z * count + i] with the row of v for plane z of the filters and tile i."""
    cdef Py_ssize_t z, i, plane, stack
    for i in range(count):
        stack = (first + i) // p.out_d
        for z in range(p.kernel_d):
            plane = (first + i) % p.out_d * p.stride_d + z * p.dilation_d - p.front
            rows[z * count + i] = p.zeros
            if 0 <= plane < p.in_d:
                rows[z * count + i] = v + (stack * p.in_d + plane) * p.ldv


cdef void multiply_one(
    const winograd_t* p, const float* w, Py_ssize_t f, Py_ssize_t panel, Py_ssize_t first,
    Py_ssize_t count, const float* v, float* m,
) noexcept nogil:
    """Compute one panel of the product of one frequency."""
    cdef const kernels_t* kernels = p.kernels
    cdef (const float*)[MAX_DEPTH * MAX_MR] rows
    cdef Py_ssize_t nr = kernels.nr, n = min(nr, p.out_channels - panel * nr)
    cdef Py_ssize_t depth = (p.kernel_d * p.in_channels + 1) * nr
    cdef Py_ssize_t skipped = max(p.first[f] - first, 0)
    cdef Py_ssize_t tiles = (min(p.last[f] - first, count) - skipped) * p.out_d
    cdef Py_ssize_t groups = (tiles + kernels.mr - 1) // kernels.mr
    cdef Py_ssize_t g, start, height, i, distance
    if tiles <= 0:
        return
    v += f * p.v_stride + skipped * p.in_d * p.ldv
    m += f * p.m_stride + skipped * p.out_d * p.ldm + panel * nr
    for g in range(groups):
        start = g * tiles // groups
        height = (g + 1) * tiles // groups - start
        if p.kernel_d == 1 == p.out_d == p.in_d:
            for i in range(height):
                rows[i] = v + (start + i) * p.ldv
        else:
            point_planes(p, v, start, height, rows)
        distance = prefetch_distance(g, depth, nr)
        kernels.f32_gemm[height](
            p.kernel_d, p.in_channels, <const float* const*> rows, w,
            distance + SOLE_TILE if groups == 1 else distance,
            m + start * p.ldm, p.ldm, n, NULL, 0, -INFINITY, INFINITY,
        )


include "winograd_direct.pxi"


cdef bint has_filters(const winograd_t* p, char* const* slots) noexcept nogil:
    """Tell whether the filters are in memory; read them if not."""
    cdef bint are_there = acquire(&p.filters) != NULL
    if not are_there:
        with gil:
            are_there = (<_Winograd> p.step).read_filters()
        if not are_there:
            record_error(<long long*> at(slots, p.error_slot), 0)
    return are_there


cdef void transform_output(
    const winograd_t* p, char* const* slots, Py_ssize_t tile, const float* m
) noexcept nogil:
    """Write the outputs of one tile from its products m[f * m_stride]."""
    cdef tile_position_t position = tile_position(p, tile, p.out_d)
    cdef Py_ssize_t plane = position.volume * p.out_d + position.plane
    cdef Py_ssize_t pixel = (plane * p.out_h + position.h) * p.out_w + position.w, i
    cdef Py_ssize_t ldr = p.epilogue.ldr
    cdef float* y = <float*> at(slots, p.y) + pixel * p.ldy
    cdef const float* residual = residual_at(&p.epilogue, slots, pixel * ldr)
    cdef const float* added = residual if p.epilogue.residual_in_tile else NULL
    if not p.kernels.f32_wino_output[p.tile][p.stride](
        p.out_channels, m, p.m_stride, <const float*> at(slots, p.bias),
        y, p.out_w * p.ldy, p.ldy, position.rows, position.columns,
        added, p.out_w * ldr, ldr, p.epilogue.lo, p.epilogue.hi,
        p.streams and <size_t> y % (4 * LINE_FLOATS) == 0,
    ) and has_filters(p, slots):
        direct_tile(p, slots, &position, y, added)
    for i in range(position.rows):
        finish_tile(
            &p.epilogue, position.columns, p.out_channels, y + i * p.out_w * p.ldy, p.ldy,
            residual + i * p.out_w * ldr if residual != NULL else NULL, ldr,
        )


cdef void winograd_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Convolve images or volumes by 3x3 filters per plane, stride 1 or 2, and apply the epilogue.

    Layout : x (n, d, h, w, ic) -> y (n, od, oh, ow, oc), any row strides
    Needs  : filters packed for the table's tile
    Threads: over blocks of stacks; one workspace per thread
    Source : Lavin, Gray (2015), algorithm 1
    """
    cdef const winograd_t* p = <const winograd_t*> params
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* weights = <const float*> acquire(p.weights)
    cdef float* v = <float*> at(slots, p.v)
    cdef float* m = <float*> at(slots, p.m)
    cdef Py_ssize_t stacks = p.n * p.tiles_h * p.tiles_w, nr = p.kernels.nr
    cdef Py_ssize_t panels = (p.out_channels + nr - 1) // nr
    cdef Py_ssize_t blocks = (stacks + p.block - 1) // p.block, b, t, first, count, q, panel
    cdef Py_ssize_t units = 1 if weights == NULL else p.points * p.points
    for b in range(shard_start(blocks, shard, n_shards), shard_start(blocks, shard + 1, n_shards)):
        first = b * stacks // blocks
        count = (b + 1) * stacks // blocks - first
        for t in range(count * p.in_d):
            transform_input(p, x, first * p.in_d + t, v + t * p.ldv)
        for q in range(units):
            for panel in range(panels):
                if weights == NULL:
                    multiply_deferred(p, slots, panel, first, count, v, m)
                else:
                    multiply_transformed(p, weights, q, panel, first, count, v, m)
        for t in range(count * p.out_d):
            transform_output(p, slots, first * p.out_d + t, m + t * p.ldm)


cdef Py_ssize_t stacks_of(const winograd_t* p, Py_ssize_t q) noexcept nogil:
    """Return the number of stacks that weight q multiplies, summed over its frequencies."""
    cdef Py_ssize_t i = q // p.points, j = q % p.points, h, w, total = 0
    for h in range(i, end_of(p, i)):
        for w in range(j, end_of(p, j)):
            total += p.last[p.patch * h + w] - p.first[p.patch * h + w]
    return total


cdef Py_ssize_t product_start(
    const winograd_t* p, Py_ssize_t panels, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Return the first product of a shard, for shards of equal numbers of stacks x panels."""
    cdef Py_ssize_t q, total = 0, stacks, wanted, n_weights = p.points * p.points
    for q in range(n_weights):
        total += stacks_of(p, q)
    wanted = shard_start(total * panels, shard, n_shards)
    for q in range(n_weights):
        stacks = stacks_of(p, q)
        if wanted < stacks * panels:
            return q * panels + wanted // stacks
        wanted -= stacks * panels
    return n_weights * panels


cdef void winograd_stage_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Compute one stage of a 3x3 convolution; see winograd_run."""
    cdef const winograd_t* p = <const winograd_t*> params
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const char** latch = <const char**> at(slots, p.latch)
    cdef float* v = <float*> at(slots, p.v)
    cdef float* m = <float*> at(slots, p.m)
    cdef Py_ssize_t tiles = p.block * (p.in_d if p.stage == 0 else p.out_d), t
    if p.stage == 0 and shard == 0:
        latch[0] = acquire(p.weights)
    if p.stage == 1:
        multiply_shard(p, slots, shard, n_shards)
        return
    for t in range(shard_start(tiles, shard, n_shards), shard_start(tiles, shard + 1, n_shards)):
        if p.stage == 0:
            transform_input(p, x, t, v + t * p.ldv)
        else:
            transform_output(p, slots, t, m + t * p.ldm)


cdef void multiply_shard(
    const winograd_t* p, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Compute one shard of the products of all tiles."""
    cdef Py_ssize_t nr = p.kernels.nr, panels = (p.out_channels + nr - 1) // nr, i
    cdef const float* weights = (<const float**> at(slots, p.latch))[0]
    cdef const float* v = <const float*> at(slots, p.v)
    cdef float* m = <float*> at(slots, p.m)
    if weights == NULL:
        for i in range(
            shard_start(panels, shard, n_shards), shard_start(panels, shard + 1, n_shards)
        ):
            multiply_deferred(p, slots, i, 0, p.block, v, m)
        return
    for i in range(
        product_start(p, panels, shard, n_shards), product_start(p, panels, shard + 1, n_shards)
    ):
        multiply_transformed(p, weights, i // panels, i % panels, 0, p.block, v, m)
