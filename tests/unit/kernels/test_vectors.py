"""The vector types under every compiler and for every available machine, against plain C."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kuiper._kernels.micro import dispatch

from ...support.c_programs import compile_c, compiler_of
from ...support.paths import ROOT

SOURCE = ROOT / "kuiper"
# setup.py's flags, which may break code that relies on IEEE exceptions.
FLAGS = ["-O2", "-fno-math-errno", "-fno-trapping-math"]
VARIANTS = {
    "baseline": ([], "lanes 4, registers 16"),
    "avx2": (["-mavx2", "-mfma"], "lanes 8, registers 16"),
    "avx512": (["-mavx512f", "-mavx512vl", "-mavx512bw"], "lanes 16, registers 32"),
    "neon": (["-DKUIPER_NEON"], "lanes 4, registers 32"),
    "plain": (["-DKUIPER_NO_VECTORS"], "lanes 1, registers 16"),
}
HERE_POSSIBLE = [*dispatch.available(), "plain"]
SOURCES = ["vectors.c", "bfloat16.c"]
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")


def check(compiler: list[str], runner: list[str], variant: str, source: str, folder: Path) -> None:
    """Compile and run a program of checks."""
    flags, last_line = VARIANTS[variant]
    program = compile_c([*compiler, *FLAGS, *flags], source, folder)
    done = subprocess.run([*runner, str(program)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [last_line]
    assert done.returncode == 0


@pytest.mark.skipif(not SOURCE.is_dir(), reason="needs the sources beside the tests")
@pytest.mark.parametrize("variant", HERE_POSSIBLE)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("source", SOURCES)
def test_vectors(source, compiler, variant, tmp_path):
    check([compiler_of(compiler)], [], variant, source, tmp_path)


@pytest.mark.skipif(not SOURCE.is_dir(), reason="needs the sources beside the tests")
@pytest.mark.skipif(EMULATOR is None, reason="needs qemu-user")
@pytest.mark.parametrize("variant", ["baseline", "neon", "plain"])
@pytest.mark.parametrize("source", SOURCES)
def test_vectors_of_arm(source, variant, tmp_path):
    compiler = shutil.which("aarch64-linux-gnu-gcc")
    if compiler is None:
        pytest.skip("needs gcc-aarch64-linux-gnu")
    check([compiler, "-static"], [EMULATOR], variant, source, tmp_path)
