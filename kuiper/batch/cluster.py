"""The engine `ray`: the tasks of a run as tasks of a Ray cluster."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from kuiper.batch.plan import Task
from kuiper.batch.work import Failure, Job, Outcome, attempt, completed, worker_died
from kuiper.errors import DatasetError, MissingPackageError

__all__ = ["run"]

# Machines of a cluster come and go; their tasks are done again.
_MAX_RETRIES = 10


def run(
    job: Job, tasks: Sequence[Task], workers: int | None, address: str | None
) -> Iterator[Outcome]:
    """Do tasks on a cluster; yield the outcome of each.

    Ray repeats a task whose worker or machine is lost.

    Parameters
    ----------
    job : Job
    tasks : sequence of Task
    workers : int or None
        How many tasks to run at a time; None for as many as the cluster has processors for.
    address : str or None
        Of the cluster; by default that of ``RAY_ADDRESS``, or one that runs on this machine.

    Yields
    ------
    Outcome

    Raises
    ------
    MissingPackageError
        If Ray is not installed.
    DatasetError
        If there is no cluster.
    KuiperError, OSError
        If a task raises one.
    """
    ray = connected(address)
    threads = job.stage.threads or 1
    remote = ray.remote(num_cpus=threads, max_retries=_MAX_RETRIES)(attempt)
    shared = ray.put(job)  # sent once to each machine
    waiting = deque(tasks)
    pending: dict[Any, Task] = {}
    try:
        while waiting or pending:
            # Twice as many as can run, so that no worker waits for this loop.
            limit = workers or 2 * max(1, int(_cpus(ray) // threads))
            while waiting and len(pending) < limit:
                task = waiting.popleft()
                pending[remote.remote(shared, task)] = task
            ready, _ = ray.wait(list(pending), timeout=5)
            for reference in ready:
                task = pending.pop(reference)
                try:
                    reply: Outcome | Failure = ray.get(reference)
                except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
                    yield worker_died(job, task, f"({type(error).__name__})", _MAX_RETRIES + 1)
                    continue
                yield completed(reply)
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)


def _cpus(ray: Any) -> float:
    return ray.cluster_resources().get("CPU", 1)


def _knock(address: str | None) -> None:
    """Raise OSError if no program listens at HOST:PORT; Ray would try for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def connected(address: str | None) -> Any:
    """Return the module of Ray, connected to a cluster; see :func:`run`."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingPackageError(
            "the engine ray needs Ray, which is not installed: pip install 'kuiper-runtime[ray]'"
        ) from error
    if not ray.is_initialized():
        address = address or os.environ.get("RAY_ADDRESS")
        try:
            _knock(address)
            # Only an existing cluster: one that Ray starts itself listens on every interface.
            ray.init(address=address or "auto", log_to_driver=False, logging_level="warning")
        except (ConnectionError, TimeoutError, socket.gaierror) as error:
            raise DatasetError(
                f"no Ray cluster answers at {address or 'this machine'}: "
                f"{error}; start one by `ray start --head`, or use the engine local"
            ) from error
    return ray
