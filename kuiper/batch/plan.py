"""The folder of a run: what it computes, which shards there are, and which are written.

::

    OUT/part-00000000.parquet     a shard: the results of one task, in the order of the input
    OUT/_kuiper/job.json          the stage with a digest of the model, and the format
    OUT/_kuiper/tasks-0000.jsonl  the tasks, one per line; files that were added later have another
    OUT/_kuiper/lock              held by the run
    OUT/_kuiper/tmp/              shards that are being written

A shard is written under a temporary name, flushed to the disk and renamed, so it is there as a
whole or not at all, and whether it is there is the only record that its task is done.  A task that
runs twice replaces its shard by the same bytes.  Readers of Parquet skip names that begin with an
underscore.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from kuiper.errors import DatasetError
from kuiper.pnnx._messages import listing, plural

try:
    import fcntl
except ImportError:  # Windows; there, nothing keeps a second run away
    fcntl = None  # type: ignore[assignment]

__all__ = ["Output", "Task"]

STATE = "_kuiper"


class Task(NamedTuple):
    """The rows of one shard.

    Attributes
    ----------
    number : int
    rows : int
    source : dict
        What the source yielded: files and offsets, in types of JSON.
    """

    number: int
    rows: int
    source: dict[str, Any]


class Output:
    """The folder of a run.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / STATE
        self.job: dict[str, Any] = {}
        self.tasks: list[Task] = []

    # -- the beginning of a run --------------------------------------------------------------

    @contextlib.contextmanager
    def opened(self, overwrite: bool) -> Iterator[None]:
        """Create the folder or read what it holds, and keep other runs away.

        Raises
        ------
        DatasetError
            If the folder has other contents, or another run writes to it.
        OSError
            If it cannot be written.
        """
        is_empty = not self.folder.exists() or not any(self.folder.iterdir())
        if not is_empty and not self.state.is_dir():
            raise DatasetError(
                f"{self.folder}: the folder is not empty and holds no results of kuiper; choose "
                "another"
            )
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / "lock").open("a+") as lock:
            if fcntl is not None:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise DatasetError(f"{self.folder}: another run is writing to it") from None
                except OSError:  # a file system without locks
                    pass
            if overwrite:
                self._clear()
            # What a run that was killed has left, and in the end, what its killed workers have.
            shutil.rmtree(self.state / "tmp", ignore_errors=True)
            (self.state / "tmp").mkdir(exist_ok=True)
            try:
                self._read()
                yield
            finally:
                shutil.rmtree(self.state / "tmp", ignore_errors=True)

    def _clear(self) -> None:
        """Remove the shards first, so that a folder without a job never has any."""
        for path in self.folder.glob("part-*"):
            path.unlink()
        (self.folder / "_SUCCESS").unlink(missing_ok=True)
        for path in [*self.state.glob("tasks-*.jsonl"), self.state / "job.json"]:
            path.unlink(missing_ok=True)

    def _read(self) -> None:
        job = self.state / "job.json"
        if not job.exists():
            return
        try:
            self.job = json.loads(job.read_text("utf-8"))
            for path in sorted(self.state.glob("tasks-*.jsonl")):
                for line in path.read_text("utf-8").splitlines():
                    source = json.loads(line)
                    self.tasks.append(Task(len(self.tasks), source["rows"], source))
        except (ValueError, KeyError, TypeError) as error:
            raise DatasetError(
                f"{self.state}: the record of the run is damaged ({error}); start again by "
                "--overwrite, or choose another folder"
            ) from error

    def begin(self, job: dict[str, Any]) -> None:
        """Record what is computed, or compare it with what earlier runs computed.

        Parameters
        ----------
        job : dict
            In types of JSON.

        Raises
        ------
        DatasetError
            If the folder holds results of another model or of other settings.
        """
        job = json.loads(json.dumps(job))
        if not self.job:
            self.job = job
            with self._atomic(self.state / "job.json") as file:
                file.write(json.dumps(job, indent=2).encode())
            return
        differing = [
            f"{key} was {self.job.get(key)!r} and is {job.get(key)!r}"
            for key in dict.fromkeys([*self.job, *job])
            if self.job.get(key) != job.get(key)
        ]
        if differing:
            raise DatasetError(
                f"{self.folder} holds results of another run: {listing(differing, 4)}; choose "
                "another folder, or --overwrite to compute all anew"
            )

    def match(self, files: Sequence[list[Any]]) -> list[list[Any]]:
        """Return the files that no task has yet.

        Parameters
        ----------
        files : sequence of list
            Name, size and time of every file.

        Raises
        ------
        DatasetError
            If a file of a task has changed, or is gone although its task is not done.
        """
        now = {name: stamp for name, *stamp in files}
        done, known = self.done(), set()
        changed, gone = [], []
        for task in self.tasks:
            for name, *stamp in task.source["files"]:
                known.add(name)
                if name not in now:
                    gone += [name] * (task.number not in done)
                elif now[name] != stamp:
                    changed.append(name)
        for names, what in ((changed, "changed"), (gone, "vanished")):
            if names:
                names = list(dict.fromkeys(names))
                raise DatasetError(
                    f"{plural(len(names), 'file')} {what} since the run was begun: "
                    f"{listing(names, 3)}; restore them, or --overwrite to compute all anew"
                )
        return [file for file in files if file[0] not in known]

    def extend(self, sources: Iterator[dict[str, Any]]) -> None:
        """Record further tasks.

        Parameters
        ----------
        sources : iterator of dict
            As a source yields them.
        """
        found = [Task(len(self.tasks) + n, one["rows"], one) for n, one in enumerate(sources)]
        if found:
            number = len(list(self.state.glob("tasks-*.jsonl")))
            with self._atomic(self.state / f"tasks-{number:04}.jsonl") as file:
                for task in found:
                    file.write(json.dumps(task.source, ensure_ascii=False).encode() + b"\n")
            self.tasks += found

    # -- shards ------------------------------------------------------------------------------

    def shard(self, number: int, format: str) -> Path:
        """Return the path of a shard."""
        return self.folder / f"part-{number:08}.{format}"

    def done(self) -> set[int]:
        """Return the numbers of the shards that are written."""
        names = (entry.name for entry in os.scandir(self.folder))
        return {int(name[5:13]) for name in names if name.startswith("part-")}

    def finish(self) -> None:
        """Mark the results as complete."""
        with self._atomic(self.folder / "_SUCCESS"):
            pass

    def reopen(self) -> None:
        """Remove the mark of completeness."""
        (self.folder / "_SUCCESS").unlink(missing_ok=True)

    def written(self, path: Path) -> contextlib.AbstractContextManager[BinaryIO]:
        """Return a new file that becomes `path` as a whole if the block succeeds."""
        return self._atomic(path)

    @contextlib.contextmanager
    def _atomic(self, path: Path) -> Iterator[BinaryIO]:
        # Unique among the machines that share the folder.
        name = f"{path.name}.{platform.node()}.{os.getpid()}.{uuid.uuid4().hex}"
        temporary = self.state / "tmp" / name
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Let a new name survive a loss of power."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError:  # some file systems refuse it for folders
            pass
        finally:
            os.close(descriptor)
