"""The packed weights of a model: a cache of them, and deferred work done between runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from kuiper._runtime.pages import PagePool

__all__ = ["Finalizer", "WeightCache"]

# Fractions of the elapsed time that deferred work may take.
TRANSFORMING_FRACTION = 0.33  # runs are slow until filters are transformed
ENLARGING_FRACTION = 0.1
MAX_CREDIT = 0.1  # seconds of work that an idle model saves up at most
RETRY_SECONDS = 1.0  # pause after filters could not be read

T = TypeVar("T")


class WeightCache:
    """Packed weights that the plans of a model share, keyed by their sources.

    Parameters
    ----------
    n_bytes : int, default=0
        Size of the unpacked weights, the region size of the page pool.

    Attributes
    ----------
    pages : PagePool
        Provides the memory of packed weights.
    finalizer : Finalizer
        Does deferred work on them between runs.
    """

    def __init__(self, n_bytes: int = 0) -> None:
        self._entries: dict[Hashable, Any] = {}
        self.pages = PagePool(n_bytes)
        self.finalizer = Finalizer(self.pages)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the entry of `key`, which ``make()`` makes the first time."""
        if key not in self._entries:
            self._entries[key] = make()
            self.finalizer.is_pending = True  # `pages` may have new pages to enlarge
        return self._entries[key]


class Finalizer:
    """Deferred work on the weights of a model, done in small steps between its runs.

    It transforms filters first, then moves weights to large pages.

    Parameters
    ----------
    pages : PagePool

    Attributes
    ----------
    is_pending : bool
        Whether there may be work left.
    """

    def __init__(self, pages: PagePool) -> None:
        self._pages = pages
        self._deferred: list[Any] = []  # filters to transform
        self._due = 0.0  # earliest time of the next step
        self.is_pending = False

    def defer(self, filters: T) -> T:
        """Schedule filters for :meth:`finalize` and return them.

        Parameters
        ----------
        filters : object
            Its method ``advance(n_threads)`` transforms some of them and returns whether any are
            left, see :class:`kuiper._kernels.conv.winograd.WinogradFilters`.
        """
        self._deferred.append(filters)
        self.is_pending = True
        return filters

    def finalize(self, n_threads: int = 1, wholly: bool = False) -> None:
        """Transform deferred filters, then move weights to large pages.

        Filters take up to 33 % of the elapsed time, pages up to 10 %.

        Parameters
        ----------
        n_threads : int, default=1
        wholly : bool, default=False
            Finish all work, however long it takes.

        Raises
        ------
        ModelFormatError
            If filters cannot be read and `wholly` is set; otherwise the run that needs them raises.
        """
        started = ended = time.perf_counter()
        self._due = max(self._due, started - MAX_CREDIT)
        while self.is_pending and (wholly or ended >= self._due):
            share = TRANSFORMING_FRACTION if self._deferred else ENLARGING_FRACTION
            started = ended
            try:
                self.is_pending = self._advance(n_threads)
            except Exception:
                if wholly or not self._deferred:
                    raise
                self._deferred.append(self._deferred.pop(0))
                self._due += RETRY_SECONDS
            ended = time.perf_counter()
            self._due += (ended - started) / share

    def _advance(self, n_threads: int) -> bool:
        """Do one step; tell whether there was one."""
        if not self._deferred:
            return self._pages.enlarge()
        try:
            is_done = not self._deferred[0].advance(n_threads)
        except MemoryError:  # runs keep transforming them on use
            is_done = True
        if is_done:
            del self._deferred[0]
        return True
