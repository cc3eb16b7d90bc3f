"""Fourier transforms of whole axes and of a signal's frames."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.axes import axes_of, axis_of
from kuiper.ops.core.numpy_step import NumpyRecord
from kuiper.ops.core.record import NoBatchRule, T, define_record, record
from kuiper.ops.core.schema import (
    AnyArgument,
    Bool,
    DType,
    Float,
    Int,
    Ints,
    Scalar,
    Str,
    Tensor,
    schema,
)
from kuiper.ops.math.complex import complex_dtype, pairs, real_dtype

__all__ = ["InverseSpectrogram", "InverseStft", "Spectrogram", "Stft"]


# -- Fourier transforms of whole axes ----------------------------------------------------------


class _Transform(NamedTuple):
    """One row of :data:`TRANSFORMS`.

    Attributes
    ----------
    types : str
        The names over one axis, over two axes and over any.
    summary : str
    half : str
        Which side holds only half of a symmetric spectrum: ``""``, ``"in"`` or ``"out"``.
    backward : bool
        Whether it is an inverse transform.
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
    input: T
    dim: Any
    norm: Norm

    def _plan(self: Fourier[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the axes, and the length of the transform along each."""
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
        if self.input.size == 0:  # numpy would return uninitialized memory
            spec = self.result()
            return np.zeros(spec.shape, spec.dtype)
        half, backward = self.transform.half, self.transform.backward
        norm: Norm = "backward" if self.norm is None else self.norm
        # numpy has the forward transforms from reals and the backward ones to reals.  The other
        # two follow by conjugation, which changes the sign of the exponent.
        if half == "in":
            if backward:
                return np.fft.irfftn(self.input, lengths, axes, norm)
            return np.fft.irfftn(np.conj(self.input), lengths, axes, _SWAPPED[norm])
        if half == "out":
            if not backward:
                return np.fft.rfftn(self.input, lengths, axes, norm)
            return np.conj(np.fft.rfftn(self.input, lengths, axes, _SWAPPED[norm]))
        return (np.fft.ifftn if backward else np.fft.fftn)(self.input, lengths, axes, norm)


_SIZES = Ints(default=None, nullable=True)
_ARGUMENTS = (
    ("along one axis", schema(n=Int(None, nullable=True), dim=Int(-1))),
    ("along two axes", schema(s=_SIZES, dim=Ints(default=(-2, -1)))),
    ("along some axes", schema(s=_SIZES, dim=Ints(default=None, nullable=True))),
)

for _transform in TRANSFORMS:
    for _name, (_where, _own) in zip(_transform.types.split(), _ARGUMENTS, strict=True):
        define_record(
            Fourier,
            f"torch.fft.{_name}",
            f"{_transform.summary}, {_where}",
            arguments=(*schema(input=Tensor()), *_own, *schema(norm=Str(tuple(_SWAPPED), None))),
            transform=_transform,
        )


@record("aten::fft_fftshift")
class FftShift(NumpyRecord[T]):
    """A spectrum with the zero frequency in the middle.

    Source: torch.fft.fftshift.
    """

    batch = "along_axes"
    input: T = Tensor()
    dim: tuple[int, ...] | None = Ints(default=None, nullable=True)
    function: Callable[..., Any] = staticmethod(np.fft.fftshift)

    def result(self: FftShift[TensorSpec]) -> TensorSpec:
        if self.dim is not None:
            axes_of(self.dim, self.input.shape)
        return TensorSpec(self.input.shape, self.input.dtype)

    def compute(self: FftShift[np.ndarray]) -> Any:
        return type(self).function(self.input, self.dim)


@record("aten::fft_ifftshift")
class InverseFftShift(FftShift[T]):
    """A spectrum with the zero frequency in front again.

    Source: torch.fft.ifftshift.
    """

    function = staticmethod(np.fft.ifftshift)


@record("aten::fft_fftfreq")
class FftFrequencies(NumpyRecord[T]):
    """The frequencies of torch.fft.fft of `n` samples at distance `d`.

    Source: torch.fft.fftfreq.
    """

    batch = "shared"
    n: int = Int(minimum=1)
    d: float = Float(1.0)
    dtype: np.dtype | None = DType(None)
    layout_: Any = AnyArgument(None)
    device: Any = AnyArgument(None)
    pin: Any = AnyArgument(None)
    function: Callable[..., Any] = staticmethod(np.fft.fftfreq)

    def compute(self: FftFrequencies[Any]) -> Any:
        return type(self).function(self.n, self.d)

    def result(self: FftFrequencies[TensorSpec]) -> TensorSpec:
        return TensorSpec((self.n,), self.dtype or np.float32)


@record("aten::fft_rfftfreq")
class RealFftFrequencies(FftFrequencies[T]):
    """The frequencies of torch.fft.rfft of `n` samples at distance `d`.

    Source: torch.fft.rfftfreq.
    """

    function = staticmethod(np.fft.rfftfreq)

    def result(self: RealFftFrequencies[TensorSpec]) -> TensorSpec:
        return TensorSpec((self.n // 2 + 1,), self.dtype or np.float32)


# -- Fourier transforms of frames --------------------------------------------------------------

_PADDING = {"reflect": "reflect", "constant": "constant", "replicate": "edge", "circular": "wrap"}


class _Frames(NumpyRecord[T]):
    """Base of the transforms between a signal and the spectra of its frames.

    Frames of `n_fft` samples start every `hop_length` samples; with `center`, half a frame of
    padding precedes and follows the signal.  A window shorter than the frame lies in its middle.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    n_fft: int
    hop_length: int | None
    win_length: int | None
    window: T | None
    normalized: Any
    center: bool
    pad_mode: str

    @property
    def hop(self) -> int:
        return self.n_fft // 4 if self.hop_length is None else self.hop_length

    @property
    def window_length(self) -> int:
        return self.n_fft if self.win_length is None else self.win_length

    @property
    def norm(self) -> Norm:
        return "ortho" if self.normalized else "backward"

    @property
    def margin(self) -> int:
        """The padding at each end of the signal."""
        return self.n_fft // 2 if self.center else 0

    def frame_window(self: _Frames[np.ndarray]) -> np.ndarray:
        """Return the window of a whole frame as float64."""
        length = self.window_length
        window = np.ones(length) if self.window is None else self.window.astype(np.float64)
        left = (self.n_fft - length) // 2
        return np.pad(window, (left, self.n_fft - length - left))

    def check_window(self: _Frames[TensorSpec]) -> None:
        length, window = self.window_length, self.window
        if length > self.n_fft:
            raise ShapeError(f"'win_length' is {length}, expected at most {self.n_fft}")
        if window is not None and window.dtype.kind == "c":
            raise ShapeError(f"'window' is {window.dtype}, expected real numbers")
        if window is not None and window.shape != (length,):
            raise ShapeError(f"'window' has shape {window.shape}, expected ({length},)")

    # From a signal to spectra.

    def spectra_shape(
        self: _Frames[TensorSpec], signal: TensorSpec, onesided: bool, pad: int = 0
    ) -> tuple[int, int]:
        """Return the number of frequencies and of frames of a signal padded at both ends."""
        self.check_window()
        if signal.rank == 0:
            raise ShapeError("the signal is a 0-d tensor, expected an axis of samples")
        if onesided and signal.dtype.kind == "c":
            raise ShapeError(f"the signal is {signal.dtype}, expected real numbers for 'onesided'")
        length = signal.shape[-1] + 2 * pad
        if self.center and self.pad_mode == "reflect" and self.margin >= length:
            raise ShapeError(
                f"the signal has {length} samples, expected more than the {self.margin} to reflect"
            )
        length += 2 * self.margin
        if length < self.n_fft:
            raise ShapeError(f"the signal has {length} samples, expected a frame of {self.n_fft}")
        frequencies = self.n_fft // 2 + 1 if onesided else self.n_fft
        return frequencies, 1 + (length - self.n_fft) // self.hop

    def spectra_of(self: _Frames[np.ndarray], x: np.ndarray, onesided: bool) -> np.ndarray:
        """Return the spectra (..., frequencies, frames) of a signal's windowed frames."""
        if self.center:
            mode: Any = _PADDING[self.pad_mode]
            x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(self.margin,) * 2], mode)
        frames = np.lib.stride_tricks.sliding_window_view(x, self.n_fft, -1)[..., :: self.hop, :]
        function = np.fft.rfft if onesided else np.fft.fft
        # numpy transforms in the precision of its input, so the window must not widen it.
        window = self.frame_window().astype(real_dtype(x.dtype))
        return np.swapaxes(function(frames * window, norm=self.norm), -1, -2)

    # From spectra to a signal.

    def check_spectra(self: _Frames[TensorSpec], spectra: TensorSpec, onesided: bool) -> None:
        self.check_window()
        if self.hop > self.window_length:
            raise ShapeError(
                f"'hop_length' is {self.hop}, expected at most the window's {self.window_length}"
            )
        expected = self.n_fft // 2 + 1 if onesided else self.n_fft
        if spectra.rank < 2 or spectra.dtype.kind != "c" or spectra.shape[-2] != expected:
            raise ShapeError(
                f"the spectra are {spectra}, expected complex (..., {expected}, frames)"
            )

    def signal_range(self: _Frames[Any], n_frames: int, length: int | None) -> tuple[int, int]:
        """Return the start and end of the signal within the sum of the frames."""
        end = self.n_fft + self.hop * (n_frames - 1) - self.margin
        return self.margin, end if length is None else self.margin + length

    def signal_of(
        self: _Frames[np.ndarray], spectra: np.ndarray, real: bool, length: int | None
    ) -> np.ndarray:
        """Return the signal (..., length): the sum of the frames over that of squared windows.

        A `real` signal reads only the first half of the spectra, even of whole ones.
        """
        spectra = np.swapaxes(spectra, -1, -2)
        frames = (np.fft.irfft if real else np.fft.ifft)(spectra, self.n_fft, norm=self.norm)
        window, n_frames = self.frame_window(), frames.shape[-2]
        frames *= window.astype(real_dtype(frames.dtype))
        y = _overlap_add(frames, self.hop)
        weight = _overlap_add(np.tile(window**2, (n_frames, 1)), self.hop)
        start, end = self.signal_range(n_frames, length)
        end_of_frames = min(end, y.shape[-1])
        weight = weight[start:end_of_frames]
        if weight.size and weight.min() < 1e-11:
            raise ShapeError("the windows do not cover the whole signal")
        y = y[..., start:end_of_frames] / weight.astype(real_dtype(y.dtype))
        return np.pad(y, [(0, 0)] * (y.ndim - 1) + [(0, end - end_of_frames)])


