"""Take out operators that change nothing."""

from __future__ import annotations

from typing import Any

from kuiper.ir import Graph, Operand

__all__ = ["eliminate_dead", "eliminate_identity"]

# At inference these hand their first input on.
IDENTITIES = frozenset(
    [
        "nn.Dropout",
        "nn.Dropout1d",
        "nn.Dropout2d",
        "nn.Dropout3d",
        "nn.AlphaDropout",
        "nn.FeatureAlphaDropout",
        "F.dropout",
        "F.dropout1d",
        "F.dropout2d",
        "F.dropout3d",
        "F.alpha_dropout",
        "F.feature_alpha_dropout",
        "nn.Identity",
        "Tensor.contiguous",
        "torch.clone",
        "Tensor.clone",
        "Tensor.detach",
    ]
)


def eliminate_identity(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Let the readers of an identity read its input; outputs of the model keep their names."""
    for op in graph:
        if op.type in IDENTITIES and op.inputs:
            graph.replace_uses(op.outputs[0], op.inputs[0])
            graph.remove_operator(op)


def eliminate_dead(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Drop operators whose outputs nothing reads."""
    for op in reversed(graph.topological_order()):
        if op.type in ("pnnx.Input", "pnnx.Output"):
            continue
        if not any(operand.uses for operand in op.outputs):
            graph.remove_operator(op)
