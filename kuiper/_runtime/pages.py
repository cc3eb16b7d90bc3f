"""Memory for weights: small pages first, large ones for a model that goes on running.

With large pages the processor looks up fewer addresses (ResNet-18 runs a tenth faster), but the
system has to find and clear two megabytes for each, and under a virtual machine so does the host:
a program that runs a model once waits longer for its memory than it calculates.  So the weights of
a new model lie in small pages, and are moved to large ones little by little while it is used again.
"""

import contextlib
import contextvars
import math
import mmap
import os
from collections.abc import Iterator, Sequence

import numpy as np

LINE_BYTES = 64  # of the cache
LARGE_PAGE_BYTES = 2 << 20  # of x86-64 and most of the rest
_MADV_COLLAPSE = 25  # Linux 6.1; Python does not name it
_POLICY = "/sys/kernel/mm/transparent_hugepage/enabled"


class Pages:
    """New memory that starts on a cache line; much of it, where a large page may.

    Parameters
    ----------
    n_bytes : int

    Attributes
    ----------
    array : numpy.ndarray, shape (n_bytes,), uint8
        All of it.  What is never touched takes no memory.

    Raises
    ------
    MemoryError
        The system has not so much.
    """

    def __init__(self, n_bytes: int) -> None:
        self._map = None
        self._enlarged = 0
        self._process = os.getpid()
        if hasattr(mmap, "MADV_HUGEPAGE") and n_bytes >= 2 * LARGE_PAGE_BYTES:
            try:
                self._map = mmap.mmap(
                    -1, n_bytes + LARGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
                )
            except (OSError, OverflowError) as error:
                raise MemoryError(f"no memory for {n_bytes} bytes of weights: {error}") from None
            raw, alignment = np.frombuffer(self._map, np.uint8), LARGE_PAGE_BYTES
        else:
            raw, alignment = np.empty(n_bytes + LINE_BYTES, np.uint8), LINE_BYTES
        self._first = -raw.__array_interface__["data"][0] % alignment
        self.array = raw[self._first : self._first + n_bytes]

    def enlarge(self, end: int) -> bool:
        """Move one more piece of what lies before `end` to a large page.

        Returns
        -------
        bool
            Whether there was one. None is tried twice.
        """
        start = self._enlarged
        # What a process shares with the one it was forked from would no longer be shared.
        if self._map is None or end - start < LARGE_PAGE_BYTES or self._process != os.getpid():
            return False
        if start == 0 and not _are_allowed():
            return False
        with contextlib.suppress(OSError):  # no large page is to be had: it stays as it is
            if start == 0:
                # Before Linux 6.1 this is all there is: the system moves them by and by.
                self._map.madvise(mmap.MADV_HUGEPAGE)
            self._map.madvise(_MADV_COLLAPSE, self._first + start, LARGE_PAGE_BYTES)
        self._enlarged += LARGE_PAGE_BYTES
        return True


class PagePool:
    """The memory of a model's packed weights: a few regions, filled from the front.

    Adjacent weights share large pages.  The unused end of the last region is never touched, so it
    takes no memory.

    Parameters
    ----------
    region_bytes : int
        Size of a region; larger for an operand that needs more.
    """

    def __init__(self, region_bytes: int) -> None:
        self._region_bytes = region_bytes
        self._regions: list[tuple[Pages, int]] = []  # with the number of bytes in use

    def empty(self, n_bytes: int) -> np.ndarray:
        """Return uninitialised bytes that start on a cache line."""
        pages, used = self._regions.pop() if self._regions else (None, 0)
        if pages is None or n_bytes > pages.array.size - used:
            if pages is not None:
                self._regions.append((pages, used))
            pages, used = Pages(max(n_bytes, self._region_bytes)), 0
        end = used + -(-n_bytes // LINE_BYTES) * LINE_BYTES
        self._regions.append((pages, min(end, pages.array.size)))
        return pages.array[used : used + n_bytes]

    def enlarge(self) -> bool:
        """Move the next two megabytes in use to a large page; tell whether there were any."""
        return any(pages.enlarge(used) for pages, used in self._regions)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Let :func:`aligned_empty` take its memory here, in this thread."""
        before = _pool.set(self)
        try:
            yield
        finally:
            _pool.reset(before)


_pool: contextvars.ContextVar[PagePool | None] = contextvars.ContextVar("pool", default=None)


def aligned_bytes(n_bytes: int) -> np.ndarray:
    """Return uninitialised memory that starts on a cache line; much of it, on a large page."""
    alignment = LARGE_PAGE_BYTES if n_bytes >= 2 * LARGE_PAGE_BYTES else LINE_BYTES
    raw = np.empty(n_bytes + alignment, np.uint8)
    start = -raw.__array_interface__["data"][0] % alignment
    return raw[start : start + n_bytes]


def aligned_empty(shape: Sequence[int]) -> np.ndarray:
    """Return an uninitialised float32 array that starts on a cache line.

    Panels are read one vector at a time; off the line, each read would touch two.
    """
    pool = _pool.get()
    n_bytes = 4 * math.prod(shape)
    raw = aligned_bytes(n_bytes) if pool is None else pool.empty(n_bytes)
    return raw.view(np.float32).reshape(shape)


def _are_allowed() -> bool:
    """Whether the system's owner lets programs have large pages."""
    try:
        with open(_POLICY) as file:
            return "[never]" not in file.read()
    except OSError:
        return False
