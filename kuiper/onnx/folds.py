"""Operators on arrays that the file determines, computed by numpy while the model is loaded.

Most of them are shape arithmetic, also on extents that the file leaves open: arrays of objects.  A
function returns None if it does not compute its arguments; they become operators of the graph then.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from kuiper.onnx.builder import Builder
from kuiper.onnx.registry import fold
from kuiper.onnx.tensors import element_dtype
from kuiper.onnx.values import Known, Size

__all__ = ["made"]

MAX_ELEMENTS = 1 << 20  # of a result that is larger than the arguments


def made(array: Any, dtype: Any) -> Known:
    """Return a result as a value; an array of objects without Sizes becomes one of numbers."""
    array = np.asarray(array)
    if array.dtype == object:
        if any(isinstance(item, Size) for item in array.reshape(-1)):
            return Known(array, dtype)
        array = array.astype(dtype)
    return Known(array if array.dtype == dtype else array.astype(dtype))


def _fits(*values: Known) -> bool:
    """Tell whether the broadcast result of arguments is small, or not larger than one of them."""
    try:
        size = math.prod(np.broadcast_shapes(*(v.shape for v in values)))
    except ValueError:
        return False
    return size <= max(MAX_ELEMENTS, *(v.size for v in values))


def _objects(*values: Known) -> tuple[list[np.ndarray], bool]:
    """Return the arrays, all of objects if one has Sizes."""
    is_open = any(v.is_open for v in values)
    return [v.array.astype(object) if is_open else v.array for v in values], is_open


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, Size) or isinstance(b, Size):
        return a // b
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _binary(name: str, array: Callable[..., Any], item: Any = None, result: Any = None) -> None:
    """Register a function of two arrays; `item` computes numbers and Sizes."""

    def compute(b: Builder, x: Known, y: Known, **_: Any) -> Known | None:
        if not _fits(x, y):
            return None
        (p, q), is_open = _objects(x, y)
        dtype = result or x.dtype
        if is_open:
            if item is None:
                return None
            return made(np.frompyfunc(item, 2, 1)(p, q), dtype)
        with np.errstate(all="ignore"):
            return made(array(p, q), dtype)

    fold(name)(compute)


def _div_arrays(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "f":
        return x / y
    quotient = np.abs(x) // np.abs(y)
    return np.where((x < 0) == (y < 0), quotient, -quotient)


def _largest(a: Any, b: Any) -> Any:
    return _chosen("max", a, b)


def _least(a: Any, b: Any) -> Any:
    return _chosen("min", a, b)


def _chosen(name: str, a: Any, b: Any) -> Any:
    if isinstance(a, Size):
        return a.apply(name, b)
    if isinstance(b, Size):
        return b.apply(name, a)
    return max(a, b) if name == "max" else min(a, b)


_binary("Add", np.add, operator.add)
_binary("Sub", np.subtract, operator.sub)
_binary("Mul", np.multiply, operator.mul)
_binary("Equal", np.equal, operator.eq, np.bool_)
_binary("Less", np.less, operator.lt, np.bool_)
_binary("LessOrEqual", np.less_equal, operator.le, np.bool_)
_binary("Greater", np.greater, operator.gt, np.bool_)
_binary("GreaterOrEqual", np.greater_equal, operator.ge, np.bool_)
_binary("And", np.logical_and, None, np.bool_)
_binary("Or", np.logical_or, None, np.bool_)
_binary("Xor", np.logical_xor, None, np.bool_)


@fold("Div")
def div(b: Builder, x: Known, y: Known, **_: Any) -> Known | None:
    if not _fits(x, y):
        return None
    (p, q), is_open = _objects(x, y)
    if x.dtype.kind in "iu" and not is_open and not q.all():
        raise b.error("divides by zero")
    if is_open:
        item = operator.truediv if x.dtype.kind == "f" else _divide
        return made(np.frompyfunc(item, 2, 1)(p, q), x.dtype)
    with np.errstate(all="ignore"):
        return made(_div_arrays(p, q), x.dtype)


@fold("Mod")
def mod(b: Builder, x: Known, y: Known, *, fmod: int = 0) -> Known | None:
    if not _fits(x, y) or (y.dtype.kind in "iu" and not y.is_open and not y.array.all()):
        return None
    (p, q), is_open = _objects(x, y)
    if is_open:
        return made(np.frompyfunc(operator.mod, 2, 1)(p, q), x.dtype)
    return made(np.fmod(p, q) if fmod else np.mod(p, q), x.dtype)


@fold("Pow")
def power(b: Builder, x: Known, y: Known) -> Known | None:
    if not _fits(x, y) or x.is_open or y.is_open or x.dtype.kind != "f":
        return None
    with np.errstate(all="ignore"):
        return made(np.power(x.array, y.array.astype(x.dtype)), x.dtype)


@fold("Max")
def maximum(b: Builder, *values: Known, **_: Any) -> Known | None:
    return _reduced(values, np.maximum, _largest)


@fold("Min")
def minimum(b: Builder, *values: Known, **_: Any) -> Known | None:
    return _reduced(values, np.minimum, _least)


def _reduced(values: Any, array: Any, item: Any) -> Known | None:
    if not _fits(*values):
        return None
    arrays, is_open = _objects(*values)
    result = arrays[0]
    for other in arrays[1:]:
        result = np.frompyfunc(item, 2, 1)(result, other) if is_open else array(result, other)
    return made(result, values[0].dtype)


def _unary(name: str, array: Callable[..., Any], item: str = "") -> None:
    def compute(b: Builder, x: Known) -> Known | None:
        if x.is_open:
            if not item:
                return None

            def one(value: Any) -> Any:
                return value.apply(item) if isinstance(value, Size) else array(value)

            return made(np.frompyfunc(one, 1, 1)(x.array), x.dtype)
        with np.errstate(all="ignore"):
            return made(array(x.array), x.dtype)

    fold(name)(compute)


_unary("Neg", np.negative, "neg")
_unary("Abs", np.abs, "abs")
_unary("Floor", np.floor, "floor")
_unary("Ceil", np.ceil, "ceil")
_unary("Round", np.rint, "round")
_unary("Sqrt", np.sqrt, "sqrt")
_unary("Exp", np.exp)
_unary("Log", np.log)
_unary("Not", np.logical_not)
_unary("Reciprocal", lambda x: x.dtype.type(1) / x if hasattr(x, "dtype") else 1 / x)
_unary("Identity", lambda x: x)


@fold("Cast")
def cast(b: Builder, x: Known, *, to: int, saturate: int = 1, round_mode: str = "") -> Known:
    dtype = element_dtype(to, b.where)
    if dtype == x.dtype:
        return x
    if not x.is_open:
        with np.errstate(all="ignore"):
            return Known(x.array.astype(dtype))
    name = "float" if dtype.kind == "f" else "int"

    def one(value: Any) -> Any:
        if isinstance(value, Size):
            same = (value.name == "float" or x.dtype.kind in "iu") and name == "int"
            return value if same else value.apply(name)
        return float(value) if name == "float" else int(value)

    if name == "float":  # an integer extent counts as a float of the same value
        return Known(x.array, dtype)
    return made(np.frompyfunc(one, 1, 1)(x.array), dtype)


@fold("Concat")
def concat(b: Builder, *values: Known, axis: int = 1) -> Known | None:
    arrays, _ = _objects(*values)
    return made(np.concatenate(arrays, axis), values[0].dtype)


@fold("Unsqueeze")
def unsqueeze(b: Builder, x: Known, axes: Any = None) -> Known:
    found = b.ints(axes, "axes")
    rank = x.rank + len(found)
    shape = list(x.shape)
    for axis in sorted(b.axis(a, rank) for a in found):
        shape.insert(axis, 1)
    return _reshaped(x, tuple(shape))


@fold("Squeeze")
def squeeze(b: Builder, x: Known, axes: Any = None) -> Known:
    if axes is None:
        drop = [i for i, n in enumerate(x.shape) if n == 1]
    else:
        drop = [b.axis(a, x.rank) for a in b.ints(axes, "axes")]
    if any(x.shape[i] != 1 for i in drop):
        raise b.error(f"drops axes {drop} of an input of shape {x.shape}")
    return _reshaped(x, tuple(n for i, n in enumerate(x.shape) if i not in drop))


@fold("Reshape")
def reshape(b: Builder, x: Known, shape: Any = None, *, allowzero: int = 0) -> Known | None:
    if isinstance(shape, Known) and shape.is_open:
        return None
    target = b.ints(shape, "shape")
    if not allowzero:
        target = [x.shape[i] if n == 0 and i < x.rank else n for i, n in enumerate(target)]
    if target.count(-1) == 1:
        rest = math.prod(n for n in target if n != -1)
        target[target.index(-1)] = x.size // rest if rest else 0
    if math.prod(target) != x.size or min(target, default=0) < 0:
        raise b.error(f"cannot reshape {x.shape} to {tuple(target)}")
    return _reshaped(x, tuple(target))


@fold("Flatten")
def flatten(b: Builder, x: Known, *, axis: int = 1) -> Known:
    axis = axis + x.rank if axis < 0 else axis
    return _reshaped(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def _reshaped(x: Known, shape: tuple[int, ...]) -> Known:
    return Known(x.array.reshape(shape), x.dtype)


@fold("Transpose")
def transpose(b: Builder, x: Known, *, perm: Any = None) -> Known:
    return Known(x.array.transpose(perm), x.dtype)


@fold("Gather")
def gather(b: Builder, x: Known, indices: Known, *, axis: int = 0) -> Known | None:
    size = x.size // max(x.shape[axis] if x.shape else 1, 1) * indices.size
    if indices.is_open or size > max(MAX_ELEMENTS, x.size):
        return None
    array = x.array if x.shape else x.array.reshape(1)
    return made(np.take(array, indices.array, axis), x.dtype)


@fold("Slice")
def slice_(
    b: Builder, x: Known, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
) -> Known | None:
    if any(isinstance(v, Known) and v.is_open for v in (starts, ends)):
        return None
    first, last = b.ints(starts, "starts"), b.ints(ends, "ends")
    along = list(range(len(first))) if axes is None else b.ints(axes, "axes")
    by = [1] * len(first) if steps is None else b.ints(steps, "steps")
    cut = [slice(None)] * x.rank
    for start, end, axis, step in zip(first, last, along, by, strict=True):
        axis = b.axis(axis, x.rank)
        end_: int | None = end
        if step < 0 and end < -x.shape[axis]:
            end_ = None
        cut[axis] = slice(start, end_, step)
    return made(x.array[tuple(cut)], x.dtype)


@fold("Split")
def split(b: Builder, x: Known, split: Any = None, *, axis: int = 0, num_outputs: int = 0) -> Any:
    count = num_outputs or len(b.outputs)
    if split is None:
        size = -(-x.shape[axis] // count)
        bounds = [size * i for i in range(1, count)]
    else:
        bounds = np.cumsum(b.ints(split, "split"))[:-1].tolist()
    return [made(part, x.dtype) for part in np.split(x.array, bounds, axis)]


@fold("Where")
def where(b: Builder, condition: Known, x: Known, y: Known) -> Known | None:
    if condition.is_open or not _fits(condition, x, y):
        return None
    (p, q), _ = _objects(x, y)
    return made(np.where(condition.array, p, q), x.dtype)


@fold("Expand")
def expand(b: Builder, x: Known, shape: Known) -> Known | None:
    if shape.is_open or math.prod(b.ints(shape, "shape")) > max(MAX_ELEMENTS, x.size):
        return None
    target = np.broadcast_shapes(x.shape, tuple(b.ints(shape, "shape")))
    return Known(np.broadcast_to(x.array, target), x.dtype)


@fold("Tile")
def tile(b: Builder, x: Known, repeats: Known) -> Known | None:
    if repeats.is_open or x.size * math.prod(b.ints(repeats, "repeats")) > MAX_ELEMENTS:
        return None
    return made(np.tile(x.array, b.ints(repeats, "repeats")), x.dtype)


@fold("Range")
def arange(b: Builder, start: Known, limit: Known, delta: Known, **_: Any) -> Known | None:
    if start.is_open or limit.is_open or delta.is_open:
        return None
    first, last, step = (v.array.reshape(-1)[0] for v in (start, limit, delta))
    if step == 0 or not abs(float(last) - float(first)) / abs(float(step)) <= MAX_ELEMENTS:
        return None
    return made(np.arange(first, last, step), start.dtype)


@fold("ConstantOfShape")
def constant_of_shape(b: Builder, shape: Known, *, value: Any = None) -> Known | None:
    if shape.is_open or math.prod(b.ints(shape, "shape")) > MAX_ELEMENTS:
        return None
    item = np.zeros(1, np.float32) if value is None else value.array.reshape(-1)[:1]
    dtype = np.float32 if value is None else value.dtype
    return made(np.full(b.ints(shape, "shape"), item[0], dtype), dtype)


def _mean(array: np.ndarray, **along: Any) -> Any:
    if array.dtype.kind != "f":
        return np.mean(array, **along).astype(array.dtype)
    return np.mean(array, dtype=np.float64, **along)


def _reduction(name: str, array: Callable[..., Any]) -> None:
    def compute(
        b: Builder, x: Known, axes: Any = None, *, keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Known | None:  # fmt: skip
        found = None if axes is None else tuple(b.ints(axes, "axes"))
        if x.is_open and name not in ("ReduceProd", "ReduceSum"):
            return None
        if not found:
            if noop_with_empty_axes:
                return x
            found = None
        result = array(x.array, axis=found, keepdims=bool(keepdims))
        return made(result, x.dtype)

    fold(name)(compute)


_reduction("ReduceProd", np.prod)
_reduction("ReduceSum", np.sum)
_reduction("ReduceMax", np.max)
_reduction("ReduceMin", np.min)
_reduction("ReduceMean", _mean)


@fold("CumSum")
def cumsum(
    b: Builder, x: Known, axis: Known, *, exclusive: int = 0, reverse: int = 0
) -> Known | None:
    if exclusive or reverse or x.is_open:
        return None
    return made(np.cumsum(x.array, int(axis.array.reshape(-1)[0])), x.dtype)


@fold("NonZero")
def nonzero(b: Builder, x: Known) -> Known | None:
    if x.is_open:
        return None
    return Known(np.array(np.nonzero(np.atleast_1d(x.array)), np.int64))


@fold("ScatterND")
def scatter_nd(
    b: Builder, x: Known, indices: Known, updates: Known, *, reduction: str = "none"
) -> Known | None:
    if reduction != "none" or indices.is_open:
        return None
    (data, new), _ = _objects(x, updates)
    data = data.copy()
    data[tuple(np.moveaxis(indices.array, -1, 0))] = new
    return made(data, x.dtype)


@fold("BatchNormalization")
def batch_normalization(
    b: Builder, x: Known, scale: Known, bias: Known, mean: Known, var: Known, *,
    epsilon: float = 1e-5, training_mode: int = 0, **_: Any,
) -> Known | None:  # fmt: skip
    """Standardise weights: in training mode, the mean and the variance are those of the input."""
    if not training_mode or b.wants(1) or b.wants(2):
        return None
    axes = (0, *range(2, x.rank))
    shape = [1, -1, *[1] * (x.rank - 2)]
    centred = x.array - x.array.mean(axes, dtype=np.float64, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(axes, keepdims=True) + epsilon)
    factor = scale.array.reshape(shape) / deviation
    return made(centred * factor + bias.array.reshape(shape), x.dtype)


@fold("DequantizeLinear")
def dequantize(
    b: Builder, x: Known, scale: Known, zero: Known | None = None, *, axis: int = 1,
    block_size: int = 0, output_dtype: int = 0,
) -> Known | None:  # fmt: skip
    factor, shift = scale.array, None if zero is None else zero.array
    if factor.ndim == 1 and factor.size > 1 and not block_size:
        shape = [1] * x.rank
        shape[b.axis(axis, x.rank)] = factor.size
        factor = factor.reshape(shape)
        shift = None if shift is None else shift.reshape(shape)
    elif block_size:
        axis = b.axis(axis, x.rank)
        count = x.shape[axis]
        factor = np.repeat(factor, block_size, axis).take(range(count), axis)
        shift = (
            None if shift is None else np.repeat(shift, block_size, axis).take(range(count), axis)
        )
    values = x.array.astype(np.float32)
    if shift is not None:
        values = values - shift.astype(np.float32)
    return made(values * factor, scale.dtype)
