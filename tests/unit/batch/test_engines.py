"""The engines: stages in Ray Data, Spark and Dask, and run-dataset on a cluster that loses parts.

Ray and Spark run in a network namespace with the loopback alone, which needs root (`unshare -n`).
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ...support.paths import ROOT
from ...support.process import python_environment
from ...support.shipped import MODELS

EXAMPLES = MODELS.parent


def is_installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(package) for package in packages)


def may_unshare() -> bool:
    """Tell whether a process may have a network of its own."""
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False)
    return done.returncode == 0


alone = pytest.mark.skipif(not may_unshare(), reason="listens everywhere: needs `unshare -n`")
needs_ray = pytest.mark.skipif(not is_installed("ray", "pandas", "pyarrow"), reason="needs Ray")
needs_spark = pytest.mark.skipif(
    not is_installed("pyspark", "pandas", "pyarrow") or shutil.which("java") is None,
    reason="needs pyspark, pandas, pyarrow and Java",
)
needs_dask = pytest.mark.skipif(
    not is_installed("dask", "pandas", "pyarrow"), reason="needs dask, pandas and pyarrow"
)
needs_photos = pytest.mark.skipif(
    not (MODELS / "mobilenet_v2.f16.pnnx.bin").exists() or not is_installed("cv2"),
    reason="needs OpenCV and the weights, which are in the repository, not in the sdist",
)


def run(*arguments: object, **environ: str) -> str:
    """Run a program of `programs.py` in a network namespace; return its standard output."""
    command = ["unshare", "-n", sys.executable, "-m", "tests.unit.batch.programs"]
    environ = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        # A worker may die four times before the run does, instead of once.
        "PYSPARK_SUBMIT_ARGS": "--master local[2,4] --conf spark.ui.enabled=false pyspark-shell",
        "PYSPARK_PYTHON": sys.executable,
        **environ,
    }
    done = subprocess.run(
        [*command, *map(str, arguments)], cwd=ROOT, env=python_environment(**environ),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def told_by(program: str, folder: Path) -> dict:
    """Return what a program tells in its last line."""
    return json.loads(run(program, folder).splitlines()[-1])


@alone
@needs_ray
def test_stages_in_ray_data(tmp_path):
    told = told_by("data", tmp_path)
    for name in ("numpy", "pyarrow", "pandas"):
        assert told[f"{name} function"] == told[f"{name} class"] == [200, True], name
    assert told["networks per worker"] == 1
    assert told["threads"] == [2]
    assert told["parquet"]


@alone
@needs_ray
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


@alone
@needs_spark
def test_spark_loses_a_worker(tmp_path):
    assert told_by("spark-worker", tmp_path) == {"rows": 200, "killed": True, "equal": True}


# -- the examples ------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path):
    """Return a folder with two Parquet files of photos, and the classes of these by id."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from kuiper.batch import Classify

    names = [path.name for path in sorted((EXAMPLES / "photos").iterdir())] * 5
    data = [(EXAMPLES / "photos" / name).read_bytes() for name in names]
    data[7] = b"no picture"
    table = pa.table({"id": range(len(data)), "image": data})
    (tmp_path / "in").mkdir()
    for number in range(2):
        part = table.slice(10 * number, 10)
        pq.write_table(part, tmp_path / "in" / f"{number}.parquet", row_group_size=3)
    return tmp_path / "in", Classify()(table).to_pylist()


def check(out: Path, expected: list[dict]) -> None:
    """Compare the rows of a Parquet data set bit by bit."""
    import pyarrow.parquet as pq

    table = pq.read_table(out, columns=list(expected[0]))
    rows = sorted(table.to_pylist(), key=lambda row: row["id"])
    for row in [*rows, *expected]:
        row.pop("error" if row["error"] is None else "probability")
        if "error" in row:  # pandas has other values for missing ones
            assert row.pop("index") in (None, -1)
            assert row["label"] is None
        else:
            row["probability"] = np.float32(row["probability"])
    assert rows == expected


@alone
@needs_ray
@needs_photos
def test_the_example_for_ray(tmp_path, photos):
    source, expected = photos
    run("with-cluster", EXAMPLES / "with_ray.py", source, tmp_path / "out")
    check(tmp_path / "out", expected)


@alone
@needs_spark
@needs_photos
def test_the_example_for_spark(tmp_path, photos):
    source, expected = photos
    run("python", EXAMPLES / "with_spark.py", source, tmp_path / "out")
    check(tmp_path / "out", expected)


@needs_dask
@needs_photos
def test_the_example_for_dask(tmp_path, photos):
    source, expected = photos
    done = subprocess.run(
        [sys.executable, EXAMPLES / "with_dask.py", source, tmp_path / "out"],
        env=python_environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check(tmp_path / "out", expected)
