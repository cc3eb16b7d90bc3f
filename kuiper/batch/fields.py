"""Types of columns, and their counterparts in Arrow and in Spark's schemas.

A type is the name of a numpy dtype, ``"string"`` or ``"binary"``; a list with the type of its
items; or a dict with the types of its fields.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

__all__ = ["Type", "arrow_type", "ddl_type", "missing", "of_tensor"]

Type: TypeAlias = "str | list[Any] | dict[str, Any]"

# Spark has no unsigned integers: the next wider type holds their values.
_DDL = {
    "string": "string", "binary": "binary", "bool": "boolean", "float16": "float",
    "float32": "float", "float64": "double", "int8": "tinyint", "int16": "smallint",
    "int32": "int", "int64": "bigint", "uint8": "smallint", "uint16": "int", "uint32": "bigint",
}  # fmt: skip


def of_tensor(dtype: np.dtype, rank: int) -> Type:
    """Return the type of a column whose values are tensors of `rank` axes."""
    type: Type = dtype.name
    for _ in range(rank):
        type = [type]
    return type


def arrow_type(type: Type) -> Any:
    """Return the type of pyarrow."""
    import pyarrow as pa

    if isinstance(type, list):
        return pa.list_(arrow_type(type[0]))
    if isinstance(type, dict):
        return pa.struct([(name, arrow_type(field)) for name, field in type.items()])
    return {"string": pa.string(), "binary": pa.binary(), "bool": pa.bool_()}.get(
        type
    ) or pa.from_numpy_dtype(np.dtype(type))


def ddl_type(type: Type) -> str:
    """Return the type in Spark's schema language."""
    if isinstance(type, list):
        return f"array<{ddl_type(type[0])}>"
    if isinstance(type, dict):
        return f"struct<{','.join(f'{name}:{ddl_type(field)}' for name, field in type.items())}>"
    return _DDL[type]


def missing(type: Type) -> Any:
    """Return what stands for a missing value in a column of numpy: NaN, -1 or None."""
    if not isinstance(type, str) or type in ("string", "binary"):
        return None
    return {"f": np.nan, "c": np.nan, "i": -1}.get(np.dtype(type).kind, 0)
