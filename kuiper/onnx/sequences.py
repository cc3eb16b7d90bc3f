"""Recurrent networks: RNN, GRU, LSTM.

A layer of constant weights and PyTorch's functions becomes a module of it; any other one is written
out, one time step after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kuiper.onnx.builder import Builder
from kuiper.onnx.registry import op
from kuiper.onnx.values import Known

__all__: list[str] = []


class _Layer(NamedTuple):
    """One recurrent layer.

    Attributes
    ----------
    gates : int
        Rows of a weight, in multiples of the hidden size.
    order : tuple of int
        For each of PyTorch's gates, the number of ONNX's.
    x : value
        (times, batch, features)
    w, r, bias : value
        (directions, gates * hidden, features or hidden); the biases of both, side by side.
    lengths : value
        Of the sequences, or None.
    h, c : value
        Initial states (directions, batch, hidden), or None.
    peepholes : value
    direction : str
    functions : list of list of callable
        For each direction.
    is_plain : bool
        Whether the functions are those of PyTorch's module.
    clip : float or None
    hidden : int
    """

    gates: int
    order: tuple[int, ...]
    x: Any
    w: Any
    r: Any
    bias: Any
    lengths: Any
    h: Any
    c: Any
    peepholes: Any
    direction: str
    functions: list[list[Callable[..., Any]]]
    is_plain: bool
    clip: float | None
    hidden: int

    @property
    def directions(self) -> int:
        """Number of directions."""
        return 2 if self.direction == "bidirectional" else 1

    def backward(self, direction: int) -> bool:
        """Tell whether a direction begins with the last time step."""
        return direction == 1 or self.direction == "reverse"


# -- functions ----------------------------------------------------------------------------------

# The functions with parameters: their defaults, and a formula of x, alpha and beta.
PARAMETRIC: dict[str, tuple[tuple[float, ...], str]] = {
    "affine": ((1.0, 0.0), "add(mul(@0,@1),@2)"),
    "leakyrelu": ((0.01,), "leaky_relu(@0,@1)"),
    "scaledtanh": ((1.0, 1.0), "mul(tanh(mul(@0,@2)),@1)"),
    "hardsigmoid": ((0.2, 0.5), "min(max(add(mul(@0,@1),@2),0.0),1.0)"),
    "elu": ((1.0,), "elu(@0,@1)"),
    "thresholdedrelu": ((1.0,), ""),
}
PLAIN = {
    "sigmoid": "F.sigmoid", "tanh": "F.tanh", "relu": "F.relu", "softsign": "F.softsign",
    "softplus": "F.softplus",
}  # fmt: skip


def _functions(
    b: Builder, names: list[str], count: int, alpha: Any, beta: Any
) -> list[Callable[..., Any]]:
    """Return the functions of all directions; parameters are given to those that take them."""
    if len(names) != count:
        raise b.error(f"has {len(names)} activations, expected {count}")
    alphas, betas = list(alpha or ()), list(beta or ())
    return [_function(b, name.lower(), alphas, betas) for name in names]


def _function(b: Builder, name: str, alphas: list[float], betas: list[float]) -> Callable[..., Any]:
    if name in PLAIN:
        type_ = PLAIN[name]
        return lambda x: b.emit(type_, x)
    if name not in PARAMETRIC:
        raise b.error(f"the activation '{name}' is unknown")
    defaults, formula = PARAMETRIC[name]
    values = [
        float(given.pop(0)) if given else default
        for given, default in zip((alphas, betas), defaults, strict=False)
    ]
    if not formula:
        return lambda x: b.emit("F.threshold", x, threshold=values[0], value=0.0)
    return lambda x: b.formula(formula, x, *values)


# -- the module ---------------------------------------------------------------------------------


def _is_constant(value: Any) -> bool:
    return isinstance(value, Known) and not value.is_open and value.dtype == np.float32


def _fits_module(layer: _Layer) -> bool:
    """Tell whether PyTorch's module computes a layer."""
    return (
        layer.is_plain
        and not layer.clip
        and layer.peepholes is None
        and _has_full_length(layer)
        and _is_constant(layer.w)
        and _is_constant(layer.r)
        and (layer.bias is None or _is_constant(layer.bias))
        and layer.x.dtype == np.float32
        and layer.hidden > 0
    )


def _has_full_length(layer: _Layer) -> bool:
    """Tell whether no sequence ends before the last time step."""
    lengths = layer.lengths
    if lengths is None:
        return True
    times = layer.x.shape[0]
    return (
        isinstance(lengths, Known) and not lengths.is_open and bool((lengths.array == times).all())
    )


