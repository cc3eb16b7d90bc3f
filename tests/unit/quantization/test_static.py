"""Static quantization: which tensors are bytes, errors of results, files, and what is refused."""

from __future__ import annotations

import io

import numpy as np
import pytest

import kuiper
from kuiper.ir import Attribute
from kuiper.quantization.sensitivity import most_sensitive, output_sqnr, sensitivities
from kuiper.quantization.static import Calibrated

from ...support.textgraph import (
    NETWORK,
    branch,
    conv,
    graph_of,
    linear,
    lines_of,
    model_of,
    norm,
    text,
    values,
)

QUANTIZE, DEQUANTIZE = "kuiper.QuantizeLinear", "kuiper.DequantizeLinear"
CONV, LINEAR = "nn.quantized.Conv2d", "nn.quantized.Linear"


def inputs(*shape: int, count: int = 4) -> list[np.ndarray]:
    return [values(*shape, seed=seed) for seed in range(count)]


def sqnr(expected: np.ndarray, got: np.ndarray) -> float:
    return 10 * np.log10(np.square(expected).sum() / np.square(expected - got).sum())


@pytest.fixture(scope="module")
def network() -> kuiper.Model:
    return model_of(NETWORK)


@pytest.fixture(scope="module")
def quantized(network) -> kuiper.Model:
    return kuiper.quantize(network, inputs(2, 3, 12, 10))


def test_results_are_those_of_the_float_model_within_the_error_of_bytes(network, quantized):
    for shape in ((2, 3, 12, 10), (1, 3, 9, 20)):
        x = values(*shape, seed=9)
        for expected, got in zip(network(x), quantized(x), strict=True):
            assert 28 < sqnr(expected, got) < 60


def test_the_graph_of_a_network(quantized):
    assert sorted(lines_of(quantized.graph)) == sorted([
        f"{QUANTIZE} x -> x_bytes",
        f"{CONV} x_bytes -> q",
        "nn.ReLU q -> r",
        f"{QUANTIZE} r -> r_bytes",
        f"{DEQUANTIZE} r_bytes -> r_rounded",
        f"{CONV} r_bytes -> s",
        "add(@0,@1) s r_rounded -> t",
        "nn.SiLU t -> u",
        f"{QUANTIZE} u -> u_bytes",
        f"{CONV} u_bytes -> v",
        "torch.cat v v -> w",
        "F.adaptive_avg_pool2d w -> y",
        "torch.flatten y -> z",
        "nn.Linear z -> o",
    ])  # fmt: skip
    convolution = quantized.graph.operator("a")
    weight, scale, bias = (
        convolution.attributes[key] for key in ("weight", "weight_scale", "bias")
    )
    assert (weight.dtype, weight.shape, scale.shape) == ("i8", (32, 3, 3, 3), (32,))
    assert np.abs(weight.numpy()).reshape(32, -1).max(1).tolist() == [127] * 32
    assert (bias.dtype, convolution.params["bias"]) == ("f32", True)


def test_a_file_gives_the_same_bits(quantized):
    files = io.BytesIO(), io.BytesIO()
    kuiper.save(quantized, *files)
    loaded = kuiper.load(*(io.BytesIO(file.getvalue()) for file in files))
    plain = kuiper.Model(loaded.graph, optimize=False)
    x = values(1, 3, 11, 7)
    for expected, got, other in zip(quantized(x), loaded(x), plain(x), strict=True):
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(other, expected)


def lines(*graph: str, shape=(1, 4, 8, 8), x=("x",), y=("y",), **options) -> list[str]:
    model = model_of(text(*graph, inputs=x, outputs=y))
    data = [tuple(values(*shape, seed=n) for n in range(len(x)))]
    return lines_of(kuiper.quantize(model, data, **options).graph)


def test_a_downsampled_residual_is_stored_in_bytes():
    found = lines(
        branch("a", "x", "p", (1, 1), (0, 0)),
        branch("b", "x", "q", (3, 3), (1, 1)),
        "pnnx.Expression sum 2 1 q p r expr=add(@0,@1)",
        "nn.ReLU relu 1 1 r s",
        branch("c", "s", "y", (1, 1), (0, 0)),
    )
    # The later product adds the other's result, which waits for it in memory.
    assert f"{QUANTIZE} p -> p_bytes" in found
    assert "add(@0,@1) q p_rounded -> r" in found
    assert not [line for line in found if line.startswith(f"{QUANTIZE} q")]


