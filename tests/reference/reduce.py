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


@reference("torch.amin")
def amin(input, dim=None, keepdim=False, **_):
    """Minimum."""
    return _reduce(np.min, input, dim, keepdim)


@reference("torch.prod")
def prod(input, dim=None, keepdim=False, **_):
    """Product."""
    return _reduce(np.prod, input, dim, keepdim)


@reference("torch.max")
def max(input, dim=None, keepdim=False, **_):
    """Maximum; with an axis also its index."""
    return _with_index(np.max, np.argmax, input, dim, keepdim)


@reference("torch.min")
def min(input, dim=None, keepdim=False, **_):
    """Minimum; with an axis also its index."""
    return _with_index(np.min, np.argmin, input, dim, keepdim)


def _with_index(value, index, input, dim, keepdim):
    if dim is None:
        return np.asarray(value(input))
    return (
        value(input, axis=dim, keepdims=keepdim),
        np.asarray(index(input, axis=dim, keepdims=keepdim)),
    )


@reference("torch.argmax")
def argmax(input, dim=None, keepdim=False, **_):
    """Index of the first maximum."""
    return np.asarray(np.argmax(input, axis=dim, keepdims=keepdim))


@reference("torch.argmin")
def argmin(input, dim=None, keepdim=False, **_):
    """Index of the first minimum."""
    return np.asarray(np.argmin(input, axis=dim, keepdims=keepdim))


@reference("torch.var")
def var(input, dim=None, keepdim=False, unbiased=True, correction=None, **_):
    """Variance with divisor n - correction."""
    less = int(unbiased) if correction is None else correction
    return np.asarray(np.var(input, axis=dim, ddof=less, keepdims=keepdim))


@reference("torch.std")
def std(input, dim=None, keepdim=False, unbiased=True, correction=None, **_):
    """Square root of the variance."""
    return np.sqrt(var(input, dim, keepdim, unbiased, correction))


@reference("torch.norm")
def norm(input, p=2, dim=None, keepdim=False, **_):
    """(sum |x| ** p) ** (1 / p); "fro" is 2, infinity the largest |x|."""
    p = 2 if p == "fro" else p
    if p == np.inf:
        return _reduce(np.max, np.abs(input), dim, keepdim)
    return _reduce(np.sum, np.abs(input) ** p, dim, keepdim) ** (1 / p)


@reference("torch.cumsum")
def cumsum(input, *, dim, **_):
    """Running sum."""
    return np.cumsum(input, axis=dim)


@reference("torch.cumprod")
def cumprod(input, *, dim, **_):
    """Running product."""
    return np.cumprod(input, axis=dim)


@reference("torch.topk")
def topk(input, *, k, dim, largest, **_):
    """The k largest or smallest values in order, and their indices."""
    order = np.argsort(-input if largest else input, axis=dim, kind="stable")
    indices = np.take(order, np.arange(k), axis=dim)
    return np.take_along_axis(input, indices, axis=dim), indices
