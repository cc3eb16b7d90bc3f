"""The command line: output, files and exit code of each command."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import select
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kuiper
from kuiper.cli import main
from kuiper.cli._app import EXIT_CODES, build_parser
from kuiper.cli._console import Console, bytes_text, count_text
from kuiper.cli.completing import subcommands
from kuiper.cli.inspecting import difference
from kuiper.expression.functions import CUSTOM
from kuiper.planning.plan_cache import PlanCache
from kuiper.vision import PRESETS, load_image, preprocess, save_image

from ...support.process import PACKAGES, output_of, python_environment, run_python
from ...support.shipped import MODELS
from ...support.weights import fill_archive

PHOTOS = MODELS.parent / "photos"

needs_weights = pytest.mark.skipif(
    not (MODELS / "mobilenet_v2.f16.pnnx.bin").exists(),
    reason="the weights of the example models are in the repository, not in the sdist",
)

SMALL = """7767517
5 4
pnnx.Input       in    0 1 0 #0=(1,3,?,?)f32 #0=(1,3,?,?)f32
nn.ReLU          act   1 1 0 1 #1=(1,3,?,?)f32
nn.MaxPool2d     pool  1 1 1 2 kernel_size=(2,2) stride=(2,2) padding=(0,0) dilation=(1,1) \
ceil_mode=False return_indices=False
pnnx.Expression  plus  1 1 2 3 expr=add(mul(@0,2.0),1.0)
pnnx.Output      out   1 0 3
"""


@pytest.fixture
def small(tmp_path) -> Path:
    """Return the file of a model with one input: max pooling of ReLU, times 2, plus 1."""
    path = tmp_path / "small.pnnx.param"
    path.write_text(SMALL.replace("#0=(1,3,?,?)f32 #0", "#0"))
    return path


def small_outputs(x: np.ndarray) -> np.ndarray:
    n, c, h, w = x.shape
    pooled = np.maximum(x, 0).reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))
    return pooled * 2 + 1


@pytest.fixture
def run(capsys):
    """Run the command line; return exit code, standard output and standard error."""

    def call(*arguments) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def run_json(run):
    """Run a command with --json that must succeed; return the printed objects."""

    def call(*arguments) -> list[dict]:
        code, out, err = run(*arguments, "--json")
        assert (code, err) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    return call


# -- the program -------------------------------------------------------------------------------


def test_module_runs_as_a_program(tmp_path):
    done = run_python("-m", "kuiper", "expr", "add(@0,mul(@1,2))", "1", "3", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["value"] == 7


def test_a_closed_pipe_is_not_an_error(tmp_path, small):
    done = subprocess.run(
        f"{sys.executable} -m kuiper graph {small} | true",
        shell=True, cwd=tmp_path, env=python_environment(), capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""


def all_commands() -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """Return the help and the parser of each command."""
    return subcommands(build_parser().parse_args(["completion", "bash"]).commands)


def test_every_command_has_help(capsys):
    commands = all_commands()
    assert set(commands) == {
        "info", "check", "expr", "graph", "run", "bench", "profile", "classify", "detect",
        "segment", "run-dataset", "serve", "export", "quantize", "operators", "config",
        "completion",
    }  # fmt: skip
    for name, (summary, _) in commands.items():
        assert summary
        with pytest.raises(SystemExit) as stop:
            main([name, "--help"])
        assert stop.value.code == 0
        text = capsys.readouterr().out
        assert "example:" in text or name == "completion"


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"kuiper {kuiper.__version__}\n"


def test_importing_kuiper_does_not_import_the_command_line():
    code = (
        "import sys, kuiper\n"
        "bad = [m for m in sys.modules if m.startswith(('kuiper.cli', 'kuiper.vision',"
        " 'kuiper.batch', 'kuiper.report', 'argparse.', 'rich', 'cv2'))]\nassert not bad, bad"
    )
    output_of(code)


# -- exit codes --------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["nonsense"], ["bench"], ["info", "m", "--threads", "0"]])
def test_a_wrong_command_line(arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == EXIT_CODES["usage"] == 2


def test_without_arguments_the_commands_are_listed(run):
    code, out, err = run()
    assert (code, out) == (2, "")
    # In two columns, also for a long name.
    assert "    classify     classify pictures\n" in err
    assert "    completion   print the completion script of a shell\n" in err
    assert "exit codes:" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prof"], "there is no command 'prof'; did you mean profile?"),
        (["zzz"], "there is no command 'zzz'; choose from info, check, "),
        (["my.pnnx.param"], "name a command first: kuiper info my.pnnx.param"),
        (["Classify"], "there is no command 'Classify'; did you mean classify?"),
        (["--verbose", "bench", "m"], "follows them: kuiper bench --verbose"),
        (["--bin=w.bin", "m"], "--bin=w.bin is an option of the commands"),
        (["help", "inof"], "there is no command 'inof'; did you mean info?"),
    ],
)
def test_an_unknown_command(capsys, words, said):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == EXIT_CODES["usage"]
    assert said in capsys.readouterr().err


def test_an_unknown_option_shows_the_usage_of_its_command(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["info", "m.param", "more", "--jsn", "--optimise=no"])
    assert stop.value.code == EXIT_CODES["usage"]
    err = capsys.readouterr().err
    assert err.startswith("usage: kuiper info ")
    assert "unrecognized arguments: more --jsn (did you mean --json?) --optimise=no" in err
    with pytest.raises(SystemExit):
        main(["--versoin"])
    assert "--versoin (did you mean --version?)" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["info", "m.param", "--html"])
    assert "--html (an option of profile)\n" in capsys.readouterr().err


def test_help_is_a_word_too(capsys):
    for words, same in (["help"], ["--help"]), (["help", "run"], ["run", "--help"]):
        texts = []
        for line in (words, same):
            with pytest.raises(SystemExit) as stop:
                main(line)
            assert stop.value.code == 0
            texts.append(capsys.readouterr().out)
        assert texts[0] == texts[1]


def test_arguments_and_options_in_any_order(run, run_json, small, tmp_path):
    assert run("expr", "neg(@0)", "--plain", "-7")[1].endswith("value  7\n")
    assert run("operators", "--plain", "softmax", "--json", "conv2d")[0] == 0
    np.save(tmp_path / "x.npy", np.ones((1, 3, 8, 8), np.float32))
    code, _, err = run("run", small, "--threads", "1", tmp_path / "x.npy", "--json", "y.npy")
    assert (code, "y.npy: No such file" in err) == (4, True)


def test_operators(run, run_json):
    (told,) = run_json("operators")
    assert told["operators"] == kuiper.supported_operators()
    code, out, _ = run("operators", "MaxPool", "erf")
    assert code == 0
    assert {"nn.MaxPool2d", "F.max_pool2d"} & set(out.split()) == {"nn.MaxPool2d"}
    assert all("maxpool" in line.lower() or "erf" in line.lower() for line in out.split())
    code, _, err = run("operators", "zzz")
    assert (code, "no supported operator contains 'zzz'; `kuiper" in err) == (3, True)
    code, _, err = run("operators", "nn.Softmx")
    assert (code, "contains 'nn.Softmx' (nearest: nn.Softmax, " in err) == (3, True)


def test_config(run, run_json):
    (told,) = run_json("config")
    assert (told["version"], told["numpy"]) == (kuiper.__version__, np.__version__)
    code, out, _ = run("config")
    assert code == 0
    assert re.search(r"^isa_available +baseline", out, re.MULTILINE)


def test_an_error_of_a_command_shows_the_usage_of_this_command(capsys, small):
    with pytest.raises(SystemExit):
        main(["graph", str(small), "-o", "graph.png"])
    err = capsys.readouterr().err
    assert err.startswith("usage: kuiper graph ")
    assert "kuiper graph: error: -o: 'graph.png' is neither .html nor .svg nor .txt" in err


def test_a_missing_file(run, tmp_path):
    code, out, err = run("info", tmp_path / "none.pnnx.param")
    assert (code, out) == (EXIT_CODES["file"], "")
    assert code == 4
    assert re.fullmatch(r"kuiper info: .*none\.pnnx\.param: No such file or directory\n", err)


def test_a_file_that_is_not_a_model(run, tmp_path):
    path = tmp_path / "page.param"
    path.write_text("<html>not here</html>")
    code, _, err = run("info", path)
    assert code == EXIT_CODES["refused"] == 3
    assert err.startswith("kuiper info: ")


def test_a_missing_package(run, small, monkeypatch):
    monkeypatch.setitem(sys.modules, "pnnx", None)
    (small.parent / "m.onnx").write_bytes(b"\x08\x07")
    code, _, err = run("export", small.parent / "m.onnx", "--shape", "1x3", "--pnnx")
    assert code == EXIT_CODES["package"] == 5
    assert "pip install pnnx" in err


@pytest.mark.parametrize("command", ["classify", "detect", "segment"])
def test_pictures_without_opencv(command, tmp_path):
    code = (
        "import sys; sys.modules['cv2'] = None\nfrom kuiper.cli import main\n"
        f"sys.exit(main(['{command}', 'a.png']))"
    )
    done = run_python("-c", code)
    assert done.returncode == 5
    assert done.stderr.startswith(f"kuiper {command}: ")
    assert done.stderr.endswith("pip install opencv-python-headless\n")


def test_interrupted(run, small, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(kuiper.Model, "profile", stop)
    code, _, err = run("profile", small, "--shape", "1x3x4x4", "--no-roofline")
    assert (code, err) == (130, "kuiper profile: interrupted\n")


# -- info --------------------------------------------------------------------------------------


def test_logging_on_request(small):
    done = run_python("-m", "kuiper", "info", str(small), "--verbose")
    assert done.returncode == 0
    assert f"kuiper.pnnx: read {small}: 0 weights\nkuiper.model: planned for " in done.stderr


def test_info_as_json(run_json, small):
    (facts,) = run_json("info", small, "--shape", "2x3x8x6", "--operators")
    assert facts["inputs"] == [{"name": "0", "shape": [1, 3, None, None], "dtype": "f32"}]
    assert facts["operators"]["nn.MaxPool2d"] == 1
    assert facts["parameters"] == 0
    plan = facts["plan"]
    assert (plan["shapes"], plan["outputs"]) == ([[2, 3, 8, 6]], [[2, 3, 4, 3]])
    assert plan["steps"] >= 1
    assert plan["arena_bytes"] <= plan["unshared_bytes"] + 64 * plan["steps"]
    assert [op["name"] for op in facts["listing"]] == ["in", "act", "pool", "plus", "out"]


def test_info_as_text(run, small):
    code, out, err = run("info", small, "--shape", "1x3x8x8")
    assert (code, err) == (0, "")
    assert "planned for  (1,3,8,8)" in out
    assert re.search(r"^nn\.MaxPool2d +1$", out, re.MULTILINE)


@pytest.fixture
def tokens_and_features(tmp_path):
    """Return a model with an integer input, a float input, and two results."""
    graph = kuiper.ir.Graph()
    graph.add_operand("tokens", (1, 8), "i64")
    graph.add_operand("x", (1, 8, 4), "f32")
    graph.add_operator("pnnx.Input", "in0", outputs=["tokens"])
    graph.add_operator("pnnx.Input", "in1", outputs=["x"])
    weight = np.arange(40, dtype=np.float32).reshape(10, 4)
    graph.add_operator(
        "nn.Embedding", "emb", ["tokens"], ["e"],
        params={"num_embeddings": 10, "embedding_dim": 4, "sparse": False},
        attributes={"weight": kuiper.ir.Attribute.from_array(weight)},
    )  # fmt: skip
    graph.add_operator("pnnx.Expression", "plus", ["e", "x"], ["s"], params={"expr": "sub(@0,@1)"})
    graph.add_operator("nn.ReLU", "act", ["s"], ["r"])
    graph.add_operator("prim::TupleConstruct", "pair", ["s", "r"], ["p"])
    graph.add_operator("pnnx.Output", "out", ["p"])
    path = tmp_path / "two.pnnx.param"
    kuiper.save(graph, path)
    return path


def test_info_names_every_result(run, run_json, tokens_and_features):
    (facts,) = run_json("info", tokens_and_features)
    assert facts["outputs"] == [
        {"name": name, "shape": [1, 8, 4], "dtype": "f32"} for name in ("s", "r")
    ]
    _, out, _ = run("info", tokens_and_features)
    assert "tokens (1,8) i64, x (1,8,4) f32" in out
    assert "s (1,8,4) f32, r (1,8,4) f32" in out


def test_arrays_of_other_widths_are_converted(run_json, tokens_and_features, tmp_path):
    tokens, x = np.arange(8)[None] % 5, np.linspace(0, 9, 32).reshape(1, 8, 4)
    np.save(tmp_path / "tokens.npy", tokens.astype(np.int32))
    np.save(tmp_path / "x.npy", x)  # float64, numpy's default
    target = tmp_path / "out.npz"
    run_json("run", tokens_and_features, tmp_path / "tokens.npy", tmp_path / "x.npy", "-o", target)
    expected = np.arange(40).reshape(10, 4)[tokens] - x
    with np.load(target) as arrays:
        np.testing.assert_allclose(arrays["s"], expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(arrays["r"], expected.clip(0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["floats.npy", "x.npy"], "input 'tokens': got float32 .*expected int64"),
        (["tokens.npy"], "got 1 input, expected 2: 'tokens', 'x'"),
        (["named.npz"], "holds 'a', 'b', expected arrays for the inputs 'tokens', 'x'"),
        (["named.npz", "x.npy"], "named.npz: an .npz file, which holds 'a', 'b'; expected one"),
        (["far.npy", "x.npy"], "index 12 is out of range for an axis of extent 10"),
        (["empty.npy", "x.npy"], "empty.npy: not a .npy or .npz file of numbers: it is empty"),
        (["page.npy", "x.npy"], "page.npy: .* it is a web page"),
        (["broken.npz"], "broken.npz: not a .npy or .npz file"),
        (["objects.npy", "x.npy"], "objects.npy: .*Object arrays cannot be loaded"),
        (["words.txt"], "words.txt: neither .npy nor .npz, and input 'tokens'"),
    ],
)
def test_arrays_that_cannot_be_used(run, tokens_and_features, tmp_path, files, said):
    tokens = np.arange(8)[None]
    np.save(tmp_path / "tokens.npy", tokens)
    np.save(tmp_path / "far.npy", tokens + 5)
    np.save(tmp_path / "floats.npy", tokens.astype(np.float32))
    np.save(tmp_path / "x.npy", np.zeros((1, 8, 4), np.float32))
    np.save(tmp_path / "objects.npy", np.array([{}, None], object), allow_pickle=True)
    np.savez(tmp_path / "named.npz", a=tokens, b=tokens)
    (tmp_path / "broken.npz").write_bytes((tmp_path / "named.npz").read_bytes()[:-30])
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "page.npy").write_text("<!DOCTYPE html>")
    (tmp_path / "words.txt").write_text("words")
    code, out, err = run("run", tokens_and_features, *(tmp_path / name for name in files))
    assert (code, out) == (3, "")
    assert re.search(said, err)
    assert err.startswith("kuiper run: ")


def test_a_golden_file_without_names(run, tokens_and_features, tmp_path):
    np.save(tmp_path / "golden.npy", np.zeros(3))
    code, _, err = run("check", tokens_and_features, tmp_path / "golden.npy")
    assert code == 3
    assert "golden.npy: one array (.npy); expected an .npz file" in err


def test_info_chooses_open_extents_that_the_network_accepts(run_json, small):
    (facts,) = run_json("info", small)  # (1, 3, ?, ?)
    assert facts["plan"]["shapes"] == [[1, 3, 224, 224]]
    (small.parent / "rows.pnnx.param").write_text(
        "7767517\n3 2\npnnx.Input in 0 1 0 #0=(?,?,?)f32\n"
        "F.relu act 1 1 0 1\npnnx.Output out 1 0 1\n"
    )
    (facts,) = run_json("info", small.parent / "rows.pnnx.param")
    assert facts["plan"]["shapes"] == [[1, 16, 16]]


def test_info_of_a_model_that_cannot_be_planned(run, small):
    code, out, err = run("info", small, "--shape", "1x3x0x0")
    assert code == 3
    assert re.search(r"^nn\.MaxPool2d +1$", out, re.MULTILINE)
    assert "planned for" not in out
    assert "'pool' (nn.MaxPool2d)" in err
    code, out, _ = run("info", small, "--shape", "1x3x0x0", "--json")
    assert (code, json.loads(out)["trouble"] in err) == (3, True)


@needs_weights
def test_info_counts_parameters_and_operations(run_json):
    (facts,) = run_json("info", MODELS / "mobilenet_v2.f16.pnnx.param")
    assert facts["parameters"] == pytest.approx(3.5e6, rel=0.01)
    assert facts["weight_dtypes"] == ["f16"]
    assert facts["plan"]["flops"] == pytest.approx(0.6e9, rel=0.05)  # 300 M multiply-adds
    assert {"gemm", "few_inputs"} <= facts["plan"]["algorithms"].keys()
    assert sum(facts["plan"]["algorithms"].values()) <= 52
    assert any("fuse_residual" in line for line in facts["plan"]["passes"])


def test_info_of_a_model_with_unknown_operators(run, small):
    small.write_text(small.read_text().replace("nn.ReLU ", "my.Relu "))
    code, out, err = run("info", small, "--json")
    assert code == 3
    facts = json.loads(out)
    assert facts["unsupported"] == {"my.Relu": 1}
    assert "plan" not in facts
    assert "my.Relu (1 use, first 'act'; nearest F.relu or nn.ReLU)" in err


def test_plugins_register_operators(run_json, small):
    small.write_text(small.read_text().replace("nn.ReLU ", "cli.Double "))
    plugin = small.parent / "plugin.py"
    plugin.write_text(
        "import kuiper\n@kuiper.operator('cli.Double')\ndef double(x):\n  return x * 2\n"
    )
    (facts,) = run_json("info", small, "--plugin", plugin, "--shape", "1x3x4x4")
    assert facts["unsupported"] == {}
    assert facts["plan"]["kernels"]["python"] == 1


@pytest.mark.parametrize("command", ["info", "run", "bench", "profile", "graph", "check"])
def test_damaged_weights_are_found_on_request(run, tokens_and_features, tmp_path, command):
    archive = tokens_and_features.with_suffix(".bin")
    data = bytearray(archive.read_bytes())
    data[data.index(np.float32([7, 8]).tobytes())] ^= 1
    archive.write_bytes(data)
    golden = [tmp_path / "golden.npz"] if command in ("run", "check") else []
    assert run("graph", tokens_and_features)[0] == 0
    code, _, err = run(command, tokens_and_features, *golden, "--check")
    assert code == 3
    assert re.search(r"entry is damaged: 'emb.weight' \(bytes \d+ to \d+\): CRC-32 ", err)


def test_shapes_that_do_not_fit(run, small):
    code, _, err = run("info", small, "--shape", "1x3x4x4", "--shape", "1x3x4x4")
    assert code == 3
    assert "given 2 times, the model has 1 inputs: '0'" in err


# -- run ---------------------------------------------------------------------------------------


def test_run_on_an_array(run_json, small, tmp_path):
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    target = tmp_path / "y.npz"
    (facts,) = run_json("run", small, tmp_path / "x.npy", "-o", target, "--trace", "act")
    with np.load(target) as arrays:
        np.testing.assert_allclose(arrays["3"], small_outputs(x), rtol=1e-6)
        np.testing.assert_array_equal(arrays["act"], np.maximum(x, 0))
    assert facts["outputs"]["3"]["shape"] == [2, 3, 3, 2]
    assert facts["outputs"]["3"]["max"] == pytest.approx(float(small_outputs(x).max()))


def test_run_on_an_archive_and_to_one_array(run, small, tmp_path):
    x = np.ones((1, 3, 2, 2), np.float32)
    np.savez(tmp_path / "x.npz", **{"0": x})
    code, out, _ = run("run", small, tmp_path / "x.npz", "-o", tmp_path / "y.npy")
    assert code == 0
    assert "(1, 3, 1, 1)" in out
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.full((1, 3, 1, 1), 3))


def test_run_to_a_table(run, tmp_path):
    param = tmp_path / "rows.param"
    param.write_text(
        "7767517\n3 2\npnnx.Input in 0 1 0 #0=(?,?)f32\nF.relu act 1 1 0 1\npnnx.Output out 1 0 1\n"
    )
    x = np.float32([[1, 1 / 3], [-2, 1e-30]])
    np.save(tmp_path / "x.npy", x)
    table = tmp_path / "y.csv"
    assert run("run", param, tmp_path / "x.npy", "-o", table)[0] == 0
    assert table.read_text() == "1,0.333333343\n0,1e-30\n"
    np.testing.assert_array_equal(np.loadtxt(table, np.float32, delimiter=","), np.maximum(x, 0))


def test_results_that_make_no_table(run, small, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.ones((1, 3, 2, 2), np.float32))
    code, _, err = run("run", small, tmp_path / "x.npy", "-o", tmp_path / "y.csv")
    assert code == 3
    assert "'3' is float32 (1, 3, 1, 1); name a .npy or .npz file" in err
    arguments = run("run", small, tmp_path / "x.npy", "-o", tmp_path / "y.csv", "--trace", "act")
    assert "a .csv file holds one array, the model gave 2" in arguments[2]
    with pytest.raises(SystemExit):
        main(["run", str(small), "x.npy", "-o", "y.txt"])
    assert "'y.txt' is neither .npz nor .npy nor .csv" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["npy", "npz", "png"])
def test_run_on_standard_input(run_json, small, tmp_path, monkeypatch, form):
    stream = io.BytesIO()
    if form == "npy":
        np.save(stream, np.ones((1, 3, 8, 8), np.float32))
    elif form == "npz":
        np.savez(stream, **{"0": np.ones((1, 3, 8, 8), np.float32)})
    else:
        cv2 = pytest.importorskip("cv2")
        stream.write(cv2.imencode(".png", np.zeros((9, 9, 3), np.uint8))[1].tobytes())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stream.getvalue())))
    (facts,) = run_json("run", small, "-", "--size", "8")
    assert facts["outputs"]["3"]["shape"] == [1, 3, 4, 4]


@pytest.mark.parametrize(
    ("data", "others", "said"),
    [
        (b"", [], "standard input (-) is empty"),
        (b"\x93NUMPY", [], "<stdin>.npy: not a .npy or .npz file"),
        (b"PK", ["x.npy"], "standard input (-) holds all inputs of a run"),
        (b"words", [], "standard input, which holds neither .npz nor .npy: not an image"),
    ],
)
def test_standard_input_that_cannot_be_used(run, small, monkeypatch, data, others, said):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    code, _, err = run("run", small, "-", *others)
    assert (code, said in err) == (3, True), err


def test_run_on_pictures(run_json, small, tmp_path):
    cv2 = pytest.importorskip("cv2")
    for name in ("a.png", "b.png"):
        cv2.imwrite(str(tmp_path / name), np.full((20, 20, 3), (0, 128, 255), np.uint8))
    (facts,) = run_json(
        "run", small, tmp_path / "a.png", tmp_path / "b.png", "--size", "8", "--preset", "tf",
        "-o", tmp_path / "y.npz",
    )  # fmt: skip
    assert facts["outputs"]["3"]["shape"] == [2, 3, 4, 4]
    with np.load(tmp_path / "y.npz") as arrays:
        np.testing.assert_allclose(arrays["3"][0, :, 0, 0], [3, 2 * (128 / 127.5 - 1) + 1, 1], 1e-5)


def test_run_with_a_wrong_array(run, small, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 4, 4), np.int64))
    code, _, err = run("run", small, tmp_path / "x.npy")
    assert code == 3
    assert "pass x.astype(np.float32)" in err


# -- bench and profile ---------------------------------------------------------------------------


def test_bench(run_json, small):
    (facts,) = run_json(
        "bench", small, "--shape", "1x3x16x16", "--batch", "1,2", "--threads", "1,2",
        "--seconds", "0.01",
    )  # fmt: skip
    before = kuiper.get_num_threads()
    rows = facts["results"]
    assert [(r["shapes"][0][0], r["threads"]) for r in rows] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for row in rows:
        assert 0 < row["min_ms"] <= row["median_ms"] <= row["p90_ms"]
        assert row["runs"] >= 5
        assert row["per_second"] == pytest.approx(row["shapes"][0][0] / row["median_ms"] * 1e3)
    assert kuiper.get_num_threads() == before


def test_bench_of_instruction_sets(run, run_json, small):
    from kuiper._kernels.micro import dispatch

    active, names = dispatch.active_name(), dispatch.available()
    (facts,) = run_json(
        "bench", small, "--shape", "1x3x8x8", "--isa", ",".join(names), "--seconds", "0.01"
    )
    assert [row["isa"] for row in facts["results"]] == list(names)
    assert dispatch.active_name() == active
    code, _, err = run("bench", small, "--shape", "1x3x8x8", "--isa", "neon9")
    assert code == 3
    assert "this machine has no neon9; it has baseline" in err


def test_profile(run_json, small):
    (facts,) = run_json("profile", small, "--shape", "1x3x32x32", "--runs", "3")
    assert sum(row["share"] for row in facts["operators"]) == pytest.approx(1)
    assert {row["name"] for row in facts["operators"]} <= {"act", "pool", "plus", "pnnx.Output"}
    assert facts["peaks"]["gflops"] > 1
    assert facts["peaks"]["gbytes"] > 0.1
    assert all(row["roofline"] is None or row["roofline"] > 0 for row in facts["operators"])
    assert len({row["name"] for row in facts["operators"]}) == len(facts["operators"])
    kernels = [kind for row in facts["operators"] for kind in row["kernels"]]
    assert sorted(kernels) == sorted(step["kind"] for step in facts["steps"])
    assert sum(g["seconds"] for g in facts["types"]) * 1e3 == pytest.approx(facts["total_ms"])


def test_profile_writes_a_trace(run, run_json, small, tmp_path):
    arguments = ("profile", small, "--shape", "1x3x32x32", "--runs", "2", "--no-roofline")
    (facts,) = run_json(*arguments, "--trace", tmp_path / "t.json")
    assert facts["trace"] == str(tmp_path / "t.json")
    trace = json.loads((tmp_path / "t.json").read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [event["name"] for event in events] == [step["name"] for step in facts["steps"]]
    assert [event["cat"] for event in events] == [step["kind"] for step in facts["steps"]]
    assert sum(event["dur"] for event in events) == pytest.approx(facts["total_ms"] * 1e3)
    ends = [event["ts"] + event["dur"] for event in events]
    assert [event["ts"] for event in events] == pytest.approx([0, *ends[:-1]])
    said = f"trace: {tmp_path / 't.json'}, for ui.perfetto.dev or chrome://tracing"
    assert said in run(*arguments, "--trace", tmp_path / "t.json")[1].splitlines()
    assert run(*arguments, "--trace", tmp_path / "missing" / "t.json")[0] == EXIT_CODES["file"]


def test_profile_as_text(run, small):
    code, out, _ = run("profile", small, "--shape", "1x3x8x8", "--no-roofline", "--top", "1")
    assert code == 0
    assert "by type" in out
    assert re.search(r"total [\d.]+ ms, \d+ threads", out)


# -- expr --------------------------------------------------------------------------------------


def test_expr(run):
    code, out, _ = run("expr", "add(@0,mul(@1,2))", "1", "[2,3]")
    assert code == 0
    assert out == (
        "tokens   add ( @0 , mul ( @1 , 2 ) )\n"
        "postfix  @0 @1 2 mul add\n"
        "infix    @0 + @1 * 2\n"
        "\n"
        "add\n├── @0\n└── mul\n    ├── @1\n    └── 2\n"
        "\n"
        "value  [5. 7.]\n"
    )


def test_expr_with_a_function_of_a_plugin(run, run_json, tmp_path):
    plugin = tmp_path / "functions.py"
    plugin.write_text(
        "import kuiper\n@kuiper.expression.function('cli_twice', replace=True)\n"
        "def twice(x):\n  return x * 2\n"
    )
    try:
        (facts,) = run_json("expr", "add(cli_twice(@0),1)", "[1,2]", "--plugin", plugin)
    finally:
        del CUSTOM["cli_twice"]
    assert facts["value"] == [3, 5]
    assert facts["infix"] == "cli_twice(@0) + 1"
    code, _, err = run("expr", "cli_twise(@0)")
    assert code == 3
    assert "@kuiper.expression.function adds one of your own" in err


def test_expr_with_files(run_json, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    svg, dot = tmp_path / "tree.svg", tmp_path / "tree.dot"
    (facts,) = run_json("expr", "add(@0,1)", tmp_path / "a.npy", "--svg", svg, "--dot", dot)
    assert facts["value"] == [1, 2, 3]
    assert svg.read_text().startswith("<svg")
    assert dot.read_text().startswith("digraph")


@pytest.mark.parametrize("value", ["-1", "-.5", "-1e3", "-inf"])
def test_values_that_begin_with_a_minus(run, value):
    code, out, _ = run("expr", "neg(@0)", value)
    assert code == 0
    assert float(out.rpartition("value  ")[2]) == -float(value)


def test_an_expression_that_begins_with_a_minus(run, capsys):
    code, _, err = run("expr", "-@0", "4")
    assert (code, "^" in err) == (3, True)
    with pytest.raises(SystemExit):
        main(["expr"])
    assert capsys.readouterr().err.endswith("the following arguments are required: EXPR\n")


def test_expr_of_ncnn(run, run_json, tmp_path):
    code, out, _ = run("expr", "--ncnn", "-1,*(0h,2),+(1c,2)", "3x8x8", "5x4x4")
    assert code == 0
    assert out.endswith("\n\nvalue  [-1, 16, 7]\n")
    dot = tmp_path / "tree.dot"
    (facts,) = run_json("expr", "-(0w,1)", "--ncnn", "--dot", dot)
    assert facts == {"expression": "-(0w,1)", "items": ["-(0w,1)"], "operands": 1}
    assert dot.read_text().startswith("digraph")
    assert run("expr", "--ncnn", "0w", "wide")[0] == 3
    code, _, err = run("expr", "--ncnn", "*(0h,2", "8")
    assert (code, "^" in err) == (3, True)


def test_an_invalid_expr(run):
    code, _, err = run("expr", "add(@0,")
    assert code == 3
    assert "^" in err
    code, _, err = run("expr", "add(@0,1)", "one")
    assert code == 3
    assert "'one' is no number" in err


# -- check -------------------------------------------------------------------------------------


def golden(small: Path, path: Path, spoil: str | None = None, **names) -> Path:
    x = np.random.default_rng(2).standard_normal((1, 3, 4, 4)).astype(np.float32)
    act = np.maximum(x, 0)
    pool = act.reshape(1, 3, 2, 2, 2, 2).max(axis=(3, 5))
    arrays = {"x": x, "y": pool * 2 + 1, "act": act, "pool": pool}
    if spoil:
        arrays[spoil] = arrays[spoil] + np.float32(0.01)
    np.savez(path, **{names.get(key, key): value for key, value in arrays.items()})
    return path


def test_check_that_agrees(run_json, small, tmp_path):
    (facts,) = run_json("check", small, golden(small, tmp_path / "g.npz"))
    assert facts["good"]
    assert [(r["kind"], r["name"]) for r in facts["results"]] == [
        ("output", "3"), ("intermediate", "act"), ("intermediate", "pool"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "names",
    [
        {"x": "0", "y": "3"},
        {"x": "x_cat", "y": "y_cat"},
        {"x": "in_0", "y": "out_0"},
        {"x": "input", "y": "output"},
    ],
)
def test_check_accepts_several_names_of_arrays(run_json, small, tmp_path, names):
    (facts,) = run_json("check", small, golden(small, tmp_path / "g.npz", **names))
    assert facts["results"][0]["kind"] == "output"
    assert len(facts["results"]) == 3


@pytest.mark.parametrize("spoil", ["act", "pool"])
def test_check_names_the_first_operator_that_diverges(run, small, tmp_path, spoil):
    path = golden(small, tmp_path / "g.npz", spoil)
    code, out, _ = run("check", small, path)
    assert code == EXIT_CODES["partly"] == 1
    assert f"operator '{spoil}'" in out.splitlines()[-1]
    assert run("check", small, path, "--rtol", "0.5")[0] == 0


def test_check_takes_numbers_as_names_of_modules(run, tmp_path):
    """Modules of a Sequential are called 0, 1, ... like operands."""
    param = tmp_path / "sequential.pnnx.param"
    param.write_text(
        SMALL.replace("act ", "0   ").replace("pool", "1   ").replace("#0=(1,3,?,?)f32 #0", "#0")
    )
    x = np.random.default_rng(3).standard_normal((1, 3, 4, 4)).astype(np.float32)
    act = np.maximum(x, 0)
    pool = act.reshape(1, 3, 2, 2, 2, 2).max(axis=(3, 5))
    for wrong in (False, True):
        np.savez(tmp_path / "g.npz", **{"x": x, "0": act, "1": pool + wrong})
        code, out, _ = run("check", param, tmp_path / "g.npz", "--json")
        facts = json.loads(out)
        assert code == wrong
        assert [(r["kind"], r["name"]) for r in facts["results"]] == [
            ("intermediate", "0"),
            ("intermediate", "1"),
        ]
        assert facts["first_divergence"] == ("1" if wrong else None)


def test_check_with_other_shapes_and_names(run, small, tmp_path):
    x = np.zeros((1, 3, 4, 4), np.float32)
    np.savez(tmp_path / "g.npz", x=x, y=np.zeros((1, 3, 4, 4)), stranger=x)
    code, out, _ = run("check", small, tmp_path / "g.npz")
    assert code == 1
    assert "expected shape (1,3,4,4)" in out
    assert "stranger" in out.splitlines()[-1]
    np.savez(tmp_path / "g.npz", stranger=x)
    assert run("check", small, tmp_path / "g.npz")[0] == 3
    np.savez(tmp_path / "g.npz", x=x)
    assert run("check", small, tmp_path / "g.npz")[0] == 3


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [([1, 2], [1, 2], 0), ([1, 2.5], [1, 2], 0.25), ([np.nan, 2], [np.nan, 2], 0),
     ([np.nan, 2], [1, 2], np.inf), ([np.inf, 2], [np.inf, 2], 0), ([0, 0], [0, 0], 0),
     ([1, 0], [0, 0], np.inf), ([1, 2], [np.inf, 2], np.inf)],
)  # fmt: skip
def test_differences(a, b, expected):
    assert difference(np.array(a, float), np.array(b, float))["error"] == expected


# -- graph -------------------------------------------------------------------------------------


def test_graph_as_text(run, small):
    code, out, _ = run("graph", small)
    assert code == 0
    assert out == f"{kuiper.load_graph(small)}\n"
    code, out, _ = run("graph", small, "--as-run", "--shape", "1x3x4x4")
    assert "%3:(1,3,2,2)f32" in out


@pytest.mark.parametrize("suffix", [".svg", ".html", ".txt"])
def test_graph_to_a_file(run_json, small, tmp_path, suffix):
    target = tmp_path / f"graph{suffix}"
    run_json("graph", small, "--shape", "1x3x4x4", "-o", target)
    text = target.read_text("utf-8")
    assert "nn.MaxPool2d" in text
    assert text.startswith(
        {".svg": "<svg", ".html": "<!DOCTYPE html>", ".txt": "graph with"}[suffix]
    )


def test_graph_to_an_unknown_kind_of_file(small, tmp_path):
    with pytest.raises(SystemExit) as stop:
        main(["graph", str(small), "-o", str(tmp_path / "graph.png")])
    assert stop.value.code == 2


# -- pictures ----------------------------------------------------------------------------------


@needs_weights
def test_classify(run_json, tmp_path):
    pytest.importorskip("cv2")
    found = run_json("classify", PHOTOS, "--topk", "1", "--batch", "3", "--save", tmp_path)
    labels = {Path(f["file"]).stem: f["top"][0]["label"] for f in found}
    assert labels["chelsea"] == "Egyptian cat"
    assert labels["coffee"] == "espresso"
    assert len(list(tmp_path.glob("*_classified.png"))) == len(found) == 4
    assert all(
        f["saved"] == [str(tmp_path / f"{Path(f['file']).stem}_classified.png")] for f in found
    )


@needs_weights
@pytest.mark.parametrize(
    ("command", "suffixes"),
    [
        ("classify", ["classified"]),
        ("detect", ["boxes"]),
        ("segment", ["overlay", "cutout", "mask"]),
    ],
)
def test_saved_files_are_named(run, tmp_path, command, suffixes):
    pytest.importorskip("cv2")
    code, out, _ = run(command, PHOTOS / "chelsea.png", "--save", tmp_path)
    assert code == 0
    said = out.splitlines()[-len(suffixes) :]
    assert said == [f"  {tmp_path / f'chelsea_{suffix}.png'}" for suffix in suffixes]


@needs_weights
@pytest.mark.parametrize(
    ("command", "model"),
    [("classify", "squeezenet"), ("detect", "nanodet_m"), ("segment", "selfie")],
)
def test_times_exclude_planning(run_json, monkeypatch, command, model):
    pytest.importorskip("cv2")
    make = PlanCache._compile

    def compile(*arguments):
        time.sleep(1)
        return make(*arguments)

    monkeypatch.setattr(PlanCache, "_compile", compile)
    (found,) = run_json(command, PHOTOS / "chelsea.png", "--model", model)
    assert found["ms"] < 900


@needs_weights
def test_detect(run, run_json, tmp_path):
    pytest.importorskip("cv2")
    (found,) = run_json("detect", PHOTOS / "chelsea.png", "--save", tmp_path)
    (cat,) = found["detections"]
    assert (cat["label"], round(cat["score"], 2)) == ("cat", 0.74)
    assert (tmp_path / "chelsea_boxes.png").exists()
    code, out, _ = run("detect", PHOTOS / "rocket.jpg")
    assert code == 0
    assert out.splitlines()[1] == "  nothing"


@needs_weights
def test_segment(run_json, tmp_path):
    pytest.importorskip("cv2")
    (found,) = run_json(
        "segment", PHOTOS / "astronaut.png", "--model", "selfie", "--save", tmp_path
    )
    assert 0.4 < found["foreground"] < 0.7
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["astronaut_cutout.png", "astronaut_mask.png", "astronaut_overlay.png"]


@needs_weights
def test_an_unreadable_picture_does_not_stop_the_others(run, tmp_path):
    pytest.importorskip("cv2")
    (tmp_path / "empty").mkdir()
    (tmp_path / "words.png").write_text("words")
    code, out, err = run(
        "classify", "nowhere.jpg", tmp_path / "words.png", tmp_path / "empty",
        PHOTOS / "coffee.png", "--json", "--batch", "2",
    )  # fmt: skip
    assert code == 1
    empty, nowhere, words, coffee = map(json.loads, out.splitlines())
    assert coffee["top"][0]["label"] == "espresso"
    assert empty == {"file": str(tmp_path / "empty"), "error": "no pictures in this folder"}
    assert nowhere == {"file": "nowhere.jpg", "error": "No such file or directory"}
    assert words["error"] == "not an image in a format that OpenCV can read"
    assert sorted(line.rpartition(": ")[2] for line in err.splitlines()) == [
        "No such file or directory", "no pictures in this folder",
        "not an image in a format that OpenCV can read",
    ]  # fmt: skip


@pytest.fixture
def video(tmp_path) -> Path:
    """Return a video of three frames."""
    cv2 = pytest.importorskip("cv2")
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 5, (64, 48))
    if not writer.isOpened():
        pytest.skip("this OpenCV cannot write videos")
    for value in (0, 120, 255):
        writer.write(np.full((48, 64, 3), value, np.uint8))
    writer.release()
    return path


@needs_weights
def test_detect_on_a_video(run_json, video, tmp_path):
    cv2 = pytest.importorskip("cv2")
    frames = run_json("detect", video, "--save", tmp_path / "out")
    assert [f["frame"] for f in frames] == [0, 1, 2]
    assert all(f["saved"] == [str(tmp_path / "out" / "clip_boxes.avi")] for f in frames)
    assert all(f["ms"] > 0 for f in frames)
    written = cv2.VideoCapture(str(tmp_path / "out" / "clip_boxes.avi"))
    assert written.get(cv2.CAP_PROP_FRAME_COUNT) == 3
    assert written.get(cv2.CAP_PROP_FPS) == 5


@needs_weights
def test_summary_of_a_video(run, video, tmp_path):
    code, out, _ = run("segment", video, "--model", "selfie", "--save", tmp_path)
    first, foreground, file = out.splitlines()
    assert (code, first.startswith(f"{video}  3 frames, ")) == (0, True)
    assert foreground.split()[1] == "foreground"
    assert file == f"  {tmp_path / 'clip_overlay.avi'}"


@needs_weights
def test_results_do_not_overwrite_inputs(run, video, tmp_path):
    folder = video.parent
    taken = folder / "clip_classified.avi"
    taken.write_bytes(video.read_bytes())
    code, _, _ = run("classify", folder, "--save", folder)
    assert code == 0
    assert taken.read_bytes() == video.read_bytes()
    assert {path.name for path in folder.iterdir()} == {
        "clip.avi", "clip_classified.avi", "clip_classified_2.avi",
        "clip_classified_classified.avi",
    }  # fmt: skip


@needs_weights
def test_an_interrupted_video_can_be_played(run, video, tmp_path, monkeypatch):
    cv2 = pytest.importorskip("cv2")
    from kuiper import vision

    clip = vision.VideoReader(video)

    def frames(reader):
        yield from clip
        raise KeyboardInterrupt

    reader = type("Camera", (), {"fps": 5, "n_frames": None, "__iter__": frames})
    monkeypatch.setattr(vision, "VideoReader", lambda source: reader())
    code, out, err = run("detect", "0", "--save", tmp_path)
    assert (code, err) == (130, "kuiper detect: interrupted\n")
    assert out.startswith("0  3 frames, ")
    written = cv2.VideoCapture(str(tmp_path / "0_boxes.avi"))
    assert written.get(cv2.CAP_PROP_FRAME_COUNT) == 3


@needs_weights
def test_a_file_that_is_not_a_video(run, tmp_path):
    pytest.importorskip("cv2")
    code, _, err = run("detect", tmp_path / "missing.mp4")
    assert code == 1
    assert "missing.mp4: No such file" in err


@needs_weights
def test_a_picture_from_standard_input(run_json, tmp_path, monkeypatch):
    pytest.importorskip("cv2")
    data = (MODELS.parent / "photos" / "chelsea.png").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    (told,) = run_json("classify", "-", "--topk", "1", "--save", tmp_path)
    assert (told["file"], told["top"][0]["label"]) == ("-", "Egyptian cat")
    assert [path.name for path in tmp_path.iterdir()] == ["stdin_classified.png"]


@needs_weights
def test_urls_are_not_files(run):
    pytest.importorskip("cv2")
    code, _, err = run("classify", "https://example.com/cat.jpg")
    assert code == 1
    assert "a URL, not a file; try: curl https://example.com/cat.jpg | kuiper clas" in err


# -- export ------------------------------------------------------------------------------------


def test_export_of_a_missing_source(run, tmp_path):
    code, _, err = run("export", tmp_path / "none.onnx")
    assert (code, "none.onnx: No such file" in err) == (4, True)
    with pytest.raises(SystemExit) as stop:
        main(["export", str(tmp_path / "model.h5")])
    assert stop.value.code == 2


def test_info_and_graph_without_the_weights(run, run_json, tmp_path):
    param = tmp_path / "alone.pnnx.param"
    param.write_text(
        "7767517\n3 2\npnnx.Input in 0 1 0 #0=(1,3)f32\nnn.Linear fc 1 1 0 1 bias=False "
        "in_features=3 out_features=2 @weight=(2,3)f32\npnnx.Output out 1 0 1\n"
    )
    code, out, err = run("info", param, "--operators")
    assert (code, err) == (0, "")
    assert "not found, so nothing is planned" in out
    (facts,) = run_json("info", param)
    assert "plan" not in facts
    assert "their archive is missing" in facts["weights_missing"]
    assert facts["parameters"] == 6
    for target in ("", "x.svg", "x.txt"):
        assert run("graph", param, *(("-o", tmp_path / target) if target else ()))[0] == 0
    code, _, err = run("graph", param, "--as-run")
    assert (code, "their archive is missing" in err) == (4, True)


# -- completion --------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_all_commands_and_options(run, shell):
    code, out, _ = run("completion", shell)
    assert code == 0
    for name in all_commands():
        assert name in out
    assert "roofline" in out


def shell(*arguments: str, cwd: Path) -> str:
    """Return the output of a shell; skip the test if it is not installed."""
    try:
        done = subprocess.run(arguments, cwd=cwd, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip(f"there is no {arguments[0]} here")
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a folder with files to complete."""
    for name in ("my.pnnx.param", "my photo.jpg"):
        (tmp_path / name).touch()
    (tmp_path / "mine").mkdir()
    return tmp_path


