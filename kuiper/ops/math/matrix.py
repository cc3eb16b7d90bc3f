"""Matrices: triangles and diagonals, sums with products, norms and powers."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
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
from kuiper.ops.core.record import NoBatchRule, Record, record
from kuiper.ops.core.rows import bind_reduction
from kuiper.ops.core.schema import AnyArgument, Bool, Int, Ints, Scalar, Tensor
from kuiper.ops.math.elementwise import write_tree
from kuiper.ops.math.reduce import Norm, norm_of
from kuiper.ops.product.linear import product

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["AddMM", "Cross", "Diag", "Diagonal", "Triangle"]


# -- triangles and diagonals -------------------------------------------------------------------


class Triangle(KernelRecord):
    """Base of the two triangles."""

    batch = "last_two_axes"
    arguments = (Tensor("input"), Int("diagonal", 0))
    function: Callable[..., Any]
    upper: bool

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        if a.input.rank < 2:
            raise ShapeError(f"the input has shape {a.input.shape}, expected two axes or more")
        return TensorSpec(a.input.shape, a.input.dtype)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        return cls.function(a.input, a.diagonal)

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        x = b.contiguous(a.input)
        b.step(TriangleStep(x, b.output(reuse=x), a.diagonal, cls.upper))


@record("aten::triu")
class Triu(Triangle):
    """Matrices with zeros below a diagonal.

    Source: torch.triu.
    """

    function = staticmethod(np.triu)
    upper = True


@record("aten::tril")
class Tril(Triangle):
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
class Diagonal(Record):
    """A diagonal of two axes, as the last axis of the result.

    Source: torch.diagonal.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (Tensor("input"), Int("offset", 0), Int("dim1", 0), Int("dim2", 1))
    layout = "view"

    @staticmethod
    def axes(a: SimpleNamespace) -> tuple[int, int]:
        shape = a.input.shape
        axes = axis_of(a.dim1, shape, "dim1"), axis_of(a.dim2, shape, "dim2")
        if axes[0] == axes[1]:
            raise ShapeError(f"'dim1' and 'dim2' are both axis {axes[0]}, expected two axes")
        return axes

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        axes = Diagonal.axes(a)
        rest = [n for d, n in enumerate(a.input.shape) if d not in axes]
        length = _diagonal_length(a.input.shape, a.offset, *axes)
        return TensorSpec((*rest, length), a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        if b.output_spec().size == 0:
            b.output()
        else:
            b.alias(_diagonal(a.input, a.offset, *Diagonal.axes(a)))


@record("aten::diagonal_scatter")
class DiagonalScatter(Record):
    """A copy of the input with another tensor on a diagonal of two axes.

    Source: torch.diagonal_scatter.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (
        Tensor("input"),
        Tensor("src"),
        Int("offset", 0),
        Int("dim1", 0),
        Int("dim2", 1),
    )

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        expected = Diagonal.infer(a).shape
        if a.src.shape != expected or a.src.dtype != a.input.dtype:
            raise ShapeError(
                f"'src' is {a.src!r}, expected {TensorSpec(expected, a.input.dtype)!r}"
            )
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        y = b.output()
        b.copy(a.input, y)
        if a.src.size:
            b.copy(a.src, _diagonal(y, a.offset, *Diagonal.axes(a)))


@record("aten::diag_embed")
class DiagEmbed(Record):
    """Matrices of zeros whose diagonals are the last axis of the input.

    Source: torch.diag_embed.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (Tensor("input"), Int("offset", 0), Int("dim1", -2), Int("dim2", -1))

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        if a.input.rank == 0:
            raise ShapeError("the input is a 0-d tensor, expected one axis or more")
        rank, extent = a.input.rank + 1, a.input.shape[-1] + abs(a.offset)
        first, second = Diagonal.axes(
            SimpleNamespace(input=TensorSpec((1,) * rank), dim1=a.dim1, dim2=a.dim2)
        )
        rest = iter(a.input.shape[:-1])
        return TensorSpec(
            [extent if d in (first, second) else next(rest) for d in range(rank)], a.input.dtype
        )

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        y = b.output()
        if y.size == 0:
            return
        b.step(FillStep(y, 0))
        if a.input.size:
            b.copy(a.input, _diagonal(y, a.offset, a.dim1 % y.rank, a.dim2 % y.rank))


@record("torch.diag")
class Diag(Record):
    """A matrix with a vector as its diagonal, or the diagonal of a matrix.

    Source: torch.diag.
    """

    batch = NoBatchRule("it takes or makes one matrix")
    arguments = (Tensor("input", rank=(1, 2)), Int("diagonal", 0))

    @staticmethod
    def _as(a: SimpleNamespace) -> tuple[type[Record], SimpleNamespace]:
        first, second = (0, 1) if a.input.rank == 2 else (-2, -1)
        same = SimpleNamespace(input=a.input, offset=a.diagonal, dim1=first, dim2=second)
        return Diagonal if a.input.rank == 2 else DiagEmbed, same

    @staticmethod
    def infer(a: SimpleNamespace) -> Any:
        rule, same = Diag._as(a)
        return rule.infer(same)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        rule, same = Diag._as(a)
        rule.bind(same, b)


@record("aten::diagflat")
class DiagFlat(KernelRecord):
    """A matrix whose diagonal has all elements of the input.

    Source: torch.diagflat.
    """

    batch = NoBatchRule("it makes one matrix of all members")
    arguments = (Tensor("input"), Int("offset", 0))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec((a.input.size + abs(a.offset),) * 2, a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.diagflat(a.input, a.offset)

    @staticmethod
    def steps(a: SimpleNamespace, b: Binder) -> None:
        y = b.output()
        if y.size:
            b.step(FillStep(y, 0))
        if a.input.size:
            x = b.contiguous(a.input).view((a.input.size,))
            b.copy(x, _diagonal(y, a.offset, 0, 1))


@record("aten::trace")
class Trace(KernelRecord):
    """The sum of the main diagonal.

    Source: torch.trace.
    """

    batch = NoBatchRule("it adds up one matrix")
    arguments = (Tensor("input", rank=2),)

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        dtype = a.input.dtype
        return TensorSpec((), np.int64 if dtype.kind in "biu" else dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.trace(a.input, dtype=Trace.result(a).dtype)

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        if a.input.dtype != np.float32 or a.input.size == 0:
            cls.in_numpy(a, b)
        else:
            bind_reduction(b, _diagonal(a.input, 0, 0, 1), (0,), False, "sum")


# -- sums with products ------------------------------------------------------------------------


class _SumWithProduct(Record):
    """``beta * input + alpha * (first @ second)``; with a beta of 0 the input does not count."""

    names = ("mat1", "mat2")

    @classmethod
    def _factors(cls, a: SimpleNamespace) -> Any:
        return (getattr(a, name) for name in cls.names)

    @classmethod
    def infer(cls, a: SimpleNamespace) -> TensorSpec:
        x, y = cls._factors(a)
        if x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-2]:
            raise ShapeError(f"cannot multiply {x.shape} by {y.shape}")
        if not a.input.dtype == x.dtype == y.dtype:
            raise ShapeError(
                f"its tensors are {a.input.dtype}, {x.dtype} and {y.dtype}, expected one dtype"
            )
        shape = (*x.shape[:-1], y.shape[-1])
        if a.input.rank > len(shape) or broadcast(a.input, TensorSpec(shape)) != shape:
            raise ShapeError(f"the input has shape {a.input.shape}, which does not fit {shape}")
        for name in ("alpha", "beta") if x.dtype.kind != "c" else ():
            value = getattr(a, name)
            try:
                x.dtype.type(int(value) if x.dtype.kind in "biu" else float(value))
            except (TypeError, ValueError, OverflowError):
                raise ShapeError(f"'{name}' is {value}, which {x.dtype} cannot hold") from None
        return TensorSpec(shape, x.dtype)

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        x, y = cls._factors(a)
        out = b.output()
        if out.size == 0:
            return
        if out.dtype != np.float32 or x.shape[-1] == 0:
            b.python(lambda *arrays: _sum_with_product(a, *arrays), [a.input, x, y], [out])
            return
        product(b, x, y, out)
        _add_input(b, a, out)

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


def _add_input(b: Binder, a: SimpleNamespace, out: TensorView) -> None:
    """Add the step that makes ``alpha * out + beta * input`` of a product."""
    tree: Node = Ref(0) if a.alpha == 1 else Call("mul", [Ref(0), Literal(float(a.alpha))])
    if a.beta != 0:
        input = Ref(1) if a.beta == 1 else Call("mul", [Ref(1), Literal(float(a.beta))])
        tree = Call("add", [tree, input])
    elif a.alpha == 1:
        return
    write_tree(b, tree, [out, a.input][: 1 + (a.beta != 0)], out)


def _sum_with_product(
    a: SimpleNamespace, input: np.ndarray, x: np.ndarray, y: np.ndarray
) -> np.ndarray:
    if x.dtype.kind in "biu":
        alpha, beta = int(a.alpha), int(a.beta)
    else:
        alpha, beta = a.alpha, a.beta
    products = np.matmul(x, y) * x.dtype.type(alpha)
    return products if beta == 0 else products + input * x.dtype.type(beta)


_SCALES = (Scalar("beta", 1), Scalar("alpha", 1))


@record("torch.addmm", "Tensor.addmm")
class AddMM(_SumWithProduct):
    """``beta * input + alpha * (mat1 @ mat2)``; with a beta of 0 the input does not count.

    Source: torch.addmm.
    """

    arguments = (Tensor("input"), Tensor("mat1", rank=2), Tensor("mat2", rank=2), *_SCALES)


@record("torch.baddbmm", "Tensor.baddbmm")
class BAddBMM(_SumWithProduct):
    """``beta * input + alpha * (batch1 @ batch2)``; with a beta of 0 the input does not count.

    Source: torch.baddbmm.
    """

    arguments = (Tensor("input"), Tensor("batch1", rank=3), Tensor("batch2", rank=3), *_SCALES)
    names = ("batch1", "batch2")


class _RareSum(KernelRecord):
    """A sum with a product of other ranks."""

    batch = NoBatchRule("its axes are those of one product, or summed over")

    shape: Callable[..., tuple[int, ...] | None]
    multiply: Callable[..., np.ndarray]
    # The factors as matrices.
    matrices: Callable[..., tuple[TensorView, TensorView]]

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        x, y = (getattr(a, argument.name) for argument in cls.arguments[1:3])
        shape = cls.shape(x.shape, y.shape)
        if shape is None:
            raise ShapeError(f"cannot multiply {x.shape} by {y.shape}")
        if broadcast(a.input, TensorSpec(shape)) != shape:
            raise ShapeError(f"the input has shape {a.input.shape}, which does not fit {shape}")
        dtype = result_type([a.input, x, y])
        for name in ("alpha", "beta"):
            if isinstance(getattr(a, name), complex) and dtype.kind != "c":
                raise ShapeError(f"'{name}' is {getattr(a, name)}, which {dtype} cannot hold")
        return TensorSpec(shape, dtype)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        x, y = (getattr(a, argument.name) for argument in cls.arguments[1:3])
        products = cls.multiply(x, y) * a.alpha
        return products if a.beta == 0 else products + a.input * a.beta

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        x, y = (getattr(a, argument.name) for argument in cls.arguments[1:3])
        if not a.input.dtype == x.dtype == y.dtype == np.float32 or x.size == 0:
            cls.in_numpy(a, b)
            return
        out = b.output()
        if out.size:
            x, y = cls.matrices(b, x, y)
            product(b, x, y, out.view((x.shape[0], y.shape[1])))
            _add_input(b, a, out)


@record("aten::_grouped_mm")
class GroupedProducts(KernelRecord):
    """Products of groups of rows, each with a matrix of its own: the experts of a mixture.

    `offs` has the place where each group ends.  With two matrices the groups are columns of the
    one and rows of the other; without `offs` it is torch.bmm.  Source:
    torch.nn.functional.grouped_mm.
    """

    batch = NoBatchRule("its groups are counted along the rows of all members")
    arguments = (
        Tensor("input", rank=(2, 3)),
        Tensor("mat2", rank=(2, 3)),
        Tensor("offs", optional=True, rank=1),
        Tensor("bias", optional=True),
        AnyArgument("out_dtype", None),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        x, y = a.input, a.mat2
        if a.bias is not None or a.out_dtype is not None:
            raise ShapeError("'bias' and 'out_dtype' are given, expected None")
        if x.shape[-1] != y.shape[-2]:
            raise ShapeError(
                f"the matrices have shapes {x.shape} and {y.shape}, expected as many rows in the "
                "second as columns in the first"
            )
        groups = {spec.shape[0] for spec in (x, y) if spec.rank == 3}
        if x.rank != 3 or y.rank != 3:
            # The `dtype` of the running sum that it comes from is not in the file.
            if a.offs is None or a.offs.dtype.kind not in "iuf":
                raise ShapeError("'offs' is missing, expected where each group ends")
            groups.add(a.offs.shape[0])
        if len(groups) > 1:
            raise ShapeError(
                f"there are {' and '.join(map(str, sorted(groups)))} groups in its inputs"
            )
        size = (x.shape[-2], y.shape[-1])
        shape = size if x.rank != y.rank else (*groups, *size)
        return TensorSpec(shape, x.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        x, y = a.input, a.mat2
        if x.ndim == y.ndim == 3:
            return np.matmul(x, y)
        # The extent of the axis that is cut into groups.
        extent = x.shape[1] if x.ndim == y.ndim else x.shape[0] if x.ndim == 2 else y.shape[1]
        ends = [0, *map(int, a.offs.tolist())]
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

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        x, y = a.input, a.mat2
        if not x.dtype == y.dtype == np.float32 or not x.rank == y.rank == 3 or x.shape[-1] == 0:
            cls.in_numpy(a, b)  # how long the groups are is known when it runs
            return
        out = b.output()
        if out.size:
            product(b, x, y, out)


@record("aten::addmv")
class AddMV(_RareSum):
    """``beta * input + alpha * (mat @ vec)``.

    Source: torch.addmv.
    """

    arguments = (Tensor("input"), Tensor("mat", rank=2), Tensor("vec", rank=1), *_SCALES)
    multiply = staticmethod(np.matmul)

    @staticmethod
    def shape(x: Any, y: Any) -> Any:
        return x[:1] if x[1:] == y else None

    @staticmethod
    def matrices(b: Binder, x: TensorView, y: TensorView) -> Any:
        return x, b.contiguous(y).view((y.size, 1))


@record("aten::addr")
class AddR(_RareSum):
    """``beta * input + alpha * outer(vec1, vec2)``.

    Source: torch.addr.
    """

    arguments = (Tensor("input"), Tensor("vec1", rank=1), Tensor("vec2", rank=1), *_SCALES)
    multiply = staticmethod(np.outer)

    @staticmethod
    def shape(x: Any, y: Any) -> Any:
        return x + y

    @staticmethod
    def matrices(b: Binder, x: TensorView, y: TensorView) -> Any:
        return b.contiguous(x).view((x.size, 1)), b.contiguous(y).view((1, y.size))


@record("aten::addbmm")
class AddBMM(_RareSum):
    """``beta * input + alpha * sum(batch1 @ batch2)`` over the batch.

    Source: torch.addbmm.
    """

    arguments = (Tensor("input"), Tensor("batch1", rank=3), Tensor("batch2", rank=3), *_SCALES)

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


class _CrossProduct(Record):
    """Cross products of the vectors along an axis of extent 3."""

    batch = NoBatchRule("rare: no known export uses it with another batch")

    @staticmethod
    def _axis(a: SimpleNamespace, shape: Any) -> int:
        if a.dim is not None:
            return axis_of(a.dim, shape)
        if 3 not in shape:
            raise ShapeError(f"its inputs make the shape {shape}, which has no axis of extent 3")
        return shape.index(3)

    @classmethod
    def infer(cls, a: SimpleNamespace) -> TensorSpec:
        shape = broadcast(a.input, a.other)
        axis = cls._axis(a, shape)
        if a.input.rank != a.other.rank or {a.input.shape[axis], a.other.shape[axis]} != {3}:
            raise ShapeError(
                f"its inputs have shapes {a.input.shape} and {a.other.shape}, expected equal ranks "
                f"and extents of 3 along axis {axis}"
            )
        return TensorSpec(shape, result_type([a.input, a.other]))

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        y = b.output()
        axis = cls._axis(a, y.shape)
        if y.size == 0:
            return
        if not a.input.dtype == a.other.dtype == np.float32:
            b.python(lambda u, v: _cross(u, v, axis, y.dtype), [a.input, a.other], [y])
            return
        tree = Call("sub", [Call("mul", [Ref(0), Ref(1)]), Call("mul", [Ref(2), Ref(3)])])
        for i in range(3):
            j, k = (i + 1) % 3, (i + 2) % 3
            place = y.narrow(axis, i, 1)
            parts = [
                value.narrow(axis, index, 1)
                for value, index in ((a.input, j), (a.other, k), (a.input, k), (a.other, j))
            ]
            program = fold(tree, parts)
            parts = [part.expand(place.shape) for part in parts]
            b.step(elementwise.ElementwiseStep(program, parts, place))


def _cross(u: np.ndarray, v: np.ndarray, axis: int, dtype: np.dtype) -> np.ndarray:
    u, v = (np.moveaxis(convert(w, dtype), axis, 0) for w in (u, v))
    parts = [u[(i + 1) % 3] * v[(i + 2) % 3] - u[(i + 2) % 3] * v[(i + 1) % 3] for i in range(3)]
    return np.stack(parts, axis)


@record("torch.cross", "Tensor.cross")
class Cross(_CrossProduct):
    """Cross products of the vectors along an axis of extent 3, the first such one by default.

    Source: torch.cross.
    """

    arguments = (Tensor("input"), Tensor("other"), Int("dim", None, nullable=True))


@record("aten::linalg_cross")
class LinalgCross(_CrossProduct):
    """Cross products of the vectors along an axis of extent 3.

    Source: torch.linalg.cross.
    """

    arguments = (Tensor("input"), Tensor("other"), Int("dim", -1))


@record("aten::kron")
class Kron(NumpyRecord):
    """Each element of one tensor times the whole of another, side by side.

    Source: torch.kron.
    """

    batch = NoBatchRule("it multiplies each element with all others")
    arguments = (Tensor("input"), Tensor("other"))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        rank = max(a.input.rank, a.other.rank)
        x, y = ((1,) * (rank - len(s)) + s for s in (a.input.shape, a.other.shape))
        shape = [n * m for n, m in zip(x, y, strict=True)]
        return TensorSpec(shape, result_type([a.input, a.other]))

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.kron(a.input, a.other)


# -- norms and powers --------------------------------------------------------------------------


class _LinalgNorm(Norm):
    """Base of the norms that may be of matrices; those of singular values are refused."""

    @staticmethod
    def as_vector(a: SimpleNamespace) -> SimpleNamespace:
        """Return the arguments of torch.norm for it."""
        raise NotImplementedError

    @classmethod
    def infer(cls, a: SimpleNamespace) -> Any:
        same = cls.as_vector(a)
        if not isinstance(same.p, str) and same.of_matrices is not None:
            _, outer = cls._sides(same)
            if a.input.shape[outer] == 0:
                raise ShapeError(f"the input has shape {a.input.shape}, nothing to choose from")
        return super().infer(same)

    @staticmethod
    def _sides(same: SimpleNamespace) -> tuple[int, int]:
        """Return the axis to sum along and the one to choose from, in norms of matrices."""
        rows, columns = same.dim
        # The sums of columns for 1, of rows for infinity.
        return (rows, columns) if abs(same.p) == 1 else (columns, rows)

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        same = cls.as_vector(a)
        if isinstance(same.p, str) or same.of_matrices is None:
            super().bind(same, b)
            return
        x, p = a.input, same.p
        function = np.max if p > 0 else np.min
        inner, outer = cls._sides(same)

        def norm(array: Any) -> Any:
            sums = np.abs(array).sum(axis=inner, keepdims=True)
            y = function(sums, axis=outer, keepdims=True)
            return y if a.keepdim else np.squeeze(y, (inner, outer))

        b.python(norm, [x], [b.output()])


def _matrix_norm(a: SimpleNamespace, order: Any, dims: Any) -> SimpleNamespace:
    rank = a.input.rank
    if rank < 2 or len(dims) != 2:
        raise ShapeError(f"the input has shape {a.input.shape}, expected matrices")
    dims = axes_of(dims, a.input.shape)
    same = SimpleNamespace(
        input=a.input, p=order, dim=dims, keepdim=a.keepdim, dtype=None, n_outputs=1,
        of_matrices=None,
    )  # fmt: skip
    if order in ("fro", None):
        same.p = "fro"
    elif isinstance(order, int | float) and abs(order) in (1, math.inf):
        same.p = same.of_matrices = float(order)
    else:
        raise ShapeError(
            f"'ord' is {order!r}: norms of singular values are not supported, expected fro, 1, -1, "
            "inf or -inf"
        )
    return same


_NORM_ENDS = (Bool("keepdim", False), AnyArgument("dtype", None))


@record("aten::linalg_norm")
class LinalgNorm(_LinalgNorm):
    """A norm of the vectors along an axis, or of the matrices of two axes.

    Source: torch.linalg.norm.
    """

    arguments = (
        Tensor("input"),
        AnyArgument("ord", None),
        Ints("dim", default=None, nullable=True),
        *_NORM_ENDS,
    )

    @staticmethod
    def as_vector(a: SimpleNamespace) -> Any:
        dim = a.dim
        if a.ord is not None and ((dim is None and a.input.rank == 2) or (dim and len(dim) == 2)):
            return _matrix_norm(a, a.ord, (0, 1) if dim is None else dim)
        return SimpleNamespace(
            input=a.input, p=2.0 if a.ord is None else a.ord, dim=dim, keepdim=a.keepdim,
            dtype=None, n_outputs=1, of_matrices=None,
        )  # fmt: skip


@record("aten::linalg_matrix_norm")
class LinalgMatrixNorm(_LinalgNorm):
    """A norm of matrices: ``fro``, or the largest or least sum of absolute values.

    Source: torch.linalg.matrix_norm.
    """

    arguments = (
        Tensor("input"),
        AnyArgument("ord", "fro"),
        Ints("dim", default=(-2, -1)),
        *_NORM_ENDS,
    )

    @staticmethod
    def as_vector(a: SimpleNamespace) -> Any:
        return _matrix_norm(a, a.ord, a.dim)


@record("aten::linalg_vector_norm")
class LinalgVectorNorm(_LinalgNorm):
    """The norm of all elements, or along some axes.

    Source: torch.linalg.vector_norm.
    """

    arguments = (
        Tensor("input"),
        Scalar("ord", 2),
        Ints("dim", default=None, nullable=True),
        *_NORM_ENDS,
    )

    @staticmethod
    def as_vector(a: SimpleNamespace) -> Any:
        return SimpleNamespace(
            input=a.input, p=a.ord, dim=a.dim, keepdim=a.keepdim, dtype=None, n_outputs=1,
            of_matrices=None,
        )  # fmt: skip


@record("aten::linalg_vecdot")
class VecDot(KernelRecord):
    """Dot products of the vectors along an axis.

    Source: torch.linalg.vecdot.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (Tensor("input"), Tensor("other"), Int("dim", -1))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        shape = broadcast(a.input, a.other)
        axis = axis_of(a.dim, shape)
        if a.input.dtype != a.other.dtype:
            raise ShapeError(f"its operands are {a.input.dtype} and {a.other.dtype}")
        return TensorSpec((*shape[:axis], *shape[axis + 1 :]), a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return (np.conj(a.input) * a.other).sum(a.dim)

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        shape = broadcast(a.input, a.other)
        if a.input.dtype != np.float32 or 0 in shape:
            cls.in_numpy(a, b)
            return
        products = b.temporary(shape)
        write_tree(b, Call("mul", [Ref(0), Ref(1)]), [a.input, a.other], products)
        bind_reduction(b, products, (axis_of(a.dim, shape),), False, "sum")


@record("aten::linalg_vander")
class LinalgVander(NumpyRecord):
    """The powers of each element, from 0 on, along a new last axis.

    Source: torch.linalg.vander.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (Tensor("input"), Int("N", None, minimum=1, nullable=True))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        count = a.N or (a.input.shape[-1] if a.input.rank else 1)
        return TensorSpec((*a.input.shape, count), a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        count = a.N or (a.input.shape[-1] if a.input.ndim else 1)
        return a.input[..., np.newaxis] ** np.arange(count)


@record("aten::renorm")
class ReNorm(NumpyRecord):
    """The slices along an axis, those whose p-norm is above `maxnorm` scaled down to it.

    Source: torch.renorm.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (Tensor("input"), Scalar("p"), Int("dim"), Scalar("maxnorm"))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        axis_of(a.dim, a.input.shape)
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        axis = a.dim % a.input.ndim
        others = tuple(d for d in range(a.input.ndim) if d != axis)
        norms = norm_of(a.input, float(a.p), others, True)
        return a.input * np.where(norms > a.maxnorm, a.maxnorm / (norms + 1e-7), 1)


@record("aten::linalg_matrix_power")
class MatrixPower(NumpyRecord):
    """Square matrices to the power of an integer.

    Source: torch.linalg.matrix_power.
    """

    batch = "last_two_axes"
    arguments = (Tensor("input"), Int("n", minimum=0))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        if a.input.rank < 2 or a.input.shape[-1] != a.input.shape[-2]:
            raise ShapeError(f"the input has shape {a.input.shape}, expected square matrices")
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.linalg.matrix_power(a.input, a.n)
