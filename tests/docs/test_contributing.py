"""CONTRIBUTING.md: its worked example is written to files and followed, word for word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kuiper

from ..support.paths import ROOT

PAGE = ROOT / "CONTRIBUTING.md"
PACKAGES = Path(kuiper.__file__).resolve().parent.parent

if not PAGE.exists():
    pytest.skip("CONTRIBUTING.md is not here", allow_module_level=True)


def blocks() -> dict[str, str]:
    """Return the files of the worked example: name -> text."""
    pattern = r"<!-- file: (\S+) -->\n```python\n(.*?)```"
    return dict(re.findall(pattern, PAGE.read_text("utf-8"), re.DOTALL))


# What docs/make_operators.py does to the index of types, for a file outside of the package.
ADD_FAMILY = """\
import kuiper.ops
from kuiper.ops.core import record as registry
kuiper.ops.__path__.append({folder!r})
registry._module_of["nets.ScaledHypot"] = "hypotenuse"
"""


def run(folder: Path, script: str) -> subprocess.CompletedProcess:
    """Run one of the example's files where the record is part of the package."""
    (folder / "start.py").write_text(
        ADD_FAMILY.format(folder=str(folder / "kuiper" / "ops"))
        + f"import runpy\nrunpy.run_path({str(folder / script)!r})\n"
    )
    path = os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, str(folder / "start.py")], cwd=folder, timeout=60,
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a folder with the files of the example."""
    for name, text in blocks().items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def test_the_example_is_complete():
    assert set(blocks()) == {
        "kuiper/ops/hypotenuse.py", "tests/reference/hypotenuse.py", "try_it.py",
        "get_it_wrong.py",
    }  # fmt: skip


def test_the_operator_is_not_there_yet():
    assert "nets.ScaledHypot" not in kuiper.supported_operators()


def test_the_record_works(folder):
    done = run(folder, "try_it.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "it works\n", "")


def test_a_mistake_is_explained(folder):
    done = run(folder, "get_it_wrong.py")
    assert done.returncode != 0
    message = done.stderr.splitlines()[-1]
    assert message.startswith("kuiper.errors.OperatorError: ")
    for text in ("<param>:4", "operator 'h' (nets.ScaledHypot)", "scale", "much"):
        assert text in message


def test_the_reference_agrees(folder):
    """The reference is a function of its own: record and reference give the same numbers."""
    text = blocks()["tests/reference/hypotenuse.py"].replace(
        "from .registry import reference", "def reference(name): return lambda f: f"
    )
    names: dict = {}
    exec(compile(text, "reference", "exec"), names)
    got = names["scaled_hypot"](np.float32([3, 0]), np.float32([4, 2]), scale=0.5)
    np.testing.assert_array_equal(got, np.float32([2.5, 1]))


def test_links_of_the_page_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text("utf-8")):
        assert (ROOT / target).exists(), target
