"""Convolutions of few input channels in bfloat16, such as the first one of a classifier."""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper._kernels.conv.narrow import (
    NarrowConvStep,
    PadImageStep,
    narrow_conv_scratch_bytes,
    pad_image_scratch_bytes,
)
from kuiper._kernels.conv.window import Window
from kuiper._kernels.micro import packing
from kuiper._kernels.micro.packed import PairPanels
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.product.algorithms.base import ConvAlgorithm
from kuiper.ops.product.algorithms.few_inputs import MAX_CHANNELS, is_channels_last

__all__ = ["FewInputsPairs"]


class FewInputsPairs(ConvAlgorithm):
    """Implicit GEMM whose taps are rows of the filter: all their columns and channels.

    The input is rounded and surrounded by zeros first, so that no row of a filter crosses the
    border.  In that image the row that starts at any pixel is a run of adjacent numbers, which
    overlaps those of the neighbours.
    """

    name = "few_inputs_pairs"
    takes_bfloat16 = True

    def refusal(self) -> str:
        c = self.c
        if c.is_volume:
            return "volumes have no such kernel"
        if c.groups > 1:
            return f"{c.groups} groups, one is supported"
        if c.in_channels > MAX_CHANNELS:
            return f"{c.in_channels} input channels, at most {MAX_CHANNELS} are few"
        if c.x.dtype == BFLOAT16:
            return "the input is stored in bfloat16"
        if c.geometry.dilation[1] != 1:
            return f"dilation {c.geometry.dilation}"
        return ""

    def pack(self, b: Binder) -> TensorView:
        filters = self.c.filters
        columns, channels, height, width = filters.shape

        def fill(memory: np.ndarray) -> None:
            rows = filters.weight().transpose(0, 2, 3, 1).reshape(columns, height, -1)
            rows = np.ascontiguousarray(rows)
            packing.pack_pairs(rows, filters.bias(), b.n_threads, memory)

        return b.packed([PairPanels(columns, height, width * channels, part="rows")], fill)

    def bind(self, b: Binder) -> list[Any]:
        c, geometry = self.c, self.c.geometry
        n, channels = c.x.shape[:2]
        (kernel_h, kernel_w), (step_h, step_w) = geometry.kernel, geometry.stride
        height, width = c.size
        rows = (height - 1) * step_h + (kernel_h - 1) * geometry.dilation[0] + 1
        # Whole steps, so that the first pixels of all windows have a constant distance.
        steps = width + -(-max(kernel_w - step_w, 0) // step_w)
        padded = b.temporary((n, channels, rows, steps * step_w), BFLOAT16, "channels_last")
        x = c.x if is_channels_last(c.x) else b.contiguous(c.x)
        scratch = b.scratch(pad_image_scratch_bytes(x))
        b.step(PadImageStep(x, padded, geometry.origin, scratch))
        run, pixel = kernel_w * channels, step_w * channels
        fields = padded.with_layout(
            (n, run, rows, steps), (rows * steps * pixel, 1, steps * pixel, pixel)
        )
        taps = [(u * geometry.dilation[0], 0) for u in range(kernel_h)]
        window = Window(fields, c.y, (step_h, 1), (1, 1), [((0, 0), c.size, taps, 0)])
        step = NarrowConvStep(
            fields, self.pack(b), c.y, window, 1, run, c.out_channels,
            b.scratch(narrow_conv_scratch_bytes(kernel_h)), c.filters.n_terms, c.epilogue,
        )  # fmt: skip
        step.kind = "conv_few_inputs_bfloat16"
        return [c.count(step)]
