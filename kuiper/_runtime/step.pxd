# A step: one prepared kernel call.  All checks happen when it is made; running it cannot fail,
# except on a data-dependent index: one out of range is replaced by 0 and recorded in the error
# slot, and the executor raises afterwards.  Operands are named by slot, so any number of contexts
# (concurrent calls) can share a step.

from libc.stdint cimport int64_t

# Does shard `shard` of `n_shards` of the work.  Shards run concurrently, in any order and on any
# thread, so they write disjoint output and never split a sum: results do not depend on n_shards.
# The slots of scratch memory point to the calling thread's own.
ctypedef void (*step_fn)(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil

# The location of an operand: `offset` bytes after the address in slot `slot` of a context.  An
# optional operand that is missing has slot -1.
ctypedef struct ref_t:
    Py_ssize_t slot
    Py_ssize_t offset

# An index out of range, recorded in per-context state.
cdef struct error_slot_t:
    int64_t found        # 1 if an index was out of range
    int64_t value        # one such index

cdef inline char* at(char* const* slots, ref_t ref) noexcept nogil:
    return slots[ref.slot] + ref.offset


cdef inline char* at_or_null(char* const* slots, ref_t ref) noexcept nogil:
    return NULL if ref.slot < 0 else slots[ref.slot] + ref.offset


cdef inline Py_ssize_t ceil_div(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    """Return ceil(a / b) for a >= 0; -(-a // b) is wrong with C division."""
    return (a + b - 1) // b


cdef inline Py_ssize_t shard_start(
    Py_ssize_t total, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Return the first of `total` items in shard `shard`; shard sizes differ by at most 1."""
    return total * shard // n_shards


cdef class Step:
    cdef step_fn run
    cdef const void* params          # a struct of the subclass; lives as long as the step
    cdef public Py_ssize_t max_shards        # most shards that pay off; 1 = serial
    # How often it runs, each time with other parameters; a phase ends before the next one starts
    cdef public Py_ssize_t n_phases
    cdef public object keep          # owner of the memory that pointers in params refer to
    cdef readonly list slots         # of its operands, for their lifetimes
    cdef public str name             # the operator's name, for profiles
    cdef public str kind             # the kernel's name, for profiles
    cdef public object algorithm     # the Choice of a convolution, for profiles; else None
    cdef public double flops         # that it does; a multiply-add counts as 2
    cdef public double saved_flops   # of the definition that its algorithm does without
    cdef public double bytes         # minimum read and written

    cdef ref_t error_slot            # of an error_slot_t; slot -1 if the step cannot fail
    cdef public str message          # of the exception; {} is replaced by the recorded value

    cdef const void* params_of(self, Py_ssize_t phase) noexcept
    cdef ref_t ref(self, object value) except *
    cdef object exception(self, int64_t value)
