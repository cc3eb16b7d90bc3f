"""The arena: one block of memory for all temporary buffers of a plan.

Buffers whose lifetimes overlap must not overlap in memory; all others may share it.  Finding the
smallest arena is NP-hard.  The greedy method (largest buffer first, each into the tightest gap
between those with overlapping lifetimes) comes within a few percent of it for neural networks, but
compares all pairs, O(n^2).  More than `MAX_PAIRED` buffers, which only unusual files have, are
arranged in the order of first use instead, each in the tightest free range, O(n log n).
"""

from __future__ import annotations

import os
from bisect import bisect_left, insort
from collections.abc import Sequence

from kuiper.ir.view import Buffer

__all__ = ["GUARD_BYTES", "arrange", "guard_bytes"]

ALIGNMENT = 64
GUARD_BYTES = 2 * ALIGNMENT
MAX_PAIRED = 2000  # buffers; comparing all pairs of these takes 0.1 s


def guard_bytes() -> int:
    """Return how many bytes to leave free around each buffer: 0 without ``KUIPER_GUARD=1``."""
    return GUARD_BYTES if os.environ.get("KUIPER_GUARD") == "1" else 0


def arrange(buffers: Sequence[Buffer], guard: int = 0) -> int:
    """Give every buffer an offset.

    Parameters
    ----------
    buffers : sequence of Buffer
        Each in use from step `first` to step `last`, both included; a buffer with -1, which no step
        uses, gets no memory.  `offset` is set.
    guard : int
        Bytes to leave free around each buffer; a multiple of a cache line.

    Returns
    -------
    int
        Size of the arena in bytes.
    """
    used = [buffer for buffer in buffers if buffer.last >= 0]
    if len(used) > MAX_PAIRED:
        return _arrange_in_time(used, guard)
    total = 0
    placed: list[Buffer] = []  # by offset
    for buffer in sorted(used, key=lambda b: (-b.n_bytes, b.slot)):
        first, last = buffer.first, buffer.last
        meets = [b for b in placed if b.first <= last and first <= b.last]
        buffer.offset = guard + _tightest_gap(meets, guard, _aligned(buffer.n_bytes) + 2 * guard)
        insort(placed, buffer, key=_offset)
        total = max(total, buffer.offset + _aligned(buffer.n_bytes) + guard)
    return total


def _offset(buffer: Buffer) -> int:
    return buffer.offset


def _aligned(n_bytes: int) -> int:
    return -(-max(n_bytes, 1) // ALIGNMENT) * ALIGNMENT


def _tightest_gap(meets: Sequence[Buffer], guard: int, size: int) -> int:
    """Return the start of the smallest gap between `meets` of at least `size`, else their end."""
    best, best_size = None, None
    end = 0
    for other in meets:
        gap = other.offset - guard - end
        if gap >= size and (best_size is None or gap < best_size):
            best, best_size = end, gap
        end = max(end, other.offset + _aligned(other.n_bytes) + guard)
    return end if best is None else best


def _arrange_in_time(buffers: Sequence[Buffer], guard: int) -> int:
    """Give every buffer an offset in the order of first use; return the size of the arena."""
    from heapq import heappop, heappush

    free = FreeList()
    leaving: list[tuple[int, int, int]] = []  # heap of (last step, start, size) of those in use
    for buffer in sorted(buffers, key=lambda b: (b.first, -b.n_bytes, b.slot)):
        while leaving and leaving[0][0] < buffer.first:
            free.give(*heappop(leaving)[1:])
        size = _aligned(buffer.n_bytes) + 2 * guard
        start = free.take(size)
        heappush(leaving, (buffer.last, start, size))
        buffer.offset = start + guard
    return free.end


class FreeList:
    """The free ranges of a growing arena.

    Attributes
    ----------
    end : int
        Size of the arena so far.
    """

    def __init__(self) -> None:
        self.end = 0
        self._by_size: list[tuple[int, int]] = []  # (size, start), sorted
        self._sizes: dict[int, int] = {}  # start -> size
        self._starts: dict[int, int] = {}  # end -> start

    def take(self, size: int) -> int:
        """Return the start of `size` bytes: in the tightest free range, or at the end."""
        at = bisect_left(self._by_size, (size, 0))
        if at < len(self._by_size):
            found, start = self._by_size[at]
            self._remove(start)
            if found > size:
                self._add(start + size, found - size)
            return start
        start = self._starts.get(self.end, self.end)  # a free range at the end counts
        if start < self.end:
            self._remove(start)
        self.end = start + size
        return start

    def give(self, start: int, size: int) -> None:
        """Free a range, and join it with adjacent free ranges."""
        before = self._starts.get(start)
        if before is not None:
            size += self._remove(before)
            start = before
        if start + size in self._sizes:
            size += self._remove(start + size)
        self._add(start, size)

    def _add(self, start: int, size: int) -> None:
        insort(self._by_size, (size, start))
        self._sizes[start] = size
        self._starts[start + size] = start

    def _remove(self, start: int) -> int:
        size = self._sizes.pop(start)
        del self._starts[start + size]
        del self._by_size[bisect_left(self._by_size, (size, start))]
        return size
