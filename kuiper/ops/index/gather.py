"""Gathering and scattering: one index for each element, or for each slice, along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._kernels.data.move import FillStep
from kuiper.errors import ShapeError
from kuiper.expression import Call, Literal, Ref
from kuiper.expression.promotion import is_number
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord, Overloaded, broadcast, checked_index, convert
from kuiper.ops.core.record import NoBatchRule, record
from kuiper.ops.core.schema import Bool, Int, Scalar, Str, Tensor
from kuiper.ops.core.typed import cast
from kuiper.ops.math.elementwise import write_tree
from kuiper.ops.tensor.strided import (
    INT64,
    IndexedView,
    along,
    check_index,
    copied,
    flat,
    indexed_elements,
    subscript_of,
)

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = [
    "Gather",
    "IndexAdd",
    "IndexCopy",
    "IndexFill",
    "IndexReduce",
    "IndexSelect",
    "Scatter",
    "ScatterAdd",
    "ScatterReduce",
    "TakeAlongDim",
]

_SCATTER = (Tensor("input"), Int("dim"), Tensor("index"))
_REDUCTIONS = {"add": np.add, "multiply": np.multiply}

# Each with its neutral element.
_JOINS = {
    "sum": (np.add, 0),
    "mean": (np.add, 0),
    "prod": (np.multiply, 1),
    "amax": (np.maximum, -np.inf),
    "amin": (np.minimum, np.inf),
}
_KERNEL_JOINS = {
    "sum": "add",
    "mean": "add",
    "prod": "multiply",
    "amax": "maximum",
    "amin": "minimum",
}
# The types that kernels reduce.
NUMBERS = (np.float32, np.float64, np.int32, np.int64)


def _batch_beside(c: TracedCall, *tensors: Any) -> BatchAxis:
    """Return the batch axis of tensors, which is not the indexed axis."""
    specs = [spec for spec in tensors if isinstance(spec, TensorSpec)]
    batch = c.first_batch(*specs)
    c.require(batch.axis != c.dim(c.a.dim))
    for spec in specs:
        c.spread(spec, batch)
    return batch


class _AlongAxis(KernelRecord):
    """Base of the operators with one index per element, counted along an axis."""

    @staticmethod
    def _axis(a: SimpleNamespace) -> int:
        return axis_of(a.dim, a.input.shape or (1,))


@record("torch.gather")
class Gather(_AlongAxis):
    """``y[i, j] = x[i, index[i, j]]`` for axis 1; other axes likewise.

    Source: torch.gather.

    Raises
    ------
    ShapeError
        If `dim` is no axis of the input, or `index` exceeds the input along another axis.
    """

    # pnnx writes an index of one element as a number.
    arguments = (
        Tensor("input"), Int("dim"), Tensor("index", number=True), Bool("sparse_grad", False)
    )  # fmt: skip

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        index = TensorSpec((), INT64) if is_number(a.index) else a.index
        check_index(index, a.input.shape, cls._axis(a))
        return TensorSpec(index.shape, a.input.dtype)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        x, index = np.atleast_1d(a.input), np.atleast_1d(a.index)
        axis = cls._axis(a)
        return x[subscript_of(index, axis, x.shape[axis])].reshape(np.shape(a.index))

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        index = b.constant(np.array(a.index, INT64)) if is_number(a.index) else a.index
        indexed_elements(b, flat(a.input), flat(index), cls._axis(a)).gather(flat(b.output()))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        return _batch_beside(c, c.a.input, c.a.index)


def _scattered(a: SimpleNamespace, axis: int, function: np.ufunc | None, value: Any) -> np.ndarray:
    """Return a copy of the input with `value` stored or reduced at the indices."""
    y, index = np.atleast_1d(a.input.copy()), np.atleast_1d(a.index)
    chosen = subscript_of(index, axis, y.shape[axis])
    if not is_number(value):
        value = np.atleast_1d(value)[tuple(slice(n) for n in index.shape)]
    value = convert(value, y.dtype)
    if function is None:
        y[chosen] = value
    else:
        function.at(y, chosen, value)
    return y.reshape(a.input.shape)


def _scatter(b: Binder, a: SimpleNamespace, axis: int, source: Any, kind: str = "put") -> None:
    """Bind output 0 to a copy of the input with a tensor or number stored or reduced into it."""
    source = cast(b, source, a.input.dtype)
    y, index = copied(b, a.input, source, a.index), flat(a.index)
    if index.size == 0:
        return
    source = flat(source)
    if source.rank == index.rank:  # of what may be larger, the part that belongs to indices
        source = source.with_layout(
            [min(n, m) for n, m in zip(source.shape, index.shape, strict=True)], source.strides
        )
    indexed_elements(b, flat(y), index, axis).scatter(source, kind)


@record("torch.scatter_add")
class ScatterAdd(_AlongAxis):
    """A copy of the input with ``y[i, index[i, j]] += src[i, j]`` for axis 1.

    Source: torch.scatter_add.

    Raises
    ------
    ShapeError
        If `dim` is no axis, `index` exceeds the input or `src`, or their dtypes differ.
    """

    arguments = (Tensor("input"), Int("dim"), Tensor("index"), Tensor("src"))

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        check_index(a.index, a.input.shape, cls._axis(a))
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

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        return _batch_beside(c, c.a.input, c.a.index, c.a.src)


def _check_src(a: SimpleNamespace) -> None:
    """Raise ShapeError unless `src` has a value per index, in the dtype of the input."""
    check_index(a.index, a.src.shape, -1, "src")
    if a.src.dtype != a.input.dtype:
        raise ShapeError(f"'src' is {a.src.dtype}, expected {a.input.dtype} like the input")


@record("aten::scatter")
class Scatter(Overloaded, KernelRecord):
    """A copy of the input with ``y[i, index[i, j]] = src[i, j]`` for axis 1.

    `src` may be a number; `reduce` adds or multiplies instead.  Source: torch.scatter.

    Raises
    ------
    ShapeError
        If `dim` is no axis, `index` exceeds the input or `src`, or their dtypes differ.
    """

    overloads = (
        (*_SCATTER, Tensor("src", number=True)),
        (*_SCATTER, Tensor("src", number=True), Str("reduce", tuple(_REDUCTIONS))),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        axis = axis_of(a.dim, a.input.shape or (1,))
        check_index(a.index, a.input.shape, axis)
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

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        return _batch_beside(c, c.a.input, c.a.index, c.a.src)


@record("aten::scatter_reduce")
class ScatterReduce(_AlongAxis):
    """Values of equal index reduced: their sum, product, mean, maximum or minimum.

    The input takes part if `include_self`.  Source: torch.scatter_reduce.

    Raises
    ------
    ShapeError
        If `dim` is no axis, `index` exceeds the input or `src`, or their dtypes differ.
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
            copied(b, a.input)
        else:
            index, axis = flat(a.index), cls._axis(a)
            source = flat(cast(b, a.src, a.input.dtype))
            source = source.with_layout(index.shape, source.strides)
            _join(b, a, source, lambda y: indexed_elements(b, flat(y), index, axis))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        return _batch_beside(c, c.a.input, c.a.index, c.a.src)


