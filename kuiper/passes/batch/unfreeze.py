"""Let a model that was exported with one batch size run with another.

With a single ``inputshape`` pnnx writes the targets of reshapes and expands as traced extents, that
of the batch included, and drops an expand that changed nothing::

    Tensor.reshape  r 1 1 x y shape=(1,64,8,7,8,7)    #x=(1,64,56,56)f32
    torch.cat       c 2 1 token x y dim=1             #token=(1,1,768)f32 #x=(1,196,768)f32

For a batch of 8 this pass follows the batch from the inputs through the graph, by the batch rule of
each record (:mod:`kuiper.ops.core.batch`), and writes its extent::

    Tensor.reshape  r 1 1 x y shape=(8,64,8,7,8,7)
    Tensor.expand   e 1 1 token token_0 sizes=(8,-1,-1)
    torch.cat       c 2 1 token_0 x y dim=1

::

    unfreeze    which axes of the inputs hold the batch
    search      which axes of all operands
    members     indices that count or list the members
    rewrite     writes the batch into the graph
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from kuiper.errors import KuiperError
from kuiper.ir import Graph, Operand
from kuiper.ir.dtypes import DTYPES
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.batch import BatchAxis
from kuiper.passes.batch.rewrite import Written, write_batch
from kuiper.passes.batch.search import BatchSearch, Infer

__all__ = ["batch_start", "unfreeze_batch"]


def unfreeze_batch(graph: Graph, shapes: Sequence[tuple[int, ...]], infer: Infer) -> Written:
    """Write the batch size of `shapes` wherever the graph provably holds the traced one.

    Parameters
    ----------
    graph : Graph
        Changed in place if the shapes differ from the traced ones in the batch axis.
    shapes : sequence of tuple of int
        Of the inputs of a run.
    infer : callable
        Returns the specs of all operands whose shapes do not depend on data.

    Returns
    -------
    str
        What the change depends on: "nothing" if there is none; "axes", the result of
        :func:`batch_start` without the batch size; or "extent", the batch size as well.
    """
    starts, pair = _batch_axes(graph, shapes)
    if pair is None:
        return "nothing"
    traced, batch = pair
    try:
        specs = infer(graph, {o: TensorSpec(o.required_shape, _dtype(o)) for o in graph.inputs})
    except KuiperError:
        return "nothing"  # the annotations are not those of a trace
    search = BatchSearch(graph, specs, starts, traced)
    search.run()
    return write_batch(search, batch)


def batch_start(graph: Graph, shapes: Sequence[tuple[int, ...]]) -> tuple[Hashable, int]:
    """Return where the search for the batch starts, hashable, and the batch size to write.

    The search follows from the graph and the first alone; that is None, and nothing is written, if
    no axis of an input holds a batch that differs from the traced one.
    """
    starts, pair = _batch_axes(graph, shapes)
    if pair is None:
        return None, 0
    return (pair[0], *[(operand.name, *axis) for operand, axis in starts.items()]), pair[1]


def _dtype(operand: Operand) -> np.dtype:
    return DTYPES["f32" if operand.dtype is None else operand.dtype].value


def _batch_axes(
    graph: Graph, shapes: Sequence[tuple[int, ...]]
) -> tuple[dict[Operand, BatchAxis], tuple[int, int] | None]:
    """Return the axis of each input that holds the batch, and (traced, wanted) extents."""
    starts: dict[Operand, BatchAxis] = {}
    pair: tuple[int, int] | None = None
    for operand, shape in zip(graph.inputs, shapes, strict=True):
        if operand.shape is None or None in operand.shape or len(operand.shape) != len(shape):
            return {}, None
        traced = operand.required_shape
        changed = [d for d, (was, now) in enumerate(zip(traced, shape, strict=True)) if was != now]
        if not changed:
            continue
        # Usually the first; the states of a recurrent layer have it second.
        axes = [d for d in changed if pair in (None, (traced[d], shape[d]))]
        if not axes or not traced[axes[0]]:
            return {}, None
        starts[operand] = BatchAxis(axes[0])
        pair = traced[axes[0]], shape[axes[0]]
    return starts, pair
