"""ONNX files, read into the same graph of the same operators as PNNX files.

::

    m.onnx ── wire ──> messages ── translator ──> nodes in order ── builder ──> ir.Graph
                          │                         │     ^
                          └── tensors ──> Known ────┘     └ registry: a function per operator

    wire.py         protobuf messages; where the elements of tensors are
    tensors.py      tensors as values, also in other files of the model's folder
    values.py       Known, Size, Ref: what an input of a node can be
    registry.py     the table of operators
    builder.py      what the functions of operators call: emit, formula, extents
    translator.py   inputs, nodes, functions, branches, outputs
    folds.py        operators on known arrays, in numpy: shape arithmetic
    computed.py     axes and steps that a run computes
    bounds.py       positions and conditions that need not be computed
    elementwise.py shapes.py windows.py products.py ...   the functions of the operators
    restore.py      layers that an exporter wrote out; attention_layers.py: attention

An operator is a function with ONNX's signature: inputs by position, attributes by name, the first
opset of the version in the decorator.  It returns values, not operators: a `Known` if the file
determines the result, a `Ref` if a run computes it.  Extents that the file leaves open are `Size`
objects in arrays of shape arithmetic, which `folds` computes like other numbers; they reach the
graph only as expressions such as ``[size(@0,0),-1]`` in front of an operator that needs them.

To add an operator, add a function to the module of its family; to let it be computed while loading,
add a fold with the same signature.  The list of supported operators follows from the registry.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from kuiper._support.memory import check_max_memory
from kuiper.errors import InputError, ModelFormatError
from kuiper.ir import Graph
from kuiper.onnx.tensors import TensorReader
from kuiper.onnx.wire import SourceFile, read_model
from kuiper.pnnx._messages import recognise

__all__ = ["end_names", "load_graph"]

HEAD_BYTES = 4096


def load_graph(
    source: Any, *, shapes: Mapping[str, Sequence[Any]] | None = None, max_memory: int | None = None
) -> Graph:
    """Load the graph of an ONNX model.

    Parameters
    ----------
    source : str, os.PathLike, bytes-like or binary file object
    shapes : mapping of str to tuple, optional
        Shapes of inputs by name, where the file leaves extents open; None or a name inside keeps
        one open.
    max_memory : int, optional
        Bytes that the graph without weights may take; by default the memory of the machine or
        container.

    Returns
    -------
    kuiper.ir.Graph
        Inputs and outputs have the names of the file.

    Raises
    ------
    ModelFormatError
        If the file is damaged or truncated.
    UnsupportedOperatorError
        If there are operators that kuiper does not have; all are listed.
    OperatorError
        If an operator has arguments that kuiper does not support.
    OSError
        If a file cannot be read.
    """
    if not isinstance(shapes, Mapping | None):
        raise InputError(f"shapes is {shapes!r}, expected a dict of shapes by name")
    path = os.fsdecode(source) if isinstance(source, (str, os.PathLike)) else None
    name = path or "<onnx>"
    if hasattr(source, "read"):
        found = getattr(source, "name", None)
        name = found if isinstance(found, str) else name
        source = source.read()
    file = SourceFile(source, name)
    _check_kind(file)
    model = read_model(file, check_max_memory(max_memory))
    from kuiper.onnx import operators  # noqa: F401 - registers the operators
    from kuiper.onnx.translator import translated

    return translated(model, TensorReader(file, path), name, shapes or {})


def _check_kind(file: SourceFile) -> None:
    """Refuse a file of another format that is called ``.onnx``; say what it is if recognised."""
    head = file.read(0, min(HEAD_BYTES, file.size)).tobytes()
    what = None if head else "it is empty"
    if head and not head.startswith(b"\x08"):
        from kuiper.pnnx._foreign import next_step  # only for a message

        what = recognise(head) or next_step(head, file.name)
    if what:
        raise ModelFormatError(f"{file.name}: not an ONNX file: {what}")


def end_names(source: Any) -> tuple[list[str], list[str]]:
    """Return the names of the inputs and of the outputs of a model, whose operators are not read.

    Parameters
    ----------
    source : str, os.PathLike or bytes-like

    Raises
    ------
    ModelFormatError
        If the file is damaged or truncated.
    OSError
        If it cannot be read.
    """
    is_path = isinstance(source, (str, os.PathLike))
    name = os.fsdecode(source) if is_path else "<onnx>"
    graph = read_model(SourceFile(source, name), check_max_memory(None)).graph
    if graph is None:
        raise ModelFormatError(f"{name}: the file has no graph")
    weights = {tensor.name for tensor in graph.tensors}  # old files list them among the inputs
    inputs = [info.name for info in graph.inputs if info.name not in weights]
    return inputs, [info.name for info in graph.outputs]
