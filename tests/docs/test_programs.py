"""The programs in examples/ other than classify.py."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import kuiper

cv2 = pytest.importorskip("cv2", reason="the examples read pictures with OpenCV")

from ..support.shipped import MODELS  # noqa: E402

EXAMPLES = MODELS.parent
PHOTOS = EXAMPLES / "photos"
PACKAGES = Path(kuiper.__file__).resolve().parent.parent

needs_weights = pytest.mark.skipif(
    not (MODELS / "nanodet_m.f16.pnnx.bin").exists(),
    reason="the weights of the example models are in the repository, not in the sdist",
)


def program(name: str):
    """Return a program of examples/ as a module."""
    spec = importlib.util.spec_from_file_location(f"{name}_example", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_program(name: str, *arguments, cwd) -> subprocess.CompletedProcess:
    """Run a program of examples/ in a separate process."""
    path = os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *map(str, arguments)],
        cwd=cwd, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip


def make_video(path: Path, n_frames: int, picture: np.ndarray) -> Path:
    size = (picture.shape[1], picture.shape[0])
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, size)
    if not writer.isOpened():
        pytest.skip("this OpenCV cannot write videos")
    for _ in range(n_frames):
        writer.write(picture)
    writer.release()
    return path


# -- detect ------------------------------------------------------------------------------------


@needs_weights
def test_detect(capsys, tmp_path):
    photos = [str(PHOTOS / "chelsea.png"), str(PHOTOS / "coffee.png")]
    assert program("detect").main(["--save", str(tmp_path), *photos]) == 0
    lines = capsys.readouterr().out.splitlines()
    score, label, *box = lines[1].split()
    assert (label, float(score)) == ("cat", pytest.approx(0.74, abs=0.005))
    np.testing.assert_allclose(list(map(int, box)), [2, 2, 430, 295], atol=3)
    before, after = cv2.imread(photos[0]), cv2.imread(str(tmp_path / "chelsea_boxes.png"))
    assert 0 < (before != after).any(axis=2).mean() < 0.1
    assert (tmp_path / "coffee_boxes.png").exists()


@needs_weights
def test_detect_as_json_with_a_bad_picture(capsys):
    code = program("detect").main(["--json", "nowhere.png", str(PHOTOS / "chelsea.png")])
    out, err = capsys.readouterr()
    assert code == 1
    assert "nowhere.png" in err
    (cat,) = json.loads(out)["detections"]
    assert cat["label"] == "cat"


def test_detect_with_a_model_that_is_missing(capsys):
    assert program("detect").main(["--model", "none.param", "a.png"]) == 1
    assert "none.param" in capsys.readouterr().err


# -- segment -----------------------------------------------------------------------------------


@needs_weights
def test_segment(capsys, tmp_path):
    photo = PHOTOS / "astronaut.png"
    code = program("segment").main(["--model", "selfie", "--save", str(tmp_path), str(photo)])
    assert code == 0
    assert "foreground" in capsys.readouterr().out
    mask = cv2.imread(str(tmp_path / "astronaut_mask.png"), cv2.IMREAD_UNCHANGED)
    cut = cv2.imread(str(tmp_path / "astronaut_cutout.png"), cv2.IMREAD_UNCHANGED)
    laid = cv2.imread(str(tmp_path / "astronaut_overlay.png"))
    image = cv2.imread(str(photo))
    np.testing.assert_array_equal(cut[:, :, 3], mask)
    np.testing.assert_array_equal(cut[:, :, :3], image)
    assert (laid[mask == 0] == image[mask == 0]).all()
    assert (laid[mask > 250] != image[mask > 250]).any()


def test_segment_with_several_classes(tmp_path):
    module = program("segment")
    model = kuiper.load(b"""7767517
