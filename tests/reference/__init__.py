"""Independent numpy implementation of every operator.

One function per operator, one file per family.  Each takes PyTorch's arguments under PyTorch's
names, computes in float64 and follows the formula in PyTorch's documentation as literally as
possible.  Nothing in here may import kuiper.

:data:`REFERENCES` maps the names a ``.param`` file uses to these functions, and
:func:`run_graph` evaluates a whole graph with them::

    run_graph(read_graph(param_bytes, bin_bytes), inputs)  ->  list of outputs
"""

from . import (
    activation,
    arithmetic,
    attention,
    casts,
    comparison,
    convolution,
    creation,
    detection,
    distance,
    einsum,
    expression,
    folding,
    indexing,
    linear,
    matrix,
    normalization,
    padding,
    plumbing,
    pooling,
    quantized,
    recurrent,
    reduce,
    resize,
    sampling,
    selection,
    shape,
    softmax,
    sorting,
    spectral,
    statistics,
    views,
)
from .graph import Node, read_graph, run_graph, trace_graph
from .registry import REFERENCES

__all__ = [
    "REFERENCES",
    "Node",
    "activation",
    "arithmetic",
    "attention",
    "casts",
    "comparison",
    "convolution",
    "creation",
    "detection",
    "distance",
    "einsum",
    "expression",
    "folding",
    "indexing",
    "linear",
    "matrix",
    "normalization",
    "padding",
    "plumbing",
    "pooling",
    "quantized",
    "read_graph",
    "recurrent",
    "reduce",
    "resize",
    "run_graph",
    "sampling",
    "selection",
    "shape",
    "softmax",
    "sorting",
    "spectral",
    "statistics",
    "trace_graph",
    "views",
]
