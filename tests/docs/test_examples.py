"""examples/classify.py, from a photo to the names of its classes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kuiper

from ..support.paths import ROOT

cv2 = pytest.importorskip("cv2", reason="the examples read pictures with OpenCV")

EXAMPLES = ROOT / "examples"
PACKAGES = Path(kuiper.__file__).resolve().parent.parent
PHOTOS = {path.stem: path for path in sorted((EXAMPLES / "photos").glob("*.*"))}

needs_weights = pytest.mark.skipif(
    not (EXAMPLES / "models" / "mobilenet_v2.f16.pnnx.bin").exists(),
    reason="the weights of the example models are in the repository, not in the sdist",
)

# PyTorch's results with float32 weights: index, name and probability of the best class.
# MobileNetV2 after Pillow's antialiased resize, SqueezeNet after OpenCV's plain one.
PYTORCH = {
    "mobilenet_v2": {
        "astronaut": (450, "bobsled", 0.1940),
        "chelsea": (285, "Egyptian cat", 0.7166),
        "coffee": (967, "espresso", 0.9921),
        "rocket": (540, "drilling platform", 0.3542),
    },
    "squeezenet": {
        "astronaut": (542, "drumstick", 0.1403),
        "chelsea": (285, "Egyptian cat", 0.5063),
        "coffee": (967, "espresso", 0.9979),
        "rocket": (839, "suspension bridge", 0.1746),
    },
}


@pytest.fixture(scope="module")
def classify():
    """Return examples/classify.py as a module."""
    spec = importlib.util.spec_from_file_location("classify_example", EXAMPLES / "classify.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def run(classify, capsys):
    """Run the program; return exit code, standard output and standard error."""

    def call(*arguments) -> tuple[int, str, str]:
        code = classify.main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


def error_of(result: tuple[int, str, str]) -> str:
    """Return the one line of standard error of a run that must have failed."""
    code, _, err = result
    assert code == 1
    assert err.startswith("classify.py: ")
    assert err.count("\n") == 1, err
    return err


# -- the whole program -----------------------------------------------------------------------


@needs_weights
@pytest.mark.parametrize("model", PYTORCH)
def test_best_guess_is_that_of_pytorch(run, model):
    code, out, err = run("--model", model, "--json", *PHOTOS.values())
    assert (code, err) == (0, "")
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["file"] for record in records] == [str(path) for path in PHOTOS.values()]
    for photo, record in zip(PHOTOS, records, strict=True):
        index, label, probability = PYTORCH[model][photo]
        best = record["top"][0]
        assert (best["index"], best["label"]) == (index, label)
        # The weights are stored as float16 and Pillow rounds once more between its two passes.
        assert best["probability"] == pytest.approx(probability, abs=0.03)
        values = [guess["probability"] for guess in record["top"]]
        assert len(values) == 5
        assert values == sorted(values, reverse=True)
        assert 0 < sum(values) <= 1.0001
        assert record["ms"] > 0


@needs_weights
def test_text_output(run):
    code, out, _ = run("--topk", 3, PHOTOS["chelsea"])
    assert code == 0
    first, *guesses = out.splitlines()
    assert first.startswith(str(PHOTOS["chelsea"]))
    assert first.endswith(" ms")
    assert [line.split(maxsplit=1)[1] for line in guesses] == ["Egyptian cat", "tiger cat", "tabby"]
    assert float(guesses[0].split()[0]) == pytest.approx(0.7166, abs=0.03)


@needs_weights
def test_runs_as_a_program_from_any_folder(tmp_path):
    command = [sys.executable, EXAMPLES / "classify.py", "--json", PHOTOS["coffee"], "missing.png"]
    # The kuiper that is tested here may be one built in place, which only the path leads to.
    path = os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1  # one of the two is missing, the other is classified all the same
    assert json.loads(done.stdout)["top"][0]["label"] == "espresso"
    assert done.stderr == "classify.py: missing.png: No such file or directory\n"


@needs_weights
def test_batches_give_the_same_guesses(run):
    alone = run("--json", *PHOTOS.values())
    together = run("--json", "--batch", 3, *PHOTOS.values())  # 3 + 1
    assert together[0] == alone[0] == 0
    for one, other in zip(alone[1].splitlines(), together[1].splitlines(), strict=True):
        assert json.loads(one)["top"] == json.loads(other)["top"]


@needs_weights
def test_own_preprocessing_equals_the_preset_it_spells_out(run):
    numbers = ("--preset", "tf", "--no-crop", "--no-antialias", "--bgr", "--size", 227)
    numbers += ("--scale", 1, "--mean", "104,117,123", "--std", 1)
    spelled = run("--model", "squeezenet", "--json", *numbers, PHOTOS["rocket"])
    preset = run("--model", "squeezenet", "--json", PHOTOS["rocket"])
    assert spelled[0] == preset[0] == 0
    assert json.loads(spelled[1])["top"] == json.loads(preset[1])["top"]


@needs_weights
def test_labels_file(run, tmp_path):
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(f"thing {number}" for number in range(1000)), encoding="utf-8")
    code, out, _ = run("--labels", labels, "--topk", 1, PHOTOS["coffee"])
    assert code == 0
    assert out.splitlines()[1].endswith("thing 967")


@pytest.mark.parametrize("shape", ["", " #0=(?,3,?,?)f32", " #0=(1,3,64,48)f32"])
def test_a_model_of_ones_own(run, tmp_path, shape):
    # The mean of each channel of the input: three "classes" with predictable scores.
    param = tmp_path / "mean.pnnx.param"
    param.write_text(
        f"""7767517
