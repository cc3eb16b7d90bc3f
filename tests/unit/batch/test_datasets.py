"""Data sets in files through stages into shards: formats, errors, and runs that are resumed."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kuiper
from kuiper.batch import Classify, Predictor, Segment, run_dataset
from kuiper.batch import sources as reading
from kuiper.batch.plan import Output
from kuiper.batch.sources import find_source
from kuiper.cli import main

from ...support.shipped import MODELS
from .support import ADD, cli, doubled, plugin, rows_of, write_model

PHOTOS = MODELS.parent / "photos"
needs_weights = pytest.mark.skipif(
    not (MODELS / "mobilenet_v2.f16.pnnx.bin").exists(),
    reason="the weights of the example models are in the repository, not in the sdist",
)
needs_signals = pytest.mark.skipif(os.name != "posix", reason="sends signals to processes")


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path)


def parts(out: Path) -> list[Path]:
    """Return the shards in order, and check that nothing is left beside them."""
    assert not (out / "_kuiper" / "tmp").exists()
    return sorted(out.glob("part-*"))


def lines(out: Path) -> list[dict]:
    """Return the rows of results in lines of JSON."""
    return [json.loads(line) for part in parts(out) for line in part.read_text().splitlines()]


def arrays(out: Path) -> dict[str, np.ndarray]:
    """Return the columns of results in `.npz` files."""
    found = [dict(np.load(part)) for part in parts(out)]
    return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


def check_all(out: Path, x: np.ndarray) -> None:
    """Check that every row is there once, in order, with the right bits."""
    got = arrays(out)
    np.testing.assert_array_equal(got["row"], np.arange(len(x)))
    np.testing.assert_array_equal(got["y"], doubled(x))
    assert (out / "_SUCCESS").exists()


# -- formats -----------------------------------------------------------------------------------


def test_an_array_in_npz_out(tmp_path, model):
    x = rows_of(1000)
    np.save(tmp_path / "x.npy", x)
    out, seen = tmp_path / "out", []
    summary = run_dataset(
        tmp_path / "x.npy", out, Predictor(model), workers=2, shard=300, format="npz",
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert (summary.rows, summary.earlier, summary.errors, summary.failed) == (1000, 0, 0, [])
    assert str(summary).startswith("1000 rows in ")
    assert len(parts(out)) == 3
    assert seen[0] == (0, 1000)
    assert seen[-1] == (1000, 1000)
    assert len(seen) == 4
    check_all(out, x)
    assert set(arrays(out)["file"]) == {"x.npy"}
    again = run_dataset(tmp_path / "x.npy", out, Predictor(model))  # in the format that it has
    assert (again.rows, again.earlier) == (0, 1000)
    assert str(again).endswith("; 1000 were there already")


def test_a_folder_of_npz_files(tmp_path, model):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        x = rows_of(40) + 100 * number
        np.savez(folder / f"{number}.npz", vector=x, id=np.arange(40) + 40 * number)
    stage = Predictor(model, "vector")
    run_dataset(folder, tmp_path / "out", stage, workers=0, shard=15, format="csv")
    rows = []
    for part in parts(tmp_path / "out"):
        with part.open(newline="") as file:
            rows += csv.DictReader(file)
    assert list(rows[0]) == ["file", "row", "id", "y.0", "y.1", "y.2"]
    assert [int(row["id"]) for row in rows] == list(range(120))
    assert [int(row["row"]) for row in rows] == [*range(40)] * 3
    got = np.float32([[row[f"y.{n}"] for n in range(3)] for row in rows])
    np.testing.assert_array_equal(got[40:80], doubled(rows_of(40) + 100))


def test_csv_in_lines_of_json_out(tmp_path, model):
    path = tmp_path / "x.csv"
    x = rows_of(100)
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "a", "b", "c"])
        for number, row in enumerate(x):
            writer.writerow([f'Ä "{number}",\nend', *row])
            if number % 10 == 0:
                file.write("\n")
    stage = Predictor(model, {"x": ("a", "b", "c")})
    run_dataset(path, tmp_path / "out", stage, workers=0, shard=7, format="jsonl")
    rows = lines(tmp_path / "out")
    assert len(parts(tmp_path / "out")) == 15
    assert [row["name"] for row in rows] == [f'Ä "{n}",\nend' for n in range(100)]
    assert rows[3]["a"] == "3.0"
    np.testing.assert_array_equal(np.float32([row["y"] for row in rows]), doubled(x))


def write_parquet(path: Path, first: int, count: int, group: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    x = rows_of(first + count)[first:]
    when = pa.array(range(first, first + count), pa.timestamp("ms"))
    table = pa.table({"id": range(first, first + count), "when": when, "x": x.tolist()})
    pq.write_table(table, path, row_group_size=group)


@pytest.mark.parametrize("group", [7, 50, 1000])
def test_parquet_in_parquet_out(tmp_path, model, group):
    pq = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    write_parquet(folder / "a.parquet", 0, 130, group)
    write_parquet(folder / "sub" / "b.parquet", 130, 45, group)
    (folder / "_metadata.parquet").write_bytes(b"readers skip it")
    run_dataset(folder, tmp_path / "out", Predictor(model), workers=0, shard=20)
    table = pq.read_table(tmp_path / "out")
    assert table.schema.names == ["id", "when", "y"]
    assert str(table.schema.field("when").type) == "timestamp[ms]"
    order = np.argsort(table["id"].to_numpy())
    np.testing.assert_array_equal(table["id"].to_numpy()[order], np.arange(175))
    y = np.float32(table["y"].to_pylist())[order]
    np.testing.assert_array_equal(y, doubled(rows_of(175)))
    for number, part in enumerate(parts(tmp_path / "out")):
        rows = pq.read_table(part)["id"].to_pylist()
        assert rows == list(range(rows[0], rows[0] + len(rows))), number
        assert len(rows) <= 30


def test_a_large_row_group_is_read_by_few_tasks(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    write_parquet(tmp_path / "x.parquet", 0, 1000, 1000)
    source = find_source(tmp_path / "x.parquet", ("x",), None)
    monkeypatch.setattr(reading, "ROWS_READ", 64)
    for shard in (1000, 300, 1):
        tasks = list(source.tasks(source.files(), shard))
        assert len(tasks) == {1000: 1, 300: 3, 1: reading.MAX_PARTS}[shard]
        seen = [
            value.as_py() for task in tasks for b in source.read(task, ["id"]) for value in b["id"]
        ]
        assert seen == list(range(1000))


@needs_weights
def test_pictures(tmp_path):
    pytest.importorskip("cv2")
    folder = tmp_path / "in"
    shutil.copytree(PHOTOS, folder)
    (folder / "sub").mkdir()
    (folder / "sub" / "broken.jpg").write_bytes(b"no picture")
    (folder / "notes.txt").write_text("no picture either")
    summary = run_dataset(
        folder, tmp_path / "out", Classify(keep=["file"]), workers=0, shard=2, format="jsonl"
    )
    assert (summary.rows, summary.errors) == (5, 1)
    assert str(summary).endswith("; 1 could not be read")
    rows = lines(tmp_path / "out")
    names = ["astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "sub/broken.jpg"]
    assert [row["file"] for row in rows] == names
    assert rows[1]["label"] == "Egyptian cat"
    assert rows[4].keys() == {"file", "error"}
    # Masks: bytes, in the one format that is always there.
    run_dataset(folder, tmp_path / "masks", Segment("selfie"), workers=0, format="npz")
    got = dict(np.load(parts(tmp_path / "masks")[0]))
    starts = got["mask.offsets"]
    assert got["mask"][: starts[1]].tobytes().startswith(b"\x89PNG")
    assert starts[5] == starts[4]
    assert got["error"][4].startswith(str(folder / "sub" / "broken.jpg"))
    with pytest.raises(kuiper.DatasetError, match="the column mask holds bytes, which csv cannot"):
        run_dataset(folder, tmp_path / "no", Segment("selfie"), format="csv")


@needs_weights
def test_paths_of_pictures_in_a_csv_file(tmp_path):
    pytest.importorskip("cv2")
    folder = tmp_path / "in"
    shutil.copytree(PHOTOS, folder / "photos")
    (folder / "x.csv").write_text("image,who\nphotos/chelsea.png,cat\nphotos/none.png,x\n")
    run_dataset(folder / "x.csv", tmp_path / "out", Classify(), workers=0, format="jsonl")
    first, second = lines(tmp_path / "out")
    assert (first["image"], first["who"]) == ("photos/chelsea.png", "cat")
    assert first["label"] == "Egyptian cat"
    assert "none.png" in second["error"]


def test_numbers_that_json_does_not_have(tmp_path, model):
    np.save(tmp_path / "x.npy", np.float32([[np.nan, np.inf, 1]]))
    run_dataset(tmp_path / "x.npy", tmp_path / "out", Predictor(model), workers=0, format="jsonl")
    assert lines(tmp_path / "out")[0]["y"] == [None, None, 3]


# -- errors ------------------------------------------------------------------------------------


@pytest.fixture
def array(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, rows_of(20))
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "spark"}, "engine is 'spark', expected one of local, ray"),
        ({"shard": 0}, "shard is 0"),
        ({"workers": -1}, "workers is -1"),
        ({"format": "xml"}, "the format is 'xml', expected one of parquet, npz, csv, jsonl"),
        ({"kind": "tables"}, "the kind is 'tables', expected one of pictures, parquet, arrays"),
        ({"kind": "csv"}, "no csv files there"),
    ],
)
def test_options_that_are_wrong(tmp_path, model, array, options, message):
    with pytest.raises(kuiper.KuiperError, match=message):
        run_dataset(array, tmp_path / "out", Predictor(model), **options)


def test_a_stage_that_is_none(tmp_path, array):
    with pytest.raises(kuiper.InputError, match="stage is a function, expected one of"):
        run_dataset(array, tmp_path / "out", lambda batch: batch)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "found no pictures, Parquet"),
        ({"a.txt": b"x"}, "found no pictures"),
        ({"a.npy": b"x", "b.csv": b"x"}, "found 1 arrays, 1 csv; choose one"),
        ({"a.npy": b"x"}, "a.npy: not a file of rows of numbers"),
        ({"a.npz": b"x"}, "a.npz: not a file of rows of numbers"),
        ({"a.csv": b"x,x\n1,2\n"}, "expected different names"),
        ({"a.csv": b"a,b\n1,2\n", "b.csv": b"a,c\n1,2\n"}, "the same in all files"),
        ({"a.csv": b"a\n1\n"}, "no column 'x'; it has 'a'"),
        ({"a.csv": b"x,b\n1\n"}, "row 1 has 1 value, expected 2: x, b"),
        ({"a.csv": b"x\n\xff\n"}, "not UTF-8 text, at byte 2"),
        ({"a.csv": b"x\n" + b"1" * 200000}, "before byte 2.*field"),
        ({"a.csv": b"x\n1\n"}, r"a.csv, rows 0 to 0: column 'x' has rows of shape \(\)"),
    ],
)
def test_inputs_that_are_wrong(tmp_path, model, files, message):
    folder = tmp_path / "in"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    with pytest.raises(kuiper.DatasetError if "column" not in message else kuiper.InputError,
                       match=message):  # fmt: skip
        run_dataset(folder, tmp_path / "out", Predictor(model), workers=0, format="npz")


def test_arrays_of_different_kinds(tmp_path, model):
    folder = tmp_path / "in"
    folder.mkdir()
    np.savez(folder / "a.npz", x=rows_of(3), id=np.arange(4))
    with pytest.raises(kuiper.DatasetError, match=r"the arrays have \{'x': 3, 'id': 4\} rows"):
        run_dataset(folder, tmp_path / "out", Predictor(model))
    np.savez(folder / "a.npz", x=rows_of(3))
    np.savez(folder / "b.npz", x=rows_of(3).astype(np.float64))
    with pytest.raises(kuiper.DatasetError, match=r"b.npz holds 'x' float64 .* a.npz holds"):
        run_dataset(folder, tmp_path / "out", Predictor(model))


def test_parquet_files_of_different_kinds(tmp_path, model):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.parquet").write_bytes(b"x")
    with pytest.raises(kuiper.DatasetError, match=r"a.parquet: not a Parquet file"):
        run_dataset(folder, tmp_path / "out", Predictor(model))
    pq.write_table(pa.table({"x": [[1.0]], "id": [1]}), folder / "a.parquet")
    pq.write_table(pa.table({"x": [[1.0]], "id": ["a"]}), folder / "b.parquet")
    with pytest.raises(
        kuiper.DatasetError, match=r"b.parquet has other .*'id' is string there and"
    ):
        run_dataset(folder, tmp_path / "out", Predictor(model))


def test_pictures_for_a_model_of_several_inputs(tmp_path):
    from .test_stages import TWO

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(b"x")
    with pytest.raises(kuiper.DatasetError, match="pictures are one column, the model reads a, b"):
        run_dataset(tmp_path / "in", tmp_path / "out", Predictor(write_model(tmp_path, TWO)))
    np.save(tmp_path / "x.npy", rows_of(2))
    with pytest.raises(kuiper.DatasetError, match=r"write an \.npz file with these names"):
        run_dataset(tmp_path / "x.npy", tmp_path / "out", Predictor(write_model(tmp_path, TWO)))


def test_folders_that_hold_other_things(tmp_path, model, array):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").touch()
    with pytest.raises(kuiper.DatasetError, match="not empty and holds no results of kuiper"):
        run_dataset(array, out, Predictor(model), overwrite=True)
    assert (out / "thesis.txt").exists()
    (tmp_path / "in").mkdir()
    shutil.copy(array, tmp_path / "in")
    with pytest.raises(kuiper.DatasetError, match="is within the input"):
        run_dataset(tmp_path / "in", tmp_path / "in" / "out", Predictor(model))
    with pytest.raises(FileNotFoundError):
        run_dataset(tmp_path / "none", out, Predictor(model))


def test_results_of_another_run(tmp_path, model, array):
    out = tmp_path / "out"
    run_dataset(array, out, Predictor(model), workers=0, format="npz")
    with pytest.raises(kuiper.DatasetError, match=r"format was 'npz' and is 'csv'.*--overwrite"):
        run_dataset(array, out, Predictor(model), format="csv")
    shutil.copy(array, tmp_path / "z.npy")
    with pytest.raises(kuiper.DatasetError, match=r"input was '.*x\.npy' and is '.*z\.npy'"):
        run_dataset(tmp_path / "z.npy", out, Predictor(model))
    model.write_text(ADD.replace("mul(@0,2)", "mul(@0,3)"))
    with pytest.raises(kuiper.DatasetError, match="sha256 was "):
        run_dataset(array, out, Predictor(model))
    run_dataset(array, out, Predictor(model), workers=0, overwrite=True, format="npz")
    np.testing.assert_array_equal(arrays(out)["y"], rows_of(20) * 3 + 1)
    (out / "_kuiper" / "job.json").write_text("{")
    with pytest.raises(kuiper.DatasetError, match="the record of the run is damaged"):
        run_dataset(array, out, Predictor(model))


@needs_signals
def test_two_runs_at_a_time(tmp_path, model, array):
    with (
        Output(tmp_path / "out").opened(False),
        pytest.raises(kuiper.DatasetError, match="another run is writing to it"),
    ):
        run_dataset(array, tmp_path / "out", Predictor(model))


def test_files_that_are_added_changed_or_removed(tmp_path, model):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for name in "ab":
        np.save(folder / f"{name}.npy", rows_of(10))
    stage = Predictor(model)
    run_dataset(folder, out, stage, workers=0, format="npz")
    np.save(folder / "0.npy", rows_of(7))
    summary = run_dataset(folder, out, stage, workers=0)
    assert (summary.rows, summary.earlier) == (7, 20)
    assert list(arrays(out)["file"]) == ["a.npy"] * 10 + ["b.npy"] * 10 + ["0.npy"] * 7
    (folder / "a.npy").unlink()  # its rows are there
    assert run_dataset(folder, out, stage, workers=0).rows == 0
    np.save(folder / "b.npy", rows_of(11))
    with pytest.raises(kuiper.DatasetError, match=r"1 file changed since .* b\.npy; restore"):
        run_dataset(folder, out, stage)
    (folder / "b.npy").unlink()
    (out / "part-00000001.npz").unlink()
    with pytest.raises(kuiper.DatasetError, match=r"1 file vanished since .* b\.npy"):
        run_dataset(folder, out, stage)


def test_missing_packages_are_named(tmp_path, model, array, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(kuiper.MissingPackageError, match="pip install pyarrow"):
        run_dataset(array, tmp_path / "out", Predictor(model), format="parquet")
    (tmp_path / "x.parquet").write_bytes(b"x")
    with pytest.raises(kuiper.MissingPackageError, match="pip install pyarrow"):
        run_dataset(tmp_path / "x.parquet", tmp_path / "out", Predictor(model), format="npz")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(kuiper.MissingPackageError, match=r"pip install 'kuiper-runtime\[ray\]'"):
        run_dataset(array, tmp_path / "out", Predictor(model), engine="ray", format="npz")


# -- how rows are divided ----------------------------------------------------------------------


@settings(deadline=None)
@given(
    groups=st.lists(st.lists(st.integers(0, 40), max_size=5), min_size=1, max_size=4),
    shard=st.integers(1, 50),
)
def test_the_tasks_of_parquet_files_hold_every_row_once(groups, shard):
    """Row groups of any sizes, as their metadata tells them."""
    source = object.__new__(reading.ParquetFiles)
    opened = []
    for counts in groups:
        sizes = [SimpleNamespace(num_rows=count) for count in counts]
        metadata = SimpleNamespace(num_row_groups=len(sizes), row_group=sizes.__getitem__)
        opened.append(metadata)
    source._open = lambda number: nullcontext(SimpleNamespace(metadata=opened[number]))
    tasks = list(source.tasks([[number] for number in range(len(groups))], shard))
    for number, counts in enumerate(groups):
        mine = [task for task in tasks if task["files"] == [[number]]]
        rows = [row for t in mine for row in range(t["start"], t["start"] + t["rows"])]
        assert rows == list(range(sum(counts)))
        edges = np.cumsum([0, *counts])
        for task in mine:
            found, skip = reading._groups(opened[number], task["start"], task["rows"])
            assert edges[found[0]] + skip == task["start"]
            assert edges[found[-1] + 1] >= task["start"] + task["rows"]
            assert 0 < task["rows"] <= max(1.5 * shard + 1, max(counts) / reading.MAX_PARTS + 1)


@settings(deadline=None)
@given(rows=st.integers(0, 3000), shard=st.integers(1, 500), parts=st.none() | st.integers(1, 9))
def test_slices_are_about_equal_and_hold_every_row_once(rows, shard, parts):
    slices = list(reading._slices(rows, shard, parts))
    assert sum(count for _, count in slices) == rows
    counts = [count for _, count in slices]
    assert [start for start, _ in slices] == [0, *np.cumsum(counts)][: len(slices)]
    assert not counts or max(counts) - min(counts) <= 1
    assert parts is None or len(slices) <= parts


# -- runs that end early -----------------------------------------------------------------------


class Harm:
    """A data set, and a model that does harm at a row of it."""

    def __init__(self, tmp_path: Path) -> None:
        self.model, self.code = plugin(tmp_path)
        self.x = rows_of(200)
        self.source, self.out = tmp_path / "x.npy", tmp_path / "out"
        self.marker = tmp_path / "marker"
        np.save(self.source, self.x)

    def run(self, what: str, row: int = 77, **more) -> subprocess.CompletedProcess:
        """Run the command; the model does `what` at a row."""
        return cli(
            "run-dataset", self.source, "--out", self.out, "--task", "predict", "--model",
            self.model, "--plugin", self.code, "--shard", 10, "--workers", 2, "--format", "npz",
            env={"HARM": f"{what} {row}", "HARM_MARKER": self.marker}, **more,
        )  # fmt: skip

    def check(self) -> None:
        """Check that every row is there once, with the right bits."""
        got = arrays(self.out)
        np.testing.assert_array_equal(got["row"], np.arange(200))
        np.testing.assert_array_equal(got["z"], self.x)
        assert (self.out / "_SUCCESS").exists()


@pytest.fixture
def harm(tmp_path):
    return Harm(tmp_path)


@needs_signals
def test_a_worker_is_killed(harm):
    done = harm.run("kill-worker")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("200 rows in ")
    assert harm.marker.exists()
    harm.check()


@needs_signals
def test_a_row_that_kills_every_worker(harm):
    done = harm.run("kill-worker-always")
    assert done.returncode == 1
    assert "190 rows in " in done.stdout
    assert "1 shard failed" in done.stdout
    told = (
        f"no shard for {harm.source}, rows 70 to 79: 3 workers died at it, the last one by signal"
    )
    assert f"{told} 9" in done.stderr
    assert len(list(harm.out.glob("part-*"))) == 19
    assert not (harm.out / "_SUCCESS").exists()
    done = harm.run("nothing")
    assert "10 rows in " in done.stdout
    assert "190 were there already" in done.stdout
    harm.check()


@needs_signals
@pytest.mark.parametrize(("what", "code"), [("kill-driver", -9), ("interrupt", 130),
                                            ("terminate", 130)])  # fmt: skip
def test_the_run_itself_is_ended(harm, what, code):
    done = harm.run(what)
    assert done.returncode == code
    written = len(list(harm.out.glob("part-*")))
    assert 0 < written < 20
    if code == 130:
        *_, told, last = done.stderr.splitlines()
        assert told.endswith(f"rows are in {harm.out}; the same command computes the others")
        assert last == "kuiper run-dataset: interrupted"
    done = harm.run("nothing")
    assert (done.returncode, done.stderr) == (0, "")
    assert "were there already" in done.stdout
    harm.check()


def test_an_operator_that_fails(harm):
    done = harm.run("fail-always")
    assert done.returncode == 3
    assert "x.npy, rows 70 to 79: " in done.stderr
    assert "planned" in done.stderr
    harm.run("nothing")
    harm.check()


@needs_signals
def test_a_file_that_must_not_grow(harm):
    import resource

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))

    done = harm.run("nothing", preexec_fn=limit)
    assert done.returncode == 4
    assert "File too large" in done.stderr
    assert not list(harm.out.glob("part-*"))
    harm.run("nothing")
    harm.check()


@pytest.fixture
def small_disk(tmp_path):
    """Return a folder on a file system of 64 kB, if this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "kuiper-test", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@needs_signals
