"""Casts of the element type, and elementwise functions without a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import KernelRecord, NumpyRecord, convert
from kuiper.ops.core.record import Record, record
from kuiper.ops.core.schema import AnyArgument, Bool, DType, Tensor
from kuiper.ops.core.typed import write_cast

__all__ = ["LogGamma", "Positive", "To", "TypeAs"]


class _Cast(KernelRecord):
    """Base of the casts; a view if the input has the type already."""

    layout = "view"
    dtype: Callable[[Any], np.dtype]

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(a.input.shape, cls.dtype(a))

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        return convert(a.input, cls.dtype(a))

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        if cls.dtype(a) == a.input.dtype:
            b.alias(a.input)
        else:
            write_cast(b, a.input, b.output(layout=a.input))


@record("Tensor.to")
class To(_Cast):
    """The input cast to another type; floats become integers by truncation towards zero.

    Source: torch.Tensor.to.
    """

    batch = "elementwise"
    arguments = (
        Tensor("input"),
        DType("dtype", None),
        Bool("copy", False),
        Bool("non_blocking", False),
        AnyArgument("device", None),
        AnyArgument("memory_format", None),
    )

    @staticmethod
    def dtype(a: SimpleNamespace) -> Any:
        return a.input.dtype if a.dtype is None else a.dtype


@record("Tensor.type_as")
class TypeAs(_Cast):
    """The input cast to the type of another tensor.

    Source: torch.Tensor.type_as.
    """

    batch = "like_input"
    arguments = (Tensor("input"), Tensor("other"))

    @staticmethod
    def is_known(a: SimpleNamespace) -> Any:
        return a.input.is_constant

    @staticmethod
    def dtype(a: SimpleNamespace) -> Any:
        return a.other.dtype


@record("torch.positive")
class Positive(Record):
    """The input itself.

    Source: torch.positive.

    Raises
    ------
    ShapeError
        If the input is bool.
    """

    batch = "elementwise"
    arguments = (Tensor("input"),)
    layout = "view"
    identity = True

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        if a.input.dtype == np.bool_:
            raise ShapeError("the input is bool, expected numbers")
        return TensorSpec(a.input.shape, a.input.dtype, a.input.source)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        b.alias(a.input)


@record("torch.lgamma")
class LogGamma(NumpyRecord):
    """``log |gamma(x)|``.

    Source: torch.lgamma.

    Raises
    ------
    ShapeError
        If the input is complex.
    """

    batch = "elementwise"
    arguments = (Tensor("input"),)

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        dtype = a.input.dtype
        if dtype.kind == "c":
            raise ShapeError(f"the input is {dtype}, expected real numbers")
        return TensorSpec(a.input.shape, np.float32 if dtype.kind in "biu" else dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return _log_gamma(a.input.astype(np.float64))


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
