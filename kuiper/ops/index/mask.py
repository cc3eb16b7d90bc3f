"""Masks: choosing, filling and scattering where a condition holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper._kernels.data.indexing import MaskedScatterStep, SelectStep
from kuiper._runtime.step import ERROR_SLOT_BYTES
from kuiper.errors import ShapeError
from kuiper.expression.promotion import result_type
from kuiper.ir.view import BufferKind, Layout, TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord, broadcast, convert
from kuiper.ops.core.record import NoBatchRule, T, record
from kuiper.ops.core.schema import Tensor
from kuiper.ops.core.typed import cast

__all__ = ["MaskedFill", "MaskedScatter", "Where", "choose"]


def _as_bytes(b: Binder, mask: TensorView) -> TensorView:
    return mask if mask.dtype.itemsize == 1 else cast(b, mask, np.dtype(np.bool_))


def choose(b: Binder, mask: TensorView, one: Any, other: Any) -> None:
    """Bind output 0 to `one` where a mask is true, else to `other`; either may be a number."""
    spec = b.output_spec()
    mask = _as_bytes(b, mask)
    values = [cast(b, value, spec.dtype) for value in (one, other)]
    whole = [v for v in values if v.shape == spec.shape and v.buffer.kind != BufferKind.CONSTANT]
    reuse = next((v for v in whole if v.buffer is not mask.buffer), None)
    y = b.output(layout=whole[0] if whole else Layout.CONTIGUOUS, reuse=reuse)
    b.step(SelectStep(mask.expand(y.shape), *(v.expand(y.shape) for v in values), y))


@record("Tensor.masked_fill")
class MaskedFill(KernelRecord[T]):
    """`value` where the mask is true, else the input.

    Source: torch.Tensor.masked_fill.

    Raises
    ------
    ShapeError
        If the shapes do not broadcast.
    """

    batch = "elementwise"
    input: T = Tensor()
    mask: T = Tensor()
    value: Any = Tensor(number=True, rank=0)

    def result(self: MaskedFill[TensorSpec]) -> TensorSpec:
        return TensorSpec(broadcast(self.input, self.mask), self.input.dtype)

    def compute(self: MaskedFill[np.ndarray]) -> Any:
        return np.where(self.mask, convert(self.value, self.input.dtype), self.input)

    def steps(self: MaskedFill[TensorView], b: Binder) -> None:
        choose(b, self.mask, self.value, self.input)


@record("aten::masked_scatter")
class MaskedScatter(KernelRecord[T]):
    """The input, with successive elements of `source` where the mask is true.

    Source: torch.masked_scatter.

    Raises
    ------
    ShapeError
        If the mask does not broadcast with the input.
    """

    batch = NoBatchRule("all members take elements from one source in turn")
    input: T = Tensor()
    mask: T = Tensor()
    source: T = Tensor()

    def result(self: MaskedScatter[TensorSpec]) -> TensorSpec:
        return TensorSpec(broadcast(self.input, self.mask), self.input.dtype)

    def compute(self: MaskedScatter[np.ndarray]) -> Any:
        y = np.array(np.broadcast_to(self.input, broadcast(self.input, self.mask)))
        mask = np.broadcast_to(self.mask, y.shape)
        count = np.count_nonzero(mask)
        if count > self.source.size:
            raise ShapeError(f"the mask is true {count} times, 'source' has {self.source.size}")
        y[mask] = self.source.reshape(-1)[:count]
        return y

    def steps(self: MaskedScatter[TensorView], b: Binder) -> None:
        out = b.output()
        y = out if out.is_contiguous else b.temporary(out.shape, out.dtype)
        b.copy(self.input.expand(y.shape), y)
        label = b.operator.label.replace("{", "{{").replace("}", "}}")
        message = f"{label}: the mask is true {{}} times, 'source' has {self.source.size}"
        mask = b.contiguous(_as_bytes(b, self.mask).expand(y.shape))
        source = b.contiguous(cast(b, self.source, y.dtype))
        b.step(MaskedScatterStep(mask, source, y, b.context_state(ERROR_SLOT_BYTES), message))
        if y is not out:
            b.copy(y, out)


@record("torch.where")
class Where(KernelRecord[T]):
    """`input` where the condition is true, else `other`; either may be a number.

    Source: torch.where.

    Raises
    ------
    ShapeError
        If the shapes do not broadcast.
    """

    batch = "elementwise"
    condition: T = Tensor()
    input: Any = Tensor(number=True)
    other: Any = Tensor(number=True)

    def result(self: Where[TensorSpec]) -> TensorSpec:
        shape = broadcast(self.condition, self.input, self.other)
        return TensorSpec(shape, result_type([self.input, self.other]))

    def compute(self: Where[np.ndarray]) -> Any:
        dtype = result_type([self.input, self.other])
        return np.where(self.condition, convert(self.input, dtype), convert(self.other, dtype))

    def steps(self: Where[TensorView], b: Binder) -> None:
        choose(b, self.condition, self.input, self.other)
