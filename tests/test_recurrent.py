"""Recurrent layers of one sequence: several panels of weights at a time, and the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from .workbench import ISAS, isa
from .workgraph import model_of

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference(kind, x, weights):
    """Go through the sequences (n, length, features) in float64."""
    w, u, b, c = (weights[name].astype(float) for name in NAMES)
    hidden = u.shape[1]
    h, cell = np.zeros((len(x), hidden)), np.zeros((len(x), hidden))
    states = []
    for t in range(x.shape[1]):
        inputs, fed_back = x[:, t] @ w.T + b, h @ u.T + c
        if kind == "LSTM":
            i, f, g, o = np.split(inputs + fed_back, 4, axis=1)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(cell)
        elif kind == "GRU":
            (r, z, n), (hr, hz, hn) = np.split(inputs, 3, axis=1), np.split(fed_back, 3, axis=1)
            z = sigmoid(z + hz)
            h = (1 - z) * np.tanh(n + sigmoid(r + hr) * hn) + z * h
        else:
            h = np.tanh(inputs + fed_back)
        states.append(h)
    return np.stack(states, axis=1)


NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("hidden", [1, 8, 31, 32, 33, 65, 96, 130])
def test_one_sequence_and_several(name, kind, hidden):
    random = np.random.default_rng(hidden)
    features, rows = 7, GATES[kind] * hidden
    weights = {
        key: random.uniform(-1, 1, shape).astype(np.float32) / np.float32(hidden**0.5)
        for key, shape in zip(
            NAMES, [(rows, features), (rows, hidden), (rows,), (rows,)], strict=True
        )
    }
    x = random.standard_normal((3, 5, features), np.float32)
    params = {
        "input_size": features,
        "hidden_size": hidden,
        "num_layers": 1,
        "bias": True,
        "batch_first": True,
        "bidirectional": False,
    }
    if kind == "RNN":
        params["nonlinearity"] = "tanh"
    with isa(name):
        model = model_of(f"nn.{kind}", [x], params, weights)
        together = model(x)
        expected = reference(kind, x.astype(float), weights)
        assert np.abs(together - expected).max() < 2e-6
        for number in range(3):
            alone = model(x[number : number + 1])
            assert alone.tobytes() == together[number : number + 1].tobytes()
