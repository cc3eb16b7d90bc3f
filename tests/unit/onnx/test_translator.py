"""ONNX models as graphs: names, open extents, functions, messages."""

import numpy as np
import pytest

import kuiper
from kuiper.onnx.registry import OPERATORS

from ...support.onnxfile import (
    ELEMENTS,
    field,
    function,
    graph,
    model,
    node,
    single,
    tensor,
    value,
)

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def types(model):
    """Return the types of the operators between the ends."""
    return [op.type for op in model.graph if op.type not in ("pnnx.Input", "pnnx.Output")]


def test_names_are_those_of_the_file():
    nodes = [node("Relu", "images:0", "a/b"), node("Neg", "images:0", "c d".replace(" ", "."))]
    inputs = [value("images:0", np.float32, (2, 3))]
    loaded = kuiper.load(model(graph(nodes, inputs, [value("c.d"), value("a/b")])))
    assert [info.name for info in loaded.inputs] == ["images:0"]
    assert [info.name for info in loaded.outputs] == ["c.d", "a/b"]
    negative, positive = loaded(X)
    np.testing.assert_array_equal(negative, -X)
    np.testing.assert_array_equal(positive, X)


def test_a_value_may_be_returned_twice_and_an_input_as_it_is():
    nodes = [node("Neg", "x", "y")]
    outputs = [value("y"), value("y"), value("x"), value("w")]
    weights = [tensor("w", np.float32(3.0))]
    loaded = kuiper.load(model(graph(nodes, [value("x", np.float32, (2, 3))], outputs, weights)))
    results = loaded(X)
    for got, expected in zip(results, (-X, -X, X, np.float32(3.0)), strict=True):
        np.testing.assert_array_equal(got, expected)
        assert got.shape == np.shape(expected)


def test_every_missing_operator_is_listed():
    nodes = [
        node("Relu", "x", "a"),
        node("Frobnicate", "a", "b", "first"),
        node("Frobnicate", "b", "c", "second"),
        node("Strange", "c", "y", domain="com.example"),
        node("Frobnicate", "x", "unused", "third"),
    ]
    file = model(
        graph(nodes, [value("x", np.float32, (2, 3))], [value("y")]), 18,
        domains={"com.example": 3},
    )  # fmt: skip
    with pytest.raises(kuiper.UnsupportedOperatorError) as caught:
        kuiper.load(file)
    text = str(caught.value)
    assert "2 operators are not supported" in text
    assert "Frobnicate (opset 18): 3 uses, first 'first'" in text
    assert "com.example::Strange (opset 3): 1 use, first 'y'" in text


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            [node("Relu", "x", "y", "act", slope=2.0)],
            "node 'act' .Relu.: has the attribute 'slope'",
        ),
        ([node("Relu", "x x", "y")], r"has 2 inputs, expected up to 1"),
        ([node("Relu", "z", "y")], "'z' is neither an input of the graph nor a result"),
        ([node("Relu", "x", "z")], "'y' is neither an input of the graph nor a result"),
        ([node("Relu", "y", "y")], "'y' is neither"),
        ([node("Relu", "-", "y", "n")], "node 'n' .Relu.: lacks the input 'x'"),
        ([node("Add", "x", "y", "n")], "node 'n' .Add.: lacks the input 'y'"),
        ([node("Concat", "x x", "y", "n", axis=7)], "node 'n' .Concat.: .*'dim' is 7"),
        ([node("Cast", "x", "y", "n")], "node 'n' .Cast.: lacks the attribute 'to'"),
        ([node("Sum", "", "y", "n")], "node 'n' .Sum.: lacks the input"),
        ([node("Cast", "x", "y", "n", to=8)], "node 'n' .Cast.: has strings"),
        ([node("Cast", "x", "y", "n", to=99)], "elements of the unknown type 99"),
        ([node("Transpose", "x", "y", "n", perm=[0, 0])], "perm is"),
        ([node("Softmax", "x", "y", "n", axis="last")], "'axis' is 'last', expected int"),
        ([node("Gather", "x x", "y", "n", axis=1.5)], "'axis' is 1.5, expected int"),
    ],
)
def test_messages_name_the_node(nodes, message):
    file = model(graph(nodes, [value("x", np.float32, (2, 3))], [value("y")]))
    with pytest.raises(kuiper.KuiperError, match=message):
        kuiper.load(file)


