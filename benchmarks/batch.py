"""Compare a data set on processes, or on a Ray cluster, with the same stage in one process.

Every round runs all of them in turns on the same photos, and checks that the results are equal. The
figures are medians: rows per second with and without the start of the workers, processor time per
row, and efficiency, the throughput relative to that in one process. Usage::

    python benchmarks batch MODEL.pnnx.param
    python benchmarks batch mobilenet_v2 --photos 1000 --workers 2 --threads 1 --rounds 3 --ray
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

import kuiper
from common import REPOSITORY, machine, table
from kuiper.batch import Classify, run_dataset


def make_photos(folder: Path, count: int) -> None:
    """Write JPEG files of 320 x 240 pixels that differ in a corner."""
    folder.mkdir()
    paths = sorted((REPOSITORY / "examples" / "photos").glob("*.*"))
    photos = [cv2.resize(cv2.imread(str(path)), (320, 240)) for path in paths]
    for number in range(count):
        photo = photos[number % len(photos)].copy()
        photo[:4, :4] = number % 251
        cv2.imwrite(str(folder / f"{number:06}.jpg"), photo)


def processor_seconds() -> float:
    """Return the processor time of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measured(run: Callable[[Callable[[int, int], None]], None], count: int) -> dict[str, float]:
    """Return rows per second, the same after the first shard, and processor time per row."""
    seen: list[tuple[float, int]] = []
    start, before = time.perf_counter(), processor_seconds()
    run(lambda done, total: seen.append((time.perf_counter(), done)))
    end, after = time.perf_counter(), processor_seconds()
    (first, skipped), (last, done) = seen[min(1, len(seen) - 1)], seen[-1]
    steady = (done - skipped) / (last - first) if last > first else count / (end - start)
    return {
        "rows/s": count / (end - start),
        "steady rows/s": steady,
        "CPU ms/row": (after - before) * 1e3 / count,
    }


def main() -> None:
    """Run the rounds and print the medians."""
    parser = argparse.ArgumentParser(
        prog="benchmarks batch", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("model", help="a classification model: a .pnnx.param file or a bundled one")
    add("--photos", type=int, default=1000, metavar="N")
    add("--workers", type=int, default=2, metavar="N")
    add("--threads", type=int, default=1, metavar="N", help="of each worker")
    add("--shard", type=int, default=64, metavar="N")
    add("--rounds", type=int, default=3, metavar="N")
    add("--ray", action="store_true", help="on the cluster of RAY_ADDRESS, too")
    add("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    print(machine())
    folder = Path(tempfile.mkdtemp(prefix="kuiper-batch-"))
    try:
        rounds = compare(options, folder)
    finally:
        shutil.rmtree(folder)
    rows, figures = [], {}
    for name in rounds[0]:
        found = {
            key: statistics.median(one[name][key] for one in rounds) for key in rounds[0][name]
        }
        base = [one["one process"] for one in rounds]
        ratios = [one[name]["rows/s"] / b["rows/s"] for one, b in zip(rounds, base, strict=True)]
        steady = [
            one[name]["steady rows/s"] / b["steady rows/s"]
            for one, b in zip(rounds, base, strict=True)
        ]
        found |= {"efficiency": statistics.median(ratios), "steady": statistics.median(steady)}
        figures[name] = found
        rows.append([name, *(f"{value:.2f}" for value in found.values())])
    print(table(["", *figures["one process"]], rows))
    if options.json:
        options.json.write_text(json.dumps({"rounds": rounds, "medians": figures}, indent=1))


def compare(options: argparse.Namespace, folder: Path) -> list[dict[str, dict[str, float]]]:
    """Return the figures of every round by engine."""
    photos, count = folder / "photos", options.photos
    make_photos(photos, count)
    n_threads = options.workers * options.threads

    def one_process(progress: Callable[[int, int], None]) -> None:
        stage = Classify(options.model, threads=n_threads)
        run_dataset(photos, folder / "one", stage, workers=0, shard=options.shard, format="npz",
                    progress=progress)  # fmt: skip

    def engine(name: str) -> Callable[[Callable[[int, int], None]], None]:
        def run(progress: Callable[[int, int], None]) -> None:
            stage = Classify(options.model, threads=options.threads)
            run_dataset(photos, folder / name, stage, workers=options.workers, engine=name,
                        shard=options.shard, format="npz", progress=progress)  # fmt: skip

        return run

    runs = {"one process": ("one", one_process), "processes": ("local", engine("local"))}
    if options.ray:
        runs["Ray"] = ("ray", engine("ray"))
    # The model is loaded, as it is in the process of a caller.
    Classify(options.model, threads=n_threads)({"image": [str(p) for p in photos.iterdir()][:16]})
    kuiper.set_num_threads(n_threads)
    rounds = []
    for _ in range(options.rounds):
        rounds.append({name: measured(run, count) for name, (_, run) in runs.items()})
        check([folder / out for out, _ in runs.values()])
    return rounds


def check(folders: list[Path]) -> None:
    """Compare the results bit by bit, and remove them."""
    first, *others = [results(folder) for folder in folders]
    for other in others:
        for name, values in first.items():
            np.testing.assert_array_equal(values, other[name])
    for folder in folders:
        shutil.rmtree(folder)


def results(folder: Path) -> dict[str, np.ndarray]:
    """Return the columns of all shards."""
    parts = [dict(np.load(path)) for path in sorted(folder.glob("part-*.npz"))]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


if __name__ == "__main__":
    main()
