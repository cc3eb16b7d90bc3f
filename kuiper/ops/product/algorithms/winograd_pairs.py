"""3x3 convolutions in bfloat16 by Winograd's algorithm: the choice of tiles, and the steps.

Rounding the transformed operands to 8 bits makes the error of a layer larger than rounding its
filters alone (1.7e-3 of the norm of the result); `ERRORS` are the bounds, by side of a tile.  A
tile is used whose bound is at most the convolution's `max_error`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kuiper._kernels.conv import winograd_pairs
from kuiper._kernels.micro import dispatch
from kuiper._kernels.micro.packed import PairPanels
from kuiper._runtime.step import ERROR_SLOT_BYTES
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.product.algorithms.base import ConvAlgorithm
from kuiper.ops.product.algorithms.winograd import (
    BYTES_PER_CYCLE,
    L2_BYTES,
    is_blocked,
    tiles_of_a_block,
)

__all__ = ["ERRORS", "WinogradPairs"]

# By side of a tile: the relative error of the sums if weights and inputs are noise around zero, the
# worst case.  If inputs are not negative, as after a ReLU, it is 3.3e-3 and 9.7e-3.
ERRORS = {2: 4.2e-3, 4: 1.2e-2}

# The part of the time of the tile with smaller errors that a larger tile may take.
WORTH_ERRORS = 0.77

# Cycles of the transforms of a tile per channel.
TRANSFORMS = {2: 80, 4: 250}
MIN_CHANNELS = 32


class WinogradPairPanels(PairPanels):
    """Panels of transformed filters in pairs, one matrix per frequency; their biases are zero."""

    __slots__ = ("frequencies",)

    def __init__(self, columns: int, channels: int, tile: int) -> None:
        super().__init__(columns, 1, winograd_pairs.padded_channels(channels), part=tile)
        self.frequencies = (tile + 2) ** 2

    @property
    def shape(self) -> tuple[int, ...]:
        return self.frequencies, *super().shape


class WinogradPairs(ConvAlgorithm):
    """F(4x4, 3x3) or F(2x2, 3x3) in pairs of channels."""

    name = "winograd"
    takes_bfloat16 = True

    def __init__(self, c: Any) -> None:
        super().__init__(c)
        self.tile = 0

    def refusal(self) -> str:
        c, geometry = self.c, self.c.geometry
        if geometry.kernel != (3, 3):
            return f"a kernel of {geometry.kernel}, expected (3, 3)"
        if geometry.dilation != (1, 1) or geometry.stride != (1, 1):
            return f"stride {geometry.stride} and dilation {geometry.dilation}"
        if c.groups > 1:
            return f"{c.groups} groups, one is supported"
        least = min(c.in_channels, c.out_channels)
        return f"{least} channels, at least {MIN_CHANNELS} pay" if least < MIN_CHANNELS else ""

    def cost(self) -> float:
        c = self.c
        self.tile, cost = _estimate(c.in_channels, c.out_channels, c.size, c.max_error)
        return cost

    def pack(self, b: Binder) -> TensorView:
        c = self.c
        matrix = WinogradPairPanels(c.out_channels, c.in_channels, self.tile)
        return b.packed(
            [matrix],
            lambda memory: winograd_pairs.transform_filters(
                c.filters, self.tile, b.n_threads, memory
            ),
        )

    def bind(self, b: Binder, zero: int = 0) -> list[Any]:
        """Return the steps; `zero` is the zero point of an input of bytes."""
        c, tile = self.c, self.tile
        x = b.channels_last(c.x if c.x.dtype == np.uint8 else b.stored(c.x, BFLOAT16))
        n, _, height, width = c.y.shape
        tiles = -(-height // tile) * -(-width // tile) * n
        channels = c.in_channels, c.out_channels
        frequencies = (tile + 2) ** 2
        block = tiles
        blocked = is_blocked(frequencies, tiles, *channels, b.n_threads)
        if blocked:
            block = tiles_of_a_block(tiles, 1, sum(channels), b.n_threads)
        known = c.filters.bias()
        bias = b.constant(np.zeros(c.out_channels, np.float32) if known is None else known)
        apart_in, apart_out = winograd_pairs.workspace(tile, block, *channels)
        operands = (tile, x, self.pack(b), c.filters, bias, c.y, b.context_state(ERROR_SLOT_BYTES))
        if blocked:
            between = b.scratch(2 * frequencies * apart_in), b.scratch(4 * frequencies * apart_out)
            stages = [-1]
        else:
            between = (
                b.temporary((frequencies, apart_in), np.uint16),
                b.temporary((frequencies, apart_out)),
            )
            stages = [0, 1, 2]
        padding = c.geometry.origin
        steps = [
            winograd_pairs.WinogradPairsStep(
                stage, *operands, *between, block, padding, c.epilogue, zero
            )
            for stage in stages
        ]
        c.count_saved(steps)
        return steps


def _estimate(
    in_channels: int, out_channels: int, size: tuple[int, ...], max_error: float
) -> tuple[int, float]:
    """Return the best tile side, and its estimated time relative to implicit GEMM of pairs.

    As :func:`.winograd.estimate`, with the rate of products of pairs.
    """
    lanes = dispatch.lanes()
    products = dispatch.pair_rate() * lanes  # per cycle
    itemsize = PairPanels.dtype.itemsize

    def reading(weights: int) -> float:
        n_bytes = itemsize * weights
        is_large = n_bytes * in_channels * out_channels > L2_BYTES
        return n_bytes / BYTES_PER_CYCLE if is_large else 0.0

    # Prefetching hides either the products or the reading of the filters.
    direct = max(9 * math.prod(size) / products, reading(9))
    best, least = 0, math.inf
    for tile, error in ERRORS.items():
        if error > max_error:
            continue
        tiles = -(-size[0] // tile) * -(-size[1] // tile)
        weights = (tile + 2) ** 2
        transforms = TRANSFORMS[tile] * tiles / lanes * (1 / in_channels + 1 / out_channels)
        cycles = max(weights * tiles / products, reading(weights)) + transforms
        if cycles < WORTH_ERRORS * least:
            best, least = tile, cycles
    return best, least / direct
