"""Linear layers and matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._kernels.linear import linear
from kuiper._kernels.micro import packing
from kuiper._kernels.micro.packed import PackedMatrix
from kuiper.errors import ShapeError
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import Layout, TensorSpec, TensorView, shares_cache_sets
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.epilogue import make_epilogue, residual_view
from kuiper.ops.core.record import FOLLOWS, STARTS, Record, T, record
from kuiper.ops.core.schema import Int, Tensor
from kuiper.ops.product.algorithms.strassen import strassen_refusal, strassen_step

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["Linear", "Matmul", "product"]

# From this size on, rows that alias in the L1 cache are copied to padded rows.
MIN_ROWS, MIN_COLUMNS = 16, 512
FLOAT32 = np.dtype(np.float32)


def as_matrix(b: Binder, value: TensorView) -> TensorView:
    """Return (..., k) as a matrix of contiguous rows with one row stride; copies if it must."""
    if value.shape[-1] == 1 or value.strides[-1] == 1:
        rows = value.reshape((math.prod(value.shape[:-1]), value.shape[-1]))
        if rows is not None and (rows.shape[1] == 1 or rows.strides[1] == 1):
            return rows
    return b.contiguous(value).view((math.prod(value.shape[:-1]), value.shape[-1]))


@record("nn.Linear", "F.linear")
class Linear(Record[T]):
    """``y = x @ weight.T + bias`` over the last axis.

    Input (..., in_features), weight (out_features, in_features).  Source: torch.nn.Linear.

    Raises
    ------
    ShapeError
        If the arguments, the bias or the input contradict the weight, or the input is not float32.
    """

    input: T = Tensor()
    weight: T = Tensor(rank=2)
    bias: T | None = Tensor(optional=True)
    in_features: int | None = Int(None, minimum=1)
    out_features: int | None = Int(None, minimum=1)
    post_ops = True
    input_dtype: np.dtype = FLOAT32
    bfloat16 = STARTS

    def infer(self: Linear[TensorSpec]) -> TensorSpec:
        out_features, in_features = self.weight.shape
        for name, got in (("in_features", in_features), ("out_features", out_features)):
            said = getattr(self, name)
            if said is not None and said != got:
                raise ShapeError(
                    f"'{name}' is {said}, but 'weight' {self.weight.shape} makes it {got}"
                )
        if self.bias is not None and self.bias.shape != (out_features,):
            raise ShapeError(f"'bias' has shape {self.bias.shape}, expected ({out_features},)")
        if self.input.rank < 1 or self.input.shape[-1] != in_features:
            raise ShapeError(
                f"the input has shape {self.input.shape}, expected (..., {in_features})"
            )
        if self.input.dtype != self.input_dtype:
            raise ShapeError(f"the input is {self.input.dtype}, expected {self.input_dtype}")
        return TensorSpec((*self.input.shape[:-1], out_features))

    def bind(self: Linear[TensorView], b: Binder) -> None:
        x = as_matrix(b, self.input)
        feeds_linear = b.feeds_only("nn.Linear", "F.linear")
        y = b.output(layout=Layout.PADDED_ROWS if feeds_linear else Layout.CONTIGUOUS)
        rows = y.reshape((x.shape[0], self.weight.shape[0]))
        assert rows is not None  # an output has one row stride
        residual = residual_view(b)
        if residual is not None:
            residual = as_matrix(b, residual)
        in_bfloat16 = BFLOAT16 in (x.dtype, rows.dtype)
        if residual is not None and residual.dtype == BFLOAT16 and not in_bfloat16:
            residual = b.stored(residual, FLOAT32)
        if in_bfloat16:
            from kuiper.ops.product.narrow import linear_pairs

            b.step(linear_pairs(self, b, x, rows, residual))
            return
        epilogue = make_epilogue(b, residual)
        if _strassen_pays(self):
            images = self.input.shape[0]
            step = strassen_step(
                b, _as_images(x, images), _as_images(rows, images),
                Columns(self.weight), lambda: bias_of(self), [(0, 0)], (1, 1), epilogue,
            )  # fmt: skip
            step.saved_flops = 2.0 * rows.size * x.shape[1] - step.flops
            b.step(step)
        else:
            is_large = x.shape[0] >= MIN_ROWS and rows.shape[1] >= MIN_COLUMNS
            if is_large and shares_cache_sets(x.strides[0]):
                x = b.padded_rows(x)
            b.step(linear.LinearStep(x, float_panels(self, b), rows, epilogue))

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        c.require_shared(c.a.weight, c.a.bias)
        batch = c.first_batch(c.a.input)
        c.require(batch.axis != c.a.input.rank - 1)
        return batch


def _strassen_pays(a: Linear[TensorView]) -> bool:
    """Whether rows are pixels, (n, h, w, c), and Strassen's algorithm is faster for them.

    Strassen adds neighbouring rows, which loses precision if one is much larger than the other.
    Adjacent pixels have similar magnitudes; tokens and samples may differ a thousandfold.
    """
    columns, depth = a.weight.shape
    return (
        a.input.rank == 4
        and is_constant(a)
        and not strassen_refusal(math.prod(a.input.shape[1:3]), 1, depth, columns)
    )


def _as_images(rows: TensorView, images: int) -> TensorView:
    """View rows as channels-last images of height 1."""
    (count, channels), step = rows.shape, rows.strides[0]
    line = count // images * step
    return rows.with_layout((images, channels, 1, count // images), (line, 1, line, step))


def is_constant(a: Linear[TensorView]) -> bool:
    return all(v is None or v.is_constant for v in (a.weight, a.bias))


def bias_of(a: Linear[TensorView]) -> np.ndarray | None:
    return None if a.bias is None else np.asarray(a.bias.constant, np.float32)


def float_panels(a: Linear[TensorView], b: Binder) -> TensorView:
    """Return the packed weight; a step packs it if it is computed at run time."""
    columns, depth = a.weight.shape
    matrix = PackedMatrix(columns, depth)
    if is_constant(a):
        return b.packed(
            [matrix],
            lambda out: packing.pack_panels(Columns(a.weight), bias_of(a), b.n_threads, out),
        )
    packed = b.temporary(matrix.shape)
    weight = b.contiguous(b.stored(a.weight, FLOAT32))
    bias = None if a.bias is None else b.contiguous(b.stored(a.bias, FLOAT32))
    taps = b.constant(np.zeros(1, np.intp))
    strides = (0, depth, 1)  # of groups, columns and terms
    b.step(packing.PackStep(weight, bias, packed, taps, 1, columns, 1, depth, strides))
    return packed


class Columns:
    """A constant weight as (columns, 1, terms), widened slice by slice."""

    def __init__(self, weight: TensorView) -> None:
        self.shape = (weight.shape[0], 1, weight.shape[1])
        self._weight = weight

    @property
    def in_file(self) -> Any:
        """The reader of the weight in a file, None if it is not in one."""
        return self._weight.in_file

    def __getitem__(self, rows: slice) -> np.ndarray:
        values = np.asarray(self._weight.rows(rows.start, rows.stop), np.float32)
        return values[:, np.newaxis, :]


@record("torch.matmul", "torch.mm", "torch.bmm", "torch.mv")
class Matmul(Record[T]):
    """Matrix product with the broadcasting rules of ``torch.matmul``.

    A 1-d first operand is a row, a 1-d second one a column; the result has no axis for it.
    Source: torch.matmul, torch.mm, torch.bmm, torch.mv.

    Raises
    ------
    ShapeError
        If the shapes do not fit or the element types differ.
    """

    input: T = Tensor()
    other: T = Tensor(aliases=("mat2", "vec"))
    bfloat16 = FOLLOWS

    def infer(self: Matmul[TensorSpec]) -> TensorSpec:
        x, y = _matrix_shapes(self.input.shape, self.other.shape)
        if self.input.rank == 0 or self.other.rank == 0 or x[-1] != y[-2]:
            raise ShapeError(f"cannot multiply {self.input.shape} by {self.other.shape}")
        if self.input.dtype != self.other.dtype:
            raise ShapeError(f"cannot multiply {self.input.dtype} by {self.other.dtype}")
        try:
            batch = np.broadcast_shapes(x[:-2], y[:-2])
        except ValueError:
            raise ShapeError(f"cannot multiply {self.input.shape} by {self.other.shape}") from None
        shape = (*batch, x[-2], y[-1])
        if self.other.rank == 1:
            shape = shape[:-1]
        if self.input.rank == 1:
            shape = (*shape[:-2], shape[-1]) if self.other.rank != 1 else shape[:-1]
        return TensorSpec(shape, self.input.dtype)

    def bind(self: Matmul[TensorView], b: Binder) -> None:
        if self.input.dtype not in (FLOAT32, BFLOAT16):
            b.python(np.matmul, [self.input, self.other], [b.output()])
            return
        x_shape, y_shape = _matrix_shapes(self.input.shape, self.other.shape)
        x, y = self.input, self.other
        if x.rank == 1:
            x = x.with_layout(x_shape, (x.shape[0] * x.strides[0], x.strides[0]))
        if y.rank == 1:
            y = y.with_layout(y_shape, (y.strides[0], 0))
        out = b.output()
        batch = np.broadcast_shapes(x_shape[:-2], y_shape[:-2])
        out = out.view((*batch, x_shape[-2], y_shape[-1]))
        product(b, x, y, out)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        x, y, rank = c.a.input, c.a.other, c.outputs[0].rank
        left, right = c.batch_of(x), c.batch_of(y)
        if left and right:
            return c.broadcast([x, y], rank, last_axes=2)
        if right:
            c.require(y.rank >= 2 and right.axis != y.rank - 2)
            if right.axis == y.rank - 1:
                c.require(x.rank <= 2 or x.rank == rank)
                return right._replace(axis=rank - 1)
            return c.broadcast([x, y], rank, last_axes=2)
        left = c.first_batch(x)
        c.require(x.rank >= 2 and left.axis != x.rank - 1)
        if left.axis == x.rank - 2:
            return left._replace(axis=rank - 1 if y.rank == 1 else rank - 2)
        return left if y.rank <= 2 else c.broadcast([x, y], rank, last_axes=2)


def _matrix_shapes(x: Any, y: Any) -> Any:
    return ((1, *x) if len(x) == 1 else x), ((*y, 1) if len(y) == 1 else y)


def _has_pairs(y: TensorView) -> bool:
    """Tell whether the elements of rows are adjacent, or those of columns, in aligned pairs."""
    *leading, depth, _ = y.strides
    if y.strides[-1] == 1:
        return True
    numbers = (y.offset, y.shape[-2], y.strides[-1], *leading)
    return depth == 1 and all(number % 2 == 0 for number in numbers)


def product(b: Binder, x: TensorView, y: TensorView, out: TensorView) -> None:
    """Add the step for ``out = x @ y``; the rows of `out` must be contiguous.

    The matrices are multiplied in bfloat16 if any of the three is stored so.
    """
    in_pairs = BFLOAT16 in (x.dtype, y.dtype, out.dtype)
    step_of: Any = linear.MatmulStep
    if in_pairs:
        x, y, step_of = b.stored(x, BFLOAT16), b.stored(y, BFLOAT16), linear.PairMatmulStep
        if y.shape[-1] == 1:
            y = y.with_layout(y.shape, (*y.strides[:-1], 1))
        if not _has_pairs(y):
            y = b.contiguous(y)
    if x.shape[-1] != 1 and x.strides[-1] != 1:
        x = b.contiguous(x)
    batch = out.shape[:-2]
    x = x.expand((*batch, *x.shape[-2:]))
    y = y.expand((*batch, *y.shape[-2:]))
    if all(s == 0 or n == 1 for s, n in zip(y.strides[:-2], batch, strict=True)) and y.rank > 2:
        # All members share the matrix y, so the rows of all x form one tall matrix.
        tall = x.reshape((math.prod(batch) * x.shape[-2], x.shape[-1]))
        flat = out.reshape((math.prod(batch) * out.shape[-2], out.shape[-1]))
        if tall is not None and flat is not None and (tall.shape[1] == 1 or tall.strides[1] == 1):
            x, out = tall, flat
            y = y.with_layout(y.shape[-2:], y.strides[-2:])
    x, y, out = merge_leading([x, y, out])
    if out.rank - 2 > linear.max_batch_axes:
        # x and y are broadcast along different axes, which cannot be merged: copy both.
        dense = out if out.is_contiguous else b.temporary(out.shape, out.dtype)
        merged = merge_leading([b.contiguous(x), b.contiguous(y), dense])
        b.step(step_of(*merged, b.scratch(PackedMatrix(1, x.shape[-1]).panel_bytes)))
        if dense is not out:
            b.copy(dense, out)
        return
    b.step(step_of(x, y, out, b.scratch(PackedMatrix(1, x.shape[-1]).panel_bytes)))


def merge_leading(values: Sequence[TensorView]) -> list[TensorView]:
    """Merge adjacent leading axes wherever the strides of all values allow it.

    The values have equal leading axes, before the last two.
    """
    values = list(values)
    for axis in range(values[0].rank - 4, -1, -1):
        extent, inner = values[0].shape[axis : axis + 2]
        if extent == 1 or all(v.strides[axis] == v.strides[axis + 1] * inner for v in values):
            values = [
                v.with_layout(
                    (*v.shape[:axis], extent * inner, *v.shape[axis + 2 :]),
                    (*v.strides[:axis], *v.strides[axis + 1 :]),
                )
                for v in values
            ]
    return values
