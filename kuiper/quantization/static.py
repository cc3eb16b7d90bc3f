"""Static quantization: the scales of all tensors are measured once, on calibration data."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from kuiper.errors import InputError
from kuiper.ir import Graph, Operand
from kuiper.ir.view import TensorSpec
from kuiper.model import Model
from kuiper.quantization.calibration import Progress, Samples, observe, prepared
from kuiper.quantization.correction import correct_biases
from kuiper.quantization.observers import Observer, check_method, quantization_of, range_of
from kuiper.quantization.rewrite import Quantization, write_bytes
from kuiper.quantization.selection import Link, Selection, matching, products_of, select
from kuiper.quantization.smoothing import Rows, smooth, smoothings
from kuiper.quantization.weights import QuantizedWeight

__all__ = ["Calibrated", "without_progress"]

# Inputs for corrections and sensitivities, which run the model many times.
KEPT_INPUTS = 32
# A tensor shares the scale of a concatenation whose range is up to this many times its own.
MAX_RATIO = 1.5


def without_progress(items: Iterable[Any], total: int | None, label: str) -> Iterator[Any]:
    """Yield the items."""
    yield from items


class Calibrated:
    """A model, and what its calibration has shown: graphs of bytes are made from it.

    Parameters
    ----------
    model : Model
    calibration : iterable
    keep : iterable of str
    method : str
    percentile : float
    progress : callable
        As for :func:`kuiper.quantize`.

    Attributes
    ----------
    model : Model
        With batch normalisation and padding folded, attention split, normalised tensors smoothed.
    kept : set of str
        Names of products that `keep` names.
    selection : Selection
        All that can be quantized.
    samples : Samples
    """

    def __init__(
        self,
        model: Model,
        calibration: Iterable[Any],
        keep: Iterable[str] = (),
        method: str = "mse",
        percentile: float = 99.99,
        progress: Progress = without_progress,
    ) -> None:
        check_method(method, percentile)
        self.method, self.percentile, self.progress = method, percentile, progress
        self.samples = Samples(model, calibration, KEPT_INPUTS)
        graph, self.specs = prepared(model, self.samples.shapes)
        self.model = model.with_graph(graph)
        products = products_of(graph, self.specs)
        self.kept = matching(products, keep)
        self._smooth(graph)
        self.selection = select(graph, self.specs, self.kept)
        if not self.selection.products:
            raise InputError(
                f"there is no layer to quantize among the {len(graph)} operators, expected "
                "nn.Conv2d or nn.Linear with constant weights that `keep` does not name"
            )
        self.observers = {
            operand.name: Observer(method != "minmax")
            for operand in self.selection.tensors
            if self.selection.observed(operand)
        }
        observe(self.model, self.samples, self.observers, self.size, progress)
        self.weights: dict[str, QuantizedWeight] = {}

    def _smooth(self, graph: Graph) -> None:
        """Smooth the normalised tensors that only products read, see the module smoothing."""
        found = smoothings(graph, self.specs, self.kept)
        rows = {name: Rows() for name in found}
        if found:
            observe(self.model, self.samples.head, rows, self.size, without_progress)
        shares = [smooth(x, rows[name], self.method, self.percentile) for name, x in found.items()]
        if any(shares):
            self.model = self.model.with_graph(graph)

    def size(self, name: str) -> int:
        """Return the bytes of an operand of the model, as float32."""
        graph = self.model.graph
        spec = self.specs.get(graph.operand(name)) if graph.has_operand(name) else None
        return 4 * math.prod(spec.shape) if isinstance(spec, TensorSpec) else 0

    def quantizations(self, selection: Selection) -> dict[Operand, Quantization]:
        """Return the scale and the zero point of each tensor of a selection."""
        groups: dict[Operand, list[Observer]] = {}
        ranges: dict[Operand, tuple[float, float]] = {}

        def measure(root: Operand) -> None:
            ranges[root] = range_of(groups[root], self.method, self.percentile)

        for operand in selection.tensors:
            group = groups.setdefault(selection.root(operand), [])
            if operand.name in self.observers:
                group.append(self.observers[operand.name])
        for root in groups:
            measure(root)
        apart: list[Link] = []
        for link in selection.links:
            own, shared = (selection.root(o) for o in (link.operand, link.reader.outputs[0]))
            if own is shared:
                continue
            observers = groups[own] + groups[shared]
            low, high = range_of(observers, self.method, self.percentile)
            if high - low <= MAX_RATIO * (ranges[own][1] - ranges[own][0]):
                selection.join(own, shared)
                root = selection.root(own)
                groups[root], ranges[root] = observers, (low, high)
            else:
                groups[shared], ranges[shared] = observers, (low, high)
                apart.append(link)
        selection.links = apart
        return {
            operand: Quantization(*quantization_of(*ranges[selection.root(operand)]))
            for operand in selection.tensors
        }

    @property
    def names(self) -> list[str]:
        """The names of the products that can be quantized."""
        return [op.name for op in self.selection.products]

    def graph(self, keep: Collection[str] = (), bias_correction: bool = True) -> Graph:
        """Return a graph of bytes.

        Parameters
        ----------
        keep : collection of str
            Names of further products to leave in float.
        bias_correction : bool

        Raises
        ------
        InputError
            If a weight contains an infinity or NaN.
        """
        graph = self.model.graph.copy()
        specs = {
            graph.operand(operand.name): spec
            for operand, spec in self.specs.items()
            if graph.has_operand(operand.name)
        }
        selection = select(graph, specs, {*self.kept, *keep})
        write_bytes(graph, selection, self.quantizations(selection), self.weights)
        if bias_correction:
            products = [op.name for op in selection.products]
            correct_biases(
                self.model, graph, products, self.samples.kept, self.size, self.progress
            )  # fmt: skip
        return graph
