"""The filters of a convolution, and how they are packed for its kernels."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from kuiper._kernels.micro import packing
from kuiper._runtime.pages import aligned_empty
from kuiper.ops.core.binder import Binder

__all__ = [
    "ByTap",
    "Filters",
    "depthwise_blocks",
    "pack_at_run_time",
    "pack_groups",
    "panel_offsets",
]


class Filters:
    """The weight and bias of a convolution, read and widened only when they are packed.

    A slice of it is an array of some filters.

    Attributes
    ----------
    shape : tuple of int
        Of the weight, with two spatial axes.
    is_constant : bool
        Whether they are known while planning.
    """

    def __init__(self, weight: Any, bias: Any, shape: Any) -> None:
        self._weight, self._bias = weight, bias
        self.shape = shape
        self.is_constant = all(v is None or v.is_constant for v in (weight, bias))

    @property
    def are_halves(self) -> bool:
        """Whether they are stored as float16."""
        return str(self._weight.source.dtype) in ("f16", "float16")

    @property
    def in_file(self) -> Any:
        """What reads float32 filters from their file, None where they are not in one."""
        return self._weight.in_file

    def stored(self) -> np.ndarray:
        """Return the weight as it lies in memory, where that is in C order: no copy is made."""
        return np.ascontiguousarray(self._weight.constant).reshape(self.shape)

    def weight(self) -> np.ndarray:
        return np.ascontiguousarray(self._weight.constant, np.float32).reshape(self.shape)

    def __getitem__(self, rows: slice) -> np.ndarray:
        filters = np.ascontiguousarray(self._weight.rows(rows.start, rows.stop), np.float32)
        return filters.reshape(len(filters), *self.shape[1:])

    def some(self, start: int, count: int) -> Filters:
        """Return the filters from number `start` on, where they are constants."""
        return _SomeFilters(self, start, count)

    def bias(self) -> np.ndarray | None:
        return None if self._bias is None else np.asarray(self._bias.constant, np.float32)


class _SomeFilters(Filters):
    """A few of a convolution's filters."""

    def __init__(self, all_: Filters, start: int, count: int) -> None:
        self._all, self._start = all_, start
        self.shape = (count, *all_.shape[1:])
        self.is_constant = True

    @property
    def are_halves(self) -> bool:
        return self._all.are_halves

    @property
    def in_file(self) -> Any:
        rows = self._all.in_file
        # A reader of another kind has no rows that threads read themselves.
        return rows.behind(self._start) if hasattr(rows, "behind") else None

    def stored(self) -> np.ndarray:
        return self._all.stored()[self._start : self._start + self.shape[0]]

    def weight(self) -> np.ndarray:
        return self[0 : self.shape[0]]

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._all[self._start + rows.start : self._start + rows.stop]

    def bias(self) -> np.ndarray | None:
        bias = self._all.bias()
        return None if bias is None else bias[self._start : self._start + self.shape[0]]


class ByTap:
    """Filters as (out_channels, taps, in_channels), slice by slice."""

    def __init__(self, filters: Any) -> None:
        out_channels, in_channels, *kernel = filters.shape
        self.shape = (out_channels, math.prod(kernel), in_channels)
        self._filters = filters

    @property
    def in_file(self) -> Any:
        """What reads (in_channels, taps) for each filter, None where they are not in a file."""
        return getattr(self._filters, "in_file", None)

    def __getitem__(self, rows: slice) -> np.ndarray:
        filters = self._filters[rows]
        return filters.reshape(len(filters), *self.shape[:0:-1]).transpose(0, 2, 1)


def pack_groups(weights: Any, bias: Any, groups: int, n_threads: int) -> np.ndarray:
    """Pack the filters of each phase and group, one after the other.

    A weight is an array (out, in / groups, kh, kw) of one phase, or :class:`Filters`.
    """
    parts = []
    for weight in weights:
        out = weight.shape[0] // groups
        for g in range(groups):
            rows = slice(g * out, (g + 1) * out)
            some = weight
            if groups > 1:
                some = weight.some(g * out, out) if isinstance(weight, Filters) else weight[rows]
            by_tap = ByTap(some)
            part = None if bias is None else np.ascontiguousarray(bias[rows])
            parts.append(packing.pack_panels(by_tap, part, n_threads).reshape(-1))
    if len(parts) == 1:
        return parts[0]
    packed = aligned_empty((sum(part.size for part in parts),))
    return np.concatenate(parts, out=packed)


def panel_offsets(tap_lists: Any, groups: int, in_channels: int, out_channels: int) -> list[int]:
    """Return where the panels of each phase start, and where the last ones end, in elements."""
    panels = groups * packing.n_panels(out_channels)
    sizes = [panels * packing.panel_floats(len(taps) * in_channels) for taps in tap_lists]
    return np.cumsum([0, *sizes]).tolist()


def pack_at_run_time(
    b: Binder, a: SimpleNamespace, filters: Any, groups: int, tap_lists: Any, by_column: bool
) -> Any:
    """Add the steps that pack a computed weight; return the panels and where each phase starts.

    `by_column` tells whether the first axis of the weight counts filters (convolution) or input
    channels (transposed).
    """
    weight = b.contiguous(a.weight)
    bias = None if a.bias is None else b.contiguous(a.bias)
    first, second, kernel_h, kernel_w = filters.shape
    taps = kernel_h * kernel_w
    if by_column:
        out_channels, in_channels = first // groups, second
        strides = (out_channels * second * taps, second * taps, taps)
    else:
        in_channels, out_channels = first // groups, second
        strides = (in_channels * second * taps, taps, second * taps)
    offsets = panel_offsets(tap_lists, groups, in_channels, out_channels)
    packed = b.temporary((offsets[-1],))
    for phase_taps, start, end in zip(tap_lists, offsets, offsets[1:], strict=False):
        places = np.array([u * kernel_w + v for u, v in phase_taps] or [0], np.intp)
        b.step(
            packing.PackStep(
                weight, bias, packed.narrow(0, start, end - start), b.constant(places), groups,
                out_channels, len(phase_taps), in_channels, strides,
            )
        )  # fmt: skip
    return packed, offsets


def depthwise_blocks(filters: Any) -> np.ndarray:
    weight = filters.weight()
    return packing.pack_depthwise(weight.reshape(weight.shape[0], -1), filters.bias())