def test_completion_in_bash(run, tmp_path, folder):
    script = tmp_path / "kuiper.bash"
    script.write_text(run("completion", "bash")[1])

    def complete(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in ("kuiper", *words))
        code = (
            f"source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _kuiper; "
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        return sorted(shell("bash", "-c", code, cwd=folder).splitlines())

    assert complete("pro") == ["profile"]
    assert complete("detect", "--thr") == ["--threads", "--threshold"]
    assert complete("graph", "-") == sorted(
        name for action in all_commands()["graph"][1]._actions
        for name in action.option_strings
    )  # fmt: skip
    assert complete("classify", "--preset", "c") == ["caffe", "course"]
    assert complete("classify", "--preset", "=", "c") == ["caffe", "course"]
    assert complete("completion", "z") == ["zsh"]
    assert complete("classify", "m") == ["mine", "my photo.jpg", "my.pnnx.param"]
    assert complete("info", "m") == ["mine", "mobilenet_v2", "my photo.jpg", "my.pnnx.param"]
    assert complete("segment", "--model", "s") == ["selfie"]
    assert complete("detect", "--save", "m") == ["mine"]
    assert complete("detect", "--threshold", "") == [""]


def test_completion_in_fish(run, tmp_path, folder):
    script = tmp_path / "kuiper.fish"
    script.write_text(run("completion", "fish")[1])

    def complete(line: str) -> list[str]:
        code = f"source {script}; complete -C '{line}'"
        text = shell("fish", "--no-config", "-c", code, cwd=folder)
        return sorted(line.partition("\t")[0] for line in text.splitlines())

    assert complete("kuiper pro") == ["profile"]
    assert complete("kuiper detect --thr") == ["--threads", "--threshold"]
    assert complete("kuiper classify --preset c") == ["caffe", "course"]
    assert complete("kuiper completion z") == ["zsh"]
    assert complete("kuiper info mo") == ["mobilenet_v2"]
    assert complete("kuiper classify my") == ["my photo.jpg", "my.pnnx.param"]
    assert complete("kuiper detect --save m") == ["mine/"]
    assert complete("kuiper detect --threshold ") == []


def test_completion_in_zsh(run, tmp_path, folder):
    pty = pytest.importorskip("pty", reason="a terminal is needed")
    script = tmp_path / "kuiper.zsh"
    script.write_text(run("completion", "zsh")[1])
    shell("zsh", "-n", str(script), cwd=folder)
    here, there = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "HOME": str(tmp_path)}
    with subprocess.Popen(
        ["zsh", "-f", "-i"], cwd=folder, env=environment, stdin=there, stdout=there, stderr=there,
        start_new_session=True,
    ) as process:  # fmt: skip
        os.close(there)

        def until(mark: str) -> str:
            """Return zsh's output up to `mark`."""
            told, end = "", time.monotonic() + 60
            while mark not in told:
                assert select.select([here], [], [], max(0, end - time.monotonic()))[0], told
                told += os.read(here, 4096).decode(errors="replace")
            return told

        try:
            os.write(here, b"PS1=; setopt nobeep; autoload -Uz compinit && compinit -u -D\n")
            os.write(here, f"source {script}; print rea''dy\n".encode())
            until("ready")
            for line, expected in {
                "kuiper pro\t": "kuiper profile ",
                "kuiper detect --thresh\t": "kuiper detect --threshold=",
                "kuiper classify --preset im\t": "kuiper classify --preset imagenet ",
                "kuiper classify 'my p\t": "kuiper classify 'my photo.jpg' ",
                "kuiper info mo\t": "kuiper info mobilenet_v2 ",
                "kuiper detect --save m\t": "kuiper detect --save mine/",
            }.items():
                os.write(here, line.encode())
                until(expected)
                os.write(here, b"\x15")  # Ctrl-U deletes the line
        finally:
            process.kill()
            os.close(here)


