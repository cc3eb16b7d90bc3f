"""Convolution drivers: tiling, borders and addresses around the GEMM and depthwise micro-kernels.

All of them read channels-last images and none builds an im2col matrix.

``ConvStep``
    Implicit GEMM.  A tile is some output pixels by one panel of output channels; the micro-kernel
    gets one pointer per pixel and tap.  A transposed convolution is the same thing once for each
    phase of its stride: the output pixels of one phase all see the same taps.
``ShallowConvStep``
    For few input channels, such as the three of a photo, where the channels of a tap are too few
    to be a loop: there the loop runs along a row of the filter instead, straight over the caller's
    NCHW array.
``DepthwiseStep``
    One filter per channel.
"""

import numpy as np

from libc.string cimport memcpy, memset

from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.conv.epilogue cimport make_post, post_t, post_tile
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, share_start
from kuiper._kernels.micro.table cimport (
    DW_ROW, NARROW_CHANNELS, dwrow_fn, kernels_t, panel_ahead, row_kernel,
)
from kuiper._kernels.conv.window cimport (
    Window, is_inside, output_pixel, phase_t, point_inside, point_rows, window_t,
)

from kuiper._kernels.micro.packing import pack_panels
from kuiper._runtime.step import run_alone
from kuiper.ir.view import Buffer, Value, channels_last_strides
from kuiper.errors import InputError


cdef extern from *:
    """
    /* Ask for a cache line that is going to be written. */
    #if defined(__GNUC__)
    #define KP_FETCH(p) __builtin_prefetch(p, 1, 3)
    #else
    #define KP_FETCH(p) (void)(p)
    #endif
    """
    void fetch "KP_FETCH"(const float*) noexcept nogil


# -- implicit GEMM -----------------------------------------------------------------------------

cdef enum:
    POST_COLUMNS = 256
    BLOCK_BYTES = 256 * 1024     # of pixels that stay in the L2 cache from panel to panel
    LEAST_TILES = 8              # of a block
    PANEL_BYTES = 512 * 1024     # weights of more do not stay there beside the pixels
    # Lines of larger outputs are asked for before a tile is computed, by trial for each driver.
    FETCHED_BYTES = 1 << 23
    FETCHED_ROW_BYTES = 1 << 22


# The most columns of the tile for few output channels.
MAX_FEW_COLUMNS = NARROW_CHANNELS


cdef struct conv_t:
    const kernels_t* kernels
    const window_t* window
    ref_t x
    ref_t weight
    ref_t y
    ref_t scratch
    const float* zeros
    Py_ssize_t groups
    Py_ssize_t in_channels       # of one group
    Py_ssize_t out_channels      # of one group
    bint panel_major
    bint is_narrow               # of so few channels that the other tile is used
    Py_ssize_t x_bytes
    bint fetches                 # lines of the output, ahead of a tile
    post_t post


cdef class ConvStep(Step):
    """Convolution, grouped or not, forward or transposed, as implicit GEMM.

    Parameters
    ----------
    x, y : Value
        Channels-last.
    weight : Value
        Panels of :func:`.packing.pack_panels`; for each phase, for each group.
    window : Window
    groups, in_channels, out_channels : int
        Channels of one group.
    scratch : Value
        :func:`conv_scratch_bytes` of the window's `max_taps` for each thread.
    post : Post or None
    is_narrow : bool
        Whether the weight is a :class:`~kuiper._kernels.micro.packed.FewColumns`: one group of a
        few output channels.
    """

    cdef conv_t p
    cdef Window window

    def __init__(self, x, weight, y, Window window, groups, in_channels, out_channels, scratch,
                 post=None, is_narrow=False):
        zeros = np.zeros(max(in_channels, 1), np.float32)
        cdef float[::1] zero_view = zeros
        self.window = window
        self.keep = zeros
        self.p.kernels = active()
        self.p.window = &window.w
        self.p.x, self.p.weight, self.p.y = self.ref(x), self.ref(weight), self.ref(y)
        self.p.scratch = self.ref(scratch)
        self.p.zeros = &zero_view[0]
        self.p.groups, self.p.in_channels, self.p.out_channels = groups, in_channels, out_channels
        # Small weights stay in the L2 cache: finish a tile of pixels before the next one.  Large
        # ones are read once: finish a panel first.
        self.p.panel_major = weight.n_bytes > PANEL_BYTES
        self.p.is_narrow = is_narrow
        self.p.x_bytes = x.n_bytes
        self.p.fetches = 4 * y.size > FETCHED_BYTES
        self.p.post = make_post(self, post)
        self.run = conv_run
        self.params = &self.p
        self.kind = "conv_narrow" if is_narrow else "conv"
        tiles = ceil_div(window.max_pixels, active().mr)
        self.max_parts = max(tiles * groups * ceil_div(out_channels, active().nr), 1)


