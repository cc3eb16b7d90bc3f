"""Passes that make products of bytes of simulated quantization, and keep tensors in bytes."""

from __future__ import annotations

import numpy as np
import pytest

import kuiper
from kuiper.errors import KuiperError
from kuiper.ir import Attribute
from kuiper.passes import restore_exported
from kuiper.passes.restore.quantized import grid_of

from ...support import assert_same_bits
from ...support.passes import optimized, run
from ...support.textgraph import conv, graph_of, linear, lines_of, norm, text, values

X = values(2, 4, 5, 6)
FAKE = (
    "aten::fake_quantize_per_tensor_affine {} 1 1 {} {} scale={} zero_point={} quant_min={} "
    "quant_max={}"
)
QUANTIZE = "kuiper.QuantizeLinear {} 1 1 {} {} scale={} zero_point={}"
DEQUANTIZE = "kuiper.DequantizeLinear {} 1 1 {} {} scale={} zero_point={}"


def product(name: str, x: str, y: str, inputs: int = 4, outputs: int = 4) -> str:
    """Return the line of a 1x1 convolution of bytes, of the scale 0.02 and the zero point 100."""
    line = conv(name, x, y, inputs, outputs, type="nn.quantized.Conv2d")
    return f"{line}input_scale=0.02 input_zero_point=100 @weight_scale=({outputs})f32"


def bytes_graph(*lines: str, **options):
    """Return a graph whose products of bytes have weights of bytes and positive scales."""
    graph = graph_of(text(*lines, **options))
    for op in graph:
        if "weight_scale" in op.attributes:
            steps = np.rint(128 * op.attributes["weight"].numpy()).astype(np.int8)
            scales = np.abs(op.attributes["weight_scale"].numpy()) / 64 + np.float32(0.001)
            changed = {"weight": steps, "weight_scale": scales}
            op.attributes |= {name: Attribute.from_array(a) for name, a in changed.items()}
    return graph


def on_grid(graph, name: str, low: int = -128, high: int = 128):
    """Round the weight of an operator to a grid; return the integers and the scales."""
    op = graph.operator(name)
    shape = op.attributes["weight"].shape
    rng = np.random.default_rng(len(name))
    steps = rng.integers(low, high, shape).astype(np.float32)
    scales = np.exp(rng.normal(-4, 1, shape[0])).astype(np.float32)
    weight = steps * scales.reshape(-1, *[1] * (len(shape) - 1))
    op.attributes = {**op.attributes, "weight": Attribute.from_array(weight)}
    return steps, scales


# -- the grid of a weight ------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [(-128, 128), (-127, 128), (-64, 64), (-1, 2)])
def test_a_grid_is_found_bit_by_bit(limits):
    rng = np.random.default_rng(limits[1])
    steps = rng.integers(*limits, (40, 3, 3, 3)).astype(np.float32)
    steps[5] = 0
    scales = np.exp(rng.normal(-4, 2, 40)).astype(np.float32)
    weight = steps * scales[:, None, None, None]
    values, found = grid_of(weight)
    assert values.dtype == np.int8
    assert (found > 0).all()
    assert_same_bits(values * found[:, None, None, None] + 0.0, weight + 0.0, "result")


def test_weights_off_the_grid_have_none():
    steps = np.random.default_rng(0).integers(-128, 128, (8, 50)).astype(np.float32)
    weight = steps * np.float32(0.0371)
    assert grid_of(weight) is not None
    one = weight.copy()
    row, column = np.argwhere(np.abs(steps) == 77)[0]
    one[row, column] = np.nextafter(one[row, column], np.float32(1))
    assert grid_of(one) is None
    both_ends = weight.copy()
    both_ends[0, :3] = np.float32([-128, 128, 1]) * np.float32(0.0371)
    assert grid_of(both_ends) is None  # 257 steps
    for wrong in (np.inf, np.nan):
        one[row, column] = wrong
        assert grid_of(one) is None
    assert grid_of(np.zeros((3, 0), np.float32)) is None