# -- formatting --------------------------------------------------------------------------------


def test_readable_numbers():
    assert [bytes_text(n) for n in (0, 1023, 1536, 5 << 20, 3 << 30)] == [
        "0 B", "1023 B", "1.5 KiB", "5.0 MiB", "3.00 GiB",
    ]  # fmt: skip
    assert [count_text(n) for n in (7, 3_490_000, 1.2e10)] == ["7", "3.49 M", "12.00 G"]


def test_json_has_no_infinities(capsys):
    Console(as_json=True).data({"a": [float("inf"), np.float32("nan"), 1.5], "b": np.arange(2)})
    assert json.loads(capsys.readouterr().out) == {"a": [None, None, 1.5], "b": [0, 1]}


def test_plain_tables(capsys):
    Console().table(["name", ">n"], [("a", 1), ("longer", 100)])
    assert capsys.readouterr().out == "name      n\n------  ---\na         1\nlonger  100\n"


def test_tables_with_rich(capsys, monkeypatch):
    pytest.importorskip("rich", reason="an extra of the command line")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    console = Console()
    assert console._rich_out is not None
    console.table(["name", ">n"], [("[a]", 1)])
    console.facts([("key", "[value]")])
    out = capsys.readouterr().out
    assert "[a]" in out
    assert "[value]" in out
    assert Console(plain=True)._rich_out is None


