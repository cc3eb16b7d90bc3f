"""Operators on single elements: arithmetic, comparisons, activations, casts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kuiper.onnx.bounds import extent_of, is_true
from kuiper.onnx.builder import Builder, torch_name
from kuiper.onnx.registry import op
from kuiper.onnx.tensors import element_dtype
from kuiper.onnx.values import Known, Ref, Size

__all__: list[str] = []

FUNCTIONS = {
    "Abs": "abs", "Neg": "neg", "Sign": "sign", "Floor": "floor", "Ceil": "ceil",
    "Round": "round", "Sqrt": "sqrt", "Reciprocal": "reciprocal", "Exp": "exp", "Log": "log",
    "Erf": "erf", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin", "Acos": "acos",
    "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh", "Asinh": "asinh", "Acosh": "acosh",
    "Atanh": "atanh",
}  # fmt: skip
ACTIVATIONS = {
    "Relu": "F.relu", "Sigmoid": "F.sigmoid", "Tanh": "F.tanh", "Softplus": "F.softplus",
    "Softsign": "F.softsign", "HardSwish": "F.hardswish", "Mish": "F.mish",
}  # fmt: skip
COMPARISONS = {
    "Equal": "torch.eq", "Less": "torch.lt", "LessOrEqual": "torch.le", "Greater": "torch.gt",
    "GreaterOrEqual": "torch.ge", "And": "torch.logical_and", "Or": "torch.logical_or",
    "Xor": "torch.logical_xor", "BitwiseAnd": "torch.bitwise_and",
    "BitwiseOr": "torch.bitwise_or", "BitwiseXor": "torch.bitwise_xor",
}  # fmt: skip


def _function(type_: str, name: str) -> None:
    @op(type_)
    def function(b: Builder, x: Any, *, consumed_inputs: Any = None) -> Any:
        if x.dtype.kind in "iu" and name in ("floor", "ceil", "round"):
            return x
        return b.call(name, b.ref(x))


def _activation(type_: str, name: str) -> None:
    @op(type_)
    def activation(b: Builder, x: Any, *, consumed_inputs: Any = None) -> Any:
        return b.emit(name, x)


def _comparison(type_: str, name: str) -> None:
    @op(type_)
    def comparison(b: Builder, x: Any, y: Any, *, axis: int = 0, broadcast: int = 0) -> Any:
        y = _aligned(b, x, y, axis, broadcast)
        found = _only(b, x, y) or _only(b, y, x) if name == "torch.logical_and" else None
        return found or b.emit(name, x, y)


def _only(b: Builder, x: Any, y: Any) -> Any:
    """Return what And is if `x` holds everywhere: `y`, in the common shape; None if it may not."""
    if not isinstance(y, Ref):
        return None
    if isinstance(x, Known):
        return y if x.size == 1 and x.rank <= y.rank and not x.is_open and x.array.all() else None
    if x.rank != y.rank or not is_true(x.operand):
        return None
    shape = []
    for n, m in zip(b.extents(x), b.extents(y), strict=True):
        if isinstance(n, int) and n == 1:
            shape.append(m)
        elif isinstance(m, int) and m == 1:
            shape.append(extent_of(x.operand, n))
        elif n._same(m) if isinstance(n, Size) else not isinstance(m, Size) and n == m:
            shape.append(m)
        else:
            return None
    return b.emit("Tensor.expand", y, sizes=shape)


for _type, _name in FUNCTIONS.items():
    _function(_type, _name)
for _type, _name in ACTIVATIONS.items():
    _activation(_type, _name)
for _type, _name in COMPARISONS.items():
    _comparison(_type, _name)


def _aligned(b: Builder, x: Any, y: Any, axis: int, broadcast: int) -> Any:
    """Return the second operand of an operator before opset 7, aligned at an axis."""
    if not broadcast or b.opset >= 7 or (axis == 0 and y.rank == x.rank):
        return y
    missing = x.rank - (b.axis(axis, x.rank) + y.rank)
    return y if missing <= 0 else b.emit("Tensor.reshape", y, shape=[*b.extents(y), *[1] * missing])


def _arithmetic(type_: str, name: str) -> None:
    @op(type_)
    def arithmetic(
        b: Builder, x: Any, y: Any, *, axis: int = 0, broadcast: int = 0,
        consumed_inputs: Any = None,
    ) -> Any:  # fmt: skip
        return b.call(name, x, _aligned(b, x, y, axis, broadcast))


for _type, _name in {"Add": "add", "Sub": "sub", "Mul": "mul"}.items():
    _arithmetic(_type, _name)


@op("Div")
def div(
    b: Builder, x: Any, y: Any, *, axis: int = 0, broadcast: int = 0, consumed_inputs: Any = None
) -> Any:
    y = _aligned(b, x, y, axis, broadcast)
    if x.dtype.kind == "f":
        return b.call("div", x, y)
    # Integers are divided towards zero.
    return b.formula("floor_divide(sub(@0,fmod(@0,@1)),@1)", b.ref(x), b.ref(y))


@op("Mod")
def mod(b: Builder, x: Any, y: Any, *, fmod: int = 0) -> Any:
    return b.call("fmod" if fmod else "remainder", x, y)


@op("Pow")
def power(b: Builder, x: Any, y: Any, *, axis: int = 0, broadcast: int = 0) -> Any:
    y = _aligned(b, x, y, axis, broadcast)
    if isinstance(y, Known) and y.size == 1 and not y.is_open and x.dtype.kind == "f":
        y = Known(y.array.astype(x.dtype))
        if y.array.item() == 2 and isinstance(x, Ref) and y.rank <= x.rank:
            return b.call("square", x)
    if x.dtype.kind == "f":
        return b.call("pow", x, b.cast(y, x.dtype) if isinstance(y, Ref) else _as(y, x.dtype))
    if y.dtype.kind != "f":
        return b.call("pow", x, b.cast(b.ref(y), x.dtype))
    return b.cast(b.call("pow", b.cast(b.ref(x), y.dtype), y), x.dtype)


def _as(value: Known, dtype: Any) -> Known:
    return value if value.dtype == dtype else Known(value.array.astype(dtype))


@op("Not")
def not_(b: Builder, x: Any) -> Any:
    return b.emit("torch.logical_not", x)


@op("BitwiseNot")
def bitwise_not(b: Builder, x: Any) -> Any:
    return b.emit("torch.bitwise_not", x)


@op("BitShift")
def bit_shift(b: Builder, x: Any, y: Any, *, direction: str) -> Any:
    side = "left" if direction == "LEFT" else "right"
    return b.emit(f"torch.bitwise_{side}_shift", x, y)


def _joined(b: Builder, name: str, values: Any) -> Any:
    result = b.ref(values[0])
    for value in values[1:]:
        result = b.call(name, result, value)
    return result


@op("Sum")
def sum_(b: Builder, *values: Any, consumed_inputs: Any = None) -> Any:
    return _joined(b, "add", values)


@op("Max")
def maximum(b: Builder, *values: Any, consumed_inputs: Any = None) -> Any:
    return _joined(b, "max", values)


@op("Min")
def minimum(b: Builder, *values: Any, consumed_inputs: Any = None) -> Any:
    return _joined(b, "min", values)


@op("Mean")
def mean(b: Builder, *values: Any, consumed_inputs: Any = None) -> Any:
    return b.call("div", _joined(b, "add", values), float(len(values)))


@op("Clip")
def clip_old(
    b: Builder, x: Any, *, min: float = -math.inf, max: float = math.inf,
    consumed_inputs: Any = None,
) -> Any:  # fmt: skip
    return _clamped(b, x, None if min < -3.4e38 else min, None if max > 3.4e38 else max)


@op("Clip", since=11)
def clip(b: Builder, x: Any, min: Any = None, max: Any = None) -> Any:
    return _clamped(b, x, _bound(min), _bound(max))


def _bound(value: Any) -> Any:
    if isinstance(value, Known) and not value.is_open and value.size == 1:
        return value.array.item()
    return value


def _clamped(b: Builder, x: Any, low: Any, high: Any) -> Any:
    if low is None and high is None:
        return x
    if x.dtype.kind in "iu" and not (isinstance(low, Ref) or isinstance(high, Ref)):
        result = b.ref(x)
        for name, bound in (("max", low), ("min", high)):
            if bound is not None:
                result = b.call(name, result, b.ref(Known(np.array(bound, x.dtype))))
        return result
    return b.emit("torch.clamp", x, min=low, max=high)


@op("LeakyRelu")
def leaky_relu(b: Builder, x: Any, *, alpha: float = 0.01, consumed_inputs: Any = None) -> Any:
    return b.emit("F.leaky_relu", x, negative_slope=alpha)


@op("Elu")
def elu(b: Builder, x: Any, *, alpha: float = 1.0, consumed_inputs: Any = None) -> Any:
    return b.emit("F.elu", x, alpha=alpha)


@op("Celu")
def celu(b: Builder, x: Any, *, alpha: float = 1.0) -> Any:
    return b.emit("F.celu", x, alpha=alpha)


SELU = (1.6732632423543772, 1.0507009873554805)


@op("Selu")
def selu(
    b: Builder, x: Any, *, alpha: float = 1.67326319217681884765625,
    gamma: float = 1.05070102214813232421875, consumed_inputs: Any = None,
) -> Any:  # fmt: skip
    if math.isclose(alpha, SELU[0], rel_tol=1e-5) and math.isclose(gamma, SELU[1], rel_tol=1e-5):
        return b.emit("F.selu", x)
    return b.call("mul", b.emit("F.elu", x, alpha=alpha), gamma)


@op("ThresholdedRelu")
def thresholded_relu(b: Builder, x: Any, *, alpha: float = 1.0) -> Any:
    return b.emit("F.threshold", x, threshold=alpha, value=0.0)


@op("HardSigmoid")
def hard_sigmoid(
    b: Builder, x: Any, *, alpha: float = 0.2, beta: float = 0.5, consumed_inputs: Any = None
) -> Any:
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return b.emit("F.hardsigmoid", x)
    line = b.formula(f"add(mul(@0,{alpha!r}),{beta!r})", b.ref(x))
    return b.emit("torch.clamp", line, min=0.0, max=1.0)


@op("Gelu")
@op("Gelu", domain="com.microsoft")
def gelu(b: Builder, x: Any, *, approximate: str = "none") -> Any:
    return b.emit("F.gelu", x, approximate=approximate)


@op("Swish")
def swish(b: Builder, x: Any, *, alpha: float = 1.0) -> Any:
    if alpha == 1.0:
        return b.emit("F.silu", x)
    return b.call("mul", x, b.emit("F.sigmoid", b.call("mul", x, alpha)))


@op("QuickGelu", domain="com.microsoft")
def quick_gelu(b: Builder, x: Any, *, alpha: float = 1.702) -> Any:
    return swish(b, x, alpha=alpha)


@op("Shrink")
def shrink(b: Builder, x: Any, *, bias: float = 0.0, lambd: float = 0.5) -> Any:
    x = b.ref(x)
    over = b.emit("torch.gt", x, lambd)
    under = b.emit("torch.lt", x, -lambd)
    zero = b.formula("mul(@0,0)", x)
    high = b.emit("torch.where", over, b.call("sub", x, bias), zero)
    return b.emit("torch.where", under, b.call("add", x, bias), high)


@op("PRelu")
def prelu(b: Builder, x: Any, slope: Any, *, consumed_inputs: Any = None) -> Any:
    shape = list(slope.shape or ())
    rank = x.rank
    if isinstance(slope, Known) and x.dtype == np.float32:
        if slope.size == 1:
            return b.emit("nn.PReLU", x, num_parameters=1, weight=_vector(slope))
        is_channels = len(shape) == rank - 1 and slope.size == shape[0] and rank > 1
        if is_channels or (b.opset < 7 and len(shape) == 1):
            return b.emit("nn.PReLU", x, num_parameters=shape[0], weight=_vector(slope))
    negative = b.emit("torch.lt", x, b.ref(Known(np.zeros((), x.dtype))))
    return b.emit("torch.where", negative, b.call("mul", x, slope), x)


def _vector(value: Known) -> Known:
    return Known(value.array.reshape(-1))


@op("IsNaN")
def is_nan(b: Builder, x: Any) -> Any:
    return b.emit("aten::isnan", x)


@op("IsInf")
def is_inf(b: Builder, x: Any, *, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    if detect_negative and detect_positive:
        return b.emit("aten::isinf", x)
    if detect_negative or detect_positive:
        return b.emit("aten::isneginf" if detect_negative else "aten::isposinf", x)
    return b.emit("torch.logical_and", b.emit("aten::isinf", x), b.emit("aten::isnan", x))


@op("Where")
def where(b: Builder, condition: Any, x: Any, y: Any) -> Any:
    return b.emit("torch.where", condition, x, y)


@op("Cast")
def cast(b: Builder, x: Any, *, to: int, saturate: int = 1, round_mode: str = "") -> Any:
    dtype = element_dtype(to, b.where)
    return (
        x if x.dtype == dtype else b.emit("Tensor.to", x, dtype=_torch_dtype(b, dtype), copy=False)
    )


@op("CastLike")
def cast_like(b: Builder, x: Any, like: Any, *, saturate: int = 1, round_mode: str = "") -> Any:
    dtype = like.dtype
    return (
        x if x.dtype == dtype else b.emit("Tensor.to", x, dtype=_torch_dtype(b, dtype), copy=False)
    )


def _torch_dtype(b: Builder, dtype: Any) -> str:
    try:
        return torch_name(dtype)
    except KeyError:
        raise b.error(f"casts to {dtype}, which kuiper does not compute") from None


@op("Identity")
def identity(b: Builder, x: Any) -> Any:
    return x


@op("Dropout")
def dropout(
    b: Builder, x: Any, ratio: Any = None, training: Any = None, *, is_test: int = 1,
    seed: int = 0, consumed_inputs: Any = None,
) -> Any:  # fmt: skip
    if training is not None and b.array(training, "training_mode").any():
        raise b.error("is in training mode; export the model for inference")
    if not b.wants(1):
        return x
    mask = b.emit("torch.ones_like", x, dtype="torch.bool")
    return x, mask
