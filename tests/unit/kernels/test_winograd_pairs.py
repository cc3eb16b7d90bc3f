"""Winograd's algorithm in bfloat16 on every variant, against convolutions in float64."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper._kernels.conv import winograd_pairs
from kuiper._kernels.conv.winograd_pairs import WinogradPairsStep
from kuiper._kernels.elementwise import elementwise
from kuiper._kernels.micro import dispatch
from kuiper._runtime.step import ERROR_SLOT_BYTES
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ops.core.epilogue import Epilogue
from kuiper.ops.product.algorithms.base import MAX_ERROR, MAX_ERROR_DILUTED
from kuiper.ops.product.algorithms.winograd_pairs import ERRORS, WinogradPairPanels, _estimate

from ...support.halves import halves_of, relative_error, rounded, values_of
from ...support.workbench import PAIR_ISAS, Workbench, function, isa, noise

EACH = pytest.mark.parametrize("name", PAIR_ISAS)
TILES = pytest.mark.parametrize("tile", [2, 4])
FLOAT32 = np.dtype(np.float32)


class Filters:
    """What the step and the packing read of a convolution's filters."""

    def __init__(self, weight, bias) -> None:
        self._weight, self._bias, self.shape = weight, bias, weight.shape

    def __getitem__(self, rows):
        return self._weight[rows]

    def weight(self):
        return self._weight

    def bias(self):
        return self._bias


