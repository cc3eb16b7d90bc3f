"""The parts of the export that need no PyTorch: pnnx's arguments, its failures, refused files.

tests/docs/test_programs.py runs torch and the real pnnx.
"""

from __future__ import annotations

import json
import os
import sys
import types
import zipfile
from pathlib import Path

import pytest

import kuiper
from kuiper.cli import main
from kuiper.export import pnnx_tool

GRAPH = "7767517\n2 1\npnnx.Input in 0 1 0 #0=(1,3)f32\npnnx.Output out 1 0 0 #0=(1,3)f32\n"


@pytest.fixture
def torch_script(tmp_path):
    """Return a file with the entries by which pnnx recognises TorchScript."""
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\x02.")
        archive.writestr("model/code/__torch__.py", "")
    return path


@pytest.fixture
def pnnx(tmp_path, monkeypatch):
    """Replace pnnx by a Python program; return a function that sets the program's code."""
    if sys.platform == "win32":
        pytest.skip("a script is no program on Windows")
    program, log = tmp_path / "pnnx", tmp_path / "arguments"
    monkeypatch.setattr(pnnx_tool, "_pnnx", lambda: str(program))

    def set_action(action: str) -> Path:
        program.write_text(
            f"#!{sys.executable}\n"
            "import os, sys, zipfile\n"
            f"open({str(log)!r}, 'w').write('\\n'.join(sys.argv[1:]))\n"
            "options = dict(text.split('=', 1) for text in sys.argv[2:])\n"
            f"{action}\n"
        )
        program.chmod(0o755)
        return log

    return set_action


WRITE = (
    f"open(options['pnnxparam'], 'w').write({GRAPH!r})\n"
    "zipfile.ZipFile(options['pnnxbin'], 'w').close()"
)


def test_the_arguments_of_pnnx(pnnx, torch_script, tmp_path, capsys):
    kept = GRAPH.replace("2 1\n", "3 2\n").replace(
        "pnnx.Output out 1 0 0", "nn.ReLU r 1 1 0 1\npnnx.Output out 1 0 1"
    )
    log = pnnx(WRITE.replace(repr(GRAPH), repr(kept)))
    param = tmp_path / "new" / "out.pnnx.param"
    command = ["export", str(torch_script), "--shape", "1x3", "--shape", "1,7:i64"]
    command += ["--shape2", "2x3", "--shape2", "2x9", "--moduleop", "nn.ReLU", "-o", str(param)]
    assert main([*command, "--json"]) == 0
    asked = log.read_text().splitlines()
    assert Path(asked[0]).name == torch_script.name
    assert Path(asked[0]).parent != torch_script.parent
    assert "inputshape=[1,3]f32,[1,7]i64" in asked
    assert "inputshape2=[2,3]f32,[2,9]i64" in asked
    assert {"moduleop=nn.ReLU", "fp16=0"} <= set(asked)
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "param": str(param), "bin": str(param.with_suffix(".bin")), "operators": 3,
        "unsupported": {},
    }  # fmt: skip
    assert kuiper.load(param).inputs[0].shape == (1, 3)
    assert sorted(path.name for path in param.parent.iterdir()) == [
        "out.pnnx.bin", "out.pnnx.param",
    ]  # fmt: skip


def test_the_output_is_beside_the_source_under_its_name(pnnx, torch_script, monkeypatch, capsys):
    pnnx(WRITE)
    monkeypatch.chdir(torch_script.parent)
    assert main(["export", "model.pt"]) == 0
    assert capsys.readouterr().out == "model.pnnx.param: 2 operators\n"


def test_names_of_an_export(pnnx, torch_script, tmp_path, capsys):
    pnnx(WRITE)
    param = tmp_path / "x.pnnx.param"
    command = ["export", str(torch_script), "-o", str(param), "--input-names", "ids"]
    assert main([*command, "--output-names", "logits"]) == 0
    model = kuiper.load(param)
    assert (model.inputs[0].name, model.outputs[0].name) == ("ids", "logits")
    assert main([*command, "--output-names", "a,b"]) == 3
    assert "output_names: got 2 names (a, b), expected 1" in capsys.readouterr().err


def test_a_class_that_matches_nothing(pnnx, torch_script, tmp_path, capsys):
    pnnx(WRITE)
    param = tmp_path / "x.pnnx.param"
    assert main(["export", str(torch_script), "-o", str(param), "--moduleop", "Sanke"]) == 3
    assert "calls no module of the class 'Sanke'" in capsys.readouterr().err
    assert not param.exists()


