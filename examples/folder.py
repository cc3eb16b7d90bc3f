"""Classify a folder of thousands of photos, in batches, by several processes.

    python examples/folder.py holiday/ --output classes.jsonl
    python examples/folder.py holiday/ --workers 4 --batch 8 --threads 1

Every worker is a process with a model of its own.  A worker reads, decodes and classifies; decoding
JPEG takes as long as a small network, and this way it has all cores, too.  Workers are spawned, not
forked, so that they start alike on every system.

One JSON object a line is written as soon as a batch is ready, in any order.  Run it again with the
same --output and it goes on where it was stopped.  The exit code is 1 where a file could not be
read.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import kuiper

try:
    from kuiper.vision import Classifier, find_pictures, is_video, load_image
except kuiper.MissingPackageError as error:
    sys.exit(f"folder.py: {error}")

_classifier: Classifier | None = None  # of a worker process


def start_worker(model: str, threads: int) -> None:
    """Load the model, once for each process."""
    global _classifier
    kuiper.set_num_threads(threads)
    _classifier = Classifier(model)


def classify_batch(paths: Sequence[str], topk: int) -> list[dict[str, Any]]:
    """Read and classify some files; what cannot be read has an `error`."""
    assert _classifier is not None
    records: list[dict[str, Any]] = []
    images, readable = [], []
    for path in paths:
        try:
            images.append(load_image(path))
            readable.append(path)
        except (OSError, ValueError) as error:
            records.append({"file": path, "error": str(error)})
    if images:
        for path, guesses in zip(readable, _classifier(images, topk), strict=True):
            records.append({"file": path, "top": [vars(guess) for guess in guesses]})
    return records


def batches(paths: Iterable[str], count: int) -> Iterator[list[str]]:
    """Group paths by `count`."""
    group: list[str] = []
    for path in paths:
        group.append(path)
        if len(group) == count:
            yield group
            group = []
    if group:
        yield group


def finished(output: Path) -> set[str]:
    """Return the files that an earlier run wrote; a line cut off in the middle does not count."""
    if not output.exists():
        return set()
    done = set()
    for line in output.read_text("utf-8").splitlines():
        try:
            done.add(json.loads(line)["file"])
        except (ValueError, KeyError):
            continue
    return done


class Bar:
    """A bar on standard error, where that is a terminal."""

    def __init__(self, total: int):
        self.total, self.count, self.start = total, 0, time.perf_counter()

    def advance(self, count: int) -> None:
        """Draw the bar anew, `count` further."""
        self.count += count
        if not sys.stderr.isatty():
            return
        rate = self.count / max(1e-9, time.perf_counter() - self.start)
        left = (self.total - self.count) / max(rate, 1e-9)
        full = 30 * self.count // max(1, self.total)
        print(
            f"\r[{'#' * full}{'.' * (30 - full)}] {self.count}/{self.total}  {rate:.0f}/s  "
            f"{left:.0f} s left ",
            end="\n" if self.count == self.total else "",
            file=sys.stderr,
            flush=True,
        )


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="folder.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = kuiper.get_num_threads()
    add = parser.add_argument
    add("folder", type=Path, help="everything below it is classified")
    add("--output", type=Path, default=Path("classes.jsonl"), metavar="FILE")
    add("--model", default="mobilenet_v2", metavar="NAME|FILE")
    add("--workers", type=int, default=cores, metavar="N", help=f"processes (default: {cores})")
    add("--threads", type=int, default=1, metavar="N", help="threads of each (default: 1)")
    add("--batch", type=int, default=8, metavar="N", help="photos in one call (default: 8)")
    add("--topk", type=int, default=1, metavar="N", help="guesses for each (default: 1)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    options = parse_arguments(argv)
    if not options.folder.is_dir():
        print(f"folder.py: {options.folder}: not a folder", file=sys.stderr)
        return 1
    done = finished(options.output)
    paths = [str(p) for p in find_pictures([options.folder]) if not is_video(p)]
    todo = [path for path in paths if path not in done]
    bar, errors, start = Bar(len(todo)), 0, time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(
            options.workers, context, start_worker, (options.model, options.threads)
        ) as pool,
        options.output.open("a", encoding="utf-8") as output,
    ):
        waiting: set = set()
        groups = batches(todo, options.batch)
        # Only as many batches are handed out as keep the workers busy: 10,000 futures help nobody.
        for group in groups:
            waiting.add(pool.submit(classify_batch, group, options.topk))
            if len(waiting) >= 3 * options.workers:
                future = next(as_completed(waiting))
                waiting.remove(future)
                errors += write(future.result(), output, bar)
        for future in as_completed(waiting):
            errors += write(future.result(), output, bar)
    seconds = time.perf_counter() - start
    print(
        f"{len(todo)} photos in {seconds:.1f} s, {len(todo) / seconds:.1f} per second"
        + (f"; {len(done)} were there already" if done else "")
        + (f"; {errors} could not be read" if errors else "")
    )
    return int(errors > 0)


def write(records: Sequence[dict[str, Any]], output, bar: Bar) -> int:
    """Write the records of a batch; return how many are errors."""
    for record in records:
        output.write(json.dumps(record, ensure_ascii=False) + "\n")
    output.flush()
    bar.advance(len(records))
    return sum("error" in record for record in records)


if __name__ == "__main__":
    sys.exit(main())
