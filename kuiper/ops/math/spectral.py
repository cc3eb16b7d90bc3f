"""Complex numbers and Fourier transforms."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from kuiper.errors import ShapeError
from kuiper.expression.promotion import promote
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import axes_of, axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import NumpyRecord, broadcast
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.schema import (
    AnyArgument,
    Bool,
    DType,
    Float,
    Int,
    Ints,
    Known,
    Scalar,
    Str,
    Tensor,
    schema,
)
from kuiper.ops.tensor.shape import Unchanged

__all__ = ["InverseSpectrogram", "InverseStft", "Spectrogram", "Stft"]


def complex_dtype(dtype: np.dtype) -> np.dtype:
    """Return the type of complex numbers whose parts are of another type."""
    if dtype.kind == "c":
        return dtype
    return np.dtype(np.complex128 if dtype == np.float64 else np.complex64)


def real_dtype(dtype: np.dtype) -> np.dtype:
    """Return the type of the parts of complex numbers; float32 for integers."""
    if dtype.kind in "biu":
        return np.dtype(np.float32)
    return np.zeros(0, dtype).real.dtype


# -- complex numbers ---------------------------------------------------------------------------


@record("torch.complex")
class Complex(NumpyRecord[T]):
    """Complex numbers of their real and imaginary parts.

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
        y = np.empty(broadcast(self.real, self.imag), complex_dtype(self.real.dtype))
        y.real, y.imag = self.real, self.imag
        return y


@record("aten::polar")
class Polar(NumpyRecord[T]):
    """Complex numbers of their absolute value and angle.

    Source: torch.polar.
    """

    batch = "elementwise"
    abs: T = Tensor()
    angle: T = Tensor()

    def result(self: Polar[TensorSpec]) -> TensorSpec:
        dtype = promote(self.abs.dtype, self.angle.dtype)
        return TensorSpec(broadcast(self.abs, self.angle), complex_dtype(dtype))

    def compute(self: Polar[np.ndarray]) -> Any:
        y = np.empty(broadcast(self.abs, self.angle), complex_dtype(self.abs.dtype))
        y.real, y.imag = self.abs * np.cos(self.angle), self.abs * np.sin(self.angle)
        return y


@record("torch.real")
class Real(NumpyRecord[T]):
    """The real parts.

    Source: torch.real.
    """

    batch = "elementwise"
    input: T = Tensor()

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
class Imaginary(NumpyRecord[T]):
    """The imaginary parts.

    Source: torch.imag.
    """

    batch = "elementwise"
    input: T = Tensor()

    def result(self: Imaginary[TensorSpec]) -> TensorSpec:
        if self.input.dtype.kind != "c":
            raise ShapeError(f"the input is {self.input.dtype}, expected complex numbers")
        return TensorSpec(self.input.shape, real_dtype(self.input.dtype))

    def compute(self: Imaginary[np.ndarray]) -> Any:
        return self.input.imag


@record("aten::angle")
class Angle(NumpyRecord[T]):
    """The angles of complex numbers; of real ones 0, or pi where they are negative.

    Source: torch.angle.
    """

    batch = "elementwise"
    input: T = Tensor()

    def result(self: Angle[TensorSpec]) -> TensorSpec:
        return TensorSpec(self.input.shape, real_dtype(self.input.dtype))

    def compute(self: Angle[np.ndarray]) -> Any:
        if self.input.dtype.kind == "c":
            return np.angle(self.input)
        return np.where(np.isnan(self.input), np.nan, np.where(self.input < 0, np.pi, 0))


@record("aten::_conj", "aten::conj_physical")
class Conjugate(NumpyRecord[T]):
    """Complex numbers with the other sign of the imaginary part.

    Source: torch.conj.
    """

    batch = "elementwise"
    input: T = Tensor()

    def result(self: Conjugate[TensorSpec]) -> TensorSpec:
        return TensorSpec(self.input.shape, self.input.dtype)

    def compute(self: Conjugate[np.ndarray]) -> Any:
        return np.conj(self.input)


