"""Indexing: gathering, scattering, masks and writing into slices."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from kuiper._value import TensorSpec, Value
from kuiper.errors import ShapeError
from kuiper.expression.promotion import is_number, result_type
from kuiper.ops._binder import Binder
from kuiper.ops._numpy import NumpyRecord, Overloaded, broadcast, checked_index, convert
from kuiper.ops._record import Record, record
from kuiper.ops._schema import Any_, Argument, Bool, Host, Int, Scalar, Str, Tensor, ValuesNeeded
from kuiper.ops.shape import Slice, axis_of, cut_out, is_at

__all__ = ["Embedding", "Gather", "Index", "IndexPut", "MaskedFill", "SliceCopy", "Where"]


def along(shape: Sequence[int], axis: int, extent: int) -> tuple[int, ...]:
    """Return a shape with another extent of one axis."""
    return (*shape[:axis], extent, *shape[axis + 1 :])


# -- lists of indices --------------------------------------------------------------------------


class _Indices(Argument):
    """What stands between the brackets of ``x[...]``: index arrays, masks, and None for all.

    Arrays that were known at export stand as text (``[None,[2,1],[True,False]]``).
    """

    expected = "a list of indices, masks and None"

    def convert(self, value: Any) -> Any:
        if isinstance(value, str):
            try:
                value = ast.literal_eval(value)
            except SyntaxError:
                raise ValueError from None
        if not isinstance(value, tuple | list):
            raise ValueError
        return tuple(map(self._item, value))

    @staticmethod
    def _item(item: Any) -> Any:
        if item is None or isinstance(item, TensorSpec | Value):
            return item
        array = np.array(item if item else np.zeros(0, np.int64))
        if array.dtype.kind not in "bi":
            raise ValueError
        return array


def _is_mask(item: Any) -> bool:
    # PyTorch still takes bytes for bools here.
    return item.dtype in (np.bool_, np.uint8)


def _mask_length(item: Any) -> int:
    """Return how many places a mask selects."""
    values = item if isinstance(item, np.ndarray) else item.constant
    if values is None:
        raise ValuesNeeded("the shape of its result depends on a mask")
    return int(np.count_nonzero(values))


def _indexed_shape(shape: tuple[int, ...], indices: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape of ``x[indices]``.

    The index arrays broadcast together; their axes stand where the first of them stood, or in
    front where a whole axis lies between two of them.
    """
    kept: list[int] = []
    arrays, places = [], []
    axis = 0
    for number, item in enumerate(indices):
        rank = 1
        if item is not None and _is_mask(item):
            rank = len(item.shape)
            if item.shape != shape[axis : axis + rank]:
                raise ShapeError(
                    f"index {number} is a mask of shape {item.shape}, expected "
                    f"{shape[axis : axis + rank]}"
                )
        if axis + rank > len(shape):
            raise ShapeError(f"there are more indices than axes of an input of shape {shape}")
        if item is None:
            kept.append(shape[axis])
        else:
            arrays.append((_mask_length(item),) if _is_mask(item) else item.shape)
            places.append((number, len(kept)))
        axis += rank
    rest = (*kept, *shape[axis:])
    try:
        together = np.broadcast_shapes(*arrays)
    except ValueError:
        listed = " and ".join(map(str, arrays))
        raise ShapeError(f"indices of shapes {listed} do not broadcast") from None
    if not places:
        return rest
    side_by_side = places[-1][0] - places[0][0] + 1 == len(places)
    start = places[0][1] if side_by_side else 0
    return (*rest[:start], *together, *rest[start:])


def _subscript(indices: Sequence[Any]) -> tuple[Any, ...]:
    """Return indices as numpy takes them."""
    return tuple(
        slice(None) if item is None else item.astype(np.bool_) if item.dtype == np.uint8 else item
        for item in indices
    )


