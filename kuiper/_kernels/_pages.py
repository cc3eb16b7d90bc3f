"""Memory for weights: small pages first, large ones for a model that goes on running.

With large pages the processor looks up fewer addresses (ResNet-18 runs a tenth faster), but the
system has to find and clear two megabytes for each, and under a virtual machine so does the host:
a program that runs a model once waits longer for its memory than it calculates.  So the weights of
a new model lie in small pages, and are moved to large ones little by little while it is used again.
"""

import contextlib
import mmap
import os

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


def _are_allowed() -> bool:
    """Whether the system's owner lets programs have large pages."""
    try:
        with open(_POLICY) as file:
            return "[never]" not in file.read()
    except OSError:
        return False
