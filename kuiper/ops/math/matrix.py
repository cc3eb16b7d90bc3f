"""Matrices: sums with products, norms and powers."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.expression import Call, Literal, Node, Ref
from kuiper.expression.promotion import result_type
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import axes_of, axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord, NumpyRecord, broadcast
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.schema import AnyArgument, Bool, Int, Ints, Known, Scalar, Tensor
from kuiper.ops.math.elementwise import write_tree
from kuiper.ops.math.reduce import Norm, norm_of
from kuiper.ops.product.linear import product

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["AddMM"]


# -- sums with products ------------------------------------------------------------------------


class _SumWithProduct(KernelRecord[T]):
    """Base of ``beta * input + alpha * product``; a beta of 0 ignores the input and its NaN.

    A subclass declares the input and the two factors, and may replace `shape`, `multiply` and
    `matrices`, which describe the product ``x @ y``.
    """

    batch: Any = NoBatchRule("its axes are those of one product, or summed over")
    beta: float = Scalar(1)
    alpha: float = Scalar(1)
    input: T

    @staticmethod
    def shape(x: Any, y: Any) -> Any:
        """Return the shape of the product, None if the factors do not fit."""
        return (*x[:-1], y[-1]) if (x[:-2], x[-1]) == (y[:-2], y[-2]) else None

    multiply: Any = staticmethod(np.matmul)

    @staticmethod
    def matrices(b: Binder, x: TensorView, y: TensorView, out: TensorView) -> Any:
        """Return the factors and the output as views that :func:`product` takes."""
        return x, y, out

    def factors(self: _SumWithProduct[Any]) -> Any:
        return [getattr(self, argument.name) for argument in self.arguments[1:3]]

    def result(self: _SumWithProduct[TensorSpec]) -> TensorSpec:
        x, y = self.factors()
        shape = self.shape(x.shape, y.shape)
        if shape is None:
            raise ShapeError(f"cannot multiply {x.shape} by {y.shape}")
        if not self.input.dtype == x.dtype == y.dtype:
            raise ShapeError(
                f"its tensors are {self.input.dtype}, {x.dtype} and {y.dtype}, expected one dtype"
            )
        if broadcast(self.input, TensorSpec(shape)) != shape:
            raise ShapeError(f"the input has shape {self.input.shape}, which does not fit {shape}")
        for name in ("alpha", "beta") if x.dtype.kind != "c" else ():
            value = getattr(self, name)
            try:
                x.dtype.type(int(value) if x.dtype.kind in "biu" else float(value))
            except (TypeError, ValueError, OverflowError):
                raise ShapeError(f"'{name}' is {value}, which {x.dtype} cannot hold") from None
        return TensorSpec(shape, x.dtype)

    def compute(self: _SumWithProduct[np.ndarray]) -> Any:
        x, y = self.factors()
        is_integer, scalar = x.dtype.kind in "biu", x.dtype.type
        alpha, beta = (int(v) if is_integer else v for v in (self.alpha, self.beta))
        products = self.multiply(x, y) * scalar(alpha)
        return products if beta == 0 else products + self.input * scalar(beta)

    def steps(self: _SumWithProduct[TensorView], b: Binder) -> None:
        x, y = self.factors()
        if b.output_spec().size == 0:
            b.output()
        elif x.dtype != np.float32 or x.size == 0:
            self.in_numpy(b)
        else:
            out = b.output()
            product(b, *self.matrices(b, x, y, out))
            self._add_input(b, out)

    def _add_input(self: _SumWithProduct[TensorView], b: Binder, out: TensorView) -> None:
        """Add the step that turns the product in `out` into the sum, if they differ."""

        def scaled(term: Node, factor: float) -> Node:
            return term if factor == 1 else Call("mul", [term, Literal(float(factor))])

        tree = scaled(Ref(0), self.alpha)
        if self.beta != 0:
            write_tree(b, Call("add", [tree, scaled(Ref(1), self.beta)]), [out, self.input], out)
        elif self.alpha != 1:
            write_tree(b, tree, [out], out)


@record("torch.addmm", "Tensor.addmm")
class AddMM(_SumWithProduct[T], ahead=True):
    """``beta * input + alpha * (mat1 @ mat2)``; a beta of 0 ignores the input.

    Source: torch.addmm.
    """

    input: T = Tensor()
    mat1: T = Tensor(rank=2)
    mat2: T = Tensor(rank=2)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        summand, rank = c.a.input, c.outputs[0].rank
        x, y = c.a.factors()
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


@record("torch.baddbmm", "Tensor.baddbmm")
class BAddBMM(_SumWithProduct[T], ahead=True):
    """``beta * input + alpha * (batch1 @ batch2)``; a beta of 0 ignores the input.

    Source: torch.baddbmm.
    """

    batch = AddMM.batch
    input: T = Tensor()
    batch1: T = Tensor(rank=3)
    batch2: T = Tensor(rank=3)


@record("aten::addmv")
class AddMV(_SumWithProduct[T], ahead=True):
    """``beta * input + alpha * (mat @ vec)``.

    Source: torch.addmv.
    """

    input: T = Tensor()
    mat: T = Tensor(rank=2)
    vec: T = Tensor(rank=1)

    @staticmethod
    def shape(x: Any, y: Any) -> Any:
        return x[:1] if x[1:] == y else None

    @staticmethod
    def matrices(b: Binder, x: TensorView, y: TensorView, out: TensorView) -> Any:
        return x, b.contiguous(y).view((y.size, 1)), out.view((out.size, 1))


@record("aten::addr")
class AddR(_SumWithProduct[T], ahead=True):
    """``beta * input + alpha * outer(vec1, vec2)``.

    Source: torch.addr.
    """

    input: T = Tensor()
    vec1: T = Tensor(rank=1)
    vec2: T = Tensor(rank=1)
    multiply = staticmethod(np.outer)

    @staticmethod
    def shape(x: Any, y: Any) -> Any:
        return x + y

    @staticmethod
    def matrices(b: Binder, x: TensorView, y: TensorView, out: TensorView) -> Any:
        return b.contiguous(x).view((x.size, 1)), b.contiguous(y).view((1, y.size)), out


@record("aten::addbmm")
class AddBMM(_SumWithProduct[T], ahead=True):
    """``beta * input + alpha * sum(batch1 @ batch2)`` over the batch.

    Source: torch.addbmm.
    """

    input: T = Tensor()
    batch1: T = Tensor(rank=3)
    batch2: T = Tensor(rank=3)

    @staticmethod
    def shape(x: Any, y: Any) -> Any:
        return (x[1], y[2]) if (x[0], x[2]) == y[:2] else None

    @staticmethod
    def multiply(x: Any, y: Any) -> Any:
        return np.tensordot(x, y, ([0, 2], [0, 1]))

    @staticmethod
    def matrices(b: Binder, x: TensorView, y: TensorView, out: TensorView) -> Any:
        # One product with the terms of all batches.
        batch, rows, terms = x.shape
        wide = b.contiguous(x.permute((1, 0, 2))).view((rows, batch * terms))
        return wide, b.contiguous(y).view((batch * terms, y.shape[2])), out


@record("aten::_grouped_mm")
class GroupedProducts(KernelRecord[T]):
    """Products of groups of rows, one matrix per group: the experts of a mixture.

    `offs` holds the end of each group.  If both operands are matrices, the groups are columns of
    the first and rows of the second; without `offs` it is torch.bmm.
    Source: torch.nn.functional.grouped_mm.
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
            # `offs` often is a running sum whose integer dtype the file lacks: floats pass.
            if self.offs is None or self.offs.dtype.kind not in "iuf":
                raise ShapeError("'offs' is missing, expected the end of each group")
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
        groups = [slice(start, end) for start, end in pairwise(ends)]
        if x.ndim == y.ndim:
            products = [x[:, group] @ y[group] for group in groups]
            return np.stack(products) if products else np.zeros((0, len(x), y.shape[1]), x.dtype)
        z = np.zeros((x.shape[-2], y.shape[-1]), x.dtype)
        for number, group in enumerate(groups):
            if x.ndim == 2:
                z[group] = x[group] @ y[number]
            else:
                z[:, group] = x[number] @ y[:, group]
        return z

    def steps(self: GroupedProducts[TensorView], b: Binder) -> None:
        x, y = self.input, self.mat2
        if not x.dtype == y.dtype == np.float32 or not x.rank == y.rank == 3 or x.shape[-1] == 0:
            self.in_numpy(b)  # the lengths of the groups are known at run time
            return
        out = b.output()
        if out.size:
            product(b, x, y, out)


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
    """Base of the norms of vectors and matrices; those by singular values are refused."""

    batch = Norm.batch
    input: T = Tensor()
    ord: Any = AnyArgument(None)
    dim: tuple[int, ...] | None = Ints(default=None, nullable=True)
    keepdim: bool = Bool(False)
    dtype: Any = AnyArgument(None)

    def as_norm(self: _LinalgNorm[Known]) -> tuple[Norm[Any], bool]:
        """Return the equivalent torch.norm, and whether it is the extreme of sums instead.

        The extreme: the largest or least sum of absolute values over the columns (`p` is 1 or -1)
        or rows (`p` is inf or -inf) of matrices.
        """
        return self._norm(2.0 if self.ord is None else self.ord, self.dim), False

    def _norm(self: _LinalgNorm[Known], p: Any, dim: Any) -> Norm[Any]:
        return Norm(input=self.input, p=p, dim=dim, keepdim=self.keepdim)

    def _matrix_norm(self: _LinalgNorm[Known], order: Any, dims: Any) -> tuple[Norm[Any], bool]:
        if self.input.rank < 2 or len(dims) != 2:
            raise ShapeError(f"the input has shape {self.input.shape}, expected matrices")
        is_extreme = isinstance(order, int | float) and abs(order) in (1, math.inf)
        dims = axes_of(dims, self.input.shape)
        if not is_extreme and order not in ("fro", None):
            raise ShapeError(
                f"'ord' is {order!r}: norms of singular values are not supported, expected fro, 1, "
                "-1, inf or -inf"
            )
        return self._norm(float(order) if is_extreme else "fro", dims), is_extreme

    @staticmethod
    def _sides(norm: Norm[Any]) -> tuple[int, int]:
        """Return the axis to sum along and the axis to take the extreme along."""
        assert norm.dim is not None
        rows, columns = norm.dim
        return (rows, columns) if abs(norm.p) == 1 else (columns, rows)

    def infer(self: _LinalgNorm[TensorSpec]) -> Any:
        norm, is_extreme = self.as_norm()
        if is_extreme and self.input.shape[self._sides(norm)[1]] == 0:
            raise ShapeError(f"the input has shape {self.input.shape}, nothing to choose from")
        return norm.infer()

    def bind(self: _LinalgNorm[TensorView], b: Binder) -> None:
        norm, is_extreme = self.as_norm()
        if not is_extreme:
            norm.bind(b)
            return
        function = np.max if norm.p > 0 else np.min
        inner, outer = self._sides(norm)

        def compute(array: Any) -> Any:
            sums = np.abs(array).sum(axis=inner, keepdims=True)
            y = function(sums, axis=outer, keepdims=True)
            return y if self.keepdim else np.squeeze(y, (inner, outer))

        b.python(compute, [self.input], [b.output()])


