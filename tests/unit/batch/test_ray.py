"""Ray: stages in Ray Data, and run-dataset on a cluster that loses a worker, a machine, the driver.

The programs run in a network namespace with the loopback alone, which needs root (`unshare -n`).
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ...support.process import python_environment

if importlib.util.find_spec("ray") is None:
    pytest.skip("needs Ray: pip install 'kuiper-runtime[ray]'", allow_module_level=True)

if (
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode
):
    pytest.skip("Ray listens on every interface: needs `unshare -n`", allow_module_level=True)


def told_by(program: str, folder: Path) -> dict:
    """Run a program that starts Ray; return what it tells."""
    command = ["unshare", "-n", sys.executable, "-m", "tests.unit.batch.ray_programs"]
    done = subprocess.run(
        [*command, program, folder], env=python_environment(), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_stages_in_ray_data(tmp_path):
    told = told_by("data", tmp_path)
    for name in ("numpy", "pyarrow", "pandas"):
        assert told[f"{name} function"] == told[f"{name} class"] == [200, True], name
    assert told["networks per worker"] == 1
    assert told["threads"] == [2]
    assert told["parquet"]


def test_a_cluster_loses_a_worker_a_machine_and_the_driver(tmp_path):
    told = told_by("cluster", tmp_path)
    assert (told["machines"], told["left"]) == (3, 2)
    assert 10 <= told["written when it was lost"] < 60
    assert told["worker killed"]
    assert (told["rows"], told["failed"]) == (600, [])
    assert told["exactly once"]
    assert 5 <= told["written by the first"] < 60
    code, words, stderr = told["second"]
    assert code == 0, stderr
    assert words == [
        f" {10 * told['written by the first']} were there already: {tmp_path / 'two'}\n"
    ]
    assert told["exactly once after the driver"]
    code, stderr = told["without a cluster"]
    assert code == 3
    assert "no Ray cluster answers at 127.0.0.1:" in stderr
    assert "ray start --head" in stderr
