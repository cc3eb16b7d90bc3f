"""Complex numbers and Fourier transforms."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from kuiper.errors import ShapeError
from kuiper.expression.promotion import promote
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.axes import axes_of, axis_of
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import NumpyRecord, broadcast
from kuiper.ops.core.record import NoBatchRule, record
from kuiper.ops.core.schema import AnyArgument, Bool, DType, Float, Int, Ints, Scalar, Str, Tensor
from kuiper.ops.tensor.shape import Identity

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
class Complex(NumpyRecord):
    """Complex numbers of their real and imaginary parts.

    Source: torch.complex.
    """

    batch = "elementwise"
    arguments = (Tensor("real"), Tensor("imag"))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        if a.real.dtype != a.imag.dtype or a.real.dtype.kind != "f":
            raise ShapeError(
                f"the parts are {a.real.dtype} and {a.imag.dtype}, expected floats of one type"
            )
        return TensorSpec(broadcast(a.real, a.imag), complex_dtype(a.real.dtype))

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        y = np.empty(broadcast(a.real, a.imag), complex_dtype(a.real.dtype))
        y.real, y.imag = a.real, a.imag
        return y


@record("aten::polar")
class Polar(NumpyRecord):
    """Complex numbers of their absolute value and angle.

    Source: torch.polar.
    """

    batch = "elementwise"
    arguments = (Tensor("abs"), Tensor("angle"))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        dtype = promote(a.abs.dtype, a.angle.dtype)
        return TensorSpec(broadcast(a.abs, a.angle), complex_dtype(dtype))

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        y = np.empty(broadcast(a.abs, a.angle), complex_dtype(a.abs.dtype))
        y.real, y.imag = a.abs * np.cos(a.angle), a.abs * np.sin(a.angle)
        return y


@record("torch.real")
class Real(NumpyRecord):
    """The real parts.

    Source: torch.real.
    """

    batch = "elementwise"
    arguments = (Tensor("input"),)

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(a.input.shape, np.zeros(0, a.input.dtype).real.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return a.input.real

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        if a.input.dtype.kind == "c":
            super().bind(a, b)
        else:
            b.alias(a.input)


@record("torch.imag")
class Imaginary(NumpyRecord):
    """The imaginary parts.

    Source: torch.imag.
    """

    batch = "elementwise"
    arguments = (Tensor("input"),)

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        if a.input.dtype.kind != "c":
            raise ShapeError(f"the input is {a.input.dtype}, expected complex numbers")
        return TensorSpec(a.input.shape, real_dtype(a.input.dtype))

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return a.input.imag


@record("aten::angle")
class Angle(NumpyRecord):
    """The angles of complex numbers; of real ones 0, or pi where they are negative.

    Source: torch.angle.
    """

    batch = "elementwise"
    arguments = (Tensor("input"),)

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(a.input.shape, real_dtype(a.input.dtype))

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        if a.input.dtype.kind == "c":
            return np.angle(a.input)
        return np.where(np.isnan(a.input), np.nan, np.where(a.input < 0, np.pi, 0))


@record("aten::_conj", "aten::conj_physical")
class Conjugate(NumpyRecord):
    """Complex numbers with the other sign of the imaginary part.

    Source: torch.conj.
    """

    batch = "elementwise"
    arguments = (Tensor("input"),)

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.conj(a.input)


@record("aten::resolve_conj", "aten::resolve_neg", "aten::alias_copy")
class Resolve(Identity):
    """The input itself: PyTorch puts off signs and shares memory, kuiper does not.

    Source: torch.resolve_conj, torch.alias_copy.
    """

    arguments = (Tensor("input"),)


@record("torch.view_as_complex")
class ViewAsComplex(NumpyRecord):
    """The pairs of the last axis as complex numbers.

    Source: torch.view_as_complex.
    """

    batch = "like_input"
    arguments = (Tensor("input"),)

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        if a.input.shape[-1:] != (2,) or a.input.dtype.kind != "f":
            raise ShapeError(f"the input is {a.input}, expected floats of shape (..., 2)")
        return TensorSpec(a.input.shape[:-1], complex_dtype(a.input.dtype))

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.ascontiguousarray(a.input).view(complex_dtype(a.input.dtype))[..., 0]


@record("torch.view_as_real")
class ViewAsReal(NumpyRecord):
    """Complex numbers as pairs along a new last axis.

    Source: torch.view_as_real.
    """

    batch = "like_input"
    arguments = (Tensor("input"),)

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        if a.input.dtype.kind != "c":
            raise ShapeError(f"the input is {a.input.dtype}, expected complex numbers")
        return TensorSpec((*a.input.shape, 2), real_dtype(a.input.dtype))

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return _pairs(a.input)


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


class Fourier(NumpyRecord):
    """Base of the records made from :data:`TRANSFORMS`."""

    batch = "along_axes"

    transform: _Transform

    @classmethod
    def _plan(cls, a: SimpleNamespace) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the axes, and along each the length of what is not halved."""
        shape = a.input.shape
        sizes = getattr(a, "s", None)
        axes: tuple[int, ...]
        if hasattr(a, "n"):
            axes, sizes = (axis_of(a.dim, shape),), (a.n,)
        elif a.dim is not None:
            axes = axes_of(a.dim, shape)
        else:
            axes = tuple(range(len(shape)))[-len(shape if sizes is None else sizes) :]
        if sizes is None:
            sizes = (None,) * len(axes)
        if len(sizes) != len(axes) or not axes:
            raise ShapeError(f"'s' is {sizes}, expected {len(axes)} lengths for the axes {axes}")
        lengths = [shape[d] if n in (None, -1) else n for d, n in zip(axes, sizes, strict=True)]
        if cls.transform.half == "in" and sizes[-1] in (None, -1):
            lengths[-1] = 2 * (shape[axes[-1]] - 1)
        if min(lengths) < 1:
            raise ShapeError(f"the lengths {tuple(lengths)} are not all at least 1")
        return axes, tuple(lengths)

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        axes, lengths = cls._plan(a)
        shape = list(a.input.shape)
        for axis, length in zip(axes, lengths, strict=True):
            shape[axis] = length
        if cls.transform.half == "out":
            if a.input.dtype.kind == "c":
                raise ShapeError(f"the input is {a.input.dtype}, expected real numbers")
            shape[axes[-1]] = lengths[-1] // 2 + 1
        dtype = a.input.dtype
        dtype = real_dtype(dtype) if cls.transform.half == "in" else complex_dtype(dtype)
        return TensorSpec(shape, dtype)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        axes, lengths = cls._plan(a)
        if a.input.size == 0:  # numpy gives back memory that it has not written
            spec = cls.result(a)
            return np.zeros(spec.shape, spec.dtype)
        half, backward = cls.transform.half, cls.transform.backward
        norm: Norm = "backward" if a.norm is None else a.norm
        # numpy has the forward transforms of reals and the backward ones to reals; the other two
        # follow by conjugation, which turns the exponent round.
        if half == "in":
            if backward:
                return np.fft.irfftn(a.input, lengths, axes, norm)
            return np.fft.irfftn(np.conj(a.input), lengths, axes, _SWAPPED[norm])
        if half == "out":
            if not backward:
                return np.fft.rfftn(a.input, lengths, axes, norm)
            return np.conj(np.fft.rfftn(a.input, lengths, axes, _SWAPPED[norm]))
        return (np.fft.ifftn if backward else np.fft.fftn)(a.input, lengths, axes, norm)


