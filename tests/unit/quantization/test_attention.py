"""Multi-head attention in static quantization: its linear layers become products of bytes."""

from __future__ import annotations

import io

import numpy as np
import pytest

import kuiper
from kuiper.quantization.calibration import Samples, prepared

from ...support import load_cases
from ...support.textgraph import graph_of, lines_of, model_of, text, values

SELF = "@in_proj_bias=(192)f32 @in_proj_weight=(192,64)f32"
SEPARATE = (
    "kdim=48 vdim=40 @in_proj_bias=(192)f32 @q_proj_weight=(64,64)f32 @k_proj_weight=(64,48)f32 "
    "@v_proj_weight=(64,40)f32"
)


def attention(inputs: str, more: str, batch_first: bool = True, options: str = "") -> str:
    operands = inputs.split()
    return text(
        f"nn.MultiheadAttention a {len(operands)} 1 {inputs} y {options} embed_dim=64 num_heads=4 "
        f"batch_first={batch_first} @out_proj.bias=(64)f32 @out_proj.weight=(64,64)f32 {more}",
        inputs=dict.fromkeys(operands),
    )


def split(model: kuiper.Model, *arrays: np.ndarray) -> kuiper.Model:
    graph, _ = prepared(model, Samples(model, [arrays], 1).shapes)
    return model.with_graph(graph)


CASES = [
    ("x", SELF, [64], 2),
    ("x z", SELF, [64, 64], 3),
    ("x x z", SELF, [64, 64], 3),
    ("x z w", SEPARATE, [64, 48, 40], 4),
]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("inputs", "more", "widths", "layers"), CASES)
def test_a_split_attention_computes_the_same(inputs, more, widths, layers, batch_first):
    model = model_of(attention(inputs, more, batch_first))
    arrays = [values(2, 5, width) for width in widths]
    parts = split(model, *arrays)
    assert [op.type for op in parts.graph].count("nn.Linear") == layers
    assert "nn.MultiheadAttention" not in {op.type for op in parts.graph}
    for shape in ((2, 5), (3, 4)):
        arrays = [values(*shape, width, seed=1) for width in widths]
        np.testing.assert_allclose(parts(*arrays), model(*arrays), rtol=1e-5, atol=1e-6)


def test_its_linear_layers_are_products_of_bytes():
    model = model_of(attention("x", SELF))
    quantized = kuiper.quantize(model, [values(2, 5, 64, seed=n) for n in range(4)])
    found = [line.split()[0] for line in lines_of(quantized.graph)]
    assert found.count("nn.quantized.Linear") == 2
    for shape in ((2, 5, 64), (3, 9, 64)):
        x = values(*shape, seed=9)
        expected, got = model(x), quantized(x)
        assert 24 < 10 * np.log10(np.square(expected).sum() / np.square(expected - got).sum()) < 60
    kept = kuiper.quantize(model, [values(2, 5, 64)], keep=["a.in*"])
    assert [line.split()[0] for line in lines_of(kept.graph)].count("nn.quantized.Linear") == 1


@pytest.mark.parametrize(
    "line",
    [
        attention("x", SELF, options="add_zero_attn=True"),
        attention("x", SELF).replace("a 1 1 x y", "a 1 2 x y z"),
        attention("x m", SELF).replace("a 2 1 x m y", "a 2 1 x m y $query=x $attn_mask=m"),
    ],
    ids=["zero row", "weights as a result", "mask"],
)
def test_others_stay_as_they_are(line):
    model = kuiper.Model(graph_of(line))
    arrays = [values(2, 5, 64)]
    if "attn_mask" in line:
        arrays.append(values(5, 5))
    assert "nn.MultiheadAttention" in {op.type for op in split(model, *arrays).graph}


@pytest.mark.parametrize(
    ("name", "layers"), [("fast_plain", 2), ("fast_first", 2), ("fast_mask", 0)]
)
def test_encoder_layers_are_split_unless_they_have_a_mask(name, layers):
    case = next(c for c in load_cases("operators") if c.id == f"transformer/{name}")
    model = kuiper.load(case.param, case.bin)
    parts = split(model, *case.inputs)
    types = [op.type for op in parts.graph]
    assert types.count("nn.Linear") == layers
    assert ("pnnx.Attribute" in types) == (layers == 0)
    files = io.BytesIO(), io.BytesIO()
    kuiper.save(parts, *files)
    saved = kuiper.load(*(file.getvalue() for file in files))
    np.testing.assert_array_equal(saved(*case.inputs), model(*case.inputs))
