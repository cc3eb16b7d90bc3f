"""Convolutions of few input channels in bfloat16, such as the first one of a classifier."""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper._kernels.conv.narrow import NarrowConvStep, narrow_conv_scratch_bytes
from kuiper._kernels.micro import packing
from kuiper._kernels.micro.packed import PairPanels
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.product.algorithms.few_inputs import FewInputs, is_channels_last
from kuiper.ops.product.narrow import rows_of_filters

__all__ = ["FewInputsPairs"]

# Products per pixel; fewer gain little.  They are those of networks for phones, which lose accuracy
# if the input is rounded: 6e-2 of the norm of a segmentation instead of 2e-2.
MIN_PRODUCTS = 27 * 64


class FewInputsPairs(FewInputs):
    """Implicit GEMM whose taps are rows of the filter: all their columns and channels."""

    name = "few_inputs_pairs"

    def refusal(self) -> str:
        if reason := super().refusal():
            return reason
        c = self.c
        products = c.filters.n_terms * c.out_channels
        if products < MIN_PRODUCTS:
            return f"{products} products per pixel, from {MIN_PRODUCTS} on they pay"
        if c.geometry.kernel[1] == 1:
            return "the rows of the filter have one column"
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
        c = self.c
        x = c.x if is_channels_last(c.x) else b.contiguous(c.x)
        fields, window = rows_of_filters(b, x, c.y, c.geometry, BFLOAT16)
        step = NarrowConvStep(
            fields, self.pack(b), c.y, window, 1, fields.shape[1], c.out_channels,
            b.scratch(narrow_conv_scratch_bytes(window.max_taps)), c.filters.n_terms, c.epilogue,
        )  # fmt: skip
        step.kind = "conv_few_inputs_bfloat16"
        return [c.count(step)]
