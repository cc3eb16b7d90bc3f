"""The executor: runs the steps of a plan, all of them in one parallel region, without the GIL.

A team of threads walks the list of steps together.  Each thread does its share of a step, and a
barrier keeps the next step from starting before its operands are complete.  Entering a parallel
region costs microseconds and is paid once per run; the barrier costs a fraction of one.
"""

import numpy as np

from cython.parallel cimport parallel
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from kuiper._kernels._step cimport Step, step_fn

cdef extern from "_sync.h" nogil:
    ctypedef struct barrier_t "kp_barrier":
        pass
    void barrier_wait "kp_barrier_wait"(barrier_t*, int) noexcept
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

cdef struct entry_t:
    step_fn run
    const void* params
    Py_ssize_t max_parts

cdef enum:
    ALIGNMENT = 64  # a cache line, and the widest vector


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

    def __dealloc__(self):
        free(self.entries)

    def __len__(self):
        return self.count

    def run(self, Context context not None, int n_threads):
        """Run every step once on the slots of `context`."""
        cdef entry_t* entries = self.entries
        cdef Py_ssize_t count = self.count
        cdef char** slots = context.slots
        with nogil:
            run_all(entries, count, slots, n_threads, NULL)

    def run_timed(self, Context context not None, int n_threads):
        """Run every step once and return the seconds each took.

        Returns
        -------
        numpy.ndarray, shape (number of steps,), float64
        """
        cdef double[::1] seconds = np.zeros(max(self.count, 1))
        cdef entry_t* entries = self.entries
        cdef Py_ssize_t count = self.count
        cdef char** slots = context.slots
        with nogil:
            run_all(entries, count, slots, n_threads, &seconds[0])
        return np.asarray(seconds)[:self.count]


cdef void run_all(
    const entry_t* entries, Py_ssize_t count, char** slots, int n_threads, double* seconds
) noexcept nogil:
    cdef barrier_t barrier
    memset(&barrier, 0, sizeof(barrier_t))
    if n_threads <= 1 or SERIAL:
        walk(entries, count, slots, 0, 1, &barrier, seconds)
        return
    # The team may come out smaller than asked for (nested regions, thread limits), so its size is
    # read inside; shares depend on nothing else.
    with parallel(num_threads=n_threads):
        walk(entries, count, slots, team_rank(), team_size(), &barrier, seconds)


cdef void walk(
    const entry_t* entries, Py_ssize_t count, char** slots, Py_ssize_t rank, Py_ssize_t team,
    barrier_t* barrier, double* seconds,
) noexcept nogil:
    cdef Py_ssize_t i, parts
    cdef double before = 0, now
    if seconds != NULL and rank == 0:
        before = clock_now()
    for i in range(count):
        parts = team if team < entries[i].max_parts else entries[i].max_parts
        if rank < parts:
            entries[i].run(entries[i].params, slots, rank, parts)
        if team > 1:
            barrier_wait(barrier, <int> team)
        if seconds != NULL and rank == 0:
            now = clock_now()
            seconds[i] = now - before
            before = now


cdef class Context:
    """The memory of one call: an arena and the table of slots.

    Parameters
    ----------
    arena_bytes : int
        Size of the arena.
    slots : sequence of (int, numpy.ndarray or None)
        For each slot its byte offset into the arena, the array it always holds (a constant), or
        None for what :meth:`attach` fills before each run.
    """

    cdef char** slots
    cdef readonly Py_ssize_t n_slots
    cdef readonly object arena
    cdef list held

    def __cinit__(self, Py_ssize_t arena_bytes, slots):
        cdef Py_ssize_t i
        cdef char* base
        self.n_slots = len(slots)
        self.slots = <char**> calloc(max(self.n_slots, 1), sizeof(char*))
        if self.slots == NULL:
            raise MemoryError
        self.arena = np.empty(arena_bytes + ALIGNMENT, np.uint8)
        base = <char*> <uintptr_t> self.arena.ctypes.data
        base += (-<uintptr_t> base) % <uintptr_t> ALIGNMENT
        self.held = [None] * self.n_slots
        for i, where in enumerate(slots):
            if isinstance(where, int):
                self.slots[i] = base + <Py_ssize_t> where
            elif where is not None:
                self.attach(i, where)

    def __dealloc__(self):
        free(self.slots)

    def attach(self, Py_ssize_t slot, array):
        """Let `slot` hold `array`; it is kept alive until another one is attached."""
        self.held[slot] = array
        self.slots[slot] = <char*> <uintptr_t> array.__array_interface__["data"][0]

    def detach(self, Py_ssize_t slot):
        """Forget the array in `slot`."""
        self.held[slot] = None
        self.slots[slot] = NULL

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
