"""Building graphs and plans without a search for garbage every few hundred objects."""

from __future__ import annotations

import _thread
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["no_collection"]

_lock = _thread.allocate_lock()
_inside = 0  # how many are in the context below
_is_paused = False  # whether the first of them stopped the collector


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep Python's collector of cyclic garbage from running.

    It runs whenever some hundred objects have come to stay, and what is being built stays: with it,
    loading a large graph takes a third longer.  Threads may be in here at the same time; after the
    last of them it runs again, if it did before.
    """
    global _inside, _is_paused
    with _lock:
        if _inside == 0 and gc.isenabled():
            gc.disable()
            _is_paused = True
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside = max(_inside - 1, 0)  # a child process forgets those of its parent
            if _inside == 0:
                _go_on()


def _go_on() -> None:
    global _is_paused
    if _is_paused:
        _is_paused = False
        gc.enable()


def _after_fork() -> None:
    """Forget the threads that the child does not have, and the lock that one may have held."""
    global _inside, _lock
    _lock = _thread.allocate_lock()
    _inside = 0
    _go_on()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
