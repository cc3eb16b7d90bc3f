"""Fuse zero padding into the convolution that follows.

::

    nn.ZeroPad2d pad  1 1 x y padding=(0,1,0,1)       nn.Conv2d conv 1 1 x z padding=(0,1,0,1)
    nn.Conv2d    conv 1 1 y z padding=(0,0)

pnnx does this itself if both sides of an axis have the same padding; MobileNets in TensorFlow's
style pad one side only.
"""

from __future__ import annotations

from typing import Any

from kuiper.ir import Graph, Operand, Operator
from kuiper.passes.optimize.match import arguments_of, computes_from, only_reader

__all__ = ["fuse_pad"]

PADS = ("nn.ZeroPad2d", "nn.ConstantPad2d", "F.pad", "kuiper.SamePadding")


def fuse_pad(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Fuse zero padding of the two spatial axes into 2-d convolutions."""
    for op in graph:
        if op.type not in PADS or len(op.inputs) != 1:
            continue
        sides = _zero_sides(op, specs)
        conv = only_reader(op.outputs[0])
        if (
            sides is None
            or conv is None
            or conv.type != "nn.Conv2d"
            or not computes_from(conv, op.outputs[0])
        ):
            continue
        if conv.params.get("padding_mode", "zeros") != "zeros":
            continue
        padding = arguments_of(conv, specs).padding
        if isinstance(padding, str) or len(padding) > 2:
            continue
        height, width = padding if len(padding) == 2 else padding * 2
        own = (width, width, height, height)
        conv.params = {
            **conv.params,
            "padding": tuple(mine + theirs for mine, theirs in zip(own, sides, strict=True)),
        }
        graph.replace_uses(op.outputs[0], op.inputs[0])
        graph.remove_operator(op)


def _zero_sides(op: Operator, specs: dict[Operand, Any]) -> tuple[int, int, int, int] | None:
    """Return (left, right, top, bottom) if `op` pads images with zeros; None otherwise."""
    a = arguments_of(op, specs)
    if op.type == "kuiper.SamePadding":
        a = a.as_function()
        return a.pad if a.value == 0 and a.input.rank == 4 else None
    sides = a.pad if op.type == "F.pad" else a.padding
    if getattr(a, "mode", "constant") != "constant" or getattr(a, "value", 0) not in (None, 0):
        return None
    if getattr(specs.get(op.inputs[0]), "rank", 0) != 4 or min(sides, default=-1) < 0:
        return None
    sides = (*sides, 0, 0)[:4] if len(sides) in (2, 4) else sides
    return sides if len(sides) == 4 else None
