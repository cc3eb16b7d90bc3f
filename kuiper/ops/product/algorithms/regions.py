"""Convolutions whose taps mostly fall into the padding, computed region by region.

A dilated filter may reach far beyond the image: of 3x3 taps with dilation 24, on an image of 20x20,
only the middle one is ever inside.  A region is a rectangle of outputs that use the same taps;
computed with the weights of these taps only, it multiplies by no padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from kuiper._kernels.micro import packing
from kuiper._kernels.micro.packed import PackedMatrix, panel_offsets
from kuiper._support.struct import Struct
from kuiper.ir.view import TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.product.algorithms.base import ConvAlgorithm
from kuiper.ops.product.algorithms.gemm import gemm_step
from kuiper.ops.product.filters import fill_groups

__all__ = ["Band", "Regions", "cut_regions"]

MIN_REACH = 0.25  # of the filter, relative to the image; below it the taps are not examined
MAX_WORK = 0.85  # that a split may leave, relative to the work before it
MAX_COPIES = 3  # of the weights
MIN_PIXELS = 32  # per region; below it tiles are too small


class Regions(ConvAlgorithm):
    """Implicit GEMM for each region, with the taps that its outputs use."""

    name = "regions"
    pack_panels = staticmethod(packing.pack_panels)

    def refusal(self) -> str:
        c = self.c
        if c.is_volume:
            return "volumes have no such kernel"
        kernel, dilation, extents = c.geometry.kernel, c.geometry.dilation, c.x.shape[2:]
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        if reach[0] < MIN_REACH * extents[0] and reach[1] < MIN_REACH * extents[1]:
            return f"a reach of {max(reach)} pixels is short of the image's extents"
        self.regions = cut_regions(c.geometry.taps(), c.geometry.stride, extents, c.size)
        return "" if self.regions else "too few taps lie in the padding"

    def pack(self, b: Binder) -> TensorView:
        c, regions = self.c, self.regions

        def fill(*memories: np.ndarray) -> None:
            weight, bias = c.filters.weight(), c.filters.bias()  # read once for all regions
            for memory, (down, across) in zip(memories, regions, strict=True):
                part = weight[:, :, down.seen, across.seen]
                fill_groups(memory, part, bias, c.groups, b.n_threads, self.pack_panels)

        return b.packed(self.matrices(), fill)

    def matrices(self) -> list[PackedMatrix]:
        """Return the packed matrix of each region."""
        return [
            self.matrix(
                _length(down.seen) * _length(across.seen),
                (down.seen.start, down.seen.stop, across.seen.start, across.seen.stop),
            )
            for down, across in self.regions
        ]

    def matrix(self, taps: int, part: Any) -> PackedMatrix:
        c = self.c
        return PackedMatrix(c.out_channels, taps * c.in_channels, c.groups, part=part)

    def step(self, b: Binder, packed: TensorView, phases: Sequence[Any]) -> Any:
        c = self.c
        return gemm_step(b, b.channels_last(c.x), c, packed, phases, c.geometry.stride)

    def bind(self, b: Binder) -> list[Any]:
        c = self.c
        (step_h, step_w), columns = c.geometry.stride, c.geometry.kernel[1]
        taps, phases = c.geometry.taps(), []
        starts = panel_offsets(self.matrices())
        for (down, across), start in zip(self.regions, starts, strict=False):
            seen = [
                taps[u * columns + v]
                for u in range(down.seen.start, down.seen.stop)
                for v in range(across.seen.start, across.seen.stop)
            ]
            # Taps are relative to the first pixel of their phase.
            seen = [(dy + down.first * step_h, dx + across.first * step_w) for dy, dx in seen]
            first, extent = (down.first, across.first), (down.extent, across.extent)
            phases.append((first, extent, seen, start))
        return [c.count(self.step(b, self.pack(b), phases))]


class Band(Struct):
    """Adjacent rows or columns of an output that use the same rows or columns of the filters."""

    first: int
    extent: int
    seen: slice  # of the filters


def cut_regions(
    taps: Sequence[tuple[int, ...]],
    stride: Sequence[int],
    extents: Sequence[int],
    size: Sequence[int],
) -> list[tuple[Band, Band]]:
    """Split an output where taps enter or leave the image.

    Parameters
    ----------
    taps : sequence of (int, int)
        All taps of the filter, row by row: offsets from an output's origin.
    stride : (int, int)
        Input rows and columns between the origins of adjacent outputs.
    extents, size : (int, int)
        Height and width of the input and of the output.

    Returns
    -------
    list of (Band, Band)
        Rows and columns of each region; empty if a split gains too little.
    """
    offsets = [sorted({tap[axis] for tap in taps}) for axis in (0, 1)]
    if not size[0] * size[1]:
        return []
    down, across = map(_bands, offsets, stride, extents, size)
    regions: list[tuple[Band, Band]] = []
    least = size[0] * size[1] * len(taps)
    # Drop taps that no output uses; then split rows; then rows and columns.
    for rows, columns in ((_one(down), _one(across)), (down, _one(across)), (down, across)):
        cut = list(itertools.product(rows, columns))
        if len(cut) > 1 and size[0] * size[1] < MIN_PIXELS * len(cut):
            continue
        seen = [_length(row.seen) * _length(column.seen) for row, column in cut]
        work = sum(
            row.extent * column.extent * n for (row, column), n in zip(cut, seen, strict=True)
        )
        if work <= MAX_WORK * least and sum(seen) <= MAX_COPIES * len(taps):
            regions, least = cut, work
    return regions


def _bands(offsets: Sequence[int], stride: int, extent: int, outputs: int) -> list[Band]:
    """Split one axis, along which the taps have ascending `offsets`."""
    bands: list[Band] = []
    for i in range(outputs):
        inside = [t for t, d in enumerate(offsets) if 0 <= i * stride + d < extent]
        seen = slice(inside[0], inside[-1] + 1) if inside else slice(0, 0)
        if bands and bands[-1].seen == seen:
            bands[-1].extent += 1
        else:
            bands.append(Band(i, 1, seen))
    return bands


def _one(bands: Sequence[Band]) -> list[Band]:
    """Merge the bands of an axis into one, with the taps that any of them uses."""
    first = min((band.seen.start for band in bands if band.seen.stop), default=0)
    last = max(band.seen.stop for band in bands)
    return [Band(0, sum(band.extent for band in bands), slice(first, last))]


def _length(part: slice) -> int:
    return part.stop - part.start
