"""Places for thousands of buffers: in the order of time, each where others have left room."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from kuiper.ir.view import Buffer

__all__ = ["arrange_in_time"]


def arrange_in_time(buffers: Sequence[Buffer], size_of: Callable[[Buffer], int], guard: int) -> int:
    """Give every buffer an offset, the first in time first; return the size of the arena.

    Parameters
    ----------
    buffers : sequence of Buffer
        As for :func:`kuiper.planning.arena.arrange`.
    size_of : callable
        The bytes that a buffer takes, in whole cache lines.
    guard : int
        How many bytes to leave free around each buffer.
    """
    free = FreeList()
    leaving: list[tuple[int, int, int]] = []  # of those in use: last step, start, size
    for buffer in sorted(buffers, key=lambda b: (b.first, -b.n_bytes, b.slot)):
        while leaving and leaving[0][0] < buffer.first:
            free.give(*heappop(leaving)[1:])
        size = size_of(buffer) + 2 * guard
        start = free.take(size)
        heappush(leaving, (buffer.last, start, size))
        buffer.offset = start + guard
    return free.end


class FreeList:
    """The free pieces of an arena that grows.

    Attributes
    ----------
    end : int
        Size of the arena so far.
    """

    def __init__(self) -> None:
        self.end = 0
        self._by_size: list[tuple[int, int]] = []  # size and start, sorted
        self._sizes: dict[int, int] = {}  # by start
        self._starts: dict[int, int] = {}  # by end

    def take(self, size: int) -> int:
        """Return the start of `size` bytes: of the tightest piece, or at the end."""
        at = bisect_left(self._by_size, (size, 0))
        if at < len(self._by_size):
            piece, start = self._by_size[at]
            self._remove(start)
            if piece > size:
                self._add(start + size, piece - size)
            return start
        start = self._starts.get(self.end, self.end)  # what is free there already counts
        if start < self.end:
            self._remove(start)
        self.end = start + size
        return start

    def give(self, start: int, size: int) -> None:
        """Take bytes back, and join them with what is free beside them."""
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
