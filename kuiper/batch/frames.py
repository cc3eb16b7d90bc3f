"""Batches of rows as the engines pass them: columns of numpy, of Arrow and of pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from kuiper.batch.fields import Type, arrow_type
from kuiper.errors import InputError
from kuiper.pnnx._messages import listing

__all__ = ["Column", "Frame", "arrow_values", "as_frame", "check_columns", "to_arrow"]


class Column(NamedTuple):
    """A column of results.

    Attributes
    ----------
    type : Type
        See :mod:`kuiper.batch.fields`.
    values : numpy.ndarray, shape (rows, ...)
        Of objects for text, bytes, and values of varying length.
    missing : numpy.ndarray of bool, shape (rows,), optional
        The rows without a value.
    """

    type: Type
    values: np.ndarray
    missing: np.ndarray | None = None


class Frame(Protocol):
    """A batch of rows."""

    names: list[str]
    n_rows: int

    def column(self, name: str) -> np.ndarray:
        """Return a column as an array whose first axis is the rows."""

    def build(self, kept: Sequence[str], results: Mapping[str, Column]) -> Any:
        """Return a batch of the same kind: some of these columns, then the results."""


def as_frame(batch: Any) -> Frame:
    """Return what an engine passed as a frame.

    Raises
    ------
    InputError
        If it is neither a mapping of names to arrays, nor a table, record batch or data frame, or
        its columns differ in length.
    """
    if isinstance(batch, Mapping):
        return _Arrays(batch)
    module = type(batch).__module__.partition(".")[0]
    if module == "pyarrow" and hasattr(batch, "schema"):
        return _Arrow(batch)
    if hasattr(batch, "columns") and hasattr(batch, "iloc"):
        return _Pandas(batch)
    raise InputError(
        f"got a batch of type {type(batch).__module__}.{type(batch).__name__}, expected a dict of "
        "columns, a pyarrow.Table, a pyarrow.RecordBatch or a pandas.DataFrame"
    )


class _Arrays:
    """Columns of numpy by name, as Ray Data's default batches."""

    def __init__(self, batch: Mapping[str, Any]) -> None:
        self._columns = {name: _array_of(values) for name, values in batch.items()}
        self.names = list(self._columns)
        lengths = {name: len(values) for name, values in self._columns.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"'{name}' has {count}" for name, count in lengths.items())
            raise InputError(f"the columns of a batch differ in length: {told}")
        self.n_rows = next(iter(lengths.values()), 0)

    def column(self, name: str) -> np.ndarray:
        return self._columns[name]

    def build(self, kept: Sequence[str], results: Mapping[str, Column]) -> dict[str, np.ndarray]:
        columns = {name: self._columns[name] for name in kept}
        return {**columns, **{name: column.values for name, column in results.items()}}


def _array_of(values: Any) -> np.ndarray:
    """Return a column as an array; lists of unequal length become objects."""
    if isinstance(values, np.ndarray):
        return values
    try:
        return np.asarray(values)
    except ValueError:  # ragged
        return _objects(values)


def _objects(values: Iterable[Any]) -> np.ndarray:
    """Return a one-dimensional array of objects, also if these are sequences of equal length."""
    listed = list(values)
    result = np.empty(len(listed), object)
    for number, value in enumerate(listed):
        result[number] = value
    return result


class _Pandas:
    """A data frame, as Dask's partitions."""

    def __init__(self, batch: Any) -> None:
        self._frame = batch
        self.names = [str(name) for name in batch.columns]
        self.n_rows = len(batch)

    def column(self, name: str) -> np.ndarray:
        return self._frame[name].to_numpy()

    def build(self, kept: Sequence[str], results: Mapping[str, Column]) -> Any:
        import pandas as pd

        columns: dict[str, Any] = {}
        for name, column in results.items():
            values = column.values
            columns[name] = values if values.ndim == 1 else _objects(values)
            if column.type == "string":  # objects would not tell Dask what to write
                columns[name] = pd.array(values, dtype="string")
        return self._frame[list(kept)].assign(**columns)


