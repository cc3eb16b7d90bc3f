"""Convolutions with few input channels, such as the first one of an image classifier."""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper._kernels.conv import conv
from kuiper._kernels.micro import packing
from kuiper._kernels.micro.packed import RunPanels
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.product.algorithms.base import ConvAlgorithm, image_window

__all__ = ["FewInputs"]

# Up to this number of channels, a loop over the channels of one tap is too short.
MAX_CHANNELS = 8


class FewInputs(ConvAlgorithm):
    """The inner loop runs along a row of the filter over adjacent image columns."""

    name = "few_inputs"
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
        return ""

    def pack(self, b: Binder) -> TensorView:
        c = self.c
        filters, channels_last = c.filters, is_channels_last(c.x)

        def fill(memory: np.ndarray) -> None:
            order = (0, 2, 3, 1) if channels_last else (0, 1, 2, 3)
            fields = filters.weight().transpose(order).reshape(filters.shape[0], 1, -1)
            packing.pack_panels(np.ascontiguousarray(fields), filters.bias(), 1, memory)

        return b.packed([RunPanels(filters.shape[0], filters.n_terms, part=channels_last)], fill)

    def bind(self, b: Binder) -> list[Any]:
        c = self.c
        channels, kernel_h, kernel_w = c.filters.shape[1:]
        (top, left), (dilation_h, dilation_w) = c.geometry.origin, c.geometry.dilation
        channels_last = is_channels_last(c.x)
        x = c.x if channels_last else b.contiguous(c.x)
        unit = channels if channels_last else 1
        # The columns of a run must be adjacent, so a dilated row consists of runs of one column.
        run, columns = (kernel_w, [0]) if dilation_w == 1 else (1, range(kernel_w))
        planes = [0] if channels_last else [i * x.strides[1] for i in range(channels)]
        taps, offsets = [], []
        for plane in planes:
            for u in range(kernel_h):
                for v in columns:
                    dy, dx = u * dilation_h - top, v * dilation_w - left
                    taps.append((dy, dx))
                    offsets.append(plane + dy * x.strides[2] + dx * unit)
        packed = self.pack(b)
        window = image_window(c, x, taps)
        scratch = b.scratch(
            conv.few_inputs_scratch_bytes(x, c.y, c.geometry.stride[1], len(taps), run, unit)
        )
        epilogue = c.epilogue
        residual = None if epilogue is None else epilogue.residual
        if epilogue is not None and residual is not None and residual.dtype == BFLOAT16:
            epilogue = epilogue.with_residual(b.stored(residual, x.dtype))
        step = conv.FewInputsConvStep(
            x, packed, c.y, window, offsets, unit, run, c.out_channels, scratch, epilogue
        )
        return [c.count(step)]


def is_channels_last(x: TensorView) -> bool:
    """Whether images are gapless channels-last and have more than one channel."""
    return x.is_channels_last and x.row_stride == x.shape[1] and x.shape[1] > 1