@record("aten::resolve_conj", "aten::resolve_neg", "aten::alias_copy")
class Resolve(Unchanged[T]):
    """The input itself: PyTorch puts off signs and shares memory, kuiper does not.

    Source: torch.resolve_conj, torch.alias_copy.
    """

    input: T = Tensor()


@record("torch.view_as_complex")
class ViewAsComplex(NumpyRecord[T]):
    """The pairs of the last axis as complex numbers.

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
    """Complex numbers as pairs along a new last axis.

    Source: torch.view_as_real.
    """

    batch = "like_input"
    input: T = Tensor()

    def result(self: ViewAsReal[TensorSpec]) -> TensorSpec:
        if self.input.dtype.kind != "c":
            raise ShapeError(f"the input is {self.input.dtype}, expected complex numbers")
        return TensorSpec((*self.input.shape, 2), real_dtype(self.input.dtype))

    def compute(self: ViewAsReal[np.ndarray]) -> Any:
        return _pairs(self.input)


def _pairs(x: np.ndarray) -> np.ndarray:
    return np.stack([x.real, x.imag], -1)


# -- Fourier transforms of whole axes ----------------------------------------------------------


class _Transform(NamedTuple):
    """What tells one transform from another.

    Attributes
    ----------
    types : str
        Over one axis, two axes and any.
    summary : str
    half : str
        Which side keeps only the half of the spectrum that says all: ``""``, ``"in"`` or ``"out"``.
    backward : bool
        Whether it is the inverse one.
    """

    types: str
    summary: str
    half: str
    backward: bool


TRANSFORMS = (
    _Transform("fft fft2 fftn", "Fourier transform", "", False),
    _Transform("ifft ifft2 ifftn", "Inverse Fourier transform", "", True),
    _Transform("rfft rfft2 rfftn", "Half the Fourier transform of real numbers", "out", False),
    _Transform("irfft irfft2 irfftn", "Real numbers of half their spectrum", "in", True),
    _Transform("hfft hfft2 hfftn", "Real spectrum of half a symmetric signal", "in", False),
    _Transform("ihfft ihfft2 ihfftn", "Half the symmetric signal of a real spectrum", "out", True),
)

Norm: TypeAlias = Literal["backward", "ortho", "forward"]
_SWAPPED: dict[Norm, Norm] = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


class Fourier(NumpyRecord[T]):
    """Base of the records made from :data:`TRANSFORMS`."""

    batch = "along_axes"

    transform: _Transform

    def _plan(self: Fourier[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the axes, and along each the length of what is not halved."""
        shape = self.input.shape
        sizes = getattr(self, "s", None)
        axes: tuple[int, ...]
        if hasattr(self, "n"):
            axes, sizes = (axis_of(self.dim, shape),), (self.n,)
        elif self.dim is not None:
            axes = axes_of(self.dim, shape)
        else:
            axes = tuple(range(len(shape)))[-len(shape if sizes is None else sizes) :]
        if sizes is None:
            sizes = (None,) * len(axes)
        if len(sizes) != len(axes) or not axes:
            raise ShapeError(f"'s' is {sizes}, expected {len(axes)} lengths for the axes {axes}")
        lengths = [shape[d] if n in (None, -1) else n for d, n in zip(axes, sizes, strict=True)]
        if self.transform.half == "in" and sizes[-1] in (None, -1):
            lengths[-1] = 2 * (shape[axes[-1]] - 1)
        if min(lengths) < 1:
            raise ShapeError(f"the lengths {tuple(lengths)} are not all at least 1")
        return axes, tuple(lengths)

    def result(self: Fourier[Any]) -> TensorSpec:
        axes, lengths = self._plan()
        shape = list(self.input.shape)
        for axis, length in zip(axes, lengths, strict=True):
            shape[axis] = length
        if self.transform.half == "out":
            if self.input.dtype.kind == "c":
                raise ShapeError(f"the input is {self.input.dtype}, expected real numbers")
            shape[axes[-1]] = lengths[-1] // 2 + 1
        dtype = self.input.dtype
        dtype = real_dtype(dtype) if self.transform.half == "in" else complex_dtype(dtype)
        return TensorSpec(shape, dtype)

    def compute(self: Fourier[np.ndarray]) -> Any:
        axes, lengths = self._plan()
        if self.input.size == 0:  # numpy gives back memory that it has not written
            spec = self.result()
            return np.zeros(spec.shape, spec.dtype)
        half, backward = self.transform.half, self.transform.backward
        norm: Norm = "backward" if self.norm is None else self.norm
        # numpy has the forward transforms of reals and the backward ones to reals; the other two
        # follow by conjugation, which turns the exponent round.
        if half == "in":
            if backward:
                return np.fft.irfftn(self.input, lengths, axes, norm)
            return np.fft.irfftn(np.conj(self.input), lengths, axes, _SWAPPED[norm])
        if half == "out":
            if not backward:
                return np.fft.rfftn(self.input, lengths, axes, norm)
            return np.conj(np.fft.rfftn(self.input, lengths, axes, _SWAPPED[norm]))
        return (np.fft.ifftn if backward else np.fft.fftn)(self.input, lengths, axes, norm)