@record("aten::linalg_norm")
class LinalgNorm(_LinalgNorm[T]):
    """A norm of the vectors along an axis, or of the matrices of two axes.

    Source: torch.linalg.norm.
    """

    def as_norm(self: LinalgNorm[Known]) -> tuple[Norm[Any], bool]:
        rank = self.input.rank if self.dim is None else len(self.dim)
        if self.ord is not None and rank == 2:
            return self._matrix_norm(self.ord, (0, 1) if self.dim is None else self.dim)
        return super().as_norm()


@record("aten::linalg_matrix_norm")
class LinalgMatrixNorm(_LinalgNorm[T]):
    """A norm of matrices: ``fro``, or the largest or least sum of absolute values.

    Source: torch.linalg.matrix_norm.
    """

    ord: Any = AnyArgument("fro")
    dim: tuple[int, ...] = Ints(default=(-2, -1))

    def as_norm(self: LinalgMatrixNorm[Known]) -> tuple[Norm[Any], bool]:
        return self._matrix_norm(self.ord, self.dim)


@record("aten::linalg_vector_norm")
class LinalgVectorNorm(_LinalgNorm[T]):
    """The p-norm of all elements, or along some axes.

    Source: torch.linalg.vector_norm.
    """

    ord: float = Scalar(2)


@record("aten::renorm")
class ReNorm(NumpyRecord[T]):
    """The slices along an axis; one whose p-norm exceeds `maxnorm` is scaled down to it.

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


@record("aten::linalg_vander")
class LinalgVander(NumpyRecord[T]):
    """The powers 0, 1, ..., N - 1 of each element, along a new last axis.

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


@record("kuiper.Determinant")
class Determinant(NumpyRecord[T]):
    """The determinants of square matrices.

    Source: https://onnx.ai/onnx/operators/onnx__Det.html.

    Raises
    ------
    ShapeError
        If the input does not hold square matrices of floats or complex numbers.
    """

    batch = "last_two_axes"
    input: T = Tensor()

    def result(self: Determinant[TensorSpec]) -> TensorSpec:
        shape, dtype = self.input.shape, self.input.dtype
        if self.input.rank < 2 or shape[-1] != shape[-2] or dtype.kind not in "fc":
            raise ShapeError(f"the input is {self.input}, expected square matrices of floats")
        return TensorSpec(shape[:-2], dtype)

    def compute(self: Determinant[np.ndarray]) -> Any:
        return np.linalg.det(self.input)
