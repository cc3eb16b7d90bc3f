"""Images sampled at computed positions."""

from __future__ import annotations

import itertools

import numpy as np

from .registry import reference


def _reflect(position, extent, align_corners):
    low, span = (0.0, extent - 1) if align_corners else (-0.5, extent)
    if span == 0:
        return np.zeros_like(position)
    rest = np.abs(position - low) % (2 * span)
    return np.where(rest > span, 2 * span - rest, rest) + low


def _inside(position, extent, padding_mode, align_corners):
    """Map coordinates into the image; padding mode zeros leaves them unchanged."""
    if padding_mode == "zeros":
        return position
    if padding_mode == "reflection":
        position = _reflect(position, extent, align_corners)
    # PyTorch reads pixel 0 for NaN in a plane, and the last pixel in a volume.
    return np.clip(np.where(np.isnan(position), 0, position), 0, extent - 1)


def _read(images, positions):
    """Return (n, c, *points) pixels at integer positions (n, *points) per axis; zero outside."""
    inside, index = True, []
    for position, extent in zip(positions, images.shape[2:], strict=True):
        valid = (position >= 0) & (position < extent)
        inside = inside & valid
        index.append(np.where(valid, position, 0).astype(int))
    batch = np.arange(len(images)).reshape(-1, *[1] * (index[0].ndim - 1))
    pixels = np.moveaxis(images, 1, -1)[(batch, *index)]
    return np.moveaxis(np.where(inside[..., None], pixels, 0), -1, 1)


def _linear(images, positions):
    """Interpolate linearly between the pixels around each position."""
    y = 0
    for corner in itertools.product((0, 1), repeat=len(positions)):
        near = [np.floor(position) + c for position, c in zip(positions, corner, strict=True)]
        weight = 1
        for position, at in zip(positions, near, strict=True):
            weight = weight * (1 - np.abs(position - at))
        y = y + _read(images, near) * weight[:, None]
    return y


def _cubic_weight(gap):
    gap, a = np.abs(gap), -0.75
    near = ((a + 2) * gap - (a + 3)) * gap**2 + 1
    far = ((a * gap - 5 * a) * gap + 8 * a) * gap - 4 * a
    return np.where(gap <= 1, near, np.where(gap < 2, far, 0))


@reference("F.grid_sample")
def grid_sample(input, grid, *, mode, padding_mode, align_corners):
    """Sample images at the points of a grid."""
    extents = input.shape[2:]
    positions = []
    for axis, extent in enumerate(extents):
        g = grid[..., grid.shape[-1] - 1 - axis]
        position = (g + 1) / 2 * (extent - 1) if align_corners else ((g + 1) * extent - 1) / 2
        positions.append(position)

    def inside(position, extent):
        return _inside(position, extent, padding_mode, align_corners)

    pairs = list(zip(positions, extents, strict=True))
    if mode == "nearest":
        return _read(input, [np.rint(inside(*pair)) for pair in pairs])
    if mode == "bilinear":
        return _linear(input, [inside(*pair) for pair in pairs])
    y = 0
    for i, j in itertools.product(range(-1, 3), repeat=2):
        taps = [np.floor(position) + k for position, k in zip(positions, (i, j), strict=True)]
        weight = _cubic_weight(positions[0] - taps[0]) * _cubic_weight(positions[1] - taps[1])
        taps = [inside(tap, extent) for tap, extent in zip(taps, extents, strict=True)]
        y = y + _read(input, taps) * weight[:, None]
    return y


@reference("F.affine_grid")
def affine_grid(theta, *, size, align_corners):
    """Positions of all pixels under an affine map."""
    lines = []
    for extent in size[2:]:
        line = np.linspace(-1, 1, extent) if extent > 1 else np.zeros(1)
        lines.append(line if align_corners else line * (extent - 1) / extent)
    grid = np.stack([*np.meshgrid(*lines, indexing="ij")[::-1], np.ones(size[2:])], -1)
    return np.stack([grid @ matrix.T for matrix in theta])


def _roi_value(image, y, x):
    """Interpolate; points up to one pixel outside clamp to the border, farther ones are zero."""
    height, width = image.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return np.zeros(len(image))
    y, x = np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)
    return _linear(image[None], [np.array([[y]]), np.array([[x]])])[0, :, 0]


def _roi_pixels(image, y, x):
    """Return the largest of the weighted pixels around a point; a pixel may weigh nothing."""
    height, width = image.shape[1:]
    found = np.zeros(len(image))
    if not (-1 <= y <= height and -1 <= x <= width):
        return found
    y, x = np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)
    found = np.full(len(image), -np.inf)
    for i, j in itertools.product((0, 1), repeat=2):
        row, column = min(int(y) + i, height - 1), min(int(x) + j, width - 1)
        weight = (y % 1 if i else 1 - y % 1) * (x % 1 if j else 1 - x % 1)
        found = np.maximum(found, weight * image[:, row, column])
    return found


def _mean(values):
    return np.mean(values, axis=0)


