"""Python programs in new processes, with the kuiper under test."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import kuiper

from .paths import ROOT

__all__ = ["PACKAGES", "output_of", "python_environment", "run_python"]

PACKAGES = Path(kuiper.__file__).resolve().parent.parent


def python_environment(**environ: str) -> dict[str, str]:
    """Return an environment whose Python imports the kuiper under test, and ``tests``."""
    path = [str(PACKAGES), str(ROOT), os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), **environ}


def run_python(
    *arguments: str, timeout: float | None = 60, cwd: Path = PACKAGES, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with command-line arguments in a new process."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=python_environment(**environ),
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


def output_of(code: str, *arguments: str, timeout: float = 60, **environ: str) -> str:
    """Run code in a new process with warnings as errors, and return its standard output.

    numpy's library starts no threads, so that the code can count those of kuiper.
    """
    environ = {"OPENBLAS_NUM_THREADS": "1", **environ}
    command = ("-W", "error", "-c", textwrap.dedent(code), *arguments)
    done = run_python(*command, timeout=timeout, **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout
