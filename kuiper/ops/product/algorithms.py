"""The steps of a convolution of images: which kernel takes it, with which weights.

:func:`image_steps` chooses; each other function here binds one way of computing it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from kuiper._kernels.conv import conv
from kuiper._kernels.conv import window as conv_window
from kuiper._kernels.micro import dispatch, packing
from kuiper._support.struct import Fields
from kuiper.ir.view import Value
from kuiper.ops.core.binder import Binder
from kuiper.ops.product.filters import ByTap, Filters, depthwise_blocks, pack_groups
from kuiper.ops.product.regions import Band, cut_regions
from kuiper.ops.product.strassen import strassen_pays, strassen_step
from kuiper.ops.product.winograd import winograd_steps, winograd_tile

__all__ = ["count_work", "image_steps", "implicit_step", "scaled_step", "window_taps"]

# Up to this many input channels a tap is too short a loop; it runs along filter rows instead.
SHALLOW_CHANNELS = 8

# Of an image of a group, below which all groups are faster together, by the definition.
GROUP_PRODUCTS = 900_000


class _Convolution(Fields):
    """A convolution of images by filters that are known while planning."""

    x: Value
    image: Value
    filters: Filters
    geometry: Any
    origin: tuple[int, int]
    groups: int
    post: Any
    # Where the pixels of a window lie.
    taps: list[tuple[int, int]]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the output."""
        return self.image.shape[2], self.image.shape[3]


def image_steps(
    b: Binder,
    x: Value,
    image: Value,
    filters: Filters,
    geometry: Any,
    origin: tuple[int, int],
    groups: int,
    post: Any,
) -> Any:
    """Bind a convolution by constant filters: the last step is returned, those ahead are added.

    Parameters
    ----------
    b : Binder
    x, image : Value
        Input and output, (n, c, h, w).
    filters : Filters
    geometry : object
        `kernel`, `stride` and `dilation`, each (int, int).
    origin : (int, int)
        Padding above and to the left.
    groups : int
    post : Post or None
    """
    taps = window_taps(geometry, origin)
    c = _Convolution(x, image, filters, geometry, origin, groups, post, taps)
    if groups > 1 and (tile := _tile_of_groups(c)):
        return _group_by_group(b, c, tile)
    step = _whole_step(b, c)
    count_work(step, x, image, filters)
    return step


def count_work(step: Any, x: Value, image: Value, filters: Filters) -> None:
    """Note how much a convolution has to do."""
    step.flops = 2.0 * image.size * math.prod(filters.shape[1:])
    step.bytes = 4.0 * (x.size + image.size + math.prod(filters.shape))


def window_taps(geometry: Any, origin: tuple[int, int]) -> list[tuple[int, int]]:
    """Where the pixels of a window lie, relative to its place in the output."""
    return [
        (u * geometry.dilation[0] - origin[0], v * geometry.dilation[1] - origin[1])
        for u, v in product(*map(range, geometry.kernel))
    ]


def _tile_of_groups(c: _Convolution) -> int:
    """Return the tiles of Winograd's algorithm, if groups are faster by it, one by one; else 0.

    They have to be long enough against the three steps of each.
    """
    out_channels = c.filters.shape[0] // c.groups
    products = math.prod(c.size) * out_channels * math.prod(c.filters.shape[1:])
    if products < GROUP_PRODUCTS:
        return 0
    return winograd_tile(c.geometry, (out_channels, c.filters.shape[1]), c.size)


def _group_by_group(b: Binder, c: _Convolution, tile: int) -> Any:
    x, step = b.channels_last(c.x), None
    out_channels, in_channels = c.filters.shape[0] // c.groups, c.filters.shape[1]
    for group in range(c.groups):
        if step is not None:
            b.step(step)
        part = group * out_channels, out_channels
        seen = x.narrow(1, group * in_channels, in_channels)
        image, filters = c.image.narrow(1, *part), c.filters.some(*part)
        post = None if c.post is None else c.post.narrow(1, *part)
        step = winograd_steps(
            b, tile, c.geometry.stride[0], seen, image, filters, c.origin, post, group=group
        )
        count_work(step, seen, image, filters)
    return step


