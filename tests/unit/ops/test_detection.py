"""Detector heads that a file has as one operator, against a numpy decoding of the boxes."""

import numpy as np
import pytest

import kuiper
from kuiper.ops.core import record as registry

DETECT = "models.yolo.Detect"


def head_of(height: int, width: int, halved: bool = True, **changes):
    """Return a model of the course's head over two maps, and its weights; None removes one."""
    rng = np.random.default_rng(8)
    graph = kuiper.ir.Graph()
    attributes, maps = {}, []
    for number, stride in enumerate((8, 16)):
        rows, columns = height // stride, width // stride
        maps.append(f"map{number}")
        graph.add_operand(maps[-1], (1, 4, rows, columns), "f32")
        graph.add_operator("pnnx.Input", f"in{number}", outputs=[maps[-1]])
        weight = rng.standard_normal((3 * 7, 4, 1, 1)).astype(np.float32)
        bias = rng.standard_normal(3 * 7).astype(np.float32)
        grid = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1)
        grid = np.broadcast_to(grid - 0.5 * halved, (1, 3, rows, columns, 2))
        anchors = rng.uniform(10, 90, (1, 3, 1, 1, 2)) * np.ones((1, 1, rows, columns, 1))
        attributes |= {f"m.{number}.weight": weight, f"m.{number}.bias": bias}
        # pnnx numbers constants in the order of the trace, so grids and anchors may be swapped.
        pair = [grid, anchors] if number else [anchors, grid]
        attributes |= {f"pnnx_{2 * number + i + number}": a for i, a in enumerate(pair)}
    attributes |= {"pnnx_2": np.array([8, 16]), **changes}
    attributes = {k: np.asarray(a, np.float32) for k, a in attributes.items() if a is not None}
    graph.add_operator(
        DETECT, "24", maps, ["y"],
        attributes={k: kuiper.ir.Attribute.from_array(a) for k, a in attributes.items()},
    )  # fmt: skip
    graph.add_operator("pnnx.Output", "out", ["y"])
    return kuiper.Model(graph), attributes


@pytest.mark.parametrize("halved", [True, False])
def test_every_number_of_every_box(halved):
    model, attributes = head_of(32, 48, halved)
    rng = np.random.default_rng(9)
    maps = [rng.standard_normal((1, 4, 32 // s, 48 // s)).astype(np.float32) for s in (8, 16)]
    y = model(*maps)
    assert y.shape == (1, 3 * (4 * 6 + 2 * 3), 7)
    expected = []
    for number, (x, stride) in enumerate(zip(maps, (8, 16), strict=True)):
        anchors = attributes["pnnx_0" if number == 0 else "pnnx_4"]
        for anchor in range(3):
            for row in range(x.shape[2]):
                for column in range(x.shape[3]):
                    channels = slice(7 * anchor, 7 * anchor + 7)
                    weight = attributes[f"m.{number}.weight"][channels, :, 0, 0]
                    bias = attributes[f"m.{number}.bias"][channels]
                    p = 1 / (1 + np.exp(-(weight @ x[0, :, row, column] + bias)))
                    centre = (p[:2] * 2 - 0.5 + [column, row]) * stride
                    extent = (p[2:4] * 2) ** 2 * anchors[0, anchor, row, column]
                    expected.append([*centre, *extent, *p[4:]])
    np.testing.assert_allclose(y[0], expected, rtol=2e-5, atol=1e-5)


def test_maps_of_other_sizes():
    rng = np.random.default_rng(10)
    small, _ = head_of(32, 48)
    large, _ = head_of(80, 64)
    maps = [rng.standard_normal((2, 4, 80 // s, 64 // s)).astype(np.float32) for s in (8, 16)]
    np.testing.assert_array_equal(small(*maps), large(*maps))


CELLS = np.zeros((1, 3, 4, 6, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pnnx_2": None}, r"0 constants of shape \(2,\), expected one: the strides"),
        ({"pnnx_2": [8, 8]}, "expected one: the strides, all different"),
        ({"pnnx_0": None}, "expected two of shape"),
        ({"pnnx_0": CELLS, "pnnx_1": CELLS}, "not a grid and the anchors of YOLOv5"),
        ({"pnnx_0": np.arange(144).reshape(CELLS.shape)}, "not a grid and the anchors of YOLOv5"),
        ({"m.1.weight": None}, "'m.1.weight' is None"),
        ({"m.1.weight": np.ones((21, 4, 3, 3))}, "expected that of a 1x1 convolution"),
        ({"m.1.weight": np.ones((20, 4, 1, 1))}, "20 rows, expected 5 or more for each of 3"),
        ({"m.1.bias": np.ones(3)}, r"'m.1.bias' has shape \(3,\), expected \(21,\)"),
        (
            {"m.1.weight": np.ones((24, 4, 1, 1)), "m.1.bias": None},
            "map 1 has 8 numbers for an anchor, map 0 has 7",
        ),
        ({"m.1.weight": np.ones((21, 5, 1, 1))}, r"map 1 is .* expected float32 \(n, 5, h, w\)"),
    ],
)
def test_constants_of_unexpected_shapes(changes, message):
    model, _ = head_of(32, 48, **changes)
    with pytest.raises(kuiper.OperatorError, match=message):
        model(np.zeros((1, 4, 4, 6), np.float32), np.zeros((1, 4, 2, 3), np.float32))


def test_maps_of_different_batches():
    model, _ = head_of(32, 48)
    with pytest.raises(kuiper.OperatorError, match="map 1 has 3 images, map 0 has 2"):
        model(np.zeros((2, 4, 4, 6), np.float32), np.zeros((3, 4, 2, 3), np.float32))


def test_another_class_of_the_same_name(monkeypatch):
    assert DETECT in kuiper.supported_operators()
    monkeypatch.setitem(registry._registry, DETECT, registry._registry[DETECT])

    def detect(*maps, **weights):
        return maps[0].sum(axis=1)

    with pytest.raises(kuiper.KuiperError, match=r"^kuiper has a record for .* replace=True\) if"):
        kuiper.operator(DETECT)(detect)
    kuiper.operator(DETECT, replace=True)(detect)

    model, _ = head_of(32, 48, pnnx_2=None)
    ones = [np.ones((1, 4, 4, 6), np.float32), np.ones((1, 4, 2, 3), np.float32)]
    np.testing.assert_array_equal(model(*ones), np.full((1, 4, 6), 4))
