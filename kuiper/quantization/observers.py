"""From the values of a tensor to the scale and zero point of its bytes.

An observer sees a tensor batch by batch.  It keeps the least and the largest value, and a histogram
that grows: the width of its bins is a power of two and their edges are multiples of it, so two bins
become one exactly when a larger value arrives, and histograms of several tensors can be added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kuiper.errors import InputError

__all__ = ["METHODS", "Observer", "check_method", "quantization_of", "range_of"]

LEVELS = 255  # steps between the bytes 0 and 255
BINS = 2048  # at least half of that, so a step is 4 to 8 bins
CHUNK = 1 << 20  # elements that are sorted into bins at a time
SMALLEST = -100  # power of two of the narrowest bins
CANDIDATES = np.linspace(0.02, 1.0, 99)  # of a clipped range, relative to the whole one


class Observer:
    """The distribution of a tensor over the calibration data.

    Parameters
    ----------
    with_histogram : bool

    Attributes
    ----------
    low, high : float
        The least and the largest value; 0 is always within.
    counts : numpy.ndarray of int64
        Values per bin; empty without a histogram.
    power : int
        Bins are ``2**power`` wide.
    first : int
        The first bin begins at ``first * 2**power``.
    """

    __slots__ = "counts", "first", "high", "low", "power", "with_histogram"

    def __init__(self, with_histogram: bool = True) -> None:
        self.with_histogram = with_histogram
        self.low = self.high = 0.0
        self.counts = np.zeros(0, np.int64)
        self.power = SMALLEST
        self.first = 0

    def add(self, values: np.ndarray) -> None:
        """Add the values of a batch.

        Parameters
        ----------
        values : numpy.ndarray of float32

        Raises
        ------
        ValueError
            If one is infinite or NaN.
        """
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError("NaN" if math.isnan(low) or math.isnan(high) else "an infinity")
        self._widen(low, high)
        if self.with_histogram:
            flat = values.reshape(-1)
            for start in range(0, flat.size, CHUNK):
                part = np.ldexp(flat[start : start + CHUNK], -self.power)
                bins = np.floor(part, out=part).astype(np.int64) - self.first
                self.counts += np.bincount(bins, minlength=len(self.counts))

    def merge(self, other: Observer) -> None:
        """Add the values that another observer has seen."""
        self._widen(other.low, other.high)
        if self.with_histogram:
            if other.power > self.power:
                self._set_bins(other.power)
            first, counts = _coarser(other.first, other.counts, self.power - other.power)
            at = first - self.first
            self.counts[at : at + len(counts)] += counts

    def copy(self) -> Observer:
        """Return an observer that has seen the same values."""
        twin = Observer(self.with_histogram)
        twin.merge(self)
        return twin

    def centres(self) -> np.ndarray:
        """Return the middle of each bin, within the range of the values."""
        width = math.ldexp(1.0, self.power)
        middles = (self.first + np.arange(len(self.counts)) + 0.5) * width
        return np.clip(middles, self.low, self.high)

    def _widen(self, low: float, high: float) -> None:
        self.low, self.high = min(self.low, low), max(self.high, high)
        if not self.with_histogram:
            return
        span = self.high - self.low
        power = math.frexp(span / BINS)[1] if span else SMALLEST
        self._set_bins(max(power, self.power))

    def _set_bins(self, power: int) -> None:
        """Cover the range by bins of at least this width."""
        old = _coarser(self.first, self.counts, power - self.power)
        self.power = power
        self.first = math.floor(math.ldexp(self.low, -power))
        counts = np.zeros(math.floor(math.ldexp(self.high, -power)) - self.first + 1, np.int64)
        first, values = old
        if len(values):
            counts[first - self.first : first - self.first + len(values)] = values
        self.counts = counts


def _coarser(first: int, counts: np.ndarray, by: int) -> tuple[int, np.ndarray]:
    """Return bins that are ``2**by`` times as wide."""
    if not by or not len(counts):
        return first >> by, counts
    bins = (first + np.arange(len(counts))) >> by
    return int(bins[0]), np.bincount(bins - bins[0], counts).astype(np.int64)


def quantization_of(low: float, high: float) -> tuple[float, int]:
    """Return the scale and the zero point for a range.

    Parameters
    ----------
    low, high : float
        Widened to contain 0, which a byte represents exactly.

    Returns
    -------
    scale : float
        The float32 as a number with few digits.
    zero_point : int
        0 to 255.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    step = np.float32((high - low) / LEVELS)
    # Of a tensor of zeros, or of numbers so small that 1 / scale overflows.
    if not step > 1e-30:
        return 1.0, 0
    scale = float(str(step))
    return scale, min(max(round(-low / scale), 0), LEVELS)


