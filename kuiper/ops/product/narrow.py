"""Products of rows of narrow elements, as convolutions of the pixels of an image."""

from __future__ import annotations

from typing import Any

from kuiper._kernels.conv.narrow import NarrowConvStep, narrow_conv_scratch_bytes
from kuiper._kernels.conv.window import Window
from kuiper._kernels.micro import packing
from kuiper._kernels.micro.packed import PairPanels
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import TensorView, shares_cache_sets
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

__all__ = ["PIXELS", "as_image", "linear_pairs"]

# The geometry of a linear layer, whose rows are the pixels of an image.
PIXELS = Geometry((1, 1), (1, 1), (1, 1), ((0, 0), (0, 0)))


def as_image(rows: TensorView) -> TensorView:
    """View rows (n, k) as the pixels of one image (1, k, 1, n)."""
    (count, channels), step = rows.shape, rows.strides[0]
    return rows.with_layout((1, channels, 1, count), (count * step, 1, count * step, step))


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
    image, target = as_image(x), as_image(y)
    window = Window(image, target, (1, 1), (1, 1), [((0, 0), (1, x.shape[0]), [(0, 0)], 0)])
    epilogue = make_epilogue(b, None if residual is None else as_image(residual))
    step = NarrowConvStep(
        image, packed, target, window, 1, depth, columns,
        b.scratch(narrow_conv_scratch_bytes(1)), depth, epilogue,
    )  # fmt: skip
    step.kind = "linear_bfloat16"
    return step
