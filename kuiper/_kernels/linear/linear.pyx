"""Dense products: rows times packed weights (Linear), and matrix times matrix (matmul)."""

import numpy as np

from libc.math cimport INFINITY
from libc.string cimport memset

from kuiper._kernels.conv.epilogue cimport epilogue_t, finish_tile, make_epilogue, residual_at
from kuiper._kernels.data.strided cimport cursor_t, fill_strided, seek, strided_t
from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.micro.packing cimport pack_halves, pack_panel
from kuiper._kernels.micro.table cimport (
    MAX_MR, MAX_TILE_ROWS, bfloat16_t, kernels_t, prefetch_distance, sums_end_t,
)
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start

from kuiper._kernels.micro.packing import pack_panels
from kuiper._runtime.step import run_step
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import Buffer, TensorView, contiguous_strides
from kuiper.errors import InputError

cdef enum:
    PANEL_BYTES = 512 * 1024     # larger weights do not stay in the L2 cache
    RESIDENT_BYTES = 768 * 1024  # larger inputs do not stay in the L2 cache from panel to panel
    BLOCK_BYTES = 256 * 1024     # input of a block that does
    MIN_TILES = 4                # per block


cdef struct linear_t:
    const kernels_t* kernels
    ref_t x                      # (rows, depth)
    ref_t weight                 # (panels, 1 + depth, nr)
    ref_t y                      # (rows, columns)
    Py_ssize_t rows
    Py_ssize_t depth
    Py_ssize_t columns
    Py_ssize_t x_stride          # row strides, in elements
    Py_ssize_t y_stride
    bint panel_major             # all tiles of a panel before the next panel
    epilogue_t epilogue


cdef class LinearStep(Step):
    """y = x @ weight.T + bias for rows of x, plus post-ops.

    Parameters
    ----------
    x : TensorView, shape (rows, depth)
        Elements of a row are adjacent; any row stride.
    weight : TensorView
        Panels of :func:`~kuiper._kernels.micro.packing.pack_panels`.
    y : TensorView, shape (rows, columns)
        Elements of a row are adjacent; any row stride.
    epilogue : Epilogue or None
    """

    cdef linear_t p

    def __init__(self, x, weight, y, epilogue=None):
        self.p.kernels = active()
        self.p.x, self.p.weight, self.p.y = self.ref(x), self.ref(weight), self.ref(y)
        self.p.rows, self.p.depth = x.shape
        self.p.columns = y.shape[1]
        self.p.x_stride, self.p.y_stride = x.strides[0], y.strides[0]
        self.p.panel_major = weight.n_bytes > PANEL_BYTES
        self.p.epilogue = make_epilogue(self, epilogue)
        self.run = linear_run
        self.params = &self.p
        self.kind = "linear"
        self.flops = 2.0 * x.size * self.p.columns
        self.bytes = x.n_bytes + weight.n_bytes + y.n_bytes
        tiles = ceil_div(self.p.rows, active().mr) * ceil_div(self.p.columns, active().nr)
        self.max_shards = max(tiles, 1)


