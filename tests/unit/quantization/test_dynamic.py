"""Dynamic quantization: which layers, their error, files, and what is refused."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest

import kuiper
from kuiper.ir import Attribute
from kuiper.quantization import quantizable
from kuiper.quantization.weights import quantize_weight

from ...support.engine import n_threads
from ...support.textgraph import graph_of, model_of
from ...support.workbench import EXTENDED_ISAS, isa, noise

LAYERS = """pnnx.Input in 0 1 x
    nn.Linear first 1 1 x a bias=True in_features=70 out_features=96 @bias=(96)f32 @weight=(96,70)f32
    nn.GELU act 1 1 a b
    nn.Linear second 1 1 b c bias=False in_features=96 out_features=70 @weight=(70,96)f32
    pnnx.Expression sum 2 1 c x d expr=add(@0,@1)
    nn.Linear last 1 1 d e bias=True in_features=70 out_features=3 @bias=(3)f32 @weight=(3,70)f32
    pnnx.Output out 1 0 e"""  # noqa: E501
TYPE = "nn.quantized.dynamic.Linear"


def types_of(model: kuiper.Model) -> dict[str, str]:
    return {op.name: op.type for op in model.graph}


def emulated(graph, x: np.ndarray) -> np.ndarray:
    """Compute LAYERS in float64, with weights and rows rounded as the documentation says."""

    def layer(name: str, x: np.ndarray) -> np.ndarray:
        attributes = graph.operator(name).attributes
        weight = attributes["weight"].numpy().astype(np.float64)
        bias = attributes["bias"].numpy() if "bias" in attributes else 0.0
        if name != "last":
            scale = np.abs(weight).max(1, keepdims=True) / 127
            weight = np.rint(weight / scale) * scale
            step = np.abs(x).max(-1, keepdims=True) / 127
            x = np.rint(x / step) * step
        return x @ weight.T + bias

    from math import erf, sqrt

    hidden = layer("first", x)
    hidden *= 0.5 * (1 + np.vectorize(erf)(hidden / sqrt(2)))
    return layer("last", layer("second", hidden) + x)


@pytest.mark.parametrize(("name", "extended"), EXTENDED_ISAS)
def test_results_are_those_of_rounded_weights_and_rows(name, extended):
    with isa(name, extended):
        model = model_of(LAYERS)
        x = noise((9, 70))
        got = kuiper.quantize(model)(x)
    # A row may round to the other side of a half, since the engine's first layer is in float32.
    np.testing.assert_allclose(got, emulated(model.graph, x.astype(np.float64)), atol=2e-3)
    assert np.abs(got - model(x)).max() < 0.05 * np.abs(got).max()


def test_the_same_bits_in_all_variants_batches_and_threads():
    x = noise((33, 70))
    results = []
    for name, extended in EXTENDED_ISAS:
        with isa(name, extended):
            # Without the activation, which differs in the last bit between vector widths.
            model = kuiper.quantize(model_of(LAYERS.replace("nn.GELU", "nn.ReLU")), keep=[])
            for threads in (1, 2):
                with n_threads(threads):
                    hidden = model.trace(x, ["second"])["second"]
                    results.append(hidden.tobytes())
            rows = [model.trace(x[i : i + 1], ["second"])["second"] for i in range(33)]
            results.append(np.concatenate(rows).tobytes())
    assert len(set(results)) == 1


def test_the_model_is_not_changed_and_settings_are_kept():
    model = kuiper.Model(graph_of(LAYERS), threads=1, max_memory=10**8, plans=3)
    quantized = kuiper.quantize(model)
    assert TYPE not in types_of(model).values()
    assert types_of(quantized) == {
        **types_of(model), "first": TYPE, "second": TYPE, "last": "nn.Linear"
    }  # fmt: skip
    assert (quantized.threads, quantized.max_memory, quantized.max_plans) == (1, 10**8, 3)


def written(model: kuiper.Model) -> tuple[bytes, bytes]:
    """Return the two files of a model."""
    param, archive = io.BytesIO(), io.BytesIO()
    kuiper.save(model, param, archive)
    return param.getvalue(), archive.getvalue()


def test_names_to_keep():
    model = model_of(LAYERS)
    assert types_of(kuiper.quantize(model, keep=["f*"]))["first"] == "nn.Linear"
    assert [op.name for op in quantizable(model.graph, ["second"])] == ["first"]
    with pytest.raises(kuiper.InputError) as caught:
        kuiper.quantize(model, keep=["last"])
    assert str(caught.value) == (
        "keep='last' matches no layer that can be quantized; they are 'first', 'second'"
    )
    with pytest.raises(kuiper.InputError, match="expected a list of names"):
        kuiper.quantize(model, keep="first")
    with pytest.raises(kuiper.InputError, match="there is no layer to quantize"):
        kuiper.quantize(model, keep=["first", "second"])
    with pytest.raises(kuiper.InputError, match=r"model is str, expected a kuiper\.Model"):
        kuiper.quantize("model.pnnx.param")


def test_files_copies_and_pickles(tmp_path):
    quantized = kuiper.quantize(model_of(LAYERS))
    x = noise((4, 70))
    want = quantized(x)
    path = tmp_path / "small.pnnx.param"
    kuiper.save(quantized, path)
    text = path.read_text()
    assert "nn.quantized.dynamic.Linear" in text
    assert "@weight=(96,70)i8" in text
    assert "@weight_scale=(96)f32" in text
    for other in (kuiper.load(path), pickle.loads(pickle.dumps(quantized))):
        assert other(x).tobytes() == want.tobytes()
    assert kuiper.load(path, optimize=False)(x).shape == want.shape


def test_half_precision_weights_and_rows_of_zeros():
    weight = noise((80, 60)).astype(np.float16)
    weight[3] = 0
    weight[4] = 1e-7
    done = quantize_weight(Attribute.from_array(weight), "fc")
    scale = done.scale.numpy()
    assert (done.values.dtype, done.scale.dtype) == ("i8", "f32")
    assert scale[3] == 1.0
    wide = weight.astype(np.float64)
    error = wide - done.values.numpy() * scale.astype(np.float64)[:, None]
    assert (np.abs(error) <= scale[:, None] * 0.5001).all()
    want = 10 * np.log10((wide**2).sum() / (error**2).sum())
    assert done.sqnr == pytest.approx(want, rel=1e-4)
    assert quantize_weight(Attribute.from_array(np.zeros((2, 3), np.float32)), "fc").sqnr == np.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_bytes_cannot_represent(bad):
    graph = graph_of(LAYERS)
    weight = graph.operator("second").attributes["weight"].numpy().copy()
    weight[41, 7] = bad
    graph.operator("second").attributes["weight"] = Attribute.from_array(weight)
    with pytest.raises(kuiper.InputError) as caught:
        kuiper.quantize(kuiper.Model(graph))
    assert "'second'" in str(caught.value)
    assert "row 41 of its weight has an infinity or NaN" in str(caught.value)


def broken(change) -> kuiper.Model:
    graph = kuiper.quantize(model_of(LAYERS)).graph.copy()
    attributes = dict(graph.operator("first").attributes)
    change(attributes)
    graph.operator("first").attributes = attributes
    return kuiper.Model(graph)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_scales_that_are_wrong_are_refused_at_load(bad):
    def change(attributes):
        scale = attributes["weight_scale"].numpy().copy()
        scale[5] = bad
        attributes["weight_scale"] = Attribute.from_array(scale)

    with pytest.raises(kuiper.OperatorError) as caught:
        broken(change)
    assert f"'weight_scale' of column 5 is {bad}, expected a positive finite" in str(caught.value)


def test_a_missing_scale_is_refused_at_load():
    with pytest.raises(kuiper.OperatorError, match="weight_scale"):
        broken(lambda attributes: attributes.pop("weight_scale"))


@pytest.mark.parametrize(
    ("key", "array", "message"),
    [
        ("weight", np.zeros((96, 70), np.float32), "'weight' is float32, expected int8"),
        ("weight", np.zeros((96, 70), np.uint8), "'weight' is uint8, expected int8"),
        ("weight_scale", np.ones(96), "'weight_scale' is float64, expected float32"),
        ("weight_scale", np.ones(70, np.float32), r"\(70,\), expected \(96,\)"),
        ("bias", np.ones(70, np.float32), r"'bias' has shape \(70,\), expected \(96,\)"),
    ],
)
def test_attributes_of_other_types_and_shapes(key, array, message):
    model = broken(lambda attributes: attributes.update({key: Attribute.from_array(array)}))
    with pytest.raises(kuiper.ShapeError, match=message):
        model(noise((2, 70)))


def test_rows_that_are_not_finite_become_nan_alone():
    x = noise((3, 70))
    x[1, 5] = np.inf
    model = kuiper.quantize(model_of(LAYERS), keep=["second"])
    got = model.trace(x, ["first"])["first"]
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[[0, 2]]).all()


ATTENTION = """pnnx.Input in 0 1 x
    pnnx.Input mask 0 1 m
    nn.MultiheadAttention att 2 1 x m y batch_first=True bias=True embed_dim=48 num_heads=4 $attn_mask=m @in_proj_bias=(144)f32 @in_proj_weight=(144,48)f32 @out_proj.bias=(48)f32 @out_proj.weight=(48,48)f32 #x=(2,7,48)f32 #m=(2,7)f32
    nn.Linear up 1 1 y z bias=False in_features=48 out_features=96 @weight=(96,48)f32
    pnnx.Output out 1 0 z"""  # noqa: E501


def test_attention_keeps_its_mask_and_its_biases():
    """The weight of its second layer is too small for bytes, so all of the attention stays."""
    model = model_of(ATTENTION)
    assert types_of(kuiper.quantize(model)) == {
        "in": "pnnx.Input", "mask": "pnnx.Input", "att": "nn.MultiheadAttention", "up": TYPE,
        "out": "pnnx.Output",
    }  # fmt: skip
    wide = ATTENTION.replace("48", "64").replace("144", "192")
    model = model_of(wide)
    x, hidden = noise((2, 7, 64)), np.zeros((2, 7), np.float32)
    hidden[0, 3:] = hidden[1, 6] = -np.inf
    quantized = kuiper.quantize(model, keep=["up"])
    assert types_of(quantized)["att"] == "nn.quantized.dynamic.MultiheadAttention"
    want, got = model(x, hidden), quantized(x, hidden)
    assert 0 < np.abs(got - want).max() < 0.05 * np.abs(want).max()
    other = x.copy()
    other[0, 3:] += 100.0  # hidden keys, although queries of their own
    np.testing.assert_array_equal(quantized(other, hidden)[0, :3], got[0, :3])
    assert kuiper.load(*written(quantized))(x, hidden).tobytes() == got.tobytes()
