"""Triangles and diagonals of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kuiper._kernels.data.indexing import TriangleStep
from kuiper._kernels.data.move import FillStep
from kuiper.errors import ShapeError
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.axes import axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.rows import bind_reduction
from kuiper.ops.core.schema import Int, Known, Tensor

__all__ = ["Diag", "Diagonal", "Triangle"]


class Triangle(KernelRecord[T]):
    """Base of the upper and lower triangle."""

    batch = "last_two_axes"
    input: T = Tensor()
    diagonal: int = Int(0)
    function: Callable[..., Any]
    upper: bool

    def result(self: Triangle[TensorSpec]) -> TensorSpec:
        if self.input.rank < 2:
            raise ShapeError(f"the input has shape {self.input.shape}, expected two axes or more")
        return TensorSpec(self.input.shape, self.input.dtype)

    def compute(self: Triangle[np.ndarray]) -> Any:
        return type(self).function(self.input, self.diagonal)

    def steps(self: Triangle[TensorView], b: Binder) -> None:
        x = b.contiguous(self.input)
        b.step(TriangleStep(x, b.output(reuse=x), self.diagonal, self.upper))


@record("aten::triu")
class Triu(Triangle[T]):
    """The elements on and above a diagonal of each matrix; the others become 0.

    Source: torch.triu.
    """

    function = staticmethod(np.triu)
    upper = True


@record("aten::tril")
class Tril(Triangle[T]):
    """The elements on and below a diagonal of each matrix; the others become 0.

    Source: torch.tril.
    """

    function = staticmethod(np.tril)
    upper = False


def _view(x: TensorView, offset: int, first: int, second: int) -> TensorView:
    """Return a view of a nonempty diagonal, its elements along the last axis."""
    rest = [d for d in range(x.rank) if d not in (first, second)]
    start = offset * x.strides[second] if offset >= 0 else -offset * x.strides[first]
    return x.with_layout(
        (*(x.shape[d] for d in rest), _length(x.shape, offset, first, second)),
        (*(x.strides[d] for d in rest), x.strides[first] + x.strides[second]),
        start,
    )


def _length(shape: Sequence[int], offset: int, first: int, second: int) -> int:
    return max(0, min(shape[first] + min(offset, 0), shape[second] - max(offset, 0)))


@record("aten::diagonal", "aten::diagonal_copy", "aten::linalg_diagonal")
class Diagonal(Record[T]):
    """A diagonal of two axes, as the last axis of the result.

    Source: torch.diagonal.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    input: T = Tensor()
    offset: int = Int(0)
    dim1: int = Int(0)
    dim2: int = Int(1)
    layout = Layout.VIEW

    def axes(self: Diagonal[Known], shape: Sequence[int]) -> tuple[int, int]:
        """Return the two axes, counted from the front of `shape`."""
        axes = axis_of(self.dim1, shape, "dim1"), axis_of(self.dim2, shape, "dim2")
        if axes[0] == axes[1]:
            raise ShapeError(f"'dim1' and 'dim2' are both axis {axes[0]}, expected two axes")
        return axes

    def infer(self: Diagonal[TensorSpec]) -> TensorSpec:
        shape = self.input.shape
        axes = self.axes(shape)
        rest = [n for d, n in enumerate(shape) if d not in axes]
        return TensorSpec((*rest, _length(shape, self.offset, *axes)), self.input.dtype)

    def bind(self: Diagonal[TensorView], b: Binder) -> None:
        if b.output_spec().size == 0:
            b.output()
        else:
            b.alias(_view(self.input, self.offset, *self.axes(self.input.shape)))


