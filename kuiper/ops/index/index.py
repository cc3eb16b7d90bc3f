"""Indexing with arrays and masks, to read and to write."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.expression.promotion import is_number
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord, NumpyRecord, checked_index, convert
from kuiper.ops.core.record import NoBatchRule, T, record
from kuiper.ops.core.schema import Argument, Bool, Tensor, ValuesNeeded, field
from kuiper.ops.core.typed import cast
from kuiper.ops.index.mask import choose
from kuiper.ops.tensor.strided import NUMBERS, IndexedView, copied

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["Index", "IndexPut", "Put", "Take"]


class _Indices(Argument):
    """The items of ``x[...]``: index arrays, masks, and None for a whole axis.

    Arrays that are constant at export are text (``[None,[2,1],[True,False]]``).
    """

    expected = "a list of indices, masks and None"

    def convert(self, value: Any) -> Any:
        if isinstance(value, str):
            try:
                value = ast.literal_eval(value)
            except SyntaxError:
                raise ValueError from None
        if not isinstance(value, tuple | list):
            raise ValueError
        return tuple(map(self._item, value))

    @staticmethod
    def _item(item: Any) -> Any:
        if item is None or isinstance(item, TensorSpec | TensorView):
            return item
        array = np.array(item if item else np.zeros(0, np.int64))
        if array.dtype.kind not in "bi":
            raise ValueError
        return array


def _is_mask(item: Any) -> bool:
    # PyTorch still accepts uint8 as bool here.
    return item.dtype in (np.bool_, np.uint8)


def _is_unknown_mask(item: Any) -> bool:
    return _is_mask(item) and isinstance(item, TensorView) and item.constant is None


def _mask_length(item: Any) -> int:
    """Return the number of elements that a mask selects."""
    values = item if isinstance(item, np.ndarray) else item.constant
    if values is None:
        raise ValuesNeeded("the shape of its result depends on a mask")
    return int(np.count_nonzero(values))


def _check_mask(number: int, mask: Any, expected: tuple[int, ...]) -> None:
    """Raise ShapeError unless a mask has the extents of the axes that it indexes."""
    if mask.shape != expected:
        raise ShapeError(f"index {number} is a mask of shape {mask.shape}, expected {expected}")


def _indexed_shape(shape: tuple[int, ...], indices: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape of ``x[indices]``.

    The index arrays broadcast together.  Their common axes replace the first indexed axis, or come
    first if a whole axis lies between two index arrays.
    """
    kept: list[int] = []
    arrays, positions = [], []
    axis = 0
    for number, item in enumerate(indices):
        rank = 1
        if item is not None and _is_mask(item):
            rank = len(item.shape)
            _check_mask(number, item, shape[axis : axis + rank])
        if axis + rank > len(shape):
            raise ShapeError(f"there are more indices than axes of an input of shape {shape}")
        if item is None:
            kept.append(shape[axis])
        else:
            arrays.append((_mask_length(item),) if _is_mask(item) else item.shape)
            positions.append((number, len(kept)))
        axis += rank
    rest = (*kept, *shape[axis:])
    try:
        together = np.broadcast_shapes(*arrays)
    except ValueError:
        listed = " and ".join(map(str, arrays))
        raise ShapeError(f"indices of shapes {listed} do not broadcast") from None
    if not positions:
        return rest
    side_by_side = positions[-1][0] - positions[0][0] + 1 == len(positions)
    start = positions[0][1] if side_by_side else 0
    return (*rest[:start], *together, *rest[start:])


def _subscript(indices: Sequence[Any]) -> tuple[Any, ...]:
    """Return indices in the form that numpy takes."""
    return tuple(
        slice(None) if item is None else item.astype(np.bool_) if item.dtype == np.uint8 else item
        for item in indices
    )


def _indexed_list(
    b: Binder, tensor: TensorView, indices: Sequence[Any], shape: Sequence[int]
) -> IndexedView:
    """Return the view of ``tensor[indices]``, whose shape is `shape`."""
    # (axis, index) pairs; a mask becomes the indices of its true elements.
    positions: list[tuple[int, Any]] = []
    gaps, axis = [], 0
    for number, item in enumerate(indices):
        if item is None:
            axis += 1
            continue
        gaps.append(number)
        found = [item]
        if _is_mask(item):
            found = list(np.nonzero(item if isinstance(item, np.ndarray) else item.constant))
        for one in found:
            positions.append((axis, one))
            axis += 1
    rank = max((len(one.shape) for _, one in positions), default=0)
    indexed = {own for own, _ in positions}
    kept = [own for own in range(tensor.rank) if own not in indexed]
    start = 0
    if gaps and gaps[-1] - gaps[0] + 1 == len(gaps):
        start = sum(own < positions[0][0] for own in kept)
    axes = [axis for axis in range(len(shape)) if not start <= axis < start + rank]
    subscript = IndexedView(b, tensor, shape, list(zip(axes, kept, strict=True)), negative=True)
    for own, index in positions:
        lead = rank - len(index.shape)
        subscript.add(index, own, range(start + lead, start + rank))
    return subscript


