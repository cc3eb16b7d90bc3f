"""Operators without computation: constants, tuples, numbers of elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kuiper.errors import ShapeError
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.schema import AnyArgument, Known, StaticValue, Tensor, Tensors

if TYPE_CHECKING:
    from kuiper.ops.core.batch import TracedCall

__all__ = ["Constant", "TupleConstruct", "TupleUnpack"]


@record("pnnx.Attribute")
class Constant(Record[T]):
    """A constant tensor.

    Source: pnnx writes parameters used outside of modules, and folded sub-graphs, in this form.
    """

    batch = "shared"
    data: T = Tensor()

    def infer(self: Constant[TensorSpec]) -> Any:
        return self.data

    def bind(self: Constant[TensorView], b: Binder) -> None:
        b.alias(self.data)


def _items(values: Any) -> tuple[Any, ...]:
    return tuple(v.value if isinstance(v, StaticValue) else v for v in values)


@record("prim::TupleConstruct", "prim::ListConstruct")
class TupleConstruct(Record[T]):
    """A tuple of the inputs, such as the results of a model."""

    items: list[T] = Tensors()
    layout = Layout.VIEW

    def infer(self: TupleConstruct[TensorSpec]) -> StaticValue:
        return StaticValue(_items(self.items))

    def bind(self: TupleConstruct[TensorView], b: Binder) -> None:
        b.static(_items(self.items))

    @staticmethod
    def batch(c: TracedCall) -> Any:
        c.require_leaving()
        return c.lost


@record("prim::TupleUnpack", "prim::ListUnpack")
class TupleUnpack(Record[T]):
    """The items of a tuple, one per output; a single tensor counts as a tuple of one.

    Raises
    ------
    ShapeError
        If the number of items is not the number of outputs.
    """

    batch = NoBatchRule("the batch axes of a tuple's items are not tracked")
    input: Any = AnyArgument()
    layout = Layout.VIEW

    def _items(self: TupleUnpack[Known]) -> Sequence[Any]:
        return [self.input] if isinstance(self.input, TensorSpec | TensorView) else self.input

    def infer(self: TupleUnpack[TensorSpec]) -> Any:
        items = self._items()
        if not isinstance(items, tuple | list) or len(items) != self.n_outputs:
            raise ShapeError(f"the input is {self.input!r}, expected a tuple of {self.n_outputs}")
        return tuple(i if isinstance(i, TensorSpec) else StaticValue(i) for i in items)

    def bind(self: TupleUnpack[TensorView], b: Binder) -> None:
        for index, item in enumerate(self._items()):
            if isinstance(item, TensorView):
                b.alias(item, index)
            else:
                b.static(item, index)


@record("aten::numel")
class Numel(Record[T]):
    """The number of elements of a tensor.

    Source: torch.numel.
    """

    batch = NoBatchRule("it counts the elements of all members")
    input: T = Tensor()

    def infer(self: Numel[TensorSpec]) -> StaticValue:
        return StaticValue(self.input.size)

    def bind(self: Numel[TensorView], b: Binder) -> None:
        b.static(self.input.size)
