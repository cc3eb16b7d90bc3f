"""Layers that exporters write out: recognised where they mean the same, left alone elsewhere."""

import math

import numpy as np
import pytest

import kuiper

from ...support.onnxfile import graph, model, node, tensor, value

RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(2, 5, 8)).astype(np.float32)
VECTOR = RANDOM.normal(size=8).astype(np.float32)
MATRIX = RANDOM.normal(size=(8, 8)).astype(np.float32)


def loaded(nodes, tensors=None, shape=(2, 5, 8), outputs=("y",), opset=17):
    """Return a model with the input x."""
    known = [tensor(key, np.asarray(array)) for key, array in (tensors or {}).items()]
    inputs = [value("x", np.float32, shape)]
    return kuiper.load(model(graph(nodes, inputs, [value(key) for key in outputs], known), opset))


def types(model):
    ends = ("pnnx.Input", "pnnx.Output", "pnnx.Attribute")
    return [op.type for op in model.graph if op.type not in ends]


def f32(number):
    return np.float32(number)


def erf(x):
    return np.vectorize(math.erf)(x)


def test_bias():
    nodes = [node("MatMul", "x w", "m"), node("Add", "b m", "y")]
    found = loaded(nodes, {"w": MATRIX, "b": VECTOR})
    assert types(found) == ["nn.Linear"]
    assert found.graph.operator("y").params["bias"] is True
    np.testing.assert_allclose(found(X), X @ MATRIX + VECTOR, rtol=1e-5, atol=1e-5)


def test_a_summand_that_is_no_bias():
    nodes = [node("MatMul", "x w", "m"), node("Add", "m b", "y")]
    for b in (np.ones((5, 8), np.float32), np.ones((2, 1, 1), np.float32)):
        found = loaded(nodes, {"w": MATRIX, "b": b})
        assert types(found) == ["nn.Linear", "pnnx.Expression"]
        np.testing.assert_allclose(found(X), X @ MATRIX + b, rtol=1e-5, atol=1e-5)
    found = loaded(nodes, {"w": MATRIX, "b": VECTOR}, outputs=("y", "m"))
    assert types(found) == ["nn.Linear", "pnnx.Expression"]


def test_silu():
    nodes = [node("Sigmoid", "x", "s"), node("Mul", "s x", "y")]
    found = loaded(nodes)
    assert types(found) == ["F.silu"]
    np.testing.assert_allclose(found(X), X / (1 + np.exp(-X)), rtol=1e-5, atol=1e-6)
    nodes = [node("Sigmoid", "x", "s"), node("Mul", "s s", "y")]
    assert types(loaded(nodes)) == ["F.sigmoid", "pnnx.Expression"]


GELUS = {
    "PyTorch": [
        node("Div", "x root", "a"), node("Erf", "a", "b"), node("Add", "b one", "c"),
        node("Mul", "x c", "d"), node("Mul", "d half", "y"),
    ],
    "half first": [
        node("Mul", "x half", "h"), node("Mul", "x inverse", "a"), node("Erf", "a", "b"),
        node("Add", "one b", "c"), node("Mul", "c h", "y"),
    ],
    "TensorFlow": [
        node("Mul", "inverse x", "a"), node("Erf", "a", "b"), node("Add", "b one", "c"),
        node("Mul", "half c", "d"), node("Mul", "x d", "y"),
    ],
}  # fmt: skip
NUMBERS = {
    "root": f32(math.sqrt(2)), "inverse": f32(math.sqrt(0.5)), "one": f32(1), "half": f32(0.5),
    "two": f32(2), "three": f32(3), "cubic": f32(0.044715), "factor": f32(math.sqrt(2 / math.pi)),
    "eps": f32(1e-5),
}  # fmt: skip


@pytest.mark.parametrize("name", GELUS)
def test_gelu(name):
    found = loaded(GELUS[name], NUMBERS)
    assert types(found) == ["F.gelu"]
    np.testing.assert_allclose(found(X), X * 0.5 * (1 + erf(X * 0.5**0.5)), rtol=1e-5, atol=1e-6)
    nodes = [n.replace(b"\n\x01x", b"\n\x01z") for n in GELUS[name]]
    after = loaded([node("Add", "x b", "z"), *nodes], NUMBERS | {"b": X[:1]})
    assert types(after) == ["pnnx.Expression", "F.gelu"]
    other = loaded(GELUS[name], NUMBERS | {"half": f32(0.25)})
    assert "F.gelu" not in types(other)


