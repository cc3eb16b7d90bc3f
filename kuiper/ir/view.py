"""Memory layout of tensors: strided views of buffers.

While a plan is made, every tensor is a :class:`TensorView`.  Reshape, permute, slice and chunk
return another view of the same buffer, so they cost nothing at run time.  A 4-d image is logically
(n, c, h, w) whatever its strides are.  *Channels-last* means that the channels of a pixel are
adjacent and consecutive pixels are one `row_stride` apart; it exceeds the number of channels if the
tensor is a slice of a concatenation or has padded rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

__all__ = [
    "Buffer",
    "BufferKind",
    "Layout",
    "TensorSpec",
    "TensorView",
    "channels_last_strides",
    "contiguous_strides",
    "padded_row",
    "remembered",
    "reshaped_strides",
    "shares_cache_sets",
]

ALIASING_ROW = 512  # float32 elements: half of one way of an L1 cache
SPACING = 16  # float32 elements: a cache line


class Stored(Protocol):
    """Values that may still be in a file: an :class:`~kuiper.ir.Attribute`."""

    def numpy(self) -> np.ndarray: ...

    def rows(self, start: int, stop: int) -> np.ndarray: ...

    @property
    def in_file(self) -> Any: ...


Source = np.ndarray | Stored | None


class _Sourced:
    """Base of classes whose values may be known while planning."""

    __slots__ = ("source",)

    source: Source

    @property
    def is_constant(self) -> bool:
        """Whether the values are known; this does not read them."""
        return self.source is not None

    @property
    def constant(self) -> np.ndarray | None:
        """The values, or None; each access may read a weight from its file."""
        if self.source is None or isinstance(self.source, np.ndarray):
            return self.source
        return self.source.numpy()

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return the values at [start, stop) of the first axis, and read no others."""
        assert self.source is not None
        if isinstance(self.source, np.ndarray):
            return self.source[start:stop]
        return self.source.rows(start, stop)

    @property
    def in_file(self) -> Any:
        """The reader of float32 values that are still in a file; None for all others."""
        return getattr(self.source, "in_file", None)


class _Tensor(_Sourced):
    """Base of classes with a shape and a dtype."""

    __slots__ = ("dtype", "shape")

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Size without gaps between elements."""
        return self.size * self.dtype.itemsize


class TensorSpec(_Tensor):
    """Shape and dtype of a tensor, and its values if they are known while planning.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    source : numpy.ndarray, Attribute or None
        The values of a weight or a folded constant.
    """

    __slots__ = ()

    def __init__(
        self, shape: Sequence[int], dtype: Any = np.float32, source: Source = None
    ) -> None:
        self.shape = tuple(map(int, shape))
        self.dtype = np.dtype(dtype)
        self.source = source

    def tells(self, predicate: Callable[..., bool], *others: TensorSpec) -> bool:
        """Return ``predicate(shape, *shapes of the others)``.

        A pass asks this, rather than for a shape, for a decision that is the same for many shapes:
        the graph after the passes is kept for them all.  The predicate must read nothing else that
        changes.
        """
        return predicate(self.shape, *[other.shape for other in others])

    def twin(self) -> TensorSpec:
        """Return an equal spec that is another object."""
        return TensorSpec(self.shape, self.dtype, self.source)

    def __repr__(self) -> str:
        return f"{self.dtype} {self.shape}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorSpec):
            return NotImplemented
        return self.shape == other.shape and self.dtype == other.dtype

    __hash__ = None  # type: ignore[assignment]


class BufferKind(Enum):
    """The owner of a buffer's memory, and how long the buffer lives."""

    ARENA = "arena"  # in the arena of a run, from the first step that uses it to the last
    SCRATCH = "scratch"  # in the arena during one step, a range per thread
    CONSTANT = "constant"  # owned by the plan
    CONTEXT = "context"  # per-context state, kept from run to run
    INPUT = "input"  # owned by the caller
    OUTPUT = "output"  # owned by the caller, or new for each run


class Layout:
    """Orders of a tensor's elements in memory; constants, as an Enum would slow the import."""

    CONTIGUOUS = "contiguous"  # C order
    CHANNELS_LAST = "channels_last"  # the channels of a pixel are adjacent
    PADDED_ROWS = "padded_rows"  # C order, with rows padded by `padded_row`
    LIKE = "like"  # of a record: the layout of its first input
    VIEW = "view"  # of a record: the output is a view of an input


