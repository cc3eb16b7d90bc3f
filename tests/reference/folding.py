"""Sliding blocks and max unpooling."""

from __future__ import annotations

import numpy as np

from .registry import reference


def _taps(kernel_size, dilation, padding, stride, counts):
    """Yield the index and the slices of each tap in a padded plane."""
    number = 0
    for i in range(kernel_size[0]):
        for j in range(kernel_size[1]):
            yield (
                number,
                tuple(
                    slice(k * d, k * d + (n - 1) * s + 1, s)
                    for k, d, n, s in zip((i, j), dilation, counts, stride, strict=True)
                ),
            )
            number += 1


def _counts(extents, kernel_size, dilation, padding, stride):
    return [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, d, p, s in zip(extents, kernel_size, dilation, padding, stride, strict=True)
    ]


@reference("nn.Unfold", "F.unfold", "aten::im2col")
def unfold(input, *, kernel_size, dilation, padding, stride):
    """Windows of an image as columns."""
    *batch, channels, _, _ = input.shape
    counts = _counts(input.shape[-2:], kernel_size, dilation, padding, stride)
    pads = [(0, 0)] * (input.ndim - 2) + [(p, p) for p in padding]
    padded = np.pad(input, pads)
    y = np.empty((*batch, channels, np.prod(kernel_size), np.prod(counts)), input.dtype)
    for number, positions in _taps(kernel_size, dilation, padding, stride, counts):
        y[..., number, :] = padded[(..., *positions)].reshape(*batch, channels, -1)
    return y.reshape(*batch, -1, y.shape[-1])


@reference("nn.Fold", "F.fold", "aten::col2im")
def fold(input, *, output_size, kernel_size, dilation, padding, stride):
    """Columns summed into an image: the adjoint of unfold."""
    batch, taps = input.shape[:-2], int(np.prod(kernel_size))
    counts = _counts(output_size, kernel_size, dilation, padding, stride)
    x = input.reshape(*batch, -1, taps, *counts)
    padded = [n + 2 * p for n, p in zip(output_size, padding, strict=True)]
    y = np.zeros((*x.shape[:-3], *padded), input.dtype)
    for number, positions in _taps(kernel_size, dilation, padding, stride, counts):
        y[(..., *positions)] += x[..., number, :, :]
    top, left = padding
    return y[..., top : top + output_size[0], left : left + output_size[1]]


def _unpool(input, indices, extents):
    spatial = len(extents)
    y = np.zeros((*input.shape[:-spatial], int(np.prod(extents))), input.dtype)
    values = input.reshape(*input.shape[:-spatial], -1)
    np.put_along_axis(y, indices.reshape(values.shape), values, -1)
    return y.reshape(*input.shape[:-spatial], *extents)


def _register(spatial):
    @reference(f"nn.MaxUnpool{spatial}d", f"F.max_unpool{spatial}d")
    def max_unpool(input, indices, *, kernel_size, stride=None, padding=None, output_size=None):
        """Scatter values to the positions that max pooling took them from."""
        stride, padding = stride or kernel_size, padding or (0,) * spatial
        extents = output_size and output_size[-spatial:]
        return _unpool(
            input,
            indices,
            extents
            or [
                (n - 1) * s - 2 * p + k
                for n, s, p, k in zip(
                    input.shape[-spatial:], stride, padding, kernel_size, strict=True
                )
            ],
        )

    if spatial > 1:

        @reference(f"aten::max_unpool{spatial}d")
        def unpool(input, indices, output_size, *_):
            """Scatter values into a plane of a given size."""
            return _unpool(input, indices, output_size)


for _spatial in (1, 2, 3):
    _register(_spatial)


@reference("aten::conv_tbc")
def conv_tbc(input, weight, bias, pad=0):
    """Convolution along the first axis of (time, batch, channels)."""
    x = np.pad(input, ((pad, pad), (0, 0), (0, 0)))
    windows = [x[t : t + len(weight)] for t in range(len(x) - len(weight) + 1)]
    return np.einsum("tkbi,kio->tbo", np.array(windows), weight) + bias
