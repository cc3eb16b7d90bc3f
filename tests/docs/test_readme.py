"""The Python code of the READMEs runs as it is written, and both have the same code."""

import ast
import json
import re
import sys

import numpy as np
import pytest

import kuiper

from ..support.paths import ROOT
from ..support.shipped import MODELS
from ..support.textgraph import files_of, model_of, text, user_operator, values
from .test_howto import make_onnx
from .test_readme_commands import stand_in_for_torchvision

README = ROOT / "README.md"

# Words of the model that the text example finds.
WORDS = ["[UNK]", "[PAD]", "a", "cat", "sat", "on", "the", "mat", "so", "did", "I"]

# Two inputs with the names of transformers', two outputs.
BERT = """
    pnnx.Input i 0 1 ids names=(input_ids) #ids=(2,6)i64
    pnnx.Input m 0 1 mask names=(attention_mask) #mask=(2,6)i64
    nn.Embedding e 1 1 ids hidden embedding_dim=8 num_embeddings=11 @weight=(11,8)f32
    torch.unsqueeze u 1 1 mask wide dim=2
    pnnx.Expression x 2 1 hidden wide kept expr=mul(@0,@1)
    torch.sum s 1 1 kept pooled dim=(1) keepdim=False
    pnnx.Output o 1 0 hidden
    pnnx.Output p 1 0 pooled
"""


def blocks_of(name: str) -> list[str]:
    """Return the blocks of Python code of a README."""
    path = ROOT / name
    return re.findall(r"```python\n(.*?)```", path.read_text("utf-8"), re.DOTALL)


BLOCKS = blocks_of("README.md") if README.exists() else []