@pytest.mark.parametrize("cube", ["pow", "square"])
def test_gelu_by_tanh(cube):
    if cube == "pow":
        nodes = [
            node("Pow", "x three", "p"), node("Mul", "p cubic", "q"), node("Add", "x q", "s"),
            node("Mul", "factor s", "a"),
        ]  # fmt: skip
    else:
        nodes = [
            node("Mul", "x x", "p"), node("Mul", "p cubic", "q"), node("Add", "q one", "s"),
            node("Mul", "x factor", "f"), node("Mul", "f s", "a"),
        ]  # fmt: skip
    nodes += [
        node("Tanh", "a", "b"), node("Add", "b one", "c"), node("Mul", "x c", "d"),
        node("Mul", "d half", "y"),
    ]  # fmt: skip
    found = loaded(nodes, NUMBERS)
    assert types(found) == ["F.gelu"]
    assert found.graph.operator("y").params == {"approximate": "tanh"}
    inner = math.sqrt(2 / math.pi) * (X + 0.044715 * X**3)
    np.testing.assert_allclose(found(X), 0.5 * X * (1 + np.tanh(inner)), rtol=1e-4, atol=1e-6)
    assert "F.gelu" not in types(loaded(nodes, NUMBERS | {"cubic": f32(0.05)}))


def norm_nodes(axes=(-1,)):
    return [
        node("ReduceMean", "x", "m", axes=list(axes)), node("Sub", "x m", "c"),
        node("Pow", "c two", "p"), node("ReduceMean", "p", "v", axes=list(axes)),
        node("Add", "v eps", "e"), node("Sqrt", "e", "r"), node("Div", "c r", "n"),
        node("Mul", "n w", "s"), node("Add", "s b", "y"),
    ]  # fmt: skip


def test_layer_norm():
    found = loaded(norm_nodes(), NUMBERS | {"w": VECTOR, "b": VECTOR})
    assert types(found) == ["nn.LayerNorm"]
    centred = X - X.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * VECTOR + VECTOR
    np.testing.assert_allclose(found(X), expected, rtol=1e-4, atol=1e-5)
    nodes = [n.replace(b"\n\x01x", b"\n\x01z") for n in norm_nodes()]
    after = loaded([node("Add", "x x", "z"), *nodes], NUMBERS | {"w": VECTOR, "b": VECTOR})
    assert types(after) == ["pnnx.Expression", "nn.LayerNorm"]
    nodes = [*norm_nodes()[:-1], node("Identity", "s", "y")]
    assert types(loaded(nodes, NUMBERS | {"w": VECTOR})) == ["F.layer_norm"]
    for change in ({"w": np.ones((5, 8), np.float32)}, {"b": np.ones((5, 8), np.float32)}):
        other = loaded(norm_nodes(), NUMBERS | {"w": VECTOR, "b": VECTOR} | change)
        assert "nn.LayerNorm" not in types(other)
    other = loaded(norm_nodes((1,)), NUMBERS | {"w": VECTOR, "b": VECTOR})
    assert "nn.LayerNorm" not in types(other)


def test_the_axes_of_both_means_count():
    nodes = norm_nodes()
    nodes[0] = node("ReduceMean", "x", "m", axes=[1])
    found = loaded(nodes, NUMBERS | {"w": VECTOR, "b": VECTOR})
    assert "nn.LayerNorm" not in types(found)
    centred = X - X.mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * VECTOR + VECTOR
    np.testing.assert_allclose(found(X), expected, rtol=1e-4, atol=1e-5)


def test_rms_norm():
    nodes = [
        node("Pow", "x two", "p"), node("ReduceMean", "p", "v", axes=[-1]),
        node("Add", "v eps", "e"), node("Sqrt", "e", "r"), node("Reciprocal", "r", "i"),
        node("Mul", "x i", "n"), node("Mul", "w n", "y"),
    ]  # fmt: skip
    found = loaded(nodes, NUMBERS | {"w": VECTOR})
    assert types(found) == ["F.rms_norm"]
    expected = X / np.sqrt((X**2).mean(-1, keepdims=True) + 1e-5) * VECTOR
    np.testing.assert_allclose(found(X), expected, rtol=1e-4, atol=1e-5)


