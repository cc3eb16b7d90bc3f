"""Operators of signals: Fourier transforms, windows, filters of the mel scale."""

import itertools

import numpy as np
import pytest

import kuiper

from ...reference import REFERENCES
from ...support.onnxfile import single

R = np.random.default_rng(5)


def run(type_, *inputs, opset=20, known=(), **attributes):
    """Return the result of an operator; `known` inputs are constants of the file."""
    arrays = {f"i{k}": np.asarray(x) for k, x in enumerate(inputs)}
    rest = {key: arrays.pop(key) for key in known}
    model = kuiper.load(single(type_, arrays, known=rest, opset=opset, **attributes))
    return model(*arrays.values())


def signal(*shape, dtype=np.float32):
    return R.normal(size=shape).astype(dtype)


def pairs(y):
    return np.stack([y.real, y.imag], -1)


def numbers(x):
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("length", [None, 8, 13])
@pytest.mark.parametrize(("parts", "inverse", "onesided", "function"), [
    (1, 0, 0, "fft"), (2, 0, 0, "fft"), (1, 0, 1, "rfft"), (1, 1, 0, "ifft"), (2, 1, 0, "ifft"),
    (2, 1, 1, "irfft"),
])  # fmt: skip
def test_transforms(parts, inverse, onesided, function, length, dtype):
    x = signal(2, 10, 3, parts, dtype=dtype)
    expected = getattr(np.fft, function)(numbers(x), length, axis=1)
    expected = expected[..., None] if function == "irfft" else pairs(expected)
    more = [] if length is None else [np.array(length)]
    arguments = {"inverse": inverse, "onesided": onesided}
    results = [
        run("DFT", x, *more, opset=17, axis=1, **arguments),
        run("DFT", x, *more, opset=17, axis=-3, known=("i1",) if more else (), **arguments),
    ]
    if more:  # opset 20 has the axis as third input
        results.append(run("DFT", x, *more, np.array(-3), **arguments))
    for got in results:
        assert got.dtype == dtype
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_the_axis_before_the_parts_is_the_default():
    x = signal(2, 3, 10, 1)
    np.testing.assert_allclose(run("DFT", x), pairs(np.fft.fft(x[..., 0])), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "inputs", "attributes", "message"),
    [
        ((2, 8, 3), (), {}, "the last axis of the signal has the extent 3, expected 1 or 2"),
        ((2, 8, 2), (), {"onesided": 1}, "onesided is 1 and inverse is 0, expected a real signal"),
        ((2, 8, 1), (), {"onesided": 1, "inverse": 1}, "expected a complex signal"),
        ((2, 8, 1), (np.array(-1),), {}, "not all at least 1"),
        ((2, 8, 1), (np.array(8), np.array(2)), {}, "'dim' is 2, expected -2 to 1"),
    ],
)
def test_transforms_that_are_refused(x, inputs, attributes, message):
    with pytest.raises(kuiper.KuiperError, match=message):
        run("DFT", signal(*x), *inputs, **attributes)


def test_numbers_of_the_file_are_checked_when_it_is_loaded():
    x = signal(2, 8, 1)
    for inputs, message in (
        ((np.array(0),), "dft_length is 0, expected at least 1"),
        ((np.array(8), np.array(-1)), "axis is -1, which holds the parts of complex numbers"),
    ):
        known = {f"i{k}": array for k, array in enumerate(inputs)}
        with pytest.raises(kuiper.OperatorError, match=message):
            kuiper.load(single("DFT", {"x": x}, known=known))


@pytest.mark.parametrize("known", [(), ("i1", "i2")])
@pytest.mark.parametrize(("parts", "onesided"), [(1, 1), (1, 0), (2, 0), (2, 1)])
def test_frames(parts, onesided, known):
    x, window = signal(2, 50, parts), np.hanning(16).astype(np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(numbers(x), 16, 1)[:, ::7]
    expected = pairs(np.fft.fft(frames * window))
    expected = expected[:, :, :9] if onesided else expected
    got = run("STFT", x, np.array(7), window, known=known, onesided=onesided)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    got = run("STFT", x, np.array(7), window, np.array(16), onesided=onesided)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_window_of_another_length():
    window = np.ones(12, np.float32)
    with pytest.raises(kuiper.KuiperError, match=r"'window' has shape \(12,\), expected \(16,\)"):
        run("STFT", signal(2, 50, 1), np.array(7), window, np.array(16), known=("i1", "i2", "i3"))


WEIGHTS = {
    "HannWindow": (0.5, 0.5, 0), "HammingWindow": (25 / 46, 21 / 46, 0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}  # fmt: skip


@pytest.mark.parametrize("type_", WEIGHTS)
def test_windows(type_):
    a, b, c = WEIGHTS[type_]
    for size, periodic in itertools.product((2, 7, 400), (0, 1)):
        angle = 2 * np.pi * np.arange(size) / (size - 1 + periodic)
        expected = a - b * np.cos(angle) + c * np.cos(2 * angle)
        for known, (element, dtype) in itertools.product(
            ((), ("i0",)), ((1, np.float32), (11, np.float64))
        ):
            number = np.array(size, np.int32)
            got = run(type_, number, known=known, periodic=periodic, output_datatype=element)
            assert got.dtype == dtype
            np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


def test_a_window_that_is_too_long():
    with pytest.raises(kuiper.OperatorError, match="size is 1000000000000, expected 0 to 8388608"):
        run("HannWindow", np.array(10**12), known=("i0",))


MEL = [(8, 16, 8192, 0.0, 4096.0), (40, 400, 16000, 20.0, 7600.0), (1, 2, 100, 0.0, 50.0)]


@pytest.mark.parametrize("arguments", MEL)
def test_filters(arguments):
    names = ("bins", "dft_length", "sample_rate", "low", "high")
    expected = REFERENCES["kuiper.MelWeightMatrix"](**dict(zip(names, arguments, strict=True)))
    arrays = [np.array(n, np.float32 if isinstance(n, float) else np.int64) for n in arguments]
    for known in ((), tuple(f"i{k}" for k in range(5))):
        got = run("MelWeightMatrix", *arrays, known=known)
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert run("MelWeightMatrix", *arrays, output_datatype=11).dtype == np.float64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((8, 16, 8192, 0.0, 5000.0), "reach from 0 to 5000 Hz, expected a range up to half"),
        ((8, 16, 8192, 50.0, 40.0), "reach from 50 to 40 Hz"),
        ((8, 1 << 40, 8192, 0.0, 40.0), "expected at most 8388608"),
    ],
)
def test_filters_that_are_refused(arguments, message):
    arrays = [np.array(n, np.float32 if isinstance(n, float) else np.int64) for n in arguments]
    with pytest.raises(kuiper.KuiperError, match=message):
        run("MelWeightMatrix", *arrays)
