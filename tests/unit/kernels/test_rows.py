"""Reductions, softmax and normalisation with extents around vectors and blocks of sums.

The references are float64 formulas in numpy.
"""

from __future__ import annotations

import numpy as np
import pytest

from kuiper._kernels.micro import dispatch
from kuiper._kernels.rows.normalize import (
    GroupNormStep,
    LayerNormStep,
    LocalResponseNormStep,
    local_response_scratch,
)
from kuiper._kernels.rows.reduce import KINDS, ReduceStep
from kuiper._kernels.rows.softmax import SoftmaxStep, scratch_bytes

from ...reference import REFERENCES
from ...support.compare import assert_close
from ...support.workbench import ISAS, Workbench, isa, noise


def lengths(name):
    """Return extents around a vector, four vectors, and a block of 64 terms or 64 x 4 vectors."""
    with isa(name):
        lanes = dispatch.lanes()
    around = [1, lanes, 4 * lanes, 64, 256 * lanes]
    return sorted({n + d for n in around for d in (-1, 0, 1)} - {0})


def reduced(kind, x, correction=0.0):
    """Reduce axis 1 in float64."""
    x = x.astype(np.float64)
    how = {
        "sum": lambda: x.sum(1),
        "mean": lambda: x.mean(1),
        "max": lambda: x.max(1),
        "min": lambda: x.min(1),
        "prod": lambda: x.prod(1),
        "norm1": lambda: np.abs(x).sum(1),
        "norm2": lambda: np.sqrt((x * x).sum(1)),
        "norm_inf": lambda: np.abs(x).max(1),
        "norm_minus_inf": lambda: np.abs(x).min(1),
        "var": lambda: x.var(1, ddof=correction),
        "std": lambda: x.std(1, ddof=correction),
        "logsumexp": lambda: np.log(np.exp(x).sum(1)),
    }
    return how[kind]().astype(np.float32)


def run_reduce(x, kind, correction=0.0, gap=0):
    """Run one step on (outer, n, inner) with gaps between the rows."""
    bench = Workbench()
    outer, n, inner = x.shape
    step = inner + gap if inner > 1 else 1
    value = bench.put(x, (n * step + 2 * gap, step, 1))
    y = bench.output((outer, inner))
    return bench.run_all_shards(lambda: ReduceStep(value, y, kind, correction), y)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("kind", list(KINDS))
def test_rows(name, kind):
    with isa(name):
        for n in lengths(name):
            x = noise((3, n, 1), n)
            if kind == "prod":
                x = np.exp(x / np.float32(n) ** 0.5).astype(np.float32)
            correction = 1.0 if kind == "std" and n > 1 else 0.0
            y = run_reduce(x, kind, correction, gap=3)
            assert_close(y, reduced(kind, x, correction), 1e-5 if kind == "prod" else 2e-6)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("kind", list(KINDS))
def test_columns(name, kind):
    with isa(name):
        lanes = dispatch.lanes()
        for inner in sorted({2, lanes - 1, lanes, lanes + 1, 4 * lanes + 1, 300} - {0, 1}):
            for n in (1, 2, 63, 64, 65, 129):
                x = noise((2, n, inner), n)
                if kind == "prod":
                    x = np.exp(x / np.float32(n) ** 0.5).astype(np.float32)
                y = run_reduce(x, kind, gap=inner % 3)
                assert_close(y, reduced(kind, x), 1e-5 if kind == "prod" else 2e-6)


@pytest.mark.parametrize("name", ISAS)
def test_more_rows_than_a_strip(name):
    with isa(name):
        x = noise((600, 3, 1))
        assert_close(run_reduce(x, "var"), reduced("var", x), 2e-6)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("shape", [(1, 1_000_000, 1), (1, 300_000, 3)])
def test_long_sums_are_accurate(name, shape):
    with isa(name):
        x = noise(shape) + 100
        # Without vectors, blocks have fewer terms, so there are more of them.
        tolerance = 1e-6 if dispatch.lanes() > 1 else 3e-6
        assert_close(run_reduce(x, "mean"), reduced("mean", x), tolerance)
        assert_close(run_reduce(x, "var"), reduced("var", x), 1e-5)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("shape", [(4, 50, 1), (4, 5, 50)])
