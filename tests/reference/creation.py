"""Tensors from sizes and numbers."""

from __future__ import annotations

import numpy as np

from .dtypes import dtype_of
from .registry import reference


def _type_of(number):
    return np.float64 if isinstance(number, float) else np.bool_ if number is True else np.int64


@reference("torch.zeros", "torch.empty")
def zeros(*, size, dtype=None):
    """Zeros, also for PyTorch's ``empty``, which kuiper fills with zeros."""
    return np.zeros(size, dtype_of(dtype))


@reference("torch.zeros_like", "torch.empty_like")
def zeros_like(input, *, dtype=None):
    """Zeros in the shape of another tensor."""
    return np.zeros(input.shape, dtype_of(dtype, input.dtype))


@reference("aten::zero")
def zero(input):
    """Zeros of the shape and dtype of another tensor."""
    return np.zeros_like(input)


@reference("Tensor.new_zeros", "Tensor.new_empty")
def new_zeros(input, *, size, dtype=None):
    """Zeros of the dtype of another tensor."""
    return np.zeros(size, dtype_of(dtype, input.dtype))


@reference("torch.ones")
def ones(*, size, dtype=None):
    """A tensor of ones."""
    return np.ones(size, dtype_of(dtype))


@reference("torch.ones_like")
def ones_like(input, *, dtype=None):
    """Ones in the shape of another tensor."""
    return np.ones(input.shape, dtype_of(dtype, input.dtype))


@reference("Tensor.new_ones")
def new_ones(input, *, size, dtype=None):
    """Ones of the dtype of another tensor."""
    return np.ones(size, dtype_of(dtype, input.dtype))


@reference("torch.full")
def full(*, size, fill_value, dtype=None):
    """A tensor filled with one number."""
    return np.full(size, fill_value, dtype_of(dtype, _type_of(fill_value)))


@reference("torch.full_like")
def full_like(input, *, fill_value, dtype=None):
    """One number in the shape of another tensor."""
    return np.full(input.shape, fill_value, dtype_of(dtype, input.dtype))


@reference("aten::new_full")
def new_full(input, size, fill_value, *_):
    """One number of the dtype of another tensor."""
    return np.full(size, fill_value, input.dtype)


@reference("aten::scalar_tensor")
def scalar_tensor(number, *_):
    """A number as a tensor."""
    return np.asarray(number, np.float64)


@reference("torch.arange")
def arange(*, start=0, end, step=1, dtype=None):
    """start, start + step, ... below end."""
    default = np.float64 if any(isinstance(n, float) for n in (start, end, step)) else np.int64
    return np.arange(start, end, step).astype(dtype_of(dtype, default))


@reference("aten::linspace")
def linspace(start, end, steps, *_):
    """`steps` evenly spaced numbers from `start` to `end`."""
    return np.linspace(start, end, steps)


@reference("aten::logspace")
def logspace(start, end, steps, base, *_):
    """Powers of `base` with evenly spaced exponents."""
    return base ** np.linspace(start, end, steps)


@reference("aten::eye")
def eye(n, *rest):
    """The identity matrix, (n, n) or (n, m)."""
    m = rest[0] if len(rest) == 5 else n
    return (np.arange(n)[:, np.newaxis] == np.arange(m)) * 1.0


@reference("torch.randn", "aten::rand")
def random(*rest, size=None, **_):
    """Random numbers; the cases multiply them by zero because only their shape is defined."""
    return np.zeros(rest[0] if size is None else size)


@reference("torch.randn_like", "torch.normal", "aten::rand_like")
def random_like(input, *_, **__):
    """Random numbers in the shape of another tensor."""
    return np.zeros(input.shape)
