"""Matrices: triangles and diagonals, sums with products, norms and powers."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._kernels.data.indexing import TriangleStep
from kuiper._kernels.data.move import FillStep
from kuiper._kernels.elementwise import elementwise
from kuiper.errors import ShapeError
from kuiper.expression import Call, Literal, Node, Ref, fold
from kuiper.expression.promotion import result_type
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import axes_of, axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord, NumpyRecord, broadcast, convert
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.rows import bind_reduction
from kuiper.ops.core.schema import AnyArgument, Bool, Int, Ints, Known, Scalar, Tensor
from kuiper.ops.math.elementwise import write_tree
from kuiper.ops.math.reduce import Norm, norm_of
from kuiper.ops.product.linear import product

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["AddMM", "Cross", "Diag", "Diagonal", "Triangle"]


# -- triangles and diagonals -------------------------------------------------------------------


class Triangle(KernelRecord[T]):
    """Base of the two triangles."""

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
    """Matrices with zeros below a diagonal.

    Source: torch.triu.
    """

    function = staticmethod(np.triu)
    upper = True


@record("aten::tril")
class Tril(Triangle[T]):
    """Matrices with zeros above a diagonal.

    Source: torch.tril.
    """

    function = staticmethod(np.tril)
    upper = False


def _diagonal(x: TensorView, offset: int, first: int, second: int) -> TensorView:
    """Return the view of a diagonal, as a last axis; it must not be empty."""
    rest = [d for d in range(x.rank) if d not in (first, second)]
    start = offset * x.strides[second] if offset >= 0 else -offset * x.strides[first]
    return x.with_layout(
        (*(x.shape[d] for d in rest), _diagonal_length(x.shape, offset, first, second)),
        (*(x.strides[d] for d in rest), x.strides[first] + x.strides[second]),
        start,
    )


def _diagonal_length(shape: Any, offset: int, first: int, second: int) -> int:
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
    layout = "view"

    def axes(self: Diagonal[Known]) -> tuple[int, int]:
        shape = self.input.shape
        axes = axis_of(self.dim1, shape, "dim1"), axis_of(self.dim2, shape, "dim2")
        if axes[0] == axes[1]:
            raise ShapeError(f"'dim1' and 'dim2' are both axis {axes[0]}, expected two axes")
        return axes

    def infer(self: Diagonal[TensorSpec]) -> TensorSpec:
        axes = self.axes()
        rest = [n for d, n in enumerate(self.input.shape) if d not in axes]
        length = _diagonal_length(self.input.shape, self.offset, *axes)
        return TensorSpec((*rest, length), self.input.dtype)

    def bind(self: Diagonal[TensorView], b: Binder) -> None:
        if b.output_spec().size == 0:
            b.output()
        else:
            b.alias(_diagonal(self.input, self.offset, *self.axes()))


@record("aten::diagonal_scatter")
class DiagonalScatter(Record[T]):
    """A copy of the input with another tensor on a diagonal of two axes.

    Source: torch.diagonal_scatter.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    input: T = Tensor()
    src: T = Tensor()
    offset: int = Int(0)
    dim1: int = Int(0)
    dim2: int = Int(1)

    def infer(self: DiagonalScatter[TensorSpec]) -> TensorSpec:
        expected = Diagonal[TensorSpec](**vars(self)).infer().shape
        if self.src.shape != expected or self.src.dtype != self.input.dtype:
            raise ShapeError(
                f"'src' is {self.src!r}, expected {TensorSpec(expected, self.input.dtype)!r}"
            )
        return TensorSpec(self.input.shape, self.input.dtype)

    def bind(self: DiagonalScatter[TensorView], b: Binder) -> None:
        y = b.output()
        b.copy(self.input, y)
        if self.src.size:
            b.copy(self.src, _diagonal(y, self.offset, *Diagonal[TensorView](**vars(self)).axes()))


