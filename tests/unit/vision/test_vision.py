"""kuiper.vision: preprocessing before and decoding after a vision network."""

from __future__ import annotations

import io
import math
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kuiper

cv2 = pytest.importorskip("cv2", reason="kuiper.vision reads pictures with OpenCV")

from kuiper.vision import (  # noqa: E402
    PRESETS,
    Classifier,
    Detection,
    Detector,
    Guess,
    Preprocessing,
    Segmenter,
    VideoReader,
    VideoWriter,
    best_guesses,
    class_colour,
    cut_out,
    detection,
    draw_detections,
    draw_guesses,
    drawing,
    find_model,
    find_pictures,
    images,
    letterbox,
    load_image,
    load_labels,
    model_zoo,
    non_maximum_suppression,
    overlay,
    preprocess,
    probabilities,
    save_image,
    video,
)

from ...support.paths import DATA  # noqa: E402
from ...support.shipped import MODELS  # noqa: E402

PHOTOS = MODELS.parent / "photos"
COURSE = DATA / "course"

needs_weights = pytest.mark.skipif(
    not (MODELS / "nanodet_m.f16.pnnx.bin").exists(),
    reason="the weights of the example models are in the repository, not in the sdist",
)


# -- preprocessing -----------------------------------------------------------------------------


def one_colour(height: int, width: int) -> np.ndarray:
    """Return a picture of one colour: blue 10, green 20, red 30."""
    return np.full((height, width, 3), (10, 20, 30), np.uint8)


IMAGENET_COLOUR = [
    (30 / 255 - 0.485) / 0.229,
    (20 / 255 - 0.456) / 0.224,
    (10 / 255 - 0.406) / 0.225,
]


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("imagenet", IMAGENET_COLOUR),
        ("course", IMAGENET_COLOUR),
        ("caffe", [10 - 104, 20 - 117, 30 - 123]),
        ("tf", [30 / 127.5 - 1, 20 / 127.5 - 1, 10 / 127.5 - 1]),
        ("bicubic", IMAGENET_COLOUR),
        ("vit", [30 / 127.5 - 1, 20 / 127.5 - 1, 10 / 127.5 - 1]),
        (
            "openai_clip",
            [
                (30 / 255 - 0.48145466) / 0.26862954,
                (20 / 255 - 0.4578275) / 0.26130258,
                (10 / 255 - 0.40821073) / 0.27577711,
            ],
        ),
    ],
)
def test_presets_on_one_colour(preset, expected):
    how = replace(PRESETS[preset], size=(64, 48))
    x = images.preprocess(one_colour(90, 130), how)
    assert (x.dtype, x.shape, x.flags.c_contiguous) == (np.float32, (3, 64, 48), True)
    np.testing.assert_allclose(x, np.broadcast_to(np.reshape(expected, (3, 1, 1)), x.shape), 1e-5)


def test_the_imagenet_preset_resizes_as_torchvision(monkeypatch):
    seen = []
    resize = images.resize_antialiased

    def spy(image, height, width):
        seen.append((height, width))
        return resize(image, height, width)

    monkeypatch.setattr(images, "resize_antialiased", spy)
    for shape, size in [((300, 451), 224), ((640, 427), 224), ((512, 512), 224), ((512, 700), 299)]:
        how = replace(PRESETS["imagenet"], size=(size, size))
        assert images.preprocess(one_colour(*shape), how).shape == (3, size, size)
    # torchvision.transforms.Resize(256), and (342) for 299: int(256 * long side / short side)
    assert seen == [(256, 384), (383, 256), (256, 256), (342, 467)]


