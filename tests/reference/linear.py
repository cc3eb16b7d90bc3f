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


@reference("torch.mm", "torch.bmm")
def mm(input, mat2, **_):
    """Product of two matrices, or of two stacks of them."""
    return np.matmul(input, mat2)


@reference("torch.mv")
def mv(input, vec, **_):
    """Product of a matrix and a vector."""
    return np.matmul(input, vec)