@record("aten::diag_embed")
class DiagEmbed(Record[T]):
    """Matrices of zeros whose diagonals are the last axis of the input.

    Source: torch.diag_embed.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    input: T = Tensor()
    offset: int = Int(0)
    dim1: int = Int(-2)
    dim2: int = Int(-1)

    def infer(self: DiagEmbed[TensorSpec]) -> TensorSpec:
        if self.input.rank == 0:
            raise ShapeError("the input is a 0-d tensor, expected one axis or more")
        rank, extent = self.input.rank + 1, self.input.shape[-1] + abs(self.offset)
        places: Diagonal[TensorSpec] = Diagonal(
            input=TensorSpec((1,) * rank), dim1=self.dim1, dim2=self.dim2
        )
        first, second = places.axes()
        rest = iter(self.input.shape[:-1])
        return TensorSpec(
            [extent if d in (first, second) else next(rest) for d in range(rank)], self.input.dtype
        )

    def bind(self: DiagEmbed[TensorView], b: Binder) -> None:
        y = b.output()
        if y.size == 0:
            return
        b.step(FillStep(y, 0))
        if self.input.size:
            b.copy(self.input, _diagonal(y, self.offset, self.dim1 % y.rank, self.dim2 % y.rank))


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
    """A matrix whose diagonal has all elements of the input.

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
        y = b.output()
        if y.size:
            b.step(FillStep(y, 0))
        if self.input.size:
            x = b.contiguous(self.input).view((self.input.size,))
            b.copy(x, _diagonal(y, self.offset, 0, 1))


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
            bind_reduction(b, _diagonal(self.input, 0, 0, 1), (0,), False, "sum")


# -- sums with products ------------------------------------------------------------------------


class _SumWithProduct(Record[T]):
    """``beta * input + alpha * (first @ second)``; with a beta of 0 the input does not count."""

    names = ("mat1", "mat2")

    def _factors(self: _SumWithProduct[Known]) -> Any:
        return (getattr(self, name) for name in self.names)

    def infer(self: _SumWithProduct[TensorSpec]) -> TensorSpec:
        x, y = self._factors()
        if x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-2]:
            raise ShapeError(f"cannot multiply {x.shape} by {y.shape}")
        if not self.input.dtype == x.dtype == y.dtype:
            raise ShapeError(
                f"its tensors are {self.input.dtype}, {x.dtype} and {y.dtype}, expected one dtype"
            )
        shape = (*x.shape[:-1], y.shape[-1])
        if self.input.rank > len(shape) or broadcast(self.input, TensorSpec(shape)) != shape:
            raise ShapeError(f"the input has shape {self.input.shape}, which does not fit {shape}")
        for name in ("alpha", "beta") if x.dtype.kind != "c" else ():
            value = getattr(self, name)
            try:
                x.dtype.type(int(value) if x.dtype.kind in "biu" else float(value))
            except (TypeError, ValueError, OverflowError):
                raise ShapeError(f"'{name}' is {value}, which {x.dtype} cannot hold") from None
        return TensorSpec(shape, x.dtype)

    def bind(self: _SumWithProduct[TensorView], b: Binder) -> None:
        x, y = self._factors()
        out = b.output()
        if out.size == 0:
            return
        if out.dtype != np.float32 or x.shape[-1] == 0:
            b.python(lambda *arrays: _sum_with_product(self, *arrays), [self.input, x, y], [out])
            return
        product(b, x, y, out)
        _add_input(b, self, out)

    @classmethod
    def batch(cls, c: TracedCall) -> BatchAxis:
        summand, rank = c.a.input, c.outputs[0].rank
        x, y = cls._factors(c.a)
        if rank == 3:
            batch = c.broadcast([x, y], rank, last_axes=2)
        else:
            c.require_shared(y)
            batch = c.first_batch(x)
            c.require(batch.axis == 0)
        axis = summand.rank - (rank - batch.axis)
        added = c.batch_of(summand)
        if added is not None:
            c.require(added.axis == axis)
        elif axis >= 0 and summand.shape[axis] != 1:
            c.spread(summand, batch._replace(axis=axis))
        return batch


def _add_input(b: Binder, a: Record[Any], out: TensorView) -> None:
    """Add the step that makes ``alpha * out + beta * input`` of a product."""
    tree: Node = Ref(0) if a.alpha == 1 else Call("mul", [Ref(0), Literal(float(a.alpha))])
    if a.beta != 0:
        input = Ref(1) if a.beta == 1 else Call("mul", [Ref(1), Literal(float(a.beta))])
        tree = Call("add", [tree, input])
    elif a.alpha == 1:
        return
    write_tree(b, tree, [out, a.input][: 1 + (a.beta != 0)], out)


