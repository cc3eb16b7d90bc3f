"""Views of tensors as (outer, n, inner), the form in which kernels reduce one axis.

Axes are taken in memory order, so a reduction over the channels or the pixels of a channels-last
image reads memory sequentially and copies nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kuiper._kernels.rows.reduce import ReduceStep
from kuiper.ir.view import (
    Buffer,
    BufferKind,
    TensorView,
    contiguous_strides,
    remembered,
    reshaped_strides,
)
from kuiper.ops.core.binder import Binder

__all__ = ["MAX_EXTENT", "as_rows", "bind_reduction", "lines_of", "memory_order"]

# Kernels that return indices or sort number the elements of a line with 32 bits.
MAX_EXTENT = 1 << 31

# The kinds that allow two passes over different axes, with the kind of the second pass.
_AGAIN = {
    "sum": "sum",
    "mean": "mean",
    "max": "max",
    "min": "min",
    "prod": "prod",
    "norm1": "sum",
    "norm2": "norm2",
    "norm_inf": "max",
}


def lines_of(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Return (outer, n, inner) of a tensor in C order; n is the extent of `axis`.

    Parameters
    ----------
    shape : sequence of int
        A 0-d tensor counts as a vector of one element.
    axis : int
        Negative axes count from the end.
    """
    shape = shape or (1,)
    axis %= len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def memory_order(value: TensorView) -> list[int]:
    """Return the axes of a view by falling stride, after axes of extent 1."""
    return list(_memory_order(value.shape, value.strides))


@remembered
def _memory_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(shape)), key=lambda d: (shape[d] != 1, -strides[d], d)))


def as_rows(value: TensorView, order: Sequence[int], axes: Sequence[int]) -> TensorView | None:
    """View a tensor as (outer, n, inner); n is the product of the extents of `axes`.

    Parameters
    ----------
    value : TensorView
    order : sequence of int
        The axes from the outermost to the innermost.
    axes : sequence of int

    Returns
    -------
    TensorView or None
        None if `axes` are not consecutive in `order`, the strides do not allow the view, or the
        elements of the innermost axis with more than one are not adjacent.
    """
    layout = _rows_layout(value.shape, value.strides, tuple(order), tuple(axes))
    return None if layout is None else value.with_layout(*layout)


@remembered
def _rows_layout(
    shape: tuple[int, ...], strides: tuple[int, ...], order: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return shape and strides of :func:`as_rows`."""
    long = [d for d in order if shape[d] != 1]
    taken = [i for i, d in enumerate(long) if d in axes]
    first, last = (taken[0], taken[-1] + 1) if taken else (len(long), len(long))
    if len(taken) != last - first:
        return None
    parts = (long[:first], long[first:last], long[last:])
    joined = tuple([math.prod(shape[d] for d in part) for part in parts])
    sequence = [d for part in parts for d in part] + [d for d, n in enumerate(shape) if n == 1]
    steps = reshaped_strides(
        tuple([shape[d] for d in sequence]), tuple([strides[d] for d in sequence]), joined
    )
    if steps is None or any(s <= 0 and n > 1 for n, s in zip(joined, steps, strict=True)):
        return None
    inner = 2 if joined[2] != 1 else 1
    return (joined, steps) if steps[inner] == 1 or joined[inner] == 1 else None


def bind_reduction(
    b: Binder,
    x: TensorView,
    axes: Sequence[int],
    keepdim: bool,
    kind: str,
    correction: float = 0.0,
    is_output: bool = True,
) -> TensorView:
    """Add the step that reduces `axes` of a float32 tensor.

    If the axes are not consecutive in memory, the innermost ones are reduced first; if the kind or
    the layout does not allow that, the step reduces a copy that has them last.

    Parameters
    ----------
    b : Binder
    x : TensorView
    axes : sequence of int
    keepdim : bool
        Whether the reduced axes stay, with extent 1.
    kind : str
        A key of :data:`kuiper._kernels.rows.reduce.KINDS`.
    correction : float, default=0
        The correction of a variance.
    is_output : bool, default=True
        Whether the result is the output of the operator, not a temporary.

    Returns
    -------
    TensorView
        The result; its axes are in the memory order of `x`.
    """
    order = memory_order(x)
    rows = as_rows(x, order, axes)
    inner = _last_ones(x, order, axes)
    if rows is None and inner and kind in _AGAIN and as_rows(x, order, inner) is not None:
        part = bind_reduction(b, x, inner, True, kind, is_output=False)
        return bind_reduction(b, part, axes, keepdim, _AGAIN[kind], is_output=is_output)
    if rows is None:
        order = [d for d in range(x.rank) if d not in axes] + sorted(axes)
        copy = b.temporary([x.shape[d] for d in order], x.dtype)
        b.copy(x.permute(order), copy)
        rows = as_rows(copy, range(x.rank), range(x.rank - len(axes), x.rank))
    assert rows is not None  # the copy has its axes in this order
    kept = [d for d in order if d not in axes]
    shape = [1 if d in axes else n for d, n in enumerate(x.shape)]
    if keepdim:
        order = [*axes, *kept]
    else:
        order = [sorted(kept).index(d) for d in kept]
        shape = [shape[d] for d in sorted(kept)]
    y = _in_order(b, shape, order, is_output)
    b.step(ReduceStep(rows, y.permute(order).reshape(rows.shape[::2]), kind, correction))
    return y


def _last_ones(value: TensorView, order: Sequence[int], axes: Sequence[int]) -> list[int]:
    """Return the axes of `axes` that end an order, apart from axes of extent 1."""
    last: list[int] = []
    for d in reversed([d for d in order if value.shape[d] != 1]):
        if d not in axes:
            break
        last.append(d)
    return last


def _in_order(b: Binder, shape: Sequence[int], order: Sequence[int], is_output: bool) -> TensorView:
    """Return float32 memory with its axes in `order`, from the slowest."""
    if not is_output:
        inverse = sorted(range(len(order)), key=order.__getitem__)
        return b.temporary([shape[d] for d in order]).permute(inverse)
    strides = [0] * len(shape)
    dense = contiguous_strides([shape[d] for d in order])
    for d, stride in zip(order, dense, strict=True):
        strides[d] = stride
    return b.output(layout=TensorView(Buffer(-1, 0, BufferKind.ARENA), shape, strides))
