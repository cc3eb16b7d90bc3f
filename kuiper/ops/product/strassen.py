"""When a convolution, or a Linear layer over pixels, goes through Strassen's algorithm, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._kernels.conv import window as conv_window
from kuiper._kernels.micro import dispatch
from kuiper.ir.view import Value
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.epilogue import Post

if TYPE_CHECKING:
    from kuiper._kernels.conv import strassen

__all__ = ["strassen_pays", "strassen_step"]

# With fewer terms than this, sums of products cost more than the product that is saved; rows of
# more than that, and their sums, do not stay in the L2 cache.
LEAST_TERMS, MOST_TERMS = 128, 2560
# Panels of columns: sums of rows are made once for all of them.
LEAST_PANELS = 4
# With fewer rows, reading twice the weights takes longer than the arithmetic that is saved.
LEAST_ROWS = 40
# Terms times columns: twice the weights should stay in the L3 cache, and take bearable memory.
MOST_WEIGHTS = 1 << 20
# Multiplications of the definition; what has less takes a few dozen microseconds.
LEAST_WORK = 20_000_000


def strassen_pays(rows: int, taps: int, channels: int, columns: int) -> bool:
    """Tell whether a product of `rows` by ``taps * channels`` terms is faster that way.

    `rows` are those of one image, and threads do not matter: results must not depend on either.
    """
    terms = taps * channels
    return (
        channels % (2 * dispatch.lanes()) == 0
        and LEAST_TERMS <= terms <= MOST_TERMS
        and columns > (LEAST_PANELS - 1) * dispatch.tile()[1]
        and rows >= LEAST_ROWS
        and rows * terms * columns >= LEAST_WORK
        and terms * columns <= MOST_WEIGHTS
    )


def strassen_step(
    b: Binder,
    x: Value,
    y: Value,
    weight: Any,
    bias: Callable[[], np.ndarray | None],
    taps: Sequence[tuple[int, int]],
    stride: tuple[int, ...],
    post: Post | None,
) -> strassen.StrassenStep:
    """Bind a product.

    Parameters
    ----------
    b : Binder
    x, y : Value
        Channels-last images.
    weight : array, shape (columns, taps, channels), or what gives slices of one
        Read when it is packed.
    bias : callable
        Returns it as (columns,), or None.
    taps : sequence of (int, int)
        Where the pixels of a window lie, relative to its origin.
    stride : (int, int)
    post : Post or None
    """
    from kuiper._kernels.conv import strassen  # for products of some size alone

    packed = b.packed("strassen", lambda: strassen.pack_strassen(weight, bias(), b.n_threads))
    window = conv_window.Window(x, y, stride, (1, 1), [(0, 0, *y.shape[2:], taps, 0)])
    scratch = b.scratch(
        strassen.strassen_scratch_bytes(y.shape[2] * y.shape[3], len(taps), x.shape[1], y.shape[1])
    )
    return strassen.StrassenStep(x, packed, y, window, scratch, post)
