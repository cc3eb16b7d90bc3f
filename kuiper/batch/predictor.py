"""Any model on columns of numbers, or on pictures that become its input."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import kuiper
from kuiper.batch.fields import Type, of_tensor
from kuiper.batch.frames import Column
from kuiper.batch.stage import Stage, filled
from kuiper.errors import InputError
from kuiper.pnnx._messages import listing

if TYPE_CHECKING:
    from kuiper.vision import Preprocessing

__all__ = ["Predictor"]


class Predictor(Stage):
    """A model whose inputs are columns, and whose outputs become columns.

    The value of a row is an array (or a nested list, or a list of as many numbers as the input has
    per row).  Numbers are converted to the dtype of the input where that is exact, float64 to
    float32 with rounding, and text, as CSV files have it, is parsed.

    Parameters
    ----------
    model : str or os.PathLike
        See :class:`Stage`.
    columns : str, mapping of str to (str or sequence of str), optional
        Input -> column, or columns of single numbers that form a vector; a name alone is the column
        of the only input.  By default each input reads the column of its name.
    outputs : sequence of str, optional
        Which outputs become columns; by default all.
    preprocess : str or kuiper.vision.Preprocessing, optional
        For a model with one input, whose column holds pictures (bytes of files, paths or arrays of
        uint8): how they become its input, or the name of a preset of :data:`kuiper.vision.PRESETS`.
    errors : str, default="column"
        With `preprocess`: ``"column"`` puts the reason why a picture cannot be read into a column
        ``error``, whose other values are missing in that row; ``"raise"`` raises it.
    keep, batch, threads, plugins, precision
        See :class:`Stage`.

    Raises
    ------
    InputError
        If an argument is wrong.
    FileNotFoundError
        If there is no such model.

    Examples
    --------
    >>> from kuiper.batch import Predictor                                # doctest: +SKIP
    >>> predictor = Predictor("resnet18.pnnx.param", columns="tensor")    # doctest: +SKIP
    >>> predictor({"id": ids, "tensor": x})                               # doctest: +SKIP
    {'id': array([...]), 'out': array([[...]], dtype=float32)}
    >>> ray.data.read_parquet(source).map_batches(predictor)              # doctest: +SKIP
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        columns: str | Mapping[str, str | Sequence[str]] | None = None,
        *,
        outputs: Sequence[str] | None = None,
        preprocess: str | Preprocessing | None = None,
        errors: str = "column",
        keep: Sequence[str] | None = None,
        batch: int | None = None,
        threads: int | None = None,
        plugins: Sequence[str | os.PathLike[str]] = (),
        precision: str | None = None,
    ) -> None:
        super().__init__(
            model, keep=keep, batch=batch, threads=threads, plugins=plugins, precision=precision
        )
        if isinstance(columns, Mapping):
            columns = {
                name: given if isinstance(given, str) else tuple(given)
                for name, given in columns.items()
            }
        elif not isinstance(columns, str | None):
            raise InputError(
                f"columns is {columns!r}, expected a name, or a dict of input to column"
            )
        self.columns = columns
        self.outputs = None if outputs is None else tuple(outputs)
        if isinstance(preprocess, str):
            from kuiper.vision import PRESETS

            if preprocess not in PRESETS:
                raise InputError(
                    f"preprocess is {preprocess!r}, expected one of {listing([*PRESETS])}"
                )
            preprocess = PRESETS[preprocess]
        self.preprocess = preprocess
        self.errors = check_errors(errors)

    def _options(self) -> dict[str, Any]:
        return {
            "columns": self.columns,
            "outputs": self.outputs,
            "preprocess": None if self.preprocess is None else asdict(self.preprocess),
        }

    def _load(self, path: Path) -> tuple[kuiper.Model, kuiper.Model]:
        model = kuiper.load(path)
        names = [info.name for info in model.inputs]
        if isinstance(self.columns, str) and len(names) != 1:
            raise InputError(
                f"{path.name}: columns is '{self.columns}', but the model has the inputs "
                f"{listing(names)}; pass a dict of input to column"
            )
        if isinstance(self.columns, Mapping) and set(self.columns) != set(names):
            raise InputError(
                f"{path.name}: columns names the inputs {listing([*self.columns])}, the model has "
                f"{listing(names)}"
            )
        known = [info.name for info in model.outputs]
        absent = [name for name in self.outputs or () if name not in known]
        if absent:
            raise InputError(
                f"{path.name}: there is no output {listing(absent)}; the model has {listing(known)}"
            )
        if self.preprocess is not None and (
            len(names) != 1 or len(model.inputs[0].shape or (0,) * 4) != 4
        ):
            raise InputError(
                f"{path.name}: preprocess makes one input (batch, 3, height, width), the model has "
                f"{listing([f'{info.name} {info.shape}' for info in model.inputs])}"
            )
        return model, model

    def _sources(self) -> dict[str, tuple[str, ...]]:
        """Return the columns of each input, by name and in the order of the model's inputs."""
        names = [info.name for info in self.network.inputs]
        if isinstance(self.columns, str):
            return {names[0]: (self.columns,)}
        given = self.columns or {}
        columns = {name: given.get(name, name) for name in names}
        return {name: (c,) if isinstance(c, str) else tuple(c) for name, c in columns.items()}

    def consumes(self) -> tuple[str, ...]:
        """Return the names of the columns that the model reads."""
        sources = self._sources().values()
        return tuple(dict.fromkeys(column for columns in sources for column in columns))

    def _infos(self) -> list[kuiper.TensorInfo]:
        """Return the outputs that become columns."""
        infos = {info.name: info for info in self.network.outputs}
        return [infos[name] for name in (infos if self.outputs is None else self.outputs)]

    def _shape(self, info: kuiper.TensorInfo) -> tuple[int | None, ...]:
        """Return the shape of an output; a file that omits it mostly has those of the inputs."""
        shapes = [given.shape for given in self.network.inputs]
        if info.shape is not None or None in shapes:
            return info.shape or ()
        traced = [tuple(n or 1 for n in shape or ()) for shape in shapes]
        outputs = self.network.planned_graph(*traced).outputs
        numbers = [given.name for given in self.network.outputs]
        return outputs[numbers.index(info.name)].shape or ()

    def fields(self) -> dict[str, Type]:
        """Return the types of the columns of results by name; see :mod:`kuiper.batch.fields`."""
        fields: dict[str, Type] = {
            info.name: of_tensor(info.dtype, max(0, len(self._shape(info)) - 1))
            for info in self._infos()
        }
        return fields if self.preprocess is None else {**fields, "error": "string"}

    # -- rows --------------------------------------------------------------------------------

    def _prepare(self, network: kuiper.Model, columns: list[np.ndarray]) -> list[np.ndarray]:
        if self.preprocess is not None:
            return columns
        values = dict(zip(self.consumes(), columns, strict=True))
        inputs = []
        for info, (name, sources) in zip(network.inputs, self._sources().items(), strict=True):
            parts = [as_dtype(values[source], info, source) for source in sources]
            joined = parts[0] if len(sources) == 1 else _vector(parts, name, sources)
            inputs.append(_as_shape(joined, info, listing(sources)))
        return inputs

    def _run(self, network: kuiper.Model, columns: list[np.ndarray]) -> dict[str, Column]:
        if self.preprocess is not None:
            return self._run_pictures(network, columns[0])
        found = self._outputs_of(network, columns)
        return {
            name: Column(of_tensor(values.dtype, values.ndim - 1), values)
            for name, values in found.items()
        }

    def _outputs_of(self, network: kuiper.Model, inputs: list[np.ndarray]) -> dict[str, np.ndarray]:
        """Run the model; return the wanted outputs, whose first axis is the rows."""
        found, rows = network(*inputs, as_dict=True), len(inputs[0])
        wanted = list(found) if self.outputs is None else self.outputs
        for name in wanted:
            if found[name].shape[:1] != (rows,):
                raise InputError(
                    f"output '{name}' has shape {found[name].shape} for {rows} rows; a column "
                    "needs one value per row as its first axis: choose others by outputs="
                )
        return {name: found[name] for name in wanted}

    def _run_pictures(self, network: kuiper.Model, values: np.ndarray) -> dict[str, Column]:
        from kuiper.batch.pictures import decoded
        from kuiper.vision import preprocess
        from kuiper.vision.images import input_size

        assert self.preprocess is not None
        how = self.preprocess
        how = how if how.size else replace(how, size=input_size(network))
        inputs, errors = decoded(
            values, lambda image: preprocess(image, how), self.errors, root=self.root
        )
        rows = len(values)
        columns: dict[str, Column] = {}
        if inputs:
            outputs = self._outputs_of(network, [np.stack(list(inputs.values()))])
            for name, array in outputs.items():
                found = dict(zip(inputs, array, strict=True))
                type = of_tensor(array.dtype, array.ndim - 1)
                columns[name] = filled(type, rows, found, array.shape[1:])
        else:  # no row is there whose shape the others could take
            for info in self._infos():
                shape = tuple(extent or 0 for extent in self._shape(info)[1:])
                columns[info.name] = filled(of_tensor(info.dtype, len(shape)), rows, {}, shape)
        return {**columns, "error": filled("string", rows, errors)}


