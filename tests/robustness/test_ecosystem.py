"""Behaviour beside other libraries: foreign arrays, copies, processes, threads, logging, types."""

from __future__ import annotations

import ast
import copy
import multiprocessing
import pickle
import re
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import kuiper

from ..support.paths import ROOT
from ..support.process import run_python

SOURCE = ROOT / "kuiper"

PARAM = b"""7767517
4 3
pnnx.Input       in    0 1 0 #0=(1,3,?,?)f32
nn.Hardswish     act   1 1 0 1
pnnx.Expression  plus  1 1 1 2 expr=add(mul(@0,3.0),1.0)
pnnx.Output      out   1 0 2
"""


@pytest.fixture
def model() -> kuiper.Model:
    return kuiper.load(PARAM)


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((1, 3, 7, 5)).astype(np.float32)


# -- foreign arrays --------------------------------------------------------------------------------


class WithArray:
    """An object with __array__ only."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


class WithDLPack:
    """An object with __dlpack__ only."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("wrap", [WithArray, WithDLPack, memoryview])
def test_foreign_arrays(model, x, wrap):
    np.testing.assert_array_equal(model(wrap(x)), model(x))
    np.testing.assert_array_equal(model({"0": wrap(x)}), model(x))
    np.testing.assert_array_equal(
        model.trace(wrap(x), ["act"])["act"], model.trace(x, ["act"])["act"]
    )
    assert model.profile(wrap(x), runs=1).total > 0


@pytest.mark.parametrize("wrap", [WithArray, WithDLPack])
def test_foreign_arrays_are_not_copied(x, wrap):
    """A user's operator sees the memory of the caller's array."""
    seen = []

    @kuiper.operator("ecosystem.Look", replace=True)
    def look(array):
        seen.append(array)
        return array

    model = kuiper.load(PARAM.replace(b"nn.Hardswish   ", b"ecosystem.Look "))
    model(wrap(x))
    assert np.shares_memory(seen[-1], x)


def test_the_error_names_an_unreadable_array(model):
    class OnDevice:
        def __dlpack__(self, **arguments):
            raise BufferError("the memory is on another device")

        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(
        kuiper.InputError, match=r"input '0': a .*OnDevice .* x\.detach\(\)\.cpu\(\)"
    ):
        model(OnDevice())
    with pytest.raises(kuiper.InputError, match="object"):
        model(object())


def test_tensors_of_torch(model, x):
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(x)
    np.testing.assert_array_equal(model(tensor), model(x))
    with pytest.raises(kuiper.InputError, match=r"detach"):
        model(tensor.requires_grad_())


# -- copies, processes, threads --------------------------------------------------------------------


@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy,
                                     lambda m: pickle.loads(pickle.dumps(m))])  # fmt: skip
def test_copies_give_the_same_bits(model, x, twin_of):
    twin = twin_of(model)
    np.testing.assert_array_equal(twin(x), model(x))
    assert twin.inputs == model.inputs
    assert str(twin.graph) == str(model.graph)


def test_copies_of_an_unoptimized_model(x):
    model = kuiper.Model(kuiper.load_graph(PARAM), optimize=False)
    twin = copy.deepcopy(model)
    assert len(twin.plan(x.shape).steps) == len(model.plan(x.shape).steps) == 2


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_process_pools(model, x, method):
    expected = model(x)
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, context) as pool:
        # The model itself is the function, since a spawned process cannot import this file.
        for result in pool.map(model, [x] * 3, timeout=120):
            np.testing.assert_array_equal(result, expected)


def test_thread_pools(model, x):
    inputs = [x[:, :, : 1 + i % 7] for i in range(64)]
    expected = [model(x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for result, good in zip(pool.map(model, inputs), expected, strict=True):
            np.testing.assert_array_equal(result, good)


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_joblib(model, x, backend):
    joblib = pytest.importorskip("joblib")
    results = joblib.Parallel(2, backend=backend)(joblib.delayed(model)(x) for _ in range(4))
    for result in results:
        np.testing.assert_array_equal(result, model(x))


# -- silence ---------------------------------------------------------------------------------------


def test_the_library_prints_nothing():
    talkers = []
    for path in SOURCE.rglob("*.py"):
        relative = path.relative_to(SOURCE)
        if relative.parts[0] in ("cli", "__main__.py"):
            continue
        talkers += [
            f"{relative}:{node.lineno}"
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "print"
        ]
    assert talkers == []


def test_loading_and_running_print_nothing():
    code = f"import kuiper, numpy\nkuiper.load({PARAM!r})(numpy.ones((1, 3, 4, 4), 'f'))"
    done = run_python("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_logging_is_not_imported_and_not_configured():
    code = f"""if True:
        import sys, kuiper, numpy
        model = kuiper.load({PARAM!r})
        model(numpy.ones((1, 3, 4, 4), "f"))
        assert "logging" not in sys.modules
        import logging
        model(numpy.ones((1, 3, 5, 5), "f"))
        for name in (None, "kuiper", "kuiper.model", "kuiper.pnnx"):
            logger = logging.getLogger(name)
            assert not logger.handlers and logger.level == (0 if name else logging.WARNING)
    """
    done = run_python("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_log_records(caplog):
    with caplog.at_level("DEBUG", "kuiper"):
        model = kuiper.load(PARAM)
        for width in range(1, model.max_plans + 2):
            model(np.ones((1, 3, 4, width), np.float32))
            model(np.ones((1, 3, 4, width), np.float32))  # logs nothing: the plan is cached
    told = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert told[0][:2] == ("kuiper.pnnx", "DEBUG")
    plans = [message for name, level, message in told if (name, level) == ("kuiper.model", "DEBUG")]
    assert len(plans) == model.max_plans + 1
    assert plans[2].startswith("planned for (1, 3, 4, 3), ")
    assert told[-1][:2] == ("kuiper.model", "INFO")
    assert told[-1][2].startswith("the plan for (1, 3, 4, 1) is dropped")


# -- types and builds ------------------------------------------------------------------------------


def test_types():
    if shutil.which("mypy", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("mypy is not installed beside this Python")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-incremental", "--cache-dir", "/dev/null"],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_public_functions_have_types():
    missing = []
    for name in ("load", "load_graph", "save", "from_torch", "operator", "set_num_threads"):
        hints = getattr(kuiper, name).__annotations__
        if "return" not in hints:
            missing.append(name)
    assert missing == []


def test_wheels_are_built_for_every_promised_platform():
    tomllib = pytest.importorskip("tomllib", reason="in the standard library since Python 3.11")
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wheels = config["tool"]["cibuildwheel"]
    assert {f"cp3{minor}-*" for minor in range(10, 15)} | {"cp314t-*"} == set(wheels["build"])
    assert wheels["linux"]["archs"] == ["x86_64", "aarch64"]
    assert wheels["macos"]["archs"] == ["arm64"]
    assert wheels["windows"]["archs"] == ["AMD64"]
    assert wheels["windows"]["environment"]["CC"] == "clang-cl"
    for path in re.findall(r"\{project\}/(\S+)", wheels["test-command"]):
        assert (ROOT / path).exists()


def test_the_citation_has_the_version():
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.search(rf"^version: {re.escape(kuiper.__version__)}$", text, re.MULTILINE)


def test_the_data_package_has_the_version():
    text = (ROOT / "examples" / "models" / "pyproject.toml").read_text("utf-8")
    assert f'version = "{kuiper.__version__}"' in text
