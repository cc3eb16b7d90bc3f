"""Quantization and back, in float32.

PyTorch exports quantization without integer products in between, so a quantized tensor is stored as
the float32 values of its integers, rounded as they would be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._kernels.elementwise.quantized import DequantizeStep, QuantizeStep
from kuiper.errors import ShapeError
from kuiper.expression import Call, Literal, Ref
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.axes import axis_of, require_float32
from kuiper.ops.core.binder import Binder, OutputLayout
from kuiper.ops.core.numpy_step import NumpyRecord
from kuiper.ops.core.quantization import check_quantization, verify_quantization
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.schema import Argument, Bool, Float, Int, Tensor, field
from kuiper.ops.math.elementwise import Formula
from kuiper.ops.tensor.shape import Unchanged

if TYPE_CHECKING:
    from kuiper.ir import Operator

__all__ = ["Dequantize", "FakeQuantize", "Quantize"]

# PyTorch's quantized types: the range of their integers by name, and their names by number.
_RANGES = {
    "torch.qint8": (-128, 127),
    "torch.quint8": (0, 255),
    "torch.qint32": (-(2**31), 2**31 - 1),
}
_NUMBERS = {12: "torch.qint8", 13: "torch.quint8", 14: "torch.qint32"}


class _Range(Argument):
    """A quantized type, converted to the range of its integers."""

    expected = "one of " + ", ".join(_RANGES)

    def convert(self, value: Any) -> Any:
        word = value if isinstance(value, str) else _NUMBERS.get(value)
        if word not in _RANGES:
            raise ValueError
        return _RANGES[word]


def _quantized(a: Quantize[Any] | FakeQuantize[Any], low: int, high: int) -> Any:
    """Return the expression of rounding to multiples of a scale within a range."""
    if not a.scale > 0 or not low <= high:
        raise ShapeError(
            f"'scale' is {a.scale}, the range {low} to {high}, expected a positive scale and an "
            "ascending range"
        )
    if a.input.dtype != np.float32:
        raise ShapeError(f"the input is {a.input.dtype}, expected float32")
    # PyTorch multiplies by the inverse, in float32.
    inverse = float(np.float32(1) / np.float32(a.scale))
    # The zero point only moves the range: it is added before clamping and subtracted after.
    bounds = [Literal(float(low - a.zero_point)), Literal(float(high - a.zero_point))]
    # Adding 0 turns the -0 that small negative numbers round to into 0: integers have no -0.
    steps = Call("add", [Call("round", [Call("mul", [Ref(0), Literal(inverse)])]), Literal(0.0)])
    return Call("mul", [Call("clamp", [steps, *bounds]), Literal(a.scale)]), [a.input]


@record("torch.quantize_per_tensor", "aten::quantize_per_tensor", "nn.quantized.Quantize")
class Quantize(Formula[T]):
    """The multiples of a scale nearest to the input, within the range of the integer type.

    The result is float32: the values of PyTorch's quantized tensor.
    Source: torch.quantize_per_tensor.
    """

    input: T = Tensor()
    scale: float = Float()
    zero_point: int = Int()
    dtype: Any = field(_Range)()

    def formula(self: Quantize[TensorSpec]) -> Any:
        return _quantized(self, *self.dtype)


@record("torch.dequantize", "aten::dequantize", "nn.quantized.DeQuantize")
class Dequantize(Unchanged[T]):
    """The input itself: quantized tensors are stored as their values.

    Source: torch.dequantize.
    """

    input: T = Tensor()


@record("aten::fake_quantize_per_tensor_affine")
class FakeQuantize(Formula[T]):
    """The multiples of a scale nearest to the input, within a range of integers.

    Source: torch.fake_quantize_per_tensor_affine.
    """

    input: T = Tensor()
    scale: float = Float()
    zero_point: int = Int()
    quant_min: int = Int()
    quant_max: int = Int()

    def formula(self: FakeQuantize[TensorSpec]) -> Any:
        return _quantized(self, self.quant_min, self.quant_max)


@record("aten::fused_moving_avg_obs_fake_quant")
class ObservedFakeQuantize(Formula[T]):
    """Fake quantization as quantization-aware training leaves it, with its observer off.

    Source: torch.fused_moving_avg_obs_fake_quant.

    Raises
    ------
    ShapeError
        If the observer is on, if it has a scale per row, or if an argument is computed.
    """

    input: T = Tensor()
    observer_on: T = Tensor()
    fake_quant_on: T = Tensor()
    running_min: T = Tensor()
    running_max: T = Tensor()
    scale: T = Tensor()
    zero_point: T = Tensor()
    averaging_const: float = Float()
    quant_min: int = Int()
    quant_max: int = Int()
    ch_axis: int = Int()
    per_row_fake_quant: bool = Bool(False)
    symmetric_quant: bool = Bool(False)

    def formula(self: ObservedFakeQuantize[TensorSpec]) -> Any:
        found = []
        for name in ("observer_on", "fake_quant_on", "scale", "zero_point"):
            value = getattr(self, name).constant
            if value is None or value.size != 1:
                raise ShapeError(f"'{name}' is {getattr(self, name)!r}, expected one known number")
            found.append(value.item())
        observes, quantizes, scale, zero = found
        if observes:
            raise ShapeError(
                "its observer is on, so results would depend on earlier runs; call "
                "torch.ao.quantization.disable_observer on the model before it is exported"
            )
        if not quantizes:
            return Ref(0), [self.input]
        plain: FakeQuantize[TensorSpec] = FakeQuantize(
            input=self.input, scale=scale, zero_point=int(zero), quant_min=self.quant_min,
            quant_max=self.quant_max,
        )  # fmt: skip
        return plain.formula()


@record("aten::fake_quantize_per_channel_affine")
class FakeQuantizeChannels(NumpyRecord[T]):
    """The multiples of each channel's scale nearest to the input, within a range of integers.

    Source: torch.fake_quantize_per_channel_affine.
    """

    batch = NoBatchRule("rare: no known export uses it with another batch")
    input: T = Tensor()
    scale: T = Tensor(rank=1)
    zero_point: T = Tensor(rank=1)
    axis: int = Int()
    quant_min: int = Int()
    quant_max: int = Int()

    def result(self: FakeQuantizeChannels[TensorSpec]) -> TensorSpec:
        extent = self.input.shape[axis_of(self.axis, self.input.shape, "axis")]
        scale, zero = self.scale, self.zero_point
        if {scale.shape, zero.shape} != {(extent,)} or self.input.dtype != np.float32:
            raise ShapeError(
                f"the input is {self.input!r}, 'scale' {scale!r} and 'zero_point' {zero!r}, "
                f"expected float32 and {extent} of each for axis {self.axis}"
            )
        if "c" in (scale.dtype.kind, zero.dtype.kind):
            raise ShapeError(
                f"'scale' is {scale.dtype} and 'zero_point' {zero.dtype}, expected real numbers"
            )
        return TensorSpec(self.input.shape)

    def compute(self: FakeQuantizeChannels[np.ndarray]) -> Any:
        shape = [1] * self.input.ndim
        shape[self.axis] = -1
        scale, zero = (x.astype(np.float32).reshape(shape) for x in (self.scale, self.zero_point))
        steps = np.rint(self.input * (np.float32(1) / scale)) + zero
        return (np.clip(steps, self.quant_min, self.quant_max) - zero) * scale


@record("kuiper.QuantizeLinear")
class QuantizeLinear(Record[T]):
    """``clamp(round(x / scale) + zero_point, 0, 255)`` as bytes; NaN becomes the zero point.

    The input is multiplied by the inverse of the scale, in float32, and rounded to nearest even.
    Source: ONNX's QuantizeLinear.

    Raises
    ------
    OperatorError
        If the scale is no number of the file from 1e-30 to 1e30, or the zero point no byte.
    ShapeError
        If the input is not float32.
    """

    batch = "elementwise"
    input: T = Tensor()
    scale: float = Float()
    zero_point: int = Int()
    layout = Layout.LIKE

    def verify(self: QuantizeLinear[TensorSpec], op: Operator) -> None:
        verify_quantization(op)

    def infer(self: QuantizeLinear[TensorSpec]) -> TensorSpec:
        check_quantization(self.scale, self.zero_point)
        require_float32(self.input)
        return TensorSpec(self.input.shape, np.uint8)

    def bind(self: QuantizeLinear[TensorView], b: Binder) -> None:
        layout: OutputLayout = self.input
        if self.input.rank == 4 and b.feeds_only("nn.quantized.Conv2d"):
            layout = Layout.CHANNELS_LAST
        b.step(QuantizeStep(self.input, b.output(layout=layout), self.scale, self.zero_point))


@record("kuiper.DequantizeLinear")
class DequantizeLinear(Record[T]):
    """``(x - zero_point) * scale`` of bytes, as float32.

    Source: ONNX's DequantizeLinear.

    Raises
    ------
    OperatorError
        If the scale is no number of the file from 1e-30 to 1e30, or the zero point no byte.
    ShapeError
        If the input is not uint8.
    """

    batch = "elementwise"
    input: T = Tensor()
    scale: float = Float()
    zero_point: int = Int()
    layout = Layout.LIKE

    def verify(self: DequantizeLinear[TensorSpec], op: Operator) -> None:
        verify_quantization(op)

    def infer(self: DequantizeLinear[TensorSpec]) -> TensorSpec:
        check_quantization(self.scale, self.zero_point)
        if self.input.dtype != np.uint8:
            raise ShapeError(f"the input is {self.input.dtype}, expected uint8")
        return TensorSpec(self.input.shape)

    def bind(self: DequantizeLinear[TensorView], b: Binder) -> None:
        y = b.output(layout=self.input)
        b.step(DequantizeStep(self.input, y, self.scale, self.zero_point))
