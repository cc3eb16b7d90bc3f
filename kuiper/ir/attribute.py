"""Attributes: the weights of operators, in memory or still in a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import numpy as np

from kuiper.errors import GraphError
from kuiper.ir.dtypes import DTYPES, from_numpy

__all__ = ["Attribute", "MissingWeights", "Shape", "signature"]

Shape = tuple["int | None", ...]


class MissingWeights:
    """The source of weights whose archive was not found: only shapes and dtypes are known.

    Parameters
    ----------
    error : Exception
        Raised when values are read.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, start: int, stop: int) -> Any:
        raise self.error.with_traceback(None)


class Attribute:
    """A weight of an operator, as the bytes of the archive.

    Parameters
    ----------
    shape : sequence of int
        Extents; ``()`` is a 0-d tensor with one element.
    dtype : str
        PNNX name of the element type, such as ``"f32"`` or ``"bf16"``.
    raw : numpy.ndarray, callable or object with a method `read`
        The little-endian C-order bytes, uint8, 1-d; possibly an unaligned, read-only view of a
        file's bytes.  A function ``raw(start, stop)``, or a method ``raw.read(start, stop)`` if the
        weight is still in a file, returns the bytes of these rows of the first axis on each call,
        so that they take memory only while the caller keeps them.
    """

    __slots__ = ("_last", "_source", "dtype", "shape")

    def __init__(
        self, shape: Sequence[int], dtype: str, raw: np.ndarray | Callable[[int, int], Any] | Any
    ) -> None:
        self.shape = tuple(int(n) for n in shape)
        self.dtype = dtype
        self._source = raw
        self._last: ref[np.ndarray] | None = None
        if isinstance(raw, np.ndarray) and (
            raw.dtype != np.uint8 or raw.ndim != 1 or raw.size != self.nbytes
        ):
            raise GraphError(
                f"attribute {self.shape}{dtype} takes {self.nbytes} bytes, got {raw.dtype} "
                f"{raw.shape}"
            )

    @property
    def raw(self) -> np.ndarray:
        """The bytes; the same array while a reference to it or to a view of it exists.

        Raises
        ------
        ModelFormatError
            If they are still in the file, and the file has changed since it was loaded.
        """
        if isinstance(self._source, np.ndarray):
            return self._source
        raw = None if self._last is None else self._last()
        if raw is None:
            raw = self._read(0, self.shape[0] if self.shape else 1)
            self._last = ref(raw)
        return raw

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle with the bytes, read from the file if need be."""
        return Attribute, (self.shape, self.dtype, self.raw)

    @classmethod
    def from_array(cls, array: np.ndarray, dtype: str | None = None) -> Attribute:
        """Make an attribute of a numpy array.

        Parameters
        ----------
        array : array-like
            Not copied if it is contiguous and already has the type.
        dtype : str, optional
            PNNX name of the element type; by default the array's own.

        Returns
        -------
        Attribute

        Raises
        ------
        GraphError
            If PNNX has no such element type.
        """
        array = np.asarray(array)
        try:
            target = from_numpy(array.dtype) if dtype is None else DTYPES[dtype]
        except KeyError:
            raise GraphError(
                f"PNNX has no element type {dtype or array.dtype}; known: {', '.join(DTYPES)}"
            ) from None
        dtype, shape = target.name, array.shape
        if dtype == "bf16" and array.dtype != np.uint16:
            array = _to_bfloat16(array)
        if dtype == "c32":
            pairs = np.ascontiguousarray(array, np.complex64).view(np.float32)
            data = pairs.astype(np.float16)
        else:
            data = np.ascontiguousarray(array, dtype=target.storage)
        return cls(shape, dtype, data.reshape(-1).view(np.uint8))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.size * DTYPES[self.dtype].itemsize

    def numpy(self) -> np.ndarray:
        """Return the values, without a copy if numpy has the type.

        bf16 becomes float32 and c32 complex64.  The result may be unaligned and read-only.
        """
        return self._values(self.raw, self.shape)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return the values at [start, stop) of the first axis, and read no others.

        Parameters
        ----------
        start, stop : int

        Returns
        -------
        numpy.ndarray
            As :meth:`numpy`.
        """
        if isinstance(self._source, np.ndarray):
            return self.numpy()[start:stop]
        return self._values(self._read(start, stop), (stop - start, *self.shape[1:]))

    def _read(self, start: int, stop: int) -> np.ndarray:
        read: Any = getattr(self._source, "read", self._source)
        return read(start, stop)

    def _values(self, raw: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        if self.dtype == "bf16":
            bits = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
            return bits.view(np.float32).reshape(shape)
        if self.dtype == "c32":
            pairs = np.frombuffer(raw, "<f2").astype(np.float32)
            return pairs.view(np.complex64).reshape(shape)
        return np.frombuffer(raw, DTYPES[self.dtype].storage).reshape(shape)

    @property
    def missing(self) -> Exception | None:
        """The error of reading the values, if their archive was not found; None otherwise."""
        return self._source.error if isinstance(self._source, MissingWeights) else None

    @property
    def in_file(self) -> Any:
        """The reader of float32 values that are still in a file; None for all others."""
        is_plain = self.dtype == "f32" and DTYPES["f32"].storage.isnative
        return self._source if is_plain and hasattr(self._source, "read") else None

    def float32(self) -> np.ndarray:
        """Return the values as aligned C-order float32, copied only if need be."""
        return np.require(self.numpy(), np.float32, ["C", "A"])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Attribute):
            return NotImplemented
        return (
            self.shape == other.shape
            and self.dtype == other.dtype
            and np.array_equal(self.raw, other.raw)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Attribute {signature(self.shape, self.dtype)}>"


def signature(shape: Shape, dtype: str | None) -> str:
    """Return a shape and an element type as in files: ``(1,?,3)f32``."""
    return f"({','.join('?' if n is None else str(n) for n in shape)}){dtype or ''}"


def _to_bfloat16(array: np.ndarray) -> np.ndarray:
    """Round float32 to its upper 16 bits, half to even; NaN stays NaN."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array), (bits >> 16) | 0x40, rounded).astype(np.uint16)
