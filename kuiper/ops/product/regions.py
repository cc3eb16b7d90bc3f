"""Regions of a convolution's output that see less than the whole filter.

A dilated filter may lie in the padding for the most part: one of 3x3 taps 24 apart, on an image of
20x20, never has more than its middle inside.  A region is a rectangle of outputs that see the same
taps; computed by itself, with weights of its own, it multiplies by no padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kuiper._support.struct import Fields

__all__ = ["Band", "cut_regions"]

# How far filters reach, as a part of the image, before it is looked at what they find there.
LEAST_REACH = 0.25
# What part of the work may remain for a cut to pay, how often weights may be kept for it, and how
# many outputs a region has on average, below which tiles are too small.
LEAST_SAVING = 0.85
MOST_COPIES = 3
LEAST_PIXELS = 32


class Band(Fields):
    """Adjacent rows or columns of an output that see the same rows or columns of the filters."""

    first: int
    extent: int
    seen: slice  # of the filters


def cut_regions(
    taps: Sequence[tuple[int, int]],
    stride: Sequence[int],
    extents: Sequence[int],
    size: Sequence[int],
) -> list[tuple[Band, Band]]:
    """Cut an output where taps come into the image or leave it.

    Parameters
    ----------
    taps : sequence of (int, int)
        Of the whole filter: where each lies from the origin of an output, row by row.
    stride : (int, int)
        Input rows and columns from one output's origin to the next.
    extents, size : (int, int)
        Height and width of the input and of the output.

    Returns
    -------
    list of (Band, Band)
        For each region its rows and its columns; none where cutting pays too little.
    """
    offsets = [sorted({tap[axis] for tap in taps}) for axis in (0, 1)]
    if not size[0] * size[1] or all(
        places[-1] - places[0] < LEAST_REACH * extent
        for places, extent in zip(offsets, extents, strict=True)
    ):
        return []
    down, across = map(_bands, offsets, stride, extents, size)
    regions: list[tuple[Band, Band]] = []
    least = size[0] * size[1] * len(taps)
    # Taps that no output sees; then bands of rows; then of rows and columns.
    for rows, columns in ((_one(down), _one(across)), (down, _one(across)), (down, across)):
        cut = list(itertools.product(rows, columns))
        if len(cut) > 1 and size[0] * size[1] < LEAST_PIXELS * len(cut):
            continue
        seen = [_length(row.seen) * _length(column.seen) for row, column in cut]
        work = sum(
            row.extent * column.extent * n for (row, column), n in zip(cut, seen, strict=True)
        )
        if work <= LEAST_SAVING * least and sum(seen) <= MOST_COPIES * len(taps):
            regions, least = cut, work
    return regions


def _bands(offsets: Sequence[int], stride: int, extent: int, outputs: int) -> list[Band]:
    """Cut one axis, where the taps have ascending `offsets`."""
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
    """Return the axis as one band, with all that any part of it sees."""
    first = min((band.seen.start for band in bands if band.seen.stop), default=0)
    last = max(band.seen.stop for band in bands)
    return [Band(0, sum(band.extent for band in bands), slice(first, last))]


def _length(part: slice) -> int:
    return part.stop - part.start
