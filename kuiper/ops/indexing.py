"""Indexing: gathering, scattering, masks and writing into slices."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from kuiper._kernels.indexing import (
    EmbeddingBagStep,
    GatherStep,
    MaskedScatterStep,
    ScatterStep,
    SelectStep,
)
from kuiper._kernels.indexing import Index as KernelIndex
from kuiper._kernels.move import FillStep
from kuiper._value import TensorSpec, Value
from kuiper.errors import ShapeError
from kuiper.expression import Call, Literal, Ref
from kuiper.expression.promotion import is_number, result_type
from kuiper.ops._binder import Binder
from kuiper.ops._numpy import (
    KernelRecord,
    NumpyRecord,
    Overloaded,
    broadcast,
    checked_index,
    convert,
)
from kuiper.ops._record import Record, record
from kuiper.ops._schema import Any_, Argument, Bool, Host, Int, Scalar, Str, Tensor, ValuesNeeded
from kuiper.ops._typed import cast, write_cast
from kuiper.ops.elementwise import write_tree
from kuiper.ops.shape import Slice, axis_of, cut_out, is_at

__all__ = [
    "Embedding",
    "Gather",
    "Index",
    "IndexPut",
    "MaskedFill",
    "SliceCopy",
    "Where",
    "element_walk",
]


def along(shape: Sequence[int], axis: int, extent: int) -> tuple[int, ...]:
    """Return a shape with another extent of one axis."""
    return (*shape[:axis], extent, *shape[axis + 1 :])


# -- steps -------------------------------------------------------------------------------------

INT64 = np.dtype(np.int64)
FAULT_BYTES = 16

# What kernels join values of.
NUMBERS = (np.float32, np.float64, np.int32, np.int64)


def _integers(b: Binder, index: Any) -> Value:
    """Return indices as a kernel reads them."""
    if isinstance(index, np.ndarray):
        return b.constant(np.require(index, INT64, "C"))
    return index if index.dtype == np.int32 else cast(b, index, INT64)


def _flat(value: Value) -> Value:
    """Return a 0-d value as one with an axis."""
    return value.viewed((1,)) if value.rank == 0 else value


def _spread(value: Value, shape: Sequence[int], axes: Sequence[int]) -> Value:
    """Return a view of a value whose own axes are some of a shape's, repeated along the others."""
    strides = [0] * len(shape)
    for axis, extent, stride in zip(axes, value.shape, value.strides, strict=True):
        strides[axis] = 0 if extent == 1 else stride
    return value.with_layout(shape, strides)


class _Walk:
    """The places of a tensor that some indices name.

    Parameters
    ----------
    b : Binder
    tensor : Value
        What is read or written.
    shape : sequence of int
        Of all the places.
    kept : sequence of (int, int)
        Which axis of the shape walks along which axis of the tensor.
    negative : bool, default=False
        Whether indices may count from the end.
    """

    def __init__(
        self,
        b: Binder,
        tensor: Value,
        shape: Sequence[int],
        kept: Sequence[tuple[int, int]],
        negative: bool = False,
    ) -> None:
        self.b, self.tensor, self.shape, self.negative = b, tensor, tuple(shape), negative
        self.strides = [0] * len(self.shape)
        for axis, own in kept:
            self.strides[axis] = tensor.strides[own]
        self.lanes = [axis in dict(kept) for axis in range(len(self.shape))]
        self.indices: list[KernelIndex] = []
        self.extents: list[int] = []

    def add(self, index: Any, own: int, axes: Sequence[int]) -> None:
        """Add the index of an axis of the tensor, whose own axes are these of the shape."""
        extent = self.tensor.shape[own]
        if extent == 0:
            raise ShapeError("every index is out of range for an axis of extent 0")
        index = _spread(_integers(self.b, index), self.shape, axes)
        self.indices.append(KernelIndex(index, extent, self.tensor.strides[own], self.negative))
        self.extents.append(extent)

    def _fault(self) -> tuple[Value, str]:
        extents = " or ".join(map(str, dict.fromkeys(self.extents)))
        label = self.b.operator.label.replace("{", "{{").replace("}", "}}")
        text = f"{label}: index {{}} is out of range for an axis of extent {extents}"
        return self.b.own(FAULT_BYTES), text

    def gather(self, y: Value) -> None:
        """Read the places into a value of their shape."""
        self.b.step(GatherStep(self.tensor, y, self.strides, self.indices, *self._fault()))

    def scatter(self, source: Value, kind: str = "put") -> None:
        """Put a value at the places, or join it with what is there."""
        source = source.expand(self.shape)
        self.b.step(
            ScatterStep(
                source, self.tensor, self.strides, self.indices, self.lanes, kind, *self._fault()
            )
        )


