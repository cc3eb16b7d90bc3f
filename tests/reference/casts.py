"""Casts, and the logarithm of the gamma function."""

from __future__ import annotations

import math

import numpy as np

from .dtypes import dtype_of
from .registry import reference


@reference("Tensor.to")
def to(input, *, dtype, **_):
    """Cast; floats are truncated, integers wrap."""
    return _cast(input, dtype_of(dtype, input.dtype))


@reference("Tensor.type_as")
def type_as(input, other):
    """Cast to the type of another tensor."""
    return _cast(input, other.dtype)


def _cast(x, dtype):
    if dtype.kind == "b":
        return x != 0
    if dtype.kind in "iu":
        return np.trunc(x).astype(np.int64).astype(dtype)
    return x.astype(dtype)


@reference("torch.positive")
def positive(input):
    """The input."""
    return input


@reference("torch.lgamma")
def lgamma(input):
    """Logarithm of the gamma function."""
    return np.vectorize(math.lgamma, [np.float64])(input)
