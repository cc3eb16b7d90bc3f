"""Attention: softmax(scale * q @ k.T + mask) @ v, without a matrix of scores in memory.

A tile has as many query rows as the GEMM tile.  Its scores against all keys stay in the caches
between the two products, so the (queries, keys) matrix is never written.  Each shard packs the keys
and values of its heads once.
"""

import numpy as np

from libc.math cimport INFINITY
from libc.stdint cimport uint8_t
from libc.string cimport memcpy, memset

from kuiper._kernels.data.strided cimport cursor_t, fill_strided, seek, strided_t
from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.micro.packing cimport pack_halves, pack_panel, padded
from kuiper._kernels.micro.table cimport MAX_MR, MAX_TILE_ROWS, bfloat16_t, kernels_t
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start

from kuiper.ir.dtypes import BFLOAT16

cdef double FLOPS_PER_BLOCK = 1e9    # of a block of rows, at least

max_batch_axes = 6  # of one step; callers merge leading axes

cdef enum mask_t:
    NO_MASK
    ADDED          # float, added to the scores
    KEEPS          # bool, True: the query attends to the key
    HIDES          # bool, True: it does not

cdef struct matrices_t:
    ref_t ref
    Py_ssize_t row               # strides, in elements
    Py_ssize_t column

cdef struct attention_t:
    const kernels_t* kernels
    matrices_t q                 # (..., queries, depth)
    matrices_t k                 # (..., keys, depth)
    matrices_t v                 # (..., keys, columns)
    matrices_t y                 # (..., queries, columns)
    matrices_t mask              # (..., queries, keys)
    matrices_t weights           # (..., queries, keys)
    ref_t scratch                # packed keys and values of a head, scores of a tile
    mask_t mask_kind
    bint is_causal
    bint has_weights
    bint to_bfloat16             # y; only of products of bfloat16
    float scale
    Py_ssize_t queries
    Py_ssize_t keys
    Py_ssize_t depth             # of a query and a key
    Py_ssize_t columns           # of a value
    Py_ssize_t blocks            # of query rows
    strided_t batch              # the leading axes of q, k, v, y, mask and weights, in elements


cdef matrices_t matrices(ref_t ref, value):
    cdef matrices_t m
    m.ref = ref
    m.row, m.column = value.strides[value.rank - 2], value.strides[value.rank - 1]
    return m


def attention_scratch_bytes(Py_ssize_t keys, Py_ssize_t depth, Py_ssize_t columns):
    """Return the bytes of scratch per thread: packed keys and values, scores of a tile."""
    cdef Py_ssize_t nr = active().nr
    floats = (
        padded(keys, nr) * (depth + 1) + padded(columns, nr) * (keys + 1)
        + active().mr * padded(keys, nr)
    )
    return 4 * floats


