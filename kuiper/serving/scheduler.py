"""Runs queued requests in threads: bounded queues, batches without waiting, deadlines, drain.

::

    submit ──> queue of a model ──┐
    submit ──> queue of a model ──┼─ the next model in turn ─> runner ── run(batch) ──> done(job)
                                  └─                         ─> runner

A runner is a thread.  It takes the oldest job of a queue, and with it the queued jobs whose arrays
can be joined to one batch.  By default it never waits for more.  All models share the runners, so
runs never outnumber them; a run alone uses all threads, runs side by side share them.

Nothing here knows of protocols or of event loops.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kuiper.serving.failures import Refusal

__all__ = ["Job", "Queue", "Scheduler", "batch_key"]


def batch_key(arrays: Sequence[np.ndarray]) -> tuple[Any, ...] | None:
    """Return what jobs must share to be joined along axis 0; None if the job stays alone."""
    if not arrays or any(a.ndim == 0 or len(a) != len(arrays[0]) or not len(a) for a in arrays):
        return None
    return tuple([(a.shape[1:], a.dtype.char) for a in arrays])


@dataclass(eq=False, slots=True)
class Job:
    """A request that runs, or waits to.

    Parameters
    ----------
    arrays : list of numpy.ndarray
        The inputs of the model, checked.
    done : callable
        Called once, by a runner or by the thread that ends the job: ``done(job)``.
    deadline : float, optional
        In the time of :func:`time.monotonic`: then nothing waits for the result any more.

    Attributes
    ----------
    result : list of numpy.ndarray or None
        Of a job that succeeded.
    error : BaseException or None
        Why it did not.
    queued, started, finished : float
        In the time of :func:`time.monotonic`.
    batch : int
        Number of rows that ran together.
    """

    arrays: list[np.ndarray]
    done: Callable[[Job], None]
    deadline: float | None = None
    result: list[np.ndarray] | None = None
    error: BaseException | None = None
    queued: float = 0.0
    started: float = 0.0
    finished: float = 0.0
    batch: int = 0
    is_over: bool = False
    key: Any = None
    rows: int = 1
    n_bytes: int = 0


@dataclass(eq=False)
class Queue:
    """The jobs of one model that wait, and how they run.

    Parameters
    ----------
    run : callable
        ``run(arrays, n_threads)`` returns a list of arrays; runners call it at the same time.
    sizes : sequence of int
        Allowed numbers of rows of a joined batch, ascending; ``(1,)`` joins nothing.
    limit : int
        How many runners may work for this model at once.
    delay : float
        Seconds that the oldest job may wait for a batch of the largest size.
    max_jobs : int
        Jobs that may wait; more are refused.
    owner : object
        What the queue belongs to.
    """

    run: Callable[[list[np.ndarray], int], list[np.ndarray]]
    sizes: Sequence[int] = (1,)
    limit: int = 1 << 30
    delay: float = 0.0
    max_jobs: int = 64
    owner: Any = None
    # Kept by the scheduler, under its lock.
    jobs: deque[Job] = field(default_factory=deque)
    n_waiting: int = 0
    n_running: int = 0
    seconds: float = 0.0  # of a run per row, smoothed

    @property
    def is_idle(self) -> bool:
        """Whether no job waits or runs."""
        return not self.n_waiting and not self.n_running


class Scheduler:
    """The runners of a server and the jobs of all its models.

    Parameters
    ----------
    runners : int
        Number of runs at a time.
    threads : int
        Threads that these runs share.
    max_bytes : int
        Bytes of the inputs of all jobs that wait or run.
    observe : callable, optional
        Called after each run, without the lock: ``observe(queue, jobs)``.
    """

    def __init__(
        self,
        runners: int = 1,
        threads: int = 1,
        max_bytes: int = 1 << 30,
        observe: Callable[[Queue, list[Job]], None] | None = None,
    ) -> None:
        self.runners, self.threads, self.max_bytes = runners, threads, max_bytes
        self._observe = observe
        self._changed = threading.Condition()
        self._turn: deque[Queue] = deque()  # queues that have jobs, the next one first
        self._n_bytes = 0
        self._running: dict[Job, Queue] = {}
        self._n_running = 0
        self._n_waiting = 0
        self._is_draining = False
        self._is_closed = False
        self._threads: list[threading.Thread] = []

    # -- jobs ------------------------------------------------------------------------------

    def submit(self, queue: Queue, job: Job) -> None:
        """Queue a job.

        Raises
        ------
        Refusal
            If the queue or the memory for inputs is full, or the scheduler drains.
        """
        job.n_bytes = sum(array.nbytes for array in job.arrays)
        job.key = batch_key(job.arrays)
        job.rows = len(job.arrays[0]) if job.key is not None else 1
        job.queued = time.monotonic()
        with self._changed:
            if self._is_draining:
                raise Refusal("unavailable", "the server shuts down", 1.0)
            if queue.n_waiting >= queue.max_jobs:
                raise Refusal(
                    "busy",
                    f"{queue.n_waiting} requests wait for this model, the limit",
                    max(1.0, queue.seconds * queue.n_waiting / self.runners),
                )
            if self._n_bytes + job.n_bytes > self.max_bytes:
                raise Refusal(
                    "busy", f"the requests in the server have {self._n_bytes} bytes, the limit is "
                    f"{self.max_bytes}", 1.0,
                )  # fmt: skip
            if not self._threads:
                self._start()
            self._n_bytes += job.n_bytes
            queue.n_waiting += 1
            self._n_waiting += 1
            queue.jobs.append(job)
            if len(queue.jobs) == 1 and queue not in self._turn:
                self._turn.append(queue)
            self._changed.notify()

    def cancel(self, queue: Queue, job: Job, error: BaseException) -> bool:
        """End a job with an error; return False if it is over.

        A job that waits is dropped.  The result of one that runs is discarded.
        """
        with self._changed:
            if job.is_over:
                return False
            job.is_over = True
            if not job.started:
                self._forget(queue, job)
        job.error, job.finished = error, time.monotonic()
        job.done(job)
        return True

    @property
    def n_bytes(self) -> int:
        """Bytes of the inputs of jobs that wait or run."""
        return self._n_bytes

    @property
    def n_waiting(self) -> int:
        """Number of jobs that wait."""
        return self._n_waiting

    @property
    def n_running(self) -> int:
        """Number of runs at this moment."""
        return self._n_running

    # -- end -------------------------------------------------------------------------------

    def drain(self, timeout: float) -> bool:
        """Refuse new jobs and wait until the others are over; return whether they are."""
        with self._changed:
            self._is_draining = True
            return self._changed.wait_for(
                lambda: not self._n_waiting and not self._n_running, timeout
            )

    def abandon(self) -> int:
        """Refuse new jobs, end those that wait or run with an error; return their number."""
        with self._changed:
            self._is_draining = True
            left = [(queue, job) for queue in self._turn for job in queue.jobs]
            left += [(queue, job) for job, queue in self._running.items()]
        late = Refusal("unavailable", "the server shuts down", 1.0)
        return sum([self.cancel(queue, job, late) for queue, job in left])

    def close(self) -> None:
        """End all jobs with an error, and the runners after their current runs."""
        with self._changed:
            self._is_draining = self._is_closed = True
            self._changed.notify_all()
        self.abandon()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=1.0)

    # -- runners ---------------------------------------------------------------------------

    def _start(self) -> None:
        # Daemons: an interpreter may exit although a run has not ended.
        self._threads = [
            threading.Thread(target=self._work, name=f"kuiper-runner-{number}", daemon=True)
            for number in range(self.runners)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                taken = self._take()
                while taken is None:
                    if self._is_closed:
                        return
                    taken = self._take()
                queue, jobs, dropped, n_threads = taken
            for job in dropped:
                job.done(job)
            if jobs:
                self._run(queue, jobs, n_threads)
            # A thread that waits must not keep the arrays of its last batch alive.
            del taken, jobs, dropped

    def _take(self) -> tuple[Queue, list[Job], list[Job], int] | None:
        """Return a queue and the jobs to run together, or wait for a change and return None.

        The lock is held.  Jobs past their deadline are returned as dropped.
        """
        dropped: list[Job] = []
        wait: float | None = None
        for _ in range(len(self._turn)):
            queue = self._turn[0]
            self._turn.rotate(-1)
            self._drop_expired(queue, dropped)
            if not queue.jobs:
                self._turn.remove(queue)
                continue
            if queue.n_running >= queue.limit:
                continue
            left = self._time_to_wait(queue)
            if left > 0:
                wait = left if wait is None else min(wait, left)
                continue
            jobs = self._batch(queue)
            if not queue.jobs:
                self._turn.remove(queue)
            queue.n_running += 1
            self._n_running += 1
            busy = min(self._n_running + self._n_waiting, self.runners)
            return queue, jobs, dropped, max(1, self.threads // max(1, busy))
        if dropped:
            return queue, [], dropped, 1
        if not self._is_closed:
            self._changed.wait(wait)
        return None

    def _drop_expired(self, queue: Queue, dropped: list[Job]) -> None:
        """Remove cancelled and expired jobs from the head of a queue."""
        now = None
        while queue.jobs:
            job = queue.jobs[0]
            if not job.is_over:
                if job.deadline is None:
                    return
                now = time.monotonic() if now is None else now
                if job.deadline > now:
                    return
                job.is_over, job.finished = True, now
                job.error = Refusal("deadline", "the deadline passed while the request waited")
                self._forget(queue, job)
                dropped.append(job)
            if queue.jobs and queue.jobs[0] is job:
                queue.jobs.popleft()

    def _time_to_wait(self, queue: Queue) -> float:
        if not queue.delay or self._is_draining:
            return 0.0
        left = queue.jobs[0].queued + queue.delay - time.monotonic()
        key = queue.jobs[0].key
        rows = sum(job.rows for job in queue.jobs if job.key == key and not job.is_over)
        return left if key is not None and rows < queue.sizes[-1] else 0.0

    def _batch(self, queue: Queue) -> list[Job]:
        """Remove and return the jobs for the next run: the oldest, and those that join it."""
        first = queue.jobs.popleft()
        jobs, rows = [first], first.rows
        largest = queue.sizes[-1]
        if first.key is not None and rows < largest and queue.jobs:
            now = time.monotonic()
            for job in queue.jobs:
                if job.is_over or job.key != first.key or rows + job.rows > largest:
                    continue
                if job.deadline is not None and job.deadline <= now:
                    continue  # dropped when it reaches the head
                jobs.append(job)
                rows += job.rows
                if rows == largest:
                    break
            while len(jobs) > 1 and rows not in queue.sizes:
                rows -= jobs.pop().rows
            joined = set(map(id, jobs[1:]))
            if joined:
                queue.jobs = deque(job for job in queue.jobs if id(job) not in joined)
        started = time.monotonic()
        for job in jobs:
            job.started, job.batch = started, rows
            self._running[job] = queue
            queue.n_waiting -= 1
            self._n_waiting -= 1
        return jobs

    def _forget(self, queue: Queue, job: Job) -> None:
        """Take a job that waits out of the counts; it stays in the queue until it is the head."""
        queue.n_waiting -= 1
        self._n_waiting -= 1
        self._n_bytes -= job.n_bytes
        job.arrays = []
        if len(queue.jobs) > 2 * queue.n_waiting + 64:  # clients that come and hang up
            queue.jobs = deque(job for job in queue.jobs if not job.is_over)
        self._changed.notify_all()

    def _run(self, queue: Queue, jobs: list[Job], n_threads: int) -> None:
        try:
            _run_jobs(queue, jobs, n_threads)
        finally:
            finished = time.monotonic()
            rows = max(1, jobs[0].batch)
            spent = (finished - jobs[0].started) / rows
            with self._changed:
                queue.n_running -= 1
                self._n_running -= 1
                queue.seconds += (spent - queue.seconds) / (8 if queue.seconds else 1)
                ended = []
                for job in jobs:
                    self._running.pop(job, None)
                    self._n_bytes -= job.n_bytes
                    job.arrays = []
                    if not job.is_over:
                        job.is_over, job.finished = True, finished
                        ended.append(job)
                    else:
                        job.result = None
                self._changed.notify_all()
            for job in ended:
                job.done(job)
            if self._observe is not None:
                self._observe(queue, jobs)


def _run_jobs(queue: Queue, jobs: list[Job], n_threads: int) -> None:
    """Run jobs as one batch; if that fails, one by one, so that only the faulty ones fail."""
    if len(jobs) > 1:
        try:
            arrays = [
                np.concatenate(parts) for parts in zip(*(j.arrays for j in jobs), strict=True)
            ]
            results = queue.run(arrays, n_threads)
            _split(jobs, results)
            return
        except Exception:
            for job in jobs:
                job.result = None
    for job in jobs:
        try:
            job.result = queue.run(job.arrays, n_threads)
        except BaseException as error:
            job.error = error


def _split(jobs: list[Job], results: list[np.ndarray]) -> None:
    """Give each job its rows of the results of a batch."""
    rows = sum(job.rows for job in jobs)
    if any(result.ndim == 0 or len(result) != rows for result in results):
        raise ValueError("a result has no row for each row of the batch")
    start = 0
    for job in jobs:
        job.result = [result[start : start + job.rows] for result in results]
        start += job.rows
