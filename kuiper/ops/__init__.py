"""Operator records: what kuiper knows of each operator, each in one place.

::

    _schema.py     typed arguments, and where PNNX keeps them
    _record.py     the registry
    _post.py       activations and sums fused onto an operator
    <family>.py    the records

A record declares names, arguments, shape inference and binding; argument checks, the list of
supported operators, its documentation and its tests follow from it.  Records import kernels and
values, never the planner: what they need of it comes in as the `Binder`.
"""

from __future__ import annotations

from kuiper.ops._record import (
    Record,
    find_record,
    function_of,
    known_record,
    record,
    registered_types,
    set_families,
)

# The files of records, those that most models use first: a family is imported when a type is looked
# up that none before it has.
set_families(
    "convolution",
    "activation",
    "elementwise",
    "pooling",
    "linear",
    "shape",
    "joining",
    "cutting",
    "repetition",
    "rearranging",
    "graph",
    "batch_norm",
    "softmax",
    "reduce",
    "resize",
    "padding",
    "normalization",
    "attention",
    "casts",
    "comparison",
    "convolution3d",
    "creation",
    "indexing",
    "gathering",
    "masking",
    "writing",
    "embedding",
    "recurrent",
    "selection",
    "spectral",
    "einsum",
    "views",
    "statistics",
    "sorting",
    "matrix",
    "folding",
    "distance",
    "arithmetic",
    "sampling",
    "quantized",
    "detection",
)

__all__ = [
    "Record",
    "find_record",
    "function_of",
    "known_record",
    "record",
    "registered_types",
]
