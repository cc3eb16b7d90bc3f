"""The base class of all prepared kernel calls."""

from cython.parallel cimport prange
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

from kuiper.errors import ShapeError

ERROR_SLOT_BYTES = sizeof(error_slot_t)


cdef class Step:
    """One prepared kernel call; subclasses fill `run` and `params` when they are made."""

    def __cinit__(self):
        self.slots = []
        self.max_shards = self.n_phases = 1
        self.error_slot.slot = -1

    cdef const void* params_of(self, Py_ssize_t phase) noexcept:
        """Return the parameters of a phase; a step of several has its own."""
        return self.params

    cdef ref_t ref(self, object value) except *:
        """Note that the step touches a tensor view, and return where it lies."""
        cdef ref_t r
        self.slots.append(value.slot)
        r.slot = value.slot
        r.offset = value.offset_bytes
        return r

    cdef object exception(self, int64_t value):
        """Return what a run raises that has recorded an error."""
        return ShapeError(self.message.format(value))


def run_step(Step step not None, arrays, int n_threads):
    """Run one step on arrays, without a plan.

    Parameters
    ----------
    step : Step
        Made of values over the slots 0, 1, ...
    arrays : sequence of numpy.ndarray
        What the slots hold; scratch memory as an array with one row for each thread, in a tuple.
    n_threads : int
        In how many shards, one thread each.
    """
    cdef Py_ssize_t i, part, parts = min(n_threads, step.max_shards), n_slots = len(arrays), row
    cdef const void* params
    cdef char* address
    cdef char** slots = <char**> calloc(n_slots * parts, sizeof(char*))
    if slots == NULL:
        raise MemoryError
    for i, array in enumerate(arrays):
        row = 0
        if isinstance(array, tuple):
            array = array[0]
            row = array.strides[0]
        address = <char*> <uintptr_t> array.__array_interface__["data"][0]
        for part in range(parts):
            slots[part * n_slots + i] = address + part * row
    for i in range(step.n_phases):
        params = step.params_of(i)
        for part in prange(
            parts, nogil=True, num_threads=n_threads, schedule="static", chunksize=1
        ):
            step.run(params, slots + part * n_slots, part, parts)
    free(slots)
