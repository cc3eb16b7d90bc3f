"""The arena: one block of memory for all operands of a plan that live for a while.

Buffers whose lifetimes overlap must not overlap in memory; all others may share it.  Finding the
smallest arena is NP-hard; placing the largest buffers first, each into the tightest gap left by
those it meets, comes within a few percent for neural networks.
"""

from __future__ import annotations

from collections.abc import Sequence

from kuiper._value import Buffer

__all__ = ["arrange"]

ALIGNMENT = 64


def arrange(buffers: Sequence[Buffer]) -> int:
    """Give every buffer an offset.

    Parameters
    ----------
    buffers : sequence of Buffer
        Each in use from step `first` to step `last`, both included; a buffer that no step uses
        has -1 there and gets no room.  Afterwards `offset` holds the place.

    Returns
    -------
    int
        Size of the arena in bytes.
    """
    total = 0
    placed: list[Buffer] = []
    used = (buffer for buffer in buffers if buffer.last >= 0)
    for buffer in sorted(used, key=lambda b: (-b.n_bytes, b.slot)):
        meets = sorted(
            (b for b in placed if b.first <= buffer.last and buffer.first <= b.last),
            key=lambda b: b.offset,
        )
        buffer.offset = _tightest_gap(meets, _aligned(buffer.n_bytes))
        placed.append(buffer)
        total = max(total, buffer.offset + _aligned(buffer.n_bytes))
    return total


def _aligned(n_bytes: int) -> int:
    return -(-max(n_bytes, 1) // ALIGNMENT) * ALIGNMENT


def _tightest_gap(meets: Sequence[Buffer], size: int) -> int:
    """Return the start of the smallest gap between `meets` that holds `size`, else their end."""
    best, best_size = None, None
    end = 0
    for other in meets:
        gap = other.offset - end
        if gap >= size and (best_size is None or gap < best_size):
            best, best_size = end, gap
        end = max(end, other.offset + _aligned(other.n_bytes))
    return end if best is None else best
