"""The threads of the engine: one pool for all models, plans and calling threads."""

import os

from libc.string cimport memset

from kuiper._runtime.step cimport share_start
from kuiper._runtime.thread_pool cimport item_fn, work_fn


cdef extern from "_runtime/thread_pool.h" nogil:
    int prepare_team "kp_prepare_team"(bint patient) noexcept
    void c_run_team "kp_run_team"(work_fn work, void* job, Py_ssize_t n) noexcept

cdef extern from "_runtime/work_shares.h" nogil:
    long claim "kp_claim"(int* next, long end) noexcept
    enum:
        SERIAL "KP_SERIAL"


has_threads = not SERIAL

if prepare_team(os.environ.get("OMP_WAIT_POLICY", "").strip().lower() != "passive"):
    raise MemoryError


cdef void run_team(work_fn work, void* job, Py_ssize_t n_threads) noexcept nogil:
    """Have up to `n_threads` threads work on a job, the calling one among them."""
    c_run_team(work, job, n_threads)


cdef enum:
    MAX_THREADS = 256            # as the number may be set; more share the work of these

cdef struct items_t:
    item_fn do_item
    void* job
    Py_ssize_t n_items
    int[MAX_THREADS] taken       # of each thread's own share


cdef void share_out(
    item_fn do_item, void* job, Py_ssize_t n_items, Py_ssize_t n_threads
) noexcept nogil:
    """Do all items of a job, on up to `n_threads` threads.

    Each begins with a share of its own, items that lie side by side, then helps the others.
    """
    cdef items_t items
    items.do_item, items.job, items.n_items = do_item, job, n_items
    memset(items.taken, 0, sizeof(items.taken))
    run_team(take_items, &items, min(n_threads, min(n_items, MAX_THREADS)))


cdef void take_items(void* job, Py_ssize_t rank, Py_ssize_t team) noexcept nogil:
    cdef items_t* items = <items_t*> job
    cdef Py_ssize_t thread, owner, start
    cdef long item
    for thread in range(team):
        owner = (rank + thread) % team
        start = share_start(items.n_items, owner, team)
        while True:
            item = claim(
                &items.taken[owner], share_start(items.n_items, owner + 1, team) - start
            )
            if item < 0:
                break
            items.do_item(items.job, start + item, rank)