def _module(b: Builder, layer: _Layer, type_: str, **arguments: Any) -> list[Any]:
    """Return output (times, batch, directions * hidden) and last states of PyTorch's module."""
    size = layer.hidden

    def ordered(matrix: np.ndarray) -> Any:
        parts = matrix.reshape(layer.gates, size, *matrix.shape[1:])[list(layer.order)]
        return b.attribute(Known(parts.reshape(matrix.shape)))

    weights = {}
    for number in range(layer.directions):
        end = "_l0_reverse" if number else "_l0"
        weights["weight_ih" + end] = ordered(layer.w.array[number])
        weights["weight_hh" + end] = ordered(layer.r.array[number])
        if layer.bias is not None:
            of_inputs, of_states = np.split(layer.bias.array[number], 2)
            weights["bias_ih" + end] = ordered(of_inputs)
            weights["bias_hh" + end] = ordered(of_states)
    params = {
        "input_size": layer.w.shape[2], "hidden_size": size, "num_layers": 1,
        "bias": layer.bias is not None, "batch_first": False,
        "bidirectional": layer.directions == 2,
    } | arguments  # fmt: skip
    x = b.ref(layer.x)
    is_reverse = layer.direction == "reverse"
    if is_reverse:
        x = b.emit("torch.flip", x, dims=(0,))
    states = [layer.h, layer.c] if type_ == "nn.LSTM" else [layer.h]
    if any(state is not None for state in states):
        given = next(state for state in states if state is not None)
        states = [b.emit("torch.zeros_like", given) if state is None else state for state in states]
    operands = [b.operand(value) for value in (x, *states) if value is not None]
    count = 3 if type_ == "nn.LSTM" else 2
    y, *last = b._add(type_, operands, [None] * len(operands), params, weights, count)
    return [b.emit("torch.flip", y, dims=(0,)) if is_reverse else y, *last]


def _joined(b: Builder, layer: _Layer, results: list[Any], layout: int) -> list[Any]:
    """Return the outputs of a module in ONNX's shapes."""
    y, *last = results
    if layer.directions == 1:
        y = b.emit("torch.unsqueeze", y, dim=2 if layout else 1)
        if layout:
            y = b.emit("Tensor.permute", y, dims=(1, 0, 2, 3))
    else:
        times, batch, _ = b.extents(y)
        y = b.emit("Tensor.reshape", y, shape=[times, batch, 2, layer.hidden])
        y = b.emit("Tensor.permute", y, dims=(1, 0, 2, 3) if layout else (0, 2, 1, 3))
    if layout:
        last = [b.emit("Tensor.permute", state, dims=(1, 0, 2)) for state in last]
    return [y, *last]


# -- written out --------------------------------------------------------------------------------

# Computes new states of (b, layer, direction, inputs' share, states).
Cell = Callable[..., tuple[Any, ...]]


def _clipped(b: Builder, layer: _Layer, x: Any) -> Any:
    if not layer.clip:
        return x
    return b.formula("min(max(@0,@1),@2)", x, -float(layer.clip), float(layer.clip))


def _written_out(b: Builder, layer: _Layer, cell: Cell, states: int) -> list[Any]:
    """Return output (times, directions, batch, hidden) and last states (directions, ...)."""
    times, batch, _ = b.extents(layer.x)
    if not isinstance(times, int):
        raise b.error("the number of time steps is open; fix it with shapes={...}")
    if not times:
        raise b.error("has no time steps, expected at least one")
    outputs, lasts = [], []
    for number in range(layer.directions):
        w, r = (b.emit("Tensor.select", m, dim=0, index=number) for m in (layer.w, layer.r))
        shares = b.emit("torch.matmul", layer.x, b.emit("torch.t", w))
        biases = None
        if layer.bias is not None:
            biases = b.emit("Tensor.select", layer.bias, dim=0, index=number)
            biases = b.emit("torch.chunk", biases, n=2, chunks=2, dim=0)
            shares = b.call("add", shares, biases[0])
        state = [
            b.emit("torch.zeros", size=[batch, layer.hidden], dtype="torch.float")
            if given is None
            else b.emit("Tensor.select", given, dim=0, index=number)
            for given in (layer.h, layer.c)[:states]
        ]
        found: list[Any] = [None] * times
        for t in range(times)[:: -1 if layer.backward(number) else 1]:
            share = b.emit("Tensor.select", shares, dim=0, index=t)
            bias = None if biases is None else biases[1]
            new = list(cell(b, layer, number, share, r, bias, *state))
            state, found[t] = _within(b, layer, t, state, new)
        outputs.append(b.emit("torch.stack", *found, dim=0))
        lasts.append(state)
    y = b.emit("torch.stack", *outputs, dim=1)
    return [y, *(b.emit("torch.stack", *each, dim=0) for each in zip(*lasts, strict=True))]


