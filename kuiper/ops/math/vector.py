"""Vectors: distances, similarities, dot and cross products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._kernels.rows.reduce import DistanceStep
from kuiper.errors import ShapeError
from kuiper.expression import Call, Literal, Ref
from kuiper.expression.promotion import result_type
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord, broadcast, convert
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.rows import bind_reduction
from kuiper.ops.core.schema import AnyArgument, Bool, Float, Int, Known, Scalar, Tensor
from kuiper.ops.math.elementwise import bind_tree, computed, write_tree
from kuiper.ops.math.reduce import Norm, norm_of
from kuiper.ops.product.linear import product

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["CosineSimilarity", "Cross", "Distances", "PairwiseDistance"]

# The maximum number of differences that one block of vectors makes.
_BLOCK = 1 << 18

_DIFFERENCE = Call("sub", [Ref(0), Ref(1)])
_PRODUCT = Call("mul", [Ref(0), Ref(1)])


def _check_floats(*tensors: Any) -> np.dtype:
    dtype = result_type(tensors)
    if dtype.kind != "f":
        raise ShapeError(f"its inputs are {dtype}, expected float32")
    return dtype


# -- pairs of vectors --------------------------------------------------------------------------


@record("F.pairwise_distance", "nn.PairwiseDistance", "aten::pairwise_distance")
class PairwiseDistance(Record[T]):
    """The p-norm of ``x1 - x2 + eps`` along the last axis.

    Source: torch.nn.functional.pairwise_distance.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    x1: T = Tensor()
    x2: T = Tensor()
    p: float = Float(2.0)
    eps: float = Float(1e-6)
    keepdim: bool = Bool(False)

    def infer(self: PairwiseDistance[TensorSpec]) -> TensorSpec:
        shape = broadcast(self.x1, self.x2)
        if not shape:
            raise ShapeError("its inputs are 0-d tensors, expected vectors")
        return TensorSpec(
            (*shape[:-1], 1) if self.keepdim else shape[:-1], _check_floats(self.x1, self.x2)
        )

    def bind(self: PairwiseDistance[TensorView], b: Binder) -> None:
        kind = Norm.kinds.get(self.p)
        shape = broadcast(self.x1, self.x2)
        if not self.x1.dtype == self.x2.dtype == np.float32 or kind is None or 0 in shape:
            b.python(
                lambda x, y: norm_of(x - y + x.dtype.type(self.eps), self.p, -1, self.keepdim),
                [self.x1, self.x2],
                [b.output()],
            )
            return
        gaps = computed(b, Call("add", [_DIFFERENCE, Literal(self.eps)]), [self.x1, self.x2])
        bind_reduction(b, gaps, (gaps.rank - 1,), self.keepdim, kind)


