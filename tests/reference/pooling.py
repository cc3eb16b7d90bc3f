"""Pooling windows over the last one, two or three axes."""

from __future__ import annotations

from itertools import product

import numpy as np

from .registry import reference


def _each(value, count):
    """Return one number per spatial axis."""
    value = (value,) if isinstance(value, int) else value
    return value * count if len(value) == 1 else value


def _out_extent(extent, kernel, stride, padding, dilation, ceil_mode):
    """Number of windows; the last one must start inside the input or its left padding."""
    span = extent + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-span // stride) if ceil_mode else span // stride) + 1
    if ceil_mode and (count - 1) * stride >= extent + padding:
        count -= 1
    return count


def _max_over(input, axes):
    """Return the maximum and its flat index for every combination of the windows in `axes`.

    `axes` holds for each spatial axis a list of index arrays, one per output position.
    """
    spatial = len(axes)
    lead, extents = input.shape[: input.ndim - spatial], input.shape[input.ndim - spatial :]
    outs = [len(windows) for windows in axes]
    flat = input.reshape(*lead, -1)
    y = np.empty((*lead, *outs))
    indices = np.empty((*lead, *outs), np.int64)
    for position in product(*map(range, outs)):
        grids = np.meshgrid(*(w[i] for w, i in zip(axes, position, strict=True)), indexing="ij")
        inside = np.ravel_multi_index([grid.ravel() for grid in grids], extents)
        if inside.size == 0:
            # A dilated window can step over a small input.
            y[(..., *position)], indices[(..., *position)] = -np.inf, 0
            continue
        window = flat[..., inside]
        y[(..., *position)] = window.max(axis=-1)
        # argmax takes the first NaN or the first maximum, as PyTorch does.
        indices[(..., *position)] = inside[window.argmax(axis=-1)]
    return y, indices


@reference(
    "nn.MaxPool1d",
    "nn.MaxPool2d",
    "nn.MaxPool3d",
    "F.max_pool1d",
    "F.max_pool2d",
    "F.max_pool3d",
)
def max_pool(
    input, *, kernel_size, stride, padding, dilation, ceil_mode, return_indices=False, **_
):
    """Maximum of each window; elements outside the input count as -infinity."""
    stride = kernel_size if stride is None else stride
    spatial = len(kernel_size)
    axes = []
    for axis in range(spatial):
        extent = input.shape[axis - spatial]
        k, s, p, d = kernel_size[axis], stride[axis], padding[axis], dilation[axis]
        windows = [
            i * s - p + np.arange(k) * d for i in range(_out_extent(extent, k, s, p, d, ceil_mode))
        ]
        axes.append([window[(window >= 0) & (window < extent)] for window in windows])
    y, indices = _max_over(input, axes)
    return (y, indices) if return_indices else y


@reference(
    "nn.AvgPool1d",
    "nn.AvgPool2d",
    "nn.AvgPool3d",
    "F.avg_pool1d",
    "F.avg_pool2d",
    "F.avg_pool3d",
)
def avg_pool(
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
    spatial = len(kernel_size)
    extents = input.shape[input.ndim - spatial :]
    outs = [
        _out_extent(extents[a], kernel_size[a], stride[a], padding[a], 1, ceil_mode)
        for a in range(spatial)
    ]
    y = np.empty((*input.shape[: input.ndim - spatial], *outs))
    for position in product(*map(range, outs)):
        padded, cut = 1, []
        for a, i in enumerate(position):
            start = i * stride[a] - padding[a]
            # A window that overhangs the padding at the end is clipped there.
            end = min(start + kernel_size[a], extents[a] + padding[a])
            padded *= end - start
            cut.append(slice(max(start, 0), min(end, extents[a])))
        window = input[(..., *cut)]
        covered = np.prod(window.shape[input.ndim - spatial :])
        divisor = padded if count_include_pad else covered
        divisor = divisor if divisor_override is None else divisor_override
        y[(..., *position)] = window.sum(axis=tuple(range(-spatial, 0))) / divisor
    return y


@reference(
    "nn.LPPool1d",
    "nn.LPPool2d",
    "nn.LPPool3d",
    "F.lp_pool1d",
    "F.lp_pool2d",
    "F.lp_pool3d",
)
def lp_pool(input, *, norm_type, kernel_size, stride=None, ceil_mode=False, **_):
    """(sum of x ** p) ** (1 / p); a clipped window is scaled up to its full size."""
    spatial = input.ndim - 2
    kernel_size = _each(kernel_size, spatial)
    mean = avg_pool(
        input**norm_type,
        kernel_size=kernel_size,
        stride=kernel_size if stride is None else _each(stride, spatial),
        padding=(0,) * spatial,
        ceil_mode=ceil_mode,
        count_include_pad=True,
    )
    return np.maximum(mean * np.prod(kernel_size), 0) ** (1 / norm_type)


def _adaptive_windows(extent, count):
    """Index arrays of the windows, which may overlap and differ in length; 0 keeps the axis."""
    count = count or extent
    return [np.arange(i * extent // count, -(-(i + 1) * extent // count)) for i in range(count)]


def _adaptive_axes(input, output_size, spatial):
    sizes = _each(output_size, spatial)
    return [_adaptive_windows(input.shape[a - spatial], sizes[a]) for a in range(spatial)]


def _adaptive_mean(input, output_size, spatial):
    axes = _adaptive_axes(input, output_size, spatial)
    outs = [len(windows) for windows in axes]
    y = np.empty((*input.shape[: input.ndim - spatial], *outs))
    for position in product(*map(range, outs)):
        window = input
        for axis, i in enumerate(position):
            window = np.take(window, axes[axis][i], axis=axis - spatial)
        y[(..., *position)] = window.mean(axis=tuple(range(-spatial, 0)))
    return y


def _adaptive(spatial):
    """Register the adaptive poolings over `spatial` axes."""

    @reference(f"nn.AdaptiveAvgPool{spatial}d", f"F.adaptive_avg_pool{spatial}d")
    def adaptive_avg_pool(input, *, output_size, **_):
        """Mean of each adaptive window."""
        return _adaptive_mean(input, output_size, spatial)

    @reference(f"nn.AdaptiveMaxPool{spatial}d")
    def adaptive_max_pool(input, *, output_size, return_indices=False, **_):
        """Maximum of each adaptive window."""
        y, indices = _max_over(input, _adaptive_axes(input, output_size, spatial))
        return (y, indices) if return_indices else y

    @reference(f"F.adaptive_max_pool{spatial}d")
    def adaptive_max_pool_with_indices(input, *, output_size, **_):
        """As the module; the function always has two outputs in a file."""
        return _max_over(input, _adaptive_axes(input, output_size, spatial))


for _spatial in (1, 2, 3):
    _adaptive(_spatial)