def _within(b: Builder, layer: _Layer, t: int, old: Any, new: Any) -> tuple[list[Any], Any]:
    """Return the states after a time step, and its output: zeros for sequences that have ended."""
    if _has_full_length(layer):
        return new, new[0]
    lengths = b.emit("torch.unsqueeze", b.cast(b.ref(layer.lengths), np.int64), dim=1)
    runs = b.emit("torch.gt", lengths, Known(np.array(t)))
    kept = [b.emit("torch.where", runs, n, o) for n, o in zip(new, old, strict=True)]
    return kept, b.emit("torch.where", runs, new[0], Known(np.zeros((), np.float32)))


def _product(b: Builder, h: Any, r: Any, bias: Any) -> Any:
    found = b.emit("torch.matmul", h, b.emit("torch.t", r))
    return found if bias is None else b.call("add", found, bias)


def _rnn_cell(
    b: Builder, layer: _Layer, number: int, share: Any, r: Any, bias: Any, h: Any
) -> tuple[Any, ...]:
    total = b.call("add", share, _product(b, h, r, bias))
    return (layer.functions[number][0](_clipped(b, layer, total)),)


def _gru_cell(linear_before_reset: int) -> Cell:
    def cell(
        b: Builder, layer: _Layer, number: int, share: Any, r: Any, bias: Any, h: Any
    ) -> tuple[Any, ...]:
        f, g = layer.functions[number]
        xs = b.emit("torch.chunk", share, n=3, chunks=3, dim=1)
        rows = b.emit("torch.chunk", r, n=3, chunks=3, dim=0)
        biases = [None] * 3 if bias is None else b.emit("torch.chunk", bias, n=3, chunks=3, dim=0)
        update, reset = (
            f(_clipped(b, layer, b.call("add", xs[i], _product(b, h, rows[i], biases[i]))))
            for i in range(2)
        )
        if linear_before_reset:
            part = b.call("mul", reset, _product(b, h, rows[2], biases[2]))
        else:
            part = _product(b, b.call("mul", reset, h), rows[2], biases[2])
        new = g(_clipped(b, layer, b.call("add", xs[2], part)))
        return (b.formula("add(mul(sub(1.0,@0),@1),mul(@0,@2))", update, new, h),)

    return cell


def _lstm_cell(input_forget: int) -> Cell:
    def cell(
        b: Builder, layer: _Layer, number: int, share: Any, r: Any, bias: Any, h: Any, c: Any
    ) -> tuple[Any, ...]:
        f, g, k = layer.functions[number]
        total = b.call("add", share, _product(b, h, r, bias))
        i, o, forget, new = b.emit("torch.chunk", total, n=4, chunks=4, dim=1)
        peeps = [None] * 3
        if layer.peepholes is not None:
            row = b.emit("Tensor.select", layer.peepholes, dim=0, index=number)
            peeps = b.emit("torch.chunk", row, n=3, chunks=3, dim=0)

        def gate(x: Any, peep: Any, state: Any) -> Any:
            x = x if peep is None else b.formula("add(@0,mul(@1,@2))", x, peep, state)
            return f(_clipped(b, layer, x))

        i = gate(i, peeps[0], c)
        forget = b.formula("sub(1.0,@0)", i) if input_forget else gate(forget, peeps[2], c)
        new = g(_clipped(b, layer, new))
        c = b.formula("add(mul(@0,@1),mul(@2,@3))", forget, c, i, new)
        o = gate(o, peeps[1], c)
        return b.call("mul", o, k(c)), c

    return cell


# -- the operators ------------------------------------------------------------------------------


