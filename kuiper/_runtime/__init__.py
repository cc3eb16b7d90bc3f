"""Running a plan: executor, steps, thread pool, pages and weights.

The runtime executes what planning has decided.  It imports nothing from the kernels above it: a
step carries a C function and its parameters; a program receives the floats per vector. ::

    Plan.run ---> Context            slot -> address, one row per thread; per-context state
       |          Arena              temporary operands of one run, from the model's ArenaPool
       v
    Program.run                                               executor.pyx
       |   slice | slice | slice     between slices: PyErr_CheckSignals, so that Ctrl-C ends a run
       v
    run_job(n_threads)                                        thread_pool.pyx, thread_pool.h
       |   worker 0      worker 1    all threads walk the list of steps together
       v      |             |
    Step.run(params, slots, shard, n_shards)                  step.pxd; kernels subclass Step
       phase 1: chunk chunk chunk chunk      claimed one by one, own range first (work_shares.h)
       -------- barrier ------------------   a phase ends when all its chunks are finished
       phase 2: chunk chunk chunk chunk

    WeightCache ---> PagePool        packed weights, adjacent in a few regions    weights.py
       |                |                                                         pages.py
       +--> Finalizer --+            between runs: transform deferred filters, then enlarge pages
    StoredRows                       weights still in the file, read by any thread  stored_rows.pyx

Steps
    All checks happen when a step is made, so running one cannot fail, with one exception: a
    data-dependent index.  It is replaced by 0 and recorded in the step's error slot, and the
    executor raises after the run.  Operands are named by slot, so any number of contexts
    (concurrent calls) can share a step.

Work sharing
    A step estimated at more than 10 us per thread is split into four chunks per thread, which
    balances the load; a shorter one into one chunk per thread.  Claiming a chunk costs about
    0.1 us.  Shards write disjoint output and never split a sum, so results do not depend on the
    number of threads.

Slices
    A slice ends after an estimated 20 ms, or 0.4 s at scalar speed.  A single step longer than
    0.8 s at scalar speed is split into several entries.  Over-splitting is cheap and
    under-splitting blocks Ctrl-C, so estimates assume the slow case.

Weights
    A weight is packed once per model and instruction set and shared by all plans.  Large Winograd
    filters are deferred: the first runs read and transform them on use, to the same bits, and the
    finalizer transforms them between later runs, in up to 33 % of the elapsed time.  It then moves
    weights to large pages, in up to 10 %.

Locks
    Looking up a plan and claiming a chunk take no lock.  A model's lock is held while a plan is
    made or weights are finalized, and reset in a forked child.  The pool ends its idle threads
    before a fork and starts new ones on demand.
"""
