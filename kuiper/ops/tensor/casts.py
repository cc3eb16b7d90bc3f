"""Casts of the element type, and elementwise functions without a kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord, NumpyRecord, convert
from kuiper.ops.core.record import Record, T, record
from kuiper.ops.core.schema import AnyArgument, Bool, DType, Known, Tensor
from kuiper.ops.core.typed import write_cast

__all__ = ["LogGamma", "Positive", "To", "TypeAs"]

FLOAT32 = np.dtype(np.float32)


class _Cast(KernelRecord[T]):
    """Base of the casts; a view if the input has the type already."""

    layout = Layout.VIEW
    input: T

    def target_dtype(self: _Cast[Any]) -> np.dtype:
        raise NotImplementedError

    def result(self: _Cast[TensorSpec]) -> TensorSpec:
        return TensorSpec(self.input.shape, self.target_dtype())

    def compute(self: _Cast[np.ndarray]) -> Any:
        return convert(self.input, self.target_dtype())

    def steps(self: _Cast[TensorView], b: Binder) -> None:
        dtype = _of_values(self.target_dtype())
        if dtype == _of_values(self.input.dtype):
            b.alias(self.input)
            return
        x = b.stored(self.input, FLOAT32) if self.input.dtype == BFLOAT16 else self.input
        output = b.output(layout=x)
        y = b.temporary(x.shape, dtype) if output.dtype == BFLOAT16 else output
        write_cast(b, x, y)
        if y is not output:
            b.copy(y, output)


def _of_values(dtype: np.dtype) -> np.dtype:
    """Return the dtype of values that are stored in `dtype`."""
    return FLOAT32 if dtype == BFLOAT16 else dtype


@record("Tensor.to")
class To(_Cast[T]):
    """The input cast to another type; floats become integers by truncation towards zero.

    Source: torch.Tensor.to.
    """

    batch = "elementwise"
    input: T = Tensor()
    dtype: np.dtype | None = DType(None)
    copy: bool = Bool(False)
    non_blocking: bool = Bool(False)
    device: Any = AnyArgument(None)
    memory_format: Any = AnyArgument(None)

    def target_dtype(self: To[Known]) -> np.dtype:
        return self.input.dtype if self.dtype is None else self.dtype


@record("Tensor.type_as")
class TypeAs(_Cast[T]):
    """The input cast to the type of another tensor.

    Source: torch.Tensor.type_as.
    """

    batch = "like_input"
    input: T = Tensor()
    other: T = Tensor()

    def is_known(self: TypeAs[Known]) -> Any:
        return self.input.is_constant

    def target_dtype(self: TypeAs[Known]) -> np.dtype:
        return self.other.dtype


@record("torch.positive")
class Positive(Record[T]):
    """The input itself.

    Source: torch.positive.

    Raises
    ------
    ShapeError
        If the input is bool.
    """

    batch = "elementwise"
    input: T = Tensor()
    layout = Layout.VIEW
    identity = True

    def infer(self: Positive[TensorSpec]) -> TensorSpec:
        if self.input.dtype == np.bool_:
            raise ShapeError("the input is bool, expected numbers")
        return TensorSpec(self.input.shape, self.input.dtype, self.input.source)

    def bind(self: Positive[TensorView], b: Binder) -> None:
        b.alias(self.input)


@record("torch.lgamma")
class LogGamma(NumpyRecord[T]):
    """``log |gamma(x)|``.

    Source: torch.lgamma.

    Raises
    ------
    ShapeError
        If the input is complex.
    """

    batch = "elementwise"
    input: T = Tensor()

    def result(self: LogGamma[TensorSpec]) -> TensorSpec:
        dtype = self.input.dtype
        if dtype.kind == "c":
            raise ShapeError(f"the input is {dtype}, expected real numbers")
        return TensorSpec(self.input.shape, np.float32 if dtype.kind in "biu" else dtype)

    def compute(self: LogGamma[np.ndarray]) -> Any:
        return _log_gamma(self.input.astype(np.float64))


# Lanczos' approximation with g = 7 and nine terms (Godfrey 2001); good to 1e-13 for x >= 0.5.
_LANCZOS = (
    0.99999999999980993,
    676.5203681218851,
    -1259.1392167224028,
    771.32342877765313,
    -176.61502916214059,
    12.507343278686905,
    -0.13857109526572012,
    9.9843695780195716e-6,
    1.5056327351493116e-7,
)


def _log_gamma(x: np.ndarray) -> np.ndarray:
    # For x < 0.5, by the reflection gamma(x) * gamma(1 - x) = pi / sin(pi * x).
    mirrored = x < 0.5
    z = np.where(mirrored, -x, x - 1)
    total = _LANCZOS[0] + sum(c / (z + i) for i, c in enumerate(_LANCZOS[1:], 1))
    t = z + 7.5
    y = 0.5 * math.log(2 * math.pi) + (z + 0.5) * np.log(t) - t + np.log(total)
    # The sine of the fraction of x; pi * x would lose its digits for large x.
    sine = np.abs(np.sin(math.pi * (x - np.rint(x))))
    y = np.where(mirrored, math.log(math.pi) - np.log(sine) - y, y)
    return np.where(np.isinf(x), np.inf, y)
