"""Activations: operators that are one elementwise function of one tensor.

Each is a row of :data:`ACTIVATIONS`.  The elementwise engine computes it, alone or within a larger
expression, unless the dense product that feeds it applies it in its epilogue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kuiper._support.struct import Struct
from kuiper.errors import ShapeError
from kuiper.expression import Call, Literal, Node, Ref
from kuiper.expression.functions import EXTENDED
from kuiper.expression.promotion import is_number
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.axes import require_float32
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import FOLLOWS, Record, T, record, record_later
from kuiper.ops.core.schema import Argument, Float, Int, Known, Str, Tensor, schema
from kuiper.ops.math.elementwise import Expression, Formula, bind_tree

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["ACTIVATIONS", "PReLU", "activation_tree"]


class _Row(Struct):
    """One activation.

    Attributes
    ----------
    types : str
        Operator types, separated by blanks.
    function : str
        Its name in :mod:`kuiper.expression.functions`.
    formula : str
        For the documentation.
    parameters : tuple of Argument
        In the order of the function's parameters.
    takes_integers : bool
        Whether PyTorch defines it for integer tensors.
    """

    types: str
    function: str
    formula: str
    parameters: tuple[Argument, ...] = ()
    takes_integers: bool = False


ACTIVATIONS = (
    _Row("nn.ReLU F.relu torch.relu", "relu", "max(x, 0)", takes_integers=True),
    _Row("nn.ReLU6 F.relu6", "relu6", "min(max(x, 0), 6)", takes_integers=True),
    _Row(
        "nn.LeakyReLU F.leaky_relu", "leaky_relu", "x if x >= 0 else negative_slope * x",
        schema(negative_slope=Float(0.01)),
    ),
    _Row("nn.Sigmoid F.sigmoid torch.sigmoid", "sigmoid", "1 / (1 + exp(-x))", takes_integers=True),
    _Row("nn.LogSigmoid F.logsigmoid", "logsigmoid", "-log(1 + exp(-x))"),
    _Row("nn.Hardsigmoid F.hardsigmoid", "hardsigmoid", "min(max(x + 3, 0), 6) / 6"),
    _Row("nn.SiLU F.silu", "silu", "x / (1 + exp(-x))"),
    _Row("nn.Hardswish F.hardswish", "hardswish", "x * min(max(x + 3, 0), 6) / 6"),
    _Row("nn.Mish F.mish", "mish", "x * tanh(log(1 + exp(x)))"),
    _Row("nn.Tanh F.tanh torch.tanh", "tanh", "tanh(x)", takes_integers=True),
    _Row("nn.Softsign F.softsign", "softsign", "x / (1 + |x|)", takes_integers=True),
    _Row("nn.Tanhshrink F.tanhshrink", "tanhshrink", "x - tanh(x)", takes_integers=True),
    _Row(
        "nn.Softplus F.softplus", "softplus",
        "log(1 + exp(beta * x)) / beta, x itself where beta * x > threshold",
        schema(beta=Float(1.0), threshold=Float(20.0)),
    ),
    _Row(
        "nn.ELU F.elu", "elu", "x if x > 0 else alpha * (exp(x) - 1)", schema(alpha=Float(1.0))
    ),
    _Row(
        "nn.CELU F.celu", "celu", "max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)",
        schema(alpha=Float(1.0)),
    ),
    _Row("nn.SELU F.selu", "selu", "1.0507 * (x if x > 0 else 1.67326 * (exp(x) - 1))"),
    _Row(
        "nn.Hardtanh F.hardtanh", "clamp", "min(max(x, min_val), max_val)",
        schema(min_val=Float(-1.0), max_val=Float(1.0)), takes_integers=True,
    ),
    _Row(
        "nn.Hardshrink F.hardshrink", "hardshrink", "x if |x| > lambd else 0",
        schema(lambd=Float(0.5)),
    ),
    _Row(
        "nn.Softshrink F.softshrink", "softshrink", "x moved by lambd towards 0",
        schema(lambd=Float(0.5)),
    ),
    _Row(
        "nn.Threshold F.threshold", "threshold", "x if x > threshold else value",
        schema(threshold=Float(), value=Float()), takes_integers=True,
    ),
)  # fmt: skip


class Activation(Record[T]):
    """Base of the records made from :data:`ACTIVATIONS`."""

    batch = "like_input"
    layout = Layout.LIKE
    bfloat16 = FOLLOWS
    input: T
    function: ClassVar[str]
    parameters: ClassVar[tuple[Argument, ...]] = ()
    takes_integers: ClassVar[bool] = False

    def activation(self: Activation[Any]) -> tuple[str, tuple[float, ...]]:
        """Return the elementwise function and its parameters."""
        return self.function, tuple(getattr(self, p.name) for p in self.parameters)

    def infer(self: Activation[TensorSpec]) -> Any:
        if self.input.dtype == np.float32:
            return TensorSpec(self.input.shape, self.input.dtype)
        return self._expression().infer()

    def bind(self: Activation[TensorView], b: Binder) -> None:
        if self.input.dtype in (np.float32, BFLOAT16):
            bind_tree(b, activation_tree(*self.activation()), [self.input])
        else:
            self._expression().bind(b)

    def _expression(self: Activation[Any]) -> Expression[Any]:
        """Return the expression that computes the function of an input that is not float32."""
        name, parameters = self.activation()
        dtype = self.input.dtype
        tree = activation_tree(name, parameters)
        if dtype.kind != "f" and (not self.takes_integers or dtype.kind == "c"):
            raise ShapeError(f"the input is {dtype}, expected floats")
        if dtype.kind != "f" and "i" in EXTENDED[name].kinds:
            if dtype.kind == "b":
                raise ShapeError("the input is bool, expected numbers")
            # PyTorch truncates the bounds before it compares integers with them.
            bounds = {"relu": (0, None), "relu6": (0, 6)}.get(name, parameters)
            if name == "threshold":
                tree = activation_tree(name, tuple(map(int, parameters)))
            else:
                tree = Ref(0)
                for word, bound in zip(("max", "min"), bounds, strict=True):
                    if bound is not None:
                        tree = Call(word, [tree, Literal(int(bound))])
        return Expression(expr=tree, operands=[self.input])


def activation_tree(function: str, parameters: tuple[float, ...], x: Node | None = None) -> Node:
    """Return the expression ``function(x, *parameters)``; x is ``@0`` by default."""
    return Call(function, [Ref(0) if x is None else x, *map(Literal, parameters)])


def _register(row: _Row) -> None:
    types = row.types.split()
    record_later(
        types,
        Activation,
        types[0].partition(".")[2],
        __doc__=f"``{row.formula}``, elementwise.\n\nSource: torch.{types[0]}.",
        function=row.function,
        parameters=row.parameters,
        takes_integers=row.takes_integers,
        arguments=(*_INPUT, *row.parameters),
    )


_INPUT = schema(input=Tensor())
for _row in ACTIVATIONS:
    _register(_row)


@record("nn.GELU", "F.gelu")
class GELU(Activation[T]):
    """``x * Phi(x)``, with the normal distribution's Phi or its tanh approximation.

    Source: torch.nn.GELU.
    """

    input: T = Tensor()
    approximate: str = Str(("none", "tanh"), "none")

    def activation(self: GELU[Known]) -> Any:
        return ("gelu_tanh" if self.approximate == "tanh" else "gelu"), ()


@record("nn.RReLU", "F.rrelu")
class RReLU(Activation[T]):
    """``x if x >= 0 else x * (lower + upper) / 2``: the randomised leaky ReLU at inference.

    Source: torch.nn.RReLU.
    """

    input: T = Tensor()
    lower: float = Float(1 / 8)
    upper: float = Float(1 / 3)

    def activation(self: RReLU[Known]) -> Any:
        return "leaky_relu", ((self.lower + self.upper) / 2,)


@record("nn.PReLU", "F.prelu")
class PReLU(Record[T]):
    """``x if x >= 0 else weight * x``, with one weight, or one per channel (axis 1).

    Source: torch.nn.PReLU.

    Raises
    ------
    ShapeError
        If an operand is not float32, or the weight has neither one element nor one per channel.
    """

    # pnnx writes a constant weight of one element as a number.
    input: T = Tensor()
    weight: Any = Tensor(rank=(0, 1), number=True)
    num_parameters: int | None = Int(None)
    layout = Layout.LIKE
    bfloat16 = FOLLOWS

    def infer(self: PReLU[TensorSpec]) -> Any:
        channels = self.input.shape[1] if self.input.rank > 1 else 1
        if not is_number(self.weight) and self.weight.size not in (1, channels):
            raise ShapeError(
                f"'weight' has shape {self.weight.shape}, expected (1,) or ({channels},)"
            )
        if not is_number(self.weight) and self.weight.dtype != np.float32:
            raise ShapeError(f"'weight' is {self.weight.dtype}, expected float32")
        require_float32(self.input)
        return TensorSpec(self.input.shape)

    def bind(self: PReLU[TensorView], b: Binder) -> None:
        weight = self.weight
        if is_number(weight):
            bind_tree(b, Call("prelu", [Ref(0), Literal(float(weight))]), [self.input])
            return
        if weight.size > 1 and self.input.rank > 2:
            spatial = (1,) * (self.input.rank - 2)
            weight = b.contiguous(weight).reshape((weight.size, *spatial))
        bind_tree(b, Call("prelu", [Ref(0), Ref(1)]), [self.input, weight])

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        batch = c.first_batch(c.a.input)
        c.require_shared(c.a.weight)
        c.require(c.a.weight.size == 1 or batch.axis != 1)
        return batch


@record("torch.clamp", "torch.clip", "Tensor.clamp")
class Clamp(Formula[T]):
    """``min(max(x, min), max)``; a bound is a number or a tensor, and either may be missing.

    Source: torch.clamp.

    Raises
    ------
    ShapeError
        If a bound is complex.
    """

    # The input is a number where a model computes the amounts of a padding from an image size.
    input: Any = Tensor(number=True)
    min: Any = Tensor(optional=True, number=True)
    max: Any = Tensor(optional=True, number=True)

    def activation(self: Clamp[Known]) -> Any:
        low = float("-inf") if self.min is None else float(self.min)
        high = float("inf") if self.max is None else float(self.max)
        return "clamp", (low, high)

    def formula(self: Clamp[TensorSpec]) -> Any:
        bounds = [bound for bound in (self.min, self.max) if bound is not None]
        if any(isinstance(bound, complex) for bound in bounds):
            raise ShapeError("a bound is a complex number, which is neither less nor greater")
        single = not is_number(self.input) and self.input.dtype == np.float32
        if single and all(map(is_number, bounds)):
            return activation_tree(*Clamp.activation(self)), [self.input]
        tree: Node = Ref(0)
        operands = [self.input]
        for word, bound in (("max", self.min), ("min", self.max)):
            if is_number(bound):
                tree = Call(word, [tree, Literal(bound)])
            elif bound is not None:
                tree = Call(word, [tree, Ref(len(operands))])
                operands.append(bound)
        return tree, operands


class _Bound(Clamp[T]):
    """One bound of a clamp, as an operand."""

    # A fused activation has numbers as parameters, no operand.
    activation = None  # type: ignore[assignment]  # Clamp declares a method


@record("aten::clamp_min")
class ClampMin(_Bound[T]):
    """``max(x, min)``; the bound is a number or a tensor.

    Source: torch.clamp_min.
    """

    input: T = Tensor()
    min: Any = Tensor(number=True)
    max = None


@record("aten::clamp_max")
class ClampMax(_Bound[T]):
    """``min(x, max)``; the bound is a number or a tensor.

    Source: torch.clamp_max.
    """

    input: T = Tensor()
    max: Any = Tensor(number=True)
    min = None
