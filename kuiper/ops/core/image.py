"""Tensors with one to three spatial axes seen as channels-last images.

Kernels for images know (n, c, h, w) alone.  A batch axis that is missing is put in front, one
spatial axis gets a height of 1, and depth and height of three are one tall axis.
"""

from __future__ import annotations

from collections.abc import Sequence

from kuiper.errors import ShapeError
from kuiper.ir.view import Buffer, BufferKind, TensorSpec, TensorView, channels_last_strides
from kuiper.ops.core.binder import Binder

__all__ = ["check_image", "image_input", "image_output", "spatial_extents"]


def check_image(input: TensorSpec, spatial: int) -> None:
    """Refuse an input that is not (n, c, *spatial) or (c, *spatial)."""
    if input.rank not in (spatial + 1, spatial + 2):
        raise ShapeError(
            f"the input has shape {input.shape}, expected rank {spatial + 2} "
            f"(or {spatial + 1} without a batch)"
        )


def spatial_extents(shape: Sequence[int], spatial: int) -> tuple[int, int, int]:
    """Return the extents of the axes d, h and w, 1 for those that are missing."""
    depth, height, width = (1,) * (3 - spatial) + tuple(shape[len(shape) - spatial :])
    return depth, height, width


def _image_shape(shape: Sequence[int], spatial: int) -> tuple[int, int, int, int]:
    depth, height, width = spatial_extents(shape, spatial)
    batch = shape[0] if len(shape) == spatial + 2 else 1
    return batch, shape[len(shape) - spatial - 1], depth * height, width


def image_input(b: Binder, value: TensorView, spatial: int) -> TensorView:
    """Return an input as a channels-last image, through a copy where its layout needs one."""
    shape = _image_shape(value.shape, spatial)
    image = value.reshape(shape)
    if image is None:
        image = b.contiguous(value).view(shape)
    return b.channels_last(image)


def image_output(b: Binder, spatial: int, index: int = 0) -> TensorView:
    """Return the memory of an output as a channels-last image."""
    spec = b.output_spec(index)
    if spec.rank == 4 and spatial == 2:
        return b.output(index, layout="channels_last")
    missing = spatial + 2 - spec.rank
    strides = channels_last_strides((1,) * missing + spec.shape)[missing:]
    like = TensorView(Buffer(-1, 0, BufferKind.ARENA), spec.shape, strides, 0, spec.dtype)
    return b.output(index, layout=like).view(_image_shape(spec.shape, spatial))
