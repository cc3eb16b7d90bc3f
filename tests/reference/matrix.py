"""Triangles, diagonals, sums with products, norms."""

from __future__ import annotations

import numpy as np

from .registry import reference


@reference("aten::triu")
def triu(input, diagonal):
    """Zeros below a diagonal."""
    rows, columns = np.indices(input.shape[-2:])
    return np.where(columns - rows >= diagonal, input, input.dtype.type(0))


@reference("aten::tril")
def tril(input, diagonal):
    """Zeros above a diagonal."""
    rows, columns = np.indices(input.shape[-2:])
    return np.where(columns - rows <= diagonal, input, input.dtype.type(0))


@reference("aten::diagonal", "aten::diagonal_copy", "aten::linalg_diagonal")
def diagonal(input, offset, dim1, dim2):
    """A diagonal of two axes, as the last axis."""
    return np.diagonal(input, offset, dim1, dim2)


@reference("aten::diag_embed")
def diag_embed(input, offset, dim1, dim2):
    """Matrices with given diagonals."""
    extent = input.shape[-1] + abs(offset)
    y = np.zeros((*input.shape[:-1], extent, extent), input.dtype)
    for i in range(input.shape[-1]):
        y[..., i + max(-offset, 0), i + max(offset, 0)] = input[..., i]
    return np.moveaxis(y, (-2, -1), (dim1, dim2))


@reference("torch.diag")
def diag(input, *, diagonal=0):
    """A matrix of a diagonal, or the diagonal of a matrix."""
    return np.diag(input, diagonal)


@reference("aten::diagflat")
def diagflat(input, offset):
    """A matrix of a diagonal."""
    return np.diag(np.ravel(input), offset)


@reference("aten::trace")
def trace(input):
    """The sum of the diagonal."""
    return np.asarray(np.trace(input))


def _sum(input, product, beta, alpha):
    return alpha * product if beta == 0 else beta * input + alpha * product


@reference("torch.addmm", "Tensor.addmm")
def addmm(input, mat1, mat2, *, beta=1, alpha=1):
    """A matrix and a product."""
    return _sum(input, mat1 @ mat2, beta, alpha)


@reference("torch.baddbmm", "Tensor.baddbmm")
def baddbmm(input, batch1, batch2, *, beta=1, alpha=1):
    """Matrices and products."""
    return _sum(input, batch1 @ batch2, beta, alpha)


@reference("aten::_grouped_mm")
def grouped_mm(input, mat2, offs=None, bias=None, out_dtype=None):
    """Every group's rows, or columns, by its own matrix; what is in no group is 0."""
    if offs is None:
        return np.stack([x @ y for x, y in zip(input, mat2, strict=True)])
    groups = [range(start, end) for start, end in zip([0, *offs[:-1]], offs, strict=True)]
    if input.ndim == mat2.ndim:
        return np.stack([input[:, list(g)] @ mat2[list(g)] for g in groups])
    result = np.zeros((input.shape[-2], mat2.shape[-1]), input.dtype)
    for number, group in enumerate(groups):
        for place in group:
            if input.ndim == 2:
                result[place] = input[place] @ mat2[number]
            else:
                result[:, place] = input[number] @ mat2[:, place]
    return result


@reference("aten::addmv")
def addmv(input, mat, vec, beta, alpha):
    """A vector and a product."""
    return _sum(input, mat @ vec, beta, alpha)


@reference("aten::addr")
def addr(input, vec1, vec2, beta, alpha):
    """A matrix and an outer product."""
    return _sum(input, np.outer(vec1, vec2), beta, alpha)


@reference("aten::addbmm")
def addbmm(input, batch1, batch2, beta, alpha):
    """A matrix and a sum of products."""
    return _sum(input, (batch1 @ batch2).sum(0), beta, alpha)


