"""Tensors that combine elements of others: block diagonals, products, powers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from kuiper._kernels.data.move import FillStep
from kuiper.errors import ShapeError
from kuiper.expression.promotion import result_type
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import split_axis
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import NumpyRecord
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.schema import Bool, Int, Known, Tensor, TensorList
from kuiper.ops.tensor.concat import check_tensors

__all__ = ["BlockDiagonal", "CartesianProduct", "Combinations", "Vander"]


@record("aten::block_diag")
class BlockDiagonal(Record[T]):
    """A block-diagonal matrix; a vector counts as a row.

    Source: torch.block_diag.

    Raises
    ------
    ShapeError
        If an input has more than two axes.
    """

    batch = NoBatchRule("it makes one matrix")
    tensors: tuple[T, ...] = TensorList()

    def _blocks(self: BlockDiagonal[Known]) -> list[tuple[int, ...]]:
        if any(tensor.rank > 2 for tensor in self.tensors):
            raise ShapeError(f"its inputs are {self.tensors}, expected two axes or less")
        return [(1, 1, *tensor.shape)[-2:] for tensor in self.tensors]

    def infer(self: BlockDiagonal[TensorSpec]) -> TensorSpec:
        blocks = self._blocks()
        shape = tuple(map(sum, zip(*blocks, strict=True))) if blocks else (1, 0)
        return TensorSpec(shape, result_type(list(self.tensors)))

    def bind(self: BlockDiagonal[TensorView], b: Binder) -> None:
        y = b.output()
        if y.size == 0:
            return
        b.step(FillStep(y, 0))
        row = column = 0
        for tensor, (height, width) in zip(self.tensors, self._blocks(), strict=True):
            target = y.narrow(0, row, height).narrow(1, column, width)
            row, column = row + height, column + width
            if target.size == 0:
                continue
            if tensor.dtype != y.dtype:
                b.python(lambda x, s=(height, width): x.reshape(s), [tensor], [target])
            else:
                # Inserting axes of extent 1 is always a view.
                b.copy(tensor.view((height, width)), target)


@record("aten::cartesian_prod")
class CartesianProduct(Record[T]):
    """The Cartesian product of vectors as rows; the last vector varies fastest.

    Source: torch.cartesian_prod.

    Raises
    ------
    ShapeError
        If an input is no vector, or the types differ.
    """

    batch = NoBatchRule("it combines all elements")
    tensors: tuple[T, ...] = TensorList()

    def infer(self: CartesianProduct[TensorSpec]) -> TensorSpec:
        if not self.tensors or any(tensor.rank > 1 for tensor in self.tensors):
            raise ShapeError(f"its inputs are {self.tensors}, expected vectors")
        check_tensors(self.tensors)
        if any(tensor.dtype != self.tensors[0].dtype for tensor in self.tensors):
            raise ShapeError(f"its inputs are {self.tensors}, expected one type")
        count = math.prod(tensor.size for tensor in self.tensors)
        alone = len(self.tensors) == 1
        return TensorSpec((count,) if alone else (count, len(self.tensors)), self.tensors[0].dtype)

    def bind(self: CartesianProduct[TensorView], b: Binder) -> None:
        if len(self.tensors) == 1:
            b.alias(self.tensors[0].view((self.tensors[0].size,)))
            return
        y = b.output()
        if y.size == 0:
            return
        sizes = [tensor.size for tensor in self.tensors]
        grid = split_axis(y, 0, sizes)
        for number, tensor in enumerate(self.tensors):
            strides = [0] * len(sizes)
            strides[number] = tensor.strides[0] if tensor.rank else 0
            b.copy(tensor.with_layout(sizes, strides), grid.select(len(sizes), number))


@record("aten::combinations")
class Combinations(NumpyRecord[T]):
    """The combinations of `r` elements of a vector, as rows.

    Source: torch.combinations.
    """

    batch = NoBatchRule("it combines all elements")
    input: T = Tensor(rank=1)
    r: int = Int(2, minimum=0)
    with_replacement: bool = Bool(False)

    def _indices(self: Combinations[Any]) -> np.ndarray:
        choose: Any = itertools.combinations
        if self.with_replacement:
            choose = itertools.combinations_with_replacement
        rows = list(choose(range(self.input.shape[0]), self.r))
        return np.array(rows, np.intp).reshape(len(rows), self.r)

    def result(self: Combinations[TensorSpec]) -> TensorSpec:
        if self.r == 0:
            return TensorSpec((0,), self.input.dtype)
        n = self.input.shape[0]
        choices = max(n + self.r - 1, 0) if self.with_replacement else n
        return TensorSpec((math.comb(choices, self.r), self.r), self.input.dtype)

    def compute(self: Combinations[np.ndarray]) -> Any:
        return self.input[self._indices()] if self.r else self.input[:0]


@record("aten::vander")
class Vander(NumpyRecord[T]):
    """A Vandermonde matrix: powers from `N` - 1 down to 0, or up if `increasing`.

    Source: torch.vander.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    input: T = Tensor(rank=1)
    N: int | None = Int(None, minimum=0, nullable=True)
    increasing: bool = Bool(False)

    def result(self: Vander[TensorSpec]) -> TensorSpec:
        dtype = np.dtype(np.int64) if self.input.dtype.kind in "biu" else self.input.dtype
        return TensorSpec((self.input.size, self.input.size if self.N is None else self.N), dtype)

    def compute(self: Vander[np.ndarray]) -> Any:
        return np.vander(self.input, self.N, self.increasing)
