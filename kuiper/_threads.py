"""How many threads to use: what the user set, else what this process may really use."""

from __future__ import annotations

import math
import os
import threading
import warnings

from kuiper.errors import InputError

__all__ = ["default_num_threads", "get_num_threads", "set_num_threads"]

MAX_THREADS = 256

_lock = threading.Lock()
_chosen: int | None = None
_forked = False


def get_num_threads() -> int:
    """Return how many threads a run uses.

    The first of: the value of :func:`set_num_threads`; ``KUIPER_NUM_THREADS``;
    ``OMP_NUM_THREADS``; the processors this process may run on, within the CPU quota of its
    container.  In a forked process it is 1, because the threads of an OpenMP runtime do not survive
    a fork; start workers with ``spawn`` to have more.
    """
    global _chosen
    if _forked:
        return 1
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
        If `n` is no such integer.

    Warns
    -----
    RuntimeWarning
        In a forked process, which keeps to one thread; see :func:`get_num_threads`.
    """
    global _chosen
    if isinstance(n, bool) or not hasattr(n, "__index__") or not 1 <= n <= MAX_THREADS:
        raise InputError(
            f"the number of threads is {n!r}, expected an integer from 1 to {MAX_THREADS}"
        )
    if _forked and n > 1:
        warnings.warn(
            "this process was forked, so kuiper runs one thread in it; start workers with the "
            "'spawn' method to have more",
            RuntimeWarning,
            stacklevel=2,
        )
    with _lock:
        _chosen = int(n)


def default_num_threads(
    environ=None, cgroup_root: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup"
) -> int:
    """Return the number of threads for a process that sets none.

    Parameters
    ----------
    environ : mapping, optional
        Environment variables, by default those of the process.
    cgroup_root : str
        Where control groups are mounted.
    membership : str
        The file that lists the control groups of the process.

    Raises
    ------
    InputError
        If ``KUIPER_NUM_THREADS`` is set to something else than a number of threads.
    """
    environ = os.environ if environ is None else environ
    own = environ.get("KUIPER_NUM_THREADS", "").strip()
    if own:
        if not own.isdecimal() or not 1 <= int(own) <= MAX_THREADS:
            raise InputError(
                f"KUIPER_NUM_THREADS is {own!r}, expected an integer from 1 to {MAX_THREADS}"
            )
        return int(own)
    # OMP_NUM_THREADS may be a list, one number per nesting level.
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
    """Return the CPU quota in processors: the least of the process's own group and those above it.

    Parameters
    ----------
    root : str
        Where control groups are mounted; a container sees its own group there as the root.
    membership : str
        The file that says which groups the process is in.
    """
    paths = {"": "", "cpu": ""}
    try:
        lines = _read(membership).splitlines()
    except (OSError, ValueError):
        lines = []
    for line in lines:  # such as 0::/user.slice/app, or 4:cpu,cpuacct:/docker/0f3a
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            if controller in paths:
                paths[controller] = path.strip("/")
    # Version 2 speaks first; what it does not say, version 1 may.
    for folder, path, quota_in in (
        (root, paths[""], _quota),
        (os.path.join(root, "cpu"), paths["cpu"], _quota_v1),
    ):
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        groups = [os.path.join(folder, *parts[:depth]) for depth in range(len(parts) + 1)]
        quotas = [quota for quota in map(quota_in, groups) if quota is not None]
        if quotas:
            return min(quotas)
    return None


def _quota(group: str) -> float | None:
    """Return the quota of one group; infinity where it is said that there is none."""
    try:
        quota, period = _read(group, "cpu.max").split()[:2]
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(group: str) -> float | None:
    """Do the same for a group of version 1."""
    try:
        quota = int(_read(group, "cpu.cfs_quota_us"))
        period = int(_read(group, "cpu.cfs_period_us"))
        return quota / period if quota > 0 and period > 0 else None
    except (OSError, ValueError):
        return None


def _read(*parts: str) -> str:
    with open(os.path.join(*parts), encoding="ascii") as file:
        return file.read()


def _after_fork() -> None:
    global _forked, _lock
    _forked = True
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
