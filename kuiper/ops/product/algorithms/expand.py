"""A 1x1 convolution, an activation and a depthwise convolution in one sweep over an image."""

from __future__ import annotations

from typing import Any

from kuiper._kernels.micro import packing
from kuiper._kernels.micro.packed import PackedMatrix, PairPanels
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.epilogue import Epilogue
from kuiper.ops.product.algorithms.base import Choice, Convolution
from kuiper.ops.product.algorithms.depthwise import pack_depthwise
from kuiper.ops.product.filters import Filters, fill_groups

__all__ = ["expand_step"]

# Size of the ring of wide rows, which shares the L2 cache with weights and images.
RING_BYTES = 400 << 10


class ExpandPanels(PackedMatrix):
    """The panels of the 1x1 convolution; as a type, they do not collide with the depthwise ones."""

    __slots__ = ()


def expand_step(
    b: Binder, c: Convolution, expand: Filters, expand_epilogue: Epilogue | None
) -> Any:
    """Return the step of the 1x1 convolution `expand` and the depthwise convolution `c`.

    ``c.x`` is the input of `expand`.  Of the wide image in between, only a ring of the rows that
    the depthwise filters read exists; its elements have the type of the input.
    """
    from kuiper._kernels.conv import expand_depthwise as kernel

    x, geometry = c.x, c.geometry
    channels, in_channels = expand.shape[:2]
    narrow = x.dtype == BFLOAT16
    if narrow:
        first = b.packed(
            [PairPanels(channels, 1, in_channels)],
            lambda memory: fill_groups(
                memory, expand, expand.bias(), 1, b.n_threads, packing.pack_pairs
            ),
        )
    else:
        first = b.packed(
            [ExpandPanels(channels, in_channels)],
            lambda memory: fill_groups(memory, expand, expand.bias(), 1, b.n_threads),
        )
    second = pack_depthwise(b, c.filters, narrow)
    windows = geometry.kernel, geometry.stride, geometry.dilation, geometry.origin
    ring = kernel.Ring(x, c.y, *windows, RING_BYTES)
    step = kernel.ExpandDepthwiseStep(
        x, first, second, c.y, b.scratch(ring.n_bytes), ring, *windows, expand_epilogue, c.epilogue
    )
    step.algorithm = Choice("expand", {})
    step.flops = 2.0 * (x.size * channels + c.y.size * c.filters.n_terms)
    step.bytes = float(x.n_bytes + c.y.n_bytes + expand.n_bytes + c.filters.n_bytes)
    return step
