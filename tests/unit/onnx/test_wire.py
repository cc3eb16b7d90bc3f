"""The wire format: damaged and hostile files, large files, weights in other files."""

import os
import random
import time

import numpy as np
import pytest

import kuiper
from kuiper.onnx.wire import SourceFile, decode_varints, read_model

from ...support.onnxfile import field, graph, model, node, single, tensor, value, varint

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def small_model():
    """Return a model with all kinds of fields."""
    nodes = [
        node("Add", "x w", "a", "first"),
        node("Transpose", "a", "t", perm=[1, 0]),
        node("LeakyRelu", "t", "y", alpha=0.5),
    ]
    weights = [tensor("w", X, listed=True)]
    return model(graph(nodes, [value("x", np.float32, (2, "n"))], [value("y")], weights))


def read(data):
    return read_model(SourceFile(data, "m.onnx"), 1 << 30)


def test_what_a_file_says():
    found = read(small_model())
    assert [n.type for n in found.graph.nodes] == ["Add", "Transpose", "LeakyRelu"]
    assert found.graph.nodes[0].inputs == ["x", "w"]
    assert found.graph.nodes[1].attributes[0].ints == [1, 0]
    assert found.graph.nodes[2].attributes[0].float == 0.5
    assert found.graph.tensors[0].dims == [2, 3]
    dims = found.graph.inputs[0].type.tensor.shape.dims
    assert (dims[0].value, dims[1].value, dims[1].name) == (2, None, "n")
    assert [(o.domain, o.version) for o in found.opsets] == [("", 20)]


def test_integers():
    numbers = [0, 1, 127, 128, 300, -1, 2**62, -(2**63)]
    data = b"".join(varint(n) for n in numbers)
    assert decode_varints(data, ValueError).tolist() == numbers


def test_lists_may_be_packed_or_not():
    packed = field(1, "perm") + field(8, varint(1) + varint(0)) + field(20, 7)
    one = field(1, "x") + field(2, "y") + field(4, "Transpose") + field(5, packed)
    file = model(graph([one], [value("x", np.float32, (2, 3))], [value("y")]))
    np.testing.assert_array_equal(kuiper.load(file)(X), X.T)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x08\x08\x3a", "a field ends before its value"),
        (b"\x08\x08\x3a\x85", "an integer does not end"),
        (b"\x08\x08\x3a\x85\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80", "an integer does not end"),
        (b"\x08\x08\x3a\x7f\x0a", "a field has 127 bytes, but only 1 are left"),
        (b"\x08\x08\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "bytes, but only 0 are left"),
        (b"\x08\x08\x3a\x01\x0b", "the encoding 3"),
        (b"\x08\x08\x12\x01\xff", "a text is not UTF-8"),
        (b"\x08\x08\x3a\x02\x08\x01", "'nodes' is a number"),
        (b"\x08\x08\x3a\x02\x10\x01", "'name' has the encoding 0"),
        (b"\x08\x08\x12\x00", "no graph"),
    ],
)
def test_damaged_files_are_refused(data, message):
    with pytest.raises(kuiper.ModelFormatError, match=message):
        kuiper.load(data)


def test_a_message_deep_in_messages_is_refused():
    inner = b""
    for _ in range(100):  # a graph in a node in a graph ...
        inner = field(1, field(5, field(6, inner)))
    with pytest.raises(kuiper.ModelFormatError, match="nested more than 64 deep"):
        read(field(1, 8) + field(7, inner))


def test_every_cut_and_many_changes_give_errors_of_kuiper():
    whole = small_model()
    generator = random.Random(3)
    trials = [whole[:n] for n in range(len(whole))]
    for _ in range(3000):
        changed = bytearray(whole)
        for _ in range(generator.randint(1, 3)):
            changed[generator.randrange(len(whole))] = generator.choice([0, 1, 127, 128, 255, 8])
        trials.append(bytes(changed))
    refused = 0
    for data in trials:
        try:
            kuiper.onnx.load_graph(data, max_memory=1 << 24)
        except kuiper.KuiperError:
            refused += 1
    assert refused > len(whole) // 2


def test_a_claimed_shape_allocates_nothing():
    huge = field(1, 1 << 40) + field(1, 1 << 40) + field(2, 1) + field(8, "w") + field(9, b"1234")
    file = model(
        graph([node("Add", "x w", "y")], [value("x", np.float32, (2,))], [value("y")], [huge])
    )
    with pytest.raises(kuiper.ModelFormatError, match="tensor 'w': has 4 bytes, its shape"):
        kuiper.load(file)


def test_messages_count_as_memory():
    file = model(graph([node("Relu", "x", "y")] * 20_000, [value("x")], [value("y")]))
    with pytest.raises(kuiper.GraphError, match="max_memory"):
        kuiper.load(file, max_memory=1 << 20)