def test_open_extents():
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n", axis=0),
        node("Unsqueeze", "n axes", "n1"),
        node("Mul", "n1 two", "n2"),
        node("Concat", "n2 minus", "shape", axis=0),
        node("Reshape", "x shape", "y"),
    ]
    tensors = [
        tensor("zero", np.int64(0)), tensor("axes", np.array([0])), tensor("two", np.array([2])),
        tensor("minus", np.array([-1])),
    ]  # fmt: skip
    inputs = [value("x", np.float32, ("batch", 4))]
    loaded = kuiper.load(model(graph(nodes, inputs, [value("y")], tensors)))
    assert types(loaded) == ["pnnx.Expression", "Tensor.reshape"]
    for batch in (1, 2, 5):
        x = np.random.default_rng(batch).normal(size=(batch, 4)).astype(np.float32)
        np.testing.assert_array_equal(loaded(x), x.reshape(2 * batch, 2))


def test_open_extents_may_be_short():
    # The table has 20 positions: extents of hundreds would not fit.
    nodes = [
        node("Shape", "x", "n", start=1, end=2),
        node("Slice", "table zero n zero", "rows"),
        node("Add", "x rows", "sum"),
        node("MatMul", "sum w", "m"),
        node("Transpose", "m", "y"),
    ]
    table, w = np.ones((20, 3), np.float32), np.ones((2, 3, 4), np.float32)
    known = [tensor("table", table), tensor("zero", np.array([0])), tensor("w", w)]
    loaded = kuiper.load(
        model(graph(nodes, [value("x", np.float32, (2, "n", 3))], [value("y")], known))
    )
    for length in (1, 7, 20):
        np.testing.assert_array_equal(
            loaded(np.ones((2, length, 3), np.float32)), np.full((4, length, 2), 6)
        )
    nodes[0] = node("Shape", "x", "n", start=0, end=1)
    nodes[2] = node("Transpose", "x", "sum", perm=[0, 2, 1])
    nodes[3] = node("Gemm", "sum rows", "m")
    with pytest.raises(kuiper.KuiperError):
        kuiper.load(model(graph(nodes, [value("x", np.float32, (2, "n", 3))], [value("y")], known)))


def test_what_is_left_out_is_not_needed():
    domain = "com.microsoft"
    nodes = [
        node("SkipLayerNormalization", "x x w", "s - - y", "n", domain=domain),
        node("Clip", "y - low", "z"),
    ]
    known = [tensor("w", np.ones(3, np.float32)), tensor("low", np.float32(3))]
    file = graph(nodes, [value("x", np.float32, (2, 3))], [value("z")], known)
    np.testing.assert_array_equal(
        kuiper.load(model(file, domains={domain: 1}))(X), np.minimum(2 * X, 3)
    )


def test_shape_arithmetic_of_known_extents_leaves_nothing():
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s order", "t", axis=0),
        node("Reshape", "x t", "y"),
    ]
    tensors = [tensor("order", np.array([1, 0]))]
    loaded = kuiper.load(
        model(graph(nodes, [value("x", np.float32, (2, 3))], [value("y")], tensors))
    )
    assert types(loaded) == ["Tensor.reshape"]
    np.testing.assert_array_equal(loaded(X), X.reshape(3, 2))


def test_shapes_fix_open_extents():
    file = single("Relu", {"x": X}, open=True)
    assert [info.shape for info in kuiper.load(file).inputs] == [(None, None)]
    fixed = kuiper.load(file, shapes={"x": (2, 3)})
    assert [info.shape for info in fixed.inputs] == [(2, 3)]
    kept = kuiper.load(file, shapes={"x": ("batch", 3)})
    assert [info.shape for info in kept.inputs] == [(None, 3)]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": (2, 3)}, "shapes has 'z', but the inputs are called x"),
        ({"x": (2, 3, 4)}, r"shapes\['x'\] is \(2, 3, 4\), but the file has"),
        ({"x": (2, 4)}, r"shapes\['x'\] is \(2, 4\), but the file has"),
        ({"x": (2, -3)}, "the extent -3"),
        ({"x": 3}, "expected"),
        ([2, 3], "expected a dict"),
    ],
)
def test_wrong_shapes_are_refused(shapes, message):
    with pytest.raises(kuiper.InputError, match=message):
        kuiper.load(single("Relu", {"x": X}), shapes=shapes)


