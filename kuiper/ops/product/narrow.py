"""Products of rows of narrow elements, as convolutions of the pixels of an image."""

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
from kuiper.ir.view import Layout, TensorView, shares_cache_sets
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.epilogue import make_epilogue
from kuiper.ops.product.geometry import Geometry
from kuiper.ops.product.linear import (
    MIN_COLUMNS,
    MIN_ROWS,
    Columns,
    Linear,
    bias_of,
    float_panels,
    is_constant,
)

__all__ = [
    "PIXELS",
    "as_image",
    "linear_pairs",
    "linear_pairs_step",
    "rows_epilogue",
    "rows_of_filters",
]

# The geometry of a linear layer, whose rows are the pixels of an image.
PIXELS = Geometry((1, 1), (1, 1), (1, 1), ((0, 0), (0, 0)))


def as_image(rows: TensorView) -> TensorView:
    """View rows (n, k) as the pixels of one image (1, k, 1, n)."""
    (count, channels), step = rows.shape, rows.strides[0]
    return rows.with_layout((1, channels, 1, count), (count * step, 1, count * step, step))


def rows_of_filters(
    b: Binder, x: TensorView, y: TensorView, geometry: Geometry, dtype: np.dtype, zero: int = 0
) -> tuple[TensorView, Window]:
    """Return an image whose channels are what a row of a filter covers, and its window.

    The input is surrounded by zeros first, so that no row of a filter crosses the border.  The row
    that starts at any pixel is then a run of adjacent numbers, which overlaps those of its
    neighbours.

    Parameters
    ----------
    b : Binder
    x : TensorView
        Images as for :class:`~kuiper._kernels.conv.narrow.PadImageStep`, which is added.
    y : TensorView
    geometry : Geometry
        Not dilated along rows.
    dtype : numpy.dtype
        bfloat16 or uint8.
    zero : int, default=0
        The byte that stands for 0.
    """
    n, channels = x.shape[:2]
    (kernel_h, kernel_w), (step_h, step_w) = geometry.kernel, geometry.stride
    height, width = y.shape[2:]
    rows = (height - 1) * step_h + (kernel_h - 1) * geometry.dilation[0] + 1
    # Whole steps, so that the first pixels of all windows have a constant distance.
    steps = width + -(-max(kernel_w - step_w, 0) // step_w)
    padded = b.temporary((n, channels, rows, steps * step_w), dtype, Layout.CHANNELS_LAST)
    scratch = b.scratch(pad_image_scratch_bytes(x))
    b.step(PadImageStep(x, padded, geometry.origin, scratch, zero))
    run, pixel = kernel_w * channels, step_w * channels
    fields = padded.with_layout(
        (n, run, rows, steps), (rows * steps * pixel, 1, steps * pixel, pixel)
    )
    taps = [(u * geometry.dilation[0], 0) for u in range(kernel_h)]
    return fields, Window(fields, y, (step_h, 1), (1, 1), [((0, 0), (height, width), taps, 0)])


def linear_pairs(
    a: Linear[TensorView], b: Binder, x: TensorView, y: TensorView, residual: TensorView | None
) -> Any:
    """Return the step of a linear layer whose input or output is stored in bfloat16.

    Parameters
    ----------
    a : Linear
        Supplies the weight and the bias.
    b : Binder
    x, y, residual : TensorView
        Rows, each in float32 or bfloat16.
    """
    columns, depth = a.weight.shape
    x = b.stored(x, BFLOAT16)
    if x.shape[0] >= MIN_ROWS and columns >= MIN_COLUMNS and shares_cache_sets(x.strides[0] // 2):
        x = b.padded_rows(x)
    matrix = PairPanels(columns, 1, depth)
    if is_constant(a):
        packed = b.packed(
            [matrix],
            lambda out: packing.pack_pairs(Columns(a.weight), bias_of(a), b.n_threads, out),
        )
    else:
        from kuiper.ops.product.algorithms.bfloat16 import pairs_at_run_time

        packed, _ = pairs_at_run_time(b, float_panels(a, b), columns, depth)
    return linear_pairs_step(b, x, packed, y, depth, rows_epilogue(b, residual))


def rows_epilogue(b: Binder, residual: TensorView | None) -> Any:
    """Return the epilogue of rows, whose residual are rows too."""
    return make_epilogue(b, None if residual is None else as_image(residual))


def linear_pairs_step(
    b: Binder, x: TensorView, packed: TensorView, y: TensorView, depth: int, epilogue: Any = None
) -> Any:
    """Return the step of ``y = x @ weight.T + bias`` for packed weights.

    Parameters
    ----------
    b : Binder
    x : TensorView, bfloat16
    packed : TensorView
        Memory of a :class:`~kuiper._kernels.micro.packed.PairPanels`.
    y : TensorView
        Rows in float32 or bfloat16.
    depth : int
    epilogue : Epilogue, optional
        See :func:`rows_epilogue`.
    """
    image, target = as_image(x), as_image(y)
    window = Window(image, target, (1, 1), (1, 1), [((0, 0), (1, x.shape[0]), [(0, 0)], 0)])
    step = NarrowConvStep(
        image, packed, target, window, 1, depth, y.shape[1],
        b.scratch(narrow_conv_scratch_bytes(1)), depth, epilogue,
    )  # fmt: skip
    step.kind = "linear_bfloat16"
    return step
