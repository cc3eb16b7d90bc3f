"""Small models in files, whose operators also do harm to the process at a chosen row."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from ...support.process import python_environment

__all__ = ["ADD", "HARM", "cli", "doubled", "plugin", "rows_of", "write_model"]

ADD = """7767517
3 2
pnnx.Input x 0 1 x #x=(1,3)f32
pnnx.Expression e 1 1 x y expr=add(mul(@0,2),1) #x=(1,3)f32 #y=(1,3)f32
pnnx.Output out 1 0 y #y=(1,3)f32
"""

# Passes its input on.  Where the first number of a row is that of the environment variable, it does
# once, or always, what the other says.
HARM = """
import os, signal, time
from pathlib import Path
import numpy as np
import kuiper

@kuiper.operator("test.Harm", replace=True)
def harm(x):
    marker = Path(os.environ["HARM_MARKER"])
    what, row = os.environ["HARM"].split()
    if what.endswith("-slowly"):
        time.sleep(0.3)
    if float(row) in x[:, 0] and (what.endswith("-always") or not marker.exists()):
        marker.touch()
        if what.startswith("kill-worker"):
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "kill-driver":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(1)
        if what == "interrupt":
            os.killpg(os.getpgid(0), signal.SIGINT)
            time.sleep(100)
        if what == "terminate":
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(100)
        if what.startswith("fail"):
            raise RuntimeError("planned")
    return x
"""


def write_model(folder: Path, text: str = ADD, name: str = "add") -> Path:
    """Write a model without weights; return its path."""
    path = folder / f"{name}.pnnx.param"
    path.write_text(text)
    return path


def plugin(folder: Path) -> tuple[Path, Path]:
    """Write a model with the operator that does harm; return it and the file of the operator."""
    text = (
        ADD.replace("3 2\n", "4 3\n")
        .replace("pnnx.Output out 1 0 y", "test.Harm h 1 1 y z #z=(1,3)f32\npnnx.Output out 1 0 z")
        .replace("pnnx.Expression e 1 1 x y expr=add(mul(@0,2),1)", "nn.Identity e 1 1 x y")
    )
    code = folder / "harm.py"
    code.write_text(HARM)
    return write_model(folder, text, "harm"), code


def rows_of(count: int) -> np.ndarray:
    """Return rows of three numbers; the first is that of the row."""
    return np.arange(count, dtype=np.float32)[:, None] + np.float32([0, 0.25, 0.5])


def doubled(x: np.ndarray) -> np.ndarray:
    """Return what the model computes."""
    return x * 2 + 1


def cli(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process, and in a process group, of its own."""
    environ = {**python_environment(), **{k: str(v) for k, v in options.pop("env", {}).items()}}
    return subprocess.run(
        [sys.executable, "-m", "kuiper", *map(str, arguments)],
        env=environ, capture_output=True, text=True, timeout=120, check=False,
        start_new_session=os.name == "posix", **options,
    )  # fmt: skip