2 1
pnnx.Input     in   0 1 0 #0=(1,3,8,8)f32
pnnx.Output    out  1 0 0
""")
    image = np.zeros((8, 8, 3), np.uint8)
    image[:, :3, 2], image[:, 3:6, 1], image[:, 6:, 0] = 255, 255, 255  # classes 0, 1, 2
    mask, laid = module.layers(module.Segmenter(model), image)
    assert (mask[:, :2] < 0.5).all()
    assert (mask[:, 4:] > 0.5).all()
    assert (laid[:, :2] == image[:, :2]).all()
    change = laid.astype(int) - image
    assert not np.array_equal(change[0, 4], change[0, 7])


# -- video -------------------------------------------------------------------------------------


@needs_weights
@pytest.mark.parametrize("task", ["detect", "segment"])
def test_video(capsys, tmp_path, task):
    source = make_video(tmp_path / "in.avi", 4, cv2.imread(str(PHOTOS / "chelsea.png"))[:, :450])
    target = tmp_path / "out.avi"
    code = program("video").main([str(source), "--task", task, "--save", str(target)])
    assert code == 0
    assert capsys.readouterr().out.startswith("4 frames in ")
    capture = cv2.VideoCapture(str(target))
    frames = [capture.read() for _ in range(5)]
    assert [good for good, _ in frames] == [True] * 4 + [False]
    picture = frames[-2][1].astype(int)
    assert np.abs(picture - cv2.imread(str(PHOTOS / "chelsea.png"))[:, :450]).max() > 100


def test_video_that_cannot_be(capsys, tmp_path):
    main = program("video").main
    clip = make_video(tmp_path / "in.avi", 1, np.zeros((48, 64, 3), np.uint8))
    for source, target, said in (
        ("none.avi", "out.avi", "No such file or directory"),
        ("in.avi", "in.avi", "cannot be read and written at the same time"),
        ("in.avi", "out.gif", "not in '.gif'"),
    ):
        assert main([str(tmp_path / source), "--save", str(tmp_path / target)]) == 1
        assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [clip.name]


def test_video_without_a_display(capsys, tmp_path, monkeypatch):
    video = program("video")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert video.main(["0"]) == 1
    assert "no display for a window; --save" in capsys.readouterr().err
    monkeypatch.setenv("DISPLAY", ":0")

    def missing():
        raise cv2.error("The function is not implemented")

    monkeypatch.setattr(cv2, "destroyAllWindows", missing)
    assert video.main(["0"]) == 1
    assert "opencv-python instead of" in " ".join(capsys.readouterr().err.split())


@needs_weights
def test_video_in_a_window(capsys, tmp_path, monkeypatch):
    video = program("video")
    source = make_video(tmp_path / "in.avi", 9, np.zeros((48, 64, 3), np.uint8))
    shown = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(cv2, "destroyAllWindows", lambda: None)
    monkeypatch.setattr(cv2, "imshow", lambda _, picture: shown.append(picture))
    monkeypatch.setattr(cv2, "waitKey", lambda _: ord("q") if len(shown) == 5 else -1)
    assert video.main([str(source)]) == 0
    assert len(shown) == 5
    assert capsys.readouterr().out.startswith("5 frames in ")


@needs_weights
def test_video_that_is_interrupted(capsys, tmp_path, monkeypatch):
    video = program("video")
    source = make_video(tmp_path / "in.avi", 9, np.zeros((48, 64, 3), np.uint8))
    real, painted = video.make_painter, []

    def painter(task, model):
        paint = real(task, model)

        def stop_at_the_fourth(frame):
            if len(painted) == 3:
                raise KeyboardInterrupt
            painted.append(frame)
            return paint(frame)

        return stop_at_the_fourth

    monkeypatch.setattr(video, "make_painter", painter)
    target = tmp_path / "new" / "out.mp4"
    assert video.main([str(source), "--save", str(target)]) == 0
    assert capsys.readouterr().out.lstrip().startswith("3 frames in ")
    assert cv2.VideoCapture(str(target)).get(cv2.CAP_PROP_FRAME_COUNT) == 3


def test_reading_ahead_keeps_all_frames_of_a_file_in_order():
    read_ahead = program("video").read_ahead
    assert list(read_ahead(iter(range(50)), newest_only=False)) == list(range(50))


def test_reading_ahead_drops_what_is_old():
    over = threading.Event()

    def camera():
        yield from range(40)
        over.set()

    seen = []
    for frame in program("video").read_ahead(camera(), newest_only=True):
        assert over.wait(30)  # the camera does not wait for us
        seen.append(frame)
    assert seen == sorted(seen)
    assert len(seen) <= 3
    assert seen[-1] == 39


def test_reading_ahead_ends_with_its_reader():
    before = threading.active_count()
    frames = program("video").read_ahead(iter(range(10**6)), newest_only=False)
    assert next(frames) == 0
    frames.close()
    assert threading.active_count() == before


# -- folder ------------------------------------------------------------------------------------


@needs_weights
def test_folder_is_classified_once(tmp_path):
    folder, out = tmp_path / "photos", tmp_path / "classes"
    folder.mkdir()
    for number in range(130):
        for name in ("chelsea.png", "coffee.png"):
            (folder / f"{number}_{name}").symlink_to(PHOTOS / name)
    (folder / "broken.png").write_bytes(b"not a picture")
    done = run_program("folder", folder, out, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("261 rows in ")
    assert done.stdout.endswith("1 could not be read\n")
    (part,) = out.glob("part-*.jsonl")
    records = {r["file"]: r for r in map(json.loads, part.read_text().splitlines())}
    assert len(records) == 261
    assert "not an image" in records.pop("broken.png")["error"]
    for name, record in records.items():
        assert record["label"] == ("Egyptian cat" if "chelsea" in name else "espresso")
    # It goes on where it was, and takes what was added.
    (folder / "new.png").symlink_to(PHOTOS / "coffee.png")
    done = run_program("folder", folder, out, cwd=tmp_path)
    assert done.stdout.startswith("1 row in ")
    assert "261 were there already" in done.stdout


def test_folder_without_arguments(tmp_path):
    done = run_program("folder", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("Classify a folder of thousands of photos")


# -- operators and modules -----------------------------------------------------------------------


def test_custom_operator(tmp_path):
    done = run_program("custom_operator", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()[:2]
    assert first.startswith("(1, 4, 8, 8) -> (1, 3)")
    assert second.startswith("(2, 4, 5, 7) -> (2, 3)")
    assert float(first.rpartition(", ")[2].split()[0]) < 1e-5


def test_from_torch_as_a_program(tmp_path):
    pytest.importorskip("torch", reason="converting a module needs torch")
    pytest.importorskip("pnnx", reason="converting a module needs pnnx")
    param = tmp_path / "small.pnnx.param"
    done = run_program("from_torch", "--size", "32", "--save", param, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert kuiper.load(param)(np.zeros((3, 3, 40, 24), np.float32)).shape == (3, 8)


def test_from_torch_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(kuiper.MissingPackageError, match="pip install torch pnnx"):
        kuiper.from_torch(None, None)


@pytest.fixture
def torch():
    pytest.importorskip("pnnx", reason="converting a module needs pnnx")
    return pytest.importorskip("torch", reason="converting a module needs torch")


def test_from_torch(torch):
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    net.train()
    x = torch.rand(1, 3, 9, 8)
    model = kuiper.from_torch(net, x)
    assert net.training  # as it was before
    net.eval()
    with torch.no_grad():
        np.testing.assert_allclose(model(x), net(x).numpy(), atol=1e-5)


def test_from_torch_with_integers_and_several_results(torch):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(10, 4)

        def forward(self, ids, scale):
            x = self.words(ids) * scale
            return x, x.sum(dim=-1)

    torch.manual_seed(1)
    net, ids, scale = Net(), torch.tensor([[1, 2, 9]]), torch.rand(1, 3, 1)
    model = kuiper.from_torch(net, (ids, scale))
    assert model.inputs[0].dtype == np.int64
    for got, expected in zip(model(ids, scale), net(ids, scale), strict=True):
        np.testing.assert_allclose(got, expected.detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_from_torch_in_other_floats(torch, dtype):
    dtype = getattr(torch, dtype)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Dropout()).to(
        dtype
    )
    net[2].eval()  # a part that is frozen stays so
    x = torch.rand(1, 3, 9, 9)
    model = kuiper.from_torch(net, x.to(dtype))
    assert (net[0].weight.dtype, net.training, net[2].training) == (dtype, True, False)
    assert model.inputs[0].dtype == np.float32
    with torch.no_grad():
        expected = net.float().eval()(x).numpy()
    np.testing.assert_allclose(model(x.numpy()), expected, rtol=1e-5, atol=1e-5)


def test_from_torch_with_keywords_and_a_dict_of_results(torch):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)

        def forward(self, x, *, scale):
            return {"y": self.fc(x) * scale, "nothing": None, "parts": (x + 1, x * scale)}

    net, x, scale = Net(), torch.rand(2, 4), torch.rand(2, 1)
    model = kuiper.from_torch(net, {"scale": scale, "x": x})
    assert [info.shape for info in model.inputs] == [(2, 1), (2, 4)]
    with torch.no_grad():
        expected = net(x, scale=scale)
    given = model(scale.numpy(), x.numpy())
    for y, z in zip(given, (expected["y"], *expected["parts"]), strict=True):
        np.testing.assert_allclose(y, z.numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(kuiper.KuiperError, match=r"inputs x=\(2, 4\) .*unexpected keyword|missing"):
        kuiper.from_torch(net, {"x": x, "factor": scale})
    with pytest.raises(kuiper.InputError, match="example input 'scale' is float"):
        kuiper.from_torch(net, {"x": x, "scale": 1.0})


def test_from_torch_with_what_pnnx_cannot_do(torch):
    with pytest.raises(kuiper.InputError, match="example input 0 is ndarray"):
        kuiper.from_torch(torch.nn.ReLU(), [np.zeros(3)])
    with pytest.raises(kuiper.InputError, match=r"got function, expected a torch\.nn\.Module"):
        kuiper.from_torch(lambda x: x, torch.rand(3))
    with pytest.raises(kuiper.KuiperError, match="Bilinear: PyTorch cannot trace it") as caught:
        kuiper.from_torch(torch.nn.Bilinear(2, 2, 2), torch.rand(1, 2))
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(kuiper.InputError, match="example_inputs2 has 2 tensors, expected 1"):
        kuiper.from_torch(torch.nn.ReLU(), torch.rand(3), example_inputs2=(torch.rand(2),) * 2)


def test_export_from_the_command_line(torch, tmp_path, capsys, monkeypatch):
    from kuiper.cli import main

    (tmp_path / "my_nets.py").write_text(
        "import torch\n\n\ndef tiny(width=2):\n    return torch.nn.Linear(4, width)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    param = tmp_path / "tiny.pnnx.param"
    arguments = ["export", "my_nets:tiny", "--arg", "width=3", "--shape", "1x4", "-o", str(param)]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unsupported"] == {}
    assert kuiper.load(param)(np.zeros((1, 4), np.float32)).shape == (1, 3)
    assert main(["export", "my_nets:huge", "--shape", "1x4"]) == 3
    assert "module 'my_nets' has no 'huge'" in capsys.readouterr().err
    assert main(["export", "no_such_package:net", "--shape", "1x4"]) == 5
    assert main(["export", "my_nets:tiny", "--shape", "1x5"]) == 3
    assert "Linear: PyTorch cannot trace it with inputs (1, 5)" in capsys.readouterr().err
    assert main(["export", "my_nets:tiny", "--arg", "depth=3", "--shape", "1x4"]) == 3
    assert "--arg KEY=VALUE passes an argument" in capsys.readouterr().err
    file = f"{tmp_path / 'my_nets.py'}:tiny"
    assert main(["export", file, "--shape", "1x4", "--shape2", "2x4", "-o", str(param)]) == 0
    assert kuiper.load(param).inputs[0].shape == (None, 4)
