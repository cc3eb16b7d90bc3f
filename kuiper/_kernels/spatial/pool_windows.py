"""The windows of poolings: starts, tap counts, and divisors of means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kuiper.errors import InputError

__all__ = [
    "Windows",
    "adaptive_windows",
    "fixed_windows",
    "image_windows",
    "max_rows",
    "output_extent",
    "scratch_bytes",
]


class Windows:
    """The windows of all outputs along one axis.

    Parameters
    ----------
    extent : int
        Of the input.
    starts, counts, divisors : array_like of int
        Per output: index of the first tap inside the input, number of taps inside, and the divisor
        of a mean.
    dilation : int
        Distance between adjacent taps.
    """

    def __init__(
        self, extent: int, starts: Any, counts: Any, divisors: Any, dilation: int = 1
    ) -> None:
        self.extent = extent
        self.dilation = dilation
        self.starts = np.ascontiguousarray(starts, np.int64)
        self.counts = np.ascontiguousarray(counts, np.int64)
        self.divisors = np.ascontiguousarray(divisors, np.int64)

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def runs(self) -> np.ndarray:
        """Per output: length of the run of equal windows that starts at it.

        Their counts and divisors are equal, and their starts a constant step apart.
        """
        steps = np.diff(self.starts).tolist()
        equal = (np.diff(self.counts) == 0) & (np.diff(self.divisors) == 0)
        runs = [1] * len(self)
        for i in reversed(np.flatnonzero(equal).tolist()):
            extends = runs[i + 1] > 1 and steps[i] == steps[i + 1]
            runs[i] = runs[i + 1] + 1 if extends else 2
        return np.array(runs, np.int64)


def output_extent(
    extent: int, kernel: int, stride: int, padding: int, dilation: int = 1, ceil_mode: bool = False
) -> int:
    """Return the number of windows along an axis.

    With `ceil_mode`, the last window may extend past the end, but must start inside the input or
    its left padding.
    """
    room = extent + 2 * padding - dilation * (kernel - 1) - 1
    count = room // stride + 1
    if ceil_mode:
        count = -(-room // stride) + 1
        if (count - 1) * stride >= extent + padding:
            count -= 1
    return count


def fixed_windows(
    extent: int,
    kernel: int,
    stride: int,
    padding: int,
    dilation: int = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Windows:
    """Return the windows of a pooling with a fixed kernel.

    With `count_include_pad`, the divisor of a mean is the window length up to the end of the right
    padding, past which only a `ceil_mode` window extends.
    """
    start = np.arange(output_extent(extent, kernel, stride, padding, dilation, ceil_mode))
    start = start * stride - padding
    first = np.maximum(-(start // dilation), 0)  # taps in the left padding
    last = np.clip(-((start - extent) // dilation), 0, kernel)
    count = np.maximum(last - first, 0)
    padded = np.minimum(start + kernel, extent + padding) - start
    divisor = np.where(count > 0, padded if count_include_pad else count, 1)
    start = np.where(count > 0, start + first * dilation, 0)
    return Windows(extent, start, count, divisor, dilation)


def adaptive_windows(extent: int, count: int) -> Windows:
    """Return `count` windows that cover an axis: from floor(i L / O) to ceil((i + 1) L / O)."""
    i = np.arange(count)
    start = i * extent // count
    length = -(-(i + 1) * extent // count) - start
    return Windows(extent, start, length, length)


def max_rows(windows: Sequence[Windows]) -> int:
    """Return the number of rows of the largest window over d, h and w."""
    return math.prod(max(int(axis.counts.max(initial=0)), 1) for axis in windows[:2])


def scratch_bytes(windows: Sequence[Windows]) -> int:
    """Return the bytes of scratch that a step over the windows of d, h and w needs."""
    return 16 * max_rows(windows)  # an offset and a pixel index per row


def image_windows(
    size: Sequence[int],
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    count_include_pad: bool,
) -> list[Windows]:
    """Check the arguments of a 2-d pooling; return windows for a depth of 1, height and width."""
    if stride is None:
        stride = kernel_size
    windows = [adaptive_windows(1, 1)]
    for axis in range(2):
        k, s, p, d = (
            int(item) if np.ndim(item) == 0 else int(item[axis])
            for item in (kernel_size, stride, padding, dilation)
        )
        if k < 1 or s < 1 or d < 1 or not 0 <= p <= k // 2:
            raise InputError(
                f"kernel {k}, stride {s}, padding {p}, dilation {d}: expected kernel, stride and "
                "dilation >= 1 and padding from 0 to half the kernel"
            )
        if output_extent(size[axis], k, s, p, d, ceil_mode) < 1:
            raise InputError(
                f"a window of {d * (k - 1) + 1} pixels does not fit an extent of {size[axis]}"
            )
        windows.append(fixed_windows(size[axis], k, s, p, d, ceil_mode, count_include_pad))
    return windows
