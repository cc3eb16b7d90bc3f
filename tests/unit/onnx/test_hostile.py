"""Files that ask for much: loops and lists without end, cycles, files of more than 2 GB."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

import kuiper

from ...support.onnxfile import field, graph, model, node, single, tensor, value, varint

X = np.arange(6, dtype=np.float32).reshape(2, 3)
GIGABYTES = 5 << 29  # 2.5


def looped(trips, nodes):
    """Return a model whose loop has a body of these nodes."""
    last = nodes[-1][1] if nodes else "c"
    body = graph(
        [node("Relu", *names) for names in nodes],
        [value("i", np.int64, ()), value("go", bool, ()), value("c", np.float32, (2, 3))],
        [value("go", bool, ()), value(last)],
    )
    return model(
        graph(
            [node("Loop", "trips - x", "y", "loop", body=body)],
            [value("x", np.float32, (2, 3))],
            [value("y")],
            [tensor("trips", np.array(trips))],
        )
    )


def chain(count):
    return [(f"v{i}" if i else "c", f"v{i + 1}") for i in range(count)]


@pytest.mark.parametrize(
    ("trips", "nodes"),
    [
        (100_000, chain(10)),
        (1 << 62, []),
        (1 << 62, [("c", f"unused{i}") for i in range(50)] + chain(1)),
        (100, [("c", f"unused{i}") for i in range(500)] + chain(1)),
    ],
)
def test_loops_that_write_out_too_much(trips, nodes):
    """Also if their bodies are empty, or have nothing but nodes that are not needed."""
    start = time.process_time()
    with pytest.raises(kuiper.GraphError, match=r"node 'loop' \(Loop\): .* more than \d+ nodes"):
        kuiper.load(looped(trips, nodes))
    assert time.process_time() - start < 20


def test_loops_of_a_hundred_iterations_run():
    np.testing.assert_array_equal(kuiper.load(looped(100, chain(10)))(X), X)


def test_cycles():
    nodes = [node("Add", "x b", "a", "one"), node("Relu", "a", "b", "two")]
    file = model(graph(nodes, [value("x", np.float32, (2, 3))], [value("b")]))
    with pytest.raises(kuiper.GraphError, match="'b' is neither an input of the graph nor a resu"):
        kuiper.load(file)
    nodes = [node("Relu", "a", "a", "self")]
    with pytest.raises(kuiper.GraphError, match=r"node 'self' .*: 'a' is neither an input"):
        kuiper.load(model(graph(nodes, [value("x", np.float32, (2, 3))], [value("a")])))


@pytest.mark.parametrize("type", ["Unsqueeze", "Squeeze"])
def test_many_computed_axes(type):
    """Arithmetic on them takes time by the square of their number."""
    file = single(type, {"x": X, "axes": np.zeros(600, np.int64)})
    with pytest.raises(kuiper.OperatorError, match="has 600 axes, expected up to 64"):
        kuiper.load(file)


def test_a_varint_of_a_whole_file():
    start = time.process_time()
    with pytest.raises(kuiper.ModelFormatError, match="an integer does not end"):
        kuiper.load(b"\x08\x08\x3a" + b"\xff" * (1 << 22))
    file = model(graph([node("Relu", "x", "y")], [value("x", np.float32, (2,))], [value("y")]))
    packed = field(8, b"\xff" * (1 << 20))  # inside of a list of integers
    one = (
        field(1, "x") + field(2, "y") + field(4, "Transpose") + field(5, field(1, "perm") + packed)
    )
    file = model(graph([one], [value("x", np.float32, (2,))], [value("y")]))
    with pytest.raises(kuiper.ModelFormatError, match="an integer does not end"):
        kuiper.load(file)
    assert time.process_time() - start < 10


def read_end(path):
    """Return the last row of the only weight of a model, and its shape."""
    found = kuiper.load_graph(path)
    (attribute,) = (a for op in found for a in op.attributes.values())
    rows = attribute.shape[0]
    return np.asarray(attribute.rows(rows - 1, rows)).view("<f4").reshape(-1), attribute.shape


def write_hole(path, head, nbytes, tail):
    """Write a file with a hole of zeros, which takes no room on most disks."""
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + nbytes)
        file.seek(0, 2)
        file.write(tail)
    os.utime(path, (1e9, 1e9))  # a file that was just written is read at once


def test_a_file_of_more_than_2_gigabytes(tmp_path):
    """The `onnx` package cannot read one."""
    rows = GIGABYTES // 4096
    last = np.arange(1024, dtype=np.float32)
    shape = field(1, rows + 1) + field(1, 1024) + field(2, 1) + field(8, "w")
    raw = varint(9 << 3 | 2) + varint((rows + 1) * 4096)
    weight = len(shape) + len(raw) + (rows + 1) * 4096
    inner = varint(5 << 3 | 2) + varint(weight)
    # The graph comes after its weight, in order that nothing but one length depends on it.
    rest = graph([node("Gather", "w x", "y")], [value("x", np.int64, (2,))], [value("y")])
    whole = len(inner) + weight + len(rest)
    head = field(1, 8) + varint(7 << 3 | 2) + varint(whole) + inner + shape + raw
    tail = last.tobytes() + rest + field(8, field(1, "") + field(2, 20))
    try:
        write_hole(tmp_path / "m.onnx", head, rows * 4096, tail)
    except OSError:
        pytest.skip("the disk has no room for a file with a hole")
    found, shape = read_end(tmp_path / "m.onnx")
    assert shape == (rows + 1, 1024)
    np.testing.assert_array_equal(found, last)


def test_weights_of_more_than_2_gigabytes_in_another_file(tmp_path):
    rows = GIGABYTES // 4096
    last = np.arange(1024, dtype=np.float32)
    try:
        write_hole(tmp_path / "w.bin", b"1234", rows * 4096, last.tobytes())
    except OSError:
        pytest.skip("the disk has no room for a file with a hole")
    where = {"location": "w.bin", "offset": 4, "length": (rows + 1) * 4096}
    small = tensor("w", np.zeros((1, 1024), np.float32), external=where)
    weight = small.replace(field(1, 1) + field(1, 1024), field(1, rows + 1) + field(1, 1024), 1)
    content = graph(
        [node("Gather", "w x", "y")], [value("x", np.int64, (2,))], [value("y")], [weight]
    )
    (tmp_path / "m.onnx").write_bytes(model(content))
    found, shape = read_end(tmp_path / "m.onnx")
    assert shape == (rows + 1, 1024)
    np.testing.assert_array_equal(found, last)
