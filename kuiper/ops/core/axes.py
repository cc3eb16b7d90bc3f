"""Checks of axes and element types that records share; reduced, split and merged axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.binder import Binder

__all__ = [
    "axes_of",
    "axis_of",
    "reduced_axes",
    "reduced_shape",
    "require_float32",
    "require_floats",
    "reshaped",
    "split_axis",
]


def require_float32(input: TensorSpec) -> None:
    """Raise ShapeError unless the input is float32."""
    if input.dtype != np.float32:
        raise ShapeError(f"the input is {input.dtype}, expected float32")


def require_floats(input: TensorSpec) -> None:
    """Raise ShapeError unless the input is of a floating-point type."""
    if input.dtype.kind != "f":
        raise ShapeError(f"the input is {input.dtype}, expected float32")


def axis_of(dim: int, shape: Sequence[int], name: str = "dim") -> int:
    """Return `dim` counted from the front, or raise ShapeError."""
    rank = len(shape)
    if rank == 0:
        raise ShapeError(f"the input is a 0-d tensor, expected it to have an axis for '{name}'")
    if not -rank <= dim < rank:
        raise ShapeError(
            f"'{name}' is {dim}, expected {-rank} to {rank - 1} for an input of shape {shape}"
        )
    return dim % rank


def axes_of(dims: Sequence[int], shape: Sequence[int], name: str = "dim") -> tuple[int, ...]:
    """Return several axes counted from the front; raise ShapeError unless they differ."""
    axes = tuple(axis_of(dim, shape, name) for dim in dims)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"'{name}' is {tuple(dims)}, which names an axis twice")
    return axes


def reduced_axes(dim: int | Sequence[int] | None, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the axes that a reduction over `dim` covers: all for None and for ().

    A 0-d tensor has no axis, but PyTorch accepts axis 0 or -1 for it.
    """
    if dim is None or dim == ():
        return tuple(range(len(shape)))
    axes = axes_of((dim,) if isinstance(dim, int) else dim, shape or (1,))
    return axes if shape else ()


def reduced_shape(shape: Sequence[int], axes: Sequence[int], keepdim: bool) -> list[int]:
    """Return the shape after a reduction over `axes`, which stay with extent 1 if `keepdim`."""
    return [1 if d in axes else n for d, n in enumerate(shape) if keepdim or d not in axes]


def reshaped(b: Binder, value: TensorView, shape: Sequence[int]) -> TensorView:
    """Return a tensor in another shape: a view if the strides allow it, else of a copy."""
    view = value.reshape(shape)
    return b.contiguous(value).view(shape) if view is None else view


def split_axis(value: TensorView, axis: int, extents: Sequence[int]) -> TensorView:
    """Return the view with one axis split into several, slowest first."""
    strides = [value.strides[axis] * math.prod(extents[i + 1 :]) for i in range(len(extents))]
    return value.with_layout(
        (*value.shape[:axis], *extents, *value.shape[axis + 1 :]),
        (*value.strides[:axis], *strides, *value.strides[axis + 1 :]),
    )
