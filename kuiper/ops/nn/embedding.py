"""Embeddings: rows of a table by number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._kernels.data.indexing import EmbeddingBagStep
from kuiper._kernels.data.move import FillStep
from kuiper._runtime.step import ERROR_SLOT_BYTES
from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord, checked_index
from kuiper.ops.core.record import NoBatchRule, record
from kuiper.ops.core.schema import AnyArgument, Bool, Int, Tensor, ValuesNeeded
from kuiper.ops.core.typed import cast
from kuiper.ops.tensor.strided import INT64, IndexedView

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "OneHot",
]


@record("nn.Embedding", "F.embedding")
class Embedding(KernelRecord):
    """Rows of a table: ``y = weight[input]``.

    Source: torch.nn.Embedding.
    """

    arguments = (
        Tensor("input"),
        Tensor("weight", rank=2),
        Int("num_embeddings", None),
        Int("embedding_dim", None),
        AnyArgument("padding_idx", None),
        AnyArgument("max_norm", None),
        AnyArgument("norm_type", None),
        Bool("scale_grad_by_freq", False),
        Bool("sparse", False),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        if a.input.dtype.kind not in "iu":
            raise ShapeError(f"the input is {a.input.dtype}, expected integers")
        if a.max_norm is not None:
            raise ShapeError(f"'max_norm' is {a.max_norm}, expected None")
        return TensorSpec((*a.input.shape, a.weight.shape[1]), a.weight.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return a.weight[checked_index(a.input, len(a.weight))]

    @staticmethod
    def steps(a: SimpleNamespace, b: Binder) -> None:
        table = a.weight
        if table.is_constant:
            # One aligned copy for all plans: tables are large.
            table = b.cached(
                "table", lambda: np.require(a.weight.constant, a.weight.dtype, ["C", "A"])
            )
        y = b.output()
        subscript = IndexedView(b, table, y.shape, [(y.rank - 1, 1)])
        subscript.add(a.input, 0, range(y.rank - 1))
        subscript.gather(y)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        c.require_shared(c.a.weight)
        return c.first_batch(c.a.input)


@record("aten::one_hot")
class OneHot(KernelRecord):
    """One number becomes a row of zeros with a one at its place.

    As many places as the largest number needs where `num_classes` is -1.
    Source: torch.nn.functional.one_hot.
    """

    batch = "like_input"
    data_dependent = True
    arguments = (Tensor("input"), Int("num_classes", -1))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        count = a.num_classes
        if count < 0:
            if not a.input.is_constant:
                raise ValuesNeeded("the number of classes depends on its input")
            if a.input.size == 0:
                raise ShapeError("'num_classes' is -1, but there is nothing to count")
            count = int(np.max(a.input.constant)) + 1
        return TensorSpec((*a.input.shape, count), np.int64)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        count = int(a.input.max()) + 1 if a.num_classes < 0 else a.num_classes
        checked_index(a.input, count)
        return a.input[..., np.newaxis] == np.arange(count)

    @staticmethod
    def steps(a: SimpleNamespace, b: Binder) -> None:
        y = b.output()
        b.step(FillStep(y, 0))
        axes = range(a.input.rank)
        subscript = IndexedView(b, y, a.input.shape, [(d, d) for d in axes])
        subscript.add(a.input, a.input.rank, axes)
        subscript.scatter(b.constant(np.ones((), INT64)))


@record("aten::embedding_bag")
class EmbeddingBag(KernelRecord):
    """The sum, mean or maximum of the table rows of each bag.

    Bag k holds the indices from ``offsets[k]`` to ``offsets[k + 1]``; `mode` is 0 for the sum, 1
    for the mean, 2 for the maximum.  PyTorch's other three outputs serve the gradient.
    Source: torch.nn.EmbeddingBag.
    """

    batch = NoBatchRule("the bags count places in the list of all members")
    arguments = (
        Tensor("weight", rank=2),
        Tensor("indices", rank=1),
        Tensor("offsets", rank=1),
        Bool("scale_grad_by_freq", False),
        Int("mode", 0),
        Bool("sparse", False),
        Tensor("per_sample_weights", optional=True),
        Bool("include_last_offset", False),
        Int("padding_idx", None, nullable=True),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> Any:
        bags, width = a.offsets.size - a.include_last_offset, a.weight.shape[1]
        if a.weight.dtype.kind != "f":
            raise ShapeError(f"the weight is {a.weight.dtype}, expected floats")
        return (
            TensorSpec((bags, width), a.weight.dtype),
            TensorSpec(a.indices.shape, np.int64),
            TensorSpec((bags,), np.int64),
            TensorSpec((bags, width) if a.mode == 2 else (bags,), np.int64),
        )

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        bags, width = a.offsets.size - a.include_last_offset, a.weight.shape[1]
        places = np.arange(a.indices.size)
        bag = np.searchsorted(a.offsets[:bags], places, side="right") - 1
        rows = a.weight[checked_index(a.indices, len(a.weight))]
        if a.per_sample_weights is not None:
            rows = rows * a.per_sample_weights[:, np.newaxis]
        counted = np.full(a.indices.shape, True)
        if a.padding_idx is not None:
            counted = a.indices != a.padding_idx % len(a.weight)
        sizes = np.bincount(bag[counted], minlength=bags)
        y = np.full((bags, width), -np.inf if a.mode == 2 else 0, a.weight.dtype)
        (np.maximum if a.mode == 2 else np.add).at(y, bag[counted], rows[counted])
        if a.mode == 2:
            y[sizes == 0] = 0
        if a.mode == 1:
            y /= np.maximum(sizes, 1).astype(y.dtype)[:, np.newaxis]
        largest = np.zeros((bags, width) if a.mode == 2 else bags, np.int64)
        return y, bag, sizes, largest

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        used = any(operand.uses for operand in b.operator.outputs[1 : a.n_outputs])
        if a.weight.dtype != np.float32 or used or 0 in a.weight.shape:
            cls.in_numpy(a, b)
            return
        outputs = [b.output(index) for index in range(a.n_outputs)]
        if outputs[0].size == 0:
            return
        table = a.weight
        if table.is_constant:
            table = b.cached("table", lambda: np.require(a.weight.constant, np.float32, ["C", "A"]))
        rows, weights = a.weight.shape[0], a.per_sample_weights
        label = b.operator.label.replace("{", "{{").replace("}", "}}")
        message = f"{label}: index {{}} is out of range for an axis of extent {rows}"
        b.step(
            EmbeddingBagStep(
                b.contiguous(table), b.contiguous(cast(b, a.indices, INT64)),
                b.contiguous(cast(b, a.offsets, INT64)),
                None if weights is None else b.contiguous(weights),
                outputs[0], a.mode, -1 if a.padding_idx is None else a.padding_idx % rows,
                b.context_state(ERROR_SLOT_BYTES), message,
            )
        )  # fmt: skip
