"""Windows over the two spatial axes."""

from __future__ import annotations

import numpy as np

from .registry import reference


def _out_extent(extent, kernel, stride, padding, dilation, ceil_mode):
    """Number of windows; the last one must start inside the input or its left padding."""
    span = extent + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-span // stride) if ceil_mode else span // stride) + 1
    if ceil_mode and (count - 1) * stride >= extent + padding:
        count -= 1
    return count


@reference("nn.MaxPool2d", "F.max_pool2d")
def max_pool2d(
    input, *, kernel_size, stride, padding, dilation, ceil_mode, return_indices=False, **_
):
    """Largest value of each window; a place outside counts as -infinity."""
    stride = kernel_size if stride is None else stride
    n, channels, height, width = input.shape
    out_h, out_w = (
        _out_extent(extent, kernel_size[a], stride[a], padding[a], dilation[a], ceil_mode)
        for a, extent in enumerate((height, width))
    )
    y = np.full((n, channels, out_h, out_w), -np.inf)
    indices = np.zeros((n, channels, out_h, out_w), np.int64)
    for oh in range(out_h):
        for ow in range(out_w):
            rows = oh * stride[0] - padding[0] + np.arange(kernel_size[0]) * dilation[0]
            columns = ow * stride[1] - padding[1] + np.arange(kernel_size[1]) * dilation[1]
            rows = rows[(rows >= 0) & (rows < height)]
            columns = columns[(columns >= 0) & (columns < width)]
            places = (rows[:, None] * width + columns).reshape(-1)
            window = input.reshape(n, channels, -1)[:, :, places]
            y[:, :, oh, ow] = window.max(axis=2)
            # numpy's argmax takes the first NaN or the first maximum, as PyTorch does.
            indices[:, :, oh, ow] = places[window.argmax(axis=2)]
    return (y, indices) if return_indices else y


@reference("nn.AvgPool2d", "F.avg_pool2d")
def avg_pool2d(
    input,
    *,
    kernel_size,
    stride,
    padding,
    ceil_mode,
    count_include_pad,
    divisor_override=None,
    **_,
):
    """Sum of each window over a divisor that depends on three flags."""
    stride = kernel_size if stride is None else stride
    n, channels, height, width = input.shape
    out_h, out_w = (
        _out_extent(extent, kernel_size[a], stride[a], padding[a], 1, ceil_mode)
        for a, extent in enumerate((height, width))
    )
    y = np.zeros((n, channels, out_h, out_w))
    for oh in range(out_h):
        for ow in range(out_w):
            top, left = oh * stride[0] - padding[0], ow * stride[1] - padding[1]
            # A window that hangs over the padding on the far side is clipped there.
            bottom = min(top + kernel_size[0], height + padding[0])
            right = min(left + kernel_size[1], width + padding[1])
            padded = (bottom - top) * (right - left)
            window = input[:, :, max(top, 0) : bottom, max(left, 0) : right]
            divisor = padded if count_include_pad else window.shape[2] * window.shape[3]
            divisor = divisor if divisor_override is None else divisor_override
            y[:, :, oh, ow] = window.sum(axis=(2, 3)) / divisor
    return y


def _adaptive_windows(extent, count):
    """Start and end of each window: they may overlap and differ in length."""
    count = count or extent
    return [(i * extent // count, -(-(i + 1) * extent // count)) for i in range(count)]


def _output_size(output_size):
    return (output_size,) * 2 if isinstance(output_size, int) else output_size


@reference("nn.AdaptiveAvgPool2d", "F.adaptive_avg_pool2d")
def adaptive_avg_pool2d(input, *, output_size, **_):
    """Mean of each adaptive window; an output size of 0 keeps the axis."""
    size = _output_size(output_size)
    rows = _adaptive_windows(input.shape[-2], size[0])
    columns = _adaptive_windows(input.shape[-1], size[1])
    y = np.empty((*input.shape[:-2], len(rows), len(columns)))
    for oh, (top, bottom) in enumerate(rows):
        for ow, (left, right) in enumerate(columns):
            y[..., oh, ow] = input[..., top:bottom, left:right].mean(axis=(-2, -1))
    return y


@reference("nn.AdaptiveMaxPool2d")
def adaptive_max_pool2d(input, *, output_size, return_indices=False, **_):
    """Maximum of each adaptive window."""
    y, indices = _adaptive_max(input, _output_size(output_size))
    return (y, indices) if return_indices else y


@reference("F.adaptive_max_pool2d")
def adaptive_max_pool2d_with_indices(input, *, output_size, **_):
    """As the module; the function always has its two outputs in a file."""
    return _adaptive_max(input, _output_size(output_size))


def _adaptive_max(input, size):
    width = input.shape[-1]
    rows = _adaptive_windows(input.shape[-2], size[0])
    columns = _adaptive_windows(width, size[1])
    y = np.empty((*input.shape[:-2], len(rows), len(columns)))
    indices = np.empty(y.shape, np.int64)
    for oh, (top, bottom) in enumerate(rows):
        for ow, (left, right) in enumerate(columns):
            window = input[..., top:bottom, left:right].reshape(*input.shape[:-2], -1)
            first = window.argmax(axis=-1)
            y[..., oh, ow] = window.max(axis=-1)
            indices[..., oh, ow] = (
                (top + first // (right - left)) * width + left + first % (right - left)
            )
    return y, indices
