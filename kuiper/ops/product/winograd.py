"""Convolution by Winograd's algorithm: when it pays, in which tiles, and the steps of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kuiper._kernels.conv import winograd
from kuiper._kernels.micro import dispatch
from kuiper._runtime.step import FAULT_BYTES
from kuiper.ops.core.binder import Binder

__all__ = ["winograd_steps", "winograd_tile"]

# Per core, of machines that kuiper meets; used in estimates only.
L2_BYTES = 1 << 20

BYTES_PER_CYCLE = 11  # from beyond it

# Above this, Winograd's intermediate matrices leave the caches, and blocks of tiles do better.
STAGED_BYTES = 6 << 20

# So they do where a share of the tiles is worth the weights: in weights for each number that goes
# from stage to stage, and in tiles for each thread.
BLOCKED_WEIGHTS = 1.5

BLOCKED_TILES = 24

# Filters that take this much once they are transformed wait for that, since most of a cold start's
# time and all its memory would go into writing them; but not where a run reads them so often that
# writing them is quicker.
WAITING_BYTES = 2 << 20

WAITING_BLOCKS = 4

_ONE_PLANE = winograd.Planes()


def winograd_tile(geometry: Any, shape: Any, size: Any, planes: int = 1) -> int:
    """Estimate how a convolution is fastest: by Winograd in tiles of side 4 or 2, or directly (0).

    With a stride of 2 there are no tiles of side 2.  `size` is that of one of the output's
    `planes`; of the filters' planes, each counts as so many channels.

    Large tiles multiply less, but read more weights, which small planes of many channels do not
    amortise.  The estimate knows neither the batch nor the number of threads: results must not
    depend on them.
    """
    out_channels, in_channels = shape[:2]
    least_channels = {(1, 1): 16, (2, 2): 32}.get(geometry.stride)
    if geometry.kernel != (3, 3) or geometry.dilation != (1, 1):
        return 0
    if least_channels is None or min(in_channels, out_channels) < least_channels:
        return 0
    # Cycles of one core per pair of channels: two FMAs on full vectors a cycle; the transforms;
    # the weights from the L3 cache or memory, where they exceed the L2 cache.
    lanes = dispatch.lanes()

    def reading(weights: int) -> float:
        is_large = 4 * weights * in_channels * out_channels > L2_BYTES
        return 4 * weights / BYTES_PER_CYCLE if is_large else 0.0

    stride = geometry.stride[0]
    best, least = 0, 9 * planes * size[0] * size[1] / (2 * lanes) + reading(9)
    if stride == 1:
        least *= 0.9
    for tile, transform in ((4, 250), (2, 80)) if stride == 1 else ((4, 400),):
        tiles_h, tiles_w = -(-size[0] // tile), -(-size[1] // tile)
        tiles = tiles_h * tiles_w
        # Each tile takes two points more than it has outputs, along either axis.
        products = (size[0] + 2 * tiles_h) * (size[1] + 2 * tiles_w) if stride == 1 else 81 * tiles
        transforms = transform * tiles / lanes * (1 / in_channels + 1 / out_channels)
        cycles = planes * (products / (2 * lanes) + transforms) + reading((tile + 2) ** 2)
        if cycles < least:
            best, least = tile, cycles
    return best


def _is_blocked(
    frequencies: int, tiles: int, in_channels: int, out_channels: int, n_threads: int
) -> bool:
    """Decide whether each thread takes tiles through all stages; both forms give the same bits."""
    between = tiles * (in_channels + out_channels)
    if 4 * frequencies * between > STAGED_BYTES:
        return True
    # Each core then reads all weights, but none waits for frequencies that another one has written.
    return in_channels * out_channels <= BLOCKED_WEIGHTS * between and (
        tiles >= BLOCKED_TILES * n_threads
    )


def _can_wait(filters: Any, tile: int, blocks: int) -> bool:
    """Decide whether filters are transformed while the model is used again, not before it is."""
    n_bytes = winograd.transformed_bytes(*filters.shape[:2], tile)
    return n_bytes >= WAITING_BYTES and blocks <= WAITING_BLOCKS


def _tiles_of_a_block(tiles: int, stride: int, channels: int, n_threads: int) -> int:
    """Return how many tiles a thread should take through all stages at a time.

    Few, for their frequencies to stay in the L2 cache; with many channels more, since the weights
    are read once for each block.  As many blocks for one thread as for the other.
    """
    wanted = min(84, max(28, 14 * (channels // 256)))
    if stride == 2:
        # More than twice the frequencies, of which most share weights.
        wanted = 14 if channels >= 256 else 7
    blocks = -(-tiles // wanted)
    rounds = -(-blocks // n_threads)
    if tiles >= rounds * n_threads * min(wanted, 14):
        blocks = rounds * n_threads
    return -(-tiles // blocks)


def winograd_steps(
    b: Binder,
    tile: int,
    stride: int,
    x: Any,
    image: Any,
    filters: Any,
    padding: Any,
    post: Any,
    planes: winograd.Planes = _ONE_PLANE,
    group: int = 0,
) -> Any:
    """Bind a Winograd convolution: the last step is returned, those ahead of it are added."""
    x = b.channels_last(x)
    n, out_channels, height, width = image.shape
    in_channels = x.shape[1]
    stacks = -(-height // tile) * -(-width // tile) * n // planes.outputs
    tiles = stacks * planes.outputs
    frequencies = winograd.n_frequencies(tile, stride)
    block = stacks
    is_blocked = _is_blocked(frequencies, tiles, in_channels, out_channels, b.n_threads)
    if is_blocked:
        block = _tiles_of_a_block(tiles, stride, in_channels + out_channels, b.n_threads)
        block = -(-block // planes.outputs)
    weight = b.transformed(
        ("winograd", tile, group),
        lambda later: winograd.WinogradFilters(filters, tile, stride, b.n_threads, later),
        _can_wait(filters, tile, -(-stacks // block)),
    )
    bias = filters.bias()
    bias = b.constant(np.zeros(out_channels, np.float32) if bias is None else bias)
    fault = b.own(FAULT_BYTES)
    u = b.scratch(weight.scratch_bytes) if weight.is_waiting else None
    operands = (tile, stride, x, weight, filters, bias, image, fault, u)
    shapes = [
        (frequencies, winograd.frequency_stride(block * count, channels))
        for count, channels in ((planes.inputs, in_channels), (planes.outputs, out_channels))
    ]
    if is_blocked:
        between = [b.scratch(4 * math.prod(shape)) for shape in shapes]
        return winograd.WinogradStep(*operands, *between, block, padding, post, planes)
    operands = (b.temporary((1,), np.uint64), *operands, *map(b.temporary, shapes), padding)
    b.step(winograd.WinogradStageStep(0, *operands, planes=planes))
    b.step(winograd.WinogradStageStep(1, *operands, planes=planes))
    return winograd.WinogradStageStep(2, *operands, post, planes)
