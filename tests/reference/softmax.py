"""Softmax and its logarithm, shifted by the maximum so that nothing overflows."""

from __future__ import annotations

import numpy as np

from .registry import reference


@reference("nn.Softmax", "F.softmax")
def softmax(input, *, dim, **_):
    """exp(x) / sum exp(x) along `dim`."""
    powers = np.exp(input - input.max(axis=dim, keepdims=True))
    return powers / powers.sum(axis=dim, keepdims=True)


@reference("nn.LogSoftmax", "F.log_softmax")
def log_softmax(input, *, dim, **_):
    """Return x - log sum exp(x) along `dim`."""
    shifted = input - input.max(axis=dim, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=dim, keepdims=True))