@pytest.mark.parametrize(
    ("preset", "short"), [("bicubic", 256), ("vit", 248), ("openai_clip", 224), ("imagenet", None)]
)
def test_presets_of_networks_that_were_trained_with_bicubic_resizing(monkeypatch, preset, short):
    seen = []
    resize = images.resize_bicubic

    def spy(image, height, width):
        seen.append((height, width))
        return resize(image, height, width)

    monkeypatch.setattr(images, "resize_bicubic", spy)
    how = replace(PRESETS[preset], size=(224, 224))
    assert images.preprocess(one_colour(300, 450), how).shape == (3, 224, 224)
    assert seen == ([] if short is None else [(short, short * 3 // 2)])


def test_without_antialiasing_the_filter_is_that_of_opencv():
    image = np.random.default_rng(4).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    how = Preprocessing((0,), (1,), scale=1, bgr=True, crop=False, antialias=False, size=(60, 70))
    for name, order in (("bilinear", cv2.INTER_LINEAR), ("bicubic", cv2.INTER_CUBIC)):
        expected = cv2.resize(image, (70, 60), interpolation=order).transpose(2, 0, 1)
        np.testing.assert_array_equal(preprocess(image, replace(how, filter=name)), expected)
    with pytest.raises(kuiper.InputError, match="filter is 'cubic', expected one of bilinear, bic"):
        replace(how, filter="cubic")


def test_the_crop_is_centred():
    image = np.zeros((40, 80, 3), np.uint8)
    image[10:30, 30:50] = 255
    how = Preprocessing(mean=(0,), std=(1,), size=(20, 20), resize=40)
    x = images.preprocess(image, how)
    assert (x == 1).all()


def test_squeezing_keeps_the_whole_photo():
    image = np.zeros((40, 80, 3), np.uint8)
    image[:, 40:] = 255
    how = Preprocessing(mean=(0,), std=(1,), size=(20, 20), crop=False)
    x = images.preprocess(image, how)
    assert (x[:, :, :9] == 0).all()
    assert (x[:, :, 11:] == 1).all()


def triangle(x: float) -> float:
    return max(0.0, 1 - abs(x))


def cubic(x: float) -> float:
    """Return Keys' kernel with a = -0.5, as in Pillow."""
    x = abs(x)
    if x < 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0


def filtered_resize(image: np.ndarray, height: int, width: int, kernel=triangle) -> np.ndarray:
    """Resize with antialiasing, pixel by pixel in float64."""

    def taps(length: int, new_length: int, position: int) -> list[float]:
        step = length / new_length
        centre = (position + 0.5) * step
        taps = [kernel((i + 0.5 - centre) / max(step, 1.0)) for i in range(length)]
        return [tap / math.fsum(taps) for tap in taps]

    result = np.zeros((height, width, 3))
    for y in range(height):
        for x in range(width):
            rows, columns = taps(image.shape[0], height, y), taps(image.shape[1], width, x)
            for i, row in enumerate(rows):
                for j, column in enumerate(columns):
                    result[y, x] += row * column * image[i, j]
    return result


@pytest.mark.parametrize("new_shape", [(7, 5), (13, 17), (20, 9), (3, 30)])
def test_antialiased_resize(new_shape):
    image = np.random.default_rng(3).integers(0, 256, (13, 17, 3), dtype=np.uint8)
    resized = images.resize_antialiased(image, *new_shape)
    assert resized.dtype == np.uint8
    expected = filtered_resize(image, *new_shape)
    assert expected.std() > 10
    np.testing.assert_allclose(resized, expected, rtol=0, atol=0.51)  # rounded to integers


@pytest.mark.parametrize("new_shape", [(7, 5), (13, 17), (20, 9), (3, 30)])
def test_bicubic_resize(new_shape):
    image = np.random.default_rng(3).integers(60, 190, (13, 17, 3), dtype=np.uint8)
    resized = images.resize_bicubic(image, *new_shape)
    assert resized.dtype == np.uint8
    expected = filtered_resize(image, *new_shape, cubic)
    if new_shape != image.shape[:2]:
        assert np.abs(expected - filtered_resize(image, *new_shape)).max() > 3
    # Pillow, too, rounds after the first axis; the second weighs these errors.
    np.testing.assert_allclose(resized, np.clip(expected, 0, 255), rtol=0, atol=1.3)


def test_antialiased_resize_of_a_large_photo():
    # Smooth content, so that averaging by integer factors first does not show in the result.
    y, x = np.mgrid[:900, :1200] / 100
    image = np.stack([128 + 100 * np.sin(x + k * y) for k in range(3)], axis=2).astype(np.uint8)
    large = images.resize_antialiased(image, 60, 80).astype(int)
    rows, columns = images.triangle_weights(900, 60), images.triangle_weights(1200, 80)
    direct = np.einsum("ai,ijc,bj->abc", rows, image.astype(np.float32), columns, optimize=True)
    assert direct.std() > 30
    assert np.abs(large - direct).max() < 2


def test_antialiasing_reads_every_pixel():
    # A chessboard of single pixels averages to grey; four taps out of 64 would show the pattern.
    image = np.indices((160, 160)).sum(axis=0)[:, :, None] % 2 * np.full(3, 255)
    grey = images.resize_antialiased(image.astype(np.uint8), 21, 21)
    assert np.abs(grey.astype(int) - 127).max() <= 8


# -- scores to guesses -----------------------------------------------------------------------


def test_softmax_is_applied_to_logits_only():
    scores = np.array([[1.0, 3.0, 1000.0], [0.0, 0.0, 0.0]], np.float32)
    np.testing.assert_allclose(probabilities(scores), [[0, 0, 1], [1 / 3] * 3], atol=1e-6)
    ready = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], np.float32)
    np.testing.assert_array_equal(probabilities(ready), ready)
    logarithms = np.log(np.array([[0.2, 0.3, 0.5]], np.float32))
    np.testing.assert_allclose(probabilities(logarithms), [[0.2, 0.3, 0.5]], atol=1e-6)


def test_guesses_are_in_order_and_ties_by_index():
    guesses = best_guesses(np.array([0.1, 0.4, 0.1, 0.4]), ["a", "b", "c", "d"], 3)
    assert [(guess.index, guess.label) for guess in guesses] == [(1, "b"), (3, "d"), (0, "a")]


def test_labels_without_a_file():
    assert load_labels(None, 1000)[967] == "espresso"
    assert load_labels(None, 2) == ["class 0", "class 1"]


def test_guesses_fit_small_pictures():
    guesses = [Guess(0, "first", 0.9), Guess(1, "second", 0.1)]
    image = np.full((20, 40, 3), 100, np.uint8)
    picture = draw_guesses(image, guesses)
    assert picture.shape == (160, 320, 3)
    assert (image == 100).all()
    white = (picture > 200).all(axis=2)
    assert white.any()
    blue = picture[:, :, 0] > 150
    assert blue[: white.shape[0] // 4].sum() > 4 * (blue.sum() - blue[: white.shape[0] // 4].sum())


# -- files -------------------------------------------------------------------------------------


def test_pictures_are_found_in_subfolders(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b.png", "sub/a.JPG", "clip.mp4", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    single = tmp_path / "notes.txt"
    found = [path.name for path in find_pictures([tmp_path, single])]
    assert found == ["b.png", "clip.mp4", "a.JPG", "notes.txt"]


@pytest.mark.parametrize("name", ["x.png", "new folder/x.png"])
def test_pictures_are_saved_without_loss(tmp_path, name):
    picture = np.random.default_rng(1).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    save_image(tmp_path / name, picture)
    np.testing.assert_array_equal(load_image(tmp_path / name), picture)


def test_an_unsupported_suffix(tmp_path):
    with pytest.raises(ValueError, match=r"cannot write a picture with the suffix '\.txt'"):
        save_image(tmp_path / "x.txt", one_colour(4, 4))


def test_bundled_models_are_found_in_the_clone(monkeypatch):
    monkeypatch.delenv("KUIPER_MODELS", raising=False)
    if MODELS.parent.parent.joinpath("kuiper") != Path(kuiper.__file__).parent:
        pytest.skip("kuiper is installed somewhere else than in this clone")
    if not (MODELS / "mobilenet_v2.f16.pnnx.bin").exists():
        pytest.skip("the sdist has no weights")
    assert find_model("mobilenet_v2") == MODELS / "mobilenet_v2.f16.pnnx.param"


def test_bundled_models_are_found_by_the_environment(monkeypatch, tmp_path):
    (tmp_path / "u2netp.f16.pnnx.param").write_bytes(b"")
    monkeypatch.setenv("KUIPER_MODELS", str(tmp_path))
    assert find_model("u2netp") == tmp_path / "u2netp.f16.pnnx.param"
    with pytest.raises(FileNotFoundError, match="KUIPER_MODELS names this folder"):
        find_model("nanodet_m")


def test_bundled_models_are_found_in_the_data_package(monkeypatch, tmp_path):
    package = tmp_path / "kuiper_models"
    package.mkdir()
    (package / "__init__.py").write_bytes(b"")
    (package / "u2netp.f16.pnnx.param").write_bytes(b"")
    monkeypatch.delenv("KUIPER_MODELS", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert find_model("u2netp") == package / "u2netp.f16.pnnx.param"


def test_missing_models(monkeypatch, tmp_path):
    monkeypatch.delenv("KUIPER_MODELS", raising=False)
    monkeypatch.setattr(
        model_zoo.kuiper, "__file__", str(tmp_path / "lib" / "kuiper" / "__init__.py")
    )
    monkeypatch.setattr(model_zoo.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install CLONE/examples/models"):
        find_model("u2netp")
    with pytest.raises(FileNotFoundError, match="not one of mobilenet_v2"):
        find_model("lenet.param")
    assert load_labels(None, 80)[0] == "class 0"


# -- letterbox and boxes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "size", "left", "top"),
    [
        ((300, 451), (320, 320), 0, 53),
        ((640, 320), (320, 320), 80, 0),
        ((50, 100), (64, 256), 64, 0),
    ],
)
def test_letterbox_keeps_proportions_and_can_be_inverted(shape, size, left, top):
    image = np.full((*shape, 3), 200, np.uint8)
    canvas, where = letterbox(image, size, 7)
    assert canvas.shape == (*size, 3)
    assert (where.left, where.top) == (left, top)
    inside = (canvas == 200).all(axis=2)
    assert (canvas[~inside] == 7).all()
    rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
    assert (rows[0], columns[0]) == (top, left)
    box = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    back = where.to_picture(np.array([box], float))[0]
    np.testing.assert_allclose(back, [0, 0, shape[1], shape[0]], atol=1 / where.scale)


def test_boxes_are_clipped_to_the_picture():
    _, where = letterbox(one_colour(100, 200), (64, 64))
    np.testing.assert_allclose(where.to_picture(np.array([[-9.0, -9, 99, 99]])), [[0, 0, 200, 100]])


def slow_suppression(boxes, scores, classes, iou):
    """Suppress greedily, pair by pair."""

    def overlap(a, b):
        width = min(a[2], b[2]) - max(a[0], b[0])
        height = min(a[3], b[3]) - max(a[1], b[1])
        if width <= 0 or height <= 0:
            return 0.0
        area = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
        return width * height / (area - width * height)

    kept = []
    for i in sorted(range(len(boxes)), key=lambda i: -scores[i]):
        if all(classes[i] != classes[j] or overlap(boxes[i], boxes[j]) <= iou for j in kept):
            kept.append(i)
    return kept


@pytest.mark.parametrize("iou", [0.0, 0.3, 0.5, 1.0])
def test_suppression_equals_the_pairwise_definition(iou):
    rng = np.random.default_rng(5)
    corners = rng.uniform(0, 60, (200, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(5, 40, (200, 2))], axis=1)
    scores, classes = rng.permutation(200) / 200, rng.integers(0, 3, 200)
    kept = non_maximum_suppression(boxes, scores, classes, iou, limit=1000).tolist()
    assert kept == slow_suppression(boxes, scores, classes, iou)
    assert iou == 1 or 0 < len(kept) < 200


def test_suppression_of_no_boxes_and_with_a_limit():
    nothing = non_maximum_suppression(np.zeros((0, 4)), np.zeros(0), np.zeros(0, int))
    assert (nothing.shape, nothing.dtype.kind) == ((0,), "i")
    boxes = np.arange(40.0).reshape(10, 4) * 100
    assert len(non_maximum_suppression(boxes, np.ones(10), np.zeros(10, int), limit=4)) == 4


# -- decoders ----------------------------------------------------------------------------------


def test_yolov5_columns():
    rows = np.zeros((1, 3, 7), np.float32)
    rows[0, 0] = [50, 40, 20, 10, 0.9, 0.1, 0.8]
    rows[0, 1] = [50, 40, 20, 10, 0.1, 1.0, 1.0]  # low confidence
    ((boxes, scores),) = detection.decode_yolov5([rows], (64, 64), 0.25)
    np.testing.assert_allclose(boxes, [[40, 35, 60, 45]])
    np.testing.assert_allclose(scores, [[0.09, 0.72]], rtol=1e-6)


@pytest.mark.parametrize("factors", [0, 32])
def test_yolov8_columns(factors):
    y = np.zeros((1, 4 + 2 + factors, 84), np.float32)
    y[0, :6, 3] = [50, 40, 20, 10, 0.3, 0.6]
    outputs = [y] if not factors else [y, np.zeros((1, 32, 16, 16), np.float32)]
    ((boxes, scores),) = detection.decode_yolov8(outputs, (64, 64), 0.25)
    assert scores.shape == (84, 2)
    np.testing.assert_allclose(boxes[3], [40, 35, 60, 45])
    np.testing.assert_allclose(scores[3], [0.3, 0.6])


def test_nanodet_columns():
    size = (64, 32)  # cells: 8x4, 4x2, 2x1
    y = np.full((1, 42, 3 + 32), -20, np.float32)
    y[0, :, :3] = 0
    y[0, 32 + 5, 1] = 0.7  # stride 16, row 2, column 1: centre (24, 40)
    for side, distance in enumerate([1, 2, 0, 3]):
        y[0, 32 + 5, 3 + 8 * side + distance] = 20
    ((boxes, scores),) = detection.decode_nanodet([y], size, 0.4)
    np.testing.assert_allclose(scores, [[0, 0.7, 0]])
    np.testing.assert_allclose(boxes, [[24 - 16, 40 - 32, 24, 40 + 48]], atol=1e-4)
    apart = []
    for start, end in ((0, 32), (32, 40), (40, 42)):
        apart += [y[:, start:end, :3], y[:, start:end, 3:]]
    ((same, _),) = detection.decode_nanodet(apart, size, 0.4)
    np.testing.assert_array_equal(same, boxes)


def test_end2end_columns():
    y = np.zeros((1, 300, 6), np.float32)
    y[0, 0] = [1, 2, 3, 4, 0.9, 17]
    ((boxes, scores),) = detection.decode_end2end([y], (64, 64), 0.25)
    np.testing.assert_allclose(boxes[0], [1, 2, 3, 4])
    assert (scores[0].argmax(), scores.shape) == (17, (300, 80))


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(1, 2100, 112)], "nanodet"),
        ([(1, 1600, 80), (1, 1600, 32), (1, 400, 80), (1, 400, 32), (1, 100, 80), (1, 100, 32)],
         "nanodet"),
        ([(1, 6300, 85)], "yolov5"),
        ([(1, 84, 2100)], "yolov8"),
        ([(1, 116, 2100), (1, 32, 80, 80)], "yolov8"),
        ([(1, 300, 6)], "end2end"),
    ],
)  # fmt: skip
def test_shapes_select_the_decoder(shapes, expected):
    outputs = [np.zeros(shape, np.float32) for shape in shapes]
    assert detection.guess_decoder(outputs, (320, 320)) == expected