cdef class AttentionStep(Step):
    """Scaled dot-product attention.

    Parameters
    ----------
    q : TensorView, shape (..., queries, depth)
        Elements of a row are adjacent.
    k : TensorView, shape (..., keys, depth)
        Any strides.
    v : TensorView, shape (..., keys, columns)
        Any strides.
    y : TensorView, shape (..., queries, columns)
        Elements of a row are adjacent.  All operands have the same leading axes, at most
        `max_batch_axes`; a stride of 0 broadcasts.
    scratch : TensorView
        :func:`attention_scratch_bytes` for each thread.
    scale : float
    mask : TensorView, shape (..., queries, keys), optional
        float32, added to the scores, with adjacent elements in a row; or bool with any strides.
    mask_hides : bool
        Whether True in a bool mask hides a key; otherwise False hides it.
    is_causal : bool
        Whether query i attends to keys 0 to i only.
    weights : TensorView, shape (..., queries, keys), optional
        Receives the softmax; elements of a row are adjacent.
    """

    cdef attention_t p

    def __init__(self, q, k, v, y, scratch, scale, mask=None, mask_hides=False, is_causal=False,
                 weights=None):
        cdef double head
        cdef Py_ssize_t heads
        self.p.kernels = active()
        self.p.q, self.p.k = matrices(self.ref(q), q), matrices(self.ref(k), k)
        self.p.v, self.p.y = matrices(self.ref(v), v), matrices(self.ref(y), y)
        self.p.scratch = self.ref(scratch)
        self.p.scale = scale
        self.p.mask_kind = NO_MASK
        if mask is not None:
            self.p.mask = matrices(self.ref(mask), mask)
            if mask.dtype == np.float32:
                self.p.mask_kind = ADDED
            else:
                self.p.mask_kind = HIDES if mask_hides else KEEPS
        self.p.is_causal = is_causal
        self.p.has_weights = weights is not None
        if weights is not None:
            self.p.weights = matrices(self.ref(weights), weights)
        self.p.queries, self.p.depth = q.shape[q.rank - 2], q.shape[q.rank - 1]
        self.p.keys, self.p.columns = v.shape[v.rank - 2], v.shape[v.rank - 1]
        # y stands in for missing operands, whose offsets are not used.
        operands = [y if value is None else value for value in (q, k, v, y, mask, weights)]
        leading = zip(y.shape[:-2], zip(*(value.strides[:-2] for value in operands)))
        self.keep = fill_strided(&self.p.batch, list(leading), len(operands))
        heads = self.p.batch.count
        # For few heads, and for long ones because a run can end only between shards, several shards
        # pack the same keys, each for a block of query rows.
        head = 2.0 * self.p.queries * self.p.keys * (self.p.depth + self.p.columns)
        self.p.blocks = max(
            1,
            min(
                max(16 if heads < 16 else 1, <Py_ssize_t> (head / FLOPS_PER_BLOCK)),
                self.p.queries // (8 * active().mr),
            ),
        )
        self.run = attention_run
        self.params = &self.p
        self.kind = "attention"
        self.flops = head * heads
        self.bytes = q.n_bytes + k.n_bytes + v.n_bytes + y.n_bytes
        self.max_shards = max(heads * self.p.blocks, 1)


cdef void pack_head(
    const attention_t* p, const float* k, const float* v, float* keys, float* values
) noexcept nogil:
    """Pack the keys, scaled and as columns, and the values into panels."""
    cdef Py_ssize_t nr = p.kernels.nr, panel, n, i, no_offset = 0
    for panel in range(ceil_div(p.keys, nr)):
        n = min(nr, p.keys - panel * nr)
        pack_panel(
            p.kernels, k + panel * nr * p.k.row, p.k.row, 1, &no_offset, p.depth, p.k.column, NULL,
            n, keys,
        )
        for i in range(nr, (p.depth + 1) * nr):
            keys[i] = keys[i] * p.scale
        keys += (p.depth + 1) * nr
    for panel in range(ceil_div(p.columns, nr)):
        n = min(nr, p.columns - panel * nr)
        pack_panel(
            p.kernels, v + panel * nr * p.v.column, p.v.column, 1, &no_offset, p.keys, p.v.row,
            NULL, n, values,
        )
        values += (p.keys + 1) * nr


cdef inline void hide_keys(
    const attention_t* p, const uint8_t* mask, Py_ssize_t start, Py_ssize_t m, Py_ssize_t n,
    float* scores, Py_ssize_t ld,
) noexcept nogil:
    """Set the scores of keys that are hidden from a row to -inf."""
    cdef bint hides = p.mask_kind == HIDES
    cdef Py_ssize_t i, j
    for i in range(m):
        if mask != NULL:
            for j in range(n):
                if (mask[i * p.mask.row + j * p.mask.column] != 0) == hides:
                    scores[i * ld + j] = -INFINITY
        if p.is_causal:
            for j in range(start + i + 1, n):
                scores[i * ld + j] = -INFINITY


