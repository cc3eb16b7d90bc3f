"""Convolutions with few output channels, such as the last one of a segmentation network."""

from __future__ import annotations

from typing import Any

from kuiper._kernels.conv import conv
from kuiper._kernels.micro import dispatch
from kuiper._kernels.micro.packed import FewColumns
from kuiper.ir.view import TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.product.algorithms.base import ConvAlgorithm
from kuiper.ops.product.algorithms.gemm import gemm_step

__all__ = ["FewOutputs", "few_outputs_cost", "few_outputs_refusal"]

LANE_SUM = 10  # cost of the sum over a vector's lanes, in vector products


class FewOutputs(ConvAlgorithm):
    """Vectors run along the input channels; each output ends with a sum over the lanes."""

    name = "few_outputs"

    def refusal(self) -> str:
        c = self.c
        if c.is_volume:
            return "volumes have no such kernel"
        return few_outputs_refusal(c.groups, c.out_channels)

    def cost(self) -> float:
        c = self.c
        taps = c.filters.n_terms // c.in_channels
        return few_outputs_cost(taps, c.in_channels, c.out_channels)

    def pack(self, b: Binder) -> TensorView:
        c, filters = self.c, self.c.filters
        matrix = FewColumns(c.out_channels, filters.n_terms // c.in_channels, c.in_channels)
        return b.packed(
            [matrix], lambda memory: matrix.fill(memory, filters.weight(), filters.bias())
        )

    def bind(self, b: Binder) -> list[Any]:
        c = self.c
        x, packed = b.channels_last(c.x), self.pack(b)
        phases = [((0, 0), c.size, c.geometry.taps(), 0)]
        step = gemm_step(b, x, c, packed, phases, c.geometry.stride, few_outputs=True)
        return [c.count(step)]


def few_outputs_refusal(groups: int, out_channels: int) -> str:
    """Return why the kernel does not support a convolution; an empty string if it does."""
    if groups > 1:
        return f"{groups} groups, one is supported"
    limit = min(conv.MAX_FEW_COLUMNS, dispatch.lanes())
    if not 0 < out_channels <= limit:
        return f"{out_channels} output channels, from 1 to {limit} are few"
    return ""


def few_outputs_cost(taps: int, in_channels: int, out_channels: int) -> float:
    """Estimate the time relative to implicit GEMM, most of whose tile columns would be idle."""
    products = out_channels * (taps * -(-in_channels // dispatch.lanes()) + LANE_SUM)
    return products / max(taps * in_channels, 1)
