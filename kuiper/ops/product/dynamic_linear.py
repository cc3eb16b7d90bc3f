"""Linear layers with weights of one byte and inputs that are quantized as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._kernels.linear.quantized import QuantizedLinearStep, QuantizeRowsStep
from kuiper._kernels.micro.packed import QuantizedPanels
from kuiper.errors import OperatorError, ShapeError
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.epilogue import make_epilogue, residual_view
from kuiper.ops.core.record import T, record
from kuiper.ops.core.schema import Tensor
from kuiper.ops.product.linear import Linear, as_matrix

if TYPE_CHECKING:
    from kuiper.ir import Operator
    from kuiper.ops.core.epilogue import Epilogue

__all__ = [
    "MAX_TERMS", "DynamicLinear", "add_product", "check_bytes", "packed_bytes", "verify_scales"
]  # fmt: skip

BYTE_ZERO = 128  # of unsigned bytes that stand for signed numbers

# More products of two bytes of up to 127 and 128 may overflow a sum of 32 bits.
MAX_TERMS = (2**31 - 1) // (127 * 128)


@record("nn.quantized.dynamic.Linear")
class DynamicLinear(Linear[T]):
    """``y = x @ (weight * weight_scale[:, None]).T + bias`` over the last axis, in integers.

    Each row of the input is divided by 1/127 of its largest magnitude and rounded to the nearest
    integer; sums of products are exact.  The results have the same bits in all instruction sets.  A
    row with an infinity or NaN becomes NaN.

    Input (..., in_features); weight (out_features, in_features), int8; weight_scale
    (out_features,), float32.
    Source: torch.ao.nn.quantized.dynamic.Linear, with a scale per row of the input and per column
    of the weight.

    Raises
    ------
    OperatorError
        If a scale is not positive and finite.
    ShapeError
        If the arguments, the bias or the input contradict the weight, a dtype is another one, or
        there are more than 132,104 input features.
    """

    weight_scale: T = Tensor(rank=1)
    bfloat16 = ""

    def verify(self: DynamicLinear[TensorSpec], op: Operator) -> None:
        verify_scales(op, "weight_scale")

    def infer(self: DynamicLinear[TensorSpec]) -> TensorSpec:
        check_bytes(self, "weight", "weight_scale")
        if self.bias is not None and not self.bias.is_constant:
            raise ShapeError("'bias' is computed, expected a constant")
        return Linear.infer(self)

    def bind(self: DynamicLinear[TensorView], b: Binder) -> None:
        x = as_matrix(b, self.input)
        y = b.output(layout=Layout.CONTIGUOUS)
        rows = y.reshape((x.shape[0], self.weight.shape[0]))
        assert rows is not None  # an output has one row stride
        residual = residual_view(b)
        if residual is not None:
            residual = as_matrix(b, residual)
        matrix = QuantizedPanels(*self.weight.shape)
        bias = None if self.bias is None else np.asarray(self.bias.constant, np.float32)
        panels = packed_bytes(b, matrix, self.weight, self.weight_scale, bias, slice(None))
        add_product(b, x, matrix, panels, rows, make_epilogue(b, residual))


def packed_bytes(
    b: Binder, matrix: QuantizedPanels, weight: TensorView, scale: TensorView,
    bias: np.ndarray | None, rows: slice,
) -> TensorView:  # fmt: skip
    """Return the packed `rows` of a constant weight of bytes, with all biases of these rows."""

    def fill(memory: np.ndarray) -> None:
        values, scales = np.asarray(weight.constant)[rows], np.asarray(scale.constant)[rows]
        matrix.fill(memory, values, scales, BYTE_ZERO, bias)

    return b.packed([matrix], fill)


def add_product(
    b: Binder, x: TensorView, matrix: QuantizedPanels, panels: TensorView, y: TensorView,
    epilogue: Epilogue | None,
) -> None:  # fmt: skip
    """Add the steps that quantize rows of `x` and multiply them by packed bytes."""
    x_bytes = b.temporary((x.shape[0], matrix.depth), np.uint8)
    factors = b.temporary((x.shape[0],))
    b.step(QuantizeRowsStep(x, x_bytes, factors))
    b.step(
        QuantizedLinearStep(x_bytes, factors, panels, matrix.panel_bytes, y, x.shape[1], epilogue)
    )


def check_bytes(a: Any, weight: str, scale: str) -> None:
    """Check a weight of bytes and its scales, two arguments of an operator.

    Raises
    ------
    ShapeError
        If one has a wrong dtype or shape, is computed, or its rows are too long.
    """
    for name, dtype in ((weight, np.int8), (scale, np.float32)):
        given = getattr(a, name)
        if given.dtype != dtype:
            raise ShapeError(f"'{name}' is {given.dtype}, expected {np.dtype(dtype)}")
        if not given.is_constant:
            raise ShapeError(f"'{name}' is computed, expected a constant")
    (rows, terms), scales = getattr(a, weight).shape, getattr(a, scale).shape
    if scales != (rows,):
        raise ShapeError(f"'{scale}' has shape {scales}, expected ({rows},)")
    if terms > MAX_TERMS:
        raise ShapeError(f"'{weight}' has {terms} columns, expected up to {MAX_TERMS}")


def verify_scales(op: Operator, *names: str) -> None:
    """Check the values of scales that the file has as float32; shapes are checked with the types.

    Raises
    ------
    OperatorError
        If one is not positive and finite.
    """
    for name in names:
        if name not in op.attributes or op.attributes[name].dtype != "f32":
            continue
        scales = op.attributes[name].numpy()
        wrong = np.flatnonzero(~(np.isfinite(scales) & (scales > 0)))
        if len(wrong):
            raise OperatorError(
                f"{op.label}: '{name}' of column {wrong[0]} is {float(scales.flat[wrong[0]])}, "
                "expected a positive finite number"
            )