def _register(transform: _Transform) -> None:
    norm = Str("norm", tuple(_SWAPPED), None)
    axes = Ints("dim", default=None, nullable=True)
    size = Ints("s", default=None, nullable=True)
    for name, where, arguments in zip(
        transform.types.split(),
        ("along one axis", "along two axes", "along some axes"),
        (
            (Int("n", None, nullable=True), Int("dim", -1)),
            (size, Ints("dim", default=(-2, -1))),
            (size, axes),
        ),
        strict=True,
    ):
        doc = f"{transform.summary}, {where}.\n\nSource: torch.fft.{name}."
        namespace = {
            "__doc__": doc,
            "__module__": __name__,
            "arguments": (Tensor("input"), *arguments, norm),
            "transform": transform,
        }
        record(f"torch.fft.{name}")(type(name, (Fourier,), namespace))


for _transform in TRANSFORMS:
    _register(_transform)


class _Shift(NumpyRecord):
    """Base of the shifts of the zero frequency."""

    batch = "along_axes"
    arguments = (Tensor("input"), Ints("dim", default=None, nullable=True))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        if a.dim is not None:
            axes_of(a.dim, a.input.shape)
        return TensorSpec(a.input.shape, a.input.dtype)


@record("aten::fft_fftshift")
class FftShift(_Shift):
    """A spectrum with the zero frequency in the middle.

    Source: torch.fft.fftshift.
    """

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.fft.fftshift(a.input, a.dim)


