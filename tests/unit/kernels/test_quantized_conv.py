"""Convolutions of bytes on every variant, bit for bit against float32 arithmetic in numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kuiper._kernels.conv import narrow, quantized
from kuiper._kernels.conv.window import Window
from kuiper._kernels.elementwise import elementwise
from kuiper._kernels.micro import dispatch
from kuiper._kernels.micro.packed import (
    QuantizedDepthwiseBlocks,
    QuantizedDepthwiseQuads,
    QuantizedPanels,
    terms_by_tap,
)
from kuiper.ops.core.epilogue import Epilogue

from ...support.workbench import (
    EXTENDED_ISAS,
    ISAS,
    SHARD_COUNTS,
    Workbench,
    function,
    isa,
    noise,
)

EACH = pytest.mark.parametrize(("name", "extended"), EXTENDED_ISAS)
EACH_ISA = pytest.mark.parametrize("name", ISAS)
SCALE, ZERO = 0.0371, 113  # of the input
OUTPUT = 0.231, 87
RESIDUAL = 0.0493, 131


def bytes_of(shape, seed: int, low=0, high=255, dtype=np.uint8) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, shape, endpoint=True).astype(dtype)


# -- the arithmetic ------------------------------------------------------------------------------


def exact_sums(x, weight, stride, padding, dilation, groups) -> np.ndarray:
    """Sum (byte - zero point) * weight tap by tap, in float64, which is exact."""
    x = x.astype(np.float64) - ZERO
    x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    n, channels, height, width = x.shape
    out, _, kh, kw = weight.shape
    oh = (height - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    ow = (width - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    x = x.reshape(n, groups, channels // groups, height, width)
    weight = weight.astype(np.float64).reshape(groups, out // groups, channels // groups, kh, kw)
    y = np.zeros((n, groups, out // groups, oh * ow))
    for u, v in np.ndindex(kh, kw):
        rows = slice(u * dilation[0], u * dilation[0] + stride[0] * (oh - 1) + 1, stride[0])
        columns = slice(v * dilation[1], v * dilation[1] + stride[1] * (ow - 1) + 1, stride[1])
        y += weight[..., u, v] @ x[..., rows, columns].reshape(*x.shape[:3], oh * ow)
    y = y.reshape(n, out, oh, ow)
    assert np.abs(y).max(initial=0) < 2**31
    return y


def rounded_to_bytes(v: np.ndarray) -> np.ndarray:
    scale, zero = OUTPUT
    inverse = np.float32(1) / np.float32(scale)
    with np.errstate(over="ignore", invalid="ignore"):
        v = np.clip(np.rint(v * inverse) + np.float32(zero), 0, 255)
    return np.where(np.isnan(v), zero, v).astype(np.uint8)


def activated(name, v: np.ndarray) -> np.ndarray:
    """Apply an activation; functions other than clamps by the kernel whose bits are promised."""
    if name is None:
        return v
    if name in CLAMPS:
        return np.clip(v, *map(np.float32, CLAMPS[name]))
    return function(name, v)


CLAMPS = {
    "relu": (0.0, np.inf), "relu6": (0.0, 6.0), "band": (-1.5, 2.25),
    "above": (50.0, 60.0), "below": (-70.0, -60.0),  # beyond the bytes
}  # fmt: skip


def expected_of(sums, scale, bias, how) -> np.ndarray:
    """Follow the documented chain, each step rounded to float32."""
    pre, residual, post, to_bytes = how
    unit = (scale * np.float32(SCALE)).reshape(-1, 1, 1)
    v = sums.astype(np.int32).astype(np.float32) * unit + bias.reshape(-1, 1, 1)
    v = activated(pre, v)
    if residual is not None:
        if residual.dtype == np.uint8:
            summand = residual.astype(np.float32) - np.float32(RESIDUAL[1])
            residual = summand * np.float32(RESIDUAL[0])
        v = v + residual
    v = activated(post, v)
    assert v.dtype == np.float32
    return rounded_to_bytes(v) if to_bytes else v


# -- running one convolution ---------------------------------------------------------------------


def epilogue_of(bench: Workbench, how) -> Epilogue:
    """Return the epilogue as the records make it: clamps apart from other functions."""
    pre, residual, post, to_bytes = how
    epilogue = Epilogue()
    if to_bytes:
        epilogue.output = OUTPUT
    if residual is not None:
        value = bench.put_channels_last(residual, residual.shape[1] + 3)
        epilogue.residual, epilogue.ldr = value, value.row_stride
        epilogue.residual_in_tile = pre is None
        if residual.dtype == np.uint8:
            epilogue.residual_quantization = RESIDUAL
    first, last = (pre, post) if residual is not None and pre else (None, post)
    if first in CLAMPS:
        epilogue.clamp = CLAMPS[first]
    elif first:
        epilogue.pre_activation = (elementwise.unary_number(first), 0.0, 0.0)
    if last in CLAMPS and first is None:
        epilogue.clamp = CLAMPS[last]
    elif last in CLAMPS:
        epilogue.post_activation = (elementwise.unary_number("clamp"), *CLAMPS[last])
    elif last:
        epilogue.post_activation = (elementwise.unary_number(last), 0.0, 0.0)
    return epilogue


def taps_of(kernel, padding, dilation) -> list[tuple[int, int]]:
    return [
        (u * dilation[0] - padding[0], v * dilation[1] - padding[1]) for u, v in np.ndindex(*kernel)
    ]


def check(
    x, weight, scale, bias, *, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1, pre=None,
    residual=None, post=None, to_bytes=True, shards=(1, 3),
):  # fmt: skip
    """Compare the step with the arithmetic above; all shards must give the same bits."""
    sums = exact_sums(x, weight, stride, padding, dilation, groups)
    if residual is not None:
        residual = residual(sums.shape)
    how = pre, residual, post, to_bytes
    expected = expected_of(sums, scale, bias, how)
    out, channels = weight.shape[:2]
    bench = Workbench()
    # The bytes between pixels are arbitrary; quads that reach into them have weights of 0.
    image = bench.put_channels_last(x, x.shape[1] + 5)
    y = bench.output(
        expected.shape, "channels_last", expected.shape[1] + 7,
        np.uint8 if to_bytes else np.float32,
    )  # fmt: skip
    terms = terms_by_tap(weight)
    matrix = QuantizedPanels(out // groups, terms.shape[1], groups=groups)
    memory = np.full(matrix.shape, 99, np.int8)
    matrix.fill(memory, terms, scale, ZERO, bias, groups)
    taps = taps_of(weight.shape[2:], padding, dilation)
    window = Window(image, y, stride, (1, 1), [((0, 0), expected.shape[2:], taps, 0)])
    step = narrow.NarrowConvStep(
        image, bench.put(memory), y, window, groups, channels, out // groups,
        bench.scratch(narrow.narrow_conv_scratch_bytes(len(taps))), weight[0].size,
        epilogue_of(bench, how), SCALE, ZERO,
    )  # fmt: skip
    compare(bench, step, y, expected, shards)


def compare(bench, step, y, expected, shards) -> None:
    for count in shards:
        bench.memory[y.slot][...] = 0xFF
        bench.run(step, shards=count)
        np.testing.assert_array_equal(bench.view(y), expected, f"{count} shards")


def case(shape, out: int, kernel=(1, 1), groups: int = 1, seed: int = 0):
    """Return an image, filters, scales that spread the results over the bytes, and biases."""
    x = bytes_of(shape, seed + 1)
    weight = bytes_of((out, shape[1] // groups, *kernel), seed + 2, -127, 127, np.int8)
    spread = 70 * 73 * np.sqrt(weight[0].size) * SCALE
    scale = (np.abs(noise((out,), seed + 3)) + 0.3) * np.float32(6 / spread)
    return x, weight, scale.astype(np.float32), noise((out,), seed + 4)


def floats(shape):
    return noise(shape, 8) * np.float32(5)


def byte_residual(shape):
    return bytes_of(shape, 9)


RESIDUALS = [None, floats, byte_residual]


# -- implicit GEMM -------------------------------------------------------------------------------


@EACH
def test_heights_widths_and_depths(name, extended):
    """Rows around the tile, columns around vectors and panels, channels around quads."""
    with isa(name, extended):
        lanes, nr = dispatch.lanes(), dispatch.tile()[1]
        widths = sorted({1, lanes - 1, lanes, lanes + 1, nr - 1, nr, nr + 1, 2 * nr + 3} - {0})
        for rows, out in itertools.product((1, 2, 5, 13, 14, 15, 29), widths):
            for to_bytes in (True, False):
                given = case((1, 1 + (rows + out) % 9, 1, rows), out)
                check(*given, to_bytes=to_bytes, residual=RESIDUALS[rows % 3], post="relu")


GEOMETRIES = [
    {},
    {"padding": (1, 1)},
    {"padding": (2, 0)},
    {"stride": (2, 2), "padding": (1, 1)},
    {"stride": (3, 2), "padding": (2, 1)},
    {"dilation": (2, 3), "padding": (1, 3), "stride": (2, 1)},
]


@EACH
@pytest.mark.parametrize("how", GEOMETRIES, ids=str)
def test_geometries(name, extended, how):
    with isa(name, extended):
        for kernel, channels in (((3, 3), 3), ((1, 3), 10), ((3, 2), 8)):
            check(*case((2, channels, 9, 11), 37, kernel), shards=SHARD_COUNTS, **how)
        check(*case((1, 12, 9, 8), 21, (3, 3), 3), groups=3, **how)
        check(*case((1, 10, 8, 9), 70, (3, 1), 2), groups=2, residual=byte_residual, **how)


@EACH
@pytest.mark.parametrize("to_bytes", [True, False])
@pytest.mark.parametrize("residual", RESIDUALS, ids=lambda r: r.__name__ if r else "alone")
def test_epilogues(name, extended, residual, to_bytes):
    """Clamps in registers, other functions, before and after a residual."""
    names = (None, "relu", "relu6", "band", "sigmoid", "silu")
    with isa(name, extended):
        given = case((1, 9, 3, 7), 41)
        for pre, post in itertools.product(names if residual else (None,), names):
            check(*given, pre=pre, post=post, residual=residual, to_bytes=to_bytes)


@EACH
def test_extreme_sums(name, extended):
    """Pairs of products that exceed 16 bits, and sums that almost fill 32."""
    with isa(name, extended):
        for value, depth in itertools.product((127, -127), (4, 30_000)):
            x = np.full((1, depth, 1, 3), 255, np.uint8)
            weight = np.full((20, depth, 1, 1), value, np.int8)
            scale = np.full(20, 3.0 / (142 * 127 * depth * SCALE), np.float32)
            check(x, weight, scale, noise((20,)), residual=byte_residual)


@EACH
def test_results_beyond_the_bytes(name, extended):
    """Huge results saturate on the right side; infinities do as well, and NaN is the zero point."""
    with isa(name, extended):
        x, weight, scale, bias = case((1, 8, 2, 9), 40)
        check(x, weight, scale * np.float32(1e30), bias)
        bias[3], bias[17], bias[39] = np.nan, np.inf, -np.inf
        for post in ("above", "below"):
            check(*case((1, 8, 2, 9), 40), post=post)
        for post in (None, "relu", "band"):
            with np.errstate(invalid="ignore"):
                check(x, weight, scale, bias, post=post)

        def summand(shape):
            r = floats(shape)
            r[0, ::3] = np.nan
            r[0, 1::3] = np.inf
            return r

        with np.errstate(invalid="ignore"):
            check(x, weight, scale, bias, residual=summand)


@EACH
def test_large_weights_and_images(name, extended):
    """All tiles of a panel before the next panel, and images cut into blocks."""
    with isa(name, extended):
        check(*case((1, 1030, 5, 9), 700), shards=SHARD_COUNTS)
        check(*case((1, 520, 30, 36), 1010), shards=(1, 2))


# -- one filter per channel ----------------------------------------------------------------------


def check_depthwise(
    x, weight, scale, bias, *, stride=(1, 1), padding=(0, 0), dilation=(1, 1), pre=None,
    residual=None, post=None, to_bytes=True, shards=(1, 3),
):  # fmt: skip
    """As `check`, for one filter per channel."""
    channels = x.shape[1]
    sums = exact_sums(x, weight, stride, padding, dilation, channels)
    if residual is not None:
        residual = residual(sums.shape)
    how = pre, residual, post, to_bytes
    expected = expected_of(sums, scale, bias, how)
    bench = Workbench()
    image = bench.put_channels_last(x, channels + 5)
    y = bench.output(
        expected.shape, "channels_last", channels + 7, np.uint8 if to_bytes else np.float32
    )
    flat = weight.reshape(channels, -1)
    kernel = weight.shape[2:]
    taps = taps_of(kernel, padding, dilation)
    order = quantized.depthwise_quads(kernel, stride[1], dilation[1])
    if order is None:
        blocks = QuantizedDepthwiseBlocks(channels, flat.shape[1])
    else:
        blocks = QuantizedDepthwiseQuads(channels, order)
        taps = [taps[tap] for tap in order]
    memory = np.full(blocks.shape, 99, blocks.dtype)
    blocks.fill(memory, flat, scale, ZERO, bias)
    window = Window(image, y, stride, (1, 1), [((0, 0), expected.shape[2:], taps, 0)])
    step = quantized.QuantizedDepthwiseStep(
        image, bench.put(memory), y, window, kernel, dilation,
        bench.scratch(quantized.quantized_depthwise_scratch_bytes(len(taps))), SCALE, ZERO,
        epilogue_of(bench, how),
    )  # fmt: skip
    compare(bench, step, y, expected, shards)


def depthwise_case(shape, kernel=(3, 3)):
    return case(shape, shape[1], kernel, shape[1])


@EACH
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (1, 3)], ids=str)
def test_depthwise_windows(name, extended, stride):
    """Windows with and without a row kernel; partial vectors; rows of all lengths."""
    with isa(name, extended):
        for kernel in ((3, 3), (5, 5), (3, 5), (2, 7), (1, 1)):
            padding = kernel[0] // 2, kernel[1] // 2
            for channels, width in ((1, 9), (21, 37), (16, 8), (40, 19), (64, 5), (139, 6)):
                given = depthwise_case((2, channels, 6, width), kernel)
                check_depthwise(*given, stride=stride, padding=padding)


@EACH
def test_depthwise_geometries(name, extended):
    with isa(name, extended):
        for how in (*GEOMETRIES, {"dilation": (2, 2), "padding": (2, 2)}, {"padding": (3, 4)}):
            for width, shards in ((11, SHARD_COUNTS), (30, (2,))):
                check_depthwise(*depthwise_case((1, 35, 9, width)), **how, shards=shards)
        for height, width in itertools.product((1, 2, 5), repeat=2):
            check_depthwise(*depthwise_case((2, 18, height, width)), padding=(1, 1))


@EACH
@pytest.mark.parametrize("to_bytes", [True, False])
@pytest.mark.parametrize("residual", RESIDUALS, ids=lambda r: r.__name__ if r else "alone")
def test_depthwise_epilogues(name, extended, residual, to_bytes):
    with isa(name, extended):
        given = depthwise_case((1, 21, 4, 23))
        for pre, post in itertools.product((None, "relu6", "silu") if residual else (None,),
                                           (None, "band", "sigmoid")):  # fmt: skip
            check_depthwise(
                *given, padding=(1, 1), pre=pre, post=post, residual=residual, to_bytes=to_bytes
            )


@EACH
def test_depthwise_rows_of_any_shard(name, extended):
    """Whole rows and parts of rows, of several images, with rows and columns of padding."""
    with isa(name, extended):
        for kernel, padding in (((3, 3), (1, 1)), ((5, 5), (2, 3)), ((3, 3), (4, 2))):
            for stride in ((1, 1), (2, 2)):
                given = depthwise_case((2, 67, 13, 5), kernel)
                check_depthwise(*given, stride=stride, padding=padding, shards=(1, 3, 7))


@EACH
def test_depthwise_results_beyond_the_bytes(name, extended):
    """As for products; only some channels have such results."""
    with isa(name, extended):
        x, weight, scale, bias = depthwise_case((1, 90, 4, 9))
        for post in ("above", "below"):
            check_depthwise(x, weight, scale, bias, post=post, padding=(1, 1))
        scale[:40] *= np.float32(1e30)
        check_depthwise(x, weight, scale, bias, padding=(1, 1))
        bias[3], bias[17], bias[39] = np.nan, np.inf, -np.inf
        for post in (None, "relu", "band"):
            with np.errstate(invalid="ignore"):
                check_depthwise(x, weight, scale, bias, padding=(1, 1), post=post)


@EACH
def test_depthwise_sums_are_exact(name, extended):
    """The largest window has sums just below 2^24."""
    assert quantized.MAX_DEPTHWISE_TAPS * 255 * 127 < 2**24
    with isa(name, extended):
        taps = quantized.MAX_DEPTHWISE_TAPS
        x, weight, scale, bias = depthwise_case((1, 19, 1, taps + 30), (1, taps))
        scale /= 100
        check_depthwise(x, weight, scale, bias, to_bytes=False)
        x[:], weight[:] = 255, 127
        check_depthwise(x, weight, scale, bias, to_bytes=False)
        x[:], weight[:, :, :, ::2] = 254, 126
        check_depthwise(x, weight, scale, bias, to_bytes=False)
