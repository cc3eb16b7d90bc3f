"""Operators that carry values about and compute nothing: constants, tuples, numbers of elements."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import NoBatchRule, Record, record
from kuiper.ops.core.schema import AnyArgument, StaticValue, Tensor, Tensors

if TYPE_CHECKING:
    from kuiper.ops.core.batch import TracedCall

__all__ = ["Constant", "TupleConstruct", "TupleUnpack"]


@record("pnnx.Attribute")
class Constant(Record):
    """A constant tensor.

    Source: pnnx keeps parameters used outside modules, and folded sub-graphs, in this form.
    """

    batch = "shared"
    arguments = (Tensor("data"),)

    @staticmethod
    def infer(a: SimpleNamespace) -> Any:
        return a.data

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        b.alias(a.data)


def _items(values: Any) -> tuple[Any, ...]:
    return tuple(v.value if isinstance(v, StaticValue) else v for v in values)


@record("prim::TupleConstruct", "prim::ListConstruct")
class TupleConstruct(Record):
    """A tuple of its inputs; a model with several results returns one."""

    arguments = (Tensors("items"),)
    layout = "view"

    @staticmethod
    def infer(a: SimpleNamespace) -> StaticValue:
        return StaticValue(_items(a.items))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        b.static(_items(a.items))

    @staticmethod
    def batch(c: TracedCall) -> Any:
        c.require_leaving()
        return c.lost


@record("prim::TupleUnpack", "prim::ListUnpack")
class TupleUnpack(Record):
    """The items of a tuple, one per output.

    A list of one tensor, such as chunks may be, is that tensor.
    """

    batch = NoBatchRule("the axes of a tuple's members are not followed")
    arguments = (AnyArgument("input"),)
    layout = "view"

    @staticmethod
    def _items(a: SimpleNamespace) -> Sequence[Any]:
        return [a.input] if isinstance(a.input, TensorSpec | TensorView) else a.input

    @staticmethod
    def infer(a: SimpleNamespace) -> Any:
        items = TupleUnpack._items(a)
        if not isinstance(items, tuple | list) or len(items) != a.n_outputs:
            raise ShapeError(f"the input is {a.input!r}, expected a tuple of {a.n_outputs}")
        return tuple(i if isinstance(i, TensorSpec) else StaticValue(i) for i in items)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        for index, item in enumerate(TupleUnpack._items(a)):
            if isinstance(item, TensorView):
                b.alias(item, index)
            else:
                b.static(item, index)


@record("aten::numel")
class Numel(Record):
    """The number of elements of a tensor.

    Source: torch.numel.
    """

    batch = NoBatchRule("it counts the elements of all members")
    arguments = (Tensor("input"),)

    @staticmethod
    def infer(a: SimpleNamespace) -> StaticValue:
        return StaticValue(a.input.size)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        b.static(a.input.size)
