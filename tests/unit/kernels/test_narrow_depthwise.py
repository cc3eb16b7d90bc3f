"""Depthwise convolutions of images in bfloat16 on every variant, against float64 sums."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper._kernels.conv import conv
from kuiper._kernels.conv.window import Window
from kuiper._kernels.elementwise import elementwise
from kuiper._kernels.micro import dispatch
from kuiper._kernels.micro.packed import NarrowDepthwiseBlocks
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ops.core.epilogue import Epilogue

from ...support.halves import halves_of, rounded, values_of
from ...support.workbench import PAIR_ISAS, Workbench, function, isa, noise

EACH = pytest.mark.parametrize("name", PAIR_ISAS)
FLOAT32 = np.dtype(np.float32)


def sums(x, weight, bias, stride, dilation) -> np.ndarray:
    """Return the exact sums of images rounded to bfloat16 and float32 weights."""
    kernel = weight.shape[-1]
    padding = (dilation * (kernel // 2),) * 2
    x = np.pad(np.float64(rounded(x)), ((0, 0), (0, 0), padding, padding))
    reach = dilation * (kernel - 1) + 1
    windows = np.lib.stride_tricks.sliding_window_view(x, (reach, reach), (2, 3))
    windows = windows[:, :, ::stride, ::stride, ::dilation, ::dilation]
    y = np.einsum("nchwuv,cuv->nchw", windows, np.float64(weight))
    return y + np.float64(bias)[:, None, None]


def check(channels, size, kernel, stride=1, dilation=1, y_dtype=BFLOAT16, end=None):
    """Compare the kernel, in several numbers of shards, with the reference.

    end(bench, expected) returns the epilogue and the expected result.
    """
    padding = dilation * (kernel // 2)
    x, bias = noise((2, channels, *size)), noise((channels,), 2)
    weight = noise((channels, kernel, kernel), 1)
    expected, epilogue = sums(x, weight, bias, stride, dilation), None
    bench = Workbench()
    if end is not None:
        epilogue, expected = end(bench, expected)
    image = bench.put_channels_last(halves_of(x), channels + 3)
    y = bench.output(expected.shape, "channels_last", channels + 5, y_dtype)
    matrix = NarrowDepthwiseBlocks(channels, kernel * kernel)
    memory = np.full(matrix.shape, np.nan, np.float32)
    matrix.fill(memory, weight.reshape(channels, -1), bias)
    packed = bench.put(memory)
    taps = [(u * dilation - padding, v * dilation - padding) for u, v in np.ndindex(kernel, kernel)]
    window = Window(image, y, (stride,) * 2, (1, 1), [((0, 0), expected.shape[2:], taps, 0)])
    scratch = bench.scratch(conv.depthwise_scratch_bytes(len(taps)))
    step = conv.NarrowDepthwiseStep(
        image, packed, y, window, (kernel,) * 2, (dilation,) * 2, scratch, epilogue
    )
    got = bench.run_all_shards(lambda: step, y)
    got = np.float64(values_of(got) if y_dtype == BFLOAT16 else got)
    tolerance = 2e-6 * kernel * kernel
    if y_dtype == BFLOAT16:
        # Half of a unit in the last place.
        assert (np.abs(got - expected) <= 2.0**-8 * np.abs(expected) + tolerance).all()
    else:
        assert np.abs(got - expected).max() <= tolerance


@EACH
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2), (7, 1), (7, 2)])
def test_windows(name, kernel, stride):
    with isa(name):
        lanes = dispatch.lanes()
        for channels in sorted({1, lanes - 1, lanes, lanes + 1, 2 * lanes, 5 * lanes + 3} - {0}):
            check(channels, (6, 43), kernel, stride)
        for size in [(4, 5), (3, 18 * stride), (9, 1)]:
            check(3 * lanes + 1, size, kernel, stride)


@EACH
@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 2)])
def test_windows_without_a_row_kernel(name, kernel, dilation):
    with isa(name):
        check(2 * dispatch.lanes() + 5, (7, 40), kernel, dilation=dilation)


def residual_of(bench, dtype, shape):
    """Return a residual and the values that it stands for."""
    r = noise(shape, 4)
    if dtype == BFLOAT16:
        return bench.put_channels_last(halves_of(r).reshape(shape), shape[1] + 1), rounded(r)
    return bench.put_channels_last(r, shape[1] + 1), r


@EACH
@pytest.mark.parametrize("y_dtype", [BFLOAT16, FLOAT32])
@pytest.mark.parametrize("r_dtype", [BFLOAT16, FLOAT32, None])
@pytest.mark.parametrize(
    ("pre", "post", "clamp"),
    [(None, None, (0.0, 1.5)), (None, "tanh", None), ("tanh", None, None), ("tanh", "abs", None)],
)
def test_epilogues(name, y_dtype, r_dtype, pre, post, clamp):
    def end(bench, expected):
        epilogue = Epilogue()
        epilogue.clamp = clamp
        for which, of in (("pre_activation", pre), ("post_activation", post)):
            if of:
                setattr(epilogue, which, (elementwise.unary_number(of), 0.0, 0.0))
        if pre:
            expected = function(pre, expected.astype(np.float32))
        if r_dtype is not None:
            epilogue.residual, r = residual_of(bench, r_dtype, expected.shape)
            epilogue.ldr, epilogue.residual_in_tile = expected.shape[1] + 1, pre is None
            expected = expected + r
        if clamp:
            expected = np.clip(expected, *clamp)
        if post:
            expected = function(post, expected.astype(np.float32))
        return epilogue, np.float64(expected)

    with isa(name):
        for channels in (3 * dispatch.lanes(), 2 * dispatch.lanes() + 3):
            check(channels, (3, 23), 3, y_dtype=y_dtype, end=end)
