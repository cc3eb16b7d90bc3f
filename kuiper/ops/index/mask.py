"""Masks: choosing, filling and scattering where a condition holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from kuiper._kernels.data.indexing import MaskedScatterStep, SelectStep
from kuiper._runtime.step import ERROR_SLOT_BYTES
from kuiper.errors import ShapeError
from kuiper.expression.promotion import result_type
from kuiper.ir.view import BufferKind, TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord, broadcast, convert
from kuiper.ops.core.record import NoBatchRule, record
from kuiper.ops.core.schema import Tensor
from kuiper.ops.core.typed import cast

__all__ = [
    "MaskedFill",
    "MaskedScatter",
    "Where",
    "choose",
]


def choose(b: Binder, mask: TensorView, one: Any, other: Any) -> None:
    """Bind output 0 to a choice between two tensors or numbers for each element of a mask."""
    spec = b.output_spec()
    if mask.dtype.itemsize != 1:
        mask = cast(b, mask, np.dtype(np.bool_))
    values = [cast(b, value, spec.dtype) for value in (one, other)]
    whole = [v for v in values if v.shape == spec.shape and v.buffer.kind != BufferKind.CONSTANT]
    reuse = next((v for v in whole if v.buffer is not mask.buffer), None)
    y = b.output(layout=whole[0] if whole else "contiguous", reuse=reuse)
    b.step(SelectStep(mask.expand(y.shape), *(v.expand(y.shape) for v in values), y))


@record("Tensor.masked_fill")
class MaskedFill(KernelRecord):
    """`value` where the mask is true, else the input.

    Source: torch.Tensor.masked_fill.

    Raises
    ------
    ShapeError
        If the shapes do not broadcast.
    """

    batch = "elementwise"
    arguments = (Tensor("input"), Tensor("mask"), Tensor("value", number=True, rank=0))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(broadcast(a.input, a.mask), a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.where(a.mask, convert(a.value, a.input.dtype), a.input)

    @staticmethod
    def steps(a: SimpleNamespace, b: Binder) -> None:
        choose(b, a.mask, a.value, a.input)


@record("aten::masked_scatter")
class MaskedScatter(KernelRecord):
    """The input with the elements of `source`, in order, where the mask is true.

    Source: torch.masked_scatter.

    Raises
    ------
    ShapeError
        If the mask does not broadcast with the input.
    """

    batch = NoBatchRule("the elements of the source are for the members in turn")
    arguments = (Tensor("input"), Tensor("mask"), Tensor("source"))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(broadcast(a.input, a.mask), a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        y = np.array(np.broadcast_to(a.input, np.broadcast_shapes(a.input.shape, a.mask.shape)))
        mask = np.broadcast_to(a.mask, y.shape)
        count = np.count_nonzero(mask)
        if count > a.source.size:
            raise ShapeError(f"the mask is true {count} times, 'source' has {a.source.size}")
        y[mask] = a.source.reshape(-1)[:count]
        return y

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        out = b.output()
        y = out if out.is_contiguous else b.temporary(out.shape, out.dtype)
        b.copy(a.input.expand(y.shape), y)
        label = b.operator.label.replace("{", "{{").replace("}", "}}")
        message = f"{label}: the mask is true {{}} times, 'source' has {a.source.size}"
        mask = a.mask if a.mask.dtype.itemsize == 1 else cast(b, a.mask, np.dtype(np.bool_))
        mask = b.contiguous(mask.expand(y.shape))
        source = b.contiguous(cast(b, a.source, y.dtype))
        b.step(MaskedScatterStep(mask, source, y, b.context_state(ERROR_SLOT_BYTES), message))
        if y is not out:
            b.copy(y, out)


@record("torch.where")
class Where(KernelRecord):
    """`input` where the condition is true, else `other`; either may be a number.

    Source: torch.where.

    Raises
    ------
    ShapeError
        If the shapes do not broadcast.
    """

    batch = "elementwise"
    arguments = (
        Tensor("condition"),
        Tensor("input", number=True),
        Tensor("other", number=True),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        shape = broadcast(a.condition, a.input, a.other)
        return TensorSpec(shape, result_type([a.input, a.other]))

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        dtype = result_type([a.input, a.other])
        return np.where(a.condition, convert(a.input, dtype), convert(a.other, dtype))

    @staticmethod
    def steps(a: SimpleNamespace, b: Binder) -> None:
        choose(b, a.condition, a.input, a.other)