cdef inline bint is_hidden(const float* scores, Py_ssize_t n) noexcept nogil:
    """Whether all scores of a row are -inf."""
    cdef Py_ssize_t j
    for j in range(n):
        if scores[j] != -INFINITY:
            return False
    return True


cdef inline void softmax_tile(
    const attention_t* p, Py_ssize_t m, Py_ssize_t n, float* scores, Py_ssize_t ld
) noexcept nogil:
    """Softmax of m rows of n scores, in place; zeros for a row whose keys are all hidden."""
    cdef bint[MAX_MR] hidden
    cdef Py_ssize_t i
    if n == 0:
        return
    for i in range(m):
        hidden[i] = p.mask_kind != NO_MASK and is_hidden(scores + i * ld, n)
    p.kernels.f32_softmax_rows(False, scores, ld, scores, ld, m, n, 1)
    for i in range(m):
        if hidden[i]:
            memset(scores + i * ld, 0, n * sizeof(float))


cdef struct block_t:             # query rows of one head
    Py_ssize_t head
    Py_ssize_t q                 # offsets, in elements
    Py_ssize_t k
    Py_ssize_t v
    Py_ssize_t y
    const float* added           # or NULL, as the next two
    const uint8_t* mask
    float* weights
    Py_ssize_t first
    Py_ssize_t last


cdef inline block_t block_of(
    const attention_t* p, char* const* slots, Py_ssize_t item
) noexcept nogil:
    """Return a block of query rows; those of one head are adjacent."""
    cdef block_t o
    cdef cursor_t cursor
    cdef Py_ssize_t block = item % p.blocks
    o.head = item // p.blocks
    seek(&p.batch, 6, &cursor, o.head)
    o.q, o.k, o.v, o.y = cursor.offset[0], cursor.offset[1], cursor.offset[2], cursor.offset[3]
    o.added, o.mask, o.weights = NULL, NULL, NULL
    if p.mask_kind == ADDED:
        o.added = <const float*> at(slots, p.mask.ref) + cursor.offset[4]
    elif p.mask_kind != NO_MASK:
        o.mask = <const uint8_t*> at(slots, p.mask.ref) + cursor.offset[4]
    if p.has_weights:
        o.weights = <float*> at(slots, p.weights.ref) + cursor.offset[5]
    o.first = p.queries * block // p.blocks
    o.last = p.queries * (block + 1) // p.blocks
    return o


