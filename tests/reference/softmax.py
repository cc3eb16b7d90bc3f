"""Softmax and its logarithm, shifted by the maximum so that exp does not overflow."""

from __future__ import annotations

import numpy as np

from .activation import sigmoid
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


@reference("nn.Softmax2d")
def softmax2d(input, **_):
    """Softmax over the channels."""
    return softmax(input, dim=-3)


@reference("nn.Softmin", "F.softmin")
def softmin(input, *, dim, **_):
    """Softmax of -x."""
    return softmax(-input, dim=dim)


@reference("nn.GLU", "F.glu")
def glu(input, *, dim, **_):
    """Product of the first half and the sigmoid of the second half."""
    value, gate = np.split(input, 2, axis=dim)
    return value * sigmoid(gate)


@reference("torch.logsumexp")
def logsumexp(input, dim, keepdim=False, **_):
    """log(sum(exp(x))) over several axes."""
    peak = input.max(axis=dim, keepdims=True)
    y = np.log(np.exp(input - peak).sum(axis=dim, keepdims=True)) + peak
    return y if keepdim else y.squeeze(dim)
