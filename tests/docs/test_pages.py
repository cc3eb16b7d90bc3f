"""The Python code of the pages that are neither tutorial nor how-to."""

from __future__ import annotations

import ast
import re

import numpy as np
import pytest

import kuiper

from ..support.onnxfile import graph, model, node, tensor, value
from ..support.paths import ROOT
from ..support.textgraph import files_of

DOCS = ROOT / "docs"
BLOCKS = {
    path.stem: re.findall(r"^```python\n(.*?)^```$", path.read_text("utf-8"), re.DOTALL | re.M)
    for path in sorted(DOCS.glob("*.md"))
}

if not BLOCKS:
    pytest.skip("the documentation is not here", allow_module_level=True)

LAYER = """
    pnnx.Input i 0 1 x #x=(1,3,224,224)f32
    torch.mean m 1 1 x a dim=(2,3) keepdim=False
    nn.Linear fc 1 1 a b bias=False in_features=3 out_features=2000 @weight=(2000,3)f32
    nn.Linear classifier 1 1 b c bias=False in_features=2000 out_features=4 @weight=(4,2000)f32
    pnnx.Output o 1 0 c
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Go to a folder with the models that the pages speak of."""
    weight = tensor("w", np.ones((4, 3, 3, 3), np.float32))
    images = value("images", np.float32, ("n", 3, "h", "w"))
    content = graph([node("Conv", "images w", "y")], [images], [value("y")], [weight])
    (tmp_path / "model.onnx").write_bytes(model(content))
    (tmp_path / "calibration").mkdir()
    for number in range(2):
        image = np.random.default_rng(number).random((1, 3, 224, 224), np.float32)
        np.save(tmp_path / "calibration" / f"{number}.npy", image)
    for name in ("bert", "mobilenet_v2", "resnet18"):
        for suffix, data in zip(("param", "bin"), files_of(LAYER), strict=True):
            (tmp_path / f"{name}.pnnx.{suffix}").write_bytes(data)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(page: str) -> dict:
    """Run the blocks of a page one after another; return their names."""
    names = {"__name__": page}
    for block in BLOCKS[page]:
        exec(compile(block, f"{page}.md", "exec", dont_inherit=True), names)
    return names


def test_all_blocks_are_python():
    for blocks in BLOCKS.values():
        for block in blocks:
            if ">>>" not in block:
                ast.parse(block)


def test_onnx_files(folder):
    found = run("onnx")
    assert found["model"].inputs[0].shape == (1, 3, 640, 640)
    x = np.zeros((1, 3, 640, 640), np.float32)
    np.testing.assert_array_equal(kuiper.load("model.pnnx.param")(x), found["model"](x))


def test_quantization(folder):
    run("quantization")
    types = {op.name: op.type for op in kuiper.load("bert.int8.pnnx.param").graph}
    assert (types["fc"], types["classifier"]) == ("nn.quantized.dynamic.Linear", "nn.Linear")
    types = {op.name: op.type for op in kuiper.load("mobilenet_v2.int8.pnnx.param").graph}
    assert (types["fc"], types["classifier"]) == ("nn.quantized.Linear",) * 2


def test_threads(folder):
    answers = []
    found = run("threads")
    zeros = np.zeros((1, 3, 224, 224), np.float32).tobytes()

    class Body:
        read = staticmethod(lambda size: zeros[:size])

    (body,) = found["app"]({"wsgi.input": Body}, lambda *answer: answers.append(answer))
    assert body.isdigit()
    assert answers[0][0] == "200 OK"
