"""Restore integer products from the floats that simulate them.

Files store quantization as rounding in float32: PyTorch's fake quantization, ONNX's pairs of
QuantizeLinear and DequantizeLinear.  Weights are stored after rounding::

    aten::fake_quantize_per_tensor_affine f 1 1 x y scale=0.1 zero_point=3 quant_min=0 quant_max=255
    nn.Conv2d                          conv 1 1 y z @weight=(8,4,3,3)f32
    ->
    kuiper.QuantizeLinear    f   1 1 x b scale=0.1 zero_point=3
    nn.quantized.Conv2d      conv 1 1 b z input_scale=0.1 input_zero_point=3
                                          @weight=(8,4,3,3)i8 @weight_scale=(8)f32

What proves the change:

- The input of the product is a DequantizeLinear, so its values are ``(byte - zero) * scale``.
- Each weight of an output channel is ``k * s`` for an integer k of -128 to 127 and one float32 s,
  in every bit: the bytes are recovered, not chosen.

The integer product is exact where the product of floats rounds each sum, so results differ by the
rounding of float32 alone.  Weights that are on no such grid stay, and so does their product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kuiper.expression import Literal, parse
from kuiper.ir import Attribute, Graph, Operand, Operator
from kuiper.ops.core.quantization import DEQUANTIZE, MAX_SCALE, MIN_SCALE, QUANTIZE

__all__ = ["grid_of", "restore_fake_quantized", "restore_products"]

PER_TENSOR = "aten::fake_quantize_per_tensor_affine"
OBSERVED = "aten::fused_moving_avg_obs_fake_quant"
RELUS = ("nn.ReLU", "F.relu")
BOUNDS = ("min_val", "max_val")
NUMBERS = ("scale", "zero_point", "quant_min", "quant_max")
OBSERVED_INPUTS = {
    "observer_on": 1, "fake_quant_on": 2, "scale": 5, "zero_point": 6, "quant_min": 8,
    "quant_max": 9,
}  # fmt: skip
PRODUCTS = {"nn.Conv2d": "nn.quantized.Conv2d", "nn.Linear": "nn.quantized.Linear"}

LOW, HIGH = -128, 127
SAMPLE = 32  # weights of a channel that exclude most candidates for its scale


class _Quantization(NamedTuple):
    """Bytes, and the values that the ends of a smaller range of integers stand for."""

    scale: float
    zero_point: int
    bounds: tuple[float, float] | None


def restore_fake_quantized(graph: Graph) -> None:
    """Turn fake quantization into bytes and back.

    A range of fewer than 256 integers becomes a clamp before, to the values of its ends: the ends
    are quantized to themselves, see :mod:`kuiper.passes.optimize.fuse_quantized`.
    """
    for op in [*graph.find(PER_TENSOR), *graph.find(OBSERVED)]:
        found = _quantization(op)
        if found is None:
            continue
        x, result = op.inputs[0], op.outputs[0]
        graph.set_outputs(op, [])
        graph.remove_operator(op)
        if found.bounds is not None:
            x = _clamped(graph, op, x, found.bounds)
        params = {"scale": found.scale, "zero_point": found.zero_point}
        stored = graph.unique_name(f"{result.name}_bytes")
        graph.add_operator(QUANTIZE, op.name, [x], [stored], params=params)
        name = graph.unique_name(f"{op.name}_dequantized")
        graph.add_operator(DEQUANTIZE, name, [stored], [result], params=params)


def _clamped(graph: Graph, op: Operator, x: Operand, bounds: tuple[float, float]) -> Operand:
    """Return the output of a clamp of `x`, which takes over a ReLU that it contains."""
    relu = x.producer
    if relu is not None and relu.type in RELUS and len(x.uses) == 0 and bounds[0] <= 0.0:
        bounds, x = (0.0, bounds[1]), relu.inputs[0]
        graph.set_outputs(relu, [])
        graph.remove_operator(relu)
    name, params = graph.unique_name(f"{op.name}_range"), dict(zip(BOUNDS, bounds, strict=True))
    clamp = graph.add_operator("nn.Hardtanh", name, [x], [graph.unique_name(name)], params=params)
    return clamp.outputs[0]


def _quantization(op: Operator) -> _Quantization | None:
    """Return the parameters of fake quantization; None if they are unknown or out of range."""
    if op.type == OBSERVED:
        names = ("observer_on", "fake_quant_on", "scale", "zero_point", "quant_min", "quant_max")
        values = {name: _constant(op.inputs[OBSERVED_INPUTS[name]]) for name in names}
        if values.pop("observer_on") != 0 or not values.pop("fake_quant_on"):
            return None  # an error of its record, and an identity
    else:
        values = {name: op.params.get(name) for name in NUMBERS}
    scale, zero, low, high = (values[name] for name in NUMBERS)
    numbers = (scale, zero, low, high)
    if any(not isinstance(n, int | float) for n in numbers) or len(op.outputs) != 1:
        return None
    if not (MIN_SCALE <= scale <= MAX_SCALE and low <= zero <= high and high - low <= 255):
        return None
    bounds = None
    if high - low < 255:
        step = np.float32(scale)
        bounds = float(np.float32(low - zero) * step), float(np.float32(high - zero) * step)
    return _Quantization(float(scale), int(zero - low), bounds)


def _constant(operand: Operand) -> Any:
    """Return the number that an operand is, None if it is another value."""
    producer = operand.producer
    if producer is None:
        return None
    if producer.type == "pnnx.Attribute":
        array = next(iter(producer.attributes.values())).numpy()
        return array.item() if array.size == 1 else None
    if producer.type == "pnnx.Expression" and not producer.inputs:
        tree = parse(str(producer.params.get("expr")), 0)
        return tree.value if isinstance(tree, Literal) else None
    return None


def restore_products(graph: Graph) -> None:
    """Turn products of dequantized bytes by weights on a grid into products of bytes."""
    for op in graph:
        if op.type not in PRODUCTS or op.params.get("padding_mode", "zeros") != "zeros":
            continue
        producer = op.inputs[0].producer
        weight = op.attributes.get("weight")
        if producer is None or producer.type != DEQUANTIZE or weight is None or len(op.inputs) > 1:
            continue
        grid = grid_of(weight.float32())
        if grid is None:
            continue
        values, scales = grid
        attributes = dict(op.attributes)
        attributes["weight"] = Attribute.from_array(values)
        attributes["weight_scale"] = Attribute.from_array(scales)
        op.attributes = attributes
        op.type = PRODUCTS[op.type]
        op.params = {
            **op.params,
            "input_scale": producer.params["scale"],
            "input_zero_point": producer.params["zero_point"],
        }
        graph.set_inputs(op, [producer.inputs[0]], op.input_keys)


def grid_of(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the integers and the scales that make up a weight bit by bit.

    Parameters
    ----------
    weight : array, shape (columns, ...), float32

    Returns
    -------
    values : array, shape (columns, ...), int8
    scales : array, shape (columns,), float32
        ``weight == values * scales``; a channel of zeros has the scale 1.
    None
        If a channel is on no such grid.
    """
    flat = np.ascontiguousarray(weight, np.float32).reshape(len(weight), -1)
    if flat.size == 0 or not np.isfinite(flat).all():
        return None
    at = np.abs(flat).argmax(1)
    peaks = flat[np.arange(len(flat)), at]
    sample = np.take_along_axis(flat, np.argsort(np.abs(flat), axis=1)[:, -SAMPLE:], 1)
    values, scales = np.zeros(flat.shape, np.int8), np.ones(len(flat), np.float32)
    left = np.flatnonzero(peaks)
    for steps in range(1, -LOW + 1):  # the coarsest grid first
        quotient = np.abs(peaks[left]) / np.float32(steps)
        # The quotient is rounded: the scale itself may be a neighbour of it.
        for scale in (quotient, *(np.nextafter(quotient, np.float32(x)) for x in (0, np.inf))):
            for i in np.flatnonzero(_are_multiples(sample[left], scale)):
                row, one = left[i], scale[i : i + 1]
                if _are_multiples(flat[row : row + 1], one)[0]:
                    values[row], scales[row] = np.rint(flat[row] / one), one[0]
                    peaks[row] = 0.0
        left = left[peaks[left] != 0.0]
        if not len(left):
            return values.reshape(weight.shape), scales
    return None


def _are_multiples(rows: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Tell for each row whether all items are its scale times an integer that fits a byte."""
    with np.errstate(all="ignore"):
        steps = np.rint(rows / scales[:, np.newaxis])
        exact = (steps * scales[:, np.newaxis] == rows) & (steps >= LOW) & (steps <= HIGH)
    found: np.ndarray = exact.all(1) & (scales >= MIN_SCALE)
    return found
