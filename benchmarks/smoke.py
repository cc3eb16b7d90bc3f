"""Run the bundled models for about a second each and print the time of a call.

For continuous integration: needs only kuiper and numpy. Times are not asserted; the exit status
is 1 if a result is not finite, or the same for two inputs. Usage::

    python benchmarks smoke
    python benchmarks smoke --seconds 0.2 FOLDER_OR_FILE...
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

import kuiper
from common import REPOSITORY, images, machine, table, variation

MODELS = REPOSITORY / "examples" / "models"
# Two outputs that differ by less are the same up to rounding.
MIN_VARIATION = 1e-3


def find(paths: list[Path]) -> list[Path]:
    """Return the .param files among `paths`, folders searched for ``*.f16.pnnx.param``."""
    found = []
    for path in paths:
        found += sorted(path.rglob("*.f16.pnnx.param")) if path.is_dir() else [path]
    return found


def as_list(result) -> list[np.ndarray]:
    """Return a model's result as a list of arrays."""
    return list(result) if isinstance(result, tuple) else [result]


def check(model: kuiper.Model, first: list[np.ndarray], second: list[np.ndarray]) -> str:
    """Run on two inputs; return the error of the outputs, or ""."""
    ours, theirs = as_list(model(*first)), as_list(model(*second))
    if not all(np.isfinite(y).all() for y in ours + theirs):
        return "an output is not finite"
    if variation(ours, theirs) < MIN_VARIATION:
        return "two inputs give the same output"
    return ""


def median_ms(model: kuiper.Model, inputs: list[np.ndarray], seconds: float) -> float:
    """Return the median time of a call, in milliseconds, over about `seconds`."""
    clock = time.perf_counter
    times = []
    end = clock() + seconds
    while len(times) < 3 or clock() < end:
        started = clock()
        model(*inputs)
        times.append(clock() - started)
    return 1e3 * float(np.median(times))


def main() -> int:
    """Run all models with one and two threads and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "paths", nargs="*", type=Path, default=[MODELS], help="folders or .param files"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="per model and thread count")
    options = parser.parse_args()
    files = find(options.paths)
    if not files:
        parser.error(f"no model in {', '.join(str(path) for path in options.paths)}")
    print(", ".join(machine().values()))
    kuiper.show_config()

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    thread_counts = [n for n in (1, 2) if n <= cores]
    rows, faults = [], []
    for file in files:
        name = file.name.removesuffix(".param")
        started = time.perf_counter()
        model = kuiper.load(file)
        row = [name, f"{1e3 * (time.perf_counter() - started):.0f}"]
        shapes = [info.shape for info in model.inputs]
        first, second = ([images(shape, seed) for shape in shapes] for seed in (1, 2))
        for threads in thread_counts:
            kuiper.set_num_threads(threads)
            fault = check(model, first, second)
            if fault:
                faults.append(f"{name}, threads {threads}: {fault}")
            row.append(f"{median_ms(model, first, options.seconds):.2f}")
        rows.append(row)
    heading = ["model", "load ms"] + [f"ms, threads {n}" for n in thread_counts]
    print(table(heading, rows))
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0
