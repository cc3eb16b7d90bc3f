"""Complex numbers: their parts, and tensors of pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.expression.promotion import promote
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import NumpyRecord, broadcast
from kuiper.ops.core.record import T, record
from kuiper.ops.core.schema import Tensor
from kuiper.ops.tensor.shape import Unchanged

__all__ = ["Complex", "complex_dtype", "pairs", "real_dtype"]


def complex_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of complex numbers with parts of a real dtype."""
    if dtype.kind == "c":
        return dtype
    return np.dtype(np.complex128 if dtype == np.float64 else np.complex64)


def real_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of the parts of complex numbers; float32 for integers."""
    if dtype.kind in "biu":
        return np.dtype(np.float32)
    return np.zeros(0, dtype).real.dtype


def pairs(x: np.ndarray) -> np.ndarray:
    """Return complex numbers as (real, imaginary) along a new last axis."""
    return np.stack([x.real, x.imag], -1)


def _check_complex(spec: TensorSpec) -> None:
    if spec.dtype.kind != "c":
        raise ShapeError(f"the input is {spec.dtype}, expected complex numbers")


def _joined(real: np.ndarray, imag: np.ndarray, dtype: np.dtype) -> np.ndarray:
    y = np.empty(broadcast(real, imag), complex_dtype(dtype))
    y.real, y.imag = real, imag
    return y


@record("torch.complex")
class Complex(NumpyRecord[T]):
    """Complex numbers from their real and imaginary parts.

    Source: torch.complex.
    """

    batch = "elementwise"
    real: T = Tensor()
    imag: T = Tensor()

    def result(self: Complex[TensorSpec]) -> TensorSpec:
        if self.real.dtype != self.imag.dtype or self.real.dtype.kind != "f":
            raise ShapeError(
                f"the parts are {self.real.dtype} and {self.imag.dtype}, expected floats of one "
                "type"
            )
        return TensorSpec(broadcast(self.real, self.imag), complex_dtype(self.real.dtype))

    def compute(self: Complex[np.ndarray]) -> Any:
        return _joined(self.real, self.imag, self.real.dtype)


@record("aten::polar")
class Polar(NumpyRecord[T]):
    """Complex numbers from their absolute values and angles.

    Source: torch.polar.
    """

    batch = "elementwise"
    abs: T = Tensor()
    angle: T = Tensor()

    def result(self: Polar[TensorSpec]) -> TensorSpec:
        dtype = promote(self.abs.dtype, self.angle.dtype)
        return TensorSpec(broadcast(self.abs, self.angle), complex_dtype(dtype))

    def compute(self: Polar[np.ndarray]) -> Any:
        real, imag = self.abs * np.cos(self.angle), self.abs * np.sin(self.angle)
        return _joined(real, imag, self.abs.dtype)


class _OfComplex(NumpyRecord[T]):
    """Base of the functions of complex numbers, by default to the dtype of their parts."""

    batch = "elementwise"
    input: T = Tensor()

    def result(self: _OfComplex[TensorSpec]) -> TensorSpec:
        return TensorSpec(self.input.shape, real_dtype(self.input.dtype))


@record("torch.real")
class Real(_OfComplex[T]):
    """The real parts.

    Source: torch.real.
    """

    def result(self: Real[TensorSpec]) -> TensorSpec:
        return TensorSpec(self.input.shape, np.zeros(0, self.input.dtype).real.dtype)

    def compute(self: Real[np.ndarray]) -> Any:
        return self.input.real

    def bind(self: Real[TensorView], b: Binder) -> None:
        if self.input.dtype.kind == "c":
            super().bind(b)
        else:
            b.alias(self.input)


@record("torch.imag")
class Imaginary(_OfComplex[T]):
    """The imaginary parts.

    Source: torch.imag.
    """

    def result(self: Imaginary[TensorSpec]) -> TensorSpec:
        _check_complex(self.input)
        return super().result()

    def compute(self: Imaginary[np.ndarray]) -> Any:
        return self.input.imag


@record("aten::angle")
class Angle(_OfComplex[T]):
    """The angles of complex numbers; for real ones 0, or pi if negative.

    Source: torch.angle.
    """

    def compute(self: Angle[np.ndarray]) -> Any:
        if self.input.dtype.kind == "c":
            return np.angle(self.input)
        return np.where(np.isnan(self.input), np.nan, np.where(self.input < 0, np.pi, 0))


@record("aten::_conj", "aten::conj_physical")
class Conjugate(NumpyRecord[T]):
    """Complex numbers with the sign of the imaginary part changed.

    Source: torch.conj.
    """

    batch = "elementwise"
    input: T = Tensor()

    def compute(self: Conjugate[np.ndarray]) -> Any:
        return np.conj(self.input)


@record("aten::resolve_conj", "aten::resolve_neg", "aten::alias_copy")
class Resolve(Unchanged[T]):
    """The input itself: unlike PyTorch, kuiper neither defers signs nor shares memory.

    Source: torch.resolve_conj, torch.alias_copy.
    """

    input: T = Tensor()


@record("torch.view_as_complex")
class ViewAsComplex(NumpyRecord[T]):
    """The pairs along the last axis as complex numbers.

    Source: torch.view_as_complex.
    """

    batch = "like_input"
    input: T = Tensor()

    def result(self: ViewAsComplex[TensorSpec]) -> TensorSpec:
        if self.input.shape[-1:] != (2,) or self.input.dtype.kind != "f":
            raise ShapeError(f"the input is {self.input}, expected floats of shape (..., 2)")
        return TensorSpec(self.input.shape[:-1], complex_dtype(self.input.dtype))

    def compute(self: ViewAsComplex[np.ndarray]) -> Any:
        return np.ascontiguousarray(self.input).view(complex_dtype(self.input.dtype))[..., 0]


@record("torch.view_as_real")
class ViewAsReal(NumpyRecord[T]):
    """Complex numbers as (real, imaginary) pairs along a new last axis.

    Source: torch.view_as_real.
    """

    batch = "like_input"
    input: T = Tensor()

    def result(self: ViewAsReal[TensorSpec]) -> TensorSpec:
        _check_complex(self.input)
        return TensorSpec((*self.input.shape, 2), real_dtype(self.input.dtype))

    def compute(self: ViewAsReal[np.ndarray]) -> Any:
        return pairs(self.input)
