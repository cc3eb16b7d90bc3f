"""What a stage is made of: a model, loaded once per process, and chunks of rows on threads."""

from __future__ import annotations

import hashlib
import os
import platform
import runpy
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import kuiper
from kuiper._support.threads import ForkLock, check_num_threads
from kuiper.batch.fields import Type, ddl_type, missing
from kuiper.batch.frames import Column, Frame, as_frame, check_columns
from kuiper.errors import InputError
from kuiper.planning.precision import chosen_precision, default_precision
from kuiper.pnnx import _bin_paths
from kuiper.vision.model_zoo import BUNDLED, find_model

__all__ = ["NETWORKS_KEPT", "Stage", "assigned_threads", "at_least_1", "filled"]

# Networks that a process keeps loaded.  Engines make a stage anew from its pickled form for every
# task, and only this cache outlives the task.
NETWORKS_KEPT = 4

_networks: OrderedDict[Any, Any] = OrderedDict()
_plugins: set[str] = set()
_lock = ForkLock()

# About as many values of an input in one run as four pictures of 224 x 224 have.
_VALUES_PER_RUN = 4 * 3 * 224 * 224
_MAX_ROWS_PER_RUN = 32


def at_least_1(name: str, value: Any) -> int:
    """Return an argument as an int, or raise InputError."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
        raise InputError(f"{name} is {value!r}, expected an integer of at least 1")
    return int(value)


def assigned_threads() -> int:
    """Return how many threads the running task may use."""
    # Ray uses a process for tasks with other numbers of processors than it was started with.
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        with suppress(AssertionError, AttributeError):  # in the driver, which is assigned none
            processors = ray.get_runtime_context().get_assigned_resources().get("CPU")
            if processors:
                return max(1, int(processors))
    return kuiper.get_num_threads()


class Stage:
    """A model as a function of columns, for any engine; the base of the ready-made stages.

    A stage holds the path of a model and settings, so it is small when pickled.  The model is
    loaded by the first call in each process and kept for later ones, also of other stages with the
    same settings: threads and successive tasks of a process share one copy of the weights.  Rows
    are run in chunks of `batch`, on `threads` threads at a time; the results have the same bits for
    any numbers.

    Parameters
    ----------
    model : str or os.PathLike
        A ``.pnnx.param`` file with its ``.bin`` beside it, an ``.onnx`` file, or the name of a
        bundled model.  Each machine opens it by this path.
    keep : sequence of str, optional
        Columns to pass on beside the results; by default all that the model does not read.
    batch : int, optional
        Rows in one run of the model; by default as many as have the size of four pictures of 224 x
        224 pixels, at most 32.
    threads : int, optional
        Runs at the same time, on one thread each; by default as many as Ray has assigned processors
        to the task, elsewhere :func:`kuiper.get_num_threads`, which reads the number that Spark and
        Dask assign (``OMP_NUM_THREADS``).
    plugins : sequence of str or os.PathLike, default=()
        Python files to run before the model is loaded, which define operators by
        :func:`kuiper.operator`.
    precision : str, optional
        As for :func:`kuiper.load`; chosen on this machine for all others.

    Raises
    ------
    InputError
        If an argument is wrong.
    FileNotFoundError
        If there is no such model.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        keep: Sequence[str] | None = None,
        batch: int | None = None,
        threads: int | None = None,
        plugins: Sequence[str | os.PathLike[str]] = (),
        precision: str | None = None,
    ) -> None:
        if not isinstance(model, str | os.PathLike):
            raise InputError(
                f"model is a {type(model).__name__}, expected the path of a .pnnx.param file: each "
                "process loads the model itself, once"
            )
        if isinstance(keep, str):
            raise InputError(f"keep is {keep!r}, expected a sequence of names of columns")
        # Workers have other working directories; bundled models have other folders elsewhere.
        name = os.fspath(model)
        self.model = name if name in BUNDLED else str(Path(name).absolute())
        find_model(self.model)
        self.keep = None if keep is None else tuple(keep)
        self.batch = None if batch is None else at_least_1("batch", batch)
        self.threads = None if threads is None else check_num_threads(threads)
        self.plugins = tuple(str(Path(plugin).absolute()) for plugin in plugins)
        self.precision = chosen_precision(precision)
        # The folder to which paths of pictures are relative; run_dataset sets that of its input.
        self.root = ""

    # -- what a stage defines ----------------------------------------------------------------

    def consumes(self) -> tuple[str, ...]:
        """Return the names of the columns that the model reads."""
        raise NotImplementedError

    def fields(self) -> dict[str, Type]:
        """Return the types of the columns of results by name; see :mod:`kuiper.batch.fields`."""
        raise NotImplementedError

    def _options(self) -> dict[str, Any]:
        """Return the settings on which results depend, in types of JSON."""
        raise NotImplementedError

    def _load(self, path: Path) -> tuple[Any, kuiper.Model]:
        """Return the network, and the model in it."""
        raise NotImplementedError

    def _prepare(self, network: Any, columns: list[np.ndarray]) -> list[np.ndarray]:
        """Check and convert the columns of a whole batch."""
        return columns

    def _run(self, network: Any, columns: list[np.ndarray]) -> dict[str, Column]:
        """Return the results of some rows."""
        raise NotImplementedError

    # -- the model ---------------------------------------------------------------------------

    @property
    def network(self) -> Any:
        """The network, loaded when it is first asked for in this process.

        Raises
        ------
        KuiperError
            If kuiper refuses the model.
        OSError
            If a file cannot be read; the message names the machine.
        """
        try:
            path = find_model(self.model)
            status = path.stat()
        except FileNotFoundError as error:
            raise FileNotFoundError(
                2, f"{error.strerror} on the machine {platform.node()}", error.filename
            ) from None
        stamp = (str(path), status.st_mtime_ns, status.st_size)
        options = repr(sorted(self._options().items()))
        key = (type(self), stamp, self.plugins, self.precision, options)
        with _lock:
            if key not in _networks:
                for plugin in self.plugins:
                    if plugin not in _plugins:  # an operator is not defined twice
                        runpy.run_path(plugin)
                        _plugins.add(plugin)
                with default_precision(self.precision):
                    network, model = self._load(path)
                model.threads = 1
                _networks[key] = network
                while len(_networks) > NETWORKS_KEPT:
                    _networks.popitem(last=False)
            _networks.move_to_end(key)
            return _networks[key]

    def describe(self) -> dict[str, Any]:
        """Return what results depend on, in types of JSON: settings, and a digest of the model."""
        path = find_model(self.model)
        if path.suffix == ".onnx":  # weights in files beside it are mostly named after it
            files = sorted(path.parent.glob(f"{path.name}*"))
        else:
            bins = [Path(name) for name in _bin_paths(str(path)) if os.path.exists(name)]
            files = [path, *bins[:1]]
        digest = hashlib.sha256()
        for file in [*files, *map(Path, self.plugins)]:
            with file.open("rb") as opened:
                while block := opened.read(1 << 20):
                    digest.update(block)
        return {
            "stage": type(self).__name__,
            "model": path.name,
            "sha256": digest.hexdigest(),
            "precision": self.precision,
            "keep": None if self.keep is None else list(self.keep),
            **self._options(),
        }

    # -- rows --------------------------------------------------------------------------------

    def __call__(self, batch: Any) -> Any:
        """Run the model on a batch of rows.

        Parameters
        ----------
        batch : mapping of str to array, pyarrow.Table, pyarrow.RecordBatch or pandas.DataFrame

        Returns
        -------
        dict of str to numpy.ndarray, pyarrow.Table, pyarrow.RecordBatch or pandas.DataFrame
            Of the kind of `batch`: the kept columns, then the results.

        Raises
        ------
        InputError
            If columns are missing or do not fit the model, or the names of results and kept columns
            collide.
        """
        frame = as_frame(batch)
        return frame.build(self.kept(frame.names), self.process(frame))

    def arrow(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Run the model on a stream of record batches: the function for Spark's `mapInArrow`.

        Parameters
        ----------
        batches : iterable of pyarrow.RecordBatch

        Yields
        ------
        pyarrow.RecordBatch
            One for each.
        """
        for batch in batches:
            yield self(batch)

    def ddl(self, schema: Any = None) -> str:
        """Return the schema of the results in Spark's language, such as ``"`label` string"``.

        Parameters
        ----------
        schema : pyspark.sql.types.StructType, optional
            That of the data frame, to prepend the kept columns.
        """
        given = {} if schema is None else {f.name: f.dataType.simpleString() for f in schema.fields}
        columns = {name: given[name] for name in self.kept(list(given))}
        columns.update((name, ddl_type(type)) for name, type in self.fields().items())
        return ", ".join(f"`{name}` {type}" for name, type in columns.items())

    def kept(self, names: Sequence[str], everything: bool = False) -> list[str]:
        """Return which columns of a batch are passed on.

        Parameters
        ----------
        names : sequence of str
            All columns.
        everything : bool, default=False
            Without `keep`, keep what the model reads as well.

        Raises
        ------
        InputError
            If a column of `keep` is missing, or a result has the name of a kept column.
        """
        if self.keep is None:
            dropped = () if everything else self.consumes()
            kept = [name for name in names if name not in dropped]
        else:
            kept = list(self.keep)
            absent = [name for name in kept if name not in names]
            if absent:
                raise InputError(f"keep names {absent}, the batch has the columns {list(names)}")
        both = [name for name in self.fields() if name in kept]
        if both:
            raise InputError(
                f"the results have the names {both}, which kept columns have too; rename these "
                "columns, or list those to keep in keep="
            )
        return kept

    def process(self, frame: Frame) -> dict[str, Column]:
        """Return the results of a batch.

        Parameters
        ----------
        frame : Frame
            See :mod:`kuiper.batch.frames`.

        Raises
        ------
        InputError
            If columns are missing or do not fit the model.
        """
        wanted = self.consumes()
        check_columns(frame, wanted, self._hint)
        if not frame.n_rows:
            return {name: _empty(type) for name, type in self.fields().items()}
        network = self.network
        columns = self._prepare(network, [frame.column(name) for name in wanted])
        step = self.batch or self._default_batch(columns)
        chunks = [
            [values[start : start + step] for values in columns]
            for start in range(0, frame.n_rows, step)
        ]
        threads = min(self.threads or assigned_threads(), len(chunks))
        if threads == 1:
            return _joined([self._run(network, chunk) for chunk in chunks])
        with ThreadPoolExecutor(threads) as pool:
            futures = [pool.submit(self._run, network, chunk) for chunk in chunks]
            try:
                return _joined([future.result() for future in futures])
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    _hint = "columns= says which column is which input"

    def _default_batch(self, columns: Sequence[np.ndarray]) -> int:
        """Return how many rows to run at once."""
        size = max((values[:1].size for values in columns), default=1)
        return max(1, min(_MAX_ROWS_PER_RUN, _VALUES_PER_RUN // max(1, size)))


def _empty(type: Type) -> Column:
    """Return a column without rows."""
    inner, rank = type, 0
    while isinstance(inner, list) and _is_number(inner):
        inner, rank = inner[0], rank + 1
    dtype = np.dtype(inner) if _is_number(inner) and isinstance(inner, str) else np.dtype(object)
    return Column(type, np.empty((0,) * (1 + rank), dtype))


def _is_number(type: Type) -> bool:
    while isinstance(type, list):
        type = type[0]
    return isinstance(type, str) and type not in ("string", "binary")


def _joined(parts: Sequence[Mapping[str, Column]]) -> dict[str, Column]:
    """Return the columns of consecutive chunks as one."""
    if len(parts) == 1:
        return dict(parts[0])
    joined = {}
    for name, first in parts[0].items():
        columns = [part[name] for part in parts]
        shapes = {column.values.shape[1:] for column in columns}
        if len(shapes) > 1:
            raise InputError(
                f"result '{name}' has rows of the shapes {sorted(shapes)}, which one column cannot "
                "hold; run rows of one shape"
            )
        masks = None
        if any(column.missing is not None for column in columns):
            masks = np.concatenate([
                np.zeros(len(c.values), bool) if c.missing is None else c.missing for c in columns
            ])  # fmt: skip
        joined[name] = Column(first.type, np.concatenate([c.values for c in columns]), masks)
    return joined


def filled(type: Type, rows: int, found: Mapping[int, Any], shape: tuple[int, ...] = ()) -> Column:
    """Return a column with values in some rows; the others are missing.

    Parameters
    ----------
    type : Type
    rows : int
    found : mapping of int to object
        Row -> value.
    shape : tuple of int
        That of a value, if it is an array.
    """
    inner: Type = type
    for _ in shape:
        assert isinstance(inner, list)
        inner = inner[0]
    dtype = np.dtype(inner) if isinstance(inner, str) and _is_number(inner) else np.dtype(object)
    values = np.full((rows, *shape), missing(inner), dtype)
    absent = np.ones(rows, bool)
    for row, value in found.items():
        values[row] = value
        absent[row] = False
    return Column(type, values, absent if absent.any() else None)
