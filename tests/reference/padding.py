"""Padding, with amounts in PyTorch's order: last axis first, (before, after) pairs."""

from __future__ import annotations

import numpy as np

from .registry import reference

_NUMPY_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@reference("F.pad")
def pad(input, pad, mode="constant", value=None, **_):
    """Pad, or crop where an amount is negative."""
    pairs = [(0, 0)] * input.ndim
    for number in range(len(pad) // 2):
        pairs[input.ndim - 1 - number] = (pad[2 * number], pad[2 * number + 1])
    grown = [(max(before, 0), max(after, 0)) for before, after in pairs]
    if mode == "constant":
        y = np.pad(input, grown, constant_values=0 if value is None else value)
    else:
        y = np.pad(input, grown, mode=_NUMPY_MODES[mode])
    kept = tuple(
        slice(max(-before, 0), extent - max(-after, 0))
        for extent, (before, after) in zip(y.shape, pairs, strict=True)
    )
    return y[kept]


@reference("nn.ZeroPad2d")
def zero_pad(input, *, padding, **_):
    """Pad the spatial axes with zero."""
    return pad(input, padding)


@reference("nn.ConstantPad1d", "nn.ConstantPad2d", "nn.ConstantPad3d")
def constant_pad(input, *, padding, value, **_):
    """Pad with one value."""
    return pad(input, padding, "constant", value)


@reference("nn.ReflectionPad1d", "nn.ReflectionPad2d")
def reflection_pad(input, *, padding, **_):
    """Mirror without repeating the edge."""
    return pad(input, padding, "reflect")


@reference("nn.ReplicationPad1d", "nn.ReplicationPad2d", "nn.ReplicationPad3d")
def replication_pad(input, *, padding, **_):
    """Repeat the edge."""
    return pad(input, padding, "replicate")


@reference("kuiper.SamePadding")
def same_padding(input, *, window, value, **_):
    """Pad so that a window starts at every stride and every input element is covered."""
    pairs = [(0, 0)] * (input.ndim - 2)
    for extent, (kernel, stride, dilation) in zip(input.shape[-2:], window.T, strict=True):
        starts = np.arange(0, extent, stride)
        reach = starts[-1] + dilation * (kernel - 1) + 1 if len(starts) else 0
        missing = max(int(reach) - extent, 0)
        pairs.append((missing // 2, missing - missing // 2))
    return np.pad(input, pairs, constant_values=value[0])
