"""The number of threads: the user's setting, else the processors available to this process."""

from __future__ import annotations

import _thread  # importing `threading`, which wraps the same locks, takes 1 ms
import math
import os
import weakref
from typing import Any

from kuiper._support.cgroup import MEMBERSHIP, ROOT, group_folders, read
from kuiper.errors import InputError

__all__ = [
    "check_num_threads",
    "default_num_threads",
    "get_num_threads",
    "set_num_threads",
]

MAX_THREADS = 256

_lock = _thread.allocate_lock()
_chosen: int | None = None


def get_num_threads() -> int:
    """Return how many threads a run uses.

    The first that is set of :func:`set_num_threads`, ``KUIPER_NUM_THREADS`` and
    ``OMP_NUM_THREADS``, else the processors that the affinity and CPU quota of the process allow.
    """
    global _chosen
    with _lock:
        if _chosen is None:
            _chosen = default_num_threads()
        return _chosen


def set_num_threads(n: int) -> None:
    """Set how many threads a run uses.

    Parameters
    ----------
    n : int
        From 1 to 256.

    Raises
    ------
    InputError
        If `n` is not such an integer.
    """
    global _chosen
    n = check_num_threads(n)
    with _lock:
        _chosen = n


def check_num_threads(n: int) -> int:
    """Return a number of threads as an int, or raise InputError."""
    if isinstance(n, bool) or not hasattr(n, "__index__") or not 1 <= n <= MAX_THREADS:
        raise InputError(
            f"the number of threads is {n!r}, expected an integer from 1 to {MAX_THREADS}"
        )
    return int(n)


def default_num_threads(
    environ: Any = None, cgroup_root: str = ROOT, membership: str = MEMBERSHIP
) -> int:
    """Return the number of threads for a process that sets none.

    Parameters
    ----------
    environ : mapping, optional
        Environment variables, by default those of the process.
    cgroup_root : str
        Mount point of the control groups.
    membership : str
        File that lists the control groups of the process.

    Raises
    ------
    InputError
        If ``KUIPER_NUM_THREADS`` is not a number of threads.
    """
    environ = os.environ if environ is None else environ
    own = environ.get("KUIPER_NUM_THREADS", "").strip()
    if own:
        if not own.isdecimal() or not 1 <= int(own) <= MAX_THREADS:
            raise InputError(
                f"KUIPER_NUM_THREADS is {own!r}, expected an integer from 1 to {MAX_THREADS}"
            )
        return int(own)
    # OMP_NUM_THREADS may be a list with one number per nesting level.
    shared = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if shared.isdecimal() and int(shared) > 0:
        return min(int(shared), MAX_THREADS)
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        count = os.cpu_count() or 1
    quota = _cgroup_quota(cgroup_root, membership)
    if quota is not None and quota < count:
        count = max(1, math.ceil(quota))
    return max(1, min(count, MAX_THREADS))


def _cgroup_quota(root: str, membership: str) -> float | None:
    """Return the CPU quota in processors: the minimum over the group and its ancestors."""
    unified, own = group_folders("cpu", root, membership)
    # Version 2 takes precedence over version 1.
    for folders, quota_in in ((unified, _quota), (own, _quota_v1)):
        quotas = [quota for quota in map(quota_in, folders) if quota is not None]
        if quotas:
            return min(quotas)
    return None


def _quota(group: str) -> float | None:
    """Return the quota of one group; infinity if it is explicitly unlimited."""
    try:
        quota, period = read(group, "cpu.max").split()[:2]
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(group: str) -> float | None:
    """Return the quota of one group of version 1."""
    try:
        quota = int(read(group, "cpu.cfs_quota_us"))
        period = int(read(group, "cpu.cfs_period_us"))
        return quota / period if quota > 0 and period > 0 else None
    except (OSError, ValueError):
        return None


_fork_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


class ForkLock:
    """A re-entrant lock that is released in a forked child."""

    def __init__(self) -> None:
        self._lock = _thread.RLock()
        _fork_locks.add(self)

    def acquire(self, blocking: bool = True) -> bool:
        """Acquire the lock; return whether that succeeded."""
        return self._lock.acquire(blocking)

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def reset(self) -> None:
        """Replace the lock by a new one, unless the calling thread holds it."""
        if not self._lock._is_owned():  # type: ignore[attr-defined]  # private, stable since Python 2
            self._lock = _thread.RLock()


def _after_fork() -> None:
    global _lock
    _lock = _thread.allocate_lock()
    for lock in list(_fork_locks):
        lock.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
