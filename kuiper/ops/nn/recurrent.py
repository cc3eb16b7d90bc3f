"""Recurrent networks: LSTM, GRU and the plain recurrence."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._kernels.linear import linear, recurrent
from kuiper._kernels.micro import packing
from kuiper._kernels.micro.packed import PackedMatrix
from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import require_float32, reshaped
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import Record, T, record
from kuiper.ops.core.schema import Bool, Int, Str, Tensor, Weights
from kuiper.ops.product.linear import as_matrix

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["GRU", "LSTM", "RNN"]


class _Network:
    """The extents of a recurrent module, derived from its arguments.

    Attributes
    ----------
    cell : str
        See :data:`kuiper._kernels.linear.recurrent.cells`.
    gates : int
        Rows of a weight, in multiples of the hidden size.
    state : int
        Output features of one direction.
    suffixes : list of str
        Per direction: the suffix of its weights' names, after the number of the layer.
    batch, length : int
    """

    def __init__(self, a: _Recurrent[Any], cell: str, gates: int) -> None:
        self.cell, self.gates = cell, gates
        self.hidden = a.hidden_size
        self.projects = a.proj_size > 0
        self.state = a.proj_size if self.projects else self.hidden
        self.suffixes = ["", "_reverse"] if a.bidirectional else [""]
        self.batch_first = a.batch_first
        if a.input.rank == 2:
            self.length, self.batch = a.input.shape[0], 1
        elif a.batch_first:
            self.batch, self.length = a.input.shape[:2]
        else:
            self.length, self.batch = a.input.shape[:2]

    def expected_weights(self, a: _Recurrent[Any]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all weights by name."""
        shapes: dict[str, tuple[int, ...]] = {}
        sums, width = self.gates * self.hidden, a.input_size
        for layer in range(a.num_layers):
            for suffix in self.suffixes:
                end = f"_l{layer}{suffix}"
                shapes["weight_ih" + end] = (sums, width)
                shapes["weight_hh" + end] = (sums, self.state)
                if a.bias:
                    shapes["bias_ih" + end] = shapes["bias_hh" + end] = (sums,)
                if self.projects:
                    shapes["weight_hr" + end] = (self.state, self.hidden)
            width = self.state * len(self.suffixes)
        return shapes

    def state_shape(self, a: _Recurrent[Any], features: int) -> tuple[int, ...]:
        """Return the shape of a state of all layers and directions."""
        count = a.num_layers * len(self.suffixes)
        return (count, features) if a.input.rank == 2 else (count, self.batch, features)

    def by_time(self, rows: TensorView, features: int) -> TensorView:
        """View rows of features of all directions as (directions, times, batch, features)."""
        step = rows.strides[0]
        time, row = (step, self.length * step) if self.batch_first else (self.batch * step, step)
        return rows.with_layout(
            (len(self.suffixes), self.length, self.batch, features), (features, time, row, 1)
        )


def _infer(a: _Recurrent[TensorSpec], cell: str, gates: int) -> list[TensorSpec]:
    """Check the arguments and return the output and the states."""
    require_float32(a.input)
    if a.input.shape[-1] != a.input_size:
        raise ShapeError(f"the input has shape {a.input.shape}, expected {a.input_size} features")
    network = _Network(a, cell, gates)
    if network.length < 1:
        raise ShapeError(f"the input has shape {a.input.shape}, expected at least one time")
    n_weights = len(a.weights or ())
    if a.num_layers > n_weights:  # limits the work below for a bad file
        raise ShapeError(f"'num_layers' is {a.num_layers}, but there are {n_weights} weights")
    expected = network.expected_weights(a)
    got = {} if a.weights is None else {name: w.shape for name, w in a.weights.items()}
    for name in dict.fromkeys((*expected, *got)):
        if got.get(name) != expected.get(name):
            raise ShapeError(
                f"'{name}' has shape {got.get(name, 'missing')}, expected "
                f"{expected.get(name, 'no such weight')}"
            )
    states = [network.state]
    if cell == "lstm":
        states.append(network.hidden)
        if (a.hx is None) != (a.cx is None):
            raise ShapeError("expected both initial states or none")
    for name, features in zip(("hx", "cx"), states, strict=False):
        given, shape = getattr(a, name), network.state_shape(a, features)
        if given is not None and (given.shape != shape or given.dtype != np.float32):
            raise ShapeError(f"'{name}' is {given}, expected float32 {shape}")
    width = network.state * len(network.suffixes)
    return [
        TensorSpec((*a.input.shape[:-1], width)),
        *(TensorSpec(network.state_shape(a, features)) for features in states),
    ]