def test_special_values(name, shape):
    with isa(name):
        x = noise(shape)
        x[0, 2, 0], x[1, 3, 0], x[2, 4, 0] = np.nan, np.inf, -np.inf
        x[3, :, 0] = -np.inf
        for kind, function in (("max", np.max), ("min", np.min), ("norm_inf", None)):
            y = run_reduce(x, kind)
            expected = np.abs(x).max(1) if function is None else function(x, 1)
            np.testing.assert_array_equal(y, expected)
        y = run_reduce(x, "logsumexp")[:, 0]
        np.testing.assert_array_equal(np.isnan(y), [True, False, False, False])
        assert (y[1], y[3]) == (np.inf, -np.inf)
        assert np.isfinite(y[2])


def test_nothing_to_reduce():
    for n, inner in ((0, 1), (0, 5)):
        x = np.empty((3, n, inner), np.float32)
        assert (run_reduce(x, "sum") == 0).all()
        assert (run_reduce(x, "prod") == 1).all()
        assert np.isnan(run_reduce(x, "mean")).all()


# -- softmax -----------------------------------------------------------------------------------


def run_softmax(x, is_log=False, scale=1.0, gap=0, in_place=False):
    bench = Workbench()
    n, inner = x.shape[1:]
    step = inner + gap if inner > 1 else 1
    strides = (n * step + gap, step, 1)
    if not in_place:
        value, y = bench.put(x, strides), bench.output(x.shape)
        scratch = bench.scratch(scratch_bytes(value))
        return bench.run_all_shards(lambda: SoftmaxStep(value, y, scratch, is_log, scale), y)
    y = bench.allocate(x.shape, strides=strides)
    bench.written.append(y)
    scratch = bench.scratch(scratch_bytes(y))
    results = []
    for parts in (1, 2, 3):
        bench.view(y)[...] = x
        bench.run(SoftmaxStep(y, y, scratch, is_log, scale), shards=parts)
        results.append(bench.view(y).copy())
    assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()
    return results[0]


def softmax(x, is_log=False, scale=1.0):
    shifted = scale * x.astype(np.float64)
    shifted = shifted - shifted.max(1, keepdims=True)
    total = np.exp(shifted).sum(1, keepdims=True)
    return (shifted - np.log(total) if is_log else np.exp(shifted) / total).astype(np.float32)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_softmax_rows(name, is_log, in_place):
    with isa(name):
        for n in lengths(name):
            x = 5 * noise((11, n, 1), n)
            y = run_softmax(x, is_log, -0.5, gap=2, in_place=in_place)
            assert_close(y, softmax(x, is_log, -0.5), 2e-6)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_softmax_columns(name, is_log, in_place):
    with isa(name):
        lanes = dispatch.lanes()
        for inner in sorted({2, lanes - 1, lanes, lanes + 1, 4 * lanes, 300, 513} - {0, 1}):
            x = 5 * noise((2, 7, inner), inner)
            y = run_softmax(x, is_log, gap=inner % 4, in_place=in_place)
            assert_close(y, softmax(x, is_log), 2e-6)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("shape", [(4, 19, 1), (4, 19, 5), (4, 19, 40)])
def test_softmax_of_special_values(name, shape):
    with isa(name):
        x = noise(shape)
        x[0, 3], x[1, 3], x[2, 4] = np.nan, np.inf, -np.inf
        x[3] = -np.inf
        with np.errstate(invalid="ignore"):
            expected = softmax(x)
        y = run_softmax(x)
        np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
        assert np.isnan(y[[0, 1, 3]]).all()
        assert (y[2, 4] == 0).all()
        x = np.full(shape, 1e30, np.float32)
        assert_close(run_softmax(x), np.full(shape, 1 / 19, np.float32), 1e-6)


# -- normalisation -----------------------------------------------------------------------------


def run_rows_norm(x, weight, bias, eps, centred, gap=0):
    bench = Workbench()
    rows, n = x.shape
    value, y = bench.put(x, (n + gap, 1)), bench.output((rows, n))
    w = None if weight is None else bench.put(weight)
    b = None if bias is None else bench.put(bias)
    return bench.run_all_shards(lambda: LayerNormStep(value, y, w, b, eps, centred), y)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("factors", ["", "w", "b", "wb"])
