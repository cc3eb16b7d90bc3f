"""Recurrent layers: the computation that depends on the previous time step.

The contribution of the inputs to the gates is one matrix product for the whole sequence, computed
by an earlier step.  Each time step then multiplies the previous states of a tile of sequences by
the hidden weights and computes the cells.  Shards are sequences and directions, which are
independent, so threads do not wait for each other within a sequence.  If these are fewer than
threads, the step has a phase per time step, and shards are ranges of cells.
"""

import numpy as np

from libc.math cimport INFINITY
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.micro.packing cimport padded
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start
from kuiper._kernels.micro.table cimport MAX_MR, ROW_PANELS, kernels_t
from kuiper._kernels.micro.functions cimport RELU, SIGMOID, TANH

cdef enum cell_t:
    LSTM
    GRU
    GRU_RESET_FIRST              # the reset gate multiplies the state, not its product
    RNN_TANH
    RNN_RELU

cdef enum:
    MIN_TILES_OF_TWO = 8        # smallest batch that is split into two tiles
    MIN_WEIGHTS = 1 << 16       # weights for which a phase is worth its barrier: about 2 us of work
    MAX_PHASES = 4096           # a phase takes about 100 bytes

cdef double FLOPS_PER_PHASE = 1e9    # of a phase of several time steps: a fraction of a second

cells = {
    "lstm": LSTM, "gru": GRU, "gru_reset_first": GRU_RESET_FIRST, "rnn_tanh": RNN_TANH,
    "rnn_relu": RNN_RELU,
}

# An operand (directions, [times,] batch, features); strides in elements.
cdef struct sequence_t:
    ref_t ref
    Py_ssize_t direction
    Py_ssize_t time              # 0 without that axis
    Py_ssize_t row               # from one sequence of the batch to the next

cdef struct recurrent_t:
    const kernels_t* kernels
    cell_t cell
    sequence_t gates             # (directions, times, batch, sums)
    sequence_t y                 # (directions, times, batch, state)
    sequence_t h0                # (directions, batch, state)
    sequence_t c                 # (directions, batch, hidden), as c0
    sequence_t c0
    sequence_t hn                # (directions, batch, state)
    ref_t weight                 # (directions, panels of columns, 1 + state, nr)
    ref_t projection             # (directions, panels of state, 1 + hidden, nr)
    ref_t candidate              # (directions, panels of hidden, 1 + state, nr)
    ref_t scratch                # (mr, padded sums) gates, (mr, hidden) cell outputs
    bint has_h0
    bint has_c
    bint has_c0
    bint has_hn
    bint has_projection
    const float* zeros           # (state,)
    Py_ssize_t directions
    Py_ssize_t length            # time steps
    Py_ssize_t batch
    Py_ssize_t tiles             # of sequences
    Py_ssize_t hidden            # features of the cell
    Py_ssize_t state             # features of the output, which is the next input
    Py_ssize_t sums              # gates x hidden
    Py_ssize_t columns           # of the product with the state before a time step: most often sums


# The time steps [start, stop) of all sequences, in the order of the direction.
cdef struct recurrent_phase_t:
    const recurrent_t* p
    Py_ssize_t start
    Py_ssize_t stop


cdef sequence_t sequence(ref_t ref, value):
    """Return the strides of a tensor view of shape (directions, [times,] batch, features)."""
    cdef sequence_t s
    s.ref = ref
    s.direction = value.strides[0]
    s.time = value.strides[1] if value.rank == 4 else 0
    s.row = value.strides[value.rank - 2]
    return s


cdef inline float* features(
    char* const* slots, const sequence_t* s, Py_ssize_t direction, Py_ssize_t time, Py_ssize_t row
) noexcept nogil:
    """Return the address of the features of one sequence at one time."""
    return (
        <float*> at(slots, s.ref) + direction * s.direction + time * s.time + row * s.row
    )