def test_shuffled_channels():
    nodes = [
        node("Reshape", "x a", "c"), node("Transpose", "c", "t", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "t b", "y"),
    ]  # fmt: skip
    x = RANDOM.normal(size=(2, 6, 3, 4)).astype(np.float32)
    shapes = {"a": np.array([2, 3, 2, 3, 4]), "b": np.array([2, 6, 3, 4])}
    found = loaded(nodes, shapes, x.shape)
    assert types(found) == ["nn.ChannelShuffle"]
    expected = x.reshape(2, 3, 2, 3, 4).swapaxes(1, 2).reshape(x.shape)
    np.testing.assert_array_equal(found(x), expected)
    shapes = {"a": np.array([2, 6, 2, 3, 2]), "b": np.array([2, 6, 3, 4])}
    found = loaded(nodes, shapes, x.shape)
    assert "nn.ChannelShuffle" not in types(found)
    expected = x.reshape(2, 6, 2, 3, 2).swapaxes(1, 2).reshape(x.shape)
    np.testing.assert_array_equal(found(x), expected)


def attention(scores, before=()):
    """Return nodes of attention with 2 heads of 4 features, q from x and k, v constant."""
    return [
        node("Reshape", "x cut", "h"), node("Transpose", "h", "q", perm=[0, 2, 1, 3]),
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]), *before, *scores,
        node("Softmax", "s", "p", axis=-1), node("MatMul", "p v", "o"),
        node("Transpose", "o", "y", perm=[0, 2, 1, 3]),
    ]  # fmt: skip


KEYS = {
    "cut": np.array([2, 5, 2, 4]),
    "keys": RANDOM.normal(size=(2, 3, 2, 4)).astype(np.float32),
    "v": RANDOM.normal(size=(2, 2, 3, 4)).astype(np.float32),
    "mask": RANDOM.normal(size=(5, 3)).astype(np.float32),
    "scale": f32(0.7),
    "root": f32(math.sqrt(0.7)),
}
CUT = node("Transpose", "keys", "k", perm=[0, 2, 1, 3])
ATTENTIONS = {
    "plain": ([node("MatMul", "q kt", "s")], 1.0, False),
    "scaled": ([node("MatMul", "q kt", "m"), node("Mul", "m scale", "s")], 0.7, False),
    "divided": ([node("MatMul", "q kt", "m"), node("Div", "m scale", "s")], 1 / 0.7, False),
    "masked": (
        [node("MatMul", "q kt", "m"), node("Mul", "scale m", "n"), node("Add", "mask n", "s")],
        0.7, True,
    ),
    "scaled sides": (
        [
            node("Mul", "q root", "qs"), node("Mul", "kt root", "ks"),
            node("MatMul", "qs ks", "m"), node("Add", "m mask", "s"),
        ],
        0.7, True,
    ),
}  # fmt: skip


def attended(scale, mask):
    q = X.reshape(2, 5, 2, 4).swapaxes(1, 2)
    scores = scale * q @ KEYS["keys"].transpose(0, 2, 3, 1) + (KEYS["mask"] if mask else 0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return (weights @ KEYS["v"]).swapaxes(1, 2), scores


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name):
    scores, scale, has_mask = ATTENTIONS[name]
    # The keys come from the input, or else they would be folded.
    nodes = attention(scores, ()).copy()
    nodes[2:2] = [node("ReduceMax", "x", "z", keepdims=0), node("Mul", "z none", "z0"),
                  node("Add", "keys z0", "kx"), node("Transpose", "kx", "k", perm=[0, 2, 1, 3]),
                  node("Add", "v z0", "vx")]  # fmt: skip
    nodes = [n.replace(b"\n\x01v", b"\n\x02vx") if b"\n\x01p" in n else n for n in nodes]
    found = loaded(nodes, KEYS | {"none": f32(0)})
    expected, _ = attended(scale, has_mask)
    np.testing.assert_allclose(found(X), expected, rtol=1e-4, atol=1e-5)
    assert "F.scaled_dot_product_attention" in types(found)
    assert "F.softmax" not in types(found)


