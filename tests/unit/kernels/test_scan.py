"""Running sums, products, extremes and log-sum-exp, and distances, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper._kernels.data.order import (
    RUNNING_DTYPES,
    LogSumScanStep,
    RunningExtremeStep,
    ScanStep,
)
from kuiper._kernels.rows.reduce import DistanceStep

from ...support.workbench import ISAS, Workbench, isa, noise

SHAPES = [(1, 1, 1), (3, 7, 1), (5, 600, 1), (2, 9, 5), (2, 30, 700)]
DTYPES = [np.bool_, np.uint8, np.int32, np.int64, np.float32, np.float64]


@pytest.mark.parametrize("multiplies", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_scans(shape, dtype, multiplies):
    x = noise(shape, 4, dtype)
    if np.dtype(dtype).kind == "i":
        x -= 50  # so that products overflow
    function = np.cumprod if multiplies else np.cumsum
    wide = np.float64 if x.dtype.kind == "f" else np.int64
    result = x.dtype if x.dtype.kind == "f" else np.int64
    bench = Workbench()
    source, target = bench.put(x), bench.output(shape, dtype=result)
    got = bench.run_all_shards(lambda: ScanStep(source, target, multiplies), target)
    np.testing.assert_array_equal(got, function(x, axis=1, dtype=wide).astype(result))


@pytest.mark.parametrize("is_min", [False, True])
@pytest.mark.parametrize("dtype", sorted(RUNNING_DTYPES))
@pytest.mark.parametrize("shape", SHAPES)
def test_running_extremes(shape, dtype, is_min):
    x = noise(shape, 4, dtype)
    if x.dtype.kind == "f" and x.size > 20:
        x[:, 3:6] = np.nan
        x[:, 1] = np.inf if is_min else -np.inf
    x[:, -1] = x[:, 0]  # the last of several equal values counts
    expected, indices = np.empty_like(x), np.empty(shape, np.int64)
    best, index = x[:, 0].copy(), np.zeros_like(x[:, 0], np.int64)
    for i in range(shape[1]):
        value = x[:, i]
        better = (value <= best if is_min else value >= best) | (value != value)
        best, index = np.where(better, value, best), np.where(better, i, index)
        expected[:, i], indices[:, i] = best, index
    bench = Workbench()
    source, values = bench.put(x), bench.output(shape, dtype=dtype)
    where = bench.output(shape, dtype=np.int64)
    got = bench.run_all_shards(lambda: RunningExtremeStep(source, values, where, is_min), values)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(bench.view(where), indices)
    got = bench.run_all_shards(lambda: RunningExtremeStep(source, values, None, is_min), values)
    np.testing.assert_array_equal(got, expected)


def log_sums(x):
    with np.errstate(all="ignore"):
        bench = Workbench()
        source, target = bench.put(x), bench.output(x.shape)
        got = bench.run_all_shards(lambda: LogSumScanStep(source, target), target)
        return got, np.logaddexp.accumulate(x.astype(np.float64), axis=1)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 300])
def test_logarithms_of_running_sums(shape, size, name):
    with isa(name):
        got, expected = log_sums(size * noise(shape, 3))
    np.testing.assert_allclose(got, expected, 1e-6, 1e-6 * size)


@pytest.mark.parametrize("inner", [1, 3])
def test_logarithms_of_running_sums_of_infinities(inner):
    inf, nan = np.inf, np.nan
    rows = [
        [-inf, -inf, 0, 1, inf, inf, 2, nan, 3],
        [inf, 1, -inf, 2, 3, 4, 5, 6, 7],
        [nan, 1, 2, 3, -inf, inf, 6, 7, 8],
        [-200, 200, -200, 0, 88, -inf, 300, 300, 1e30],
    ]
    x = np.repeat(np.array(rows, np.float32)[..., np.newaxis], inner, 2)
    got, expected = log_sums(x)
    np.testing.assert_allclose(got, expected, 1e-6)


# -- distances ---------------------------------------------------------------------------------


def norms(gaps, p):
    gaps = np.abs(gaps)
    if p == np.inf:
        return gaps.max(-1)
    return (gaps != 0).sum(-1) if p == 0 else (gaps**p).sum(-1) ** (1 / p)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("p", [0, 1, 2, np.inf, 0.5, 3])
@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("extents", [(1, 1, 1, 1), (2, 3, 5, 9), (1, 4, 600, 17), (1, 2, 3, 300)])
def test_distances(extents, p, by_rows, name):
    batch, rows, terms, columns = extents
    x, y = noise((batch, rows, terms), 1), noise((batch, columns, terms), 2)
    y[:, 0] = x[:, 0]
    expected = norms(x[:, :, np.newaxis].astype(np.float64) - y[:, np.newaxis], p)
    bench = Workbench()
    left = bench.put(x)
    right = bench.put(y if by_rows else np.ascontiguousarray(y.transpose(0, 2, 1)))
    target = bench.output((batch, rows, columns))
    with isa(name):
        got = bench.run_all_shards(lambda: DistanceStep(left, right, target, p, by_rows), target)
    np.testing.assert_allclose(got, expected, 2e-5, 1e-6)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("shape", [(2, 3), (9, 70), (300, 3)])
def test_distances_of_pairs(shape, p, by_rows):
    x = noise(shape, 1)
    above = np.triu_indices(shape[0], 1)
    expected = norms((x[:, np.newaxis].astype(np.float64) - x), p)[above]
    bench = Workbench()
    left = bench.put(x[np.newaxis])
    right = left if by_rows else bench.put(np.ascontiguousarray(x.T)[np.newaxis])
    target = bench.output(expected.shape)
    got = bench.run_all_shards(lambda: DistanceStep(left, right, target, p, by_rows), target)
    np.testing.assert_allclose(got, expected, 2e-5, 1e-6)