def _layer(
    b: Builder, order: tuple[int, ...], defaults: tuple[str, ...], x: Any, w: Any, r: Any,
    bias: Any, lengths: Any, states: tuple[Any, Any], peepholes: Any, a: dict[str, Any],
) -> _Layer:  # fmt: skip
    """Return a layer after checks of what both ways of computing it rely on."""
    direction = a["direction"]
    if direction not in ("forward", "reverse", "bidirectional"):
        raise b.error(f"direction is '{direction}', expected forward, reverse or bidirectional")
    directions = 2 if direction == "bidirectional" else 1
    if (x.rank, w.rank, r.rank) != (3, 3, 3):
        raise b.error(f"X, W and R have {x.rank}, {w.rank} and {r.rank} axes, expected 3")
    hidden = r.shape[2]
    gates = len(order)
    if not isinstance(hidden, int) or w.shape[:2] != (directions, gates * hidden):
        raise b.error(
            f"W and R have the shapes {w.shape} and {r.shape}, expected ({directions}, {gates} * "
            f"hidden, features) and ({directions}, {gates} * hidden, hidden)"
        )
    if r.shape != (directions, gates * hidden, hidden):
        raise b.error(f"R has the shape {r.shape}, expected {(directions, gates * hidden, hidden)}")
    names = [n.lower() for n in a["activations"] or defaults * directions]
    found = _functions(
        b, names, len(defaults) * directions, a["activation_alpha"], a["activation_beta"]
    )
    step = len(defaults)
    if a["layout"]:
        x = b.emit("Tensor.permute", x, dims=(1, 0, 2))
        states = tuple(  # type: ignore[assignment]
            None if s is None else b.emit("Tensor.permute", s, dims=(1, 0, 2)) for s in states
        )
    is_plain = names == [n.lower() for n in defaults * directions] or (
        gates == 1 and names in (["relu"], ["relu", "relu"])
    )
    return _Layer(
        gates, order, x, w, r, bias, lengths, states[0], states[1], peepholes, direction,
        [found[:step], found[step:]], is_plain, a["clip"], hidden,
    )  # fmt: skip


def _outputs(
    b: Builder, layer: _Layer, type_: str, cell: Cell, layout: int, **arguments: Any
) -> list[Any]:
    if _fits_module(layer) and arguments.pop("has_module", True):
        return _joined(b, layer, _module(b, layer, type_, **arguments), layout)
    results = _written_out(b, layer, cell, 2 if type_ == "nn.LSTM" else 1)
    if layout:
        y, *last = results
        y = b.emit("Tensor.permute", y, dims=(2, 0, 1, 3))
        results = [y, *(b.emit("Tensor.permute", s, dims=(1, 0, 2)) for s in last)]
    return results


@op("RNN")
def rnn(
    b: Builder, x: Any, w: Any, r: Any, bias: Any = None, sequence_lens: Any = None,
    initial_h: Any = None, *, activation_alpha: Any = None, activation_beta: Any = None,
    activations: Any = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, layout: int = 0, output_sequence: int = 0,
) -> Any:  # fmt: skip
    a = {
        "activation_alpha": activation_alpha, "activation_beta": activation_beta,
        "activations": activations, "clip": clip, "direction": direction, "layout": layout,
    }  # fmt: skip
    states = (initial_h, None)
    layer = _layer(b, (0,), ("Tanh",), x, w, r, bias, sequence_lens, states, None, a)
    name = (activations or ["tanh"])[0].lower()
    return _outputs(b, layer, "nn.RNN", _rnn_cell, layout, nonlinearity=name)


@op("GRU")
def gru(
    b: Builder, x: Any, w: Any, r: Any, bias: Any = None, sequence_lens: Any = None,
    initial_h: Any = None, *, activation_alpha: Any = None, activation_beta: Any = None,
    activations: Any = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, layout: int = 0, linear_before_reset: int = 0,
    output_sequence: int = 0,
) -> Any:  # fmt: skip
    a = {
        "activation_alpha": activation_alpha, "activation_beta": activation_beta,
        "activations": activations, "clip": clip, "direction": direction, "layout": layout,
    }  # fmt: skip
    functions = ("Sigmoid", "Tanh")
    states = (initial_h, None)
    layer = _layer(b, (1, 0, 2), functions, x, w, r, bias, sequence_lens, states, None, a)
    arguments = {} if linear_before_reset else {"reset_first": True}
    return _outputs(b, layer, "nn.GRU", _gru_cell(linear_before_reset), layout, **arguments)


@op("LSTM")
def lstm(
    b: Builder, x: Any, w: Any, r: Any, bias: Any = None, sequence_lens: Any = None,
    initial_h: Any = None, initial_c: Any = None, peepholes: Any = None, *,
    activation_alpha: Any = None, activation_beta: Any = None, activations: Any = None,
    clip: float | None = None, direction: str = "forward", hidden_size: int | None = None,
    input_forget: int = 0, layout: int = 0, output_sequence: int = 0,
) -> Any:  # fmt: skip
    a = {
        "activation_alpha": activation_alpha, "activation_beta": activation_beta,
        "activations": activations, "clip": clip, "direction": direction, "layout": layout,
    }  # fmt: skip
    functions, states = ("Sigmoid", "Tanh", "Tanh"), (initial_h, initial_c)
    layer = _layer(b, (0, 2, 3, 1), functions, x, w, r, bias, sequence_lens, states, peepholes, a)
    return _outputs(
        b, layer, "nn.LSTM", _lstm_cell(input_forget), layout, has_module=not input_forget
    )
