"""Convolution of volumes, against the numpy reference."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kuiper._kernels.conv.conv3d import conv3d
from kuiper.errors import InputError

from ...reference.convolution import conv3d as expected
from ...support import assert_close
from ...support.algorithms import always_winograd
from ...support.engine import n_threads as threads
from ...support.workbench import ISAS, isa, noise
from ...support.workgraph import model_of


@pytest.mark.parametrize("variant", ISAS)
@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_volumes(variant, n_threads):
    x, weight, bias = noise((2, 4, 5, 6, 7)), noise((33, 7, 3, 2, 3), 1), noise((33,), 2)
    options = {"stride": (1, 2, 1), "padding": (1, 0, 2)}
    with isa(variant):
        y = conv3d(x, weight, bias, **options, n_threads=n_threads)
    reference = expected(
        x.transpose(0, 4, 1, 2, 3).astype(np.float64),
        weight.astype(np.float64),
        bias,
        **options,
        dilation=(1, 1, 1),
        groups=1,
    )
    assert_close(y.transpose(0, 4, 1, 2, 3), reference, 1e-5, "conv3d")


@pytest.mark.parametrize(
    ("x", "weight", "options"),
    [
        ((1, 4, 4, 4, 3), (5, 2, 3, 3, 3), {}),
        ((1, 4, 4, 4, 3), (5, 3, 5, 1, 1), {}),
        ((1, 4, 4, 4, 3), (5, 3, 1, 1, 1), {"stride": (1, 0, 1)}),
        ((1, 4, 4, 4, 3), (5, 3, 1, 1, 1), {"bias": np.zeros(4, np.float32)}),
    ],
)
def test_invalid_arguments_are_refused(x, weight, options):
    with pytest.raises(InputError):
        conv3d(noise(x), noise(weight), **options)


# -- Winograd, plane by plane ------------------------------------------------------------------

# Side of a tile, stride within the planes, blocked or staged.
WAYS = [(4, 1, True), (4, 1, False), (2, 1, True), (2, 1, False), (4, 2, True), (4, 2, False)]
# Volume, depth of the kernel; along the depth: stride, padding, dilation; padding of the planes.
VOLUMES = [
    ((5, 9, 10), 3, 1, 1, 1, (1, 1)),
    ((4, 8, 8), 1, 1, 0, 1, (1, 1)),
    ((6, 7, 9), 3, 1, 0, 1, (0, 0)),
    ((7, 6, 11), 3, 2, 1, 1, (1, 0)),
    ((9, 5, 4), 3, 1, 2, 2, (1, 1)),
    ((3, 4, 6), 5, 3, 4, 1, (1, 2)),
    ((1, 8, 7), 7, 1, 3, 1, (1, 1)),
]


@pytest.fixture
def choose(monkeypatch):
    """Return a function that restricts the record to one algorithm."""

    def chosen(tile: int, is_blocked: bool) -> None:
        always_winograd(monkeypatch, tile, is_blocked, block=7)

    return chosen


def options_of(stride, depth, stride_d, front, dilation, padding):
    return {
        "stride": (stride_d, stride, stride), "dilation": (dilation, 1, 1),
        "padding": (front, *padding), "groups": 1,
    }  # fmt: skip


def convolved(x, weight, bias, **options):
    model = model_of(
        "nn.Conv3d",
        [x],
        {
            **options, "in_channels": x.shape[1], "out_channels": len(weight),
            "kernel_size": weight.shape[2:], "bias": True, "padding_mode": "zeros",
        },
        {"weight": weight, "bias": bias},
    )  # fmt: skip
    kinds = {step.kind for step in model.plan(x.shape).steps}
    assert kinds & {"conv_winograd", "winograd_output"}
    return model(x)


@pytest.mark.parametrize("variant", ISAS)
@pytest.mark.parametrize("volume", VOLUMES, ids=str)
@pytest.mark.parametrize(("tile", "stride", "is_blocked"), WAYS)
def test_planes_by_winograd(variant, choose, tile, stride, is_blocked, volume):
    """Any depth, stride, padding and dilation; the same bits on 1 to 3 threads."""
    choose(tile, is_blocked)
    extents, depth, *rest = volume
    options = options_of(stride, depth, *rest)
    x, bias = noise((2, 17, *extents)), noise((19,), 2)
    weight = noise((19, 17, depth, 3, 3), 1)
    reference = expected(x.astype(np.float64), weight.astype(np.float64), bias, **options)
    results = []
    for count in (1, 2, 3):
        with isa(variant), threads(count):
            results.append(convolved(x, weight, bias, **options))
    assert_close(results[0], reference.astype(np.float32), 1e-5)
    assert results[1].tobytes() == results[0].tobytes() == results[2].tobytes()


@pytest.mark.parametrize("variant", ISAS)
@pytest.mark.parametrize(("stride", "tile"), [(1, 4), (1, 2), (2, 4)])
def test_batches_and_forms_give_the_same_bits(variant, choose, stride, tile):
    options = options_of(stride, 3, 1, 1, 1, (1, 1))
    x, weight, bias = noise((3, 20, 6, 9, 14)), noise((34, 20, 3, 3, 3), 1), noise((34,), 2)
    results = []
    for is_blocked in (True, False):
        choose(tile, is_blocked)
        with isa(variant):
            results.append(convolved(x, weight, bias, **options))
            part = convolved(x[1:2], weight, bias, **options)
        assert part.tobytes() == results[0][1:2].tobytes()
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("variant", ISAS)
@pytest.mark.parametrize("half", [False, True], ids=["float", "half"])
@pytest.mark.parametrize(("stride", "tile"), [(1, 4), (1, 2), (2, 4)])
def test_nan_and_infinity_reach_only_their_windows(variant, choose, stride, tile, half):
    choose(tile, True)
    options = options_of(stride, 3, 2, 1, 1, (1, 1))
    weight, bias = noise((19, 17, 3, 3, 3), 1), noise((19,), 2)
    weight = weight.astype(np.float16) if half else weight
    wide = weight.astype(np.float64)
    for number, (d, h, w) in enumerate(itertools.product((0, 2, 3), (0, 3, 5), (1, 4, 6))):
        x = noise((2, 17, 4, 6, 7))
        x[1, number % 17, d, h, w] = (np.nan, np.inf, -np.inf)[number % 3]
        with np.errstate(all="ignore"):
            reference = expected(x.astype(np.float64), wide, bias, **options).astype(np.float32)
        with isa(variant):
            got = convolved(x, weight, bias, **options)
        hit = ~np.isfinite(reference)
        assert hit.any()
        np.testing.assert_array_equal(got[hit], reference[hit])
        assert_close(got[~hit], reference[~hit], 1e-5)


def test_when_winograd_is_used():
    """For video and volumes with many channels; not for few channels or small planes."""
    pairs = [
        ((64, 64, (16, 56, 56), 3, 1), True),
        ((512, 512, (2, 7, 7), 3, 1), True),
        ((64, 128, (16, 56, 56), 3, 2), True),
        ((1, 32, (32, 64, 64), 3, 1), False),
        ((64, 64, (4, 1, 1), 3, 1), False),
        ((64, 64, (16, 56, 56), 9, 1), False),
    ]
    for (channels, filters, extents, depth, stride), pays in pairs:
        weight = np.zeros((filters, channels, depth, 3, 3), np.float32)
        options = options_of(stride, depth, stride, depth // 2, 1, (1, 1))
        model = model_of(
            "F.conv3d", [np.zeros((1, channels, *extents), np.float32)],
            {**options, "bias": None}, {"weight": weight}, keys=["input"],
        )  # fmt: skip
        kinds = {step.kind for step in model.plan((1, channels, *extents)).steps}
        assert bool(kinds & {"conv_winograd", "winograd_output"}) == pays, (channels, extents)


# -- flat windows ------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ISAS)
@pytest.mark.parametrize("groups", [1, 2, 18])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "padding"),
    [
        ((1, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0)),
        ((1, 1, 1), (2, 1, 1), (1, 1, 1), (0, 0, 0)),
        ((1, 1, 1), (2, 2, 1), (1, 1, 1), (0, 0, 0)),
        ((3, 1, 1), (1, 1, 1), (2, 1, 1), (2, 0, 0)),
        ((4, 1, 1), (2, 1, 1), (1, 1, 1), (1, 0, 0)),
        ((3, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 0)),
        ((1, 3, 3), (1, 1, 1), (1, 1, 1), (0, 1, 1)),
        ((1, 3, 3), (1, 2, 2), (3, 1, 1), (0, 0, 1)),
        ((1, 5, 2), (1, 1, 3), (1, 2, 1), (0, 3, 1)),
        ((1, 3, 3), (2, 1, 1), (1, 1, 1), (1, 1, 1)),
    ],
    ids=str,
)
def test_flat_windows(variant, groups, kernel, stride, dilation, padding):
    """Windows with one plane or one column are computed as images; some only look like them."""
    options = {"stride": stride, "dilation": dilation, "padding": padding, "groups": groups}
    x, bias = noise((2, 18, 6, 9, 7)), noise((36,), 2)
    weight = noise((36, 18 // groups, *kernel), 1)
    reference = expected(x.astype(np.float64), weight.astype(np.float64), bias, **options)
    model = model_of("F.conv3d", [x], options, {"weight": weight, "bias": bias}, keys=["input"])
    with isa(variant):
        results = []
        for count in (1, 3):
            with threads(count):
                results.append(model(x))
    assert_close(results[0], reference.astype(np.float32), 1e-5)
    assert results[0].tobytes() == results[1].tobytes()
