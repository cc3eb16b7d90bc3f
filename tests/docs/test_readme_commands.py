"""The commands of the READMEs run as they are written, and both have the same commands."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kuiper

from ..support.paths import ROOT
from ..support.shipped import MODELS

# Commands that no test runs, by their first words, and why.
NOT_RUN = {
    "python3 -m venv .venv && .venv/bin/pip install -v": ".ci/run does, word for word",
    "python3 -m venv .venv && .venv/bin/pip install -e": ".ci/run does, word for word",
    "pip install pnnx torch": "installs packages",
    'pip install "kuiper-runtime[serve]"': "installs packages",
    "kuiper serve": "runs until a signal; tests/serving starts such servers",
    "curl --data-binary": "needs that server; tests/serving/test_http.py sends the same",
    "python examples/video.py 0": "opens a camera; test_programs.py has the program with a file",
}
# Commands that need packages besides OpenCV.
NEEDS = {"pnnx resnet18.pt": ("torch", "pnnx"), "kuiper export": ("torch", "pnnx")}
# Arguments that a test appends so that a command takes less time.
SHORTER = {"kuiper bench": "--seconds 0.1"}
# Files that a command writes.
WRITES = {
    "python examples/classify.py --save": "annotated/photo1_classified.png",
    "python examples/detect.py": "out/chelsea_boxes.png",
    "python examples/segment.py": "out/chelsea_mask.png",
    "kuiper run": "out.npz",
    "kuiper detect": "boxes/street_boxes.png",
    "curl -s": "boxes/stdin_boxes.png",
    "kuiper profile": "resnet18.html",
    "kuiper graph": "graph.svg",
    "pnnx resnet18.pt": "resnet18.pnnx.param",
    "kuiper export": "resnet18.pnnx.param",
}

# Stands for the package, whose weights are in the network.
TORCHVISION = """
from torch import nn


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 7, 4)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        return self.pool(self.conv(x).relu()).flatten(1)


def resnet18(weights):
    assert weights == "DEFAULT"
    return ResNet()
"""


def blocks_of(name: str) -> list[tuple[str, str]]:
    """Return language and text of each block of code of a README."""
    path = ROOT / name
    text = path.read_text("utf-8") if path.exists() else ""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands_of(name: str) -> list[str]:
    """Return the commands of a README without their comments, one per line."""
    lines = [line for kind, text in blocks_of(name) if kind == "bash" for line in text.splitlines()]
    return [re.sub(r"\s+# .*", "", line) for line in lines]


COMMANDS = commands_of("README.md")
RUN = [command for command in COMMANDS if not command.startswith(tuple(NOT_RUN))]


def stand_in_for_torchvision(folder: Path) -> None:
    """Write a package with a small network of the name that the READMEs use."""
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text("from . import models\n")
    (folder / "torchvision" / "models.py").write_text(TORCHVISION)


def of_command(table: dict, command: str):
    """Return the entry of a table whose key a command starts with, or None."""
    return next((value for key, value in table.items() if command.startswith(key)), None)


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Return a function that runs a command in a folder with the files that the READMEs name."""
    cv2 = pytest.importorskip("cv2", reason="the commands read pictures with OpenCV")
    if shutil.which("bash") is None or sys.platform == "win32":
        pytest.skip("there is no bash here")
    if not (MODELS / "mobilenet_v2.f16.pnnx.bin").exists():
        pytest.skip("the weights of the example models are in the repository, not in the sdist")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for kind in ("param", "bin"):
        model = MODELS / f"mobilenet_v2.f16.pnnx.{kind}"
        (tmp_path / f"resnet18.pnnx.{kind}").write_bytes(model.read_bytes())
    photo = ROOT / "examples" / "photos" / "chelsea.png"
    (tmp_path / "holiday").mkdir()
    for name in ("photo", "photo1", "photo2", "holiday/street"):
        cv2.imwrite(str(tmp_path / f"{name}.jpg"), cv2.imread(str(photo)))
    x = np.random.default_rng(0).normal(size=(1, 3, 224, 224)).astype(np.float32)
    y = kuiper.load(tmp_path / "resnet18.pnnx.param")(x)
    np.savez(tmp_path / "golden.npz", x=x, y=y)

    # What the commands call, whatever is installed elsewhere; the download is a file.
    programs = tmp_path / "programs"
    programs.mkdir()
    python = f'exec "{sys.executable}"'
    for name, call in (
        ("python", f'{python} "$@"'),
        ("kuiper", f'{python} -m kuiper "$@"'),
        ("pnnx", f'{python} -c "import pnnx; pnnx.pnnx()" "$@"'),
        ("curl", f'exec cat "{photo}"'),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{call}\n")
        (programs / name).chmod(0o755)
    packages = Path(kuiper.__file__).resolve().parent.parent
    path = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "PYTHONPATH": path,
    }

    def run(command):
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=tmp_path, env=environment,
            capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return run


def test_both_files_have_the_same_commands_and_outputs():
    if not COMMANDS:
        pytest.skip("the READMEs are not here")
    assert commands_of("README.zh-CN.md") == COMMANDS
    english, chinese = (
        [text for kind, text in blocks_of(name) if not kind]
        for name in ("README.md", "README.zh-CN.md")
    )
    assert english == chinese
    kinds = {kind for name in ("README.md", "README.zh-CN.md") for kind, _ in blocks_of(name)}
    assert kinds == {"", "bash", "python"}


@pytest.mark.parametrize("table", [NOT_RUN, NEEDS, SHORTER, WRITES])
def test_the_tables_name_commands_of_the_readme(table):
    if not COMMANDS:
        pytest.skip("the READMEs are not here")
    unknown = [key for key in table if not any(c.startswith(key) for c in COMMANDS)]
    assert not unknown


@pytest.mark.filterwarnings("default")  # of PyTorch
@pytest.mark.parametrize("command", RUN)
def test_a_command_runs(shell, tmp_path, command):
    for package in of_command(NEEDS, command) or ():
        pytest.importorskip(package, exc_type=ImportError)
    if command.startswith("kuiper export"):
        stand_in_for_torchvision(tmp_path)
    if command.startswith("pnnx"):
        import torch

        net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 7, 4), torch.nn.ReLU())
        torch.jit.trace(net.eval(), torch.zeros(1, 3, 224, 224)).save(tmp_path / "resnet18.pt")
    written = of_command(WRITES, command)
    if written:
        (tmp_path / written).unlink(missing_ok=True)
    done = shell(" ".join(filter(None, [command, of_command(SHORTER, command)])))
    assert done.returncode == 0, done.stdout + done.stderr
    if written:
        assert (tmp_path / written).stat().st_size > 0, done.stdout


def test_the_output_of_the_first_command_is_the_one_shown(shell):
    """The first command without its installation, which .ci/run checks."""
    (first,) = (command for command in COMMANDS if "pip install -v" in command)
    done = shell(first.rpartition("&& ")[2].replace(".venv/bin/python", "python"))
    assert done.returncode == 0, done.stderr
    (shown,) = (text for kind, text in blocks_of("README.md") if not kind and "ms\n" in text)
    pairs = zip(done.stdout.splitlines(), shown.splitlines(), strict=True)
    for number, (got, expected) in enumerate(pairs):
        if number == 0:
            assert re.sub(r"[\d.]+ ms", "... ms", got) == expected
            continue
        (probability, label), (wanted, name) = got.split(None, 1), expected.split(None, 1)
        assert label == name
        # The last digit may round otherwise on another instruction set.
        assert float(probability) == pytest.approx(float(wanted), abs=1.5e-4)
