"""Graphs written in the model's own text, for tests of passes, plans and the public interface."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np

import kuiper
from kuiper.ir import Attribute, Graph
from kuiper.ops import _record

from .support.weights import fill_archive

__all__ = ["files_of", "graph_of", "lines_of", "model_of", "user_operator", "values"]


def files_of(text: str, key: str = "text") -> tuple[bytes, bytes]:
    """Return the two files of a graph given by the lines of its operators, without the header.

    Weights are noise that depends on `key`, the operator's name and the attribute's.
    """
    lines = [line.strip() for line in text.strip().splitlines()]
    operands = set()
    for line in lines:
        words = line.split()
        operands.update(words[4 : 4 + int(words[2]) + int(words[3])])
    header = f"7767517\n{len(lines)} {len(operands)}\n"
    param = (header + "\n".join(lines) + "\n").encode()
    return param, fill_archive(param, key)


def graph_of(text: str, key: str = "text") -> Graph:
    """Return the graph; variances are positive, other weights around zero."""
    graph = kuiper.load_graph(*files_of(text, key))
    for operator in graph:
        if "running_var" in operator.attributes:
            variance = operator.attributes["running_var"].numpy() + 0.75
            operator.attributes["running_var"] = Attribute.from_array(variance)
    return graph


def model_of(text: str, key: str = "text") -> kuiper.Model:
    """Return the model of a graph given in text."""
    return kuiper.Model(graph_of(text, key))


def lines_of(graph: Graph) -> list[str]:
    """Return the operators of a graph, inputs and outputs apart, as short lines.

    ``nn.Conv2d x r -> y | add nn.ReLU`` is a convolution with two post-ops; an expression shows
    its text instead of its type.
    """
    lines = []
    for operator in graph.topological_order():
        if operator.type in ("pnnx.Input", "pnnx.Output"):
            continue
        head = operator.type
        if head == "pnnx.Expression":
            head = str(operator.params["expr"])
        words = [
            head,
            *(o.name for o in operator.inputs),
            "->",
            *(o.name for o in operator.outputs),
        ]
        if operator.post_ops:
            words += ["|", *(post.type for post in operator.post_ops)]
        lines.append(" ".join(words))
    return lines


def values(*shape: int, seed: int = 0) -> np.ndarray:
    """Return float32 noise that differs from element to element."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


@contextlib.contextmanager
def user_operator(
    type: str, function: Callable, n_outputs: int = 1, **options: bool
) -> Iterator[None]:
    """Let kuiper know an operator of the user's own inside a with block."""
    kuiper.operator(type, n_outputs, **options)(function)
    try:
        yield
    finally:
        del _record._registry[type]