def test_many_nodes_take_linear_time():
    def seconds(count):
        nodes = [node("Relu", f"v{i}" if i else "x", f"v{i + 1}") for i in range(count)]
        file = model(graph(nodes, [value("x", np.float32, (4,))], [value(f"v{count}")]))
        start = time.perf_counter()
        kuiper.onnx.load_graph(file)
        return time.perf_counter() - start

    seconds(100)
    assert seconds(8000) < 30 * max(seconds(1000), 0.01)


def test_a_large_file_is_read_by_parts(tmp_path):
    weight = np.random.default_rng(1).normal(size=(700, 600)).astype(np.float32)
    path = tmp_path / "m.onnx"
    path.write_bytes(
        single("MatMul", {"x": X[:, :1] @ np.ones((1, 700), np.float32)}, known={"w": weight})
    )
    os.utime(path, (1e9, 1e9))
    graph = kuiper.load_graph(path)
    (attribute,) = (a for op in graph for a in op.attributes.values())
    assert not isinstance(attribute._source, np.ndarray)  # its bytes are still in the file
    x = np.random.default_rng(2).normal(size=(2, 700)).astype(np.float32)
    np.testing.assert_allclose(kuiper.Model(graph)(x), x @ weight, rtol=1e-4, atol=1e-4)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "outside.bin").write_bytes(X.tobytes())
    (tmp_path / "inner" / "m.bin").write_bytes(b"1234" + X.tobytes())
    return tmp_path / "inner"


def with_external(path, location, **more):
    weight = tensor("w", X, external={"location": location, **more})
    one = node("Add", "x w", "y", "sum")
    path.write_bytes(model(graph([one], [value("x", np.float32, (2, 3))], [value("y")], [weight])))
    return path


def test_weights_in_another_file(folder):
    path = with_external(folder / "m.onnx", "m.bin", offset=4, length=24, checksum="ignored")
    np.testing.assert_array_equal(kuiper.load(path)(X), 2 * X)
    # A folder of links to files elsewhere, as caches of models have.
    links = folder.parent / "links"
    links.mkdir()
    try:
        for name in ("m.onnx", "m.bin"):
            os.symlink(folder / name, links / name)
    except OSError:
        pytest.skip("the system has no links")
    np.testing.assert_array_equal(kuiper.load(links / "m.onnx")(X), 2 * X)


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("../outside.bin", "expected a file in the folder"),
        ("a/../../outside.bin", "expected a file in the folder"),
        ("/etc/passwd", "expected a file in the folder"),
        ("C:\\x.bin", "expected a file in the folder"),
        ("", "expected a file in the folder"),
        ("m.bin\0", "expected a file in the folder"),
    ],
)
def test_other_folders_are_refused(folder, location, message):
    with pytest.raises(kuiper.ModelFormatError, match=message):
        kuiper.load(with_external(folder / "m.onnx", location))


def test_a_link_out_of_the_folder_is_refused(folder):
    try:
        os.symlink(folder.parent / "outside.bin", folder / "link.bin")
    except OSError:
        pytest.skip("the system has no links")
    with pytest.raises(kuiper.ModelFormatError, match="link out of the folder"):
        kuiper.load(with_external(folder / "m.onnx", "link.bin"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"offset": -1}, "from byte -1 on"),
        ({"offset": 20, "length": 24}, "has 24 bytes from byte 20 on, but"),
        ({"length": 1 << 62}, "bytes from byte 0 on"),
        ({"offset": "4x"}, "no number"),
        ({"offset": 4, "length": 20}, "has 20 bytes, its shape"),
    ],
)
def test_wrong_ranges_of_another_file_are_refused(folder, more, message):
    with pytest.raises(kuiper.ModelFormatError, match=message):
        kuiper.load(with_external(folder / "m.onnx", "m.bin", **more))


def test_a_missing_file_and_a_model_without_a_folder(folder):
    path = with_external(folder / "m.onnx", "gone.bin")
    with pytest.raises(FileNotFoundError, match=r"tensor 'w'.*is missing"):
        kuiper.load(path)
    with pytest.raises(kuiper.ModelFormatError, match="load the model by its path"):
        kuiper.load(path.read_bytes())


def test_the_reader_agrees_with_the_onnx_package():
    onnx = pytest.importorskip("onnx")
    from ...conformance.suite import cases

    for case in cases():
        expected = onnx.load_from_string(case.model)
        found = read(case.model)
        assert [n.type for n in found.graph.nodes] == [n.op_type for n in expected.graph.node]
        for mine, theirs in zip(found.graph.nodes, expected.graph.node, strict=True):
            assert list(mine.inputs) == list(theirs.input)
            assert [a.name for a in mine.attributes] == [a.name for a in theirs.attribute]
