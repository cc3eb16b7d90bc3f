"""Graph passes: they rewrite a graph for speed, or into fewer kinds of operators.

::

    eliminate_*    take out what changes nothing
    split_*        one operator that kernels have no word for becomes several
    fold_*         constants are computed now
    fuse_*         a step over memory disappears into its neighbour
    free_*         what the export froze becomes variable again; runs once, when a model is loaded
    restore_*      what the export left out comes back; runs once, too

A pass is a function ``f(graph, specs)``: it changes the graph in place and keeps `specs`, the
shapes and dtypes of all operands for the sizes at hand, up to date for operands that it adds.
Passes run in the order of :data:`PASSES`, once per plan, so they may rely on the actual shapes.
With ``KUIPER_DEBUG=1`` the graph is verified after each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from kuiper.errors import GraphError
from kuiper.ir import Graph, Operand
from kuiper.passes.eliminate import eliminate_dead, eliminate_identity
from kuiper.passes.fold_batch_norm import fold_batch_norm
from kuiper.passes.free_batch import free_batch
from kuiper.passes.fuse_activation import fuse_activation
from kuiper.passes.fuse_elementwise import fuse_elementwise
from kuiper.passes.fuse_pad import fuse_pad
from kuiper.passes.fuse_residual import fuse_residual
from kuiper.passes.restore_outputs import restore_outputs
from kuiper.passes.split_list import split_list

__all__ = ["PASSES", "free_batch", "optimize", "restore_outputs"]

Pass = Callable[[Graph, dict[Operand, Any]], None]

PASSES: tuple[Pass, ...] = (
    split_list,
    eliminate_identity,
    eliminate_dead,
    fuse_pad,
    fold_batch_norm,
    fuse_activation,
    fuse_residual,
    fuse_elementwise,
    eliminate_dead,
)


def optimize(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Run every pass on `graph`, in place.

    Parameters
    ----------
    graph : Graph
    specs : dict of Operand to (TensorSpec or Host)
        What :func:`kuiper.plan.infer_specs` found.

    Raises
    ------
    GraphError
        With ``KUIPER_DEBUG=1``, if a pass broke the graph; it is named.
    """
    debug = os.environ.get("KUIPER_DEBUG") == "1"
    for run in PASSES:
        run(graph, specs)
        if debug:
            try:
                graph.verify()
            except GraphError as error:
                raise GraphError(f"after pass {run.__name__}: {error}") from error