def has_phases(int n_threads, directions, length, batch, state, sums, hidden, bint projects):
    """Tell whether threads should share each time step; the results are the same.

    Requires panels of whole gates, and work that outweighs a barrier per time step.
    """
    return (
        n_threads > directions and batch < MIN_TILES_OF_TWO and batch <= active().mr
        and not projects
        and hidden % active().nr == 0 and hidden >= 2 * active().nr
        and state * sums >= MIN_WEIGHTS and 1 <= length <= MAX_PHASES
    )


def recurrent_scratch_bytes(Py_ssize_t sums, Py_ssize_t hidden):
    """Return the bytes of scratch per thread: gates, and cell outputs before the projection."""
    return 4 * active().mr * (padded(sums, active().nr) + hidden)


cdef class RecurrentStep(Step):
    """One layer of an LSTM, GRU or plain recurrent network, in one or both directions.

    Parameters
    ----------
    cell : str
        One of `cells`.
    gates : TensorView, shape (directions, times, batch, gates * hidden)
        The contribution of the inputs, including biases; PyTorch's order of gates.
    weight : TensorView
        Panels of the hidden weights and biases, for each direction.
    y : TensorView, shape (directions, times, batch, state)
    scratch : TensorView
        :func:`recurrent_scratch_bytes` for each thread.
    h0, c0 : TensorView, shape (directions, batch, state or hidden), optional
        Zeros by default.
    c : TensorView, shape (directions, batch, hidden), optional
        Memory of an LSTM's cell states; holds the last ones afterwards.
    hn : TensorView, shape (directions, batch, state), optional
        Receives the last states.
    projection : TensorView, optional
        Panels that project an LSTM's cell output to a state, for each direction.
    candidate : TensorView, optional
        For "gru_reset_first": panels of the last gate, for each direction; `weight` has the others.
    by_phase : bool
        The result of :func:`has_phases`.

    Notes
    -----
    The features of all operands are adjacent.
    """

    cdef recurrent_t p
    cdef recurrent_phase_t* times          # one per phase

    def __init__(self, cell, gates, weight, y, scratch, h0=None, c0=None, c=None, hn=None,
                 projection=None, candidate=None, bint by_phase=False):
        cdef Py_ssize_t i
        cdef double longest
        self.p.kernels = active()
        self.p.cell = cells[cell]
        self.p.gates, self.p.y = sequence(self.ref(gates), gates), sequence(self.ref(y), y)
        self.p.weight, self.p.scratch = self.ref(weight), self.ref(scratch)
        self.p.has_h0, self.p.has_c0 = h0 is not None, c0 is not None
        self.p.has_c, self.p.has_hn = c is not None, hn is not None
        self.p.has_projection = projection is not None
        if h0 is not None:
            self.p.h0 = sequence(self.ref(h0), h0)
        if c0 is not None:
            self.p.c0 = sequence(self.ref(c0), c0)
        if c is not None:
            self.p.c = sequence(self.ref(c), c)
        if hn is not None:
            self.p.hn = sequence(self.ref(hn), hn)
        if projection is not None:
            self.p.projection = self.ref(projection)
        if candidate is not None:
            self.p.candidate = self.ref(candidate)
        self.p.directions, self.p.length, self.p.batch, self.p.state = y.shape
        self.p.sums = self.p.columns = gates.shape[3]
        self.p.hidden = self.p.sums // {LSTM: 4, GRU: 3, GRU_RESET_FIRST: 3}.get(self.p.cell, 1)
        if self.p.cell == GRU_RESET_FIRST:
            self.p.columns = 2 * self.p.hidden
        zeros = np.zeros(max(self.p.state, 1), np.float32)
        cdef float[::1] zero_view = zeros
        self.keep = zeros
        self.p.zeros = &zero_view[0]
        # Each tile reads all weights at each time step, so tiles are high; two threads need two.
        self.p.tiles = max(
            ceil_div(self.p.batch, active().mr), 2 if self.p.batch >= MIN_TILES_OF_TWO else 1
        )
        self.run = recurrent_run
        self.kind = cell
        self.flops = 2.0 * gates.size * self.p.state
        self.bytes = gates.n_bytes + weight.n_bytes + y.n_bytes
        self.max_shards = self.p.directions * self.p.tiles
        # A run can end only between phases.
        longest = min(self.flops / FLOPS_PER_PHASE, MAX_PHASES)
        self.n_phases = max(1, min(self.p.length, <Py_ssize_t> longest))
        if by_phase:
            self.run = phase_run
            self.n_phases = self.p.length
            self.max_shards = self.p.directions * (self.p.hidden // active().nr)
        self.times = <recurrent_phase_t*> malloc(max(self.n_phases, 1) * sizeof(recurrent_phase_t))
        if self.times == NULL:
            raise MemoryError
        for i in range(self.n_phases):
            self.times[i].p = &self.p
            self.times[i].start = shard_start(self.p.length, i, self.n_phases)
            self.times[i].stop = shard_start(self.p.length, i + 1, self.n_phases)

    cdef const void* params_of(self, Py_ssize_t phase) noexcept:
        return &self.times[phase]

    def __dealloc__(self):
        free(self.times)


cdef inline void run_cell(
    const recurrent_t* p, Py_ssize_t first, Py_ssize_t n, const float* x, float* s, float* c,
    const float* h, float* y,
) noexcept nogil:
    """Compute n cells from `first` on, of one sequence.

    x: contribution of the inputs to the gates, s: that of the state, both (gates, hidden); c: cell
    states of an LSTM, h: previous state of a GRU, y: result, all (hidden,).  All pointers are to
    cell 0.  Overwrites s.
    """
    cdef Py_ssize_t gate = p.hidden, j
    x += first
    s += first
    y += first
    if p.cell == LSTM:
        c += first
        for j in range(n):
            s[j] = s[j] + x[j]
            s[gate + j] = s[gate + j] + x[gate + j]
            s[2 * gate + j] = s[2 * gate + j] + x[2 * gate + j]
            s[3 * gate + j] = s[3 * gate + j] + x[3 * gate + j]
        p.kernels.f32_unary[<int> SIGMOID](n, s, s, 0, 0)
        p.kernels.f32_unary[<int> SIGMOID](n, s + gate, s + gate, 0, 0)
        p.kernels.f32_unary[<int> TANH](n, s + 2 * gate, s + 2 * gate, 0, 0)
        p.kernels.f32_unary[<int> SIGMOID](n, s + 3 * gate, s + 3 * gate, 0, 0)
        for j in range(n):
            c[j] = s[gate + j] * c[j] + s[j] * s[2 * gate + j]
        p.kernels.f32_unary[<int> TANH](n, c, s, 0, 0)
        for j in range(n):
            y[j] = s[3 * gate + j] * s[j]
    elif p.cell == GRU:
        h += first
        for j in range(n):
            s[j] = s[j] + x[j]
            s[gate + j] = s[gate + j] + x[gate + j]
        p.kernels.f32_unary[<int> SIGMOID](n, s, s, 0, 0)
        p.kernels.f32_unary[<int> SIGMOID](n, s + gate, s + gate, 0, 0)
        for j in range(n):
            s[2 * gate + j] = x[2 * gate + j] + s[j] * s[2 * gate + j]
        p.kernels.f32_unary[<int> TANH](n, s + 2 * gate, s + 2 * gate, 0, 0)
        for j in range(n):
            y[j] = s[2 * gate + j] + s[gate + j] * (h[j] - s[2 * gate + j])
    else:
        for j in range(n):
            s[j] = s[j] + x[j]
        p.kernels.f32_unary[<int> TANH if p.cell == RNN_TANH else <int> RELU](n, s, y, 0, 0)


cdef inline void run_gates(
    const recurrent_t* p, const float* x, float* s, const float* h, float* y
) noexcept nogil:
    """Compute the gates of GRU_RESET_FIRST of one sequence, and the state y after the reset."""
    cdef Py_ssize_t j
    for j in range(p.columns):
        s[j] = s[j] + x[j]
    p.kernels.f32_unary[<int> SIGMOID](p.columns, s, s, 0, 0)
    for j in range(p.hidden):
        y[j] = s[j] * h[j]


cdef inline void run_candidate(
    const recurrent_t* p, const float* x, float* s, const float* h, float* y
) noexcept nogil:
    """Compute the new state of GRU_RESET_FIRST of one sequence, after run_gates."""
    cdef Py_ssize_t gate = p.hidden, j
    for j in range(2 * gate, 3 * gate):
        s[j] = s[j] + x[j]
    p.kernels.f32_unary[<int> TANH](gate, s + 2 * gate, s + 2 * gate, 0, 0)
    for j in range(gate):
        y[j] = s[2 * gate + j] + s[gate + j] * (h[j] - s[2 * gate + j])


cdef inline void multiply(
    const kernels_t* kernels, Py_ssize_t m, Py_ssize_t depth, const float** rows,
    const float* panels, float* y, Py_ssize_t ldy, Py_ssize_t columns,
) noexcept nogil:
    """Multiply a tile of rows by all panels."""
    cdef Py_ssize_t nr = kernels.nr, panel, first = 0, stride = (depth + 1) * nr
    while m == 1 and (first + ROW_PANELS) * nr <= columns:
        kernels.f32_gemm_row(depth, rows[0], panels + first * stride, stride, y + first * nr)
        first += ROW_PANELS
    for panel in range(first, ceil_div(columns, nr)):
        kernels.f32_gemm[m](
            1, depth, <const float* const*> rows, panels + panel * stride, 0,
            y + panel * nr, ldy, min(nr, columns - panel * nr), NULL, 0, -INFINITY, INFINITY,
        )


cdef inline const float* state_before(
    const recurrent_t* p, char* const* slots, Py_ssize_t d, Py_ssize_t step, Py_ssize_t row
) noexcept nogil:
    """Return the state of a sequence before a time step."""
    cdef Py_ssize_t t = step - 1 if d == 0 else p.length - step
    if step > 0:
        return features(slots, &p.y, d, t, row)
    if p.has_h0:
        return features(slots, &p.h0, d, 0, row)
    return p.zeros


cdef inline void start_cells(
    const recurrent_t* p, char* const* slots, Py_ssize_t d, Py_ssize_t row, Py_ssize_t first,
    Py_ssize_t n,
) noexcept nogil:
    """Initialize the states of n cells of a sequence from `first` on, with c0 or zeros."""
    cdef float* c = features(slots, &p.c, d, 0, row) + first
    if p.has_c0:
        memcpy(c, features(slots, &p.c0, d, 0, row) + first, n * sizeof(float))
    else:
        memset(c, 0, n * sizeof(float))


cdef void recurrent_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Compute a recurrent layer for the time steps of a phase.

    Layout : gates (directions, times, batch, sums) -> y (directions, times, batch, state), strided
    Needs  : features without gaps; y does not overlap h0 or c0
    Threads: over directions x tiles of sequences; a phase ends before the next one starts
    Source : torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN
    """
    cdef const recurrent_phase_t* times = <const recurrent_phase_t*> params
    cdef const recurrent_t* p = times.p
    cdef const kernels_t* kernels = p.kernels
    cdef Py_ssize_t ld = padded(p.sums, kernels.nr), items = p.directions * p.tiles
    cdef Py_ssize_t item, d, first, m, i, t, step
    cdef float* sums = <float*> at(slots, p.scratch)
    cdef float* outputs = sums + kernels.mr * ld
    cdef (const float*)[MAX_MR] h
    cdef (const float*)[MAX_MR] rows
    cdef const float* weight
    cdef const float* projection = NULL
    cdef const float* candidate = NULL
    cdef const float* gates
    cdef float* c = NULL
    cdef float* y
    for item in range(shard_start(items, shard, n_shards), shard_start(items, shard + 1, n_shards)):
        d = item // p.tiles
        first = p.batch * (item % p.tiles) // p.tiles
        m = p.batch * (item % p.tiles + 1) // p.tiles - first
        weight = (
            <const float*> at(slots, p.weight) + d * (p.state + 1) * padded(p.columns, kernels.nr)
        )
        if p.cell == GRU_RESET_FIRST:
            candidate = (
                <const float*> at(slots, p.candidate)
                + d * (p.state + 1) * padded(p.hidden, kernels.nr)
            )
        if p.has_projection:
            projection = (
                <const float*> at(slots, p.projection)
                + d * (p.hidden + 1) * padded(p.state, kernels.nr)
            )
        for i in range(m):
            h[i] = state_before(p, slots, d, times.start, first + i)
        if p.has_c:
            c = features(slots, &p.c, d, 0, first)
            for i in range(m if times.start == 0 else 0):
                start_cells(p, slots, d, first + i, 0, p.hidden)
        for step in range(times.start, times.stop):
            t = step if d == 0 else p.length - 1 - step
            gates = features(slots, &p.gates, d, t, first)
            y = features(slots, &p.y, d, t, first)
            multiply(kernels, m, p.state, h, weight, sums, ld, p.columns)
            if p.cell == GRU_RESET_FIRST:
                for i in range(m):
                    rows[i] = outputs + i * p.hidden
                    run_gates(
                        p, gates + i * p.gates.row, sums + i * ld, h[i], outputs + i * p.hidden
                    )
                multiply(
                    kernels, m, p.hidden, rows, candidate, sums + 2 * p.hidden, ld, p.hidden
                )
                for i in range(m):
                    run_candidate(
                        p, gates + i * p.gates.row, sums + i * ld, h[i], y + i * p.y.row
                    )
                    h[i] = y + i * p.y.row
                continue
            for i in range(m):
                run_cell(
                    p, 0, p.hidden, gates + i * p.gates.row, sums + i * ld,
                    c + i * p.c.row if p.has_c else NULL, h[i],
                    outputs + i * p.hidden if p.has_projection else y + i * p.y.row,
                )
                rows[i] = outputs + i * p.hidden
                h[i] = y + i * p.y.row
            if p.has_projection:
                multiply(kernels, m, p.hidden, rows, projection, y, p.y.row, p.state)
        if p.has_hn and times.stop == p.length:
            for i in range(m):
                memcpy(
                    features(slots, &p.hn, d, 0, first + i), h[i], p.state * sizeof(float)
                )


cdef void phase_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Compute one time step of a recurrent layer; see recurrent_run.

    Threads: over directions x panels of cells; a phase ends before the next one starts
    """
    cdef const recurrent_t* p = (<const recurrent_phase_t*> params).p
    cdef Py_ssize_t step = (<const recurrent_phase_t*> params).start, nr = p.kernels.nr
    cdef Py_ssize_t ld = padded(p.sums, nr), panels = p.hidden // nr, items = p.directions * panels
    cdef Py_ssize_t item = shard_start(items, shard, n_shards)
    cdef Py_ssize_t last = shard_start(items, shard + 1, n_shards)
    cdef Py_ssize_t d, t, i, first, n, gate
    cdef float* sums = <float*> at(slots, p.scratch)
    cdef (const float*)[MAX_MR] h
    cdef const float* weight
    cdef const float* gates
    cdef float* c = NULL
    cdef float* y
    while item < last:
        d = item // panels
        first = item % panels * nr
        n = min(panels - item % panels, last - item) * nr
        item += n // nr
        t = step if d == 0 else p.length - 1 - step
        weight = <const float*> at(slots, p.weight) + d * (p.state + 1) * ld
        gates = features(slots, &p.gates, d, t, 0)
        y = features(slots, &p.y, d, t, 0)
        for i in range(p.batch):
            h[i] = state_before(p, slots, d, step, i)
        for gate in range(p.sums // p.hidden):
            multiply(
                p.kernels, p.batch, p.state, h,
                weight + (gate * p.hidden + first) // nr * (p.state + 1) * nr,
                sums + gate * p.hidden + first, ld, n,
            )
        for i in range(p.batch):
            if p.has_c:
                c = features(slots, &p.c, d, 0, i)
                if step == 0:
                    start_cells(p, slots, d, i, first, n)
            run_cell(
                p, first, n, gates + i * p.gates.row, sums + i * ld, c, h[i], y + i * p.y.row
            )
            if p.has_hn and step == p.length - 1:
                memcpy(
                    features(slots, &p.hn, d, 0, i) + first, y + i * p.y.row + first,
                    n * sizeof(float),
                )
