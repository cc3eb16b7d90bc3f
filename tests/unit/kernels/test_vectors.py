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
# The tiles of products of bytes; KUIPER_EVEX is how a processor with AVX-512 runs AVX-VNNI's.
VNNI = ["-mavx2", "-mfma", "-mavxvnni"]
TILES = {
    "baseline": ([], "lanes 4, rows 4, native 0"),
    "avx2": (["-mavx2", "-mfma"], "lanes 8, rows 4, native 0"),
    "avx_vnni": (VNNI, "lanes 8, rows 6, native 1"),
    "avx_vnni, as AVX-512": ([*VNNI, "-DKUIPER_EVEX"], "lanes 8, rows 6, native 1"),
    "avx512": (VARIANTS["avx512"][0], "lanes 16, rows 12, native 0"),
    "avx512_vnni": ([*VARIANTS["avx512"][0], "-mavx512vnni"], "lanes 16, rows 14, native 1"),
    "neon": (["-DKUIPER_NEON"], "lanes 4, rows 4, native 0"),
    "neon_dot": (["-DKUIPER_NEON", "-march=armv8.2-a+dotprod"], "lanes 4, rows 8, native 1"),
    "plain": (["-DKUIPER_NO_VECTORS"], "lanes 1, rows 4, native 0"),
}
TILES_HERE = [
    *HERE_POSSIBLE, *(e for name in dispatch.available() for e in dispatch.extensions_of(name)),
    *(["avx_vnni, as AVX-512"] if "avx512_vnni" in dispatch.extensions_of("avx512") else []),
]  # fmt: skip
TILES_HERE = [name for name in TILES_HERE if name in TILES]
# Products in tile registers; emulated on processors that have all else of the variant.
AMX = [
    *VARIANTS["avx512"][0], "-mavx512dq", "-mavx2", "-mfma",
    *(f"-mavx512{name}" for name in ("vnni", "bf16")),
    *(f"-mamx-{name}" for name in ("tile", "int8", "bf16")),
    *(f"-DKUIPER_HAS_{name}" for name in ("AVX512", "AVX512_VNNI", "AVX512_BF16", "AMX")),
]  # fmt: skip
NO_TILE_REGISTERS = 2  # status of amx.c
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")


def run(
    compiler: list[str], runner: list[str], flags: list[str], source: str, folder: Path
) -> subprocess.CompletedProcess[str]:
    """Compile and run a program of checks."""
    # Of Python's header the programs need one type.
    (folder / "Python.h").write_text("#include <stddef.h>\ntypedef ptrdiff_t Py_ssize_t;\n")
    program = compile_c([*compiler, *FLAGS, *flags, f"-I{folder}"], source, folder)
    return subprocess.run([*runner, str(program)], capture_output=True, text=True, check=False)


def check(
    compiler: list[str], runner: list[str], variant: tuple[list[str], str], source: str,
    folder: Path,
) -> None:  # fmt: skip
    """Run a program of checks, which states the variant and finds no fault."""
    flags, last_line = variant
    done = run(compiler, runner, flags, source, folder)
    assert done.stdout.splitlines() == [last_line]
    assert done.returncode == 0


@pytest.mark.skipif(not SOURCE.is_dir(), reason="needs the sources beside the tests")
@pytest.mark.parametrize("variant", HERE_POSSIBLE)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("source", SOURCES)
def test_vectors(source, compiler, variant, tmp_path):
    check([compiler_of(compiler)], [], VARIANTS[variant], source, tmp_path)


@pytest.mark.skipif(not SOURCE.is_dir(), reason="needs the sources beside the tests")
@pytest.mark.parametrize("variant", TILES_HERE)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_products_of_bytes(compiler, variant, tmp_path):
    check([compiler_of(compiler)], [], TILES[variant], "dot.c", tmp_path)


@pytest.mark.skipif(not SOURCE.is_dir(), reason="needs the sources beside the tests")
@pytest.mark.skipif("avx512" not in dispatch.available(), reason="needs AVX-512")
@pytest.mark.parametrize("emulated", [False, True], ids=["native", "emulated"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_products_in_tile_registers(compiler, emulated, tmp_path):
    flags = [*AMX, *(["-DKUIPER_EMULATE_AMX"] if emulated else [])]
    done = run([compiler_of(compiler)], [], flags, "amx.c", tmp_path)
    if done.returncode == NO_TILE_REGISTERS:
        pytest.skip("no tile registers" if not emulated else "no AVX512_BF16 or AVX512_VNNI")
    assert done.stdout.splitlines() == ["rows 32, columns 32"]
    assert done.returncode == 0


@pytest.mark.skipif(not SOURCE.is_dir(), reason="needs the sources beside the tests")
@pytest.mark.skipif(EMULATOR is None, reason="needs qemu-user")
@pytest.mark.parametrize("variant", ["baseline", "neon", "plain"])
@pytest.mark.parametrize("source", SOURCES)
def test_vectors_of_arm(source, variant, tmp_path):
    check([cross_compiler(), "-static"], [EMULATOR], VARIANTS[variant], source, tmp_path)


@pytest.mark.skipif(not SOURCE.is_dir(), reason="needs the sources beside the tests")
@pytest.mark.skipif(EMULATOR is None, reason="needs qemu-user")
@pytest.mark.parametrize("variant", ["baseline", "neon", "neon_dot"])
def test_products_of_bytes_of_arm(variant, tmp_path):
    check([cross_compiler(), "-static"], [EMULATOR], TILES[variant], "dot.c", tmp_path)


def cross_compiler() -> str:
    found = shutil.which("aarch64-linux-gnu-gcc")
    if found is None:
        pytest.skip("needs gcc-aarch64-linux-gnu")
    return found
