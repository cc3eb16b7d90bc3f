"""The executor: runs the steps of a plan, all of them in one parallel region, without the GIL.

A team of threads walks the list of steps together; _sync.h says how they share a step.  Entering
a parallel region costs microseconds and is paid once per run; going from step to step costs a
fraction of one.
"""

import numpy as np

from cython.parallel cimport parallel
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from kuiper._kernels._step cimport Step, share_start, step_fn

cdef extern from "_sync.h" nogil:
    long claim "kp_claim"(int* next, long end) noexcept
    void finish "kp_finish"(int* done) noexcept
    void wait_for "kp_wait"(const int* done, long count) noexcept
    enum:
        SERIAL "KP_SERIAL"

cdef extern from "_clock.h" nogil:
    double clock_now "kp_clock_now"() noexcept

cdef extern from *:
    """
    #ifdef _OPENMP
    #include <omp.h>
    #define kp_team_size omp_get_num_threads
    #define kp_team_rank omp_get_thread_num
    #define KP_OPENMP 1
    #else
    #define KP_OPENMP 0
    static inline int kp_team_size(void) { return 1; }
    static inline int kp_team_rank(void) { return 0; }
    #endif
    """
    int team_size "kp_team_size"() noexcept nogil
    int team_rank "kp_team_rank"() noexcept nogil
    enum:
        OPENMP "KP_OPENMP"

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

has_openmp = bool(OPENMP)
compiler = COMPILER.decode()

cdef enum:
    ALIGNMENT = 64               # a cache line, and the widest vector
    INTS_PER_LINE = 16
    CHUNKS_PER_THREAD = 4        # of a long step, so that threads even out

# A chunk should be long against the hundred nanoseconds that taking it may cost.
cdef double SECONDS_PER_CHUNK = 10e-6
# What one core achieves, roughly, on cheap terms; for estimates of a step's length only.
cdef double FLOPS_PER_SECOND = 150e9
cdef double BYTES_PER_SECOND = 15e9

cdef struct entry_t:
    step_fn run
    const void* params
    Py_ssize_t max_parts
    double seconds               # estimated, on one thread


cdef class Program:
    """A list of steps, flattened to an array that runs without touching Python.

    Parameters
    ----------
    steps : sequence of Step
        In the order in which they run.
    """

    cdef entry_t* entries
    cdef Py_ssize_t count
    cdef readonly tuple steps

    def __cinit__(self, steps):
        cdef Py_ssize_t i
        cdef Step step
        self.steps = tuple(steps)
        self.count = len(self.steps)
        self.entries = <entry_t*> calloc(max(self.count, 1), sizeof(entry_t))
        if self.entries == NULL:
            raise MemoryError
        for i in range(self.count):
            step = self.steps[i]
            self.entries[i].run = step.run
            self.entries[i].params = step.params
            self.entries[i].max_parts = step.max_parts
            self.entries[i].seconds = step.flops / FLOPS_PER_SECOND + step.bytes / BYTES_PER_SECOND

    def __dealloc__(self):
        free(self.entries)

    def __len__(self):
        return self.count

    def run(self, Context context not None, int n_threads):
        """Run every step once on the slots of `context`."""
        context.prepare(self.count, n_threads)
        with nogil:
            run_all(self.entries, self.count, context, n_threads, NULL)

    def run_timed(self, Context context not None, int n_threads):
        """Run every step once and return the seconds each took.

        Returns
        -------
        numpy.ndarray, shape (number of steps,), float64
        """
        cdef double[::1] seconds = np.zeros(max(self.count, 1))
        context.prepare(self.count, n_threads)
        with nogil:
            run_all(self.entries, self.count, context, n_threads, &seconds[0])
        return np.asarray(seconds)[:self.count]


cdef void run_all(
    const entry_t* entries, Py_ssize_t count, Context context, int n_threads, double* seconds
) noexcept nogil:
    cdef char** slots = context.slots
    cdef int* progress = context.progress
    cdef Py_ssize_t n_slots = context.n_slots, rank
    if n_threads <= 1 or SERIAL:
        walk(entries, count, slots, progress, 0, 1, seconds)
        return
    # The team may come out smaller than asked for (nested regions, thread limits), so its size is
    # read inside; the results depend on nothing of the kind.
    with parallel(num_threads=n_threads):
        rank = team_rank()
        walk(entries, count, slots + rank * n_slots, progress, rank, team_size(), seconds)


cdef inline Py_ssize_t progress_ints(Py_ssize_t team) noexcept nogil:
    """Size of one step's counters: finished chunks, then the next chunk of each thread's range."""
    return (team + 1 + INTS_PER_LINE - 1) // INTS_PER_LINE * INTS_PER_LINE


