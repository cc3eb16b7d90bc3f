"""Operators of detectors: suppression, regions of images, deformable convolution."""

import itertools

import numpy as np
import pytest

import kuiper

from ...reference import REFERENCES
from ...support.onnxfile import frozen, graph, model, node, single, tensor, value
from ...support.textgraph import model_of

R = np.random.default_rng(3)
IMAGES = R.normal(size=(2, 3, 9, 11)).astype(np.float32)


def floats(*shape):
    return R.normal(size=shape).astype(np.float32)


def run(type_, *inputs, opset=20, known=False, **attributes):
    """Return the result of an operator, whose inputs but the first may be constants of the file."""
    names = {f"i{k}": np.asarray(x) for k, x in enumerate(inputs) if x is not None}
    arrays = dict(list(names.items())[: 1 if known else None])
    rest = {} if not known else dict(list(names.items())[1:])
    loaded = kuiper.load(single(type_, arrays, known=rest, opset=opset, **attributes))
    return loaded(*arrays.values())


# -- suppression --------------------------------------------------------------------------------


def detections(centered):
    """Return boxes of two images, any two corners of each or center and size; scores with ties."""
    first = R.uniform(0, 10, (2, 40, 2))
    size = R.uniform(1, 5, (2, 40, 2)) if centered else R.uniform(-5, 5, (2, 40, 2)) + first
    scores = np.round(R.uniform(0, 1, (2, 3, 40)), 1)
    return np.float32(np.concatenate([first, size], -1)), np.float32(scores)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("centered", [0, 1])
def test_suppression(centered, known):
    boxes, scores = detections(centered)
    for limit, overlap, least in itertools.product((1, 7, 99), (0.0, 0.3, 1.0), (None, 0.5)):
        numbers = [np.array([limit]), np.float32([overlap])]
        numbers += [] if least is None else [np.float32([least])]
        got = run(
            "NonMaxSuppression", boxes, scores, *numbers, known=known, center_point_box=centered
        )
        expected = REFERENCES["kuiper.NonMaxSuppression"](
            boxes, scores, limit, overlap, least, bool(centered)
        )
        np.testing.assert_array_equal(got, expected)


def test_no_limit_is_given():
    boxes, scores = detections(0)
    for more in ([], [np.array([0])], [np.array(-3)]):
        assert run("NonMaxSuppression", boxes, scores, *more).shape == (0, 3)
    assert run("NonMaxSuppression", boxes[:, :0], scores[..., :0], np.array(3)).shape == (0, 3)


def test_boxes_without_an_area_suppress_nothing():
    boxes = np.float32([[[1, 1, 1, 4], [1, 1, 1, 4], [0, 0, 5, 5]]])
    scores = np.float32([[[0.9, 0.8, 0.7]]])
    got = run("NonMaxSuppression", boxes, scores, np.array([9]), np.float32([0.0]))
    assert got.tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2]]


def test_boxes_are_gathered():
    """The extents that do not depend on the number of boxes are known; the others stay open."""
    nodes = [
        node("NonMaxSuppression", "boxes scores limit iou", "found"),
        node("Slice", "found zero two one", "rows"),
        node("Gather", "found column", "numbers", axis=1),
        node("Concat", "rows numbers", "index", axis=1),
        node("Slice", "index zero three one pace", "pairs"),
        node("GatherND", "boxes pairs", "chosen"),
        node("Shape", "chosen", "shape"),
        node("Slice", "chosen zero one", "best"),
        node("Shape", "best", "size"),
    ]
    known = {
        "limit": np.array([9]), "iou": np.float32([0.3]), "zero": np.array([0]),
        "one": np.array([1]), "two": np.array([2]), "three": np.array([3]),
        "column": np.array([2]), "pace": np.array([2]),
    }  # fmt: skip
    inputs = [value("boxes", np.float32, ("n", "k", 4)), value("scores", np.float32, ("n", 3, "k"))]
    outputs = [value("chosen"), value("shape", np.int64), value("size", np.int64)]
    tensors = [tensor(key, array) for key, array in known.items()]
    loaded = kuiper.load(model(graph(nodes, inputs, outputs, tensors)))
    for boxes, scores in (detections(0), [a[:1] for a in detections(0)]):
        found = REFERENCES["kuiper.NonMaxSuppression"](boxes, scores, 9, 0.3)
        chosen, shape, size = loaded(boxes, scores)
        np.testing.assert_array_equal(chosen, boxes[found[:, 0], found[:, 2]])
        assert (shape.tolist(), size.tolist()) == ([len(found), 4], [1, 4])
    none = loaded(boxes[:, :0], scores[..., :0])
    assert none[1].tolist() == none[2].tolist() == [0, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iou": 1.5}, "'iou_threshold' is 1.5, expected 0 to 1"),
        ({"boxes": np.zeros((2, 39, 4), np.float32)}, r"expected \(2, 40, 4\)"),
        ({"scores": np.zeros((2, 3, 40))}, "'scores' is float64, expected float32"),
    ],
)
def test_detections_that_do_not_fit(change, message):
    boxes, scores = detections(0)
    boxes, scores = change.get("boxes", boxes), change.get("scores", scores)
    with pytest.raises(kuiper.KuiperError, match=message):
        run("NonMaxSuppression", boxes, scores, np.array([3]), np.float32([change.get("iou", 0.5)]))


# -- regions ------------------------------------------------------------------------------------


def regions(scale):
    """Return regions, some of them partly or wholly outside of the images."""
    corners = np.sort(R.uniform(-3, 15, (9, 2, 2)), 1).reshape(9, 4)
    corners[0], corners[1] = (20, 20, 30, 30), (-9, -9, -4, -4)
    return np.float32(corners / scale), R.integers(0, 2, 9)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("opset", [10, 16])
