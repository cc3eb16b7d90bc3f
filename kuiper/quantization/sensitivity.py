"""The error of each quantized product, and the choice of those that stay in float."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kuiper.ir import Graph
from kuiper.quantization.calibration import sqnr
from kuiper.quantization.static import Calibrated

__all__ = ["Sensitivity", "most_sensitive", "output_sqnr", "sensitivities"]

# Inputs of the model for each measurement.
MAX_INPUTS = 8


class Sensitivity(NamedTuple):
    """The error that one product causes.

    Attributes
    ----------
    name : str
    shape : tuple of int
        Of the weight.
    weight_sqnr : float
        Signal-to-noise ratio of the weight, in dB.
    sqnr : float
        That of the outputs of the model if only this product is quantized.
    """

    name: str
    shape: tuple[int, ...]
    weight_sqnr: float
    sqnr: float


def sensitivities(calibrated: Calibrated) -> list[Sensitivity]:
    """Return the error of each product that can be quantized, the largest first.

    Parameters
    ----------
    calibrated : Calibrated
    """
    names = calibrated.names
    expected = _outputs(calibrated, calibrated.model.graph)
    found = []
    for op in calibrated.progress(calibrated.selection.products, len(names), "sensitivity"):
        graph = calibrated.graph([name for name in names if name != op.name], False)
        weight = calibrated.weights[op.name]
        ratio = _ratio(expected, _outputs(calibrated, graph))
        found.append(Sensitivity(op.name, op.attributes["weight"].shape, weight.sqnr, ratio))
    return sorted(found, key=lambda row: row.sqnr)


def output_sqnr(calibrated: Calibrated, graph: Graph) -> float:
    """Return the signal-to-noise ratio of the outputs of a graph, in dB."""
    return _ratio(_outputs(calibrated, calibrated.model.graph), _outputs(calibrated, graph))


def most_sensitive(
    calibrated: Calibrated,
    rows: Sequence[Sensitivity],
    min_sqnr: float,
    bias_correction: bool = True,
) -> list[str]:
    """Return the products to leave in float for an error of the outputs.

    Products are left in the order of their errors; how many are needed is found by bisection.

    Parameters
    ----------
    calibrated : Calibrated
    rows : sequence of Sensitivity
        Of all products.
    min_sqnr : float
        Signal-to-noise ratio of the outputs, in dB.
    bias_correction : bool

    Returns
    -------
    list of str
        All products if the ratio cannot be had otherwise.
    """
    names = [row.name for row in sorted(rows, key=lambda row: row.sqnr)]

    def suffices(count: int) -> bool:
        if count == len(names):
            return True
        graph = calibrated.graph(names[:count], bias_correction)
        return output_sqnr(calibrated, graph) >= min_sqnr

    if suffices(0):
        return []
    low, high = 0, len(names)  # the first does not suffice, the second does
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return names[:high]


def _outputs(calibrated: Calibrated, graph: Graph) -> list[list[np.ndarray]]:
    model = calibrated.model.with_graph(graph)
    results = []
    for arrays in calibrated.samples.kept[:MAX_INPUTS]:
        given = model(*arrays)
        results.append(list(given) if isinstance(given, tuple) else [given])
    return results


def _ratio(expected: Sequence[Sequence[np.ndarray]], got: Sequence[Sequence[np.ndarray]]) -> float:
    """Return a signal-to-noise ratio in which each output counts as much as another."""
    shares = []
    for number in range(len(expected[0])):
        signal = noise = 0.0
        for run, other in zip(expected, got, strict=True):
            a, b = run[number], other[number]
            if a.dtype.kind == "f" and a.shape == b.shape:
                signal += float(np.square(a, dtype=np.float64).sum())
                noise += float(np.square(np.subtract(a, b, dtype=np.float64)).sum())
        if signal:
            shares.append(noise / signal)
    return sqnr(len(shares), math.fsum(shares)) if shares else math.inf
