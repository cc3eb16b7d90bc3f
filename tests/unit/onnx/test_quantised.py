"""Quantised operators, against the results of onnxruntime 1.32 in ``onnx_quantised.npz``."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import kuiper

from ...support.onnxfile import graph, model, node, single, tensor, value

DATA = Path(__file__).parents[2] / "data" / "onnx_quantised.npz"


@cache
def stored():
    """Return model, inputs and outputs by case."""
    found: dict[str, dict[str, np.ndarray]] = {}
    with np.load(DATA) as file:
        for key, array in file.items():
            case, part = key.rsplit(".", 1)
            found.setdefault(case, {})[part] = array
    return found


@pytest.mark.parametrize("case", sorted(stored()))
def test_results_of_onnxruntime(case):
    parts = stored()[case]
    inputs = [parts[key] for key in sorted(parts) if key.startswith("in")]
    outputs = [parts[key] for key in sorted(parts) if key.startswith("out")]
    results = kuiper.load(parts["model"].tobytes())(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    for got, expected in zip(results, outputs, strict=True):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        if "AveragePool" in case:  # onnxruntime rounds means of integers another way
            assert np.abs(got.astype(int) - expected).max() <= 1
        elif got.dtype.kind == "f":
            np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(got, expected)


def pairs(dtype=np.uint8):
    """Return the file of two quantised tensors, read as floats, and their sum."""
    scale, zero = tensor("s", np.array(0.5, np.float32)), tensor("z", np.array(3, dtype))
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("Relu", "d", "y"),
    ]
    x = value("x", np.float32, (2, 3))
    return model(graph(nodes, [x], [value("y", np.float32, (2, 3))], [scale, zero]))


def test_a_pair_computes_no_bytes():
    loaded = kuiper.load(pairs())
    x = np.array([[-0.1, 0.75, 300], [-9, 0.25, 1.25]], np.float32)
    # Ties go to the even integer: 0.25 / 0.5 + 3 is 3 and 1.25 / 0.5 + 3 is 5.
    np.testing.assert_array_equal(loaded(x), [[0, 1, 126], [0, 0, 1]])
    assert not np.signbit(loaded(x)).any()
    assert "Tensor.to" not in {op.type for op in loaded.planned_graph((2, 3))}


@pytest.mark.parametrize("terms", [20, 3000, 16_000])
def test_products_of_integers_are_exact(terms):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (3, terms)).astype(np.uint8)
    w = np.where(rng.random((terms, 4)) < 0.1, 127, -128).astype(np.int8)
    expected = (x.astype(np.int64) - 7) @ w.astype(np.int64)
    known = {"w": w, "z": np.array(7, np.uint8)}
    got = kuiper.load(single("MatMulInteger", {"x": x}, known=known))(x)
    np.testing.assert_array_equal(got, expected)


def test_convolutions_of_integers_are_exact():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (1, 64, 14, 14)).astype(np.uint8)
    w = rng.integers(-128, 128, (64, 64, 3, 3)).astype(np.int8)
    got = kuiper.load(single("ConvInteger", {"x": x}, known={"w": w}, pads=[1, 1, 1, 1]))(x)
    wide = np.pad(x.astype(np.int64), [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))
    np.testing.assert_array_equal(got, np.einsum("nchwij,ocij->nohw", windows, w.astype(np.int64)))


def test_refusals():
    x = np.zeros((2, 3), np.float32)
    scale = np.array(1, np.float32)
    file = single("QuantizeLinear", {"x": x}, known={"s": scale, "z": np.int32(0)})
    with pytest.raises(kuiper.OperatorError, match="the type int32, expected one of uint8"):
        kuiper.load(file)
    file = single("QuantizeLinear", {"x": x}, known={"s": np.ones((2, 3), np.float32)})
    with pytest.raises(kuiper.OperatorError, match="one or a vector"):
        kuiper.load(file)