def _bind(a: _Recurrent[TensorView], b: Binder, cell: str, gates: int) -> None:
    network = _Network(a, cell, gates)
    directions, batch = len(network.suffixes), network.batch
    sums, state, hidden = gates * network.hidden, network.state, network.hidden

    def by_layer(value: TensorView | None, features: int) -> list[TensorView | None]:
        """Split states into (directions, batch, features), one for each layer."""
        if value is None:
            return [None] * a.num_layers
        whole = reshaped(b, value, (a.num_layers, directions, batch, features))
        return [whole.select(0, layer) for layer in range(a.num_layers)]

    h0 = by_layer(None if a.hx is None else b.contiguous(a.hx), state)
    c0 = by_layer(None if a.cx is None else b.contiguous(a.cx), hidden)
    hn = by_layer(b.output(1) if a.n_outputs > 1 else None, state)
    cells = b.output(2) if a.n_outputs > 2 else None
    if cell == "lstm" and cells is None:
        cells = b.temporary((a.num_layers, directions, batch, hidden))
    c = by_layer(cells, hidden)
    x = as_matrix(b, a.input)
    for layer in range(a.num_layers):
        names = [f"_l{layer}{suffix}" for suffix in network.suffixes]
        products = b.temporary((x.shape[0], directions * sums))
        matrix = PackedMatrix(directions * sums, x.shape[1], part=("inputs", layer))
        inputs = b.packed([matrix], partial(_pack_inputs, a, names))
        b.step(linear.LinearStep(x, inputs, products))
        if layer == a.num_layers - 1:
            y = b.output()
        else:
            y = b.temporary((x.shape[0], directions * state))
        rows = y.view((x.shape[0], directions * state))
        projection = None
        if network.projects:
            matrix = PackedMatrix(state, hidden, directions, part=("projection", layer))
            projection = b.packed([matrix], partial(_pack_each, a, "weight_hr", None, names))
        weights, candidate = _hidden_weights(a, b, network, cell, layer, names)
        scratch = b.scratch(recurrent.recurrent_scratch_bytes(sums, hidden))
        has_phases = recurrent.has_phases(
            b.n_threads, directions, network.length, batch, state, sums, hidden,
            network.projects or candidate is not None,
        )  # fmt: skip
        b.step(
            recurrent.RecurrentStep(
                cell, network.by_time(products, sums), weights, network.by_time(rows, state),
                scratch, h0[layer], c0[layer], c[layer], hn[layer], projection, candidate,
                has_phases,
            )
        )  # fmt: skip
        x = rows


def _hidden_weights(
    a: _Recurrent[TensorView], b: Binder, network: _Network, cell: str, layer: int,
    names: list[str],
) -> tuple[TensorView, TensorView | None]:  # fmt: skip
    """Return the packed hidden weights, and those of the last gate if it follows the others."""
    sums, directions = network.gates * network.hidden, len(network.suffixes)
    pack = partial(_pack_each, a, "weight_hh", "bias_hh", names)
    if cell != "gru_reset_first":
        matrix = PackedMatrix(sums, network.state, directions, part=("hidden", layer))
        return b.packed([matrix], pack), None
    first = 2 * network.hidden
    found = []
    for rows in (slice(0, first), slice(first, sums)):
        part = ("hidden", layer, rows.start)
        matrix = PackedMatrix(rows.stop - rows.start, network.state, directions, part=part)
        found.append(b.packed([matrix], partial(pack, rows=rows)))
    return found[0], found[1]


def _pack_inputs(a: _Recurrent[TensorView], names: list[str], memory: np.ndarray) -> None:
    """Pack the input weights of all directions side by side."""
    weight = np.concatenate([_array(a, "weight_ih" + name) for name in names])
    bias = np.concatenate([_array(a, "bias_ih" + name) for name in names]) if a.bias else None
    packing.pack_panels(weight[:, np.newaxis, :], bias, 1, memory)