@record("Tensor.index")
class Index(NumpyRecord):
    """``x[indices]`` with index arrays and masks; None stands for a whole axis.

    Source: torch.Tensor.__getitem__.
    """

    data_dependent = True
    arguments = (Tensor("input"), _Indices("expr"))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(_indexed_shape(a.input.shape, a.expr), a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        try:
            return a.input[_subscript(a.expr)]
        except IndexError as error:
            raise ShapeError(str(error)) from None


@record("Tensor.index_put")
class IndexPut(NumpyRecord):
    """A copy of the input with ``x[indices] = values``, or ``+= values`` with `accumulate`.

    Source: torch.Tensor.index_put.
    """

    arguments = (
        Tensor("input"),
        _Indices("indices"),
        Tensor("values", number=True),
        Bool("accumulate", False),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        y, subscript = a.input.copy(), _subscript(a.indices)
        values = convert(a.values, y.dtype)
        try:
            if a.accumulate:
                np.add.at(y, subscript, values)
            else:
                y[subscript] = values
        except (IndexError, ValueError) as error:
            raise ShapeError(str(error)) from None
        return y


# -- one index per element ---------------------------------------------------------------------


def _check_index(index: TensorSpec, shape: Sequence[int], axis: int, name: str = "input") -> None:
    """Require an index that is nowhere larger than a tensor, apart from one axis."""
    # A 0-d tensor counts as one of one element.
    pairs = list(zip(index.shape or (1,), shape or (1,), strict=False))
    same_rank = len(pairs) == max(len(index.shape), len(shape), 1)
    fits = same_rank and all(n <= m or d == axis for d, (n, m) in enumerate(pairs))
    if not fits or index.dtype.kind not in "iu":
        raise ShapeError(
            f"'index' is {index}, expected integers of a shape within that of '{name}', {shape}, "
            f"apart from axis {axis}"
        )


def _places(index: np.ndarray, axis: int, extent: int) -> tuple[Any, ...]:
    """Return the subscript of the places that `index` names along one axis."""
    grid = list(np.ogrid[tuple(slice(n) for n in index.shape)])
    grid[axis] = checked_index(index, extent)
    return tuple(grid)


class _AlongAxis(NumpyRecord):
    """Base of the operators with one index per element, counted along an axis."""

    @staticmethod
    def _axis(a: SimpleNamespace) -> int:
        return axis_of(a.dim, a.input.shape or (1,))


@record("torch.gather")
class Gather(_AlongAxis):
    """``y[i][j] = x[i][index[i][j]]`` for the axis 1, and so on.

    Source: torch.gather.
    """

    arguments = (Tensor("input"), Int("dim"), Tensor("index"), Bool("sparse_grad", False))

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        _check_index(a.index, a.input.shape, cls._axis(a))
        return TensorSpec(a.index.shape, a.input.dtype)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        x, index = np.atleast_1d(a.input), np.atleast_1d(a.index)
        axis = cls._axis(a)
        return x[_places(index, axis, x.shape[axis])].reshape(a.index.shape)


def _scattered(a: SimpleNamespace, axis: int, function: np.ufunc | None, value: Any) -> np.ndarray:
    """Return a copy of the input, `value` put in or joined on at the indices."""
    y, index = np.atleast_1d(a.input.copy()), np.atleast_1d(a.index)
    places = _places(index, axis, y.shape[axis])
    if not is_number(value):
        value = np.atleast_1d(value)[tuple(slice(n) for n in index.shape)]
    value = convert(value, y.dtype)
    if function is None:
        y[places] = value
    else:
        function.at(y, places, value)
    return y.reshape(a.input.shape)


@record("torch.scatter_add")
class ScatterAdd(_AlongAxis):
    """A copy of the input with ``y[i][index[i][j]] += src[i][j]`` for the axis 1, and so on.

    Source: torch.scatter_add.
    """

    arguments = (Tensor("input"), Int("dim"), Tensor("index"), Tensor("src"))

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        _check_index(a.index, a.input.shape, cls._axis(a))
        _check_src(a)
        return TensorSpec(a.input.shape, a.input.dtype)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        return _scattered(a, cls._axis(a), np.add, a.src)


def _check_src(a: SimpleNamespace) -> None:
    """Refuse values that are not one for each index, or of another dtype than what they go into."""
    _check_index(a.index, a.src.shape, -1, "src")
    if a.src.dtype != a.input.dtype:
        raise ShapeError(f"'src' is {a.src.dtype}, expected {a.input.dtype} like the input")


_SCATTER = (Tensor("input"), Int("dim"), Tensor("index"))

_REDUCTIONS = {"add": np.add, "multiply": np.multiply}

# Each with what changes nothing.
_JOINS = {
    "sum": (np.add, 0),
    "mean": (np.add, 0),
    "prod": (np.multiply, 1),
    "amax": (np.maximum, -np.inf),
    "amin": (np.minimum, np.inf),
}


@record("aten::scatter")
class Scatter(Overloaded):
    """A copy of the input with ``y[i][index[i][j]] = src[i][j]`` for the axis 1, and so on.

    `src` may be a number; `reduce` adds or multiplies instead.  Source: torch.scatter.
    """

    overloads = (
        (*_SCATTER, Tensor("src", number=True)),
        (*_SCATTER, Tensor("src", number=True), Str("reduce", tuple(_REDUCTIONS))),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        axis = axis_of(a.dim, a.input.shape or (1,))
        _check_index(a.index, a.input.shape, axis)
        if not is_number(a.src):
            _check_src(a)
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        function = _REDUCTIONS[a.reduce] if hasattr(a, "reduce") else None
        return _scattered(a, axis_of(a.dim, a.input.shape or (1,)), function, a.src)


@record("aten::scatter_reduce")
class ScatterReduce(_AlongAxis):
    """Values joined where they meet: their sum, product, mean, maximum or minimum.

    The input takes part if `include_self`.  Source: torch.scatter_reduce.
    """

    arguments = (
        *_SCATTER,
        Tensor("src"),
        Str("reduce", tuple(_JOINS)),
        Bool("include_self", True),
    )

    result = ScatterAdd.result

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        axis = cls._axis(a)
        function, neutral = _JOINS[a.reduce]
        x = a.input
        if not a.include_self:
            if x.dtype.kind in "iu" and np.isinf(neutral):
                limits = np.iinfo(x.dtype)
                neutral = limits.min if neutral < 0 else limits.max
            a.input = _scattered(a, axis, None, neutral)
        y = _scattered(a, axis, function, a.src)
        if a.reduce == "mean":
            a.input = np.full(x.shape, int(a.include_self), np.int64)
            counts = np.maximum(_scattered(a, axis, np.add, 1), 1)
            y = y // counts if x.dtype.kind in "iu" else y / counts.astype(x.dtype)
        return y


@record("aten::index_reduce")
class IndexReduce(ScatterReduce):
    """Slices of `source` joined at the places of an axis that `index` lists, as scatter_reduce.

    Source: torch.index_reduce.
    """

    arguments = (
        Tensor("input"),
        Int("dim"),
        Tensor("index", rank=(0, 1)),
        Tensor("src"),
        Str("reduce", tuple(join for join in _JOINS if join != "sum")),
        Bool("include_self", True),
    )

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        axis = axis_of(a.dim, a.input.shape or (1,))
        expected = along(a.input.shape, axis, a.index.size) if a.input.rank else ()
        if a.src.shape != expected or a.src.dtype != a.input.dtype:
            raise ShapeError(
                f"'source' is {a.src!r}, expected {TensorSpec(expected, a.input.dtype)!r}"
            )
        return TensorSpec(a.input.shape, a.input.dtype)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        if a.src.ndim:
            axis = axis_of(a.dim, a.src.shape)
            shape = [-1 if d == axis else 1 for d in range(a.src.ndim)]
            a.index = np.broadcast_to(a.index.reshape(shape), a.src.shape)
        else:
            a.index = a.index.reshape(())
        return super().compute(a)


# -- whole slices along an axis ----------------------------------------------------------------


@record("torch.index_select")
class IndexSelect(_AlongAxis):
    """The places of one axis that `index` lists.

    Source: torch.index_select.
    """

    arguments = (Tensor("input"), Int("dim"), Tensor("index", rank=(0, 1)))

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        shape = along(a.input.shape, cls._axis(a), a.index.size) if a.input.rank else ()
        return TensorSpec(shape, a.input.dtype)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        if a.input.ndim == 0:
            return a.input
        axis = cls._axis(a)
        index = checked_index(np.atleast_1d(a.index), a.input.shape[axis])
        return np.take(a.input, index, axis)


@record("aten::index_add")
class IndexAdd(NumpyRecord):
    """A copy of the input, ``alpha * source`` added to the places of an axis that `index` lists.

    Source: torch.index_add.
    """

    arguments = (
        Tensor("input"),
        Int("dim"),
        Tensor("index", rank=1),
        Tensor("source"),
        Scalar("alpha", 1),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        _check_slices(a)
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        y = a.input.copy()
        rows = np.moveaxis(y, axis_of(a.dim, y.shape), 0)
        source = np.moveaxis(a.source, axis_of(a.dim, y.shape), 0)
        np.add.at(rows, checked_index(a.index, len(rows)), convert(source * a.alpha, y.dtype))
        return y


@record("aten::index_copy")
class IndexCopy(NumpyRecord):
    """A copy of the input, `source` put at the places of an axis that `index` lists.

    Source: torch.index_copy.
    """

    arguments = (Tensor("input"), Int("dim"), Tensor("index", rank=1), Tensor("source"))
    result = IndexAdd.result

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        y = a.input.copy()
        axis = axis_of(a.dim, y.shape)
        rows = np.moveaxis(y, axis, 0)
        rows[checked_index(a.index, len(rows))] = np.moveaxis(a.source, axis, 0)
        return y


@record("aten::index_fill")
class IndexFill(NumpyRecord):
    """A copy of the input, a number put at the places of an axis that `index` lists.

    Source: torch.index_fill.
    """

    arguments = (
        Tensor("input"),
        Int("dim"),
        Tensor("index", rank=(0, 1)),
        Tensor("value", number=True),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        axis_of(a.dim, a.input.shape)
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        y = a.input.copy()
        rows = np.moveaxis(y, axis_of(a.dim, y.shape), 0)
        index = np.atleast_1d(a.index)
        rows[checked_index(index, len(rows), negative=True)] = convert(a.value, y.dtype)
        return y


def _check_slices(a: SimpleNamespace) -> None:
    axis = axis_of(a.dim, a.input.shape)
    expected = along(a.input.shape, axis, a.index.size)
    if a.source.shape != expected:
        raise ShapeError(f"'source' has shape {a.source.shape}, expected {expected}")


# -- places of the flattened tensor ------------------------------------------------------------


@record("aten::take")
class Take(NumpyRecord):
    """The elements of the flattened input that `index` lists.

    Source: torch.take.
    """

    arguments = (Tensor("input"), Tensor("index"))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(a.index.shape, a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        flat = a.input.reshape(-1)
        return flat[checked_index(a.index, flat.size, negative=True)]


@record("aten::put")
class Put(NumpyRecord):
    """A copy of the input, `source` put or added at places of the flattened tensor.

    Source: torch.put.
    """

    arguments = (Tensor("input"), Tensor("index"), Tensor("source"), Bool("accumulate", False))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        if a.index.size != a.source.size:
            raise ShapeError(
                f"'source' has shape {a.source.shape}, expected {a.index.size} elements"
            )
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        y = a.input.flatten()
        index = checked_index(a.index.reshape(-1), y.size, negative=True)
        if a.accumulate:
            np.add.at(y, index, a.source.reshape(-1))
        else:
            y[index] = a.source.reshape(-1)
        return y.reshape(a.input.shape)


@record("aten::take_along_dim")
class TakeAlongDim(Overloaded):
    """``y[i][j] = x[i][index[i][j]]`` for the axis 1; the other axes broadcast.

    Source: torch.take_along_dim.
    """

    overloads = (
        (Tensor("input"), Tensor("index"), Int("dim")),
        (Tensor("input"), Tensor("index"), Int("dim", None, nullable=True)),
    )

    @staticmethod
    def _shape(a: SimpleNamespace) -> tuple[int, ...]:
        if a.dim is None:
            return (a.index.size,)
        axis = axis_of(a.dim, a.input.shape)
        if a.index.rank != a.input.rank:
            raise ShapeError(f"'index' has shape {a.index.shape}, expected rank {a.input.rank}")
        one, other = (TensorSpec(along(t.shape, axis, 1)) for t in (a.input, a.index))
        return along(broadcast(one, other), axis, a.index.shape[axis])

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(cls._shape(a), a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        x, index, axis = a.input, a.index, a.dim
        if axis is None:
            x, index, axis = x.reshape(-1), index.reshape(-1), 0
        index = checked_index(index, x.shape[axis], negative=True)
        return np.take_along_axis(x, index, axis)


# -- masks -------------------------------------------------------------------------------------


@record("Tensor.masked_fill")
class MaskedFill(NumpyRecord):
    """`value` where the mask is true, else the input.

    Source: torch.Tensor.masked_fill.
    """

    arguments = (Tensor("input"), Tensor("mask"), Tensor("value", number=True, rank=0))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(broadcast(a.input, a.mask), a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.where(a.mask, convert(a.value, a.input.dtype), a.input)


@record("aten::masked_scatter")
class MaskedScatter(NumpyRecord):
    """The input, with the elements of `source` one after the other where the mask is true.

    Source: torch.masked_scatter.
    """

    arguments = (Tensor("input"), Tensor("mask"), Tensor("source"))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(broadcast(a.input, a.mask), a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        y = np.array(np.broadcast_to(a.input, np.broadcast_shapes(a.input.shape, a.mask.shape)))
        mask = np.broadcast_to(a.mask, y.shape)
        count = np.count_nonzero(mask)
        if count > a.source.size:
            raise ShapeError(f"the mask is true {count} times, 'source' has {a.source.size}")
        y[mask] = a.source.reshape(-1)[:count]
        return y


@record("torch.where")
class Where(NumpyRecord):
    """`input` where the condition is true, else `other`; either may be a number.

    Source: torch.where.
    """

    arguments = (
        Tensor("condition"),
        Tensor("input", number=True),
        Tensor("other", number=True),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        shape = broadcast(a.condition, a.input, a.other)
        return TensorSpec(shape, result_type([a.input, a.other]))

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        dtype = result_type([a.input, a.other])
        return np.where(a.condition, convert(a.input, dtype), convert(a.other, dtype))


@record("Tensor.copy")
class Copy(Record):
    """The elements of `src`, repeated to the shape of `self` and turned into its type.

    What is written into slices of another tensor is no more of these when planning begins: see
    the pass write_views.  Source: torch.Tensor.copy_.
    """

    arguments = (Tensor("self"), Tensor("src"))

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        target = vars(a)["self"]
        _check_source(target.shape, a.src, [])
        return TensorSpec(target.shape, target.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        y = b.output()
        if a.src.dtype == y.dtype:
            b.copy(a.src.expand(y.shape), y)
        else:
            b.python(lambda x: np.broadcast_to(convert(x, y.dtype), y.shape), [a.src], [y])


@record("Tensor.fill")
class Fill(NumpyRecord):
    """A tensor of the input's shape and dtype, `value` everywhere.

    Source: torch.Tensor.fill_.
    """

    arguments = (Tensor("input"), Tensor("value", number=True, rank=0))

    @staticmethod
    def is_known(a: SimpleNamespace) -> Any:
        return is_number(a.value) or a.value.is_constant

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.full(a.input.shape, convert(a.value, a.input.dtype))


# -- writing into slices -----------------------------------------------------------------------


def _overwrite(b: Binder, x: Value, source: Value, cuts: Sequence[tuple[Any, ...]]) -> None:
    """Bind output 0 to a copy of `x` with `source` in some ranges and places.

    Nothing is copied but `source` where nobody else reads `x`.
    """
    y = b.output(layout=x, reuse=x)
    if not is_at(x, y):
        b.copy(x, y)
    place = cut_out(y, cuts)
    if source.dtype != y.dtype:
        dtype, other = y.dtype, source
        source = b.temporary(other.shape, dtype)
        b.python(lambda array: convert(array, dtype), [other], [source])
    b.copy(source.expand(place.shape), place)


def _check_source(
    shape: Sequence[int], source: TensorSpec, cuts: Sequence[tuple[Any, ...]]
) -> None:
    extents: list[int | None] = list(shape)
    for axis, cut in cuts:
        extents[axis] = len(cut) if isinstance(cut, range) else None
    place = tuple(n for n in extents if n is not None)
    try:
        fits = np.broadcast_shapes(source.shape, place) == place
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(f"'src' has shape {source.shape}, which does not fit into {place}")


@record("Tensor.slice_copy")
class SliceCopy(Record):
    """A copy of the input with another tensor in some of its ranges and places.

    The ranges are those of Tensor.slice.  Source: torch.Tensor.__setitem__, as pnnx merges it.
    """

    arguments = (Tensor("input", aliases=("self",)), Tensor("src"), *Slice.arguments[1:])
    layout = "like"

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        _check_source(a.input.shape, a.src, Slice._cuts(a))
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        _overwrite(b, a.input, a.src, Slice._cuts(a))


@record("torch.slice_scatter")
class SliceScatter(Record):
    """A copy of the input with another tensor in a range of one axis.

    Source: torch.slice_scatter.
    """

    arguments = (
        Tensor("input"),
        Tensor("src"),
        Int("dim", 0),
        Int("start", None, nullable=True),
        Int("end", None, nullable=True),
        Int("step", 1, minimum=1),
    )
    layout = "like"

    @staticmethod
    def _cuts(a: SimpleNamespace) -> Any:
        axis = axis_of(a.dim, a.input.shape)
        bounds = slice(a.start, a.end, a.step).indices(a.input.shape[axis])
        return [(axis, range(*bounds))]

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        _check_source(a.input.shape, a.src, SliceScatter._cuts(a))
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        _overwrite(b, a.input, a.src, SliceScatter._cuts(a))


@record("aten::select_scatter")
class SelectScatter(Record):
    """A copy of the input with another tensor in one place of an axis.

    Source: torch.select_scatter.
    """

    arguments = (Tensor("input"), Tensor("src"), Int("dim"), Int("index"))
    layout = "like"

    @staticmethod
    def _cuts(a: SimpleNamespace) -> Any:
        axis = axis_of(a.dim, a.input.shape)
        extent = a.input.shape[axis]
        if not -extent <= a.index < extent:
            raise ShapeError(f"index {a.index} is out of range for axis {axis} of extent {extent}")
        return [(axis, a.index % extent)]

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        _check_source(a.input.shape, a.src, SelectScatter._cuts(a))
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        _overwrite(b, a.input, a.src, SelectScatter._cuts(a))


# -- tables ------------------------------------------------------------------------------------


@record("nn.Embedding", "F.embedding")
class Embedding(NumpyRecord):
    """Rows of a table: ``y = weight[input]``.

    Source: torch.nn.Embedding.
    """

    arguments = (
        Tensor("input"),
        Tensor("weight", rank=2),
        Int("num_embeddings", None),
        Int("embedding_dim", None),
        Any_("padding_idx", None),
        Any_("max_norm", None),
        Any_("norm_type", None),
        Bool("scale_grad_by_freq", False),
        Bool("sparse", False),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        if a.input.dtype.kind not in "iu":
            raise ShapeError(f"the input is {a.input.dtype}, expected integers")
        if a.max_norm is not None:
            raise ShapeError(f"'max_norm' is {a.max_norm}, expected None")
        return TensorSpec((*a.input.shape, a.weight.shape[1]), a.weight.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return a.weight[checked_index(a.input, len(a.weight))]

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        if a.weight.is_constant and not b.output_spec().is_constant:
            # One aligned copy for all plans: tables are large.
            table = a.weight
            a.weight = b.packed(
                "table", lambda: np.require(table.constant, table.dtype, ["C", "A"])
            )
        super().bind(a, b)


@record("aten::one_hot")
class OneHot(NumpyRecord):
    """One number becomes a row of zeros with a one at its place.

    As many places as the largest number needs where `num_classes` is -1.
    Source: torch.nn.functional.one_hot.
    """

    data_dependent = True
    arguments = (Tensor("input"), Int("num_classes", -1))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        count = a.num_classes
        if count < 0:
            if not a.input.is_constant:
                raise ValuesNeeded("the number of classes depends on its input")
            if a.input.size == 0:
                raise ShapeError("'num_classes' is -1, but there is nothing to count")
            count = int(np.max(a.input.constant)) + 1
        return TensorSpec((*a.input.shape, count), np.int64)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        count = int(a.input.max()) + 1 if a.num_classes < 0 else a.num_classes
        checked_index(a.input, count)
        return a.input[..., np.newaxis] == np.arange(count)


@record("aten::embedding_bag")
class EmbeddingBag(NumpyRecord):
    """The sum, mean or maximum of the table rows of each bag.

    Bag k holds the indices from ``offsets[k]`` to ``offsets[k + 1]``; `mode` is 0 for the sum, 1
    for the mean, 2 for the maximum.  PyTorch's other three outputs serve the gradient.
    Source: torch.nn.EmbeddingBag.
    """

    arguments = (
        Tensor("weight", rank=2),
        Tensor("indices", rank=1),
        Tensor("offsets", rank=1),
        Bool("scale_grad_by_freq", False),
        Int("mode", 0),
        Bool("sparse", False),
        Tensor("per_sample_weights", optional=True),
        Bool("include_last_offset", False),
        Int("padding_idx", None, nullable=True),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> Any:
        bags, width = a.offsets.size - a.include_last_offset, a.weight.shape[1]
        return (
            TensorSpec((bags, width), a.weight.dtype),
            TensorSpec(a.indices.shape, np.int64),
            TensorSpec((bags,), np.int64),
            TensorSpec((bags, width) if a.mode == 2 else (bags,), np.int64),
        )

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        bags, width = a.offsets.size - a.include_last_offset, a.weight.shape[1]
        places = np.arange(a.indices.size)
        bag = np.searchsorted(a.offsets[:bags], places, side="right") - 1
        rows = a.weight[checked_index(a.indices, len(a.weight))]
        if a.per_sample_weights is not None:
            rows = rows * a.per_sample_weights[:, np.newaxis]
        counted = np.full(a.indices.shape, True)
        if a.padding_idx is not None:
            counted = a.indices != a.padding_idx % len(a.weight)
        sizes = np.bincount(bag[counted], minlength=bags)
        y = np.full((bags, width), -np.inf if a.mode == 2 else 0, a.weight.dtype)
        (np.maximum if a.mode == 2 else np.add).at(y, bag[counted], rows[counted])
        if a.mode == 2:
            y[sizes == 0] = 0
        if a.mode == 1:
            y /= np.maximum(sizes, 1).astype(y.dtype)[:, np.newaxis]
        largest = np.zeros((bags, width) if a.mode == 2 else bags, np.int64)
        return y, bag, sizes, largest


@record("aten::numel")
class Numel(Record):
    """The number of elements of a tensor.

    Source: torch.numel.
    """

    arguments = (Tensor("input"),)

    @staticmethod
    def infer(a: SimpleNamespace) -> Host:
        return Host(a.input.size)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        b.host(a.input.size)