def _register(transform: _Transform) -> None:
    for name, where, arguments in zip(
        transform.types.split(),
        ("along one axis", "along two axes", "along some axes"),
        (
            schema(n=Int(None, nullable=True), dim=Int(-1)),
            schema(s=Ints(default=None, nullable=True), dim=Ints(default=(-2, -1))),
            schema(s=Ints(default=None, nullable=True), dim=Ints(default=None, nullable=True)),
        ),
        strict=True,
    ):
        namespace = {
            "__doc__": f"{transform.summary}, {where}.\n\nSource: torch.fft.{name}.",
            "__module__": __name__,
            "arguments": (
                *schema(input=Tensor()), *arguments, *schema(norm=Str(tuple(_SWAPPED), None)),
            ),
            "transform": transform,
        }  # fmt: skip
        record(f"torch.fft.{name}")(type(name, (Fourier,), namespace))


for _transform in TRANSFORMS:
    _register(_transform)


class _Shift(NumpyRecord[T]):
    """Base of the shifts of the zero frequency."""

    batch = "along_axes"
    input: T = Tensor()
    dim: tuple[int, ...] | None = Ints(default=None, nullable=True)

    def result(self: _Shift[TensorSpec]) -> TensorSpec:
        if self.dim is not None:
            axes_of(self.dim, self.input.shape)
        return TensorSpec(self.input.shape, self.input.dtype)


@record("aten::fft_fftshift")
class FftShift(_Shift[T]):
    """A spectrum with the zero frequency in the middle.

    Source: torch.fft.fftshift.
    """

    def compute(self: FftShift[np.ndarray]) -> Any:
        return np.fft.fftshift(self.input, self.dim)


@record("aten::fft_ifftshift")
class InverseFftShift(_Shift[T]):
    """A spectrum with the zero frequency in front again.

    Source: torch.fft.ifftshift.
    """

    def compute(self: InverseFftShift[np.ndarray]) -> Any:
        return np.fft.ifftshift(self.input, self.dim)


class _Frequencies(NumpyRecord[T]):
    """Base of the lists of frequencies."""

    batch = "shared"
    n: int = Int(minimum=1)
    d: float = Float(1.0)
    dtype: np.dtype | None = DType(None)
    layout_: Any = AnyArgument(None)
    device: Any = AnyArgument(None)
    pin: Any = AnyArgument(None)


@record("aten::fft_fftfreq")
class FftFrequencies(_Frequencies[T]):
    """The frequencies of torch.fft.fft of n numbers `d` apart.

    Source: torch.fft.fftfreq.
    """

    def result(self: FftFrequencies[TensorSpec]) -> TensorSpec:
        return TensorSpec((self.n,), self.dtype or np.float32)

    def compute(self: FftFrequencies[np.ndarray]) -> Any:
        return np.fft.fftfreq(self.n, self.d)


