"""Every command that takes a model takes an ONNX file."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kuiper
from kuiper.cli import main

from ...support.onnxfile import graph, model, node, tensor, value

X = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)


def network(shape=("n", 64)) -> bytes:
    """Return a model of two layers with two inputs, one of them integers."""
    rng = np.random.default_rng(1)
    weights = [
        tensor("w", rng.normal(size=(64, 64)).astype(np.float32)),
        tensor("b", rng.normal(size=64).astype(np.float32)),
        tensor("table", rng.normal(size=(5, 64)).astype(np.float32)),
    ]
    nodes = [
        node("Gemm", "x w b", "h", "layer"),
        node("Relu", "h", "r", "act"),
        node("Gather", "table ids", "g", "look", axis=0),
        node("Add", "r g", "y", "sum"),
    ]
    inputs = [value("x", np.float32, shape), value("ids", np.int64, shape[:1])]
    return model(graph(nodes, inputs, [value("y"), value("r")], weights))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Go to a folder with a model, its inputs and its results."""
    (tmp_path / "m.onnx").write_bytes(network())
    y, r = kuiper.load(tmp_path / "m.onnx")(X, np.array([1, 4]))
    np.savez(tmp_path / "in.npz", x=X, ids=np.array([1, 4]))
    np.savez(tmp_path / "golden.npz", x=X, ids=np.array([1, 4]), y=y, r=r)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("info m.onnx", "x (?,64) f32, ids (?) i64"),
        ("info m.onnx --check --shape 3x64 --shape 3", "x (?,64) f32"),
        ("run m.onnx in.npz -o out.npz", "written to out.npz"),
        ("profile m.onnx --shape 2x64 --shape 2 --no-roofline --html m.html", "nn.Linear"),
        ("bench m.onnx --shape 2x64 --shape 2 --seconds 0.01", "2x64"),
        ("check m.onnx golden.npz", "good"),
        ("graph m.onnx -o m.svg", "operators"),
        ("quantize m.onnx -o q.pnnx.param", "64 -> 64"),
        ("export m.onnx", "m.pnnx.param: "),
    ],
)
def test_commands(folder, capsys, command, said):
    assert main([*command.split(), "--plain"]) == 0
    out, _ = capsys.readouterr()
    assert said in out


def test_a_forgotten_command(capsys):
    with pytest.raises(SystemExit):
        main(["m.onnx"])
    assert "name a command first: kuiper info m.onnx" in capsys.readouterr().err


def exported(capsys, *arguments: str) -> kuiper.Model:
    """Export the model; return what the files give."""
    assert main(["export", "m.onnx", "--json", *arguments]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["unsupported"] == {}
    return kuiper.load(told["param"])


def test_an_export_gives_the_same_bits(folder, capsys):
    found = exported(capsys)
    original = kuiper.load("m.onnx")
    for n in (1, 3):
        x, ids = np.resize(X, (n, 64)), np.arange(n)
        for one, two in zip(found(x, ids), original(x, ids), strict=True):
            np.testing.assert_array_equal(one, two)
    for model_ in (found, original):
        assert [(i.name, i.shape) for i in model_.inputs] == [("x", (None, 64)), ("ids", (None,))]
        assert [i.name for i in model_.outputs] == ["y", "r"]
    assert sorted(path.suffix for path in folder.iterdir()) == [
        ".bin", ".npz", ".npz", ".onnx", ".param",
    ]  # fmt: skip


def test_an_export_with_shapes_and_names(folder, capsys):
    shapes = ["--shape", "2x64", "--shape", "2:i64"]
    found = exported(capsys, *shapes, "-o", "new/a.pnnx.param", "--input-names", "a,b")
    assert [(i.name, i.shape) for i in found.inputs] == [("a", (2, 64)), ("b", (2,))]
    shapes += ["--shape2", "3x64", "--shape2", "3", "--output-names", "u,v"]
    found = exported(capsys, *shapes)
    assert [(i.name, i.shape) for i in found.inputs] == [("x", (None, 64)), ("ids", (None,))]
    assert [i.name for i in found.outputs] == ["u", "v"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("--shape 2x64", 3, "got 1 shapes, expected 2, one per input: x, ids"),
        ("--shape 2x64 --shape 2 --shape2 3x64", 3, "got 1 shapes, expected 2"),
        ("--shape 2x65 --shape 2", 3, "is (2, 65), but the file has ('n', 64)"),
        ("--shape 2x64:i64 --shape 2", 3, "names the type i64, but an input has f32"),
        ("--shape 2x64 --shape 2 --shape2 2x64x1 --shape2 2", 3, "expected rank 2"),
        ("--output-names a", 3, "got 1 name (a), expected 2"),
        ("-o m.txt", 3, "the name must end in .param"),
        ("--moduleop Net", 2, "--moduleop needs pnnx"),
    ],
)
def test_exports_that_are_refused(folder, capsys, arguments, code, said):
    before = sorted(folder.iterdir())
    try:
        found = main(["export", "m.onnx", *arguments.split()])
    except SystemExit as stop:
        found = stop.code
    assert found == code
    assert said in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("source", ["m.pt", "nets:make"])
def test_pnnx_by_request_is_for_onnx_files(capsys, source):
    with pytest.raises(SystemExit) as stop:
        main(["export", source, "--pnnx"])
    assert stop.value.code == 2
    assert "--pnnx is for ONNX files" in capsys.readouterr().err