def test_regions(mode, opset):
    rois, numbers = regions(0.7)
    boxes = np.concatenate([numbers[:, None], rois], 1)
    reference = REFERENCES["kuiper.RoiAlignMax" if mode == "max" else "torchvision.ops.roi_align"]
    for ratio, aligned in itertools.product((0, 1, 3), (False, True)[: 1 if opset < 16 else 2]):
        extra = {} if opset < 16 or aligned else {
            "coordinate_transformation_mode": "output_half_pixel"
        }  # fmt: skip
        got = run(
            "RoiAlign", IMAGES, rois, numbers, opset=opset, mode=mode, output_height=3,
            output_width=4, sampling_ratio=ratio, spatial_scale=0.7, **extra,
        )  # fmt: skip
        expected = reference(
            IMAGES, boxes, output_size=(3, 4), spatial_scale=np.float32(0.7), sampling_ratio=ratio,
            aligned=aligned,
        )  # fmt: skip
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_regions_of_another_mode():
    rois, numbers = regions(1.0)
    with pytest.raises(kuiper.OperatorError, match="mode is 'min', expected avg or max"):
        run("RoiAlign", IMAGES, rois, numbers, mode="min")
    with pytest.raises(kuiper.OperatorError, match="expected half_pixel or output_half_pixel"):
        run("RoiAlign", IMAGES, rois, numbers, coordinate_transformation_mode="asymmetric")


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_maxima_of_regions(scale):
    rois, numbers = regions(scale)
    rois[5], rois[6] = rois[5, [2, 3, 0, 1]], np.float32([0.5, 1.5, 2.5, 4.5]) / scale
    boxes = np.float32(np.concatenate([numbers[:, None], rois], 1))
    got = run("MaxRoiPool", IMAGES, boxes, pooled_shape=[3, 4], spatial_scale=scale)
    expected = REFERENCES["kuiper.RoiMaxPool"](
        IMAGES, boxes, output_size=(3, 4), spatial_scale=scale
    )
    np.testing.assert_array_equal(got, np.float32(expected))
    assert (got[:2] == 0).all()


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ([2, 0, 0, 3, 3], "a box belongs to image 2, expected one of 2"),
        ([0, 0, 0, np.inf, 3], "a box has edges that are not finite"),
        ([0, 0, 0, 3], r"'boxes' has shape \(1, 4\), expected \(k, 5\)"),
    ],
)
def test_regions_that_do_not_fit(box, message):
    with pytest.raises(kuiper.KuiperError, match=message):
        run("MaxRoiPool", IMAGES, np.float32([box]), pooled_shape=[2, 2])


# -- deformable convolution ---------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 1, 2, 1)])
@pytest.mark.parametrize(("groups", "deformed", "has_mask", "has_bias"), [
    (1, 1, True, True), (2, 1, False, True), (2, 4, True, False),
])  # fmt: skip
def test_deformable_convolution(groups, deformed, has_mask, has_bias, pads, known):
    x, w = floats(2, 4, 7, 6), floats(6, 4 // groups, 3, 2)
    out = ((7 + pads[0] + pads[2] - 3) // 2 + 1, 6 + pads[1] + pads[3] - 2)
    offset = floats(2, 12 * deformed, *out)
    mask = floats(2, 6 * deformed, *out) if has_mask else None
    bias = floats(6) if has_bias else None
    arrays = {"x": x, "w": w, "o": offset, "b": bias, "m": mask}
    arrays = {key: array for key, array in arrays.items() if array is not None}
    weights = {key: arrays[key] for key in ("w", "b") if key in arrays} if known else {}
    given = {key: array for key, array in arrays.items() if key not in weights}
    names = " ".join(key if key in arrays else "-" for key in "xwobm").removesuffix(" -")
    one = node(
        "DeformConv", names, "y", group=groups, offset_group=deformed, pads=list(pads),
        strides=[2, 1], dilations=[1, 2],
    )  # fmt: skip
    inputs = [value(key, np.float32, array.shape) for key, array in arrays.items()]
    file = frozen(model(graph([one], inputs, [value("y")]), 19), weights)
    got = kuiper.load(file)(*given.values())
    wide = np.pad(x, ((0, 0), (0, 0), pads[::2], pads[1::2]))
    expected = REFERENCES["torchvision.ops.DeformConv2d"](
        wide, offset, mask, weight=w, bias=bias, stride=(2, 1), padding=(0, 0), dilation=(1, 2),
        groups=groups,
    )  # fmt: skip
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_offsets_of_another_number_of_groups():
    x, w, offset = floats(1, 4, 5, 5), floats(2, 4, 2, 2), floats(1, 16, 4, 4)
    with pytest.raises(kuiper.OperatorError, match="offsets have 16 channels, expected 8 for 1"):
        run("DeformConv", x, w, offset, opset=19)
    with pytest.raises(kuiper.OperatorError, match="filters with 1 spatial axes, expected 2"):
        run("DeformConv", floats(1, 4, 5), floats(2, 4, 2), floats(1, 8, 4), opset=19)


# -- determinants -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (2, 3, 3, 3)])
def test_determinants(shape):
    x = floats(*shape)
    expected = REFERENCES["kuiper.Determinant"](x.astype(np.float64))
    np.testing.assert_allclose(run("Det", x), expected, rtol=1e-4, atol=1e-5)
    text = "pnnx.Input in 0 1 x\nkuiper.Determinant d 1 1 x y\npnnx.Output out 1 0 y"
    np.testing.assert_allclose(model_of(text)(x), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(kuiper.ShapeError, match="expected square matrices of floats"):
        model_of(text)(floats(3, 4))