class _Arrow:
    """A table or record batch, as in Spark's `mapInArrow` and Ray Data's format "pyarrow"."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self.names = list(batch.schema.names)
        self.n_rows = batch.num_rows

    def column(self, name: str) -> np.ndarray:
        return arrow_values(self._batch.column(name), name)

    def arrow_columns(self, names: Sequence[str]) -> list[Any]:
        """Return some columns as they are."""
        return [self._batch.column(name) for name in names]

    def build(self, kept: Sequence[str], results: Mapping[str, Column]) -> Any:
        columns = self.arrow_columns(kept)
        columns += [to_arrow(column, name) for name, column in results.items()]
        return type(self._batch).from_arrays(columns, names=[*kept, *results])


def arrow_values(column: Any, name: str) -> np.ndarray:
    """Return a column of pyarrow as an array of numbers, or of objects for text, bytes and structs.

    Parameters
    ----------
    column : pyarrow.Array or pyarrow.ChunkedArray
        Lists of numbers must have equal lengths, at every level; they become axes.
    name : str
        For messages.

    Raises
    ------
    InputError
        If numbers are missing, or lists differ in length.
    """
    import pyarrow as pa

    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if not chunks:
        chunks = [pa.array([], column.type)]
    parts = [_chunk_values(chunk, name) for chunk in chunks]
    if len({part.shape[1:] for part in parts if len(part)}) > 1:
        raise InputError(_unequal(name))
    parts = [part for part in parts if len(part)] or parts[:1]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _unequal(name: str) -> str:
    return f"column '{name}': its lists differ in length; a tensor needs rows of one shape"


def _chunk_values(chunk: Any, name: str) -> np.ndarray:
    import pyarrow as pa

    type, rows = chunk.type, len(chunk)
    if isinstance(type, pa.BaseExtensionType):
        as_tensor = getattr(chunk, "to_numpy_ndarray", None)
        return as_tensor() if as_tensor else np.asarray(chunk.to_numpy(zero_copy_only=False))
    if pa.types.is_dictionary(type):
        return _chunk_values(chunk.dictionary_decode(), name)
    types, extents = pa.types, []
    while types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type):
        if chunk.null_count:
            raise InputError(f"column '{name}' has missing values, expected a list in every row")
        values, n_lists = chunk.flatten(), len(chunk)
        if types.is_fixed_size_list(type):
            extent = type.list_size
        else:
            lengths = np.diff(chunk.offsets.to_numpy(zero_copy_only=False))
            extent = int(lengths[0]) if n_lists else 0
            if (lengths != extent).any():
                raise InputError(_unequal(name))
        extents.append(extent)
        chunk, type = values, values.type
    if types.is_integer(type) or types.is_floating(type) or types.is_boolean(type):
        if chunk.null_count:
            raise InputError(
                f"column '{name}' has {chunk.null_count} missing values; fill or filter them first"
            )
        return chunk.to_numpy(zero_copy_only=False).reshape(rows, *extents)
    if extents:
        raise InputError(f"column '{name}' holds lists of {type}, expected numbers")
    return _objects(chunk.to_pylist())


def to_arrow(column: Column, name: str) -> Any:
    """Return a column of results as an array of pyarrow; axes after the first become lists.

    Raises
    ------
    InputError
        If the column has more values than the lists of one array can hold.
    """
    import pyarrow as pa

    type, values, mask = column.type, column.values, column.missing
    inner: Type = type
    for _ in range(values.ndim - 1):
        assert isinstance(inner, list)
        inner = inner[0]
    if values.size > np.iinfo(np.int32).max:
        raise InputError(
            f"column '{name}' has {values.size} values, more than a list of Arrow holds; pass "
            "smaller batches"
        )
    flat = values.reshape(-1)
    if values.ndim == 1:
        return pa.array(flat, arrow_type(inner), mask=mask, from_pandas=False)
    array = pa.array(flat, arrow_type(inner), from_pandas=False)
    for axis in range(values.ndim - 1, 0, -1):
        n_lists = int(np.prod(values.shape[:axis]))
        offsets = pa.array(np.arange(n_lists + 1, dtype=np.int32) * values.shape[axis])
        outer = axis == 1 and mask is not None
        array = pa.ListArray.from_arrays(offsets, array, mask=pa.array(mask) if outer else None)
    return array


def check_columns(frame: Frame, wanted: Sequence[str], hint: str) -> None:
    """Raise InputError if a batch lacks columns; `hint` says which argument names them."""
    absent = [name for name in wanted if name not in frame.names]
    if absent:
        raise InputError(
            f"the batch has no column {listing([repr(name) for name in absent])}; it has "
            f"{listing([repr(str(name)) for name in frame.names]) or 'none'}; {hint}"
        )
