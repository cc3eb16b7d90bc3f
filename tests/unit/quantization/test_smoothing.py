"""Ranges of channels move from normalised tensors into the weights that read them."""

from __future__ import annotations

import numpy as np
import pytest

import kuiper
from kuiper.ir import Attribute
from kuiper.quantization import smoothing
from kuiper.quantization.static import Calibrated

from ...support.textgraph import graph_of, linear, text, values

LAYERS = [
    "{} n 1 1 x p elementwise_affine=True eps=1e-5 normalized_shape=(64) @bias=(64)f32 "
    "@weight=(64)f32",
    linear("a", "p", "q", 64, 96), linear("b", "p", "r", 64, 64),
]  # fmt: skip
INPUTS = [values(2, 40, 64, seed=seed) for seed in range(6)]


def model(type: str = "nn.LayerNorm", factor: float = 30, *more: str) -> kuiper.Model:
    """Return a model with a few channels that are `factor` times as large as the others.

    The layers have as much smaller weights for them.
    """
    lines = [LAYERS[0].format(type), *LAYERS[1:], *more]
    graph = graph_of(text(*lines, outputs=("q", "r", "s")[: 2 + len(more)]))
    norm = graph.operator("n")
    weight = np.ones(64, np.float32)
    weight[[3, 17, 40]] = factor
    norm.attributes = {**norm.attributes, "weight": Attribute.from_array(weight)}
    for op in map(graph.operator, "ab"):
        columns = Attribute.from_array(op.attributes["weight"].numpy() / weight)
        op.attributes = {**op.attributes, "weight": columns}
    if type == "nn.RMSNorm":
        del norm.attributes["bias"]
    return kuiper.Model(graph)


def sqnr(model: kuiper.Model, **options) -> list[float]:
    quantized = kuiper.quantize(model, INPUTS[:4], **options)
    expected, got = (each(INPUTS[5]) for each in (model, quantized))
    return [
        10 * np.log10(np.square(a).sum() / np.square(a - b).sum())
        for a, b in zip(expected, got, strict=True)
    ]


def weight_of(model: kuiper.Model, name: str) -> np.ndarray:
    return model.graph.operator(name).attributes["weight"].numpy()


@pytest.mark.parametrize("type", ["nn.LayerNorm", "nn.RMSNorm"])
@pytest.mark.parametrize("method", ["mse", "minmax"])
def test_large_channels_become_smaller(type, method, monkeypatch):
    smoothed = sqnr(model(type), method=method)
    monkeypatch.setattr(smoothing, "SHARES", ())
    plain = sqnr(model(type), method=method)
    assert min(np.subtract(smoothed, plain)) > 6


def test_the_float_model_keeps_its_bits():
    before = model()
    after = Calibrated(before, INPUTS[:2]).model
    assert (weight_of(after, "n") != weight_of(before, "n")).any()
    for a, b in zip(before(INPUTS[5]), after(INPUTS[5]), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    ("given", "keep"),
    [
        (model(factor=1), ()),
        (model("nn.LayerNorm", 30, "pnnx.Expression e 2 1 p x s expr=add(@0,@1)"), ()),
        (model(), ("a",)),
    ],
    ids=["equal channels", "another reader", "a reader that is kept"],
)
def test_others_stay_as_they_are(given, keep):
    after = Calibrated(given, INPUTS[:2], keep).model
    for name in ("n", "a", "b"):
        np.testing.assert_array_equal(weight_of(after, name), weight_of(given, name))
