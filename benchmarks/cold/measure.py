"""Measure start, memory and installed size of the runtimes.

For each runtime a new process imports it, loads the model and runs once. The figures are the time
from the start of the process to its first result, and the peak resident memory. The files are in
the page cache, as on the second start of any program. Usage::

    python benchmarks cold --models resnet18
    python benchmarks cold --kuiper-python OTHER/bin/python --kuiper-path CHECKOUT
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from common import HERE, default_cache, images, machine, model_folder, read_input_shape, split_names
from peers import report
from peers.runtimes import RUNTIMES

DEFAULT = ("numpy", "kuiper", "onnxruntime", "openvino", "ncnn", "torchscript")


def child_environment(runtime: str, options: argparse.Namespace) -> tuple[str, dict[str, str]]:
    """Return the interpreter and the environment of a runtime's process."""
    environment = dict(os.environ)
    if runtime != "kuiper":
        return options.python, environment
    if options.kuiper_path:
        path = [options.kuiper_path, environment.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    return options.kuiper_python, environment


def start_once(runtime: str, folder: Path, image: Path, options: argparse.Namespace) -> dict:
    """Start a process, wait for its first result and its end.

    Returns
    -------
    dict
        ``first_result`` and ``whole_process`` (seconds), and the output of :mod:`first`.

    Raises
    ------
    RuntimeError
        The process failed; the message is the end of its output.
    """
    python, environment = child_environment(runtime, options)
    command = [python, str(HERE), "first", runtime, str(folder), str(options.threads)]
    with tempfile.TemporaryFile("w+") as stderr:
        started = time.perf_counter()
        process = subprocess.Popen(
            [*command, str(image)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            text=True,
        )
        try:
            answer = None
            for line in process.stdout:
                if line.startswith("FIRST "):
                    first_result = time.perf_counter() - started
                    answer = json.loads(line.removeprefix("FIRST "))
            process.wait()
            whole = time.perf_counter() - started
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        if answer is None:
            stderr.seek(0)
            lines = stderr.read().strip().splitlines() or [f"status {process.returncode}"]
            raise RuntimeError(lines[-1])
    return {"first_result": first_result, "whole_process": whole, **answer}


def installed(runtime: str, options: argparse.Namespace) -> dict:
    """Return the installed size of a runtime, {} if it is unknown."""
    if runtime == "numpy":
        return {}
    python, environment = child_environment(runtime, options)
    command = [python, str(HERE), "installed", RUNTIMES[runtime].package]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def measure(model: str, options: argparse.Namespace) -> list[dict]:
    """Start every runtime in turn, `options.repeats` times; return one row of medians each."""
    folder = model_folder(options.cache, model, 1)
    starts: dict[str, list[dict]] = {runtime: [] for runtime in options.runtimes}
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="kuiper-benchmark-") as scrap:
        image = Path(scrap, "image.npy")
        np.save(image, images((1, *read_input_shape(options.cache, model)), 1))
        # The first turn fills the page cache and is not counted.
        for _ in range(options.repeats + 1):
            for runtime in options.runtimes:
                if runtime not in failures:
                    try:
                        starts[runtime].append(start_once(runtime, folder, image, options))
                    except RuntimeError as error:
                        failures[runtime] = str(error)
    rows = []
    for runtime in options.runtimes:
        row = {"model": model, "threads": options.threads, "runtime": runtime}
        if runtime in failures:
            row["note"] = failures[runtime]
        else:
            for key in ("first_result", "whole_process", "import_and_load", "run", "peak_bytes"):
                row[key] = float(np.median([start[key] for start in starts[runtime][1:]]))
            row.update(installed(runtime, options))
        rows.append(row)
    return rows


def main() -> int:
    """Measure the chosen models and print a table for each."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--cache", type=Path, default=default_cache(), help="what `export` made")
    parser.add_argument("--models", default="resnet18", help="names, comma-separated")
    parser.add_argument(
        "--runtimes", default=",".join(DEFAULT), help=f"numpy, {', '.join(RUNTIMES)}"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7, help="starts of each runtime")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the peers")
    parser.add_argument("--kuiper-python", default=sys.executable, help="interpreter for kuiper")
    parser.add_argument("--kuiper-path", default="", help="checkout of kuiper, built in place")
    parser.add_argument("--json", type=Path, help="keep the figures, for `peers --cold`")
    options = parser.parse_args()
    options.runtimes = split_names(options.runtimes)
    unknown = [name for name in options.runtimes if name not in (*RUNTIMES, "numpy")]
    if unknown:
        parser.error(f"unknown runtimes {unknown}; there are numpy, {', '.join(RUNTIMES)}")
    rows = []
    for model in split_names(options.models):
        if not (model_folder(options.cache, model, 1) / "complete").exists():
            parser.error(f"{model} is not exported in {options.cache}; run `export` first")
        rows += measure(model, options)
    print(report.cold_tables(rows))
    print(", ".join(machine().values()))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0