def test_a_full_disk(harm, small_disk):
    harm.out = small_disk / "out"
    (small_disk / "ballast").write_bytes(bytes(24 << 10))
    done = harm.run("nothing")
    assert done.returncode == 4
    assert "No space left on device" in done.stderr
    assert "rows are in " in done.stderr
    written = list(harm.out.glob("part-*"))
    assert 0 < len(written) < 20
    for part in written:
        np.load(part)["z"]
    (small_disk / "ballast").unlink()
    subprocess.run(["mount", "-o", "remount,size=1m", str(small_disk)], check=True)
    done = harm.run("nothing")
    assert (done.returncode, done.stderr) == (0, "")
    harm.check()


def test_the_bytes_of_a_shard_depend_on_its_rows_only(tmp_path, model, array):
    for name, options in {"a": {"workers": 0}, "b": {"workers": 2}}.items():
        stage = Predictor(model, threads=1 + (name == "b"), batch=3 if name == "a" else 20)
        run_dataset(array, tmp_path / name, stage, shard=6, format="jsonl", **options)
    for one, two in zip(parts(tmp_path / "a"), parts(tmp_path / "b"), strict=True):
        assert one.read_bytes() == two.read_bytes()


# -- the command line --------------------------------------------------------------------------


def test_the_command_with_columns_of_a_csv_file(tmp_path, model, capsys):
    (tmp_path / "x.csv").write_text("id,a,b,c\n1,1,2,3\n2,4,5,6\n")
    out = tmp_path / "out"
    words = f"--task predict --model {model} --input x=a,b,c --outputs y --keep id --format csv"
    command = ["run-dataset", tmp_path / "x.csv", "--out", out, *words.split(), "--workers", "1"]
    command.append("--json")
    before = signal.getsignal(signal.SIGTERM)
    assert main([str(word) for word in command]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["errors"], told["failed"]) == (2, 0, [])
    assert parts(out)[0].read_text() == "id,y.0,y.1,y.2\n1,3.0,5.0,7.0\n2,9.0,11.0,13.0\n"
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--task", "predict"], 3, "--task predict needs --model FILE"),
        (["--task", "predict", "--model", "M", "--input", "x"], 3, "expected NAME=COLUMN"),
        (["--task", "predict", "--model", "none.pnnx.param"], 4, "no such model file"),
        (["--task", "predict", "--model", "M", "--engine", "ray"], 5, "kuiper-runtime[ray]"),
    ],
)
def test_commands_that_are_refused(
    tmp_path, model, array, words, code, message, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "ray", None)
    words = [str(model) if word == "M" else word for word in words]
    assert main(["run-dataset", str(array), "--out", str(tmp_path / "out"), *words]) == code
    assert message in capsys.readouterr().err


