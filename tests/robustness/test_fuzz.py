"""The fuzzing harness: its corpus of former findings, short runs, and the harness itself.

Long runs are started by hand: ``python -m tests.robustness.fuzz --help``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kuiper

from ..support.paths import ROOT
from ..support.process import output_of
from .fuzz import child, models, runner
from .fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "fuzz" / "corpus"

SAVED = sorted(path for path in CORPUS.glob("*/*") if path.is_file())

# The child limits its own memory, is watched through /proc and receives POSIX signals.
posix = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX system")


@pytest.mark.parametrize("path", SAVED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_former_findings(path):
    TARGETS[path.parent.name].check(path.read_bytes())


@posix
@pytest.mark.parametrize(
    ("target", "count"),
    [
        ("param", 1500),
        ("bin", 3000),
        ("expression", 600),
        ("ncnn", 1000),
        ("onnx", 1500),
        ("model", 250),
    ],
)
def test_short_run(target, count):
    outcome = runner.run(target, count, seed=20, patience=60)
    found = "\n".join(f.text for f in outcome.findings.values())
    assert not outcome.findings, found
    assert outcome.tried == count
    assert sum(outcome.tally.values()) == count
    # Inputs that are all refused on reading would leave the rest untested.
    refused = sum(n for word, n in outcome.tally.items() if word.startswith("refused"))
    assert refused < 0.97 * count


@settings(
    max_examples=60,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@pytest.mark.parametrize("name", TARGETS)
@given(random=st.randoms(use_true_random=False))
def test_hypothesis(name, random):
    """The same generators, driven by hypothesis, which shrinks a failing input."""
    target = TARGETS[name]
    target.check(target.make(random))


@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(
    members=st.dictionaries(
        st.text(min_size=1, max_size=12).filter(lambda s: "\0" not in s and _is_utf8(s)),
        st.binary(max_size=40),
        max_size=5,
    ),
    random=st.randoms(use_true_random=False),
)
def test_archives_of_any_members(members, random):
    data = models.archive_bytes(members)
    assert TARGETS["bin"].check(data).startswith("read")
    TARGETS["bin"].check(TARGETS["bin"].mutate(data, random))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_are_determined_by_their_seed(name):
    target = TARGETS[name]
    made = [target.make(Random(f"{name}/1/{n}")) for n in (3, 3, 4)]
    assert made[0] == made[1]
    assert made[0] != made[2]
    assert target.mutate(made[0], Random(5)) == target.mutate(made[0], Random(5))


# -- the harness detects every kind of finding ---------------------------------------------------

RELU = b"""7767517
3 2
pnnx.Input in 0 1 0 #0=(2,3)f32
nn.ReLU act 1 1 0 1
pnnx.Output out 1 0 1
"""


def relu_input() -> bytes:
    head = {"seed": 1, "ranges": [[-2.0, 2.0]]}
    return models.pack(head, RELU, models.archive_bytes({}))


def test_a_correct_model_passes():
    assert models.check(relu_input(), reference=True) == "ran"


def test_a_run_that_reads_stale_memory_is_detected(monkeypatch):
    model = kuiper.load(RELU)
    x = np.ones((2, 3), np.float32)
    first = [model(x)]

    def forgetful(self, *inputs, out=None):
        return None  # writes nothing into `out`

    monkeypatch.setattr(kuiper.Model, "__call__", forgetful)
    with pytest.raises(AssertionError, match="memory full of 0xff"):
        models._check_garbage(model, [x], first)


def test_a_wrong_result_is_detected():
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    plain = kuiper.load(RELU, optimize=False)
    right = [plain(x)]
    wrong = [right[0] + np.float32(0.1)]
    assert not models._close(right, wrong)
    assert not models._is_unsteady(plain, [x], right, wrong)
    assert models._close(right, [right[0] * np.float32(1 + 1e-5)])


def test_an_unexpected_exception_is_a_finding(monkeypatch):
    def broken(*args, **kwargs):
        raise KeyError("x")

    monkeypatch.setattr(kuiper, "load", broken)
    word, error = child.attempt(models.check, relu_input(), {})
    assert word == "finding"
    assert child.signature(error).startswith("KeyError")


def test_findings_are_shrunk():
    lines = b"7767517\n1 0\n" + b"".join(b"a b%d 0 0\n" % n for n in range(50)) + b"bad line\n"

    def still(data: bytes) -> bool:
        return b"bad" in data

    small = child.minimise(lines, still, TARGETS["param"].split, float("inf"))
    assert small == b"bad"
    model = models.pack({"seed": 1, "ranges": []}, RELU, models.archive_bytes({"act.w": b"1"}))
    small = child.minimise(
        model, lambda data: b"nn.ReLU" in data, TARGETS["model"].split, float("inf")
    )
    _, param, _ = models.unpack(small)
    assert [line.type for line in models.read_lines(param)] == ["nn.ReLU"]


@posix
def test_a_crash_and_a_hang_are_caught(monkeypatch, tmp_path):
    """The third input kills the child, the fifth never ends and the seventh sleeps."""
    assert harness_finds(
        monkeypatch, tmp_path, 8,
        "if number == 2: os.kill(os.getpid(), signal.SIGKILL)",
        "while number == 4: pass",
        "if number == 6: time.sleep(1000)",
    ) == {"killed by signal 9": [2], "hang": [4, 6]}  # fmt: skip


@posix
def test_a_stopped_child_does_not_count_as_hanging(monkeypatch, tmp_path):
    """The child is stopped for longer than it may compute or sleep."""
    wake = "import os, signal, time; time.sleep(3); os.kill({}, signal.SIGCONT)"
    assert harness_finds(
        monkeypatch, tmp_path, 3,
        f"wake = {wake!r}.format(os.getpid())",
        "if number == 1: subprocess.Popen([sys.executable, '-c', wake])",
        "if number == 1: os.kill(os.getpid(), signal.SIGSTOP)",
    ) == {}  # fmt: skip


def harness_finds(monkeypatch, tmp_path, count: int, *lines: str) -> dict[str, list[int]]:
    """Run a child whose check contains these lines; return the numbers of inputs by finding."""
    program = tmp_path / "child.py"
    program.write_text(
        "import json, mmap, os, signal, subprocess, sys, time\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.robustness.fuzz import child, param\n"
        "from tests.robustness.fuzz.targets import TARGETS\n"
        "tried = []\n"
        "order = json.loads(sys.argv[1])\n"
        "def check(data):\n"
        "    number = order.get('start', 0) + len(tried)\n"
        "    tried.append(data)\n"
        + "".join(f"    {line}\n" for line in lines)
        + "    return 'refused'\n"
        "TARGETS['param'] = TARGETS['param']._replace(check=check)\n"
        "sys.exit(child.main(sys.argv[1:]))\n"
    )
    found: dict[str, list[int]] = {}
    add = runner._add

    def note(outcome, target, seed, number, name, text) -> None:
        found.setdefault(name, []).append(number)
        add(outcome, target, seed, number, name, text)

    monkeypatch.setattr(runner, "_add", note)
    monkeypatch.setattr(runner, "ASLEEP", 1)
    monkeypatch.setattr(runner, "CHILD", program)
    monkeypatch.setattr(runner, "_shrunk", lambda order, name, finding, patience: finding.data)
    outcome = runner.run("param", count, seed=1, patience=2)
    assert outcome.tried == count
    return found


@posix
def test_the_memory_of_the_child_is_limited(tmp_path):
    code = (
        "from tests.robustness.fuzz import child\n"
        "child.limit_memory()\n"
        "try:\n"
        "    bytearray(child.EXTRA_BYTES + (64 << 20))\n"
        "except MemoryError:\n"
        "    print('refused')\n"
    )
    assert output_of(code) == "refused\n"
