"""The executor: runs all steps of a plan in one job of the thread pool, without the GIL.

The threads walk the list of steps together and share each step (work_shares.h).  The pool is called
once per slice; the transition from step to step costs a fraction of a microsecond.
"""

import numpy as np

from cpython.exc cimport PyErr_CheckSignals
from libc.math cimport INFINITY
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from kuiper._runtime.pages import aligned_bytes

from kuiper._runtime.step cimport Step, error_slot_t, shard_start, step_fn
from kuiper._runtime.thread_pool cimport run_job

cdef extern from "_runtime/work_shares.h" nogil:
    long claim "kp_claim"(int* next, long end) noexcept
    void finish "kp_finish"(int* done) noexcept
    void wait_for "kp_wait"(const int* done, long count) noexcept

cdef extern from "_runtime/clock.h" nogil:
    double clock_now "kp_clock_now"() noexcept

cdef extern from *:
    """
    #if defined(__clang__)
    #define KP_COMPILER "clang " __clang_version__
    #elif defined(__GNUC__)
    #define KP_COMPILER "gcc " __VERSION__
    #else
    #define KP_COMPILER "unknown"
    #endif
    """
    const char* COMPILER "KP_COMPILER"

compiler = COMPILER.decode()

cdef enum:
    INTS_PER_LINE = 16
    CHUNKS_PER_THREAD = 4        # of a long step, to balance the load
    CHUNKS_PER_SPLIT = 2         # per thread; few, since chunks may repeat transforms or packing

# A chunk should be long compared to the 0.1 us that claiming it may cost.
cdef double SECONDS_PER_CHUNK = 10e-6
# Length of a slice, between checks for Ctrl-C: estimated on one thread, and in the worst case.
cdef double SECONDS_PER_SLICE = 20e-3
cdef double WORST_PER_SLICE = 0.4
# Rough throughput of one core, for estimates of a step's duration only.
cdef double FLOPS_PER_SECOND = 150e9
cdef double BYTES_PER_SECOND = 15e9
# A step that may take longer is split, so that a run can end between the splits.  Over-splitting is
# cheap and under-splitting blocks Ctrl-C, so the worst case assumes element-wise memory access,
# and without vectors SLOWER arithmetic.
cdef double SECONDS_PER_SPLIT = 0.8
cdef double SLOW_BYTES_PER_SECOND = 1.5e9
cdef double SLOWER = 100
cdef Py_ssize_t MAX_SPLITS = 1 << 16

cdef struct entry_t:             # one split of one phase of a step
    step_fn run
    const void* params           # of the phase
    Py_ssize_t max_shards        # of all splits together
    Py_ssize_t split             # 0 <= split < n_splits
    Py_ssize_t n_splits
    double seconds               # estimated, on one thread


def _seconds(Step step, int lanes):
    """Return the estimated and the worst-case duration of a step on one thread."""
    cdef double flops = step.flops / FLOPS_PER_SECOND, slower = SLOWER if lanes == 1 else 1
    return (
        flops + step.bytes / BYTES_PER_SECOND,
        slower * flops + step.bytes / SLOW_BYTES_PER_SECOND,
    )


