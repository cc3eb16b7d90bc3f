"""Convolutions and linear layers of bytes: exact sums of products, with scales."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._kernels.conv.narrow import NarrowConvStep, narrow_conv_scratch_bytes
from kuiper._kernels.conv.quantized import (
    MAX_DEPTHWISE_TAPS,
    QuantizedDepthwiseStep,
    depthwise_quads,
    quantized_depthwise_scratch_bytes,
)
from kuiper._kernels.conv.window import Window
from kuiper._kernels.micro.packed import (
    QuantizedDepthwiseBlocks,
    QuantizedDepthwiseQuads,
    QuantizedPanels,
    padded_to_quads,
    terms_by_tap,
)
from kuiper.errors import ShapeError
from kuiper.ir.view import BufferKind, Layout, TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.epilogue import make_epilogue, residual_view
from kuiper.ops.core.quantization import check_quantization, verify_quantization
from kuiper.ops.core.record import T, record
from kuiper.ops.core.schema import Float, Int, Ints, Str, Tensor
from kuiper.ops.product.algorithms.few_inputs import MAX_CHANNELS
from kuiper.ops.product.dynamic_linear import verify_scales
from kuiper.ops.product.geometry import ConvolutionRecord, Geometry, output_spec
from kuiper.ops.product.linear import Linear, as_matrix
from kuiper.ops.product.mixed import mixed_winograd
from kuiper.ops.product.narrow import PIXELS, as_image, rows_of_filters

if TYPE_CHECKING:
    from kuiper.ir import Operator

__all__ = ["MAX_TERMS", "QuantizedConv", "QuantizedLinear"]

# More products of two bytes of up to 255 and 128 may overflow a sum of 32 bits.
MAX_TERMS = (2**31 - 1) // (255 * 128)


def _check_bytes(a: Any) -> None:
    """Check the dtypes and the scales of a product of bytes."""
    check_quantization(a.input_scale, a.input_zero_point, "input_")
    if a.input.dtype != np.uint8 or a.weight.dtype != np.int8:
        raise ShapeError(
            f"the input is {a.input.dtype} and the weight {a.weight.dtype}, expected uint8 and int8"
        )
    columns = a.weight.shape[0]
    if a.weight_scale.shape != (columns,) or a.weight_scale.dtype != np.float32:
        raise ShapeError(
            f"'weight_scale' is {a.weight_scale!r}, expected float32 of the shape ({columns},)"
        )
    for name in ("weight", "weight_scale", "bias"):
        given = getattr(a, name)
        if given is not None and not given.is_constant:
            raise ShapeError(f"'{name}' is computed, expected a constant")
    terms = a.weight.size // max(columns, 1)
    if terms > MAX_TERMS:
        raise ShapeError(f"'weight' has {terms} terms per output, expected up to {MAX_TERMS}")


@record("nn.quantized.Conv2d")
class QuantizedConv(ConvolutionRecord[T]):
    """Cross-correlation of an image of bytes with filters of bytes.

    ``y = sum((x - input_zero_point) * weight) * (weight_scale * input_scale) + bias``; the sum is
    exact.  Padding adds zeros: pixels of the byte `input_zero_point`.

    Input (n, c, h, w), uint8; weight (out, in / groups, kh, kw), int8; weight_scale (out,),
    float32.  The output is float32.
    Source: torch.ao.nn.quantized.Conv2d, without the quantization of its output.

    Raises
    ------
    OperatorError
        If a scale of the weight is not positive and finite, `input_scale` is no number of the file
        from 1e-30 to 1e30, or `input_zero_point` no byte.
    ShapeError
        As for a convolution, if a dtype is another one, or an output has more than 65,793 terms.
    """

    input: T = Tensor(rank=4)
    weight_scale: T = Tensor(rank=1)
    input_scale: float = Float()
    input_zero_point: int = Int()
    padding: tuple[int, ...] | str = Ints(default=(0,), minimum=0, words=("same", "valid"))
    padding_mode: str = Str(("zeros",), "zeros")
    layout = Layout.CHANNELS_LAST
    computes_bytes = True
    dtypes = np.dtype(np.uint8), np.dtype(np.int8)

    def verify(self: QuantizedConv[TensorSpec], op: Operator) -> None:
        verify_scales(op, "weight_scale")
        verify_quantization(op, "input_")

    def infer(self: QuantizedConv[TensorSpec]) -> TensorSpec:
        spec = output_spec(self)
        _check_bytes(self)
        return spec

    def bind(self: QuantizedConv[TensorView], b: Binder) -> None:
        x = b.channels_last(self.input)
        y = b.output(layout=Layout.CHANNELS_LAST)
        residual = residual_view(b)
        if residual is not None:
            residual = b.channels_last(residual)
        geometry = Geometry.of(self)
        if _is_depthwise(self, geometry):
            _add_depthwise(self, b, x, y, residual, geometry)
        elif not mixed_winograd(self, b, x, y, geometry, make_epilogue(b, residual)):
            _add_product(self, b, x, y, residual, geometry, self.groups)


@record("nn.quantized.Linear")
class QuantizedLinear(Linear[T]):
    """``y = (x - input_zero_point) @ weight.T * (weight_scale * input_scale) + bias`` of bytes.

    Input (..., in_features), uint8; weight (out_features, in_features), int8; weight_scale
    (out_features,), float32.  The sums are exact, the output is float32.
    Source: torch.ao.nn.quantized.Linear, without the quantization of its output.

    Raises
    ------
    OperatorError
        If a scale of the weight is not positive and finite, `input_scale` is no number of the file
        from 1e-30 to 1e30, or `input_zero_point` no byte.
    ShapeError
        If the arguments, the bias or the input contradict the weight, a dtype is another one,
        or there are more than 65,793 input features.
    """

    weight_scale: T = Tensor(rank=1)
    input_scale: float = Float()
    input_zero_point: int = Int()
    computes_bytes = True
    bfloat16 = ""
    input_dtype = np.dtype(np.uint8)

    def verify(self: QuantizedLinear[TensorSpec], op: Operator) -> None:
        verify_scales(op, "weight_scale")
        verify_quantization(op, "input_")

    def infer(self: QuantizedLinear[TensorSpec]) -> TensorSpec:
        _check_bytes(self)
        return Linear.infer(self)

    def bind(self: QuantizedLinear[TensorView], b: Binder) -> None:
        x = as_image(as_matrix(b, self.input))
        y = b.output()
        rows = y.reshape((math.prod(y.shape[:-1]), y.shape[-1]))
        assert rows is not None  # an output has one row stride
        residual = residual_view(b)
        if residual is not None:
            residual = as_image(as_matrix(b, residual))
        _add_product(self, b, x, as_image(rows), residual, PIXELS, 1)


def _is_depthwise(a: QuantizedConv[TensorView], geometry: Geometry) -> bool:
    """Tell whether each channel has one filter, whose sums float32 holds exactly."""
    is_depthwise = a.weight.shape[:2] == (a.groups, 1)
    return is_depthwise and math.prod(geometry.kernel) <= MAX_DEPTHWISE_TAPS


def _add_depthwise(
    a: QuantizedConv[TensorView], b: Binder, x: TensorView, y: TensorView,
    residual: TensorView | None, geometry: Geometry,
) -> None:  # fmt: skip
    """Add the step of a convolution with one filter per channel."""
    taps = geometry.taps()
    order = depthwise_quads(geometry.kernel, geometry.stride[1], geometry.dilation[1])
    blocks: QuantizedDepthwiseBlocks | QuantizedDepthwiseQuads
    if order is None:
        blocks = QuantizedDepthwiseBlocks(a.groups, len(taps))
    else:
        blocks = QuantizedDepthwiseQuads(a.groups, order)
        taps = [taps[tap] for tap in order]

    def fill(memory: np.ndarray) -> None:
        weight = np.asarray(a.weight.constant).reshape(a.groups, -1)
        scales = np.asarray(a.weight_scale.constant)
        bias = None if a.bias is None else np.asarray(a.bias.constant, np.float32)
        blocks.fill(memory, weight, scales, a.input_zero_point, bias)

    weight = b.packed([blocks], fill)
    window = Window(x, y, geometry.stride, (1, 1), [((0, 0), y.shape[2:], taps, 0)])
    b.step(
        QuantizedDepthwiseStep(
            x, weight, y, window, geometry.kernel, geometry.dilation,
            b.scratch(quantized_depthwise_scratch_bytes(len(taps))), a.input_scale,
            a.input_zero_point, make_epilogue(b, residual),
        )
    )  # fmt: skip


def _whole_quads(b: Binder, x: TensorView, terms: int) -> TensorView:
    """Return pixels of bytes that may be read in quads, up to 3 bytes beyond the last channel.

    Memory of the caller is copied; buffers of the arena end later.
    """
    if x.buffer.kind == BufferKind.ARENA or padded_to_quads(terms) == terms:
        return x
    copy = b.temporary(x.shape, np.uint8, Layout.CHANNELS_LAST)
    b.copy(x, copy)
    return copy


def _gapless(b: Binder, x: TensorView) -> TensorView:
    """Return channels-last images without gaps between pixels."""
    if x.row_stride == x.shape[1]:
        return x
    copy = b.temporary(x.shape, np.uint8, Layout.CHANNELS_LAST)
    b.copy(x, copy)
    return copy


def _gains_by_rows(geometry: Geometry, channels: int) -> bool:
    """Tell whether sums along rows of a filter have fewer quads, or longer loops, than by taps."""
    width = geometry.kernel[1]
    has_fewer = padded_to_quads(width * channels) < width * padded_to_quads(channels)
    return width > 1 and geometry.dilation[1] == 1 and (has_fewer or channels <= 4)


def _add_product(
    a: QuantizedConv[TensorView] | QuantizedLinear[TensorView], b: Binder, x: TensorView,
    y: TensorView, residual: TensorView | None, geometry: Geometry, groups: int,
) -> None:  # fmt: skip
    """Add the steps of a product; `x`, `y` and `residual` are channels-last images."""
    outputs, channels = a.weight.shape[0] // groups, a.weight.shape[1]
    depth = channels * math.prod(geometry.kernel)
    by_rows = groups == 1 and channels <= MAX_CHANNELS and _gains_by_rows(geometry, channels)
    taps = math.prod(geometry.kernel)
    if by_rows:
        taps, channels = geometry.kernel[0], geometry.kernel[1] * channels
    matrix = QuantizedPanels(outputs, taps * padded_to_quads(channels), groups=groups)

    def fill(memory: np.ndarray) -> None:
        weight = np.asarray(a.weight.constant)
        if by_rows:  # (out, columns and channels, rows)
            weight = weight.transpose(0, 3, 1, 2).reshape(outputs, channels, taps)
        terms = terms_by_tap(weight)
        scales = np.asarray(a.weight_scale.constant)
        bias = None if a.bias is None else np.asarray(a.bias.constant, np.float32)
        matrix.fill(memory, terms, scales, a.input_zero_point, bias, groups)

    panels = b.packed([matrix], fill)
    if by_rows:
        zero = a.input_zero_point
        x, window = rows_of_filters(b, _gapless(b, x), y, geometry, np.dtype(np.uint8), zero)
    else:
        x = _whole_quads(b, x, channels)
        phases = [((0, 0), y.shape[2:], geometry.taps(), 0)]
        window = Window(x, y, geometry.stride, (1, 1), phases)
    scratch = b.scratch(narrow_conv_scratch_bytes(window.max_taps))
    b.step(
        NarrowConvStep(
            x, panels, y, window, groups, channels, outputs, scratch, depth,
            make_epilogue(b, residual), a.input_scale, a.input_zero_point,
        )
    )  # fmt: skip
