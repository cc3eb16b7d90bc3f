"""The local engine: a pool of processes of this machine, which outlives the death of a worker."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from kuiper.batch.plan import Task
from kuiper.batch.work import (
    MAX_ATTEMPTS,
    Abandoned,
    Failure,
    Job,
    Outcome,
    attempt,
    completed,
    worker_died,
)

__all__ = ["run"]

# A worker's threads are those of its stage; libraries must not start more for each of them.
_ONE_THREAD = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OPENCV_FOR_THREADS_NUM",
)  # fmt: skip


def run(job: Job, tasks: Sequence[Task], workers: int) -> Iterator[Outcome]:
    """Do tasks in processes; yield the outcome of each.

    A task whose worker dies is done again by another one, up to three times in all.

    Parameters
    ----------
    job : Job
    tasks : sequence of Task
    workers : int
        Number of processes; 0 for none but this one.

    Yields
    ------
    Outcome

    Raises
    ------
    KuiperError, OSError
        If a task raises one; the other workers are ended.
    """
    if not workers:
        yield from map(completed, (attempt(job, task) for task in tasks))
        return
    waiting = deque(tasks)
    attempts: dict[int, int] = {}
    pool: list[_Worker] = []
    try:
        while waiting or any(worker.task for worker in pool):
            for worker in pool:
                if not worker.task and waiting:
                    worker.give(waiting.popleft())
            while waiting and len(pool) < workers:
                pool.append(_Worker(job))
                pool[-1].give(waiting.popleft())
            ready = wait([worker.connection for worker in pool if worker.task])
            for worker in [worker for worker in pool if worker.connection in ready]:
                task = worker.task
                assert task is not None
                try:
                    reply = worker.take()
                except (EOFError, OSError):
                    pool.remove(worker)
                    how = worker.end()
                    attempts[task.number] = attempts.get(task.number, 0) + 1
                    if attempts[task.number] < MAX_ATTEMPTS:
                        waiting.appendleft(task)
                    else:
                        yield worker_died(job, task, how, MAX_ATTEMPTS)
                    continue
                yield completed(reply)
    finally:
        for worker in pool:
            worker.connection.close()
        for worker in pool:
            worker.end()


class _Worker:
    """A process with a pipe to it.

    Attributes
    ----------
    task : Task or None
        What it is doing.
    """

    def __init__(self, job: Job) -> None:
        # Spawned, not forked: a fork copies locks that threads of this process may hold.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.task: Task | None = None
        self._process = context.Process(target=_serve, args=(theirs, job), daemon=True)
        with _single_threaded(), _without_interrupts():
            self._process.start()
        theirs.close()  # so that the pipe ends when the process does

    def give(self, task: Task) -> None:
        """Send a task; if the worker has died, the next receipt says so."""
        self.task = task
        with contextlib.suppress(OSError):
            self.connection.send(task)

    def take(self) -> Outcome | Failure:
        """Return the worker's reply."""
        reply: Outcome | Failure = self.connection.recv()
        self.task = None
        return reply

    def end(self) -> str:
        """End the process, if it is alive, and return how it ended."""
        self.connection.close()
        self._process.join(0.1)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        code = self._process.exitcode or 0
        return f"by signal {-code}" if code < 0 else f"with exit code {code}"


@contextlib.contextmanager
def _single_threaded() -> Iterator[None]:
    """Let libraries of processes that start in the block use one thread, unless told."""
    added = [name for name in _ONE_THREAD if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block Ctrl-C in processes that start in the block, which end with this one anyway."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection[Any, Any], job: Job) -> None:
    """Do the tasks that come from a pipe, until it ends."""
    # Ctrl-C reaches every process of the terminal; only the first one handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nothing comes while a task is being done, so a pipe with news is one that has ended.
    with contextlib.suppress(EOFError, OSError, Abandoned):
        while True:
            task = connection.recv()
            connection.send(attempt(job, task, lambda: not connection.poll()))
