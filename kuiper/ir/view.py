"""Where a tensor lies: a strided window of a buffer.

While a plan is made, every operand is a :class:`TensorView`.  Views (reshape, permute, slice,
chunk) are values over the same buffer with other strides, so they cost nothing at run time.  A 4-d
image is logically (n, c, h, w) whatever its strides are; *channels-last* means that the channels of
a pixel are adjacent and that consecutive pixels are one `row_stride` apart, which is wider than the
channels where the tensor is a slice of a concatenation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

import numpy as np

__all__ = [
    "Buffer",
    "BufferKind",
    "TensorSpec",
    "TensorView",
    "channels_last_strides",
    "contiguous_strides",
    "padded_row",
    "shares_cache_sets",
]

ALIASING_ROW = 512  # float32 elements: half of what one way of an L1 cache holds
SPACING = 16  # a cache line


class Stored(Protocol):
    """What has values that are perhaps not in memory: an :class:`~kuiper.ir.Attribute`."""

    def numpy(self) -> np.ndarray: ...

    def rows(self, start: int, stop: int) -> np.ndarray: ...

    @property
    def in_file(self) -> Any: ...


Source = np.ndarray | Stored | None


class _Sourced:
    """What may have values that are known while planning."""

    __slots__ = ("source",)

    source: Source

    @property
    def is_constant(self) -> bool:
        """Whether the values are known; to ask does not read them."""
        return self.source is not None

    @property
    def constant(self) -> np.ndarray | None:
        """The values, or None; weights of a file are perhaps read for it, each time."""
        if self.source is None or isinstance(self.source, np.ndarray):
            return self.source
        return self.source.numpy()

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return known values of some places of the first axis; no others are read."""
        assert self.source is not None
        if isinstance(self.source, np.ndarray):
            return self.source[start:stop]
        return self.source.rows(start, stop)

    @property
    def in_file(self) -> Any:
        """What kernels read float32 values from that are still in a file; None for others."""
        return getattr(self.source, "in_file", None)


class TensorSpec(_Sourced):
    """Shape and dtype of a tensor, and its content where that is known while planning.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    source : numpy.ndarray, Attribute or None
        What has the values, if the tensor is a weight or a folded constant.
    """

    __slots__ = ("dtype", "shape")

    def __init__(
        self, shape: Sequence[int], dtype: Any = np.float32, source: Source = None
    ) -> None:
        self.shape = tuple(map(int, shape))
        self.dtype = np.dtype(dtype)
        self.source = source

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __repr__(self) -> str:
        return f"{self.dtype} {self.shape}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorSpec):
            return NotImplemented
        return self.shape == other.shape and self.dtype == other.dtype

    __hash__ = None  # type: ignore[assignment]


class BufferKind(Enum):
    """Who owns the memory of a buffer, and for how long."""

    ARENA = "arena"  # of one run, from the first step that uses it to the last
    SCRATCH = "scratch"  # of one step, a range for each thread
    CONSTANT = "constant"  # of the plan
    CONTEXT = "context"  # state of each context, kept from run to run
    INPUT = "input"  # of the caller
    OUTPUT = "output"  # of the caller, or new for each run


class Buffer(_Sourced):
    """A piece of memory that one slot of a context points to.

    Attributes
    ----------
    slot : int
    n_bytes : int
    kind : BufferKind
    source : numpy.ndarray, Attribute or None
        What a constant buffer holds.
    first, last : int
        Numbers of the steps between which an arena buffer is in use.
    offset : int
        Where an arena buffer lies, in bytes.
    bytes_per_thread : int
        Of a scratch buffer: the piece that each thread has for itself.
    """

    __slots__ = (
        "bytes_per_thread",
        "first",
        "kind",
        "last",
        "n_bytes",
        "offset",
        "slot",
    )

    def __init__(self, slot: int, n_bytes: int, kind: BufferKind, source: Source = None) -> None:
        self.slot = slot
        self.n_bytes = n_bytes
        self.kind = kind
        self.source = source
        self.first = -1
        self.last = -1
        self.offset = 0
        self.bytes_per_thread = 0