def test_shapes_are_for_onnx_files():
    text = b"7767517\n2 1\npnnx.Input x 0 1 0 #0=(2)f32\npnnx.Output o 1 0 0\n"
    with pytest.raises(kuiper.InputError, match="shapes is for ONNX models"):
        kuiper.load(text, shapes={"x": (2,)})
    with pytest.raises(kuiper.InputError, match="has its weights itself"):
        kuiper.load(single("Relu", {"x": X}), b"")


def test_functions_are_written_out():
    scaled = function(
        "Scaled", "a b", "c", [node("Mul", "a b", "t"), node("Inner", "t", "c", domain="local")]
    )
    inner = function("Inner", "a", "c", [node("Neg", "a", "c")])
    nodes = [node("Scaled", "x w", "y", domain="local"), node("Inner", "y", "z", domain="local")]
    content = graph(
        nodes, [value("x", np.float32, (2, 3))], [value("y"), value("z")],
        [tensor("w", np.float32(2.0))],
    )  # fmt: skip
    loaded = kuiper.load(model(content, 20, [scaled, inner], {"local": 1}))
    y, z = loaded(X)
    np.testing.assert_array_equal(y, -2 * X)
    np.testing.assert_array_equal(z, 2 * X)


def test_functions_that_call_themselves_are_refused():
    one = function("One", "a", "c", [node("Two", "a", "c", domain="local")])
    two = function("Two", "a", "c", [node("One", "a", "c", domain="local")])
    content = graph(
        [node("One", "x", "y", domain="local")], [value("x", np.float32, (2,))], [value("y")]
    )
    with pytest.raises(kuiper.GraphError, match="nested more than 32 deep"):
        kuiper.load(model(content, 20, [one, two], {"local": 1}))


def test_functions_that_grow_without_end_are_refused():
    functions = []
    for i in range(30):
        calls = [node(f"F{i + 1}", *pair, domain="local") for pair in (("a", "b"), ("b", "c"))]
        functions.append(function(f"F{i}", "a", "c", calls))
    functions.append(function("F30", "a", "c", [node("Neg", "a", "c")]))
    content = graph(
        [node("F0", "x", "y", domain="local")], [value("x", np.float32, (2,))], [value("y")]
    )
    with pytest.raises(kuiper.GraphError, match="write out more than"):
        kuiper.load(model(content, 20, functions, {"local": 1}))


def test_arithmetic_on_extents_that_grows_without_end_is_refused():
    nodes = [node("Size", "x", "s0")]
    nodes += [node("Mul", f"s{i} s{i}", f"s{i + 1}") for i in range(40)]
    content = graph(nodes, [value("x", np.float32, ("n", "m"))], [value("s40", np.int64)])
    with pytest.raises(kuiper.UnsupportedOperatorError, match="more than 5000 terms"):
        kuiper.load(model(content))


def test_half_precision_is_computed_in_float32_and_returned_as_it_is():
    half = X.astype(np.float16)
    nodes = [node("Add", "x w", "y")]
    content = graph(
        nodes, [value("x", np.float16, (2, 3))], [value("y", np.float16)], [tensor("w", half)]
    )
    result = kuiper.load(model(content))(half)
    assert result.dtype == np.float16
    np.testing.assert_array_equal(result, 2 * half)


def test_weights_as_inputs_of_old_files_are_no_inputs():
    content = graph(
        [node("Add", "x w", "y")],
        [value("x", np.float32, (2, 3)), value("w", np.float32, (3,))],
        [value("y")],
        [tensor("w", X[0])],
    )
    loaded = kuiper.load(model(content, 8))
    assert [info.name for info in loaded.inputs] == ["x"]
    np.testing.assert_array_equal(loaded(X), X + X[0])