def _has_joins(a: SimpleNamespace) -> bool:
    """Tell whether there is a kernel for a scatter_reduce."""
    return a.input.dtype in NUMBERS and (a.reduce != "mean" or a.input.dtype == np.float32)


def _join(
    b: Binder,
    a: SimpleNamespace,
    source: TensorView,
    subscript: Callable[[TensorView], IndexedView],
) -> None:
    """Bind output 0 to the input with values reduced at the elements that `subscript` visits."""
    y = copied(b, a.input, source, a.index)
    if not a.include_self:
        # Start from the neutral element where values arrive.
        neutral = _JOINS[a.reduce][1]
        if y.dtype.kind in "iu" and math.isinf(neutral):
            limits = np.iinfo(y.dtype)
            neutral = limits.min if neutral < 0 else limits.max
        subscript(y).scatter(flat(b.constant(np.full((), neutral, y.dtype))))
    subscript(y).scatter(source, _KERNEL_JOINS[a.reduce])
    if a.reduce == "mean":
        counts = b.temporary(y.shape)
        b.step(FillStep(counts, int(a.include_self)))
        subscript(counts).scatter(flat(b.constant(np.ones((), np.float32))), "add")
        mean = Call("div", [Ref(0), Call("max", [Ref(1), Literal(1.0)])])
        write_tree(b, mean, [y, counts], y)