def _sum_with_product(
    a: Record[Any], input: np.ndarray, x: np.ndarray, y: np.ndarray
) -> np.ndarray:
    if x.dtype.kind in "biu":
        alpha, beta = int(a.alpha), int(a.beta)
    else:
        alpha, beta = a.alpha, a.beta
    products = np.matmul(x, y) * x.dtype.type(alpha)
    return products if beta == 0 else products + input * x.dtype.type(beta)


@record("torch.addmm", "Tensor.addmm")
class AddMM(_SumWithProduct[T]):
    """``beta * input + alpha * (mat1 @ mat2)``; with a beta of 0 the input does not count.

    Source: torch.addmm.
    """

    input: T = Tensor()
    mat1: T = Tensor(rank=2)
    mat2: T = Tensor(rank=2)
    beta: float = Scalar(1)
    alpha: float = Scalar(1)


@record("torch.baddbmm", "Tensor.baddbmm")
class BAddBMM(_SumWithProduct[T]):
    """``beta * input + alpha * (batch1 @ batch2)``; with a beta of 0 the input does not count.

    Source: torch.baddbmm.
    """

    input: T = Tensor()
    batch1: T = Tensor(rank=3)
    batch2: T = Tensor(rank=3)
    beta: float = Scalar(1)
    alpha: float = Scalar(1)
    names = ("batch1", "batch2")


class _RareSum(KernelRecord[T]):
    """A sum with a product of other ranks."""

    batch = NoBatchRule("its axes are those of one product, or summed over")

    shape: Callable[..., tuple[int, ...] | None]
    multiply: Callable[..., np.ndarray]
    # The factors as matrices.
    matrices: Callable[..., tuple[TensorView, TensorView]]

    def result(self: _RareSum[TensorSpec]) -> TensorSpec:
        x, y = (getattr(self, argument.name) for argument in self.arguments[1:3])
        shape = type(self).shape(x.shape, y.shape)
        if shape is None:
            raise ShapeError(f"cannot multiply {x.shape} by {y.shape}")
        if broadcast(self.input, TensorSpec(shape)) != shape:
            raise ShapeError(f"the input has shape {self.input.shape}, which does not fit {shape}")
        dtype = result_type([self.input, x, y])
        for name in ("alpha", "beta"):
            if isinstance(getattr(self, name), complex) and dtype.kind != "c":
                raise ShapeError(f"'{name}' is {getattr(self, name)}, which {dtype} cannot hold")
        return TensorSpec(shape, dtype)

    def compute(self: _RareSum[np.ndarray]) -> Any:
        x, y = (getattr(self, argument.name) for argument in self.arguments[1:3])
        products = type(self).multiply(x, y) * self.alpha
        return products if self.beta == 0 else products + self.input * self.beta

    def steps(self: _RareSum[TensorView], b: Binder) -> None:
        x, y = (getattr(self, argument.name) for argument in self.arguments[1:3])
        if not self.input.dtype == x.dtype == y.dtype == np.float32 or x.size == 0:
            self.in_numpy(b)
            return
        out = b.output()
        if out.size:
            x, y = type(self).matrices(b, x, y)
            product(b, x, y, out.view((x.shape[0], y.shape[1])))
            _add_input(b, self, out)


