"""Compiling the C programs of this folder, which test kuiper's headers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from .paths import ROOT

__all__ = ["compile_c", "compiler_of"]


def compiler_of(name: str) -> str:
    """Return the path of a C compiler; skip the test if it is not installed."""
    found = shutil.which(name) or shutil.which(f"{name}-16")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def compile_c(compiler: Sequence[str], source: str, folder: Path) -> Path:
    """Compile a C file of this folder against kuiper's headers; return the program."""
    program = folder / Path(source).stem
    path = ROOT / "tests" / "support" / source
    command = [*compiler, f"-I{ROOT / 'kuiper'}", str(path), "-lm", "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return program
