"""Element types, by their names in PNNX, numpy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper._support.struct import Struct

__all__ = [
    "BFLOAT16",
    "DTYPES",
    "ElementType",
    "from_numpy",
    "from_scalar_type",
    "from_torch",
]

# Of tensors in memory; numpy has no such type, so this one is equal to no other of two bytes.
BFLOAT16 = np.dtype([("bfloat16", "<u2")])


class ElementType(Struct):
    """One element type.

    Attributes
    ----------
    name : str
        The name in a ``.param`` file, such as ``"f32"``.
    itemsize : int
        Bytes per element in the archive.
    storage : numpy.dtype
        Of the little-endian bytes; bf16 as its 16 bits, c32 as two float16 per element.
    value : numpy.dtype
        The type of computations; differs from `storage` only for types that numpy lacks (bf16,
        c32).
    torch : str
        PyTorch's name, as in parameters.
    """

    name: str
    itemsize: int
    storage: np.dtype
    value: np.dtype
    torch: str


def _dtype(name: str, storage: Any, torch: str, value: Any = None, parts: int = 1) -> ElementType:
    storage = np.dtype(storage).newbyteorder("<")
    value = storage if value is None else np.dtype(value)
    return ElementType(name, parts * storage.itemsize, storage, value, torch)


DTYPES: dict[str, ElementType] = {
    d.name: d
    for d in (
        _dtype("f32", np.float32, "torch.float"),
        _dtype("f64", np.float64, "torch.double"),
        _dtype("f16", np.float16, "torch.half"),
        _dtype("bf16", np.uint16, "torch.bfloat16", np.float32),
        _dtype("i8", np.int8, "torch.int8"),
        _dtype("i16", np.int16, "torch.short"),
        _dtype("i32", np.int32, "torch.int"),
        _dtype("i64", np.int64, "torch.long"),
        _dtype("u8", np.uint8, "torch.uint8"),
        _dtype("bool", np.bool_, "torch.bool"),
        _dtype("c64", np.complex64, "torch.complex64"),
        _dtype("c128", np.complex128, "torch.complex128"),
        _dtype("c32", np.float16, "torch.complex32", np.complex64, parts=2),
    )
}

# Without bf16 and c32, whose `value` is that of f32 and c64.
_BY_NUMPY = {d.value: d for d in DTYPES.values() if d.value == d.storage}

# Several types of PyTorch have two names.
_BY_TORCH = {d.torch: d for d in DTYPES.values()} | {
    f"torch.{alias}": DTYPES[name]
    for alias, name in {
        "float32": "f32",
        "float64": "f64",
        "float16": "f16",
        "int16": "i16",
        "int32": "i32",
        "int64": "i64",
        "cfloat": "c64",
        "cdouble": "c128",
        "chalf": "c32",
    }.items()
}

# The numbers of types among positional arguments; source: c10/core/ScalarType.h.
_SCALAR_TYPES = "u8 i8 i16 i32 i64 f16 f32 f64 c32 c64 c128 bool"
_BY_NUMBER = {number: DTYPES[name] for number, name in enumerate(_SCALAR_TYPES.split())}
_BY_NUMBER[15] = DTYPES["bf16"]


def from_numpy(dtype: Any) -> ElementType:
    """Return the element type of a numpy dtype; `KeyError` if PNNX has none."""
    return _BY_NUMPY[np.dtype(dtype).newbyteorder("=")]


def from_torch(name: str) -> ElementType:
    """Return the element type PyTorch calls `name`, such as ``"torch.float"``."""
    return _BY_TORCH[name]


def from_scalar_type(number: int) -> ElementType:
    """Return the element type of one of PyTorch's ScalarType numbers."""
    return _BY_NUMBER[number]
