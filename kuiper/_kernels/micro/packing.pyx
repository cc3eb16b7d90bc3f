"""Packing of weights into the panels that the GEMM tile reads."""

import math

import numpy as np

from libc.stdint cimport uint16_t

from kuiper._kernels.micro.dispatch cimport active
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start
from kuiper._runtime.stored_rows cimport read_rows, stored_t, where_stored
from kuiper._kernels.micro.table cimport kernels_t
from kuiper._runtime.thread_pool cimport parallel_for

from kuiper._runtime.pages import aligned_empty


cdef extern from "_runtime/populate.h" nogil:
    void populate "kp_populate"(char* first, Py_ssize_t n_bytes) noexcept

cdef extern from "_runtime/work_shares.h" nogil:
    void count_up "kp_finish"(int* count) noexcept


cdef enum:
    # Bytes of a weight read, converted and packed at a time; the buffer is reused and stays in the
    # cache.
    PACKED_BYTES = 1 << 20


def n_panels(Py_ssize_t columns):
    """Return the number of panels of `columns` columns."""
    return (columns + active().nr - 1) // active().nr


def parts(weight, int n_threads, int together=1):
    """Yield slices of the first axis of a weight, PACKED_BYTES or one panel per thread each.

    `together` adjacent panels are never split.
    """
    cdef Py_ssize_t columns = weight.shape[0], step, start
    cdef Py_ssize_t panels = active().nr * together * n_threads
    row_bytes = 4 * math.prod(weight.shape[1:])
    step = panels * max(PACKED_BYTES // max(panels * row_bytes, 1), 1)
    for start in range(0, columns, step):
        yield slice(start, min(start + step, columns))


def panels_of(rows):
    """Return the slice of panels that hold a slice of columns, which starts with a panel."""
    return slice(rows.start // active().nr, n_panels(rows.stop))


def pack_panels(weight, bias, int n_threads=1, out=None):
    """Pack a matrix, given as its transpose, into panels of `nr` columns.

    Parameters
    ----------
    weight : array, shape (columns, taps, channels), float32
        Any strides; the sum runs over taps, then channels.  May be an object with a shape whose
        slices are such arrays; it is sliced part by part.  If it has `in_file`, a
        :class:`~kuiper._runtime.stored_rows.StoredRows` of (channels, taps) for each column,
        threads read the file directly.
    bias : array, shape (columns,), or None
    n_threads : int
    out : array, optional
        Memory for the result.

    Returns
    -------
    numpy.ndarray, shape (panels, 1 + taps * channels, nr), float32
        Each panel starts with its biases; missing columns are zero.
    """
    cdef stored_t where
    columns, taps, channels = weight.shape
    packed = out
    if out is None:
        packed = aligned_empty((n_panels(columns), 1 + taps * channels, active().nr))
    where = where_stored(weight)
    if where.descriptor >= 0 and pack_stored(
        where, columns, taps, channels, bias, packed, n_threads
    ):
        return packed
    for rows in parts(weight, n_threads):
        pack_rows(weight[rows], None if bias is None else bias[rows], packed[panels_of(rows)],
                  n_threads)
    return packed


def pack_pairs(weight, bias, int n_threads, out):
    """Pack a matrix, given as its transpose, into panels of pairs of bfloat16.

    Columns are rounded such that their sums stay nearly the same.

    Parameters
    ----------
    weight, bias, n_threads
        As of :func:`pack_panels`.
    out : array, uint16
        In the shape of a :class:`~kuiper._kernels.micro.packed.PairPanels`.
    """
    _, taps, channels = weight.shape
    for rows in parts(weight, n_threads):
        some = None if bias is None else bias[rows]
        floats = pack_panels(weight[rows], some, n_threads)
        pair_panels(floats, taps, channels, out[panels_of(rows)], n_threads)


cdef struct pairs_t:             # the job of threads that round panels
    const kernels_t* kernels
    float* floats                # (panels, 1 + taps * channels, nr), is overwritten
    char* out
    Py_ssize_t panel_bytes       # of `out`
    Py_ssize_t taps
    Py_ssize_t channels


cdef pair_panels(
    float[:, :, ::1] floats, Py_ssize_t taps, Py_ssize_t channels, uint16_t[:, :, ::1] out,
    int n_threads,
):
    cdef pairs_t job
    if floats.shape[0] == 0:
        return
    job.kernels, job.floats, job.out = active(), &floats[0, 0, 0], <char*> &out[0, 0, 0]
    job.panel_bytes = 2 * out.shape[1] * out.shape[2]
    job.taps, job.channels = taps, channels
    with nogil:
        parallel_for(round_panel, &job, floats.shape[0], n_threads)


cdef void round_panel(void* job, Py_ssize_t panel, Py_ssize_t rank) noexcept nogil:
    cdef pairs_t* p = <pairs_t*> job
    cdef Py_ssize_t terms = p.taps * p.channels, nr = p.kernels.nr
    cdef float* floats = p.floats + panel * (1 + terms) * nr
    p.kernels.bf16_keep_sums(terms, floats + nr)
    p.kernels.bf16_pack(p.taps, p.channels, floats, NULL, 0, p.out + panel * p.panel_bytes)


cdef bint pack_stored(
    stored_t where, Py_ssize_t columns, Py_ssize_t taps, Py_ssize_t channels, bias,
    float[:, :, ::1] out, int n_threads,
) except *:
    """Read and pack columns of (channels, taps); return whether all were read."""
    cdef const kernels_t* kernels = active()
    cdef Py_ssize_t size = channels * taps
    cdef const Py_ssize_t[::1] offsets = tap_offsets(taps, 1)
    cdef const float[::1] b = biases(bias, columns)
    cdef float[:, ::1] filters = np.empty((max(n_threads, 1), kernels.nr * size), np.float32)
    cdef panels_t job
    if out.shape[0] == 0 or size == 0:
        return False
    job.kernels, job.where, job.failures = kernels, where, 0
    job.column, job.channel, job.offsets = size, taps, &offsets[0]
    job.columns, job.taps, job.channels = columns, taps, channels
    job.bias, job.space, job.out = &b[0], &filters[0, 0], &out[0, 0, 0]
    with nogil:
        parallel_for(read_and_pack, &job, out.shape[0], n_threads)
    return job.failures == 0


cdef void read_and_pack(void* job, Py_ssize_t panel, Py_ssize_t rank) noexcept nogil:
    cdef panels_t* panels = <panels_t*> job
    cdef Py_ssize_t nr = panels.kernels.nr, start = panel * nr
    cdef Py_ssize_t panel_size = (1 + panels.column) * nr
    cdef float* space = panels.space + rank * nr * panels.column
    cdef float* out = panels.out + panel * panel_size
    populate(<char*> out, 4 * panel_size)
    if not read_rows(&panels.where, start, min(start + nr, panels.columns), <char*> space):
        count_up(&panels.failures)
    pack_one(panels, space, start, out)


cdef pack_rows(const float[:, :, :] weight, bias, float[:, :, ::1] out, int n_threads):
    cdef const Py_ssize_t[::1] offsets = tap_offsets(weight.shape[1], weight.strides[1] // 4)
    cdef const float[::1] b = biases(bias, weight.shape[0])
    cdef panels_t job
    if weight.shape[0] == 0:
        return
    job = panels_of_columns(weight, b, offsets)
    job.out = &out[0, 0, 0]
    with nogil:
        parallel_for(pack_in_memory, &job, ceil_div(job.columns, job.kernels.nr), n_threads)


cdef const float[::1] biases(object bias, Py_ssize_t columns):
    return np.zeros(columns, np.float32) if bias is None else bias


cdef const Py_ssize_t[::1] tap_offsets(Py_ssize_t taps, Py_ssize_t apart):
    return np.arange(max(taps, 1), dtype=np.intp) * apart


cdef panels_t panels_of_columns(
    const float[:, :, :] weight, const float[::1] bias, const Py_ssize_t[::1] offsets
):
    cdef panels_t job
    job.kernels, job.bias, job.offsets = active(), &bias[0], &offsets[0]
    job.columns, job.taps, job.channels = weight.shape[0], weight.shape[1], weight.shape[2]
    job.column, job.channel = weight.strides[0] // 4, weight.strides[2] // 4
    # A filter without taps has no element to point to.
    job.first = &weight[0, 0, 0] if job.taps * job.channels > 0 else NULL
    return job


cdef void pack_in_memory(void* job, Py_ssize_t panel, Py_ssize_t rank) noexcept nogil:
    cdef panels_t* panels = <panels_t*> job
    cdef Py_ssize_t nr = panels.kernels.nr, start = panel * nr
    pack_one(
        panels, panels.first + start * panels.column, start,
        panels.out + panel * (1 + panels.taps * panels.channels) * nr,
    )


cdef inline void pack_one(
    const panels_t* panels, const float* columns, Py_ssize_t start, float* out
) noexcept nogil:
    pack_panel(
        panels.kernels, columns, panels.column, panels.taps, panels.offsets, panels.channels,
        panels.channel, panels.bias + start, min(panels.kernels.nr, panels.columns - start), out,
    )


cdef struct pack_t:
    const kernels_t* kernels
    ref_t weight                 # (groups, columns, taps, channels), float32, any strides
    ref_t bias                   # (groups * columns,), float32
    ref_t packed                 # (groups, panels, 1 + taps * channels, nr), float32
    ref_t offsets                # (taps,), intp, in elements
    bint has_bias
    Py_ssize_t groups
    Py_ssize_t columns           # of one group
    Py_ssize_t taps
    Py_ssize_t channels
    Py_ssize_t group_stride      # in elements
    Py_ssize_t column_stride
    Py_ssize_t channel_stride


cdef class PackStep(Step):
    """Pack a weight that is computed at run time.

    Parameters
    ----------
    weight : TensorView
    bias : TensorView or None, shape (groups * columns,)
    packed : TensorView
        Panels of all groups, one group after the other.
    offsets : TensorView, shape (taps,), intp
        Offset of each tap in the weight, in elements.
    groups, columns, taps, channels : int
        `columns` and `channels` of one group.
    strides : (int, int, int)
        Of groups, columns and channels in the weight, in elements.
    """

    cdef pack_t p

    def __init__(self, weight, bias, packed, offsets, groups, columns, taps, channels, strides):
        self.p.weight, self.p.packed = self.ref(weight), self.ref(packed)
        self.p.offsets = self.ref(offsets)
        self.p.has_bias = bias is not None
        if bias is not None:
            self.p.bias = self.ref(bias)
        self.p.kernels = active()
        self.p.groups, self.p.columns = groups, columns
        self.p.taps, self.p.channels = taps, channels
        self.p.group_stride, self.p.column_stride, self.p.channel_stride = strides
        self.run = pack_run
        self.params = &self.p
        self.kind = "pack"
        self.max_shards = max(self.p.groups * ceil_div(self.p.columns, self.p.kernels.nr), 1)


cdef void pack_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Pack filters into panels.

    Layout : weight, any strides -> packed (groups, panels, 1 + taps * channels, nr)
    Needs  : bias without gaps
    Threads: over panels
    Source : the layout of gemm_fn in table.pxd
    """
    cdef const pack_t* p = <const pack_t*> params
    cdef const float* weight = <const float*> at(slots, p.weight)
    cdef const float* bias = NULL
    cdef float* packed = <float*> at(slots, p.packed)
    cdef Py_ssize_t nr = p.kernels.nr, panels = ceil_div(p.columns, nr), q, group, panel
    cdef Py_ssize_t items = p.groups * panels
    for q in range(shard_start(items, shard, n_shards), shard_start(items, shard + 1, n_shards)):
        group, panel = q // panels, q % panels
        if p.has_bias:
            bias = <const float*> at(slots, p.bias) + group * p.columns + panel * nr
        pack_panel(
            p.kernels, weight + group * p.group_stride + panel * nr * p.column_stride,
            p.column_stride, p.taps, <const Py_ssize_t*> at(slots, p.offsets), p.channels,
            p.channel_stride, bias, min(nr, p.columns - panel * nr),
            packed + q * (p.taps * p.channels + 1) * nr,
        )


cdef struct rounding_t:
    const kernels_t* kernels
    ref_t floats                 # (panels, 1 + taps * channels, nr), float32
    ref_t pairs                  # the panels in bfloat16
    ref_t factors                # (channels,), float32
    bint has_factors
    Py_ssize_t panels
    Py_ssize_t panel_bytes       # in bfloat16
    Py_ssize_t taps
    Py_ssize_t channels


cdef class PairStep(Step):
    """Round panels to pairs of bfloat16, for weights that are computed or scaled at run time.

    Parameters
    ----------
    floats : TensorView, shape (panels, 1 + taps * channels, nr)
    pairs : TensorView
        Memory of a :class:`~kuiper._kernels.micro.packed.PairPanels`.
    taps, channels : int
    factors : TensorView or None, shape (channels,)
        What the channels of all taps are multiplied by first.
    """

    cdef rounding_t p

    def __init__(self, floats, pairs, taps, channels, factors=None):
        self.p.kernels = active()
        self.p.floats, self.p.pairs = self.ref(floats), self.ref(pairs)
        self.p.has_factors = factors is not None
        if factors is not None:
            self.p.factors = self.ref(factors)
        self.p.panels = floats.shape[0]
        self.p.panel_bytes = pairs.n_bytes // max(floats.shape[0], 1)
        self.p.taps, self.p.channels = taps, channels
        self.run = rounding_run
        self.params = &self.p
        self.kind = "round_panels"
        self.bytes = floats.n_bytes + pairs.n_bytes
        self.max_shards = max(self.p.panels, 1)


cdef void rounding_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Multiply weights by one factor per channel and round them to nearest even.

    Layout : (panels, 1 + taps * channels, nr), float32 -> the same in pairs of bfloat16
    Needs  : panels for the table's tile
    Threads: over panels
    Source : the layout of bf16_gemm_fn in table.pxd
    """
    cdef const rounding_t* p = <const rounding_t*> params
    cdef const float* factors = NULL
    cdef Py_ssize_t size = (1 + p.taps * p.channels) * p.kernels.nr, q
    if p.has_factors:
        factors = <const float*> at(slots, p.factors)
    for q in range(
        shard_start(p.panels, shard, n_shards), shard_start(p.panels, shard + 1, n_shards)
    ):
        p.kernels.bf16_pack(
            p.taps, p.channels, <const float*> at(slots, p.floats) + q * size, factors, 1,
            at(slots, p.pairs) + q * p.panel_bytes,
        )