def conv_scratch_bytes(Py_ssize_t taps):
    """Return the scratch of one thread: the pointers of a tile."""
    return sizeof(float*) * active().mr * taps


cdef Py_ssize_t n_tiles(const conv_t* p, const phase_t* phase) noexcept nogil:
    return n_runs(p.window, phase) * ceil_div(run_pixels(p.window, phase), p.kernels.mr)


cdef inline Py_ssize_t n_runs(const window_t* w, const phase_t* phase) noexcept nogil:
    """Pixels of a run are equally far apart in the output: all of them, an image's, or a row's."""
    if w.out_step_w > 1 or w.out_step > 1 or phase.width < w.out_w:
        return w.n * phase.height
    return 1 if phase.height == w.out_h else w.n


cdef inline Py_ssize_t run_pixels(const window_t* w, const phase_t* phase) noexcept nogil:
    return w.n * phase.height * phase.width // max(n_runs(w, phase), 1)


cdef Py_ssize_t pixel_blocks(const conv_t* p, Py_ssize_t n_parts) noexcept nogil:
    """How many blocks a thread cuts its pixels into, to read them once for all panels and phases.

    With one block, threads share out tiles of pixels x panels, which balances small images.
    """
    cdef const window_t* w = p.window
    cdef Py_ssize_t f, tiles = 1 << 40, panel_bytes = 0, blocks
    if w.n_phases == 1 and not p.panel_major:
        return 1
    for f in range(w.n_phases):
        tiles = min(tiles, n_tiles(p, &w.phases[f]))
        panel_bytes = max(
            panel_bytes, 4 * p.kernels.nr * p.in_channels * w.phases[f].n_taps
        )
    blocks = p.x_bytes // n_parts // max(BLOCK_BYTES, 2 * panel_bytes)
    return max(min(blocks, tiles // n_parts // LEAST_TILES), 1)


cdef void conv_run(
    const void* params, char* const* slots, Py_ssize_t part, Py_ssize_t n_parts
) noexcept nogil:
    """Cross-correlation of images with packed filters, plus post-ops.

    Layout : x (n, h, w, groups * ic) -> y (n, oh, ow, groups * oc), pitched
    Needs  : packed weights for the table's tile; positive strides
    Threads: over tiles of pixels x panels of channels; the sum over taps is never split
    Source : torch.nn.Conv2d, torch.nn.ConvTranspose2d
    """
    cdef const conv_t* p = <const conv_t*> params
    cdef const phase_t* phase
    cdef Py_ssize_t blocks = pixel_blocks(p, n_parts), block, f, tiles, work, first, last
    work = p.groups * ceil_div(p.out_channels, p.kernels.nr)
    for block in range(blocks):
        for f in range(p.window.n_phases):
            phase = &p.window.phases[f]
            tiles = n_tiles(p, phase)
            if blocks == 1:
                conv_tiles(
                    p, slots, phase, 0, tiles, share_start(work * tiles, part, n_parts),
                    share_start(work * tiles, part + 1, n_parts),
                )
            else:
                first = share_start(tiles, part * blocks + block, n_parts * blocks)
                last = share_start(tiles, part * blocks + block + 1, n_parts * blocks)
                conv_tiles(p, slots, phase, first, last - first, 0, work * (last - first))


cdef void conv_tiles(
    const conv_t* p, char* const* slots, const phase_t* phase, Py_ssize_t first_tile,
    Py_ssize_t tiles, Py_ssize_t q, Py_ssize_t stop,
) noexcept nogil:
    """Shares q to stop of a phase for some of its tiles by all panels of all groups."""
    cdef const window_t* w = p.window
    cdef const kernels_t* kernels = p.kernels
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* weight = <const float*> at(slots, p.weight)
    cdef const float* residual = NULL
    cdef float* y = <float*> at(slots, p.y)
    cdef const float** rows = <const float**> at(slots, p.scratch)
    cdef Py_ssize_t mr = kernels.mr, nr = kernels.nr
    cdef Py_ssize_t panels = (p.out_channels + nr - 1) // nr, run = run_pixels(w, phase)
    cdef Py_ssize_t per_run = (run + mr - 1) // mr, tile, panel, group, start, n, i
    cdef Py_ssize_t depth = (phase.n_taps * p.in_channels + 1) * nr
    cdef Py_ssize_t at_tile = -1, at_group = -1, pixel = 0, m = 0, pending = 0
    cdef Py_ssize_t ldy = w.out_step_w * w.y_pitch, ldr = w.out_step_w * p.post.residual_pitch
    cdef float* y_tile
    cdef const float* r_tile
    if p.post.has_residual:
        residual = <const float*> at(slots, p.post.residual)
    while q < stop:
        if p.panel_major:
            tile, panel, group = q % tiles, q // tiles % panels, q // tiles // panels
        else:
            panel, tile, group = q % panels, q // panels % tiles, q // panels // tiles
        if tile != at_tile or group != at_group:
            at_tile, at_group = tile, group
            start = (first_tile + tile) % per_run * run // per_run
            m = ((first_tile + tile) % per_run + 1) * run // per_run - start
            pixel = (first_tile + tile) // per_run * run + start
            point_rows(w, phase, x + group * p.in_channels, p.zeros, pixel, m, rows)
            pixel = output_pixel(w, phase, pixel)
        n = min(nr, p.out_channels - panel * nr)
        y_tile = y + pixel * w.y_pitch + group * p.out_channels + panel * nr
        r_tile = NULL
        if residual != NULL:
            r_tile = (
                residual + pixel * p.post.residual_pitch + group * p.out_channels + panel * nr
            )
        if p.fetches:
            # Or the stores would wait for memory; until then there is a tile to compute.
            for i in range(m):
                fetch(y_tile + i * ldy)
                fetch(y_tile + i * ldy + n - 1)
        if p.is_narrow:
            kernels.narrow(
                m, phase.n_taps, p.in_channels, <const float* const*> rows, weight + phase.weight,
                y_tile, ldy, n,
                r_tile if p.post.residual_in_tile else NULL, ldr, p.post.lo, p.post.hi,
            )
        else:
            kernels.gemm[m](
                phase.n_taps, p.in_channels, <const float* const*> rows,
                weight + phase.weight + (group * panels + panel) * depth,
                panel_ahead(tile, depth, nr) if p.panel_major else 0,
                y_tile, ldy, n,
                r_tile if p.post.residual_in_tile else NULL, ldr, p.post.lo, p.post.hi,
            )
        q += 1
        # Post-ops take several panels at once: their rows are longer, and still in the cache.
        pending += n
        if p.panel_major or q == stop or panel + 1 == panels or pending >= POST_COLUMNS:
            n -= pending
            if r_tile != NULL:
                r_tile += n
            post_tile(&p.post, m, pending, y_tile + n, ldy, r_tile, ldr)
            pending = 0


# -- few input channels ------------------------------------------------------------------------

cdef struct shallow_t:
    const kernels_t* kernels
    const window_t* window
    ref_t x
    ref_t weight
    ref_t y
    ref_t scratch
    Py_ssize_t image_stride      # of the input, in elements
    Py_ssize_t row_stride
    Py_ssize_t unit              # adjacent elements that belong to one column
    Py_ssize_t run               # columns that a run holds
    Py_ssize_t columns           # columns that a run of all the pixels of a tile holds
    const float* zeros           # as many of them behind each column of an image
    bint fetches                 # lines of the output, ahead of a tile
    Py_ssize_t out_channels
    post_t post


cdef class ShallowConvStep(Step):
    """Convolution of an image of few channels.

    A run is a row of the filter: `run` columns of `unit` adjacent elements.  The micro-kernel reads
    runs where they lie; only those that reach over the border are copied first.

    Parameters
    ----------
    x : Value
        (n, c, h, w), in C order or channels-last without gaps.
    weight : Value
        Panels over receptive fields in the order of the runs.
    y : Value
        Channels-last.
    window : Window
        Its taps are the runs: (dy, dx) of their first column.
    offsets : sequence of int
        Where each run starts relative to the pixel's origin, in elements.
    unit, run : int
    out_channels : int
    scratch : Value
        :func:`shallow_scratch_bytes` for each thread.
    post : Post or None
    """

    cdef shallow_t p
    cdef Window window

    def __init__(self, x, weight, y, Window window, offsets, unit, run, out_channels, scratch,
                 post=None):
        cdef Py_ssize_t i
        cdef float[::1] zero_view
        self.window = window
        for i, offset in enumerate(offsets):
            window.w.phases[0].taps[i].offset = offset
        # The last column of a run counts for the border as well as the first.
        window.w.phases[0].max_dx += run - 1
        self.p.kernels = active()
        self.p.window = &window.w
        self.p.x, self.p.weight, self.p.y = self.ref(x), self.ref(weight), self.ref(y)
        self.p.scratch = self.ref(scratch)
        self.p.image_stride, self.p.row_stride = x.strides[0], x.strides[2]
        self.p.unit, self.p.run = unit, run
        self.p.out_channels = out_channels
        self.p.post = make_post(self, post)
        self.params = &self.p
        self.kind = "conv_shallow"
        mr = active().mr
        if is_by_rows(x.shape[3], y.shape[3], window.w.in_step_w, run):
            self.p.columns = tile_columns(window.w.in_step_w, run)
            zeros = np.zeros((x.shape[3] + self.p.columns) * unit, np.float32)
            zero_view = zeros
            self.p.zeros = &zero_view[0]
            self.keep = zeros
            self.run = shallow_rows_run
            self.p.fetches = 4 * y.size > FETCHED_ROW_BYTES
            self.max_parts = y.shape[0] * y.shape[2] * ceil_div(y.shape[3], mr)
        else:
            self.run = shallow_run
            self.max_parts = max(ceil_div(window.max_pixels, mr), 1)


cdef Py_ssize_t tile_columns(Py_ssize_t stride, Py_ssize_t run):
    """How many columns of the input all pixels of a tile see through one run."""
    return (active().mr - 1) * stride + run


cdef bint is_by_rows(Py_ssize_t in_w, Py_ssize_t out_w, Py_ssize_t stride, Py_ssize_t run):
    """Whether tiles stay inside output rows.

    The last tile of a row begins early enough to be whole, and computes some pixels that the one
    before it has computed: too many of them cost more than tiles that go on with the next row.
    """
    tiles = ceil_div(out_w, active().mr)
    whole = out_w >= active().mr and 6 * out_w >= 5 * tiles * active().mr
    # A stride far beyond the image is no reason for large copies.
    return whole and tile_columns(stride, run) <= 2 * (in_w + run)


def shallow_scratch_bytes(
    x, y, Py_ssize_t stride, Py_ssize_t n_runs, Py_ssize_t run, Py_ssize_t unit
):
    """Return the scratch of one thread: pointers to the runs of a tile, and copies of them.

    Parameters
    ----------
    x, y : Value
        Images, as ShallowConvStep has them.
    stride : int
        Columns of the input from one column of the output to the next.
    n_runs, run, unit : int
        How many runs a receptive field has, their columns and the elements of a column.
    """
    if is_by_rows(x.shape[3], y.shape[3], stride, run):
        return n_runs * (8 + 4 * tile_columns(stride, run) * unit)
    return active().mr * n_runs * (8 + 4 * run * unit)


cdef inline void copy_field(
    const shallow_t* p, const phase_t* phase, const float* origin, Py_ssize_t ih, Py_ssize_t iw,
    float* field,
) noexcept nogil:
    """Copy a receptive field that reaches over the border; what lies outside is zero."""
    cdef Py_ssize_t t, first, last, unit = p.unit
    memset(field, 0, phase.n_taps * p.run * unit * sizeof(float))
    for t in range(phase.n_taps):
        if 0 <= ih + phase.taps[t].dy < p.window.in_h:
            first = max(0, -(iw + phase.taps[t].dx))
            last = min(p.run, p.window.in_w - (iw + phase.taps[t].dx))
            if first < last:
                memcpy(
                    field + first * unit, origin + phase.taps[t].offset + first * unit,
                    (last - first) * unit * sizeof(float),
                )
        field += p.run * unit


cdef void shallow_run(
    const void* params, char* const* slots, Py_ssize_t part, Py_ssize_t n_parts
) noexcept nogil:
    """Cross-correlation of an image of few channels with packed filters, plus post-ops.

    The form for narrow images: the tiles are of any pixels, with one pointer per pixel and run.

    Layout : x (n, c, h, w) by runs of adjacent columns -> y (n, oh, ow, oc), pitched
    Needs  : weights packed in the order of the runs
    Threads: over tiles of pixels; no shared writes
    Source : torch.nn.Conv2d
    """
    cdef const shallow_t* p = <const shallow_t*> params
    cdef const window_t* w = p.window
    cdef const phase_t* phase = &w.phases[0]
    cdef const kernels_t* kernels = p.kernels
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* weight = <const float*> at(slots, p.weight)
    cdef const float* residual = NULL
    cdef const float* r_tile
    cdef float* y = <float*> at(slots, p.y)
    cdef Py_ssize_t mr = kernels.mr, nr = kernels.nr, pixels = w.n * w.out_h * w.out_w
    cdef const float** rows = <const float**> at(slots, p.scratch)
    cdef float* fields = <float*> (rows + mr * phase.n_taps)
    cdef float* field
    cdef Py_ssize_t tiles = ceil_div(pixels, mr), panels = ceil_div(p.out_channels, nr)
    cdef Py_ssize_t length = p.run * p.unit, depth = phase.n_taps * length
    cdef Py_ssize_t tile, start, m, i, t, panel, n, ow, oh, image, ih, iw, apart
    cdef const float* origin
    cdef bint in_one_row
    if p.post.has_residual:
        residual = <const float*> at(slots, p.post.residual)
    for tile in range(share_start(tiles, part, n_parts), share_start(tiles, part + 1, n_parts)):
        start = tile * pixels // tiles
        m = (tile + 1) * pixels // tiles - start
        ow, oh, image = start % w.out_w, start // w.out_w % w.out_h, start // w.out_w // w.out_h
        ih, iw = oh * w.in_step_h, ow * w.in_step_w
        in_one_row = ow + m <= w.out_w
        if in_one_row and is_inside(w, phase, ih, iw, iw + (m - 1) * w.in_step_w):
            origin = x + image * p.image_stride + ih * p.row_stride + iw * p.unit
            point_inside(phase, origin, w.in_step_w * p.unit, m, rows)
            apart = 0
        else:
            apart = m
        for i in range(apart):
            ih, iw = oh * w.in_step_h, ow * w.in_step_w
            origin = x + image * p.image_stride + ih * p.row_stride + iw * p.unit
            if is_inside(w, phase, ih, iw, iw):
                for t in range(phase.n_taps):
                    rows[t * m + i] = origin + phase.taps[t].offset
            else:
                field = fields + i * depth
                copy_field(p, phase, origin, ih, iw, field)
                for t in range(phase.n_taps):
                    rows[t * m + i] = field + t * length
            ow += 1
            if ow == w.out_w:
                ow = 0
                oh += 1
                if oh == w.out_h:
                    oh = 0
                    image += 1
        for panel in range(panels):
            n = min(nr, p.out_channels - panel * nr)
            r_tile = NULL
            if residual != NULL:
                r_tile = residual + start * p.post.residual_pitch + panel * nr
            kernels.gemm[m](
                phase.n_taps, length, <const float* const*> rows,
                weight + panel * (depth + 1) * nr, 0,
                y + start * w.y_pitch + panel * nr, w.y_pitch, n,
                r_tile if p.post.residual_in_tile else NULL, p.post.residual_pitch,
                p.post.lo, p.post.hi,
            )
        # Post-ops take all panels at once, as long rows.
        r_tile = NULL
        if residual != NULL:
            r_tile = residual + start * p.post.residual_pitch
        post_tile(
            &p.post, m, p.out_channels, y + start * w.y_pitch, w.y_pitch, r_tile,
            p.post.residual_pitch,
        )


cdef inline void point_runs(
    const shallow_t* p, const float* image, Py_ssize_t ih, Py_ssize_t iw, float* copies,
    const float** runs,
) noexcept nogil:
    """Fill runs[t] with the address of run t of a tile whose first pixel has origin (ih, iw).

    Where the run leaves the image, it is copied, with zeros for what lies outside.
    """
    cdef const phase_t* phase = &p.window.phases[0]
    cdef const float* origin = image + ih * p.row_stride + iw * p.unit
    cdef Py_ssize_t in_h = p.window.in_h, in_w = p.window.in_w, unit = p.unit, n = p.columns
    cdef Py_ssize_t t, row, column, first, last
    for t in range(phase.n_taps):
        row, column = ih + phase.taps[t].dy, iw + phase.taps[t].dx
        first, last = max(0, -column), min(n, in_w - column)
        if row < 0 or row >= in_h or first >= last:
            runs[t] = p.zeros
        elif last - first == n:
            runs[t] = origin + phase.taps[t].offset
        else:
            memset(copies, 0, first * unit * sizeof(float))
            memcpy(
                copies + first * unit, origin + phase.taps[t].offset + first * unit,
                (last - first) * unit * sizeof(float),
            )
            memset(copies + last * unit, 0, (n - last) * unit * sizeof(float))
            runs[t] = copies
            copies += n * unit


cdef void shallow_rows_run(
    const void* params, char* const* slots, Py_ssize_t part, Py_ssize_t n_parts
) noexcept nogil:
    """Cross-correlation of an image of few channels with packed filters, plus post-ops.

    The pixels of a tile lie in one row, so those of a run are a constant step apart.  The last tile
    of a row reaches back into the one before it, and stores what that one does not.

    Layout : x (n, c, h, w) by runs of adjacent columns -> y (n, oh, ow, oc), pitched
    Needs  : weights packed in the order of the runs; rows of at least one tile
    Threads: over tiles of pixels; no shared writes
    Source : torch.nn.Conv2d
    """
    cdef const shallow_t* p = <const shallow_t*> params
    cdef const window_t* w = p.window
    cdef const kernels_t* kernels = p.kernels
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* weight = <const float*> at(slots, p.weight)
    cdef const float* residual = NULL
    cdef const float* r_tile
    cdef float* y = <float*> at(slots, p.y)
    cdef float* y_tile
    cdef const float* image
    cdef const float** runs = <const float**> at(slots, p.scratch)
    cdef Py_ssize_t n_runs = w.phases[0].n_taps, length = p.run * p.unit
    cdef Py_ssize_t mr = kernels.mr, nr = kernels.nr, step = w.in_step_w * p.unit
    cdef Py_ssize_t panels = ceil_div(p.out_channels, nr), per_row = ceil_div(w.out_w, mr)
    cdef Py_ssize_t q = share_start(w.n * w.out_h * per_row, part, n_parts)
    cdef Py_ssize_t stop = share_start(w.n * w.out_h * per_row, part + 1, n_parts)
    # Where, in the input, the first pixel of a tile has its origin if no run meets a side border.
    cdef Py_ssize_t left = -w.phases[0].min_dx
    cdef Py_ssize_t right = w.in_w - w.phases[0].max_dx - (mr - 1) * w.in_step_w
    cdef Py_ssize_t i, t, row, tile, ow, iw, ih, first, pixel, panel, n
    cdef Py_ssize_t ldy = w.y_pitch, ldr = p.post.residual_pitch
    cdef bint was_inside, stays_inside
    if p.post.has_residual:
        residual = <const float*> at(slots, p.post.residual)
    while q < stop:
        row, tile = q // per_row, q % per_row
        image = x + row // w.out_h * p.image_stride
        ih = row % w.out_h * w.in_step_h
        was_inside = False
        while q < stop and tile < per_row:
            ow = min(tile * mr, w.out_w - mr)
            first = tile * mr - ow
            iw = ow * w.in_step_w
            stays_inside = left <= iw < right
            if was_inside and stays_inside and first == 0:
                for t in range(n_runs):
                    runs[t] += mr * step
            else:
                point_runs(p, image, ih, iw, <float*> (runs + n_runs), runs)
            was_inside = stays_inside
            pixel = row * w.out_w + ow
            for panel in range(panels):
                n = min(nr, p.out_channels - panel * nr)
                y_tile = y + pixel * ldy + panel * nr
                r_tile = NULL
                if residual != NULL:
                    r_tile = residual + pixel * ldr + panel * nr
                if p.fetches:
                    # Or the stores would wait for memory; until then there is a tile to compute.
                    for i in range(first, mr):
                        fetch(y_tile + i * ldy)
                        fetch(y_tile + i * ldy + n - 1)
                kernels.gemm_strided(
                    n_runs, length, <const float* const*> runs, step, first,
                    weight + panel * (n_runs * length + 1) * nr, y_tile, ldy, n,
                    r_tile if p.post.residual_in_tile else NULL, ldr, p.post.lo, p.post.hi,
                )
            # Post-ops take all panels at once, as long rows.
            r_tile = NULL
            if residual != NULL:
                r_tile = residual + (pixel + first) * ldr
            post_tile(
                &p.post, mr - first, p.out_channels, y + (pixel + first) * ldy, ldy, r_tile, ldr
            )
            tile += 1
            q += 1


# -- depthwise ---------------------------------------------------------------------------------

cdef struct depthwise_t:
    const kernels_t* kernels
    const window_t* window
    ref_t x
    ref_t weight
    ref_t y
    ref_t scratch
    const float* zeros
    Py_ssize_t channels
    Py_ssize_t kernel_h
    Py_ssize_t kernel_w
    dwrow_fn dwrow               # NULL where there is none for such windows
    post_t post


cdef class DepthwiseStep(Step):
    """Convolution with one filter per channel.

    Parameters
    ----------
    x, y : Value
        Channels-last, of equal numbers of channels.
    weight : Value
        Memory of a :class:`~kuiper._kernels.micro.packed.DepthwiseBlocks`.
    window : Window
        Its taps are rows of a kernel, one after the other.
    kernel, dilation : (int, int)
    scratch : Value
        :func:`depthwise_scratch_bytes` for each thread.
    post : Post or None
    """

    cdef depthwise_t p
    cdef Window window

    def __init__(self, x, weight, y, Window window, kernel, dilation, scratch, post=None):
        channels = x.shape[1]
        zeros = np.zeros(channels, np.float32)
        cdef float[::1] zero_view = zeros
        self.window = window
        self.keep = zeros
        self.p.kernels = active()
        self.p.window = &window.w
        self.p.x, self.p.weight, self.p.y = self.ref(x), self.ref(weight), self.ref(y)
        self.p.scratch = self.ref(scratch)
        self.p.zeros = &zero_view[0]
        self.p.channels = channels
        self.p.kernel_h, self.p.kernel_w = kernel
        self.p.dwrow = row_kernel(
            self.p.kernels, self.p.kernel_w, window.w.in_step_w, dilation[1]
        )
        self.p.post = make_post(self, post)
        self.run = depthwise_run
        self.params = &self.p
        self.kind = "conv_depthwise"
        self.max_parts = max(ceil_div(window.max_pixels, active().dw_m), 1)


def depthwise_scratch_bytes(Py_ssize_t n_taps):
    """Return the scratch of one thread: pointers to the taps of some pixels, or taps and steps."""
    return 8 * n_taps * max(active().dw_m, 2)


cdef void depthwise_run(
    const void* params, char* const* slots, Py_ssize_t part, Py_ssize_t n_parts
) noexcept nogil:
    """Depthwise cross-correlation, plus post-ops.

    Layout : x (n, h, w, c) -> y (n, oh, ow, c), pitched
    Needs  : packed weights for the table's lanes
    Threads: over pixels; no shared writes
    Source : torch.nn.Conv2d with groups = in_channels = out_channels
    """
    cdef const depthwise_t* p = <const depthwise_t*> params
    cdef const window_t* w = p.window
    cdef const phase_t* phase = &w.phases[0]
    cdef Py_ssize_t pixels = w.n * w.out_h * w.out_w
    cdef Py_ssize_t pixel = share_start(pixels, part, n_parts)
    cdef Py_ssize_t last = share_start(pixels, part + 1, n_parts), end, ow, m
    # Output columns whose taps all stay between the left and the right border.
    cdef Py_ssize_t left = ceil_div(max(0, -phase.min_dx), w.in_step_w)
    cdef Py_ssize_t right = max(left, ceil_div(max(0, w.in_w - phase.max_dx), w.in_step_w))
    while pixel < last and w.out_w < 2 * p.kernels.dw_m:
        # Short rows are mostly border: one pointer for each pixel and tap.
        m = min(p.kernels.dw_m, last - pixel)
        scattered_pixels(p, slots, pixel, m)
        pixel += m
    while pixel < last:
        ow = pixel % w.out_w
        end = min(last, pixel - ow + w.out_w)
        while pixel < end:
            m = 1
            if left <= ow < right:
                m = min(end - pixel, right - ow)
                if p.dwrow != NULL and m >= DW_ROW:
                    whole_windows(p, slots, pixel, m)
                else:
                    m = min(p.kernels.dw_m, m)
                    row_pixels(p, slots, pixel, m)
            else:
                row_pixels(p, slots, pixel, m)
            pixel += m
            ow += m


cdef inline void whole_windows(
    const depthwise_t* p, char* const* slots, Py_ssize_t pixel, Py_ssize_t count
) noexcept nogil:
    """Compute DW_ROW or more pixels of one output row, away from the side borders."""
    cdef const window_t* w = p.window
    cdef const phase_t* phase = &w.phases[0]
    cdef Py_ssize_t r_pitch = p.post.residual_pitch
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float** rows = <const float**> at(slots, p.scratch)
    cdef Py_ssize_t* steps = <Py_ssize_t*> (rows + p.kernel_h)
    cdef const float* weight = <const float*> at(slots, p.weight)
    cdef const float* residual = NULL
    cdef float* y
    cdef Py_ssize_t image = pixel // (w.out_w * w.out_h), ow = pixel % w.out_w
    cdef Py_ssize_t ih = pixel // w.out_w % w.out_h * w.in_step_h
    cdef Py_ssize_t done = 0, start, u, row
    while done < count:
        # The last windows may overlap those ahead of them: the same comes out again.
        start = min(done, count - DW_ROW)
        for u in range(p.kernel_h):
            row = ih + phase.taps[u * p.kernel_w].dy
            if 0 <= row < w.in_h:
                rows[u] = x + (
                    (image * w.in_h + row) * w.in_w + (ow + start) * w.in_step_w
                    + phase.taps[0].dx
                ) * w.x_pitch
                steps[u] = w.x_pitch
            else:
                rows[u] = p.zeros
                steps[u] = 0
        y = <float*> at(slots, p.y) + (pixel + start) * w.y_pitch
        if p.post.has_residual:
            residual = <const float*> at(slots, p.post.residual) + (pixel + start) * r_pitch
        p.dwrow(
            p.kernel_h, p.channels, <const float* const*> rows, steps, weight, y, w.y_pitch,
            residual if p.post.residual_in_tile else NULL, r_pitch, p.post.lo, p.post.hi,
        )
        post_tile(&p.post, DW_ROW, p.channels, y, w.y_pitch, residual, r_pitch)
        done = start + DW_ROW


cdef inline void scattered_pixels(
    const depthwise_t* p, char* const* slots, Py_ssize_t pixel, Py_ssize_t m
) noexcept nogil:
    """Compute m pixels of any rows, all channels."""
    cdef const float** pixels = <const float**> at(slots, p.scratch)
    point_rows(
        p.window, &p.window.phases[0], <const float*> at(slots, p.x), p.zeros, pixel, m, pixels
    )
    depthwise_pixels(p, slots, pixel, m, <const float* const*> pixels, NULL)


cdef inline void row_pixels(
    const depthwise_t* p, char* const* slots, Py_ssize_t pixel, Py_ssize_t m
) noexcept nogil:
    """Compute m pixels of one output row, all channels; m > 1 only away from the side borders."""
    cdef const window_t* w = p.window
    cdef const phase_t* phase = &w.phases[0]
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float** pixels = <const float**> at(slots, p.scratch)
    cdef Py_ssize_t* steps = <Py_ssize_t*> (pixels + phase.n_taps)
    cdef Py_ssize_t ih = pixel // w.out_w % w.out_h * w.in_step_h
    cdef Py_ssize_t iw = pixel % w.out_w * w.in_step_w
    cdef Py_ssize_t image = pixel // (w.out_w * w.out_h), t
    cdef const float* origin = x + ((image * w.in_h + ih) * w.in_w + iw) * w.x_pitch
    for t in range(phase.n_taps):
        if 0 <= ih + phase.taps[t].dy < w.in_h and 0 <= iw + phase.taps[t].dx < w.in_w:
            pixels[t] = origin + phase.taps[t].offset
            steps[t] = w.in_step_w * w.x_pitch
        else:
            pixels[t] = p.zeros
            steps[t] = 0
    depthwise_pixels(p, slots, pixel, m, <const float* const*> pixels, steps)


cdef inline void depthwise_pixels(
    const depthwise_t* p, char* const* slots, Py_ssize_t pixel, Py_ssize_t m,
    const float* const* pixels, const Py_ssize_t* steps,
) noexcept nogil:
    """Run the micro-kernel on m pixels that lie one behind the other in the output."""
    cdef const window_t* w = p.window
    cdef const float* residual = NULL
    cdef float* y = <float*> at(slots, p.y) + pixel * w.y_pitch
    if p.post.has_residual:
        residual = <const float*> at(slots, p.post.residual) + pixel * p.post.residual_pitch
    p.kernels.dwconv[m](
        w.phases[0].n_taps, p.channels, pixels, steps,
        <const float*> at(slots, p.weight), y, w.y_pitch,
        residual if p.post.residual_in_tile else NULL, p.post.residual_pitch,
        p.post.lo, p.post.hi,
    )
    post_tile(&p.post, m, p.channels, y, w.y_pitch, residual, p.post.residual_pitch)


# -- the kernel alone --------------------------------------------------------------------------

def conv2d(const float[:, :, :, ::1] x, const float[:, :, :, ::1] weight, bias=None, *,
           stride=(1, 1), padding=(0, 0), dilation=(1, 1), int groups=1, int n_threads=1):
    """Convolve channels-last images, without graph or plan: to learn from, to test and to measure.

    Parameters
    ----------
    x : array, shape (n, height, width, in_channels), float32
    weight : array, shape (out_channels, in_channels / groups, kernel_h, kernel_w), float32
        PyTorch's order.
    bias : array, shape (out_channels,), float32, optional
    stride, padding, dilation : (int, int)
    groups : int
    n_threads : int

    Returns
    -------
    numpy.ndarray, shape (n, out_height, out_width, out_channels), float32

    Raises
    ------
    InputError
        If extents do not fit each other.
    """
    cdef Py_ssize_t out_channels = weight.shape[0], in_channels = weight.shape[1]
    cdef Py_ssize_t kernel_h = weight.shape[2], kernel_w = weight.shape[3]
    cdef Py_ssize_t n = x.shape[0], height = x.shape[1], width = x.shape[2]
    if groups < 1 or x.shape[3] != in_channels * groups or out_channels % groups:
        raise InputError(
            f"x has {x.shape[3]} channels and weight shape {np.shape(weight)}, which do not "
            f"fit {groups} groups"
        )
    if min(*stride, *dilation) < 1 or min(padding) < 0 or n_threads < 1 or kernel_h * kernel_w == 0:
        raise InputError("stride, dilation, kernel and n_threads must be >= 1, padding >= 0")
    if bias is not None and np.shape(bias) != (out_channels,):
        raise InputError(f"bias has shape {np.shape(bias)}, expected ({out_channels},)")
    out_h = (height + 2 * padding[0] - dilation[0] * (kernel_h - 1) - 1) // stride[0] + 1
    out_w = (width + 2 * padding[1] - dilation[1] * (kernel_w - 1) - 1) // stride[1] + 1
    if out_h < 1 or out_w < 1 or n < 1:
        raise InputError(f"the output would have shape {(n, out_h, out_w, out_channels)}")
    by_tap = np.asarray(weight).reshape(out_channels, in_channels, -1).transpose(0, 2, 1)
    size = out_channels // groups
    packed = np.concatenate([
        pack_panels(
            by_tap[g * size:(g + 1) * size], None if bias is None else bias[g * size:(g + 1) * size]
        ).ravel()
        for g in range(groups)
    ])
    y = np.empty((n, out_h, out_w, out_channels), np.float32)
    taps = [
        (u * dilation[0] - padding[0], v * dilation[1] - padding[1])
        for u in range(kernel_h) for v in range(kernel_w)
    ]
    scratch_bytes = conv_scratch_bytes(len(taps))
    shapes = ((n, x.shape[3], height, width), (n, out_channels, out_h, out_w))
    images = [
        Value(Buffer(slot, 0, "input"), shape, channels_last_strides(shape))
        for slot, shape in enumerate(shapes)
    ]
    panels = Value(Buffer(2, 0, "input"), packed.shape, (1,))
    scratch = Value(Buffer(3, 0, "scratch"), (scratch_bytes,), (1,), dtype=np.uint8)
    window = Window(images[0], images[1], stride, (1, 1), [((0, 0), (out_h, out_w), taps, 0)])
    step = ConvStep(images[0], panels, images[1], window, groups, in_channels, size, scratch)
    shares = np.empty((n_threads, scratch_bytes), np.uint8)
    run_alone(step, [np.asarray(x), y, packed, (shares,)], n_threads)
    return y
