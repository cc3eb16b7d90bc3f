"""Activations."""

from __future__ import annotations

import math

import numpy as np

from .registry import reference

# numpy has no erf; math.erf is accurate to one or two units in the last place of float64.
erf = np.vectorize(math.erf, otypes=[np.float64])


@reference("nn.ReLU", "F.relu", "torch.relu")
def relu(input, **_):
    """max(x, 0); NaN propagates."""
    return np.maximum(input, 0)


@reference("nn.ReLU6", "F.relu6")
def relu6(input, **_):
    """min(max(x, 0), 6)."""
    return np.clip(input, 0, 6)


@reference("nn.LeakyReLU", "F.leaky_relu")
def leaky_relu(input, *, negative_slope, **_):
    """Return x where x > 0, slope * x elsewhere."""
    return np.where(input > 0, input, negative_slope * input)


@reference("nn.PReLU", "F.prelu")
def prelu(input, weight, **_):
    """Leaky ReLU with one slope per channel (axis 1)."""
    slope = weight.reshape(-1, *[1] * (input.ndim - 2)) if weight.size > 1 else weight
    return np.where(input > 0, input, slope * input)


@reference("nn.Sigmoid", "F.sigmoid", "torch.sigmoid")
def sigmoid(input, **_):
    """1 / (1 + exp(-x)), written so that exp never overflows."""
    small = np.exp(-np.abs(input))
    return np.where(input >= 0, 1, small) / (1 + small)


@reference("nn.Hardsigmoid", "F.hardsigmoid")
def hardsigmoid(input, **_):
    """relu6(x + 3) / 6."""
    return np.clip(input + 3, 0, 6) / 6


@reference("nn.Hardswish", "F.hardswish")
def hardswish(input, **_):
    """Return x * relu6(x + 3) / 6."""
    return input * np.clip(input + 3, 0, 6) / 6


@reference("nn.SiLU", "F.silu")
def silu(input, **_):
    """Return x * sigmoid(x)."""
    return input * sigmoid(input)


@reference("nn.Tanh", "F.tanh", "torch.tanh")
def tanh(input, **_):
    """Hyperbolic tangent."""
    return np.tanh(input)


@reference("nn.GELU", "F.gelu")
def gelu(input, *, approximate="none", **_):
    """Return x * Phi(x), by erf or by the tanh approximation."""
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (input + 0.044715 * input**3)
        return 0.5 * input * (1 + np.tanh(inner))
    return 0.5 * input * (1 + erf(input / math.sqrt(2)))


def _like(input, number):
    """Return a bound as PyTorch compares it: truncated if the tensor holds integers."""
    return int(number) if input.dtype.kind in "iu" else number


@reference("nn.Hardtanh", "F.hardtanh")
def hardtanh(input, *, min_val, max_val, **_):
    """Clamp to [min_val, max_val]."""
    return np.clip(input, _like(input, min_val), _like(input, max_val))


@reference("nn.ELU", "F.elu")
def elu(input, *, alpha, **_):
    """Return x where x > 0, alpha * (exp(x) - 1) elsewhere."""
    return np.where(input > 0, input, alpha * np.expm1(np.minimum(input, 0)))


@reference("nn.Softplus", "F.softplus")
def softplus(input, *, beta, threshold, **_):
    """log(1 + exp(beta x)) / beta, or x itself above the threshold."""
    return np.where(input * beta > threshold, input, np.logaddexp(0, beta * input) / beta)


@reference("nn.Mish", "F.mish")
def mish(input, **_):
    """Return x * tanh(softplus(x))."""
    return input * np.tanh(np.logaddexp(0, input))


@reference("torch.clamp", "torch.clip", "Tensor.clamp")
def clamp(input, min=None, max=None, **_):
    """Limit x to [min, max]; either bound may be missing."""
    input = input if min is None else np.maximum(input, min)
    return input if max is None else np.minimum(input, max)


@reference("aten::clamp_min")
def clamp_min(input, min):
    """max(x, min)."""
    return np.maximum(input, min)


@reference("aten::clamp_max")
def clamp_max(input, max):
    """min(x, max)."""
    return np.minimum(input, max)


@reference("nn.CELU", "F.celu")
def celu(input, *, alpha, **_):
    """Return x where x > 0, alpha * (exp(x / alpha) - 1) elsewhere."""
    return np.where(input > 0, input, alpha * np.expm1(np.minimum(input, 0) / alpha))


@reference("nn.SELU", "F.selu")
def selu(input, **_):
    """Scaled ELU; its two constants preserve mean 0 and variance 1 through a network."""
    alpha, scale = 1.6732632423543772848, 1.0507009873554804934
    return scale * elu(input, alpha=alpha)


@reference("nn.Hardshrink", "F.hardshrink")
def hardshrink(input, *, lambd, **_):
    """Zero where |x| <= lambd."""
    return np.where(np.abs(input) <= lambd, 0, input)


@reference("nn.Softshrink", "F.softshrink")
def softshrink(input, *, lambd, **_):
    """sign(x) * max(|x| - lambd, 0)."""
    return np.sign(input) * np.maximum(np.abs(input) - lambd, 0)


@reference("nn.Softsign", "F.softsign")
def softsign(input, **_):
    """Return x / (1 + |x|)."""
    return input / (1 + np.abs(input))


@reference("nn.Tanhshrink", "F.tanhshrink")
def tanhshrink(input, **_):
    """Return x - tanh(x)."""
    return input - np.tanh(input)


@reference("nn.Threshold", "F.threshold")
def threshold(input, *, threshold, value, **_):
    """Return x where x > threshold, `value` elsewhere."""
    return np.where(input > _like(input, threshold), input, _like(input, value))


@reference("nn.LogSigmoid", "F.logsigmoid")
def logsigmoid(input, **_):
    """Return log(1 / (1 + exp(-x)))."""
    return -np.logaddexp(0, -input)


@reference("nn.RReLU", "F.rrelu")
def rrelu(input, *, lower, upper, **_):
    """Leaky ReLU whose slope at inference is the middle of its range."""
    return leaky_relu(input, negative_slope=(lower + upper) / 2)