@needs_weights
def test_the_commands_on_pictures(tmp_path, capsys):
    pytest.importorskip("cv2")
    (tmp_path / "in").mkdir()
    shutil.copy(PHOTOS / "chelsea.png", tmp_path / "in")
    (tmp_path / "in" / "broken.jpg").write_bytes(b"x")
    for task, format, words in (
        ("classify", "jsonl", ["--topk", "2", "--preset", "course"]),
        ("detect", "csv", ["--threshold", "0.3", "--decoder", "nanodet"]),
        ("segment", "npz", ["--model", "selfie", "--kind", "selfie"]),
        ("predict", "npz", ["--model", str(MODELS / "mobilenet_v2.f16.pnnx.param")]),
    ):
        out = tmp_path / task
        command = ["run-dataset", tmp_path / "in", "--out", out, "--task", task, *words]
        command += ["--format", format, "--workers", "1"]
        assert main([str(word) for word in command]) == 1
        assert "1 could not be read" in capsys.readouterr().out
        assert len(parts(out)) == 1
    assert lines(tmp_path / "classify")[1]["label"][0] == "Egyptian cat"
    text = parts(tmp_path / "detect")[0].read_text()
    assert '""label"": ""cat""' in text
    assert arrays(tmp_path / "segment")["foreground"].shape == (2,)
    scores = next(v for v in arrays(tmp_path / "predict").values() if v.ndim == 2)
    assert scores.shape == (2, 1000)
    assert scores[1].argmax() == 285