def test_concatenation_and_pooling_share_a_scale():
    model = model_of(
        text(
            conv("a", "x", "p", c=4, o=4),
            "nn.ReLU ra 1 1 p pr",
            conv("b", "x", "q", c=4, o=4),
            "nn.ReLU rb 1 1 q qr",
            "torch.cat cat 2 1 pr qr r dim=1",
            "nn.MaxPool2d pool 1 1 r s ceil_mode=False dilation=(1,1) kernel_size=(2,2) "
            "padding=(0,0) return_indices=False stride=(2,2)",
            conv("c", "s", "y", c=8, o=4),
        )
    )
    graph = kuiper.quantize(model, inputs(1, 4, 8, 8)).graph
    shared = {op.params["scale"] for op in graph.find(QUANTIZE) if op.inputs[0].name in "pr qr r s"}
    assert len(shared) == 1
    assert {op.name for op in graph.find(QUANTIZE)} >= {
        "ra.bytes", "rb.bytes", "cat.bytes", "pool.bytes"
    }  # fmt: skip


@pytest.mark.parametrize(("factor", "rescaled"), [(1, 0), (30, 1)])
def test_a_concatenation_of_other_ranges_rescales(factor, rescaled):
    graph = graph_of(
        text(
            conv("a", "x", "p", c=4, o=4),
            conv("b", "p", "q", c=4, o=4),
            "torch.cat cat 2 1 p q r dim=1",
            conv("c", "r", "y", c=8, o=4),
        )
    )
    attributes = graph.operator("b").attributes
    weight = 4 * factor * np.abs(attributes["weight"].numpy())
    if factor == 1:  # the same range as that of its input
        weight = np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1)
        attributes["bias"] = Attribute.from_array(np.zeros(4, np.float32))
    attributes["weight"] = Attribute.from_array(weight)
    found = kuiper.quantize(kuiper.Model(graph), inputs(1, 4, 8, 8)).graph
    assert len(found.find(QUANTIZE, "*.rescaled_bytes")) == rescaled


def test_batch_normalisation_of_a_concatenation_reads_bytes():
    found = lines(
        conv("a", "x", "p", c=4, o=4),
        conv("b", "x", "q", c=4, o=4),
        "torch.cat cat 2 1 p q r dim=1",
        norm("bn", "r", "s", c=8),
        "nn.ReLU relu 1 1 s t",
        conv("c", "t", "y", c=8, o=4),
    )
    assert f"{QUANTIZE} r -> r_bytes" in found
    assert "nn.BatchNorm2d r_rounded -> s" in found
    assert not [line for line in found if line.startswith(f"{QUANTIZE} s")]


def test_padding_joins_the_convolution():
    found = lines("nn.ZeroPad2d pad 1 1 x p padding=(0,1,0,1)", conv("a", "p", "y", c=4, kernel=2))
    assert found == [f"{QUANTIZE} x -> x_bytes", f"{CONV} x_bytes -> y"]


def test_linear_layers_of_a_residual_stream():
    found = lines(
        "nn.LayerNorm ln 1 1 x p elementwise_affine=True eps=1e-05 normalized_shape=(64) "
        "@bias=(64)f32 @weight=(64)f32",
        linear("a", "p", "q", 64, 96),
        "nn.GELU gelu 1 1 q r",
        linear("b", "r", "s", 96, 64),
        "pnnx.Expression sum 2 1 x s y expr=add(@0,@1)",
        shape=(2, 5, 64),
    )
    assert found == [
        "nn.LayerNorm x -> p",
        f"{QUANTIZE} p -> p_bytes",
        f"{LINEAR} p_bytes -> q",
        "nn.GELU q -> r",
        f"{QUANTIZE} r -> r_bytes",
        f"{LINEAR} r_bytes -> s",
        "add(@0,@1) x s -> y",
    ]


def test_an_output_that_a_layer_reads_stays_float():
    found = lines(conv("a", "x", "p", c=4, o=4), conv("b", "p", "y", c=4), y=("p", "y"))
    assert found.count(f"{QUANTIZE} p -> p_bytes") == 1
    assert not [line for line in found if line.startswith(DEQUANTIZE)]


@pytest.mark.parametrize("bias", [True, False])
def test_biases_are_corrected(network, bias):
    data = inputs(2, 3, 12, 10)
    model = network.with_graph(Calibrated(network, data).graph((), bias))
    # Only where the ReLU after the first layer passes anything does the mean count.
    worst = 0.0
    for name, axes in (("r", (0, 2, 3)), ("s", (0, 2, 3)), ("v", (0, 2, 3))):
        expected, found = (
            np.mean([m.trace(x, [name])[name].mean(axes) for x in data], 0)
            for m in (network, model)
        )
        worst = max(worst, np.abs(expected - found).max())
    assert (worst < 1e-4) == bias


def test_a_layer_without_bias_gets_one():
    model = model_of(text(branch("a", "x", "y", (3, 3), (1, 1))))
    op = kuiper.quantize(model, inputs(1, 4, 8, 8)).graph.operator("a")
    assert op.attributes["bias"].shape == (4,)
    assert op.params["bias"] is True