@record("Tensor.index")
class Index(KernelRecord[T]):
    """``x[indices]`` with index arrays and masks; None selects a whole axis.

    Source: torch.Tensor.__getitem__.

    Raises
    ------
    ShapeError
        If there are too many indices, they do not broadcast, or a mask does not fit its axes.
    ValuesNeeded
        If a mask is computed at run time.
    """

    data_dependent = True
    input: T = Tensor()
    expr: Any = field(_Indices)()

    def result(self: Index[TensorSpec]) -> TensorSpec:
        return TensorSpec(_indexed_shape(self.input.shape, self.expr), self.input.dtype)

    def compute(self: Index[np.ndarray]) -> Any:
        return self.input[_subscript(self.expr)]

    def steps(self: Index[TensorView], b: Binder) -> None:
        y = b.output()
        _indexed_list(b, self.input, self.expr, y.shape).gather(y)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        batch, items = c.first_batch(c.a.input), c.a.expr
        taken = [n for n, item in enumerate(items) if item is not None]
        c.require_shared(*(item for item in items if isinstance(item, TensorSpec)))
        c.require(bool(taken) and batch.axis not in taken)
        # Masks may cover several axes.
        c.require(all(items[n].dtype not in ("bool", "uint8") for n in taken))
        added = c.outputs[0].rank - (c.a.input.rank - len(taken))
        are_adjacent = taken[-1] - taken[0] + 1 == len(taken)
        before = sum(n < batch.axis for n in taken)
        in_front = not are_adjacent or taken[0] < batch.axis
        return batch._replace(axis=batch.axis - before + (added if in_front else 0))


def _spreads(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Tell whether a shape broadcasts to another one."""
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    return len(shape) <= len(whole) and all(n in (1, m) for n, m in pairs)


@record("Tensor.index_put")
class IndexPut(KernelRecord[T]):
    """A copy of the input with ``x[indices] = values``, or ``+= values`` with `accumulate`.

    Source: torch.Tensor.index_put.
    """

    batch = NoBatchRule("its indices may select any member")
    input: T = Tensor()
    indices: Any = field(_Indices)()
    values: Any = Tensor(number=True)
    accumulate: bool = Bool(False)

    def compute(self: IndexPut[np.ndarray]) -> Any:
        y, subscript = self.input.copy(), _subscript(self.indices)
        values = convert(self.values, y.dtype)
        if self.accumulate:
            np.add.at(y, subscript, values)
        else:
            y[subscript] = values
        return y

    def steps(self: IndexPut[TensorView], b: Binder) -> None:
        values = () if is_number(self.values) else self.values.shape
        if any(item is not None and _is_unknown_mask(item) for item in self.indices):
            self._put_by_mask(b, values)
            return
        if self.accumulate and self.input.dtype not in NUMBERS:
            self.in_numpy(b)
            return
        shape = _indexed_shape(self.input.shape, self.indices)
        if not _spreads(values, shape):
            raise ShapeError(f"'values' has shape {values}, expected one that fits {shape}")
        source = cast(b, self.values, self.input.dtype)
        y = copied(b, self.input, source, *self.indices)
        if 0 not in shape:
            kind = "add" if self.accumulate else "put"
            _indexed_list(b, y, self.indices, shape).scatter(source, kind)

    def _put_by_mask(self: IndexPut[TensorView], b: Binder, values: tuple[int, ...]) -> None:
        """Bind a mask that is computed at run time: a choice if the values allow it, else numpy."""
        *whole, mask = self.indices
        axis = len(whole)
        rest = self.input.shape[axis + len(getattr(mask, "shape", ())) :]
        if self.accumulate or any(item is not None for item in whole) or not _spreads(values, rest):
            self.in_numpy(b)
            return
        _check_mask(axis, mask, self.input.shape[axis : axis + mask.rank])
        shape = (*mask.shape, *(1,) * len(rest))
        where = mask.reshape(shape) or b.contiguous(mask).view(shape)
        choose(b, where, self.values, self.input)


@record("aten::take")
class Take(KernelRecord[T]):
    """The elements of the flattened input at `index`.

    Source: torch.take.
    """

    batch = NoBatchRule("its indices count the elements of all members")
    input: T = Tensor()
    index: T = Tensor()

    def result(self: Take[TensorSpec]) -> TensorSpec:
        return TensorSpec(self.index.shape, self.input.dtype)

    def compute(self: Take[np.ndarray]) -> Any:
        flat = self.input.reshape(-1)
        return flat[checked_index(self.index, flat.size, negative=True)]

    def steps(self: Take[TensorView], b: Binder) -> None:
        x, y = b.contiguous(self.input).view((self.input.size,)), b.output()
        subscript = IndexedView(b, x, y.shape, [], negative=True)
        subscript.add(self.index, 0, range(y.rank))
        subscript.gather(y)


@record("aten::put")
class Put(NumpyRecord[T]):
    """A copy of the input with `source` stored in or added to elements of the flattened tensor.

    Source: torch.put.

    Raises
    ------
    ShapeError
        If `source` does not have a value per index, or not the dtype of the input.
    """

    batch = NoBatchRule("its indices count the elements of all members")
    input: T = Tensor()
    index: T = Tensor()
    source: T = Tensor()
    accumulate: bool = Bool(False)

    def result(self: Put[TensorSpec]) -> TensorSpec:
        if self.index.size != self.source.size:
            raise ShapeError(
                f"'source' has shape {self.source.shape}, expected {self.index.size} elements"
            )
        if self.source.dtype != self.input.dtype:
            raise ShapeError(f"'source' is {self.source.dtype}, expected {self.input.dtype}")
        return TensorSpec(self.input.shape, self.input.dtype)

    def compute(self: Put[np.ndarray]) -> Any:
        y = self.input.flatten()
        index = checked_index(self.index.reshape(-1), y.size, negative=True)
        if self.accumulate:
            np.add.at(y, index, self.source.reshape(-1))
        else:
            y[index] = self.source.reshape(-1)
        return y.reshape(self.input.shape)
