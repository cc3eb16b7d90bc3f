"""Calls of the engine under test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

import kuiper

__all__ = ["n_threads", "run"]


@contextlib.contextmanager
def n_threads(count: int) -> Iterator[None]:
    """Run with `count` threads inside a with block."""
    previous = kuiper.get_num_threads()
    kuiper.set_num_threads(count)
    try:
        yield
    finally:
        kuiper.set_num_threads(previous)


def run(model: kuiper.Model, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Call a model and return its outputs as a tuple, also a single one."""
    outputs = model(*inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)