4 3
pnnx.Input            in    0 1 0{shape}
nn.AdaptiveAvgPool2d  pool  1 1 0 1 output_size=(1,1)
torch.flatten         flat  1 1 1 2 start_dim=1 end_dim=-1 $input=1
pnnx.Output           out   1 0 2
"""
    )
    picture = tmp_path / "colour.png"
    cv2.imwrite(str(picture), one_colour(90, 130))
    code, out, err = run("--model", param, "--preset", "tf", "--scale", "1/10", "--json", picture)
    assert (code, err) == (0, "")
    scores = np.exp([30 / 10 - 1, 20 / 10 - 1, 10 / 10 - 1])  # red, green, blue
    top = json.loads(out)["top"]
    assert [guess["label"] for guess in top] == ["class 0", "class 1", "class 2"]
    np.testing.assert_allclose(
        [guess["probability"] for guess in top], scores / scores.sum(), rtol=1e-5
    )


# -- the annotated picture ---------------------------------------------------------------------


@needs_weights
def test_save_to_a_file(run, tmp_path):
    target = tmp_path / "new" / "cat.png"
    assert run("--save", target, PHOTOS["chelsea"])[0] == 0
    before, after = cv2.imread(str(PHOTOS["chelsea"])), cv2.imread(str(target))
    assert after.shape == before.shape
    changed = (before != after).any(axis=(1, 2))
    assert changed[: len(changed) // 3].mean() > 0.8  # the panel is at the top ...
    assert not changed[len(changed) * 2 // 3 :].any()  # ... and leaves the rest alone


@needs_weights
def test_save_to_a_folder_keeps_pictures_of_one_name_apart(run, tmp_path):
    twin = tmp_path / "chelsea.png"
    twin.write_bytes(PHOTOS["coffee"].read_bytes())
    target = tmp_path / "out"
    assert run("--save", target, PHOTOS["chelsea"], twin)[0] == 0
    assert sorted(path.name for path in target.iterdir()) == [
        "chelsea_classified.png",
        "chelsea_classified_2.png",
    ]
    assert twin.read_bytes() == PHOTOS["coffee"].read_bytes()


# -- errors ------------------------------------------------------------------------------------


@needs_weights
def test_missing_image(run):
    assert "nowhere.jpg: No such file" in error_of(run("nowhere.jpg"))


@needs_weights
@pytest.mark.parametrize("content", [b"", b"these are words", b"\x89PNG\r\n\x1a\n broken"])
def test_not_an_image(run, tmp_path, content):
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    assert "picture.png: not an image" in error_of(run(path))


@needs_weights
def test_a_bad_image_does_not_stop_the_others(run, tmp_path):
    result = run("--json", tmp_path, PHOTOS["coffee"], "nowhere.jpg")
    assert result[0] == 1
    assert result[2].count("\n") == 2  # the folder and the missing file
    assert json.loads(result[1])["top"][0]["label"] == "espresso"


def test_unknown_model(run):
    assert "mobilenet_v2, squeezenet" in error_of(run("--model", "lenet", PHOTOS["chelsea"]))


def test_a_file_that_is_no_model(run):
    assert "classify.py" in error_of(run("--model", EXAMPLES / "classify.py", PHOTOS["chelsea"]))


@needs_weights
def test_a_model_without_its_weights(run, tmp_path):
    path = tmp_path / "lonely.pnnx.param"
    path.write_bytes((EXAMPLES / "models" / "mobilenet_v2.f16.pnnx.param").read_bytes())
    assert "lonely.pnnx.bin" in error_of(run("--model", path, PHOTOS["chelsea"]))


@needs_weights
def test_a_model_that_does_not_classify(run):
    model = EXAMPLES / "models" / "selfie_segmentation.f16.pnnx.param"
    assert "(1, 1, 256, 256)" in error_of(run("--model", model, PHOTOS["chelsea"]))


@needs_weights
def test_labels_of_another_model(run):
    labels = EXAMPLES / "models" / "coco80_classes.txt"
    message = error_of(run("--labels", labels, PHOTOS["chelsea"]))
    assert "80 lines, but the model knows 1000 classes" in message


@needs_weights
def test_preprocessing_that_cannot_be(run):
    assert "needs --crop" in error_of(run("--no-crop", "--resize", 256, PHOTOS["chelsea"]))
    assert "224 or more" in error_of(run("--resize", 100, PHOTOS["chelsea"]))


@needs_weights
def test_one_file_for_several_pictures(run, tmp_path):
    target = tmp_path / "both.png"
    message = error_of(run("--save", target, PHOTOS["chelsea"], PHOTOS["coffee"]))
    assert "folder" in message
    assert not target.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "IMAGE"),
        (["--topk", "0", "a.png"], "above zero"),
        (["--size", "1x2x3", "a.png"], "480x640"),
        (["--mean", "1,2", "a.png"], "three with commas"),
        (["--std", "1,0,1", "a.png"], "divide by zero"),
        (["--scale", "1/0", "a.png"], "not a number"),
        (["--preset", "torch", "a.png"], "imagenet"),
    ],
)
def test_usage_errors(classify, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        classify.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


# -- batches ---------------------------------------------------------------------------------


def one_colour(height: int, width: int) -> np.ndarray:
    """Return a picture of one colour: blue 10, green 20, red 30."""
    return np.full((height, width, 3), (10, 20, 30), np.uint8)


def test_batches_hold_one_shape_each(classify):
    def item(name: str, side: int):
        return classify.Item(name, one_colour(1, 1), np.zeros((3, side, side), np.float32))

    items = [item("a", 4), item("b", 4), item("c", 4), item("d", 5), item("e", 4)]
    groups = [[i.path for i in group] for group in classify.in_batches(items, 2)]
    assert groups == [["a", "b"], ["c"], ["d"], ["e"]]
    assert list(classify.in_batches([], 2)) == []
