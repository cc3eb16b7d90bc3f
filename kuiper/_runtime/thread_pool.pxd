# The thread pool; thread_pool.h explains how it works.

# Works on a job until nothing is left of it; see kp_work.
ctypedef void (*work_fn)(void* job, Py_ssize_t rank, Py_ssize_t n_threads) noexcept nogil

# Does one item of a job; concurrent calls have different ranks.
ctypedef void (*item_fn)(void* job, Py_ssize_t item, Py_ssize_t rank) noexcept nogil

# What each thread does after its share of a job from now on.
ctypedef void (*after_work_fn)() noexcept nogil
cdef void set_after_work(after_work_fn after_work) noexcept
cdef void run_job(work_fn work, void* job, Py_ssize_t n_threads) noexcept nogil
cdef void parallel_for(
    item_fn do_item, void* job, Py_ssize_t n_items, Py_ssize_t n_threads
) noexcept nogil