@record("aten::cosine_similarity")
class CosineSimilarity(Record[T]):
    """``sum(x1 * x2) / (max(norm(x1), eps) * max(norm(x2), eps))`` along an axis.

    Source: torch.nn.functional.cosine_similarity.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    x1: T = Tensor()
    x2: T = Tensor()
    dim: int = Int(1)
    eps: float = Float(1e-8)

    def _axis(self: CosineSimilarity[Known]) -> int:
        return axis_of(self.dim, broadcast(self.x1, self.x2))

    def infer(self: CosineSimilarity[TensorSpec]) -> TensorSpec:
        axis, shape = self._axis(), broadcast(self.x1, self.x2)
        return TensorSpec((*shape[:axis], *shape[axis + 1 :]), _check_floats(self.x1, self.x2))

    def bind(self: CosineSimilarity[TensorView], b: Binder) -> None:
        axis, shape = self._axis(), broadcast(self.x1, self.x2)
        if not self.x1.dtype == self.x2.dtype == np.float32 or 0 in shape:
            b.python(lambda x, y: _cosines(x, y, axis, self.eps), [self.x1, self.x2], [b.output()])
            return
        products = computed(b, _PRODUCT, [self.x1, self.x2])
        dots = bind_reduction(b, products, (axis,), False, "sum", is_output=False)
        norms = [
            bind_reduction(b, x.expand(shape), (axis,), False, "norm2", is_output=False)
            for x in (self.x1, self.x2)
        ]
        floors = [Call("max", [Ref(i), Literal(self.eps)]) for i in (1, 2)]
        bind_tree(b, Call("div", [Ref(0), Call("mul", floors)]), [dots, *norms])


def _cosines(x: np.ndarray, y: np.ndarray, axis: int, eps: float) -> np.ndarray:
    x, y = np.broadcast_arrays(x, y)
    norms = [np.maximum(np.sqrt((z * z).sum(axis)), eps) for z in (x, y)]
    return (x * y).sum(axis) / (norms[0] * norms[1])


@record("aten::dist")
class Distance(KernelRecord[T]):
    """The p-norm of the difference of two tensors.

    Source: torch.dist.
    """

    batch = NoBatchRule("it adds up the differences of all members")
    input: T = Tensor()
    other: T = Tensor()
    p: float = Scalar(2)

    def result(self: Distance[TensorSpec]) -> TensorSpec:
        broadcast(self.input, self.other)
        if isinstance(self.p, complex):
            raise ShapeError(f"'p' is {self.p}, expected a real number")
        return TensorSpec((), result_type([self.input, self.other]))

    def compute(self: Distance[np.ndarray]) -> Any:
        return norm_of(np.asarray(self.input - self.other), float(self.p), None, False)

    def steps(self: Distance[TensorView], b: Binder) -> None:
        kind, shape = Norm.kinds.get(self.p), broadcast(self.input, self.other)
        is_float32 = self.input.dtype == self.other.dtype == np.float32
        if kind is None or not is_float32 or self.input.size == 0 or not shape:
            self.in_numpy(b)
            return
        gaps = computed(b, _DIFFERENCE, [self.input, self.other])
        bind_reduction(b, gaps, tuple(range(len(shape))), False, kind)


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
            raise ShapeError(
                f"its operands are {self.input.dtype} and {self.other.dtype}, expected one dtype"
            )
        return TensorSpec((*shape[:axis], *shape[axis + 1 :]), self.input.dtype)

    def compute(self: VecDot[np.ndarray]) -> Any:
        return (np.conj(self.input) * self.other).sum(self.dim)

    def steps(self: VecDot[TensorView], b: Binder) -> None:
        shape = broadcast(self.input, self.other)
        if self.input.dtype != np.float32 or 0 in shape:
            self.in_numpy(b)
            return
        products = computed(b, _PRODUCT, [self.input, self.other])
        bind_reduction(b, products, (axis_of(self.dim, shape),), False, "sum")


@record("torch.cross", "Tensor.cross")
class Cross(Record[T]):
    """Cross products of the vectors along an axis of extent 3, by default the first such axis.

    Source: torch.cross.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    input: T = Tensor()
    other: T = Tensor()
    dim: int | None = Int(None, nullable=True)

    def _axis(self: Cross[Known], shape: Any) -> int:
        if self.dim is not None:
            return axis_of(self.dim, shape)
        if 3 not in shape:
            raise ShapeError(f"its inputs make the shape {shape}, which has no axis of extent 3")
        return shape.index(3)

    def infer(self: Cross[TensorSpec]) -> TensorSpec:
        shape = broadcast(self.input, self.other)
        axis = self._axis(shape)
        x, y = self.input.shape, self.other.shape
        if len(x) != len(y) or {x[axis], y[axis]} != {3}:
            raise ShapeError(
                f"its inputs have shapes {x} and {y}, expected equal ranks and extents of 3 along "
                f"axis {axis}"
            )
        return TensorSpec(shape, result_type([self.input, self.other]))

    def bind(self: Cross[TensorView], b: Binder) -> None:
        y = b.output()
        axis = self._axis(y.shape)
        if y.size == 0:
            return
        if not self.input.dtype == self.other.dtype == np.float32:
            b.python(lambda u, v: _cross(u, v, axis, y.dtype), [self.input, self.other], [y])
            return
        # y[i] = u[j] v[k] - u[k] v[j] for the cyclic permutations (i, j, k).
        tree = Call("sub", [_PRODUCT, Call("mul", [Ref(2), Ref(3)])])
        for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
            terms = ((self.input, j), (self.other, k), (self.input, k), (self.other, j))
            operands = [value.narrow(axis, index, 1) for value, index in terms]
            write_tree(b, tree, operands, y.narrow(axis, i, 1))


def _cross(u: np.ndarray, v: np.ndarray, axis: int, dtype: np.dtype) -> np.ndarray:
    u, v = (np.moveaxis(convert(w, dtype), axis, 0) for w in (u, v))
    parts = [u[(i + 1) % 3] * v[(i + 2) % 3] - u[(i + 2) % 3] * v[(i + 1) % 3] for i in range(3)]
    return np.stack(parts, axis)


@record("aten::linalg_cross")
class LinalgCross(Cross[T]):
    """Cross products of the vectors along an axis of extent 3.

    Source: torch.linalg.cross.
    """

    dim: int = Int(-1)


# -- all pairs of rows -------------------------------------------------------------------------


