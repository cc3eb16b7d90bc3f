"""Layers of transformers and recurrent layers, against onnxruntime 1.32."""

import numpy as np
import pytest

import kuiper

from ...support.onnxfile import single
from ...support.onnxlayers import expected, layers


@pytest.mark.parametrize("title", layers())
def test_results_of_onnxruntime(title):
    for layer in layers()[title]:
        results = kuiper.load(layer.file)(*layer.inputs)
        results = results if isinstance(results, tuple) else (results,)
        for got, wanted in zip(results, expected()[title, layer.name], strict=True):
            assert got.shape == wanted.shape, layer.name
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5, err_msg=layer.name)


HEADS = {key: np.zeros((2, 4, 8), np.float32) for key in "qkv"}
X = np.zeros((2, 4, 8), np.float32)
REFUSED = {
    "mean or the variance": ("SkipLayerNormalization", {"x": X, "s": X, "g": X[0, 0]}, "y mean",
                             {}),
    "packed": ("MultiHeadAttention", {"q": np.zeros((2, 4, 2, 3, 4), np.float32)}, "y",
               {"num_heads": 2}),
    "mask of 3": ("MultiHeadAttention",
                  HEADS | {"b": np.zeros(24, np.float32), "m": np.zeros((2, 3), np.int32)}, "y",
                  {"num_heads": 2}),
    "expected 24 numbers": ("MultiHeadAttention", HEADS | {"b": X[0, 0]}, "y", {"num_heads": 2}),
    "the activation 'Selu'": ("FusedGemm", {"a": X[0], "b": X[0].T}, "y", {"activation": "Selu"}),
    "do_rotary": ("Attention", {"x": X, "w": np.zeros((8, 24), np.float32)}, "y",
                  {"num_heads": 2, "do_rotary": 1}),
    "lacks the input 'seqlens_k'": ("GroupQueryAttention", HEADS, "y",
                                    {"num_heads": 2, "kv_num_heads": 1}),
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_refusals(text):
    type_, arrays, outputs, arguments = REFUSED[text]
    file = single(type_, arrays, outputs, domain="com.microsoft", **arguments)
    with pytest.raises(kuiper.OperatorError, match=rf"node 'n' \({type_}\).*{text}"):
        kuiper.load(file)