def test_layers_that_are_kept(network):
    graph = kuiper.quantize(network, inputs(1, 3, 12, 10), keep=["a", "g*"]).graph
    assert [op.name for op in graph.find(CONV)] == ["d"]
    assert {op.name for op in graph.find("nn.Conv2d")} == {"a", "g"}


def test_the_most_sensitive_layers_stay_float(network):
    calibrated = Calibrated(network, inputs(1, 3, 12, 10))
    rows = sensitivities(calibrated)
    assert [row.sqnr for row in rows] == sorted(row.sqnr for row in rows)
    assert {row.name for row in rows} == set(calibrated.names)
    whole = output_sqnr(calibrated, calibrated.graph())
    assert whole < rows[0].sqnr + 1
    assert most_sensitive(calibrated, rows, whole - 3) == []
    assert most_sensitive(calibrated, rows, 1000.0) == [row.name for row in rows]
    target = (whole + rows[-1].sqnr) / 2
    kept = most_sensitive(calibrated, rows, target)
    assert kept == [row.name for row in rows][: len(kept)]
    assert output_sqnr(calibrated, calibrated.graph(kept)) >= target
    model = kuiper.quantize(network, inputs(1, 3, 12, 10), min_sqnr=target)
    assert len(model.graph.find("nn.Conv2d")) == len(kept)


def test_inputs_of_every_form():
    model = model_of(
        text(
            conv("a", "x", "p", c=4, o=4),
            conv("b", "z", "q", c=4, o=4),
            "pnnx.Expression sum 2 1 p q y expr=add(@0,@1)",
            inputs=("x", "z"),
        )
    )
    x, z = values(1, 4, 6, 6), values(1, 4, 6, 6, seed=1)
    graphs = [
        kuiper.quantize(model, data).graph
        for data in ([(x, z)], [{"x": x, "z": z}], iter([(x, z)]))
    ]
    assert str(graphs[0]) == str(graphs[1]) == str(graphs[2])


WEIGHTS = conv("a", "x", "y", c=4, o=4)
X = values(1, 4, 6, 6)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([], {}, "calibration is empty"),
        (X, {}, r"calibration is ndarray, expected an iterable of inputs of the model \('x'\)"),
        ({"x": X}, {}, "calibration is dict"),
        (3, {}, "calibration is int"),
        ([X, X[0]], {}, "calibration input 1: "),
        ([np.float64(X)], {}, "calibration input 0: .*float64"),
        ([X, X * np.nan], {}, "calibration input 1: 'x' contains an infinity or NaN"),
        ([values(1, 5, 6, 6)], {}, "5 channels"),
        ([X], {"keep": ["b"]}, "keep='b' matches no layer"),
        ([X], {"keep": "a"}, "expected a list"),
        ([X], {"keep": ["a"]}, "there is no layer to quantize"),
        ([X], {"method": "max"}, "method is 'max', expected one of minmax, percentile"),
        ([X], {"method": "percentile", "percentile": 1}, "percentile is 1"),
        (None, {"min_sqnr": 30}, "need calibration data"),
    ],
)
def test_bad_calibration(data, options, message):
    model = model_of(text(WEIGHTS, inputs=("x",)).replace("0 1 x", "0 1 x #x=(1,4,6,6)f32"))
    with pytest.raises(kuiper.KuiperError, match=message):
        kuiper.quantize(model, data, **options)


def test_tensors_with_nan_are_named():
    model = model_of(text("pnnx.Expression e 1 1 x p expr=log(@0)", conv("a", "p", "y", c=4, o=4)))
    with pytest.raises(kuiper.InputError, match=r"input 0: 'p', the result of .*'e'.* NaN"):
        kuiper.quantize(model, [X])
    graph = graph_of(text(WEIGHTS))
    weight = graph.operator("a").attributes["weight"].numpy().copy()
    weight[0] = np.inf
    graph.operator("a").attributes["weight"] = Attribute.from_array(weight)
    with pytest.raises(kuiper.InputError):
        kuiper.quantize(kuiper.Model(graph), [X])


def test_rescaled_bytes_are_shared():
    graph = graph_of(
        text(
            conv("a", "x", "p", c=4, o=4),
            conv("b", "p", "q", c=4, o=4),
            "torch.cat cat 2 1 p q r dim=1",
            "torch.cat dog 2 1 r p s dim=1",
            conv("c", "s", "y", c=12, o=4),
        )
    )
    weight = 100 * np.abs(graph.operator("b").attributes["weight"].numpy())
    graph.operator("b").attributes["weight"] = Attribute.from_array(weight)
    found = kuiper.quantize(kuiper.Model(graph), inputs(1, 4, 8, 8)).graph
    assert len(found.find(QUANTIZE, "*.rescaled_bytes*")) == 1
    assert lines_of(found).count("torch.cat p_rescaled q_rounded -> r") == 1