@reference("torch.cross", "Tensor.cross")
def cross(input, other, *, dim=None):
    """Cross products."""
    axis = np.broadcast_shapes(input.shape, other.shape).index(3) if dim is None else dim
    return linalg_cross(input, other, axis)


@reference("aten::linalg_cross")
def linalg_cross(input, other, dim):
    """Cross products."""
    input, other = np.broadcast_arrays(input, other)
    return np.cross(input, other, axis=dim)


@reference("aten::kron")
def kron(input, other):
    """All products, side by side."""
    return np.kron(input, other)


@reference("aten::dot", "aten::vdot")
def dot(input, other):
    """The sum of products."""
    return np.asarray((input * other).sum())


@reference("aten::outer", "aten::ger")
def outer(input, other):
    """All products."""
    return input[:, None] * other


@reference("aten::inner")
def inner(input, other):
    """Sums of products over the last axes."""
    return np.asarray(np.inner(input, other))


@reference("aten::tensordot")
def tensordot(input, other, dims_self, dims_other):
    """Sums of products over some axes."""
    return np.tensordot(input, other, (dims_self, dims_other))


@reference("aten::linalg_multi_dot", "aten::chain_matmul")
def multi_dot(tensors):
    """A product of several matrices."""
    y = tensors[0]
    for tensor in tensors[1:]:
        y = y @ tensor
    return np.asarray(y)


@reference("aten::bilinear")
def bilinear(input1, input2, weight, bias=None):
    """Products of two vectors with a matrix each."""
    y = np.stack([((input1 @ matrix) * input2).sum(-1) for matrix in weight], -1)
    return y if bias is None else y + bias


def _norm(input, order, dim, keepdim):
    dim = None if dim is None else tuple(dim) if isinstance(dim, tuple | list) else (dim,)
    if dim is None and order is None:
        input, dim = np.ravel(input), (0,)
        return np.asarray(np.linalg.norm(input))
    if dim is None:
        dim = tuple(range(input.ndim))
    order = float(order) if order in ("inf", "-inf") else order
    if len(dim) == 2:
        return np.asarray(np.linalg.norm(input, order, dim, keepdim))
    return np.asarray(np.linalg.norm(input, order, dim[0], keepdim))


@reference("aten::linalg_norm")
def linalg_norm(input, ord, dim=None, keepdim=False, dtype=None):
    """Norms of vectors or matrices."""
    return _norm(input, ord, dim, keepdim)


@reference("aten::linalg_matrix_norm")
def linalg_matrix_norm(input, ord, dim, keepdim=False, dtype=None):
    """Norms of matrices."""
    return _norm(input, ord, dim, keepdim)


@reference("aten::linalg_vector_norm")
def linalg_vector_norm(input, ord, dim=None, keepdim=False, dtype=None):
    """Norms of vectors."""
    axis = None if dim is None else tuple(dim)
    return np.asarray((np.abs(input) ** ord).sum(axis, keepdims=keepdim) ** (1 / ord))


@reference("aten::renorm")
def renorm(input, p, dim, maxnorm):
    """Slices whose norm is limited."""
    y = np.moveaxis(input.copy(), dim, 0)
    for part in y:
        size = (np.abs(part) ** p).sum() ** (1 / p)
        if size > maxnorm:
            part *= maxnorm / (size + 1e-7)
    return np.moveaxis(y, 0, dim)


@reference("aten::linalg_matrix_power")
def linalg_matrix_power(input, n):
    """Products of a matrix with itself."""
    y = np.broadcast_to(np.eye(input.shape[-1]), input.shape)
    for _ in range(n):
        y = y @ input
    return y


@reference("aten::linalg_vecdot")
def vecdot(input, other, dim=-1):
    """Sums of products along an axis."""
    return np.asarray(np.sum(input * other, axis=dim))


@reference("aten::linalg_vander")
def linalg_vander(input, count=None):
    """Powers from 0 on."""
    powers = [input**power for power in range(count or input.shape[-1])]
    return np.stack(powers, -1)