def test_shapes_without_a_decoder():
    with pytest.raises(ValueError, match=r"\(1, 1000\) .* 320x320"):
        detection.guess_decoder([np.zeros((1, 1000))], (320, 320))


# -- detectors ---------------------------------------------------------------------------------


@needs_weights
def test_nanodet_finds_the_cat():
    ((cat,),) = Detector("nanodet_m")([load_image(PHOTOS / "chelsea.png")])
    assert (cat.index, cat.label) == (15, "cat")
    assert cat.score == pytest.approx(0.74, abs=0.005)
    # The head and the paws extend from the left border beyond the middle of the photo.
    np.testing.assert_allclose(cat.box, [1.6, 1.6, 429.8, 295.5], atol=3)


@needs_weights
def test_detections_of_a_batch_equal_those_of_single_pictures():
    photos = [load_image(PHOTOS / name) for name in ("coffee.png", "chelsea.png", "rocket.jpg")]
    detector = Detector()
    together = detector(photos)
    assert together == [detector([photo])[0] for photo in photos]
    assert next(found.label for found in together[0]) == "cup"
    assert together[2] == []


@needs_weights
def test_detector_options(tmp_path):
    labels = tmp_path / "names.txt"
    labels.write_text("\n".join(f"thing {i}" for i in range(80)), encoding="utf-8")
    photo = load_image(PHOTOS / "coffee.png")
    assert len(Detector(threshold=0.05)([photo])[0]) > len(Detector(threshold=0.5)([photo])[0]) == 1
    assert Detector(labels=labels)([photo])[0][0].label == "thing 41"
    with pytest.raises(ValueError, match="decoder 'yolov4', expected one of nanodet"):
        Detector(decoder="yolov4")
    with pytest.raises(ValueError, match="do not fit a known detector"):
        Detector("mobilenet_v2")


