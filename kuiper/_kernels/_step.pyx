"""The base class of all prepared kernel calls."""


cdef class Step:
    """One prepared kernel call; subclasses fill `run` and `params` when they are made."""

    cdef ref_t ref(self, object value) except *:
        """Return the address of a plan value: anything with `slot` and `offset_bytes`."""
        cdef ref_t r
        r.slot = value.slot
        r.offset = value.offset_bytes
        return r
