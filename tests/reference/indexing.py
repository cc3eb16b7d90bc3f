"""Indexing, gathering and scattering, as the loops over indices of PyTorch's documentation."""

from __future__ import annotations

import ast
import itertools

import numpy as np

from .registry import reference
from .shape import slice_


def _subscript(indices):
    if isinstance(indices, str):
        indices = ast.literal_eval(indices)
    whole = slice(None)
    return tuple(whole if i is None else np.array(i) if isinstance(i, list) else i for i in indices)


@reference("Tensor.index")
def index(input, *, expr):
    """Read at indices; None selects a whole axis."""
    return input[_subscript(expr)]


@reference("Tensor.index_put")
def index_put(input, *, indices, values, accumulate):
    """Write or add at indices."""
    y = input.copy()
    if accumulate:
        np.add.at(y, _subscript(indices), values)
    else:
        y[_subscript(indices)] = values
    return y


def _targets(index, dim):
    """Yield (i, j) for each position i of an index tensor, where j is i with index[i] at `dim`."""
    for source in np.ndindex(index.shape):
        target = list(source)
        target[dim] = index[source]
        yield source, tuple(target)


@reference("torch.gather")
def gather(input, *, dim, index):
    """Read at one index per element."""
    y = np.zeros(index.shape, input.dtype)
    for i, target in _targets(index, dim):
        y[i] = input[target]
    return y


@reference("torch.scatter_add")
def scatter_add(input, *, dim, index, src):
    """Add at one index per element."""
    return scatter(input, dim, index, src, "add")


@reference("aten::scatter")
def scatter(input, dim, index, src, reduce=None):
    """Write, add or multiply at one index per element."""
    y = input.copy()
    for i, target in _targets(index, dim):
        value = src if np.ndim(src) == 0 else src[i]
        if reduce == "add":
            y[target] += value
        elif reduce == "multiply":
            y[target] *= value
        else:
            y[target] = value
    return y


@reference("aten::scatter_reduce")
def scatter_reduce(input, dim, index, src, reduce, include_self=True):
    """Reduce all values that are written to the same element."""
    join = {"sum": sum, "prod": np.prod, "mean": np.mean, "amax": max, "amin": min}[reduce]
    values: dict[tuple, list] = {}
    for i, target in _targets(index, dim):
        values.setdefault(target, [input[target]] if include_self else []).append(src[i])
    y = input.copy()
    for target, found in values.items():
        y[target] = join(found)
    return y


@reference("torch.index_select")
def index_select(input, *, dim, index):
    """Take the listed slices of an axis."""
    return np.stack([np.take(input, i, dim) for i in np.atleast_1d(index)], dim)


@reference("aten::index_add")
def index_add(input, dim, index, source, alpha=1):
    """Add slices at the listed indices of an axis."""
    y = input.copy()
    for number, i in enumerate(index):
        np.moveaxis(y, dim, 0)[i] += alpha * np.take(source, number, dim)
    return y


@reference("aten::index_copy")
def index_copy(input, dim, index, source):
    """Write slices at the listed indices of an axis."""
    y = input.copy()
    for number, i in enumerate(index):
        np.moveaxis(y, dim, 0)[i] = np.take(source, number, dim)
    return y


@reference("aten::index_fill")
def index_fill(input, dim, index, value):
    """Write a number at the listed indices of an axis."""
    y = input.copy()
    for i in index:
        np.moveaxis(y, dim, 0)[i] = value
    return y


@reference("aten::take")
def take(input, index):
    """Read the flattened input at indices."""
    return input.reshape(-1)[index]


@reference("aten::put")
def put(input, index, source, accumulate=False):
    """Write to the flattened input at indices."""
    y = input.copy().reshape(-1)
    for i, value in zip(index.reshape(-1), source.reshape(-1), strict=True):
        y[i] = y[i] + value if accumulate else value
    return y.reshape(input.shape)


@reference("aten::take_along_dim")
def take_along_dim(input, index, dim=None):
    """Read at one index per element; the other axes broadcast."""
    if dim is None:
        return input.reshape(-1)[index.reshape(-1)]
    extents = np.broadcast_shapes(
        np.delete(input.shape, dim).tolist(), np.delete(index.shape, dim).tolist()
    )
    wide = [np.insert(extents, dim % input.ndim, x.shape[dim]) for x in (input, index)]
    return gather(np.broadcast_to(input, wide[0]), dim=dim, index=np.broadcast_to(index, wide[1]))


