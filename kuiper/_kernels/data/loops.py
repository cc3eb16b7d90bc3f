"""The loops of a copy between two strided tensors.

Axes of one place are dropped, axes that both tensors walk as one are merged, and the rest is
ordered by the target's strides, so that memory is written in sequence.  Two loops become the block
that a kernel moves at once; it is small enough for source and target to stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["CopyLoops", "copy_loops", "merged_axes", "walk_loops"]

BLOCK_BYTES = 16384  # of a block; source and target fit the L1 cache
SHORT_RUN = 32  # bytes; below, calling memcpy costs more than moving elements
SIDE = 64  # of a block that is transposed, at the least


class Loop(NamedTuple):
    """One loop: how often it runs, and how far source and target move, in bytes."""

    extent: int
    x: int
    y: int


class CopyLoops(NamedTuple):
    """How a copy runs.

    Attributes
    ----------
    kind : str
        ``"runs"``: a is dense in both tensors; ``"transposed"``: a is dense in the target and b in
        the source; ``"items"``: anything else.
    itemsize : int
        Bytes of what is moved at once: 1, 2, 4 or 8.
    a, b : Loop
        The loops that blocks are cut from; a is the inner one.
    step_a, step_b : int
        Extents of one block.
    around : list of Loop
        The loops around a block, fastest last; the last two walk the blocks of b and of a.
    """

    kind: str
    itemsize: int
    a: Loop
    b: Loop
    step_a: int
    step_b: int
    around: list[Loop]


def merged_axes(axes: Iterable[Sequence[int]]) -> list[Loop]:
    """Return the loops over some axes, slowest first.

    Parameters
    ----------
    axes : iterable of (extent, source stride, target stride)
        One per axis of the tensors, slowest first.
    """
    merged: list[Loop] = []
    for extent, x, y in sorted((axis for axis in axes if axis[0] != 1), key=lambda axis: -axis[2]):
        if merged and merged[-1].x == extent * x and merged[-1].y == extent * y:
            merged[-1] = Loop(merged[-1].extent * extent, x, y)
        else:
            merged.append(Loop(extent, x, y))
    return merged


def copy_loops(
    shape: Sequence[int], x_strides: Sequence[int], y_strides: Sequence[int], itemsize: int
) -> CopyLoops:
    """Arrange the copy of a tensor.

    Parameters
    ----------
    shape : sequence of int
    x_strides, y_strides : sequence of int
        Of source and target, in elements.
    itemsize : int
        Bytes of an element.
    """
    axes = [
        (extent, x * itemsize, y * itemsize)
        for extent, x, y in zip(shape, x_strides, y_strides, strict=True)
    ]
    if itemsize not in (1, 2, 4, 8):  # complex128 and the like: an axis of smaller items
        item = 8 if itemsize % 8 == 0 else 1
        axes.append((itemsize // item, item, item))
        itemsize = item
    loops = merged_axes(axes)

    # Loop a is the target's fastest; b is where the source is dense, else the next one.
    a = loops.pop() if loops else Loop(1, itemsize, itemsize)
    dense = [i for i, loop in enumerate(loops) if loop.x == itemsize]
    is_transposed = a.y == itemsize and a.x not in (0, itemsize) and bool(dense)
    b = loops.pop(dense[-1] if is_transposed else -1) if loops else Loop(1, 0, 0)

    n_items = BLOCK_BYTES // itemsize
    if is_transposed:
        # Square blocks, so that neither side runs through many pages; long where one is narrow.
        step_b = min(b.extent, max(SIDE, n_items // max(1, min(a.extent, n_items))))
        step_a = min(a.extent, max(SIDE, n_items // max(1, step_b)))
    else:
        step_a = min(a.extent, n_items)
        step_b = min(b.extent, n_items // max(1, step_a))
    step_a, step_b = max(step_a, 1), max(step_b, 1)
    loops.append(Loop(-(-b.extent // step_b), step_b * b.x, step_b * b.y))
    loops.append(Loop(-(-a.extent // step_a), step_a * a.x, step_a * a.y))

    kind = "transposed" if is_transposed else "items"
    if a.x == a.y == itemsize and a.extent * itemsize >= SHORT_RUN:
        kind = "runs"
    return CopyLoops(kind, itemsize, a, b, step_a, step_b, loops)


def walk_loops(
    shape: Sequence[int], strides: Sequence[Sequence[int]], groups: Sequence[int] | None = None
) -> list[tuple[int, tuple[int, ...]]]:
    """Arrange the loops over several operands of one shape, in the order of its axes.

    Parameters
    ----------
    shape : sequence of int
    strides : sequence of sequences of int
        Those of each operand, in its own elements.
    groups : sequence of int, optional
        One number per axis; only axes of equal ones are merged.

    Returns
    -------
    list of (extent, strides)
        One or more loops, slowest first, with a stride for each operand.
    """
    merged: list[tuple[int, tuple[int, ...], int]] = []
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        steps = tuple(of_operand[axis] for of_operand in strides)
        group = 0 if groups is None else groups[axis]
        if merged:
            before, wide, other = merged[-1]
            if other == group and all(w == extent * s for w, s in zip(wide, steps, strict=True)):
                merged[-1] = (before * extent, steps, group)
                continue
        merged.append((extent, steps, group))
    return [(n, steps) for n, steps, _ in merged] or [(1, (0,) * len(strides))]
