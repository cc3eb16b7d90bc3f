"""Views of tensors with one to three spatial axes as channels-last images.

Image kernels take (n, c, h, w) only.  A missing batch axis is added, a single spatial axis gets a
height of 1, and depth and height of a volume are merged into one axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kuiper.errors import ShapeError
from kuiper.ir.view import Buffer, BufferKind, Layout, TensorSpec, TensorView, channels_last_strides
from kuiper.ops.core.axes import reshaped
from kuiper.ops.core.binder import Binder

__all__ = ["check_image", "extents_of", "image_input", "image_output", "spatial_extents"]


def extents_of(
    name: str, items: Sequence[Any], spatial: int, what: str = "integers"
) -> tuple[Any, ...]:
    """Return an argument with one item per spatial axis; a single item counts for all axes."""
    items = tuple(items) * spatial if len(items) == 1 else tuple(items)
    if len(items) != spatial:
        raise ShapeError(f"'{name}' is {items}, expected {spatial} {what}")
    return items


def check_image(input: TensorSpec, spatial: int) -> None:
    """Raise ShapeError unless the input is (n, c, *spatial) or (c, *spatial)."""
    if input.rank not in (spatial + 1, spatial + 2):
        raise ShapeError(
            f"the input has shape {input.shape}, expected rank {spatial + 2} "
            f"(or {spatial + 1} without a batch)"
        )


def spatial_extents(shape: Sequence[int], spatial: int) -> tuple[int, int, int]:
    """Return the extents of d, h and w; a missing axis has extent 1."""
    depth, height, width = (1,) * (3 - spatial) + tuple(shape[len(shape) - spatial :])
    return depth, height, width


def _image_shape(shape: Sequence[int], spatial: int) -> tuple[int, int, int, int]:
    depth, height, width = spatial_extents(shape, spatial)
    batch = shape[0] if len(shape) == spatial + 2 else 1
    return batch, shape[len(shape) - spatial - 1], depth * height, width


def image_input(b: Binder, value: TensorView, spatial: int) -> TensorView:
    """Return an input as a channels-last image; copies it if its layout requires that."""
    return b.channels_last(reshaped(b, value, _image_shape(value.shape, spatial)))


def image_output(b: Binder, spatial: int, index: int = 0) -> TensorView:
    """Return the memory of an output as a channels-last image."""
    spec = b.output_spec(index)
    if spec.rank == 4 and spatial == 2:
        return b.output(index, layout=Layout.CHANNELS_LAST)
    missing = spatial + 2 - spec.rank
    strides = channels_last_strides((1,) * missing + spec.shape)[missing:]
    like = TensorView(Buffer(-1, 0, BufferKind.ARENA), spec.shape, strides, 0, spec.dtype)
    return b.output(index, layout=like).view(_image_shape(spec.shape, spatial))
