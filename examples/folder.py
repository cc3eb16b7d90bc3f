"""Classify a folder of thousands of photos, in batches, by several processes.

    python examples/folder.py holiday/ --output classes.jsonl
    python examples/folder.py holiday/ --workers 4 --batch 8 --threads 1

Every worker is a process with its own model. Workers read, decode and classify; decoding JPEG
takes as long as a small network and should use all cores too. Workers are spawned, not forked, so
they start in the same way on every system.

One JSON object per line is written as soon as a batch is ready, in any order. After Ctrl-C, run
the program again with the same --output to continue. An unreadable file has an "error" in its line
and is not tried again. The exit code is 1 if there were such files, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import kuiper

try:
    from kuiper.vision import Classifier, find_model, find_pictures, is_video, load_image
except kuiper.MissingPackageError as error:
    sys.exit(f"folder.py: {error}")

_classifier: Classifier | None = None  # of a worker process


def start_worker(model: str, threads: int) -> None:
    """Load the model, once per process."""
    global _classifier
    # Ctrl-C reaches every process of the terminal; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until here, `held_back` blocked it
    kuiper.set_num_threads(threads)
    _classifier = Classifier(model)


def classify_batch(paths: Sequence[str], topk: int) -> list[dict[str, Any]]:
    """Read and classify some files; records of unreadable ones have an `error`."""
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


def end_last_line(output: Path) -> None:
    """Remove a last line that a crash truncated."""
    if not output.exists():
        return
    with output.open("r+b") as file:
        text = file.read()
        file.truncate(text.rfind(b"\n") + 1)


@contextmanager
def held_back(number: int) -> Iterator[None]:
    """Delay a signal until the end of the block, and keep it from processes started inside."""
    came: list[int] = []
    before = signal.signal(number, lambda *_: came.append(number))
    # Processes inherit blocked signals, but no handlers; another thread may still take the signal.
    has_masks = hasattr(signal, "pthread_sigmask")  # not on Windows
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [number]) if has_masks else set()
    try:
        yield
    finally:
        if has_masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(number, before)
        if came:
            signal.raise_signal(number)


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
    """Return the files in the complete lines of an earlier run."""
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
    """A progress bar on standard error, if that is a terminal."""

    def __init__(self, total: int):
        self.total, self.count, self.start = total, 0, time.perf_counter()

    def advance(self, count: int) -> None:
        """Redraw the bar, `count` further."""
        self.count += count
        if not sys.stderr.isatty():
            return
        rate = self.count / max(1e-9, time.perf_counter() - self.start)
        left = (self.total - self.count) / max(rate, 1e-9)
        full = 30 * self.count // max(1, self.total)
        print(
            f"\r[{'#' * full}{'.' * (30 - full)}] {self.count}/{self.total}  {rate:.0f}/s  "
            f"{left:.0f} s left ",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def end(self) -> None:
        """End the line of the bar."""
        if self.count and sys.stderr.isatty():
            print(file=sys.stderr)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="folder.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = kuiper.get_num_threads()
    add = parser.add_argument
    add("folder", type=Path, help="searched with all subfolders")
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
    try:
        if not options.folder.is_dir():
            raise NotADirectoryError(20, "not a folder", str(options.folder))
        kuiper.load_graph(find_model(options.model))  # raises here once, not in every worker
        end_last_line(options.output)
        return work(options)
    except (OSError, kuiper.KuiperError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.strerror and error.filename:
            text = f"{error.filename}: {error.strerror}"
        print(f"folder.py: {text}", file=sys.stderr)
    except BrokenProcessPool:
        print(
            "folder.py: a worker process died, possibly for lack of memory; to continue, run it "
            "again with fewer --workers or a smaller --batch",
            file=sys.stderr,
        )
    return 1


def work(options: argparse.Namespace) -> int:
    """Distribute the remaining photos and write the results; return the exit code."""
    done = finished(options.output)
    paths = [str(p) for p in find_pictures([options.folder]) if not is_video(p)]
    todo = [path for path in paths if path not in done]
    bar, errors, start = Bar(len(todo)), 0, time.perf_counter()
    context = multiprocessing.get_context("spawn")
    # SIGTERM to this process must also end the workers.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    stopped = False
    with (
        ProcessPoolExecutor(
            options.workers, context, start_worker, (options.model, options.threads)
        ) as pool,
        options.output.open("a", encoding="utf-8") as output,
    ):
        waiting: set[Future[list[dict[str, Any]]]] = set()
        groups = batches(todo, options.batch)
        try:
            # Submit only enough batches to keep the workers busy.
            while True:
                while len(waiting) < 3 * options.workers and (group := next(groups, None)):
                    # This may start a worker, which Ctrl-C would end during its imports.
                    with held_back(signal.SIGINT):
                        waiting.add(pool.submit(classify_batch, group, options.topk))
                if not waiting:
                    break
                ready, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                # Write complete records and count them.
                with held_back(signal.SIGINT), held_back(signal.SIGTERM):
                    for future in ready:
                        errors += write(future.result(), output, bar)
        except KeyboardInterrupt:
            stopped = True
            # Running batches take a moment; a second Ctrl-C would lose them.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            pool.shutdown(wait=True, cancel_futures=True)
            for future in waiting:  # keep the results of running batches
                if not future.cancelled():
                    errors += write(future.result(), output, bar)
            signal.signal(signal.SIGINT, signal.default_int_handler)
    seconds = time.perf_counter() - start
    bar.end()
    print(
        f"{bar.count} photos in {seconds:.1f} s, {bar.count / seconds:.1f} per second"
        + (f"; {len(done)} were there already" if done else "")
        + (f"; {errors} could not be read" if errors else "")
        + (f"; stopped, {len(todo) - bar.count} are left: run it again" if stopped else "")
    )
    return 130 if stopped else int(errors > 0)


def write(records: Sequence[dict[str, Any]], output: TextIO, bar: Bar) -> int:
    """Write the records of a batch; return how many are errors."""
    for record in records:
        output.write(json.dumps(record, ensure_ascii=False) + "\n")
    output.flush()
    bar.advance(len(records))
    return sum("error" in record for record in records)


if __name__ == "__main__":
    sys.exit(main())