@record("aten::index_reduce")
class IndexReduce(ScatterReduce):
    """Slices of `source` reduced at the indices of an axis, as by scatter_reduce.

    Source: torch.index_reduce.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or `src` does not have a slice per index in the input's dtype.
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
            copied(b, a.input)
        else:
            source = flat(cast(b, a.src, a.input.dtype))
            _join(b, a, source, lambda y: _indexed_slices(b, flat(y), axis, a.index, shape))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        c.require_shared(c.a.index)
        return _batch_beside(c, c.a.input, c.a.src)


@record("torch.index_select")
class IndexSelect(_AlongAxis):
    """The slices of one axis at the indices in `index`.

    Source: torch.index_select.

    Raises
    ------
    ShapeError
        If `dim` is no axis of the input.
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
        _indexed_slices(b, a.input, cls._axis(a), a.index, y.shape).gather(y)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        c.require_shared(c.a.index)
        return _batch_beside(c, c.a.input)


def _indexed_slices(
    b: Binder,
    tensor: TensorView,
    axis: int,
    index: TensorView,
    shape: Sequence[int],
    negative: bool = False,
) -> IndexedView:
    """Return the walk over whole slices of an axis, as an index of rank 0 or 1 lists them."""
    kept = [(d, d) for d in range(tensor.rank) if d != axis]
    subscript = IndexedView(b, tensor, shape, kept, negative)
    subscript.add(flat(index), axis, [axis])
    return subscript


def _scatter_slices(
    b: Binder,
    x: TensorView,
    axis: int,
    index: TensorView,
    source: Any,
    kind: str = "put",
    negative: bool = False,
) -> None:
    """Bind output 0 to a copy of a tensor, values put in or joined on at slices of an axis."""
    source = cast(b, source, x.dtype)
    y = flat(copied(b, x, source, index))
    shape = along(y.shape, axis, index.size)
    if 0 not in shape:
        _indexed_slices(b, y, axis, index, shape, negative).scatter(flat(source), kind)


@record("aten::index_add")
class IndexAdd(KernelRecord):
    """A copy of the input with ``alpha * source`` added to the slices of an axis at `index`.

    Source: torch.index_add.

    Raises
    ------
    ShapeError
        If `dim` is no axis, `source` has no slice per index, or the dtype cannot hold `alpha`.
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
        if isinstance(a.alpha, complex) and a.input.dtype.kind != "c":
            raise ShapeError(f"'alpha' is {a.alpha}, which {a.input.dtype} cannot hold")
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

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        c.require_shared(c.a.index)
        return _batch_beside(c, c.a.input, c.a.source)


@record("aten::index_copy")
class IndexCopy(KernelRecord):
    """A copy of the input with `source` stored in the slices of an axis at `index`.

    Source: torch.index_copy.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or `source` does not have a slice per index.
    """

    arguments = (Tensor("input"), Int("dim"), Tensor("index", rank=1), Tensor("source"))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        _check_slices(a)
        return TensorSpec(a.input.shape, a.input.dtype)

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

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        c.require_shared(c.a.index)
        return _batch_beside(c, c.a.input, c.a.source)


@record("aten::index_fill")
class IndexFill(KernelRecord):
    """A copy of the input with a number stored in the slices of an axis at `index`.

    Source: torch.index_fill.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or `value` has more than one element.
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

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        c.require_shared(c.a.index)
        return _batch_beside(c, c.a.input)


def _check_slices(a: SimpleNamespace) -> None:
    axis = axis_of(a.dim, a.input.shape)
    expected = along(a.input.shape, axis, a.index.size)
    if a.source.shape != expected:
        raise ShapeError(f"'source' has shape {a.source.shape}, expected {expected}")


@record("aten::take_along_dim")
class TakeAlongDim(Overloaded, KernelRecord):
    """``y[i, j] = x[i, index[i, j]]`` for axis 1; the other axes broadcast.

    Source: torch.take_along_dim.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or `index` does not broadcast with the input.
    """

    batch = NoBatchRule("without an axis it takes elements of all members")
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
            x, index = b.contiguous(x).view((x.size,)), b.contiguous(index).view(y.shape)
        x = x.expand(along(y.shape, axis, x.shape[axis]))
        subscript = IndexedView(
            b, x, y.shape, [(d, d) for d in range(y.rank) if d != axis], negative=True
        )
        subscript.add(index, axis, range(y.rank))
        subscript.gather(y)
