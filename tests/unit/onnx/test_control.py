"""If, Loop and Scan: written out if the file decides their course, refused otherwise."""

import numpy as np
import pytest

import kuiper

from ...support.onnxfile import graph, model, node, tensor, value

X = np.random.default_rng(3).normal(size=(4, 3)).astype(np.float32)
SMALL = tensor("ten", np.float32(10))


def file(nodes, outputs, tensors=(), *, opset=20, shape=(4, 3), inputs=()):
    """Return a file whose input is x."""
    ends = [value("x", np.float32, shape), *inputs]
    return model(graph(nodes, ends, [value(y) for y in outputs], tensors), opset)


def branch(nodes, outputs, inputs=(), tensors=()):
    return graph(nodes, [value(x) for x in inputs], [value(y) for y in outputs], tensors)


def choice(condition):
    """Return an If that doubles x or subtracts it from itself."""
    return node(
        "If", condition, "y", "choice",
        then_branch=branch([node("Add", "x x", "t")], ["t"]),
        else_branch=branch([node("Sub", "x x", "e")], ["e"]),
    )  # fmt: skip


@pytest.mark.parametrize("decision", [True, False])
def test_if_of_a_constant_has_one_branch(decision):
    loaded = kuiper.load(file([choice("c")], "y", [tensor("c", np.array(decision))]))
    assert len(list(loaded.graph.find(type="pnnx.Expression"))) == 1
    np.testing.assert_array_equal(loaded(X), 2 * X if decision else 0 * X)


def test_if_of_a_shape():
    nodes = [
        node("Shape", "x", "s"), node("Gather", "s zero", "n", axis=0),
        node("Equal", "n four", "c"), choice("c"),
    ]  # fmt: skip
    known = [tensor("zero", np.array(0)), tensor("four", np.array(4))]
    np.testing.assert_array_equal(kuiper.load(file(nodes, "y", known))(X), 2 * X)
    # An open extent does not decide it, which the message says.
    with pytest.raises(kuiper.KuiperError, match=r"'c'.*shapes="):
        kuiper.load(file(nodes, "y", known, shape=("n", 3)))


def test_if_that_a_run_decides():
    nodes = [
        node("ReduceSum", "x", "total", keepdims=0), node("Greater", "total ten", "c"),
        choice("c"),
    ]  # fmt: skip
    loaded = kuiper.load(file(nodes, "y", [SMALL]))
    np.testing.assert_array_equal(loaded(X), 0 * X)
    np.testing.assert_array_equal(loaded(X + 10), 2 * (X + 10))
    other = node(
        "If", "c", "y", "choice",
        then_branch=branch([node("Flatten", "x", "t", axis=0)], ["t"]),
        else_branch=branch([node("Sub", "x x", "e")], ["e"]),
    )  # fmt: skip
    with pytest.raises(kuiper.KuiperError, match=r"'choice'.*the condition is computed"):
        kuiper.load(file([*nodes[:2], other], "y", [SMALL]))


def looped(trips="m", condition="go", body=None):
    body = body or graph(
        [
            node("Add", "v x", "w"), node("Cast", "i", "f", to=1), node("Mul", "w f", "scan"),
            node("Less", "i two", "on"),
        ],
        [value("i"), value("c"), value("v")], [value("on"), value("w"), value("scan")],
    )  # fmt: skip
    return node("Loop", f"{trips} {condition} x", "y all", "around", body=body)


@pytest.mark.parametrize(("trips", "count"), [(2, 2), (9, 3)])
def test_loop(trips, count):
    known = [tensor(n, np.array(a)) for n, a in {"m": trips, "two": 2, "go": True}.items()]
    y, each = kuiper.load(file([looped()], ["y", "all"], known))(X)
    np.testing.assert_allclose(y, X * (1 + count), rtol=1e-6)
    expected = np.stack([X * (2 + i) * i for i in range(count)])
    np.testing.assert_allclose(each, expected, rtol=1e-6)
    endless = kuiper.load(file([looped("-", "go")], ["y"], known))
    np.testing.assert_allclose(endless(X), X * 4, rtol=1e-6)


def test_loop_of_no_iteration():
    known = [tensor(n, np.array(a)) for n, a in {"m": 0, "two": 2, "go": True}.items()]
    np.testing.assert_array_equal(kuiper.load(file([looped()], ["y"], known))(X), X)
    with pytest.raises(kuiper.KuiperError, match="no iteration"):
        kuiper.load(file([looped()], ["y", "all"], known))


def test_loops_that_are_refused():
    known = [tensor("two", np.array(2)), tensor("go", np.array(True))]
    count = [value("m", np.int64, ())]
    with pytest.raises(kuiper.KuiperError, match=r"'around'.*the trip count is computed"):
        kuiper.load(file([looped()], ["y"], known, inputs=count))
    long = tensor("m", np.array(10**15))
    body = graph(
        [node("Add", "v x", "w"), node("Identity", "c", "on")],
        [value("i"), value("c"), value("v")], [value("on"), value("w")],
    )  # fmt: skip
    with pytest.raises(kuiper.KuiperError, match=r"write out more than"):
        kuiper.load(file([looped(body=body)], ["y"], [*known, long]))
    with pytest.raises(kuiper.KuiperError, match="neither a trip count nor a condition"):
        kuiper.load(file([looped("-", "-", body)], ["y"], known))


BODY = graph(
    [node("Add", "s a", "t"), node("Mul", "t a", "r")],
    [value("s"), value("a")], [value("t"), value("r")],
)  # fmt: skip


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_scan(axis, back):
    one = node(
        "Scan", "s0 x", "last all", "scan", body=BODY, num_scan_inputs=1, scan_input_axes=[axis],
        scan_input_directions=[back], scan_output_directions=[back], scan_output_axes=[axis],
    )  # fmt: skip
    start = np.zeros(X.shape[1 - axis], np.float32)
    last, each = kuiper.load(file([one], ["last", "all"], [tensor("s0", start)]))(X)
    rows = X if axis == 0 else X.T
    rows = rows[::-1] if back else rows
    sums = np.cumsum(rows, 0)
    results = (sums * rows)[::-1] if back else sums * rows
    np.testing.assert_allclose(last, sums[-1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(each, results if axis == 0 else results.T, rtol=1e-5, atol=1e-6)
    with pytest.raises(kuiper.KuiperError, match=r"'scan'.*open lengths"):
        kuiper.load(file([one], ["last"], [tensor("s0", start)], shape=("n", "m")))


def test_scan_of_a_batch():
    one = node("Scan", "- s0 x", "last all", "scan", body=BODY, num_scan_inputs=1)
    x = np.random.default_rng(4).normal(size=(2, 4, 3)).astype(np.float32)
    known = [tensor("s0", np.zeros((2, 3), np.float32))]
    made = file([one], ["last", "all"], known, opset=8, shape=(2, 4, 3))
    last, each = kuiper.load(made)(x)
    sums = np.cumsum(x, 1)
    np.testing.assert_allclose(last, sums[:, -1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(each, sums * x, rtol=1e-5, atol=1e-6)
