"""Reductions and scans under their TorchScript names."""

from __future__ import annotations

import numpy as np

from .registry import reference


def _axis(dim):
    return None if dim is None else tuple(dim) if isinstance(dim, tuple | list) else dim


@reference("aten::any")
def any(input, dim=None, keepdim=False):
    """Whether any element is nonzero; uint8 for uint8."""
    y = np.asarray(np.any(input, axis=_axis(dim), keepdims=keepdim))
    return y.astype(np.uint8) if input.dtype == np.uint8 else y


@reference("aten::all")
def all(input, dim=None, keepdim=False):
    """Whether all elements are nonzero; uint8 for uint8."""
    y = np.asarray(np.all(input, axis=_axis(dim), keepdims=keepdim))
    return y.astype(np.uint8) if input.dtype == np.uint8 else y


@reference("aten::count_nonzero")
def count_nonzero(input, dim=None):
    """Number of nonzero elements."""
    return np.asarray(np.sum(input != 0, axis=_axis(dim)))


@reference("aten::prod")
def prod(input, dtype=None):
    """Product of all elements."""
    return np.asarray(np.prod(input))


@reference("aten::nansum")
def nansum(input, dim=None, keepdim=False, dtype=None):
    """Sum of the elements that are not NaN."""
    return np.asarray(np.where(np.isnan(input), 0, input).sum(_axis(dim), keepdims=keepdim))


@reference("aten::nanmean")
def nanmean(input, dim=None, keepdim=False, dtype=None):
    """Mean of the elements that are not NaN."""
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
    """The standard deviation."""
    return np.asarray(np.std(input, **_spread(arguments)))


@reference("aten::var_mean")
def var_mean(input, *arguments):
    """The variance and the mean."""
    return var(input, *arguments), _mean(input, _spread(arguments))


@reference("aten::std_mean")
def std_mean(input, *arguments):
    """The standard deviation and the mean."""
    return std(input, *arguments), _mean(input, _spread(arguments))


@reference("aten::aminmax")
def aminmax(input, dim=None, keepdim=False):
    """The minimum and the maximum."""
    return tuple(np.asarray(f(input, axis=dim, keepdims=keepdim)) for f in (np.min, np.max))


def _running(input, dim, is_better):
    lines = np.moveaxis(input, dim, -1)
    values, indices = lines.copy(), np.zeros(lines.shape, np.int64)
    for index in np.ndindex(lines.shape[:-1]):
        best = 0
        for i, x in enumerate(lines[index]):
            if np.isnan(x) or is_better(x, lines[index][best]):
                best = i
            values[index][i], indices[index][i] = lines[index][best], best
    return np.moveaxis(values, -1, dim), np.moveaxis(indices, -1, dim)


@reference("aten::cummax")
def cummax(input, dim):
    """The running maximum and its index."""
    return _running(input, dim, np.greater_equal)


@reference("aten::cummin")
def cummin(input, dim):
    """The running minimum and its index."""
    return _running(input, dim, np.less_equal)


@reference("aten::logcumsumexp")
def logcumsumexp(input, dim):
    """The logarithm of the running sum of exponentials."""
    return np.log(np.cumsum(np.exp(input), axis=dim))


@reference("aten::diff")
def diff(input, n, dim, prepend=None, append=None):
    """Differences of neighbouring elements."""
    parts = [x for x in (prepend, input, append) if x is not None]
    return np.diff(np.concatenate(parts, axis=dim), n=n, axis=dim)


@reference("aten::cov")
def cov(input, correction, fweights=None, aweights=None):
    """Covariances of rows; the columns have integer counts and real weights."""
    times = np.ones(input.shape[-1]) if fweights is None else fweights
    weights = times * (1 if aweights is None else aweights)
    centred = input - (input * weights).sum(-1, keepdims=True) / weights.sum()
    lost = correction * (weights * (1 if aweights is None else aweights)).sum() / weights.sum()
    return (centred * weights) @ centred.T / (weights.sum() - lost)


@reference("aten::corrcoef")
def corrcoef(input):
    """Correlation coefficients of rows."""
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
    """Integral along an axis by the trapezoidal rule."""
    return np.asarray(_areas(y, width, dim).sum(-1))


@reference("aten::cumulative_trapezoid")
def cumulative_trapezoid(y, width=1, dim=-1):
    """Integral up to each element by the trapezoidal rule."""
    return np.moveaxis(np.cumsum(_areas(y, width, dim), -1), -1, dim)


@reference("aten::sum_to_size")
def sum_to_size(input, size):
    """Sum over the axes that broadcasting from `size` would add or extend."""
    while input.ndim > len(size):
        input = input.sum(0)
    for axis, extent in enumerate(size):
        if extent == 1:
            input = input.sum(axis, keepdims=True)
    return input