def _overlap_add(frames: np.ndarray, hop: int) -> np.ndarray:
    """Return the sum of frames (..., frames, length), each `hop` samples after the previous one."""
    *lead, count, length = frames.shape
    n_pieces = -(-length // hop)
    y = np.zeros((*lead, count + n_pieces - 1, hop), frames.dtype)
    # Add piece k of all frames at once, the last piece first: it comes from the earliest frame.
    for k in range(n_pieces - 1, -1, -1):
        piece = frames[..., k * hop : (k + 1) * hop]
        y[..., k : k + count, : piece.shape[-1]] += piece
    return y.reshape(*lead, -1)[..., : length + hop * (count - 1)]


@record("torch.stft")
class Stft(_Frames[T]):
    """Spectra of a signal's overlapping frames: (..., length) -> (..., frequencies, frames).

    Source: torch.stft.
    """

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

    def _onesided(self: Stft[Any]) -> bool:
        return self.input.dtype.kind != "c" if self.onesided is None else self.onesided

    def result(self: Stft[TensorSpec]) -> TensorSpec:
        shape = (*self.input.shape[:-1], *self.spectra_shape(self.input, self._onesided()))
        dtype = complex_dtype(self.input.dtype)
        if not self.return_complex:
            return TensorSpec((*shape, 2), real_dtype(dtype))
        return TensorSpec(shape, dtype)

    def compute(self: Stft[np.ndarray]) -> Any:
        y = self.spectra_of(self.input, self._onesided())
        return y if self.return_complex else pairs(y)


@record("torch.istft")
class InverseStft(_Frames[T]):
    """The signal of spectra of overlapping frames: (..., frequencies, frames) -> (..., length).

    Source: torch.istft.
    """

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

    def result(self: InverseStft[TensorSpec]) -> TensorSpec:
        onesided = not self.return_complex if self.onesided is None else self.onesided
        self.check_spectra(self.input, onesided)
        start, end = self.signal_range(self.input.shape[-1], self.length)
        dtype = self.input.dtype if self.return_complex else real_dtype(self.input.dtype)
        return TensorSpec((*self.input.shape[:-2], max(0, end - start)), dtype)

    def compute(self: InverseStft[np.ndarray]) -> Any:
        return self.signal_of(self.input, not self.return_complex, self.length)


class _Spectrogram(_Frames[T]):
    """Base of torchaudio's transforms, which may be normalized by the window or the frame."""

    @property
    def norm(self) -> Norm:
        return "ortho" if self.normalized == "frame_length" else "backward"

    @property
    def is_by_window(self) -> bool:
        """Whether the norm of the window divides the spectra."""
        return self.normalized in (True, "window")

    def window_norm(self: _Spectrogram[np.ndarray]) -> float:
        if self.window is None:
            return math.sqrt(self.window_length)
        return float(np.sqrt(np.sum(np.square(self.window.astype(np.float64)))))

    def check_window(self: _Spectrogram[TensorSpec]) -> None:
        if self.normalized not in (True, False, "window", "frame_length"):
            raise ShapeError(
                f"'normalized' is {self.normalized!r}, expected True, False, window or frame_length"
            )
        super().check_window()


@record("torchaudio.functional.spectrogram")
class Spectrogram(_Spectrogram[T]):
    """Spectra of overlapping frames, complex or as a power of their absolute values.

    Source: torchaudio.functional.spectrogram.
    """

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
        spectra = self.spectra_shape(self.waveform, self.onesided is not False, self.pad)
        dtype = complex_dtype(self.waveform.dtype)
        shape = (*self.waveform.shape[:-1], *spectra)
        return TensorSpec(shape, dtype if self.power is None else real_dtype(dtype))

    def compute(self: Spectrogram[np.ndarray]) -> Any:
        x = np.pad(self.waveform, [(0, 0)] * (self.waveform.ndim - 1) + [(self.pad, self.pad)])
        y = self.spectra_of(x, self.onesided is not False)
        if self.is_by_window:
            y = y / self.window_norm()
        return y if self.power is None else np.abs(y) ** self.power


@record("torchaudio.functional.inverse_spectrogram")
class InverseSpectrogram(_Spectrogram[T]):
    """The signal of spectra of overlapping frames.

    Source: torchaudio.functional.inverse_spectrogram.
    """

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

    def result(self: InverseSpectrogram[TensorSpec]) -> TensorSpec:
        spectra = self.spectrogram
        self.check_spectra(spectra, self.onesided is not False)
        start, end = self.signal_range(spectra.shape[-1], self.length)
        return TensorSpec((*spectra.shape[:-2], max(0, end - start)), real_dtype(spectra.dtype))

    def compute(self: InverseSpectrogram[np.ndarray]) -> Any:
        spectra = self.spectrogram
        if self.is_by_window:
            spectra = spectra * self.window_norm()
        padded = None if self.length is None else self.length + 2 * self.pad
        y = self.signal_of(spectra, True, padded)
        return y if self.length is None else y[..., self.pad : self.pad + self.length]


# -- filters -----------------------------------------------------------------------------------

MAX_FILTERS = 1 << 23  # numbers in a matrix, which is computed while the model is loaded


@record("kuiper.MelWeightMatrix")
class MelWeightMatrix(NumpyRecord[T]):
    """Triangular filters of equal width on the mel scale: (dft_length // 2 + 1, bins).

    The product of spectra (..., dft_length // 2 + 1) and the matrix is a mel spectrogram.
    Source: https://onnx.ai/onnx/operators/onnx__MelWeightMatrix.html.

    Raises
    ------
    ShapeError
        If the edges `low` and `high` are no range of frequencies up to half the sample rate, or
        the matrix has more than 8 million numbers.
    """

    batch = "shared"
    bins: int = Int(minimum=1)
    dft_length: int = Int(minimum=1)
    sample_rate: int = Int(minimum=1)
    low: float = Float()
    high: float = Float()
    dtype: np.dtype | None = DType(None)

    def result(self: MelWeightMatrix[TensorSpec]) -> TensorSpec:
        if (self.dft_length // 2 + 1) * self.bins > MAX_FILTERS:
            raise ShapeError(
                f"the matrix has {self.dft_length // 2 + 1} x {self.bins} numbers, expected at "
                f"most {MAX_FILTERS}"
            )
        if not 0 <= self.low <= self.high <= self.sample_rate / 2:
            raise ShapeError(
                f"the filters reach from {self.low:g} to {self.high:g} Hz, expected a range up to "
                f"half the sample rate {self.sample_rate}"
            )
        return TensorSpec((self.dft_length // 2 + 1, self.bins), self.dtype or np.float32)

    def compute(self: MelWeightMatrix[Any]) -> Any:
        low, high = (2595 * math.log10(1 + hertz / 700) for hertz in (self.low, self.high))
        mels = np.arange(self.bins + 2) * ((high - low) / (self.bins + 2)) + low
        hertz = 700 * (10 ** (mels / 2595) - 1)
        edges = np.floor((self.dft_length + 1) * hertz / self.sample_rate)
        left, middle, right = (edges[None, i : i + self.bins] for i in range(3))
        line = np.arange(self.dft_length // 2 + 1)[:, None]
        rising = np.where(middle > left, (line - left) / (middle - left), line == middle)
        falling = (right - line) / (right - middle)
        inside = (line >= left) & (line < right) | (line == middle)
        return np.where(inside, np.where(line > middle, falling, rising), 0)
