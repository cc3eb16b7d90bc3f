"""Restore the outputs of recurrent modules that the export dropped or reordered.

pnnx keeps only the outputs that are read, in the order in which the trace computed them.  The
annotated shapes identify them::

    nn.LSTM l 1 1 x h hidden_size=8 #x=(4,2,6)f32 #h=(1,2,8)f32      ->   nn.LSTM l 1 3 x y h c
    nn.GRU  g 1 2 x h y hidden_size=7 #x=(5,6)f32 #h=(1,7)f32 #y=(5,7)f32  ->  nn.GRU g 1 2 x y h
"""

from __future__ import annotations

from kuiper.ir import Graph, Operand, Operator
from kuiper.ir.attribute import Shape

__all__ = ["restore_outputs"]

OUTPUTS = {"nn.LSTM": ("y", "h", "c"), "nn.GRU": ("y", "h"), "nn.RNN": ("y", "h")}


def restore_outputs(graph: Graph) -> None:
    """Give recurrent modules all their outputs in PyTorch's order; only annotations are needed."""
    for op in graph:
        indices = _output_indices(op) if op.type in OUTPUTS else None
        if indices is None or indices == list(range(len(indices))):
            continue
        outputs: list[Operand | None] = [None] * len(OUTPUTS[op.type])
        for index, operand in zip(indices, op.outputs, strict=True):
            outputs[index] = operand
        graph.set_outputs(
            op,
            [
                graph.add_operand(graph.unique_name(f"{op.name}_{name}"))
                if operand is None
                else operand
                for name, operand in zip(OUTPUTS[op.type], outputs, strict=True)
            ],
        )


def _output_indices(op: Operator) -> list[int] | None:
    """Return the index in PyTorch's order of each output; None if the shapes do not fit."""
    expected = _shapes(op)
    indices: list[int] = []
    for operand in op.outputs:
        fitting = [
            index
            for index, shape in enumerate(expected)
            if index not in indices and _fits(operand.shape, shape)
        ]
        if not fitting:
            return None
        indices.append(fitting[0])
    return indices


def _shapes(op: Operator) -> list[Shape]:
    """Return the shapes of all outputs for the annotated input."""
    source = op.inputs[0].shape if op.inputs else None
    if source is None or len(source) not in (2, 3):
        return []
    params = op.params
    directions = 2 if params.get("bidirectional") else 1
    hidden = params.get("hidden_size")
    state = params.get("proj_size") or hidden
    layers = params.get("num_layers", 1)
    if not (isinstance(hidden, int) and isinstance(state, int) and isinstance(layers, int)):
        return []
    batch = () if len(source) == 2 else (source[0 if params.get("batch_first") else 1],)
    shapes: list[Shape] = [(*source[:-1], directions * state), (layers * directions, *batch, state)]
    if op.type == "nn.LSTM":
        shapes.append((layers * directions, *batch, hidden))
    return shapes


def _fits(shape: Shape | None, expected: Shape) -> bool:
    return shape is not None and (
        len(shape) == len(expected)
        and all(None in (a, b) or a == b for a, b in zip(shape, expected, strict=True))
    )