class Buffer(_Sourced):
    """A range of memory that one slot of a context points to.

    Attributes
    ----------
    slot : int
    n_bytes : int
    kind : BufferKind
    source : numpy.ndarray, Attribute or None
        The values of a constant buffer.
    first, last : int
        Indices of the first and the last step that use an arena buffer; -1 if none does.
    offset : int
        Start of an arena buffer, in bytes from the start of the arena.
    bytes_per_thread : int
        Size of each thread's range of a scratch buffer; 0 for other kinds.
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


class TensorView(_Tensor):
    """A strided view of a buffer: a tensor during planning.

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
        The values, if they are known while planning.
    """

    __slots__ = ("buffer", "offset", "strides")

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
    def spec(self) -> TensorSpec:
        return TensorSpec(self.shape, self.dtype, self.source)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are in C order without gaps."""
        strides = _contiguous_strides(self.shape)
        return self.strides == strides or self._has_strides(strides)

    @property
    def is_channels_last(self) -> bool:
        """Whether channels are adjacent and the pixels of (n, c, h, w) one row stride apart."""
        return self.rank == 4 and self._has_strides(
            channels_last_strides(self.shape, self.row_stride)
        )

    @property
    def row_stride(self) -> int:
        """Elements from one pixel to the next in a channels-last tensor."""
        n, channels, height, width = self.shape
        if self.size == 0:
            return channels
        # The stride of an axis of extent 1 is arbitrary; take the first longer axis.
        for extent, stride, pixels in (
            (width, self.strides[3], 1),
            (height, self.strides[2], width),
            (n, self.strides[0], width * height),
        ):
            if extent > 1:
                return stride // pixels
        return channels

    def _has_strides(self, strides: Sequence[int]) -> bool:
        return self.size == 0 or all(
            mine == theirs or extent == 1
            for extent, mine, theirs in zip(self.shape, self.strides, strides, strict=True)
        )

    def same_layout(self, other: TensorView) -> bool:
        """Whether shapes are equal, and strides on every axis longer than 1."""
        return self.shape == other.shape and self._has_strides(other.strides)

    def with_layout(
        self, shape: Sequence[int], strides: Sequence[int], offset: int = 0
    ) -> TensorView:
        """Return the view of another shape and other strides, `offset` elements later."""
        return TensorView(self.buffer, shape, strides, self.offset + offset, self.dtype)

    def permute(self, dims: Sequence[int]) -> TensorView:
        """Return the view whose axis i is axis ``dims[i]`` of this one."""
        return self.with_layout([self.shape[d] for d in dims], [self.strides[d] for d in dims])

    def narrow(self, dim: int, start: int, length: int, step: int = 1) -> TensorView:
        """Return the view of `length` indices of axis `dim`: start, start + step, ..."""
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = length, strides[dim] * step
        return self.with_layout(shape, strides, start * self.strides[dim])

    def select(self, dim: int, index: int) -> TensorView:
        """Return the view of one index of axis `dim`, without that axis."""
        shape, strides = list(self.shape), list(self.strides)
        del shape[dim], strides[dim]
        return self.with_layout(shape, strides, index * self.strides[dim])

    def expand(self, shape: Sequence[int]) -> TensorView:
        """Return the view broadcast to `shape`, with stride 0 along repeated axes."""
        lead = len(shape) - self.rank
        if any(n not in (1, m) for n, m in zip(self.shape, shape[lead:], strict=True)):
            # A record must refuse this earlier; the view would read beyond the tensor.
            raise ValueError(f"shape {self.shape} cannot be repeated to {tuple(shape)}")
        strides = [0] * lead + [
            0 if mine == 1 and extent != 1 else stride
            for mine, extent, stride in zip(self.shape, shape[lead:], self.strides, strict=True)
        ]
        return self.with_layout(shape, strides)

    def view(self, shape: Sequence[int]) -> TensorView:
        """Return :meth:`reshape` of a layout that is known to need no copy."""
        view = self.reshape(shape)
        assert view is not None, (self.shape, self.strides, shape)
        return view

    def reshape(self, shape: Sequence[int]) -> TensorView | None:
        """Return the view with the elements, in C order, as `shape`; None if it needs a copy."""
        shape = tuple(shape)
        strides = reshaped_strides(self.shape, self.strides, shape)
        return None if strides is None else self.with_layout(shape, strides)

    def __repr__(self) -> str:
        return f"<{self.dtype} {self.shape} strides {self.strides} in slot {self.slot}>"


# For functions of shapes and strides alone: the layers of a network, and plans for several shapes,
# ask for the same again and again.
remembered = lru_cache(maxsize=2048)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-order tensor."""
    return _contiguous_strides(tuple(shape))


@remembered
def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


@remembered
def reshaped_strides(
    old: tuple[int, ...], old_strides: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the strides of a reshaped view; None if the reshape needs a copy."""
    if math.prod(old) == 0:
        return _contiguous_strides(shape)
    # Merge adjacent axes without a gap between them, then split each run into the new extents.
    runs: list[list[int]] = []
    for extent, stride in zip(old, old_strides, strict=True):
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
    # Axes of extent 1 may have any stride; take the contiguous one.
    for i in range(len(shape) - 1, -1, -1):
        if shape[i] == 1:
            strides[i] = strides[i + 1] * shape[i + 1] if i + 1 < len(shape) else 1
    return tuple(strides)


def shares_cache_sets(step: int) -> bool:
    """Tell whether rows `step` elements apart compete for a few sets of the L1 cache."""
    return step > 0 and step % ALIASING_ROW == 0


def padded_row(row: int) -> int:
    """Return the row stride for rows of `row` elements.

    Rows a large power of two apart compete for a few sets of the L1 cache: a tile of a matrix
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
