"""The threads of the engine: one pool for all models, plans and calling threads."""

import os

from libc.string cimport memset

from kuiper._runtime.step cimport shard_start
from kuiper._runtime.thread_pool cimport after_work_fn, item_fn, work_fn


cdef extern from "_runtime/thread_pool.h" nogil:
    int prepare_pool "kp_prepare_pool"(bint may_spin) noexcept
    after_work_fn after_work_of_threads "kp_after_work"
    void c_run_job "kp_run_job"(work_fn work, void* job, Py_ssize_t n) noexcept

cdef extern from "_runtime/work_shares.h" nogil:
    long claim "kp_claim"(int* next, long end) noexcept
    enum:
        SERIAL "KP_SERIAL"


has_threads = not SERIAL

if prepare_pool(os.environ.get("OMP_WAIT_POLICY", "").strip().lower() != "passive"):
    raise MemoryError


cdef void set_after_work(after_work_fn after_work) noexcept:
    global after_work_of_threads
    after_work_of_threads = after_work


cdef void run_job(work_fn work, void* job, Py_ssize_t n_threads) noexcept nogil:
    """Run a job on up to `n_threads` threads, the calling one included."""
    c_run_job(work, job, n_threads)


cdef enum:
    MAX_THREADS = 256            # the largest number of threads that can be set

cdef struct items_t:
    item_fn do_item
    void* job
    Py_ssize_t n_items
    int[MAX_THREADS] taken       # items claimed of each thread's range


cdef void parallel_for(
    item_fn do_item, void* job, Py_ssize_t n_items, Py_ssize_t n_threads
) noexcept nogil:
    """Do all items of a job on up to `n_threads` threads.

    Each thread starts with its own range of adjacent items, then claims items of other ranges.
    """
    cdef items_t items
    items.do_item, items.job, items.n_items = do_item, job, n_items
    memset(items.taken, 0, sizeof(items.taken))
    run_job(take_items, &items, min(n_threads, min(n_items, MAX_THREADS)))


cdef void take_items(void* job, Py_ssize_t rank, Py_ssize_t n_threads) noexcept nogil:
    cdef items_t* items = <items_t*> job
    cdef Py_ssize_t thread, owner, start
    cdef long item
    for thread in range(n_threads):
        owner = (rank + thread) % n_threads
        start = shard_start(items.n_items, owner, n_threads)
        while True:
            item = claim(
                &items.taken[owner], shard_start(items.n_items, owner + 1, n_threads) - start
            )
            if item < 0:
                break
            items.do_item(items.job, start + item, rank)
