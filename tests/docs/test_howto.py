"""docs/howto: the code of each page runs, where the packages that it needs are installed."""

from __future__ import annotations

import ast
import re

import numpy as np
import pytest

from ..support.paths import ROOT
from ..support.shipped import MODELS

HOWTO = ROOT / "docs" / "howto"
PAGES = sorted(path.stem for path in HOWTO.glob("*.md"))
NEEDS = {
    "docker": (),
    "fastapi": ("cv2", "fastapi", "httpx", "python_multipart"),
    "golden": ("torch", "pnnx"),
    "huggingface": ("torch", "pnnx", "transformers"),
    "notebook": ("cv2",),
    "onnxruntime": ("onnx", "onnxruntime"),
    "ultralytics": ("cv2", "torch", "pnnx", "ultralytics"),
}

if not PAGES:
    pytest.skip("the documentation is not here", allow_module_level=True)


def code_of(page: str) -> str:
    """Return the Python code of a page, in one piece."""
    text = (HOWTO / f"{page}.md").read_text("utf-8")
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the code of a page in an empty folder; return its names."""

    def run(page):
        for package in NEEDS[page]:
            pytest.importorskip(package, exc_type=ImportError)
        (tmp_path / "examples").symlink_to(ROOT / "examples")
        monkeypatch.chdir(tmp_path)
        if page == "onnxruntime":
            make_onnx()
        names = {"__name__": page}
        exec(compile(code_of(page), f"{page}.md", "exec", dont_inherit=True), names)
        return names

    return run


def make_onnx():
    """Write the ONNX file that the page speaks of."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.normal(size=(4, 3, 3, 3)).astype(np.float32), "w")
    shapes = {"x": ["n", 3, "h", "w"], "y": ["n", 4, "p", "q"]}
    x, y = (helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in shapes.items())
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "net", [x], [y], [weight])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), "model.onnx")


def test_each_page_is_run_and_listed():
    assert sorted(NEEDS) == PAGES
    site = (ROOT / "mkdocs.yml").read_text("utf-8")
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    for page in PAGES:
        assert f"howto/{page}.md" in site
        assert f"(howto/{page}.md)" in index
        ast.parse(code_of(page))
        last = (HOWTO / f"{page}.md").read_text("utf-8").rstrip().rpartition("\n\n")[2]
        assert re.match(r"Run with .*\d|This Dockerfile has not been built", last), page


@pytest.mark.parametrize("page", ["huggingface", "onnxruntime", "ultralytics"])
@pytest.mark.filterwarnings("default")  # of the packages
def test_the_code_of_a_page_runs(page, run):
    run(page)


def test_a_golden_file_passes_the_check(run, capsys):
    from kuiper.cli import main

    run("golden")
    assert main(["check", "net.pnnx.param", "golden.npz"]) == 0
    with np.load("golden.npz") as golden:
        arrays = dict(golden)
    assert set(arrays) == {"x", "conv", "act", "pool", "y"}
    arrays["act"] = arrays["act"] + 1
    arrays["y"] = arrays["y"] + 1
    np.savez("golden.npz", **arrays)
    capsys.readouterr()
    assert main(["check", "net.pnnx.param", "golden.npz"]) == 1
    assert "act" in capsys.readouterr().out


def test_a_notebook_shows_pictures(run):
    if not (MODELS / "mobilenet_v2.f16.pnnx.bin").exists():
        pytest.skip("the weights of the example models are in the repository, not in the sdist")
    names = run("notebook")
    assert "1×32×112×112" in names["classifier"].model._repr_html_()
    assert "<svg" in names["profile"]._repr_html_()
    assert names["traced"]["features.18.2"].shape == (1, 1280, 7, 7)


@pytest.mark.filterwarnings("default")  # of the packages
def test_the_service_answers(run):
    if not (MODELS / "mobilenet_v2.f16.pnnx.bin").exists():
        pytest.skip("the weights of the example models are in the repository, not in the sdist")
    names = run("fastapi")
    from fastapi.testclient import TestClient

    client = TestClient(names["app"])
    photo = (MODELS.parent / "photos" / "chelsea.png").read_bytes()
    answer = client.post("/classify", files={"photo": photo}).json()
    assert len(answer) == 3
    assert next(iter(answer)) == "Egyptian cat"
    assert client.post("/classify", files={"photo": b"none"}).status_code == 400
