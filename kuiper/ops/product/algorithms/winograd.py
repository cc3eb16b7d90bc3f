"""3x3 convolutions by Winograd's algorithm: the choice of tiles, and the steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kuiper._kernels.conv import winograd
from kuiper._kernels.micro import dispatch
from kuiper._kernels.micro.packed import PackedMatrix
from kuiper._runtime.pages import PagePool
from kuiper._runtime.step import ERROR_SLOT_BYTES
from kuiper.ops.core.binder import Binder
from kuiper.ops.product.algorithms.base import ConvAlgorithm, Convolution, planes_of

__all__ = ["Winograd", "WinogradPanels"]

# Typical figures per core, used only in estimates.
L2_BYTES = 1 << 20
BYTES_PER_CYCLE = 11  # from the L3 cache or memory

# By stride: the minimum of channels, and (side of a tile, cycles of its transforms per channel).
MIN_CHANNELS = {(1, 1): 16, (2, 2): 32}
TILES = {1: ((4, 250), (2, 80)), 2: ((4, 400),)}

# Products per image and group, below which implicit GEMM of all groups at once is faster.
MIN_GROUP_PRODUCTS = 900_000

# Above this, the intermediate matrices leave the caches, so threads work in blocks of tiles.
STAGED_BYTES = 6 << 20
# Blocks also pay with at most this many weights per intermediate element and at least this many
# tiles per thread.
MAX_BLOCKED_WEIGHTS = 1.5
MIN_BLOCKED_TILES = 24

# Transforming filters of at least this size is deferred beyond the first runs: it would take most
# of the time and all the memory of a cold start.  A run with more blocks than the maximum, each of
# which reads the filters, is faster if they are transformed first.
MIN_DEFERRED_BYTES = 2 << 20
MAX_DEFERRED_BLOCKS = 4

_ONE_PLANE = winograd.Planes()


class WinogradPanels(PackedMatrix):
    """Panels of transformed filters, one matrix per frequency; their biases are zero."""

    __slots__ = ("frequencies",)

    def __init__(self, columns: int, depth: int, tile: int, part: int) -> None:
        super().__init__(columns, depth, part=(tile, part))
        self.frequencies = (tile + 2) ** 2

    @property
    def shape(self) -> tuple[int, ...]:
        return self.frequencies, *super().shape


class Winograd(ConvAlgorithm):
    """F(4x4, 3x3) or F(2x2, 3x3); volumes run plane by plane, groups one after the other."""

    name = "winograd"

    def __init__(self, c: Convolution) -> None:
        super().__init__(c)
        self.tile = 0

    def refusal(self) -> str:
        c, geometry, groups = self.c, self.c.geometry, self.c.groups
        kernel, stride, dilation = geometry.kernel, geometry.stride[-2:], geometry.dilation[-2:]
        if kernel[-2:] != (3, 3):
            return f"a kernel of {_extents(kernel)}, expected 3x3"
        if dilation != (1, 1) or stride not in MIN_CHANNELS:
            return f"stride {_extents(stride)} and dilation {_extents(dilation)}"
        if c.is_volume and (groups > 1 or kernel[0] > winograd.MAX_FILTER_DEPTH):
            return f"{groups} groups of volumes with a kernel of {_extents(kernel)}"
        least = min(c.in_channels * math.prod(kernel[:-2]), c.out_channels)
        if least < MIN_CHANNELS[stride]:
            return f"{least} channels, at least {MIN_CHANNELS[stride]} pay"
        if groups > 1:
            products = math.prod(c.size) * c.out_channels * c.filters.n_terms
            if products < MIN_GROUP_PRODUCTS:
                return f"{products} products in a group, at least {MIN_GROUP_PRODUCTS} pay"
        return ""

    def cost(self) -> float:
        c = self.c
        channels = c.in_channels * math.prod(c.geometry.kernel[:-2]), c.out_channels
        planes = math.prod(c.size[:-2])
        self.tile, cost = estimate(channels, c.size[-2:], c.geometry.stride[-1], planes)
        return cost

    def bind(self, b: Binder) -> list[Any]:
        c = self.c
        if c.is_volume:
            geometry = c.geometry
            planes = winograd.Planes(
                c.x.shape[2], c.y.shape[2], geometry.kernel[0], geometry.stride[0],
                geometry.dilation[0], geometry.origin[0],
            )  # fmt: skip
            x, y, filters = planes_of(c.x), planes_of(c.y), c.filters.by_plane()
            images = Convolution(x, y, filters, geometry.last(2), 1, c.epilogue)
            steps = self._bind_group(b, images, planes)
            c.count_saved(steps)
            return steps
        x = b.channels_last(c.x)  # one copy for all groups
        c = Convolution(x, c.y, c.filters, c.geometry, c.groups, c.epilogue)
        groups = [c] if c.groups == 1 else [c.narrow(1, i, 1) for i in range(c.groups)]
        steps = []
        for number, group in enumerate(groups):
            some = self._bind_group(b, group, group=number)
            group.count_saved(some)
            steps += some
        return steps

    def pack_group(self, b: Binder, c: Convolution, group: int, blocks: int) -> Any:
        """Return the transformed filters of a group; each run reads them `blocks` times."""
        matrix = WinogradPanels(c.out_channels, c.in_channels, self.tile, group)

        def make(later: bool, pool: PagePool | None) -> winograd.WinogradFilters:
            stride = c.geometry.stride[0]
            return winograd.WinogradFilters(c.filters, self.tile, stride, b.n_threads, later, pool)

        return b.transformed(matrix, make, is_deferred(matrix, blocks))

    def _bind_group(
        self, b: Binder, c: Convolution, planes: winograd.Planes = _ONE_PLANE, group: int = 0
    ) -> list[Any]:
        """Return the steps for one group of images."""
        tile, stride, x = self.tile, c.geometry.stride[0], c.x
        n, out_channels, height, width = c.y.shape
        in_channels = x.shape[1]
        stacks = -(-height // tile) * -(-width // tile) * n // planes.outputs
        tiles = stacks * planes.outputs
        frequencies = winograd.n_frequencies(tile, stride)
        block = stacks
        blocked = is_blocked(frequencies, tiles, in_channels, out_channels, b.n_threads)
        if blocked:
            block = tiles_of_a_block(tiles, stride, in_channels + out_channels, b.n_threads)
            block = -(-block // planes.outputs)
        weight = self.pack_group(b, c, group, -(-stacks // block))
        known = c.filters.bias()
        bias = b.constant(np.zeros(out_channels, np.float32) if known is None else known)
        error_slot = b.context_state(ERROR_SLOT_BYTES)
        u = b.scratch(weight.scratch_bytes) if weight.is_deferred else None
        operands = (tile, stride, x, weight, c.filters, bias, c.y, error_slot, u)
        shapes = [
            (frequencies, winograd.frequency_stride(block * count, channels))
            for count, channels in ((planes.inputs, in_channels), (planes.outputs, out_channels))
        ]
        padding = c.geometry.origin
        if blocked:
            between = [b.scratch(x.dtype.itemsize * math.prod(shape)) for shape in shapes]
            return [winograd.WinogradStep(*operands, *between, block, padding, c.epilogue, planes)]
        operands = (b.temporary((1,), np.uint64), *operands, *map(b.temporary, shapes), padding)
        return [
            winograd.WinogradStageStep(stage, *operands, c.epilogue if stage == 2 else None, planes)
            for stage in range(3)
        ]


def estimate(
    channels: tuple[int, int], size: tuple[int, ...], stride: int, planes: int = 1
) -> tuple[int, float]:
    """Return the fastest tile side, and its estimated time relative to implicit GEMM.

    Large tiles multiply less but read more weights, which small planes of many channels do not
    amortise.

    Parameters
    ----------
    channels : (int, int)
        Of the input, times the planes of the filters, and of the output.
    size : (int, int)
        Height and width of an output plane.
    stride, planes : int

    Returns
    -------
    (int, float)
    """
    in_channels, out_channels = channels
    # Cycles of one core per pair of channels: two vector FMAs per cycle, the transforms, and
    # reading the weights from the L3 cache or memory if they exceed the L2 cache.
    lanes, float_bytes = dispatch.lanes(), WinogradPanels.dtype.itemsize

    def reading(weights: int) -> float:
        n_bytes = float_bytes * weights
        is_large = n_bytes * in_channels * out_channels > L2_BYTES
        return n_bytes / BYTES_PER_CYCLE if is_large else 0.0

    direct = 9 * planes * size[0] * size[1] / (2 * lanes) + reading(9)
    if stride == 1:
        direct *= 0.9
    best, least = 0, math.inf
    for tile, transform in TILES[stride]:
        tiles_h, tiles_w = -(-size[0] // tile), -(-size[1] // tile)
        tiles = tiles_h * tiles_w
        # Along each axis, a tile reads two points more than it has outputs.
        products = (size[0] + 2 * tiles_h) * (size[1] + 2 * tiles_w) if stride == 1 else 81 * tiles
        transforms = transform * tiles / lanes * (1 / in_channels + 1 / out_channels)
        cycles = planes * (products / (2 * lanes) + transforms) + reading((tile + 2) ** 2)
        if cycles < least:
            best, least = tile, cycles
    return best, least / direct


def is_blocked(
    frequencies: int, tiles: int, in_channels: int, out_channels: int, n_threads: int
) -> bool:
    """Whether each thread takes blocks of tiles through all stages; the bits are the same."""
    between = tiles * (in_channels + out_channels)
    if WinogradPanels.dtype.itemsize * frequencies * between > STAGED_BYTES:
        return True
    # In blocks, each core reads all weights but waits for no other core.
    return in_channels * out_channels <= MAX_BLOCKED_WEIGHTS * between and (
        tiles >= MIN_BLOCKED_TILES * n_threads
    )


def is_deferred(matrix: WinogradPanels, blocks: int) -> bool:
    """Whether the transformation of filters is deferred beyond the first runs."""
    return matrix.n_bytes >= MIN_DEFERRED_BYTES and blocks <= MAX_DEFERRED_BLOCKS


def tiles_of_a_block(tiles: int, stride: int, channels: int, n_threads: int) -> int:
    """Return the number of tiles that a thread takes through all stages at a time.

    Few tiles keep their frequencies in the L2 cache; many channels call for more tiles, because
    each block reads the weights once.  All threads get the same number of blocks.
    """
    wanted = min(84, max(28, 14 * (channels // 256)))
    if stride == 2:
        # More than twice as many frequencies, most of which share weights.
        wanted = 14 if channels >= 256 else 7
    blocks = -(-tiles // wanted)
    rounds = -(-blocks // n_threads)
    if tiles >= rounds * n_threads * min(wanted, 14):
        blocks = rounds * n_threads
    return -(-tiles // blocks)


def _extents(numbers: tuple[int, ...]) -> str:
    return "x".join(map(str, numbers))
