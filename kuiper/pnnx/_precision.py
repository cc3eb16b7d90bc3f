"""Weights in another float type, for files of half the size; imported only to save such files."""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper.errors import InputError
from kuiper.ir import Attribute, Graph

__all__ = ["with_float_type"]

_NAMES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}


def with_float_type(graph: Graph, dtype: Any) -> Graph:
    """Return a copy of a graph whose float32, float16 and bfloat16 weights have one of these types.

    A weight keeps its type if a finite value of it is beyond the range of the new one.

    Parameters
    ----------
    graph : Graph
        Stays as it is.
    dtype : str, numpy.dtype or type
        ``"float16"``, ``"bfloat16"`` or ``"float32"``.

    Returns
    -------
    Graph
        It converts weights when they are read, one at a time.

    Raises
    ------
    InputError
        If `dtype` is another type.
    """
    text = dtype.__name__ if isinstance(dtype, type) else str(dtype)
    wanted = _NAMES.get(text.removeprefix("torch."))
    if wanted is None:
        raise InputError(f"dtype is {dtype!r}, expected one of {', '.join(map(repr, _NAMES))}")
    copy = graph.copy()
    for operator in copy:
        for key, attribute in operator.attributes.items():
            if attribute.dtype in _NAMES.values() and attribute.dtype != wanted:
                operator.attributes[key] = _converted(attribute, wanted)
    return copy


def _converted(attribute: Attribute, dtype: str) -> Attribute:
    """Return an attribute of another type, or the same one if its values do not fit."""
    values = attribute.float32()
    rounded = _rounded(values, dtype).float32()
    if np.any(np.isinf(rounded) & np.isfinite(values)):
        return attribute
    shape = attribute.shape

    def read(start: int, stop: int) -> np.ndarray:
        part = attribute.rows(start, stop) if shape else attribute.numpy()
        return _rounded(part, dtype).raw

    return Attribute(shape, dtype, read)


def _rounded(values: np.ndarray, dtype: str) -> Attribute:
    with np.errstate(over="ignore"):
        return Attribute.from_array(np.asarray(values, np.float32), dtype)
