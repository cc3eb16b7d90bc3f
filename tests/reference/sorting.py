"""Sorting, order statistics and binary search."""

from __future__ import annotations

import numpy as np

from .registry import reference


def _order(line, descending):
    """Return the indices that sort a line stably, with NaN as the greatest value."""
    keys = [(bool(x != x), 0 if x != x else x) for x in line]
    if descending:
        return sorted(range(len(line)), key=lambda i: (not keys[i][0], -float(keys[i][1])))
    return sorted(range(len(line)), key=keys.__getitem__)


def _sorted(input, dim, descending):
    if input.ndim == 0:
        return input, np.zeros((), np.int64)
    lines = np.moveaxis(input, dim, -1)
    indices = np.empty(lines.shape, np.int64)
    for index in np.ndindex(lines.shape[:-1]):
        indices[index] = _order(lines[index], descending)
    values = np.take_along_axis(lines, indices, -1)
    return np.moveaxis(values, -1, dim), np.moveaxis(indices, -1, dim)


def _arguments(arguments):
    """Return dim and descending; an overload has `stable` before them."""
    return arguments[-2:]


@reference("aten::sort")
def sort(input, *arguments):
    """Sorted values and their indices."""
    return _sorted(input, *_arguments(arguments))


@reference("aten::argsort")
def argsort(input, *arguments):
    """The indices that sort the values."""
    return _sorted(input, *_arguments(arguments))[1]


@reference("aten::msort")
def msort(input):
    """Values sorted along the first axis."""
    return np.sort(input, axis=0)


def _one(input, dim, keepdim, choose):
    lines = np.moveaxis(input, dim, -1)
    values, indices = np.empty(lines.shape[:-1], input.dtype), np.empty(lines.shape[:-1], np.int64)
    for index in np.ndindex(values.shape):
        indices[index] = choose(lines[index])
        values[index] = lines[index][indices[index]]
    if keepdim:
        return np.expand_dims(values, dim), np.expand_dims(indices, dim)
    return values, indices


def _middle(line):
    missing = np.flatnonzero(np.isnan(line))
    return missing[0] if missing.size else _order(line, False)[(len(line) - 1) // 2]


def _middle_of_numbers(line):
    count = int((~np.isnan(line)).sum())
    return _order(line, False)[max(count - 1, 0) // 2]


def _median(input, arguments, choose):
    if not arguments:
        return np.asarray(np.ravel(input)[choose(np.ravel(input))])
    return _one(input, *arguments, choose)


@reference("aten::median")
def median(input, *arguments):
    """The lower median; NaN if there is one."""
    return _median(input, arguments, _middle)


@reference("aten::nanmedian")
def nanmedian(input, *arguments):
    """The lower median of the elements that are not NaN."""
    return _median(input, arguments, _middle_of_numbers)


@reference("aten::kthvalue")
def kthvalue(input, k, dim=-1, keepdim=False):
    """The k-th smallest element."""
    return _one(input, dim, keepdim, lambda line: _order(line, False)[k - 1])


@reference("aten::mode")
def mode(input, dim=-1, keepdim=False):
    """The most frequent element, the least of several, and its last index."""

    def choose(line):
        values, counts = np.unique(line, return_counts=True)
        return np.flatnonzero(line == values[np.argmax(counts)])[-1]

    return _one(input, dim, keepdim, choose)


@reference("aten::quantile")
def quantile(input, q, dim=None, keepdim=False, interpolation="linear"):
    """Quantile."""
    return np.asarray(np.quantile(input, q, axis=dim, keepdims=keepdim, method=interpolation))


@reference("aten::nanquantile")
def nanquantile(input, q, dim=None, keepdim=False, interpolation="linear"):
    """Quantile of the elements that are not NaN."""
    return np.asarray(np.nanquantile(input, q, axis=dim, keepdims=keepdim, method=interpolation))


def _count(line, value, right):
    return sum(bool(x <= value) if right else bool(x < value) for x in line)


@reference("aten::searchsorted")
def searchsorted(sorted_sequence, values, out_int32=False, right=False, side=None, sorter=None):
    """Number of elements of a sorted line below each value."""
    if sorter is not None:
        sorted_sequence = np.take_along_axis(sorted_sequence, sorter, -1)
    values = np.asarray(values)
    y = np.empty(values.shape, np.int64)
    for index in np.ndindex(values.shape):
        line = sorted_sequence if sorted_sequence.ndim == 1 else sorted_sequence[index[:-1]]
        y[index] = _count(line, values[index], right or side == "right")
    return y


@reference("aten::bucketize")
def bucketize(input, boundaries, out_int32=False, right=False):
    """Number of boundaries below each value."""
    return searchsorted(boundaries, input, out_int32, right)


@reference("aten::histc")
def histc(input, bins, min, max):
    """Counts in equal bins of a range."""
    low, high = (input.min(), input.max()) if min == max else (min, max)
    inside = input[(input >= low) & (input <= high)]
    bin_of = np.minimum(((inside - low) / (high - low) * bins).astype(int), bins - 1)
    return np.bincount(bin_of, minlength=bins).astype(np.float64)
