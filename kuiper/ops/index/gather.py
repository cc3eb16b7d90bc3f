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
from kuiper.ops.core.record import NoBatchRule, T, record
from kuiper.ops.core.schema import Bool, Int, Known, Scalar, Str, Tensor, schema
from kuiper.ops.core.typed import cast
from kuiper.ops.math.elementwise import computed, write_tree
from kuiper.ops.tensor.strided import (
    INT64,
    NUMBERS,
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

__all__ = ["Gather", "IndexSelect", "Scatter", "ScatterAdd", "ScatterReduce", "TakeAlongDim"]

# The reductions of scatter: numpy's function, the kernel's name, the neutral element.
_REDUCTIONS = {
    "sum": (np.add, "add", 0),
    "mean": (np.add, "add", 0),
    "prod": (np.multiply, "multiply", 1),
    "amax": (np.maximum, "maximum", -math.inf),
    "amin": (np.minimum, "minimum", math.inf),
}


def _batch_beside(c: TracedCall, specs: Sequence[TensorSpec]) -> BatchAxis:
    """Return the batch axis of tensors, which must not be the indexed axis."""
    batch = c.first_batch(*specs)
    c.require(batch.axis != c.dim(c.a.dim))
    for spec in specs:
        c.spread(spec, batch)
    return batch


class _AlongAxis(KernelRecord[T]):
    """Base of the operators with indices along an axis."""

    input: T
    index: T
    dim: int

    def axis(self: _AlongAxis[Any]) -> int:
        return axis_of(self.dim, self.input.shape or (1,))


# -- one index for each element ----------------------------------------------------------------


class _Elements(_AlongAxis[T]):
    """Base of the operators with one index for each element."""

    src: Any

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        return _batch_beside(c, c.tensors)

    def result(self: _Elements[TensorSpec]) -> TensorSpec:
        """Return the spec of a copy of the input that takes the values of `src`."""
        index, x, src = self.index, self.input, self.src
        check_index(index, x.shape, self.axis())
        if not is_number(src):
            check_index(index, src.shape, -1, "src")
            if src.dtype != x.dtype:
                raise ShapeError(f"'src' is {src.dtype}, expected {x.dtype} like the input")
        return TensorSpec(x.shape, x.dtype)

    def scattered(
        self: _Elements[np.ndarray], x: np.ndarray, function: np.ufunc | None, value: Any
    ) -> np.ndarray:
        """Return a copy of `x` with `value` stored or reduced at the indices."""
        y, index, axis = np.atleast_1d(x.copy()), np.atleast_1d(self.index), self.axis()
        chosen = subscript_of(index, axis, y.shape[axis])
        if not is_number(value):
            value = np.atleast_1d(value)[tuple(slice(n) for n in index.shape)]
        value = convert(value, y.dtype)
        if function is None:
            y[chosen] = value
        else:
            function.at(y, chosen, value)
        return y.reshape(x.shape)


@record("torch.gather")
class Gather(_Elements[T]):
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
        check_index(index, self.input.shape, self.axis())
        return TensorSpec(index.shape, self.input.dtype)

    def compute(self: Gather[np.ndarray]) -> Any:
        x, index = np.atleast_1d(self.input), np.atleast_1d(self.index)
        axis = self.axis()
        return x[subscript_of(index, axis, x.shape[axis])].reshape(np.shape(self.index))

    def steps(self: Gather[TensorView], b: Binder) -> None:
        index = b.constant(np.array(self.index, INT64)) if is_number(self.index) else self.index
        indexed_elements(b, flat(self.input), flat(index), self.axis()).gather(flat(b.output()))


class _Scatter(_Elements[T]):
    """Base of the operators that store, add or multiply a source into a copy of the input."""

    reduce = "put"

    def compute(self: _Scatter[np.ndarray]) -> Any:
        function = {"put": None, "add": np.add, "multiply": np.multiply}[self.reduce]
        return self.scattered(self.input, function, self.src)

    def steps(self: _Scatter[TensorView], b: Binder) -> None:
        if self.reduce != "put" and self.input.dtype not in NUMBERS:
            self.in_numpy(b)
            return
        source = cast(b, self.src, self.input.dtype)
        y, index = copied(b, self.input, source, self.index), flat(self.index)
        if index.size == 0:
            return
        source = flat(source)
        if source.rank == index.rank:  # the source may exceed the indices
            shape = [min(n, m) for n, m in zip(source.shape, index.shape, strict=True)]
            source = source.with_layout(shape, source.strides)
        indexed_elements(b, flat(y), index, self.axis()).scatter(source, self.reduce)


@record("torch.scatter_add")
class ScatterAdd(_Scatter[T]):
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
    reduce = "add"


_SCATTER = schema(input=Tensor(), dim=Int(), index=Tensor(), src=Tensor(number=True))


@record("aten::scatter")
class Scatter(Overloaded[T], _Scatter[T]):
    """A copy of the input with ``y[i, index[i, j]] = src[i, j]`` for axis 1.

    `src` may be a number; `reduce` adds or multiplies instead.  Source: torch.scatter.

    Raises
    ------
    ShapeError
        If `dim` is no axis, `index` exceeds the input or `src`, or their dtypes differ.
    """

    overloads = (_SCATTER, _SCATTER + schema(reduce=Str(("add", "multiply"))))


@record("aten::scatter_reduce")
class ScatterReduce(_Elements[T]):
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
    reduce: str = Str(tuple(_REDUCTIONS))
    include_self: bool = Bool(True)

    def neutral(self: ScatterReduce[Any]) -> Any:
        """Return the neutral element of the reduction in the dtype of the input."""
        value, dtype = _REDUCTIONS[self.reduce][2], self.input.dtype
        if dtype.kind in "iu" and math.isinf(value):
            limits = np.iinfo(dtype)
            return limits.min if value < 0 else limits.max
        return value

    def compute(self: ScatterReduce[np.ndarray]) -> Any:
        x = self.input
        start = x if self.include_self else self.scattered(x, None, self.neutral())
        y = self.scattered(start, _REDUCTIONS[self.reduce][0], self.src)
        if self.reduce == "mean":
            ones = np.full(x.shape, int(self.include_self), np.int64)
            counts = np.maximum(self.scattered(ones, np.add, 1), 1)
            y = y // counts if x.dtype.kind in "iu" else y / counts.astype(x.dtype)
        return y

    def has_kernel(self: ScatterReduce[TensorView]) -> bool:
        dtype = self.input.dtype
        return dtype in NUMBERS and (self.reduce != "mean" or dtype == np.float32)

    def steps(self: ScatterReduce[TensorView], b: Binder) -> None:
        if not self.has_kernel():
            self.in_numpy(b)
        elif self.index.size == 0:
            copied(b, self.input)
        else:
            index, axis = flat(self.index), self.axis()
            source = flat(cast(b, self.src, self.input.dtype))
            source = source.with_layout(index.shape, source.strides)
            self.reduce_into(b, source, lambda y: indexed_elements(b, flat(y), index, axis))

    def reduce_into(
        self: ScatterReduce[TensorView],
        b: Binder,
        source: TensorView,
        indexed: Callable[[TensorView], IndexedView],
    ) -> None:
        """Bind output 0 to a copy of the input with `source` reduced into its indexed elements."""
        y = copied(b, self.input, source, self.index)
        if not self.include_self:
            indexed(y).scatter(flat(b.constant(np.full((), self.neutral(), y.dtype))))
        indexed(y).scatter(source, _REDUCTIONS[self.reduce][1])
        if self.reduce == "mean":
            counts = b.temporary(y.shape)
            b.step(FillStep(counts, int(self.include_self)))
            indexed(counts).scatter(flat(b.constant(np.ones((), np.float32))), "add")
            mean = Call("div", [Ref(0), Call("max", [Ref(1), Literal(1.0)])])
            write_tree(b, mean, [y, counts], y)


# -- one index for each slice ------------------------------------------------------------------


def _batch_of_slices(c: TracedCall) -> BatchAxis:
    """Return the batch axis where all members share the index of the slices."""
    index = c.a.index
    c.require_shared(index)
    rank = c.a.input.rank
    return _batch_beside(c, [spec for spec in c.tensors if spec is not index and spec.rank == rank])


def _indexed_slices(
    b: Binder,
    tensor: TensorView,
    axis: int,
    index: TensorView,
    shape: Sequence[int],
    negative: bool = False,
) -> IndexedView:
    """Return the view of the slices of an axis that an index of rank 0 or 1 selects."""
    kept = [(d, d) for d in range(tensor.rank) if d != axis]
    subscript = IndexedView(b, tensor, shape, kept, negative)
    subscript.add(flat(index), axis, [axis])
    return subscript


@record("aten::index_reduce")
class IndexReduce(ScatterReduce[T]):
    """Slices of `source` reduced at the indices of an axis, as by scatter_reduce.

    Source: torch.index_reduce.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or `src` does not have a slice per index in the input's dtype.
    """

    batch = staticmethod(_batch_of_slices)
    index: T = Tensor(rank=(0, 1))
    reduce: str = Str(tuple(word for word in _REDUCTIONS if word != "sum"))

    def result(self: IndexReduce[TensorSpec]) -> TensorSpec:
        axis = self.axis()
        expected = along(self.input.shape, axis, self.index.size) if self.input.rank else ()
        if self.src.shape != expected or self.src.dtype != self.input.dtype:
            raise ShapeError(
                f"'source' is {self.src!r}, expected {TensorSpec(expected, self.input.dtype)!r}"
            )
        return TensorSpec(self.input.shape, self.input.dtype)

    def compute(self: IndexReduce[np.ndarray]) -> Any:
        shape = self.src.shape
        if shape:
            axis = axis_of(self.dim, shape)
            index = self.index.reshape([-1 if d == axis else 1 for d in range(len(shape))])
            self.index = np.broadcast_to(index, shape)
        else:
            self.index = self.index.reshape(())
        return super().compute()

    def steps(self: IndexReduce[TensorView], b: Binder) -> None:
        if not self.has_kernel():
            self.in_numpy(b)
            return
        axis = self.axis()
        shape = along(self.input.shape or (1,), axis, self.index.size)
        if 0 in shape:
            copied(b, self.input)
            return
        source = flat(cast(b, self.src, self.input.dtype))
        self.reduce_into(b, source, lambda y: _indexed_slices(b, flat(y), axis, self.index, shape))


@record("torch.index_select")
class IndexSelect(_AlongAxis[T]):
    """The slices of one axis at the indices in `index`.

    Source: torch.index_select.

    Raises
    ------
    ShapeError
        If `dim` is no axis of the input.
    """

    batch = staticmethod(_batch_of_slices)
    input: T = Tensor()
    dim: int = Int()
    index: T = Tensor(rank=(0, 1))

    def result(self: IndexSelect[TensorSpec]) -> TensorSpec:
        shape = along(self.input.shape, self.axis(), self.index.size) if self.input.rank else ()
        return TensorSpec(shape, self.input.dtype)

    def compute(self: IndexSelect[np.ndarray]) -> Any:
        if self.input.ndim == 0:
            return self.input
        axis = self.axis()
        index = checked_index(np.atleast_1d(self.index), self.input.shape[axis])
        return np.take(self.input, index, axis)

    def steps(self: IndexSelect[TensorView], b: Binder) -> None:
        if self.input.rank == 0:
            b.alias(self.input)
            return
        y = b.output()
        _indexed_slices(b, self.input, self.axis(), self.index, y.shape).gather(y)


class _WrittenSlices(_AlongAxis[T]):
    """Base of the operators that write to slices of a copy of the input."""

    batch = staticmethod(_batch_of_slices)
    negative = False  # whether indices may count from the end
    source: Any

    def axis(self: _WrittenSlices[Any]) -> int:
        return axis_of(self.dim, self.input.shape)

    def result(self: _WrittenSlices[TensorSpec]) -> TensorSpec:
        expected = along(self.input.shape, self.axis(), self.index.size)
        if self.source.shape != expected:
            raise ShapeError(f"'source' has shape {self.source.shape}, expected {expected}")
        return TensorSpec(self.input.shape, self.input.dtype)

    def write(self: _WrittenSlices[np.ndarray], slices: np.ndarray, index: np.ndarray) -> None:
        """Write to the slices, which lie along the first axis."""
        raise NotImplementedError

    def compute(self: _WrittenSlices[np.ndarray]) -> Any:
        y = self.input.copy()
        slices = np.moveaxis(y, self.axis(), 0)
        self.write(slices, checked_index(np.atleast_1d(self.index), len(slices), self.negative))
        return y

    def scatter(
        self: _WrittenSlices[TensorView], b: Binder, source: Any, kind: str = "put"
    ) -> None:
        """Bind output 0 to a copy of the input with values stored or reduced into the slices."""
        source = cast(b, source, self.input.dtype)
        y = flat(copied(b, self.input, source, self.index))
        axis = self.axis()
        shape = along(y.shape, axis, self.index.size)
        if 0 not in shape:
            subscript = _indexed_slices(b, y, axis, self.index, shape, self.negative)
            subscript.scatter(flat(source), kind)


@record("aten::index_add")
class IndexAdd(_WrittenSlices[T]):
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
        if isinstance(self.alpha, complex) and self.input.dtype.kind != "c":
            raise ShapeError(f"'alpha' is {self.alpha}, which {self.input.dtype} cannot hold")
        return super().result()

    def write(self: IndexAdd[np.ndarray], slices: np.ndarray, index: np.ndarray) -> None:
        source = np.moveaxis(self.source * self.alpha, self.axis(), 0)
        np.add.at(slices, index, convert(source, slices.dtype))

    def steps(self: IndexAdd[TensorView], b: Binder) -> None:
        source = self.source
        if self.alpha != 1 and source.dtype == self.input.dtype == np.float32 and source.size:
            scale = Call("mul", [Ref(0), Literal(float(self.alpha))])
            self.scatter(b, computed(b, scale, [source]), "add")
        elif self.alpha == 1 and self.input.dtype in NUMBERS:
            self.scatter(b, source, "add")
        else:
            self.in_numpy(b)


@record("aten::index_copy")
class IndexCopy(_WrittenSlices[T]):
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

    def write(self: IndexCopy[np.ndarray], slices: np.ndarray, index: np.ndarray) -> None:
        slices[index] = np.moveaxis(self.source, self.axis(), 0)

    def steps(self: IndexCopy[TensorView], b: Binder) -> None:
        self.scatter(b, self.source)


@record("aten::index_fill")
class IndexFill(_WrittenSlices[T]):
    """A copy of the input with a number stored in the slices of an axis at `index`.

    Source: torch.index_fill.

    Raises
    ------
    ShapeError
        If `dim` is no axis, or `value` has more than one element.
    """

    negative = True
    input: T = Tensor()
    dim: int = Int()
    index: T = Tensor(rank=(0, 1))
    value: Any = Tensor(number=True)

    def result(self: IndexFill[TensorSpec]) -> TensorSpec:
        self.axis()
        if not is_number(self.value) and self.value.shape != ():
            raise ShapeError(f"'value' has shape {self.value.shape}, expected a number")
        return TensorSpec(self.input.shape, self.input.dtype)

    def write(self: IndexFill[np.ndarray], slices: np.ndarray, index: np.ndarray) -> None:
        slices[index] = convert(self.value, slices.dtype)

    def steps(self: IndexFill[TensorView], b: Binder) -> None:
        self.scatter(b, self.value)


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
    input: T
    index: T
    dim: int | None

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
        return np.take_along_axis(x, checked_index(index, x.shape[axis], negative=True), axis)

    def steps(self: TakeAlongDim[TensorView], b: Binder) -> None:
        x, index, y = self.input, self.index, b.output()
        axis = 0 if self.dim is None else axis_of(self.dim, x.shape)
        if self.dim is None:
            x, index = b.contiguous(x).view((x.size,)), b.contiguous(index).view(y.shape)
        x = x.expand(along(y.shape, axis, x.shape[axis]))
        kept = [(d, d) for d in range(y.rank) if d != axis]
        subscript = IndexedView(b, x, y.shape, kept, negative=True)
        subscript.add(index, axis, range(y.rank))
        subscript.gather(y)
