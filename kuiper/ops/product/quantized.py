"""Convolutions and linear layers of bytes: exact sums of products, with scales."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.epilogue import make_epilogue, residual_view
from kuiper.ops.core.quantization import bytes_of, check_quantization
from kuiper.ops.core.record import T, record
from kuiper.ops.core.schema import Float, Int, Ints, Str, Tensor
from kuiper.ops.product.algorithms import Convolution, bind_convolution
from kuiper.ops.product.dynamic_linear import verify_scales
from kuiper.ops.product.filters import Filters
from kuiper.ops.product.geometry import ConvolutionRecord, Geometry, output_spec
from kuiper.ops.product.linear import Linear, as_matrix

if TYPE_CHECKING:
    from kuiper.ir import Operator

__all__ = ["QuantizedConv", "QuantizedLinear"]

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
        If a scale of the weight is not positive and finite.
    ShapeError
        As for a convolution, if a dtype is another one, a scale or zero point is out of range, or
        an output has more than 65,793 terms.
    """

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

    def infer(self: QuantizedConv[TensorSpec]) -> TensorSpec:
        spec = output_spec(self)
        _check_bytes(self)
        return spec

    def bind(self: QuantizedConv[TensorView], b: Binder) -> None:
        geometry = Geometry.of(self)
        x = b.channels_last(self.input)
        y = b.output(layout=Layout.CHANNELS_LAST)
        residual = residual_view(b)
        if residual is not None:
            residual = b.channels_last(residual)
        _float_product(self, b, x, y, geometry, residual)


@record("nn.quantized.Linear")
class QuantizedLinear(Linear[T]):
    """``y = (x - input_zero_point) @ weight.T * (weight_scale * input_scale) + bias`` of bytes.

    Input (..., in_features), uint8; weight (out_features, in_features), int8; weight_scale
    (out_features,), float32.  The sums are exact, the output is float32.
    Source: torch.ao.nn.quantized.Linear, without the quantization of its output.

    Raises
    ------
    OperatorError
        If a scale of the weight is not positive and finite.
    ShapeError
        If the arguments, the bias or the input contradict the weight, a dtype is another one, a
        scale or zero point is out of range, or there are more than 65,793 input features.
    """

    weight_scale: T = Tensor(rank=1)
    input_scale: float = Float()
    input_zero_point: int = Int()
    computes_bytes = True
    input_dtype = np.dtype(np.uint8)

    def verify(self: QuantizedLinear[TensorSpec], op: Operator) -> None:
        verify_scales(op, "weight_scale")

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
        _float_product(
            self, b, x, as_image(rows), Geometry((1, 1), (1, 1), (1, 1), ((0, 0),) * 2), residual
        )


def as_image(rows: TensorView) -> TensorView:
    """View rows (n, k) as the pixels of one image (1, k, 1, n)."""
    (count, channels), step = rows.shape, rows.strides[0]
    return rows.with_layout((1, channels, 1, count), (count * step, 1, count * step, step))


def _float_product(a, b, x, y, geometry, residual):
    xf = b.temporary(x.shape, np.float32, Layout.CHANNELS_LAST)
    s, z = np.float32(a.input_scale), a.input_zero_point
    b.python(lambda v: (v.astype(np.int32) - z).astype(np.float32), [x], [xf])
    w = np.asarray(a.weight.constant).astype(np.float32) * (
        np.asarray(a.weight_scale.constant) * s
    ).reshape(-1, *[1] * (a.weight.rank - 1))
    w = w.reshape(*w.shape[:2], *geometry.kernel)
    epilogue = make_epilogue(b, residual)
    out = y
    if epilogue is not None and epilogue.residual_quantization is not None:
        rs, rz = epilogue.residual_quantization
        rf = b.temporary(y.shape, np.float32, Layout.CHANNELS_LAST)
        b.python(
            lambda v: (v.astype(np.int32) - rz).astype(np.float32) * np.float32(rs),
            [epilogue.residual],
            [rf],
        )
        epilogue.residual, epilogue.ldr = rf, rf.row_stride
    if epilogue is not None and epilogue.output is not None:
        out = b.temporary(y.shape, np.float32, Layout.CHANNELS_LAST)
    filters = Filters(b.constant(w), a.bias, w.shape)
    bind_convolution(b, Convolution(xf, out, filters, geometry, getattr(a, "groups", 1), epilogue))
    if out is not y:
        scale, zero = epilogue.output
        b.python(lambda v: bytes_of(v, scale, zero), [out], [y])