def check_errors(errors: str) -> str:
    """Return the argument `errors`, or raise InputError."""
    if errors not in ("column", "raise"):
        raise InputError(f"errors is {errors!r}, expected 'column' or 'raise'")
    return errors


def as_dtype(values: np.ndarray, info: kuiper.TensorInfo, column: str) -> np.ndarray:
    """Convert a column to the dtype of an input.

    Raises
    ------
    InputError
        If that would change values, other than by rounding float64 to float32.
    """
    if values.dtype == object or values.dtype.kind in "US":
        values = _numbers(values, info, column)
    if values.dtype == info.dtype:
        return np.ascontiguousarray(values)
    kinds = values.dtype.kind + info.dtype.kind
    if kinds in ("ff", "cc") or np.can_cast(values.dtype, info.dtype, "safe"):
        return values.astype(info.dtype)
    converted = values.astype(info.dtype) if values.dtype.kind in "biuf" else None
    if converted is None or kinds[1] not in "iuf" or not np.array_equal(converted, values):
        raise InputError(
            f"column '{column}' is {values.dtype}, and input '{info.name}' needs {info.dtype}, "
            "which does not hold all of its values"
        )
    return converted


def _numbers(values: np.ndarray, info: kuiper.TensorInfo, column: str) -> np.ndarray:
    """Return a column of arrays, lists or text as numbers."""
    rows = []
    for number, value in enumerate(values):
        try:
            if isinstance(value, str):
                value = info.dtype.type(value)
            row = np.asarray(value)
            if row.dtype == object:
                row = np.array(row.tolist())
            if row.dtype.kind not in "biufc":
                raise ValueError(f"it is {type(value).__name__}")
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"column '{column}', row {number}: expected numbers for input '{info.name}' "
                f"({info.dtype}): {error}"
            ) from None
        rows.append(row)
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        raise InputError(
            f"column '{column}': its rows have the shapes {listing([str(s) for s in shapes], 3)}; "
            "an input needs rows of one shape"
        )
    return np.stack(rows)


def _vector(parts: Sequence[np.ndarray], name: str, columns: Sequence[str]) -> np.ndarray:
    """Return columns of single numbers as one column of vectors."""
    for part, column in zip(parts, columns, strict=True):
        if part.ndim != 1:
            raise InputError(
                f"column '{column}' holds arrays of shape {part.shape[1:]}; input '{name}' is "
                f"made of the columns {listing(columns)}, each with one number per row"
            )
    return np.stack(parts, axis=1)


def _as_shape(values: np.ndarray, info: kuiper.TensorInfo, column: str) -> np.ndarray:
    """Return a column in the rank of an input; vectors become tensors if the sizes agree."""
    if info.shape is None or values.ndim == len(info.shape):
        return values
    extents = info.shape[1:]
    size = int(np.prod(values.shape[1:]))
    if None not in extents and int(np.prod([n or 1 for n in extents])) == size:
        return values.reshape(len(values), *[n or 1 for n in extents])
    raise InputError(
        f"column '{column}' has rows of shape {values.shape[1:]}, input '{info.name}' needs "
        f"{tuple('?' if n is None else n for n in extents)}"
    )