def _pack_each(
    a: _Recurrent[TensorView], weight: str, bias: str | None, names: list[str],
    memory: np.ndarray, rows: slice = slice(None),
) -> None:  # fmt: skip
    """Pack rows of a weight of each direction, one direction after the other."""
    by_direction = memory.reshape(len(names), -1, *memory.shape[1:])
    for name, part in zip(names, by_direction, strict=True):
        shift = _array(a, bias + name)[rows] if bias is not None and a.bias else None
        packing.pack_panels(_array(a, weight + name)[rows, np.newaxis, :], shift, 1, part)


def _array(a: _Recurrent[TensorView], name: str) -> np.ndarray:
    return np.asarray(a.weights[name].constant, np.float32)


def _batch_of_sequences(c: TracedCall) -> list[BatchAxis]:
    a, batch = c.a, c.first_batch(c.a.input)
    c.require(a.input.rank == 3 and batch.axis == (0 if a.batch_first else 1))
    state = batch._replace(axis=1)
    for spec in (a.hx, a.cx):
        if isinstance(spec, TensorSpec):
            c.spread(spec, state)
    return [batch, state, state][: len(c.op.outputs)]


class _Recurrent(Record[T]):
    """Base of the three modules: their common arguments."""

    batch = staticmethod(_batch_of_sequences)
    input: T = Tensor(rank=(2, 3))
    hx: T | None = Tensor(optional=True)
    cx: T | None = Tensor(optional=True)
    weights: dict[str, T] = Weights()
    input_size: int = Int(minimum=1)
    hidden_size: int = Int(minimum=1)
    num_layers: int = Int(1, minimum=1)
    bias: bool = Bool(True)
    batch_first: bool = Bool(False)
    bidirectional: bool = Bool(False)
    proj_size: int = 0


@record("nn.LSTM")
class LSTM(_Recurrent[T]):
    """Long short-term memory.

    ``i, f, o = sigmoid(.), g = tanh(.), c' = f * c + i * g, h' = o * tanh(c')``, where ``.`` is
    ``W x + U h + b`` of each gate; with proj_size, h' is multiplied by weight_hr.  Input
    (l, n, features), with batch_first (n, l, features), without a batch (l, features); states
    (layers * directions, n, features).  Source: torch.nn.LSTM.

    Raises
    ------
    ShapeError
        If the input, a weight or a state has the wrong shape or type, or one state is missing.
    """

    proj_size: int = Int(0, minimum=0)

    def infer(self: LSTM[TensorSpec]) -> Any:
        return _infer(self, "lstm", 4)

    def bind(self: LSTM[TensorView], b: Binder) -> None:
        _bind(self, b, "lstm", 4)


@record("nn.GRU")
class GRU(_Recurrent[T]):
    """Gated recurrent unit.

    ``r, z = sigmoid(.), n = tanh(W x + r * (U h)), h' = (1 - z) * n + z * h``, biases omitted; with
    reset_first, ``n = tanh(W x + U (r * h))``, as in ONNX with linear_before_reset=0.
    Shapes and errors as for nn.LSTM.  Source: torch.nn.GRU.
    """

    cx = None
    reset_first: bool = Bool(False)

    def infer(self: GRU[TensorSpec]) -> Any:
        return _infer(self, "gru", 3)

    def bind(self: GRU[TensorView], b: Binder) -> None:
        _bind(self, b, "gru_reset_first" if self.reset_first else "gru", 3)


@record("nn.RNN")
class RNN(_Recurrent[T]):
    """``h' = tanh(W x + U h)``, or relu instead of tanh; biases omitted.

    Shapes and errors as for nn.LSTM.  Source: torch.nn.RNN.
    """

    cx = None
    nonlinearity: str = Str(("tanh", "relu"), "tanh")

    def infer(self: RNN[TensorSpec]) -> Any:
        return _infer(self, f"rnn_{self.nonlinearity}", 1)

    def bind(self: RNN[TensorView], b: Binder) -> None:
        _bind(self, b, f"rnn_{self.nonlinearity}", 1)
