"""Weights for a graph that came without: made from the names and shapes in its ``.param`` file."""

from __future__ import annotations

import io
import math
import re
import zipfile

import numpy as np

from .noise import uniform

__all__ = ["fill_archive"]


def fill_archive(param: bytes, key: str) -> bytes:
    """Return the ``.bin`` that belongs to `param`, filled so that the signal keeps its size.

    Written as pnnx wrote archives before 2024: a plain stored zip in file order.

    Parameters
    ----------
    param : bytes
        The text of the ``.param`` file; all attributes must be f32.
    key : str
        The numbers depend on it and on the names and shapes alone.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for line in param.decode().splitlines()[2:]:
            for name, extents in re.findall(r" @(\S+?)=\(([\d,]*)\)f32", line):
                member = f"{line.split()[1]}.{name}"
                shape = tuple(int(n) for n in extents.split(","))
                archive.writestr(zipfile.ZipInfo(member), _fill(f"{key}/{member}", shape).tobytes())
    return packed.getvalue()


def _fill(key: str, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) == 1:
        return uniform(key, shape, -0.5, 0.5)
    bound = math.sqrt(3 / math.prod(shape[1:]))
    return uniform(key, shape, -bound, bound)
