"""Fourier transforms as explicit sums, and complex numbers."""

from __future__ import annotations

import numpy as np

from .registry import reference


@reference("torch.complex")
def complex_(*, real, imag):
    """Complex numbers from real and imaginary parts."""
    return real + 1j * imag


@reference("aten::polar")
def polar(length, angle):
    """Complex numbers from magnitude and angle."""
    return length * np.exp(1j * angle)


@reference("torch.real")
def real(input):
    """Real part."""
    return np.real(input)


@reference("torch.imag")
def imag(input):
    """Imaginary part."""
    return np.imag(input)


@reference("aten::angle")
def angle(input):
    """Argument in radians."""
    return np.angle(input)


@reference("aten::_conj", "aten::conj_physical")
def conj(input):
    """Complex conjugate."""
    return input.real - 1j * input.imag


@reference("aten::resolve_conj", "aten::resolve_neg")
def resolve(input):
    """The input."""
    return input


@reference("torch.view_as_complex")
def view_as_complex(input):
    """Complex numbers from pairs along the last axis."""
    return input[..., 0] + 1j * input[..., 1]


@reference("torch.view_as_real")
def view_as_real(input):
    """Real and imaginary parts along a new last axis."""
    return np.stack([input.real, input.imag], -1)


def _fit(x, n, axis):
    """Crop an axis to n elements, or pad it with zeros."""
    x = np.take(x, np.arange(min(n, x.shape[axis])), axis)
    missing = np.zeros(np.array(x.shape) + 0)
    extents = [n - x.shape[axis] if d == axis % x.ndim else m for d, m in enumerate(missing.shape)]
    return np.concatenate([x, np.zeros(extents)], axis)


def _sum(x, n, axis, sign, norm):
    """Sum x[j] exp(sign 2 pi i j k / n) over an axis, for all k."""
    x = np.moveaxis(_fit(x, n, axis), axis, -1)
    k = np.arange(n)
    y = x @ np.exp(sign * 2j * np.pi * np.outer(k, k) / n)
    scale = {"ortho": n**-0.5, ("forward" if sign < 0 else "backward"): 1 / n}.get(norm, 1)
    return np.moveaxis(y * scale, -1, axis)


