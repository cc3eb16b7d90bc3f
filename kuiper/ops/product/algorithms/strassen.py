"""Products by Strassen's algorithm: seven products of half the size instead of eight."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._kernels.conv import window as conv_window
from kuiper._kernels.micro import dispatch
from kuiper._kernels.micro.packed import PackedMatrix
from kuiper.ir.view import TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.epilogue import Epilogue
from kuiper.ops.product.algorithms.base import ConvAlgorithm
from kuiper.ops.product.filters import ByTap

if TYPE_CHECKING:
    from kuiper._kernels.conv import strassen

__all__ = ["Strassen", "StrassenPanels", "strassen_refusal", "strassen_step"]

# Below the minimum, sums of products cost more than the product saved; above the maximum, rows
# and their sums exceed the L2 cache.
MIN_TERMS, MAX_TERMS = 128, 2560
# Panels of columns that share the sums of rows.
MIN_PANELS = 4
# With fewer rows, reading twice the weights takes longer than the arithmetic saved.
MIN_ROWS = 40
# Terms times columns: twice the weights should fit the L3 cache, and memory.
MAX_WEIGHTS = 1 << 20
# Multiplications of a plain product; a smaller one takes a few dozen microseconds anyway.
MIN_WORK = 20_000_000


class StrassenPanels(PackedMatrix):
    """Sums of the quarters of each pair of panels; an unpaired last panel is stored as it is."""

    __slots__ = ("columns", "taps")

    def __init__(self, columns: int, taps: int, channels: int) -> None:
        super().__init__(columns, taps * channels)
        self.columns, self.taps = columns, taps

    @property
    def shape(self) -> tuple[int, ...]:
        from kuiper._kernels.conv import strassen

        return (strassen.packed_floats(self.columns, self.taps, self.depth // self.taps),)


class Strassen(ConvAlgorithm):
    """Pairs of tiles times pairs of panels, with sums of rows and sums of weights."""

    name = "strassen"

    def refusal(self) -> str:
        c = self.c
        if c.is_volume:
            return "volumes have no such kernel"
        if c.groups > 1:
            return f"{c.groups} groups, one is supported"
        taps = c.filters.n_terms // c.in_channels
        return strassen_refusal(math.prod(c.size), taps, c.in_channels, c.out_channels)

    def cost(self) -> float:
        return 7 / 8

    def bind(self, b: Binder) -> list[Any]:
        c = self.c
        step = strassen_step(
            b, b.channels_last(c.x), c.y, ByTap(c.filters), c.filters.bias, c.geometry.taps(),
            c.geometry.stride, c.epilogue,
        )  # fmt: skip
        c.count_saved([step])
        return [step]


def strassen_refusal(rows: int, taps: int, channels: int, columns: int) -> str:
    """Return why a product of `rows` by ``taps * channels`` terms gains nothing; "" if it gains.

    `rows` counts one image, and threads do not matter: results must depend on neither.
    """
    terms, nr, pair = taps * channels, dispatch.tile()[1], 2 * dispatch.lanes()
    if channels % pair:
        return f"{channels} input channels, no multiple of {pair}"
    if not MIN_TERMS <= terms <= MAX_TERMS:
        return f"{terms} terms in a sum, from {MIN_TERMS} to {MAX_TERMS} pay"
    if columns <= (MIN_PANELS - 1) * nr:
        return f"{columns} output channels, more than {(MIN_PANELS - 1) * nr} pay"
    if rows < MIN_ROWS:
        return f"{rows} output pixels, at least {MIN_ROWS} pay"
    if rows * terms * columns < MIN_WORK:
        return f"{rows * terms * columns} products, at least {MIN_WORK} pay"
    if terms * columns > MAX_WEIGHTS:
        return f"{terms * columns} weights, at most {MAX_WEIGHTS} stay in the L3 cache twice"
    return ""


def strassen_step(
    b: Binder,
    x: TensorView,
    y: TensorView,
    weight: Any,
    bias: Callable[[], np.ndarray | None],
    taps: Sequence[tuple[int, ...]],
    stride: tuple[int, ...],
    epilogue: Epilogue | None,
) -> strassen.StrassenStep:
    """Return the step of a product.

    Parameters
    ----------
    b : Binder
    x, y : TensorView
        Channels-last images.
    weight : array or sliceable, shape (columns, taps, channels)
        Read when it is packed.
    bias : callable
        Returns the bias (columns,), or None.
    taps : sequence of (int, int)
        Offsets of the pixels of a window from its origin.
    stride : (int, int)
    epilogue : Epilogue or None
    """
    from kuiper._kernels.conv import strassen  # only large products need it

    def fill(memory: np.ndarray) -> None:
        strassen.pack_strassen(weight, bias(), b.n_threads, memory)

    packed = b.packed([StrassenPanels(y.shape[1], len(taps), x.shape[1])], fill)
    window = conv_window.Window(x, y, stride, (1, 1), [((0, 0), y.shape[2:], taps, 0)])
    scratch = b.scratch(
        strassen.strassen_scratch_bytes(y.shape[2] * y.shape[3], len(taps), x.shape[1], y.shape[1])
    )
    step = strassen.StrassenStep(x, packed, y, window, scratch, epilogue)
    step.bytes = float(x.n_bytes + packed.n_bytes + y.n_bytes)
    return step
