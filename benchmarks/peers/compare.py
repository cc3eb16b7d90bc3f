"""Measure kuiper, onnxruntime, OpenVINO, ncnn and PyTorch in the same run.

Each runtime has a separate process, which sleeps in a read while another one is timed. Bursts of
calls are interleaved over several rounds in a rotating order; a burst counts by its median, a
runtime by the median of its bursts. The outputs of the last call of every burst are compared with
eager PyTorch on inputs of this run: a result that differs does not count.

Usage (see benchmarks/README.md)::

    python benchmarks peers --models resnet18,mobilenet_v2 --threads 1,2
    python benchmarks peers --kuiper-python OTHER/bin/python --kuiper-path CHECKOUT
    python benchmarks peers --runtimes kuiper,kuiper@OTHER_CHECKOUT,openvino
    python benchmarks peers --json all.json --cold cold.json --write
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from common import (
    HERE,
    REPOSITORY,
    default_cache,
    exported_models,
    images,
    machine,
    model_folder,
    read_input_shape,
    relative_error,
    split_names,
    variation,
)
from peers import report
from peers.runtimes import RUNTIMES

PEERS = ("onnxruntime", "openvino", "ncnn", "ncnn-batch", "torch", "torchscript")
# The runtimes of each precision, and kuiper in float32.
PRECISIONS = {
    "float32": ("kuiper", *PEERS),
    "bfloat16": ("kuiper", "kuiper-bfloat16", "openvino-bfloat16", "torch-bfloat16"),
    "int8": ("kuiper", "kuiper-int8", "kuiper-mixed", "onnxruntime-int8", "openvino-int8"),
}
# Winograd with large tiles, which some peers use, is less accurate; kuiper's bound is tighter.
# Bytes round more coarsely; the error is printed beside the time.
TOLERANCE = {
    "kuiper": 1e-4,
    "kuiper-dynamic": 0.1,
    "onnxruntime-dynamic": 0.1,
    "kuiper-bfloat16": 0.1,
    "openvino-bfloat16": 0.1,
    "torch-bfloat16": 0.1,
    "kuiper-int8": 0.5,
    "kuiper-mixed": 0.5,
    "onnxruntime-int8": 0.5,
    "openvino-int8": 0.5,
}
PEER_TOLERANCE = 1e-3
# A thread pool may spin for some milliseconds before its threads sleep.
SETTLE_SECONDS = 0.05
ANSWER_SECONDS = 600
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class WorkerError(Exception):
    """A runtime is missing, cannot load the model, failed or died."""


class Worker:
    """A runtime with a model in a child process; a context manager that always reaps it.

    Parameters
    ----------
    python : str
        Interpreter of the child.
    python_path : str
        First folder of the child's import path, or "".
    runtime, folder, threads, batch
        Arguments of the child, see :mod:`worker`.
    """

    def __init__(
        self, python: str, python_path: str, runtime: str, folder: Path, threads: int, batch: int
    ):
        environment = dict(os.environ)
        for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "KUIPER_NUM_THREADS"):
            environment[variable] = str(threads)
        if python_path:
            inherited = environment.get("PYTHONPATH")
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (python_path, inherited)))
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed by close()
        command = [python, str(HERE), "worker", runtime, str(folder), str(threads), str(batch)]
        # A new session, so that Ctrl-C only reaches this process, which then cleans up.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            start_new_session=True,
            text=True,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Kill the child and wait for it."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._stderr.close()

    def answer(self) -> dict:
        """Wait for the child's next line.

        Raises
        ------
        WorkerError
            The child reports an error, has died, or says nothing for ten minutes.
        """
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            if not ready:
                self._process.kill()
            status = f"status {self._process.wait()}" if ready else f"silent {ANSWER_SECONDS} s"
            self._stderr.seek(0)
            tail = " / ".join(self._stderr.read().strip().splitlines()[-3:])
            raise WorkerError(f"process ended ({status}) {tail}".strip())
        answer = json.loads(line)
        if "missing" in answer:
            raise WorkerError(f"not installed: {answer['missing']}")
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def ask(self, **command) -> dict:
        """Send a command and wait for the answer; see :meth:`answer` for the errors."""
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the child is dead: answer() says how
        return self.answer()

    def run(self, x: Path, scrap: Path) -> list[np.ndarray]:
        """Run once on the array stored at `x` and return the outputs."""
        output = scrap / "output.npz"
        self.ask(do="run", input=str(x), output=str(output))
        return load_outputs(output)

    def cpu_seconds(self) -> float:
        """Return the processor time that the child has used (0 where /proc is missing)."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def load_outputs(path: Path) -> list[np.ndarray]:
    """Return the arrays of an .npz file in the order in which they were saved."""
    with np.load(path) as archive:
        return [archive[f"arr_{i}"] for i in range(len(archive.files))]


