"""Strassen's algorithm, whose seven products replace eight, against the direct product.

Covers all shapes, sums that overflow, NaN and infinities.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kuiper._kernels.conv import strassen
from kuiper._kernels.micro import dispatch
from kuiper.model import Model
from kuiper.ops.product import linear
from kuiper.ops.product.algorithms import strassen as algorithm

from ...support import assert_close, assert_same_bits
from ...support.algorithms import restrict_to
from ...support.benchbinder import BenchBinder, arguments, post_ops, reference_epilogue, run_record
from ...support.textgraph import conv, graph_of, text, values
from ...support.workbench import ISAS, Workbench, isa, noise
from .test_conv import GEOMETRIES, check, correlated, filters
from .test_gemm import POSTS, product

EACH_ISA = pytest.mark.parametrize("name", ISAS)


@pytest.fixture(autouse=True)
def variant(request):
    """Bind with the instruction set of the test's parameter."""
    with isa(request.getfixturevalue("name") if "name" in request.fixturenames else ISAS[-1]):
        yield


@pytest.fixture
def always(monkeypatch):
    """Use Strassen's algorithm for every dense convolution and Linear with enough columns."""

    def refusal(rows, taps, channels, columns):
        whole = channels % (2 * dispatch.lanes()) == 0 and columns > dispatch.tile()[1]
        return "" if whole else "no pairs"

    for module in (algorithm, linear):
        monkeypatch.setattr(module, "strassen_refusal", refusal)
    restrict_to(monkeypatch, "depthwise", "grouped", "few_outputs", "regions", "strassen")


