"""Warn of fixed padding in a file if the module may have computed it from the image size.

TensorFlow's "same" padding depends on the image size, and a trace keeps that of one size::

    F.pad       p 1 1 x q pad=(0,1,0,1)            #x=(1,3,224,224)f32
    nn.Conv2d   c 1 1 q y kernel_size=(3,3) stride=(2,2) padding=(0,0) ...

For an image of 201x235 it would be ``(1,1,1,1)``.  The file does not tell whether the module
computes its padding or has a constant one, so the graph is not changed.

The warning has these grounds: every padding with constants that only one strided window without
padding of its own reads is "same" for the traced size, one of them is larger at the end, as only
"same" padding makes it, and one differs for the size of this image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kuiper._support import log
from kuiper.ir import Graph, Operand, Operator
from kuiper.ir.view import TensorSpec

__all__ = ["sized_margins", "warn_of_sized_margins"]

_WINDOWS = ("nn.Conv2d", "nn.MaxPool2d", "nn.AvgPool2d", "F.max_pool2d", "F.avg_pool2d")


def warn_of_sized_margins(graph: Graph, specs: Mapping[Operand, Any]) -> None:
    """Log a warning if "same" padding of this image size differs from that in the file."""
    held = sized_margins(graph, specs)
    if held:
        first = held[0]
        traced, now = first.inputs[0].required_shape[-2:], specs[first.inputs[0]].shape[-2:]
        log.warning(
            "kuiper.model", "%s%s: its margins %s are those of an image of %d x %d in the file, "
            "which this one of %d x %d keeps; where the module pads by the size of its image, as "
            "TensorFlow does, PyTorch gives other numbers: convert it by kuiper.from_torch, or for "
            "this size", first.label, f" and {len(held) - 1} more" if held[1:] else "",
            first.params["pad"], *traced, *now,
        )  # fmt: skip


def sized_margins(graph: Graph, specs: Mapping[Operand, Any]) -> list[Operator]:
    """Return the operators whose padding is "same" for the traced size but not for this one.

    Parameters
    ----------
    graph : Graph
        As loaded.
    specs : mapping of Operand to (TensorSpec or StaticValue)
        For this run.

    Returns
    -------
    list of Operator
        Empty if the padding before some strided window was not "same" when traced, or if all
        padding is equal on both sides: then the module does not pad by size.
    """
    found, uneven = [], False
    for op in graph.find(type="F.pad"):
        pad, window = op.params.get("pad"), _window_after(op)
        if window is None or not isinstance(pad, tuple) or len(pad) != 4:
            continue
        if op.params.get("mode", "constant") != "constant":
            continue
        traced, actual = op.inputs[0].shape, specs.get(op.inputs[0])
        if traced is None or None in traced or len(traced) < 3:
            continue
        if not isinstance(actual, TensorSpec) or actual.rank != len(traced):
            continue
        if pad != _of_size(op.inputs[0].required_shape, window):
            return []
        uneven |= pad[0] != pad[1] or pad[2] != pad[3]
        if pad != _of_size(actual.shape, window):
            found.append(op)
    return found if uneven else []


def _of_size(shape: tuple[int, ...], window: list[tuple[int, int, int]]) -> tuple[int, ...]:
    """Return the "same" ``pad`` of an image, last axis first."""
    # Already imported if a graph has `F.pad`.
    from kuiper.ops.tensor.padding import same_margins

    down, across = (same_margins(n, *of) for n, of in zip(shape[-2:], window, strict=True))
    return (*across, *down)


def _window_after(op: Operator) -> list[tuple[int, int, int]] | None:
    """Return (kernel, stride, dilation) for h and w of the only reader of a padded image."""
    consumers = op.outputs[0].consumers
    if len(consumers) != 1 or consumers[0].type not in _WINDOWS:
        return None
    params = consumers[0].params
    kernel, stride = params.get("kernel_size"), params.get("stride")
    dilation, padding = params.get("dilation", (1, 1)), params.get("padding", (0, 0))
    pairs = [value for value in (kernel, stride, dilation) if isinstance(value, tuple)]
    numbers = [n for pair in pairs for n in pair if isinstance(n, int) and n > 0]
    if len(pairs) != 3 or len(numbers) != 6 or padding != (0, 0) or stride == (1, 1):
        return None
    return list(zip(*pairs, strict=True))
