"""Graph passes: they rewrite a graph for speed, or into fewer kinds of operators.

::

    eliminate_*    take out what changes nothing, or is there twice
    simplify_*     the same for parts of an expression
    split_*        one operator that kernels have no word for becomes several
    fold_*         constants are computed now
    fuse_*         a step over memory disappears into its neighbour
    restore_*      what the export left out comes back; runs once, when a model is loaded
    write_*        writing in place becomes copying; runs once, too
    free_*         what the export froze becomes what the inputs have; runs first, without `specs`
    thaw           as free_*, for what a model computes on its way; runs where a model is cut

A pass is a function ``f(graph, specs)``: it changes the graph in place and keeps `specs`, the
shapes and dtypes of all operands for the sizes at hand, up to date for operands that it adds.
Passes run in the order of :data:`PASSES`, once per plan, so they may rely on the actual shapes.
Where a pass is only about operators of some types, it is imported when a graph has one.
With ``KUIPER_DEBUG=1`` the graph is verified after each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from kuiper.errors import GraphError
from kuiper.ir import Graph, Operand

__all__ = ["NEEDED", "PASSES", "Pass", "PassReport", "free", "optimize", "restore"]

Evaluate = Callable[[Graph], list[np.ndarray]]


class Pass:
    """A pass by its name; it is imported when it runs.

    Parameters
    ----------
    place : str
        Module and function; one word where these are called alike.
    *types : str
        Operator types; of a graph without any of them it changes nothing.  None for a pass that
        looks at everything.
    """

    def __init__(self, place: str, *types: str) -> None:
        self._module, _, function = place.partition(".")
        self.__name__ = function or self._module
        self._types = frozenset(types)

    def concerns(self, types: Collection[str]) -> bool:
        """Tell whether there may be something to do in a graph with operators of some types."""
        return not self._types or not self._types.isdisjoint(types)

    def __call__(self, *arguments: Any, **options: Any) -> None:
        function = getattr(import_module(f"kuiper.passes.{self._module}"), self.__name__)
        function(*arguments, **options)


_RESTORING = (
    Pass("restore_outputs", "nn.LSTM", "nn.GRU", "nn.RNN"),
    Pass("restore_masks", "Tensor.reshape", "nn.MultiheadAttention"),
    Pass("restore_indices", "Tensor.index"),
    Pass("restore_quotients", "pnnx.Expression"),
    Pass("write_views", "Tensor.copy"),
)

_NORMS = ("nn.BatchNorm1d", "nn.BatchNorm2d", "nn.BatchNorm3d")
_SPLIT_LIST = Pass("split_list", "pnnx.Expression")
_SPLIT_ENCODER_LAYER = Pass("split_encoder_layer", "aten::_transformer_encoder_layer_fwd")
_ELIMINATE_DEAD = Pass("eliminate.eliminate_dead")

# What planning relies on; the rest is for speed.  What nobody reads is not computed in any case:
# where only its values are wrong, a model must not fail one way and run the other.
NEEDED = (_SPLIT_LIST, _SPLIT_ENCODER_LAYER, _ELIMINATE_DEAD)

PASSES = (
    _SPLIT_LIST,
    _SPLIT_ENCODER_LAYER,
    Pass("eliminate.eliminate_identity"),
    Pass("simplify_expression", "pnnx.Expression"),
    Pass("eliminate_common"),
    Pass("fold_constants", "pnnx.Attribute"),
    _ELIMINATE_DEAD,
    Pass("fuse_pad", "nn.ZeroPad2d", "nn.ConstantPad2d", "F.pad", "kuiper.SamePadding"),
    Pass("fold_batch_norm", *_NORMS),
    Pass("fuse_branches", "pnnx.Expression"),
    Pass("fold_batch_norm.split_batch_norm", *_NORMS),
    Pass("fuse_activation"),
    Pass("fuse_residual", "pnnx.Expression"),
    Pass("fuse_gate", "pnnx.Expression"),
    Pass("fuse_expand", "nn.Conv2d", "F.conv2d"),
    Pass("fuse_elementwise"),
    _ELIMINATE_DEAD,
)


def restore(graph: Graph) -> None:
    """Bring back what the export of a graph left out, in place."""
    for run in _RESTORING:
        if run.concerns(graph.type_counts()):
            run(graph)


def free(graph: Graph, shapes: Sequence[tuple[int, ...]], infer: Callable[..., Any]) -> None:
    """Make a graph run with another batch than it was traced with, in place.

    Parameters are those of :func:`kuiper.passes.free_batch.free_batch`.
    """
    if any(o.shape != shape for o, shape in zip(graph.inputs, shapes, strict=True)):
        Pass("free_batch")(graph, shapes, infer)


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
    passes: Sequence[Callable[..., None]] | None = None,
) -> tuple[PassReport, ...]:
    """Run passes on `graph`, in place.

    Parameters
    ----------
    graph : Graph
    specs : dict of Operand to (TensorSpec or Host)
        What :func:`kuiper._shapes.infer_specs` found.
    evaluate : callable, optional
        Runs a graph without inputs and returns its outputs; without it constants are not folded.
    passes : sequence of (Pass or callable), optional
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
        if isinstance(run, Pass) and not run.concerns({state[0] for state in before.values()}):
            reports.append(PassReport(name, (), (), ()))
            continue
        options = {"evaluate": evaluate} if name == "fold_constants" else {}
        run(graph, specs, **options)
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
