"""Matrix products."""

from __future__ import annotations

import numpy as np

from .registry import reference


@reference("nn.Linear", "F.linear")
def linear(input, weight, bias=None, **_):
    """Return x W^T + b over the last axis."""
    y = np.matmul(input, weight.T)
    return y if isinstance(bias, bool) or bias is None else y + bias


@reference("torch.matmul")
def matmul(input, other, **_):
    """Matrix product with broadcasting over the leading axes."""
    return np.matmul(input, other)
