"""The base class of all prepared kernel calls."""


cdef class Step:
    """One prepared kernel call; subclasses fill `run` and `params` when they are made."""

    def __cinit__(self):
        self.slots = []
        self.max_parts = 1

    cdef ref_t ref(self, object value) except *:
        """Note that the step touches a plan value, and return where it lies."""
        cdef ref_t r
        self.slots.append(value.slot)
        r.slot = value.slot
        r.offset = value.offset_bytes
        return r