def test_layer_and_rms_norm(name, factors):
    with isa(name):
        for n in lengths(name):
            x = noise((5, n), n) + 3
            weight = noise((n,), 1) if "w" in factors else None
            bias = noise((n,), 2) if "b" in factors else None
            expected = REFERENCES["nn.LayerNorm"](
                x.astype(np.float64), weight, bias, normalized_shape=(n,), eps=1e-5
            )
            y = run_rows_norm(x, weight, bias, 1e-5, True, gap=1)
            assert_close(y, expected.astype(np.float32), 1e-5)
            expected = REFERENCES["nn.RMSNorm"](
                x.astype(np.float64), weight, normalized_shape=(n,), eps=1e-5
            )
            expected = expected if bias is None else expected + bias
            y = run_rows_norm(x, weight, bias, 1e-5, False, gap=1)
            assert_close(y, expected.astype(np.float32), 2e-6)


@pytest.mark.parametrize("name", ISAS)
def test_layer_norm_of_a_large_mean(name):
    with isa(name):
        x = noise((3, 768)) + 1000
        expected = REFERENCES["nn.LayerNorm"](
            x.astype(np.float64), normalized_shape=(768,), eps=1e-5
        )
        assert_close(run_rows_norm(x, None, None, 1e-5, True), expected.astype(np.float32), 3e-4)


def run_group_norm(x, weight, bias, groups, layout, row_stride=0):
    bench = Workbench()
    channels = x.shape[1]
    if layout == "channels_last":
        value = bench.put_channels_last(x, channels + row_stride)
        y = bench.output(x.shape, "channels_last", channels + 2 * row_stride)
    else:
        value, y = bench.put(x), bench.output(x.shape)
    w = None if weight is None else bench.put(weight)
    b = None if bias is None else bench.put(bias)
    scratch = bench.scratch(16 * channels)
    return bench.run_all_shards(lambda: GroupNormStep(value, y, w, b, groups, 1e-5, scratch), y)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_group_norm(name, layout):
    with isa(name):
        lanes = dispatch.lanes()
        for channels, groups in (
            (1, 1), (6, 1), (6, 3), (6, 6), (2 * lanes, 2), (3 * lanes + 3, 3),
            (5 * lanes, 5 * lanes), (20 * lanes, 4), (lanes + 1, 1),
        ):  # fmt: skip
            for size in ((1, 2), (7, 9), (16, 17)):
                x = 2 * noise((2, channels, *size), channels) + 1
                weight, bias = noise((channels,), 1), noise((channels,), 2)
                expected = REFERENCES["nn.GroupNorm"](
                    x.astype(np.float64), weight, bias, num_groups=groups, eps=1e-5
                )
                y = run_group_norm(x, weight, bias, groups, layout, row_stride=channels % 3)
                assert_close(y, expected.astype(np.float32), 1e-5)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_instance_norm_of_a_large_plane(name, layout):
    with isa(name):
        x = noise((1, 3, 200, 300)) + 50
        expected = REFERENCES["nn.InstanceNorm2d"](x.astype(np.float64), eps=1e-5)
        y = run_group_norm(x, None, None, 3, layout)
        assert_close(y, expected.astype(np.float32), 2e-5)


@pytest.mark.parametrize("name", ISAS)
def test_a_chunk_of_channels_gives_the_bits_of_all(name):
    # With more images, a chunk has more channels.
    with isa(name):
        x = noise((9, 8 * dispatch.lanes(), 5, 6))
        many = run_group_norm(x, None, None, x.shape[1] // 2, "channels_last")
        one = run_group_norm(x[:1], None, None, x.shape[1] // 2, "channels_last")
        assert np.array_equal(many[:1], one)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 40])
def test_local_response_norm(name, size):
    with isa(name):
        lanes = dispatch.lanes()
        for channels in sorted({1, lanes - 1, lanes, lanes + 1, 3 * lanes + 2} - {0}):
            x = 3 * noise((2, channels, 3, 4), channels)
            bench = Workbench()
            value = bench.put_channels_last(x, channels + 1)
            y = bench.output(x.shape, "channels_last")
            scratch = bench.scratch(local_response_scratch(channels, size))
            result = bench.run_all_shards(
                lambda v=value, y=y, s=scratch: LocalResponseNormStep(v, y, size, 0.3, 0.75, 2, s),
                y,
            )
            expected = REFERENCES["nn.LocalResponseNorm"](
                x.astype(np.float64), size=size, alpha=0.3, beta=0.75, k=2
            )
            assert_close(result, expected.astype(np.float32), 2e-6)
