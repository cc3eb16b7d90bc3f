"""Triangles, diagonals, products of vectors and matrices, norms."""

from __future__ import annotations

import numpy as np

from .registry import reference


@reference("aten::triu")
def triu(input, diagonal):
    """Zero the elements below a diagonal."""
    rows, columns = np.indices(input.shape[-2:])
    return np.where(columns - rows >= diagonal, input, input.dtype.type(0))


@reference("aten::tril")
def tril(input, diagonal):
    """Zero the elements above a diagonal."""
    rows, columns = np.indices(input.shape[-2:])
    return np.where(columns - rows <= diagonal, input, input.dtype.type(0))


@reference("aten::diagonal", "aten::diagonal_copy", "aten::linalg_diagonal")
def diagonal(input, offset, dim1, dim2):
    """A diagonal of two axes as the last axis."""
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
    """The matrix with a given diagonal, or the diagonal of a matrix."""
    return np.diag(input, diagonal)


@reference("aten::diagflat")
def diagflat(input, offset):
    """The matrix with a given diagonal."""
    return np.diag(np.ravel(input), offset)


@reference("aten::trace")
def trace(input):
    """The sum of the diagonal."""
    return np.asarray(np.trace(input))


def _sum(input, product, beta, alpha):
    return alpha * product if beta == 0 else beta * input + alpha * product


@reference("torch.addmm", "Tensor.addmm")
def addmm(input, mat1, mat2, *, beta=1, alpha=1):
    """Return beta * input + alpha * mat1 @ mat2."""
    return _sum(input, mat1 @ mat2, beta, alpha)


@reference("torch.baddbmm", "Tensor.baddbmm")
def baddbmm(input, batch1, batch2, *, beta=1, alpha=1):
    """Return beta * input + alpha * batch1 @ batch2, for each matrix of the batch."""
    return _sum(input, batch1 @ batch2, beta, alpha)


@reference("aten::_grouped_mm")
def grouped_mm(input, mat2, offs=None, bias=None, out_dtype=None):
    """Multiply the rows or columns of each group by the group's matrix; the rest is zero."""
    if offs is None:
        return np.stack([x @ y for x, y in zip(input, mat2, strict=True)])
    groups = [range(start, end) for start, end in zip([0, *offs[:-1]], offs, strict=True)]
    if input.ndim == mat2.ndim:
        return np.stack([input[:, list(g)] @ mat2[list(g)] for g in groups])
    result = np.zeros((input.shape[-2], mat2.shape[-1]), input.dtype)
    for number, group in enumerate(groups):
        for i in group:
            if input.ndim == 2:
                result[i] = input[i] @ mat2[number]
            else:
                result[:, i] = input[number] @ mat2[:, i]
    return result


@reference("aten::addmv")
def addmv(input, mat, vec, beta, alpha):
    """Return beta * input + alpha * mat @ vec."""
    return _sum(input, mat @ vec, beta, alpha)


@reference("aten::addr")
def addr(input, vec1, vec2, beta, alpha):
    """Return beta * input + alpha * outer(vec1, vec2)."""
    return _sum(input, np.outer(vec1, vec2), beta, alpha)


@reference("aten::addbmm")
def addbmm(input, batch1, batch2, beta, alpha):
    """Return beta * input + alpha * sum over the batch of batch1 @ batch2."""
    return _sum(input, (batch1 @ batch2).sum(0), beta, alpha)


@reference("torch.cross", "Tensor.cross")
def cross(input, other, *, dim=None):
    """Cross products along `dim`, or along the first axis of extent 3."""
    axis = np.broadcast_shapes(input.shape, other.shape).index(3) if dim is None else dim
    return linalg_cross(input, other, axis)


@reference("aten::linalg_cross")
def linalg_cross(input, other, dim):
    """Cross products along `dim`."""
    input, other = np.broadcast_arrays(input, other)
    return np.cross(input, other, axis=dim)


@reference("aten::kron")
def kron(input, other):
    """Kronecker product."""
    return np.kron(input, other)


@reference("aten::dot", "aten::vdot")
def dot(input, other):
    """The sum of products."""
    return np.asarray((input * other).sum())


@reference("aten::outer", "aten::ger")
def outer(input, other):
    """Outer product of two vectors."""
    return input[:, None] * other


@reference("aten::inner")
def inner(input, other):
    """Sums of products over the last axes."""
    return np.asarray(np.inner(input, other))


@reference("aten::tensordot")
def tensordot(input, other, dims_self, dims_other):
    """Sums of products over the given axes."""
    return np.tensordot(input, other, (dims_self, dims_other))


@reference("aten::linalg_multi_dot", "aten::chain_matmul")
def multi_dot(tensors):
    """Product of a chain of matrices."""
    y = tensors[0]
    for tensor in tensors[1:]:
        y = y @ tensor
    return np.asarray(y)


@reference("aten::bilinear")
def bilinear(input1, input2, weight, bias=None):
    """y[n,o] = input1[n] @ weight[o] @ input2[n] + bias[o]."""
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
    """Vector or matrix norms, by the number of axes."""
    return _norm(input, ord, dim, keepdim)


@reference("aten::linalg_matrix_norm")
def linalg_matrix_norm(input, ord, dim, keepdim=False, dtype=None):
    """Matrix norms over two axes."""
    return _norm(input, ord, dim, keepdim)


@reference("aten::linalg_vector_norm")
def linalg_vector_norm(input, ord, dim=None, keepdim=False, dtype=None):
    """Vector norms."""
    axis = None if dim is None else tuple(dim)
    return np.asarray((np.abs(input) ** ord).sum(axis, keepdims=keepdim) ** (1 / ord))


@reference("aten::renorm")
def renorm(input, p, dim, maxnorm):
    """Scale down the slices along `dim` whose norm exceeds `maxnorm`."""
    y = np.moveaxis(input.copy(), dim, 0)
    for part in y:
        size = (np.abs(part) ** p).sum() ** (1 / p)
        if size > maxnorm:
            part *= maxnorm / (size + 1e-7)
    return np.moveaxis(y, 0, dim)


@reference("aten::linalg_matrix_power")
def linalg_matrix_power(input, n):
    """The n-th power of a matrix."""
    y = np.broadcast_to(np.eye(input.shape[-1]), input.shape)
    for _ in range(n):
        y = y @ input
    return y


@reference("kuiper.Determinant")
def determinant(input):
    """The determinant, by expansion along the first row."""
    if input.shape[-1] == 0:
        return np.ones(input.shape[:-2], input.dtype)
    y = np.zeros(input.shape[:-2])
    for column in range(input.shape[-1]):
        rest = np.delete(input[..., 1:, :], column, -1)
        y = y + (-1) ** column * input[..., 0, column] * determinant(rest)
    return y


@reference("aten::linalg_vecdot")
def vecdot(input, other, dim=-1):
    """Sums of products along an axis."""
    return np.asarray(np.sum(input * other, axis=dim))


@reference("aten::linalg_vander")
def linalg_vander(input, count=None):
    """Vandermonde matrix with exponents increasing from 0."""
    powers = [input**power for power in range(count or input.shape[-1])]
    return np.stack(powers, -1)
