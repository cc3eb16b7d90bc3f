"""Restore the outputs of recurrent modules that the export dropped or reordered.

pnnx keeps only the outputs that are read, in the order in which the trace read them.  The annotated
shapes identify them::

    nn.LSTM l 1 1 x h hidden_size=8 #x=(4,2,6)f32 #h=(1,2,8)f32      ->   nn.LSTM l 1 3 x y h c
    nn.GRU  g 1 2 x h y hidden_size=7 #x=(5,6)f32 #h=(1,7)f32 #y=(5,7)f32  ->  nn.GRU g 1 2 x y h

What proves each change:

- An output is the one whose shape, computed from the annotated input and the parameters, is equal
  to its annotation.  An extent that only one of the two gives decides nothing.
- A sequence as long as there are layers has an output of the shape of the states.  If the module
  has all its outputs, pnnx has restored their order.  If it has fewer, it is refused, unless the
  length is 1: then both have the same values.
- Without annotations, nothing is changed.

Without ``proj_size``, both states of an LSTM have the same shape, and pnnx writes the same file for
a module that reads the cell state as for one that reads the hidden state.  The first of them is
taken as the hidden state, with a warning, unless the output comes first of all three: in this order
a module that returns all of them is written.
"""

from __future__ import annotations

from kuiper._support import log
from kuiper.errors import OperatorError
from kuiper.ir import Graph, Operand, Operator
from kuiper.ir.attribute import Shape

__all__ = ["restore_outputs"]

OUTPUTS = {"nn.LSTM": ("y", "h", "c"), "nn.GRU": ("y", "h"), "nn.RNN": ("y", "h")}


def restore_outputs(graph: Graph) -> None:
    """Give recurrent modules all their outputs in PyTorch's order; only annotations are needed.

    Raises
    ------
    OperatorError
        If the file does not tell the output from a state.
    """
    for op in graph:
        indices = _output_indices(op) if op.type in OUTPUTS else None
        if indices is None:
            continue
        _warn_of_cell_state(op, indices)
        if indices == list(range(len(indices))):
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
        left = [index for index in range(len(expected)) if index not in indices]
        fitting = [index for index in left if operand.shape == expected[index]]
        fitting = fitting or [index for index in left if _may_fit(operand.shape, expected[index])]
        if not fitting:
            return None
        if fitting[0] == 0 and fitting[1:] and len(op.outputs) < len(expected) and _length(op) != 1:
            raise OperatorError(
                f"{op.label}: its output and its states have the shape {operand.shape}, and the "
                f"file does not say which of them '{operand.name}' is; export with a sequence of "
                f"another length than {_length(op)}"
            )
        indices.append(fitting[0])
    return indices


def _may_fit(shape: Shape | None, expected: Shape) -> bool:
    return shape is not None and (
        len(shape) == len(expected)
        and all(None in (a, b) or a == b for a, b in zip(shape, expected, strict=True))
    )


def _warn_of_cell_state(op: Operator, indices: list[int]) -> None:
    """Log a warning if an output taken for the hidden state may be the cell state."""
    shapes = _shapes(op)
    if len(shapes) < 3 or shapes[1] != shapes[2] or 1 not in indices:
        return
    if indices == [0, 1, 2]:
        return
    hidden = op.outputs[indices.index(1)].name
    log.warning(
        "kuiper.model", "%s: '%s' is taken as the hidden state; pnnx writes the same file if the "
        "module reads the cell state in its stead or first.  A module that returns the output, the "
        "hidden state and the cell state, in this order, is certain", op.label, hidden,
    )  # fmt: skip


def _length(op: Operator) -> int | None:
    """Return the annotated number of times."""
    source = op.inputs[0].shape
    assert source is not None  # `_shapes` has found it
    return source[1 if len(source) == 3 and op.params.get("batch_first") else 0]


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
