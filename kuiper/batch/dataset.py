"""A data set through a stage into shards, resumable at any moment."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import kuiper
from kuiper.batch.plan import Output, Task
from kuiper.batch.sinks import check_fields
from kuiper.batch.sources import Source, find_source
from kuiper.batch.stage import Stage, at_least_1
from kuiper.batch.work import Job, Outcome
from kuiper.errors import DatasetError, InputError
from kuiper.pnnx._messages import listing, plural

__all__ = ["ENGINES", "SHARD", "Summary", "run_dataset"]

ENGINES = ("local", "ray")
SHARD = 256


@dataclass
class Summary:
    """What a run has done; prints as a sentence.

    Attributes
    ----------
    rows : int
        Rows that this run has written.
    earlier : int
        Rows that earlier runs had written.
    errors : int
        Rows of this run that have a reason in the column ``error``.
    seconds : float
    failed : list of str
        Shards that could not be written, each with the reason; the next run tries them again.
    """

    rows: int = 0
    earlier: int = 0
    errors: int = 0
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.rows / max(self.seconds, 1e-9)
        return (
            f"{plural(self.rows, 'row')} in {self.seconds:.1f} s, {rate:.1f} per second"
            + (f"; {self.earlier} were there already" if self.earlier else "")
            + (f"; {self.errors} could not be read" if self.errors else "")
            + (f"; {plural(len(self.failed), 'shard')} failed" if self.failed else "")
        )


def run_dataset(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    stage: Stage,
    *,
    engine: str = "local",
    workers: int | None = None,
    shard: int = SHARD,
    format: str | None = None,
    kind: str | None = None,
    overwrite: bool = False,
    address: str | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Summary:
    """Run a stage on a data set and write the results, each row exactly once.

    The results are shards, files of about `shard` rows that are written as a whole or not at all.
    If the run ends early for any reason, the same call computes what is missing; files that were
    added to the input become further shards.  On the local engine the caller's main module needs
    the usual ``if __name__ == "__main__":``, since workers import it.

    Parameters
    ----------
    source : str or os.PathLike
        A file, or a folder with all its subfolders: pictures, Parquet (needs pyarrow), ``.npy``,
        ``.npz`` or CSV.
    out : str or os.PathLike
        A folder, which is made; not within `source`.
    stage : Stage
        Its `threads` are those of a worker, by default 1.
    engine : str, default="local"
        ``"local"``, processes of this machine, or ``"ray"``, an existing Ray cluster, whose
        machines share the file system of `source`, `out` and the model.
    workers : int, optional
        How many tasks to run at a time; by default one per processor, divided by `threads`.  0 is
        this process alone, for debugging.
    shard : int, default=256
        Rows per shard, about: the work that is lost when a worker dies.
    format : str, optional
        ``"parquet"``, ``"npz"``, ``"csv"`` or ``"jsonl"``; by default that of an earlier run, else
        Parquet if pyarrow is installed, else ``.npz``.
    kind : str, optional
        For a folder with files of several kinds: ``"pictures"``, ``"parquet"``, ``"arrays"`` or
        ``"csv"``.
    overwrite : bool, default=False
        Remove the results of earlier runs first.
    address : str, optional
        Of the Ray cluster; by default that of ``RAY_ADDRESS``, or one that runs on this machine.
    progress : callable, optional
        Called with the number of finished rows and of all rows, after each shard.

    Returns
    -------
    Summary

    Raises
    ------
    DatasetError
        If the input cannot be read as asked, or `out` holds other things.
    InputError
        If an argument is wrong, or the columns do not fit the stage.
    KuiperError
        If kuiper refuses the model or an input.
    OSError
        If a file cannot be read or written, for instance on a full disk.

    Examples
    --------
    >>> from kuiper.batch import Classify, run_dataset                    # doctest: +SKIP
    >>> print(run_dataset("photos/", "classes/", Classify()))             # doctest: +SKIP
    5000 rows in 61.0 s, 82.0 per second
    """
    if engine not in ENGINES:
        raise InputError(f"engine is {engine!r}, expected one of {listing(ENGINES)}")
    if not isinstance(stage, Stage):
        raise InputError(
            f"stage is a {type(stage).__name__}, expected one of kuiper.batch: Predictor, "
            "Classify, Detect, Segment or a subclass of Stage"
        )
    shard = at_least_1("shard", shard)
    if workers is not None and (workers or engine != "local"):
        workers = at_least_1("workers", workers)
    folder = Path(out).absolute()
    where = Path(source).absolute()
    if folder.resolve().is_relative_to(where.resolve()):
        raise DatasetError(f"the output {out} is within the input {source}; choose another folder")
    stage = copy.copy(stage)
    stage.threads = stage.threads or 1
    begun = time.perf_counter()
    rows = find_source(source, stage.consumes(), kind)
    stage.root = str(rows.root)
    output = Output(folder)
    with output.opened(overwrite):
        job = _prepared(rows, stage, output, format, shard)
        done = output.done()
        todo = [task for task in output.tasks if task.number not in done]
        total = sum(task.rows for task in output.tasks)
        summary = Summary(earlier=total - sum(task.rows for task in todo))
        if progress is not None:
            progress(summary.earlier, total)
        with closing(_outcomes(job, todo, engine, workers, address)) as outcomes:
            for outcome in outcomes:
                if outcome.failure:
                    summary.failed.append(outcome.failure)
                    continue
                summary.rows += outcome.task.rows
                summary.errors += outcome.errors
                if progress is not None:
                    progress(summary.earlier + summary.rows, total)
        if not summary.failed:
            output.finish()
    summary.seconds = time.perf_counter() - begun
    return summary


def _prepared(source: Source, stage: Stage, output: Output, format: str | None, shard: int) -> Job:
    """Check everything that can be checked, and record the job and its tasks."""
    format = format or output.job.get("format") or _default_format()
    check_fields(format, stage.fields())
    files = source.files()
    if not files:
        raise DatasetError(f"{source.path}: no {source.kind} files there")
    added = output.match(files)
    # Every file that has tasks was compared with the first one when it was added.
    names = source.names(list({file[0]: file for file in [files[0], *added]}.values()))
    absent = [name for name in stage.consumes() if name not in names]
    if absent:
        raise InputError(
            f"{source.path}: there is no column {listing([repr(name) for name in absent])}; it has "
            f"{listing([repr(name) for name in names])}"
        )
    # The text of CSV files is not worth leaving out.
    everything = stage.keep is None and source.kind == "csv"
    kept = tuple(stage.kept(names, everything))
    output.begin(
        {
            "input": str(source.path),
            "format": format,
            "kind": source.kind,
            "kept": kept,
            **stage.describe(),
        }
    )
    if added:
        output.reopen()
        output.extend(source.tasks(added, shard))
    # Workers need the folder, and no list of a million tasks.
    light = Output(output.folder)
    return Job(stage, source, light, format, kept, kuiper.__version__)


def _default_format() -> str:
    return "parquet" if find_spec("pyarrow") else "npz"


def _outcomes(
    job: Job, tasks: Sequence[Task], engine: str, workers: int | None, address: str | None
) -> Generator[Outcome]:
    """Do the tasks on an engine."""
    if engine == "ray":
        from kuiper.batch import cluster

        yield from cluster.run(job, tasks, workers, address)
        return
    from kuiper.batch import local

    if workers is None:
        workers = max(1, kuiper.get_num_threads() // (job.stage.threads or 1))
    yield from local.run(job, tasks, workers)
