"""Tensors that combine the elements of others: block diagonals, products, powers."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from kuiper._kernels.data.move import FillStep
from kuiper.errors import ShapeError
from kuiper.expression.promotion import result_type
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.axes import split_axis
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import NumpyRecord
from kuiper.ops.core.record import NoBatchRule, Record, record
from kuiper.ops.core.schema import (
    Bool,
    Int,
    Tensor,
    TensorList,
)
from kuiper.ops.tensor.concat import check_tensors

__all__ = ["BlockDiagonal", "CartesianProduct", "Combinations", "Vander"]


@record("aten::block_diag")
class BlockDiagonal(Record):
    """A block-diagonal matrix; a vector counts as a row.

    Source: torch.block_diag.

    Raises
    ------
    ShapeError
        If an input has more than two axes.
    """

    batch = NoBatchRule("it makes one matrix")
    arguments = (TensorList("tensors"),)

    @staticmethod
    def _blocks(a: SimpleNamespace) -> list[tuple[int, int]]:
        if any(tensor.rank > 2 for tensor in a.tensors):
            raise ShapeError(f"its inputs are {a.tensors}, expected two axes or less")
        return [(1, 1, *tensor.shape)[-2:] for tensor in a.tensors]

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        blocks = BlockDiagonal._blocks(a)
        shape = tuple(map(sum, zip(*blocks, strict=True))) if blocks else (1, 0)
        return TensorSpec(shape, result_type(list(a.tensors)))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        y = b.output()
        if y.size == 0:
            return
        b.step(FillStep(y, 0))
        row = column = 0
        for tensor, (height, width) in zip(a.tensors, BlockDiagonal._blocks(a), strict=True):
            target = y.narrow(0, row, height).narrow(1, column, width)
            row, column = row + height, column + width
            if target.size == 0:
                continue
            if tensor.dtype != y.dtype:
                b.python(lambda x, s=(height, width): x.reshape(s), [tensor], [target])
            else:
                # A shape with axes of extent 1 put in is always a view.
                b.copy(tensor.reshape((height, width)), target)


@record("aten::cartesian_prod")
class CartesianProduct(Record):
    """The Cartesian product of vectors as rows; the last vector varies fastest.

    Source: torch.cartesian_prod.

    Raises
    ------
    ShapeError
        If an input is no vector, or the types differ.
    """

    batch = NoBatchRule("it combines all elements")
    arguments = (TensorList("tensors"),)

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        if not a.tensors or any(tensor.rank > 1 for tensor in a.tensors):
            raise ShapeError(f"its inputs are {a.tensors}, expected vectors")
        check_tensors(a.tensors)
        if any(tensor.dtype != a.tensors[0].dtype for tensor in a.tensors):
            raise ShapeError(f"its inputs are {a.tensors}, expected one type")
        count = math.prod(tensor.size for tensor in a.tensors)
        alone = len(a.tensors) == 1
        return TensorSpec((count,) if alone else (count, len(a.tensors)), a.tensors[0].dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        if len(a.tensors) == 1:
            b.alias(a.tensors[0].reshape((a.tensors[0].size,)))
            return
        y = b.output()
        if y.size == 0:
            return
        sizes = [tensor.size for tensor in a.tensors]
        grid = split_axis(y, 0, sizes)
        for number, tensor in enumerate(a.tensors):
            strides = [0] * len(sizes)
            strides[number] = tensor.strides[0] if tensor.rank else 0
            b.copy(tensor.with_layout(sizes, strides), grid.select(len(sizes), number))


@record("aten::combinations")
class Combinations(NumpyRecord):
    """The combinations of `r` elements of a vector, as rows.

    Source: torch.combinations.
    """

    batch = NoBatchRule("it combines all elements")
    arguments = (Tensor("input", rank=1), Int("r", 2, minimum=0), Bool("with_replacement", False))

    @staticmethod
    def _places(a: SimpleNamespace) -> np.ndarray:
        choose: Any = itertools.combinations
        if a.with_replacement:
            choose = itertools.combinations_with_replacement
        rows = list(choose(range(a.input.shape[0]), a.r))
        return np.array(rows, np.intp).reshape(len(rows), a.r)

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        if a.r == 0:
            return TensorSpec((0,), a.input.dtype)
        n = a.input.shape[0]
        choices = max(n + a.r - 1, 0) if a.with_replacement else n
        return TensorSpec((math.comb(choices, a.r), a.r), a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return a.input[Combinations._places(a)] if a.r else a.input[:0]


@record("aten::vander")
class Vander(NumpyRecord):
    """A Vandermonde matrix: powers from `N` - 1 down to 0, or up if `increasing`.

    Source: torch.vander.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (
        Tensor("input", rank=1),
        Int("N", None, minimum=0, nullable=True),
        Bool("increasing", False),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        dtype = np.dtype(np.int64) if a.input.dtype.kind in "biu" else a.input.dtype
        return TensorSpec((a.input.size, a.input.size if a.N is None else a.N), dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.vander(a.input, a.N, a.increasing)
