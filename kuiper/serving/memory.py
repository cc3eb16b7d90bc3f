"""The memory of the server's process, and how a limit of it is divided."""

from __future__ import annotations

import os
from pathlib import Path

from kuiper.errors import InputError

__all__ = ["check_room", "input_bytes", "resident_bytes", "run_bytes"]

# What a server needs beside models, inputs and runs: responses, buffers of sockets, the allocator.
_OWN = 64 << 20


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 where /proc does not tell it."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def input_bytes(max_memory: int | None) -> int:
    """Return how many bytes the inputs of all requests may have: a quarter of the memory."""
    return 1 << 30 if max_memory is None else max_memory // 4


def run_bytes(max_memory: int, runners: int, models: int) -> int:
    """Return how many bytes one run may use, once the models are loaded.

    A model keeps the memory of its runs, so each has a share for each runner.

    Raises
    ------
    InputError
        If the models leave nothing.
    """
    used = resident_bytes()
    left = max_memory - used - input_bytes(max_memory) - _OWN
    share = left // (runners * max(1, models))
    if share < 1 << 20:
        raise InputError(
            f"--max-memory is {max_memory >> 20} MiB, but the process has {used >> 20} MiB with "
            f"its models, {input_bytes(max_memory) >> 20} MiB are for inputs and {_OWN >> 20} MiB "
            "for the server; allow more, or serve fewer models"
        )
    return share


def check_room(max_memory: int | None, param: Path) -> None:
    """Refuse to load a model that does not fit beside what is loaded.

    Raises
    ------
    InputError
        If the weights and what the process has exceed the limit.
    """
    if max_memory is None:
        return
    try:
        weights = param.with_suffix(".bin").stat().st_size
    except OSError:
        weights = 0
    used = resident_bytes()
    if used + weights > max_memory:
        raise InputError(
            f"{param.name}: its {weights >> 20} MiB of weights do not fit beside the "
            f"{used >> 20} MiB of the process, the limit is {max_memory >> 20} MiB"
        )
