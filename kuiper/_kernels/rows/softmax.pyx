"""Softmax and its logarithm along one axis of a tensor."""

from kuiper._kernels.micro.dispatch cimport active
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start
from kuiper._kernels.micro.table cimport kernels_t
from kuiper._kernels.micro.narrow cimport round_rows, rows_together, widen_rows
from kuiper._kernels.simd.bfloat16 cimport bfloat16_t

from kuiper.ir.dtypes import BFLOAT16

cdef enum:
    STRIP = 256          # most columns of a work item
    SHARD_TERMS = 4096   # fewest elements of a shard that are worth a thread

cdef struct softmax_t:
    const kernels_t* kernels
    ref_t x
    ref_t y
    ref_t scratch
    bint is_log
    float scale
    Py_ssize_t outer
    Py_ssize_t n            # the softmax runs along this axis
    Py_ssize_t inner
    Py_ssize_t n_strips     # ceil(inner / STRIP)
    Py_ssize_t x_outer      # strides of the outer and middle axes, in elements
    Py_ssize_t x_step
    Py_ssize_t y_outer
    Py_ssize_t y_step
    bint from_bfloat16
    bint to_bfloat16


cdef class SoftmaxStep(Step):
    """y = softmax(scale * x), or its logarithm, over the middle axis.

    Parameters
    ----------
    x, y : TensorView, shape (outer, n, inner)
        float32; or bfloat16, each of them, if inner is 1.  Elements of the inner axis are adjacent,
        or of the middle axis if inner is 1.  y may be x.
    scratch : TensorView
        :func:`scratch_bytes` bytes.
    is_log : bool, default=False
    scale : float, default=1
    """

    cdef softmax_t p

    def __init__(self, x, y, scratch, is_log=False, scale=1.0):
        self.p.kernels = active()
        self.p.x, self.p.y, self.p.scratch = self.ref(x), self.ref(y), self.ref(scratch)
        self.p.is_log, self.p.scale = is_log, scale
        self.p.outer, self.p.n, self.p.inner = x.shape
        self.p.x_outer, self.p.x_step = x.strides[0], x.strides[1]
        self.p.y_outer, self.p.y_step = y.strides[0], y.strides[1]
        self.p.n_strips = ceil_div(self.p.inner, STRIP)
        self.p.from_bfloat16, self.p.to_bfloat16 = x.dtype == BFLOAT16, y.dtype == BFLOAT16
        in_bfloat16 = self.p.from_bfloat16 or self.p.to_bfloat16
        self.run = softmax_narrow_run if in_bfloat16 else softmax_run
        self.params = &self.p
        self.max_shards = max(min(self.p.outer * self.p.n_strips, x.size // SHARD_TERMS), 1)
        self.kind = "softmax"
        self.flops = 25.0 * x.size
        self.bytes = float(x.n_bytes + y.n_bytes)


def scratch_bytes(x, in_bfloat16=False):
    """Return the bytes of scratch that a step needs.

    Parameters
    ----------
    x : TensorView
    in_bfloat16 : bool, default=False
        Whether the input or the output is in bfloat16.
    """
    if x.shape[2] > 1:
        return 16 * active().lanes * x.shape[1]
    return 4 * x.shape[1] * rows_together(x.shape[1]) if in_bfloat16 else 0


cdef void softmax_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """exp(s x - max) / sum(exp(s x - max)), or s x - max - log(sum), over the middle axis.

    Layout : x (outer, n, inner) -> y (outer, n, inner)
    Needs  : n > 0; x and y identical or disjoint
    Threads: over the outer axis x strips of the inner one; no sum is split
    Source : torch.nn.functional.softmax, log_softmax, softmin
    """
    cdef const softmax_t* p = <const softmax_t*> params
    cdef const float* x = <const float*> at(slots, p.x)
    cdef float* y = <float*> at(slots, p.y)
    cdef Py_ssize_t items = p.outer * p.n_strips
    cdef Py_ssize_t start = shard_start(items, shard, n_shards)
    cdef Py_ssize_t stop = shard_start(items, shard + 1, n_shards), i, first
    if p.inner == 1:
        p.kernels.f32_softmax_rows(
            p.is_log, x + start * p.x_outer, p.x_outer, y + start * p.y_outer, p.y_outer,
            stop - start, p.n, p.scale,
        )
        return
    for i in range(start, stop):
        first = i % p.n_strips * STRIP
        p.kernels.f32_softmax_columns(
            p.is_log, x + i // p.n_strips * p.x_outer + first, p.x_step,
            y + i // p.n_strips * p.y_outer + first, p.y_step, p.n, min(STRIP, p.inner - first),
            p.scale, <float*> at(slots, p.scratch),
        )


cdef void softmax_narrow_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """The same over rows that are widened before or rounded afterwards, in the cache.

    Layout : x (outer, n, 1) -> y (outer, n, 1)
    Needs  : n > 0; x and y identical or disjoint
    Threads: over rows; no sum is split
    Source : torch.nn.functional.softmax, log_softmax, softmin
    """
    cdef const softmax_t* p = <const softmax_t*> params
    cdef float* lines = <float*> at(slots, p.scratch)
    cdef Py_ssize_t row = shard_start(p.outer, shard, n_shards), count
    cdef Py_ssize_t stop = shard_start(p.outer, shard + 1, n_shards)
    while row < stop:
        count = min(rows_together(p.n), stop - row)
        if p.from_bfloat16:
            widen_rows(
                p.kernels, <const bfloat16_t*> at(slots, p.x) + row * p.x_outer, p.x_outer, count,
                p.n, lines,
            )
        p.kernels.f32_softmax_rows(
            p.is_log,
            lines if p.from_bfloat16 else <const float*> at(slots, p.x) + row * p.x_outer,
            p.n if p.from_bfloat16 else p.x_outer,
            lines if p.to_bfloat16 else <float*> at(slots, p.y) + row * p.y_outer,
            p.n if p.to_bfloat16 else p.y_outer, count, p.n, p.scale,
        )
        if p.to_bfloat16:
            round_rows(
                p.kernels, lines, count, p.n, <bfloat16_t*> at(slots, p.y) + row * p.y_outer,
                p.y_outer,
            )
        row += count
