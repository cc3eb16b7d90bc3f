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

from kuiper.ops import (  # noqa: F401
    activation,
    attention,
    batch_norm,
    casts,
    comparison,
    convolution,
    convolution3d,
    creation,
    elementwise,
    graph,
    indexing,
    linear,
    normalization,
    padding,
    pooling,
    recurrent,
    reduce,
    resize,
    shape,
    softmax,
    spectral,
)
from kuiper.ops._record import Record, find_record, record, registered_types

__all__ = ["Record", "find_record", "record", "registered_types"]