def test_a_mask_of_zeros_is_none():
    nodes = [
        node("Reshape", "x cut", "h"), node("Transpose", "h", "q", perm=[0, 2, 1, 3]),
        node("Transpose", "h", "kt", perm=[0, 2, 3, 1]), node("MatMul", "q kt", "m"),
        node("Add", "m mask", "s"), node("Softmax", "s", "p", axis=-1), node("MatMul", "p q", "y"),
    ]  # fmt: skip
    results = []
    for mask in (np.zeros((1, 1, 5, 5), np.float32), np.eye(5, dtype=np.float32)):
        found = loaded(nodes, {"cut": KEYS["cut"], "mask": mask})
        (layer,) = found.graph.find(type="F.scaled_dot_product_attention")
        assert len(layer.inputs) == 3 + bool(mask.any())
        results.append(found(X))
    assert np.abs(results[0] - results[1]).max() > 1e-2
    without = [n for n in nodes if b"Add" not in n]
    without[3] = node("MatMul", "q kt", "s")
    np.testing.assert_array_equal(loaded(without, KEYS)(X), results[0])


def test_scores_that_are_read_elsewhere():
    nodes = [
        node("Reshape", "x cut", "h"), node("Transpose", "h", "q", perm=[0, 2, 1, 3]),
        node("Transpose", "h", "kt", perm=[0, 2, 3, 1]), node("MatMul", "q kt", "s"),
        node("Softmax", "s", "p", axis=-1), node("MatMul", "p q", "y"),
    ]  # fmt: skip
    both = loaded(nodes, KEYS, outputs=("y", "s"))
    assert "F.scaled_dot_product_attention" not in types(both)
    alone = loaded(nodes, KEYS)
    assert "F.scaled_dot_product_attention" in types(alone)
    np.testing.assert_allclose(alone(X), both(X)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 5, 8), ("n", 5, 8)])
def test_heads_between_linear_layers(shape):
    tensors, nodes = {"cut": np.array([0, 5, 2, 4]), "join": np.array([0, 5, 8])}, []
    for name in "qkvo":
        tensors[f"w{name}"] = RANDOM.normal(size=(8, 8)).astype(np.float32)
        tensors[f"b{name}"] = RANDOM.normal(size=8).astype(np.float32)
    for name in "qkv":
        order = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes += [
            node("MatMul", f"x w{name}", f"m{name}"), node("Add", f"m{name} b{name}", f"a{name}"),
            node("Reshape", f"a{name} cut", f"h{name}"),
            node("Transpose", f"h{name}", f"t{name}", perm=order),
        ]  # fmt: skip
    tensors["scale"] = f32(0.5)
    nodes += [
        node("MatMul", "tq tk", "m"), node("Mul", "m scale", "s"),
        node("Softmax", "s", "p", axis=-1), node("MatMul", "p tv", "o"),
        node("Transpose", "o", "t", perm=[0, 2, 1, 3]), node("Reshape", "t join", "j"),
        node("MatMul", "j wo", "mo"), node("Add", "mo bo", "y"),
    ]  # fmt: skip
    found = loaded(nodes, tensors, shape)
    q, k, v = (
        (X @ tensors[f"w{n}"] + tensors[f"b{n}"]).reshape(2, 5, 2, 4).swapaxes(1, 2) for n in "qkv"
    )
    scores = 0.5 * q @ k.swapaxes(2, 3)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = (weights @ v).swapaxes(1, 2).reshape(2, 5, 8) @ tensors["wo"] + tensors["bo"]
    np.testing.assert_allclose(found(X), expected, rtol=1e-4, atol=1e-4)
    assert types(found) == ["nn.MultiheadAttention"]
    other = loaded(nodes, tensors | {"scale": f32(0.4)}, shape)
    assert "nn.MultiheadAttention" not in types(other)


PACKED = {"w": RANDOM.normal(size=(8, 24)), "b": RANDOM.normal(size=24), "wo": MATRIX, "bo": VECTOR}
PACKED = {key: np.float32(array) for key, array in PACKED.items()}


