"""Control groups: the limits that Linux sets for the container of this process."""

from __future__ import annotations

import os

__all__ = ["MEMBERSHIP", "ROOT", "group_folders", "read"]

# The mount point (a container sees its own group there as the root), and the file that lists the
# groups of the process.
ROOT = "/sys/fs/cgroup"
MEMBERSHIP = "/proc/self/cgroup"


def group_folders(controller: str, root: str, membership: str) -> tuple[list[str], list[str]]:
    """Return the folders of the process's group and of its ancestors, the root first.

    Parameters
    ----------
    controller : str
        ``"cpu"`` or ``"memory"``.
    root, membership : str
        See the constants of this module.

    Returns
    -------
    unified, own : list of str
        Folders of version 2, and of version 1, which has one hierarchy per controller.
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
    # Not with pathlib: it would add a quarter to the import time of kuiper.
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    return [os.path.join(root, *parts[:depth]) for depth in range(len(parts) + 1)]


def read(*parts: str) -> str:
    """Return the text of a small file."""
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return file.read()
