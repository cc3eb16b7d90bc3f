"""Products of bfloat16 on every variant, against float64 sums of the rounded factors."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper._kernels.conv.narrow import NarrowConvStep, narrow_conv_scratch_bytes
from kuiper._kernels.conv.window import Window
from kuiper._kernels.elementwise import elementwise
from kuiper._kernels.micro import dispatch
from kuiper._kernels.micro.packed import PairPanels
from kuiper._kernels.micro.packing import pack_pairs
from kuiper.errors import KuiperError
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ops.core.epilogue import Epilogue

from ...support.halves import halves_of, rounded, values_of
from ...support.workbench import PAIR_ISAS, Workbench, function, isa, noise

EACH = pytest.mark.parametrize("name", PAIR_ISAS)
FLOAT32 = np.dtype(np.float32)


def convolved(x, weight, bias, stride=(1, 1), padding=(0, 0), groups=1):
    """Return the exact sums of factors rounded to bfloat16."""
    x, weight = np.float64(rounded(x)), np.float64(rounded(weight))
    n, (out, per_group, kh, kw) = len(x), weight.shape
    x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(x, (kh, kw), (2, 3))
    windows = windows[:, :, :: stride[0], :: stride[1]]
    by_group = windows.reshape(n, groups, per_group, *windows.shape[2:])
    filters = weight.reshape(groups, out // groups, per_group, kh, kw)
    y = np.einsum("ngchwuv,gocuv->ngohw", by_group, filters, optimize=True)
    return y.reshape(n, out, *y.shape[3:]) + np.float64(bias)[:, None, None]


def panels_of(weight, bias, groups=1):
    out, channels = weight.shape[:2]
    by_tap = weight.reshape(out, channels, -1).transpose(0, 2, 1)
    matrix = PairPanels(out // groups, by_tap.shape[1], channels, groups)
    memory = np.full(matrix.shape, 0x7FFF, np.uint16)
    each = out // groups
    for g in range(groups):
        some = slice(g * each, (g + 1) * each)
        count = matrix.panels // groups
        pack_pairs(by_tap[some], bias[some], 2, memory[g * count : (g + 1) * count])
    return memory


def product(
    bench, x, weight, bias, y_dtype=BFLOAT16, *, stride=(1, 1), padding=(0, 0), groups=1,
    epilogue=None,
):  # fmt: skip
    """Return the step and its output; what lies between pixels is NaN."""
    taps = [(u - padding[0], v - padding[1]) for u, v in np.ndindex(weight.shape[2:])]
    image = bench.put_channels_last(halves_of(x), x.shape[1] + 3)
    size = [
        (x.shape[2 + i] + 2 * padding[i] - weight.shape[2 + i]) // stride[i] + 1 for i in (0, 1)
    ]
    out = weight.shape[0]
    y = bench.output((x.shape[0], out, *size), "channels_last", out + 5, y_dtype)
    window = Window(image, y, stride, (1, 1), [((0, 0), tuple(size), taps, 0)])
    step = NarrowConvStep(
        image, bench.put(panels_of(weight, bias, groups)), y, window, groups, weight.shape[1],
        out // groups, bench.scratch(narrow_conv_scratch_bytes(len(taps))), weight[0].size,
        epilogue,
    )  # fmt: skip
    return step, y


def as_floats(array):
    return values_of(array) if array.dtype == BFLOAT16 else array


def is_close(got, expected, terms, in_bfloat16=True):
    """Compare; sums of float32, and their rounding to bfloat16, may differ by so much."""
    bound = 2e-7 * (2 + terms) ** 0.5 * 4 + (2**-8 if in_bfloat16 else 0) * np.abs(expected)
    assert (np.abs(got - expected) <= bound + 1e-6).all(), np.abs(got - expected).max()


@EACH
def test_every_height_and_width_of_the_tile(name):
    with isa(name):
        _, nr = dispatch.tile()
        lanes = dispatch.lanes()
        for columns in sorted({1, lanes - 1, lanes, lanes + 1, nr - 1, nr, nr + 1} - {0}):
            for rows in range(1, 30, 1 if columns in (1, nr) else 5):
                channels = 1 + (rows + columns) % 8
                x = noise((1, channels, 1, rows), 1)
                weight = rounded(noise((columns, channels, 1, 1), 2))
                bias = noise((columns,), 3)
                for dtype in (BFLOAT16, FLOAT32):
                    bench = Workbench()
                    step, y = product(bench, x, weight, bias, dtype)
                    bench.run(step)
                    expected = convolved(x, weight, bias)
                    is_close(as_floats(bench.view(y)), expected, channels, dtype == BFLOAT16)


@EACH
@pytest.mark.parametrize(
    ("shape", "out", "kernel", "options"),
    [
        ((2, 13, 9, 7), 37, (3, 3), {"padding": (1, 1)}),
        ((1, 12, 11, 6), 40, (2, 3), {"padding": (0, 1), "stride": (2, 1), "groups": 2}),
        ((1, 9, 12, 12), 6, (5, 5), {"padding": (2, 2), "groups": 3}),
        ((1, 300, 1, 61), 2100, (1, 1), {}),  # panels beyond the L2 cache
    ],
)
def test_convolutions_in_shards(name, shape, out, kernel, options):
    with isa(name):
        x, bias = noise(shape, 1), noise((out,), 2)
        weight = rounded(noise((out, shape[1] // options.get("groups", 1), *kernel), 3))
        bench = Workbench()
        step, y = product(bench, x, weight, bias, FLOAT32, **options)
        got = bench.run_all_shards(lambda: step, y)
        is_close(got, convolved(x, weight, bias, **options), weight[0].size * 10, False)


def epilogue_of(pre, residual, post, clamp):
    epilogue = Epilogue()
    epilogue.clamp = clamp
    if residual is not None:
        epilogue.residual, epilogue.ldr = residual, residual.row_stride
        epilogue.residual_in_tile = pre is None
    for which, function_name in (("pre_activation", pre), ("post_activation", post)):
        if function_name:
            setattr(epilogue, which, (elementwise.unary_number(function_name), 0.0, 0.0))
    return epilogue


@EACH
@pytest.mark.parametrize("y_dtype", [BFLOAT16, FLOAT32])
@pytest.mark.parametrize("r_dtype", [BFLOAT16, FLOAT32, None])
@pytest.mark.parametrize(
    ("pre", "post", "clamp"),
    [(None, None, (0.0, 1.5)), (None, "tanh", None), ("tanh", None, None), ("tanh", "abs", None)],
)
def test_epilogues(name, y_dtype, r_dtype, pre, post, clamp):
    with isa(name):
        x, weight, bias = noise((1, 7, 4, 5), 1), rounded(noise((35, 7, 1, 1), 2)), noise((35,), 3)
        bench, residual, expected = Workbench(), None, convolved(x, weight, bias)
        r = noise(expected.shape, 4)
        if r_dtype is not None:
            given = halves_of(r).reshape(r.shape) if r_dtype == BFLOAT16 else r
            residual = bench.put_channels_last(given, 41)
            r = rounded(r) if r_dtype == BFLOAT16 else r
        step, y = product(
            bench, x, weight, bias, y_dtype, epilogue=epilogue_of(pre, residual, post, clamp)
        )
        if pre:
            expected = function(pre, np.float32(expected))
        if r_dtype is not None:
            expected = expected + r
        if post:
            expected = function(post, np.float32(expected))
        if clamp:
            expected = np.clip(expected, *clamp)
        got = as_floats(bench.run_all_shards(lambda: step, y))
        is_close(got, expected, 20, y_dtype == BFLOAT16)


@EACH
def test_nan_and_infinity_stay_in_their_rows(name):
    with isa(name):
        x, weight = noise((1, 5, 1, 9), 1), noise((20, 5, 1, 1), 2)
        x[0, 2, 0, 3], x[0, 4, 0, 6] = np.nan, np.inf
        bench = Workbench()
        step, y = product(bench, x, weight, np.zeros(20, np.float32))
        bench.run(step)
        got = values_of(bench.view(y))[0, :, 0]
        assert np.isnan(got[:, 3]).all()
        assert np.isinf(got[:, 6]).all()
        assert np.isfinite(np.delete(got, [3, 6], axis=1)).all()


# -- the choice of the instructions -------------------------------------------------------------


def test_hidden_instructions_are_used_if_they_are_named():
    before = dispatch.active_name()
    for name in dispatch.tried():
        with isa(name):
            assert dispatch.active_name() == name
            assert dispatch.has_bfloat16_products()
            assert dispatch.has_byte_products() == ("avx512_vnni" in dispatch.extensions_of(name))
            assert dispatch.prefers_bfloat16() in (True, False)
            native = dispatch.multiply_adds(100, 1, in_bfloat16=True)
            assert native == 2 * 2 * 32 * 14 * 100
    assert dispatch.active_name() == before
    with isa("baseline"):
        assert not dispatch.has_bfloat16_products()
        assert not dispatch.prefers_bfloat16()
    if "avx512_bf16" not in dispatch.tried():
        with pytest.raises(KuiperError, match="'avx512_bf16' is not available here"):
            dispatch.select("avx512_bf16")