cdef class Program:
    """A list of steps, flattened to an array that runs without Python.

    Parameters
    ----------
    steps : sequence of Step
        In execution order.
    lanes : int
        Floats per vector of the instruction set they were made for; 1 means scalar speed.
    """

    cdef entry_t* entries        # (count,): the splits of all phases of all steps
    cdef Py_ssize_t count
    cdef list ends               # end of each step in `entries`
    cdef readonly tuple steps
    cdef list slices             # end of each slice in `entries`
    cdef list fallible           # the steps that may record an error

    def __cinit__(self, steps, int lanes):
        cdef Py_ssize_t i = 0, phase, split, n_splits
        cdef Step step
        cdef double seconds = 0, most = 0, each, longest
        cdef list splits = []
        self.steps = tuple(steps)
        self.ends = []
        self.slices = []
        self.fallible = []
        for step in self.steps:
            longest = _seconds(step, lanes)[1] / max(step.n_phases, 1) / SECONDS_PER_SPLIT
            n_splits = 1 + <Py_ssize_t> min(longest, min(step.max_shards, MAX_SPLITS) - 1)
            splits.append(max(n_splits, 1))
            self.count += step.n_phases * max(n_splits, 1)
            self.ends.append(self.count)
        self.entries = <entry_t*> calloc(max(self.count, 1), sizeof(entry_t))
        if self.entries == NULL:
            raise MemoryError
        for step, n_splits in zip(self.steps, splits):
            each, longest = _seconds(step, lanes)
            each /= max(step.n_phases, 1) * n_splits
            longest /= max(step.n_phases, 1) * n_splits
            if step.error_slot.slot >= 0:
                self.fallible.append(step)
            for phase in range(step.n_phases):
                for split in range(n_splits):
                    self.entries[i].run = step.run
                    self.entries[i].params = step.params_of(phase)
                    self.entries[i].max_shards = step.max_shards
                    self.entries[i].split, self.entries[i].n_splits = split, n_splits
                    self.entries[i].seconds = each
                    i += 1
                    seconds += each
                    most += longest
                    late = seconds > SECONDS_PER_SLICE or most > WORST_PER_SLICE
                    if late and i < self.count:
                        self.slices.append(i)
                        seconds = most = 0
        self.slices.append(self.count)

    def __dealloc__(self):
        free(self.entries)

    def __len__(self):
        return len(self.steps)

    def run(self, Context context not None, int n_threads):
        """Run every step once on the slots of `context`.

        Signals are handled between slices, so Ctrl-C ends a long program.
        """
        cdef Py_ssize_t start = 0, stop
        context.prepare(self.count, n_threads)
        for stop in self.slices:
            if start:
                PyErr_CheckSignals()
            with nogil:
                run_all(self.entries, start, stop, context, n_threads, NULL)
            start = stop
        self.raise_recorded_errors(context)

    cdef raise_recorded_errors(self, Context context):
        """Raise the exception of a step that recorded an error in this context."""
        cdef Step step
        cdef error_slot_t* slot
        for step in self.fallible:
            slot = <error_slot_t*> (context.slots[step.error_slot.slot] + step.error_slot.offset)
            if slot.found:
                slot.found = 0
                raise step.exception(slot.value)

    def run_timed(self, Context context not None, int n_threads):
        """Run every step once and return the duration of each in seconds.

        A step ends when the first thread sees it finished; others may be suspended.

        Returns
        -------
        numpy.ndarray, shape (number of steps,), float64
        """
        cdef double[:, ::1] ends = np.full((max(n_threads, 1), max(self.count, 1)), INFINITY)
        cdef double start
        context.prepare(self.count, n_threads)
        with nogil:
            start = clock_now()
            run_all(self.entries, 0, self.count, context, n_threads, &ends[0, 0])
        self.raise_recorded_errors(context)
        last = np.asarray(ends).min(0)[np.subtract(self.ends, 1, dtype=np.intp)]
        return np.diff(last, prepend=start)


cdef struct run_t:
    const entry_t* entries       # (count,)
    Py_ssize_t count
    char** slots                 # (n_threads, n_slots)
    Py_ssize_t n_slots
    int* progress                # (count, progress_ints(n_threads))
    double* ends                 # (n_threads, n_ends), times in s; or NULL
    Py_ssize_t n_ends


cdef void run_all(
    const entry_t* entries, Py_ssize_t start, Py_ssize_t stop, Context context, int n_threads,
    double* ends,
) noexcept nogil:
    """Run entries [start, stop); `ends`, unless NULL, is (n_threads, stop) and start is 0."""
    cdef run_t job
    job.entries, job.count = entries + start, stop - start
    job.slots, job.n_slots = context.slots, context.n_slots
    job.progress = context.progress
    if n_threads > 1:
        job.progress += start * progress_ints(n_threads)
    job.ends, job.n_ends = ends, stop
    run_job(run_as_worker, &job, n_threads)


