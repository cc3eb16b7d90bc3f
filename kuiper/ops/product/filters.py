"""The filters of a convolution, read and widened to float32 only when they are packed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kuiper._kernels.micro import packing
from kuiper._kernels.micro.packed import PackedMatrix, panel_offsets
from kuiper.ir.view import TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.product.geometry import ConvolutionRecord

__all__ = ["ByTap", "Filters", "fill_groups", "pack_at_run_time"]


class Filters:
    """The weight and bias of a convolution; a slice is a float32 array of filters.

    Attributes
    ----------
    shape : tuple of int
        Shape of the weight, with two or three spatial axes.
    is_constant : bool
        Whether weight and bias are known while planning.
    """

    def __init__(self, weight: Any, bias: Any, shape: Any) -> None:
        self._weight, self._bias = weight, bias
        self.shape = shape
        self.is_constant = all(v is None or v.is_constant for v in (weight, bias))

    @property
    def n_terms(self) -> int:
        """The number of products in the sum of one output."""
        return math.prod(self.shape[1:])

    @property
    def n_bytes(self) -> int:
        """Size of the weight in the computation's element type."""
        return math.prod(self.shape) * PackedMatrix.dtype.itemsize

    @property
    def are_halves(self) -> bool:
        """Whether the weight is stored as float16."""
        return str(self._weight.source.dtype) in ("f16", "float16")

    @property
    def in_file(self) -> Any:
        """The reader of float32 filters in a file, None if they are not in one."""
        return self._weight.in_file

    def stored(self) -> np.ndarray:
        """Return the weight in its stored type; copies only if it is not in C order."""
        return np.ascontiguousarray(self._weight.constant).reshape(self.shape)

    def weight(self) -> np.ndarray:
        return np.ascontiguousarray(self._weight.constant, np.float32).reshape(self.shape)

    def __getitem__(self, rows: slice) -> np.ndarray:
        filters = np.ascontiguousarray(self._weight.rows(rows.start, rows.stop), np.float32)
        return filters.reshape(len(filters), *self.shape[1:])

    def some(self, start: int, count: int) -> Filters:
        """Return `count` constant filters, from number `start` on."""
        return _SomeFilters(self, start, count)

    def by_plane(self) -> Filters:
        """Return filters (out, in, kd, kh, kw) as (out, kd * in, kh, kw)."""
        return _ByPlane(self._weight, self._bias, self.shape)

    def bias(self) -> np.ndarray | None:
        return None if self._bias is None else np.asarray(self._bias.constant, np.float32)


class _ByPlane(Filters):
    """Filters of volumes as filters of images; the planes of a volume are input channels."""

    def __init__(self, weight: Any, bias: Any, shape: Any) -> None:
        out_channels, in_channels, depth, *kernel = shape
        super().__init__(weight, bias, (out_channels, depth * in_channels, *kernel))
        self._volumes = (in_channels, depth, *kernel)

    @property
    def in_file(self) -> Any:
        """None: the file has another order."""
        return None

    def __getitem__(self, rows: slice) -> np.ndarray:
        filters = super().__getitem__(rows).reshape(-1, *self._volumes)
        by_plane = np.ascontiguousarray(filters.swapaxes(1, 2))
        return by_plane.reshape(len(filters), *self.shape[1:])


class _SomeFilters(Filters):
    """A range of a convolution's filters."""

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
        # Only some readers support reading by several threads.
        return rows.from_row(self._start) if hasattr(rows, "from_row") else None

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
        """The reader of (in_channels, taps) per filter, None if they are not in a file."""
        return getattr(self._filters, "in_file", None)

    def __getitem__(self, rows: slice) -> np.ndarray:
        filters = self._filters[rows]
        return filters.reshape(len(filters), *self.shape[:0:-1]).transpose(0, 2, 1)


def fill_groups(
    memory: np.ndarray, weight: Any, bias: np.ndarray | None, groups: int, n_threads: int,
    pack: Callable[..., Any] = packing.pack_panels,
) -> None:  # fmt: skip
    """Write the panels of each group of a weight.

    Parameters
    ----------
    memory : array
        In the shape of a :class:`~kuiper._kernels.micro.packed.PackedMatrix`.
    weight : array or Filters, shape (out_channels, in_channels / groups, ...)
    bias : array, shape (out_channels,), or None
    groups, n_threads : int
    pack : callable
        ``pack(weight, bias, n_threads, memory)`` packs one group, (columns, taps, channels).
    """
    out, panels = weight.shape[0] // groups, len(memory) // groups
    for group in range(groups):
        rows = slice(group * out, (group + 1) * out)
        some = weight
        if groups > 1:
            some = weight.some(rows.start, out) if isinstance(weight, Filters) else weight[rows]
        shift = None if bias is None else np.ascontiguousarray(bias[rows])
        part = memory[group * panels : (group + 1) * panels]
        pack(ByTap(some), shift, n_threads, part)


def pack_at_run_time(
    b: Binder,
    a: ConvolutionRecord[TensorView],
    filters: Filters,
    tap_lists: Sequence[Sequence[Sequence[int]]],
    by_column: bool,
) -> tuple[TensorView, list[int]]:
    """Add the steps that pack a computed weight; return the panels and the offset of each phase.

    The first axis of the weight counts filters if `by_column` (convolution), else input channels
    (transposed convolution).
    """
    float32 = np.dtype(np.float32)
    weight = b.contiguous(b.stored(a.weight, float32))
    bias = None if a.bias is None else b.contiguous(b.stored(a.bias, float32))
    first, second, *kernel = filters.shape
    taps = math.prod(kernel)
    if by_column:
        out_channels, in_channels = first // a.groups, second
        strides = (out_channels * second * taps, second * taps, taps)
    else:
        in_channels, out_channels = first // a.groups, second
        strides = (in_channels * second * taps, taps, second * taps)
    matrices = [PackedMatrix(out_channels, len(t) * in_channels, a.groups) for t in tap_lists]
    offsets = panel_offsets(matrices)
    packed = b.temporary((offsets[-1],))
    for phase_taps, start, end in zip(tap_lists, offsets, offsets[1:], strict=False):
        indices = [int(np.ravel_multi_index(tap, kernel)) for tap in phase_taps]
        b.step(
            packing.PackStep(
                weight, bias, packed.narrow(0, start, end - start),
                b.constant(np.array(indices or [0], np.intp)), a.groups, out_channels,
                len(phase_taps), in_channels, strides,
            )
        )  # fmt: skip
    return packed, offsets
