"""Operators of signals: Fourier transforms, windows, filters of the mel scale."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kuiper.onnx.builder import Builder, torch_name
from kuiper.onnx.registry import op
from kuiper.onnx.tensors import element_dtype
from kuiper.onnx.values import Known, Ref, Size

__all__: list[str] = []

MAX_LENGTH = 1 << 23  # of a window that the graph holds as a constant


def _signal(b: Builder, x: Any) -> Any:
    """Return a tensor of real numbers, or of pairs along the last axis, without that axis."""
    parts = b.extents(x)[-1]
    if isinstance(parts, int) and parts == 2:
        return b.emit("torch.view_as_complex", x)
    if isinstance(parts, int) and parts == 1:
        return b.emit("Tensor.select", x, dim=-1, index=0)
    raise b.error(f"the last axis of the signal has the extent {parts}, expected 1 or 2")


def _transform(b: Builder, x: Any, dft_length: Any, axis: Any, inverse: int, onesided: int) -> Any:
    rank = x.rank
    if isinstance(axis, Size):
        along = axis % rank  # not checked here: the last axis is none of the transform's input
    else:
        along = b.axis(int(axis), rank)
        if along == rank - 1:
            raise b.error(f"axis is {axis}, which holds the parts of complex numbers")
    signal = _signal(b, x)
    is_real = signal.dtype.kind != "c"
    if onesided and is_real == bool(inverse):
        expected = "complex" if inverse else "real"
        raise b.error(f"onesided is 1 and inverse is {inverse}, expected a {expected} signal")
    name = ("i" if inverse else "") + ("r" if onesided else "") + "fftn"
    lengths = None if dft_length is None else [_positive(b, dft_length, "dft_length")]
    found = b.emit(f"torch.fft.{name}", signal, s=lengths, dim=[along])
    is_wide = x.dtype == np.float64
    if name == "irfftn":
        found = _of_rank(b, found, np.float64 if is_wide else np.float32, rank - 1)
        return b.emit("torch.unsqueeze", found, dim=-1)
    found = _of_rank(b, found, np.complex128 if is_wide else np.complex64, rank - 1)
    return b.emit("torch.view_as_real", found)


def _of_rank(b: Builder, value: Ref, dtype: Any, rank: int) -> Ref:
    """Return a tensor of which the rank is known, even if a run computes its shape."""
    return b.declared(value, dtype, (None,) * rank) if value.shape is None else value


def _positive(b: Builder, value: Any, what: str) -> Any:
    """Return a number that is at least 1: an int, or a Size that is checked by the run."""
    number = b.numbers(value, what)[0]
    if isinstance(number, Size):
        return number.apply("max", 0)  # which no length may be, unlike -1
    if number < 1:
        raise b.error(f"{what} is {number}, expected at least 1")
    return int(number)


@op("DFT")
def dft_old(
    b: Builder, x: Any, dft_length: Any = None, *, axis: int = 1, inverse: int = 0,
    onesided: int = 0,
) -> Any:  # fmt: skip
    return _transform(b, x, dft_length, axis, inverse, onesided)


@op("DFT", since=20)
def dft(
    b: Builder, x: Any, dft_length: Any = None, axis: Any = None, *, inverse: int = 0,
    onesided: int = 0,
) -> Any:  # fmt: skip
    along = -2 if axis is None else b.numbers(axis, "axis")[0]
    return _transform(b, x, dft_length, along, inverse, onesided)


@op("STFT")
def stft(
    b: Builder, x: Any, frame_step: Any, window: Any = None, frame_length: Any = None, *,
    onesided: int = 1,
) -> Any:  # fmt: skip
    if frame_length is not None:
        length = _positive(b, frame_length, "frame_length")
    else:
        length = b.extents(x)[1] if window is None else b.extents(window)[0]
    signal = _signal(b, x)
    is_real = signal.dtype.kind != "c"
    frames = b.emit(
        "torch.stft", signal, n_fft=length, hop_length=_positive(b, frame_step, "frame_step"),
        window=window, center=False, onesided=bool(onesided) and is_real, return_complex=False,
    )  # fmt: skip
    found = b.emit("Tensor.permute", _of_rank(b, frames, x.dtype, 4), dims=(0, 2, 1, 3))
    if not onesided or is_real:
        return found
    # Of complex signals, the first half of the frequencies does not determine the others.
    return b.emit("Tensor.slice", found, dim=2, start=0, end=length // 2 + 1, step=1)


# Weights of a constant and of cosines of one and of two turns.
WINDOWS = {
    "HannWindow": (0.5, -0.5, 0.0),
    "HammingWindow": (25 / 46, -21 / 46, 0.0),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}


def _window(type_: str, constant: float, once: float, twice: float) -> None:
    @op(type_)
    def window(b: Builder, size: Any, *, periodic: int = 1, output_datatype: int = 1) -> Any:
        dtype = element_dtype(output_datatype, b.where)
        count = b.numbers(size, "size")[0]
        steps = count if periodic else count - 1
        if not isinstance(count, Size):
            if not 0 <= count <= MAX_LENGTH:
                raise b.error(f"size is {count}, expected 0 to {MAX_LENGTH}")
            with np.errstate(all="ignore"):
                angle = 2 * math.pi * np.arange(count) / np.float64(steps)
                values = constant + once * np.cos(angle) + twice * np.cos(2 * angle)
                return Known(values.astype(dtype))
        index = b.emit("torch.arange", start=0, end=count, step=1, dtype="torch.double")
        angle = b.formula(f"div(mul(@0,{2 * math.pi!r}),@1)", index, steps)
        text = f"add({constant!r},mul(cos(@0),{once!r}))"
        if twice:
            text = f"add({text},mul(cos(mul(@0,2)),{twice!r}))"
        return b.cast(b.formula(text, angle), dtype)


for _type, _weights in WINDOWS.items():
    _window(_type, *_weights)


@op("MelWeightMatrix")
def mel_weight_matrix(
    b: Builder, num_mel_bins: Any, dft_length: Any, sample_rate: Any, lower_edge_hertz: Any,
    upper_edge_hertz: Any, *, output_datatype: int = 1,
) -> Any:  # fmt: skip
    dtype = element_dtype(output_datatype, b.where)
    return b.emit(
        "kuiper.MelWeightMatrix", bins=b.numbers(num_mel_bins)[0],
        dft_length=b.numbers(dft_length)[0], sample_rate=b.numbers(sample_rate)[0],
        low=b.numbers(lower_edge_hertz)[0], high=b.numbers(upper_edge_hertz)[0],
        dtype=torch_name(dtype),
    )  # fmt: skip
