"""Convolution by each algorithm on every variant, against float64 sums over the taps.

Covers sizes around tiles, borders of the image, and gaps between pixels.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from kuiper._kernels.conv import grouped
from kuiper._kernels.conv.conv import conv2d
from kuiper._kernels.micro import dispatch
from kuiper.errors import InputError, OperatorError, ShapeError
from kuiper.ir.view import channels_last_strides
from kuiper.ops.product.algorithms import few_inputs
from kuiper.ops.product.algorithms.few_outputs import few_outputs_cost, few_outputs_refusal
from kuiper.ops.product.algorithms.winograd import estimate

from ...support import assert_close
from ...support.algorithms import always_winograd, restrict_to
from ...support.benchbinder import BenchBinder, arguments, post_ops, reference_epilogue, run_record
from ...support.workbench import ISAS, SHARD_COUNTS, Workbench, isa, noise
from ...support.workgraph import model_of, run_operator

EACH_ISA = pytest.mark.parametrize("name", ISAS)

# The side of Winograd's tiles is 2 or 4.
WAYS = (
    "implicit",
    "depthwise",
    "few_inputs",
    "winograd4 staged",
    "winograd4 blocked",
    "winograd2 staged",
    "winograd2 blocked",
)
# The algorithms by Winograd, with the strides that they support.
WINOGRAD = [(way, 1) for way in WAYS[3:]] + [(way, 2) for way in WAYS[3:5]]
each_winograd = pytest.mark.parametrize(
    ("way", "stride"), WINOGRAD, ids=[f"{way} by {stride}" for way, stride in WINOGRAD]
)


@pytest.fixture(autouse=True)
def variant(request):
    """Bind with the instruction set of the test's parameter."""
    with isa(request.getfixturevalue("name") if "name" in request.fixturenames else ISAS[-1]):
        yield


@pytest.fixture
def choose(monkeypatch):
    """Return a function that restricts the record to one algorithm."""

    def chosen(way: str) -> None:
        kind, _, form = way.partition(" ")
        if kind == "narrow" and dispatch.lanes() == 1:
            pytest.skip("without vectors there is nothing that could be idle")
        names = {"implicit": (), "few_inputs": ("few_inputs",), "narrow": ("few_outputs",)}
        names = names.get(kind, ("grouped",))
        if "winograd" in kind:
            always_winograd(monkeypatch, int(kind[-1]), form == "blocked", block=5)
            names = ("winograd", *names)
        monkeypatch.setattr(few_inputs, "MAX_CHANNELS", 99)
        restrict_to(monkeypatch, *names, "depthwise", "regions")

    return chosen


# -- references --------------------------------------------------------------------------------


def sides_of(padding) -> tuple[int, int, int, int]:
    """Return (top, bottom, left, right) of a padding in PyTorch's or F.pad's form."""
    if len(padding) == 4:
        left, right, top, bottom = padding
        return top, bottom, left, right
    return padding[0], padding[0], padding[-1], padding[-1]


def mixed(weight, x):
    """Contract the channels of x (n, g, c, h, w) with weights (g, out, c), group by group."""
    y = np.ascontiguousarray(weight) @ x.reshape(*x.shape[:3], math.prod(x.shape[3:]))
    return y.reshape(*y.shape[:3], *x.shape[3:])


