"""Pooling kernels with channels around the width of a vector, and records with all arguments.

The reference is `tests.reference.pooling`.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import kuiper
from kuiper._kernels.micro import dispatch
from kuiper._kernels.spatial import pool, pool_windows

from ...reference import REFERENCES
from ...support.compare import assert_close
from ...support.workbench import ISAS, Workbench, image_windows, isa, noise
from ...support.workgraph import run_operator

max_pool = REFERENCES["nn.MaxPool2d"]
avg_pool = REFERENCES["nn.AvgPool2d"]
adaptive_avg_pool = REFERENCES["nn.AdaptiveAvgPool2d"]
adaptive_max_pool = REFERENCES["nn.AdaptiveMaxPool2d"]

# kernel, stride, padding: the windows with special code, and some others
WINDOWS = [(2, 2, 0), (3, 2, 1), (3, 1, 1), (1, 1, 0), (5, 1, 2), (4, 3, 2)]


def channel_counts(name):
    with isa(name):
        lanes = dispatch.lanes()
    counts = {
        1,
        3,
        lanes - 1,
        lanes,
        lanes + 1,
        4 * lanes - 1,
        4 * lanes,
        4 * lanes + 1,
        10 * lanes,
    }
    return sorted(counts - {0})


def run_pool(x, windows, kind, row_stride=0, with_indices=False, divisor=0):
    """Run one step on 1, 2 and 3 threads; return y, or y and the indices, as (n, c, h, w)."""
    bench = Workbench()
    channels = x.shape[1]
    value = bench.put_channels_last(x, channels + row_stride)
    shape = (x.shape[0], channels, len(windows[0]) * len(windows[1]), len(windows[2]))
    y = bench.output(shape, "channels_last", channels + 2 * row_stride)
    scratch = bench.scratch(pool_windows.scratch_bytes(windows))
    indices = None
    if with_indices:
        indices = bench.output(shape, "channels_last", channels + row_stride, np.int64)
    result = bench.run_all_shards(
        lambda: pool.PoolStep(value, y, windows, kind, scratch, indices, divisor), y
    )
    return (result, bench.view(indices)) if with_indices else result


def arguments_of(kernel, stride, padding):
    return {
        "kernel_size": (kernel, kernel),
        "stride": (stride, stride),
        "padding": (padding, padding),
        "ceil_mode": False,
    }


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("window", WINDOWS)
def test_channels_around_the_vector(name, window):
    arguments = arguments_of(*window)
    with isa(name):
        for channels in channel_counts(name):
            x = noise((2, channels, 7, 9), channels)
            windows = image_windows(x, *window)
            expected = max_pool(x, **arguments, dilation=(1, 1))
            assert_close(run_pool(x, windows, "max", row_stride=3), expected.astype(np.float32), 0)
            expected = avg_pool(x, **arguments, count_include_pad=True)
            assert_close(
                run_pool(x, windows, "mean", row_stride=3), expected.astype(np.float32), 1e-6
            )


@pytest.mark.parametrize("name", ISAS)
def test_indices(name):
    with isa(name):
        for channels in channel_counts(name):
            x = np.round(noise((2, channels, 6, 7), channels))  # with ties
            windows = image_windows(x, 3, 2, 1)
            arguments = arguments_of(3, 2, 1)
            expected, wanted = max_pool(x, **arguments, dilation=(1, 1), return_indices=True)
            y, indices = run_pool(x, windows, "max", 1, with_indices=True)
            assert_close(y, expected.astype(np.float32), 0)
            np.testing.assert_array_equal(indices, wanted)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("kind", ["max", "mean"])
@pytest.mark.parametrize("size", [(1, 1), (7, 9), (3, 4), (11, 20)])
def test_adaptive(name, kind, size):
    with isa(name):
        for channels in channel_counts(name):
            x = noise((1, channels, 7, 9), channels)
            windows = [
                pool_windows.adaptive_windows(extent, count)
                for extent, count in zip((1, *x.shape[2:]), (1, *size), strict=True)
            ]
            what = adaptive_avg_pool if kind == "mean" else adaptive_max_pool
            expected = what(x, output_size=size).astype(np.float32)
            assert_close(run_pool(x, windows, kind), expected, 1e-6)


@pytest.mark.parametrize("name", ISAS)
def test_a_chunk_of_channels_gives_the_bits_of_all(name):
    # One image has few rows, so channels are split as well; twenty images have enough.
    with isa(name):
        x = noise((20, 9 * dispatch.lanes() + 3, 6, 5))
        windows = [pool_windows.adaptive_windows(extent, 1) for extent in (1, 6, 5)]
        assert np.array_equal(run_pool(x, windows, "mean")[:1], run_pool(x[:1], windows, "mean"))


@pytest.mark.parametrize("name", ISAS)
def test_the_mean_of_a_large_plane_is_accurate(name):
    with isa(name):
        x = noise((1, 5, 256, 256)) + 1000
        windows = [pool_windows.adaptive_windows(extent, 1) for extent in (1, 256, 256)]
        expected = x.mean(axis=(2, 3), keepdims=True, dtype=np.float64).astype(np.float32)
        assert_close(run_pool(x, windows, "mean"), expected, 1e-6)


@pytest.mark.parametrize("name", ISAS)
def test_nan_and_infinity(name):
    with isa(name):
        lanes = dispatch.lanes()
        x = noise((1, 5 * lanes + 1, 6, 6))
        x[0, ::3, 2, 2] = np.nan
        x[0, ::3, 2, 4] = np.inf
        x[0, 1::3, :3, :3] = -np.inf
        for kernel, stride, padding in WINDOWS:
            windows = image_windows(x, kernel, stride, padding)
            arguments = arguments_of(kernel, stride, padding)
            expected = max_pool(x, **arguments, dilation=(1, 1))
            np.testing.assert_array_equal(run_pool(x, windows, "max"), expected)
            y, indices = run_pool(x, windows, "max", with_indices=True)
            np.testing.assert_array_equal(y, expected)
            flat = x.reshape(*x.shape[:2], -1)
            np.testing.assert_array_equal(
                np.take_along_axis(flat, indices.reshape(*x.shape[:2], -1), 2).reshape(y.shape), y
            )


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("count_include_pad", [False, True])
@pytest.mark.parametrize("divisor_override", [None, 3])
def test_average_flags(ceil_mode, count_include_pad, divisor_override):
    for kernel, stride, padding in itertools.product((2, 3, 4), (1, 2, 3), (0, 1)):
        x = noise((2, 3, 8, 11))
        flags = {
            "kernel_size": (kernel, kernel + 1),
            "stride": (stride, stride + 1),
            "padding": (padding, padding),
            "ceil_mode": ceil_mode,
            "count_include_pad": count_include_pad,
            "divisor_override": divisor_override,
        }
        expected = avg_pool(x, **flags).astype(np.float32)
        assert_close(run_operator("nn.AvgPool2d", x, **flags), expected, 1e-6)


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 3)])
def test_max_flags(ceil_mode, dilation):
    for kernel, stride, padding in itertools.product((2, 3), (1, 2), (0, 1)):
        x = noise((2, 3, 8, 11))
        flags = {
            "kernel_size": (kernel, kernel),
            "stride": (stride, stride),
            "padding": (padding, padding),
            "dilation": dilation,
            "ceil_mode": ceil_mode,
        }
        expected, wanted = max_pool(x, **flags, return_indices=True)
        y, indices = run_operator("F.max_pool2d", x, n_outputs=2, return_indices=True, **flags)
        assert_close(y, expected.astype(np.float32), 0)
        np.testing.assert_array_equal(indices, wanted)
        y = run_operator("nn.MaxPool2d", x, return_indices=True, **flags)
        assert_close(y, expected.astype(np.float32), 0)


def test_one_and_three_axes():
    line, cube = noise((2, 3, 11)), noise((2, 3, 5, 6, 7))
    one = {"kernel_size": (3,), "stride": (2,), "padding": (1,), "ceil_mode": True}
    flat = {k: (1, *v) if k != "padding" else (0, *v) for k, v in one.items() if k != "ceil_mode"}
    expected = max_pool(line[:, :, None], **flat, dilation=(1, 1), ceil_mode=True)
    assert_close(run_operator("nn.MaxPool1d", line, **one), expected[:, :, 0].astype(np.float32), 0)
    # Three axes are pooled over (h, w) of each slice, then over d.
    arguments = {"kernel_size": (2, 3, 3), "stride": (1, 2, 2), "padding": (0, 1, 1)}
    planes = max_pool(cube.reshape(2, 15, 6, 7), **arguments_of(3, 2, 1), dilation=(1, 1))
    planes = planes.reshape(2, 3, 5, *planes.shape[2:])
    expected = np.maximum(planes[:, :, :-1], planes[:, :, 1:]).astype(np.float32)
    assert_close(run_operator("nn.MaxPool3d", cube, **arguments), expected, 0)
    y, indices = run_operator("F.max_pool3d", cube, n_outputs=2, return_indices=True, **arguments)
    flat_cube = cube.reshape(2, 3, -1)
    found = np.take_along_axis(flat_cube, indices.reshape(2, 3, -1), 2)
    np.testing.assert_array_equal(found.reshape(y.shape), expected)
    expected = cube.mean(axis=(2, 3, 4), keepdims=True)
    assert_close(run_operator("nn.AdaptiveAvgPool3d", cube, output_size=(1, 1, 1)), expected, 1e-5)


def test_unbatched():
    x = noise((5, 8, 9))
    expected = adaptive_avg_pool(x[None], output_size=(3, 0))[0].astype(np.float32)
    assert_close(run_operator("nn.AdaptiveAvgPool2d", x, output_size=(3, 0)), expected, 1e-6)
    flags = {"kernel_size": (2,), "stride": None, "ceil_mode": False}
    assert run_operator("F.max_pool1d", x[0], **flags).shape == (8, 4)


def test_adaptive_max_returns_a_tuple_or_two_outputs():
    x = noise((2, 3, 7, 8))
    expected, wanted = adaptive_max_pool(x, output_size=(2, 3), return_indices=True)
    y, indices = run_operator(
        "F.adaptive_max_pool2d", x, n_outputs=2, output_size=(2, 3), return_indices=True
    )
    assert_close(y, expected.astype(np.float32), 0)
    np.testing.assert_array_equal(indices, wanted)
    model = kuiper.load(
        b"7767517\n4 4\npnnx.Input in 0 1 0 #0=(2,3,7,8)f32\n"
        b"nn.AdaptiveMaxPool2d p 1 1 0 1 output_size=(2,3) return_indices=True\n"
        b"prim::TupleUnpack u 1 2 1 2 3\npnnx.Output out 1 0 2\n"
    )
    assert_close(model(x), expected.astype(np.float32), 0)


def test_norm_pooling():
    x = np.abs(noise((2, 3, 7, 9)))
    arguments = {"kernel_size": (2, 3), "stride": None, "ceil_mode": False}
    windows = avg_pool(
        x.astype(np.float64) ** 3,
        kernel_size=(2, 3),
        stride=None,
        padding=(0, 0),
        ceil_mode=False,
        count_include_pad=True,
    )
    expected = (windows * 6) ** (1 / 3)
    y = run_operator("F.lp_pool2d", x, norm_type=3, **arguments)
    assert_close(y, expected.astype(np.float32), 1e-6)


def test_other_dtypes():
    x = noise((1, 2, 5, 6), dtype=np.float64)
    flags = {"kernel_size": (2, 2), "stride": (2, 1), "padding": (1, 0), "ceil_mode": True}
    expected = avg_pool(x, **flags, count_include_pad=False)
    y = run_operator("nn.AvgPool2d", x, count_include_pad=False, **flags)
    assert y.dtype == np.float64
    assert_close(y, expected, 1e-14)


@pytest.mark.parametrize(
    ("type", "arguments", "message"),
    [
        (
            "nn.MaxPool2d",
            {"kernel_size": (9, 9)},
            "a window of 9 pixels does not fit an extent of 5",
        ),
        ("nn.MaxPool2d", {"kernel_size": (3, 3), "padding": (2, 1)}, "at most half of the kernel"),
        ("nn.MaxPool2d", {"kernel_size": (3, 3, 3)}, "'kernel_size' is .3, 3, 3., expected 2"),
        ("nn.MaxPool3d", {"kernel_size": (1, 1, 1)}, r"shape \(3, 5, 6\), expected rank 5"),
        ("nn.AvgPool2d", {"kernel_size": (2, 2), "divisor_override": 0}, "'divisor_override' is 0"),
        ("nn.AdaptiveAvgPool2d", {"output_size": (1, 2, 3)}, "expected 2 integers"),
    ],
)
def test_refuses(type, arguments, message):
    with pytest.raises(kuiper.ShapeError, match=message):
        run_operator(type, noise((3, 5, 6)), **arguments)


def test_refuses_integers():
    with pytest.raises(kuiper.ShapeError, match="the input is int64, expected float32"):
        run_operator("nn.AvgPool2d", np.ones((1, 1, 4, 4), np.int64), kernel_size=(2, 2))


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_the_kernels_alone(n_threads):
    x = noise((2, 9, 8, 19))
    planes = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    arguments = arguments_of(3, 2, 1)
    expected = max_pool(planes, **arguments, dilation=(1, 1)).transpose(0, 2, 3, 1)
    y = pool.pool2d(x, "max", 3, 2, 1, n_threads=n_threads)
    assert_close(y, expected.astype(np.float32), 0)
    expected = avg_pool(planes, **arguments, count_include_pad=False)
    y = pool.pool2d(x, "mean", 3, 2, 1, count_include_pad=False, n_threads=n_threads)
    assert_close(y, expected.transpose(0, 2, 3, 1).astype(np.float32), 1e-6)
    with pytest.raises(kuiper.InputError, match="padding from 0 to half the kernel"):
        pool.pool2d(x, "max", 3, 2, 2)
    with pytest.raises(kuiper.InputError, match="does not fit"):
        pool.pool2d(x, "mean", 20)