cdef void run_as_worker(void* job, Py_ssize_t rank, Py_ssize_t n_threads) noexcept nogil:
    """Run the entries as one thread of the job, with its own row of slots and of ends."""
    cdef run_t* run = <run_t*> job
    run_entries(
        run.entries, run.count, run.slots + rank * run.n_slots, run.progress, rank, n_threads,
        NULL if run.ends == NULL else run.ends + rank * run.n_ends,
    )


cdef inline Py_ssize_t progress_ints(Py_ssize_t n_threads) noexcept nogil:
    """Number of counters per entry: finished chunks, then the next chunk of each thread's range."""
    return (n_threads + 1 + INTS_PER_LINE - 1) // INTS_PER_LINE * INTS_PER_LINE


cdef void run_entries(
    const entry_t* entries, Py_ssize_t count, char** slots, int* progress, Py_ssize_t rank,
    Py_ssize_t n_threads, double* ends,
) noexcept nogil:
    cdef Py_ssize_t i, first, chunks, shards, thread, owner
    cdef long chunk
    cdef int* counters
    for i in range(count):
        chunks = n_threads
        if n_threads > 1 and entries[i].seconds > n_threads * SECONDS_PER_CHUNK:
            chunks *= CHUNKS_PER_THREAD
        shards = max(chunks, min(chunks, CHUNKS_PER_SPLIT * n_threads) * entries[i].n_splits)
        shards = min(shards, entries[i].max_shards)
        first = shard_start(shards, entries[i].split, entries[i].n_splits)
        chunks = shard_start(shards, entries[i].split + 1, entries[i].n_splits) - first
        if n_threads == 1:
            entries[i].run(entries[i].params, slots, first, shards)
        else:
            counters = progress + i * progress_ints(n_threads)
            for thread in range(n_threads):
                owner = (rank + thread) % n_threads
                while True:
                    chunk = claim(
                        &counters[1 + owner],
                        shard_start(chunks, owner + 1, n_threads)
                        - shard_start(chunks, owner, n_threads),
                    )
                    if chunk < 0:
                        break
                    chunk += first + shard_start(chunks, owner, n_threads)
                    entries[i].run(entries[i].params, slots, chunk, shards)
                    finish(&counters[0])
            wait_for(&counters[0], chunks)
        if ends != NULL:
            ends[i] = clock_now()


cdef class Arena:
    """A block of memory that holds the temporary operands of one run at a time.

    Parameters
    ----------
    n_bytes : int

    Attributes
    ----------
    memory : numpy.ndarray, shape (n_bytes,), uint8
        Starts on a cache line.
    """

    cdef readonly Py_ssize_t n_bytes
    cdef readonly object memory
    cdef char* base              # address of `memory`

    def __cinit__(self, Py_ssize_t n_bytes):
        cdef uintptr_t address
        self.n_bytes = n_bytes
        self.memory = aligned_bytes(n_bytes)
        address = self.memory.__array_interface__["data"][0]
        self.base = <char*> address


cdef class ArenaPool:
    """The idle arenas of a model.

    A run takes one and gives it back, so their number is that of concurrent runs, and the size of
    each that of the largest plan it has served, however many plans there are.  No lock: a list pops
    each item once, and a fork cannot leave it half changed.
    """

    KEPT = 16

    cdef list idle

    def __cinit__(self):
        self.idle = []

    def __len__(self):
        return len(self.idle)

    @property
    def n_bytes(self):
        """Size of all arenas in the pool."""
        return sum(arena.n_bytes for arena in list(self.idle))

    def take(self, Py_ssize_t n_bytes):
        """Return an arena of at least `n_bytes`."""
        cdef Arena arena
        try:
            arena = self.idle.pop()
        except IndexError:
            return Arena(n_bytes)
        return arena if arena.n_bytes >= n_bytes else Arena(n_bytes)

    def give(self, Arena arena not None):
        """Return an arena to the pool."""
        if len(self.idle) < self.KEPT:
            self.idle.append(arena)