def columns_around_panels() -> list[int]:
    _, nr = dispatch.tile()
    return [nr + 1, 2 * nr - 1, 2 * nr, 2 * nr + 1, 3 * nr, 4 * nr - nr // 2, 4 * nr]


# -- shapes ------------------------------------------------------------------------------------


@EACH_ISA
def test_every_number_of_rows(name, always):
    """Both tiles of a quad of any height, with and without overlapping pixels."""
    mr, nr = dispatch.tile()
    channels = 2 * dispatch.lanes()
    weight, bias = filters(2 * nr + 3, channels, 1)
    for rows in range(1, 4 * mr + 4):
        x = noise((2, channels, 1, rows), rows)
        check(x, weight, bias, kind="strassen", rtol=1e-5)


@EACH_ISA
def test_every_number_of_columns(name, always):
    """Remaining panels, and partly used panels."""
    lanes = dispatch.lanes()
    for columns, channels in itertools.product(columns_around_panels(), (2 * lanes, 6 * lanes)):
        x = noise((1, channels, 5, 7), columns)
        check(x, *filters(columns, channels, 1), kind="strassen", rtol=1e-5)
        check(x, filters(columns, channels, 1)[0], None, kind="strassen", rtol=1e-5)


@EACH_ISA
@pytest.mark.parametrize("how", GEOMETRIES, ids=str)
def test_geometries(name, always, how):
    channels, columns = 2 * dispatch.lanes(), 2 * dispatch.tile()[1] + 5
    for kernel in (3, (1, 3), (3, 2)):
        x = noise((2, channels, 9, 11))
        check(x, *filters(columns, channels, kernel), kind="strassen", rtol=1e-5, **how)


@EACH_ISA
@pytest.mark.parametrize("terms", [(1, 1024), (9, 128)], ids=str)
def test_groups_of_quads(name, always, terms):
    """More quads than are processed at a time, for weights of either size; shards divide them."""
    taps, channels = terms
    kernel = int(taps**0.5)
    for columns in (4 * dispatch.tile()[1], 576):
        x = noise((1, channels, 11, 13))
        weight, bias = filters(columns, channels, kernel)
        padding = (kernel // 2,) * 2
        check(x, weight, bias, kind="strassen", rtol=1e-5, padding=padding, shards=(1, 2, 3, 7))


@EACH_ISA
@pytest.mark.parametrize("words", POSTS, ids="-".join)
def test_post_ops(name, always, words):
    mr, _ = dispatch.tile()
    channels = 2 * dispatch.lanes()
    for columns in columns_around_panels()[1:5]:
        weight, bias = filters(columns, channels, 1)
        for width in (1, 2, 2 * mr + 1):
            x = noise((2, channels, 1, width), width)
            check(x, weight, bias, kind="strassen", rtol=1e-5, words=words, shards=(1, 3))


@EACH_ISA
@pytest.mark.parametrize("words", [(), ("add", "nn.ReLU"), ("nn.Softplus",)], ids="-".join)
def test_linear_over_pixels(name, always, words):
    lanes, (_, nr) = dispatch.lanes(), dispatch.tile()
    for shape in ((1, 5, 6, 2 * lanes), (3, 1, 7, 4 * lanes), (2, 3, 5, 2 * lanes)):
        x = noise(shape)
        weight, bias = noise((3 * nr + 1, shape[-1]), 1), noise((3 * nr + 1,), 2)
        summand = noise((*shape[:-1], weight.shape[0]), 3)
        bench = Workbench()
        y = bench.output(summand.shape)
        binder = BenchBinder(bench, y, post_ops(*words), bench.put(summand))
        a = arguments("nn.Linear", bench.put(x), weight=weight, bias=bias)
        got = run_record(binder, "nn.Linear", a)
        assert binder.steps[-1].kind == "strassen"
        expected = reference_epilogue(product(x, weight, bias), words, summand)
        assert_close(got, expected.astype(np.float32), 1e-5, str(shape))


@pytest.mark.parametrize("shape", [(400, 64), (1, 400, 64), (400, 1, 64), (1, 2, 2, 100, 64)])
def test_rows_that_are_not_pixels_do_not_share_sums(always, shape):
    bench = Workbench()
    binder = BenchBinder(bench, bench.output((*shape[:-1], 128)))
    a = arguments("nn.Linear", bench.put(noise(shape)), weight=noise((128, 64), 1))
    run_record(binder, "nn.Linear", a)
    assert [step.kind for step in binder.steps] == ["linear"]


# -- values ------------------------------------------------------------------------------------


@EACH_ISA
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kernel", [1, 3])
def test_values_that_are_not_finite_stay_in_their_windows(name, always, value, kernel):
    channels, columns = 2 * dispatch.lanes(), 4 * dispatch.tile()[1]
    weight, bias = filters(columns, channels, kernel)
    clean = noise((1, channels, 9, 12))
    for channel, row, column in ((0, 0, 0), (channels - 1, 4, 7), (channels // 2, 8, 11)):
        x = clean.copy()
        x[0, channel, row, column] = value
        bench = Workbench()
        y = bench.output((1, columns, 9, 12), "channels_last")
        a = arguments(
            "nn.Conv2d", bench.put_channels_last(x), weight=weight, bias=bias,
            padding=(kernel // 2,) * 2,
        )  # fmt: skip
        binder = BenchBinder(bench, y)
        got = run_record(binder, "nn.Conv2d", a)
        assert binder.steps[-1].kind == "strassen"
        with np.errstate(invalid="ignore"):
            expected = correlated(x, weight, bias, padding=(kernel // 2,) * 2)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        np.testing.assert_array_equal(np.isposinf(got), np.isposinf(expected))
        np.testing.assert_array_equal(np.isneginf(got), np.isneginf(expected))
        finite = np.isfinite(expected)
        assert 0 < finite.sum() < finite.size
        assert_close(got[finite], expected[finite].astype(np.float32), 1e-5, "the rest")


@EACH_ISA
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38, 1e6, 0])
def test_extreme_weights_stay_in_their_columns(name, always, value):
    channels, (_, nr) = max(4, 2 * dispatch.lanes()), dispatch.tile()
    x = noise((1, channels, 1, 9)) * np.float32(0.1)
    for column in (1, nr + 2, 2 * nr + 3, 4 * nr):
        weight, bias = filters(4 * nr + 1, channels, 1)
        if value == 0:
            weight[column] = 0
        else:
            weight[column, 3], weight[column, channels - 2] = value, -value
        bench = Workbench()
        y = bench.output((1, len(weight), 1, 9), "channels_last")
        a = arguments("nn.Conv2d", bench.put_channels_last(x), weight=weight, bias=bias)
        got = run_record(BenchBinder(bench, y), "nn.Conv2d", a)
        with np.errstate(invalid="ignore"):
            expected = correlated(x, weight, bias)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        if value == 0:
            assert (got[:, column] == bias[column]).all()
        others = np.arange(len(weight)) != column
        assert_close(got[:, others], expected[:, others].astype(np.float32), 1e-5, "the others")


@EACH_ISA
@pytest.mark.parametrize(("up", "down"), [(3e38, -3e38), (-3e38, 3e38), (3e38, 3e38)])
def test_sums_that_overflow(name, always, up, down):
    """The sums of rows overflow float32 although the rows and their products do not."""
    channels, columns = 2 * dispatch.lanes(), 2 * dispatch.tile()[1]
    weight, bias = filters(columns, channels, 1)
    weight *= np.float32(0.01)
    x = np.empty((1, channels, 1, 8), np.float32)
    x[..., :4], x[..., 4:] = up, down
    check(x, weight, bias, kind="strassen", rtol=1e-5)


@EACH_ISA
def test_error_is_a_few_times_that_of_the_direct_product(name, always, monkeypatch):
    x, (weight, bias) = noise((1, 256, 14, 14)), filters(256, 256, 1)
    x = np.maximum(x, 0)  # as after a ReLU: values of one sign make larger sums
    expected = correlated(x, weight, bias)
    seven = check(x, weight, bias, kind="strassen")
    restrict_to(monkeypatch, "gemm")
    eight = check(x, weight, bias, kind="conv")
    errors = [np.sqrt(np.mean((got - expected) ** 2)) for got in (seven, eight)]
    assert 0 < errors[1] < errors[0] < 5 * errors[1]


# -- weights -----------------------------------------------------------------------------------


@EACH_ISA
def test_packed_parts(name):
    """The parts are the quarters and their sums, each with its share of the biases."""
    _, nr = dispatch.tile()
    rest = min(3, nr)
    columns, taps, channels = 2 * nr + rest, 3, 8
    weight, bias = noise((columns, taps, channels)), noise((columns,), 1)
    packed = strassen.pack_strassen(weight, bias, 2)
    assert_same_bits(strassen.pack_strassen(weight, bias, 1), packed, "threads")
    assert packed.shape == (strassen.packed_floats(columns, taps, channels),)
    half = channels // 2
    pair = packed[: 8 * (1 + taps * half) * nr].reshape(8, 1 + taps * half, nr)
    b11, b21, t2, t3, t4, t1, b22, b12 = (part[1:].reshape(taps, half, nr) for part in pair)
    quarters = weight[: 2 * nr].reshape(2, nr, taps, 2, half).transpose(0, 3, 2, 4, 1)
    for part, expected in zip(
        (b11, b21, b12, b22), quarters.reshape(4, taps, half, nr), strict=True
    ):
        np.testing.assert_array_equal(part, expected)
    np.testing.assert_allclose(t1, b12 - b11, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(t2, b22 - t1, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(t3, b22 - b12, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(t4, b21 - t2, rtol=1e-6, atol=1e-6)
    left, right, none = bias[:nr], bias[nr : 2 * nr], np.zeros(nr, np.float32)
    np.testing.assert_array_equal(pair[:, 0], [none, left, none, none, left, none, right, none])
    last = packed[pair.size :].reshape(1 + taps * channels, nr)
    np.testing.assert_array_equal(last[0, :rest], bias[2 * nr :])
    np.testing.assert_array_equal(last[1:, :rest], weight[2 * nr :].reshape(rest, -1).T)
    assert not last[:, rest:].any()


@EACH_ISA
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_large_weights_are_packed_in_parts(name, threads):
    """Parts end between pairs of panels on any number of threads."""
    _, nr = dispatch.tile()
    channels = max(4096, 65536 // nr)
    weight, bias = noise((9 * nr + 5, 1, channels)), noise((9 * nr + 5,), 1)

    class Slices:
        shape, asked = weight.shape, 0

        def __getitem__(self, rows):
            self.asked += 1
            return weight[rows]

    slices = Slices()
    packed = strassen.pack_strassen(slices, bias, threads)
    assert slices.asked > 1
    size = strassen.packed_floats(2 * nr, 1, channels)
    for pair in range(5):
        rows = slice(2 * pair * nr, 2 * (pair + 1) * nr)
        alone = strassen.pack_strassen(weight[rows], bias[rows], 1)
        got = packed[pair * size : pair * size + alone.size]
        assert_same_bits(got, alone, f"pair {pair}")


# -- the choice --------------------------------------------------------------------------------


def test_only_large_products_use_strassen():
    wide = graph_of(text(conv("c", "x", "y", 512, 256)))
    assert kinds(wide, (1, 512, 14, 14)) == ["strassen"]
    assert kinds(wide, (1, 512, 3, 3)) == ["conv"]
    narrow = graph_of(text(conv("c", "x", "y", 512, 48)))
    assert kinds(narrow, (1, 512, 28, 28)) == ["conv"]
    odd = graph_of(text(conv("c", "x", "y", 501, 256)))
    assert kinds(odd, (1, 501, 14, 14)) == ["conv"]


def kinds(graph, shape) -> list[str]:
    return [s.kind for s in Model(graph).plan(shape).steps if s.kind in ("conv", "strassen")]


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_the_choice_is_independent_of_threads_and_batch(threads):
    graph = graph_of(
        text(conv("c", "x", "a", 512, 256), "nn.ReLU r 1 1 a b", conv("d", "b", "y", 256, 512))
    )
    x = values(3, 512, 14, 15)
    expected = Model(graph, threads=1)(x)
    assert kinds(graph, x.shape) == ["strassen", "strassen"]
    assert_same_bits(Model(graph, threads=threads)(x), expected, "threads")
    assert_same_bits(Model(graph, threads=threads)(x[1:2].copy()), expected[1:2], "batch")


def test_the_choice_depends_only_on_the_image():
    refusal = algorithm.strassen_refusal
    assert refusal(196, 1, 512, 256) == ""
    assert "no multiple" in refusal(196, 1, 512 + 1, 256)
    assert "output pixels" in refusal(algorithm.MIN_ROWS - 1, 1, 2048, 512)
    assert "terms" in refusal(10_000, 1, 64, 512)
