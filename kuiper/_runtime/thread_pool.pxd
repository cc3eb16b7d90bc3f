# Threads that work on a job together; thread_pool.h says how.

# Does a part of a job; see kp_work.  Whoever does it takes what is left, until nothing is.
ctypedef void (*work_fn)(void* job, Py_ssize_t rank, Py_ssize_t n_threads) noexcept nogil

# Does one of the items of a job; no two with the same rank at the same time.
ctypedef void (*item_fn)(void* job, Py_ssize_t item, Py_ssize_t rank) noexcept nogil

cdef void run_job(work_fn work, void* job, Py_ssize_t n_threads) noexcept nogil
cdef void parallel_for(
    item_fn do_item, void* job, Py_ssize_t n_items, Py_ssize_t n_threads
) noexcept nogil
