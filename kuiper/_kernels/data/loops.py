"""Loop nests over strided operands of one shape, and the blocking of a copy.

Axes of extent 1 are dropped, and axes that all operands traverse as one are merged.  The two
innermost loops of a copy become the block that a kernel moves at once; the source and target of a
block fit the L1 cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["CopyLoops", "copy_loops", "strided_loops"]

BLOCK_BYTES = 16384  # of source, and of target
SHORT_RUN = 32  # bytes; below, calling memcpy costs more than moving elements
SIDE = 64  # least side of a transposed block, in elements


class Loop(NamedTuple):
    """One loop: its extent, and the strides of source and target in bytes."""

    extent: int
    x: int
    y: int


class CopyLoops(NamedTuple):
    """The loops and blocks of a copy.

    Attributes
    ----------
    kind : str
        ``"runs"``: a is contiguous in both tensors; ``"transposed"``: a is contiguous in the
        target and b in the source; ``"items"``: otherwise.
    itemsize : int
        Bytes of an item: 1, 2, 4 or 8.
    a, b : Loop
        The loops that are cut into blocks; a is the inner one.
    step_a, step_b : int
        Extents of a block.
    around : list of Loop
        The loops around a block, fastest last; the last two run over the blocks of b and of a.
    """

    kind: str
    itemsize: int
    a: Loop
    b: Loop
    step_a: int
    step_b: int
    around: list[Loop]


def strided_loops(
    shape: Sequence[int],
    strides: Sequence[Sequence[int]],
    *,
    order: Sequence[int] | None = None,
    groups: Sequence[int] | None = None,
) -> list[tuple[int, tuple[int, ...]]]:
    """Return the fewest loops over operands of one shape that their strides allow, slowest first.

    Parameters
    ----------
    shape : sequence of int
    strides : sequence of sequences of int
        The strides of each operand, in any unit.
    order : sequence of int, optional
        Strides by which to sort the axes, so that memory is written in sequence.  By default the
        axes keep their order.
    groups : sequence of int, optional
        A number per axis; only axes with equal numbers are merged.

    Returns
    -------
    list of (extent, strides)
        At least one loop, with a stride per operand.
    """
    axes = [axis for axis, extent in enumerate(shape) if extent != 1]
    if order is not None:
        axes.sort(key=lambda axis: -order[axis])
    loops: list[tuple[int, tuple[int, ...]]] = []
    last = -1
    for axis in axes:
        extent = shape[axis]
        steps = tuple([of_operand[axis] for of_operand in strides])
        if loops and (groups is None or groups[axis] == groups[last]):
            outer, wide = loops[-1]
            if all(w == extent * s for w, s in zip(wide, steps, strict=True)):
                loops.pop()
                extent *= outer
        loops.append((extent, steps))
        last = axis
    return loops or [(1, (0,) * len(strides))]


def copy_loops(
    shape: Sequence[int], x_strides: Sequence[int], y_strides: Sequence[int], itemsize: int
) -> CopyLoops:
    """Return the loops that copy a tensor.

    Parameters
    ----------
    shape : sequence of int
    x_strides, y_strides : sequence of int
        Of source and target, in elements.
    itemsize : int
        Bytes of an element.
    """
    x_bytes, y_bytes = [x * itemsize for x in x_strides], [y * itemsize for y in y_strides]
    if itemsize not in (1, 2, 4, 8):  # complex128 and the like: an axis of smaller items
        item = 8 if itemsize % 8 == 0 else 1
        shape, x_bytes, y_bytes = (*shape, itemsize // item), [*x_bytes, item], [*y_bytes, item]
        itemsize = item
    loops = [
        Loop(extent, x, y)
        for extent, (x, y) in strided_loops(shape, (x_bytes, y_bytes), order=y_bytes)
    ]

    # Loop a is the fastest one of the target; b is where the source is contiguous, else the next.
    a = loops.pop()
    dense = [i for i, loop in enumerate(loops) if loop.x == itemsize]
    is_transposed = a.y == itemsize and a.x not in (0, itemsize) and bool(dense)
    b = loops.pop(dense[-1] if is_transposed else -1) if loops else Loop(1, 0, 0)

    n_items = BLOCK_BYTES // itemsize
    if is_transposed:
        # Square blocks, so that neither tensor touches many pages; longer if one side is short.
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