cdef void linear_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Multiply rows by packed weights and apply the epilogue: y[i,j] = sum_k x[i,k] w[k,j] + b[j].

    Layout : x (rows, depth) -> y (rows, columns), any row strides
    Needs  : weights packed for the table's tile
    Threads: over tiles of rows x panels of columns; the sum over depth is never split
    Source : torch.nn.Linear
    """
    cdef const linear_t* p = <const linear_t*> params
    cdef Py_ssize_t tiles = ceil_div(p.rows, p.kernels.mr)
    cdef Py_ssize_t work = ceil_div(p.columns, p.kernels.nr)
    cdef Py_ssize_t blocks = row_blocks(p, tiles, n_shards), block, first, last
    if blocks == 0:
        linear_tiles(
            p, slots, 0, tiles, shard_start(work * tiles, shard, n_shards),
            shard_start(work * tiles, shard + 1, n_shards),
        )
    for block in range(blocks):
        first = shard_start(tiles, shard * blocks + block, n_shards * blocks)
        last = shard_start(tiles, shard * blocks + block + 1, n_shards * blocks)
        linear_tiles(p, slots, first, last - first, 0, work * (last - first))


cdef Py_ssize_t row_blocks(
    const linear_t* p, Py_ssize_t tiles, Py_ssize_t n_shards
) noexcept nogil:
    """Return the number of blocks of rows per shard; a block is read once for all panels.

    0 for small inputs: shards are then ranges of tiles x panels, which balance better.
    """
    cdef Py_ssize_t x_bytes = 4 * p.rows * p.depth, panel_bytes = 4 * p.kernels.nr * p.depth
    if not p.panel_major or x_bytes <= RESIDENT_BYTES:
        return 0
    return min(
        max(x_bytes // (n_shards * max(BLOCK_BYTES, 2 * panel_bytes)), 1),
        tiles // (n_shards * MIN_TILES),
    )


cdef void linear_tiles(
    const linear_t* p, char* const* slots, Py_ssize_t first_tile, Py_ssize_t tiles, Py_ssize_t q,
    Py_ssize_t stop,
) noexcept nogil:
    """Compute items q to stop - 1 of (tiles x panels), for `tiles` tiles of rows."""
    cdef const kernels_t* kernels = p.kernels
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* weight = <const float*> at(slots, p.weight)
    cdef const float* residual
    cdef float* y = <float*> at(slots, p.y)
    cdef float* y_tile
    cdef (const float*)[MAX_MR] rows
    cdef Py_ssize_t nr = kernels.nr, panels = ceil_div(p.columns, nr)
    cdef Py_ssize_t all_tiles = ceil_div(p.rows, kernels.mr)
    cdef Py_ssize_t tile, panel, start, m, n, i, at_tile = -1
    start = m = 0
    for q in range(q, stop):
        if p.panel_major:
            tile, panel = q % tiles, q // tiles
        else:
            panel, tile = q % panels, q // panels
        if tile != at_tile:
            at_tile = tile
            start = (first_tile + tile) * p.rows // all_tiles
            m = (first_tile + tile + 1) * p.rows // all_tiles - start
            for i in range(m):
                rows[i] = x + (start + i) * p.x_stride
        n = min(nr, p.columns - panel * nr)
        y_tile = y + start * p.y_stride + panel * nr
        residual = residual_at(&p.epilogue, slots, start * p.epilogue.ldr + panel * nr)
        kernels.f32_gemm[m](
            1, p.depth, <const float* const*> rows, weight + panel * (p.depth + 1) * nr,
            prefetch_distance(tile, (p.depth + 1) * nr, nr) if p.panel_major else 0,
            y_tile, p.y_stride, n,
            residual if p.epilogue.residual_in_tile else NULL, p.epilogue.ldr,
            p.epilogue.lo, p.epilogue.hi,
        )
        finish_tile(&p.epilogue, m, n, y_tile, p.y_stride, residual, p.epilogue.ldr)


# -- matrix times matrix -----------------------------------------------------------------------

max_batch_axes = 6  # of one step; callers merge leading axes

cdef struct matmul_t:
    const kernels_t* kernels
    ref_t a                      # (..., rows, depth)
    ref_t b                      # (..., depth, columns)
    ref_t y                      # (..., rows, columns)
    ref_t scratch                # (1 + depth, nr): the packed panel of a shard
    Py_ssize_t rows
    Py_ssize_t depth
    Py_ssize_t columns
    Py_ssize_t a_stride          # row stride, in elements as all strides
    Py_ssize_t b_row
    Py_ssize_t b_column
    Py_ssize_t y_stride
    Py_ssize_t row_blocks        # per matrix
    strided_t batch              # the leading axes of a, b and y, in elements
    sums_end_t end               # of products of bfloat16


cdef class MatmulStep(Step):
    """y = a @ b for matrices that are both computed at run time.

    Parameters
    ----------
    a : TensorView, shape (..., rows, depth)
        Elements of a row are adjacent.
    b : TensorView, shape (..., depth, columns)
        Any strides.
    y : TensorView, shape (..., rows, columns)
        Elements of a row are adjacent.  All three have the same leading axes, at most
        `max_batch_axes`; a stride of 0 broadcasts.
    scratch : TensorView
        ``4 * (depth + 1) * nr`` bytes for each thread.
    """

    cdef matmul_t p

    def __init__(self, a, b, y, scratch):
        self.p.kernels = active()
        self.p.a, self.p.b, self.p.y = self.ref(a), self.ref(b), self.ref(y)
        self.p.scratch = self.ref(scratch)
        self.p.rows, self.p.depth = a.shape[a.rank - 2], a.shape[a.rank - 1]
        self.p.columns = b.shape[b.rank - 1]
        self.p.a_stride = a.strides[a.rank - 2]
        self.p.b_row, self.p.b_column = b.strides[b.rank - 2], b.strides[b.rank - 1]
        self.p.y_stride = y.strides[y.rank - 2]
        leading = zip(y.shape[:-2], zip(a.strides, b.strides, y.strides))
        self.keep = fill_strided(&self.p.batch, list(leading), 3)
        panels = ceil_div(self.p.columns, active().nr)
        # Few matrices of few columns: several shards pack the same panel, each for a block of rows.
        self.p.row_blocks = 1
        if self.p.batch.count * panels < 16:
            self.p.row_blocks = max(1, min(16, self.p.rows // (8 * active().mr)))
        self.run = matmul_run
        self.params = &self.p
        self.kind = "matmul"
        self.flops = 2.0 * y.size * self.p.depth
        self.bytes = a.n_bytes + b.n_bytes + y.n_bytes
        self.max_shards = max(self.p.batch.count * panels * self.p.row_blocks, 1)


cdef void matmul_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Batched matrix product: y[..., i, j] = sum_k a[..., i, k] b[..., k, j].

    Layout : a (..., rows, depth), b (..., depth, columns) -> y (..., rows, columns)
    Needs  : rows of a and y without gaps between elements
    Threads: over matrices x panels of columns x blocks of rows
    Source : torch.matmul
    """
    cdef const matmul_t* p = <const matmul_t*> params
    cdef const kernels_t* kernels = p.kernels
    cdef const float* a
    cdef const float* b
    cdef float* y
    cdef float* panel = <float*> at(slots, p.scratch)
    cdef (const float*)[MAX_MR] rows
    cdef Py_ssize_t nr = kernels.nr, mr = kernels.mr, panels = (p.columns + nr - 1) // nr
    cdef Py_ssize_t items = p.batch.count * panels * p.row_blocks
    cdef Py_ssize_t q, index, block, first, last, tiles, t, start, m, n, i, packed = -1
    cdef Py_ssize_t no_offset = 0
    cdef cursor_t cursor
    for q in range(shard_start(items, shard, n_shards), shard_start(items, shard + 1, n_shards)):
        block, index = q % p.row_blocks, q // p.row_blocks % panels
        seek(&p.batch, 3, &cursor, q // p.row_blocks // panels)
        a = <const float*> at(slots, p.a) + cursor.offset[0]
        b = <const float*> at(slots, p.b) + cursor.offset[1]
        y = <float*> at(slots, p.y) + cursor.offset[2]
        n = min(nr, p.columns - index * nr)
        if q // p.row_blocks != packed:
            packed = q // p.row_blocks
            pack_panel(
                kernels, b + index * nr * p.b_column, p.b_column, 1, &no_offset, p.depth, p.b_row,
                NULL, n, panel,
            )
        first = p.rows * block // p.row_blocks
        last = p.rows * (block + 1) // p.row_blocks
        tiles = (last - first + mr - 1) // mr
        for t in range(tiles):
            start = first + t * (last - first) // tiles
            m = first + (t + 1) * (last - first) // tiles - start
            for i in range(m):
                rows[i] = a + (start + i) * p.a_stride
            kernels.f32_gemm[m](
                1, p.depth, <const float* const*> rows, panel, 0,
                y + start * p.y_stride + index * nr, p.y_stride, n, NULL, 0,
                -INFINITY, INFINITY,
            )


cdef class PairMatmulStep(MatmulStep):
    """y = a @ b for matrices of bfloat16 that are both computed at run time.

    Parameters
    ----------
    a : TensorView, bfloat16
    b : TensorView, bfloat16
        The elements of a row are adjacent, or those of a column; then the depth is even, and so are
        all other strides.
    y : TensorView
        bfloat16 or float32.
    scratch : TensorView
        As of :class:`MatmulStep`, as all else.
    """

    def __init__(self, a, b, y, scratch):
        MatmulStep.__init__(self, a, b, y, scratch)
        memset(&self.p.end, 0, sizeof(self.p.end))
        self.p.end.lo, self.p.end.hi = -INFINITY, INFINITY
        self.p.end.to_bfloat16 = y.dtype == BFLOAT16
        self.run = pair_matmul_run
        self.kind = "matmul_bfloat16"


cdef void pair_matmul_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Batched matrix product of bfloat16, with sums in float32.

    Layout : a (..., rows, depth), b (..., depth, columns) -> y (..., rows, columns)
    Needs  : rows of a and y, and rows or columns of b, without gaps between elements
    Threads: over matrices x panels of columns x blocks of rows
    Source : torch.matmul
    """
    cdef const matmul_t* p = <const matmul_t*> params
    cdef const kernels_t* kernels = p.kernels
    cdef const bfloat16_t* a
    cdef const bfloat16_t* b
    cdef char* y
    cdef float* panel = <float*> at(slots, p.scratch)
    cdef (const bfloat16_t*)[MAX_TILE_ROWS] rows
    cdef Py_ssize_t nr = kernels.nr, mr = kernels.pair_mr, panels = ceil_div(p.columns, nr)
    cdef Py_ssize_t y_bytes = sizeof(bfloat16_t) if p.end.to_bfloat16 else sizeof(float)
    cdef Py_ssize_t items = p.batch.count * panels * p.row_blocks
    cdef Py_ssize_t q, index, block, first, last, tiles, t, start, m, n, i, packed = -1
    cdef cursor_t cursor
    for q in range(shard_start(items, shard, n_shards), shard_start(items, shard + 1, n_shards)):
        block, index = q % p.row_blocks, q // p.row_blocks % panels
        seek(&p.batch, 3, &cursor, q // p.row_blocks // panels)
        a = <const bfloat16_t*> at(slots, p.a) + cursor.offset[0]
        b = <const bfloat16_t*> at(slots, p.b) + cursor.offset[1]
        y = at(slots, p.y) + (cursor.offset[2] + index * nr) * y_bytes
        n = min(nr, p.columns - index * nr)
        if q // p.row_blocks != packed:
            packed = q // p.row_blocks
            pack_halves(
                kernels, b + index * nr * p.b_column, p.b_column, p.b_row, p.depth, n, panel
            )
        first = p.rows * block // p.row_blocks
        last = p.rows * (block + 1) // p.row_blocks
        tiles = ceil_div(last - first, mr)
        for t in range(tiles):
            start = first + t * (last - first) // tiles
            m = first + (t + 1) * (last - first) // tiles - start
            for i in range(m):
                rows[i] = a + (start + i) * p.a_stride
            kernels.bf16_gemm[m](
                1, p.depth, <const bfloat16_t* const*> rows, panel, 0,
                y + start * p.y_stride * y_bytes, p.y_stride, n, NULL, 0,
                &p.end if p.end.to_bfloat16 else NULL,
            )


# -- without a plan ----------------------------------------------------------------------------

def linear(const float[:, ::1] x, const float[:, ::1] weight, bias=None, *, int n_threads=1):
    """Multiply rows by a weight without graph or plan, for learning, tests and measurements.

    Parameters
    ----------
    x : array, shape (rows, in_features), float32
    weight : array, shape (out_features, in_features), float32
        PyTorch's order.
    bias : array, shape (out_features,), float32, optional
    n_threads : int

    Returns
    -------
    numpy.ndarray, shape (rows, out_features), float32

    Raises
    ------
    InputError
        If extents do not fit each other.
    """
    if x.shape[1] != weight.shape[1] or n_threads < 1:
        raise InputError(
            f"x has shape {np.shape(x)} and weight {np.shape(weight)}; their last axes "
            "must agree, and n_threads must be >= 1"
        )
    if bias is not None and np.shape(bias) != (weight.shape[0],):
        raise InputError(f"bias has shape {np.shape(bias)}, expected ({weight.shape[0]},)")
    packed = pack_panels(np.asarray(weight)[:, np.newaxis, :], bias, n_threads)
    y = np.empty((x.shape[0], weight.shape[0]), np.float32)
    values = [
        TensorView(Buffer(slot, 0, "input"), array.shape, contiguous_strides(array.shape))
        for slot, array in enumerate((np.asarray(x), packed, y))
    ]
    run_step(LinearStep(*values), [np.asarray(x), packed, y], n_threads)
    return y
