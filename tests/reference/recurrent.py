"""Recurrent networks, one time step after the other."""

from __future__ import annotations

import numpy as np

from .activation import sigmoid
from .registry import reference


def _lstm_cell(x, h, c, weights, end):
    i, f, g, o = np.split(_sums(x, weights, "ih", end) + _sums(h, weights, "hh", end), 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    if "weight_hr" + end in weights:
        h = np.matmul(h, weights["weight_hr" + end].T)
    return h, c


def _gru_cell_reset_first(x, h, c, weights, end):
    x_r, x_z, x_n = np.split(_sums(x, weights, "ih", end), 3, axis=-1)
    h_r, h_z, _ = np.split(_sums(h, weights, "hh", end), 3, axis=-1)
    r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
    n = np.tanh(x_n + np.split(_sums(r * h, weights, "hh", end), 3, axis=-1)[2])
    return (1 - z) * n + z * h, c


def _gru_cell(x, h, c, weights, end):
    x_r, x_z, x_n = np.split(_sums(x, weights, "ih", end), 3, axis=-1)
    h_r, h_z, h_n = np.split(_sums(h, weights, "hh", end), 3, axis=-1)
    r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
    n = np.tanh(x_n + r * h_n)
    return (1 - z) * n + z * h, c


def _sums(x, weights, which, end):
    y = np.matmul(x, weights[f"weight_{which}{end}"].T)
    return y + weights.get(f"bias_{which}{end}", 0.0)


def _run(cell, x, h0, c0, *, batch_first=False, num_layers, bidirectional, **weights):
    """Return the output and the final states of all layers and directions."""
    is_single = x.ndim == 2
    if is_single:
        x = x[:, None]
        h0, c0 = (None if s is None else s[:, None] for s in (h0, c0))
    elif batch_first:
        x = x.swapaxes(0, 1)
    last_h, last_c = [], []
    for layer in range(num_layers):
        ys = []
        for suffix in ["", "_reverse"][: 1 + bidirectional]:
            end, number = f"_l{layer}{suffix}", len(last_h)
            hidden = weights["weight_hh" + end]
            h = np.zeros((x.shape[1], hidden.shape[1])) if h0 is None else h0[number]
            c = np.zeros((x.shape[1], hidden.shape[0] // 4)) if c0 is None else c0[number]
            times = range(len(x))[:: -1 if suffix else 1]
            y = np.zeros((len(x), *h.shape))
            for t in times:
                h, c = cell(x[t], h, c, weights, end)
                y[t] = h
            ys.append(y)
            last_h.append(h)
            last_c.append(c)
        x = np.concatenate(ys, axis=-1)
    states = np.stack(last_h), np.stack(last_c)
    if is_single:
        return x[:, 0], *(s[:, 0] for s in states)
    return (x.swapaxes(0, 1) if batch_first else x), *states


@reference("nn.LSTM")
def lstm(input, hx=None, cx=None, **rest):
    """Long short-term memory; gates in the order input, forget, cell, output."""
    return _run(_lstm_cell, input, hx, cx, **rest)


@reference("nn.GRU")
def gru(input, hx=None, *, reset_first=False, **rest):
    """Gated recurrent unit; gates in the order reset, update, new."""
    cell = _gru_cell_reset_first if reset_first else _gru_cell
    return _run(cell, input, hx, None, **rest)[:2]


@reference("nn.RNN")
def rnn(input, hx=None, *, nonlinearity="tanh", **rest):
    """Return the states tanh(W x + U h); `nonlinearity` may replace tanh."""

    def cell(x, h, c, weights, end):
        sums = _sums(x, weights, "ih", end) + _sums(h, weights, "hh", end)
        return (np.tanh(sums) if nonlinearity == "tanh" else np.maximum(sums, 0)), c

    return _run(cell, input, hx, None, **rest)[:2]
