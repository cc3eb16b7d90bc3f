"""Graph passes: restore what an export lost, unfreeze the batch, and optimize.

::

    restore/    what the export lost
        outputs, masks, indices, quotients, write_views    once, when a model is loaded
        split_list, split_encoder_layer     one operator without a kernel becomes several
        refine_shapes                       once per segment, with the shapes that came out
        same_padding                        a diagnosis: padding that depends on the image size
    batch/      one export, any batch; once per plan, before shapes are known
    optimize/   fewer, faster operators; once per plan, with all shapes known
        eliminate, eliminate_common         remove what changes nothing or exists twice
        simplify_expression                 the same for parts of an expression
        fold_*                              compute constants while planning
        fuse_*                              merge a pass over memory into its neighbour

A pass is a function ``f(graph, specs)``.  It changes the graph in place and keeps `specs`, the
shapes and dtypes of all operands, up to date for the operands that it adds.  The passes of
:data:`PASSES` run in order, so they may rely on the actual shapes.  They run once per plan, or not
at all for a plan for which they would read the same (:mod:`kuiper.planning.kept_graph`); a pass
that depends on an extent asks :meth:`~kuiper.ir.view.TensorSpec.tells`.  A pass that concerns a few
operator types is imported when a graph has one of them.  With ``KUIPER_DEBUG=1`` the graph is
verified after each pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from kuiper.errors import GraphError
from kuiper.ir import Graph, Operand

__all__ = [
    "NEEDED",
    "PASSES",
    "Pass",
    "PassReport",
    "batch_start",
    "diagnose",
    "optimize_graph",
    "restore_exported",
    "unfreeze_batch",
]

Evaluate = Callable[[Graph], list[np.ndarray]]


class Pass:
    """A pass by its name; it is imported when it runs.

    Importing all passes would delay the first run of a ResNet by 7 ms.

    Parameters
    ----------
    path : str
        ``"module:function"`` in this package, or the module alone if the function has its name.
    *types : str
        The pass runs on graphs with an operator of one of these types; on all graphs without any.
    """

    def __init__(self, path: str, *types: str) -> None:
        self._module, _, function = path.partition(":")
        self.__name__ = function or self._module.rpartition(".")[2]
        self._types = frozenset(types)

    def concerns(self, types: Collection[str]) -> bool:
        """Tell whether the pass may change a graph with operators of these types."""
        return not self._types or not self._types.isdisjoint(types)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        function = getattr(import_module(f"kuiper.passes.{self._module}"), self.__name__)
        return function(*arguments, **options)


_RESTORING = (
    Pass("restore.outputs:restore_outputs", "nn.LSTM", "nn.GRU", "nn.RNN"),
    Pass(
        "restore.masks:restore_masks",
        "nn.MultiheadAttention",
        "nn.quantized.dynamic.MultiheadAttention",
    ),
    Pass("restore.indices:restore_indices", "Tensor.index"),
    Pass("restore.quotients:restore_quotients", "pnnx.Expression"),
    Pass("restore.write_views", "Tensor.copy"),
    Pass(
        "restore.quantized:restore_fake_quantized",
        "aten::fake_quantize_per_tensor_affine",
        "aten::fused_moving_avg_obs_fake_quant",
    ),
    Pass("restore.quantized:restore_products", "kuiper.DequantizeLinear"),
)
_UNFREEZE_BATCH = Pass("batch.unfreeze:unfreeze_batch")

_DIAGNOSES = (Pass("restore.same_padding:warn_of_sized_margins", "F.pad"),)

_NORMS = ("nn.BatchNorm1d", "nn.BatchNorm2d", "nn.BatchNorm3d")
_PADDINGS = ("nn.ZeroPad2d", "nn.ConstantPad2d", "F.pad", "kuiper.SamePadding")
_SPLIT_LIST = Pass("restore.split_list", "pnnx.Expression")
_SPLIT_ENCODER_LAYER = Pass("restore.split_encoder_layer", "aten::_transformer_encoder_layer_fwd")
_ELIMINATE_DEAD = Pass("optimize.eliminate:eliminate_dead")

# The passes that planning relies on; the others are for speed.  Dead operators are removed in both
# modes, so that none fails on the values of an operator that is never read.
NEEDED = (_SPLIT_LIST, _SPLIT_ENCODER_LAYER, _ELIMINATE_DEAD)

PASSES = (
    _SPLIT_LIST,
    _SPLIT_ENCODER_LAYER,
    Pass("optimize.eliminate:eliminate_identity"),
    Pass("optimize.simplify_expression", "pnnx.Expression"),
    Pass("optimize.eliminate_common"),
    Pass("optimize.fold_constants", "pnnx.Attribute"),
    _ELIMINATE_DEAD,
    Pass("optimize.fuse_pad", *_PADDINGS),
    Pass("optimize.fuse_quantized:fold_channel_factors", "nn.quantized.Conv2d"),
    Pass("optimize.fold_batch_norm", *_NORMS),
    Pass("optimize.fuse_branches", "pnnx.Expression"),
    Pass("optimize.fold_batch_norm:split_batch_norm", *_NORMS),
    Pass("optimize.fuse_activation"),
    Pass("optimize.fuse_residual", "pnnx.Expression"),
    Pass("optimize.move_quantized", "kuiper.QuantizeLinear", "kuiper.DequantizeLinear"),
    Pass("optimize.fuse_quantized:eliminate_quantized", "kuiper.QuantizeLinear"),
    Pass("optimize.fuse_quantized", "kuiper.QuantizeLinear", "kuiper.DequantizeLinear"),
    Pass("optimize.fuse_gate", "pnnx.Expression"),
    Pass("optimize.fuse_expand", "nn.Conv2d", "F.conv2d"),
    Pass("optimize.fuse_elementwise"),
    Pass("optimize.fuse_quantized_elementwise", "kuiper.QuantizeLinear", "kuiper.DequantizeLinear"),
    _ELIMINATE_DEAD,
)


def restore_exported(graph: Graph) -> None:
    """Restore what the export of a graph lost, in place."""
    for run in _RESTORING:
        if run.concerns(graph.type_counts()):
            run(graph)


def unfreeze_batch(
    graph: Graph, shapes: Sequence[tuple[int, ...]], infer: Callable[..., Any]
) -> str:
    """Rewrite a graph for another batch size than the traced one, in place.

    Parameters and result are those of :func:`kuiper.passes.batch.unfreeze.unfreeze_batch`.
    """
    return _UNFREEZE_BATCH(graph, shapes, infer) if _differs(graph, shapes) else "nothing"


def batch_start(graph: Graph, shapes: Sequence[tuple[int, ...]]) -> tuple[Hashable, int]:
    """Return what :func:`unfreeze_batch` does depends on: the start of its search, the extent.

    See :func:`kuiper.passes.batch.unfreeze.batch_start`.
    """
    if not _differs(graph, shapes):
        return None, 0
    from kuiper.passes.batch import unfreeze

    return unfreeze.batch_start(graph, shapes)


def _differs(graph: Graph, shapes: Sequence[tuple[int, ...]]) -> bool:
    return any(o.shape != shape for o, shape in zip(graph.inputs, shapes, strict=True))


def diagnose(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Log a warning if the file does not determine the results for inputs of these shapes."""
    for run in _DIAGNOSES:
        if run.concerns(graph.type_counts()):
            run(graph, specs)


class PassReport(NamedTuple):
    """The changes of one pass.

    Attributes
    ----------
    name : str
        Of the pass.
    removed, added, changed : tuple of str
        Names of operators; `changed` have another type, or other parameters, attributes, inputs or
        post-ops.
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


def optimize_graph(
    graph: Graph,
    specs: dict[Operand, Any],
    evaluate: Evaluate | None = None,
    passes: Sequence[Callable[..., None]] | None = None,
) -> tuple[PassReport, ...]:
    """Run passes on `graph`, in place.

    Parameters
    ----------
    graph : Graph
    specs : dict of Operand to (TensorSpec or StaticValue)
        The result of :func:`kuiper.planning.infer.infer_specs`.
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
    """Return the state of each operator, to detect changes."""
    return {
        op.name: (op.type, id(op.params), id(op.attributes), (*op._inputs,), op.post_ops)
        for op in graph._operators.values()
    }