def test_second_shapes_that_do_not_fit(torch_script, tmp_path):
    for second, message in (((1, 3), "equal the first ones"), ((1, 3, 4), "expected rank 2")):
        with pytest.raises(kuiper.InputError, match=message):
            pnnx_tool.run_pnnx(torch_script, tmp_path / "x.param", [(1, 3)], [second])


def test_messages_of_pnnx_are_shown_without_noise(pnnx, torch_script):
    pnnx(
        "print('fp16 = 0'); print('inputshape2 = '); print('pnnxparam = /tmp/x')\n"
        "print('\\x1b[0;93mwarning: odd\\x1b[m'); print('frame #3: /lib/x [0x4a0c37]')\n"
        "print('input_shape expect 2 tensors but got 1', file=sys.stderr)\n"
        "print('\\nPlease export model to torchscript as follows\\nx = 1', file=sys.stderr)\n"
        "sys.exit(255)"
    )
    with pytest.raises(kuiper.KuiperError) as caught:
        pnnx_tool.run_pnnx(torch_script, torch_script.parent / "x.param", name="Net")
    assert str(caught.value) == (
        "Net: pnnx ended with code 255 and wrote no model; it said:\n"
        "warning: odd\ninput_shape expect 2 tensors but got 1"
    )
    assert not (torch_script.parent / "x.param").exists()


def test_a_crash_of_pnnx_is_reported(pnnx, torch_script):
    pnnx("os.abort()")
    with pytest.raises(kuiper.KuiperError, match=r"pnnx crashed \(SIGABRT\).*\n\(nothing\)"):
        pnnx_tool.run_pnnx(torch_script, torch_script.parent / "x.param")


def test_a_crash_after_the_model_was_written_is_harmless(pnnx, torch_script):
    param = torch_script.parent / "x.param"
    pnnx(f"{WRITE}; open(options['pnnxpy'], 'w').close(); os.abort()")
    assert pnnx_tool.run_pnnx(torch_script, param) == param
    assert param.read_text() == GRAPH
    # Before that, the weights may be incomplete.
    pnnx(f"{WRITE}; os.abort()")
    with pytest.raises(kuiper.KuiperError, match="crashed"):
        pnnx_tool.run_pnnx(torch_script, torch_script.parent / "y.param")


def test_a_known_crash_of_pnnx_is_explained(pnnx, torch_script):
    pnnx("print('############# pass_level1', flush=True); os.abort()")
    with pytest.raises(kuiper.KuiperError, match="called more than once and one result is unused"):
        pnnx_tool.run_pnnx(torch_script, torch_script.parent / "x.param")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pt", b"", "it is empty"),
        ("a.onnx", b"", "it is empty"),
        ("a.pt", b"<!DOCTYPE html><html>", "web page"),
        ("a.onnx", b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer"),
        ("a.pth", b"\x80\x02}q\x00.", "written by torch.save"),
        ("a.pt", b"nothing of the kind", "not a complete ZIP archive"),
        ("a.onnx", b"PK\3\4" + bytes(99), "if it is a TorchScript file, rename it to .pt"),
    ],
)
def test_files_that_are_not_models(pnnx, tmp_path, name, content, message):
    log = pnnx(WRITE)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(kuiper.InputError, match=f"{name}: .*{message}"):
        pnnx_tool.run_pnnx(tmp_path / name, tmp_path / "x.param")
    assert not log.exists()  # pnnx would crash on them


