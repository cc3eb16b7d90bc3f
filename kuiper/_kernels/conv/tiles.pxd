# The order of an implicit GEMM: which tiles of pixels, and which panels, a shard computes.
#
# Small weights stay in the L2 cache: all panels are applied to a tile before the next tile.  Large
# weights should be read once: a panel is applied to all tiles before the next panel (panel-major).

from kuiper._kernels.conv.window cimport phase_t, window_t
from kuiper._runtime.step cimport ceil_div, shard_start

cdef enum:
    BLOCK_BYTES = 256 * 1024     # input that stays in the L2 cache from panel to panel
    MIN_TILES = 8                # per block
    PANEL_BYTES = 512 * 1024     # larger weights do not stay in the L2 cache beside the input

ctypedef struct tiling_t:
    const window_t* window
    Py_ssize_t mr                # rows of the register tile
    Py_ssize_t groups
    Py_ssize_t panels            # of one group
    bint panel_major
    Py_ssize_t x_bytes
    Py_ssize_t panel_bytes       # of the largest panel

# Items q to stop - 1 of (tiles x panels x groups) of a phase.
ctypedef struct share_t:
    Py_ssize_t q
    Py_ssize_t stop
    Py_ssize_t first_tile
    Py_ssize_t tiles
    Py_ssize_t run               # pixels at a constant distance in the output
    Py_ssize_t per_run           # tiles of a run

ctypedef struct item_t:
    Py_ssize_t tile              # from the share's first
    Py_ssize_t panel
    Py_ssize_t group


cdef inline Py_ssize_t n_runs(const window_t* w, const phase_t* phase) noexcept nogil:
    """Return the number of runs of a phase: the batch, one image or one row each.

    The pixels of a run have a constant distance in the output.
    """
    if w.out_step_w > 1 or w.out_step > 1 or phase.width < w.out_w:
        return w.n * phase.height
    return 1 if phase.height == w.out_h else w.n


cdef inline Py_ssize_t run_pixels(const window_t* w, const phase_t* phase) noexcept nogil:
    return w.n * phase.height * phase.width // max(n_runs(w, phase), 1)


cdef inline Py_ssize_t n_tiles(const tiling_t* t, const phase_t* phase) noexcept nogil:
    return n_runs(t.window, phase) * ceil_div(run_pixels(t.window, phase), t.mr)


cdef inline Py_ssize_t pixel_blocks(const tiling_t* t, Py_ssize_t n_shards) noexcept nogil:
    """Return the number of blocks per thread; a block is read once for all panels and phases.

    1 means no blocks: shards are then ranges of tiles x panels, which balance small images.
    """
    cdef const window_t* w = t.window
    cdef Py_ssize_t f, tiles = 1 << 40, blocks
    if w.n_phases == 1 and not t.panel_major:
        return 1
    for f in range(w.n_phases):
        tiles = min(tiles, n_tiles(t, &w.phases[f]))
    blocks = t.x_bytes // n_shards // max(<Py_ssize_t> BLOCK_BYTES, 2 * t.panel_bytes)
    return max(min(blocks, tiles // n_shards // MIN_TILES), 1)


cdef inline share_t share_of(
    const tiling_t* t, const phase_t* phase, Py_ssize_t block, Py_ssize_t blocks, Py_ssize_t shard,
    Py_ssize_t n_shards,
) noexcept nogil:
    """Return what a shard computes of a phase in one of its blocks."""
    cdef share_t share
    cdef Py_ssize_t tiles = n_tiles(t, phase), work = t.groups * t.panels, last
    share.run = run_pixels(t.window, phase)
    share.per_run = ceil_div(share.run, t.mr)
    if blocks == 1:
        share.first_tile, share.tiles = 0, tiles
        share.q = shard_start(work * tiles, shard, n_shards)
        share.stop = shard_start(work * tiles, shard + 1, n_shards)
    else:
        share.first_tile = shard_start(tiles, shard * blocks + block, n_shards * blocks)
        last = shard_start(tiles, shard * blocks + block + 1, n_shards * blocks)
        share.tiles = last - share.first_tile
        share.q, share.stop = 0, work * share.tiles
    return share


cdef inline item_t item_of(const tiling_t* t, const share_t* share) noexcept nogil:
    """Return the tile, panel and group of item q of a share."""
    cdef item_t item
    cdef Py_ssize_t q = share.q
    if t.panel_major:
        item.tile = q % share.tiles
        item.panel = q // share.tiles % t.panels
        item.group = q // share.tiles // t.panels
    else:
        item.panel = q % t.panels
        item.tile = q // t.panels % share.tiles
        item.group = q // t.panels // share.tiles
    return item


cdef inline Py_ssize_t first_pixel(
    const share_t* share, Py_ssize_t tile, Py_ssize_t* m
) noexcept nogil:
    """Return the first pixel of a tile, counted in its phase, and in `m` the number of pixels."""
    cdef Py_ssize_t at = (share.first_tile + tile) % share.per_run
    cdef Py_ssize_t start = at * share.run // share.per_run
    m[0] = (at + 1) * share.run // share.per_run - start
    return (share.first_tile + tile) // share.per_run * share.run + start
