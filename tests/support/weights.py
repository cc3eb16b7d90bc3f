"""Weights for a graph without an archive, made from names and shapes in its ``.param`` text."""

from __future__ import annotations

import io
import math
import re
import zipfile

import numpy as np

from .noise import uniform

__all__ = ["fill_archive"]


def fill_archive(param: bytes, key: str) -> bytes:
    """Return a ``.bin`` for `param` with weights that preserve the variance of the signal.

    It has the form that pnnx wrote before 2024: a plain stored zip in file order.

    Parameters
    ----------
    param : bytes
        The text of the ``.param`` file; all attributes must be f32.
    key : str
        Seeds the weights, together with their names and shapes.
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
