"""Resampling kernels around the width of a vector, and every mode of the records, in float64."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import kuiper
from kuiper._kernels.micro import dispatch
from kuiper._kernels.spatial import resampling
from kuiper._kernels.spatial.resize import ResizeStep
from kuiper.ir.dtypes import BFLOAT16

from ...reference import REFERENCES
from ...support.compare import assert_close
from ...support.halves import halves_of, rounded, values_of
from ...support.workbench import ISAS, Workbench, isa, noise
from ...support.workgraph import run_channels_last, run_operator

FLOAT32 = np.dtype(np.float32)
interpolate = REFERENCES["F.interpolate"]


def weighted(x, taps, axis):
    """Apply taps along one axis, in float64."""
    shape = (-1,) + (1,) * (x.ndim - axis - 1)
    return sum(
        np.take(x, taps.indices[:, k], axis) * taps.weights[:, k].reshape(shape).astype(np.float64)
        for k in range(taps.count)
    )


def run_resize(x, rows, columns, row_stride=0):
    bench = Workbench()
    channels = x.shape[1]
    value = bench.put_channels_last(x, channels + row_stride)
    shape = (x.shape[0], channels, len(rows), len(columns))
    y = bench.output(shape, "channels_last", channels + row_stride)
    scratch = bench.scratch(resampling.scratch_bytes(rows, columns, channels))
    return bench.run_all_shards(lambda: ResizeStep(value, y, rows, columns, scratch), y)


MAKERS = {
    "nearest": lambda extent, out: resampling.nearest_taps(extent, out, None, False),
    "linear": lambda extent, out: resampling.linear_taps(extent, out, None, False),
    "cubic": lambda extent, out: resampling.cubic_taps(extent, out, None, True),
}


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("mode", list(MAKERS))
@pytest.mark.parametrize("row_stride", [0, 5])
def test_channels_around_the_vector(name, mode, row_stride):
    with isa(name):
        lanes = dispatch.lanes()
        for channels in sorted({1, 2, 3, lanes - 1, lanes, lanes + 1, 3 * lanes + 2} - {0}):
            x = noise((2, channels, 5, 7), channels)
            for out_rows, out_columns in ((11, 16), (3, 4), (5, 14)):
                rows, columns = MAKERS[mode](5, out_rows), MAKERS[mode](7, out_columns)
                expected = weighted(weighted(x, columns, 3), rows, 2).astype(np.float32)
                assert_close(run_resize(x, rows, columns, row_stride), expected, 1e-6)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("mode", list(MAKERS))
@pytest.mark.parametrize("dtypes", [(BFLOAT16, BFLOAT16), (FLOAT32, BFLOAT16), (BFLOAT16, FLOAT32)])
def test_bfloat16(name, mode, dtypes):
    with isa(name):
        lanes = dispatch.lanes()
        for channels, row_stride in ((1, 0), (3, 2), (lanes + 1, 0), (2 * lanes, 3)):
            x = rounded(noise((2, channels, 5, 7), channels))
            rows, columns = MAKERS[mode](5, 11), MAKERS[mode](7, 16)
            bench = Workbench()
            given = halves_of(x).reshape(x.shape) if dtypes[0] == BFLOAT16 else x
            value = bench.put_channels_last(given, channels + row_stride)
            y = bench.output(
                (2, channels, 11, 16), "channels_last", channels + row_stride, dtypes[1]
            )
            n_bytes = resampling.scratch_bytes(rows, columns, channels) + 4 * channels * (7 + 16)
            scratch = bench.scratch(n_bytes)
            got = bench.run_all_shards(
                lambda args=(value, y, rows, columns, scratch): ResizeStep(*args), y
            )
            expected = weighted(weighted(x, columns, 3), rows, 2)
            if dtypes[1] == BFLOAT16:
                got = values_of(got)
                assert (np.abs(got - expected) <= 2**-8 * np.abs(expected) + 1e-6).all()
            else:
                assert_close(got, expected.astype(np.float32), 1e-6)


@pytest.mark.parametrize("name", ISAS)
def test_columns_around_the_vector(name):
    with isa(name):
        lanes = dispatch.lanes()
        for width in sorted({1, lanes - 1, lanes, lanes + 1, 2 * lanes + 3} - {0}):
            x = noise((3, 1, 4, 6), width)
            rows, columns = MAKERS["linear"](4, 9), MAKERS["linear"](6, width)
            expected = weighted(weighted(x, columns, 3), rows, 2).astype(np.float32)
            assert_close(run_resize(x, rows, columns), expected, 1e-6)


def test_an_axis_that_keeps_its_extent_is_copied():
    x = noise((1, 3, 5, 6))
    y = run_operator("F.interpolate", x, mode="bilinear", align_corners=False, size=(5, 12))
    np.testing.assert_array_equal(y[..., 0], x[..., 0])
    y = run_operator(
        "F.interpolate", x, mode="bilinear", align_corners=False, scale_factor=(1.1, 1)
    )
    np.testing.assert_array_equal(y, x)


TARGETS = [
    {"size": (11, 3)},
    {"size": (1, 20)},
    {"scale_factor": (2.0, 2.0)},
    {"scale_factor": (0.7, 1.3)},
    {"scale_factor": (3.3, 0.9)},
    {"scale_factor": (1.3, 0.6), "recompute_scale_factor": True},
]


@pytest.mark.parametrize("run", [run_operator, run_channels_last])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "how",
    [
        {"mode": "nearest"},
        {"mode": "bilinear", "align_corners": False},
        {"mode": "bilinear", "align_corners": True},
    ],
)
def test_images(run, target, how):
    for shape, seed in (((2, 3, 5, 7), 0), ((1, 33, 6, 4), 1), ((1, 1, 8, 9), 2)):
        x = noise(shape, seed)
        expected = interpolate(x, **how, **target).astype(np.float32)
        assert_close(run("F.interpolate", x, **how, **target), expected, 1e-6)


@pytest.mark.parametrize("run", [run_operator, run_channels_last])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_lines_and_volumes(run, mode):
    for x, name in ((noise((2, 5, 7)), mode), (noise((1, 3, 4, 5, 6)), f"tri{mode}")):
        name = name.replace("trinearest", "nearest")
        for size in itertools.product((3, 9), repeat=x.ndim - 2):
            corners = {} if mode == "nearest" else {"align_corners": False}
            expected = interpolate(x, mode=mode, size=size, **corners)
            y = run("nn.Upsample", x, mode=name, size=size, **corners)
            assert_close(y, expected.astype(np.float32), 1e-6)


def cubic(x, axis, out, ratio, align_corners):
    """Resize one axis with Keys' cubic kernel, term by term."""
    extent = x.shape[axis]
    rows = []
    for i in range(out):
        at = i * (extent - 1) / max(out - 1, 1) if align_corners else (i + 0.5) * ratio - 0.5
        total = 0
        for pixel in range(math.floor(at) - 1, math.floor(at) + 3):
            d = abs(at - pixel)
            weight = (
                1.25 * d**3 - 2.25 * d**2 + 1
                if d <= 1
                else -0.75 * d**3 + 3.75 * d**2 - 6 * d + 3
                if d < 2
                else 0
            )
            total = total + weight * np.take(x, np.clip(pixel, 0, extent - 1), axis)
        rows.append(total)
    return np.stack(rows, axis)


