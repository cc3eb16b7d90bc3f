"""Convolution and its transpose."""

from __future__ import annotations

import math

import numpy as np

from .padding import pad
from .registry import reference


@reference("nn.Conv2d", "F.conv2d")
def conv2d(
    input, weight, bias=None, *, stride, padding, dilation, groups, padding_mode="zeros", **_
):
    """Sum over the taps: y[o, h, w] = sum_cij weight[o, c, i, j] * x[c, h s + i d, w s + j d]."""
    if input.ndim == 3:
        one = conv2d(
            input[None],
            weight,
            bias,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            padding_mode=padding_mode,
        )
        return one[0]
    (top, bottom), (left, right) = _amounts(padding, weight.shape[2:], dilation)
    mode = "constant" if padding_mode == "zeros" else padding_mode
    x = pad(input, (left, right, top, bottom), mode)
    n, _, height, width = x.shape
    out_channels, group_channels, kernel_h, kernel_w = weight.shape
    out_h = (height - dilation[0] * (kernel_h - 1) - 1) // stride[0] + 1
    out_w = (width - dilation[1] * (kernel_w - 1) - 1) // stride[1] + 1
    x = x.reshape(n, groups, group_channels, height, width)
    w = weight.reshape(groups, out_channels // groups, group_channels, kernel_h, kernel_w)
    y = np.zeros((n, groups, out_channels // groups, out_h, out_w))
    for i in range(kernel_h):
        for j in range(kernel_w):
            rows = i * dilation[0] + np.arange(out_h) * stride[0]
            columns = j * dilation[1] + np.arange(out_w) * stride[1]
            tap = x[:, :, :, rows][..., columns]
            y += _mixed(w[..., i, j], tap)
    y = y.reshape(n, out_channels, out_h, out_w)
    return y if isinstance(bias, bool) or bias is None else y + bias[:, None, None]


def _amounts(padding, kernel, dilation):
    """Return the padding as ((top, bottom), (left, right)).

    A "same" padding with an even kernel and a mode other than zeros is exported as four numbers in
    the order of ``F.pad``: left, right, top, bottom.
    """
    if padding == "valid":
        return (0, 0), (0, 0)
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    if len(padding) == 4:
        left, right, top, bottom = padding
        return (top, bottom), (left, right)
    return tuple((p, p) for p in padding)


@reference("nn.ConvTranspose2d", "F.conv_transpose2d")
def conv_transpose2d(
    input, weight, bias=None, *, stride, padding, output_padding, dilation, groups, **_
):
    """Scatter every input value to the outputs whose windows contain it."""
    n, channels, height, width = input.shape
    _, group_out, kernel_h, kernel_w = weight.shape
    spread_h = (height - 1) * stride[0] + dilation[0] * (kernel_h - 1) + 1 + output_padding[0]
    spread_w = (width - 1) * stride[1] + dilation[1] * (kernel_w - 1) + 1 + output_padding[1]
    x = input.reshape(n, groups, channels // groups, height, width)
    w = weight.reshape(groups, channels // groups, group_out, kernel_h, kernel_w)
    y = np.zeros((n, groups, group_out, spread_h, spread_w))
    for i in range(kernel_h):
        for j in range(kernel_w):
            rows = i * dilation[0] + np.arange(height) * stride[0]
            columns = j * dilation[1] + np.arange(width) * stride[1]
            part = _mixed(w[..., i, j].swapaxes(1, 2), x)
            y[:, :, :, rows[:, None], columns] += part
    y = y.reshape(n, groups * group_out, spread_h, spread_w)
    y = y[:, :, padding[0] : spread_h - padding[0], padding[1] : spread_w - padding[1]]
    return y if isinstance(bias, bool) or bias is None else y + bias[:, None, None]


@reference("nn.Conv1d", "F.conv1d")
def conv1d(input, weight, bias=None, *, stride, padding, dilation, groups, **options):
    """Convolve as a plane with one row."""
    y = conv2d(
        input[:, :, None],
        weight[:, :, None],
        bias,
        stride=(1, *stride),
        padding=padding if isinstance(padding, str) else (0, *padding),
        dilation=(1, *dilation),
        groups=groups,
        **options,
    )
    return y[:, :, 0]


@reference("nn.ConvTranspose1d", "F.conv_transpose1d")
def conv_transpose1d(
    input, weight, bias=None, *, stride, padding, output_padding, dilation, groups, **_
):
    """Transposed convolution of a plane with one row."""
    y = conv_transpose2d(
        input[:, :, None],
        weight[:, :, None],
        bias,
        stride=(1, *stride),
        padding=(0, *padding),
        output_padding=(0, *output_padding),
        dilation=(1, *dilation),
        groups=groups,
    )
    return y[:, :, 0]


@reference("nn.Conv3d", "F.conv3d")
def conv3d(
    input, weight, bias=None, *, stride, padding, dilation, groups, padding_mode="zeros", **_
):
    """Sum over the taps as conv2d does."""
    x = input[None] if input.ndim == 4 else input
    kernel = weight.shape[2:]
    if padding == "valid":
        sides = [(0, 0)] * 3
    elif padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        sides = [(total // 2, total - total // 2) for total in totals]
    elif len(padding) == 6:
        sides = [padding[2 * i : 2 * i + 2] for i in (2, 1, 0)]
    else:
        sides = [(p, p) for p in padding]
    mode = "constant" if padding_mode == "zeros" else padding_mode
    x = pad(x, [side for pair in reversed(sides) for side in pair], mode)
    out = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)
    ]
    x = x.reshape(len(x), groups, -1, *x.shape[2:])
    w = weight.reshape(groups, -1, *weight.shape[1:])
    y = np.zeros((len(x), groups, w.shape[1], *out))
    for tap_index in np.ndindex(kernel):
        planes, rows, columns = (
            u * d + np.arange(n) * s
            for u, d, n, s in zip(tap_index, dilation, out, stride, strict=True)
        )
        tap = x[:, :, :, planes][:, :, :, :, rows][..., columns]
        y += _mixed(w[(..., *tap_index)], tap)
    y = _with_bias(y.reshape(len(x), -1, *out), bias)
    return y[0] if input.ndim == 4 else y


@reference("nn.ConvTranspose3d", "F.conv_transpose3d")
def conv_transpose3d(
    input, weight, bias=None, *, stride, padding, output_padding, dilation, groups, **_
):
    """Scatter every input value to the outputs whose windows contain it."""
    x = input[None] if input.ndim == 4 else input
    kernel = weight.shape[2:]
    spread = [
        (n - 1) * s + d * (k - 1) + 1 + more
        for n, s, d, k, more in zip(
            x.shape[2:], stride, dilation, kernel, output_padding, strict=True
        )
    ]
    x = x.reshape(len(x), groups, -1, *x.shape[2:])
    w = weight.reshape(groups, -1, *weight.shape[1:])
    y = np.zeros((len(x), groups, w.shape[2], *spread))
    for tap_index in np.ndindex(kernel):
        planes, rows, columns = (
            u * d + np.arange(n) * s
            for u, d, n, s in zip(tap_index, dilation, x.shape[3:], stride, strict=True)
        )
        tap = _mixed(w[(..., *tap_index)].swapaxes(1, 2), x)
        y[:, :, :, planes[:, None, None], rows[:, None], columns] += tap
    kept = [slice(p, n - p) for p, n in zip(padding, spread, strict=True)]
    y = _with_bias(y.reshape(len(x), -1, *spread)[(..., *kept)], bias)
    return y[0] if input.ndim == 4 else y


def _mixed(weight, x):
    """Contract the channels of x (n, g, c, ...) with weights (g, out, c), group by group."""
    y = np.ascontiguousarray(weight) @ x.reshape(*x.shape[:3], math.prod(x.shape[3:]))
    return y.reshape(*y.shape[:3], *x.shape[3:])


def _with_bias(y, bias):
    return y if isinstance(bias, bool) or bias is None else y + bias[:, None, None, None]
