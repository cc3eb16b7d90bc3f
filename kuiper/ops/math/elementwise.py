"""Elementwise arithmetic: `pnnx.Expression`, and the records that are an expression."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper.errors import ExpressionError, OperatorError, ShapeError
from kuiper.expression import (
    Call,
    CustomCall,
    Deferred,
    ElementwiseProgram,
    List,
    Literal,
    Node,
    Ref,
    evaluation,
    fold,
    parse,
)
from kuiper.expression.functions import EXTENDED
from kuiper.expression.promotion import is_number
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import BufferKind, Layout, TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import FOLLOWS, Record, T, record
from kuiper.ops.core.schema import Argument, StaticValue, Tensors, field

if TYPE_CHECKING:
    from kuiper.ir import Operator
    from kuiper.ops.core.batch import TracedCall

__all__ = [
    "Expression",
    "Formula",
    "bind_tree",
    "computed",
    "output_like",
    "sources_of",
    "static_or_spec",
    "write_tree",
]


class _ExpressionText(Argument):
    """The text of an expression, or the tree that a pass has made."""

    expected = "an expression"

    def convert(self, value: Any) -> Any:
        if isinstance(value, str | Node):
            return value
        if value is None or isinstance(value, bool | int | float):
            return str(value)  # a text of one literal
        raise ValueError


# Recursive functions visit nested lists; this limit is far below Python's.
MAX_NESTING = 100


def _tree(a: Expression[Any]) -> Node:
    if isinstance(a.expr, Node):
        return a.expr
    depths = accumulate((c == "[") - (c == "]") for c in a.expr)
    if a.expr.count("[") > MAX_NESTING and max(depths) > MAX_NESTING:
        raise ExpressionError(f"lists are nested more than {MAX_NESTING} deep")
    return parse(a.expr, len(a.operands))


def _check_words(tree: Node, op: Operator) -> None:
    """Refuse a word where a tensor or a number is needed.

    An expression without operands may be a word, which its consumer takes: the mode of a padding,
    the key of a dict.
    """
    for node in tree.preorder():
        if isinstance(node, Literal) and isinstance(node.value, str):
            readers = {user.type for output in op.outputs for user in output.consumers}
            if op.inputs or readers & {"pnnx.Output", "pnnx.Expression"}:
                raise node.error(f"{node.value!r} is no operator, reference or number")


_UNKNOWN = object()


def _check_constants(tree: Node) -> None:
    """Refuse a function of constants without a value, and one of a tensor and no number."""

    def visit(node: Node, values: list[Any]) -> Any:
        if isinstance(node, Literal):
            return node.value
        if not isinstance(node, Call):
            return values if isinstance(node, List) else _UNKNOWN
        if node.name not in EXTENDED:
            return _UNKNOWN
        if not any(value is _UNKNOWN for value in values):
            return evaluation.call(node, values)
        for value in values:
            if (value is None or isinstance(value, list)) and node.name != "size":
                found = evaluation.describe(value)
                raise node.error(f"{node.name} takes numbers and tensors, got {found}")
        return _UNKNOWN

    if any(isinstance(node, Call) for node in tree.preorder()):
        tree.transform(visit)


def static_or_spec(value: Any) -> Any:
    """Return an operand for `fold`: static values and scalars bare, other tensors unchanged."""
    if isinstance(value, StaticValue):
        return value.value
    if is_number(value):
        return value
    if value.is_constant and value.size == 1 and value.rank == 0:
        return np.asarray(value.constant, value.dtype)  # half precision is widened
    return value


def _fold(a: Expression[Any]) -> Any:
    try:
        return fold(_tree(a), [static_or_spec(v) for v in a.operands])
    except ExpressionError as error:
        raise ShapeError(str(error)) from error.__cause__


@record("pnnx.Expression")
class Expression(Record[T]):
    """Arithmetic on tensors and sizes: ``add(@0,mul(@1,2))``.

    Values that depend on shapes alone are computed while planning.  Arithmetic of float32, and
    most of other types, is one pass over memory; numpy evaluates the rest.
    """

    operands: list[T] = Tensors()
    expr: Any = field(_ExpressionText)()
    layout = Layout.LIKE
    bfloat16 = FOLLOWS

    def verify(self, op: Operator) -> None:
        try:
            tree = _tree(self)
            _check_words(tree, op)
            _check_constants(tree)
        except ExpressionError as error:
            raise OperatorError(f"{op.label}: {error}") from None

    def infer(self: Expression[TensorSpec]) -> Any:
        result = _spec(_fold(self))
        return result if isinstance(result, TensorSpec) else StaticValue(result)

    def bind(self: Expression[TensorView], b: Binder) -> None:
        if any(map(_in_bfloat16, self.operands)):
            known = [_in_float32(operand) for operand in self.operands]
            result = _fold(Expression(expr=self.expr, operands=known))
            for operand, other in zip(self.operands, known, strict=True):
                if result is other:
                    result = operand
        else:
            result = _fold(self)
        if isinstance(result, ElementwiseProgram):
            _bind_program(b, result, self.operands)
        elif isinstance(result, Deferred):
            _bind_deferred(b, result, self.operands)
        elif isinstance(result, TensorView):
            b.alias(result)
        elif isinstance(result, np.ndarray):
            b.alias(b.constant(result))
        else:  # static: a pass has split lists that hold tensors
            b.static(_spec(result))

    @staticmethod
    def batch(c: TracedCall) -> Any:
        tree, operands = _tree(c.a), c.a.operands
        sized: set[int] = set()
        for node in tree.preorder():
            if isinstance(node, CustomCall):
                c.refuse()  # it may mix the members
            if isinstance(node, Call) and node.name == "size":
                tensor = node.children[0]
                if not isinstance(tensor, Ref):
                    c.refuse()
                spec = operands[tensor.index]
                batch = c.batch_of(spec)
                if batch is not None:
                    # The result must not depend on the batch size.
                    dim = getattr(node.children[1], "value", None) if node.children[1:] else None
                    c.require(isinstance(dim, int) and dim % spec.rank != batch.axis)
                sized.add(id(tensor))
        read = {n.index for n in tree.preorder() if isinstance(n, Ref) and id(n) not in sized}
        specs = [operands[i] for i in sorted(read) if isinstance(operands[i], TensorSpec)]
        if not any(c.batch_of(spec) for spec in specs):
            return None
        if isinstance(c.outputs[0], TensorSpec):
            return c.broadcast(specs, c.outputs[0].rank)
        c.require(isinstance(tree, List))
        if not all(op.type == "Tensor.index" for op in c.op.outputs[0].consumers):
            c.require_leaving()
        return c.lost


def _spec(result: Any) -> Any:
    """Return the spec of a folded expression, or its static value."""
    if isinstance(result, ElementwiseProgram | Deferred):
        return TensorSpec(result.shape, result.dtype)
    if isinstance(result, np.ndarray):
        return TensorSpec(result.shape, result.dtype, result)
    if isinstance(result, list):
        return tuple(_spec(item) for item in result)
    return result


class Formula(Record[T]):
    """Base of the operators that are an expression of their arguments.

    A subclass has ``formula()``, which returns the expression's tree and its operands.
    """

    batch = "elementwise"
    layout = Layout.LIKE
    bfloat16 = FOLLOWS

    def formula(self) -> tuple[Node, list[Any]]:
        raise NotImplementedError

    def infer(self: Formula[TensorSpec]) -> Any:
        tree, operands = self.formula()
        return Expression[TensorSpec](expr=tree, operands=operands).infer()

    def bind(self: Formula[TensorView], b: Binder) -> None:
        if any(map(_in_bfloat16, vars(self).values())):
            known = {name: _in_float32(value) for name, value in vars(self).items()}
            views = {id(known[name]): value for name, value in vars(self).items()}
            tree, operands = type(self)(**known).formula()
            operands = [views.get(id(operand), operand) for operand in operands]
        else:
            tree, operands = self.formula()
        Expression[TensorView](expr=tree, operands=operands).bind(b)


def _in_bfloat16(value: Any) -> bool:
    return isinstance(value, TensorView) and value.dtype == BFLOAT16


def _in_float32(value: Any) -> Any:
    """Return the spec of a tensor that is stored in bfloat16; expressions compute in float32."""
    return TensorSpec(value.shape) if _in_bfloat16(value) else value


def bind_tree(b: Binder, tree: Node, operands: Sequence[TensorView]) -> None:
    """Bind the output of the current operator to an elementwise expression of float32 values."""
    _bind_program(b, fold(tree, list(map(_in_float32, operands))), operands)


def write_tree(b: Binder, tree: Node, operands: Sequence[TensorView], y: TensorView) -> None:
    """Add the step that writes an elementwise expression of float32 values to `y`.

    References in the tree number the operands, which broadcast to the shape of `y`.
    """
    program = fold(tree, list(map(_in_float32, operands)))
    _add_step(b, program, sources_of(b, program.sources, operands), y)


def computed(b: Binder, tree: Node, operands: Sequence[TensorView]) -> TensorView:
    """Return a temporary with the values of an elementwise expression of float32 values."""
    y = b.temporary(np.broadcast_shapes(*(v.shape for v in operands)))
    write_tree(b, tree, operands, y)
    return y


def sources_of(b: Binder, sources: Any, operands: Any) -> list[TensorView]:
    """Return the inputs of a program."""
    return [operands[s] if isinstance(s, int) else b.constant(s) for s in sources]


def _bind_program(b: Binder, program: ElementwiseProgram, operands: Any) -> None:
    inputs = sources_of(b, program.sources, operands)
    _add_step(b, program, inputs, output_like(b, inputs, program.shape))


def output_like(b: Binder, inputs: Sequence[TensorView], shape: tuple[int, ...]) -> TensorView:
    """Return the memory for the output of an elementwise operator."""
    whole = [v for v in inputs if v.shape == shape]
    # The result takes the layout of an operand of its shape, so channels-last survives.
    like = next((v for v in whole if not v.is_contiguous), whole[0] if whole else None)
    if like is None:
        images = [v for v in inputs if v.rank == 4 and v.is_channels_last and not v.is_contiguous]
        return b.output(
            layout=Layout.CHANNELS_LAST if images and len(shape) == 4 else Layout.CONTIGUOUS
        )
    return b.output(layout=like, reuse=_first_dying(whole, b.output_dtype()))


def _add_step(
    b: Binder, program: ElementwiseProgram, inputs: Sequence[TensorView], y: TensorView
) -> None:
    # Imported here: in many networks passes fuse every expression.
    from kuiper._kernels.elementwise.elementwise import ElementwiseStep

    b.step(ElementwiseStep(program, [v.expand(y.shape) for v in inputs], y))


def _first_dying(values: Sequence[TensorView], dtype: np.dtype) -> TensorView | None:
    """Return an operand whose memory the result may reuse, if the planner allows it."""
    arena = BufferKind.ARENA
    return next((v for v in values if v.buffer.kind == arena and v.dtype == dtype), None)


def _bind_deferred(b: Binder, result: Deferred, operands: Any) -> None:
    from kuiper.ops.core.typed import typed_program

    inputs = [
        b.stored(value, np.dtype(np.float32)) if value.dtype == BFLOAT16 else value
        for value in sources_of(b, result.sources, operands)
    ]
    program = typed_program(b, result.tree, inputs)
    if program is not None:
        program.finish()
        return

    label = b.operator.label

    def run(*arrays: Any) -> Any:
        from kuiper.expression import evaluate

        try:
            return np.asarray(evaluate(result.tree, arrays), result.dtype)
        except ExpressionError as error:
            raise OperatorError(f"{label}: {error}") from error.__cause__

    is_custom = any(isinstance(node, CustomCall) for node in result.tree.preorder())
    output = b.output()
    y = b.temporary(output.shape) if output.dtype == BFLOAT16 else output
    b.python(run, inputs, [y], quiet=not is_custom)
    if y is not output:
        b.copy(y, output)