@record("aten::_grouped_mm")
class GroupedProducts(KernelRecord[T]):
    """Products of groups of rows, each with a matrix of its own: the experts of a mixture.

    `offs` has the place where each group ends.  With two matrices the groups are columns of the
    one and rows of the other; without `offs` it is torch.bmm.  Source:
    torch.nn.functional.grouped_mm.
    """

    batch = NoBatchRule("its groups are counted along the rows of all members")
    input: T = Tensor(rank=(2, 3))
    mat2: T = Tensor(rank=(2, 3))
    offs: T | None = Tensor(optional=True, rank=1)
    bias: T | None = Tensor(optional=True)
    out_dtype: Any = AnyArgument(None)

    def result(self: GroupedProducts[TensorSpec]) -> TensorSpec:
        x, y = self.input, self.mat2
        if self.bias is not None or self.out_dtype is not None:
            raise ShapeError("'bias' and 'out_dtype' are given, expected None")
        if x.shape[-1] != y.shape[-2]:
            raise ShapeError(
                f"the matrices have shapes {x.shape} and {y.shape}, expected as many rows in the "
                "second as columns in the first"
            )
        groups = {spec.shape[0] for spec in (x, y) if spec.rank == 3}
        if x.rank != 3 or y.rank != 3:
            # The `dtype` of the running sum that it comes from is not in the file.
            if self.offs is None or self.offs.dtype.kind not in "iuf":
                raise ShapeError("'offs' is missing, expected where each group ends")
            groups.add(self.offs.shape[0])
        if len(groups) > 1:
            raise ShapeError(
                f"there are {' and '.join(map(str, sorted(groups)))} groups in its inputs"
            )
        size = (x.shape[-2], y.shape[-1])
        shape = size if x.rank != y.rank else (*groups, *size)
        return TensorSpec(shape, x.dtype)

    def compute(self: GroupedProducts[np.ndarray]) -> Any:
        x, y = self.input, self.mat2
        if x.ndim == y.ndim == 3:
            return np.matmul(x, y)
        # The extent of the axis that is cut into groups.
        extent = x.shape[1] if x.ndim == y.ndim else x.shape[0] if x.ndim == 2 else y.shape[1]
        ends = [0, *map(int, np.asarray(self.offs).tolist())]
        if any(end < start for start, end in pairwise(ends)) or ends[-1] > extent:
            raise ShapeError(f"'offs' is {ends[1:]}, expected ascending numbers up to {extent}")
        parts = [slice(start, end) for start, end in pairwise(ends)]
        if x.ndim == y.ndim:
            products = [x[:, part] @ y[part] for part in parts]
            return np.stack(products) if products else np.zeros((0, len(x), y.shape[1]), x.dtype)
        z = np.zeros((x.shape[-2], y.shape[-1]), x.dtype)
        for number, part in enumerate(parts):
            if x.ndim == 2:
                z[part] = x[part] @ y[number]
            else:
                z[:, part] = x[number] @ y[:, part]
        return z

    def steps(self: GroupedProducts[TensorView], b: Binder) -> None:
        x, y = self.input, self.mat2
        if not x.dtype == y.dtype == np.float32 or not x.rank == y.rank == 3 or x.shape[-1] == 0:
            self.in_numpy(b)  # how long the groups are is known when it runs
            return
        out = b.output()
        if out.size:
            product(b, x, y, out)


@record("aten::addmv")
class AddMV(_RareSum[T]):
    """``beta * input + alpha * (mat @ vec)``.

    Source: torch.addmv.
    """

    input: T = Tensor()
    mat: T = Tensor(rank=2)
    vec: T = Tensor(rank=1)
    beta: float = Scalar(1)
    alpha: float = Scalar(1)
    multiply = staticmethod(np.matmul)

    @staticmethod
    def shape(x: Any, y: Any) -> Any:
        return x[:1] if x[1:] == y else None

    @staticmethod
    def matrices(b: Binder, x: TensorView, y: TensorView) -> Any:
        return x, b.contiguous(y).view((y.size, 1))


@record("aten::addr")
class AddR(_RareSum[T]):
    """``beta * input + alpha * outer(vec1, vec2)``.

    Source: torch.addr.
    """

    input: T = Tensor()
    vec1: T = Tensor(rank=1)
    vec2: T = Tensor(rank=1)
    beta: float = Scalar(1)
    alpha: float = Scalar(1)
    multiply = staticmethod(np.outer)

    @staticmethod
    def shape(x: Any, y: Any) -> Any:
        return x + y

    @staticmethod
    def matrices(b: Binder, x: TensorView, y: TensorView) -> Any:
        return b.contiguous(x).view((x.size, 1)), b.contiguous(y).view((1, y.size))