# -- fake quantization ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zero", "low", "high"), [(90, 0, 255), (-3, -128, 127), (60, 0, 127), (0, -127, 127)]
)
def test_fake_quantization_becomes_bytes(zero, low, high):
    lines = [FAKE.format("f", "x", "p", 0.03, zero, low, high), conv("c", "p", "y", 4)]
    graph = graph_of(text(*lines))
    on_grid(graph, "c")
    before = run(graph, [3 * X])[0]
    restore_exported(graph)
    words = [line.split()[0] for line in lines_of(graph)]
    assert {"kuiper.QuantizeLinear", "nn.quantized.Conv2d"} < set(words)
    assert ("nn.Hardtanh" in words) == (high - low < 255)
    after = run(graph, [3 * X])[0]
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-5 * np.abs(before).max())


def test_a_relu_before_a_small_range_is_part_of_the_clamp():
    lines = ["nn.ReLU r 1 1 x p", FAKE.format("f", "p", "y", 0.05, 0, 0, 127)]
    graph = graph_of(text(*lines))
    before = run(graph, [X])[0]
    restore_exported(graph)
    assert [line.split()[0] for line in lines_of(graph)] == [
        "nn.Hardtanh", "kuiper.QuantizeLinear", "kuiper.DequantizeLinear"
    ]  # fmt: skip
    assert_same_bits(run(graph, [X])[0], before, "result")


def test_a_relu_that_another_operator_reads_stays():
    lines = ["nn.ReLU r 1 1 x p", FAKE.format("f", "p", "y", 0.05, 0, 0, 127)]
    graph = graph_of(text(*lines, outputs=("y", "p")))
    restore_exported(graph)
    assert "nn.ReLU" in [line.split()[0] for line in lines_of(graph)]


@pytest.mark.parametrize(
    "numbers", [(0.0, 3, 0, 255), (1e-38, 3, 0, 255), (0.1, 300, 0, 255), (0.1, 3, 0, 65535)]
)
def test_other_fake_quantization_stays(numbers):
    graph = graph_of(text(FAKE.format("f", "x", "y", *numbers)))
    restore_exported(graph)
    assert [line.split()[0] for line in lines_of(graph)] == [FAKE.split()[0]]


OBSERVED = """pnnx.Input in_x 0 1 x
    pnnx.Expression average 0 1 average expr=0.01
    pnnx.Expression low 0 1 low expr=0
    pnnx.Expression high 0 1 high expr=255
    pnnx.Expression axis 0 1 axis expr=-1
    pnnx.Expression no 0 1 no expr=False
    pnnx.Attribute observes 0 1 observes @data=(1)f32 #observes=(1)f32
    pnnx.Attribute quantizes 0 1 quantizes @data=(1)f32 #quantizes=(1)f32
    pnnx.Attribute least 0 1 least @data=(1)f32 #least=(1)f32
    pnnx.Attribute most 0 1 most @data=(1)f32 #most=(1)f32
    pnnx.Attribute scale 0 1 scale @data=(1)f32 #scale=(1)f32
    pnnx.Attribute zero 0 1 zero @data=(1)f32 #zero=(1)f32
    aten::fused_moving_avg_obs_fake_quant f 13 1 x observes quantizes least most scale zero average low high axis no no y
    pnnx.Output out_y 1 0 y"""  # noqa: E501


def observed(observes: int, quantizes: int):
    graph = graph_of(OBSERVED)
    for name, number in (
        ("observes", observes), ("quantizes", quantizes), ("scale", 0.04), ("zero", 120),
    ):  # fmt: skip
        number = np.array([number], np.float32)
        graph.operator(name).attributes = {"data": Attribute.from_array(number)}
    return graph


def test_an_observer_that_is_off_quantizes():
    y = kuiper.Model(observed(0, 1))(X)
    inverse = np.float32(1) / np.float32(0.04)
    expected = (np.clip(np.rint(X * inverse) + 120, 0, 255) - 120) * np.float32(0.04)
    assert_same_bits(y, expected.astype(np.float32) + 0.0, "result")


def test_an_observer_without_quantization_is_an_identity():
    assert_same_bits(kuiper.Model(observed(0, 0))(X), X, "result")


def test_an_observer_that_is_on_is_refused():
    with pytest.raises(KuiperError, match=r"'f' .*fused_moving_avg.*disable_observer"):
        kuiper.Model(observed(1, 1))(X)