def _mirror(x, n, axis):
    """Return the whole spectrum of half of it: the other half is its conjugate in reverse."""
    x = np.moveaxis(_fit(x, n // 2 + 1, axis), axis, -1).astype(complex)
    x[..., 0] = x[..., 0].real
    if n % 2 == 0:
        x[..., -1] = x[..., -1].real
    whole = [x[..., k] if k <= n // 2 else np.conj(x[..., n - k]) for k in range(n)]
    return np.moveaxis(np.stack(whole, -1), -1, axis)


def _transform(input, axes, lengths, sign, half, norm):
    norm = norm or "backward"
    lengths = list(lengths or [None] * len(axes))
    for number, (axis, n) in enumerate(zip(axes, lengths, strict=True)):
        last = number == len(axes) - 1
        if n in (None, -1):
            halved = half == "in" and last
            lengths[number] = 2 * (input.shape[axis] - 1) if halved else input.shape[axis]
    pairs = list(zip(axes, lengths, strict=True))
    y = input
    for axis, n in pairs[:-1]:
        y = _sum(y, n, axis, sign, norm)
    axis, n = pairs[-1]
    if half == "in":
        return _sum(_mirror(y, n, axis), n, axis, sign, norm).real
    y = _sum(y, n, axis, sign, norm)
    return np.take(y, np.arange(n // 2 + 1), axis) if half == "out" else y


def _register(name, sign, half):
    def one(input, *, n=None, dim=-1, norm=None):
        return _transform(input, [dim], [n], sign, half, norm)

    def several(input, *, s=None, dim=(-2, -1), norm=None):
        axes = list(dim or range(input.ndim))[-len(s) if s and not dim else 0 :]
        return _transform(input, axes, s, sign, half, norm)

    one.__doc__ = several.__doc__ = "A sum over one axis after the other."
    reference(f"torch.fft.{name}")(one)
    reference(f"torch.fft.{name}2", f"torch.fft.{name}n")(several)


for _name, _sign, _half in (
    ("fft", -1, ""),
    ("ifft", 1, ""),
    ("rfft", -1, "out"),
    ("irfft", 1, "in"),
    ("hfft", -1, "in"),
    ("ihfft", 1, "out"),
):
    _register(_name, _sign, _half)


@reference("aten::fft_fftshift")
def fftshift(input, dim=None):
    """Roll each axis by half its extent."""
    axes = range(input.ndim) if dim is None else dim
    return np.roll(input, [input.shape[d] // 2 for d in axes], tuple(axes))


@reference("aten::fft_ifftshift")
def ifftshift(input, dim=None):
    """Roll each axis back by half its extent."""
    axes = range(input.ndim) if dim is None else dim
    return np.roll(input, [-(input.shape[d] // 2) for d in axes], tuple(axes))


@reference("aten::fft_fftfreq")
def fftfreq(n, d, *_):
    """Frequencies of a spectrum; the second half is negative."""
    return np.array([k if k < (n + 1) // 2 else k - n for k in range(n)]) / (n * d)


@reference("aten::fft_rfftfreq")
def rfftfreq(n, d, *_):
    """Frequencies of a one-sided spectrum."""
    return np.arange(n // 2 + 1) / (n * d)


def _window(window, n_fft, win_length):
    length = n_fft if win_length is None else win_length
    whole = np.zeros(n_fft)
    start = (n_fft - length) // 2
    whole[start : start + length] = 1 if window is None else window
    return whole


@reference("torch.stft")
def stft(
    input,
    *,
    window=None,
    n_fft,
    hop_length,
    win_length,
    center,
    pad_mode,
    normalized,
    onesided,
    return_complex,
):
    """Transform one windowed frame after another."""
    hop = n_fft // 4 if hop_length is None else hop_length
    if center:
        mode = {"replicate": "edge", "circular": "wrap"}.get(pad_mode, pad_mode)
        input = np.pad(input, [(0, 0)] * (input.ndim - 1) + [(n_fft // 2,) * 2], mode)
    window = _window(window, n_fft, win_length)
    spectra = []
    for start in range(0, input.shape[-1] - n_fft + 1, hop):
        frame = input[..., start : start + n_fft] * window
        spectra.append(_sum(frame, n_fft, -1, -1, "ortho" if normalized else "backward"))
    y = np.stack(spectra, -1)
    if onesided or (onesided is None and not np.iscomplexobj(input)):
        y = y[..., : n_fft // 2 + 1, :]
    return y if return_complex else view_as_real(y)


@reference("torch.istft")
def istft(
    input,
    *,
    window=None,
    n_fft,
    hop_length,
    win_length,
    center,
    normalized,
    onesided,
    length,
    return_complex,
):
    """Overlap-add the windowed frames and divide by the sum of the squared windows."""
    hop = n_fft // 4 if hop_length is None else hop_length
    window = _window(window, n_fft, win_length)
    count = input.shape[-1]
    y = np.zeros((*input.shape[:-2], n_fft + hop * (count - 1)), complex)
    weight = np.zeros(y.shape[-1])
    for number in range(count):
        spectrum = input[..., number]
        if not return_complex:
            spectrum = _mirror(spectrum, n_fft, -1)
        frame = _sum(spectrum, n_fft, -1, 1, "ortho" if normalized else "backward")
        span = slice(number * hop, number * hop + n_fft)
        y[..., span] += frame * window
        weight[span] += window**2
    start = n_fft // 2 if center else 0
    end = y.shape[-1] - start if length is None else start + length
    y = y[..., start:end] / weight[start:end]
    if length is not None:
        y = _fit(y, length, -1)
    return y if return_complex else y.real


@reference("torchaudio.functional.spectrogram")
def spectrogram(waveform, *, window, pad, power, normalized, onesided, **settings):
    """Transform frames, scale, and raise magnitudes to a power."""
    waveform = np.pad(waveform, [(0, 0)] * (waveform.ndim - 1) + [(pad, pad)])
    frame_norm = normalized == "frame_length"
    y = stft(
        waveform,
        window=window,
        normalized=frame_norm,
        onesided=onesided,
        return_complex=True,
        **settings,
    )
    if normalized and not frame_norm:
        y = y / np.sqrt((window**2).sum())
    return y if power is None else np.abs(y) ** power


@reference("torchaudio.functional.inverse_spectrogram")
def inverse_spectrogram(spectrogram, *, window, pad, length, normalized, onesided, **settings):
    """Undo the scale and overlap-add the frames."""
    frame_norm = normalized == "frame_length"
    if normalized and not frame_norm:
        spectrogram = spectrogram * np.sqrt((window**2).sum())
    y = istft(
        spectrogram,
        window=window,
        normalized=frame_norm,
        onesided=onesided,
        length=None if length is None else length + 2 * pad,
        return_complex=False,
        **settings,
    )
    return y[..., pad : y.shape[-1] - pad] if length is not None else y


@reference("kuiper.MelWeightMatrix")
def mel_weight_matrix(*, bins, dft_length, sample_rate, low, high, dtype=None):
    """One triangle per filter: from the edge on its left up to its middle, and down again."""
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in (low, high))
    y = np.zeros((dft_length // 2 + 1, bins))
    mels = low + np.arange(bins + 2) * (high - low) / (bins + 2)
    hertz = 700 * (10 ** (mels / 2595) - 1)
    edges = np.floor((dft_length + 1) * hertz / sample_rate).astype(int)
    for i, (left, middle, right) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        y[middle, i] = 1
        for line in range(left, middle):
            y[line, i] = (line - left) / (middle - left)
        for line in range(middle, right):
            y[line, i] = (right - line) / (right - middle)
    return y