@pytest.mark.parametrize("width", [100, 50, 44, 20])
def test_no_figure_is_truncated_on_a_narrow_terminal(width):
    rich = pytest.importorskip("rich.console", reason="an extra of the command line")
    console, file = Console(), io.StringIO()
    console._rich_out = rich.Console(file=file, width=width, highlight=False)
    console.table(
        ["operator", "type", ">us", ">share"],
        [("features.11.expand3x3", "nn.Conv2d", "12345.6", "97.1%"), ("out", "", "0.5", "0.0%")],
    )
    console.facts([("memory", "3.9 MiB for intermediate results")])
    text = file.getvalue()
    assert "12345.6" in text
    assert "97.1%" in text
    assert "features" in text
    assert all(len(line) <= width for line in text.splitlines())
    assert ("us 12345.6" in text) == (width == 20)  # several lines per row instead of columns


def test_characters_that_a_terminal_cannot_encode(small, tmp_path):
    path = tmp_path / "\u732b.npy"
    np.save(path, np.zeros((1, 3, 4, 4), np.float32))
    done = subprocess.run(
        [sys.executable, "-m", "kuiper", "run", str(small), f"{path}x.npy", "--json"],
        cwd=PACKAGES, capture_output=True, timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"},
    )  # fmt: skip
    assert done.returncode == 4
    assert b"\\u732b.npyx.npy: No such file" in done.stderr


