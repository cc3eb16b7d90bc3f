"""The thread pool in C: a worker that misses a call cannot be provoked through Python."""

from __future__ import annotations

import subprocess

import pytest

from kuiper._runtime import thread_pool

from ...support.c_programs import compile_c, compiler_of
from ...support.paths import ROOT

SOURCE = ROOT / "kuiper"


@pytest.mark.skipif(not SOURCE.is_dir(), reason="needs the sources beside the tests")
@pytest.mark.skipif(not thread_pool.has_threads, reason="built without threads")
@pytest.mark.parametrize("may_spin", ["1", "0"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_call_does_not_wait_for_workers_that_miss_it(compiler, may_spin, tmp_path):
    """Idle workers spin for a while, or sleep at once."""
    flags = ("-O2", "-Wall", "-Werror", "-pthread")
    program = compile_c([compiler_of(compiler), *flags], "thread_pool.c", tmp_path)
    command = [program, may_spin]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "all is well\n"
    assert done.returncode == 0
