"""Normalisation by stored statistics or by those of the input."""

from __future__ import annotations

import numpy as np

from .registry import reference


@reference("nn.BatchNorm1d", "nn.BatchNorm2d", "nn.BatchNorm3d", "F.batch_norm")
def batch_norm(input, running_mean, running_var, weight=None, bias=None, *, eps, **_):
    """(x - mean) / sqrt(var + eps) * weight + bias, per channel (axis 1)."""

    def per_channel(values):
        return values.reshape(-1, *[1] * (input.ndim - 2))

    y = (input - per_channel(running_mean)) / np.sqrt(per_channel(running_var) + eps)
    y = y if weight is None else y * per_channel(weight)
    return y if bias is None else y + per_channel(bias)


@reference("nn.LayerNorm", "F.layer_norm")
def layer_norm(input, weight=None, bias=None, *, normalized_shape, eps, **_):
    """Normalise over the last ``len(normalized_shape)`` axes with the biased variance."""
    axes = tuple(range(-len(normalized_shape), 0))
    centred = input - input.mean(axis=axes, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _scaled(y, weight, bias, shape):
    """Scale and shift by weight and bias, reshaped to `shape` first."""
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def _standardised(x, axes, eps):
    centred = x - x.mean(axis=axes, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + eps)


@reference("nn.InstanceNorm1d", "nn.InstanceNorm2d", "nn.InstanceNorm3d")
def instance_norm(
    input,
    running_mean=None,
    running_var=None,
    weight=None,
    bias=None,
    *,
    eps,
    track_running_stats=False,
    **_,
):
    """Normalise each channel of each sample by its own statistics, or by tracked ones."""
    if track_running_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
    y = _standardised(input, tuple(range(2, input.ndim)), eps)
    return _scaled(y, weight, bias, (-1, *[1] * (input.ndim - 2)))


@reference("F.instance_norm")
def functional_instance_norm(input, *, weight=None, bias=None, eps, **_):
    """As the module without stored statistics; the function is only exported in that form."""
    return instance_norm(input, weight=weight, bias=bias, eps=eps)


@reference("nn.GroupNorm", "F.group_norm")
def group_norm(input, weight=None, bias=None, *, num_groups, eps, **_):
    """Normalise each group of channels of each sample."""
    groups = input.reshape(input.shape[0], num_groups, -1)
    y = _standardised(groups, 2, eps).reshape(input.shape)
    return _scaled(y, weight, bias, (-1, *[1] * (input.ndim - 2)))


@reference("nn.RMSNorm", "F.rms_norm")
def rms_norm(input, weight=None, *, normalized_shape, eps, **_):
    """Divide by the root mean square; eps defaults to the machine epsilon of float32."""
    axes = tuple(range(-len(normalized_shape), 0))
    eps = np.finfo(np.float32).eps if eps is None else eps
    y = input / np.sqrt((input**2).mean(axis=axes, keepdims=True) + eps)
    return y if weight is None else y * weight


@reference("nn.LocalResponseNorm", "F.local_response_norm")
def local_response_norm(input, *, size, alpha, beta, k, **_):
    """Return x / (k + alpha * mean of squares over `size` channels) ** beta, zeros outside."""
    channels = input.shape[1]
    squares = np.zeros_like(input)
    for c in range(channels):
        window = input[:, max(c - size // 2, 0) : c + (size - 1) // 2 + 1]
        squares[:, c] = (window**2).sum(axis=1) / size
    return input / (k + alpha * squares) ** beta


@reference("F.normalize")
def normalize(input, *, p, dim, eps, **_):
    """Return x / max(p-norm along `dim`, eps)."""
    norm = (np.abs(input) ** p).sum(axis=dim, keepdims=True) ** (1 / p)
    return input / np.maximum(norm, eps)