def test_json_of_non_ascii_text(capsys, monkeypatch):
    Console(as_json=True).data({"file": "\u732b"})
    assert capsys.readouterr().out == '{"file": "\u732b"}\n'
    ascii_out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", ascii_out)
    Console(as_json=True).data({"file": "\u732b"})
    assert ascii_out.buffer.getvalue() == b'{"file": "\\u732b"}\n'


def test_results_go_to_a_file_while_a_bar_is_on_the_terminal(capsys, monkeypatch):
    pytest.importorskip("rich", reason="an extra of the command line")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    console = Console()
    for i in console.progress(range(2), 2, "pictures"):
        console.text(f"picture {i}")
    out, err = capsys.readouterr()
    assert out == "picture 0\npicture 1\n"
    assert "pictures" in err
    assert "picture 0" not in err


def test_no_progress_without_a_terminal(capsys):
    assert list(Console().progress(range(3), 3, "work")) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_progress_and_lines_on_one_terminal_do_not_mix(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    console = Console(plain=True)
    clock = iter(np.arange(0, 100, 0.7))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    terminal: list[str] = []
    for i in console.progress(range(4), 4, "pictures"):
        console.text(f"picture {i}")
        terminal.append(capsys.readouterr().err)
    terminal.append(capsys.readouterr().err)
    # The bar as a terminal shows it: each line overwrites the one before.
    assert "pictures: 2/4, 1.4/s" in terminal[2]
    assert "\n" not in "".join(terminal)
    # The bar is erased before anything else is written.
    for text in terminal:
        bar, back, rest = text.rpartition("\r")
        assert rest == ""
        assert not back or bar.endswith("\r" + " " * 20)


def test_progress_is_erased_on_interruption(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    clock = iter(np.arange(0, 100, 2.0))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    console = Console(plain=True)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        for i in console.progress(range(9), None, "work"):
            if i == 2:
                raise KeyboardInterrupt
    del i
    assert capsys.readouterr().err.endswith("\r")


QUANTIZABLE = """7767517
4 3
pnnx.Input in 0 1 0 #0=(2,96)f32
nn.Linear fc 1 1 0 1 bias=True in_features=96 out_features=64 @bias=(64)f32 @weight=(64,96)f32
nn.Linear top 1 1 1 2 bias=False in_features=64 out_features=70 @weight=(70,64)f32
pnnx.Output out 1 0 2
"""


def test_quantize(run, run_json, tmp_path):
    source, target = tmp_path / "float.pnnx.param", tmp_path / "bytes.pnnx.param"
    source.write_text(QUANTIZABLE)
    source.with_suffix(".bin").write_bytes(fill_archive(QUANTIZABLE.encode(), "quantize"))
    [facts] = run_json("quantize", source, "-o", target)
    assert [(layer["name"], layer["shape"]) for layer in facts["layers"]] == [
        ("fc", [64, 96]), ("top", [70, 64])
    ]  # fmt: skip
    assert all(30 < layer["sqnr"] < 60 for layer in facts["layers"])
    assert facts["bytes_before"] == 4 * (64 + 64 * 96 + 70 * 64)
    assert facts["bytes"] == 4 * 64 + 64 * 96 + 70 * 64 + 4 * (64 + 70)
    x = np.random.default_rng(0).standard_normal((2, 96)).astype(np.float32)
    want, got = (kuiper.load(path)(x) for path in (source, target))
    assert 0 < np.abs(want - got).max() < 0.05 * np.abs(want).max()

    code, out, err = run("quantize", source, "-o", target, "--keep", "t*")
    assert (code, err) == (0, "")
    assert "96 -> 64" in out
    assert "top" not in out
    code, _, err = run("quantize", source, "-o", tmp_path / "bytes.bin")
    assert code == EXIT_CODES["refused"]
    assert "expected a name that ends with .param" in err
    code, _, err = run("quantize", source, "-o", target, "--keep", "nothing")
    assert code == EXIT_CODES["refused"]
    assert "keep='nothing' matches no layer" in err
    code, _, err = run("quantize", source, "-o", target, "--report")
    assert code == EXIT_CODES["refused"]
    assert "pass data by --images or --inputs" in err


CONVOLUTIONS = """7767517
4 3
pnnx.Input in 0 1 0 #0=(1,3,16,16)f32
nn.Conv2d a 1 1 0 1 bias=True dilation=(1,1) groups=1 in_channels=3 kernel_size=(3,3) out_channels=8 padding=(1,1) padding_mode=zeros stride=(1,1) @bias=(8)f32 @weight=(8,3,3,3)f32
nn.Conv2d b 1 1 1 2 bias=True dilation=(1,1) groups=1 in_channels=8 kernel_size=(1,1) out_channels=4 padding=(0,0) padding_mode=zeros stride=(1,1) @bias=(4)f32 @weight=(4,8,1,1)f32
pnnx.Output out 1 0 2
"""  # noqa: E501


def test_quantize_with_calibration(run, run_json, tmp_path):
    source, target = tmp_path / "float.pnnx.param", tmp_path / "bytes.pnnx.param"
    source.write_text(CONVOLUTIONS)
    source.with_suffix(".bin").write_bytes(fill_archive(CONVOLUTIONS.encode(), "calibrated"))
    generator = np.random.default_rng(0)
    pictures = tmp_path / "pictures"
    for number in range(3):
        image = generator.integers(0, 256, (20, 30, 3), dtype=np.uint8)
        save_image(pictures / f"{number}.png", image)
    [facts] = run_json("quantize", source, "-o", target, "--images", pictures, "--count", 2)
    assert (facts["quantized"], facts["kept"], facts["layers"]) == (2, [], [])
    assert 20 < facts["sqnr"] < 60
    x = preprocess(load_image(pictures / "0.png"), replace(PRESETS["imagenet"], size=(16, 16)))
    want, got = (kuiper.load(path)(x[np.newaxis]) for path in (source, target))
    assert 0 < np.abs(want - got).max() < 0.1 * np.abs(want).max()

    data = tmp_path / "x.npy"
    np.save(data, x[np.newaxis])
    options = ("--inputs", data, "--method", "entropy", "--keep", "a", "--min-sqnr", "1")
    code, out, err = run("quantize", source, "-o", target, *options, "--report")
    assert (code, err) == (0, "")
    assert re.search(r"b +4x8x1x1 +[0-9.]+ +[0-9.]+\n", out)
    assert "1 layer of bytes, 1 left in float32; the outputs" in out
    for options, message in (
        (("--images", tmp_path / "none"), "none"),
        (("--images", source), "found no pictures"),
        (("--images", pictures, "--inputs", data), "expected one of them"),
        (("--images", pictures, "--percentile", "0", "--method", "percentile"), "percentile is 0"),
    ):
        code, _, err = run("quantize", source, "-o", target, *options)
        assert code != 0
        assert message in err
