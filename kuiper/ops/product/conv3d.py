"""Convolution and transposed convolution of volumes."""

from __future__ import annotations

import math

from kuiper.ir.view import Layout, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.epilogue import make_epilogue, residual_view
from kuiper.ops.core.record import T, record
from kuiper.ops.core.schema import Tensor
from kuiper.ops.product.algorithms import Convolution, bind_convolution
from kuiper.ops.product.algorithms.base import planes_of
from kuiper.ops.product.conv2d import Conv, ConvTranspose, run_time_step
from kuiper.ops.product.filters import Filters
from kuiper.ops.product.geometry import ConvolutionRecord, Geometry
from kuiper.ops.product.transposed import transposed_step
from kuiper.ops.tensor.padding import pad_spatial

__all__ = ["Conv3d", "ConvTranspose3d"]

# Permutations from (n, c, d, h, w) to the order in memory, and back.
CHANNELS_LAST = (0, 2, 3, 4, 1)
CHANNELS_SECOND = (0, 4, 1, 2, 3)


@record("nn.Conv3d", "F.conv3d")
class Conv3d(Conv[T]):
    """Cross-correlation of volumes with filters.

    Input (n, c, d, h, w) or (c, d, h, w), weight (out, in / groups, kd, kh, kw).
    Source: torch.nn.Conv3d.
    """

    weight: T = Tensor(rank=5)
    input_scale = None
    layout = Layout.CONTIGUOUS
    bfloat16 = ""

    def bind(self: Conv3d[TensorView], b: Binder) -> None:
        geometry, x = Geometry.of(self), self.input
        if self.padding_mode != "zeros" and any(map(any, geometry.padding)):
            margins = [side for pair in reversed(geometry.padding) for side in pair]
            x = pad_spatial(b, x, margins, self.padding_mode)
            geometry = geometry.unpadded()
        filters = Filters(self.weight, self.bias, self.weight.shape)
        x, y = _channels_last(b, x), _output(self, b)
        c = Convolution(x, y, filters, geometry, self.groups, make_epilogue(b, _residual(b)))
        if filters.is_constant:
            bind_convolution(b, _flattened(self, c))
        else:
            b.step(run_time_step(self, b, c))


@record("nn.ConvTranspose3d", "F.conv_transpose3d")
class ConvTranspose3d(ConvTranspose[T]):
    """Transposed convolution of volumes: the adjoint of a convolution with the same arguments.

    Output extent ``(l - 1) * stride - 2 * padding + dilation * (k - 1) + output_padding + 1``.
    The strides have a product of at most 65536.
    Input (n, c, d, h, w) or (c, d, h, w), weight (in, out / groups, kd, kh, kw).
    Source: torch.nn.ConvTranspose3d.
    """

    weight: T = Tensor(rank=5)
    layout = Layout.CONTIGUOUS
    bfloat16 = ""

    def bind(self: ConvTranspose3d[TensorView], b: Binder) -> None:
        x, y = _channels_last(b, self.input), _output(self, b)
        epilogue = make_epilogue(b, _residual(b))
        b.step(transposed_step(self, b, Geometry.of(self), x, y, epilogue))


def _flattened(a: Conv3d[TensorView], c: Convolution) -> Convolution:
    """Return an equivalent convolution of images if the window allows one, else `c`.

    For a window of one plane, each plane is an image.  For a window of one column, each volume is
    an image whose rows are whole planes.
    """
    (depth, *kernel), (stride_d, *stride), (dilation_d, *_) = (
        c.geometry.kernel, c.geometry.stride, c.geometry.dilation,
    )  # fmt: skip
    front, top, left = c.geometry.padding
    if kernel == stride == [1, 1] and not any((*top, *left)):
        view, ends = _rows_of, ((depth, 1), (stride_d, 1), (dilation_d, 1), (front, (0, 0)))
        geometry = Geometry(*ends)
    elif depth == stride_d == 1 and not any(front):
        view, geometry = planes_of, c.geometry.last(2)
    else:
        return c
    filters = Filters(a.weight, a.bias, (*a.weight.shape[:2], *geometry.kernel))
    return Convolution(view(c.x), view(c.y), filters, geometry, c.groups, c.epilogue)


def _rows_of(volumes: TensorView) -> TensorView:
    """View gapless channels-last (n, c, d, h, w) as images (n, c, d, h * w)."""
    n, channels, depth, height, width = volumes.shape
    row = height * width * channels
    return volumes.with_layout(
        (n, channels, depth, height * width), (depth * row, 1, row, channels)
    )


def _channels_last(b: Binder, value: TensorView) -> TensorView:
    """Return (n, c, d, h, w) or (c, d, h, w) as a gapless channels-last volume; may copy."""
    if value.rank == 4:
        value = value.with_layout((1, *value.shape), (value.size, *value.strides))
    return b.contiguous(value.permute(CHANNELS_LAST)).permute(CHANNELS_SECOND)


def _output(a: ConvolutionRecord[TensorView], b: Binder) -> TensorView:
    """Return the output as a gapless channels-last (n, c, d, h, w)."""
    if a.input.rank == 5:
        return b.output(layout=CHANNELS_LAST)
    channels, *extents = b.output_spec().shape
    y = b.temporary((1, *extents, channels)).permute(CHANNELS_SECOND)
    b.alias(y.select(0, 0))
    return y


def _residual(b: Binder) -> TensorView | None:
    """Return the residual of a fused sum as rows of channels."""
    residual = residual_view(b)
    if residual is None:
        return None
    residual = _channels_last(b, residual).permute(CHANNELS_LAST)
    return residual.reshape((math.prod(residual.shape[:4]), residual.shape[4]))
