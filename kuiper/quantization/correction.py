"""Bias correction: rounding shall not move the mean of any output channel.

Rounding a weight moves the mean of each output channel of its product by what the next layers
cannot average out.  Over calibration data, the results of the quantized product are compared with
those of the float one, and the bias takes the mean difference; layer by layer, since each
correction changes what later layers read.  What a ReLU or the range of the bytes cuts off anyway
does not count: clipped inputs may move it far.

Source: Nagel et al., Data-free quantization through weight equalization and bias correction, 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from kuiper.ir import Attribute, Graph, Operand, Operator
from kuiper.model import Model
from kuiper.ops.core.quantization import QUANTIZE
from kuiper.passes.optimize.match import only_reader
from kuiper.quantization.calibration import Progress

__all__ = ["correct_biases"]

# Of the results that are kept for all samples.
MAX_BYTES = 1 << 29
# The mean of a ReLU's result is not linear in the bias.
ITERATIONS = 3
# A channel of which fewer values pass the ReLU moves as if these did.
MIN_SHARE = 0.02
# By the type of the activation after a product: where its result depends on its input.
LIMITS = {
    **dict.fromkeys(("nn.ReLU", "F.relu", "torch.relu"), (0.0, math.inf)),
    **dict.fromkeys(("nn.ReLU6", "F.relu6"), (0.0, 6.0)),
}

Values = dict[str, np.ndarray]


def correct_biases(
    model: Model,
    graph: Graph,
    products: Sequence[str],
    samples: Sequence[Sequence[np.ndarray]],
    sizes: Callable[[str], int],
    progress: Progress,
) -> None:
    """Correct the biases of the quantized products of a graph, in place.

    Each product runs once per sample: on the corrected results of the products before it, which
    are kept until their last reader has run.

    Parameters
    ----------
    model : Model
        The float model, whose graph has the same operands.
    graph : Graph
    products : sequence of str
        Names of its quantized products.
    samples : sequence of sequence of numpy.ndarray
        Inputs of the model.
    sizes : callable
        The name of an operand -> its bytes for one sample.
    progress : callable
        As for :func:`kuiper.quantization.calibration.observe`.
    """
    levels = _levels(graph, set(products))
    ends = {op.outputs[0] for level in levels for op in level}
    needed = [_sources(level, ends) for level in levels]
    samples = samples[: max(MAX_BYTES // max(2 * _peak(needed, sizes), 1), 1)]
    names = [operand.name for operand in graph.inputs]
    floats: list[Values] = [dict(zip(names, arrays, strict=True)) for arrays in samples]
    rounded = [dict(known) for known in floats]
    for number, level in enumerate(progress(levels, len(levels), "bias correction")):
        results = [op.outputs[0].name for op in level]
        sources = [operand.name for operand in needed[number]]
        _run(model, model.graph, sources, results, floats)
        _run(model, graph, sources, results, rounded)
        for op in level:
            name, axis = op.outputs[0].name, -1 if op.type.endswith("Linear") else 1
            pairs = [(a[name], b[name]) for a, b in zip(floats, rounded, strict=True)]
            by = _shift(pairs, axis, _limits(op))
            if np.isfinite(by).all():
                _add_bias(op, by)
                for _, values in pairs:
                    values += _along(by, values.ndim, axis)
        later = {operand.name for sources in needed[number + 1 :] for operand in sources}
        for known in (*floats, *rounded):
            for name in known.keys() - later:
                del known[name]


def _run(
    model: Model, graph: Graph, sources: list[str], results: list[str], values: list[Values]
) -> None:
    """Compute operands of a graph from others, for each sample."""
    part = model.with_graph(graph.subgraph(sources, results))
    for known in values:
        known.update(part(*(known[name] for name in sources), as_dict=True))


def _limits(op: Operator) -> tuple[float, float]:
    """Return the range outside of which the result of a product has no effect."""
    low, high = -math.inf, math.inf
    reader = only_reader(op.outputs[0])
    if reader is not None and reader.type in LIMITS:
        low, high = LIMITS[reader.type]
        reader = only_reader(reader.outputs[0])
    if reader is not None and reader.type == QUANTIZE:
        scale, zero_point = reader.params["scale"], reader.params["zero_point"]
        low, high = max(low, -zero_point * scale), min(high, (255 - zero_point) * scale)
    return low, high


def _along(channels: np.ndarray, rank: int, axis: int) -> np.ndarray:
    shape = [1] * rank
    shape[axis] = -1
    return channels.reshape(shape)


def _shift(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]], axis: int, limits: tuple[float, float]
) -> np.ndarray:
    """Return what each channel must be moved by for the mean of the float one.

    Parameters
    ----------
    pairs : sequence of (numpy.ndarray, numpy.ndarray)
        Results of the float and of the quantized product.
    axis : int
        Of the channels.
    limits : (float, float)
        The means are those of the results within this range, clipped.
    """
    low, high = limits
    rank = pairs[0][0].ndim
    others = tuple(n for n in range(rank) if n != axis % rank)
    by = np.zeros(pairs[0][0].shape[axis], np.float32)
    for _ in range(1 if math.isinf(low) and math.isinf(high) else ITERATIONS):
        difference, inside, count = 0.0, 0.0, 0
        for expected, got in pairs:
            moved = got + _along(by, rank, axis)
            error = np.clip(expected, low, high) - np.clip(moved, low, high)
            difference = difference + error.sum(others, dtype=np.float64)
            inside = inside + np.count_nonzero((moved > low) & (moved < high), others)
            count += got.size // len(by)
        by += (difference / np.maximum(inside, max(MIN_SHARE * count, 1))).astype(np.float32)
    return by


def _add_bias(op: Operator, by: np.ndarray) -> None:
    bias = op.attributes["bias"].numpy() if "bias" in op.attributes else np.float32(0)
    op.attributes = {**op.attributes, "bias": Attribute.from_array(bias + by)}
    if "bias" in op.params:
        op.params = {**op.params, "bias": True}


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


def _peak(needed: Sequence[Sequence[Operand]], sizes: Callable[[str], int]) -> int:
    """Return the largest number of bytes that one sample keeps."""
    last = {operand.name: number for number, level in enumerate(needed) for operand in level}
    first: dict[str, int] = {}
    for number, level in enumerate(needed):
        for operand in level:
            first.setdefault(operand.name, number)
    return max(
        sum(sizes(name) for name, stop in last.items() if first[name] <= number <= stop)
        for number in range(len(needed))
    )
