"""Reductions and scans under TorchScript's names."""

from __future__ import annotations

import numpy as np

from .registry import reference


def _axis(dim):
    return None if dim is None else tuple(dim) if isinstance(dim, tuple | list) else dim


@reference("aten::any")
def any(input, dim=None, keepdim=False):
    """Whether an element is not zero; of bytes a byte."""
    y = np.asarray(np.any(input, axis=_axis(dim), keepdims=keepdim))
    return y.astype(np.uint8) if input.dtype == np.uint8 else y


@reference("aten::all")
def all(input, dim=None, keepdim=False):
    """Whether no element is zero; of bytes a byte."""
    y = np.asarray(np.all(input, axis=_axis(dim), keepdims=keepdim))
    return y.astype(np.uint8) if input.dtype == np.uint8 else y


@reference("aten::count_nonzero")
def count_nonzero(input, dim=None):
    """How many are not zero."""
    return np.asarray(np.sum(input != 0, axis=_axis(dim)))


@reference("aten::prod")
def prod(input, dtype=None):
    """The product of all."""
    return np.asarray(np.prod(input))


@reference("aten::nansum")
def nansum(input, dim=None, keepdim=False, dtype=None):
    """The sum without NaN."""
    return np.asarray(np.where(np.isnan(input), 0, input).sum(_axis(dim), keepdims=keepdim))


@reference("aten::nanmean")
def nanmean(input, dim=None, keepdim=False, dtype=None):
    """The mean without NaN."""
    return np.asarray(np.nanmean(input, _axis(dim), keepdims=keepdim))


@reference("aten::dist")
def dist(input, other, p):
    """The p-norm of the difference."""
    return np.asarray((np.abs(input - other) ** p).sum() ** (1 / p))


def _spread(arguments):
    """Return the keywords of numpy's variance for both overloads."""
    if len(arguments) == 1:
        return {"ddof": int(arguments[0])}
    dim, correction, keepdim = arguments
    less = 1 if correction is None else correction
    return {"axis": _axis(dim), "ddof": float(less), "keepdims": keepdim}


def _mean(input, options):
    return np.asarray(np.mean(input, **{k: v for k, v in options.items() if k != "ddof"}))


@reference("aten::var")
def var(input, *arguments):
    """The variance."""
    return np.asarray(np.var(input, **_spread(arguments)))


@reference("aten::std")
def std(input, *arguments):
    """The root of the variance."""
    return np.asarray(np.std(input, **_spread(arguments)))


@reference("aten::var_mean")
def var_mean(input, *arguments):
    """The variance and the mean."""
    return var(input, *arguments), _mean(input, _spread(arguments))


@reference("aten::std_mean")
def std_mean(input, *arguments):
    """The root of the variance, and the mean."""
    return std(input, *arguments), _mean(input, _spread(arguments))


@reference("aten::aminmax")
def aminmax(input, dim=None, keepdim=False):
    """The least and the greatest element."""
    return tuple(np.asarray(f(input, axis=dim, keepdims=keepdim)) for f in (np.min, np.max))


def _running(input, dim, is_better):
    lines = np.moveaxis(input, dim, -1)
    values, places = lines.copy(), np.zeros(lines.shape, np.int64)
    for index in np.ndindex(lines.shape[:-1]):
        best = 0
        for i, x in enumerate(lines[index]):
            if np.isnan(x) or is_better(x, lines[index][best]):
                best = i
            values[index][i], places[index][i] = lines[index][best], best
    return np.moveaxis(values, -1, dim), np.moveaxis(places, -1, dim)


@reference("aten::cummax")
def cummax(input, dim):
    """The running maximum and its place."""
    return _running(input, dim, np.greater_equal)


@reference("aten::cummin")
def cummin(input, dim):
    """The running minimum and its place."""
    return _running(input, dim, np.less_equal)


@reference("aten::logcumsumexp")
def logcumsumexp(input, dim):
    """The logarithm of the running sum of exponentials."""
    return np.log(np.cumsum(np.exp(input), axis=dim))


@reference("aten::diff")
def diff(input, n, dim, prepend=None, append=None):
    """Differences of neighbours."""
    parts = [x for x in (prepend, input, append) if x is not None]
    return np.diff(np.concatenate(parts, axis=dim), n=n, axis=dim)


@reference("aten::cov")
def cov(input, correction, fweights=None, aweights=None):
    """Covariances of rows, whose columns count as often, or as much, as the weights say."""
    times = np.ones(input.shape[-1]) if fweights is None else fweights
    weights = times * (1 if aweights is None else aweights)
    centred = input - (input * weights).sum(-1, keepdims=True) / weights.sum()
    lost = correction * (weights * (1 if aweights is None else aweights)).sum() / weights.sum()
    return (centred * weights) @ centred.T / (weights.sum() - lost)


@reference("aten::corrcoef")
def corrcoef(input):
    """Correlations of rows."""
    centred = input - input.mean(-1, keepdims=True)
    centred /= np.sqrt((centred**2).sum(-1, keepdims=True))
    return centred @ centred.T


def _areas(y, width, dim):
    y = np.moveaxis(y, dim, -1)
    if isinstance(width, np.ndarray):
        x = width if width.ndim == 1 else np.moveaxis(width, dim, -1)
        width = x[..., 1:] - x[..., :-1]
    return (y[..., :-1] + y[..., 1:]) / 2 * width


@reference("aten::trapezoid", "aten::trapz")
def trapezoid(y, width=1, dim=-1):
    """The integral along an axis."""
    return np.asarray(_areas(y, width, dim).sum(-1))


@reference("aten::cumulative_trapezoid")
def cumulative_trapezoid(y, width=1, dim=-1):
    """The integral up to each place."""
    return np.moveaxis(np.cumsum(_areas(y, width, dim), -1), -1, dim)


@reference("aten::sum_to_size")
def sum_to_size(input, size):
    """The sum over what another shape has not."""
    while input.ndim > len(size):
        input = input.sum(0)
    for axis, extent in enumerate(size):
        if extent == 1:
            input = input.sum(axis, keepdims=True)
    return input
