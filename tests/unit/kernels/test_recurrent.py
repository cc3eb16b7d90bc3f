"""Recurrent layers, against float64; several panels of weights at a time give the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper._kernels.micro import dispatch

from ...support.engine import n_threads
from ...support.workbench import ISAS, isa, noise
from ...support.workgraph import model_of, recurrent_layers

GATES = {"LSTM": 4, "GRU": 3, "GRU reset_first": 3, "RNN": 1}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference(kind, x, weights):
    """Run the sequences (n, length, features) in float64."""
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
        elif kind == "GRU reset_first":
            r, z, n = np.split(inputs, 3, axis=1)
            r, z = (
                sigmoid(a + f) for a, f in zip((r, z), np.split(fed_back, 3, 1)[:2], strict=True)
            )
            n = np.tanh(n + np.split((r * h) @ u.T + c, 3, axis=1)[2])
            h = (1 - z) * n + z * h
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
        type_, *flags = kind.split()
        params |= dict.fromkeys(flags, True)
        model = model_of(f"nn.{type_}", [x], params, weights)
        together = model(x)
        expected = reference(kind, x.astype(float), weights)
        assert np.abs(together - expected).max() < 2e-6
        for number in range(3):
            alone = model(x[number : number + 1])
            assert alone.tobytes() == together[number : number + 1].tobytes()


# -- threads that divide the cells of a time step ----------------------------------------------


@pytest.mark.parametrize("variant", ISAS)
@pytest.mark.parametrize("states", [False, True], ids=["zeros", "states"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize("cell", ["nn.LSTM", "nn.GRU", "nn.RNN"])
def test_threads_that_share_cells_give_the_same_bits(variant, cell, bidirectional, states):
    hidden = 256
    params, weights = recurrent_layers(cell, hidden, 2, bidirectional)
    for batch, length in ((1, 9), (3, 4), (6, 1)):
        x = [noise((length, batch, 24))]
        if states:
            shape = (2 * (1 + bidirectional), batch, hidden)
            x += [noise(shape, seed) for seed in range(2 if cell == "nn.LSTM" else 1)]
        results, rounds = [], []
        with isa(variant):
            for count in (1, 2, 3, 5):
                model = model_of(cell, x, params, weights, n_outputs=3 if cell == "nn.LSTM" else 2)
                with n_threads(count):
                    results.append(b"".join(y.tobytes() for y in model(*x)))
                    steps = model.plan(*(array.shape for array in x)).steps
                    rounds.append(max(step.n_phases for step in steps))
                    timed = model.profile(*x, runs=1)
                assert len(timed.rows) == len(steps)
                assert all(row["seconds"] >= 0 for row in timed.rows)
        assert len(set(results)) == 1
        shared = [count > 1 + bidirectional for count in (1, 2, 3, 5)]
        assert rounds == [length if share else 1 for share in shared]


def test_when_threads_divide_the_cells():
    """Not for small networks, large batches, projections, or very long sequences."""

    def rounds(hidden=256, batch=1, length=5, proj_size=0):
        params, weights = recurrent_layers("nn.LSTM", hidden, 1, False, proj_size)
        x = noise((length, batch, 24))
        model = model_of("nn.LSTM", [x], params, weights)
        with n_threads(2):
            return max(step.n_phases for step in model.plan(x.shape).steps)

    assert rounds() == 5
    assert rounds(hidden=64) == rounds(batch=8) == rounds(proj_size=8) == 1
    assert rounds(hidden=200) == (5 if 200 % dispatch.tile()[1] == 0 else 1)
    assert rounds(length=5000) < 5