@record("aten::addbmm")
class AddBMM(_RareSum[T]):
    """``beta * input + alpha * sum(batch1 @ batch2)`` over the batch.

    Source: torch.addbmm.
    """

    input: T = Tensor()
    batch1: T = Tensor(rank=3)
    batch2: T = Tensor(rank=3)
    beta: float = Scalar(1)
    alpha: float = Scalar(1)

    @staticmethod
    def shape(x: Any, y: Any) -> Any:
        return (x[1], y[2]) if (x[0], x[2]) == y[:2] else None

    @staticmethod
    def multiply(x: Any, y: Any) -> Any:
        return np.tensordot(x, y, ([0, 2], [0, 1]))

    @staticmethod
    def matrices(b: Binder, x: TensorView, y: TensorView) -> Any:
        batch, rows, terms = x.shape
        rows_of_all = b.contiguous(x.permute((1, 0, 2))).view((rows, batch * terms))
        return rows_of_all, b.contiguous(y).view((batch * terms, y.shape[2]))


# -- products of other kinds -------------------------------------------------------------------


class _CrossProduct(Record[T]):
    """Cross products of the vectors along an axis of extent 3."""

    batch = NoBatchRule("rare: no known export uses it with another batch")

    def _axis(self: _CrossProduct[Known], shape: Any) -> int:
        if self.dim is not None:
            return axis_of(self.dim, shape)
        if 3 not in shape:
            raise ShapeError(f"its inputs make the shape {shape}, which has no axis of extent 3")
        return shape.index(3)

    def infer(self: _CrossProduct[TensorSpec]) -> TensorSpec:
        shape = broadcast(self.input, self.other)
        axis = self._axis(shape)
        if self.input.rank != self.other.rank or {
            self.input.shape[axis],
            self.other.shape[axis],
        } != {3}:
            raise ShapeError(
                f"its inputs have shapes {self.input.shape} and {self.other.shape}, expected "
                "equal ranks "
                f"and extents of 3 along axis {axis}"
            )
        return TensorSpec(shape, result_type([self.input, self.other]))

    def bind(self: _CrossProduct[TensorView], b: Binder) -> None:
        y = b.output()
        axis = self._axis(y.shape)
        if y.size == 0:
            return
        if not self.input.dtype == self.other.dtype == np.float32:
            b.python(lambda u, v: _cross(u, v, axis, y.dtype), [self.input, self.other], [y])
            return
        tree = Call("sub", [Call("mul", [Ref(0), Ref(1)]), Call("mul", [Ref(2), Ref(3)])])
        for i in range(3):
            j, k = (i + 1) % 3, (i + 2) % 3
            place = y.narrow(axis, i, 1)
            parts = [
                value.narrow(axis, index, 1)
                for value, index in (
                    (self.input, j),
                    (self.other, k),
                    (self.input, k),
                    (self.other, j),
                )
            ]
            program = fold(tree, parts)
            parts = [part.expand(place.shape) for part in parts]
            b.step(elementwise.ElementwiseStep(program, parts, place))


def _cross(u: np.ndarray, v: np.ndarray, axis: int, dtype: np.dtype) -> np.ndarray:
    u, v = (np.moveaxis(convert(w, dtype), axis, 0) for w in (u, v))
    parts = [u[(i + 1) % 3] * v[(i + 2) % 3] - u[(i + 2) % 3] * v[(i + 1) % 3] for i in range(3)]
    return np.stack(parts, axis)


@record("torch.cross", "Tensor.cross")
class Cross(_CrossProduct[T]):
    """Cross products of the vectors along an axis of extent 3, the first such one by default.

    Source: torch.cross.
    """

    input: T = Tensor()
    other: T = Tensor()
    dim: int | None = Int(None, nullable=True)


@record("aten::linalg_cross")
class LinalgCross(_CrossProduct[T]):
    """Cross products of the vectors along an axis of extent 3.

    Source: torch.linalg.cross.
    """

    input: T = Tensor()
    other: T = Tensor()
    dim: int = Int(-1)


@record("aten::kron")
class Kron(NumpyRecord[T]):
    """Each element of one tensor times the whole of another, side by side.

    Source: torch.kron.
    """

    batch = NoBatchRule("it multiplies each element with all others")
    input: T = Tensor()
    other: T = Tensor()

    def result(self: Kron[TensorSpec]) -> TensorSpec:
        rank = max(self.input.rank, self.other.rank)
        x, y = ((1,) * (rank - len(s)) + s for s in (self.input.shape, self.other.shape))
        shape = [n * m for n, m in zip(x, y, strict=True)]
        return TensorSpec(shape, result_type([self.input, self.other]))

    def compute(self: Kron[np.ndarray]) -> Any:
        return np.kron(self.input, self.other)