def test_models_are_recognised_by_their_content(tmp_path):
    file = single("Relu", {"x": X})
    path = tmp_path / "model.bin2"
    path.write_bytes(file)
    for source in (file, bytearray(file), path, str(path), path.open("rb")):
        np.testing.assert_array_equal(kuiper.load(source)(X), X)
        if hasattr(source, "close"):
            source.close()


def test_saved_models_give_the_same_bits(tmp_path):
    weight = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    nodes = [node("Gemm", "x w", "a", alpha=0.5), node("Softmax", "a", "y", axis=0)]
    content = graph(nodes, [value("x", np.float32, (2, 3))], [value("y")], [tensor("w", weight)])
    loaded = kuiper.load(model(content))
    kuiper.save(loaded, tmp_path / "m.pnnx.param")
    again = kuiper.load(tmp_path / "m.pnnx.param")
    np.testing.assert_array_equal(again(X), loaded(X))
    assert [info.name for info in again.inputs] == ["x"]


def test_attributes_are_keywords_and_inputs_positions():
    """What an operator takes is what its function declares; a newer version comes later."""
    for (domain, type_), versions in OPERATORS.items():
        since = [version.since for version in versions]
        assert since == sorted(set(since)), (domain, type_)


def test_the_functions_have_the_signatures_of_onnx():
    onnx = pytest.importorskip("onnx")
    for schema in onnx.defs.get_all_schemas_with_history():
        versions = OPERATORS.get((schema.domain, schema.name), ())
        found = [v for v in versions if v.since <= schema.since_version]
        if not found or schema.deprecated or schema.domain not in ("", "com.microsoft"):
            continue
        mapping = max(found, key=lambda version: version.since)
        missing = set(schema.attributes) - mapping.names
        assert not missing, (schema.name, schema.since_version, missing)
        assert mapping.inputs == -1 or mapping.inputs >= len(schema.inputs), schema.name


def test_indices_of_all_elements_are_a_reshape():
    """As torch writes `as_strided`; the batch survives it."""
    order = np.arange(6).reshape(1, 6, 1, 1)
    nodes = [node("Reshape", "x flat", "f"), node("Gather", "f order", "y")]
    known = [tensor("flat", np.array([-1])), tensor("order", order)]
    content = graph(nodes, [value("x", np.float32, (1, 6))], [value("y")], known)
    loaded = kuiper.load(model(content))
    many = np.arange(18, dtype=np.float32).reshape(3, 6)
    np.testing.assert_array_equal(loaded(many), many.reshape(3, 6, 1, 1))
    nodes[1] = node("Gather", "x order", "y", axis=1)
    content = graph(nodes[1:], [value("x", np.float32, (1, 6))], [value("y")], known[1:])
    np.testing.assert_array_equal(kuiper.load(model(content))(many), many.reshape(3, 1, 6, 1, 1))


def test_bfloat16_is_float32():
    """Inputs and outputs are float32 arrays, as numpy lacks the type; weights are widened."""
    w = np.float32([[1.0, -2.5], [3.0, 0.5], [0.25, 1.0]])
    bits = (w.view(np.uint32) >> 16).astype(np.uint16)  # all of w are bfloat16 numbers
    weight = tensor("w", bits).replace(
        field(2, ELEMENTS["uint16"]), field(2, ELEMENTS["bfloat16"]), 1
    )
    x = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    file = model(
        graph(
            [node("MatMul", "x w", "h"), node("Relu", "h", "y")],
            [value("x", "bfloat16", ("n", 3))], [value("y", "bfloat16")], [weight],
        )
    )  # fmt: skip
    loaded = kuiper.load(file)
    assert loaded.inputs[0].dtype == np.float32
    got = loaded(x)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, np.maximum(x @ w, 0), rtol=1e-5, atol=1e-6)
    with pytest.raises(kuiper.InputError, match="expected float32"):
        loaded(x.astype(np.float16))
