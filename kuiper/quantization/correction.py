"""Bias correction: rounding shall not move the mean of any output channel.

Rounding a weight moves the mean of each output channel of its product by what the next layers
cannot average out.  The means of the quantized graph and of the float one are compared over
calibration data, and the bias takes the difference; layer by layer, since each correction changes
what later layers read.  Source: Nagel et al., Data-free quantization through weight equalization
and bias correction, 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kuiper.ir import Attribute, Graph, Operand, Operator
from kuiper.model import Model
from kuiper.quantization.calibration import Means, Progress, trace_parts

__all__ = ["channel_means", "correct_biases"]

# Of the results that are kept for all samples.
MAX_BYTES = 1 << 29


def channel_means(
    model: Model, operators: Sequence[Operator], samples: Sequence[Any], sizes: Any
) -> dict[str, np.ndarray]:
    """Return the mean of each output channel of some products, by the name of the operator."""
    means = {op.outputs[0].name: Means(channel_axis(op)) for op in operators}
    for arrays in samples:
        for name, values in trace_parts(model, arrays, list(means), sizes):
            means[name].add(values)
    return {op.name: means[op.outputs[0].name].mean for op in operators}


def correct_biases(
    model: Model,
    graph: Graph,
    products: Sequence[str],
    expected: dict[str, np.ndarray],
    samples: Sequence[Any],
    sizes: Any,
    progress: Progress,
) -> None:
    """Correct the biases of the quantized products of a graph, in place.

    Each product runs once per sample: on the corrected results of the products before it, which
    are kept until their last reader has run.

    Parameters
    ----------
    model : Model
        For its settings.
    graph : Graph
    products : sequence of str
        Names of its quantized products.
    expected : dict of str to numpy.ndarray
        The means of the float model.
    samples : sequence
        Inputs of the model.
    sizes : callable
        The name of an operand -> its bytes for one sample.
    progress : callable
        As for :func:`kuiper.quantization.calibration.observe`.
    """
    levels = _levels(graph, set(products))
    ends = {op.outputs[0] for level in levels for op in level}
    needed = [_sources(level, ends) for level in levels]
    samples = samples[: max(MAX_BYTES // max(_peak(needed, sizes), 1), 1)]
    values: list[dict[str, np.ndarray]] = [
        {o.name: array for o, array in zip(graph.inputs, arrays, strict=True)} for arrays in samples
    ]
    for number, level in enumerate(progress(levels, len(levels), "bias correction")):
        results = [op.outputs[0].name for op in level]
        sources = needed[number]
        part = model.with_graph(graph.subgraph(sources, results))
        means = {op.name: Means(channel_axis(op)) for op in level}
        for known in values:
            arrays = part(*(known[operand.name] for operand in sources), as_dict=True)
            for op in level:
                known[op.outputs[0].name] = arrays[op.outputs[0].name]
                means[op.name].add(arrays[op.outputs[0].name])
        for op in level:
            by = (expected[op.name] - means[op.name].mean).astype(np.float32)
            if np.isfinite(by).all():
                _shift(op, by)
                axes = (-1,) + (1,) * (-1 - channel_axis(op, values[0][op.outputs[0].name].ndim))
                for known in values:
                    known[op.outputs[0].name] += by.reshape(axes)
        later = {operand.name for sources in needed[number + 1 :] for operand in sources}
        for known in values:
            for name in known.keys() - later:
                del known[name]


def channel_axis(op: Operator, rank: int = 4) -> int:
    """Return the axis of the output channels of a product, counted from the end."""
    return -1 if op.type.endswith("Linear") else 1 - rank


def _sources(level: Sequence[Operator], ends: set[Operand]) -> list[Operand]:
    """Return the results of products, and the inputs, from which a level is computed."""
    found: dict[Operand, None] = {}
    seen: set[Operator] = set()
    pending = [operand for op in level for operand in op.inputs]
    while pending:
        operand = pending.pop()
        producer = operand.required_producer
        if operand in ends or producer.type == "pnnx.Input":
            found[operand] = None
        elif producer not in seen:
            seen.add(producer)
            pending.extend(producer.inputs)
    return list(found)


def _peak(needed: Sequence[Sequence[Operand]], sizes: Any) -> int:
    """Return the largest number of bytes that one sample keeps."""
    last = {operand.name: n for n, sources in enumerate(needed) for operand in sources}
    first: dict[str, int] = {}
    for number, sources in enumerate(needed):
        for operand in sources:
            first.setdefault(operand.name, number)
    return max(
        sum(sizes(name) for name, stop in last.items() if first[name] <= number <= stop)
        for number in range(len(needed))
    )


def _levels(graph: Graph, products: set[str]) -> list[list[Operator]]:
    """Return products in groups of which none reads a result of another of the same group."""
    depth: dict[Operator, int] = {}
    levels: dict[int, list[Operator]] = {}
    for op in graph.topological_order():
        depth[op] = max((depth[o.required_producer] for o in op.inputs), default=0)
        if op.name in products:
            levels.setdefault(depth[op], []).append(op)
            depth[op] += 1
    return [levels[number] for number in sorted(levels)]


def _shift(op: Operator, by: np.ndarray) -> None:
    """Add to the bias of a product."""
    bias = op.attributes["bias"].numpy() if "bias" in op.attributes else np.float32(0)
    op.attributes = {**op.attributes, "bias": Attribute.from_array(bias + by)}
    if "bias" in op.params:
        op.params = {**op.params, "bias": True}
