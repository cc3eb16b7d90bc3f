"""Views and joins with a name of their own in PyTorch."""

from __future__ import annotations

import itertools

import numpy as np

from .registry import reference


@reference("aten::movedim", "aten::moveaxis")
def movedim(input, source, destination):
    """Move axes to other positions."""
    return np.moveaxis(input, source, destination)


@reference("aten::numpy_T")
def numpy_t(input):
    """Reverse the order of the axes."""
    return np.transpose(input)


@reference("aten::mT", "aten::mH", "aten::matrix_H", "aten::adjoint")
def matrix_transpose(input):
    """Swap the last two axes."""
    return np.swapaxes(input, -1, -2)


@reference("aten::ravel")
def ravel(input):
    """All elements as one axis."""
    return np.ravel(input)


@reference("aten::atleast_1d")
def atleast_1d(input):
    """At least one axis."""
    return np.atleast_1d(input)


@reference("aten::atleast_2d")
def atleast_2d(input):
    """At least two axes."""
    return np.atleast_2d(input)


@reference("aten::atleast_3d")
def atleast_3d(input):
    """At least three axes."""
    return np.atleast_3d(input)


@reference("aten::unfold", "aten::unfold_copy")
def unfold(input, dimension, size, step):
    """Windows over an axis; a new last axis runs within a window."""
    extent = input.shape[dimension] if input.ndim else 1
    starts = range(0, extent - size + 1, step)
    windows = [
        np.take(np.atleast_1d(input), range(s, s + size), dimension if input.ndim else 0)
        for s in starts
    ]
    if not input.ndim:
        return windows[0]
    axis = dimension % input.ndim
    return np.stack([np.moveaxis(window, axis, -1) for window in windows], axis)


@reference("torch.as_strided", "Tensor.as_strided", "aten::as_strided_copy")
def as_strided(input, size, stride, storage_offset=0):
    """Elements at multiples of given strides."""
    flat, y = np.ravel(input), np.empty(size, input.dtype)
    for index in np.ndindex(*size):
        y[index] = flat[(storage_offset or 0) + sum(map(int, np.multiply(index, stride)))]
    return y


@reference("aten::meshgrid")
def meshgrid(tensors, indexing="ij"):
    """Coordinate grids of vectors."""
    return tuple(np.meshgrid(*tensors, indexing=indexing))


@reference("aten::broadcast_tensors")
def broadcast_tensors(tensors):
    """Broadcast tensors against each other."""
    return tuple(np.broadcast_arrays(*tensors))


@reference("aten::broadcast_to")
def broadcast_to(input, size):
    """Broadcast to a shape."""
    lead = len(size) - input.ndim
    shape = [input.shape[d - lead] if n == -1 else n for d, n in enumerate(size)]
    return np.broadcast_to(input, shape)


@reference("aten::rot90")
def rot90(input, k, dims):
    """Rotate a plane by multiples of 90 degrees."""
    return np.rot90(input, k, dims)


@reference("aten::fliplr")
def fliplr(input):
    """Reverse axis 1."""
    return input[:, ::-1]


@reference("aten::flipud")
def flipud(input):
    """Reverse axis 0."""
    return input[::-1]


@reference("aten::hstack")
def hstack(tensors):
    """Concatenate along axis 1, or along axis 0 for vectors."""
    return np.hstack(tensors)


@reference("aten::vstack")
def vstack(tensors):
    """Concatenate along axis 0, vectors as rows."""
    return np.vstack(tensors)


@reference("aten::dstack")
def dstack(tensors):
    """Concatenate along axis 2."""
    return np.dstack(tensors)


@reference("aten::column_stack")
def column_stack(tensors):
    """Concatenate along axis 1, vectors as columns."""
    return np.column_stack(tensors)


@reference("aten::alias_copy")
def alias_copy(input):
    """The input."""
    return input


def _cut(input, wanted, axis):
    return tuple(np.array_split(input, wanted, axis))


@reference("aten::tensor_split")
def tensor_split(input, wanted, dim=0):
    """Split into pieces or at indices that a tensor holds."""
    return _cut(input, wanted, dim)


@reference("aten::hsplit")
def hsplit(input, wanted):
    """Split axis 1, or the axis of a vector."""
    return _cut(input, wanted, min(1, input.ndim - 1))


@reference("aten::vsplit")
def vsplit(input, wanted):
    """Split axis 0."""
    return _cut(input, wanted, 0)


@reference("aten::dsplit")
def dsplit(input, wanted):
    """Split axis 2."""
    return _cut(input, wanted, 2)


@reference("aten::block_diag")
def block_diag(tensors):
    """Block-diagonal matrix."""
    y = np.zeros((0, 0))
    for block in map(np.atleast_2d, tensors):
        y = np.pad(y, ((0, block.shape[0]), (0, block.shape[1])))
        y[-block.shape[0] :, -block.shape[1] :] = block
    return y


@reference("aten::cartesian_prod")
def cartesian_prod(tensors):
    """Cartesian product of vectors."""
    rows = [list(row) for row in itertools.product(*tensors)]
    return np.array(rows) if len(tensors) > 1 else tensors[0]


@reference("aten::combinations")
def combinations(input, r=2, with_replacement=False):
    """All combinations of r elements, in order."""
    rows = itertools.product(range(len(input)), repeat=r)
    rising = np.less_equal if with_replacement else np.less
    kept = [row for row in rows if all(rising(a, b) for a, b in itertools.pairwise(row))]
    return input[np.array(kept)]


@reference("aten::vander")
def vander(x, n=None, increasing=False):
    """Vandermonde matrix."""
    powers = np.arange(len(x) if n is None else n)
    return x[:, None] ** (powers if increasing else powers[::-1])