# A test below runs each of these, which the one block with this text belongs to.
TESTED = (
    "kuiper.report.page",
    "kuiper.load_graph",
    "kuiper.from_torch",
    "pnnx.export",
    "Detector(",
    "Tokenizer.from_file",
    "as_dict=True)",
    "FastAPI",
    "model.profile(x)\n",
    "@kuiper.operator",
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Go to an empty folder with the examples of the clone."""
    if not (MODELS / "mobilenet_v2.f16.pnnx.bin").exists():
        pytest.skip("the weights of the example models are in the repository, not in the sdist")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    threads = kuiper.get_num_threads()
    yield tmp_path
    kuiper.set_num_threads(threads)


def run(block: str) -> dict:
    """Run a block where the packages that it imports are installed; return its names."""
    names = {"np": np, "kuiper": kuiper, "__name__": "readme"}
    for node in ast.walk(ast.parse(block)):
        modules = [node.module] if isinstance(node, ast.ImportFrom) else []
        modules += [name.name for name in node.names] if isinstance(node, ast.Import) else []
        for module in modules:
            needs = "cv2" if module == "kuiper.vision" else module
            pytest.importorskip(needs, exc_type=ImportError)
    exec(compile(block, "README.md", "exec", dont_inherit=True), names)
    return names


def test_the_files_have_the_same_code():
    english, chinese = (
        [ast.dump(ast.parse(b)) for b in blocks_of(n)] for n in ("README.md", "README.zh-CN.md")
    )
    assert english == chinese


def test_every_block_is_tested():
    if not BLOCKS:
        pytest.skip("the READMEs are not here")
    assert [block_with(part) for part in TESTED] == BLOCKS
    source = (ROOT / "tests" / "docs" / "test_readme.py").read_text("utf-8")
    for part in TESTED:
        assert f"block_with({json.dumps(part)})" in source


def test_the_first_snippet_runs(folder):
    found = run(block_with("kuiper.report.page"))
    assert found["y"].shape == (1, 1000)
    assert "<html" in found["page"]


def block_with(part: str) -> str:
    """Return the one block that has this text."""
    (block,) = (block for block in BLOCKS if part in block)
    return block


@pytest.fixture
def torchvision(folder, monkeypatch):
    """Let the blocks import a small package of that name, whose network needs no download."""
    for package in ("torch", "pnnx"):
        pytest.importorskip(package, exc_type=ImportError)
    stand_in_for_torchvision(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(folder)
    yield
    for name in ("torchvision", "torchvision.models"):
        sys.modules.pop(name, None)


@pytest.mark.filterwarnings("default")  # of PyTorch
def test_a_module_becomes_a_model(torchvision):
    run(block_with("kuiper.from_torch"))
    model = kuiper.load("resnet18.pnnx.param")
    assert model(np.zeros((1, 3, 224, 224), np.float32)).shape == (1, 8)


@pytest.mark.filterwarnings("default")  # of PyTorch
def test_pnnx_alone_writes_a_model(torchvision):
    run(block_with("pnnx.export"))
    model = kuiper.load("resnet18.pnnx.param")
    assert model(np.zeros((1, 3, 224, 224), np.float32)).shape == (1, 8)


def test_the_graph_can_be_read(folder, capsys):
    run(block_with("kuiper.load_graph"))
    assert "nn.Conv2d" in capsys.readouterr().out


def test_the_detector_finds_the_cat(folder):
    assert [thing.label for thing in run(block_with("Detector("))["found"]] == ["cat"]


def test_text(folder):
    block = block_with("Tokenizer.from_file")
    tokenizers = pytest.importorskip("tokenizers", exc_type=ImportError)
    words = {word: k for k, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save("tokenizer.json")
    for name, data in zip(("bert.pnnx.param", "bert.pnnx.bin"), files_of(BERT), strict=True):
        (folder / name).write_bytes(data)
    found = run(block)
    assert found["hidden"].shape == (2, 6, 8)
    kept = found["hidden"] * found["mask"][..., None]
    np.testing.assert_allclose(found["pooled"], kept.sum(axis=1), rtol=1e-5, atol=1e-6)
    assert found["mask"][1].tolist() == [1, 1, 1, 0, 0, 0]


@pytest.mark.filterwarnings("default")  # of the packages
def test_onnx(folder):
    pytest.importorskip("onnx", exc_type=ImportError)
    make_onnx()
    (result,) = run(block_with("as_dict=True)"))["results"].items()
    assert result[0] == "y"
    assert result[1].shape == (4, 4, 38, 38)


@pytest.mark.filterwarnings("default")  # of the packages
def test_the_service_answers(folder):
    for package in ("fastapi", "httpx", "python_multipart"):
        pytest.importorskip(package, exc_type=ImportError)
    app = run(block_with("FastAPI"))["app"]
    from fastapi.testclient import TestClient

    photo = (folder / "examples" / "photos" / "chelsea.png").read_bytes()
    answer = TestClient(app).post("/classify", files={"photo": photo}).json()
    assert next(iter(answer)) == "Egyptian cat"


def test_a_notebook_shows_a_model_and_a_profile(folder):
    block = block_with("model.profile(x)\n")
    *lines, last = block.splitlines()
    found = run("\n".join([*lines, f"shown = {last}"]))
    assert "<svg" in found["shown"]._repr_html_()
    assert "<svg" in found["classifier"].model._repr_html_()


def test_the_picture_is_small_and_there():
    for name in ("README.md", "README.zh-CN.md"):
        (picture,) = re.findall(r"^!\[.+\]\((.+)\)$", (ROOT / name).read_text("utf-8"), re.M)
        assert (ROOT / picture).read_bytes()[:3] == b"\xff\xd8\xff"
        assert (ROOT / picture).stat().st_size < 100_000


def test_an_operator_can_be_added():
    swish = run(block_with("@kuiper.operator"))["swish"]
    with user_operator("my.Swish", swish):  # the same again, and removes it
        x = values(2, 3)
        np.testing.assert_array_equal(model_of(text("my.Swish s 1 1 x y"))(x), swish(x))