@reference("Tensor.masked_fill")
def masked_fill(input, mask, *, value):
    """`value` where the mask is true."""
    input, mask = np.broadcast_arrays(input, mask)
    y = input.copy()
    y[mask] = value
    return y


@reference("aten::masked_scatter")
def masked_scatter(input, mask, source):
    """The elements of `source`, in their order, where the mask is true."""
    y, mask = (x.copy() for x in np.broadcast_arrays(input, mask))
    y[mask] = source.reshape(-1)[: mask.sum()]
    return y


@reference("torch.where")
def where(condition, *, input, other):
    """Choose element by element."""
    return np.where(condition, input, other)


@reference("Tensor.fill")
def fill(input, *, value):
    """The same value everywhere."""
    return np.full(input.shape, value, input.dtype)


@reference("Tensor.slice_copy")
def slice_copy(*, self, src, **ranges):
    """Write into a slice."""
    y = self.copy()
    slice_(y, **ranges)[...] = src
    return y


@reference("torch.slice_scatter")
def slice_scatter(input, *, src, **ranges):
    """Write into a range of an axis."""
    return slice_copy(self=input, src=src, **ranges)


@reference("aten::select_scatter")
def select_scatter(input, src, dim, index):
    """Write at one index of an axis."""
    y = input.copy()
    np.moveaxis(y, dim, 0)[index] = src
    return y


@reference("nn.Embedding", "F.embedding")
def embedding(input, *, weight, **_):
    """Rows of a table, by index."""
    return weight[input]


@reference("aten::one_hot")
def one_hot(input, num_classes):
    """Rows of the identity matrix, by index; `num_classes` < 0 means the maximum plus 1."""
    if num_classes < 0:
        num_classes = input.max() + 1
    return np.eye(num_classes, dtype=np.int64)[input]


@reference("aten::embedding_bag")
def embedding_bag(
    weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, *rest
):
    """Sum, mean or maximum of the rows of each bag."""
    include_last_offset, _ = rest
    ends = [*offsets, len(indices)]
    bags = []
    for start, end in itertools.pairwise(ends):
        rows = [weight[i] for i in indices[start:end]]
        if per_sample_weights is not None:
            scales = per_sample_weights[start:end]
            rows = [row * scale for row, scale in zip(rows, scales, strict=True)]
        join = (np.sum, np.mean, np.max)[mode]
        bags.append(join(rows, axis=0) if rows else np.zeros(weight.shape[1]))
    if include_last_offset:
        bags.pop()
    return np.stack(bags), None, None, None


@reference("aten::numel")
def numel(input):
    """Number of elements."""
    return input.size


@reference("aten::index_reduce")
def index_reduce(input, dim, index, source, reduce, include_self=True):
    """Reduce all slices that are written to the same index of an axis."""
    join = {"prod": np.prod, "mean": np.mean, "amax": np.max, "amin": np.min}[reduce]
    y = input.copy()
    for target in set(index.tolist()):
        found = [np.take(source, i, dim) for i in np.flatnonzero(index == target)]
        found += [np.take(input, target, dim)] if include_self else []
        np.moveaxis(y, dim, 0)[target] = join(found, axis=0)
    return y


@reference("aten::diagonal_scatter")
def diagonal_scatter(input, src, offset=0, dim1=0, dim2=1):
    """Replace a diagonal."""
    y = input.copy()
    for position in np.ndindex(src.shape):
        i = position[-1]
        np.moveaxis(y, (dim1, dim2), (0, 1))[
            (i - min(offset, 0), i + max(offset, 0), *position[:-1])
        ] = src[position]
    return y


@reference("Tensor.copy")
def copy(**operands):
    """The base of the view `self` after `src` has been written into the view."""
    view, src = operands["self"], operands["src"]
    whole = view if view.base is None else view.base
    before = whole.copy()
    view[...] = src
    after = whole.copy()
    whole[...] = before
    return after
