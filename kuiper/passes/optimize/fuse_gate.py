"""Fuse a gate per channel into the weights of the 1x1 convolution that follows.

::

    pnnx.Expression gate 2 1 x g y expr=mul(@0,@1)   nn.Conv2d conv 2 1 x g z $input_scale=g
    nn.Conv2d       conv 1 1 y z                     (g of shape (n, c, 1, 1))

Squeeze-and-excitation multiplies an image by one factor per channel.  Scaling the weights of the
following convolution is equivalent, and cheaper if the image is large.
"""

from __future__ import annotations

import math
from typing import Any

from kuiper.errors import KuiperError
from kuiper.expression.functions import CUSTOM
from kuiper.ir import Graph, Operand, Operator
from kuiper.passes.optimize.match import arguments_of, computes_from, is_float32, only_reader

__all__ = ["fuse_gate"]

PRODUCTS = ("mul(@0,@1)", "mul(@1,@0)")
# Scaling the weights is cheaper from this many pixels per output channel on.
PIXELS_PER_FILTER = 2


def fuse_gate(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Let 1x1 convolutions scale their input channels."""
    for op in graph.find("pnnx.Expression"):
        if op.params.get("expr") not in PRODUCTS or len(op.inputs) != 2 or "mul" in CUSTOM:
            continue
        result = op.outputs[0]
        conv = only_reader(result)
        if conv is None or conv.type not in ("nn.Conv2d", "F.conv2d"):
            continue
        for image, gate in (op.inputs, op.inputs[::-1]):
            if _is_gated(image, gate, result, specs) and _can_scale(conv, result, specs):
                inputs = [image if operand is result else operand for operand in conv.inputs]
                keys = [*conv.input_keys, "input_scale"]
                graph.set_inputs(conv, [*inputs, gate], keys)
                graph.set_outputs(op, [])
                graph.remove_operator(op)
                break


def _is_gated(image: Operand, gate: Operand, result: Operand, specs: dict[Operand, Any]) -> bool:
    """Tell whether `gate` has one factor per channel of each image."""
    if not all(is_float32(operand, specs) for operand in (image, gate, result)):
        return False
    return (
        specs[image].tells(_are_gated, specs[result], specs[gate]) and not specs[gate].is_constant
    )


def _are_gated(image: tuple[int, ...], result: tuple[int, ...], gate: tuple[int, ...]) -> bool:
    """Tell of three shapes what :func:`_is_gated` tells of three operands."""
    return len(image) == 4 and result == image and gate == (*image[:2], 1, 1)


def _can_scale(conv: Operator, result: Operand, specs: dict[Operand, Any]) -> bool:
    """Tell whether the convolution is 1x1, and its stored weights are small beside its input."""
    if not computes_from(conv, result):
        return False
    try:
        a = arguments_of(conv, specs)
    except KuiperError:
        return False
    filters, _, *kernel = a.weight.shape
    return (
        kernel == [1, 1]
        and a.groups == 1
        and a.input_scale is None
        and set(a.stride) == {1}
        and not isinstance(a.padding, str)
        and not any(a.padding)
        and "weight" in conv.attributes
        and (a.bias is None or "bias" in conv.attributes)
        and specs[result].tells(lambda shape: math.prod(shape[2:]) >= PIXELS_PER_FILTER * filters)
    )