def _copied(b: Binder, x: Value, *others: Any) -> Value:
    """Return output 0 with what the input holds; in its place, if nobody reads that any more."""
    apart = all(not isinstance(v, Value) or v.buffer is not x.buffer for v in others)
    y = b.output(reuse=x if apart else None)
    if not is_at(x, y):
        b.copy(x, y)
    return y


def _choose(b: Binder, mask: Value, one: Any, other: Any) -> None:
    """Bind output 0 to a choice between two tensors or numbers for each element of a mask."""
    spec = b.output_spec()
    if mask.dtype.itemsize != 1:
        mask = cast(b, mask, np.dtype(np.bool_))
    values = [cast(b, value, spec.dtype) for value in (one, other)]
    whole = [v for v in values if v.shape == spec.shape and v.buffer.kind != "constant"]
    reuse = next((v for v in whole if v.buffer is not mask.buffer), None)
    y = b.output(layout=whole[0] if whole else "contiguous", reuse=reuse)
    b.step(SelectStep(mask.expand(y.shape), *(v.expand(y.shape) for v in values), y))


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


def _is_unknown_mask(item: Any) -> bool:
    return _is_mask(item) and isinstance(item, Value) and item.constant is None


def _mask_length(item: Any) -> int:
    """Return how many places a mask selects."""
    values = item if isinstance(item, np.ndarray) else item.constant
    if values is None:
        raise ValuesNeeded("the shape of its result depends on a mask")
    return int(np.count_nonzero(values))


def _check_mask(number: int, mask: Any, expected: tuple[int, ...]) -> None:
    """Require a mask of the extents of the axes that it stands for."""
    if mask.shape != expected:
        raise ShapeError(f"index {number} is a mask of shape {mask.shape}, expected {expected}")


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
            _check_mask(number, item, shape[axis : axis + rank])
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


def _list_walk(b: Binder, tensor: Value, indices: Sequence[Any], shape: Sequence[int]) -> _Walk:
    """Return the walk over ``tensor[indices]``, which has this shape."""
    # Masks become the places where they are true; `places` has the axis that each index is about.
    places: list[tuple[int, Any]] = []
    gaps, axis = [], 0
    for number, item in enumerate(indices):
        if item is None:
            axis += 1
            continue
        gaps.append(number)
        found = [item]
        if _is_mask(item):
            values = item if isinstance(item, np.ndarray) else item.constant
            found = list(np.nonzero(values))
        for one in found:
            places.append((axis, one))
            axis += 1
    rank = max((len(one.shape) for _, one in places), default=0)
    indexed = {own for own, _ in places}
    kept = [own for own in range(tensor.rank) if own not in indexed]
    start = 0
    if gaps and gaps[-1] - gaps[0] + 1 == len(gaps):
        start = sum(own < places[0][0] for own in kept)
    axes = [axis for axis in range(len(shape)) if not start <= axis < start + rank]
    walk = _Walk(b, tensor, shape, list(zip(axes, kept, strict=True)), negative=True)
    for own, index in places:
        lead = rank - len(index.shape)
        walk.add(index, own, range(start + lead, start + rank))
    return walk


@record("Tensor.index")
class Index(KernelRecord):
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

    @staticmethod
    def steps(a: SimpleNamespace, b: Binder) -> None:
        y = b.output()
        _list_walk(b, a.input, a.expr, y.shape).gather(y)