# -- segmentation ------------------------------------------------------------------------------


@needs_weights
def test_u2netp_separates_the_cat():
    photo = load_image(PHOTOS / "chelsea.png")
    (mask,) = Segmenter("u2netp")([photo])
    assert (mask.shape, mask.dtype) == (photo.shape[:2], np.float32)
    assert 0 <= mask.min() < 0.01
    assert 0.99 < mask.max() <= 1
    assert mask[150, 200] > 0.95  # the face
    assert mask[:, -15:].mean() < 0.1  # the wall in the background


@needs_weights
def test_selfie_separates_the_astronaut():
    photo = load_image(PHOTOS / "astronaut.png")
    (mask,) = Segmenter("selfie")([photo])
    assert mask[150, 220] > 0.95  # the face
    assert mask[60, 20] < 0.1  # the flag
    assert Segmenter("selfie").classes([photo])[0][150, 220] == 1


def scores_model(channels: int, tail: str = ""):
    """Return a model with `channels` channels whose output is its input, so tests set scores."""
    return kuiper.load(
        f"""7767517
3 2
pnnx.Input     in   0 1 0 #0=(1,3,8,8)f32
Tensor.slice   cut  1 1 0 1 dim=1 start=0 end={channels} step=1 $input=0
pnnx.Output    out  1 0 1
""".encode()
    )