def _roi_align(
    input, boxes, output_size, spatial_scale, sampling_ratio, aligned, at=_roi_value, join=_mean
):
    rows, columns = output_size
    result = np.zeros((len(boxes), input.shape[1], rows, columns))
    for k, (number, *corners) in enumerate(boxes):
        left, top, right, bottom = (c * spatial_scale - 0.5 * aligned for c in corners)
        height, width = bottom - top, right - left
        if not aligned:
            height, width = max(height, 1), max(width, 1)
        height, width = height / rows, width / columns
        n_i = sampling_ratio if sampling_ratio > 0 else int(np.ceil(height))
        n_j = sampling_ratio if sampling_ratio > 0 else int(np.ceil(width))
        for i, j in np.ndindex(rows, columns):
            values = [
                at(
                    input[int(number)],
                    top + (i + (a + 0.5) / n_i) * height,
                    left + (j + (b + 0.5) / n_j) * width,
                )
                for a in range(n_i)
                for b in range(n_j)
            ]
            result[k, :, i, j] = join(values) if values else 0
    return result


@reference("torchvision.ops.RoIAlign", "torchvision.ops.roi_align")
def roi_align(input, boxes, *, output_size, spatial_scale, sampling_ratio, aligned):
    """Mean of the sample points in each cell of each box."""
    return _roi_align(input, boxes, output_size, spatial_scale, sampling_ratio, aligned)


@reference("kuiper.RoiAlignMax")
def roi_align_max(
    input, boxes, *, output_size, spatial_scale=1.0, sampling_ratio=-1, aligned=False
):
    """Largest weighted pixel of the sample points in each cell of each box."""
    return _roi_align(
        input, boxes, output_size, spatial_scale, sampling_ratio, aligned, _roi_pixels,
        lambda values: np.max(values, axis=0),
    )  # fmt: skip


@reference("kuiper.RoiMaxPool")
def roi_max_pool(input, boxes, *, output_size, spatial_scale=1.0):
    """Largest pixel in each cell of each box, 0 in cells outside of the image."""
    y = np.zeros((len(boxes), input.shape[1], *output_size))
    for k, (number, *corners) in enumerate(boxes):
        left, top, right, bottom = (
            np.floor(abs(c * spatial_scale) + 0.5) * np.sign(c) for c in corners
        )
        sizes = max(bottom - top + 1, 1), max(right - left + 1, 1)
        for cell in np.ndindex(*output_size):
            part = input[int(number)]
            for axis, (i, n, size, first) in enumerate(
                zip(cell, output_size, sizes, (top, left), strict=True)
            ):
                start = int(np.floor(i * size / n) + first)
                stop = int(np.ceil((i + 1) * size / n) + first)
                part = np.moveaxis(
                    np.moveaxis(part, axis + 1, 0)[max(start, 0) : max(stop, 0)], 0, axis + 1
                )
            y[k][:, cell[0], cell[1]] = part.max((1, 2)) if part.size else 0
    return y


@reference("pnnx.custom_op.torchvision.roi_align")
def roi_align_function(*, arg_0, arg_1, arg_2, arg_3, arg_4, arg_5, arg_6):
    """roi_align with numbered arguments."""
    return _roi_align(arg_0, arg_1, (arg_3, arg_4), arg_2, arg_5, arg_6)


def _deform_conv(input, offset, mask, weight, bias, stride, padding, dilation, groups):
    n, channels, *_ = input.shape
    kernel, out = weight.shape[2:], offset.shape[2:]
    deformed = offset.shape[1] // (2 * kernel[0] * kernel[1])
    own = channels // deformed
    y = np.zeros((n, weight.shape[0], *out))
    grid = np.indices(out)
    for tap, (i, j) in enumerate(np.ndindex(*kernel)):
        pixels = np.zeros((n, channels, *out))
        for group in range(deformed):
            at = group * kernel[0] * kernel[1] + tap
            positions = [
                grid[axis] * stride[axis]
                - padding[axis]
                + (i, j)[axis] * dilation[axis]
                + offset[:, 2 * at + axis]
                for axis in (0, 1)
            ]
            part = slice(group * own, (group + 1) * own)
            pixels[:, part] = _linear(input[:, part], positions)
            if mask is not None:
                pixels[:, part] *= mask[:, at][:, None]
        size, each = channels // groups, weight.shape[0] // groups
        for group in range(groups):
            here = slice(group * each, (group + 1) * each)
            y[:, here] += np.einsum(
                "ncij,oc->noij",
                pixels[:, group * size : (group + 1) * size],
                weight[here, :, i, j],
            )
    return y if bias is None or isinstance(bias, bool) else y + bias[:, None, None]


@reference("torchvision.ops.DeformConv2d")
def deform_conv2d(
    input, offset, mask=None, *, weight, bias, stride, padding, dilation, groups, **_
):
    """Convolution whose taps are displaced by offsets."""
    return _deform_conv(input, offset, mask, weight, bias, stride, padding, dilation, groups)


@reference("pnnx.custom_op.torchvision.deform_conv2d")
def deform_conv2d_function(**numbered):
    """deform_conv2d with numbered arguments."""
    input, weight, offset, mask, bias, *rest = (numbered[f"arg_{i}"] for i in range(14))
    mask = mask if rest[8] else None
    return _deform_conv(input, offset, mask, weight, bias, rest[:2], rest[2:4], rest[4:6], rest[6])


@reference("aten::grid_sampler_2d", "aten::grid_sampler_3d")
def grid_sampler(input, grid, mode, padding_mode, align_corners):
    """grid_sample with modes given as numbers."""
    return grid_sample(
        input,
        grid,
        mode=("bilinear", "nearest", "bicubic")[mode],
        padding_mode=("zeros", "border", "reflection")[padding_mode],
        align_corners=align_corners,
    )
