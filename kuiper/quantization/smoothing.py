"""Move the ranges of channels from a normalised tensor into the weights of the layers that read it.

One scale serves all channels of a tensor of bytes, while each column of a weight is multiplied by
one of them.  If a few channels are much larger than the others, as in transformers, these become
small integers.  So channel j of a normalisation's weight and bias is divided by

    s[j] = max|x[j]| ** alpha / max|w[:, j]| ** (1 - alpha),   rounded to a power of two,

and column j of the weights that read it multiplied.  Powers of two change no mantissa: the float
model keeps its bits.  A share alpha of 0.5 divides the difference equally; which share is best, or
none, is found by the errors of the products over calibration data.

Source: Xiao et al., SmoothQuant, 2023.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from kuiper.ir import Attribute, Graph, Operand, Operator
from kuiper.quantization.observers import Observer, quantization_of, range_of
from kuiper.quantization.selection import is_product
from kuiper.quantization.weights import LIMIT

__all__ = ["Rows", "Smoothing", "smooth", "smoothings"]

NORMS = ("nn.LayerNorm", "nn.RMSNorm")
SHARES = (0.5, 0.25, 0.75)
# Of the squares of errors: a smaller gain may be noise of the sample.
MAX_RATIO = 0.9
# Rows of a tensor, for each input of the model, and columns of a layer that are compared.
MAX_ROWS, MAX_COLUMNS = 128, 256
# Powers of two that a factor may have.
MAX_POWER = 8


class Smoothing(NamedTuple):
    """A normalisation and the layers that read it."""

    norm: Operator
    layers: list[Operator]


class Rows:
    """A sample of the rows of a tensor, with the interface of an observer."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []

    def add(self, values: np.ndarray) -> None:
        """Add some rows of the values of a batch."""
        rows = values.reshape(-1, values.shape[-1])
        step = -(-len(rows) // MAX_ROWS) or 1
        some = rows[::step]
        self.parts.append(some[np.isfinite(some).all(1)])


def smoothings(
    graph: Graph, specs: dict[Operand, Any], kept: Collection[str]
) -> dict[str, Smoothing]:
    """Return what can be smoothed, by the name of the tensor.

    Parameters
    ----------
    graph : Graph
    specs : dict of Operand to (TensorSpec or StaticValue)
    kept : collection of str
        Names of products to leave as they are.
    """
    found = {}
    for norm in (op for type in NORMS for op in graph.find(type)):
        weight, result = norm.attributes.get("weight"), norm.outputs[0]
        layers = result.consumers
        if weight is None or len(weight.shape) != 1 or not layers:
            continue
        if all(
            op.type == "nn.Linear" and is_product(op, specs) and op.name not in kept
            for op in layers
        ):
            found[result.name] = Smoothing(norm, list(layers))
    return found


def smooth(smoothing: Smoothing, rows: Rows, method: str, percentile: float) -> float:
    """Smooth a tensor if that makes the errors of the products smaller, in place.

    Parameters
    ----------
    smoothing : Smoothing
    rows : Rows
        Of the tensor.
    method : str
    percentile : float
        As for :func:`kuiper.quantize`.

    Returns
    -------
    float
        The share that has been chosen; 0 if nothing was changed.
    """
    x = np.concatenate(rows.parts) if rows.parts else np.zeros((0, 1), np.float32)
    weights = [op.attributes["weight"].float32() for op in smoothing.layers]
    if not x.size or not all(np.isfinite(weight).all() for weight in weights):
        return 0.0
    some = [weight[:: -(-len(weight) // MAX_COLUMNS)] for weight in weights]
    largest = np.abs(x).max(0), np.max([np.abs(weight).max(0) for weight in weights], 0)
    found: tuple[float, Any] = (0.0, None)
    least = MAX_RATIO * _error(x, some, method, percentile)
    for share in SHARES:
        powers = _powers(*largest, share)
        scaled = [np.ldexp(weight, powers) for weight in some]
        error = _error(np.ldexp(x, -powers), scaled, method, percentile)
        if error < least:
            found, least = (share, powers), error
    share, powers = found
    if share:
        _scale(smoothing.norm, ("weight", "bias"), -powers)
        for op in smoothing.layers:
            _scale(op, ("weight",), powers)
    return share


def _powers(inputs: np.ndarray, columns: np.ndarray, share: float) -> np.ndarray:
    """Return the binary logarithms of the factors, 0 for channels without a range."""
    used = (inputs > 0) & (columns > 0)
    logarithms = np.zeros(len(inputs))
    logarithms[used] = share * np.log2(inputs[used]) - (1 - share) * np.log2(columns[used])
    if used.any():
        logarithms[used] -= logarithms[used].mean()
    return np.clip(np.rint(logarithms), -MAX_POWER, MAX_POWER).astype(np.int32)


def _error(x: np.ndarray, weights: list[np.ndarray], method: str, percentile: float) -> float:
    """Return the sum of squares of the errors of products of bytes."""
    observer = Observer(method != "minmax")
    observer.add(x)
    scale, zero_point = quantization_of(*range_of([observer], method, percentile))
    rounded = (np.clip(np.rint(x / scale) + zero_point, 0, 255) - zero_point) * scale
    total = 0.0
    for weight in weights:
        steps = np.abs(weight).max(1, keepdims=True) / LIMIT
        steps[steps == 0] = 1.0
        error = rounded.astype(np.float32) @ (np.rint(weight / steps) * steps).T - x @ weight.T
        total += float(np.square(error, dtype=np.float64).sum())
    return total


def _scale(op: Operator, names: tuple[str, ...], powers: np.ndarray) -> None:
    changed = {
        name: Attribute.from_array(np.ldexp(op.attributes[name].float32(), powers))
        for name in names
        if name in op.attributes
    }
    op.attributes = {**op.attributes, **changed}