def busy_seconds() -> float:
    """Return the processor time that the whole machine has been busy, stolen time included."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(f) for f in fields[:8])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND


def timed_burst(worker: Worker, x: Path, scrap: Path, options) -> tuple[dict, list[np.ndarray]]:
    """Let `worker` time a burst; repeat it if other processes were using the machine.

    Returns
    -------
    burst : dict
        ``ms`` (the median), ``least_ms``, ``foreign`` (processors that other processes kept
        busy on average) and ``disturbed`` (whether these invalidate the figure).
    outputs : list of ndarray
        The result of the burst's last call.
    """
    best = None
    for _ in range(options.retries + 1):
        time.sleep(SETTLE_SECONDS)
        output = scrap / "output.npz"
        started, busy, own = time.perf_counter(), busy_seconds(), worker.cpu_seconds()
        answer = worker.ask(
            do="burst",
            input=str(x),
            output=str(output),
            seconds=options.seconds,
            least=3,
            clock=options.clock,
        )
        elapsed = time.perf_counter() - started
        foreign = (busy_seconds() - busy - (worker.cpu_seconds() - own)) / elapsed
        times = answer["times"]
        burst = {
            "ms": 1e3 * float(np.median(times)),
            "least_ms": 1e3 * min(times),
            "foreign": max(0.0, foreign),
            "disturbed": options.clock == "wall" and foreign > options.quiet,
        }
        if best is None or burst["foreign"] < best[0]["foreign"]:
            best = burst, load_outputs(output)
        if not burst["disturbed"]:
            break
    return best


def start(label: str, folder: Path, threads: int, batch: int, options) -> Worker:
    """Start the worker of a runtime; ``kuiper@DIR`` is kuiper from the checkout `DIR`."""
    name, _, checkout = label.partition("@")
    if name.startswith("kuiper"):
        python, path = options.kuiper_python, checkout or options.kuiper_path
    else:
        python, path = options.python, ""
    return Worker(python, path, name, folder, threads, batch)


def measure(model: str, threads: int, batch: int, options, scrap: Path) -> list[dict]:
    """Measure all runtimes on one model.

    Returns
    -------
    list of dict
        One per runtime: ``model``, ``threads``, ``batch``, ``runtime``, and either ``note``
        (why there is no figure) or ``ms``, ``least_ms``, ``rounds`` (the bursts' medians),
        ``error`` (against PyTorch), ``foreign``, ``disturbed``, ``load_seconds`` and
        ``version``.

    Raises
    ------
    WorkerError
        The reference, eager PyTorch, does not run.
    """
    folder = model_folder(options.cache, model, batch)
    shape = (batch, *read_input_shape(options.cache, model))
    inputs = [scrap / "first.npy", scrap / "second.npy"]
    for path, seed in zip(inputs, (options.seed, options.seed + 1), strict=True):
        np.save(path, images(shape, seed))

    wanted = [
        label
        for label in options.runtimes
        if batch > 1 or not RUNTIMES[label.partition("@")[0]].batched_only
    ]
    cells, workers = {}, {}
    try:
        labels = list(dict.fromkeys([*wanted, "torch"]))
        for label in labels:
            cells[label] = {"model": model, "threads": threads, "batch": batch, "runtime": label}
            workers[label] = start(label, folder, threads, batch, options)
        for label in labels:
            try:
                cells[label].update(workers[label].answer())
            except WorkerError as error:
                cells[label]["note"] = str(error)
        if "note" in cells["torch"]:
            raise WorkerError(f"no reference, PyTorch: {cells['torch']['note']}")
        expected = [workers["torch"].run(x, scrap) for x in inputs]
        if variation(*expected) < 0.01:
            raise WorkerError(f"{model}: the reference hardly varies with its input")

        def check(label: str, outputs: list[np.ndarray], which: int) -> None:
            error = relative_error(outputs, expected[which])
            cells[label]["error"] = max(error, cells[label].get("error", 0.0))
            limit = TOLERANCE.get(label.partition("@")[0], PEER_TOLERANCE)
            if error > limit:
                raise WorkerError(f"wrong result: {error:.1e} away from PyTorch")

        bursts = {label: [] for label in wanted if "note" not in cells[label]}
        if "torch" not in bursts:
            workers.pop("torch").close()

        def attempt(label: str, action) -> None:
            try:
                action()
            except WorkerError as error:
                cells[label]["note"] = str(error)
                del bursts[label]
                workers.pop(label).close()

        def first_runs(label: str) -> None:
            # In reverse, to detect a result kept from the previous call.
            for which in (1, 0, 1, 0):
                check(label, workers[label].run(inputs[which], scrap), which)

        def one_burst(label: str) -> None:
            burst, outputs = timed_burst(workers[label], inputs[0], scrap, options)
            check(label, outputs, 0)
            bursts[label].append(burst)

        for label in list(bursts):
            attempt(label, lambda label=label: first_runs(label))
        for turn in range(options.rounds):
            order = list(bursts)
            first = turn % max(1, len(order))
            for label in order[first:] + order[:first]:
                attempt(label, lambda label=label: one_burst(label))
        for label, done in bursts.items():
            cells[label].update(
                ms=float(np.median([burst["ms"] for burst in done])),
                least_ms=min(burst["least_ms"] for burst in done),
                rounds=[burst["ms"] for burst in done],
                foreign=max(burst["foreign"] for burst in done),
                # The median is valid if fewer than half of the rounds are disturbed.
                disturbed=2 * sum(burst["disturbed"] for burst in done) >= len(done),
            )
    finally:
        for worker in workers.values():
            worker.close()
    return [cells[label] for label in wanted]


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--cache", type=Path, default=default_cache(), help="what `export` made")
    parser.add_argument("--models", default="", help="names; all that are exported if empty")
    parser.add_argument(
        "--precision", choices=[*PRECISIONS], default="float32", help="of the default --runtimes"
    )
    parser.add_argument(
        "--runtimes",
        default="",
        help=f"out of {', '.join(RUNTIMES)}; kuiper@DIR is a checkout of kuiper built in place",
    )
    parser.add_argument("--threads", default="2", help="thread counts")
    parser.add_argument("--batch", default="1", help="batch sizes")
    parser.add_argument("--rounds", type=int, default=7, help="bursts of each runtime")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a burst")
    parser.add_argument("--seed", type=int, default=1, help="of the input images")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the peers")
    parser.add_argument(
        "--kuiper-python", default=sys.executable, help="interpreter of the kuiper worker"
    )
    parser.add_argument(
        "--kuiper-path", default="", help="checkout, built in place, that the kuiper worker imports"
    )
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: processor time, with one thread a fair comparison even on a busy machine",
    )
    parser.add_argument("--cpus", default="", help="processors to use, such as 0,1; all if empty")
    parser.add_argument(
        "--quiet", type=float, default=0.15, help="processors others may use during a burst"
    )
    parser.add_argument("--retries", type=int, default=3, help="of a burst that was not quiet")
    parser.add_argument("--json", type=Path, help="where to keep all figures")
    parser.add_argument(
        "--render", type=Path, help="do not measure: show and --write the figures of this file"
    )
    parser.add_argument("--cold", type=Path, help="figures of `cold` for the page to --write")
    parser.add_argument("--kernels", type=Path, help="figures of `kernels` for the same page")
    parser.add_argument(
        "--variants",
        type=Path,
        nargs="+",
        default=[],
        help="for the same page: figures with KUIPER_ISA set, a file for each instruction set",
    )
    parser.add_argument("--others", type=Path, help="for the same page: figures of other networks")
    parser.add_argument("--kinds", type=Path, help="for the same page: figures of other kinds")
    parser.add_argument(
        "--machines",
        type=Path,
        nargs="+",
        default=[],
        help="for the same page: figures of other machines, a file for each",
    )
    parser.add_argument(
        "--precisions",
        type=Path,
        nargs="+",
        default=[],
        help="for the same page: figures with --precision, a file for each",
    )
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md and .svg")
    options = parser.parse_args()
    options.runtimes = split_names(options.runtimes) or list(PRECISIONS[options.precision])
    options.threads = [int(n) for n in split_names(options.threads)]
    options.batch = [int(n) for n in split_names(options.batch)]
    unknown = [r for r in options.runtimes if r.partition("@")[0] not in RUNTIMES]
    if unknown:
        parser.error(f"unknown runtimes {unknown}; there are {', '.join(RUNTIMES)}")
    if options.clock == "cpu" and options.threads != [1]:
        # Threads that wait by spinning would count as work.
        parser.error("--clock cpu means something for one thread only: add --threads 1")
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}, expected 1 or more")
    if not options.render and not any(exported_models(options.cache, b) for b in options.batch):
        parser.error(f"no exported model in {options.cache}; run `export` first, or see --cache")
    return options


def measure_all(options: argparse.Namespace, results: dict) -> None:
    """Measure every model, thread count and batch; append the figures to `results`."""
    with tempfile.TemporaryDirectory(prefix="kuiper-benchmark-") as folder:
        for batch, threads in itertools.product(options.batch, options.threads):
            exported = exported_models(options.cache, batch)
            for model in split_names(options.models) or exported:
                if model not in exported:
                    print(f"{model}: not exported at batch {batch}, skipped", file=sys.stderr)
                    continue
                try:
                    cells = measure(model, threads, batch, options, Path(folder))
                except WorkerError as error:
                    print(f"{model}: {error}", file=sys.stderr)
                    continue
                results["cells"] += cells
                print(report.progress(cells), file=sys.stderr, flush=True)


def main() -> int:
    """Measure, print the tables, save the results if requested."""
    options = parse_arguments()
    if options.render:
        results = json.loads(options.render.read_text())
    else:
        if options.cpus:
            os.sched_setaffinity(0, [int(cpu) for cpu in split_names(options.cpus)])
        # Leave through the `finally` blocks, so that no worker outlives this process.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        results = {
            "machine": machine(),
            "date": time.strftime("%Y-%m-%d"),
            "rounds": options.rounds,
            "seconds": options.seconds,
            "clock": options.clock,
            "isa": os.environ.get("KUIPER_ISA", ""),
            "cells": [],
        }
    status = 0
    try:
        if not options.render:
            measure_all(options, results)
    except KeyboardInterrupt:
        print("interrupted; this is what there is", file=sys.stderr)
        status = 130
    print(report.text(results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    if options.write and status == 0:
        cold = json.loads(options.cold.read_text()) if options.cold else []
        kernels = json.loads(options.kernels.read_text()) if options.kernels else None
        variants = [json.loads(path.read_text()) for path in options.variants]
        others = json.loads(options.others.read_text()) if options.others else None
        kinds = json.loads(options.kinds.read_text()) if options.kinds else None
        machines = [json.loads(path.read_text()) for path in options.machines]
        precisions = [json.loads(path.read_text()) for path in options.precisions]
        pages = [cold, kernels, variants, others, kinds, machines, precisions]
        for path in report.write(results, REPOSITORY / "docs", *pages):
            print(f"wrote {path}")
    return status
