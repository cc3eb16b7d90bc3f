# A step: one prepared call of a kernel.  All its checks are done when it is made; running it cannot
# fail, but for values that are places in another tensor: those it checks as it meets them, notes
# one that is out of range, and reads or writes some other place instead; the executor looks at the
# note afterwards.  Operands are named by slot, so one step serves any number of contexts
# (concurrent calls).

from libc.stdint cimport int64_t

# Does shard `shard` of `n_shards` of the work.  Shards run at the same time, in any order and on
# any thread, so they write disjoint output and never split a sum: results do not depend on
# n_shards. Scratch memory is the calling thread's own: its slot points elsewhere for each thread.
ctypedef void (*step_fn)(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil

# Where an operand lies: `offset` bytes into what the context's slot table holds at `slot`.
ctypedef struct ref_t:
    Py_ssize_t slot
    Py_ssize_t offset

# What a step notes in per-context memory.
cdef struct error_slot_t:
    int64_t found        # whether there is anything
    int64_t value        # what was out of range, one of them

cdef inline char* at(char* const* slots, ref_t ref) noexcept nogil:
    return slots[ref.slot] + ref.offset


cdef inline Py_ssize_t ceil_div(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    """a / b rounded up, for a >= 0; note that -(-a // b) is something else on C integers."""
    return (a + b - 1) // b


cdef inline Py_ssize_t shard_start(
    Py_ssize_t total, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Where shard `shard` of `total` items starts; shards differ by one item at the most."""
    return total * shard // n_shards


cdef class Step:
    cdef step_fn run
    cdef const void* params          # the subclass's own struct; lives as long as the step
    cdef public Py_ssize_t max_shards        # how many shards are worth having; 1 = serial
    # How often it runs, with other parameters each time: a phase ends before the next one starts
    cdef public Py_ssize_t n_phases
    cdef public object keep          # what the pointers in params point into
    cdef readonly list slots         # of the operands it touches, for their lifetimes
    cdef public str name             # the operator's name, for profiles
    cdef public str kind             # the kernel's name, for profiles
    cdef public object algorithm     # the Choice of a convolution, for profiles; None for others
    cdef public double flops         # multiply and add counted apart
    cdef public double bytes         # read and written at the least

    # where an error_slot_t lies; slot -1 where nothing can go wrong
    cdef ref_t error_slot
    cdef public str message        # what is said then; {} stands for the value, see exception

    cdef const void* params_of(self, Py_ssize_t phase) noexcept
    cdef ref_t ref(self, object value) except *
    cdef object exception(self, int64_t value)
