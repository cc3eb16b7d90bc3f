"""Multi-head attention whose linear layers have weights of one byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kuiper._kernels.micro.packed import QuantizedPanels
from kuiper.errors import ShapeError
from kuiper.ops.core.record import T, record
from kuiper.ops.core.schema import Tensor
from kuiper.ops.nn.attention import Layer, MultiheadAttention, Product
from kuiper.ops.product.dynamic_linear import (
    add_product,
    check_bytes,
    packed_bytes,
    verify_scales,
)

if TYPE_CHECKING:
    from kuiper.ir import Operator
    from kuiper.ir.view import TensorSpec, TensorView
    from kuiper.ops.core.binder import Binder
    from kuiper.ops.core.epilogue import Epilogue

__all__ = ["DynamicMultiheadAttention"]

SCALES = {"in_proj_weight": "in_proj_scale", "out_proj_weight": "out_proj_scale"}


@record("nn.quantized.dynamic.MultiheadAttention")
class DynamicMultiheadAttention(MultiheadAttention[T]):
    """``nn.MultiheadAttention`` whose linear layers are ``nn.quantized.dynamic.Linear``.

    The weights of one product are int8 with a scale per row; scores, softmax and the sum of values
    are float32.  Query, key and value have the same number of features.
    Source: torch.nn.MultiheadAttention, torch.ao.nn.quantized.dynamic.Linear.

    Raises
    ------
    OperatorError
        If a scale is not positive and finite.
    ShapeError
        As nn.MultiheadAttention, or if a weight is not int8.
    """

    in_proj_scale: T = Tensor(rank=1)
    out_proj_scale: T = Tensor(rank=1)
    bfloat16 = ""

    def verify(self: DynamicMultiheadAttention[TensorSpec], op: Operator) -> None:
        verify_scales(op, *SCALES.values())

    def infer(self: DynamicMultiheadAttention[TensorSpec]) -> Any:
        if self.in_proj_weight is None:
            raise ShapeError("'in_proj_weight' is missing")
        for weight, scale in SCALES.items():
            check_bytes(self, weight, scale)
        return MultiheadAttention.infer(self)

    def product(self: DynamicMultiheadAttention[TensorView], b: Binder, layer: Layer) -> Product:
        weight, scale = getattr(self, layer.weight), getattr(self, SCALES[layer.weight])
        columns = len(range(*layer.rows.indices(weight.shape[0])))
        matrix = QuantizedPanels(columns, weight.shape[1], layer.key)
        panels = packed_bytes(b, matrix, weight, scale, layer.shift(), layer.rows)

        def add(x: TensorView, y: TensorView, epilogue: Epilogue | None = None) -> None:
            add_product(b, x, matrix, panels, y, epilogue)

        return add
