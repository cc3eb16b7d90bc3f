"""The pool of threads, from inside: what becomes of a worker that does not come cannot be timed."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from kuiper._runtime import thread_pool

from ...support.paths import ROOT

SOURCE = ROOT / "kuiper"


@pytest.mark.skipif(not SOURCE.is_dir(), reason="needs the sources beside the tests")
@pytest.mark.skipif(not thread_pool.has_threads, reason="built without threads")
@pytest.mark.parametrize("patience", ["patient", "at once"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_helpers_come_or_are_not_waited_for(compiler, patience, tmp_path):
    """Whether they look out for a job, or sleep at once."""
    found = shutil.which(compiler) or shutil.which(f"{compiler}-16")
    if found is None:
        pytest.skip(f"{compiler} is not installed")
    program = tmp_path / "team"
    source = ROOT / "tests" / "support" / "team.c"
    subprocess.run(
        [found, "-O2", "-Wall", "-Werror", "-pthread", f"-I{SOURCE}", str(source), "-o", program],
        check=True,
    )
    command = [program, patience]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "all is well\n"
    assert done.returncode == 0
