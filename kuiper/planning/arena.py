"""The arena: one block of memory for all operands of a plan that live for a while.

Buffers whose lifetimes overlap must not overlap in memory; all others may share it.  Finding the
smallest arena is NP-hard; placing the largest buffers first, each into the tightest gap left by
those it meets, comes within a few percent for neural networks.  That looks at all pairs of buffers,
so where there are thousands, which no network has but a file may, they are placed in the order of
time instead, each where something that is out of use left room.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from kuiper.ir.view import Buffer

__all__ = ["GUARD_BYTES", "arrange", "guard_bytes"]

ALIGNMENT = 64
GUARD_BYTES = 2 * ALIGNMENT
MAX_PAIRED = 2000  # buffers; comparing all pairs of these takes a tenth of a second


def guard_bytes() -> int:
    """Return how many bytes to leave around each buffer: none without ``KUIPER_GUARD=1``."""
    return GUARD_BYTES if os.environ.get("KUIPER_GUARD") == "1" else 0


def arrange(buffers: Sequence[Buffer], guard: int = 0) -> int:
    """Give every buffer an offset.

    Parameters
    ----------
    buffers : sequence of Buffer
        Each in use from step `first` to step `last`, both included; a buffer that no step uses
        has -1 there and gets no room.  Afterwards `offset` holds the place.
    guard : int
        How many bytes to leave free around each buffer; a multiple of a cache line.

    Returns
    -------
    int
        Size of the arena in bytes.
    """
    used = [buffer for buffer in buffers if buffer.last >= 0]
    if len(used) > MAX_PAIRED:
        from kuiper.planning.room import arrange_in_time

        return arrange_in_time(used, lambda buffer: _aligned(buffer.n_bytes), guard)
    total = 0
    placed: list[Buffer] = []
    for buffer in sorted(used, key=lambda b: (-b.n_bytes, b.slot)):
        meets = sorted(
            (b for b in placed if b.first <= buffer.last and buffer.first <= b.last),
            key=lambda b: b.offset,
        )
        buffer.offset = guard + _tightest_gap(meets, guard, _aligned(buffer.n_bytes) + 2 * guard)
        placed.append(buffer)
        total = max(total, buffer.offset + _aligned(buffer.n_bytes) + guard)
    return total


def _aligned(n_bytes: int) -> int:
    return -(-max(n_bytes, 1) // ALIGNMENT) * ALIGNMENT


def _tightest_gap(meets: Sequence[Buffer], guard: int, size: int) -> int:
    """Return the start of the smallest gap between `meets` that holds `size`, else their end."""
    best, best_size = None, None
    end = 0
    for other in meets:
        gap = other.offset - guard - end
        if gap >= size and (best_size is None or gap < best_size):
            best, best_size = end, gap
        end = max(end, other.offset + _aligned(other.n_bytes) + guard)
    return end if best is None else best
