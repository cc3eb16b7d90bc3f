"""The base class of all prepared kernel calls."""

from cython.parallel cimport prange
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

from kuiper.errors import ShapeError

ERROR_SLOT_BYTES = sizeof(error_slot_t)


cdef class Step:
    """One prepared kernel call; the constructors of subclasses set `run` and `params`."""

    def __cinit__(self):
        self.slots = []
        self.max_shards = self.n_phases = 1
        self.error_slot.slot = -1

    cdef const void* params_of(self, Py_ssize_t phase) noexcept:
        """Return the parameters of a phase; steps of several phases override it."""
        return self.params

    cdef ref_t ref(self, object value) except *:
        """Register a tensor view, or None, as an operand of the step and return its location."""
        cdef ref_t r
        r.slot, r.offset = -1, 0
        if value is not None:
            self.slots.append(value.slot)
            r.slot, r.offset = value.slot, value.offset_bytes
        return r

    cdef object exception(self, int64_t value):
        """Return the exception for a recorded `value`."""
        return ShapeError(self.message.format(value))


def run_step(Step step not None, arrays, int n_threads):
    """Run one step on arrays, without a plan.

    Parameters
    ----------
    step : Step
        Made of views of buffers in slots 0, 1, ...
    arrays : sequence of numpy.ndarray
        The contents of the slots; scratch memory is a tuple of one array with a row per thread.
    n_threads : int
        Threads, each of which runs one shard.
    """
    cdef Py_ssize_t i, shard, n_shards = min(n_threads, step.max_shards), n_slots = len(arrays), row
    cdef const void* params
    cdef char* address
    cdef char** slots = <char**> calloc(n_slots * n_shards, sizeof(char*))
    if slots == NULL:
        raise MemoryError
    for i, array in enumerate(arrays):
        row = 0
        if isinstance(array, tuple):
            array = array[0]
            row = array.strides[0]
        address = <char*> <uintptr_t> array.__array_interface__["data"][0]
        for shard in range(n_shards):
            slots[shard * n_slots + i] = address + shard * row
    for i in range(step.n_phases):
        params = step.params_of(i)
        for shard in prange(
            n_shards, nogil=True, num_threads=n_threads, schedule="static", chunksize=1
        ):
            step.run(params, slots + shard * n_slots, shard, n_shards)
    free(slots)