@record("aten::fft_ifftshift")
class InverseFftShift(_Shift):
    """A spectrum with the zero frequency in front again.

    Source: torch.fft.ifftshift.
    """

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.fft.ifftshift(a.input, a.dim)


class _Frequencies(NumpyRecord):
    """Base of the lists of frequencies."""

    batch = "shared"
    arguments = (
        Int("n", minimum=1),
        Float("d", 1.0),
        DType("dtype", None),
        AnyArgument("layout", None),
        AnyArgument("device", None),
        AnyArgument("pin", None),
    )


@record("aten::fft_fftfreq")
class FftFrequencies(_Frequencies):
    """The frequencies of torch.fft.fft of n numbers `d` apart.

    Source: torch.fft.fftfreq.
    """

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec((a.n,), a.dtype or np.float32)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.fft.fftfreq(a.n, a.d)


@record("aten::fft_rfftfreq")
class RealFftFrequencies(_Frequencies):
    """The frequencies of torch.fft.rfft of n numbers `d` apart.

    Source: torch.fft.rfftfreq.
    """

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec((a.n // 2 + 1,), a.dtype or np.float32)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.fft.rfftfreq(a.n, a.d)


# -- Fourier transforms of frames --------------------------------------------------------------

_PADDING = {"reflect": "reflect", "constant": "constant", "replicate": "edge", "circular": "wrap"}

_FRAMES = (
    Tensor("window", optional=True, rank=1),
    Int("n_fft", minimum=1),
    Int("hop_length", None, minimum=1, nullable=True),
    Int("win_length", None, minimum=1, nullable=True),
)


def _hop(a: SimpleNamespace) -> int:
    return a.n_fft // 4 if a.hop_length is None else a.hop_length


def _onesided(a: SimpleNamespace) -> bool:
    return a.input.dtype.kind != "c" if a.onesided is None else a.onesided


def _window(a: SimpleNamespace) -> np.ndarray:
    """Return the window in the middle of a frame."""
    length = a.n_fft if a.win_length is None else a.win_length
    window = np.ones(length) if a.window is None else a.window.astype(np.float64)
    left = (a.n_fft - length) // 2
    return np.pad(window, (left, a.n_fft - length - left))


def _check_window(a: SimpleNamespace) -> None:
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
    a: SimpleNamespace, signal: TensorSpec, onesided: bool, pad: int = 0
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
class Stft(NumpyRecord):
    """Spectra of a signal's overlapping frames: (..., length) -> (..., frequencies, frames).

    Source: torch.stft.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (
        Tensor("input", rank=(1, 2)),
        *_FRAMES,
        Bool("center", True),
        Str("pad_mode", tuple(_PADDING), "reflect"),
        Bool("normalized", False),
        AnyArgument("onesided", None),
        Bool("return_complex", True),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        shape = (*a.input.shape[:-1], *_spectra_shape(a, a.input, _onesided(a)))
        dtype = complex_dtype(a.input.dtype)
        if not a.return_complex:
            return TensorSpec((*shape, 2), real_dtype(dtype))
        return TensorSpec(shape, dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        norm: Norm = "ortho" if a.normalized else "backward"
        y = _transformed(a, a.input, _onesided(a), norm)
        return y if a.return_complex else _pairs(y)


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


def _kept(a: SimpleNamespace, count: int, length: int | None) -> tuple[int, int]:
    """Return where the signal lies among the frames laid side by side."""
    margin = a.n_fft // 2 if a.center else 0
    end = a.n_fft + _hop(a) * (count - 1) - margin
    return margin, end if length is None else margin + length


def _check_spectra(a: SimpleNamespace, spectra: TensorSpec, onesided: bool) -> None:
    _check_window(a)
    length = a.n_fft if a.win_length is None else a.win_length
    if _hop(a) > length:
        raise ShapeError(f"'hop_length' is {_hop(a)}, expected at most the window's {length}")
    expected = a.n_fft // 2 + 1 if onesided else a.n_fft
    if spectra.rank < 2 or spectra.dtype.kind != "c" or spectra.shape[-2] != expected:
        raise ShapeError(f"the spectra are {spectra}, expected complex (..., {expected}, frames)")


@record("torch.istft")
class InverseStft(NumpyRecord):
    """The signal of spectra of overlapping frames: (..., frequencies, frames) -> (..., length).

    Source: torch.istft.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (
        Tensor("input", rank=(2, 3)),
        *_FRAMES,
        Bool("center", True),
        Bool("normalized", False),
        AnyArgument("onesided", None),
        Int("length", None, minimum=0, nullable=True),
        Bool("return_complex", False),
    )

    @staticmethod
    def _onesided(a: SimpleNamespace) -> bool:
        return not a.return_complex if a.onesided is None else a.onesided

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        _check_spectra(a, a.input, cls._onesided(a))
        start, end = _kept(a, a.input.shape[-1], a.length)
        dtype = a.input.dtype if a.return_complex else real_dtype(a.input.dtype)
        return TensorSpec((*a.input.shape[:-2], max(0, end - start)), dtype)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        norm: Norm = "ortho" if a.normalized else "backward"
        return _joined(a, a.input, not a.return_complex, norm, a.length)


def _divides_by_window(a: SimpleNamespace) -> bool:
    if a.normalized not in (True, False, "window", "frame_length"):
        raise ShapeError(
            f"'normalized' is {a.normalized!r}, expected True, False, window or frame_length"
        )
    return a.normalized in (True, "window")


def _frame_norm(a: SimpleNamespace) -> Norm:
    return "ortho" if a.normalized == "frame_length" else "backward"


def _window_norm(a: SimpleNamespace) -> float:
    if a.window is None:  # ones
        return math.sqrt(a.n_fft if a.win_length is None else a.win_length)
    return float(np.sqrt(np.sum(np.square(a.window.astype(np.float64)))))


@record("torchaudio.functional.spectrogram")
class Spectrogram(NumpyRecord):
    """Spectra of overlapping frames, as they are or as a power of their absolute values.

    Source: torchaudio.functional.spectrogram.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (
        Tensor("waveform"),
        *_FRAMES,
        Int("pad", 0, minimum=0),
        Scalar("power", 2.0, nullable=True),
        AnyArgument("normalized", False),
        Bool("center", True),
        Str("pad_mode", tuple(_PADDING), "reflect"),
        AnyArgument("onesided", None),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        _divides_by_window(a)
        spectra = _spectra_shape(a, a.waveform, a.onesided is not False, a.pad)
        shape = (*a.waveform.shape[:-1], *spectra)
        dtype = complex_dtype(a.waveform.dtype)
        return TensorSpec(shape, dtype if a.power is None else real_dtype(dtype))

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        x = np.pad(a.waveform, [(0, 0)] * (a.waveform.ndim - 1) + [(a.pad, a.pad)])
        y = _transformed(a, x, a.onesided is not False, _frame_norm(a))
        if _divides_by_window(a):
            y = y / _window_norm(a)
        return y if a.power is None else np.abs(y) ** a.power


@record("torchaudio.functional.inverse_spectrogram")
class InverseSpectrogram(NumpyRecord):
    """The signal of spectra of overlapping frames.

    Source: torchaudio.functional.inverse_spectrogram.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    arguments = (
        Tensor("spectrogram"),
        *_FRAMES,
        Int("length", None, minimum=0, nullable=True),
        Int("pad", 0, minimum=0),
        AnyArgument("normalized", False),
        Bool("center", True),
        Str("pad_mode", tuple(_PADDING), "reflect"),
        AnyArgument("onesided", None),
    )

    @staticmethod
    def _length(a: SimpleNamespace) -> int | None:
        """Return how much of the padded signal is made."""
        return None if a.length is None else a.length + 2 * a.pad

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        _divides_by_window(a)
        _check_spectra(a, a.spectrogram, a.onesided is not False)
        start, end = _kept(a, a.spectrogram.shape[-1], a.length)
        return TensorSpec(
            (*a.spectrogram.shape[:-2], max(0, end - start)), real_dtype(a.spectrogram.dtype)
        )

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        spectra = a.spectrogram
        if _divides_by_window(a):
            spectra = spectra * _window_norm(a)
        y = _joined(a, spectra, True, _frame_norm(a), cls._length(a))
        return y if a.length is None else y[..., a.pad : a.pad + a.length]
