"""A run of the stress program for seconds, and imports from several threads at once."""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import kuiper.ops
from kuiper.ops import record_or_none
from kuiper.ops.core import record as registry

from ..support.process import run_python
from ..support.textgraph import user_operator, values
from . import stress


def test_short_stress(capsys):
    assert stress.main(["--seconds", "1", "--turns", "8", "--stored", "96"]) == 0
    assert "all the same bits" in capsys.readouterr().out


def job_of(function_type: str, tmp_path: Path) -> stress.Job:
    text = f"""pnnx.Input in 0 1 x
        {function_type} op 1 1 x y
        pnnx.Output out 1 0 y"""
    inputs = [(values(5, seed=k),) for k in range(9)]
    param, bin = stress.files_of(text)
    path = tmp_path / "job.pnnx.param"
    path.write_bytes(param)
    path.with_suffix(".bin").write_bytes(bin)
    return stress.Job(function_type, param, bin, inputs, path, [(-x,) for (x,) in inputs])


def test_swapped_results_are_detected(tmp_path):
    shared = np.zeros(5, np.float32)

    def negative(x):
        np.negative(x, out=shared)
        time.sleep(0.002)
        return shared

    with user_operator("user.negative", negative):
        one = stress.Round([job_of("user.negative", tmp_path)], 8, 6, seed=1)
        one.run()
    assert "differs from that of one thread alone" in one.faults[0]


def test_exceptions_in_threads_are_detected(tmp_path):
    def negative(x):
        return -x if threading.current_thread() is threading.main_thread() else 1 / 0

    with user_operator("user.negative", negative):
        one = stress.Round([job_of("user.negative", tmp_path)], 4, 6, seed=1)
        one.run()
    assert "ZeroDivisionError" in one.faults[0]


SLOW_FAMILY = """
import gate_of_this_test
from kuiper.ops.core.record import Record, record

@record("test.slow")
class Slow(Record):
    pass

gate_of_this_test.there.set()
gate_of_this_test.open.wait(60)
finished = True
"""


def test_a_record_is_found_once_its_module_is_complete(tmp_path, monkeypatch):
    """Registering a class must not expose it before the functions below it are defined."""
    gate = SimpleNamespace(there=threading.Event(), open=threading.Event())
    monkeypatch.setitem(sys.modules, "gate_of_this_test", gate)
    monkeypatch.setattr(kuiper.ops, "__path__", [*kuiper.ops.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "_module_of", {"test.slow": "slowly"})
    monkeypatch.setattr(registry, "_registry", {})
    monkeypatch.setattr(registry, "_found", {})
    (tmp_path / "slowly.py").write_text(SLOW_FAMILY)
    seen = []

    def find():
        rule = record_or_none("test.slow")
        seen.append(getattr(sys.modules[rule.__module__], "finished", False))

    finders = [threading.Thread(target=find) for _ in range(3)]
    try:
        finders[0].start()
        assert gate.there.wait(30)
        for finder in finders[1:]:
            finder.start()
        finders[1].join(0.2)
        assert seen == []
        gate.open.set()
        for finder in finders:
            finder.join(30)
        assert seen == [True, True, True]
    finally:
        gate.open.set()
        sys.modules.pop("kuiper.ops.slowly", None)


COLD = """
import sys, threading
sys.setswitchinterval(1e-6)
from tests.support import load_cases
cases = load_cases("operators")[{seed}::37][:16]
files = [(case.param, case.bin, case.inputs) for case in cases]
import kuiper
start = threading.Barrier(len(files))
faults = []
results = [None] * len(files)

def work(rank):
    param, bin, inputs = files[rank]
    start.wait()
    try:
        results[rank] = kuiper.load(param, bin)(*inputs)
    except Exception:
        import traceback
        faults.append(f"{{cases[rank].id}}: {{traceback.format_exc()}}")

threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(files))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for rank, (param, bin, inputs) in enumerate(files):
    if not faults:
        again, first = kuiper.load(param, bin)(*inputs), results[rank]
        pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (first, again)), strict=True)
        if any(a.tobytes() != b.tobytes() for a, b in pairs):
            faults.append(cases[rank].id)
print(len(files), *faults)
"""


@pytest.mark.parametrize("seed", [0, 18])
def test_sixteen_threads_load_the_first_models_of_a_process(seed):
    """Several threads at once import modules that are imported on first use."""
    done = run_python("-c", COLD.format(seed=seed), timeout=300)
    assert done.stderr == ""
    assert done.stdout == "16\n"


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="needs a free-threaded Python"
)
def test_a_free_threaded_python_stays_without_the_gil():
    """An extension module that does not declare its support would enable the GIL."""
    source = "import sys, kuiper, kuiper.expression, kuiper.report; print(sys._is_gil_enabled())"
    done = run_python("-W", "error", "-c", source, timeout=300)
    assert (done.stdout, done.stderr) == ("False\n", "")