cdef class Context:
    """The state of one run: a table of slot addresses per thread.

    Parameters
    ----------
    slots : sequence
        The content of each slot: an int (offset in the arena), a pair of ints (offset and bytes per
        thread of scratch memory in the arena), an array (a constant), a pair of an array and its
        bytes per thread, a function that returns a new array (per-context state), or None (filled
        by :meth:`attach` before each run).
    n_threads : int
        The maximum number of threads of a run.

    Attributes
    ----------
    arena : Arena or None
        Set during a run only; see :meth:`use`.
    """

    cdef char** slots            # (n_threads, n_slots)
    cdef int* progress           # (progress_count,)
    cdef Py_ssize_t progress_count
    cdef readonly Py_ssize_t n_slots
    cdef readonly int n_threads
    cdef readonly Arena arena
    cdef char* base              # of the arena that the slots point into
    cdef list held               # the array of each slot; None for slots in the arena
    cdef list in_arena           # (slot, offset, bytes per thread)

    def __cinit__(self, slots, int n_threads=1):
        cdef Py_ssize_t i
        self.n_slots = len(slots)
        self.n_threads = n_threads
        self.slots = <char**> calloc(max(self.n_slots * n_threads, 1), sizeof(char*))
        if self.slots == NULL:
            raise MemoryError
        self.held = [None] * self.n_slots
        self.in_arena = []
        for i, where in enumerate(slots):
            per_thread = 0
            if isinstance(where, tuple):
                where, per_thread = where
            if callable(where):
                where = where()
            if isinstance(where, int):
                self.in_arena.append((i, where, per_thread))
            elif where is not None:
                self.held[i] = where
                self.point(i, <char*> <uintptr_t> where.__array_interface__["data"][0], per_thread)

    def __dealloc__(self):
        free(self.slots)
        free(self.progress)

    cdef void point(self, Py_ssize_t slot, char* address, Py_ssize_t per_thread) noexcept:
        cdef Py_ssize_t thread
        for thread in range(self.n_threads):
            self.slots[thread * self.n_slots + slot] = address + thread * per_thread

    def use(self, Arena arena):
        """Point the slots into `arena`; None releases the arena until the next run.

        If the next arena has the same address, the slots are already right.
        """
        cdef Py_ssize_t slot, offset, per_thread
        self.arena = arena
        if arena is None or arena.base == self.base:
            return
        self.base = arena.base
        for slot, offset, per_thread in self.in_arena:
            self.point(slot, arena.base + offset, per_thread)

    cdef prepare(self, Py_ssize_t n_steps, int n_threads):
        """Reset the counters before a run."""
        cdef Py_ssize_t count = n_steps * progress_ints(n_threads)
        if n_threads > self.n_threads:
            raise ValueError(f"the context serves {self.n_threads} threads, not {n_threads}")
        if self.arena is None and self.in_arena:
            raise ValueError("the context has no arena")
        if n_threads <= 1:
            return
        if count > self.progress_count:
            free(self.progress)
            self.progress_count = 0
            self.progress = <int*> malloc(count * sizeof(int))
            if self.progress == NULL:
                raise MemoryError
            self.progress_count = count
        memset(self.progress, 0, count * sizeof(int))

    def attach(self, Py_ssize_t slot, array):
        """Put `array` in `slot` and keep it alive until another one is attached."""
        self.held[slot] = array
        self.point(slot, <char*> <uintptr_t> array.__array_interface__["data"][0], 0)

    def detach(self, Py_ssize_t slot):
        """Drop the array in `slot`."""
        self.held[slot] = None
        self.point(slot, NULL, 0)

    def view(self, value):
        """Return a tensor view as an array over this context's memory."""
        held = self.held[value.slot]
        if held is None:
            start = <uintptr_t> self.slots[value.slot]
            start -= <uintptr_t> self.arena.memory.__array_interface__["data"][0]
            flat = self.arena.memory[start:start + value.buffer.n_bytes].view(value.dtype)
        else:
            flat = held.reshape(-1)
        strides = [stride * value.dtype.itemsize for stride in value.strides]
        return np.lib.stride_tricks.as_strided(flat[value.offset:], value.shape, strides)
