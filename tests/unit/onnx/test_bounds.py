"""Arithmetic on positions that need not be computed, and where it must be."""

import numpy as np
import pytest

import kuiper

from ...support.onnxfile import graph, model, node, tensor, value

N = [node("Shape", "x", "n", start=1, end=2), node("Squeeze", "n", "count")]
KNOWN = {
    "zero": np.array([0]), "one": np.array([1]), "first": np.array(0), "step": np.array(1),
    "minus": np.array(-1), "table": np.arange(6).reshape(1, 6) % 4,
    "negative": np.array([[0, -1, 1, -2, 2, 3]]), "data": np.array([[10, 11, 12, 13]]),
    "true": np.array(True), "all": np.full((1, 1), True),
}  # fmt: skip


def loaded(*nodes, known=KNOWN, outputs=("y",)):
    """Return a model of the input x (2, n, 3), where n is open."""
    tensors = [tensor(key, array) for key, array in known.items()]
    inputs = [value("x", np.float32, (2, "n", 3)), value("c", np.bool_, (2, "n"))]
    ends = [value(key) for key in outputs]
    return kuiper.load(model(graph([*N, *nodes], inputs, ends, tensors), 17))


def types(model):
    return {op.type for op in model.graph}


def inputs(n):
    c = np.arange(2 * n).reshape(2, n) % 3 > 0
    return np.ones((2, n, 3), np.float32), c


@pytest.mark.parametrize(("table", "is_plain"), [("table", True), ("negative", False)])
def test_indices_that_cannot_be_negative(table, is_plain):
    found = loaded(
        node("Slice", f"{table} zero n one", "i"), node("GatherElements", "data i", "y", axis=1)
    )
    assert is_plain == ("torch.where" not in types(found))
    for n in (1, 5):
        expected = KNOWN["data"][0, KNOWN[table][:, :n]]
        np.testing.assert_array_equal(found(*inputs(n)), expected)


@pytest.mark.parametrize(
    ("start", "least", "is_plain"),
    [("first", "first", True), ("step", "minus", True), ("minus", "first", False),
     ("first", "step", False)],
)  # fmt: skip
def test_conditions_that_hold_everywhere(start, least, is_plain):
    found = loaded(
        node("Range", f"{start} count step", "r"), node("Unsqueeze", "r one", "column"),
        node("GreaterOrEqual", f"column {least}", "g"), node("Slice", "c zero one zero", "row"),
        node("And", "g row", "y"),
    )  # fmt: skip
    for n in (2, 5):
        x, c = inputs(n)
        r = np.arange(int(KNOWN[start]), n)[:, np.newaxis]
        expected = (r >= KNOWN[least]) & c[:1]
        np.testing.assert_array_equal(found(x, c), expected)
    assert is_plain == (not {"torch.ge", "torch.logical_and"} & types(found))


def test_and_with_true():
    found = loaded(node("And", "c true", "d"), node("And", "all d", "y"))
    assert "torch.logical_and" not in types(found)
    np.testing.assert_array_equal(found(*inputs(4)), inputs(4)[1])
    other = {**KNOWN, "all": np.full((2, 1, 1), True)}
    found = loaded(node("And", "c true", "d"), node("And", "all d", "y"), known=other)
    assert found(*inputs(4)).shape == (2, 2, 4)
    found = loaded(node("And", "c true", "y"), known=KNOWN | {"true": np.array(False)})
    assert not found(*inputs(4)).any()


def test_extents_are_numbers_of_expressions():
    found = loaded(node("Cast", "c", "i", to=7), node("Mul", "i n", "y"))
    assert not {"torch.stack", "aten::scalar_tensor"} & types(found)
    for n in (1, 4):
        np.testing.assert_array_equal(found(*inputs(n)), inputs(n)[1] * n)
    # An array of more axes than the tensor decides the shape.
    found = loaded(
        node("Mul", "count n", "y"), node("Unsqueeze", "n zero", "m"), outputs=("y", "m")
    )
    y, m = found(*inputs(4))
    assert (y.shape, m.shape) == ((1,), (1, 1))
    assert (y.item(), m.item()) == (16, 4)
