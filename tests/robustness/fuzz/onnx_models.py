"""Target ``onnx``: ONNX models, from the backend tests of ONNX."""

from __future__ import annotations

import math
from functools import cache
from random import Random

import numpy as np

import kuiper
from kuiper.errors import KuiperError, ModelFormatError
from kuiper.onnx import load_graph

from ...conformance.suite import archived
from ...support.onnxfile import field, fields
from .chance import INTEGERS, edit_bytes, often, pick

__all__ = ["check", "make", "mutate"]

MAX_MEMORY = 1 << 28
MAX_ELEMENTS = 1 << 16  # of the inputs of a model that is run


@cache
def _models() -> tuple[bytes, ...]:
    return tuple(case.model for case in archived())


def make(random: Random) -> bytes:
    """Return a damaged model."""
    return mutate(pick(random, _models()), random)


def mutate(data: bytes, random: Random) -> bytes:
    """Change a few fields of messages inside of messages, or any bytes."""
    if often(random, 0.1):
        return edit_bytes(random, data)
    for _ in range(1 + random.randrange(3)):
        data = _edited(data, random, 0)
    return data


def _edited(message: bytes, random: Random, depth: int) -> bytes:
    """Return a message of which one field is another; the lengths around it stay correct."""
    try:
        parts = list(fields(message))
    except IndexError:  # no message, but a text or numbers
        return edit_bytes(random, message)
    if not parts:
        return edit_bytes(random, message)
    at = random.randrange(len(parts))
    number, content, whole = parts[at]
    wholes = [part for _, _, part in parts]
    if content and depth < 8 and often(random, 0.8):
        wholes[at] = field(number, _edited(content, random, depth + 1))
    elif not content and often(random, 0.7):
        near = pick(random, (*INTEGERS, *range(30))) % 2**64
        wholes[at] = field(number, near if near < 2**63 else near - 2**64)
    elif often(random, 0.3):
        wholes[at : at + 1] = [whole] * random.randrange(3)
    elif often(random, 0.5):
        other = random.randrange(len(wholes))
        wholes[at], wholes[other] = wholes[other], whole
    else:
        wholes[at] = field(random.randrange(32), content)
    return b"".join(wholes)


def check(data: bytes) -> str:
    """Load a model, and run it if its inputs are small."""
    try:
        graph = load_graph(data, max_memory=MAX_MEMORY)
    except ModelFormatError:
        return "refused"
    except KuiperError as error:
        return type(error).__name__
    assert graph.outputs
    try:
        model = kuiper.Model(graph, max_memory=MAX_MEMORY)
        shapes = [[1 if n is None else n for n in info.shape or ()] for info in model.inputs]
        if sum(map(math.prod, shapes)) > MAX_ELEMENTS or max(map(len, shapes), default=0) > 30:
            return "large"
        inputs = [np.zeros(n, x.dtype) for n, x in zip(shapes, model.inputs, strict=True)]
        with np.errstate(all="ignore"):
            model(*inputs)
    except KuiperError as error:
        return f"{type(error).__name__} of a run"
    return "ran"