# -- products --------------------------------------------------------------------------------------


def test_products_of_dequantized_bytes_by_weights_on_a_grid_become_products_of_bytes():
    lines = [
        QUANTIZE.format("q", "x", "b", 0.02, 100),
        DEQUANTIZE.format("d", "b", "p", 0.02, 100),
        conv("c", "p", "r", 4, 6, kernel=3, padding=1),
        QUANTIZE.format("q2", "r", "s", 0.05, 90),
        DEQUANTIZE.format("d2", "s", "t", 0.05, 90),
        linear("l", "t", "y", 6, 5),
    ]
    graph = graph_of(text(*lines))
    steps, _ = on_grid(graph, "c")
    on_grid(graph, "l", -5, 6)
    expected = run(graph, [X])[0]
    restore_exported(graph)
    conv_, linear_ = graph.operator("c"), graph.operator("l")
    assert (conv_.type, linear_.type) == ("nn.quantized.Conv2d", "nn.quantized.Linear")
    assert conv_.attributes["weight"].dtype == "i8"
    np.testing.assert_array_equal(conv_.attributes["weight"].numpy(), steps)
    assert linear_.params["input_zero_point"] == 90
    np.testing.assert_allclose(run(graph, [X])[0], expected, atol=0.06 * np.abs(expected).max())


@pytest.mark.parametrize(
    "line",
    [
        conv("c", "p", "y", 4),  # its weights are noise
        conv("c", "p", "y", 4).replace("zeros", "reflect"),
        conv("c", "x", "y", 4),
        conv("c", "p w", "y", 4)
        .replace(" 1 1 p", " 2 1 p")
        .replace("@weight=(4,4,1,1)f32", "$weight=w"),
    ],
)
def test_other_products_stay(line):
    lines = [
        "pnnx.Attribute a 0 1 w @data=(4,4,1,1)f32 #w=(4,4,1,1)f32",
        QUANTIZE.format("q", "x", "b", 0.02, 100),
        DEQUANTIZE.format("d", "b", "p", 0.02, 100),
        line,
    ]
    graph = graph_of(text(*lines))
    if "reflect" in line or " x y " in line:
        on_grid(graph, "c")
    restore_exported(graph)
    assert graph.operator("c").type == "nn.Conv2d"


# -- bytes between products ------------------------------------------------------------------------


def test_bytes_that_are_dequantized_and_quantized_again_are_the_same_bytes():
    rng = np.random.default_rng(0)
    x = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    for scale in (*np.exp(rng.normal(0, 9, 30)), 1e-30, 1e30):
        zero = int(rng.integers(0, 256))
        lines = [
            DEQUANTIZE.format("d", "x", "p", scale, zero),
            QUANTIZE.format("q", "p", "y", scale, zero),
        ]
        graph = graph_of(text(*lines))
        np.testing.assert_array_equal(run(graph, [x])[0], x)
    optimized(graph, [x], "eliminate_quantized", "eliminate_dead")
    assert lines_of(graph) == []


@pytest.mark.parametrize("other", [(0.021, 100), (0.02, 101)])
def test_bytes_of_other_parameters_are_computed(other):
    lines = [DEQUANTIZE.format("d", "x", "p", 0.02, 100), QUANTIZE.format("q", "p", "y", *other)]
    graph = graph_of(text(*lines))
    x = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    optimized(graph, [x], "eliminate_quantized")
    assert len(lines_of(graph)) == 2


FUSING = (
    "fuse_activation",
    "fuse_residual",
    "eliminate_quantized",
    "fuse_quantized",
    "eliminate_dead",
)