@record("aten::fft_rfftfreq")
class RealFftFrequencies(_Frequencies[T]):
    """The frequencies of torch.fft.rfft of n numbers `d` apart.

    Source: torch.fft.rfftfreq.
    """

    def result(self: RealFftFrequencies[TensorSpec]) -> TensorSpec:
        return TensorSpec((self.n // 2 + 1,), self.dtype or np.float32)

    def compute(self: RealFftFrequencies[np.ndarray]) -> Any:
        return np.fft.rfftfreq(self.n, self.d)


# -- Fourier transforms of frames --------------------------------------------------------------

_PADDING = {"reflect": "reflect", "constant": "constant", "replicate": "edge", "circular": "wrap"}


def _hop(a: Record[Any]) -> int:
    return a.n_fft // 4 if a.hop_length is None else a.hop_length


def _onesided(a: Record[Any]) -> bool:
    return a.input.dtype.kind != "c" if a.onesided is None else a.onesided


def _window(a: Record[Any]) -> np.ndarray:
    """Return the window in the middle of a frame."""
    length = a.n_fft if a.win_length is None else a.win_length
    window = np.ones(length) if a.window is None else a.window.astype(np.float64)
    left = (a.n_fft - length) // 2
    return np.pad(window, (left, a.n_fft - length - left))


def _check_window(a: Record[Any]) -> None:
    length = a.n_fft if a.win_length is None else a.win_length
    if length > a.n_fft:
        raise ShapeError(f"'win_length' is {length}, expected at most {a.n_fft}")
    if a.window is not None and a.window.dtype.kind == "c":
        raise ShapeError(f"'window' is {a.window.dtype}, expected real numbers")
    if a.window is not None and a.window.shape != (length,):
        raise ShapeError(f"'window' has shape {a.window.shape}, expected ({length},)")


def _transformed(a: Any, x: np.ndarray, onesided: bool, norm: Norm) -> np.ndarray:
    """Return the spectra (..., frequencies, frames) of a signal's windowed frames."""
    if a.center:
        sides = [(0, 0)] * (x.ndim - 1) + [(a.n_fft // 2,) * 2]
        mode: Any = _PADDING[a.pad_mode]
        x = np.pad(x, sides, mode)
    frames = np.lib.stride_tricks.sliding_window_view(x, a.n_fft, -1)[..., :: _hop(a), :]
    function = np.fft.rfft if onesided else np.fft.fft
    # A window of the signal's precision, so that the transform is computed in it.
    window = _window(a).astype(real_dtype(x.dtype))
    return np.swapaxes(function(frames * window, norm=norm), -1, -2)


def _spectra_shape(
    a: Record[Any], signal: TensorSpec, onesided: bool, pad: int = 0
) -> tuple[int, int]:
    """Return how many frequencies and frames a signal gives, padded at both ends."""
    _check_window(a)
    if signal.rank == 0:
        raise ShapeError("the signal has no axis of times")
    if onesided and signal.dtype.kind == "c":
        raise ShapeError("the spectra of complex numbers have two sides, but 'onesided' is set")
    length = signal.shape[-1] + 2 * pad
    if a.center:
        if a.pad_mode == "reflect" and a.n_fft // 2 >= length:
            raise ShapeError(f"a signal of {length} cannot be reflected by {a.n_fft // 2}")
        length += a.n_fft // 2 * 2
    if length < a.n_fft:
        raise ShapeError(f"the signal is shorter than a frame of {a.n_fft}")
    return (a.n_fft // 2 + 1 if onesided else a.n_fft), 1 + (length - a.n_fft) // _hop(a)


@record("torch.stft")
class Stft(NumpyRecord[T]):
    """Spectra of a signal's overlapping frames: (..., length) -> (..., frequencies, frames).

    Source: torch.stft.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    input: T = Tensor(rank=(1, 2))
    window: T | None = Tensor(optional=True, rank=1)
    n_fft: int = Int(minimum=1)
    hop_length: int | None = Int(None, minimum=1, nullable=True)
    win_length: int | None = Int(None, minimum=1, nullable=True)
    center: bool = Bool(True)
    pad_mode: str = Str(tuple(_PADDING), "reflect")
    normalized: bool = Bool(False)
    onesided: Any = AnyArgument(None)
    return_complex: bool = Bool(True)

    def result(self: Stft[TensorSpec]) -> TensorSpec:
        shape = (*self.input.shape[:-1], *_spectra_shape(self, self.input, _onesided(self)))
        dtype = complex_dtype(self.input.dtype)
        if not self.return_complex:
            return TensorSpec((*shape, 2), real_dtype(dtype))
        return TensorSpec(shape, dtype)

    def compute(self: Stft[np.ndarray]) -> Any:
        norm: Norm = "ortho" if self.normalized else "backward"
        y = _transformed(self, self.input, _onesided(self), norm)
        return y if self.return_complex else _pairs(y)


def _joined(a: Any, spectra: np.ndarray, real: bool, norm: Norm, length: int | None) -> np.ndarray:
    """Return the signal (..., length) of spectra, frames added up and divided by the windows.

    A `real` signal is made of the first half of its spectra, even where they are whole.
    """
    spectra = np.swapaxes(spectra, -1, -2)
    frames = (np.fft.irfft if real else np.fft.ifft)(spectra, a.n_fft, norm=norm)
    window, hop, count = _window(a), _hop(a), frames.shape[-2]
    frames *= window.astype(real_dtype(frames.dtype))
    y, weight = _side_by_side(frames, hop), _side_by_side(np.tile(window**2, (count, 1)), hop)
    start, end = _kept(a, count, length)
    end_of_frames = min(end, y.shape[-1])
    weight = weight[start:end_of_frames]
    if weight.size and weight.min() < 1e-11:
        raise ShapeError("the windows do not cover the whole signal")
    y = y[..., start:end_of_frames] / weight.astype(real_dtype(y.dtype))
    return np.pad(y, [(0, 0)] * (y.ndim - 1) + [(0, end - end_of_frames)])


def _side_by_side(frames: np.ndarray, hop: int) -> np.ndarray:
    """Add up frames (..., frames, length), each `hop` places behind the one before it."""
    *lead, count, length = frames.shape
    pieces = -(-length // hop)
    y = np.zeros((*lead, count + pieces - 1, hop), frames.dtype)
    # Piece k of all frames at once; the last pieces belong to the first frames.
    for k in range(pieces - 1, -1, -1):
        piece = frames[..., k * hop : (k + 1) * hop]
        y[..., k : k + count, : piece.shape[-1]] += piece
    return y.reshape(*lead, -1)[..., : length + hop * (count - 1)]


def _kept(a: Record[Any], count: int, length: int | None) -> tuple[int, int]:
    """Return where the signal lies among the frames laid side by side."""
    margin = a.n_fft // 2 if a.center else 0
    end = a.n_fft + _hop(a) * (count - 1) - margin
    return margin, end if length is None else margin + length


def _check_spectra(a: Record[Any], spectra: TensorSpec, onesided: bool) -> None:
    _check_window(a)
    length = a.n_fft if a.win_length is None else a.win_length
    if _hop(a) > length:
        raise ShapeError(f"'hop_length' is {_hop(a)}, expected at most the window's {length}")
    expected = a.n_fft // 2 + 1 if onesided else a.n_fft
    if spectra.rank < 2 or spectra.dtype.kind != "c" or spectra.shape[-2] != expected:
        raise ShapeError(f"the spectra are {spectra}, expected complex (..., {expected}, frames)")


@record("torch.istft")
class InverseStft(NumpyRecord[T]):
    """The signal of spectra of overlapping frames: (..., frequencies, frames) -> (..., length).

    Source: torch.istft.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    input: T = Tensor(rank=(2, 3))
    window: T | None = Tensor(optional=True, rank=1)
    n_fft: int = Int(minimum=1)
    hop_length: int | None = Int(None, minimum=1, nullable=True)
    win_length: int | None = Int(None, minimum=1, nullable=True)
    center: bool = Bool(True)
    normalized: bool = Bool(False)
    onesided: Any = AnyArgument(None)
    length: int | None = Int(None, minimum=0, nullable=True)
    return_complex: bool = Bool(False)

    def _onesided(self: InverseStft[Known]) -> bool:
        return not self.return_complex if self.onesided is None else self.onesided

    def result(self: InverseStft[TensorSpec]) -> TensorSpec:
        _check_spectra(self, self.input, self._onesided())
        start, end = _kept(self, self.input.shape[-1], self.length)
        dtype = self.input.dtype if self.return_complex else real_dtype(self.input.dtype)
        return TensorSpec((*self.input.shape[:-2], max(0, end - start)), dtype)

    def compute(self: InverseStft[np.ndarray]) -> Any:
        norm: Norm = "ortho" if self.normalized else "backward"
        return _joined(self, self.input, not self.return_complex, norm, self.length)


def _divides_by_window(a: Record[Any]) -> bool:
    if a.normalized not in (True, False, "window", "frame_length"):
        raise ShapeError(
            f"'normalized' is {a.normalized!r}, expected True, False, window or frame_length"
        )
    return a.normalized in (True, "window")


def _frame_norm(a: Record[Any]) -> Norm:
    return "ortho" if a.normalized == "frame_length" else "backward"


def _window_norm(a: Record[Any]) -> float:
    if a.window is None:  # ones
        return math.sqrt(a.n_fft if a.win_length is None else a.win_length)
    return float(np.sqrt(np.sum(np.square(a.window.astype(np.float64)))))


@record("torchaudio.functional.spectrogram")
class Spectrogram(NumpyRecord[T]):
    """Spectra of overlapping frames, as they are or as a power of their absolute values.

    Source: torchaudio.functional.spectrogram.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    waveform: T = Tensor()
    window: T | None = Tensor(optional=True, rank=1)
    n_fft: int = Int(minimum=1)
    hop_length: int | None = Int(None, minimum=1, nullable=True)
    win_length: int | None = Int(None, minimum=1, nullable=True)
    pad: int = Int(0, minimum=0)
    power: float | None = Scalar(2.0, nullable=True)
    normalized: Any = AnyArgument(False)
    center: bool = Bool(True)
    pad_mode: str = Str(tuple(_PADDING), "reflect")
    onesided: Any = AnyArgument(None)

    def result(self: Spectrogram[TensorSpec]) -> TensorSpec:
        _divides_by_window(self)
        spectra = _spectra_shape(self, self.waveform, self.onesided is not False, self.pad)
        shape = (*self.waveform.shape[:-1], *spectra)
        dtype = complex_dtype(self.waveform.dtype)
        return TensorSpec(shape, dtype if self.power is None else real_dtype(dtype))

    def compute(self: Spectrogram[np.ndarray]) -> Any:
        x = np.pad(self.waveform, [(0, 0)] * (self.waveform.ndim - 1) + [(self.pad, self.pad)])
        y = _transformed(self, x, self.onesided is not False, _frame_norm(self))
        if _divides_by_window(self):
            y = y / _window_norm(self)
        return y if self.power is None else np.abs(y) ** self.power


@record("torchaudio.functional.inverse_spectrogram")
class InverseSpectrogram(NumpyRecord[T]):
    """The signal of spectra of overlapping frames.

    Source: torchaudio.functional.inverse_spectrogram.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    spectrogram: T = Tensor()
    window: T | None = Tensor(optional=True, rank=1)
    n_fft: int = Int(minimum=1)
    hop_length: int | None = Int(None, minimum=1, nullable=True)
    win_length: int | None = Int(None, minimum=1, nullable=True)
    length: int | None = Int(None, minimum=0, nullable=True)
    pad: int = Int(0, minimum=0)
    normalized: Any = AnyArgument(False)
    center: bool = Bool(True)
    pad_mode: str = Str(tuple(_PADDING), "reflect")
    onesided: Any = AnyArgument(None)

    def _length(self: InverseSpectrogram[Any]) -> int | None:
        """Return how much of the padded signal is made."""
        return None if self.length is None else self.length + 2 * self.pad

    def result(self: InverseSpectrogram[TensorSpec]) -> TensorSpec:
        _divides_by_window(self)
        _check_spectra(self, self.spectrogram, self.onesided is not False)
        start, end = _kept(self, self.spectrogram.shape[-1], self.length)
        return TensorSpec(
            (*self.spectrogram.shape[:-2], max(0, end - start)), real_dtype(self.spectrogram.dtype)
        )

    def compute(self: InverseSpectrogram[np.ndarray]) -> Any:
        spectra = self.spectrogram
        if _divides_by_window(self):
            spectra = spectra * _window_norm(self)
        y = _joined(self, spectra, True, _frame_norm(self), self._length())
        return y if self.length is None else y[..., self.pad : self.pad + self.length]