def test_one_channel_of_logits_becomes_probabilities():
    image = np.zeros((8, 8, 3), np.uint8)
    image[:, 4:, 2] = 255  # red
    segmenter = Segmenter(scores_model(1), "imagenet")
    (mask,) = segmenter([image])
    low, high = ((v - 0.485) / 0.229 for v in (0, 1))
    np.testing.assert_allclose(mask[:, 0], 1 / (1 + np.exp(-low)), rtol=1e-5)
    np.testing.assert_allclose(mask[:, 7], 1 / (1 + np.exp(-high)), rtol=1e-5)


def test_several_classes():
    image = np.zeros((8, 8, 3), np.uint8)
    image[:, :4, 2] = image[:, 4:, 0] = 255  # red, then blue
    segmenter = Segmenter(scores_model(3))
    (classes,) = segmenter.classes([image])
    np.testing.assert_array_equal(classes, np.repeat([[0] * 4 + [2] * 4], 8, axis=0))
    (mask,) = segmenter([image])  # all classes but 0
    assert mask[0, 0] < 0.5 < mask[0, 7]


def test_invalid_segmenters():
    with pytest.raises(ValueError, match="kind 'net', expected one of u2net"):
        Segmenter(scores_model(1), "net")


@pytest.mark.parametrize(("length", "new_length"), [(451, 320), (40, 60), (64, 64)])
def test_lanczos_weights(length, new_length):
    weights = images.lanczos_weights(length, new_length)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
    # A linear ramp stays linear, except at the borders, where the window is clipped.
    line = weights @ np.arange(length, dtype=np.float32)
    inner = slice(4 * new_length // 20, -4 * new_length // 20)
    expected = (np.arange(new_length) + 0.5) * length / new_length - 0.5
    np.testing.assert_allclose(line[inner], expected[inner], atol=0.05)


@pytest.mark.parametrize("new_shape", [(40, 53), (90, 17), (7, 131)])
def test_lanczos_resize_equals_the_product_with_all_weights(new_shape):
    image = np.random.default_rng(5).integers(0, 256, (90, 131, 3), dtype=np.uint8)
    rows, columns = (
        images.lanczos_weights(n, m) for n, m in zip((90, 131), new_shape, strict=True)
    )
    half = np.clip(np.rint(np.einsum("ijc,bj->ibc", image, columns, dtype=np.float64)), 0, 255)
    expected = np.clip(np.einsum("ai,ibc->abc", rows, half, dtype=np.float64), 0, 255)
    resized = images.resize_lanczos(image, *new_shape)
    assert (resized.dtype, resized.shape) == (np.uint8, (*new_shape, 3))
    # If a half rounds the other way in the first product, the second changes by its weight.
    assert np.abs(resized - expected).max() < 1.01
    assert np.mean(np.abs(resized - expected) <= 0.5001) > 0.99


# -- pictures ----------------------------------------------------------------------------------


def test_overlay_and_cut_out():
    image = one_colour(6, 8)
    mask = np.zeros((6, 8), np.float32)
    mask[:, 4:] = 1
    laid = overlay(image, mask, index=1, strength=0.5)
    np.testing.assert_array_equal(laid[:, :4], image[:, :4])
    expected = (np.array([10, 20, 30]) + class_colour(1)) / 2
    np.testing.assert_allclose(laid[0, 7], expected, atol=1)
    cut = cut_out(image, mask)
    assert cut.shape == (6, 8, 4)
    np.testing.assert_array_equal(cut[:, :, 3], mask * 255)
    np.testing.assert_array_equal(cut[:, :, :3], image)


def test_boxes_are_drawn_at_their_coordinates():
    image = np.full((200, 300, 3), 128, np.uint8)
    found = [Detection(3, "thing", 0.8, (50.0, 60.0, 250.0, 180.0))]
    picture = draw_detections(image, found)
    assert (image == 128).all()
    changed = (picture != 128).any(axis=2)
    assert changed[60:180, 50].all()
    assert changed[180, 50:250].all()
    assert not changed[80:170, 70:240].any()
    assert not changed[:, :40].any()


def test_labels_do_not_hide_each_other():
    image = np.full((140, 200, 3), 128, np.uint8)
    boxes = [(55.0, 4.0, 143.0, 114.0), (2.0, 1.0, 161.0, 131.0), (3.0, 2.0, 165.0, 133.0)]
    found = [Detection(i, f"thing {i}", 0.8 - i / 10, box) for i, box in enumerate(boxes)]
    # Each label is drawn completely even when all are drawn.
    together = draw_detections(image, found)
    taken = []
    for thing in found:
        text = f"{thing.label} {thing.score:.2f}"
        box = tuple(round(value) for value in thing.box)
        taken.append(drawing._label_area(image, text, box, taken))
        left, top, right, bottom = taken[-1]
        assert 0 <= left < right <= 200
        assert 0 <= top < bottom <= 140
        bar = together[top + 1 : bottom, left + 1 : right]
        assert np.mean((bar == class_colour(thing.index)).all(axis=2)) > 0.3
    for i, area in enumerate(taken):
        assert not any(drawing._common_area(area, other) for other in taken[:i])


@pytest.mark.parametrize("shape", [(300, 1600), (60, 900), (2, 2000), (1, 1), (3000, 2)])
def test_all_guesses_fit_pictures_of_any_shape(shape):
    guesses = [Guess(i, f"class {i}", 0.2) for i in range(5)]
    picture = draw_guesses(np.full((*shape, 3), 90, np.uint8), guesses)
    assert picture.shape[1] >= 320
    lit = (picture > 150).all(axis=2).any(axis=1)  # rows with letters of the five lines
    starts = np.flatnonzero(np.diff(lit.astype(int)) == 1)
    assert len(starts) == 5
    if shape[0] >= 300:
        assert (picture[-1] == 90).all(axis=1).any()  # part of the picture stays visible


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"<!DOCTYPE html><html>", "it is a web page"),
        (b"version https://git-lfs.github.com/spec/v1", "git-lfs pointer"),
        (b"\x89PNG\r\n\x1a\n broken", "it is damaged"),
    ],
)
def test_a_file_that_is_not_a_picture_is_described(tmp_path, content, said):
    path = tmp_path / "x.png"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"x.png: not an image .*{said}"):
        images.load_image(path)


