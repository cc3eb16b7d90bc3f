"""Quantised operators: bytes of the file are integers of the graph, products are exact.

A float32 product of integers is exact while its sums stay below 2**24.  `MatMulInteger` and
`ConvInteger` know a bound of them from the weights; what may exceed it is computed digit by digit.
Operators whose result is rounded to bytes again take float32 as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper.onnx.builder import Builder
from kuiper.onnx.products import linear, transposed
from kuiper.onnx.registry import fold, op
from kuiper.onnx.tensors import element_dtype
from kuiper.onnx.values import Known, Ref, product
from kuiper.onnx.windows import (
    average_pool,
    conv,
    global_average_pool,
    window_pads,
    with_margins,
)
from kuiper.ops.core.quantization import MAX_SCALE, MIN_SCALE

__all__ = ["dequantized", "integers", "quantized"]

# Float32 has all integers up to 2**24; Strassen's algorithm has sums of up to four terms.
EXACT = 1 << 22
TYPES = ("uint8", "int8", "int16", "int32")
FLOAT = np.dtype(np.float32)
SIGNED = "sub(@0,128.0)"  # from stored bytes to signed ones


def _is_zero(value: Any) -> bool:
    """Tell whether a zero point is left out, or known to be 0."""
    return value is None or (isinstance(value, Known) and not value.array.any())


def _along(b: Builder, value: Any, x: Any, axis: int, block: int = 0) -> Any:
    """Return scales or zero points, one per slice of an axis or per block, to fit a tensor."""
    if value is None or value.rank == 0 or value.shape == (1,):
        return value if value is None or value.rank == 0 else _reshaped(b, value, [])
    axis = b.axis(axis, x.rank)
    if block:
        if value.rank != x.rank:
            raise b.error(f"has scales of rank {value.rank} for blocks of {x.rank} axes")
        extent = b.extents(x)[axis]
        if isinstance(value, Known) and isinstance(extent, int):
            return Known(np.repeat(value.array, block, axis).take(range(extent), axis))
        spread = b.emit("torch.repeat_interleave", value, repeats=block, dim=axis)
        return b.emit("Tensor.slice", spread, dim=axis, start=0, end=extent, step=1)
    if value.rank != 1:
        raise b.error(f"has scales of the shape {value.shape}, expected one or a vector")
    return _reshaped(b, value, [-1 if i == axis else 1 for i in range(x.rank)])


def _reshaped(b: Builder, value: Any, shape: list[int]) -> Any:
    if isinstance(value, Known):
        return Known(value.array.reshape(shape))
    return b.emit("Tensor.reshape", value, shape=shape)


def _floats(b: Builder, value: Any) -> Any:
    """Return integers as float32."""
    if isinstance(value, Known):
        return Known(value.array.astype(np.float32))
    return b.cast(value, FLOAT)


def quantized(b: Builder, x: Any, scale: Any, zero: Any, dtype: Any) -> Any:
    """Return the integers nearest to the multiples of a scale, as float32.

    `scale` and `zero` fit the tensor; ties go to the even integer.
    """
    if dtype.name not in TYPES[:3]:
        raise b.error(f"has the type {dtype}, expected one of {', '.join(TYPES[:3])}")
    low, high = float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
    x = b.cast(b.ref(x), FLOAT)
    # Adding 0 also turns the -0 of small negative numbers into 0.
    shift = 0.0 if _is_zero(zero) else _floats(b, zero)
    return b.formula(f"min(max(add(round(div(@0,@1)),@2),{low!r}),{high!r})", x, scale, shift)


def dequantized(b: Builder, x: Any, scale: Any, zero: Any) -> Any:
    """Return integers less a zero point, times a scale, which fit each other."""
    values = integers(b, x, zero)
    if isinstance(values, Known) and isinstance(scale, Known):
        return Known(values.array * scale.array)
    return b.call("mul", values, scale)


def integers(b: Builder, x: Any, zero: Any) -> Any:
    """Return integers less a zero point as float32."""
    if isinstance(x, Known) and (zero is None or isinstance(zero, Known)):
        shift = 0 if zero is None else zero.array.astype(np.int64)
        return Known((x.array.astype(np.int64) - shift).astype(np.float32))
    if x.dtype == np.int32 and not _is_zero(zero):
        return b.cast(b.call("sub", b.ref(x), b.ref(zero)), FLOAT)
    values = _floats(b, x)
    return values if _is_zero(zero) else b.call("sub", values, _floats(b, zero))


def _target(b: Builder, zero: Any, output_dtype: int) -> np.dtype:
    if zero is not None:
        return zero.dtype
    return element_dtype(output_dtype, b.where) if output_dtype else np.dtype(np.uint8)


@op("QuantizeLinear")
@op("QuantizeLinear", domain="com.microsoft")
def quantize_linear(
    b: Builder, x: Any, scale: Any, zero: Any = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0, precision: int = 0, saturate: int = 1,
) -> Any:  # fmt: skip
    dtype = _target(b, zero, output_dtype)
    parameters = _per_tensor(scale, zero, dtype)
    if parameters is not None and isinstance(x, Ref) and x.dtype == FLOAT:
        stored = b.emit("kuiper.QuantizeLinear", x, **parameters)
        if dtype == np.uint8:
            return stored
        return b.cast(b.formula(SIGNED, b.cast(stored, FLOAT)), dtype)
    factor, shift = (_along(b, v, x, axis, block_size) for v in (scale, zero))
    return b.cast(quantized(b, x, factor, shift, dtype), dtype)


def _per_tensor(scale: Any, zero: Any, dtype: np.dtype) -> dict[str, Any] | None:
    """Return the parameters of a tensor of bytes; None for other types, or if a run computes them.

    Signed bytes are stored with 128 added, and so is their zero point.
    """
    if dtype.name not in TYPES[:2] or not isinstance(scale, Known) or scale.array.size != 1:
        return None
    if not (zero is None or (isinstance(zero, Known) and zero.array.size == 1)):
        return None
    factor, point = float(scale.array.item()), 0 if zero is None else int(zero.array.item())
    if scale.dtype != FLOAT or not MIN_SCALE <= factor <= MAX_SCALE:
        return None
    return {"scale": factor, "zero_point": point - int(np.iinfo(dtype).min)}


def _stored_bytes(x: Any) -> Any:
    """Return the unsigned bytes that a tensor is stored in; None if it is no such tensor."""
    if not isinstance(x, Ref) or x.dtype == np.uint8:
        return x if isinstance(x, Ref) else None
    # The operators that `quantize_linear` adds for signed bytes.
    operand = x.operand
    for kind in ("Tensor.to", "pnnx.Expression", "Tensor.to"):
        producer = operand.producer
        if producer is None or producer.type != kind or len(producer.inputs) != 1:
            return None
        if kind == "pnnx.Expression" and producer.params.get("expr") != SIGNED:
            return None
        operand = producer.inputs[0]
    producer = operand.producer
    if producer is None or producer.type != "kuiper.QuantizeLinear":
        return None
    return Ref(operand, np.dtype(np.uint8), x.shape, x.probes)


@fold("QuantizeLinear")
def quantize_known(
    b: Builder, x: Known, scale: Known, zero: Known | None = None, *, axis: int = 1,
    block_size: int = 0, output_dtype: int = 0, precision: int = 0, saturate: int = 1,
) -> Known | None:  # fmt: skip
    dtype = _target(b, zero, output_dtype)
    if dtype.name not in TYPES or x.is_open:
        return None
    factor, shift = (_along(b, v, x, axis, block_size) for v in (scale, zero))
    limits = np.iinfo(dtype)
    steps = np.rint(x.array.astype(np.float32) / factor.array)
    steps = steps if shift is None else steps + shift.array.astype(np.float32)
    return Known(np.clip(steps, limits.min, limits.max).astype(dtype))


@op("DequantizeLinear")
@op("DequantizeLinear", domain="com.microsoft")
def dequantize_linear(
    b: Builder, x: Any, scale: Any, zero: Any = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0,
) -> Any:  # fmt: skip
    if x.dtype.name not in TYPES:
        raise b.error(f"has the type {x.dtype}, expected one of {', '.join(TYPES)}")
    stored, parameters = _stored_bytes(x), _per_tensor(scale, zero, x.dtype)
    if stored is not None and parameters is not None:
        return b.emit("kuiper.DequantizeLinear", stored, **parameters)
    factor, shift = (_along(b, v, x, axis, block_size) for v in (scale, zero))
    return dequantized(b, _before_bytes(b, x), factor, shift)


def _before_bytes(b: Builder, x: Any) -> Any:
    """Return the float32 integers of which `quantized` made bytes: nothing reads the bytes then."""
    if not isinstance(x, Ref):
        return x
    producer = x.operand.producer
    if producer is None or producer.type != "Tensor.to" or x.dtype.name not in TYPES[:3]:
        return x
    source = producer.inputs[0].producer
    limits = np.iinfo(x.dtype)
    end = f",{float(limits.min)!r}),{float(limits.max)!r})"
    text = source.params.get("expr") if source and source.type == "pnnx.Expression" else None
    if (
        not isinstance(text, str)
        or not text.startswith("min(max(add(round(")
        or (not text.endswith(end))
    ):
        return x
    return Ref(producer.inputs[0], FLOAT, x.shape, x.probes)


@op("DynamicQuantizeLinear")
def dynamic_quantize_linear(b: Builder, x: Any) -> Any:
    steps, scale, zero = _dynamic(b, x)
    return b.cast(steps, np.uint8), scale, b.cast(zero, np.uint8)


def _dynamic(b: Builder, x: Any) -> tuple[Any, Any, Any]:
    """Return a tensor as float32 integers of 0 to 255, their scale and their zero point."""
    flat = b.emit("Tensor.reshape", x, shape=[-1])
    low = b.call("min", b.emit("torch.amin", flat, dim=(0,), keepdim=False), 0.0)
    high = b.call("max", b.emit("torch.amax", flat, dim=(0,), keepdim=False), 0.0)
    span = b.formula("div(sub(@0,@1),255.0)", high, low)
    # Zeros alone have the scale 1.
    zeros = b.emit("torch.eq", span, b.ref(Known(np.zeros((), np.float32))))
    scale = b.emit("torch.where", zeros, b.ref(Known(np.ones((), np.float32))), span)
    zero = b.formula("add(round(min(max(div(neg(@0),@1),0.0),255.0)),0.0)", low, scale)
    return quantized(b, x, scale, zero, np.dtype(np.uint8)), scale, zero


# -- products -----------------------------------------------------------------------------------


def _bound(x: Any, zero: Any) -> int:
    """Return a bound of the magnitude of integers less a zero point."""
    limits = np.iinfo(x.dtype)
    if zero is None:
        return max(-int(limits.min), int(limits.max))
    if not isinstance(zero, Known):
        return int(limits.max) - int(limits.min)
    first, last = int(zero.array.min()), int(zero.array.max())
    return max(int(limits.max) - first, last - int(limits.min))


def _exact(b: Builder, x: Any, bound: int, total: float, product: Any) -> Any:
    """Return a product of integers as int32.

    `bound` is that of the magnitudes of `x`, `total` that of the sums of magnitudes of the other
    factor.  A product that float32 may round is computed of digits of `x`.
    """
    if bound * total < EXACT:
        return b.cast(product(x), np.int32)
    digit = int(EXACT // max(total, 1))
    if digit < 2:
        raise b.error("adds more products of integers than float32 has digits for")
    base = 1 << (digit.bit_length() - 1)
    high = b.formula(f"floor(mul(@0,{1 / base!r}))", b.ref(x))
    low = b.formula(f"sub(@0,mul(@1,{float(base)!r}))", b.ref(x), high)
    first = _exact(b, high, bound // base + 1, total, product)
    return b.formula(f"add(mul(@0,{base}),@1)", first, b.cast(product(low), np.int32))


def _rows(b: Builder, value: Any) -> Any:
    """Return a scale or zero point per row of a matrix, to fit it."""
    if value is None or value.rank != 1 or value.shape == (1,):
        return value
    return _reshaped(b, value, [-1, 1])


def _matmul(b: Builder, x: Any, y: Any) -> Any:
    if isinstance(y, Known) and y.rank == 2 and y.size and isinstance(x, Ref) and x.rank > 1:
        return linear(b, x, transposed(b, y), None)
    return b.emit("torch.matmul", x, y)


@op("MatMulInteger")
def matmul_integer(b: Builder, x: Any, y: Any, x_zero: Any = None, y_zero: Any = None) -> Any:
    left, right = integers(b, x, _rows(b, x_zero)), integers(b, y, y_zero)
    if isinstance(right, Known) and right.rank:
        sums = np.abs(right.array.astype(np.float64)).sum(max(right.rank - 2, 0))
        total = float(sums.max(initial=0.0))
    else:
        terms = b.extents(x)[-1]
        if not isinstance(terms, int):
            raise b.error("adds an open number of products of two computed matrices")
        total = float(terms * _bound(y, y_zero))
    return _exact(b, left, _bound(x, x_zero), total, lambda part: _matmul(b, part, right))


@op("ConvInteger")
def conv_integer(
    b: Builder, x: Any, w: Any, x_zero: Any = None, w_zero: Any = None, *,
    auto_pad: str = "NOTSET", dilations: Any = None, group: int = 1, kernel_shape: Any = None,
    pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    kernel = b.extents(w)[2:]
    step, dilation = list(strides or [1] * len(kernel)), list(dilations or [1] * len(kernel))
    margins = window_pads(b, x, auto_pad, pads, kernel, step, dilation)
    left = integers(b, x, x_zero)
    filters = integers(b, w, _along(b, w_zero, w, 0))
    if isinstance(filters, Known):
        total = float(np.abs(filters.array).sum(tuple(range(1, filters.rank))).max(initial=0.0))
        if kernel == [3, 3]:
            # Winograd's algorithm for 3x3 filters has fractions: add a column of zeros.
            filters = Known(np.pad(filters.array, [(0, 0)] * 3 + [(0, 1)]))
            margins[1] = (margins[1][0], margins[1][1] + dilation[1])
    else:
        total = float(product(b.extents(w)[1:]) * _bound(w, w_zero))
    left = with_margins(b, left, margins, 0.0)

    def convolve(part: Any) -> Any:
        return conv(b, part, filters, dilations=dilation, group=group, strides=step)

    return _exact(b, left, _bound(x, x_zero), total, convolve)


def _requantized(b: Builder, sums: Any, factor: Any, y_scale: Any, y_zero: Any) -> Any:
    """Return sums of products times a factor, as bytes of another scale."""
    ratio = _ratio(b, factor, y_scale)
    dtype = y_zero.dtype if y_zero is not None else np.dtype(np.uint8)
    low, high = float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
    shift = 0.0 if _is_zero(y_zero) else _floats(b, y_zero)
    rounded = b.formula(
        f"min(max(add(round(mul(@0,@1)),@2),{low!r}),{high!r})", b.ref(sums), ratio, shift
    )
    return b.cast(rounded, dtype)


def _ratio(b: Builder, factor: Any, scale: Any) -> Any:
    if isinstance(factor, Known) and isinstance(scale, Known):
        return Known(factor.array / scale.array.reshape(()))
    return b.call("div", b.ref(factor), scale)


def _factor(b: Builder, first: Any, second: Any) -> Any:
    """Return the product of two scales."""
    if isinstance(first, Known) and isinstance(second, Known):
        return Known(first.array * second.array)
    return b.call("mul", b.ref(first), second)


@op("QLinearMatMul")
@op("QLinearMatMul", domain="com.microsoft")
def qlinear_matmul(
    b: Builder, x: Any, x_scale: Any, x_zero: Any, y: Any, y_scale: Any, y_zero: Any,
    scale: Any, zero: Any,
) -> Any:  # fmt: skip
    left, right = integers(b, x, _rows(b, x_zero)), integers(b, y, y_zero)
    factor = _factor(b, _rows(b, x_scale), y_scale)
    return _requantized(b, _matmul(b, left, right), factor, scale, zero)


@op("QLinearConv")
@op("QLinearConv", domain="com.microsoft")
def qlinear_conv(
    b: Builder, x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any,
    y_scale: Any, y_zero: Any, bias: Any = None, *, auto_pad: str = "NOTSET",
    channels_last: int = 0, dilations: Any = None, group: int = 1, kernel_shape: Any = None,
    pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    if channels_last:
        raise b.error("has channels_last, expected channels on the second axis")
    filters = integers(b, w, _along(b, w_zero, w, 0))
    sums = conv(
        b, integers(b, x, x_zero), filters, None if bias is None else _floats(b, bias),
        auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides,
    )  # fmt: skip
    per_channel = w_scale
    if w_scale.rank == 1 and w_scale.shape != (1,):
        per_channel = _reshaped(b, w_scale, [-1, *[1] * (w.rank - 2)])
    return _requantized(b, sums, _factor(b, per_channel, x_scale), y_scale, y_zero)


# -- com.microsoft ------------------------------------------------------------------------------

MICROSOFT = "com.microsoft"


def _result(b: Builder, x: Any, scale: Any, zero: Any) -> Any:
    """Return floats as bytes."""
    dtype = zero.dtype if zero is not None else np.dtype(np.uint8)
    return b.cast(quantized(b, x, scale, zero, dtype), dtype)


def _values(b: Builder, x: Any, scale: Any, zero: Any) -> Any:
    """Return bytes as floats."""
    return dequantized(b, _before_bytes(b, x), scale, zero)


def _arithmetic(type_: str, name: str) -> None:
    @op(type_, domain=MICROSOFT)
    def arithmetic(
        b: Builder, x: Any, x_scale: Any, x_zero: Any, y: Any, y_scale: Any, y_zero: Any,
        scale: Any, zero: Any = None,
    ) -> Any:  # fmt: skip
        total = b.call(name, _values(b, x, x_scale, x_zero), _values(b, y, y_scale, y_zero))
        return _result(b, total, scale, zero)


for _type, _name in {"QLinearAdd": "add", "QLinearMul": "mul"}.items():
    _arithmetic(_type, _name)


@op("QLinearSigmoid", domain=MICROSOFT)
def qlinear_sigmoid(
    b: Builder, x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None
) -> Any:
    return _result(b, b.emit("F.sigmoid", _values(b, x, x_scale, x_zero)), scale, zero)


@op("QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_leaky_relu(
    b: Builder, x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None, *,
    alpha: float = 0.01,
) -> Any:  # fmt: skip
    values = _values(b, x, x_scale, x_zero)
    return _result(b, b.emit("F.leaky_relu", values, negative_slope=alpha), scale, zero)


@op("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(
    b: Builder, x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None, *,
    axis: int = -1, opset: int,
) -> Any:  # fmt: skip
    if opset < 13 and b.axis(axis, x.rank) != x.rank - 1:
        raise b.error("is a softmax over several axes of opset 12, expected the last axis")
    values = _values(b, x, x_scale, x_zero)
    return _result(b, b.emit("F.softmax", values, dim=axis), scale, zero)


@op("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(
    b: Builder, x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None, *,
    channels_last: int = 0,
) -> Any:  # fmt: skip
    if channels_last:
        raise b.error("has channels_last, expected channels on the second axis")
    values = global_average_pool(b, _values(b, x, x_scale, x_zero))
    return _result(b, values, scale, zero)


@op("QLinearAveragePool", domain=MICROSOFT)
def qlinear_average_pool(
    b: Builder, x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None, *,
    auto_pad: str = "NOTSET", ceil_mode: int = 0, channels_last: int = 0,
    count_include_pad: int = 0, kernel_shape: Any, pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    if channels_last:
        raise b.error("has channels_last, expected channels on the second axis")
    means = average_pool(
        b, _values(b, x, x_scale, x_zero), auto_pad=auto_pad, ceil_mode=ceil_mode,
        count_include_pad=count_include_pad, kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip
    return _result(b, means, scale, zero)


@op("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(b: Builder, *values: Any, axis: int) -> Any:
    if len(values) < 5 or len(values) % 3 != 2:
        raise b.error(f"has {len(values)} inputs, expected two and three for each tensor")
    scale, zero, *rest = values
    parts = [_values(b, *rest[i : i + 3]) for i in range(0, len(rest), 3)]
    return _result(b, b.emit("torch.cat", *parts, dim=axis), scale, zero)


@op("QGemm", domain=MICROSOFT)
def qgemm(
    b: Builder, x: Any, x_scale: Any, x_zero: Any, y: Any, y_scale: Any, y_zero: Any,
    c: Any = None, scale: Any = None, zero: Any = None, *, alpha: float = 1.0, transA: int = 0,
    transB: int = 0,
) -> Any:  # fmt: skip
    columns = _rows(b, y_zero) if transB else y_zero
    left, right = integers(b, x, x_zero), integers(b, y, columns)
    left = b.emit("torch.t", left) if transA else left
    if isinstance(right, Known):
        right = Known(np.ascontiguousarray(right.array.T)) if transB else right
    elif transB:
        right = b.emit("torch.t", right)
    sums = _matmul(b, left, right)
    if c is not None:
        sums = b.call("add", sums, _floats(b, c))
    factor = _factor(b, y_scale, x_scale)
    if alpha != 1.0:
        factor = _factor(b, factor, Known(np.array(alpha, np.float32)))
    if scale is None:
        return b.call("mul", sums, factor)
    return _requantized(b, sums, factor, scale, zero)


@op("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(
    b: Builder, x: Any, y: Any, x_scale: Any, y_scale: Any, x_zero: Any = None,
    y_zero: Any = None, bias: Any = None,
) -> Any:  # fmt: skip
    sums = b.cast(matmul_integer(b, x, y, x_zero, y_zero), FLOAT)
    result = b.call("mul", sums, _factor(b, _rows(b, x_scale), y_scale))
    return result if bias is None else b.call("add", result, bias)


@op("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(
    b: Builder, x: Any, y: Any, y_scale: Any, y_zero: Any = None, bias: Any = None
) -> Any:
    steps, scale, zero = _dynamic(b, x)
    bytes_, shift = b.cast(steps, np.uint8), b.cast(zero, np.uint8)
    return matmul_integer_to_float(b, bytes_, y, scale, y_scale, shift, y_zero, bias)


@op("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(
    b: Builder, x: Any, packed: Any, scales: Any, zero: Any = None, group_index: Any = None,
    bias: Any = None, *, K: int, N: int, bits: int = 4, block_size: int, accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> Any:  # fmt: skip
    if bits not in (2, 4, 8) or group_index is not None or weight_prepacked:
        raise b.error("has bits other than 2, 4 and 8, a group index or prepacked weights")
    blocks = -(-K // block_size)
    steps = _unpacked(b.array(packed, "the weight").reshape(N, -1), bits)
    if steps.size != N * blocks * block_size:
        raise b.error(f"has weights of the shape {packed.shape} for {N} columns of {K} terms")
    steps = steps.reshape(N, blocks, block_size).astype(np.float32)
    shift: Any = np.float32(1 << (bits - 1))
    if zero is not None:
        shift = b.array(zero, "the zero point").reshape(N, -1)
        shift = _unpacked(shift, bits) if shift.dtype == np.uint8 else shift
        shift = shift[:, :blocks, np.newaxis].astype(np.float32)
    factors = b.array(scales, "the scale").reshape(N, blocks, 1).astype(np.float32)
    weight = ((steps - shift) * factors).reshape(N, -1)[:, :K]
    known = Known(np.ascontiguousarray(weight))
    summand = bias if isinstance(bias, Known) and bias.shape == (N,) else None
    result = linear(b, x, known, summand)
    return result if bias is summand else b.call("add", result, bias)


def _unpacked(rows: np.ndarray, bits: int) -> np.ndarray:
    """Return the numbers of some bits in rows of bytes; the lowest bits come first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (rows[..., np.newaxis] >> shifts) & np.uint8((1 << bits) - 1)
    return parts.reshape(len(rows), -1)
