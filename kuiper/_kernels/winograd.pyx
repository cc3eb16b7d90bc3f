"""Winograd convolution F(t x t, 3x3), with fewer multiplications than a 3x3 convolution has.

A tile is t x t outputs: t = 4 takes a quarter of the multiplications, and four times the weights;
t = 2 takes 4/9 of them, and less than twice the weights.

Three stages: transform patches of the input, t + 2 a side, to as many frequencies; multiply a
matrix for each frequency (tiles x channels by channels x filters); transform the products back.

``WinogradStep``
    Blocked: each thread takes a few tiles through all stages inside its own workspace, which stays
    in the L2 cache.  Best for large planes, where tiles are many.
``WinogradStageStep``
    Staged: one step for each stage.  The products are split by frequency, so each part reads only
    its share of the transformed weights.  Best for small planes, where weights are the larger load.

Both compute every output by the same operations in the same order.
"""

import numpy as np

from cython.parallel cimport prange
from libc.math cimport INFINITY

from kuiper._kernels._dispatch cimport active
from kuiper._kernels._post cimport make_post, post_t, post_tile
from kuiper._kernels._step cimport Step, at, ceil_div, ref_t, share_start
from kuiper._kernels._table cimport MAX_MR, kernels_t, panel_ahead

from kuiper._kernels._pack import aligned_empty, n_panels
from kuiper._value import spaced

cdef enum:
    MAX_FREQUENCIES = 36


