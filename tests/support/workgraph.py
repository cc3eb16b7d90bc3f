"""Graphs of one operator, for tests of records through the public interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import kuiper
from kuiper.ir import Attribute, Graph
from kuiper.ir.dtypes import from_numpy

from .workbench import noise

__all__ = ["model_of", "recurrent_layers", "run_channels_last", "run_operator"]


def model_of(
    type: str,
    inputs: Sequence[np.ndarray],
    params: Mapping[str, Any],
    attributes: Mapping[str, np.ndarray] | None = None,
    keys: Sequence[str | None] | None = None,
    n_outputs: int = 1,
) -> kuiper.Model:
    """Return a model of one operator with operands in0, in1, ..., out0, out1, ..."""
    graph = Graph()
    names = [f"in{i}" for i in range(len(inputs))]
    for name, array in zip(names, inputs, strict=True):
        graph.add_operand(name, array.shape, from_numpy(array.dtype).name)
        graph.add_operator("pnnx.Input", f"input_{name}", [], [name])
    outputs = [f"out{i}" for i in range(n_outputs)]
    graph.add_operator(
        type,
        "op",
        names,
        outputs,
        params=params,
        attributes={k: Attribute.from_array(v) for k, v in (attributes or {}).items()},
        input_keys=keys,
    )
    for name in outputs:
        graph.add_operator("pnnx.Output", f"output_{name}", [name], [])
    return kuiper.Model(graph)


def run_operator(
    type: str,
    *inputs: np.ndarray,
    attributes: Mapping[str, np.ndarray] | None = None,
    keys: Sequence[str | None] | None = None,
    n_outputs: int = 1,
    **params: Any,
):
    """Run one operator on arrays and return its output, or a tuple of several."""
    return model_of(type, inputs, params, attributes, keys, n_outputs)(*inputs)


def run_channels_last(type: str, x: np.ndarray, n_outputs: int = 1, **params: Any):
    """Run one operator on an (n, c, ...) tensor in channels-last layout."""
    graph = Graph()
    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    graph.add_operand("last", last.shape, from_numpy(x.dtype).name)
    graph.add_operator("pnnx.Input", "input", [], ["last"])
    dims = (0, x.ndim - 1, *range(1, x.ndim - 1))
    graph.add_operator("Tensor.permute", "permute", ["last"], ["x"], params={"dims": dims})
    outputs = [f"out{i}" for i in range(n_outputs)]
    graph.add_operator(type, "op", ["x"], outputs, params=params)
    for name in outputs:
        graph.add_operator("pnnx.Output", f"output_{name}", [name], [])
    return kuiper.Model(graph)(last)


def recurrent_layers(cell, hidden, layers, bidirectional, proj_size=0):
    """Return the arguments and weights of a recurrent network with 24 input features."""
    gates = {"nn.LSTM": 4, "nn.GRU": 3, "nn.RNN": 1}[cell]
    state, width, weights = proj_size or hidden, 24, {}
    for layer in range(layers):
        for suffix in ("", "_reverse")[: 1 + bidirectional]:
            end = f"_l{layer}{suffix}"
            shapes = {
                "weight_ih": (gates * hidden, width), "weight_hh": (gates * hidden, state),
                "bias_ih": (gates * hidden,), "bias_hh": (gates * hidden,),
            }  # fmt: skip
            if proj_size:
                shapes["weight_hr"] = (proj_size, hidden)
            for name, shape in shapes.items():
                weights[name + end] = 0.1 * noise(shape, len(weights))
        width = state * (1 + bidirectional)
    params = {
        "input_size": 24, "hidden_size": hidden, "num_layers": layers, "bias": True,
        "batch_first": False, "bidirectional": bidirectional,
    }  # fmt: skip
    return params | ({"proj_size": proj_size} if cell == "nn.LSTM" else {}), weights
