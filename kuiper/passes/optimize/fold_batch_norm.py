"""Fold batch normalisation, which is a scale and a shift per channel if its statistics are stored.

If it is the only reader of a dense operator, it is folded into the weights::

    y = (conv(x, w) + b - mean) * scale + bias,  scale = weight / sqrt(var + eps)
      = conv(x, w * scale) + (b - mean) * scale + bias

Otherwise, as in pre-activation networks, it is split into arithmetic with constants, which later
passes fuse with the following operators::

    nn.BatchNorm2d bn 1 1 x y   ->   pnnx.Expression bn 3 1 x s t y expr=add(mul(@0,@1),@2)

The split is a pass of its own, because :mod:`kuiper.passes.optimize.fuse_branches`, which needs
batch normalisations, runs between the two.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from kuiper.expression import built_in
from kuiper.ir import Attribute, Graph, Operand, Operator
from kuiper.ir.view import TensorSpec
from kuiper.passes.optimize.match import is_float32, only_reader, take_over_output

__all__ = ["affine", "fold_batch_norm", "split_batch_norm"]

NORMS = ("nn.BatchNorm1d", "nn.BatchNorm2d", "nn.BatchNorm3d")
PRODUCERS = (
    "nn.Conv1d", "nn.Conv2d", "nn.Conv3d", "nn.Linear", "nn.quantized.Conv2d", "nn.quantized.Linear"
)  # fmt: skip


def fold_batch_norm(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Fold each batch normalisation that is the only reader of a dense operator."""
    for op in _norms(graph, specs):
        producer = op.inputs[0].producer
        if (
            producer is not None
            and producer.type in PRODUCERS
            and "weight" in producer.attributes
            and not producer.post_ops
            and only_reader(op.inputs[0]) is op
            # A tensor of the weight's rank has a batch, so its channels are axis 1.
            and specs[op.inputs[0]].rank == len(producer.attributes["weight"].shape)
        ):
            _into_weights(graph, producer, op)


def split_batch_norm(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Split the batch normalisations that are left into arithmetic."""
    for op in _norms(graph, specs):
        _as_arithmetic(graph, specs, op)


def _norms(graph: Graph, specs: dict[Operand, Any]) -> list[Operator]:
    # A second input is a shared weight and comes first; leave it to the record.
    return [
        op
        for op in graph
        if op.type in NORMS and len(op.inputs) == 1 and is_float32(op.outputs[0], specs)
    ]


def affine(op: Operator) -> tuple[np.ndarray, np.ndarray]:
    """Return (scale, shift) per channel, in float64."""
    # Already imported if a graph has the operator.
    from kuiper.ops.nn.batch_norm import scale_and_shift

    names = ("running_mean", "running_var", "weight", "bias")
    mean, variance, weight, bias = (
        op.attributes[n].numpy() if n in op.attributes else None for n in names
    )
    # The parser leaves a number with thousands of digits as text.
    eps = float(op.params.get("eps", 1e-5))
    return scale_and_shift(mean, variance, weight, bias, eps)


def _into_weights(graph: Graph, producer: Operator, norm: Operator) -> None:
    sources = (*producer.attributes.values(), *norm.attributes.values())
    key = ("fold_batch_norm", norm.name, *map(id, sources))
    if key not in graph.derived:
        # Keep the sources alive, so that their ids are not reused.
        graph.derived[key] = (_folded(producer, norm), sources)
    producer.attributes = dict(graph.derived[key][0])
    if "bias" in producer.params:
        producer.params = {**producer.params, "bias": True}
    take_over_output(graph, producer, norm)


def _folded(producer: Operator, norm: Operator) -> dict[str, Attribute]:
    scale, shift = affine(norm)
    weight = producer.attributes["weight"]
    attributes = dict(producer.attributes)
    if "weight_scale" in attributes:  # of bytes
        scales = attributes["weight_scale"].numpy() * scale
        attributes["weight_scale"] = Attribute.from_array(scales.astype(np.float32))
    else:
        # Computed during packing, so that it takes no memory before or after.
        attributes["weight"] = Attribute(weight.shape, "f32", partial(_scaled, weight, scale))
    if "bias" in attributes:
        shift = shift + attributes["bias"].numpy() * scale
    attributes["bias"] = Attribute.from_array(shift.astype(np.float32))
    return attributes


def _scaled(weight: Attribute, scale: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return the bytes of filters [start, stop) times their scales, multiplied in float64."""
    filters = weight.rows(start, stop)
    factors = scale[start:stop].reshape((-1,) + (1,) * (filters.ndim - 1))
    scaled = np.empty(filters.shape, np.float32)
    np.multiply(filters, factors, out=scaled, dtype=np.float64, casting="same_kind")
    return scaled.reshape(-1).view(np.uint8)


def _as_arithmetic(graph: Graph, specs: Any, norm: Operator) -> None:
    scale, shift = affine(norm)
    x, result = norm.inputs[0], norm.outputs[0]
    name, location = norm.name, norm.location
    # Channels are axis 1: (c, 1, ...) broadcasts against (n, c, ...), and (c,) against (n, c).
    shape = (-1,) + (1,) * (specs[x].rank - 2)
    graph.set_outputs(norm, [])
    graph.remove_operator(norm)
    constants = []
    for word, values in (("scale", scale), ("shift", shift)):
        array = values.astype(np.float32).reshape(shape)
        operand = graph.add_operand(graph.unique_name(f"{name}.{word}"), array.shape, "f32")
        graph.add_operator(
            "pnnx.Attribute", graph.unique_name(f"{name}.{word}.data"), [], [operand],
            attributes={"data": Attribute.from_array(array)}, location=location,
        )  # fmt: skip
        specs[operand] = TensorSpec(array.shape, array.dtype, array)
        constants.append(operand)
    graph.add_operator(
        "pnnx.Expression", name, [x, *constants], [result],
        params={"expr": built_in("add(mul(@0,@1),@2)")}, location=location,
    )  # fmt: skip
