"""Memory for weights: small pages at first, large pages once a model runs repeatedly.

Large pages save address translations (ResNet-18 runs 10 % faster), but the system has to find and
clear 2 MB for each, and in a virtual machine so does the host: a program that runs a model once
would spend more time on page faults than on the run.  So the weights of a new model start in small
pages and move to large ones step by step between later runs.
"""

import contextlib
import math
import mmap
import os
from collections.abc import Sequence

import numpy as np

LINE_BYTES = 64  # a cache line
LARGE_PAGE_BYTES = 2 << 20  # on x86-64 and most other processors
_MADV_COLLAPSE = 25  # since Linux 6.1; the mmap module has no name for it
_POLICY = "/sys/kernel/mm/transparent_hugepage/enabled"


class Pages:
    """A new block of memory, aligned to a cache line, or to a large page from 4 MB on.

    Parameters
    ----------
    n_bytes : int

    Attributes
    ----------
    array : numpy.ndarray, shape (n_bytes,), uint8
        The block.  Untouched pages take no physical memory.

    Raises
    ------
    MemoryError
        The system cannot provide the memory.
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
        """Move the next 2 MB before byte `end` to a large page.

        Returns
        -------
        bool
            Whether there were any left to try.  Each is tried once.
        """
        start = self._enlarged
        # In a forked child, moving a page would copy memory that both processes share.
        if self._map is None or end - start < LARGE_PAGE_BYTES or self._process != os.getpid():
            return False
        if start == 0 and not _are_allowed():
            return False
        with contextlib.suppress(OSError):  # no large page is free: keep the small ones
            if start == 0:
                # Before Linux 6.1 only this advice exists; the kernel then moves pages over time.
                self._map.madvise(mmap.MADV_HUGEPAGE)
            self._map.madvise(_MADV_COLLAPSE, self._first + start, LARGE_PAGE_BYTES)
        self._enlarged += LARGE_PAGE_BYTES
        return True


class PagePool:
    """The memory of a model's packed weights: a few regions, each filled from its start.

    Adjacent weights share large pages.  The unused end of the last region is never touched, so it
    takes no physical memory.

    Parameters
    ----------
    region_bytes : int
        Size of a region; a larger weight gets a region of its own size.
    """

    def __init__(self, region_bytes: int) -> None:
        self._region_bytes = region_bytes
        self._regions: list[tuple[Pages, int]] = []  # (memory, bytes in use)

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
        """Move the next 2 MB in use to a large page; tell whether there were any."""
        return any(pages.enlarge(used) for pages, used in self._regions)


def aligned_bytes(n_bytes: int) -> np.ndarray:
    """Return uninitialised bytes, aligned to a cache line, or to a large page from 4 MB on."""
    alignment = LARGE_PAGE_BYTES if n_bytes >= 2 * LARGE_PAGE_BYTES else LINE_BYTES
    raw = np.empty(n_bytes + alignment, np.uint8)
    start = -raw.__array_interface__["data"][0] % alignment
    return raw[start : start + n_bytes]


def aligned_empty(shape: Sequence[int], pool: PagePool | None = None) -> np.ndarray:
    """Return an uninitialised float32 array that starts on a cache line.

    Kernels read panels one vector at a time; unaligned, each read would touch two lines.

    Parameters
    ----------
    shape : sequence of int
    pool : PagePool, optional
        Provides the memory; without it, the array has its own.
    """
    n_bytes = 4 * math.prod(shape)
    raw = aligned_bytes(n_bytes) if pool is None else pool.empty(n_bytes)
    return raw.view(np.float32).reshape(shape)


def _are_allowed() -> bool:
    """Tell whether the system's settings allow large pages."""
    try:
        with open(_POLICY) as file:
            return "[never]" not in file.read()
    except OSError:
        return False