def test_colours_of_adjacent_classes_differ():
    colours = {class_colour(index) for index in range(80)}
    assert len(colours) == 80


# -- what callers pass -------------------------------------------------------------------------


class PILImage:
    """Stands for PIL.Image.Image: a mode and its conversion to RGB."""

    mode = "RGB"

    def convert(self, mode):
        assert mode == "RGB"
        return one_colour(4, 5)[:, :, ::-1]


def test_pictures_of_every_kind(tmp_path, monkeypatch):
    expected, path = one_colour(4, 5), tmp_path / "x.png"
    save_image(path, expected)
    opaque = np.dstack([expected, np.zeros((4, 5), np.uint8)])  # its opacity is ignored
    for source in (path, str(path), expected, opaque):
        np.testing.assert_array_equal(images.as_image(source), expected)
    with open(path, "rb") as file:
        np.testing.assert_array_equal(images.as_image(file), expected)
    np.testing.assert_array_equal(images.as_image(opaque[:, :, [2, 1, 0, 3]], "rgb"), expected)
    for grey in (expected[:, :, 0], expected[:, :, :1]):
        np.testing.assert_array_equal(images.as_image(grey), np.full((4, 5, 3), 10))
    module = type(sys)("PIL.Image")
    module.Image = PILImage
    monkeypatch.setitem(sys.modules, "PIL.Image", module)
    np.testing.assert_array_equal(images.as_image(PILImage()), expected)
    monkeypatch.setattr(PILImage, "mode", "F")
    with pytest.raises(kuiper.InputError, match=r"a PIL\.Image of mode 'F', expected one of 1, L"):
        images.as_image(PILImage())


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (one_colour(4, 5) / 255, r"got float64 \(4, 5, 3\), .* uint8 .*np.rint\(x \* 255\)"),
        (np.float32(one_colour(4, 5)), "255, which the preprocessing scales$"),
        (np.uint16(one_colour(4, 5)), r"got uint16 .*; scale its values to 0\.\.255"),
        (np.zeros((3, 8, 9), np.uint8), r"first axis: pass x.transpose\(1, 2, 0\)"),
        (np.zeros((2, 8, 9, 3), np.uint8), r"; list\(x\) passes its pictures one by one"),
        (np.zeros((8, 9, 2), np.uint8), "or 1 or 4 channels"),
        (np.zeros((0, 9, 3), np.uint8), r"got uint8 \(0, 9, 3\)"),
        (np.zeros(9, np.uint8), r"or \(height, width\) for grey"),
        (b"bytes", r"got bytes, expected a path, .*io.BytesIO"),
        (None, "got NoneType, expected a path"),
        ({"a.png", "b.png"}, "got set, expected a path"),
        ([], "got no pictures, expected at least one"),
        ([one_colour(4, 5), 3], "picture 1: got int, expected a path"),
    ],
)
def test_what_is_no_picture(source, said):
    segmenter = Segmenter(scores_model(1))
    for call in (segmenter, segmenter.planes, images.as_images):
        with pytest.raises(kuiper.InputError, match=said):
            call(source)
    with pytest.raises(kuiper.InputError, match="channels is 'gbr', expected 'bgr' or 'rgb'"):
        images.as_image(one_colour(4, 5), "gbr")


