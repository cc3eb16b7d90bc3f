"""Control groups: what the system grants to this process and what runs beside it in a container."""

from __future__ import annotations

import os

__all__ = ["MEMBERSHIP", "ROOT", "group_folders", "read"]

# Where control groups are mounted (a container sees its own one there as the root), and the file
# that says which ones the process is in.
ROOT = "/sys/fs/cgroup"
MEMBERSHIP = "/proc/self/cgroup"


def group_folders(controller: str, root: str, membership: str) -> tuple[list[str], list[str]]:
    """Return the folders of the process's own group and of all those around it, root first.

    Parameters
    ----------
    controller : str
        ``"cpu"`` or ``"memory"``.
    root, membership : str
        As the constants of this module.

    Returns
    -------
    unified, own : list of str
        Of version 2, and of version 1, which has a hierarchy for each controller.
    """
    paths = {"": "", controller: ""}
    try:
        lines = read(membership).splitlines()
    except (OSError, ValueError):
        lines = []
    for line in lines:  # such as 0::/user.slice/app, or 4:cpu,cpuacct:/docker/0f3a
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for name in controllers.split(","):
            if name in paths:
                paths[name] = path
    return _with_parents(root, paths[""]), _with_parents(
        os.path.join(root, controller), paths[controller]
    )


def _with_parents(root: str, path: str) -> list[str]:
    # Not with pathlib, which would be a quarter of the time that importing kuiper takes.
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    return [os.path.join(root, *parts[:depth]) for depth in range(len(parts) + 1)]


def read(*parts: str) -> str:
    """Return the text of a small file."""
    with open(os.path.join(*parts), encoding="ascii") as file:
        return file.read()
