"""Where results go: one file per shard, in Parquet, ``.npz``, CSV or lines of JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from kuiper.batch.fields import Type
from kuiper.batch.frames import Column, Frame, to_arrow
from kuiper.batch.sources import parquet
from kuiper.errors import DatasetError
from kuiper.pnnx._messages import listing

__all__ = ["FORMATS", "Sink", "check_fields"]


class Sink:
    """The file of a shard.

    Parameters
    ----------
    file : binary file object
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, frame: Frame, kept: Sequence[str], results: Mapping[str, Column]) -> None:
        """Write some columns of a batch, and the results."""
        raise NotImplementedError

    def close(self) -> None:
        """Write what is left; the file stays open."""


class ParquetSink(Sink):
    """Parquet; kept columns of Arrow have the types that they had."""

    _writer: Any = None

    def write(self, frame: Frame, kept: Sequence[str], results: Mapping[str, Column]) -> None:
        import pyarrow as pa

        build = getattr(frame, "arrow_columns", None)
        columns = build(kept) if build else [_plain_arrow(frame.column(name)) for name in kept]
        columns += [to_arrow(column, name) for name, column in results.items()]
        table = pa.table(columns, names=[*kept, *results])
        if self._writer is None:
            self._writer = parquet().ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _plain_arrow(values: np.ndarray) -> Any:
    """Return a column of numpy as one of Arrow."""
    import pyarrow as pa

    if values.ndim == 1:
        return pa.array(values)
    type: Type = values.dtype.name
    for _ in range(values.ndim - 1):
        type = [type]
    return to_arrow(Column(type, values), "kept")


class LineSink(Sink):
    """Lines of JSON, one object per row, without the values that are missing."""

    def write(self, frame: Frame, kept: Sequence[str], results: Mapping[str, Column]) -> None:
        columns = {name: _values(frame.column(name)) for name in kept}
        columns.update((name, _values(c.values, c.missing)) for name, c in results.items())
        lines = []
        for row in zip(*columns.values(), strict=True):
            record = {n: v for n, v in zip(columns, row, strict=True) if v is not None}
            lines.append(json.dumps(_finite(record), ensure_ascii=False, default=str) + "\n")
        self._file.write("".join(lines).encode())


def _values(values: np.ndarray, missing: np.ndarray | None = None) -> list[Any]:
    """Return the values of a column as Python objects, None for missing ones."""
    listed = values.tolist()
    if missing is None:
        return listed
    return [None if absent else value for value, absent in zip(listed, missing, strict=True)]


def _finite(value: Any) -> Any:
    """Return a value with None for NaN and infinities, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


class CsvSink(Sink):
    """CSV with a header; arrays take a column per number, lists of objects are JSON."""

    _has_header = False

    def write(self, frame: Frame, kept: Sequence[str], results: Mapping[str, Column]) -> None:
        columns: dict[str, list[Any]] = {}
        for name in kept:
            columns.update(_flat(name, frame.column(name), None))
        for name, column in results.items():
            columns.update(_flat(name, column.values, column.missing))
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        if not self._has_header:
            writer.writerow(columns)
            self._has_header = True
        writer.writerows(zip(*columns.values(), strict=True))
        self._file.write(text.getvalue().encode())


def _flat(name: str, values: np.ndarray, missing: np.ndarray | None) -> dict[str, list[Any]]:
    """Return a column as one or several columns of numbers and text."""
    if values.ndim == 1:
        listed = _values(values, missing)
        return {
            name: [
                json.dumps(_finite(v), ensure_ascii=False) if isinstance(v, list | dict) else v
                for v in listed
            ]
        }
    flat = values.reshape(len(values), -1)
    return {f"{name}.{at}": _values(flat[:, at], missing) for at in range(flat.shape[1])}


class NpzSink(Sink):
    """An ``.npz`` file of plain arrays; `numpy.load` reads it without pickle.

    Text becomes an array of fixed width, bytes an array of all of them and one of n + 1 offsets
    (``name.offsets``), lists of objects JSON.  Missing numbers are NaN or -1, missing text is
    empty.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._parts: dict[str, list[np.ndarray]] = {}
        self._types: dict[str, Type | None] = {}

    def write(self, frame: Frame, kept: Sequence[str], results: Mapping[str, Column]) -> None:
        for name in kept:
            self._parts.setdefault(name, []).append(frame.column(name))
        for name, column in results.items():
            self._parts.setdefault(name, []).append(column.values)

    def close(self) -> None:
        arrays: dict[str, np.ndarray] = {}
        for name, parts in self._parts.items():
            values = np.concatenate(parts)
            if values.dtype != object:
                arrays[name] = values
                continue
            flat = values.reshape(-1).tolist()
            if any(isinstance(value, bytes) for value in flat):
                data = [value or b"" for value in flat]
                arrays[name] = np.frombuffer(b"".join(data), np.uint8)
                arrays[f"{name}.offsets"] = np.cumsum([0, *map(len, data)])
            else:
                texts = ["" if v is None else v if isinstance(v, str) else _json(v) for v in flat]
                arrays[name] = np.array(texts, str).reshape(values.shape)
        # Not numpy.savez, which takes no array of the name `file`, and writes the time of day.
        with zipfile.ZipFile(self._file, "w") as archive:
            for name, array in arrays.items():
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


def _json(value: Any) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, default=str)


# Format -> its sink, and the suffix of its files.
FORMATS: dict[str, type[Sink]] = {
    "parquet": ParquetSink,
    "npz": NpzSink,
    "csv": CsvSink,
    "jsonl": LineSink,
}


def check_fields(format: str, fields: Mapping[str, Type]) -> None:
    """Raise DatasetError if a format is unknown or cannot hold columns of these types."""
    if format not in FORMATS:
        raise DatasetError(f"the format is {format!r}, expected one of {listing([*FORMATS])}")
    if format == "parquet":
        parquet()
    binary = [name for name, type in fields.items() if type == "binary"]
    if binary and format in ("csv", "jsonl"):
        raise DatasetError(
            f"the column {listing(binary)} holds bytes, which {format} cannot; write parquet or npz"
        )