@needs_weights
def test_networks_take_one_picture_or_many():
    path = PHOTOS / "chelsea.png"
    image = load_image(path)
    for network in (Classifier(), Detector(), Segmenter("selfie")):
        (expected,) = network([image])
        for found in (network(path), network(image), network(image[:, :, ::-1], channels="rgb")):
            np.testing.assert_array_equal(found, expected)
        for wrong in (image / 255, [image / 255], []):
            with pytest.raises(kuiper.InputError):
                network(wrong)


@pytest.mark.parametrize("suffix", [".tif", ".hdr", ".pfm"])
def test_floats_in_a_file_have_no_scale(tmp_path, capfd, suffix):
    path = tmp_path / f"x{suffix}"
    cv2.imencode(suffix, np.full((4, 5, 3), 0.5, np.float32))[1].tofile(path)
    said = "x.*: its pixels are float32, expected integers of 8 or 16 bits; scale them to 0..255$"
    with pytest.raises(ValueError, match=said):
        load_image(path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_tiff_of_integers(tmp_path, dtype):
    scale = 1 if dtype == np.uint8 else 257
    image = one_colour(4, 5).astype(dtype) * dtype(scale)
    cv2.imencode(".tif", image)[1].tofile(tmp_path / "x.tif")
    np.testing.assert_array_equal(load_image(tmp_path / "x.tif"), one_colour(4, 5))


@needs_weights
def test_networks_describe_themselves():
    assert repr(Classifier("squeezenet")).startswith(
        "<kuiper.vision.Classifier: 227x227 pixels, bilinear, of <kuiper.Model: "
    )
    assert repr(Classifier("mobilenet_v2", PRESETS["openai_clip"])).startswith(
        "<kuiper.vision.Classifier: 224x224 pixels, bicubic, cropped, of <kuiper.Model: "
    )
    assert repr(Detector(iou=0.6)).startswith(
        "<kuiper.vision.Detector: nanodet, 320x320 pixels, threshold 0.4, iou 0.6, of <kuiper.Model"
    )
    assert repr(Segmenter("selfie")).startswith(
        "<kuiper.vision.Segmenter: selfie, 256x256 pixels, of <kuiper.Model: "
    )


def test_videos_describe_themselves(tmp_path):
    path = tmp_path / "clip.avi"
    with VideoWriter(path, 5) as writer:
        assert repr(writer) == f"<kuiper.vision.VideoWriter: {path}, 5 per second>"
        for _ in range(2):
            writer.write(one_colour(48, 64))
    expected = f"<kuiper.vision.VideoReader: {path}, 5 per second, 2 frames>"
    assert repr(VideoReader(path)) == expected


# -- classifiers -------------------------------------------------------------------------------


@needs_weights
def test_classifier_takes_a_model_or_a_name():
    photo = load_image(PHOTOS / "chelsea.png")
    ((by_name,),) = Classifier("mobilenet_v2")([photo], 1)
    ((by_model,),) = Classifier(kuiper.load(find_model("mobilenet_v2")))([photo], 1)
    assert by_name == by_model
    assert by_name.label == "Egyptian cat"


def test_the_enlargement_of_a_line_of_pixels_is_bounded():
    """The short side of 2 x 20,000 pixels becomes 256; the long one would become 2,560,000."""
    column = np.random.default_rng(0).integers(0, 256, (2, 20_001, 3), np.uint8)
    how = replace(PRESETS["imagenet"], size=(224, 224))
    tracemalloc.start()
    y = preprocess(column, how)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
    assert y.shape == (3, 224, 224)
    # The centre is kept, as for a shorter line that is not cropped.
    np.testing.assert_allclose(y, preprocess(column[:, 9_900:10_101], how), atol=1e-5)
    assert preprocess(column.transpose(1, 0, 2), how).shape == (3, 224, 224)


def test_pictures_from_open_files(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.full((4, 5, 3), 7, np.uint8))
    with open(tmp_path / "a.png", "rb") as file:
        assert load_image(file).shape == (4, 5, 3)
    with pytest.raises(ValueError, match="<file>: not an image"):
        load_image(io.BytesIO(b"junk"))


# -- videos --------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".avi", ".mp4", ".mkv"])
def test_videos_can_be_written_and_read(tmp_path, suffix):
    path = tmp_path / "new" / f"clip{suffix}"
    with VideoWriter(path, 10) as writer:
        for value in (0, 120, 240):
            writer.write(np.full((48, 64, 3), value, np.uint8))
        with pytest.raises(
            ValueError, match=r"a frame of \(48, 32, 3\) after one of \(48, 64, 3\)"
        ):
            writer.write(np.zeros((48, 32, 3), np.uint8))
    reader = VideoReader(path)
    assert (reader.fps, reader.n_frames) == (10, 3)
    means = [frame.mean() for frame in reader]
    assert np.allclose(means, [0, 120, 240], atol=6)


def test_a_video_without_frames_makes_no_file(tmp_path):
    with VideoWriter(tmp_path / "clip.avi"):
        pass
    assert not [*tmp_path.iterdir()]
    with pytest.raises(ValueError, match=r"one of \.avi, .*, not in '\.gif'"):
        VideoWriter(tmp_path / "clip.gif")


def test_a_codec_that_opencv_lacks(tmp_path, monkeypatch):
    monkeypatch.setitem(video.CODECS, ".avi", "ZZZZ")
    with (
        VideoWriter(tmp_path / "clip.avi", 10) as writer,
        pytest.raises(ValueError, match=r"cannot write ZZZZ of 64x48 pixels at 10 frames .* \.mkv"),
    ):
        writer.write(np.zeros((48, 64, 3), np.uint8))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"<html>not found</html>", "it is a web page"),
        (b"some words", "not a video that OpenCV can open$"),
        (b"RIFF\x00\x00\x01\x00AVI LIST", "it is damaged, incomplete"),
        (b"\x00\x00\x00\x20ftypisom", "it is damaged, incomplete"),
    ],
)
def test_a_file_that_is_not_a_video_is_described(tmp_path, capfd, content, said):
    path = tmp_path / "clip.avi"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said):
        VideoReader(path)
    assert "cap" not in capfd.readouterr().err  # OpenCV's name of its readers


def test_missing_cameras(monkeypatch):
    with pytest.raises(ValueError, match="there is no camera 97 that OpenCV can open"):
        VideoReader("97")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [Path("/dev/video1")])
    with pytest.raises(ValueError, match="this system has /dev/video1"):
        VideoReader("97")
