"""Observers: histograms that grow, and ranges of bytes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kuiper.quantization.observers import METHODS, Observer, quantization_of, range_of


def observed(*batches: np.ndarray) -> Observer:
    observer = Observer()
    for batch in batches:
        observer.add(batch.astype(np.float32))
    return observer


def test_a_histogram_that_grew_is_that_of_all_values():
    generator = np.random.default_rng(0)
    batches = [generator.normal(0, scale, 5000) for scale in (1e-4, 1.0, 0.1, 50.0)]
    grown = observed(*batches)
    values = np.concatenate(batches).astype(np.float32)
    edges = (grown.first + np.arange(len(grown.counts) + 1)) * math.ldexp(1.0, grown.power)
    np.testing.assert_array_equal(grown.counts, np.histogram(values, edges)[0])
    assert (grown.low, grown.high) == (values.min(), values.max())
    assert 1024 <= len(grown.counts) <= 2050
    merged = observed(batches[3])
    for batch in batches[:3]:
        merged.merge(observed(batch))
    assert (merged.first, merged.power) == (grown.first, grown.power)
    np.testing.assert_array_equal(merged.counts, grown.counts)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 6.0, (0.023529412, 0)),
        (-1.0, 1.0, (0.007843138, 127)),
        (-6.0, -1.0, (0.023529412, 255)),
        (2.0, 6.0, (0.023529412, 0)),
        (0.0, 0.0, (1.0, 0)),
        (0.0, 1e-35, (1.0, 0)),
    ],
)
def test_a_range_contains_zero(low, high, expected):
    scale, zero = quantization_of(low, high)
    assert (scale, zero) == expected
    assert np.float32(scale) == np.float32(str(scale))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_range_covers_most_values(method, sign):
    values = np.abs(np.random.default_rng(0).normal(size=100_000)) * sign
    outlier = np.append(values, 60.0 * sign)
    low, high = sorted(end * sign for end in range_of([observed(values)], method))
    assert low == 0.0
    assert 2.5 < high < np.abs(values).max() + 1e-6
    low, high = sorted(end * sign for end in range_of([observed(outlier)], method))
    # One value of a hundred thousand; its square still counts in a sum of squares.
    least, most = {"minmax": (60, 60), "mse": (40, 60)}.get(method, (2.5, 40))
    assert least <= high <= most


def test_the_least_squares_are_least():
    values = np.random.default_rng(1).standard_t(3, 20_000)

    def error(low: float, high: float) -> float:
        scale, zero = quantization_of(low, high)
        levels = np.clip(np.rint(values / scale) + zero, 0, 255)
        return float(np.square((levels - zero) * scale - values).sum())

    observer = observed(values)
    best = error(*range_of([observer], "mse"))
    others = [error(observer.low * c, observer.high * c) for c in np.linspace(0.02, 1, 50)]
    assert best < 1.05 * min(others)
    assert best < others[-1]


def test_a_percentile_leaves_out_a_share():
    values = np.linspace(-1.0, 3.0, 100_001)
    low, high = range_of([observed(values)], "percentile", 90.0)
    np.testing.assert_allclose((low, high), (-0.6, 2.6), atol=0.01)


@pytest.mark.parametrize("method", METHODS)
def test_tensors_of_one_value(method):
    assert range_of([observed(np.zeros(9))], method) == (0.0, 0.0)
    low, high = range_of([observed(np.full(9, 2.0))], method)
    assert low == 0.0
    assert high == pytest.approx(2.0, rel=0.01)
    assert range_of([Observer()], method) == (0.0, 0.0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_bytes_cannot_represent(value):
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        observed(np.array([1.0, value]))