def _whole_step(b: Binder, c: _Convolution) -> Any:
    """Bind a convolution with all its groups in one step, or one by Winograd's algorithm."""
    out_channels, in_channels = c.filters.shape[:2]
    if c.groups == c.x.shape[1] == out_channels and c.groups > 1:
        return _depthwise(b, c)
    if c.groups > 1:
        from kuiper._kernels.conv.grouped import is_grouped

        if is_grouped(in_channels, out_channels // c.groups):
            return _grouped(b, c)
    if c.groups == 1 and (tile := winograd_tile(c.geometry, c.filters.shape, c.size)):
        return winograd_steps(
            b, tile, c.geometry.stride[0], c.x, c.image, c.filters, c.origin, c.post
        )
    if c.groups == 1 and c.x.shape[1] <= SHALLOW_CHANNELS:
        return _shallow(b, c)
    if c.groups == 1 and conv.is_narrow(len(c.taps), in_channels, out_channels):
        return _narrow(b, c)
    if regions := cut_regions(c.taps, c.geometry.stride, c.x.shape[2:], c.size):
        return _by_region(b, c, regions)
    x = b.channels_last(c.x)
    if c.groups == 1 and strassen_pays(math.prod(c.size), len(c.taps), in_channels, out_channels):
        return strassen_step(
            b, x, c.image, ByTap(c.filters), c.filters.bias, c.taps, c.geometry.stride, c.post
        )
    packed = b.packed(
        "conv", lambda: pack_groups([c.filters], c.filters.bias(), c.groups, b.n_threads)
    )
    return implicit_step(
        b, x, c.image, packed, [(0, 0, *c.size, c.taps, 0)], c.geometry.stride, (1, 1), c.groups,
        in_channels, out_channels // c.groups, c.post,
    )  # fmt: skip


def implicit_step(
    b: Binder,
    x: Any,
    image: Any,
    packed: Any,
    phases: Any,
    in_step: Any,
    out_step: Any,
    groups: Any,
    in_channels: Any,
    out_channels: Any,
    post: Any,
    is_narrow: bool = False,
) -> Any:
    window = conv_window.Window(x, image, in_step, out_step, phases)
    scratch = b.scratch(8 * dispatch.tile()[0] * window.max_taps)
    return conv.ConvStep(
        x, packed, image, window, groups, in_channels, out_channels, scratch, post, is_narrow
    )


def _narrow(b: Binder, c: _Convolution) -> Any:
    out_channels, in_channels = c.filters.shape[:2]
    packed = b.packed("narrow", lambda: conv.pack_narrow([c.filters.weight()], c.filters.bias()))
    return implicit_step(
        b, b.channels_last(c.x), c.image, packed, [(0, 0, *c.size, c.taps, 0)], c.geometry.stride,
        (1, 1), 1, in_channels, out_channels, c.post, is_narrow=True,
    )  # fmt: skip


def _by_region(b: Binder, c: _Convolution, regions: Sequence[tuple[Band, Band]]) -> Any:
    """Bind a convolution of which each region of the output has taps of its own."""
    out_channels, in_channels = c.filters.shape[:2]
    (step_h, step_w), columns = c.geometry.stride, c.geometry.kernel[1]
    taps, phases, start = c.taps, [], 0
    for down, across in regions:
        seen = [
            taps[u * columns + v]
            for u in range(down.seen.start, down.seen.stop)
            for v in range(across.seen.start, across.seen.stop)
        ]
        # A phase counts its taps from its own first pixel.
        seen = [(dy + down.first * step_h, dx + across.first * step_w) for dy, dx in seen]
        phases.append((down.first, across.first, down.extent, across.extent, seen, start))
        start += (
            c.groups
            * packing.n_panels(out_channels // c.groups)
            * packing.panel_floats(len(seen) * in_channels)
        )
    key = tuple((d.seen.start, d.seen.stop, a.seen.start, a.seen.stop) for d, a in regions)

    def pack() -> np.ndarray:
        weight = c.filters.weight()  # read once for all regions
        parts = [weight[:, :, down.seen, across.seen] for down, across in regions]
        return pack_groups(parts, c.filters.bias(), c.groups, b.n_threads)

    packed = b.packed(("conv", key), pack)
    return implicit_step(
        b, b.channels_last(c.x), c.image, packed, phases, c.geometry.stride, (1, 1), c.groups,
        in_channels, out_channels // c.groups, c.post,
    )  # fmt: skip


def scaled_step(b: Binder, x: Any, scale: Any, image: Any, filters: Any, post: Any) -> Any:
    """Bind a 1x1 convolution of images whose channels are scaled: each with weights of its own.

    The last step is returned, those ahead of it are added.
    """
    from kuiper._kernels.elementwise.elementwise import ElementwiseStep
    from kuiper.expression import Call, Ref, fold

    x, scale = b.channels_last(x), b.contiguous(scale)
    out_channels, in_channels = filters.shape[:2]
    packed = b.packed("conv", lambda: pack_groups([filters], filters.bias(), 1, b.n_threads))
    nr, depth = dispatch.tile()[1], in_channels + 1
    shape = (packing.n_panels(out_channels), depth, nr)
    packed = packed.with_layout(shape, (depth * nr, nr, 1))
    size, step = image.shape[2:], None
    for i in range(x.shape[0]):
        if step is not None:
            b.step(step)
        panels = b.temporary(shape)
        b.copy(packed.narrow(1, 0, 1), panels.narrow(1, 0, 1))  # the bias
        terms, gate = packed.narrow(1, 1, in_channels), scale.select(0, i)
        gate = gate.with_layout((1, in_channels, 1), (0, 1, 0)).expand(terms.shape)
        program = fold(Call("mul", [Ref(0), Ref(1)]), [terms, gate])
        b.step(ElementwiseStep(program, [terms, gate], panels.narrow(1, 1, in_channels)))
        y = image.narrow(0, i, 1)
        step = implicit_step(
            b, x.narrow(0, i, 1), y, panels, [(0, 0, *size, [(0, 0)], 0)], (1, 1), (1, 1), 1,
            in_channels, out_channels, None if post is None else post.narrow(0, i, 1),
        )  # fmt: skip
        step.flops = 2.0 * y.size * in_channels
        step.bytes = 4.0 * (y.size * (1 + in_channels / out_channels) + packed.size)
    return step


def _depthwise(b: Binder, c: _Convolution) -> Any:
    x, taps = b.channels_last(c.x), c.taps
    packed = b.packed("depthwise", lambda: depthwise_blocks(c.filters))
    window = conv_window.Window(x, c.image, c.geometry.stride, (1, 1), [(0, 0, *c.size, taps, 0)])
    scratch = b.scratch(conv.depthwise_scratch_bytes(len(taps)))
    return conv.DepthwiseStep(
        x, packed, c.image, window, c.geometry.kernel, c.geometry.dilation, scratch, c.post
    )


def _grouped(b: Binder, c: _Convolution) -> Any:
    from kuiper._kernels.conv import grouped

    x, taps = b.channels_last(c.x), c.taps
    packed = b.packed(
        "grouped", lambda: grouped.pack_grouped(c.filters.weight(), c.filters.bias(), c.groups)
    )
    window = conv_window.Window(x, c.image, c.geometry.stride, (1, 1), [(0, 0, *c.size, taps, 0)])
    scratch = b.scratch(grouped.grouped_scratch_bytes(len(taps)))
    return grouped.GroupedStep(x, packed, c.image, window, c.groups, scratch, c.post)


def _shallow(b: Binder, c: _Convolution) -> Any:
    """Bind a convolution of few channels; the order of a receptive field follows the layout."""
    out_channels, channels, kernel_h, kernel_w = c.filters.shape
    (top, left), (dilation_h, dilation_w) = c.origin, c.geometry.dilation
    x = c.x
    channels_last = x.is_channels_last and x.pitch == channels and channels > 1
    if not channels_last:
        x = b.contiguous(x)
    unit = channels if channels_last else 1
    # Columns of one run must be adjacent, so a dilated row is cut into single columns.
    run, columns = (kernel_w, [0]) if dilation_w == 1 else (1, range(kernel_w))
    planes = [0] if channels_last else [i * x.strides[1] for i in range(channels)]
    taps, offsets = [], []
    for plane in planes:
        for u in range(kernel_h):
            for v in columns:
                dy, dx = u * dilation_h - top, v * dilation_w - left
                taps.append((dy, dx))
                offsets.append(plane + dy * x.strides[2] + dx * unit)

    def pack() -> np.ndarray:
        order = (0, 2, 3, 1) if channels_last else (0, 1, 2, 3)
        fields = c.filters.weight().transpose(order).reshape(out_channels, 1, -1)
        return packing.pack_panels(np.ascontiguousarray(fields), c.filters.bias())

    packed = b.packed(("shallow", channels_last), pack)
    window = conv_window.Window(x, c.image, c.geometry.stride, (1, 1), [(0, 0, *c.size, taps, 0)])
    scratch = b.scratch(
        conv.shallow_scratch_bytes(x, c.image, c.geometry.stride[1], len(taps), run, unit)
    )
    return conv.ShallowConvStep(
        x, packed, c.image, window, offsets, unit, run, out_channels, scratch, c.post
    )
