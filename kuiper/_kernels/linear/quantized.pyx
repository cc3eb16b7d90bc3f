"""Integer products: rows of floats as bytes, and rows of bytes times a packed weight of bytes."""

from libc.stdint cimport uint8_t

from kuiper._kernels.conv.epilogue cimport epilogue_t, make_epilogue, make_sums_end, residual_at
from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.micro.table cimport (
    MAX_TILE_ROWS, byte_prefetch_distance, kernels_t, sums_end_t,
)
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start

cdef enum:
    PANEL_BYTES = 512 * 1024     # larger weights do not stay in the L2 cache
    ROWS_PER_SHARD = 4


cdef struct rows_to_bytes_t:
    const kernels_t* kernels
    ref_t x                      # (rows, depth), float32
    ref_t y                      # (rows, 4 * quads), uint8
    ref_t factors                # (rows,), float32
    Py_ssize_t rows
    Py_ssize_t depth
    Py_ssize_t width             # 4 * quads
    Py_ssize_t x_stride          # row strides, in elements
    Py_ssize_t y_stride


cdef class QuantizeRowsStep(Step):
    """Rows of floats as unsigned bytes, with one factor per row.

    Parameters
    ----------
    x : TensorView, shape (rows, depth)
        Elements of a row are adjacent; any row stride.
    y : TensorView, shape (rows, 4 * quads), uint8
        Elements of a row are adjacent; 4 * quads >= depth.
    factors : TensorView, shape (rows,)
    """

    cdef rows_to_bytes_t p

    def __init__(self, x, y, factors):
        self.p.kernels = active()
        self.p.x, self.p.y, self.p.factors = self.ref(x), self.ref(y), self.ref(factors)
        self.p.rows, self.p.depth = x.shape
        self.p.width = y.shape[1]
        self.p.x_stride, self.p.y_stride = x.strides[0], y.strides[0]
        self.run = quantize_rows_run
        self.params = &self.p
        self.kind = "quantize_rows"
        self.bytes = x.n_bytes + y.n_bytes
        self.max_shards = max(ceil_div(self.p.rows, ROWS_PER_SHARD), 1)


