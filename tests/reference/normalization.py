"""Normalisation with stored or with own statistics."""

from __future__ import annotations

import numpy as np

from .registry import reference


@reference("nn.BatchNorm2d", "F.batch_norm")
def batch_norm(input, running_mean, running_var, weight=None, bias=None, *, eps, **_):
    """(x - mean) / sqrt(var + eps) * weight + bias, per channel (axis 1)."""

    def per_channel(values):
        return values.reshape(-1, *[1] * (input.ndim - 2))

    y = (input - per_channel(running_mean)) / np.sqrt(per_channel(running_var) + eps)
    y = y if weight is None else y * per_channel(weight)
    return y if bias is None else y + per_channel(bias)


@reference("nn.LayerNorm", "F.layer_norm")
def layer_norm(input, weight=None, bias=None, *, normalized_shape, eps, **_):
    """Normalise over the last ``len(normalized_shape)`` axes, biased variance."""
    axes = tuple(range(-len(normalized_shape), 0))
    centred = input - input.mean(axis=axes, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias
