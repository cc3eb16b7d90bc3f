"""Depthwise convolutions: one filter per channel."""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper._kernels.conv import conv
from kuiper._kernels.micro.packed import DepthwiseBlocks, NarrowDepthwiseBlocks
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.product.algorithms.base import ConvAlgorithm, image_window, voxel_rows
from kuiper.ops.product.filters import Filters

__all__ = ["Depthwise", "pack_depthwise"]


class Depthwise(ConvAlgorithm):
    """Vectors run along the channels, which are independent of each other."""

    name = "depthwise"

    def refusal(self) -> str:
        c = self.c
        if c.groups == 1:
            return "one group"
        if c.in_channels != 1 or c.out_channels != 1:
            return (
                f"groups have {c.in_channels} input and {c.out_channels} output channels, not one"
            )
        return ""

    @property
    def takes_bfloat16(self) -> bool:  # type: ignore[override]
        """Whether the image is in bfloat16; results are in either type."""
        return self.c.x.dtype == BFLOAT16 and not self.c.is_volume

    def pack(self, b: Binder) -> TensorView:
        return pack_depthwise(b, self.c.filters, self.takes_bfloat16)

    def bind(self, b: Binder) -> list[Any]:
        c = self.c
        taps = c.geometry.taps()
        if c.is_volume:
            from kuiper._kernels.conv import conv3d

            packed, x, y = self.pack(b), voxel_rows(c.x), voxel_rows(c.y)
            window = conv3d.VolumeWindow(
                x, y, c.geometry.stride, (1, 1, 1), [((0, 0, 0), c.size, taps, 0)]
            )
            scratch = b.scratch(conv3d.volume_scratch_bytes(len(taps), True))
            step = conv3d.VolumeConvStep(
                x, packed, y, window, c.groups, c.groups, 1, scratch, c.epilogue, True
            )
            return [c.count(step)]
        x, packed = b.channels_last(c.x), self.pack(b)
        scratch = b.scratch(conv.depthwise_scratch_bytes(len(taps)))
        kind = conv.NarrowDepthwiseStep if self.takes_bfloat16 else conv.DepthwiseStep
        step = kind(
            x, packed, c.y, image_window(c, x, taps), c.geometry.kernel, c.geometry.dilation,
            scratch, c.epilogue,
        )  # fmt: skip
        return [c.count(step)]


def pack_depthwise(b: Binder, filters: Filters, narrow: bool = False) -> TensorView:
    """Return the packed filters, one per channel, for images in bfloat16 if `narrow`."""
    kind = NarrowDepthwiseBlocks if narrow else DepthwiseBlocks
    matrix = kind(filters.shape[0], filters.n_terms)

    def fill(memory: np.ndarray) -> None:
        matrix.fill(memory, filters.weight().reshape(filters.shape[0], -1), filters.bias())

    return b.packed([matrix], fill)
