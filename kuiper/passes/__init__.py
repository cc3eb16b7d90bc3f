"""Graph passes: they rewrite a graph for speed, or into fewer kinds of operators.

::

    eliminate_*    take out what changes nothing, or is there twice
    simplify_*     the same for parts of an expression
    split_*        one operator that kernels have no word for becomes several
    fold_*         constants are computed now
    fuse_*         a step over memory disappears into its neighbour
    free_*         what the export froze becomes what the inputs have; runs first, without `specs`
    restore_*      what the export left out comes back; runs once, when a model is loaded
    write_*        writing in place becomes copying; runs once, too
    thaw           as free_*, for what a model computes on its way; runs where a model is cut

A pass is a function ``f(graph, specs)``: it changes the graph in place and keeps `specs`, the
shapes and dtypes of all operands for the sizes at hand, up to date for operands that it adds.
Passes run in the order of :data:`PASSES`, once per plan, so they may rely on the actual shapes.
With ``KUIPER_DEBUG=1`` the graph is verified after each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from kuiper.errors import GraphError
from kuiper.ir import Graph, Operand
from kuiper.passes.eliminate import eliminate_dead, eliminate_identity
from kuiper.passes.eliminate_common import eliminate_common
from kuiper.passes.fold_batch_norm import fold_batch_norm, split_batch_norm
from kuiper.passes.fold_constants import fold_constants
from kuiper.passes.free_batch import free_batch
from kuiper.passes.fuse_activation import fuse_activation
from kuiper.passes.fuse_branches import fuse_branches
from kuiper.passes.fuse_elementwise import fuse_elementwise
from kuiper.passes.fuse_expand import fuse_expand
from kuiper.passes.fuse_gate import fuse_gate
from kuiper.passes.fuse_pad import fuse_pad
from kuiper.passes.fuse_residual import fuse_residual
from kuiper.passes.restore_indices import restore_indices
from kuiper.passes.restore_masks import restore_masks
from kuiper.passes.restore_outputs import restore_outputs
from kuiper.passes.restore_quotients import restore_quotients
from kuiper.passes.same_padding import sized_margins
from kuiper.passes.simplify_expression import simplify_expression
from kuiper.passes.split_encoder_layer import split_encoder_layer
from kuiper.passes.split_list import split_list
from kuiper.passes.write_views import write_views

__all__ = [
    "NEEDED",
    "PASSES",
    "PassReport",
    "free_batch",
    "optimize",
    "restore_indices",
    "restore_masks",
    "restore_outputs",
    "restore_quotients",
    "sized_margins",
    "write_views",
]

Pass = Callable[[Graph, dict[Operand, Any]], None]
Evaluate = Callable[[Graph], list[np.ndarray]]

# What planning relies on; the rest is for speed.  What nobody reads is not computed in any case:
# where only its values are wrong, a model must not fail one way and run the other.
NEEDED: tuple[Pass, ...] = (split_list, split_encoder_layer, eliminate_dead)

PASSES: tuple[Pass, ...] = (
    split_list,
    split_encoder_layer,
    eliminate_identity,
    simplify_expression,
    eliminate_common,
    fold_constants,
    eliminate_dead,
    fuse_pad,
    fold_batch_norm,
    fuse_branches,
    split_batch_norm,
    fuse_activation,
    fuse_residual,
    fuse_gate,
    fuse_expand,
    fuse_elementwise,
    eliminate_dead,
)


class PassReport(NamedTuple):
    """What one pass did.

    Attributes
    ----------
    name : str
        Of the pass.
    removed, added, changed : tuple of str
        Names of operators; changed are those of another type, parameters or inputs.
    """

    name: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    changed: tuple[str, ...]

    def __str__(self) -> str:
        parts = [
            f"{word} {len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
            for word, names in (
                ("removed", self.removed),
                ("added", self.added),
                ("changed", self.changed),
            )
            if names
        ]
        return f"{self.name}: {'; '.join(parts) or 'nothing'}"


def optimize(
    graph: Graph,
    specs: dict[Operand, Any],
    evaluate: Evaluate | None = None,
    passes: tuple[Pass, ...] | None = None,
) -> tuple[PassReport, ...]:
    """Run passes on `graph`, in place.

    Parameters
    ----------
    graph : Graph
    specs : dict of Operand to (TensorSpec or Host)
        What :func:`kuiper._shapes.infer_specs` found.
    evaluate : callable, optional
        Runs a graph without inputs and returns its outputs; without it constants are not folded.
    passes : tuple of callable, optional
        By default :data:`PASSES`.

    Returns
    -------
    tuple of PassReport

    Raises
    ------
    GraphError
        With ``KUIPER_DEBUG=1``, if a pass broke the graph; it is named.
    """
    debug = os.environ.get("KUIPER_DEBUG") == "1"
    reports = []
    before = _snapshot(graph)
    for run in PASSES if passes is None else passes:
        name = run.__name__
        if run is fold_constants:
            run = partial(fold_constants, evaluate=evaluate)
        run(graph, specs)
        after = _snapshot(graph)
        reports.append(
            PassReport(
                name,
                tuple(key for key in before if key not in after),
                tuple(key for key in after if key not in before),
                tuple(key for key in after if key in before and after[key] != before[key]),
            )
        )
        before = after
        if debug:
            try:
                graph.verify()
            except GraphError as error:
                raise GraphError(f"after pass {name}: {error}") from error
    return tuple(reports)


def _snapshot(graph: Graph) -> dict[str, tuple[Any, ...]]:
    """Return what tells whether a pass touched an operator."""
    return {
        op.name: (op.type, id(op.params), id(op.attributes), op.inputs, op.post_ops) for op in graph
    }