def test_weights_without_code_are_not_torch_script(pnnx, tmp_path):
    pnnx(WRITE)
    with zipfile.ZipFile(tmp_path / "w.pth", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02.")
        archive.writestr("archive/data/0", b"")
    with pytest.raises(kuiper.InputError, match=r"torch\.jit\.trace"):
        pnnx_tool.run_pnnx(tmp_path / "w.pth", tmp_path / "x.param")


def test_onnx_with_external_weights_is_merged(pnnx, tmp_path, monkeypatch):
    log = pnnx(WRITE)
    (tmp_path / "m.onnx").write_bytes(b"\x08\x07")
    (tmp_path / "m.onnx.data").write_bytes(bytes(8))
    monkeypatch.setitem(sys.modules, "onnx", None)  # as if it were not installed
    with pytest.raises(kuiper.MissingPackageError, match=r"are in m\.onnx\.data.*pip install onnx"):
        pnnx_tool.run_pnnx(tmp_path / "m.onnx", tmp_path / "x.param")

    class Onnx:
        load = staticmethod(str)

        @staticmethod
        def save(model, path):
            Path(path).write_text(model)

    monkeypatch.setitem(sys.modules, "onnx", Onnx)
    pnnx_tool.run_pnnx(tmp_path / "m.onnx", tmp_path / "x.param")
    assert log.read_text().splitlines()[0].endswith("joined.onnx")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", ["m.onnx", "m.pt"])
def test_nothing_is_written_beside_the_source(
    pnnx, torch_script, tmp_path, monkeypatch, fails, name
):
    """Where pnnx writes a simplified model or the constants of a trace."""
    end = "sys.exit(1)" if fails else WRITE
    pnnx(f"open(sys.argv[1] + 'sim', 'wb').write(open(sys.argv[1], 'rb').read())\n{end}")
    folder = tmp_path / "models"
    folder.mkdir()
    content = b"\x08\x07" if name == "m.onnx" else torch_script.read_bytes()
    (folder / name).write_bytes(content)
    param = tmp_path / "x.param"

    def convert():
        if not fails:
            pnnx_tool.run_pnnx(folder / name, param)
        else:
            with pytest.raises(kuiper.KuiperError, match="wrote no model"):
                pnnx_tool.run_pnnx(folder / name, param)
        assert [path.name for path in folder.iterdir()] == [name]
        assert (folder / name).read_bytes() == content

    def refuse(*args):
        raise OSError("no right to make links")

    convert()
    monkeypatch.setattr(Path, "symlink_to", refuse)
    convert()


def test_as_many_second_shapes_as_first_ones(pnnx, torch_script):
    pnnx(WRITE)
    with pytest.raises(kuiper.InputError, match="1 second shapes, expected 2"):
        pnnx_tool.run_pnnx(torch_script, "x.param", [(1,), (2,)], [(3,)])


def test_where_pnnx_is_searched(tmp_path, monkeypatch):
    """Beside its package, without importing it, since that would import torch."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(kuiper.MissingPackageError, match="pip install pnnx"):
        pnnx_tool._pnnx()
    program = tmp_path / ("pnnx.exe" if os.name == "nt" else "pnnx")
    program.write_text("")
    program.chmod(0o755)
    assert Path(pnnx_tool._pnnx()) == program


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("nets.small", "did you mean nets:small?"),
        ("nets.py", "name the function that makes the module: nets.py:NAME"),
        ("resnet18", "nor package:function"),
    ],
)
def test_an_unknown_kind_of_source(source, hint, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["export", source, "--shape", "1x3"])
    assert stop.value.code == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("text", ["1x3:float", "1x3:", "axb:f32"])
def test_shapes_with_an_unknown_type(text, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["export", "m.pt", "--shape", text])
    assert stop.value.code == 2
    assert "--shape" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("1 / 0", kuiper.InputError, "cannot be imported: ZeroDivisionError: division by zero"),
        ("import no_such_thing", kuiper.MissingPackageError, "imports 'no_such_thing', which is"),
        ("x = 1", kuiper.InputError, "has no 'make'"),
    ],
)
def test_a_module_that_cannot_be_imported(tmp_path, monkeypatch, text, error, said):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    path = tmp_path / "nets_that_fail.py"
    path.write_text(text + "\n")
    with pytest.raises(error, match=said):
        pnnx_tool.call_by_name(f"{path}:make", {})
    sys.modules.pop("nets_that_fail", None)


def test_values_that_a_trace_freezes_are_logged(caplog):
    class TracerWarning(UserWarning):
        pass

    torch = types.SimpleNamespace(
        __file__="/lib/torch/__init__.py", jit=types.SimpleNamespace(TracerWarning=TracerWarning)
    )
    asks = "Converting a tensor to a Python boolean might cause the trace to be incorrect. We"

    def warning(text, file, kind=TracerWarning):
        return types.SimpleNamespace(message=kind(text), category=kind, filename=file, lineno=7)

    pnnx_tool._log_frozen(
        "Net",
        [
            warning(asks, "/home/net.py"), warning(asks, "/home/net.py"),
            warning(asks, "/lib/torch/nn/functional.py"),
            warning("Iterating over a tensor might cause", "/home/net.py", UserWarning),
        ],
        torch,
    )  # fmt: skip
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("kuiper.export", "WARNING")
    assert record.getMessage() == (
        "Net: /home/net.py:7 reads a value (converting a tensor to a Python boolean); the "
        "export is valid for the value of the example inputs"
    )
