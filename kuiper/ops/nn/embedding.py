"""Embeddings: rows of a table by index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._kernels.data.indexing import EmbeddingBagStep
from kuiper._kernels.data.move import FillStep
from kuiper._runtime.step import ERROR_SLOT_BYTES
from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord, checked_index
from kuiper.ops.core.record import NoBatchRule, T, record
from kuiper.ops.core.schema import AnyArgument, Bool, Int, Tensor, ValuesNeeded
from kuiper.ops.core.typed import cast
from kuiper.ops.tensor.strided import INT64, IndexedView

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["Embedding", "EmbeddingBag", "OneHot"]


def _aligned(b: Binder, table: TensorView) -> TensorView:
    """Return a constant table as an aligned copy that all plans share, another table as it is."""
    if not table.is_constant:
        return table
    return b.cached("table", lambda: np.require(table.constant, table.dtype, ["C", "A"]))


@record("nn.Embedding", "F.embedding")
class Embedding(KernelRecord[T]):
    """Rows of a table: ``y = weight[input]``.

    Source: torch.nn.Embedding.

    Raises
    ------
    ShapeError
        If the input is not of integers, or `max_norm` is set.
    """

    input: T = Tensor()
    weight: T = Tensor(rank=2)
    num_embeddings: int | None = Int(None)
    embedding_dim: int | None = Int(None)
    padding_idx: Any = AnyArgument(None)
    max_norm: Any = AnyArgument(None)
    norm_type: Any = AnyArgument(None)
    scale_grad_by_freq: bool = Bool(False)
    sparse: bool = Bool(False)

    def result(self: Embedding[TensorSpec]) -> TensorSpec:
        if self.input.dtype.kind not in "iu":
            raise ShapeError(f"the input is {self.input.dtype}, expected integers")
        if self.max_norm is not None:
            raise ShapeError(f"'max_norm' is {self.max_norm}, expected None")
        return TensorSpec((*self.input.shape, self.weight.shape[1]), self.weight.dtype)

    def compute(self: Embedding[np.ndarray]) -> Any:
        return self.weight[checked_index(self.input, len(self.weight))]

    def steps(self: Embedding[TensorView], b: Binder) -> None:
        y = b.output()
        subscript = IndexedView(b, _aligned(b, self.weight), y.shape, [(y.rank - 1, 1)])
        subscript.add(self.input, 0, range(y.rank - 1))
        subscript.gather(y)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        c.require_shared(c.a.weight)
        return c.first_batch(c.a.input)


@record("aten::one_hot")
class OneHot(KernelRecord[T]):
    """``y[..., k] = 1 if input[...] == k else 0``.

    A `num_classes` of -1 stands for the largest number plus 1.
    Source: torch.nn.functional.one_hot.

    Raises
    ------
    ShapeError
        If `num_classes` is -1 and the input is empty.
    """

    batch = "like_input"
    data_dependent = True
    input: T = Tensor()
    num_classes: int = Int(-1)

    def result(self: OneHot[TensorSpec]) -> TensorSpec:
        count = self.num_classes
        if count < 0:
            if not self.input.is_constant:
                raise ValuesNeeded("the number of classes depends on its input")
            if self.input.size == 0:
                raise ShapeError("'num_classes' is -1, but there is nothing to count")
            count = int(np.max(np.asarray(self.input.constant))) + 1
        return TensorSpec((*self.input.shape, count), np.int64)

    def compute(self: OneHot[np.ndarray]) -> Any:
        count = int(self.input.max()) + 1 if self.num_classes < 0 else self.num_classes
        checked_index(self.input, count)
        return self.input[..., np.newaxis] == np.arange(count)

    def steps(self: OneHot[TensorView], b: Binder) -> None:
        y = b.output()
        b.step(FillStep(y, 0))
        axes = range(self.input.rank)
        subscript = IndexedView(b, y, self.input.shape, [(d, d) for d in axes])
        subscript.add(self.input, self.input.rank, axes)
        subscript.scatter(b.constant(np.ones((), INT64)))


@record("aten::embedding_bag")
class EmbeddingBag(KernelRecord[T]):
    """The sum, mean or maximum of the table rows of each bag.

    Bag k holds the indices from ``offsets[k]`` to ``offsets[k + 1]``; `mode` is 0 for the sum, 1
    for the mean, 2 for the maximum.  PyTorch's other three outputs serve the gradient.
    Source: torch.nn.EmbeddingBag.

    Raises
    ------
    ShapeError
        If the weight is not of floats.
    """

    batch = NoBatchRule("its offsets point into one list of all members")
    weight: T = Tensor(rank=2)
    indices: T = Tensor(rank=1)
    offsets: T = Tensor(rank=1)
    scale_grad_by_freq: bool = Bool(False)
    mode: int = Int(0)
    sparse: bool = Bool(False)
    per_sample_weights: T | None = Tensor(optional=True)
    include_last_offset: bool = Bool(False)
    padding_idx: int | None = Int(None, nullable=True)

    def result(self: EmbeddingBag[TensorSpec]) -> Any:
        bags, width = self.offsets.size - self.include_last_offset, self.weight.shape[1]
        if self.weight.dtype.kind != "f":
            raise ShapeError(f"the weight is {self.weight.dtype}, expected floats")
        return (
            TensorSpec((bags, width), self.weight.dtype),
            TensorSpec(self.indices.shape, np.int64),
            TensorSpec((bags,), np.int64),
            TensorSpec((bags, width) if self.mode == 2 else (bags,), np.int64),
        )

    def compute(self: EmbeddingBag[np.ndarray]) -> Any:
        bags, width = self.offsets.size - self.include_last_offset, self.weight.shape[1]
        positions = np.arange(self.indices.size)
        bag = np.searchsorted(self.offsets[:bags], positions, side="right") - 1
        rows = self.weight[checked_index(self.indices, len(self.weight))]
        if self.per_sample_weights is not None:
            rows = rows * self.per_sample_weights[:, np.newaxis]
        counted = np.full(self.indices.shape, True)
        if self.padding_idx is not None:
            counted = self.indices != self.padding_idx % len(self.weight)
        sizes = np.bincount(bag[counted], minlength=bags)
        y = np.full((bags, width), -np.inf if self.mode == 2 else 0, self.weight.dtype)
        (np.maximum if self.mode == 2 else np.add).at(y, bag[counted], rows[counted])
        if self.mode == 2:
            y[sizes == 0] = 0
        if self.mode == 1:
            y /= np.maximum(sizes, 1).astype(y.dtype)[:, np.newaxis]
        largest = np.zeros((bags, width) if self.mode == 2 else bags, np.int64)
        return y, bag, sizes, largest

    def steps(self: EmbeddingBag[TensorView], b: Binder) -> None:
        used = any(operand.uses for operand in b.operator.outputs[1 : self.n_outputs])
        if self.weight.dtype != np.float32 or used or 0 in self.weight.shape:
            self.in_numpy(b)
            return
        outputs = [b.output(index) for index in range(self.n_outputs)]
        if outputs[0].size == 0:
            return
        table, weights = _aligned(b, self.weight), self.per_sample_weights
        rows = table.shape[0]
        label = b.operator.label.replace("{", "{{").replace("}", "}}")
        message = f"{label}: index {{}} is out of range for an axis of extent {rows}"
        b.step(
            EmbeddingBagStep(
                b.contiguous(table), b.contiguous(cast(b, self.indices, INT64)),
                b.contiguous(cast(b, self.offsets, INT64)),
                None if weights is None else b.contiguous(weights),
                outputs[0], self.mode, -1 if self.padding_idx is None else self.padding_idx % rows,
                b.context_state(ERROR_SLOT_BYTES), message,
            )
        )  # fmt: skip
