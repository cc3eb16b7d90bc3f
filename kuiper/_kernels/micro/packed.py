"""Packed weights: the element type, layout and size that a micro-kernel reads.

A :class:`PackedMatrix` describes the memory of one packed weight before it is allocated.  A record
creates the description, the weight cache keeps the memory, and a function of the record fills it.
Each combination of element type and layout has a subclass, by which the cache distinguishes them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from enum import IntEnum
from itertools import accumulate
from typing import Any

import numpy as np

from kuiper._kernels.micro import dispatch

__all__ = [
    "DepthwiseBlocks",
    "FewColumns",
    "GroupedBlocks",
    "Layout",
    "NarrowDepthwiseBlocks",
    "PackedMatrix",
    "PairPanels",
    "QuantizedDepthwiseBlocks",
    "QuantizedDepthwiseQuads",
    "QuantizedPanels",
    "RunPanels",
    "padded_to_quads",
    "panel_offsets",
    "split_memory",
    "terms_by_tap",
]

FLOAT_BYTES = 4  # of a bias, whatever the type of the weights


class Layout(IntEnum):
    """Number of adjacent terms of one column, which one instruction multiplies and sums."""

    ROWS = 1  # [depth][nr]: float32
    PAIRS = 2  # [depth / 2][nr][2]: bfloat16, for vdpbf16ps and tdpbf16ps
    QUADS = 4  # [depth / 4][nr][4]: int8, for vpdpbusd and tdpbusd


class PackedMatrix:
    """A matrix (depth, columns), cut into panels of `nr` columns.

    A panel starts with rows of `nr` values of 32 bits, the first of them biases, float32; the terms
    follow in the order of `layout`.  Missing columns and missing terms are zero.

    Parameters
    ----------
    columns, depth : int
        Of one group.
    groups : int, default=1
        Each group starts a new panel.
    nr : int, optional
        Columns of a panel; by default those of the active variant's GEMM tile.
    part : hashable, optional
        Distinguishes several packed weights of one operator.

    Attributes
    ----------
    dtype : numpy.dtype
        Element type of the terms; bfloat16 as its 16 bits.
    layout : Layout
    head_rows : int
        Number of values of 32 bits that each column has beside its terms.
    depth, nr, panels : int
    """

    dtype: np.dtype = np.dtype(np.float32)
    layout = Layout.ROWS
    head_rows = 1

    __slots__ = ("depth", "nr", "panels", "part")

    def __init__(
        self, columns: int, depth: int, groups: int = 1, nr: int = 0, part: Hashable = None
    ) -> None:
        self.depth = depth
        self.nr = nr or dispatch.tile()[1]
        self.panels = groups * -(-columns // self.nr)
        self.part = part

    @property
    def key(self) -> Hashable:
        """Identity among the packed weights of an operator."""
        return type(self), self.panels, self.depth, self.nr, self.part

    @property
    def head_bytes(self) -> int:
        """Size of the biases, and what else a column has, at the start of a panel."""
        return self.head_rows * FLOAT_BYTES * self.nr

    @property
    def panel_bytes(self) -> int:
        rows = -(-self.depth // self.layout)
        return self.head_bytes + rows * self.nr * self.layout * self.dtype.itemsize

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the memory in elements of `dtype`: (panels, rows of a panel, nr)."""
        return self.panels, self.panel_bytes // (self.nr * self.dtype.itemsize), self.nr

    def terms(self, memory: np.ndarray) -> np.ndarray:
        """Return a view of the terms in memory of this shape, (panels, rows, nr, layout)."""
        skipped = self.head_bytes // (self.nr * self.dtype.itemsize)
        return memory[:, skipped:].reshape(self.panels, -1, self.nr, self.layout)

    def heads(self, memory: np.ndarray) -> np.ndarray:
        """Return a view of the values before the terms, (panels, head_rows, nr) float32."""
        rows = self.head_bytes // (self.nr * self.dtype.itemsize)
        floats = memory[:, :rows].reshape(self.panels, -1).view(np.float32)
        return floats.reshape(self.panels, -1, self.nr)


class RunPanels(PackedMatrix):
    """Panels whose terms have the order of a few-input-channel convolution's runs."""

    __slots__ = ()


