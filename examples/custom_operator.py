"""Run a model with an operator that kuiper does not support, written in numpy.

    python examples/custom_operator.py

pnnx exports a class named in `moduleop=` as one operator named by the path of the class.  In this
example that is `nets.GatedPool`: it averages an image over its pixels, weighted by the sigmoid of
one of the channels, then applies a matrix.

The function gets the inputs in order, and all else by name: literal parameters (`channel=0` in the
file) and attributes (`@weight=...`).  Arrays are views of the model's memory and must not be
written to.  While planning, the function is called once with zeros to infer the shape of its
result.  The command line can load such an operator from a separate file:

    kuiper run model.pnnx.param x.npy --plugin my_operators.py
"""

from __future__ import annotations

import io

import numpy as np

import kuiper


@kuiper.operator("nets.GatedPool")
def gated_pool(x: np.ndarray, *, weight: np.ndarray, channel: int = 0) -> np.ndarray:
    """Return (n, outputs) for x (n, c, h, w): the gated mean of each channel, times a matrix."""
    gate = 1 / (1 + np.exp(-x[:, channel : channel + 1]))
    means = (x * gate).sum(axis=(2, 3)) / gate.sum(axis=(2, 3))
    return means @ weight.T


def build_model() -> tuple[kuiper.Model, np.ndarray]:
    """Return the model, and the weight of its operator."""
    weight = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    graph = kuiper.ir.Graph()
    graph.add_operand("0", (1, 4, None, None), "f32")
    graph.add_operator("pnnx.Input", "in", outputs=["0"])
    graph.add_operator("nn.ReLU", "act", ["0"], ["1"])
    graph.add_operator(
        "nets.GatedPool", "pool", ["1"], ["2"], params={"channel": 2},
        attributes={"weight": kuiper.ir.Attribute.from_array(weight)},
    )  # fmt: skip
    graph.add_operator("pnnx.Output", "out", ["2"])
    # Through the two files and back, as if it came from pnnx.
    param, bin = io.BytesIO(), io.BytesIO()
    kuiper.save(graph, param, bin)
    return kuiper.load(param.getvalue(), bin.getvalue()), weight


def main() -> None:
    """Build the model, run it at two sizes, and compare with numpy."""
    model, weight = build_model()
    for shape in ((1, 4, 8, 8), (2, 4, 5, 7)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        y = model(x)
        expected = gated_pool(np.maximum(x, 0), weight=weight, channel=2)
        print(f"{shape} -> {y.shape}, {np.abs(y - expected).max():.1e} from numpy")
    print(model.profile(x))


if __name__ == "__main__":
    main()