def correlated(x, weight, bias, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    """Convolve in float64, tap by tap."""
    top, bottom, left, right = sides_of(padding)
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    n, channels, height, width = x.shape
    out, _, kh, kw = weight.shape
    oh = (height - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    ow = (width - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    x = x.reshape(n, groups, channels // groups, height, width)
    weight = weight.astype(np.float64).reshape(groups, out // groups, channels // groups, kh, kw)
    y = np.zeros((n, groups, out // groups, oh, ow))
    for u, v in np.ndindex(kh, kw):
        rows = slice(u * dilation[0], u * dilation[0] + stride[0] * (oh - 1) + 1, stride[0])
        columns = slice(v * dilation[1], v * dilation[1] + stride[1] * (ow - 1) + 1, stride[1])
        y += mixed(weight[..., u, v], x[..., rows, columns])
    y = y.reshape(n, out, oh, ow)
    return y if bias is None else y + bias.reshape(-1, 1, 1)


def scattered(
    x, weight, bias, stride=(1, 1), padding=(0, 0), output_padding=(0, 0), dilation=(1, 1), groups=1
):
    """Scatter each input pixel to the outputs whose windows contain it, in float64."""
    n, channels, height, width = x.shape
    _, out, kh, kw = weight.shape
    full = [
        (e - 1) * s + d * (k - 1) + 1 + more
        for e, s, d, k, more in zip(
            (height, width), stride, dilation, (kh, kw), output_padding, strict=True
        )
    ]
    x = x.astype(np.float64).reshape(n, groups, channels // groups, height, width)
    weight = weight.astype(np.float64).reshape(groups, channels // groups, out, kh, kw)
    y = np.zeros((n, groups, out, *full))
    for u, v in np.ndindex(kh, kw):
        rows = slice(u * dilation[0], u * dilation[0] + stride[0] * (height - 1) + 1, stride[0])
        columns = slice(v * dilation[1], v * dilation[1] + stride[1] * (width - 1) + 1, stride[1])
        y[..., rows, columns] += mixed(weight[..., u, v].swapaxes(1, 2), x)
    y = y.reshape(n, groups * out, *full)
    (ph, pw) = padding
    y = y[:, :, ph : full[0] - ph, pw : full[1] - pw]
    return y if bias is None else y + bias.reshape(-1, 1, 1)


def test_the_references_are_adjoint():
    """<y, conv(x)> equals <conv_transpose(y), x>, so each reference checks the other."""
    x, w = noise((1, 4, 7, 6)), noise((6, 2, 3, 2), 1)
    how = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}
    forward = correlated(x, w, None, **how)
    y = noise(forward.shape, 2)
    back = scattered(y, w, None, **how)
    assert np.vdot(y, forward) == pytest.approx(
        np.vdot(back, x[..., : back.shape[2], : back.shape[3]])
    )


# -- running one convolution -------------------------------------------------------------------


def convolve(
    x, weight, bias=None, *, x_layout="channels_last", gaps=(3, 5), words=(), summand=None,
    shards=SHARD_COUNTS, type="nn.Conv2d", shape, **how,
):  # fmt: skip
    """Bind and run a record, with gaps between the pixels of input, output and summand."""
    bench = Workbench()
    if x_layout == "channels_last":
        value = bench.put_channels_last(x, x.shape[1] + gaps[0])
    else:
        value = bench.put(x)
    y = bench.output(shape, "channels_last", shape[1] + gaps[1])
    if summand is not None:
        summand = bench.put_channels_last(summand, shape[1] + 2)
    binder = BenchBinder(bench, y, post_ops(*words), summand)
    a = arguments(type, value, weight=weight, bias=bias, **how)
    return run_record(binder, type, a, shards), [step.kind for step in binder.steps]


def check(x, weight, bias=None, *, rtol=5e-6, words=(), shards=SHARD_COUNTS, kind=None, gaps=(3, 5),
          x_layout="channels_last", **how):  # fmt: skip
    """Compare a convolution with the reference, and return the result."""
    expected = correlated(x, weight, bias, **how)
    summand = noise(expected.shape, 9) if "add" in words else None
    expected = reference_epilogue(expected, words, summand)
    assert expected.std() > 0 or expected.size == 1
    got, kinds = convolve(
        x, weight, bias, words=words, summand=summand, shards=shards, shape=expected.shape,
        gaps=gaps, x_layout=x_layout, **how,
    )  # fmt: skip
    assert kind is None or kinds[-1] == kind
    assert_close(got, expected.astype(np.float32), rtol, f"{x.shape} by {weight.shape} {how}")
    return got


def filters(out, channels, kernel, groups=1):
    kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
    weight = noise((out, channels // groups, *kernel), 1)
    return weight / np.float32(np.sqrt(np.prod(weight.shape[1:]))), noise((out,), 2)


def around_lanes(limit: int = 65) -> list[int]:
    lanes = dispatch.lanes()
    counts = {1, 2, 3, lanes - 1, lanes, lanes + 1, 2 * lanes - 1, 2 * lanes, 2 * lanes + 1, 65}
    return sorted(n for n in counts if 0 < n <= limit)


# -- implicit GEMM -----------------------------------------------------------------------------


@EACH_ISA
def test_implicit_channels(name, choose):
    choose("implicit")
    for channels, out in itertools.product(around_lanes(), repeat=2):
        check(noise((1, channels, 4, 5)), *filters(out, channels, 1), shards=(1,), kind="conv")
        check(noise((1, channels, 3, 4)), *filters(out, channels, 3), padding=(1, 1), shards=(1,))


GEOMETRIES = [
    {},
    {"padding": (1, 1)},
    {"padding": (2, 0)},
    {"padding": (1, 0, 0, 2)},
    {"stride": (2, 2), "padding": (1, 1)},
    {"stride": (1, 3)},
    {"stride": (3, 2), "padding": (2, 1)},
    {"dilation": (2, 1), "padding": (2, 2)},
    {"dilation": (2, 3), "padding": (1, 3), "stride": (2, 1)},
]


@EACH_ISA
@pytest.mark.parametrize("how", GEOMETRIES, ids=str)
@pytest.mark.parametrize("way", WAYS[:3])
def test_geometries(name, choose, way, how):
    choose(way)
    channels, out, groups = {
        "implicit": (10, 11, 1),
        "depthwise": (21, 21, 21),
        "few_inputs": (3, 11, 1),
    }[way]
    for kernel in (3, (1, 3), (3, 2)):
        kind = {"implicit": "conv", "depthwise": "conv_depthwise", "few_inputs": "conv_few_inputs"}[
            way
        ]
        x = noise((2, channels, 9, 11))
        check(x, *filters(out, channels, kernel, groups), groups=groups, kind=kind, **how)


@EACH_ISA
def test_few_outputs(name, choose):
    """Full and partial vectors of input channels, and tiles of all heights."""
    choose("narrow")
    for channels, out in itertools.product(around_lanes(), (1, 2, 3, 4)):
        narrow = {"kind": "conv_few_outputs", "shards": (1, 2)}
        check(noise((1, channels, 4, 5)), *filters(out, channels, 1), **narrow)
        check(noise((1, channels, 3, 4)), *filters(out, channels, 3), padding=(1, 1), **narrow)
    for width, out in itertools.product(range(1, 30), (1, 3)):
        check(noise((1, 20, 1, width)), *filters(out, 20, 1), shards=(1,))


@EACH_ISA
@pytest.mark.parametrize("out", [1, 2, 3, 4])
def test_few_outputs_are_independent_of_the_batch(name, choose, out):
    """Tiles of other heights, and shards with other boundaries, give the same bits."""
    choose("narrow")
    x, (weight, bias) = noise((5, 37, 6, 7)), filters(out, 37, 3)
    whole, _ = convolve(x, weight, bias, shape=(5, out, 6, 7), padding=(1, 1))
    alone, _ = convolve(x[2:3], weight, bias, shape=(1, out, 6, 7), padding=(1, 1))
    assert np.array_equal(alone[0], whole[2])


@EACH_ISA
@pytest.mark.parametrize("how", GEOMETRIES, ids=str)
def test_geometries_of_few_outputs(name, choose, how):
    choose("narrow")
    for kernel, out in ((3, 1), ((1, 3), 3), ((3, 2), 4)):
        check(noise((2, 18, 9, 11)), *filters(out, 18, kernel), kind="conv_few_outputs", **how)


@EACH_ISA
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_few_outputs_read_only_their_windows(name, choose, odd):
    choose("narrow")
    weight, bias = filters(3, 37, 3)
    x = noise((1, 37, 6, 25))
    clean = correlated(x, weight, bias, padding=(1, 1))
    for channel in (0, 17, 36):
        damaged = x.copy()
        damaged[0, channel, 2, 12] = odd
        got, _ = convolve(damaged, weight, bias, shape=clean.shape, padding=(1, 1))
        hit = np.zeros(clean.shape, bool)
        hit[:, :, 1:4, 11:14] = True
        assert not np.isfinite(got[hit]).any()
        assert_close(got[~hit], clean[~hit].astype(np.float32), 5e-6)


def test_when_outputs_are_few():
    """Fewer outputs than vector lanes, with enough terms for each."""
    most_of = {1: 0, 4: 3, 8: 4, 16: 4}
    for name in ISAS:
        with isa(name):
            most = most_of[dispatch.lanes()]
            for n in range(9):
                is_few = not few_outputs_refusal(1, n) and few_outputs_cost(9, 64, n) < 1
                assert is_few == (0 < n <= most)
            assert few_outputs_refusal(2, 1)
            assert few_outputs_cost(1, 8, 1) >= 1
            assert few_outputs_cost(0, 64, 1) >= 1


# Channels, outputs, groups: full and partial vectors of whole groups, and others.
FEW_CHANNELS = [
    (32, 32, 8), (34, 34, 17), (36, 36, 9), (6, 6, 3), (72, 72, 9), (24, 48, 24), (14, 28, 7),
    (40, 80, 20), (5, 40, 5), (12, 24, 3), (24, 12, 12), (30, 30, 10),
]  # fmt: skip


def kind_of(channels, out, groups):
    few = grouped.is_grouped(channels // groups, out // groups)
    return "conv_grouped" if few else "conv"


@EACH_ISA
@pytest.mark.parametrize("how", GEOMETRIES, ids=str)
def test_grouped(name, choose, how):
    choose("grouped")
    for channels, out, groups in FEW_CHANNELS:
        x, kind = noise((2, channels, 9, 11)), kind_of(channels, out, groups)
        for kernel in (3, (1, 3), (3, 2)):
            check(x, *filters(out, channels, kernel, groups), groups=groups, kind=kind, **how)


def test_when_groups_are_grouped():
    """At least two groups per vector of outputs, of a size that divides it."""
    with isa("baseline"):
        assert not grouped.is_grouped(1, 2)
    for name, most in (("avx2", 4), ("avx512", 8), ("neon", 2)):
        if name in ISAS:
            with isa(name):
                assert grouped.is_grouped(most, most)
                assert grouped.is_grouped(1, 2)
                assert not grouped.is_grouped(most, 2 * most)
                assert not grouped.is_grouped(2, 1)
                assert not grouped.is_grouped(3, 3)


@EACH_ISA
@pytest.mark.parametrize("words", [(), ("nn.ReLU6",), ("add", "nn.ReLU"), ("nn.SiLU", "add")],
                         ids="-".join)  # fmt: skip
def test_grouped_on_small_images(name, choose, words):
    """Tiles with fewer pixels than usual, and shards of one pixel; post-ops apply once each."""
    choose("grouped")
    for channels, out, groups in FEW_CHANNELS[:9]:
        for height, width in ((1, 1), (1, 7), (3, 3), (2, 8), (5, 5)):
            x = noise((1, channels, height, width))
            check(x, *filters(out, channels, 3, groups), groups=groups, padding=(1, 1), words=words)


@EACH_ISA
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_groups_are_independent(name, choose, odd):
    choose("grouped")
    for channels, out, groups in FEW_CHANNELS:
        weight, bias = filters(out, channels, 3, groups)
        x = noise((1, channels, 6, 5))
        clean = correlated(x, weight, bias, padding=(1, 1), groups=groups)
        for channel in (0, channels // 2, channels - 1):
            damaged = x.copy()
            damaged[0, channel, 2, 2] = odd
            got, _ = convolve(
                damaged, weight, bias, shape=clean.shape, padding=(1, 1), groups=groups
            )
            hit = np.zeros(clean.shape, bool)
            of_group = channel // (channels // groups)
            size = out // groups
            hit[0, of_group * size : (of_group + 1) * size, 1:4, 1:4] = True
            assert not np.isfinite(got[hit]).any()
            assert_close(got[~hit], clean[~hit].astype(np.float32), 5e-6)


@EACH_ISA
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dilation", [(24, 24), (12, 12), (12, 1), (3, 15)], ids=str)
@pytest.mark.parametrize("words", [(), ("add", "nn.SiLU")], ids="-".join)
def test_dilated_filters_that_reach_into_the_padding(name, choose, dilation, groups, words):
    """Regions of the output that see different taps; a tile must not extend into the next."""
    choose("implicit")
    how = {"dilation": dilation, "padding": dilation, "groups": groups, "words": words}
    x = noise((2, 18, 20, 21))
    check(x, *filters(70, 18, 3, groups), kind="conv", **how)


@pytest.mark.parametrize("way", WAYS[:3])
@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("stride", [(1, 1), (2, 2)], ids=str)
def test_every_small_image(choose, way, padding, stride):
    """Images smaller than the kernel, than a tile, than the padding."""
    choose(way)
    channels, groups = {"implicit": (9, 1), "depthwise": (18, 18), "few_inputs": (2, 1)}[way]
    for height, width, kernel in itertools.product(range(1, 7), range(1, 7), (1, 2, 3)):
        if min(height + 2 * padding[0], width + 2 * padding[1]) < kernel:
            continue
        x = noise((2, channels, height, width))
        weight, bias = filters(channels if groups > 1 else 5, channels, kernel, groups)
        check(x, weight, bias, padding=padding, stride=stride, groups=groups, shards=(1, 2))


@EACH_ISA
@pytest.mark.parametrize("groups", [2, 3, 5])
def test_groups(name, choose, groups):
    choose("implicit")
    for per_group, out in ((1, 2), (3, 1), (5, 17), (16, 40)):
        x = noise((2, groups * per_group, 5, 6))
        for kernel in (1, 3):
            weight, bias = filters(groups * out, groups * per_group, kernel, groups)
            check(x, weight, bias, groups=groups, padding=(1, 1), kind="conv")


@EACH_ISA
def test_weights_that_exceed_the_cache(name, choose):
    """The loop over panels is then the outer one: each panel is read once for all pixels."""
    choose("implicit")
    weight, bias = filters(160, 128, 3)
    assert weight.nbytes > 1 << 19
    check(noise((2, 128, 6, 7)), weight, bias, padding=(1, 1), rtol=1e-5)


@EACH_ISA
def test_images_that_exceed_the_cache(name, choose):
    """Pixels are then processed in blocks, each read once for all panels and phases."""
    choose("implicit")
    x = noise((1, 128, 66, 65))
    assert x.nbytes > 1 << 21
    check(x, *filters(160, 128, 3), stride=(2, 2), rtol=1e-5, shards=(1, 2, 3), kind="conv")
    x = noise((1, 48, 110, 109))
    for kernel in (2, 3):
        weight = noise((48, 9, kernel, kernel), 1) / np.float32(7)
        check_transposed(x, weight, noise((9,), 2), stride=(2, 2), shards=(1, 2, 3))


@EACH_ISA
@pytest.mark.parametrize("how", GEOMETRIES[:6:2], ids=str)
def test_a_weight_that_is_packed_at_run_time(name, choose, how):
    """The bits equal those for a weight that is packed while planning."""
    choose("implicit")
    for groups, channels, out in ((1, 10, 35), (2, 6, 10)):
        x = noise((2, channels, 9, 8))
        weight, bias = filters(out, channels, 3, groups)
        ahead = check(x, weight, bias, groups=groups, **how)
        bench = Workbench()
        y = bench.output(ahead.shape, "channels_last")
        a = arguments(
            "F.conv2d", bench.put_channels_last(x), groups=groups, bias=bench.put(bias),
            weight=bench.put_channels_last(weight), **how,
        )  # fmt: skip
        got = run_record(BenchBinder(bench, y), "F.conv2d", a)
        np.testing.assert_array_equal(got, ahead)


# -- depthwise ---------------------------------------------------------------------------------


@EACH_ISA
@pytest.mark.parametrize("kernel", [1, 3, 5, 7])
def test_depthwise_channels(name, choose, kernel):
    choose("depthwise")
    for channels in [n for n in around_lanes() if n > 1]:
        # Around the numbers of pixels that share one load of weights or of pixels.
        for width in (1, 3, 4, 5, 9, kernel + 7, kernel + 10):
            x = noise((1, channels, 3, width))
            weight, bias = filters(channels, channels, kernel, channels)
            check(
                x, weight, bias, groups=channels, padding=(kernel // 2,) * 2, shards=(1, 3),
                kind="conv_depthwise",
            )  # fmt: skip


@EACH_ISA
def test_more_filters_than_channels(name, choose):
    """With a channel multiplier it is computed as a grouped convolution."""
    choose("depthwise")
    weight, bias = filters(18, 9, 3, 9)
    kind = kind_of(9, 18, 9)
    check(noise((2, 9, 5, 5)), weight, bias, groups=9, padding=(1, 1), kind=kind)


# -- few input channels ------------------------------------------------------------------------


@EACH_ISA
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "gaps"])
def test_few_inputs(name, choose, layout):
    """Contiguous and channels-last images are read in place; gaps between pixels cost a copy."""
    choose("few_inputs")
    gaps = (3 if layout == "gaps" else 0, 5)
    x_layout = "contiguous" if layout == "contiguous" else "channels_last"
    for channels in range(1, 9):
        for kernel, how in (
            (7, {"stride": (2, 2), "padding": (3, 3)}),
            (3, {"padding": (1, 1)}),
            (3, {"dilation": (1, 2), "padding": (1, 2)}),
            ((1, 5), {"padding": (0, 1, 0, 0)}),
        ):
            x = noise((2, channels, 13, 12))
            weight, bias = filters(17, channels, kernel)
            check(
                x,
                weight,
                bias,
                x_layout=x_layout,
                gaps=gaps,
                shards=(1, 3),
                kind="conv_few_inputs",
                **how,
            )


@EACH_ISA
def test_few_inputs_filters(name, choose):
    choose("few_inputs")
    for out in around_lanes():
        check(noise((1, 3, 9, 9)), *filters(out, 3, 3), x_layout="contiguous", stride=(2, 2))


@EACH_ISA
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_few_inputs_rows(name, choose, layout):
    """Rows that tiles divide, rows whose last tile overlaps another, windows outside the image."""
    choose("few_inputs")
    mr, _ = dispatch.tile()
    widths = (mr - 1, mr, mr + 1, 2 * mr - 1, 2 * mr, 2 * mr + 1, 6 * mr, 6 * mr + 3, 7 * mr - 1)
    for width, (kernel, stride, padding, dilation) in itertools.product(
        widths,
        (
            ((3, 3), (1, 1), (1, 1), (1, 1)),
            ((2, 7), (1, 2), (0, 3), (1, 1)),
            ((2, 3), (2, 3), (3, 5), (1, 1)),
            ((3, 2), (1, 1), (1, 0, 0, 2), (1, 2)),
            ((1, 2), (1, 5), (0, 0), (1, 1)),
        ),
    ):
        _, _, left, right = sides_of(padding)
        columns = (width - 1) * stride[1] + dilation[1] * (kernel[1] - 1) + 1 - left - right
        if columns > 0:
            check(
                noise((2, 3, 3, columns)), *filters(5, 3, kernel), x_layout=layout, gaps=(0, 5),
                shards=(1, 3, 7), kind="conv_few_inputs", stride=stride, padding=padding,
                dilation=dilation,
            )  # fmt: skip


@EACH_ISA
@pytest.mark.parametrize("words", [("nn.SiLU",), ("add", "nn.ReLU6"), ("nn.SiLU", "add")], ids=str)
def test_few_inputs_post_ops(name, choose, words):
    """A pixel that two tiles compute gets its post-ops once."""
    choose("few_inputs")
    mr, nr = dispatch.tile()
    for out in (nr // 2 - 1, nr + 1):
        weight, bias = filters(out, 3, 3)
        x = noise((2, 3, 4, 12 * mr + 1), 3)
        how = {"padding": (1, 1), "stride": (2, 2), "words": words, "rtol": 1e-5}
        check(
            x, weight, bias, x_layout="contiguous", shards=(1, 2, 5), kind="conv_few_inputs", **how
        )


@EACH_ISA
def test_narrow_and_wide_images_give_the_same_bits(name, choose):
    """Tiles within a row and tiles across rows compute the same sums in the same order."""
    choose("few_inputs")
    mr, nr = dispatch.tile()
    weight, bias = filters(nr + 3, 3, 3)
    x = noise((2, 3, 9, 2 * (8 * mr + 3) + 1))
    wide = check(x, weight, bias, x_layout="contiguous", stride=(2, 2), shards=(1,))
    for first, columns in ((0, 3), (2, mr - 1), (7 * mr, mr)):
        crop = np.ascontiguousarray(x[..., 2 * first : 2 * (first + columns) + 1])
        part = check(crop, weight, bias, x_layout="contiguous", stride=(2, 2), shards=(1,))
        np.testing.assert_array_equal(part, wide[..., first : first + columns])


@EACH_ISA
def test_an_output_that_exceeds_the_caches(name, choose):
    choose("few_inputs")
    x, (weight, bias) = noise((1, 3, 130, 260)), filters(33, 3, 3)
    check(
        x, weight, bias, x_layout="contiguous", padding=(1, 1), shards=(2,), kind="conv_few_inputs"
    )


# -- Winograd ----------------------------------------------------------------------------------


@EACH_ISA
@each_winograd
def test_winograd_planes(name, choose, way, stride):
    """Planes that the tile divides, and others."""
    choose(way)
    kind = "winograd_output" if "staged" in way else "conv_winograd"
    for height, width in ((4, 4), (1, 1), (5, 7), (8, 3), (13, 6), (2, 17)):
        for padding in ((1, 1), (0, 2), (1, 0, 2, 1)):
            top, bottom, left, right = sides_of(padding)
            if min(height + top + bottom, width + left + right) < 3:
                continue
            x = noise((2, 17, height, width))
            check(
                x, *filters(19, 17, 3), stride=(stride, stride), padding=padding, rtol=2e-5,
                kind=kind, shards=(1, 2, 7),
            )  # fmt: skip


@EACH_ISA
@each_winograd
@pytest.mark.parametrize("words", [(), ("add", "nn.ReLU"), ("nn.SiLU", "add")], ids="-".join)
def test_winograd_edges(name, choose, way, stride, words):
    """Every number of outputs in the last tile of a row or column, in a batch.

    Edges of one and two outputs have special transforms, and each frequency has separate tiles.
    """
    choose(way)
    weight, bias = filters(35, 18, 3)
    how = {"stride": (stride, stride), "padding": (1, 1), "words": words, "rtol": 2e-5}
    for height, width in itertools.product(range(5, 9), repeat=2):
        x = noise((2, 18, stride * height, stride * width))
        check(x, weight, bias, shards=(1, 3), **how)


@EACH_ISA
@each_winograd
def test_winograd_channels(name, choose, way, stride):
    choose(way)
    for channels, out in itertools.product(around_lanes(33), repeat=2):
        x = noise((1, channels, 6, 6))
        how = {"stride": (stride, stride), "padding": (1, 1), "rtol": 2e-5, "shards": (1,)}
        check(x, *filters(out, channels, 3), **how)


@EACH_ISA
@each_winograd
@pytest.mark.parametrize("words", [(), ("add", "nn.ReLU"), ("nn.SiLU", "add")], ids="-".join)
def test_winograd_groups(name, choose, monkeypatch, way, stride, words):
    """Each group writes its channels and reads its part of the summand."""
    choose(way)
    kind = "conv_winograd" if "blocked" in way else "winograd_output"
    for groups, channels, out in ((2, 5, 7), (3, 18, 16), (2, 16, 35)):
        x, (weight, bias) = (
            noise((2, groups * channels, 7, 9)),
            filters(groups * out, groups * channels, 3, groups),
        )
        for b in (bias, None):
            check(x, weight, b, groups=groups, stride=(stride, stride), padding=(1, 1), words=words,
                  kind=kind, rtol=2e-5, shards=(1, 3))  # fmt: skip


def test_when_groups_use_winograd(variant):
    """Wide groups of large images; each step states its own number of operations."""
    tile, cost = estimate((64, 64), (28, 28), 1)
    assert (tile, cost < 1) == (4, True)
    for channels, groups, side, steps in ((128, 2, 28, 2), (48, 2, 28, 2), (48, 2, 7, 1)):
        x = noise((1, channels, side, side))
        weight, bias = filters(channels, channels, 3, groups)
        model = model_of(
            "F.conv2d", [x],
            {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": groups},
            {"weight": weight, "bias": bias}, keys=["input"],
        )  # fmt: skip
        counted = [s for s in model.plan(x.shape).steps if s.flops]
        assert sum(s.saved_flops > 0 for s in counted) == (steps if steps > 1 else 0)
        total = sum(s.flops + s.saved_flops for s in counted)
        assert total == pytest.approx(2 * 9 * x.size * channels // groups)
        assert_close(model(x), correlated(x, weight, bias, padding=(1, 1), groups=groups), 2e-5)


@EACH_ISA
@pytest.mark.parametrize(("kind", "stride"), [("winograd4", 1), ("winograd2", 1), ("winograd4", 2)])
def test_both_forms_of_winograd_give_the_same_bits(name, choose, kind, stride):
    """The choice depends on the batch size, so it must not affect the result."""
    x = noise((3, 20, 14 * stride, 9 * stride))
    weight, bias = filters(40, 20, 3)
    how = {"stride": (stride, stride), "padding": (1, 1), "rtol": 2e-5, "words": ("add", "nn.SiLU")}
    results = []
    for form in ("staged", "blocked"):
        choose(f"{kind} {form}")
        results.append(check(x, weight, bias, **how))
    assert results[0].tobytes() == results[1].tobytes()


@EACH_ISA
@pytest.mark.parametrize(("words", "gap"), [((), 0), (("add", "nn.ReLU"), 3), (("nn.SiLU",), 0)])
def test_winograd_stores_past_the_caches(name, choose, words, gap):
    """Outputs larger than the caches, aligned to cache lines or not, in full and partial tiles."""
    choose("winograd4 blocked")
    x, (weight, bias) = noise((1, 16, 362, 363)), filters(32, 16, 3)
    check(x, weight, bias, padding=(1, 1), words=words, gaps=(0, gap), rtol=2e-5, shards=(2,))


@pytest.mark.parametrize("size", [28, 15, 14, 13])
@pytest.mark.parametrize(
    ("kind", "stride", "rtol"),
    [("winograd4", 1, 4e-6), ("winograd2", 1, 4e-6), ("winograd4", 2, 2e-6)],
)
def test_winograd_is_accurate(choose, kind, stride, rtol, size):
    """The documented bound, on normally distributed data, including edges."""
    choose(f"{kind} staged")
    x, (weight, bias) = noise((1, 128, size, size)), filters(64, 128, 3)
    how = {"stride": (stride, stride), "padding": (1, 1), "shards": (2,), "gaps": (0, 0)}
    check(x, weight, bias, rtol=rtol, **how)


# -- transposed --------------------------------------------------------------------------------


def check_transposed(x, weight, bias, words=(), shards=SHARD_COUNTS, **how) -> np.ndarray:
    expected = scattered(x, weight, bias, **how)
    summand = noise(expected.shape, 9) if "add" in words else None
    expected = reference_epilogue(expected, words, summand)
    got, _ = convolve(
        x, weight, bias, words=words, summand=summand, shards=shards, type="nn.ConvTranspose2d",
        shape=expected.shape, **how,
    )  # fmt: skip
    assert_close(got, expected.astype(np.float32), 5e-6, f"{x.shape} by {weight.shape} {how}")
    return got


@EACH_ISA
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"stride": (2, 2)},
        {"stride": (2, 2), "padding": (1, 1), "output_padding": (1, 1)},
        {"stride": (3, 2), "padding": (0, 1), "output_padding": (2, 0)},
        {"dilation": (2, 2)},
        {"dilation": (3, 2), "stride": (2, 3), "padding": (2, 1), "output_padding": (1, 2)},
        {"dilation": (3, 3), "output_padding": (2, 1)},
        {"stride": (4, 5)},
    ],
    ids=str,
)
def test_transposed(name, how):
    """Including phases that no tap reaches, whose outputs are the bias."""
    for groups, channels, out, kernel in ((1, 5, 18, (3, 3)), (3, 6, 2, (2, 4)), (1, 1, 1, (1, 1))):
        x = noise((2, channels, 4, 5))
        weight, bias = noise((channels, out, *kernel), 1), noise((groups * out,), 2)
        extents = scattered(x, weight, bias, groups=groups, **how).shape[2:]
        if min(extents) < 1:
            continue
        check_transposed(x, weight, bias, groups=groups, **how)
        check_transposed(x, weight, None, groups=groups, shards=(1,), **how)


@EACH_ISA
@pytest.mark.parametrize("words", [(), ("add", "nn.ReLU"), ("nn.SiLU", "add")], ids="-".join)
def test_transposed_to_a_few_outputs(name, choose, words):
    """Phases with four, two and one taps have weights of different sizes."""
    choose("narrow")
    for out, kernel in ((1, (3, 3)), (3, (4, 4)), (4, (2, 5))):
        x = noise((2, 21, 4, 5))
        weight, bias = noise((21, out, *kernel), 1), noise((out,), 2)
        check_transposed(x, weight, bias, words, stride=(2, 2), padding=(1, 0))
        check_transposed(x, weight, None, words, (1,), output_padding=(1, 0), stride=(2, 1))


@EACH_ISA
def test_transposed_at_run_time(name):
    x, weight, bias = noise((2, 6, 4, 5)), noise((6, 4, 3, 3), 1), noise((8,), 2)
    how = {"stride": (2, 2), "padding": (1, 1), "groups": 2}
    ahead = check_transposed(x, weight, bias, **how)
    bench = Workbench()
    y = bench.output(ahead.shape, "channels_last")
    a = arguments(
        "F.conv_transpose2d", bench.put_channels_last(x), weight=bench.put(weight),
        bias=bench.put(bias), **how,
    )  # fmt: skip
    got = run_record(BenchBinder(bench, y), "F.conv_transpose2d", a)
    np.testing.assert_array_equal(got, ahead)


# -- post-ops ----------------------------------------------------------------------------------

POSTS = [
    ("nn.ReLU",), ("nn.SiLU",), ("add",), ("add", "nn.ReLU6"), ("add", "nn.Hardswish"),
    ("nn.Hardtanh", "add"), ("nn.LeakyReLU", "add"), ("nn.ReLU", "add", "nn.ReLU6"),
    ("nn.Sigmoid", "add", "nn.ReLU"), ("nn.SiLU", "add", "nn.Softplus"),
]  # fmt: skip


@EACH_ISA
@pytest.mark.parametrize("words", POSTS, ids="-".join)
def test_post_ops(name, choose, words):
    for way in WAYS:
        choose(way)
        rtol = 2e-5 if "winograd" in way else 1e-5
        channels, out, groups = {"depthwise": (35, 35, 35), "few_inputs": (3, 37, 1)}.get(
            way, (17, 37, 1)
        )
        weight, bias = filters(out, channels, 3, groups)
        x = noise((2, channels, 6, 7))
        check(x, weight, bias, groups=groups, padding=(1, 1), words=words, rtol=rtol, shards=(1, 3))
    weight, bias = noise((5, 37, 3, 3), 1), noise((37,), 2)
    check_transposed(noise((2, 5, 4, 3)), weight, bias, words, (1, 3), stride=(2, 2))


# -- the same bits -----------------------------------------------------------------------------


@EACH_ISA
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_gives_the_bits_of_its_images(name, choose, way):
    choose(way)
    channels, groups = {"depthwise": (21, 21), "few_inputs": (3, 1)}.get(way, (18, 1))
    weight, bias = filters(21, channels, 3, groups)
    x = noise((5, channels, 7, 6))
    how = {"groups": groups, "padding": (1, 1), "words": ("nn.SiLU",), "rtol": 2e-5}
    whole = check(x, weight, bias, **how)
    for start, stop in ((0, 1), (1, 3), (4, 5)):
        part = check(x[start:stop], weight, bias, shards=(1,), **how)
        assert part.tobytes() == whole[start:stop].tobytes()


# -- NaN and infinities ------------------------------------------------------------------------


@EACH_ISA
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_reach_only_their_windows(name, choose, way, odd):
    """Also within the tiles of Winograd's algorithm."""
    choose(way)
    channels, groups = {"depthwise": (17, 17), "few_inputs": (3, 1)}.get(way, (17, 1))
    weight, bias = filters(17, channels, 3, groups)
    x = noise((2, channels, 12, 12))
    clean = correlated(x, weight, bias, padding=(1, 1), groups=groups)
    x[1, 2, 5, 6] = odd
    with np.errstate(invalid="ignore"):
        expected = correlated(x, weight, bias, padding=(1, 1), groups=groups)
    got, _ = convolve(x, weight, bias, shape=expected.shape, padding=(1, 1), groups=groups)
    hit = ~np.isfinite(expected)
    assert hit.sum() == 9 * (1 if groups > 1 else 17)
    np.testing.assert_array_equal(got[hit], expected[hit].astype(np.float32))
    assert_close(got[~hit], clean[~hit].astype(np.float32), 2e-5)


@EACH_ISA
@each_winograd
@pytest.mark.parametrize("odd", [np.nan, np.inf])
@pytest.mark.parametrize("words", [(), ("add", "nn.ReLU6"), ("nn.LeakyReLU", "add")], ids="-".join)
def test_every_pixel_of_a_winograd_tile_reaches_its_windows_alone(
    name, choose, way, stride, odd, words
):
    """NaN or infinity at every pixel: interior, borders, edges of one to four outputs."""
    choose(way)
    how = {"stride": (stride, stride), "padding": (1, 1)}
    for channels, (height, width) in ((17, (5, 6)), (33, (7, 8)), (16, (3, 4))):
        weight, bias = filters(19, channels, 3)
        x = noise((2, channels, height, width))
        shape = (2, 19, -(-height // stride), -(-width // stride))
        summand = noise(shape, 5) if "add" in words else None
        pixels = itertools.product(range(height), range(width))
        for number, (i, j) in enumerate(pixels):
            damaged = x.copy()
            damaged[1, number % channels, i, j] = odd
            with np.errstate(all="ignore"):
                sums = correlated(damaged, weight, bias, **how)
                expected = reference_epilogue(sums, words, summand)
            got, _ = convolve(
                damaged, weight, bias, words=words, summand=summand, shape=expected.shape,
                shards=(1,), **how,
            )  # fmt: skip
            expected = expected.astype(np.float32)
            hit = ~np.isfinite(sums)
            seen = [
                sum(0 <= at - (o * stride - 1) < 3 for o in range(-(-extent // stride)))
                for at, extent in ((i, height), (j, width))
            ]
            assert hit.sum() == 19 * seen[0] * seen[1]
            np.testing.assert_array_equal(got[hit], expected[hit])
            assert_close(got[~hit], expected[~hit], 2e-5)


@EACH_ISA
@each_winograd
@pytest.mark.parametrize("half", [False, True], ids=["float", "half"])
def test_overflow_in_a_winograd_transform(name, choose, way, stride, half):
    """Inputs, products and sums overflow float32 although the result does not."""
    choose(way)
    how = {"stride": (stride, stride), "padding": (1, 1)}
    weight, bias = filters(19, 17, 3)
    weight = (weight / 200).astype(np.float16 if half else np.float32)
    x = noise((1, 17, 9, 10)) * np.float32(5e37)
    expected = correlated(x, weight.astype(np.float32), bias, **how).astype(np.float32)
    assert np.isfinite(expected).all()
    got, _ = convolve(x, weight, bias, shape=expected.shape, **how)
    assert_close(got, expected, 2e-5)
    # A single filter overflows, at several positions within a vector of filters.
    for odd in (0, 8, 16, 18):
        weight = filters(19, 17, 3)[0]
        weight[odd] *= np.float32(4e37)
        x = noise((1, 17, 9, 10))
        expected = correlated(x, weight, bias, **how).astype(np.float32)
        if np.isfinite(expected).all():
            got, _ = convolve(x, weight, bias, shape=expected.shape, **how)
            for one, other in zip(got[0], expected[0], strict=True):
                assert_close(one, other, 2e-5)


@EACH_ISA
@each_winograd
def test_weights_that_are_not_finite_affect_only_their_filter(name, choose, way, stride):
    choose(way)
    how = {"stride": (stride, stride), "padding": (1, 1)}
    weight, bias = filters(19, 17, 3)
    x = noise((1, 17, 6, 6)) + 4
    weight[3, 2, 1, 1] = np.inf
    weight[18, 0, 1, 1] = np.nan
    with np.errstate(invalid="ignore"):
        expected = correlated(x, weight, bias, **how).astype(np.float32)
    assert np.isposinf(expected[0, 3]).all()
    got, _ = convolve(x, weight, bias, shape=expected.shape, **how)
    assert np.isposinf(got[0, 3]).all()
    assert np.isnan(got[0, 18]).all()
    rest = [number for number in range(19) if number not in (3, 18)]
    assert_close(got[:, rest], expected[:, rest], 2e-5)


@EACH_ISA
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("words", [("nn.ReLU",), ("nn.ReLU6",), ("add", "nn.ReLU")], ids="-".join)
def test_clamps_keep_nan(name, choose, way, words):
    choose(way)
    channels, groups = {"depthwise": (17, 17), "few_inputs": (3, 1)}.get(way, (17, 1))
    weight, bias = filters(17, channels, 3, groups)
    x = noise((1, channels, 4, 4))
    x[0, :, 1, 1] = np.nan
    summand = noise((1, 17, 4, 4), 3) if "add" in words else None
    got, _ = convolve(
        x, weight, bias, words=words, summand=summand, shape=(1, 17, 4, 4), padding=(1, 1),
        groups=groups,
    )  # fmt: skip
    assert np.isnan(got[:, :, :3, :3]).all()


@EACH_ISA
@pytest.mark.parametrize("way", WAYS[:3])
def test_minus_zero_is_kept(name, choose, way):
    """As in PyTorch: a sum of -0.0 is -0.0, and relu keeps it."""
    choose(way)
    channels, groups = {"implicit": (9, 1), "depthwise": (17, 17), "few_inputs": (3, 1)}[way]
    weight = -np.ones((17, channels // groups, 1, 1), np.float32)
    bias = np.full(17, -0.0, np.float32)
    x = np.zeros((1, channels, 3, 3), np.float32)
    for words in ((), ("nn.ReLU",), ("nn.ReLU6",)):
        got, _ = convolve(x, weight, bias, words=words, shape=(1, 17, 3, 3), groups=groups)
        assert (got == 0).all()
        assert np.signbit(got).all()


# -- other ranks -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 6, 5), (3, 1, 5), (3, 5, 1), (3, 1, 1)], ids=str)
def test_images_without_a_batch(shape):
    weight, bias = filters(4, 3, 1)
    y = run_operator("nn.Conv2d", noise(shape), attributes={"weight": weight, "bias": bias})
    assert_close(y, correlated(noise(shape)[None], weight, bias)[0].astype(np.float32))
    transposed = {"weight": noise((3, 4, 2, 2), 1), "bias": bias}
    y = run_operator("nn.ConvTranspose2d", noise(shape), attributes=transposed, stride=(2, 1))
    expected = scattered(noise(shape)[None], transposed["weight"], bias, (2, 1))[0]
    assert_close(y, expected.astype(np.float32))


@pytest.mark.parametrize("shape", [(2, 3, 9), (3, 9), (1, 3, 1), (3, 1)], ids=str)
def test_one_spatial_axis(shape):
    x = noise(shape)
    image = x.reshape(-1, 3, 1, shape[-1])
    weight, bias = filters(4, 3, (1, 3))
    row = {"weight": weight[:, :, 0], "bias": bias}
    y = run_operator("nn.Conv1d", x, attributes=row, padding=(2,), stride=(2,))
    expected = correlated(image, weight, bias, padding=(0, 2), stride=(1, 2))
    assert_close(y, expected.reshape(*x.shape[:-2], 4, -1).astype(np.float32))
    transposed = {"weight": noise((3, 4, 3), 1), "bias": bias}
    y = run_operator("nn.ConvTranspose1d", x, attributes=transposed, stride=(3,), padding=(1,))
    expected = scattered(image, transposed["weight"][:, :, None], bias, (1, 3), (0, 1))
    assert_close(y, expected.reshape(*x.shape[:-2], 4, -1).astype(np.float32))


@pytest.mark.parametrize("rank", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("type", ["F.conv2d", "F.conv_transpose2d"])
def test_weights_of_a_wrong_rank(type, rank):
    with pytest.raises(OperatorError, match=r"'weight' has shape .*, expected rank 4"):
        run_operator(type, noise((1, 2, 4, 4)), noise((2,) * rank), keys=["input", "weight"])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"padding": (1, 2, 0)}, "'padding' is (1, 2, 0), expected 2 or 4 integers"),
        ({"stride": (1, 1, 1)}, "'stride' is (1, 1, 1), expected 2 integers"),
        ({"dilation": (3, 3)}, "the kernel (3, 3) with dilation (3, 3) is larger than"),
        ({"groups": 2}, "the input has shape (1, 4, 5, 5) with 4 channels, expected 8"),
        ({"groups": 4}, "'groups' is 4, which does not divide 16 input and 6 output channels"),
    ],
)
def test_arguments_that_do_not_fit(how, message):
    with pytest.raises(ShapeError) as caught:
        run_operator(
            "nn.Conv2d", noise((1, 4, 5, 5)), attributes={"weight": noise((6, 4, 3, 3))}, **how
        )
    assert message in str(caught.value)


# -- the memoryview interface ------------------------------------------------------------------


@EACH_ISA
@pytest.mark.parametrize("how", [*GEOMETRIES[:3], *GEOMETRIES[4:], {"groups": 2}], ids=str)
def test_conv2d(name, how):
    groups = how.get("groups", 1)
    x = noise((2, 6, 9, 10))
    weight, bias = filters(34, 6, 3, groups)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    for array in (last, weight, bias):
        array.flags.writeable = False
    for given in (bias, None):
        expected = correlated(x, weight, given, **how).transpose(0, 2, 3, 1)
        results = [conv2d(last, weight, given, n_threads=n, **how) for n in (1, 2, 7)]
        assert_close(results[0], expected.astype(np.float32))
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"groups": 2},
            "x has 4 channels and weight shape (6, 4, 3, 3), which do not fit 2 groups",
        ),
        ({"groups": 0}, "which do not fit 0 groups"),
        ({"stride": (0, 1)}, "stride, dilation, kernel and n_threads must be >= 1"),
        ({"dilation": (1, 0)}, "stride, dilation, kernel and n_threads must be >= 1"),
        ({"padding": (-1, 0)}, "padding >= 0"),
        ({"n_threads": 0}, "n_threads must be >= 1"),
        ({"dilation": (9, 9)}, "the output would have shape (1, -13, -13, 6)"),
        ({"bias": noise((5,))}, "bias has shape (5,), expected (6,)"),
    ],
)
def test_conv2d_checks_its_arguments(change, message):
    with pytest.raises(InputError) as caught:
        conv2d(noise((1, 5, 5, 4)), noise((6, 4, 3, 3)), **change)
    assert message in str(caught.value)


def test_conv2d_takes_contiguous_float32_of_rank_4():
    x, weight = noise((1, 5, 5, 4)), noise((6, 4, 3, 3))
    for wrong in (x.astype(np.float64), x[0], x.transpose(0, 2, 1, 3)):
        with pytest.raises(ValueError, match=r"mismatch|dimensions|contig"):
            conv2d(wrong, weight)
    assert channels_last_strides((1, 4, 5, 5)) == tuple(
        s // 4 for s in x.transpose(0, 3, 1, 2).strides
    )
