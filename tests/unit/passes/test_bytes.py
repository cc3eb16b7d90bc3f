"""Elementwise arithmetic and moves between tensors of bytes stay in bytes, with the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import kuiper
from kuiper.errors import KuiperError
from kuiper.ir.view import TensorSpec
from kuiper.ops import record_or_none
from kuiper.ops.core.quantization import JOINS, MAX_POOLS, RESIZES
from kuiper.ops.core.quantization import MOVES as MOVED_TYPES

from ...support.passes import optimized, run
from ...support.textgraph import graph_of, lines_of, text, values
from .test_quantized import DEQUANTIZE, QUANTIZE, bytes_graph, product

X = 3 * values(2, 4, 6, 6)
BYTES = "kuiper.QuantizedExpression"
FUSE = ("move_quantized", "eliminate_quantized", "fuse_quantized", "fuse_elementwise")
FUSE = (*FUSE, "fuse_quantized_elementwise", "eliminate_dead")
QUANTIZED = QUANTIZE.format("q", "x", "b", 0.02, 100)
FLOATS = DEQUANTIZE.format("d", "b", "p", 0.02, 100)


def types_of(graph) -> list[str]:
    return [line.split()[0].replace("kuiper.", "").replace("nn.quantized.", "") for line in
            lines_of(graph)]  # fmt: skip


def same_bits(graph, inputs=(X,), names=FUSE):
    """Run passes and return the graph; the bits of its results must stay."""
    before = run(graph, inputs)
    optimized(graph, inputs, *names)
    for old, new in zip(before, run(graph, inputs), strict=True):
        assert old.dtype == new.dtype
        np.testing.assert_array_equal(new, old)
    return graph


# -- expressions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        ["nn.SiLU a 1 1 p r"],
        ["nn.SiLU a 1 1 p s", "pnnx.Expression e 2 1 s x r expr=add(mul(@0,@1),1.5)"],
        ["pnnx.Expression e 2 1 p p r expr=mul(@0,tanh(@1))"],
        ["F.adaptive_avg_pool2d g 1 1 x s output_size=(1,1)", "pnnx.Expression e 2 1 p s r "
         "expr=mul(@0,@1)"],
    ],
)  # fmt: skip
def test_arithmetic_between_bytes_reads_and_writes_bytes(lines):
    graph = bytes_graph(QUANTIZED, FLOATS, *lines, QUANTIZE.format("q2", "r", "y", 0.03, 9))
    same_bits(graph)
    assert types_of(graph)[-1] == "QuantizedExpression"
    assert "DequantizeLinear" not in types_of(graph)


def test_inputs_and_the_result_may_be_floats():
    graph = same_bits(bytes_graph(QUANTIZED, FLOATS, "nn.SiLU a 1 1 p y"))
    assert types_of(graph) == ["QuantizeLinear", "QuantizedExpression"]
    graph = same_bits(bytes_graph("nn.SiLU a 1 1 x r", QUANTIZE.format("q", "r", "y", 0.03, 9)))
    assert types_of(graph) == ["QuantizedExpression"]


def test_other_scales_are_an_identity_of_bytes():
    lines = [QUANTIZED, FLOATS, QUANTIZE.format("q2", "p", "y", 0.05, 3)]
    graph = same_bits(bytes_graph(*lines))
    assert types_of(graph) == ["QuantizeLinear", "QuantizedExpression"]
    assert str(graph.find(BYTES)[0].params["expr"]) == "@0"
    graph = same_bits(bytes_graph(QUANTIZED, FLOATS, QUANTIZE.format("q2", "p", "y", 0.02, 100)))
    assert types_of(graph) == ["QuantizeLinear"]


def test_a_second_reader_or_an_output_needs_the_floats():
    lines = [QUANTIZED, FLOATS, "nn.SiLU a 1 1 p r", QUANTIZE.format("q2", "r", "y", 0.03, 9)]
    graph = same_bits(bytes_graph(*lines, outputs=("y", "r")))
    assert types_of(graph) == ["QuantizeLinear", "QuantizedExpression", "QuantizeLinear"]
    graph = same_bits(bytes_graph(*lines, "torch.cumsum t 1 1 r z dim=1", outputs=("y", "z")))
    assert "QuantizeLinear" in types_of(graph)[1:]
    # Another reader of the floats of an operand does not matter.
    graph = same_bits(bytes_graph(*lines, outputs=("y", "p")))
    assert types_of(graph)[-1] == "QuantizedExpression"


def test_other_dtypes_stay():
    lines = [QUANTIZED, FLOATS, "pnnx.Expression e 2 1 p i y expr=mul(@0,@1)"]
    lines.insert(0, "Tensor.to t 1 1 x i copy=False dtype=torch.int64")
    graph = same_bits(bytes_graph(*lines))
    assert BYTES not in {op.type for op in graph}


def test_a_table_has_the_bits_of_a_program():
    line = f"{BYTES} e 1 1 b y expr=silu(@0) scales=(0.02,0.03) zero_points=(100,9)"
    graph = graph_of(text(QUANTIZED, line))
    small = values(1, 1, 5, 6) * 3
    large = np.tile(small, (1, 1, 9, 1))
    np.testing.assert_array_equal(
        run(graph, [large])[0], np.tile(run(graph, [small])[0], (1, 1, 9, 1))
    )


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"scales": (0.1,), "zero_points": (3,)}, "expected 2 of each"),
        ({"scales": (-0.1, 0), "zero_points": (3, 0)}, "'scale' is -0.1"),
        ({"scales": (0.1, 0.1), "zero_points": (3, 256)}, "'zero_point' is 256"),
        ({"scales": (0, 0.1), "zero_points": (0, 3)}, "operand 0 is uint8, expected float32"),
        ({"expr": "[@0,1]", "scales": (0.1, 0), "zero_points": (3, 0)}, "arithmetic of float32"),
    ],
)
def test_wrong_numbers_are_refused(params, message):
    record = record_or_none(BYTES)
    operands = [TensorSpec((2, 3), np.uint8)]
    with pytest.raises(KuiperError, match=message):
        record(**{"operands": operands, "expr": "silu(@0)", **params}).infer()


# -- moves -------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", [(0.02, 100), (0.05, 9)])
def test_a_concatenation_joins_bytes(second):
    """Products write bytes into the result; an operand of another scale is rescaled."""
    lines = [
        QUANTIZED, FLOATS, product("c", "b", "r"), "nn.ReLU a 1 1 r s",
        QUANTIZE.format("q2", "s", "t", *second), DEQUANTIZE.format("d2", "t", "u", *second),
        "torch.cat m 2 1 p u v dim=1", QUANTIZE.format("q3", "v", "y", 0.02, 100),
    ]  # fmt: skip
    graph = bytes_graph(*lines)
    before = run(graph, [X])
    optimized(graph, [X])
    np.testing.assert_array_equal(run(graph, [X])[0], before[0])
    found = types_of(graph)
    assert found.count("QuantizedExpression") == (second != (0.02, 100))
    assert "DequantizeLinear" not in found
    assert found[-1] == "torch.cat"


def test_a_concatenation_of_bytes_and_floats_stays():
    """It converts the bytes to floats; their numbers are no quantized values."""
    lines = [QUANTIZED, FLOATS, "torch.cat m 2 1 b p v dim=1"]
    same_bits(bytes_graph(*lines, QUANTIZE.format("q2", "v", "y", 0.02, 100)))
    same_bits(bytes_graph(*lines, outputs="v"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (QUANTIZE.format("q", "x", "y", "1_0", 3), "argument 'scale' is '1_0', expected a number"),
        (QUANTIZE.format("q", "x", "y", 0.1, "3.0"), "'zero_point' is 3.0, expected an integer"),
        (DEQUANTIZE.format("q", "x", "y", "inf", 3), "'scale' is inf, expected 1e-30"),
        ("kuiper.QuantizeLinear q 2 1 x s y zero_point=3 $input=x $scale=s",
         "the parameter 'scale' is None"),
        (product("c", "x", "y").replace("input_scale=0.02", "input_scale=tiny"),
         "'input_scale'"),
    ],
)  # fmt: skip
def test_scales_are_numbers_of_the_file(line, message):
    inputs = ("x", "s") if " s " in line else ("x",)
    with pytest.raises(KuiperError, match=message):
        kuiper.Model(graph_of(text(line, inputs=inputs)))


def test_producers_write_their_slices_of_bytes():
    lines = [
        QUANTIZED, product("c1", "b", "r"), product("c2", "b", "s"), "torch.cat m 2 1 r s v dim=1",
        QUANTIZE.format("q3", "v", "w", 0.02, 100), product("c3", "w", "y", 8),
    ]  # fmt: skip
    graph = bytes_graph(*lines)
    before = run(graph, [X])
    optimized(graph, [X])
    np.testing.assert_array_equal(run(graph, [X])[0], before[0])
    assert types_of(graph) == ["QuantizeLinear", "Conv2d", "Conv2d", "torch.cat", "Conv2d"]
    rows = kuiper.Model(bytes_graph(*lines)).profile(X, runs=1).rows
    assert [row["kind"] for row in rows[:-1]] == ["quantize", *["quantized_conv"] * 3]


MOVES = [
    "nn.MaxPool2d m 1 1 {} {} kernel_size=(3,3) padding=(1,1) stride=(2,2)",
    "F.max_pool2d m 1 1 {} {} kernel_size=(2,2) stride=(2,2)",
    "torch.flatten m 1 1 {} {} start_dim=1 end_dim=-1",
    "Tensor.permute m 1 1 {} {} dims=(0,2,3,1)",
    "Tensor.slice m 1 1 {} {} dim=1 start=1 end=3 step=1",
    "Tensor.reshape m 1 1 {} {} shape=(2,2,2,36)",
    "Tensor.unflatten m 1 1 {} {} dim=1 sizes=(2,-1)",
    "nn.PixelUnshuffle m 1 1 {} {} downscale_factor=2",
    "torch.tensor_split m 1 1 {} {} indices=() dim=0",
]


def test_types_that_move_bytes_are_supported():
    types = MOVED_TYPES | JOINS | MAX_POOLS | RESIZES
    assert types <= set(kuiper.supported_operators())


@pytest.mark.parametrize("move", MOVES)
def test_moves_between_bytes(move):
    after = QUANTIZE.format("q2", "r", "y", 0.02, 100)
    graph = same_bits(bytes_graph(QUANTIZED, FLOATS, move.format("p", "r"), after))
    assert len(types_of(graph)) == 2
    assert types_of(graph)[0] == "QuantizeLinear"
    # A product writes the bytes that are moved.
    lines = [QUANTIZED, product("c", "b", "r"), "nn.ReLU a 1 1 r s", move.format("s", "t")]
    graph = bytes_graph(*lines, QUANTIZE.format("q2", "t", "y", 0.01, 3))
    same_bits(graph, names=("fuse_activation", *FUSE))
    assert "nn.quantized.Conv2d b -> t.bytes" not in lines_of(graph)
    assert types_of(graph)[:2] == ["QuantizeLinear", "Conv2d"]
    assert len(types_of(graph)) == 3
    # Without a QuantizeLinear, floats come last.
    graph = same_bits(bytes_graph(QUANTIZED, FLOATS, move.format("p", "y")))
    assert types_of(graph)[2] == "DequantizeLinear"


def test_every_part_of_a_split_is_bytes():
    lines = [QUANTIZED, FLOATS, "torch.chunk m 1 2 p r s chunks=2 dim=1"]
    lines += [QUANTIZE.format(f"q{o}", i, o, 0.02, 100) for i, o in (("r", "y"), ("s", "z"))]
    graph = same_bits(bytes_graph(*lines, outputs=("y", "z")))
    assert types_of(graph) == ["QuantizeLinear", "torch.chunk"]
    graph = same_bits(bytes_graph(*lines[:3], outputs=("r", "s")))
    assert types_of(graph)[1:] == ["torch.chunk", "DequantizeLinear", "DequantizeLinear"]
    # Parts of different scales: the floats come after the split, then the bytes.
    lines[-1] = QUANTIZE.format("qz", "s", "z", 0.03, 100)
    graph = same_bits(bytes_graph(*lines, outputs=("y", "z")))
    assert types_of(graph) == ["QuantizeLinear", "torch.chunk", "QuantizedExpression"]


NEAREST = "nn.Upsample m 1 1 {} {} mode=nearest scale_factor=({},{}) size=None align_corners=None"


def test_repeated_pixels_are_bytes_if_the_result_is():
    lines = [QUANTIZED, FLOATS, NEAREST.format("p", "r", 2.0, 3.0)]
    after = QUANTIZE.format("q2", "r", "y", 0.02, 100)
    graph = same_bits(bytes_graph(*lines, after))
    assert types_of(graph) == ["QuantizeLinear", "nn.Upsample"]
    graph = same_bits(bytes_graph(*lines, outputs=("r",)))
    assert types_of(graph) == ["QuantizeLinear", "DequantizeLinear", "nn.Upsample"]
    lines[2] = NEAREST.format("p", "r", 1.5, 3.0)
    graph = same_bits(bytes_graph(*lines, after))
    assert types_of(graph)[-1] == "QuantizeLinear"


def test_floats_that_others_read_are_moved_as_floats():
    move = "Tensor.permute m 1 1 p r dims=(0,2,3,1)"
    graph = same_bits(bytes_graph(QUANTIZED, FLOATS, move, outputs=("r", "p")))
    assert types_of(graph) == ["QuantizeLinear", "DequantizeLinear", "Tensor.permute"]
    graph = bytes_graph(move.replace(" p ", " x "), QUANTIZE.format("q", "r", "y", 0.02, 3))
    assert types_of(same_bits(graph)) == ["Tensor.permute", "QuantizeLinear"]


def test_a_maximum_of_what_may_be_nan_stays_float():
    pool = MOVES[1].format("r", "s")
    after = QUANTIZE.format("q2", "s", "y", 0.02, 100)
    graph = same_bits(bytes_graph("pnnx.Expression e 1 1 x r expr=sqrt(@0)", pool, after))
    assert types_of(graph)[-1] == "QuantizeLinear"
    graph = bytes_graph(QUANTIZED, product("c", "b", "r"), pool, after)
    bias = graph.operator("c").attributes["bias"].numpy().copy()
    bias[1] = np.nan
    graph.operator("c").attributes["bias"] = kuiper.ir.Attribute.from_array(bias)
    same_bits(graph)
    assert types_of(graph) == ["QuantizeLinear", "Conv2d", "F.max_pool2d", "QuantizeLinear"]


def test_a_maximum_of_bytes_with_indices_is_refused():
    line = "nn.MaxPool2d m 1 2 b y z kernel_size=(2,2) return_indices=True"
    graph = graph_of(text(QUANTIZED, line, outputs=("y", "z")))
    with pytest.raises(KuiperError, match="the input is uint8, expected float32"):
        run(graph, [X])