def _errors(observer: Observer, low: float, high: float) -> float:
    """Return the sum of squares of the errors of bytes for a range."""
    scale, zero = quantization_of(low, high)
    centres = observer.centres()
    rounded = (np.clip(np.rint(centres / scale) + zero, 0, LEVELS) - zero) * scale
    return float(observer.counts @ np.square(centres - rounded))


def _divergence(observer: Observer, low: float, high: float) -> float:
    """Return the Kullback-Leibler divergence of the values from their bytes for a range.

    Source: S. Migacz, 8-bit inference with TensorRT (2017).
    """
    scale, zero = quantization_of(low, high)
    levels = np.rint(observer.centres() / scale) + zero
    inside = (levels >= 0) & (levels <= LEVELS)
    at = np.clip(levels, 0, LEVELS).astype(np.int64)
    counts = observer.counts.astype(np.float64)
    kept = counts * inside
    # What is clipped counts in the outermost bins: they are too full for their byte.
    values = kept.copy()
    found = np.flatnonzero(inside)
    if not len(found):
        return math.inf
    values[found[0]] += counts[: found[0]].sum()
    values[found[-1]] += counts[found[-1] + 1 :].sum()
    filled = values > 0
    shares = np.bincount(at[filled], minlength=LEVELS + 1)
    sums = np.bincount(at, kept, LEVELS + 1)
    spread = np.where(filled, sums[at] / np.maximum(shares[at], 1), 0.0)
    p, q = values / values.sum(), spread / max(spread.sum(), 1e-300)
    some = filled & (q > 0)
    # A bin that the bytes leave empty counts as if it held a little.
    lost = float(p[filled & ~some].sum())
    return float(np.sum(p[some] * np.log(p[some] / q[some]))) + 30 * lost


def _search(measure: Callable[[Observer, float, float], float]) -> Callable[..., Any]:
    """Return a method that clips the range where a measure is least."""

    def clipped(observer: Observer) -> tuple[float, float]:
        low, high = observer.low, observer.high
        together = [measure(observer, low * c, high * c) for c in CANDIDATES]
        best = CANDIDATES[int(np.argmin(together))]
        low, high = low * best, high * best
        if low < 0 < high:  # then each end by itself
            lows = np.unique([low * c for c in np.linspace(0.3, 1.0, 29)] + [observer.low])
            low = float(lows[np.argmin([measure(observer, end, high) for end in lows])])
            highs = np.unique([high * c for c in np.linspace(0.3, 1.0, 29)] + [observer.high])
            high = float(highs[np.argmin([measure(observer, low, end) for end in highs])])
        return low, high

    return clipped


def _all(observer: Observer) -> tuple[float, float]:
    return observer.low, observer.high


def _most(observer: Observer, percentile: float) -> tuple[float, float]:
    """Return the range of all but a share of the values at each end."""
    total = observer.counts.sum()
    outside = (1 - percentile / 100) * total
    below = np.cumsum(observer.counts)
    width = math.ldexp(1.0, observer.power)
    first = int(np.searchsorted(below, outside, "right"))
    last = int(np.searchsorted(below, total - outside, "left"))
    low, high = (observer.first + first) * width, (observer.first + last + 1) * width
    return min(max(low, observer.low), 0.0), max(min(high, observer.high), 0.0)


METHODS = ("minmax", "percentile", "mse", "entropy")


def check_method(method: str, percentile: float) -> None:
    """Raise InputError if there is no such method."""
    if method not in METHODS:
        raise InputError(f"method is {method!r}, expected one of {', '.join(METHODS)}")
    if not 50 < percentile <= 100:
        raise InputError(f"percentile is {percentile!r}, expected more than 50, up to 100")


def range_of(
    observers: Sequence[Observer], method: str, percentile: float = 99.99
) -> tuple[float, float]:
    """Return the range that the bytes of some tensors, which share a scale, shall cover.

    Parameters
    ----------
    observers : sequence of Observer
    method : str
        ``"minmax"``: all values; ``"percentile"``: all but a share at each end; ``"mse"``: the
        range with the least sum of squares of the errors; ``"entropy"``: that with the least
        Kullback-Leibler divergence.
    percentile : float, default=99.99
    """
    observer = observers[0].copy()
    for other in observers[1:]:
        observer.merge(other)
    if method == "minmax" or observer.low == observer.high:
        return _all(observer)
    if method == "percentile":
        return _most(observer, percentile)
    return _search({"mse": _errors, "entropy": _divergence}[method])(observer)