@pytest.mark.parametrize("activation", ["nn.ReLU", "nn.ReLU6", "nn.SiLU"])
def test_a_product_reads_a_residual_in_bytes_and_writes_bytes(activation):
    lines = [
        QUANTIZE.format("q", "x", "b", 0.02, 100),
        DEQUANTIZE.format("d", "b", "p", 0.02, 100),
        product("c", "b", "r"),
        "pnnx.Expression s 2 1 r p t expr=add(@0,@1)",
        f"{activation} a 1 1 t u",
        QUANTIZE.format("q2", "u", "y", 0.01, 7),
    ]
    graph = bytes_graph(*lines)
    before = run(graph, [X])[0]
    optimized(graph, [X], *FUSING)
    assert lines_of(graph) == [
        "kuiper.QuantizeLinear x -> b",
        f"nn.quantized.Conv2d b b -> y | add {activation} kuiper.QuantizeLinear",
    ]
    assert before.dtype == np.uint8
    assert len(set(before.ravel().tolist())) > 20
    np.testing.assert_array_equal(run(graph, [X])[0], before)


def test_a_result_with_two_readers_stays_float32():
    for extra in ("nn.ReLU a 1 1 r z", QUANTIZE.format("a", "r", "z", 0.02, 3)):
        lines = [
            QUANTIZE.format("q", "x", "b", 0.02, 100), product("c", "b", "r"),
            QUANTIZE.format("q2", "r", "y", 0.01, 7), extra,
        ]  # fmt: skip
        graph = bytes_graph(*lines, outputs=("y", "z"))
        optimized(graph, [X], "fuse_quantized")
        assert "nn.quantized.Conv2d b -> r" in lines_of(graph)
    graph = bytes_graph(*lines[:3], outputs=("y", "r"))
    optimized(graph, [X], "fuse_quantized")
    assert "nn.quantized.Conv2d b -> r" in lines_of(graph)


def test_a_float_residual_stays():
    lines = [
        QUANTIZE.format("q", "x", "b", 0.02, 100),
        product("c", "b", "r"),
        "pnnx.Expression s 2 1 r x y expr=add(@0,@1)",
    ]
    graph = bytes_graph(*lines)
    optimized(graph, [X], *FUSING)
    assert lines_of(graph)[1] == "nn.quantized.Conv2d b x -> y | add"


def test_a_float_product_does_not_write_bytes():
    graph = bytes_graph(conv("c", "x", "r", 4), QUANTIZE.format("q", "r", "y", 0.02, 3))
    optimized(graph, [X], "fuse_quantized")
    assert len(lines_of(graph)) == 2


@pytest.mark.parametrize("function", ["div", "mul"])
def test_factors_per_channel_and_norms_are_folded_into_the_scales(function):
    lines = [
        "pnnx.Attribute k 0 1 w @data=(1,4,1,1)f32 #w=(1,4,1,1)f32",
        QUANTIZE.format("q", "x", "b", 0.02, 100),
        product("c", "b", "r"),
        f"pnnx.Expression e 2 1 r w s expr={function}(@0,@1)",
        norm("n", "s", "y"),
    ]
    graph = bytes_graph(*lines)
    optimized(graph, [X], "fold_channel_factors", "fold_batch_norm", "eliminate_dead")
    assert lines_of(graph) == ["kuiper.QuantizeLinear x -> b", "nn.quantized.Conv2d b -> y"]


@pytest.mark.parametrize("shape", ["1,1,5,6", "4,1,1", "1"])
def test_other_factors_stay(shape):
    lines = [
        f"pnnx.Attribute k 0 1 w @data=({shape})f32 #w=({shape})f32",
        QUANTIZE.format("q", "x", "b", 0.02, 100),
        product("c", "b", "r"),
        "pnnx.Expression e 2 1 r w y expr=mul(@0,@1)",
    ]
    graph = bytes_graph(*lines)
    optimized(graph, [X], "fold_channel_factors")
    assert "mul(@0,@1) r w -> y" in lines_of(graph)


def test_a_saved_model_of_bytes_has_the_same_bits(tmp_path):
    lines = [
        QUANTIZE.format("q", "x", "b", 0.02, 100), product("c", "b", "r"),
        QUANTIZE.format("q2", "r", "s", 0.03, 99), DEQUANTIZE.format("d2", "s", "y", 0.03, 99),
    ]  # fmt: skip
    model = kuiper.Model(bytes_graph(*lines))
    path = tmp_path / "m.pnnx.param"
    kuiper.save(model, path)
    assert_same_bits(kuiper.load(path)(X), model(X), "result")
    assert_same_bits(kuiper.load(path, optimize=False)(X), model(X), "result")