@pytest.mark.parametrize("run", [run_operator, run_channels_last])
@pytest.mark.parametrize("align_corners", [False, True])
def test_bicubic(run, align_corners):
    for channels in (1, 3, 20):
        x = noise((2, channels, 5, 7))
        arguments = {"mode": "bicubic", "align_corners": align_corners}
        expected = cubic(cubic(x, 2, 12, 5 / 12, align_corners), 3, 3, 7 / 3, align_corners)
        y = run("F.interpolate", x, size=(12, 3), **arguments)
        assert_close(y, expected.astype(np.float32), 3e-6)
        expected = cubic(cubic(x, 2, 5, 1 / 1.1, align_corners), 3, 14, 1 / 2.05, align_corners)
        y = run("F.interpolate", x, scale_factor=(1.1, 2.05), **arguments)
        assert_close(y, expected.astype(np.float32), 3e-6)


def test_nearest_exact_and_area():
    x = noise((2, 3, 5, 7))
    y = run_operator("F.interpolate", x, mode="nearest-exact", size=(8, 4))
    rows = [math.floor((i + 0.5) * 5 / 8) for i in range(8)]
    columns = [math.floor((i + 0.5) * 7 / 4) for i in range(4)]
    np.testing.assert_array_equal(y, x[:, :, rows][..., columns])
    y = run_operator("F.interpolate", x, mode="area", size=(2, 9))
    expected = REFERENCES["nn.AdaptiveAvgPool2d"](x, output_size=(2, 9))
    assert_close(y, expected.astype(np.float32), 1e-6)