def packed_heads(order, cut, inner, merge, before=(), after=(), **more):
    """Return the file of attention of which queries, keys and values are one product."""
    numbers = {"cut": np.array(cut), "inner": np.array(inner), "rows": np.array([-1, 8])}
    tensors = PACKED | numbers | {"scale": f32(0.5), "back": np.array([2, 5, 8])}
    tensors |= {str(i): np.array(i) for i in range(3)} | more
    nodes = [
        *before, node("MatMul", "xt w" if before else "x w", "m"), node("Add", "m b", "a"),
        node("Reshape", "a cut", "c"), node("Transpose", "c", "t", perm=order),
    ]  # fmt: skip
    for i, name in enumerate("qkv"):
        nodes.append(node("Gather", f"t {i}", f"g{name}", axis=0))
        nodes.append(node("Reshape", f"g{name} inner", name))
    nodes += [
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]), node("MatMul", "q kt", "d"),
        node("Mul", "d scale", "s"), node("Softmax", "s", "p", axis=-1), node("MatMul", "p v", "o"),
        node("Transpose", "o", "j", perm=merge), node("Reshape", "j rows", "r"),
        node("MatMul", "r wo", "e"), node("Add", "e bo", "f"),
        node("Reshape", "f back", "yt" if after else "y"), *after,
    ]  # fmt: skip
    return loaded(nodes, tensors)


def packed_attention(x):
    n, length, _ = x.shape
    q, k, v = (x @ PACKED["w"] + PACKED["b"]).reshape(n, length, 3, 2, 4).transpose(2, 0, 3, 1, 4)
    scores = 0.5 * q @ k.swapaxes(2, 3)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    joined = (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(1, 2)
    return joined.reshape(n, length, 8) @ MATRIX + VECTOR


def test_heads_of_a_packed_layer():
    found = packed_heads([2, 0, 3, 1, 4], [2, 5, 3, 2, 4], [2, 2, 5, 4], [0, 2, 1, 3])
    assert types(found) == ["nn.MultiheadAttention"]
    np.testing.assert_allclose(found(X), packed_attention(X), rtol=1e-4, atol=1e-4)


def test_heads_whose_length_comes_first():
    # x has five members of the batch then, each of length 2.
    found = packed_heads([2, 1, 3, 0, 4], [2, 5, 3, 2, 4], [5, 2, 2, 4], [2, 0, 1, 3])
    (layer,) = found.graph.find(type="nn.MultiheadAttention")
    assert layer.params["batch_first"] is False
    expected = packed_attention(X.swapaxes(0, 1)).swapaxes(0, 1)
    np.testing.assert_allclose(found(X), expected, rtol=1e-4, atol=1e-4)


SWAPS = [node("Transpose", "x", "xt", perm=[1, 0, 2]), node("Transpose", "yt", "y", perm=[1, 0, 2])]


@pytest.mark.parametrize("both", [True, False])
def test_swaps_around_a_layer_with_the_length_first(both):
    before, after = SWAPS[:1], SWAPS[1:] if both else []
    # The length 5 comes first between the swaps.
    order, cut, inner, merge = [2, 1, 3, 0, 4], [5, 2, 3, 2, 4], [2, 2, 5, 4], [2, 0, 1, 3]
    found = packed_heads(order, cut, inner, merge, before, after, back=np.array([5, 2, 8]))
    (layer,) = found.graph.find(type="nn.MultiheadAttention")
    assert layer.params["batch_first"] is both
    assert types(found) == ["Tensor.permute"] * (not both) + ["nn.MultiheadAttention"]
    expected = packed_attention(X) if both else packed_attention(X).swapaxes(0, 1)
    np.testing.assert_allclose(found(X), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("order", "cut", "merge", "more"),
    [
        ([3, 0, 2, 1, 4], [2, 5, 2, 3, 4], [0, 2, 1, 3], {}),  # heads before queries, keys, values
        ([2, 0, 3, 1, 4], [2, 5, 3, 2, 4], [0, 1, 2, 3], {}),  # heads that are not joined
        ([2, 0, 3, 1, 4], [2, 5, 3, 2, 4], [0, 2, 1, 3], {"scale": f32(0.4)}),
        ([2, 0, 3, 1, 4], [2, 5, 3, 2, 4], [0, 2, 1, 3], {"1": np.array(2)}),  # keys as values
    ],
)
def test_heads_of_another_order_stay(order, cut, merge, more):
    found = packed_heads(order, cut, [2, 2, 5, 4], merge, **more)
    assert "nn.MultiheadAttention" not in types(found)
    assert "F.scaled_dot_product_attention" in types(found)


def test_expressions_without_end_are_read_in_part():
    nodes = [node("Add", f"v{i} v{i}" if i else "x x", f"v{i + 1}") for i in range(2000)]
    nodes.append(node("Mul", "v2000 x", "y"))
    assert len(types(loaded(nodes))) == 2001
