"""Convolutions whose input or output is stored in bfloat16: the algorithms, and pairs of terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kuiper._kernels.conv.narrow import NarrowConvStep, narrow_conv_scratch_bytes
from kuiper._kernels.conv.window import Window
from kuiper._kernels.micro import packing
from kuiper._kernels.micro.packed import PackedMatrix, PairPanels, panel_offsets
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.product.algorithms.base import ConvAlgorithm, Convolution
from kuiper.ops.product.algorithms.depthwise import Depthwise
from kuiper.ops.product.algorithms.few_inputs import FewInputs
from kuiper.ops.product.algorithms.few_inputs_pairs import FewInputsPairs
from kuiper.ops.product.algorithms.gemm import Gemm
from kuiper.ops.product.algorithms.grouped import Grouped
from kuiper.ops.product.algorithms.regions import Regions
from kuiper.ops.product.algorithms.winograd_pairs import WinogradPairs
from kuiper.ops.product.filters import fill_groups

__all__ = ["ALGORITHMS", "Pairs", "bind_widened", "pairs_at_run_time", "pairs_step", "scaled_pairs"]

FLOAT32 = np.dtype(np.float32)


class Pairs(ConvAlgorithm):
    """Implicit GEMM of pairs of channels, with sums in float32."""

    name = "pairs"
    takes_bfloat16 = True

    def refusal(self) -> str:
        return ""

    def cost(self) -> float:
        return 1.0

    def pack(self, b: Binder) -> TensorView:
        c = self.c
        taps = c.filters.n_terms // c.in_channels
        return b.packed(
            [PairPanels(c.out_channels, taps, c.in_channels, c.groups)],
            lambda memory: fill_groups(
                memory, c.filters, c.filters.bias(), c.groups, b.n_threads, packing.pack_pairs
            ),
        )

    def bind(self, b: Binder) -> list[Any]:
        c = self.c
        phases = [((0, 0), c.size, c.geometry.taps(), 0)]
        return [c.count(pairs_step(b, c, self.pack(b), phases, c.geometry.stride))]


class RegionPairs(Regions):
    """Pairs for each region, with the taps that its outputs use."""

    takes_bfloat16 = True
    pack_panels = staticmethod(packing.pack_pairs)

    def matrix(self, taps: int, part: Any) -> PairPanels:
        c = self.c
        return PairPanels(c.out_channels, taps, c.in_channels, c.groups, part=part)

    def step(self, b: Binder, packed: TensorView, phases: Sequence[Any]) -> Any:
        return pairs_step(b, self.c, packed, phases, self.c.geometry.stride)


# In the order of trial.  The last one computes every convolution; an algorithm that does not take
# bfloat16 gets float32 and its result is converted.
ALGORITHMS: tuple[type[ConvAlgorithm], ...] = (
    WinogradPairs,
    Depthwise,
    Grouped,
    FewInputsPairs,
    FewInputs,
    RegionPairs,
    Pairs,
)


def pairs_step(
    b: Binder,
    c: Convolution,
    packed: TensorView,
    phases: Sequence[Any],
    in_step: Sequence[int],
    out_step: Sequence[int] = (1, 1),
) -> Any:
    """Return the step that multiplies pairs of each phase; see :func:`.gemm.gemm_step`."""
    x = b.channels_last(b.stored(c.x, BFLOAT16))
    window = Window(x, c.y, in_step, out_step, phases)
    scratch = b.scratch(narrow_conv_scratch_bytes(window.max_taps))
    return NarrowConvStep(
        x, packed, c.y, window, c.groups, c.in_channels, c.out_channels, scratch,
        c.filters.n_terms, c.epilogue,
    )  # fmt: skip


def bind_widened(b: Binder, algorithm: ConvAlgorithm) -> list[Any]:
    """Return the steps of an algorithm in float32; add those that convert its operands.

    The last step converts the result.
    """
    c = algorithm.c
    y = c.y if c.y.dtype == FLOAT32 else b.temporary(c.y.shape, FLOAT32, "channels_last")
    epilogue = c.epilogue
    if epilogue is not None and epilogue.residual is not None:
        epilogue = epilogue.with_residual(b.stored(epilogue.residual, FLOAT32))
    x = b.stored(c.x, FLOAT32)
    algorithm.c = Convolution(x, y, c.filters, c.geometry, c.groups, epilogue)
    return algorithm.bind(b)


def pairs_at_run_time(
    b: Binder,
    floats: TensorView,
    columns: int,
    channels: int,
    groups: int = 1,
    tap_counts: Sequence[int] = (1,),
    factors: TensorView | None = None,
) -> tuple[TensorView, list[int]]:
    """Add the steps that round panels of floats; return the pairs and the offset of each phase.

    Parameters
    ----------
    b : Binder
    floats : TensorView
        The panels of all phases.
    columns, channels : int
        Of one group.
    groups : int, default=1
    tap_counts : sequence of int
        The number of taps of each phase.
    factors : TensorView, shape (channels,), float32, optional
        What the channels are multiplied by first.
    """
    wide = [PackedMatrix(columns, taps * channels, groups) for taps in tap_counts]
    narrow = [PairPanels(columns, taps, channels, groups) for taps in tap_counts]
    starts, offsets = panel_offsets(wide), panel_offsets(narrow)
    pairs = b.temporary((offsets[-1],), np.uint16)
    flat = floats.view((floats.size,))
    for i, taps in enumerate(tap_counts):
        panels = flat.narrow(0, starts[i], starts[i + 1] - starts[i]).view(wide[i].shape)
        some = pairs.narrow(0, offsets[i], offsets[i + 1] - offsets[i])
        b.step(packing.PairStep(panels, some, taps, channels, factors))
    return pairs, offsets


def scaled_pairs(b: Binder, c: Convolution, scale: TensorView) -> Any:
    """Return the last step of a 1x1 convolution of scaled input channels; add the other steps.

    As :func:`.gemm.scaled_step`: weights are scaled in float32 and rounded once.
    """
    x, scale = b.channels_last(b.stored(c.x, BFLOAT16)), b.contiguous(b.stored(scale, FLOAT32))
    floats, step = Gemm(c).pack(b), None
    for i in range(x.shape[0]):
        if step is not None:
            b.step(step)
        factors = scale.select(0, i).with_layout((c.in_channels,), (1,))
        panels, _ = pairs_at_run_time(b, floats, c.out_channels, c.in_channels, factors=factors)
        one = c.narrow(0, i, 1)
        one.x = x.narrow(0, i, 1)
        step = pairs_step(b, one, panels, [((0, 0), c.size, [(0, 0)], 0)], (1, 1))
    return step
