"""Implicit GEMM: a convolution as a matrix product, without a copy of its windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kuiper._kernels.conv import conv
from kuiper._kernels.conv import window as conv_window
from kuiper._kernels.micro.packed import PackedMatrix
from kuiper.ir.view import TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.product.algorithms.base import ConvAlgorithm, Convolution, voxel_rows
from kuiper.ops.product.filters import fill_groups

__all__ = ["Gemm", "gemm_step", "scaled_step"]


class Gemm(ConvAlgorithm):
    """Each output pixel is a row of terms, read tap by tap from the image itself."""

    name = "gemm"

    def refusal(self) -> str:
        return ""

    def cost(self) -> float:
        return 1.0

    def pack(self, b: Binder) -> TensorView:
        c = self.c
        filters, groups = c.filters, c.groups
        return b.packed(
            [PackedMatrix(c.out_channels, filters.n_terms, groups)],
            lambda memory: fill_groups(memory, filters, filters.bias(), groups, b.n_threads),
        )

    def bind(self, b: Binder) -> list[Any]:
        c = self.c
        x = c.x if c.is_volume else b.channels_last(c.x)
        phases = [((0,) * len(c.size), c.size, c.geometry.taps(), 0)]
        return [c.count(gemm_step(b, x, c, self.pack(b), phases, c.geometry.stride))]


def gemm_step(
    b: Binder,
    x: TensorView,
    c: Convolution,
    packed: TensorView,
    phases: Sequence[Any],
    in_step: Sequence[int],
    out_step: Sequence[int] | None = None,
    few_outputs: bool = False,
) -> Any:
    """Return the step that multiplies the taps of each phase by its panels.

    Parameters
    ----------
    b : Binder
    x : TensorView
        The input, channels-last.
    c : Convolution
        Supplies the output, the channels and the epilogue.
    packed : TensorView
    phases : sequence of (first, extent, taps, panels)
        First output pixel, extents, offsets of the taps, offset of the panels in `packed`.
    in_step, out_step : sequence of int
        Distance of consecutive pixels of a phase, in input and in output pixels.
    few_outputs : bool, default=False
        Whether `packed` is a :class:`~kuiper._kernels.micro.packed.FewColumns`.
    """
    out_step = (1,) * len(in_step) if out_step is None else out_step
    if not c.is_volume:
        window = conv_window.Window(x, c.y, in_step, out_step, phases)
        scratch = b.scratch(conv.conv_scratch_bytes(window.max_taps))
        return conv.ConvStep(
            x, packed, c.y, window, c.groups, c.in_channels, c.out_channels, scratch, c.epilogue,
            few_outputs,
        )  # fmt: skip
    from kuiper._kernels.conv import conv3d

    x, y = voxel_rows(x), voxel_rows(c.y)
    volumes = conv3d.VolumeWindow(x, y, in_step, out_step, phases)
    scratch = b.scratch(conv3d.volume_scratch_bytes(volumes.max_taps))
    return conv3d.VolumeConvStep(
        x, packed, y, volumes, c.groups, c.in_channels, c.out_channels, scratch, c.epilogue
    )


def scaled_step(b: Binder, c: Convolution, scale: TensorView) -> Any:
    """Return the last step of a 1x1 convolution of scaled input channels; add the other steps.

    The factors (n, c, 1, 1) differ by image, so each image gets its own scaled weights.
    """
    from kuiper._kernels.elementwise.elementwise import ElementwiseStep
    from kuiper.expression import Call, Ref, fold

    if c.in_bfloat16:
        from kuiper.ops.product.algorithms.bfloat16 import scaled_pairs

        return scaled_pairs(b, c, scale)
    x, scale = b.channels_last(c.x), b.contiguous(scale)
    packed, n_channels, step = Gemm(c).pack(b), c.in_channels, None
    for i in range(x.shape[0]):
        if step is not None:
            b.step(step)
        panels = b.temporary(packed.shape)
        b.copy(packed.narrow(1, 0, 1), panels.narrow(1, 0, 1))  # the biases
        terms, gate = packed.narrow(1, 1, n_channels), scale.select(0, i)
        gate = gate.with_layout((1, n_channels, 1), (0, 1, 0)).expand(terms.shape)
        program = fold(Call("mul", [Ref(0), Ref(1)]), [terms, gate])
        b.step(ElementwiseStep(program, [terms, gate], panels.narrow(1, 1, n_channels)))
        one = c.narrow(0, i, 1)
        step = gemm_step(b, x.narrow(0, i, 1), one, panels, [((0, 0), c.size, [(0, 0)], 0)], (1, 1))
        step.flops = 2.0 * one.y.size * n_channels
        step.bytes = one.y.n_bytes * (1 + n_channels / c.out_channels) + packed.n_bytes
    return step
