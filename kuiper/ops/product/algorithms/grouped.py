"""Convolutions with few channels per group, such as those of ResNeXt."""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper._kernels.micro.packed import GroupedBlocks
from kuiper.ir.view import TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.product.algorithms.base import ConvAlgorithm, image_window

__all__ = ["Grouped"]


class Grouped(ConvAlgorithm):
    """Each vector holds the outputs of several whole groups."""

    name = "grouped"

    def refusal(self) -> str:
        c = self.c
        if c.groups == 1:
            return "one group"
        if c.is_volume:
            return "volumes have no such kernel"
        from kuiper._kernels.conv.grouped import is_grouped

        if not is_grouped(c.in_channels, c.out_channels):
            return (
                f"a vector does not hold several whole groups of {c.in_channels} input and "
                f"{c.out_channels} output channels"
            )
        return ""

    def pack(self, b: Binder) -> TensorView:
        c = self.c
        filters = c.filters
        matrix = GroupedBlocks(filters.shape[0], filters.n_terms)

        def fill(memory: np.ndarray) -> None:
            weight = filters.weight()
            by_tap = weight.reshape(*weight.shape[:2], -1).transpose(0, 2, 1)
            matrix.fill(memory, by_tap.reshape(len(weight), -1), filters.bias())

        return b.packed([matrix], fill)

    def bind(self, b: Binder) -> list[Any]:
        c = self.c
        from kuiper._kernels.conv import grouped

        x, packed, taps = b.channels_last(c.x), self.pack(b), c.geometry.taps()
        window = image_window(c, x, taps)
        scratch = b.scratch(grouped.grouped_scratch_bytes(len(taps)))
        return [c.count(grouped.GroupedStep(x, packed, c.y, window, c.groups, scratch, c.epilogue))]