class Distances(KernelRecord[T]):
    """Base of the distances between all rows of matrices."""

    @staticmethod
    def between(x: np.ndarray, y: np.ndarray, p: float) -> np.ndarray:
        """Return the p-norms of the differences of all rows of `x` and `y`, block by block."""
        result = np.empty((*x.shape[:-1], y.shape[-2]), x.dtype)
        rows = max(1, _BLOCK // max(1, y.shape[-2] * y.shape[-1]))
        for index in np.ndindex(x.shape[:-2]):
            for start in range(0, x.shape[-2], rows):
                gaps = x[index][start : start + rows, np.newaxis] - y[index]
                result[index][start : start + rows] = (
                    np.sqrt(np.einsum("ijk,ijk->ij", gaps, gaps))
                    if p == 2
                    else norm_of(gaps, p, -1, False)
                )
        return result


# PyTorch's limit: with more rows in either matrix, a matrix product beats differences.
_FEW_ROWS = 25


@record("aten::cdist")
class CDist(Distances[T]):
    """The p-norm of the difference between each row of one matrix and each row of another.

    As in PyTorch, Euclidean distances between more than 25 rows are by default the roots of
    ``x @ x + y @ y - 2 * x @ y``.  Source: torch.cdist.
    """

    x1: T = Tensor()
    x2: T = Tensor()
    p: float = Float(2.0)
    compute_mode: Any = AnyArgument(None)

    def result(self: CDist[TensorSpec]) -> TensorSpec:
        x, y = self.x1.shape, self.x2.shape
        if len(x) < 2 or len(y) < 2 or x[-1] != y[-1]:
            raise ShapeError(
                f"its inputs have shapes {x} and {y}, expected (..., rows, k) with one k"
            )
        batch = broadcast(TensorSpec(x[:-2]), TensorSpec(y[:-2]))
        return TensorSpec((*batch, x[-2], y[-2]), _check_floats(self.x1, self.x2))

    def compute(self: CDist[np.ndarray]) -> Any:
        dtype = result_type([self.x1, self.x2])
        batch = np.broadcast_shapes(self.x1.shape[:-2], self.x2.shape[:-2])
        x, y = (
            np.broadcast_to(convert(z, dtype), (*batch, *z.shape[-2:])) for z in (self.x1, self.x2)
        )
        return Distances.between(x, y, self.p)

    def steps(self: CDist[TensorView], b: Binder) -> None:
        terms = self.x1.shape[-1]
        if not self.x1.dtype == self.x2.dtype == np.float32 or terms == 0:
            self.in_numpy(b)
            return
        y = b.output()
        if y.size == 0:
            return
        many = max(self.x1.shape[-2], self.x2.shape[-2]) > _FEW_ROWS
        turned = self.x2.permute([*range(self.x2.rank - 2), self.x2.rank - 1, self.x2.rank - 2])
        if self.p == 2 and (self.compute_mode == 1 or (many and self.compute_mode in (None, 0))):
            _euclidean(b, self.x1, turned, y)
            return
        batch, rows, columns = y.shape[:-2], self.x1.shape[-2], self.x2.shape[-2]
        by_rows = _is_long(terms, columns)

        def stacked(x: TensorView, shape: Sequence[int]) -> TensorView:
            return b.contiguous(x.expand((*batch, *shape))).view((math.prod(batch), *shape))

        left = stacked(self.x1, (rows, terms))
        right = self.x2 if by_rows else turned
        right = stacked(right, right.shape[-2:])
        y = y.view((math.prod(batch), rows, columns))
        b.step(DistanceStep(left, right, y, self.p, by_rows))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        x, y, rank = c.a.x1, c.a.x2, c.outputs[0].rank
        for axis, spec, other in ((rank - 2, x, y), (rank - 1, y, x)):
            batch = c.batch_of(spec)
            if batch is not None and batch.axis == spec.rank - 2:
                c.require_shared(other)
                return batch._replace(axis=axis)
        return c.broadcast([x, y], rank, last_axes=2)


def _is_long(terms: int, columns: int) -> bool:
    """Tell whether summing along one vector at a time is faster than along many at once."""
    return terms >= 64 or (terms >= 16 and columns < 16)


def _euclidean(b: Binder, x: TensorView, turned: TensorView, y: TensorView) -> None:
    """Add the steps for the distances of rows of `x` and columns of `turned`, by a product."""
    squares = [
        bind_reduction(b, x, (x.rank - 1,), True, "norm2", is_output=False),
        bind_reduction(b, turned, (turned.rank - 2,), True, "norm2", is_output=False),
    ]
    product(b, x, turned, y)
    sums = Call("add", [Call("square", [Ref(1)]), Call("square", [Ref(2)])])
    gaps = Call("sub", [sums, Call("mul", [Ref(0), Literal(2.0)])])
    tree = Call("sqrt", [Call("max", [gaps, Literal(0.0)])])
    write_tree(b, tree, [y, *squares], y)


@record("aten::pdist")
class PDist(Distances[T]):
    """The p-norms of the differences between all pairs of rows of a matrix, as one vector.

    Source: torch.nn.functional.pdist.
    """

    batch = NoBatchRule("it measures the distances between all rows")
    input: T = Tensor(rank=2)
    p: float = Float(2.0)

    def result(self: PDist[TensorSpec]) -> TensorSpec:
        return TensorSpec((math.comb(self.input.shape[0], 2),), _check_floats(self.input))

    def compute(self: PDist[np.ndarray]) -> Any:
        upper = np.triu_indices(self.input.shape[0], 1)
        return Distances.between(self.input, self.input, self.p)[upper]

    def steps(self: PDist[TensorView], b: Binder) -> None:
        rows, terms = self.input.shape
        if self.input.dtype != np.float32 or terms == 0:
            self.in_numpy(b)
            return
        y = b.output()
        if y.size == 0:
            return
        by_rows = _is_long(terms, rows)
        left = b.contiguous(self.input)
        right = left if by_rows else b.contiguous(self.input.permute((1, 0)))
        left, right = (value.view((1, *value.shape)) for value in (left, right))
        b.step(DistanceStep(left, right, y, self.p, by_rows))
