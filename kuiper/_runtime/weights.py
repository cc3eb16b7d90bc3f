"""The packed weights of a model: where they are kept, and when deferred work on them is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from kuiper._runtime.pages import PagePool

__all__ = ["Finalizer", "WeightCache"]

# Shares of the time that a model runs which its weights get until they are final.
TRANSFORMING_FRACTION = 0.33  # runs are slow before filters are transformed
ENLARGING_FRACTION = 0.1
MAX_CREDIT = 0.1  # seconds that an idle model saves up
RETRY_SECONDS = 1.0  # after filters could not be read

T = TypeVar("T")


class WeightCache:
    """Packed weights that the plans of a model share, by what they were made of.

    Parameters
    ----------
    n_bytes : int, default=0
        Size of the unpacked weights.

    Attributes
    ----------
    pages : PagePool
        Holds the packed weights.
    finalizer : Finalizer
        Completes them between runs.
    """

    def __init__(self, n_bytes: int = 0) -> None:
        self._entries: dict[Hashable, Any] = {}
        self.pages = PagePool(n_bytes)
        self.finalizer = Finalizer(self.pages)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the entry of a key, made by ``make()`` in the common memory if there is none."""
        if key not in self._entries:
            with self.pages.serving():
                self._entries[key] = make()
            self.finalizer.is_pending = True  # there may be new pages to enlarge
        return self._entries[key]


class Finalizer:
    """Deferred work on the weights of a model, done in small steps while the model is used.

    First filters are transformed, then the pages that hold weights are enlarged.

    Parameters
    ----------
    pages : PagePool

    Attributes
    ----------
    is_pending : bool
        Whether there may be something to do.
    """

    def __init__(self, pages: PagePool) -> None:
        self._pages = pages
        self._deferred: list[Any] = []  # filters to be transformed
        self._due = 0.0  # when there is time for the next step
        self.is_pending = False

    def defer(self, filters: T) -> T:
        """Let :meth:`finalize` transform filters; return them.

        Parameters
        ----------
        filters : object
            Its method ``advance(n_threads)`` transforms some and tells whether any are left, as
            :class:`kuiper._kernels.conv.winograd.WinogradFilters` does.
        """
        self._deferred.append(filters)
        self.is_pending = True
        return filters

    def finalize(self, n_threads: int = 1, wholly: bool = False) -> None:
        """Transform deferred filters, then move weights to large pages.

        The steps take a third of the time that passes, or a tenth for pages.

        Parameters
        ----------
        n_threads : int, default=1
        wholly : bool, default=False
            Do everything, however long it takes.

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
            with self._pages.serving():
                is_done = not self._deferred[0].advance(n_threads)
        except MemoryError:  # the filters serve as they are
            is_done = True
        if is_done:
            del self._deferred[0]
        return True
