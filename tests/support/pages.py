"""Graphs and an HTML page for the tests of the report."""

from __future__ import annotations

import numpy as np

import kuiper
from kuiper import report
from kuiper.ir import Attribute, Graph


def chain_graph(n: int, skip: int = 0) -> Graph:
    """Return a chain of `n` operators; every `skip`-th has a branch around it."""
    graph = Graph()
    graph.add_operand("x0", (1, 4, 8, 8), "f32")
    graph.add_operator("pnnx.Input", "in", outputs=["x0"])
    for i in range(n):
        if skip and i >= skip and i % skip == 0:
            graph.add_operator(
                "pnnx.Expression", f"op{i}", [f"x{i}", f"x{i - skip}"], [f"x{i + 1}"],
                params={"expr": "add(@0,mul(@1,0.5))"},
            )  # fmt: skip
        else:
            graph.add_operator("nn.Tanh", f"op{i}", [f"x{i}"], [f"x{i + 1}"])
    graph.add_operator("pnnx.Output", "out", [f"x{n}"])
    return graph


def make_small_page() -> str:
    """Return the page of a graph with a convolution, an activation and an expression."""
    rng = np.random.default_rng(0)
    graph = Graph()
    graph.add_operand("x", (1, 3, 16, 16), "f32")
    graph.add_operator("pnnx.Input", "in", outputs=["x"])
    weight = rng.standard_normal((8, 3, 3, 3)).astype(np.float32)
    params = {
        "in_channels": 3, "out_channels": 8, "kernel_size": (3, 3), "stride": (1, 1),
        "padding": (1, 1), "dilation": (1, 1), "groups": 1, "bias": False, "padding_mode": "zeros",
    }  # fmt: skip
    graph.add_operator(
        "nn.Conv2d", "stem.conv", ["x"], ["c"], params=params,
        attributes={"weight": Attribute.from_array(weight)},
    )  # fmt: skip
    graph.add_operator("nn.ReLU", "stem.act", ["c"], ["r"])
    graph.add_operator(
        "pnnx.Expression", "gate", ["r", "c"], ["y"], params={"expr": "mul(@0,tanh(@1))"}
    )
    graph.add_operator("pnnx.Output", "out", ["y"])
    x = rng.standard_normal((1, 3, 16, 16)).astype(np.float32)
    peaks = report.Peaks(100.0, 20.0)
    return report.page(kuiper.Model(graph), [x], title="small", runs=2, peaks=peaks)