cdef void quantize_rows_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Divide each row by 1/127 of its largest magnitude and round to nearest even.

    Layout : x (rows, depth) -> y (rows, 4 * quads), any row strides; factors (rows,)
    Needs  : float32; depth <= 4 * quads
    Threads: over rows
    Source : torch.ao.nn.quantized.dynamic.Linear, with a scale per row instead of one
    """
    cdef const rows_to_bytes_t* p = <const rows_to_bytes_t*> params
    cdef Py_ssize_t first = shard_start(p.rows, shard, n_shards)
    cdef Py_ssize_t last = shard_start(p.rows, shard + 1, n_shards)
    p.kernels.f32_quantize_rows(
        <const float*> at(slots, p.x) + first * p.x_stride, p.x_stride, last - first, p.depth,
        <uint8_t*> at(slots, p.y) + first * p.y_stride, p.y_stride, p.width,
        <float*> at(slots, p.factors) + first,
    )


cdef struct quantized_linear_t:
    const kernels_t* kernels
    ref_t x                      # (rows, 4 * quads), uint8
    ref_t factors                # (rows,)
    ref_t weight                 # panels of QuantizedPanels
    ref_t y                      # (rows, columns)
    Py_ssize_t rows
    Py_ssize_t quads
    Py_ssize_t columns
    Py_ssize_t panel_bytes
    Py_ssize_t x_stride          # row strides, in elements
    Py_ssize_t y_stride
    bint panel_major             # all tiles of a panel before the next panel
    epilogue_t epilogue
    sums_end_t end


cdef class QuantizedLinearStep(Step):
    """y = (x - BYTE_ZERO) @ weight.T * factors * scales + bias for rows of bytes, plus post-ops.

    Parameters
    ----------
    x : TensorView, shape (rows, 4 * quads), uint8
    factors : TensorView, shape (rows,)
        As :class:`QuantizeRowsStep` writes them.
    weight : TensorView
        The memory of a :class:`~kuiper._kernels.micro.packed.QuantizedPanels`.
    panel_bytes : int
        Of the weight.
    y : TensorView, shape (rows, columns), float32
        Elements of a row are adjacent; any row stride.
    depth : int
        Number of terms of a sum, for the profile.
    epilogue : Epilogue or None
    """

    cdef quantized_linear_t p

    def __init__(self, x, factors, weight, panel_bytes, y, depth, epilogue=None):
        self.p.kernels = active()
        self.p.x, self.p.factors = self.ref(x), self.ref(factors)
        self.p.weight, self.p.y = self.ref(weight), self.ref(y)
        self.p.rows, self.p.columns = y.shape
        self.p.quads = x.shape[1] // 4
        self.p.panel_bytes = panel_bytes
        self.p.x_stride, self.p.y_stride = x.strides[0], y.strides[0]
        self.p.panel_major = weight.n_bytes > PANEL_BYTES
        self.p.epilogue = make_epilogue(self, epilogue)
        self.p.end = make_sums_end(&self.p.epilogue, epilogue)
        self.p.end.factor_per_row = True
        self.run = quantized_linear_run
        self.params = &self.p
        self.kind = "quantized_linear"
        self.flops = 2.0 * y.size * depth
        self.bytes = x.n_bytes + weight.n_bytes + y.n_bytes
        tiles = ceil_div(self.p.rows, active().dot_mr) * ceil_div(self.p.columns, active().nr)
        self.max_shards = max(tiles, 1)


cdef void quantized_linear_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Multiply rows of bytes by packed bytes, scale the exact sums and apply the epilogue.

    Layout : x (rows, 4 * quads), bytes -> y (rows, columns), any row strides
    Needs  : weights packed for the table's tile
    Threads: over tiles of rows x panels of columns; the sum over depth is never split
    Source : torch.ao.nn.quantized.dynamic.Linear
    """
    cdef const quantized_linear_t* p = <const quantized_linear_t*> params
    cdef const kernels_t* kernels = p.kernels
    cdef const uint8_t* x = <const uint8_t*> at(slots, p.x)
    cdef const float* factors = <const float*> at(slots, p.factors)
    cdef const char* weight = <const char*> at(slots, p.weight)
    cdef float* y = <float*> at(slots, p.y)
    cdef (const uint8_t*)[MAX_TILE_ROWS] rows
    cdef Py_ssize_t nr = kernels.nr, panels = ceil_div(p.columns, nr)
    cdef Py_ssize_t tiles = ceil_div(p.rows, kernels.dot_mr), work = tiles * panels
    cdef Py_ssize_t q, tile, panel, start, m, n, i, at_tile = -1
    start = m = 0
    for q in range(shard_start(work, shard, n_shards), shard_start(work, shard + 1, n_shards)):
        if p.panel_major:
            tile, panel = q % tiles, q // tiles
        else:
            panel, tile = q % panels, q // panels
        if tile != at_tile:
            at_tile = tile
            start = tile * p.rows // tiles
            m = (tile + 1) * p.rows // tiles - start
            for i in range(m):
                rows[i] = x + (start + i) * p.x_stride
        n = min(nr, p.columns - panel * nr)
        # Only the first tile of a panel finds it in memory: it prefetches the next one.
        kernels.u8s8_gemm[m](
            1, p.quads, <const uint8_t* const*> rows, weight + panel * p.panel_bytes,
            byte_prefetch_distance(tile, p.panel_bytes, nr) if p.panel_major else 0,
            factors + start, y + start * p.y_stride + panel * nr, p.y_stride, n,
            residual_at(&p.epilogue, slots, start * p.epilogue.ldr + panel * nr), p.epilogue.ldr,
            &p.end,
        )
