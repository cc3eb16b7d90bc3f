"""Expressions of tensors of bytes, which passes make of float arithmetic between bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.expression import ElementwiseProgram, Node, Ref, fold, parse
from kuiper.expression.lowering import Instruction, ProgramValue
from kuiper.ir.view import Buffer, BufferKind, Layout, TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.quantization import check_quantization
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.schema import AnyArgument, Ints, Known, Numbers, Tensors
from kuiper.ops.math.elementwise import output_like, sources_of, static_or_spec

__all__ = ["QuantizedExpression"]

BYTES = 256  # of a table, one for each byte


@record("kuiper.QuantizedExpression")
class QuantizedExpression(Record[T]):
    """Arithmetic on bytes and floats: ``add(@0,silu(@1))``.

    `scales` and `zero_points` have one number per operand, then one for the result; a scale of 0
    stands for float32.  A byte b is ``(b - zero_point) * scale``, and a result in bytes is
    ``clamp(round(y / scale) + zero_point, 0, 255)``.  The pass `fuse_quantized_elementwise` makes
    it of DequantizeLinear, an expression and QuantizeLinear; it has their bits.

    Raises
    ------
    ShapeError
        If a dtype contradicts the scales, a scale or zero point is out of range, or the expression
        is no arithmetic of float32.
    """

    batch = NoBatchRule("passes make it after the batch was unfrozen")
    internal = True
    operands: list[T] = Tensors()
    expr: Any = AnyArgument()
    scales: tuple[float, ...] = Numbers()
    zero_points: tuple[int, ...] = Ints()
    layout = Layout.LIKE

    def infer(self: QuantizedExpression[TensorSpec]) -> TensorSpec:
        counts = len(self.scales), len(self.zero_points)
        if set(counts) != {len(self.operands) + 1}:
            raise ShapeError(
                f"there are {counts[0]} scales and {counts[1]} zero points, expected "
                f"{len(self.operands) + 1} of each: one per operand, and that of the result"
            )
        for scale, zero in zip(self.scales, self.zero_points, strict=True):
            if scale != 0:
                check_quantization(scale, zero)
        for number, (operand, scale) in enumerate(zip(self.operands, self.scales, strict=False)):
            expected = np.uint8 if scale != 0 else np.float32
            if operand.dtype != expected:
                raise ShapeError(
                    f"operand {number} is {operand.dtype}, expected {np.dtype(expected)}, since "
                    f"its scale is {scale}"
                )
        return TensorSpec(self._program().shape, np.uint8 if self.scales[-1] != 0 else np.float32)

    def bind(self: QuantizedExpression[TensorView], b: Binder) -> None:
        # Imported here: only networks of bytes need them.
        from kuiper._kernels.elementwise.elementwise import ElementwiseStep
        from kuiper._kernels.elementwise.quantized import LookupStep

        program = self._program()
        inputs = sources_of(b, program.sources, self.operands)
        if len(program.shape) == 4 and b.feeds_only("nn.quantized.Conv2d"):
            y = b.output(layout=Layout.CHANNELS_LAST)
        else:
            y = output_like(b, inputs, program.shape)
        scales = [self._scale(s) if isinstance(s, int) else None for s in program.sources]
        scales.append(self._scale(-1))
        if len(scales) == 2 and None not in scales and y.size > BYTES:
            b.step(LookupStep(inputs[0], y, _table(program, scales)))
        else:
            b.step(ElementwiseStep(program, [v.expand(y.shape) for v in inputs], y, scales))

    def _program(self: QuantizedExpression[Known]) -> ElementwiseProgram:
        tree = (
            self.expr
            if isinstance(self.expr, Node)
            else parse(self.expr, extended=True, custom=False)
        )
        if isinstance(tree, Ref):  # other bytes for the same values
            copy = Instruction("copy", (ProgramValue("input", 0),))
            return ElementwiseProgram((tree.index,), (copy,), self.operands[tree.index].shape, {})
        floats = [
            TensorSpec(operand.shape) if scale != 0 else static_or_spec(operand)
            for operand, scale in zip(self.operands, self.scales, strict=False)
        ]
        program = fold(tree, floats)
        if not isinstance(program, ElementwiseProgram):
            raise ShapeError(f"'expr' is {str(tree)!r}, expected arithmetic of float32 tensors")
        return program

    def _scale(self, number: int) -> tuple[float, int] | None:
        """Return the scale and the zero point of an operand or of the result, None for float32."""
        scale = self.scales[number]
        return (scale, self.zero_points[number]) if scale != 0 else None


def _table(program: ElementwiseProgram, scales: list[Any]) -> np.ndarray:
    """Return the result for each byte, computed by the kernel of larger tensors."""
    from kuiper._kernels.elementwise.elementwise import ElementwiseStep
    from kuiper._runtime.step import run_step

    shape = (BYTES,)
    small = ElementwiseProgram((0,), program.instructions, shape, {})
    x, y = (
        TensorView(Buffer(slot, BYTES, BufferKind.INPUT), shape, (1,), dtype=np.uint8)
        for slot in range(2)
    )
    table = np.empty(shape, np.uint8)
    run_step(ElementwiseStep(small, [x], y, scales), [np.arange(BYTES).astype(np.uint8), table], 1)
    return table