def convolved(x, weight, bias, padding=(1, 1)):
    """Return the exact result for an input rounded to bfloat16 and filters that are not."""
    x = np.pad(np.float64(rounded(x)), ((0, 0), (0, 0), *((p, p) for p in padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    y = np.einsum("nchwuv,ocuv->nohw", windows, np.float64(weight), optimize=True)
    return y + np.float64(bias)[:, None, None]


def steps_of(
    bench, tile, x, filters, y, block=None, padding=(1, 1), epilogue=None
) -> list[WinogradPairsStep]:  # fmt: skip
    """Return one step in blocks of some tiles, or the three stages."""
    image = bench.put_channels_last(halves_of(x), x.shape[1] + 3)
    matrix = WinogradPairPanels(*filters.shape[:2], tile)
    memory = np.empty(matrix.shape, np.uint16)
    winograd_pairs.transform_filters(filters, tile, 2, memory)
    n, _, height, width = y.shape
    tiles = n * -(-height // tile) * -(-width // tile)
    v, m = winograd_pairs.workspace(tile, block or tiles, *filters.shape[1::-1])
    size = (tile + 2) ** 2
    if block:
        between = bench.scratch(2 * size * v), bench.scratch(4 * size * m)
    else:
        between = bench.output((size, v), dtype=np.uint16), bench.output((size, m))
    slot = bench.output((ERROR_SLOT_BYTES,), dtype=np.uint8)
    bench.view(slot)[...] = 0
    return [
        WinogradPairsStep(
            stage, tile, image, bench.put(memory), filters, bench.put(filters.bias()), y, slot,
            *between, block or tiles, padding, epilogue,
        )
        for stage in ([-1] if block else [0, 1, 2])
    ]  # fmt: skip


def results(tile, x, weight, bias, y_dtype=BFLOAT16, padding=(1, 1), make_epilogue=None):
    """Return the result, whose bits may not depend on blocks, stages and shards."""
    filters, out = Filters(weight, bias), []
    shape = (
        x.shape[0], len(weight), *(x.shape[2 + i] + 2 * padding[i] - 2 for i in (0, 1)),
    )  # fmt: skip
    for block, shards in ((3, 2), (100, 1), (None, 1), (None, 3)):
        bench = Workbench()
        y = bench.output(shape, "channels_last", len(weight) + 5, y_dtype)
        epilogue = make_epilogue and make_epilogue(bench)
        for step in steps_of(bench, tile, x, filters, y, block, padding, epilogue):
            bench.run(step, shards=shards)
        out.append(bench.view(y).copy())
    assert len({result.tobytes() for result in out}) == 1
    return values_of(out[0]) if y_dtype == BFLOAT16 else out[0]


@EACH
@TILES
@pytest.mark.parametrize(
    ("shape", "columns", "padding"),
    [((1, 64, 11, 14), 70, (1, 1)), ((2, 45, 5, 4), 33, (0, 1)), ((1, 33, 8, 8), 17, (1, 1))],
)
def test_error_of_a_layer(name, tile, shape, columns, padding):
    with isa(name):
        x, weight = noise(shape, 1), noise((columns, shape[1], 3, 3), 2)
        bias = noise((columns,), 3)
        exact = convolved(x, weight, bias, padding)
        for dtype in (BFLOAT16, FLOAT32):
            got = results(tile, x, weight, bias, dtype, padding)
            stored = 2e-3 if dtype == BFLOAT16 else 0  # the rounding of the result
            assert relative_error(got, exact) < 1.1 * np.hypot(ERRORS[tile], stored)


@EACH
@TILES
@pytest.mark.parametrize("y_dtype", [BFLOAT16, FLOAT32])
@pytest.mark.parametrize("r_dtype", [BFLOAT16, FLOAT32])
@pytest.mark.parametrize("post", [None, "tanh"])
def test_epilogues(name, tile, y_dtype, r_dtype, post):
    with isa(name):
        x, weight, bias = noise((1, 40, 6, 7), 1), noise((37, 40, 3, 3), 2) / 20, noise((37,), 3)
        exact = convolved(x, weight, bias)
        r = noise(exact.shape, 4)

        def make_epilogue(bench):
            epilogue = Epilogue()
            given = halves_of(r) if r_dtype == BFLOAT16 else r
            epilogue.residual = bench.put_channels_last(given, 39)
            epilogue.ldr, epilogue.residual_in_tile = 39, True
            if post:
                epilogue.post_activation = (elementwise.unary_number(post), 0.0, 0.0)
            else:
                epilogue.clamp = (0.0, 2.0)
            return epilogue

        got = results(tile, x, weight, bias, y_dtype, make_epilogue=make_epilogue)
        exact = exact + r
        exact = function(post, np.float32(exact)) if post else np.clip(exact, 0.0, 2.0)
        assert relative_error(got, exact) < 1.5 * ERRORS[tile]


@EACH
@TILES
def test_nan_and_infinity_reach_their_windows_only(name, tile):
    with isa(name):
        x, weight, bias = noise((1, 35, 13, 12), 1), noise((20, 35, 3, 3), 2), noise((20,), 3)
        x[0, 3, 6, 5], x[0, 30, 0, 11] = np.nan, np.inf
        got = results(tile, x, weight, bias)
        spoilt = np.zeros(got.shape, bool)
        spoilt[:, :, 5:8, 4:7] = True
        spoilt[:, :, :2, 10:] = True
        assert np.array_equal(~np.isfinite(got), spoilt)
        assert np.isnan(got[:, :, 5:8, 4:7]).all()
        assert np.isinf(got[:, :, :2, 10:]).all()
        finite = np.where(np.isfinite(x), x, 0)
        exact = convolved(finite, weight, bias)
        assert relative_error(got[~spoilt], exact[~spoilt]) < 1.1 * ERRORS[tile]


def test_filters_that_cannot_be_read():
    """The error is that of the reader; it is raised after the run."""

    class Lost(Filters):
        def weight(self):
            raise OSError("the file is gone")

    x = noise((1, 32, 4, 4), 1)
    x[0, 0, 0, 0] = np.nan
    filters = Lost(noise((32, 32, 3, 3), 2), noise((32,), 3))
    bench = Workbench()
    y = bench.output((1, 32, 4, 4), "channels_last", 32, BFLOAT16)
    (step,) = steps_of(bench, 4, x, filters, y, 1)
    with pytest.raises(OSError, match="the file is gone"):
        bench.run(step)


def test_the_choice():
    """Large planes take F(4x4) if errors may be larger; tiles that save little stay small."""
    chosen = {}
    with isa(PAIR_ISAS[-1]):
        for bound in (MAX_ERROR, MAX_ERROR_DILUTED):
            for channels, side in ((64, 56), (128, 28), (512, 14), (512, 7)):
                tile, cost = _estimate(channels, channels, (side, side), bound)
                chosen[channels, side, bound] = tile
                assert ERRORS[tile] <= bound
                assert 0 < cost < 1
        if dispatch.lanes() == 16:
            assert [chosen[128, 28, bound] for bound in (MAX_ERROR, MAX_ERROR_DILUTED)] == [2, 4]
            assert chosen[64, 56, MAX_ERROR_DILUTED] == 4
            assert chosen[512, 7, MAX_ERROR_DILUTED] == 2
