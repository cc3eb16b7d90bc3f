"""The memory limit of plans: the user's setting, else the memory of the machine or container."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import cache

from kuiper._support.cgroup import MEMBERSHIP, ROOT, group_folders, read
from kuiper.errors import InputError

__all__ = ["check_max_memory", "default_max_memory", "memory_text"]


def check_max_memory(max_memory: int | None) -> int:
    """Return a limit in bytes, the default for None; raise InputError if it is invalid."""
    if max_memory is None:
        return _default()
    try:
        limit = int(max_memory)
    except (TypeError, ValueError, OverflowError):
        limit = 0
    if isinstance(max_memory, bool | str | bytes) or limit < 1:
        raise InputError(f"max_memory is {max_memory!r}, expected a number of bytes >= 1")
    return min(limit, sys.maxsize)


def default_max_memory(cgroup_root: str = ROOT, membership: str = MEMBERSHIP) -> int:
    """Return the memory of the machine in bytes, or of the container if that is smaller."""
    limits = [sys.maxsize]
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not on Windows
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    unified, own = group_folders("memory", cgroup_root, membership)
    for folders, name in ((unified, "memory.max"), (own, "memory.limit_in_bytes")):
        for folder in folders:
            try:
                limits.append(int(read(folder, name)))
            except (OSError, ValueError):  # no such group, or no limit
                continue
    return min(limit for limit in limits if limit > 0)


_default = cache(default_max_memory)


def memory_text(n_bytes: int) -> str:
    """Format a number of bytes with a binary unit."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
    if n_bytes >> 1000:  # close to the range of a float
        return f"2**{n_bytes.bit_length() - 1} bytes"
    size, unit = float(n_bytes), 0
    while size >= 1024 and unit < len(units) - 1:
        size, unit = size / 1024, unit + 1
    return f"{n_bytes} bytes" if unit == 0 else f"{size:,.1f} {units[unit]}"