class TensorView(_Sourced):
    """A tensor during planning: `shape` and `strides` over a buffer.

    Attributes
    ----------
    buffer : Buffer
    shape : tuple of int
    strides : tuple of int
        In elements.
    offset : int
        Of the first element, in elements.
    dtype : numpy.dtype
    source : numpy.ndarray, Attribute or None
        What has the values, if they are known while planning.
    """

    __slots__ = ("buffer", "dtype", "offset", "shape", "strides")

    def __init__(
        self,
        buffer: Buffer,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int = 0,
        dtype: Any = np.float32,
        source: Source = None,
    ) -> None:
        self.buffer = buffer
        self.shape = tuple(shape)
        self.strides = tuple(strides)
        self.offset = offset
        self.dtype = np.dtype(dtype)
        self.source = source

    @property
    def slot(self) -> int:
        return self.buffer.slot

    @property
    def offset_bytes(self) -> int:
        return self.offset * self.dtype.itemsize

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.shape, self.dtype, self.source)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in C order without gaps."""
        return self._lies_like(contiguous_strides(self.shape))

    @property
    def is_channels_last(self) -> bool:
        """Whether (n, c, h, w) lies as pixels of adjacent channels, one row stride apart."""
        return self.rank == 4 and self._lies_like(
            channels_last_strides(self.shape, self.row_stride)
        )

    @property
    def row_stride(self) -> int:
        """Elements from one pixel to the next in a channels-last tensor."""
        n, channels, height, width = self.shape
        if self.size == 0:
            return channels
        # Extents of one have a stride that means nothing; read the row stride off another axis.
        for extent, stride, pixels in (
            (width, self.strides[3], 1),
            (height, self.strides[2], width),
            (n, self.strides[0], width * height),
        ):
            if extent > 1:
                return stride // pixels
        return channels

    def _lies_like(self, strides: Sequence[int]) -> bool:
        return self.size == 0 or all(
            mine == theirs or extent == 1
            for extent, mine, theirs in zip(self.shape, self.strides, strides, strict=True)
        )

    def same_layout(self, other: TensorView) -> bool:
        """Whether both have equal extents and equal strides wherever these matter."""
        return self.shape == other.shape and self._lies_like(other.strides)

    def with_layout(
        self, shape: Sequence[int], strides: Sequence[int], offset: int = 0
    ) -> TensorView:
        """Return a view with other extents and strides, `offset` elements further on."""
        return TensorView(self.buffer, shape, strides, self.offset + offset, self.dtype)

    def permute(self, dims: Sequence[int]) -> TensorView:
        """Return the view whose axis i is axis ``dims[i]`` of this value."""
        return self.with_layout([self.shape[d] for d in dims], [self.strides[d] for d in dims])

    def narrow(self, dim: int, start: int, length: int, step: int = 1) -> TensorView:
        """Return the view of `length` places of axis `dim`, from `start` on, every `step`-th."""
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = length, strides[dim] * step
        return self.with_layout(shape, strides, start * self.strides[dim])

    def select(self, dim: int, index: int) -> TensorView:
        """Return the view of one place of axis `dim`, without that axis."""
        shape, strides = list(self.shape), list(self.strides)
        del shape[dim], strides[dim]
        return self.with_layout(shape, strides, index * self.strides[dim])

    def expand(self, shape: Sequence[int]) -> TensorView:
        """Return the view broadcast to `shape` (zero strides along the repeated axes)."""
        lead = len(shape) - self.rank
        if any(n not in (1, m) for n, m in zip(self.shape, shape[lead:], strict=True)):
            # A record should have said so before; a view would read beyond the tensor.
            raise ValueError(f"shape {self.shape} cannot be repeated to {tuple(shape)}")
        strides = [0] * lead + [
            0 if mine == 1 and extent != 1 else stride
            for mine, extent, stride in zip(self.shape, shape[lead:], self.strides, strict=True)
        ]
        return self.with_layout(shape, strides)

    def view(self, shape: Sequence[int]) -> TensorView:
        """Return what :meth:`reshape` does, where the layout is known to allow a view."""
        view = self.reshape(shape)
        assert view is not None, (self.shape, self.strides, shape)
        return view

    def reshape(self, shape: Sequence[int]) -> TensorView | None:
        """Return the view with the same elements in C order as `shape`, None if it needs a copy."""
        shape = tuple(shape)
        if self.size == 0:
            return self.with_layout(shape, contiguous_strides(shape))
        # Merge the axes that lie back to back, then cut each merged run into the new extents.
        runs: list[list[int]] = []
        for extent, stride in zip(self.shape, self.strides, strict=True):
            if extent == 1:
                continue
            if runs and runs[-1][1] == extent * stride:
                runs[-1][0] *= extent
                runs[-1][1] = stride
            else:
                runs.append([extent, stride])
        strides = [0] * len(shape)
        axis = len(shape) - 1
        for extent, stride in reversed(runs):
            while extent > 1:
                while axis >= 0 and shape[axis] == 1:
                    axis -= 1
                if axis < 0 or extent % shape[axis]:
                    return None
                strides[axis] = stride
                stride *= shape[axis]
                extent //= shape[axis]
                axis -= 1
        # Extents of one: any stride will do; the contiguous one reads well.
        for i in range(len(shape) - 1, -1, -1):
            if shape[i] == 1:
                strides[i] = strides[i + 1] * shape[i + 1] if i + 1 < len(shape) else 1
        return self.with_layout(shape, strides)

    def __repr__(self) -> str:
        return f"<{self.dtype} {self.shape} strides {self.strides} in slot {self.slot}>"


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-order tensor."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def shares_cache_sets(step: int) -> bool:
    """Tell whether rows that lie `step` elements apart share a few sets of the L1 cache."""
    return step > 0 and step % ALIASING_ROW == 0


def padded_row(row: int) -> int:
    """Return how far apart rows of `row` elements should lie.

    Rows that are a large power of two apart share a few sets of the L1 cache; a tile of a matrix
    product, which reads a dozen of them at a time, would evict its own rows.
    """
    return row + SPACING if shares_cache_sets(row) else row


def channels_last_strides(shape: Sequence[int], row_stride: int | None = None) -> tuple[int, ...]:
    """Return the strides of (n, c, spatial...) with adjacent channels, `row_stride` per pixel."""
    step = shape[1] if row_stride is None else row_stride
    strides = [0, 1, *shape[2:]]
    for axis in range(len(shape) - 1, 1, -1):
        strides[axis] = step
        step *= max(shape[axis], 1)
    strides[0] = step
    return tuple(strides)
