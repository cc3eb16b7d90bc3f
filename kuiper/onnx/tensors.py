"""The tensors of an ONNX file: where their elements are, also in other files of its folder."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from kuiper.errors import ModelFormatError, OperatorError
from kuiper.ir import Attribute
from kuiper.ir.dtypes import DTYPES
from kuiper.onnx.values import Known
from kuiper.onnx.wire import Blob, SourceFile, TensorMessage, decode_varints

__all__ = ["ELEMENTS", "TensorReader", "element_dtype"]

MAX_RANK = 64  # numpy's
EXTERNAL = 1  # the location of tensors in another file

# ONNX's numbers of element types: PNNX's name, or numpy's of a type that only shapes and indices of
# a file have.
ELEMENTS: dict[int, str] = {
    1: "f32", 2: "u8", 3: "i8", 4: "uint16", 5: "i16", 6: "i32", 7: "i64", 9: "bool", 10: "f16",
    11: "f64", 12: "uint32", 13: "uint64", 14: "c64", 15: "c128", 16: "bf16",
}  # fmt: skip
_OTHERS = {
    8: "strings", 17: "float8", 18: "float8", 19: "float8", 20: "float8", 21: "4-bit integers",
    22: "4-bit integers", 23: "4-bit floats", 24: "float8", 25: "2-bit integers",
    26: "2-bit integers",
}  # fmt: skip


def element_dtype(number: int, where: str) -> np.dtype:
    """Return the dtype of the values of an element type: float32 for half precision.

    Raises
    ------
    OperatorError
        If kuiper has no such type.
    """
    name = ELEMENTS.get(number)
    if name is None:
        what = _OTHERS.get(number, f"elements of the unknown type {number}")
        raise OperatorError(f"{where}: has {what}, which kuiper does not support")
    if name in ("f16", "bf16"):
        return np.dtype(np.float32)
    return DTYPES[name].value if name in DTYPES else np.dtype(name)


class TensorReader:
    """Makes values of the tensors of a model.

    Parameters
    ----------
    file : SourceFile
        The model.
    path : str or None
        Its path; without one there are no other files.
    """

    def __init__(self, file: SourceFile, path: str | None) -> None:
        self.file = file
        self.path = path
        self._files: dict[str, SourceFile] = {}

    def known(self, tensor: TensorMessage, name: str = "") -> Known:
        """Return the value of a tensor.

        Raises
        ------
        ModelFormatError
            If the elements do not fit the shape, or lie in another folder.
        OperatorError
            If kuiper does not support the element type.
        OSError
            If another file cannot be read.
        """
        where = f"{self.file.name}: tensor '{name or tensor.name}'"
        value = element_dtype(tensor.element, where)
        kind = ELEMENTS[tensor.element]
        if len(tensor.dims) > MAX_RANK or min(tensor.dims, default=0) < 0:
            raise ModelFormatError(
                f"{where}: its shape is {listed(tensor.dims)}, expected up to {MAX_RANK} extents "
                "that are not negative"
            )
        shape = tuple(tensor.dims)
        size = math.prod(shape)
        if tensor.segment is not None:
            raise ModelFormatError(f"{where}: is stored in segments, expected one piece")
        if tensor.location == EXTERNAL:
            file, blob = self._external(tensor, where)
        elif tensor.raw is not None:
            file, blob = self.file, tensor.raw
        else:
            return Known(self._listed(tensor, kind, shape, where))
        itemsize = DTYPES[kind].itemsize if kind in DTYPES else value.itemsize
        if blob.nbytes != size * itemsize:
            raise ModelFormatError(
                f"{where}: has {blob.nbytes} bytes, its shape {listed(shape)} takes "
                f"{size * itemsize}"
            )
        if kind not in DTYPES:
            little = file.read(*blob).view(value.newbyteorder("<"))
            return Known(little.astype(value).reshape(shape))
        rows: Any = file.rows(blob, shape[0]) if shape and size else file.read(*blob)
        return Known(Attribute(shape, kind, rows))

    def _listed(
        self, tensor: TensorMessage, kind: str, shape: tuple[int, ...], where: str
    ) -> np.ndarray | Attribute:
        """Return elements that are written as numbers of the message."""
        if kind in ("f32", "c64"):
            array = self._fixed(tensor.floats, "<f4")
        elif kind in ("f64", "c128"):
            array = self._fixed(tensor.doubles, "<f8")
        elif kind in ("uint32", "uint64"):
            array = self._varints(tensor.uint64s).view(np.uint64)
        else:
            array = self._varints(tensor.int64s if kind == "i64" else tensor.int32s)
        if kind in ("c64", "c128"):
            array = array[: array.size // 2 * 2].view(np.complex64 if kind == "c64" else complex)
        if array.size != math.prod(shape):
            raise ModelFormatError(
                f"{where}: has {array.size} elements, its shape {listed(shape)} takes "
                f"{math.prod(shape)}"
            )
        if kind in ("f16", "bf16"):
            return Attribute(shape, kind, array.astype("<u2").view(np.uint8))
        target = DTYPES[kind].value if kind in DTYPES else np.dtype(kind)
        return array.astype(target, copy=False).reshape(shape)

    def _fixed(self, blobs: Any, dtype: str) -> np.ndarray:
        raw = b"".join(self.file.read(*blob).tobytes() for blob in blobs)
        return np.frombuffer(
            raw[: len(raw) // 8 * 8 if dtype == "<f8" else len(raw) // 4 * 4], dtype
        )

    def _varints(self, blobs: Any) -> np.ndarray:
        raw = b"".join(self.file.read(*blob).tobytes() for blob in blobs)
        return decode_varints(raw, lambda at, text: ModelFormatError(f"{self.file.name}: {text}"))

    def _external(self, tensor: TensorMessage, where: str) -> tuple[SourceFile, Blob]:
        """Return the file that has the elements, and where."""
        facts = {entry.key: entry.value for entry in tensor.external}
        location = facts.get("location", "")
        if self.path is None:
            raise ModelFormatError(
                f"{where}: its elements are in the file '{location}'; load the model by its path"
            )
        file = self._files.get(location)
        if file is None:
            path = self._safe_path(location, where)
            try:
                file = SourceFile(path, path)
            except FileNotFoundError as error:
                raise FileNotFoundError(
                    error.errno, f"{where}: its elements are in a file that is missing", path
                ) from None
            self._files[location] = file
        try:
            offset = int(facts.get("offset") or 0)
            length = int(facts.get("length") or file.size - offset)
        except ValueError:
            raise ModelFormatError(f"{where}: offset or length is no number") from None
        if offset < 0 or length < 0 or offset > file.size or length > file.size - offset:
            raise ModelFormatError(
                f"{where}: has {length} bytes from byte {offset} on, but {file.name} has "
                f"{file.size}"
            )
        return file, Blob(offset, length)

    def _safe_path(self, location: str, where: str) -> str:
        """Return the path of a file in the folder of the model, or of what the model links to."""
        assert self.path is not None
        parts = location.replace("\\", "/").split("/")
        bad = not location or os.path.isabs(location) or ".." in parts or ":" in parts[0]
        path = os.path.join(os.path.dirname(self.path), *(p for p in parts if p != "."))
        if bad or "\0" in location:
            raise ModelFormatError(
                f"{where}: its elements are in '{location[:200]}', expected a file in the folder "
                "of the model"
            )
        found = os.path.realpath(path)
        folders = {
            os.path.realpath(os.path.dirname(self.path) or "."),
            os.path.dirname(os.path.realpath(self.path)),
        }
        if not any(found.startswith(os.path.join(folder, "")) for folder in folders):
            raise ModelFormatError(
                f"{where}: its elements are in '{location[:200]}', which is a link out of the "
                "folder of the model"
            )
        return path


def listed(shape: Any) -> str:
    """Return a shape for a message, shortened."""
    text = ",".join(map(str, shape[:8]))
    return f"({text}{',...' if len(shape) > 8 else ''})"
