"""Reductions over axes."""

from __future__ import annotations

import numpy as np

from .registry import reference


def _reduce(function, input, dim, keepdim):
    axis = tuple(dim) if isinstance(dim, tuple) else dim
    return np.asarray(function(input, axis=axis, keepdims=keepdim))


@reference("torch.mean")
def mean(input, dim=None, keepdim=False, **_):
    """Arithmetic mean."""
    return _reduce(np.mean, input, dim, keepdim)


@reference("torch.sum")
def sum(input, dim=None, keepdim=False, **_):
    """Sum; integers and booleans add up in int64."""
    return _reduce(np.sum, input, dim, keepdim)


@reference("torch.amax")
def amax(input, dim=None, keepdim=False, **_):
    """Maximum."""
    return _reduce(np.max, input, dim, keepdim)
