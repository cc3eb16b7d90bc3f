"""Pause the cyclic garbage collector while graphs and plans are built."""

from __future__ import annotations

import _thread
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["no_collection"]

_lock = _thread.allocate_lock()
_inside = 0  # number of active contexts, in all threads
_is_paused = False  # whether the first of them disabled the collector


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable Python's cyclic garbage collector within this context.

    The collector runs after every few hundred new objects, but a graph under construction has no
    garbage; collecting makes loading a large one a third slower.  Threads may nest contexts; the
    last to leave re-enables the collector if it was enabled before.
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
            _inside = max(_inside - 1, 0)  # a fork resets the counter to 0
            if _inside == 0:
                _resume()


def _resume() -> None:
    global _is_paused
    if _is_paused:
        _is_paused = False
        gc.enable()


def _after_fork() -> None:
    """Reset the state: the child has no other threads, one of which may have held the lock."""
    global _inside, _lock
    _lock = _thread.allocate_lock()
    _inside = 0
    _resume()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
