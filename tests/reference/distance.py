"""Distances and similarities."""

from __future__ import annotations

import numpy as np

from .registry import reference


def _norm(x, p):
    if np.isinf(p):
        return np.abs(x).max(-1)
    if p == 0:
        return (x != 0).sum(-1).astype(np.float64)
    return (np.abs(x) ** p).sum(-1) ** (1 / p)


@reference("F.pairwise_distance", "nn.PairwiseDistance", "aten::pairwise_distance")
def pairwise_distance(x1, x2, *, p, eps, keepdim):
    """p-norms of the differences of corresponding rows."""
    y = _norm(x1 - x2 + eps, p)
    return y[..., None] if keepdim else y


@reference("aten::cosine_similarity")
def cosine_similarity(x1, x2, dim, eps):
    """Cosines of the angles between vectors along `dim`."""
    x1, x2 = (np.moveaxis(x, dim, -1) for x in np.broadcast_arrays(x1, x2))
    return (x1 * x2).sum(-1) / (np.maximum(_norm(x1, 2), eps) * np.maximum(_norm(x2, 2), eps))


@reference("aten::cdist")
def cdist(x1, x2, p, compute_mode=None):
    """p-norms of the differences between every row of x1 and every row of x2."""
    return _norm(x1[..., :, None, :] - x2[..., None, :, :], p)


@reference("aten::pdist")
def pdist(input, p):
    """p-norms of the differences of all pairs of rows."""
    rows = range(len(input))
    return np.array([_norm(input[i] - input[j], p) for i in rows for j in rows if i < j])
