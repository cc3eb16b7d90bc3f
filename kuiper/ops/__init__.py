"""Operator records: what kuiper knows of each operator, each in one place.

::

    ops/core/schema.py     typed arguments, and where PNNX keeps them
    ops/core/record.py     the registry
    ops/core/type_index.py the module that holds each operator type, made by docs/make_operators.py
    ops/core/epilogue.py       activations and sums fused onto an operator
    <family>.py    the records

A record declares names, arguments, shape inference and binding; argument checks, the list of
supported operators, its documentation and its tests follow from it.  Records import kernels and
values, never the planner: what they need of it comes in as the `Binder`.
"""

from __future__ import annotations

from kuiper.ops.core.record import (
    Record,
    find_record,
    function_of,
    record,
    record_or_none,
    registered_types,
)

__all__ = [
    "Record",
    "find_record",
    "function_of",
    "record",
    "record_or_none",
    "registered_types",
]