class DepthwiseBlocks(PackedMatrix):
    """Blocks of one vector of channels: the biases, then the taps."""

    __slots__ = ()

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__(channels, taps, nr=dispatch.lanes())

    def fill(self, memory: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> None:
        """Pack a weight (channels, taps) and its biases (channels,) into `memory`."""
        padded = np.zeros((self.panels * self.nr, 1 + self.depth), np.float32)
        padded[: len(weight), 1:] = weight
        if bias is not None:
            padded[: len(weight), 0] = bias
        by_block = padded.reshape(self.panels, self.nr, -1).transpose(0, 2, 1)
        self.heads(memory)[:] = by_block[:, :1]
        self.terms(memory)[..., 0] = by_block[:, 1:]


class NarrowDepthwiseBlocks(DepthwiseBlocks):
    """The same for images in bfloat16, two vectors of which are widened to even and odd channels.

    Only whole pairs of vectors are in this order; the channels that are left follow as they are.
    """

    __slots__ = ()

    def fill(self, memory: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> None:
        order = np.arange(len(weight))
        paired = len(weight) // (2 * self.nr) * 2 * self.nr
        pairs = order[:paired].reshape(-1, self.nr, 2)
        order[:paired] = pairs.transpose(0, 2, 1).ravel()
        super().fill(memory, weight[order], None if bias is None else bias[order])


class GroupedBlocks(DepthwiseBlocks):
    """Blocks of one vector of outputs: the biases, then for each tap the channels of a group."""

    __slots__ = ()


class QuantizedDepthwiseBlocks(PackedMatrix):
    """Blocks of one vector of channels: biases, scales, first values of the sums, then the taps.

    Taps are whole numbers as floats, so that sums of products with bytes are exact.
    """

    head_rows = 3

    __slots__ = ()

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__(channels, taps, nr=dispatch.lanes())

    def fill(
        self, memory: np.ndarray, weight: np.ndarray, scale: np.ndarray, zero: int,
        bias: np.ndarray | None,
    ) -> None:  # fmt: skip
        """Pack a weight (channels, taps), int8, its scales (channels,) and biases (channels,)."""
        rows = np.zeros((3 + self.depth, self.panels * self.nr), np.float32)
        if bias is not None:
            rows[0, : len(weight)] = bias
        rows[1, : len(weight)] = scale
        rows[2, : len(weight)] = -zero * weight.sum(1, np.int32)
        rows[3:, : len(weight)] = weight.T
        memory[:] = rows.reshape(-1, self.panels, self.nr).swapaxes(0, 1)


class QuantizedDepthwiseQuads(PackedMatrix):
    """Blocks of one vector of bytes of channels: the same heads, then signed bytes, quads of taps.

    Micro-kernels interleave four rows of pixels within 128 bits, so the i-th vector of a quad holds
    channels 4 * i to 4 * i + 3 of each 16.

    Parameters
    ----------
    channels : int
    order : sequence of int
        The tap of each byte of the quads; one that repeats the tap before it is 0.
    """

    dtype = np.dtype(np.int8)
    layout = Layout.QUADS
    head_rows = 3

    __slots__ = ("order",)

    def __init__(self, channels: int, order: Sequence[int]) -> None:
        super().__init__(channels, len(order), nr=64, part=tuple(order))
        self.order = np.array(order)

    def fill(
        self, memory: np.ndarray, weight: np.ndarray, scale: np.ndarray, zero: int,
        bias: np.ndarray | None,
    ) -> None:  # fmt: skip
        """Pack a weight (channels, taps), int8, its scales (channels,) and biases (channels,)."""
        channels = len(weight)
        heads = np.zeros((3, self.panels * self.nr), np.float32)
        if bias is not None:
            heads[0, :channels] = bias
        heads[1, :channels] = scale
        heads.view(np.int32)[2, :channels] = -zero * weight.sum(1, np.int32)
        self.heads(memory)[:] = heads.reshape(3, self.panels, self.nr).swapaxes(0, 1)
        taps = np.zeros((self.panels * self.nr, self.depth), np.int8)
        taps[:channels] = weight[:, self.order]
        taps[:, 1:][:, self.order[1:] == self.order[:-1]] = 0
        # (panels, 128 bits, vectors, lanes, quads, taps)
        by_vector = taps.reshape(self.panels, 4, 4, 4, -1, Layout.QUADS).transpose(0, 4, 2, 1, 3, 5)
        self.terms(memory)[:] = by_vector.reshape(self.panels, -1, self.nr, Layout.QUADS)


class FewColumns(PackedMatrix):
    """A vector of biases, then (taps, vectors of channels, columns, lanes)."""

    __slots__ = ()

    def __init__(self, columns: int, taps: int, channels: int, part: Hashable = None) -> None:
        lanes = dispatch.lanes()
        super().__init__(1, taps * -(-channels // lanes) * columns, nr=lanes, part=part)

    def fill(self, memory: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> None:
        """Pack filters (columns, channels, taps...) and their biases (columns,) into `memory`."""
        columns, channels = weight.shape[:2]
        by_tap = weight.reshape(columns, channels, -1).transpose(2, 1, 0)
        vectors = -(-channels // self.nr)
        padded = np.zeros((by_tap.shape[0], vectors * self.nr, columns), np.float32)
        padded[:, :channels] = by_tap
        lanes_last = padded.reshape(-1, vectors, self.nr, columns).transpose(0, 1, 3, 2)
        biases = self.heads(memory)
        biases[:] = 0.0
        if bias is not None:
            biases[0, 0, :columns] = bias
        self.terms(memory)[0, ..., 0] = lanes_last.reshape(-1, self.nr)


class PairPanels(PackedMatrix):
    """Panels of bfloat16: biases, float32, then pairs of terms; filled by ``pack_pairs``.

    Parameters
    ----------
    columns, taps, channels : int
        Of one group.  The channels of each tap are padded to whole pairs.
    groups : int, default=1
        Each group starts a new panel.
    part : hashable, optional
    """

    dtype = np.dtype(np.uint16)
    layout = Layout.PAIRS

    __slots__ = ()

    def __init__(
        self, columns: int, taps: int, channels: int, groups: int = 1, part: Hashable = None
    ) -> None:
        pairs = -(-channels // Layout.PAIRS)
        super().__init__(columns, taps * pairs * Layout.PAIRS, groups, part=part)


class QuantizedPanels(PackedMatrix):
    """Panels of signed bytes: biases and scales, the first integers of the sums, then the terms.

    Rows of A are unsigned bytes with a zero point: the sum of a column starts with minus the zero
    point times the sum of its weights.

    Parameters
    ----------
    columns, depth : int
        Of one group; `depth` is rounded up to a multiple of 4.
    part : hashable, optional
    groups : int, default=1
        Each group starts a new panel.
    """

    dtype = np.dtype(np.int8)
    layout = Layout.QUADS
    head_rows = 3

    __slots__ = ()

    def __init__(self, columns: int, depth: int, part: Hashable = None, groups: int = 1) -> None:
        super().__init__(columns, padded_to_quads(depth), groups, part=part)

    def fill(
        self, memory: np.ndarray, weight: np.ndarray, scale: np.ndarray, zero: int,
        bias: np.ndarray | None, groups: int = 1,
    ) -> None:  # fmt: skip
        """Pack a weight (columns, depth), int8, its scales (columns,) and biases (columns,).

        `columns` counts those of all `groups`.
        """

        def padded(values: np.ndarray, dtype: Any) -> np.ndarray:
            """Return values (columns, ...) with each group's columns padded to whole panels."""
            by_group = values.reshape(groups, -1, *values.shape[1:])
            result = np.zeros((groups, self.panels // groups * self.nr, *values.shape[1:]), dtype)
            result[:, : by_group.shape[1]] = by_group
            return result.reshape(self.panels, self.nr, *values.shape[1:])

        whole = np.zeros((len(weight), self.depth), np.int8)
        whole[:, : weight.shape[1]] = weight
        quads = padded(whole, np.int8).view(np.int32)
        self.terms(memory).view(np.int32)[..., 0] = quads.transpose(0, 2, 1)
        heads = self.heads(memory)
        heads[:, 0] = 0.0 if bias is None else padded(bias, np.float32)
        heads[:, 1] = padded(scale, np.float32)
        heads.view(np.int32)[:, 2] = padded(-zero * weight.sum(1, np.int32), np.int32)


def padded_to_quads(depth: int) -> int:
    """Return the number of terms of whole quads."""
    return -(-depth // Layout.QUADS) * Layout.QUADS


def terms_by_tap(weight: np.ndarray) -> np.ndarray:
    """Return filters (out, channels, taps...) as (out, terms), tap by tap, in whole quads each."""
    out, channels = weight.shape[:2]
    by_tap = weight.reshape(out, channels, -1).transpose(0, 2, 1)
    terms = np.zeros((out, by_tap.shape[1], padded_to_quads(channels)), weight.dtype)
    terms[:, :, :channels] = by_tap
    return terms.reshape(out, -1)


def panel_offsets(matrices: Sequence[PackedMatrix]) -> list[int]:
    """Return the offsets of matrices stored back to back, in elements, then the total."""
    return [0, *accumulate(math.prod(matrix.shape) for matrix in matrices)]


def split_memory(memory: np.ndarray, matrices: Sequence[PackedMatrix]) -> list[np.ndarray]:
    """Return a view of one-dimensional memory for each of the matrices stored back to back."""
    offsets = panel_offsets(matrices)
    return [
        memory[start:stop].reshape(matrix.shape)
        for matrix, start, stop in zip(matrices, offsets, offsets[1:], strict=False)
    ]