# -- norms and powers --------------------------------------------------------------------------


class _LinalgNorm(Record[T]):
    """Base of the norms that may be of matrices; those of singular values are refused."""

    batch = Norm.batch
    input: T
    keepdim: bool

    def as_norm(self) -> tuple[Norm[T], bool]:
        """Return the torch.norm that it is, and whether it chooses among its sums."""
        raise NotImplementedError

    def infer(self: _LinalgNorm[TensorSpec]) -> Any:
        norm, chooses = self.as_norm()
        if chooses and self.input.shape[self._sides(norm)[1]] == 0:
            raise ShapeError(f"the input has shape {self.input.shape}, nothing to choose from")
        return norm.infer()

    @staticmethod
    def _sides(norm: Norm[Any]) -> tuple[int, int]:
        """Return the axis to sum along and the one to choose from, in norms of matrices."""
        assert norm.dim is not None
        rows, columns = norm.dim
        # The sums of columns for 1, of rows for infinity.
        return (rows, columns) if abs(norm.p) == 1 else (columns, rows)

    def bind(self: _LinalgNorm[TensorView], b: Binder) -> None:
        norm, chooses = self.as_norm()
        if not chooses:
            norm.bind(b)
            return
        function = np.max if norm.p > 0 else np.min
        inner, outer = self._sides(norm)

        def compute(array: Any) -> Any:
            sums = np.abs(array).sum(axis=inner, keepdims=True)
            y = function(sums, axis=outer, keepdims=True)
            return y if self.keepdim else np.squeeze(y, (inner, outer))

        b.python(compute, [self.input], [b.output()])

    def _of_matrices(self: _LinalgNorm[Known], order: Any, dims: Any) -> tuple[Norm[Any], bool]:
        if self.input.rank < 2 or len(dims) != 2:
            raise ShapeError(f"the input has shape {self.input.shape}, expected matrices")
        dims = axes_of(dims, self.input.shape)
        chooses = isinstance(order, int | float) and abs(order) in (1, math.inf)
        if not chooses and order not in ("fro", None):
            raise ShapeError(
                f"'ord' is {order!r}: norms of singular values are not supported, expected fro, 1, "
                "-1, inf or -inf"
            )
        power = float(order) if chooses else "fro"
        return Norm(input=self.input, p=power, dim=dims, keepdim=self.keepdim), chooses


@record("aten::linalg_norm")
class LinalgNorm(_LinalgNorm[T]):
    """A norm of the vectors along an axis, or of the matrices of two axes.

    Source: torch.linalg.norm.
    """

    input: T = Tensor()
    ord: Any = AnyArgument(None)
    dim: tuple[int, ...] | None = Ints(default=None, nullable=True)
    keepdim: bool = Bool(False)
    dtype: Any = AnyArgument(None)

    def as_norm(self: LinalgNorm[Known]) -> tuple[Norm[Any], bool]:
        dim = self.dim
        if self.ord is not None and (
            (dim is None and self.input.rank == 2) or (dim and len(dim) == 2)
        ):
            return self._of_matrices(self.ord, (0, 1) if dim is None else dim)
        power = 2.0 if self.ord is None else self.ord
        return Norm(input=self.input, p=power, dim=dim, keepdim=self.keepdim), False


@record("aten::linalg_matrix_norm")
class LinalgMatrixNorm(_LinalgNorm[T]):
    """A norm of matrices: ``fro``, or the largest or least sum of absolute values.

    Source: torch.linalg.matrix_norm.
    """

    input: T = Tensor()
    ord: Any = AnyArgument("fro")
    dim: tuple[int, ...] = Ints(default=(-2, -1))
    keepdim: bool = Bool(False)
    dtype: Any = AnyArgument(None)

    def as_norm(self: LinalgMatrixNorm[Known]) -> tuple[Norm[Any], bool]:
        return self._of_matrices(self.ord, self.dim)


