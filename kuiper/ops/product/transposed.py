"""Transposed convolutions: implicit GEMM once for each phase of the stride."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from kuiper._kernels.micro import packing
from kuiper._kernels.micro.packed import FewColumns, PackedMatrix, PairPanels, panel_offsets
from kuiper.ir.view import TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.epilogue import Epilogue
from kuiper.ops.product.algorithms.base import Choice, Convolution
from kuiper.ops.product.algorithms.few_outputs import few_outputs_cost, few_outputs_refusal
from kuiper.ops.product.algorithms.gemm import gemm_step
from kuiper.ops.product.filters import Filters, fill_groups, pack_at_run_time
from kuiper.ops.product.geometry import ConvolutionRecord, Geometry

__all__ = ["transposed_step"]


def transposed_step(
    a: ConvolutionRecord[TensorView],
    b: Binder,
    geometry: Geometry,
    x: TensorView,
    y: TensorView,
    epilogue: Epilogue | None,
) -> Any:
    """Return the step of a transposed convolution; add the steps that pack a computed weight.

    Parameters
    ----------
    a : ConvolutionRecord
        Supplies the weight, the bias and the groups.
    b : Binder
    geometry : Geometry
    x, y : TensorView
        Channels-last images, or gapless channels-last volumes.
    epilogue : Epilogue or None
    """
    filters = Filters(a.weight, a.bias, (*a.weight.shape[:2], *geometry.kernel))
    forward = _Forward(filters, a.groups)
    c = Convolution(x, y, forward, geometry, a.groups, epilogue)
    phases, tap_lists = split_phases(geometry, y.shape[2:])
    few, reason = False, "the filters are computed at run time"
    if c.in_bfloat16:
        few, reason = False, "an operand is stored in bfloat16"
    elif filters.is_constant:
        few, reason = _has_few_outputs(c, tap_lists)
    if filters.is_constant:
        packed, offsets = _pack(b, forward, c, tap_lists, few)
    else:
        packed, offsets = pack_at_run_time(b, a, filters, tap_lists, by_column=False)
    ones = (1,) * len(geometry.stride)
    if c.in_bfloat16:
        from kuiper.ops.product.algorithms.bfloat16 import pairs_at_run_time, pairs_step

        if not filters.is_constant:
            counts = [len(taps) for taps in tap_lists]
            packed, offsets = pairs_at_run_time(
                b, packed, c.out_channels, c.in_channels, c.groups, counts
            )
        phases = [(*phase, offsets[kind]) for *phase, kind in phases]
        step = pairs_step(b, c, packed, phases, ones, geometry.stride)
        step.algorithm = Choice("pairs", {"few_outputs": reason})
    else:
        phases = [(*phase, offsets[kind]) for *phase, kind in phases]
        step = gemm_step(b, x, c, packed, phases, ones, geometry.stride, few)
        name = "few_outputs" if few else "gemm"
        step.algorithm = Choice(name, {} if few else {"few_outputs": reason})
    step.kind = "conv_transpose3d" if c.is_volume else "conv_transpose"
    step.flops = 2.0 * x.size * filters.n_terms
    step.bytes = float(x.n_bytes + y.n_bytes + filters.n_bytes)
    return step


class _Forward(Filters):
    """Filters (in, out / groups, ...) in a convolution's order, (out, in / groups, ...)."""

    def __init__(self, filters: Filters, groups: int) -> None:
        self._filters, self._groups = filters, groups
        in_channels, self._out_channels, *kernel = filters.shape
        self._in_channels = in_channels // groups
        self.shape = (groups * self._out_channels, self._in_channels, *kernel)
        self.is_constant = filters.is_constant

    def weight(self) -> np.ndarray:
        sizes = self._groups, self._in_channels, self._out_channels, *self.shape[2:]
        return self._filters.weight().reshape(sizes).swapaxes(1, 2).reshape(self.shape)

    def bias(self) -> np.ndarray | None:
        return self._filters.bias()


def _has_few_outputs(c: Convolution, tap_lists: Sequence[Any]) -> tuple[bool, str]:
    """Return whether vectors should run along the input channels, and if not, why."""
    reason = "volumes have no such kernel"
    if not c.is_volume:
        reason = few_outputs_refusal(c.groups, c.out_channels)
    if reason:
        return False, reason
    cost = few_outputs_cost(min(map(len, tap_lists)), c.in_channels, c.out_channels)
    return cost < 1.0, f"would take {cost:.2f} times as long as gemm"


def _pack(
    b: Binder, forward: Filters, c: Convolution, tap_lists: Sequence[Any], few: bool
) -> tuple[TensorView, list[int]]:
    """Return the packed filters of all phases, and the offset of each kind."""
    matrices: list[Any]
    pack = packing.pack_panels
    if c.in_bfloat16:
        pack = packing.pack_pairs
        matrices = [
            PairPanels(c.out_channels, len(taps), c.in_channels, c.groups, part=taps)
            for taps in tap_lists
        ]
    elif few:
        matrices = [FewColumns(c.out_channels, len(t), c.in_channels, t) for t in tap_lists]
    else:
        matrices = [
            PackedMatrix(c.out_channels, len(taps) * c.in_channels, c.groups, part=taps)
            for taps in tap_lists
        ]

    def fill(*memories: np.ndarray) -> None:
        weight, bias = forward.weight(), forward.bias()
        for memory, matrix, taps in zip(memories, matrices, tap_lists, strict=True):
            indices = [np.ravel_multi_index(tap, weight.shape[2:]) for tap in taps]
            part = weight.reshape(*weight.shape[:2], -1)[:, :, np.array(indices, np.intp)]
            if few:
                matrix.fill(memory, part, bias)
            else:
                fill_groups(memory, part, bias, c.groups, b.n_threads, pack)

    return b.packed(matrices, fill), panel_offsets(matrices)


def split_phases(geometry: Geometry, extents: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """Split the output pixels by their position in the stride.

    All pixels of one phase use the same taps at the same offsets: output pixel ``q * s + r`` uses
    tap u with the input pixel ``q + (r + p - u * d) / s`` if that is an integer.

    Returns
    -------
    phases : list of (first, extent, [tap offset], kind)
        All but `kind` have one number per axis.
    taps : list of (tap, ...)
        The taps of the kernel that the phases of each kind use.
    """
    by_axis = []
    for extent, kernel, stride, dilation, padding in zip(
        extents, geometry.kernel, geometry.stride, geometry.dilation, geometry.origin, strict=True
    ):
        choices = []
        for first in range(min(stride, extent)):
            taps = [
                (u, (first + padding - u * dilation) // stride)
                for u in range(kernel)
                if (first + padding - u * dilation) % stride == 0
            ]
            choices.append((first, -(-(extent - first) // stride), taps))
        by_axis.append(choices)
    phases: list[Any] = []
    kinds: dict[Any, int] = {}
    for choice in product(*by_axis):
        firsts, counts, by_tap = zip(*choice, strict=True)
        combined = list(product(*by_tap))
        taken = tuple(tuple(u for u, _ in tap) for tap in combined)
        seen = [tuple(offset for _, offset in tap) for tap in combined]
        phases.append((firsts, counts, seen, kinds.setdefault(taken, len(kinds))))
    return phases, list(kinds)
