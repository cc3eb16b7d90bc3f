"""Where rows come from: files whose rows are divided into the tasks of a run, in a fixed order."""

from __future__ import annotations

import csv
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from kuiper.errors import DatasetError, MissingPackageError
from kuiper.pnnx._messages import listing, plural

__all__ = ["KINDS", "Source", "find_source"]

# Rows in one call of a stage, so that memory does not grow with the shards.
ROWS_READ = 256

# A part of a file that cannot be entered in its middle is read from the start: at most this many
# tasks read it.
MAX_PARTS = 16

_SUFFIXES = {
    "pictures": {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff"},
    "parquet": {".parquet", ".pq"},
    "arrays": {".npy", ".npz"},
    "csv": {".csv"},
}


class Source:
    """Files of one kind, and how their rows become batches.

    Parameters
    ----------
    path : Path
        A file, or a folder that is searched with all its subfolders.
    consumes : sequence of str
        The columns that the stage reads.

    Attributes
    ----------
    root : Path
        The folder that the names of files are relative to.
    """

    kind = ""

    def __init__(self, path: Path, consumes: Sequence[str]) -> None:
        self.path = path
        self.root = path if path.is_dir() else path.parent
        self.consumes = tuple(consumes)

    def files(self) -> list[list[Any]]:
        """Return name, size and time of every file, sorted by name."""
        paths = [self.path] if self.path.is_file() else list(_walk(self.path))
        found = []
        for path in paths:
            if path.suffix.lower() in _SUFFIXES[self.kind]:
                status = path.stat()
                name = path.relative_to(self.root).as_posix()
                found.append([name, status.st_size, status.st_mtime_ns])
        return sorted(found)

    def names(self, files: Sequence[list[Any]]) -> list[str]:
        """Return the names of the columns; raise DatasetError if the files differ in them."""
        raise NotImplementedError

    def tasks(self, files: Sequence[list[Any]], shard: int) -> Iterator[dict[str, Any]]:
        """Yield tasks of about `shard` rows, in types of JSON: ``files``, ``start``, ``rows``."""
        raise NotImplementedError

    def read(self, task: dict[str, Any], columns: Sequence[str]) -> Iterator[Any]:
        """Yield batches with at least these columns of the rows of a task."""
        raise NotImplementedError

    def _task_path(self, task: dict[str, Any]) -> Path:
        return self.root / task["files"][0][0]


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, without hidden ones and those that engines reserve."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        yield from (Path(where, name) for name in names if name[0] not in "._")


def _slices(rows: int, shard: int, parts: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield start and length of about equal slices of `shard` rows; of at most `parts`."""
    count = max(1, round(rows / shard))
    count = count if parts is None else min(count, parts)
    edges = [rows * number // count for number in range(count + 1)]
    yield from ((a, b - a) for a, b in pairwise(edges) if b > a)


class Pictures(Source):
    """Files of pictures: one row each, with the columns ``file`` and that which the stage reads."""

    kind = "pictures"

    def names(self, files: Sequence[list[Any]]) -> list[str]:
        if len(self.consumes) != 1:
            raise DatasetError(
                f"{self.path}: pictures are one column, the model reads {listing(self.consumes)}"
            )
        return list(dict.fromkeys(["file", *self.consumes]))

    def tasks(self, files: Sequence[list[Any]], shard: int) -> Iterator[dict[str, Any]]:
        for start, rows in _slices(len(files), shard):
            yield {"files": files[start : start + rows], "rows": rows}

    def read(self, task: dict[str, Any], columns: Sequence[str]) -> Iterator[Any]:
        names = [file[0] for file in task["files"]]
        for start in range(0, len(names), ROWS_READ):
            paths = np.array(names[start : start + ROWS_READ], object)
            yield {"file": paths, self.consumes[0]: paths}


class ParquetFiles(Source):
    """Parquet files; tasks end where row groups do, or divide a large one."""

    kind = "parquet"

    def __init__(self, path: Path, consumes: Sequence[str]) -> None:
        super().__init__(path, consumes)
        parquet()

    def _open(self, name: str) -> Any:
        try:
            # Without buffering ahead, a row group does not have to fit the memory.
            return parquet().ParquetFile(self.root / name, pre_buffer=False)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise DatasetError(f"{self.root / name}: not a Parquet file: {error}") from error

    def names(self, files: Sequence[list[Any]]) -> list[str]:
        first = None
        for name, *_ in files:
            with self._open(name) as file:
                schema = file.schema_arrow.remove_metadata()
            if first is None:
                first = schema
            elif schema != first:
                differing = [
                    f"'{one}' is {schema.field(one).type if one in schema.names else 'missing'}"
                    f" there and {first.field(one).type if one in first.names else 'missing'} here"
                    for one in dict.fromkeys([*first.names, *schema.names])
                    if one not in first.names
                    or one not in schema.names
                    or schema.field(one).type != first.field(one).type
                ] or ["the order, or whether values may be missing"]
                raise DatasetError(
                    f"{self.root / name} has other columns than {files[0][0]}: "
                    f"{listing(differing, 3)}"
                )
        return list(first.names) if first is not None else []

    def tasks(self, files: Sequence[list[Any]], shard: int) -> Iterator[dict[str, Any]]:
        for file in files:
            with self._open(file[0]) as opened:
                metadata = opened.metadata
                groups = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
            start = pending = 0
            for rows in [*groups, 0]:
                if pending and (not rows or pending + rows > shard):
                    yield {"files": [file], "start": start, "rows": pending}
                    start, pending = start + pending, 0
                if rows > shard:
                    for first, count in _slices(rows, shard, MAX_PARTS):
                        yield {"files": [file], "start": start + first, "rows": count}
                    start += rows
                else:
                    pending += rows

    def read(self, task: dict[str, Any], columns: Sequence[str]) -> Iterator[Any]:
        left = task["rows"]
        with self._open(task["files"][0][0]) as file:
            groups, skip = _groups(file.metadata, task["start"], left)
            for batch in file.iter_batches(ROWS_READ, row_groups=groups, columns=list(columns)):
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                batch = batch.slice(skip, left)
                skip, left = 0, left - batch.num_rows
                yield batch
                if not left:
                    return


def _groups(metadata: Any, start: int, rows: int) -> tuple[list[int], int]:
    """Return the row groups with some rows, and how many rows of the first come before them."""
    found: list[int] = []
    skip = before = 0
    for number in range(metadata.num_row_groups):
        count = metadata.row_group(number).num_rows
        if before < start + rows and before + count > start:
            if not found:
                skip = start - before
            found.append(number)
        before += count
    return found, skip


class ArrayFiles(Source):
    """``.npy`` and ``.npz`` files, whose rows are the first axis; adds the columns file and row."""

    kind = "arrays"

    def names(self, files: Sequence[list[Any]]) -> list[str]:
        first: dict[str, Any] = {}
        for name, *_ in files:
            forms = {key: (dtype, shape[1:]) for key, (dtype, shape) in self._forms(name).items()}
            first = first or forms
            if forms != first:
                raise DatasetError(
                    f"{self.root / name} holds {_told(forms)}; {files[0][0]} holds {_told(first)}: "
                    "all files need the same names, dtypes and shapes after the first axis"
                )
        return list(dict.fromkeys(["file", "row", *first]))

    def _forms(self, name: str) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Return dtype and shape of the arrays of a file by column."""
        with _numpy_errors(self.root / name):
            if name.lower().endswith(".npy"):
                forms = {key: (a.dtype, a.shape) for key, a in self._arrays(name).items()}
            else:
                forms = _headers(self.root / name)
            rows = {key: shape[0] if shape else 0 for key, (_, shape) in forms.items()}
            if len(set(rows.values())) != 1:
                raise ValueError(f"the arrays have {rows} rows, expected as many in each")
            return forms

    def _arrays(self, name: str) -> dict[str, np.ndarray]:
        """Return the arrays of a file by column, that of an ``.npy`` file without reading it."""
        path = self.root / name
        with _numpy_errors(path):
            if path.suffix.lower() == ".npz":
                with np.load(path) as archive:
                    return {key: archive[key] for key in archive.files}
            if len(self.consumes) != 1:
                raise ValueError(
                    f"one array, and the model reads the columns {listing(self.consumes)}; write "
                    "an .npz file with these names"
                )
            return {self.consumes[0]: np.load(path, mmap_mode="r")}

    def tasks(self, files: Sequence[list[Any]], shard: int) -> Iterator[dict[str, Any]]:
        for file in files:
            _, shape = next(iter(self._forms(file[0]).values()))
            parts = None if file[0].lower().endswith(".npy") else MAX_PARTS
            for start, count in _slices(shape[0], shard, parts):
                yield {"files": [file], "start": start, "rows": count}

    def read(self, task: dict[str, Any], columns: Sequence[str]) -> Iterator[Any]:
        name = task["files"][0][0]
        arrays = self._arrays(name)
        end = task["start"] + task["rows"]
        for start in range(task["start"], end, ROWS_READ):
            stop = min(end, start + ROWS_READ)
            rows = np.arange(start, stop)
            files = np.full(len(rows), name, object)
            own = {key: array[start:stop] for key, array in arrays.items()}
            yield {"file": files, "row": rows, **own}


@contextmanager
def _numpy_errors(path: Path) -> Iterator[None]:
    """Say which file numpy cannot read."""
    try:
        yield
    except DatasetError:
        raise
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{path}: not a file of rows of numbers: {error}") from error


def _headers(path: Path) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """Return dtype and shape of the arrays of an ``.npz`` file without reading them."""
    read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    forms = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            with archive.open(member) as file:
                version, _ = np.lib.format.read_magic(file)
                if version not in read:
                    raise ValueError(f"'{member}' has the version {version} of numpy's format")
                shape, _, dtype = read[version](file)
                forms[member.removesuffix(".npy")] = (dtype, shape)
    return forms


def _told(forms: dict[str, tuple[Any, ...]]) -> str:
    return listing([f"'{key}' {dtype} {shape}" for key, (dtype, shape) in forms.items()])


class CsvFiles(Source):
    """CSV files in UTF-8 whose first line names the columns; values are text."""

    kind = "csv"

    def names(self, files: Sequence[list[Any]]) -> list[str]:
        first: list[str] = []
        for name, *_ in files:
            with (self.root / name).open("rb") as file:
                header = next(_Lines(file).rows(), [])
            first = first or header
            if header != first or len(set(header)) < len(header) or not header:
                raise DatasetError(
                    f"{self.root / name}: the first line names the columns {header}, expected "
                    "different names, the same in all files"
                )
        return first

    def tasks(self, files: Sequence[list[Any]], shard: int) -> Iterator[dict[str, Any]]:
        for entry in files:
            start = rows = 0
            with (self.root / entry[0]).open("rb") as file:
                lines = _Lines(file)
                records = lines.rows()
                next(records, None)
                offset = lines.offset
                for _ in records:
                    rows += 1
                    if rows == shard:
                        yield {"files": [entry], "start": start, "rows": rows, "offset": offset}
                        start, rows, offset = start + rows, 0, lines.offset
            if rows:
                yield {"files": [entry], "start": start, "rows": rows, "offset": offset}

    def read(self, task: dict[str, Any], columns: Sequence[str]) -> Iterator[Any]:
        path, left = self._task_path(task), task["rows"]
        names = self.names(task["files"])
        with path.open("rb") as file:
            file.seek(task["offset"])
            records = _Lines(file).rows()
            while left:
                count = min(left, ROWS_READ)
                rows = [row for row, _ in zip(records, range(count), strict=False)]
                for number, row in enumerate(rows, task["start"] + task["rows"] - left + 1):
                    if len(row) != len(names):
                        raise DatasetError(
                            f"{path}: row {number} has {plural(len(row), 'value')}, expected "
                            f"{len(names)}: {listing(names)}"
                        )
                if len(rows) < count:
                    raise DatasetError(f"{path}: it ends before the row that it had at the start")
                left -= count
                yield {
                    name: np.array([row[at] for row in rows], object)
                    for at, name in enumerate(names)
                }


class _Lines:
    """The lines of a file of bytes, with the offset after the last one that was taken."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.offset = file.tell()

    def _text(self) -> Iterator[str]:
        for line in self._file:
            try:
                text = line.decode("utf-8-sig" if not self.offset else "utf-8")
            except UnicodeDecodeError as error:
                raise DatasetError(
                    f"{self._file.name}: not UTF-8 text, at byte {self.offset + error.start}; "
                    "convert it first"
                ) from None
            self.offset += len(line)
            yield text

    def rows(self) -> Iterator[list[str]]:
        """Yield the rows of values, without empty lines."""
        try:
            yield from filter(None, csv.reader(self._text()))
        except csv.Error as error:
            raise DatasetError(f"{self._file.name}: before byte {self.offset}: {error}") from error


KINDS: dict[str, type[Source]] = {
    kind.kind: kind for kind in (Pictures, ParquetFiles, ArrayFiles, CsvFiles)
}


def find_source(path: str | os.PathLike[str], consumes: Sequence[str], kind: str | None) -> Source:
    """Return the source for a file or folder.

    Parameters
    ----------
    path : str or os.PathLike
    consumes : sequence of str
        The columns that the stage reads.
    kind : str, optional
        One of :data:`KINDS`; by default the one that the suffixes tell.

    Raises
    ------
    DatasetError
        If there are no files, or of several kinds.
    OSError
        If there is no such file or folder.
    MissingPackageError
        If the kind needs pyarrow.
    """
    where = Path(path).absolute()
    if not where.exists():
        raise FileNotFoundError(2, "no such file or folder", str(path))
    if kind is None:
        counts = _counts([where] if where.is_file() else _walk(where))
        if len(counts) != 1:
            told = listing([f"{count} {kind}" for kind, count in counts.items()])
            raise DatasetError(
                f"{path}: found {told or 'no pictures, Parquet, .npy, .npz or CSV files'}"
                + ("; choose one of these kinds" if counts else "")
            )
        kind = next(iter(counts))
    if kind not in KINDS:
        raise DatasetError(f"the kind is {kind!r}, expected one of {listing([*KINDS])}")
    return KINDS[kind](where, consumes)


def _counts(paths: Iterable[Path]) -> dict[str, int]:
    """Return how many files of each kind there are."""
    counts: dict[str, int] = {}
    for path in paths:
        for kind, suffixes in _SUFFIXES.items():
            if path.suffix.lower() in suffixes:
                counts[kind] = counts.get(kind, 0) + 1
    return counts


def parquet() -> Any:
    """Return pyarrow.parquet, or raise an error with the package to install."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingPackageError(
            "Parquet files are read and written by pyarrow, which is not installed: "
            "pip install pyarrow"
        ) from error
    return pyarrow.parquet