def _spreads(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Tell whether what has a shape can be repeated to fill another one."""
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    return len(shape) <= len(whole) and all(n in (1, m) for n, m in pairs)


@record("Tensor.index_put")
class IndexPut(KernelRecord):
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

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        values = () if is_number(a.values) else a.values.shape
        computed = [item for item in a.indices if item is not None and _is_unknown_mask(item)]
        if computed:
            # One value for all places, or a whole slice for each: a choice; else numpy.
            mask, gaps = computed[0], len(a.indices) - 1
            rest = a.input.shape[gaps + mask.rank :]
            after = len(rest)
            if a.accumulate or a.indices != (None,) * gaps + (mask,) or not _spreads(values, rest):
                cls.in_numpy(a, b)
                return
            _check_mask(gaps, mask, a.input.shape[gaps : gaps + mask.rank])
            where = mask.reshape((*mask.shape, *(1,) * after))
            _choose(
                b,
                where or b.contiguous(mask).viewed((*mask.shape, *(1,) * after)),
                a.values,
                a.input,
            )
            return
        if a.accumulate and a.input.dtype not in NUMBERS:
            cls.in_numpy(a, b)
            return
        shape = _indexed_shape(a.input.shape, a.indices)
        if not _spreads(values, shape):
            raise ShapeError(f"'values' has shape {values}, expected one that fits {shape}")
        source = cast(b, a.values, a.input.dtype)
        y = _copied(b, a.input, source, *a.indices)
        if 0 not in shape:
            _list_walk(b, y, a.indices, shape).scatter(source, "add" if a.accumulate else "put")


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


class _AlongAxis(KernelRecord):
    """Base of the operators with one index per element, counted along an axis."""

    @staticmethod
    def _axis(a: SimpleNamespace) -> int:
        return axis_of(a.dim, a.input.shape or (1,))


@record("torch.gather")
class Gather(_AlongAxis):
    """``y[i][j] = x[i][index[i][j]]`` for the axis 1, and so on.

    Source: torch.gather.
    """

    # pnnx writes an index of one element as a number.
    arguments = (
        Tensor("input"), Int("dim"), Tensor("index", number=True), Bool("sparse_grad", False)
    )  # fmt: skip

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        index = TensorSpec((), INT64) if is_number(a.index) else a.index
        _check_index(index, a.input.shape, cls._axis(a))
        return TensorSpec(index.shape, a.input.dtype)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        x, index = np.atleast_1d(a.input), np.atleast_1d(a.index)
        axis = cls._axis(a)
        return x[_places(index, axis, x.shape[axis])].reshape(np.shape(a.index))

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        index = b.constant(np.array(a.index, INT64)) if is_number(a.index) else a.index
        element_walk(b, _flat(a.input), _flat(index), cls._axis(a)).gather(_flat(b.output()))


def element_walk(b: Binder, tensor: Value, index: Value, axis: int) -> _Walk:
    """Return the walk over the places that an index names along an axis, one per element."""
    axes = range(len(index.shape))
    walk = _Walk(b, tensor, index.shape, [(d, d) for d in axes if d != axis])
    walk.add(index, axis, axes)
    return walk


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


def _scatter(b: Binder, a: SimpleNamespace, axis: int, source: Any, kind: str = "put") -> None:
    """Bind output 0 to a copy of the input, a tensor or number put in or joined on."""
    source = cast(b, source, a.input.dtype)
    y, index = _copied(b, a.input, source, a.index), _flat(a.index)
    if index.size == 0:
        return
    source = _flat(source)
    if source.rank == index.rank:  # of what may be larger, the part that belongs to indices
        source = source.with_layout(
            [min(n, m) for n, m in zip(source.shape, index.shape, strict=True)], source.strides
        )
    element_walk(b, _flat(y), index, axis).scatter(source, kind)


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

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        if a.input.dtype in NUMBERS:
            _scatter(b, a, cls._axis(a), a.src, "add")
        else:
            cls.in_numpy(a, b)


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
class Scatter(Overloaded, KernelRecord):
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

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        kind = getattr(a, "reduce", "put")
        if kind == "put" or a.input.dtype in NUMBERS:
            _scatter(b, a, axis_of(a.dim, a.input.shape or (1,)), a.src, kind)
        else:
            cls.in_numpy(a, b)


_KERNEL_JOINS = {
    "sum": "add",
    "mean": "add",
    "prod": "multiply",
    "amax": "maximum",
    "amin": "minimum",
}


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

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        if not _has_joins(a):
            cls.in_numpy(a, b)
        elif a.index.size == 0:
            _copied(b, a.input)
        else:
            index, axis = _flat(a.index), cls._axis(a)
            source = _flat(cast(b, a.src, a.input.dtype))
            source = source.with_layout(index.shape, source.strides)
            _join(b, a, source, lambda y: element_walk(b, _flat(y), index, axis))


def _has_joins(a: SimpleNamespace) -> bool:
    """Tell whether there are kernels for what a scatter_reduce does."""
    return a.input.dtype in NUMBERS and (a.reduce != "mean" or a.input.dtype == np.float32)


def _join(b: Binder, a: SimpleNamespace, source: Value, walk: Callable[[Value], _Walk]) -> None:
    """Bind output 0 to the input with values joined at the places that `walk` makes of a tensor."""
    y = _copied(b, a.input, source, a.index)
    if not a.include_self:
        # Places that values come to begin with what changes nothing.
        neutral = _JOINS[a.reduce][1]
        if y.dtype.kind in "iu" and math.isinf(neutral):
            limits = np.iinfo(y.dtype)
            neutral = limits.min if neutral < 0 else limits.max
        walk(y).scatter(_flat(b.constant(np.full((), neutral, y.dtype))))
    walk(y).scatter(source, _KERNEL_JOINS[a.reduce])
    if a.reduce == "mean":
        counts = b.temporary(y.shape)
        b.step(FillStep(counts, int(a.include_self)))
        walk(counts).scatter(_flat(b.constant(np.ones((), np.float32))), "add")
        mean = Call("div", [Ref(0), Call("max", [Ref(1), Literal(1.0)])])
        write_tree(b, mean, [y, counts], y)


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

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        if not _has_joins(a):
            cls.in_numpy(a, b)
            return
        axis = axis_of(a.dim, a.input.shape or (1,))
        shape = along(a.input.shape or (1,), axis, a.index.size)
        if 0 in shape:
            _copied(b, a.input)
        else:
            source = _flat(cast(b, a.src, a.input.dtype))
            _join(b, a, source, lambda y: _slice_walk(b, _flat(y), axis, a.index, shape))


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

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        if a.input.rank == 0:
            b.alias(a.input)
            return
        y = b.output()
        _slice_walk(b, a.input, cls._axis(a), a.index, y.shape).gather(y)


def _slice_walk(
    b: Binder, tensor: Value, axis: int, index: Value, shape: Sequence[int], negative: bool = False
) -> _Walk:
    """Return the walk over whole slices of an axis, as an index of rank 0 or 1 lists them."""
    kept = [(d, d) for d in range(tensor.rank) if d != axis]
    walk = _Walk(b, tensor, shape, kept, negative)
    walk.add(_flat(index), axis, [axis])
    return walk


def _scatter_slices(
    b: Binder,
    x: Value,
    axis: int,
    index: Value,
    source: Any,
    kind: str = "put",
    negative: bool = False,
) -> None:
    """Bind output 0 to a copy of a tensor, values put in or joined on at slices of an axis."""
    source = cast(b, source, x.dtype)
    y = _flat(_copied(b, x, source, index))
    shape = along(y.shape, axis, index.size)
    if 0 not in shape:
        _slice_walk(b, y, axis, index, shape, negative).scatter(_flat(source), kind)


@record("aten::index_add")
class IndexAdd(KernelRecord):
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

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        axis, source = axis_of(a.dim, a.input.shape), a.source
        if a.alpha != 1 and source.dtype == a.input.dtype == np.float32 and source.size:
            scaled = b.temporary(source.shape)
            write_tree(b, Call("mul", [Ref(0), Literal(float(a.alpha))]), [source], scaled)
            _scatter_slices(b, a.input, axis, a.index, scaled, "add")
        elif a.alpha == 1 and a.input.dtype in NUMBERS:
            _scatter_slices(b, a.input, axis, a.index, source, "add")
        else:
            cls.in_numpy(a, b)


@record("aten::index_copy")
class IndexCopy(KernelRecord):
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

    @staticmethod
    def steps(a: SimpleNamespace, b: Binder) -> None:
        _scatter_slices(b, a.input, axis_of(a.dim, a.input.shape), a.index, a.source)


@record("aten::index_fill")
class IndexFill(KernelRecord):
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
        if not is_number(a.value) and a.value.shape != ():
            raise ShapeError(f"'value' has shape {a.value.shape}, expected a number")
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        y = a.input.copy()
        rows = np.moveaxis(y, axis_of(a.dim, y.shape), 0)
        index = np.atleast_1d(a.index)
        rows[checked_index(index, len(rows), negative=True)] = convert(a.value, y.dtype)
        return y

    @staticmethod
    def steps(a: SimpleNamespace, b: Binder) -> None:
        axis = axis_of(a.dim, a.input.shape)
        _scatter_slices(b, a.input, axis, a.index, a.value, negative=True)


def _check_slices(a: SimpleNamespace) -> None:
    axis = axis_of(a.dim, a.input.shape)
    expected = along(a.input.shape, axis, a.index.size)
    if a.source.shape != expected:
        raise ShapeError(f"'source' has shape {a.source.shape}, expected {expected}")


# -- places of the flattened tensor ------------------------------------------------------------


@record("aten::take")
class Take(KernelRecord):
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

    @staticmethod
    def steps(a: SimpleNamespace, b: Binder) -> None:
        x, y = b.contiguous(a.input).viewed((a.input.size,)), b.output()
        walk = _Walk(b, x, y.shape, [], negative=True)
        walk.add(a.index, 0, range(y.rank))
        walk.gather(y)


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
        if a.source.dtype != a.input.dtype:
            raise ShapeError(f"'source' is {a.source.dtype}, expected {a.input.dtype}")
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
class TakeAlongDim(Overloaded, KernelRecord):
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

    @staticmethod
    def steps(a: SimpleNamespace, b: Binder) -> None:
        x, index, y = a.input, a.index, b.output()
        axis = 0 if a.dim is None else axis_of(a.dim, x.shape)
        if a.dim is None:
            x, index = b.contiguous(x).viewed((x.size,)), b.contiguous(index).viewed(y.shape)
        x = x.expand(along(y.shape, axis, x.shape[axis]))
        walk = _Walk(b, x, y.shape, [(d, d) for d in range(y.rank) if d != axis], negative=True)
        walk.add(index, axis, range(y.rank))
        walk.gather(y)


# -- masks -------------------------------------------------------------------------------------


@record("Tensor.masked_fill")
class MaskedFill(KernelRecord):
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

    @staticmethod
    def steps(a: SimpleNamespace, b: Binder) -> None:
        _choose(b, a.mask, a.value, a.input)


@record("aten::masked_scatter")
class MaskedScatter(KernelRecord):
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

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        out = b.output()
        y = out if out.is_contiguous else b.temporary(out.shape, out.dtype)
        b.copy(a.input.expand(y.shape), y)
        label = b.operator.label.replace("{", "{{").replace("}", "}}")
        complaint = f"{label}: the mask is true {{}} times, 'source' has {a.source.size}"
        mask = a.mask if a.mask.dtype.itemsize == 1 else cast(b, a.mask, np.dtype(np.bool_))
        mask = b.contiguous(mask.expand(y.shape))
        source = b.contiguous(cast(b, a.source, y.dtype))
        b.step(MaskedScatterStep(mask, source, y, b.own(FAULT_BYTES), complaint))
        if y is not out:
            b.copy(y, out)


@record("torch.where")
class Where(KernelRecord):
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

    @staticmethod
    def steps(a: SimpleNamespace, b: Binder) -> None:
        _choose(b, a.condition, a.input, a.other)


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
            write_cast(b, a.src, y)


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
    if source.dtype == y.dtype:
        b.copy(source.expand(place.shape), place)
    else:
        write_cast(b, source, place)


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
class Embedding(KernelRecord):
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

    @staticmethod
    def steps(a: SimpleNamespace, b: Binder) -> None:
        table = a.weight
        if table.is_constant:
            # One aligned copy for all plans: tables are large.
            table = b.packed(
                "table", lambda: np.require(a.weight.constant, a.weight.dtype, ["C", "A"])
            )
        y = b.output()
        walk = _Walk(b, table, y.shape, [(y.rank - 1, 1)])
        walk.add(a.input, 0, range(y.rank - 1))
        walk.gather(y)


@record("aten::one_hot")
class OneHot(KernelRecord):
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

    @staticmethod
    def steps(a: SimpleNamespace, b: Binder) -> None:
        y = b.output()
        b.step(FillStep(y, 0))
        axes = range(a.input.rank)
        walk = _Walk(b, y, a.input.shape, [(d, d) for d in axes])
        walk.add(a.input, a.input.rank, axes)
        walk.scatter(b.constant(np.ones((), INT64)))


@record("aten::embedding_bag")
class EmbeddingBag(KernelRecord):
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

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        used = any(operand.uses for operand in b.operator.outputs[1 : a.n_outputs])
        if a.weight.dtype != np.float32 or used or 0 in a.weight.shape:
            cls.in_numpy(a, b)
            return
        outputs = [b.output(index) for index in range(a.n_outputs)]
        if outputs[0].size == 0:
            return
        table = a.weight
        if table.is_constant:
            table = b.packed("table", lambda: np.require(a.weight.constant, np.float32, ["C", "A"]))
        rows, weights = a.weight.shape[0], a.per_sample_weights
        label = b.operator.label.replace("{", "{{").replace("}", "}}")
        complaint = f"{label}: index {{}} is out of range for an axis of extent {rows}"
        b.step(
            EmbeddingBagStep(
                b.contiguous(table), b.contiguous(cast(b, a.indices, INT64)),
                b.contiguous(cast(b, a.offsets, INT64)),
                None if weights is None else b.contiguous(weights),
                outputs[0], a.mode, -1 if a.padding_idx is None else a.padding_idx % rows,
                b.own(FAULT_BYTES), complaint,
            )
        )  # fmt: skip


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