cdef void walk(
    const entry_t* entries, Py_ssize_t count, char** slots, int* progress, Py_ssize_t rank,
    Py_ssize_t team, double* seconds,
) noexcept nogil:
    cdef Py_ssize_t i, chunks, thread, owner
    cdef long chunk
    cdef int* counters
    cdef double before = 0, now
    if seconds != NULL and rank == 0:
        before = clock_now()
    for i in range(count):
        chunks = team
        if entries[i].seconds > team * SECONDS_PER_CHUNK:
            chunks *= CHUNKS_PER_THREAD
        chunks = min(chunks, entries[i].max_parts)
        if team == 1:
            entries[i].run(entries[i].params, slots, 0, 1)
        else:
            counters = progress + i * progress_ints(team)
            for thread in range(team):
                owner = (rank + thread) % team
                while True:
                    chunk = claim(
                        &counters[1 + owner],
                        share_start(chunks, owner + 1, team) - share_start(chunks, owner, team),
                    )
                    if chunk < 0:
                        break
                    chunk += share_start(chunks, owner, team)
                    entries[i].run(entries[i].params, slots, chunk, chunks)
                    finish(&counters[0])
            wait_for(&counters[0], chunks)
        if seconds != NULL and rank == 0:
            now = clock_now()
            seconds[i] = now - before
            before = now


cdef class Context:
    """The memory of one call: an arena and, for each thread, a table of slots.

    Parameters
    ----------
    arena_bytes : int
        Size of the arena.
    slots : sequence
        For each slot what it holds: an int, the offset into the arena; a pair of ints, offset and
        bytes per thread of scratch memory in the arena; an array, always the same (a constant); a
        pair of an array and the bytes of it that each thread gets; or None for what :meth:`attach`
        fills before each run.
    n_threads : int
        How many threads a run may have.
    """

    cdef char** slots            # (n_threads, n_slots)
    cdef int* progress
    cdef Py_ssize_t progress_count
    cdef readonly Py_ssize_t n_slots
    cdef readonly int n_threads
    cdef readonly object arena
    cdef list held

    def __cinit__(self, Py_ssize_t arena_bytes, slots, int n_threads=1):
        cdef Py_ssize_t i
        cdef char* base
        self.n_slots = len(slots)
        self.n_threads = n_threads
        self.slots = <char**> calloc(max(self.n_slots * n_threads, 1), sizeof(char*))
        if self.slots == NULL:
            raise MemoryError
        self.arena = np.empty(arena_bytes + ALIGNMENT, np.uint8)
        base = <char*> <uintptr_t> self.arena.ctypes.data
        base += (-<uintptr_t> base) % <uintptr_t> ALIGNMENT
        self.held = [None] * self.n_slots
        for i, where in enumerate(slots):
            per_thread = 0
            if isinstance(where, tuple):
                where, per_thread = where
            if isinstance(where, int):
                self.point(i, base + <Py_ssize_t> where, per_thread)
            elif where is not None:
                self.held[i] = where
                self.point(i, <char*> <uintptr_t> where.__array_interface__["data"][0], per_thread)

    def __dealloc__(self):
        free(self.slots)
        free(self.progress)

    cdef void point(self, Py_ssize_t slot, char* address, Py_ssize_t per_thread):
        cdef Py_ssize_t thread
        for thread in range(self.n_threads):
            self.slots[thread * self.n_slots + slot] = address + thread * per_thread

    cdef prepare(self, Py_ssize_t n_steps, int n_threads):
        """Reset the counters for a run."""
        cdef Py_ssize_t count = n_steps * progress_ints(n_threads)
        if n_threads > self.n_threads:
            raise ValueError(f"the context serves {self.n_threads} threads, not {n_threads}")
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
        """Let `slot` hold `array`; it is kept alive until another one is attached."""
        self.held[slot] = array
        self.point(slot, <char*> <uintptr_t> array.__array_interface__["data"][0], 0)

    def detach(self, Py_ssize_t slot):
        """Forget the array in `slot`."""
        self.held[slot] = None
        self.point(slot, NULL, 0)

    def view(self, value):
        """Return a plan value as an array over this context's memory."""
        held = self.held[value.slot]
        if held is None:
            start = self.slots[value.slot] - <char*> <uintptr_t> self.arena.ctypes.data
            flat = self.arena[start:start + value.buffer.n_bytes].view(value.dtype)
        else:
            flat = held.reshape(-1)
        strides = [stride * value.dtype.itemsize for stride in value.strides]
        return np.lib.stride_tricks.as_strided(flat[value.offset:], value.shape, strides)