@record("aten::diagonal_scatter")
class DiagonalScatter(Diagonal[T], ahead=True):
    """A copy of the input with another tensor on a diagonal of two axes.

    Source: torch.diagonal_scatter.
    """

    input: T = Tensor()
    src: T = Tensor()
    layout = Layout.CONTIGUOUS

    def infer(self: DiagonalScatter[TensorSpec]) -> TensorSpec:
        expected = super().infer()
        if self.src.shape != expected.shape or self.src.dtype != expected.dtype:
            raise ShapeError(f"'src' is {self.src!r}, expected {expected!r}")
        return TensorSpec(self.input.shape, self.input.dtype)

    def bind(self: DiagonalScatter[TensorView], b: Binder) -> None:
        y = b.output()
        b.copy(self.input, y)
        if self.src.size:
            b.copy(self.src, _view(y, self.offset, *self.axes(y.shape)))


@record("aten::diag_embed")
class DiagEmbed(Diagonal[T]):
    """Matrices of zeros whose diagonals are the last axis of the input.

    Source: torch.diag_embed.
    """

    dim1: int = Int(-2)
    dim2: int = Int(-1)
    layout = Layout.CONTIGUOUS

    def infer(self: DiagEmbed[TensorSpec]) -> TensorSpec:
        if self.input.rank == 0:
            raise ShapeError("the input is a 0-d tensor, expected one axis or more")
        rank, extent = self.input.rank + 1, self.input.shape[-1] + abs(self.offset)
        axes, rest = self.axes((1,) * rank), iter(self.input.shape[:-1])
        shape = [extent if d in axes else next(rest) for d in range(rank)]
        return TensorSpec(shape, self.input.dtype)

    def bind(self: DiagEmbed[TensorView], b: Binder) -> None:
        y = b.output()
        if y.size:
            b.step(FillStep(y, 0))
        if self.input.size:
            b.copy(self.input, _view(y, self.offset, *self.axes(y.shape)))


@record("torch.diag")
class Diag(Record[T]):
    """A matrix with a vector as its diagonal, or the diagonal of a matrix.

    Source: torch.diag.
    """

    batch = NoBatchRule("it takes or makes one matrix")
    input: T = Tensor(rank=(1, 2))
    diagonal: int = Int(0)

    def _as(self: Diag[Known]) -> Record[Any]:
        if self.input.rank == 2:
            return Diagonal(input=self.input, offset=self.diagonal, dim1=0, dim2=1)
        return DiagEmbed(input=self.input, offset=self.diagonal, dim1=-2, dim2=-1)

    def infer(self: Diag[TensorSpec]) -> Any:
        return self._as().infer()

    def bind(self: Diag[TensorView], b: Binder) -> None:
        self._as().bind(b)


@record("aten::diagflat")
class DiagFlat(KernelRecord[T]):
    """A matrix of zeros whose diagonal holds all elements of the input.

    Source: torch.diagflat.
    """

    batch = NoBatchRule("it makes one matrix of all members")
    input: T = Tensor()
    offset: int = Int(0)

    def result(self: DiagFlat[TensorSpec]) -> TensorSpec:
        return TensorSpec((self.input.size + abs(self.offset),) * 2, self.input.dtype)

    def compute(self: DiagFlat[np.ndarray]) -> Any:
        return np.diagflat(self.input, self.offset)

    def steps(self: DiagFlat[TensorView], b: Binder) -> None:
        x = b.contiguous(self.input).view((self.input.size,))
        DiagEmbed(input=x, offset=self.offset, dim1=0, dim2=1).bind(b)


@record("aten::trace")
class Trace(KernelRecord[T]):
    """The sum of the main diagonal.

    Source: torch.trace.
    """

    batch = NoBatchRule("it adds up one matrix")
    input: T = Tensor(rank=2)

    def result(self: Trace[Any]) -> TensorSpec:
        dtype = self.input.dtype
        return TensorSpec((), np.int64 if dtype.kind in "biu" else dtype)

    def compute(self: Trace[np.ndarray]) -> Any:
        return np.trace(self.input, dtype=self.result().dtype)

    def steps(self: Trace[TensorView], b: Binder) -> None:
        if self.input.dtype != np.float32 or self.input.size == 0:
            self.in_numpy(b)
        else:
            bind_reduction(b, _view(self.input, 0, 0, 1), (0,), False, "sum")