def pack_winograd(const float[:, :, :, ::1] weight, int tile, int n_threads=1):
    """Transform and pack 3x3 filters.

    Parameters
    ----------
    weight : array, shape (out_channels, in_channels, 3, 3), float32
    tile : int
        Side of a tile, 2 or 4.
    n_threads : int

    Returns
    -------
    numpy.ndarray, shape ((tile + 2) ** 2, panels, 1 + in_channels, nr), float32
    """
    cdef Py_ssize_t out_channels = weight.shape[0], in_channels = weight.shape[1]
    cdef const kernels_t* kernels = active()
    cdef Py_ssize_t nr = kernels.nr, lanes = kernels.lanes, panels = n_panels(out_channels)
    cdef Py_ssize_t vectors = nr // lanes, q, first, stride = panels * (1 + in_channels) * nr
    packed = aligned_empty(((tile + 2) * (tile + 2), panels, 1 + in_channels, nr))
    cdef float[:, :, :, ::1] out = packed
    packed[:, :, 0] = 0  # the bias is added once, after the transform back
    for q in prange(panels * vectors, nogil=True, num_threads=n_threads, schedule="static"):
        first = q * lanes
        kernels.wino_filter[tile](
            max(min(lanes, out_channels - first), 0), in_channels,
            &weight[0, 0, 0, 0] + min(first, out_channels - 1) * in_channels * 9,
            &out[0, q // vectors, 1, q % vectors * lanes], stride, nr,
        )
    return packed


cdef struct winograd_t:
    const kernels_t* kernels
    int tile                     # its side, in outputs
    int patch                    # its side, in inputs
    ref_t x
    ref_t weight
    ref_t bias
    ref_t y
    ref_t v                      # transformed input
    ref_t m                      # products
    const float* zeros
    Py_ssize_t n
    Py_ssize_t in_h
    Py_ssize_t in_w
    Py_ssize_t x_pitch
    Py_ssize_t out_h
    Py_ssize_t out_w
    Py_ssize_t y_pitch
    Py_ssize_t in_channels
    Py_ssize_t out_channels
    Py_ssize_t v_pitch           # from tile to tile
    Py_ssize_t pad_top
    Py_ssize_t pad_left
    Py_ssize_t tiles_h
    Py_ssize_t tiles_w
    Py_ssize_t block             # tiles that a part takes at a time, when blocked
    int stage
    post_t post


cdef class _Winograd(Step):
    """What both forms share: the parameters of :class:`WinogradStep`."""

    cdef winograd_t p

    cdef _fill(self, int tile, x, weight, bias, y, v, m, padding, post):
        zeros = np.zeros(x.shape[1], np.float32)
        cdef float[::1] zero_view = zeros
        self.keep = zeros
        self.p.kernels = active()
        self.p.tile, self.p.patch = tile, tile + 2
        self.p.x, self.p.y, self.p.bias = self.ref(x), self.ref(y), self.ref(bias)
        self.p.weight, self.p.v, self.p.m = self.ref(weight), self.ref(v), self.ref(m)
        self.p.zeros = &zero_view[0]
        self.p.n, self.p.in_channels, self.p.in_h, self.p.in_w = x.shape
        _, self.p.out_channels, self.p.out_h, self.p.out_w = y.shape
        self.p.x_pitch, self.p.y_pitch = x.pitch, y.pitch
        self.p.v_pitch = spaced(self.p.in_channels)
        self.p.pad_top, self.p.pad_left = padding
        self.p.tiles_h = ceil_div(self.p.out_h, tile)
        self.p.tiles_w = ceil_div(self.p.out_w, tile)
        self.p.post = make_post(self, post)
        self.params = &self.p


cdef class WinogradStep(_Winograd):
    """3x3 convolution of stride 1, blocked.

    Parameters
    ----------
    tile : int
        Side of a tile, 2 or 4.
    x, y : Value
        Channels-last.
    weight : Value
        As :func:`pack_winograd` makes it.
    bias : Value, shape (out_channels,)
    v, m : Value
        Scratch of ``(tile + 2) ** 2 * block`` times ``4 * spaced(in_channels)`` and times
        ``4 * out_channels`` bytes for each thread.
    block : int
        Tiles that a part takes at a time.
    padding : (int, int)
        Top and left.
    post : Post or None
    """

    def __init__(self, tile, x, weight, bias, y, v, m, block, padding, post=None):
        self._fill(tile, x, weight, bias, y, v, m, padding, post)
        self.p.block = block
        self.run = winograd_run
        self.kind = "conv_winograd"
        tiles = self.p.n * self.p.tiles_h * self.p.tiles_w
        self.max_parts = max(ceil_div(tiles, block), 1)


cdef class WinogradStageStep(_Winograd):
    """One stage of a 3x3 convolution of stride 1.

    Parameters
    ----------
    stage : int
        0 transforms the input, 1 multiplies, 2 transforms back.
    v, m : Value
        ``(tile + 2) ** 2 * tiles`` times ``spaced(in_channels)`` and times ``out_channels`` floats,
        shared by all parts.
    tile, x, weight, bias, y, padding, post
        As for :class:`WinogradStep`.
    """

    def __init__(self, stage, tile, x, weight, bias, y, v, m, padding, post=None):
        self._fill(tile, x, weight, bias, y, v, m, padding, post)
        self.p.stage = stage
        self.p.block = self.p.n * self.p.tiles_h * self.p.tiles_w
        self.run = winograd_stage_run
        self.kind = ("winograd_input", "winograd_gemm", "winograd_output")[stage]
        panels = n_panels(self.p.out_channels)
        frequencies = self.p.patch * self.p.patch
        self.max_parts = max(frequencies * panels if stage == 1 else self.p.block, 1)


cdef void transform_input(
    const winograd_t* p, const float* x, Py_ssize_t tile, float* v, Py_ssize_t stride
) noexcept nogil:
    """Write the frequencies of one tile, all channels, at v[f * stride]."""
    cdef (const float*)[MAX_FREQUENCIES] pixels
    cdef Py_ssize_t image = tile // (p.tiles_h * p.tiles_w)
    cdef Py_ssize_t top = tile // p.tiles_w % p.tiles_h * p.tile - p.pad_top
    cdef Py_ssize_t left = tile % p.tiles_w * p.tile - p.pad_left
    cdef Py_ssize_t i, j, h, w
    cdef const float* row
    for i in range(p.patch):
        h = top + i
        row = x + ((image * p.in_h + h) * p.in_w + left) * p.x_pitch
        for j in range(p.patch):
            w = left + j
            if 0 <= h < p.in_h and 0 <= w < p.in_w:
                pixels[p.patch * i + j] = row + j * p.x_pitch
            else:
                pixels[p.patch * i + j] = p.zeros
    p.kernels.wino_input[p.tile](p.in_channels, <const float* const*> pixels, v, stride)


cdef void multiply(
    const winograd_t* p, const float* weight, Py_ssize_t f, Py_ssize_t panel, Py_ssize_t tiles,
    const float* v, float* m, Py_ssize_t block,
) noexcept nogil:
    """One panel of the product of one frequency, for `tiles` tiles of a block."""
    cdef const kernels_t* kernels = p.kernels
    cdef (const float*)[MAX_MR] rows
    cdef Py_ssize_t nr = kernels.nr, panels = (p.out_channels + nr - 1) // nr
    cdef Py_ssize_t groups = (tiles + kernels.mr - 1) // kernels.mr
    cdef Py_ssize_t g, start, count, i, n = min(nr, p.out_channels - panel * nr)
    cdef Py_ssize_t depth = (p.in_channels + 1) * nr
    cdef const float* w = weight + (f * panels + panel) * depth
    v += f * block * p.v_pitch
    m += f * block * p.out_channels + panel * nr
    for g in range(groups):
        start = g * tiles // groups
        count = (g + 1) * tiles // groups - start
        for i in range(count):
            rows[i] = v + (start + i) * p.v_pitch
        kernels.gemm[count](
            1, p.in_channels, <const float* const*> rows, w, panel_ahead(g, depth, nr),
            m + start * p.out_channels, p.out_channels, n, NULL, 0, -INFINITY, INFINITY,
        )


cdef void transform_output(
    const winograd_t* p, char* const* slots, Py_ssize_t tile, const float* m, Py_ssize_t stride
) noexcept nogil:
    """Write the outputs of one tile from its products at m[f * stride]."""
    cdef Py_ssize_t image = tile // (p.tiles_h * p.tiles_w)
    cdef Py_ssize_t h = tile // p.tiles_w % p.tiles_h * p.tile, w = tile % p.tiles_w * p.tile
    cdef Py_ssize_t rows = min(p.tile, p.out_h - h), columns = min(p.tile, p.out_w - w), i
    cdef Py_ssize_t pixel = (image * p.out_h + h) * p.out_w + w
    cdef Py_ssize_t r_pitch = p.post.residual_pitch
    cdef float* y = <float*> at(slots, p.y) + pixel * p.y_pitch
    cdef const float* residual = NULL
    if p.post.has_residual:
        residual = <const float*> at(slots, p.post.residual) + pixel * r_pitch
    p.kernels.wino_output[p.tile](
        p.out_channels, m, stride, <const float*> at(slots, p.bias),
        y, p.out_w * p.y_pitch, p.y_pitch, rows, columns,
        residual if p.post.residual_in_tile else NULL, p.out_w * r_pitch, r_pitch,
        p.post.lo, p.post.hi,
    )
    for i in range(rows):
        post_tile(
            &p.post, columns, p.out_channels, y + i * p.out_w * p.y_pitch, p.y_pitch,
            residual + i * p.out_w * r_pitch if residual != NULL else NULL, r_pitch,
        )


cdef void winograd_run(
    const void* params, char* const* slots, Py_ssize_t part, Py_ssize_t n_parts
) noexcept nogil:
    """3x3 convolution of stride 1, plus post-ops.

    Layout : x (n, h, w, ic) -> y (n, oh, ow, oc), pitched
    Needs  : weights of pack_winograd for the table's tile
    Threads: over blocks of tiles; each thread has a workspace of its own
    Source : Lavin, Gray (2015), algorithm 1
    """
    cdef const winograd_t* p = <const winograd_t*> params
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* weight = <const float*> at(slots, p.weight)
    cdef float* v = <float*> at(slots, p.v)
    cdef float* m = <float*> at(slots, p.m)
    cdef Py_ssize_t tiles = p.n * p.tiles_h * p.tiles_w, nr = p.kernels.nr
    cdef Py_ssize_t panels = (p.out_channels + nr - 1) // nr
    cdef Py_ssize_t blocks = (tiles + p.block - 1) // p.block, b, t, first, count, f, panel
    for b in range(share_start(blocks, part, n_parts), share_start(blocks, part + 1, n_parts)):
        first = b * tiles // blocks
        count = (b + 1) * tiles // blocks - first
        for t in range(count):
            transform_input(p, x, first + t, v + t * p.v_pitch, p.block * p.v_pitch)
        for f in range(p.patch * p.patch):
            for panel in range(panels):
                multiply(p, weight, f, panel, count, v, m, p.block)
        for t in range(count):
            transform_output(
                p, slots, first + t, m + t * p.out_channels, p.block * p.out_channels
            )


cdef void winograd_stage_run(
    const void* params, char* const* slots, Py_ssize_t part, Py_ssize_t n_parts
) noexcept nogil:
    """One stage of a 3x3 convolution of stride 1; see winograd_run."""
    cdef const winograd_t* p = <const winograd_t*> params
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* weight = <const float*> at(slots, p.weight)
    cdef float* v = <float*> at(slots, p.v)
    cdef float* m = <float*> at(slots, p.m)
    cdef Py_ssize_t tiles = p.block, nr = p.kernels.nr
    cdef Py_ssize_t panels = (p.out_channels + nr - 1) // nr, t, q
    cdef Py_ssize_t products = p.patch * p.patch * panels
    if p.stage == 1:
        for q in range(
            share_start(products, part, n_parts), share_start(products, part + 1, n_parts)
        ):
            multiply(p, weight, q // panels, q % panels, tiles, v, m, tiles)
        return
    for t in range(share_start(tiles, part, n_parts), share_start(tiles, part + 1, n_parts)):
        if p.stage == 0:
            transform_input(p, x, t, v + t * p.v_pitch, tiles * p.v_pitch)
        else:
            transform_output(p, slots, t, m + t * p.out_channels, tiles * p.out_channels)
