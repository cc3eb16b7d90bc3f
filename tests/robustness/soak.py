"""Run models of many shapes in many threads for minutes and check that nothing grows.

::

    python -m tests.robustness.soak                    # ten minutes, 100,000 reloads, 500 shapes
    python -m tests.robustness.soak --minutes 1 --reloads 2000 --shapes 50

Three phases, each of which prints the resident memory as it goes:

1. *reloads*: models are loaded from files, run once and dropped;
2. *shapes*: one model is called with hundreds of input shapes, again and again;
3. *threads*: several threads call shared models until the time is up and compare each result with
   the first one.  Before that, all threads call each model at once, so that it has allocated all
   arenas that it will ever keep.

The exit code is 1 if memory at the end of a phase exceeds that after its first quarter by more than
`--slack` MB, if a file is left open, or if a result differs.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import kuiper

from ..support import load_cases
from ..support.engine import run


def resident_mb() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def open_files() -> int:
    """Return the number of open file descriptors."""
    return len(os.listdir("/proc/self/fd"))


class Watch:
    """Records memory during a phase and judges its growth."""

    def __init__(self, name: str, slack: float):
        self.name, self.slack = name, slack
        self.files = open_files()
        self.curve: list[tuple[float, float]] = []
        self.begin = time.monotonic()

    def note(self) -> None:
        gc.collect()
        self.curve.append((time.monotonic() - self.begin, resident_mb()))

    def verdict(self) -> list[str]:
        """Print the curve and return the faults."""
        self.note()
        shown = self.curve[:: max(len(self.curve) // 12, 1)]
        print(f"{self.name}: " + "  ".join(f"{t:.0f}s {mb:.1f}" for t, mb in shown), "MB")
        faults = []
        settled = max(mb for _, mb in self.curve[: max(len(self.curve) // 4, 1)])
        if self.curve[-1][1] > settled + self.slack:
            faults.append(f"{self.name}: {settled:.1f} MB grew to {self.curve[-1][1]:.1f} MB")
        if open_files() > self.files:
            faults.append(f"{self.name}: {open_files() - self.files} more files are open")
        return faults


def reload_models(cases, folder: Path, count: int, watch: Watch, until: float) -> int:
    """Load from files, run and drop, repeatedly; return the number of reloads."""
    paths = []
    for number, case in enumerate(cases):
        path = folder / f"m{number}.pnnx.param"
        path.write_bytes(case.param)
        path.with_suffix(".bin").write_bytes(case.bin)
        paths.append((path, case))
    for number in range(count):
        path, case = paths[number % len(paths)]
        model = kuiper.load(path)
        if number % 4 == 0:
            model(*case.inputs)
        if number % max(count // 48, 1) == 0:
            watch.note()
        if time.monotonic() > until:
            return number + 1
    return count


GROWING = b"""7767517
5 4
pnnx.Input in 0 1 x #x=(1,3,8,8)f32
F.relu a 1 1 x b
F.max_pool2d p 1 1 b c kernel_size=(3,3) stride=(2,2) padding=(1,1) dilation=(1,1)
F.interpolate u 1 1 c d size=(16,16) mode=bilinear align_corners=False
pnnx.Output out 1 0 d
"""


def change_shapes(shapes: int, rounds: int, watch: Watch) -> int:
    """Call one model with all shapes, `rounds` times."""
    model = kuiper.load(GROWING)
    extents = [(1 + n % 3, 3, 4 + n % 23, 4 + n // 23) for n in range(shapes)]
    for _ in range(rounds):
        for shape in extents:
            assert model(np.ones(shape, np.float32)).shape == (*shape[:2], 16, 16)
        watch.note()
    return shapes * rounds


def share_models(cases, n_threads: int, watch: Watch, until: float) -> tuple[int, list[str]]:
    """Call shared models from threads until the time is up; return calls and differences."""
    models = [(kuiper.load(case.param, case.bin), case.inputs) for case in cases]
    expected = [run(model, inputs) for model, inputs in models]
    call_at_once(models, n_threads)
    calls, faults = [0] * n_threads, []

    def work(rank: int) -> None:
        random = np.random.default_rng(rank)
        while time.monotonic() < until and not faults:
            number = int(random.integers(len(models)))
            model, inputs = models[number]
            found = run(model, inputs)
            calls[rank] += 1
            if any(
                a.tobytes() != b.tobytes() for a, b in zip(found, expected[number], strict=True)
            ):
                faults.append(f"threads: {cases[number].id} gave another result")

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(n_threads)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        watch.note()
        time.sleep(min(2.0, max(until - time.monotonic(), 0.05)))
    return sum(calls), faults


def call_at_once(models, n_threads: int) -> None:
    """Let all threads call one model, then the next, so that each allocates all its arenas."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(n_threads) as pool:
            for model, inputs in models:
                for call in [pool.submit(model, *inputs) for _ in range(12 * n_threads)]:
                    call.result()
    finally:
        sys.setswitchinterval(interval)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all phases together")
    parser.add_argument("--reloads", type=int, default=100_000)
    parser.add_argument("--shapes", type=int, default=500)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--slack", type=float, default=8.0, help="MB that a phase may grow by")
    args = parser.parse_args(arguments)
    begin = time.monotonic()
    cases = load_cases("operators")[::16]
    large = load_cases("models")
    faults: list[str] = []
    for case in (*cases, *large):  # fill the caches of the tests before measuring
        _ = case.param, case.bin, case.inputs

    with tempfile.TemporaryDirectory() as folder:
        watch = Watch("reloads", args.slack)
        until = begin + 60 * args.minutes * 0.5
        count = reload_models(cases, Path(folder), args.reloads, watch, until)
        print(f"{count} loads and unloads")
        faults += watch.verdict()

    watch = Watch("shapes", args.slack)
    count = change_shapes(args.shapes, 8, watch)
    print(f"{count} calls with {args.shapes} shapes")
    faults += watch.verdict()

    watch = Watch("threads", args.slack)
    count, wrong = share_models((*cases, *large), args.threads, watch, begin + 60 * args.minutes)
    print(f"{count} calls from {args.threads} threads")
    faults += wrong + watch.verdict()

    for fault in faults:
        print("FAULT:", fault)
    print(f"{time.monotonic() - begin:.0f} s, {'failed' if faults else 'nothing grows'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