@record("aten::linalg_vector_norm")
class LinalgVectorNorm(_LinalgNorm[T]):
    """The norm of all elements, or along some axes.

    Source: torch.linalg.vector_norm.
    """

    input: T = Tensor()
    ord: float = Scalar(2)
    dim: tuple[int, ...] | None = Ints(default=None, nullable=True)
    keepdim: bool = Bool(False)
    dtype: Any = AnyArgument(None)

    def as_norm(self: LinalgVectorNorm[Known]) -> tuple[Norm[Any], bool]:
        return Norm(input=self.input, p=self.ord, dim=self.dim, keepdim=self.keepdim), False


@record("aten::linalg_vecdot")
class VecDot(KernelRecord[T]):
    """Dot products of the vectors along an axis.

    Source: torch.linalg.vecdot.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    input: T = Tensor()
    other: T = Tensor()
    dim: int = Int(-1)

    def result(self: VecDot[TensorSpec]) -> TensorSpec:
        shape = broadcast(self.input, self.other)
        axis = axis_of(self.dim, shape)
        if self.input.dtype != self.other.dtype:
            raise ShapeError(f"its operands are {self.input.dtype} and {self.other.dtype}")
        return TensorSpec((*shape[:axis], *shape[axis + 1 :]), self.input.dtype)

    def compute(self: VecDot[np.ndarray]) -> Any:
        return (np.conj(self.input) * self.other).sum(self.dim)

    def steps(self: VecDot[TensorView], b: Binder) -> None:
        shape = broadcast(self.input, self.other)
        if self.input.dtype != np.float32 or 0 in shape:
            self.in_numpy(b)
            return
        products = b.temporary(shape)
        write_tree(b, Call("mul", [Ref(0), Ref(1)]), [self.input, self.other], products)
        bind_reduction(b, products, (axis_of(self.dim, shape),), False, "sum")


@record("aten::linalg_vander")
class LinalgVander(NumpyRecord[T]):
    """The powers of each element, from 0 on, along a new last axis.

    Source: torch.linalg.vander.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    input: T = Tensor()
    N: int | None = Int(None, minimum=1, nullable=True)

    def result(self: LinalgVander[TensorSpec]) -> TensorSpec:
        count = self.N or (self.input.shape[-1] if self.input.rank else 1)
        return TensorSpec((*self.input.shape, count), self.input.dtype)

    def compute(self: LinalgVander[np.ndarray]) -> Any:
        count = self.N or (self.input.shape[-1] if self.input.ndim else 1)
        return self.input[..., np.newaxis] ** np.arange(count)


@record("aten::renorm")
class ReNorm(NumpyRecord[T]):
    """The slices along an axis, those whose p-norm is above `maxnorm` scaled down to it.

    Source: torch.renorm.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    input: T = Tensor()
    p: float = Scalar()
    dim: int = Int()
    maxnorm: float = Scalar()

    def result(self: ReNorm[TensorSpec]) -> TensorSpec:
        axis_of(self.dim, self.input.shape)
        return TensorSpec(self.input.shape, self.input.dtype)

    def compute(self: ReNorm[np.ndarray]) -> Any:
        axis = self.dim % self.input.ndim
        others = tuple(d for d in range(self.input.ndim) if d != axis)
        norms = norm_of(self.input, float(self.p), others, True)
        return self.input * np.where(norms > self.maxnorm, self.maxnorm / (norms + 1e-7), 1)


@record("aten::linalg_matrix_power")
class MatrixPower(NumpyRecord[T]):
    """Square matrices to the power of an integer.

    Source: torch.linalg.matrix_power.
    """

    batch = "last_two_axes"
    input: T = Tensor()
    n: int = Int(minimum=0)

    def result(self: MatrixPower[TensorSpec]) -> TensorSpec:
        if self.input.rank < 2 or self.input.shape[-1] != self.input.shape[-2]:
            raise ShapeError(f"the input has shape {self.input.shape}, expected square matrices")
        return TensorSpec(self.input.shape, self.input.dtype)

    def compute(self: MatrixPower[np.ndarray]) -> Any:
        return np.linalg.matrix_power(self.input, self.n)