cdef void attention_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Scaled dot-product attention by tiles of query rows: y = softmax(scale q k' + mask) v.

    Layout : q (..., l, d), k (..., s, d), v (..., s, e) -> y (..., l, e)
    Needs  : rows of q, y, a float mask and the weights without gaps between elements
    Threads: over heads x blocks of query rows
    Source : torch.nn.functional.scaled_dot_product_attention
    """
    cdef const attention_t* p = <const attention_t*> params
    cdef const kernels_t* kernels = p.kernels
    cdef Py_ssize_t nr = kernels.nr, mr = kernels.mr, ld = padded(p.keys, nr)
    cdef float* keys = <float*> at(slots, p.scratch)
    cdef float* values = keys + ld * (p.depth + 1)
    cdef float* scores = values + padded(p.columns, nr) * (p.keys + 1)
    cdef const float* q
    cdef float* y
    cdef (const float*)[MAX_MR] rows
    cdef Py_ssize_t items = p.batch.count * p.blocks, item, tiles, t
    cdef Py_ssize_t start, m, n, i, panel, packed = -1
    cdef block_t o
    for item in range(shard_start(items, shard, n_shards), shard_start(items, shard + 1, n_shards)):
        o = block_of(p, slots, item)
        q = <const float*> at(slots, p.q.ref) + o.q
        y = <float*> at(slots, p.y.ref) + o.y
        if o.head != packed:
            packed = o.head
            pack_head(
                p, <const float*> at(slots, p.k.ref) + o.k, <const float*> at(slots, p.v.ref) + o.v,
                keys, values,
            )
        tiles = ceil_div(o.last - o.first, mr)
        for t in range(tiles):
            start = o.first + t * (o.last - o.first) // tiles
            m = o.first + (t + 1) * (o.last - o.first) // tiles - start
            # All later keys are hidden from the rows of the tile.
            n = min(p.keys, start + m) if p.is_causal else p.keys
            for i in range(m):
                rows[i] = q + (start + i) * p.q.row
            for panel in range(ceil_div(n, nr)):
                kernels.f32_gemm[m](
                    1, p.depth, <const float* const*> rows, keys + panel * (p.depth + 1) * nr, 0,
                    scores + panel * nr, ld, min(nr, n - panel * nr),
                    o.added + start * p.mask.row + panel * nr if o.added != NULL else NULL,
                    p.mask.row,
                    -INFINITY, INFINITY,
                )
            hide_keys(
                p, o.mask + start * p.mask.row if o.mask != NULL else NULL, start, m, n, scores, ld
            )
            softmax_tile(p, m, n, scores, ld)
            for i in range(m):
                rows[i] = scores + i * ld
                if o.weights != NULL:
                    memcpy(
                        o.weights + (start + i) * p.weights.row, scores + i * ld, n * sizeof(float)
                    )
                    memset(
                        o.weights + (start + i) * p.weights.row + n, 0, (p.keys - n) * sizeof(float)
                    )
            for panel in range(ceil_div(p.columns, nr)):
                kernels.f32_gemm[m](
                    1, n, <const float* const*> rows, values + panel * (p.keys + 1) * nr, 0,
                    y + start * p.y.row + panel * nr, p.y.row, min(nr, p.columns - panel * nr),
                    NULL, 0, -INFINITY, INFINITY,
                )


# -- in bfloat16 -------------------------------------------------------------------------------

def pairs_scratch_bytes(Py_ssize_t keys, Py_ssize_t depth, Py_ssize_t columns):
    """Return the bytes of scratch per thread: pairs of keys and values, a tile's scores and terms,
    its results and the sums of its terms.
    """
    cdef const kernels_t* kernels = active()
    cdef Py_ssize_t nr = kernels.nr, ld = padded(keys, nr), width = padded(columns, nr)
    floats = (
        ld * (1 + depth // 2) + width * (1 + ceil_div(keys, 2))
        + kernels.pair_mr * (ld + ceil_div(ld, 2) + width) + MAX_TILE_ROWS
    )
    return 4 * floats


cdef class PairAttentionStep(AttentionStep):
    """Scaled dot-product attention of bfloat16, whose terms are rounded after the exponential.

    Parameters
    ----------
    q, k, v : TensorView, bfloat16
        Elements of a row are adjacent.  The depth is even, and so are all other strides of k.
    y : TensorView
        bfloat16 or float32.
    scratch : TensorView
        :func:`pairs_scratch_bytes` for each thread.
    scale : float
        Positive.
    **options
        All but `weights`, as of :class:`AttentionStep`.
    """

    def __init__(self, q, k, v, y, scratch, scale, **options):
        AttentionStep.__init__(self, q, k, v, y, scratch, scale, **options)
        self.p.to_bfloat16 = y.dtype == BFLOAT16
        self.run = pair_attention_run
        self.kind = "attention_bfloat16"


cdef void pack_head_pairs(
    const attention_t* p, const bfloat16_t* k, const bfloat16_t* v, float* keys, float* values
) noexcept nogil:
    """Pack pairs of the features of each key, and pairs of keys of each value's feature."""
    cdef Py_ssize_t nr = p.kernels.nr, panel, n
    for panel in range(ceil_div(p.keys, nr)):
        n = min(nr, p.keys - panel * nr)
        pack_halves(p.kernels, k + panel * nr * p.k.row, p.k.row, 1, p.depth, n, keys)
        keys += (1 + p.depth // 2) * nr
    for panel in range(ceil_div(p.columns, nr)):
        n = min(nr, p.columns - panel * nr)
        pack_halves(p.kernels, v + panel * nr, 1, p.v.row, p.keys, n, values)
        values += (1 + ceil_div(p.keys, 2)) * nr


cdef void pair_attention_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Scaled dot-product attention of bfloat16 by tiles of query rows.

    Layout : as attention_run
    Needs  : rows of q, k, v, y and a float mask without gaps between elements; pairs of k aligned
    Threads: over heads x blocks of query rows
    Source : torch.nn.functional.scaled_dot_product_attention; the division by the sum of the terms
             after the product with the values, as in FlashAttention (arXiv:2205.14135)
    """
    cdef const attention_t* p = <const attention_t*> params
    cdef const kernels_t* kernels = p.kernels
    cdef Py_ssize_t nr = kernels.nr, mr = kernels.pair_mr, ld = padded(p.keys, nr)
    cdef Py_ssize_t width = padded(p.columns, nr)
    cdef Py_ssize_t key_panel = (1 + p.depth // 2) * nr
    cdef Py_ssize_t value_panel = (1 + ceil_div(p.keys, 2)) * nr
    cdef float* keys = <float*> at(slots, p.scratch)
    cdef float* values = keys + ld // nr * key_panel
    cdef float* scores = values + width // nr * value_panel
    cdef float* tile = scores + mr * ld
    cdef float* sums = tile + mr * width
    cdef bfloat16_t* terms = <bfloat16_t*> (sums + MAX_TILE_ROWS)
    cdef const bfloat16_t* q
    cdef char* y
    cdef (const bfloat16_t*)[MAX_TILE_ROWS] rows
    cdef Py_ssize_t y_bytes = sizeof(bfloat16_t) if p.to_bfloat16 else sizeof(float)
    cdef Py_ssize_t items = p.batch.count * p.blocks, item, tiles, t
    cdef Py_ssize_t start, m, n, i, panel, packed = -1
    cdef block_t o
    for item in range(shard_start(items, shard, n_shards), shard_start(items, shard + 1, n_shards)):
        o = block_of(p, slots, item)
        q = <const bfloat16_t*> at(slots, p.q.ref) + o.q
        y = at(slots, p.y.ref) + o.y * y_bytes
        if o.head != packed:
            packed = o.head
            pack_head_pairs(
                p, <const bfloat16_t*> at(slots, p.k.ref) + o.k,
                <const bfloat16_t*> at(slots, p.v.ref) + o.v, keys, values,
            )
        tiles = ceil_div(o.last - o.first, mr)
        for t in range(tiles):
            start = o.first + t * (o.last - o.first) // tiles
            m = o.first + (t + 1) * (o.last - o.first) // tiles - start
            n = min(p.keys, start + m) if p.is_causal else p.keys
            for i in range(m):
                rows[i] = q + (start + i) * p.q.row
            for panel in range(ceil_div(n, nr)):
                kernels.bf16_gemm[m](
                    1, p.depth, <const bfloat16_t* const*> rows, keys + panel * key_panel, 0,
                    scores + panel * nr, ld, min(nr, n - panel * nr), NULL, 0, NULL,
                )
            hide_keys(
                p, o.mask + start * p.mask.row if o.mask != NULL else NULL, start, m, n, scores, ld
            )
            kernels.bf16_exp_rows(
                m, n, scores, ld, p.scale,
                o.added + start * p.mask.row if o.added != NULL else NULL, p.mask.row,
                p.mask_kind != NO_MASK, terms, ld, sums,
            )
            for i in range(m):
                rows[i] = terms + i * ld
            for panel in range(width // nr):
                kernels.bf16_gemm[m](
                    1, n, <const bfloat16_t* const*> rows, values + panel * value_panel, 0,
                    tile + panel * nr, width, min(nr, p.columns - panel * nr), NULL, 0, NULL,
                )
            kernels.bf16_divide_rows(
                m, p.columns, tile, width, sums, y + start * p.y.row * y_bytes, p.y.row,
                p.to_bfloat16,
            )