def test_nearest_ignores_the_scale_where_pytorch_does():
    # For images of the same or twice the extent: floor(7 * 1.1) = 7 columns are copied, but 7
    # elements of a line are taken at a distance of 1 / 1.1.
    x = np.arange(7, dtype=np.float32)
    image = np.broadcast_to(x, (1, 1, 7, 7)).copy()
    y = run_operator("nn.Upsample", image, mode="nearest", scale_factor=(1.1, 1.1))
    np.testing.assert_array_equal(y, image)
    y = run_operator("nn.Upsample", image, mode="nearest", scale_factor=(1.0, 2.1))
    np.testing.assert_array_equal(y[0, 0, 0], np.repeat(x, 2))
    y = run_operator("nn.Upsample", x.reshape(1, 1, 7), mode="nearest", scale_factor=(1.1,))
    np.testing.assert_array_equal(y[0, 0], [0, 0, 1, 2, 3, 4, 5])


def test_old_names():
    x = noise((1, 2, 5, 6))
    expected = interpolate(x, size=(9, 4), mode="bilinear", align_corners=True)
    for name in ("nn.UpsamplingBilinear2d", "F.upsample_bilinear"):
        assert_close(run_operator(name, x, size=(9, 4)), expected.astype(np.float32), 1e-6)
    expected = interpolate(x, scale_factor=(2.0, 3.0)).astype(np.float32)
    for name in ("nn.UpsamplingNearest2d", "F.upsample_nearest"):
        y = run_operator(name, x, size=None, scale_factor=(2.0, 3.0))
        np.testing.assert_array_equal(y, expected)


def test_other_dtypes():
    x = noise((1, 2, 5, 6), dtype=np.int64)
    y = run_operator("F.interpolate", x, mode="nearest", size=(10, 3))
    np.testing.assert_array_equal(y, np.repeat(x, 2, 2)[..., ::2])
    x = noise((1, 2, 5, 6), dtype=np.float64)
    y = run_operator("F.interpolate", x, mode="bilinear", align_corners=True, size=(9, 11))
    assert y.dtype == np.float64
    expected = interpolate(x, size=(9, 11), mode="bilinear", align_corners=True)
    assert_close(y, expected, 1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "trilinear", "size": (2, 2)}, "expected rank 5 for mode 'trilinear'"),
        ({"mode": "nearest", "size": (2, 2, 2)}, "'size' is .2, 2, 2., expected 2 numbers"),
        ({"mode": "nearest"}, "'size' is None and 'scale_factor' is None, expected one of them"),
        ({"mode": "nearest", "scale_factor": (0.1, 2.0)}, "leaves nothing of an input"),
        ({"mode": "nearest", "scale_factor": (math.inf, 2.0)}, "has no finite extents"),
        ({"mode": "bilinear", "size": (2, 2), "antialias": True}, "not supported"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(kuiper.ShapeError, match=message):
        run_operator("F.interpolate", noise((1, 2, 5, 6)), **arguments)


def test_refuses_a_mode_and_integers():
    with pytest.raises(kuiper.OperatorError, match="argument 'mode' is 'lanczos', expected one of"):
        run_operator("F.interpolate", noise((1, 2, 5, 6)), mode="lanczos", size=(2, 2))
    with pytest.raises(kuiper.ShapeError, match="the input is int64, expected float32"):
        run_operator("F.interpolate", np.ones((1, 1, 4, 4), np.int64), mode="bicubic", size=(2, 2))
