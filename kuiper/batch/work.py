"""The work of one task, as a worker of any engine does it, and what it reports."""

from __future__ import annotations

import platform
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kuiper
from kuiper import errors
from kuiper.batch.frames import as_frame
from kuiper.batch.plan import Output, Task
from kuiper.batch.sinks import FORMATS
from kuiper.batch.sources import Source
from kuiper.batch.stage import Stage
from kuiper.errors import DatasetError, KuiperError

__all__ = ["MAX_ATTEMPTS", "Failure", "Job", "Outcome", "attempt", "completed", "worker_died"]

# A worker that dies may have been killed by chance, or by what it was doing.
MAX_ATTEMPTS = 3


@dataclass(frozen=True)
class Job:
    """What all tasks of a run have in common.

    Attributes
    ----------
    stage : Stage
    source : Source
    output : Output
        Without tasks.
    format : str
    kept : tuple of str
        Columns of the source to pass on.
    version : str
        That of kuiper in the process that began the run.
    """

    stage: Stage
    source: Source
    output: Output
    format: str
    kept: tuple[str, ...]
    version: str


@dataclass(frozen=True)
class Outcome:
    """A task that has ended.

    Attributes
    ----------
    task : Task
    errors : int
        Rows that have a reason in the column ``error``.
    failure : str
        Why there is no shard; empty if there is one.
    """

    task: Task
    errors: int = 0
    failure: str = ""


@dataclass(frozen=True)
class Failure:
    """An exception that ends the run, in a form that every process can unpickle.

    Attributes
    ----------
    name : str
        Of its class.
    message : str
    details : tuple
        Number, text and file of an OSError.
    """

    name: str
    message: str
    details: tuple[Any, ...] = ()

    def error(self) -> Exception:
        """Return the exception."""
        if self.details:
            return OSError(*self.details)
        kind = getattr(errors, self.name, DatasetError)
        return kind(self.message)


class Abandoned(Exception):
    """The process that began the run is gone."""


def attempt(job: Job, task: Task, goes_on: Callable[[], bool] = lambda: True) -> Outcome | Failure:
    """Do a task, and return what came of it.

    Parameters
    ----------
    job : Job
    task : Task
    goes_on : callable
        Tells whether to go on; asked between batches.
    """
    try:
        return Outcome(task, _compute(job, task, goes_on))
    except KuiperError as error:
        return Failure(type(error).__name__, f"{told(job, task)}: {error}")
    except OSError as error:
        if error.errno is None:  # of a library that has its own
            return Failure("DatasetError", f"{told(job, task)}: {error}")
        return Failure("OSError", str(error), (error.errno, error.strerror, error.filename))
    except Abandoned:
        raise
    except Exception as error:
        return Failure(
            "DatasetError",
            f"{told(job, task)}: {type(error).__name__}: {error}\n{traceback.format_exc()}",
        )


def completed(reply: Outcome | Failure) -> Outcome:
    """Return the outcome of a task, or raise the exception that ends the run."""
    if isinstance(reply, Failure):
        raise reply.error()
    return reply


def _compute(job: Job, task: Task, goes_on: Callable[[], bool]) -> int:
    """Write the shard of a task; return how many rows have errors."""
    if kuiper.__version__ != job.version:
        raise DatasetError(
            f"the machine {platform.node()} has kuiper {kuiper.__version__}, and the run was "
            f"begun by {job.version}; install the same version on all"
        )
    if not job.output.state.is_dir():
        raise DatasetError(
            f"the machine {platform.node()} does not see {job.output.folder}; input, output and "
            "model must be on a file system that all machines share"
        )
    failed = 0
    columns = list(dict.fromkeys([*job.stage.consumes(), *job.kept]))
    with job.output.written(job.output.shard(task.number, job.format)) as file:
        sink = FORMATS[job.format](file)
        rows = 0
        for batch in job.source.read(task.source, columns):
            if not goes_on():
                raise Abandoned
            frame = as_frame(batch)
            results = job.stage.process(frame)
            sink.write(frame, job.kept, results)
            rows += frame.n_rows
            if "error" in results and results["error"].missing is not None:
                failed += int((~results["error"].missing).sum())
            elif "error" in results:
                failed += frame.n_rows
        if rows != task.rows:
            raise DatasetError(f"read {rows} rows, expected {task.rows}: the input has changed")
        sink.close()
    return failed


def told(job: Job, task: Task) -> str:
    """Return the rows of a task for a message."""
    names = [str(job.source.root / file[0]) for file in task.source["files"]]
    if len(names) > 1:
        return f"{names[0]} to {names[-1]}"
    if "start" not in task.source:
        return names[0]
    start = task.source["start"]
    return f"{names[0]}, rows {start} to {start + task.rows - 1}"


def worker_died(job: Job, task: Task, how: str, attempts: int) -> Outcome:
    """Return the outcome of a task at which several workers died."""
    reason = (
        f"{told(job, task)}: {attempts} workers died at it, the last one {how}; possibly for lack "
        "of memory (use fewer workers or a smaller batch), or a file crashes its decoder"
    )
    return Outcome(task, failure=reason)
