"""Fuse a 1x1 convolution that widens an image into the depthwise convolution that reads it.

::

    nn.Conv2d expand    1 1 x y              kuiper.ExpandDepthwise depthwise 1 1 x z
    nn.Conv2d depthwise 1 1 y z groups=c

The image between the two is the largest of an inverted residual (MobileNetV2 and V3, EfficientNet).
If it does not fit in the caches, the kernel keeps only those of its rows that the window covers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kuiper.errors import KuiperError
from kuiper.ir import Graph, Operand, Operator
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.epilogue import activation_of
from kuiper.ops.product.conv2d import Conv
from kuiper.passes.optimize.match import arguments_of, computes_from, is_float32, only_reader

__all__ = ["fuse_expand"]

CONVOLUTIONS = ("nn.Conv2d", "F.conv2d")
# A smaller image stays in the L2 cache.
MIN_BYTES = 1 << 20
# The weights of the 1x1 convolution are read again for each row.
MAX_WEIGHT_BYTES = 128 << 10
# With fewer channels the 1x1 convolution runs as a few-input-channel convolution.
MIN_CHANNELS = 9


def fuse_expand(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Let depthwise convolutions compute their input themselves."""
    for op in graph:
        if op.type not in CONVOLUTIONS or len(op.outputs) != 1:
            continue
        wide = op.outputs[0]
        reader = only_reader(wide)
        if reader is None or reader.type not in CONVOLUTIONS or not computes_from(reader, wide):
            continue
        if not (is_float32(wide, specs) and is_float32(reader.outputs[0], specs)):
            continue
        first, second = op.attributes.get("weight"), reader.attributes.get("weight")
        if first is None or first.shape[2:] != (1, 1):
            continue
        if second is None or second.shape[1:2] != (1,):
            continue
        expand, depthwise = _arguments(op, specs), _arguments(reader, specs)
        if expand is None or depthwise is None:
            continue
        if _widens(op, expand, specs) and _is_depthwise(depthwise):
            _fuse(graph, op, reader, depthwise)


def _arguments(op: Operator, specs: dict[Operand, Any]) -> Conv[TensorSpec] | None:
    """Return the arguments of a convolution of images with stored weights; None for others."""
    try:
        a: Any = arguments_of(op, specs)
    except KuiperError:
        return None
    plain = (
        a.input.rank == 4
        and a.weight.rank == 4
        and a.padding_mode == "zeros"
        and a.input_scale is None
        and op.input_keys[0] in (None, "input")
        and "weight" in op.attributes
        and (a.bias is None or "bias" in op.attributes)
    )
    return a if plain else None


def _widens(op: Operator, a: Conv[TensorSpec], specs: dict[Operand, Any]) -> bool:
    """Tell whether `op` is a 1x1 convolution with a large output and a smaller input."""
    return (
        a.weight.shape[2:] == (1, 1)
        and a.groups == 1
        and set(a.stride) == {1}
        and not isinstance(a.padding, str)
        and not any(a.padding)
        and len(op.inputs) == 1
        and len(op.post_ops) <= 1
        and MIN_CHANNELS <= a.weight.shape[1] < a.weight.shape[0]
        and 4 * math.prod(a.weight.shape) <= MAX_WEIGHT_BYTES
        and specs[op.outputs[0]].tells(_is_large)
    )


def _is_large(shape: Sequence[int]) -> bool:
    return 4 * math.prod(shape) > MIN_BYTES


def _is_depthwise(a: Conv[TensorSpec]) -> bool:
    groups = a.groups
    return (
        groups == a.weight.shape[0]
        and a.weight.shape[1] == 1
        and a.input.tells(lambda shape: shape[1] == groups)
    )


def _fuse(graph: Graph, op: Operator, reader: Operator, a: Conv[TensorSpec]) -> None:
    params: dict[str, Any] = {"stride": a.stride, "dilation": a.dilation, "padding": a.padding}
    if op.post_ops:
        name, parameters = activation_of(op.post_ops[0])
        p0, p1 = (*parameters, 0.0, 0.0)[:2]
        params.update(expand_function=name, expand_p0=p0, expand_p1=p1)
    attributes = {"expand_weight": op.attributes["weight"], "weight": reader.attributes["weight"]}
    for key, source in (("expand_bias", op), ("bias", reader)):
        if "bias" in source.attributes:
            attributes[key] = source.attributes["bias"]
    graph.set_inputs(reader, [op.inputs[0], *reader.inputs[1:]], reader.input_keys)
    graph.remove_operator(op)
    reader.type = "kuiper.ExpandDepthwise"
    reader.params, reader.attributes = params, attributes
