"""Gathering and scattering: one index for each element, or for each slice, along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.schema import Bool, Int, Known, Scalar, Str, Tensor, schema
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

_SCATTER = schema(input=Tensor(), dim=Int(), index=Tensor(), src=Tensor(number=True))
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


class _AlongAxis(KernelRecord[T]):
    """Base of the operators with one index per element, counted along an axis."""

    def _axis(self: _AlongAxis[Any]) -> int:
        return axis_of(self.dim, self.input.shape or (1,))


@record("torch.gather")
class Gather(_AlongAxis[T]):
    """``y[i, j] = x[i, index[i, j]]`` for axis 1; other axes likewise.

    Source: torch.gather.

    Raises
    ------
    ShapeError
        If `dim` is no axis of the input, or `index` exceeds the input along another axis.
    """

    # pnnx writes an index of one element as a number.
    input: T = Tensor()
    dim: int = Int()
    index: Any = Tensor(number=True)
    sparse_grad: bool = Bool(False)

    def result(self: Gather[TensorSpec]) -> TensorSpec:
        index = TensorSpec((), INT64) if is_number(self.index) else self.index
        check_index(index, self.input.shape, self._axis())
        return TensorSpec(index.shape, self.input.dtype)

    def compute(self: Gather[np.ndarray]) -> Any:
        x, index = np.atleast_1d(self.input), np.atleast_1d(self.index)
        axis = self._axis()
        return x[subscript_of(index, axis, x.shape[axis])].reshape(np.shape(self.index))

    def steps(self: Gather[TensorView], b: Binder) -> None:
        index = b.constant(np.array(self.index, INT64)) if is_number(self.index) else self.index
        indexed_elements(b, flat(self.input), flat(index), self._axis()).gather(flat(b.output()))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        return _batch_beside(c, c.a.input, c.a.index)


def _scattered(a: Record[Any], axis: int, function: np.ufunc | None, value: Any) -> np.ndarray:
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


def _scatter(b: Binder, a: Record[Any], axis: int, source: Any, kind: str = "put") -> None:
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
class ScatterAdd(_AlongAxis[T]):
    """A copy of the input with ``y[i, index[i, j]] += src[i, j]`` for axis 1.

    Source: torch.scatter_add.

    Raises
    ------
    ShapeError
        If `dim` is no axis, `index` exceeds the input or `src`, or their dtypes differ.
    """

    input: T = Tensor()
    dim: int = Int()
    index: T = Tensor()
    src: T = Tensor()

    def result(self: ScatterAdd[TensorSpec]) -> TensorSpec:
        check_index(self.index, self.input.shape, self._axis())
        _check_src(self)
        return TensorSpec(self.input.shape, self.input.dtype)

    def compute(self: ScatterAdd[np.ndarray]) -> Any:
        return _scattered(self, self._axis(), np.add, self.src)

    def steps(self: ScatterAdd[TensorView], b: Binder) -> None:
        if self.input.dtype in NUMBERS:
            _scatter(b, self, self._axis(), self.src, "add")
        else:
            self.in_numpy(b)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        return _batch_beside(c, c.a.input, c.a.index, c.a.src)


def _check_src(a: Record[Any]) -> None:
    """Raise ShapeError unless `src` has a value per index, in the dtype of the input."""
    check_index(a.index, a.src.shape, -1, "src")
    if a.src.dtype != a.input.dtype:
        raise ShapeError(f"'src' is {a.src.dtype}, expected {a.input.dtype} like the input")


@record("aten::scatter")
class Scatter(Overloaded[T], KernelRecord[T]):
    """A copy of the input with ``y[i, index[i, j]] = src[i, j]`` for axis 1.

    `src` may be a number; `reduce` adds or multiplies instead.  Source: torch.scatter.

    Raises
    ------
    ShapeError
        If `dim` is no axis, `index` exceeds the input or `src`, or their dtypes differ.
    """

    overloads = (
        _SCATTER,
        _SCATTER + schema(reduce=Str(tuple(_REDUCTIONS))),
    )

    def result(self: Scatter[TensorSpec]) -> TensorSpec:
        axis = axis_of(self.dim, self.input.shape or (1,))
        check_index(self.index, self.input.shape, axis)
        if not is_number(self.src):
            _check_src(self)
        return TensorSpec(self.input.shape, self.input.dtype)

    def compute(self: Scatter[np.ndarray]) -> Any:
        function = _REDUCTIONS[self.reduce] if hasattr(self, "reduce") else None
        return _scattered(self, axis_of(self.dim, self.input.shape or (1,)), function, self.src)

    def steps(self: Scatter[TensorView], b: Binder) -> None:
        kind = getattr(self, "reduce", "put")
        if kind == "put" or self.input.dtype in NUMBERS:
            _scatter(b, self, axis_of(self.dim, self.input.shape or (1,)), self.src, kind)
        else:
            self.in_numpy(b)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        return _batch_beside(c, c.a.input, c.a.index, c.a.src)


@record("aten::scatter_reduce")
class ScatterReduce(_AlongAxis[T]):
    """Values of equal index reduced: their sum, product, mean, maximum or minimum.

    The input takes part if `include_self`.  Source: torch.scatter_reduce.

    Raises
    ------
    ShapeError
        If `dim` is no axis, `index` exceeds the input or `src`, or their dtypes differ.
    """

    input: T = Tensor()
    dim: int = Int()
    index: T = Tensor()
    src: T = Tensor()
    reduce: str = Str(tuple(_JOINS))
    include_self: bool = Bool(True)

    result = ScatterAdd.result

    def compute(self: ScatterReduce[np.ndarray]) -> Any:
        axis = self._axis()
        function, neutral = _JOINS[self.reduce]
        x = self.input
        if not self.include_self:
            if x.dtype.kind in "iu" and np.isinf(neutral):
                limits = np.iinfo(x.dtype)
                neutral = limits.min if neutral < 0 else limits.max
            self.input = _scattered(self, axis, None, neutral)
        y = _scattered(self, axis, function, self.src)
        if self.reduce == "mean":
            self.input = np.full(x.shape, int(self.include_self), np.int64)
            counts = np.maximum(_scattered(self, axis, np.add, 1), 1)
            y = y // counts if x.dtype.kind in "iu" else y / counts.astype(x.dtype)
        return y

    def steps(self: ScatterReduce[TensorView], b: Binder) -> None:
        if not _has_joins(self):
            self.in_numpy(b)
        elif self.index.size == 0:
            copied(b, self.input)
        else:
            index, axis = flat(self.index), self._axis()
            source = flat(cast(b, self.src, self.input.dtype))
            source = source.with_layout(index.shape, source.strides)
            _join(b, self, source, lambda y: indexed_elements(b, flat(y), index, axis))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        return _batch_beside(c, c.a.input, c.a.index, c.a.src)


def _has_joins(a: Record[Any]) -> bool:
    """Tell whether there is a kernel for a scatter_reduce."""
    return a.input.dtype in NUMBERS and (a.reduce != "mean" or a.input.dtype == np.float32)


def _join(
    b: Binder,
    a: Record[Any],
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
class IndexReduce(ScatterReduce[T]):
    """Slices of `source` reduced at the indices of an axis, as by scatter_reduce.

    Source: torch.index_reduce.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or `src` does not have a slice per index in the input's dtype.
    """

    index: T = Tensor(rank=(0, 1))
    reduce: str = Str(tuple(join for join in _JOINS if join != "sum"))

    def result(self: IndexReduce[TensorSpec]) -> TensorSpec:
        axis = axis_of(self.dim, self.input.shape or (1,))
        expected = along(self.input.shape, axis, self.index.size) if self.input.rank else ()
        if self.src.shape != expected or self.src.dtype != self.input.dtype:
            raise ShapeError(
                f"'source' is {self.src!r}, expected {TensorSpec(expected, self.input.dtype)!r}"
            )
        return TensorSpec(self.input.shape, self.input.dtype)

    def compute(self: IndexReduce[np.ndarray]) -> Any:
        if self.src.ndim:
            axis = axis_of(self.dim, self.src.shape)
            shape = [-1 if d == axis else 1 for d in range(self.src.ndim)]
            self.index = np.broadcast_to(self.index.reshape(shape), self.src.shape)
        else:
            self.index = self.index.reshape(())
        return super().compute()

    def steps(self: IndexReduce[TensorView], b: Binder) -> None:
        if not _has_joins(self):
            self.in_numpy(b)
            return
        axis = axis_of(self.dim, self.input.shape or (1,))
        shape = along(self.input.shape or (1,), axis, self.index.size)
        if 0 in shape:
            copied(b, self.input)
        else:
            source = flat(cast(b, self.src, self.input.dtype))
            _join(b, self, source, lambda y: _indexed_slices(b, flat(y), axis, self.index, shape))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        c.require_shared(c.a.index)
        return _batch_beside(c, c.a.input, c.a.src)


@record("torch.index_select")
class IndexSelect(_AlongAxis[T]):
    """The slices of one axis at the indices in `index`.

    Source: torch.index_select.

    Raises
    ------
    ShapeError
        If `dim` is no axis of the input.
    """

    input: T = Tensor()
    dim: int = Int()
    index: T = Tensor(rank=(0, 1))

    def result(self: IndexSelect[TensorSpec]) -> TensorSpec:
        shape = along(self.input.shape, self._axis(), self.index.size) if self.input.rank else ()
        return TensorSpec(shape, self.input.dtype)

    def compute(self: IndexSelect[np.ndarray]) -> Any:
        if self.input.ndim == 0:
            return self.input
        axis = self._axis()
        index = checked_index(np.atleast_1d(self.index), self.input.shape[axis])
        return np.take(self.input, index, axis)

    def steps(self: IndexSelect[TensorView], b: Binder) -> None:
        if self.input.rank == 0:
            b.alias(self.input)
            return
        y = b.output()
        _indexed_slices(b, self.input, self._axis(), self.index, y.shape).gather(y)

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
class IndexAdd(KernelRecord[T]):
    """A copy of the input with ``alpha * source`` added to the slices of an axis at `index`.

    Source: torch.index_add.

    Raises
    ------
    ShapeError
        If `dim` is no axis, `source` has no slice per index, or the dtype cannot hold `alpha`.
    """

    input: T = Tensor()
    dim: int = Int()
    index: T = Tensor(rank=1)
    source: T = Tensor()
    alpha: float = Scalar(1)

    def result(self: IndexAdd[TensorSpec]) -> TensorSpec:
        _check_slices(self)
        if isinstance(self.alpha, complex) and self.input.dtype.kind != "c":
            raise ShapeError(f"'alpha' is {self.alpha}, which {self.input.dtype} cannot hold")
        return TensorSpec(self.input.shape, self.input.dtype)

    def compute(self: IndexAdd[np.ndarray]) -> Any:
        y = self.input.copy()
        rows = np.moveaxis(y, axis_of(self.dim, y.shape), 0)
        source = np.moveaxis(self.source, axis_of(self.dim, y.shape), 0)
        np.add.at(rows, checked_index(self.index, len(rows)), convert(source * self.alpha, y.dtype))
        return y

    def steps(self: IndexAdd[TensorView], b: Binder) -> None:
        axis, source = axis_of(self.dim, self.input.shape), self.source
        if self.alpha != 1 and source.dtype == self.input.dtype == np.float32 and source.size:
            scaled = b.temporary(source.shape)
            write_tree(b, Call("mul", [Ref(0), Literal(float(self.alpha))]), [source], scaled)
            _scatter_slices(b, self.input, axis, self.index, scaled, "add")
        elif self.alpha == 1 and self.input.dtype in NUMBERS:
            _scatter_slices(b, self.input, axis, self.index, source, "add")
        else:
            self.in_numpy(b)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        c.require_shared(c.a.index)
        return _batch_beside(c, c.a.input, c.a.source)


@record("aten::index_copy")
class IndexCopy(KernelRecord[T]):
    """A copy of the input with `source` stored in the slices of an axis at `index`.

    Source: torch.index_copy.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or `source` does not have a slice per index.
    """

    input: T = Tensor()
    dim: int = Int()
    index: T = Tensor(rank=1)
    source: T = Tensor()

    def result(self: IndexCopy[TensorSpec]) -> TensorSpec:
        _check_slices(self)
        return TensorSpec(self.input.shape, self.input.dtype)

    def compute(self: IndexCopy[np.ndarray]) -> Any:
        y = self.input.copy()
        axis = axis_of(self.dim, y.shape)
        rows = np.moveaxis(y, axis, 0)
        rows[checked_index(self.index, len(rows))] = np.moveaxis(self.source, axis, 0)
        return y

    def steps(self: IndexCopy[TensorView], b: Binder) -> None:
        _scatter_slices(b, self.input, axis_of(self.dim, self.input.shape), self.index, self.source)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        c.require_shared(c.a.index)
        return _batch_beside(c, c.a.input, c.a.source)


@record("aten::index_fill")
class IndexFill(KernelRecord[T]):
    """A copy of the input with a number stored in the slices of an axis at `index`.

    Source: torch.index_fill.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or `value` has more than one element.
    """

    input: T = Tensor()
    dim: int = Int()
    index: T = Tensor(rank=(0, 1))
    value: Any = Tensor(number=True)

    def result(self: IndexFill[TensorSpec]) -> TensorSpec:
        axis_of(self.dim, self.input.shape)
        if not is_number(self.value) and self.value.shape != ():
            raise ShapeError(f"'value' has shape {self.value.shape}, expected a number")
        return TensorSpec(self.input.shape, self.input.dtype)

    def compute(self: IndexFill[np.ndarray]) -> Any:
        y = self.input.copy()
        rows = np.moveaxis(y, axis_of(self.dim, y.shape), 0)
        index = np.atleast_1d(self.index)
        rows[checked_index(index, len(rows), negative=True)] = convert(self.value, y.dtype)
        return y

    def steps(self: IndexFill[TensorView], b: Binder) -> None:
        axis = axis_of(self.dim, self.input.shape)
        _scatter_slices(b, self.input, axis, self.index, self.value, negative=True)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        c.require_shared(c.a.index)
        return _batch_beside(c, c.a.input)


def _check_slices(a: Record[Any]) -> None:
    axis = axis_of(a.dim, a.input.shape)
    expected = along(a.input.shape, axis, a.index.size)
    if a.source.shape != expected:
        raise ShapeError(f"'source' has shape {a.source.shape}, expected {expected}")


@record("aten::take_along_dim")
class TakeAlongDim(Overloaded[T], KernelRecord[T]):
    """``y[i, j] = x[i, index[i, j]]`` for axis 1; the other axes broadcast.

    Source: torch.take_along_dim.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or `index` does not broadcast with the input.
    """

    batch = NoBatchRule("without an axis it takes elements of all members")
    overloads = (
        schema(input=Tensor(), index=Tensor(), dim=Int()),
        schema(input=Tensor(), index=Tensor(), dim=Int(None, nullable=True)),
    )

    def _shape(self: TakeAlongDim[Known]) -> tuple[int, ...]:
        if self.dim is None:
            return (self.index.size,)
        axis = axis_of(self.dim, self.input.shape)
        if self.index.rank != self.input.rank:
            raise ShapeError(
                f"'index' has shape {self.index.shape}, expected rank {self.input.rank}"
            )
        one, other = (TensorSpec(along(t.shape, axis, 1)) for t in (self.input, self.index))
        return along(broadcast(one, other), axis, self.index.shape[axis])

    def result(self: TakeAlongDim[TensorSpec]) -> TensorSpec:
        return TensorSpec(self._shape(), self.input.dtype)

    def compute(self: TakeAlongDim[np.ndarray]) -> Any:
        x, index, axis = self.input, self.index, self.dim
        if axis is None:
            x, index, axis = x.reshape(-1), index.reshape(-1), 0
        index = checked_index(index, x.shape[axis], negative=True)
        return np.take_along_axis(x, index, axis)

    def steps(self: TakeAlongDim[TensorView], b: Binder) -> None:
        x, index, y = self.input, self.index, b.output()
        axis = 0 if self.dim is None else axis_of(self.dim, x.shape)
        if self.dim is None:
            x, index = b.contiguous(x).view((x.size,)), b.contiguous(index).view(y.shape)
        x = x.expand(along(y.shape, axis, x.shape[axis]))
        subscript = IndexedView(
            b, x, y.shape, [(d, d) for d in range(y.rank) if d != axis], negative=True
        )
        subscript.add(index, axis, range(y.rank))
        subscript.gather(y)
