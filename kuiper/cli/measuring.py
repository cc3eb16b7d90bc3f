"""Commands that run a model: run, bench, profile."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import kuiper
from kuiper.cli._arguments import (
    Commands,
    add_model,
    add_output,
    add_precision,
    add_preprocessing,
    add_shape,
    fraction,
    new_command,
    positive,
    positives,
)
from kuiper.cli._console import Console, bytes_text
from kuiper.cli._inputs import input_shapes, load_model, model_title, random_inputs, read_inputs

__all__ = ["add_commands"]


def add_commands(commands: Commands) -> None:
    """Add the commands of this module to the parser."""
    parser = new_command(
        commands,
        run,
        "run a model on arrays or pictures",
        """\
INPUT is one .npz file with the names of the inputs, or a .npy file or picture per input; several
pictures for a model with one input form a batch.  - reads one such file from standard input.
The suffix of -o selects the format: .npz holds all results by name, .npy one result, .csv one
result with up to two axes, a row per line.
example: kuiper run model.pnnx.param photo.jpg -o out.npz""",
    )
    add_model(parser)
    add = parser.add_argument
    add("inputs", nargs="+", metavar="INPUT", help=".npz, .npy or picture files")
    add("-o", "--output", metavar="FILE", help="an .npz, .npy or .csv file to write")
    add(
        "--trace",
        action="append",
        default=[],
        metavar="NAME",
        help="also return this operand or operator, named as in the .param file",
    )
    add_preprocessing(parser)
    add_output(parser)

    parser = new_command(
        commands,
        bench,
        "measure the run time of a model",
        "example: kuiper bench resnet18.pnnx.param --threads 1,2 --batch 1,8",
    )
    add_model(parser)
    add_shape(parser)
    add = parser.add_argument
    add("--batch", type=positives, metavar="N,...", help="batch sizes to measure")
    add("--threads", type=positives, metavar="N,...", help="numbers of threads to measure")
    add(
        "--isa",
        type=lambda text: text.split(","),
        metavar="NAME,...",
        help="instruction sets to measure, such as baseline,avx2,avx512 (default: the best)",
    )
    add("--seconds", type=fraction, default=2.0, metavar="S", help="duration of each (default: 2)")
    add_precision(parser)
    add_output(parser, threads=False)

    parser = new_command(
        commands,
        profile,
        "measure every operator of a model",
        """\
The roofline is the measured peak of this machine that limits an operator: that of arithmetic, or
that of the cache or memory that holds its data.  Winograd's and Strassen's algorithms count the
operations that they do, fewer than those of the definition.
example: kuiper profile resnet18.pnnx.param --html resnet18.html""",
    )
    add_model(parser)
    add_shape(parser)
    add = parser.add_argument
    add("--runs", type=positive, default=20, metavar="N", help="runs for the median (20)")
    add("--top", type=positive, metavar="N", help="list only the N slowest operators")
    add("--no-roofline", action="store_true", help="do not measure the machine's peaks first")
    add("--html", metavar="FILE", help="write a page with graph, times, timeline and memory plan")
    add("--trace", metavar="FILE", help="write the steps as a trace for Chrome or Perfetto (JSON)")
    add_output(parser)


# -- run -----------------------------------------------------------------------------------


def run(options: argparse.Namespace, console: Console) -> int:
    """Run a model once; describe its results and optionally write them."""
    if options.output and Path(options.output).suffix not in (".npz", ".npy", ".csv"):
        options.parser.error(f"-o: '{options.output}' is neither .npz nor .npy nor .csv")
    model = load_model(options)
    inputs = read_inputs(model, options.inputs, options)
    start = time.perf_counter()
    results = model(*inputs)
    seconds = time.perf_counter() - start
    results = results if isinstance(results, tuple) else (results,)
    arrays = {info.name: y for info, y in zip(model.outputs, results, strict=True)}
    for name, value in model.trace(inputs, options.trace).items():
        parts = value if isinstance(value, tuple) else (value,)
        for number, part in enumerate(parts):
            arrays[name if len(parts) == 1 else f"{name}.{number}"] = part
    if options.output:
        _write_arrays(options.output, arrays)
    described = {name: _described(array) for name, array in arrays.items()}
    console.data(
        {"model": options.model, "ms": seconds * 1e3, "file": options.output, "outputs": described}
    )
    console.table(
        ["name", "dtype", "shape", ">min", ">mean", ">max"],
        [
            (name, d["dtype"], tuple(d["shape"]), *(f"{d[k]:.6g}" for k in ("min", "mean", "max")))
            for name, d in described.items()
        ],
    )
    where = f", written to {options.output}" if options.output else ""
    console.text(f"{seconds * 1e3:.2f} ms with planning{where}")
    return 0


def _write_arrays(path: str, arrays: dict[str, np.ndarray]) -> None:
    """Write all arrays to an .npz file, or the only one to an .npy or .csv file."""
    suffix = Path(path).suffix
    if suffix == ".npz":
        np.savez(path, **arrays)  # type: ignore[arg-type]
        return
    if len(arrays) > 1:
        raise kuiper.InputError(
            f"{path}: a {suffix} file holds one array, the model gave {len(arrays)}: "
            f"{', '.join(arrays)}; name a .npz file"
        )
    ((name, array),) = arrays.items()
    if suffix == ".npy":
        np.save(path, array)
        return
    if array.ndim > 2 or array.dtype.kind == "c":
        raise kuiper.InputError(
            f"{path}: a .csv file holds real numbers with up to two axes, '{name}' is "
            f"{array.dtype} {array.shape}; name a .npy or .npz file"
        )
    # 17 and 9 digits identify every float64 and float32.
    exact = {"f": "%.17g" if array.dtype.itemsize == 8 else "%.9g"}.get(array.dtype.kind, "%d")
    np.savetxt(path, np.atleast_2d(array), exact, ",")


def _described(array: np.ndarray) -> dict[str, Any]:
    values = np.abs(array) if array.dtype.kind == "c" else array
    return {
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        **{
            key: float(getattr(values, key)()) if array.size else 0
            for key in ("min", "mean", "max")
        },
    }


# -- bench ---------------------------------------------------------------------------------


def measure(model: kuiper.Model, inputs: list[np.ndarray], seconds: float) -> np.ndarray:
    """Return the seconds of each call, for about `seconds` in total, after a warm-up."""
    for _ in range(3):
        model(*inputs)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        model(*inputs)
        times.append(time.perf_counter() - start)
    return np.array(times)


def bench(options: argparse.Namespace, console: Console) -> int:
    """Measure a model for each batch size, number of threads and instruction set."""
    from kuiper._kernels.micro import dispatch

    model = load_model(options)
    threads_before, isa_before = kuiper.get_num_threads(), dispatch.active_name()
    unknown = set(options.isa or ()) - {*dispatch.available(), *dispatch.tried()}
    if unknown:
        raise kuiper.InputError(
            f"--isa: this machine has no {', '.join(sorted(unknown))}; "
            f"it has {', '.join(dispatch.available())}"
        )
    rows = []
    combinations = [
        (batch, threads, isa)
        for isa in options.isa or [isa_before]
        for batch in options.batch or [None]
        for threads in options.threads or [threads_before]
    ]
    try:
        for batch, threads, isa in console.progress(combinations, len(combinations), "measuring"):
            kuiper.set_num_threads(threads)
            dispatch.select(isa)
            shapes = input_shapes(model, options.shape, batch)
            flops = sum(step.flops + step.saved_flops for step in model.plan(*shapes).steps)
            times = measure(model, random_inputs(model, shapes), options.seconds)
            images = shapes[0][0] if shapes and shapes[0] else 1
            median = float(np.median(times))
            rows.append(
                {
                    "shapes": [list(shape) for shape in shapes],
                    "threads": threads,
                    "isa": isa,
                    "precision": model.precision,
                    "runs": len(times),
                    "median_ms": median * 1e3,
                    "p90_ms": float(np.quantile(times, 0.9)) * 1e3,
                    "min_ms": float(times.min()) * 1e3,
                    "per_second": images / median,
                    "gflops": flops / median / 1e9,
                }
            )
    finally:
        kuiper.set_num_threads(threads_before)
        dispatch.select(isa_before)
    version = kuiper.__version__
    console.data({"model": options.model, "version": version, "results": rows})
    columns = ("median_ms", "p90_ms", "min_ms")
    console.table(
        ["input", "isa", ">threads", ">median ms", ">p90 ms", ">min ms", ">per s", ">GFLOP/s"],
        [
            (
                " ".join("x".join(map(str, shape)) for shape in row["shapes"]),
                row["isa"],
                row["threads"],
                *(f"{row[column]:.3f}" for column in columns),
                f"{row['per_second']:.1f}",
                f"{row['gflops']:.1f}",
            )
            for row in rows
        ],
    )
    runs = min(row["runs"] for row in rows)
    console.text(f"kuiper {version}, {model.precision}, {runs} runs or more each")
    return 0


# -- profile -------------------------------------------------------------------------------


def profile(options: argparse.Namespace, console: Console) -> int:
    """Measure every step of a model; print tables and optionally write a page."""
    from kuiper import report

    model = load_model(options)
    inputs = random_inputs(model, input_shapes(model, options.shape))
    peaks = None if options.no_roofline else report.measure_peaks()
    result = model.profile(*inputs, runs=options.runs)
    rows = report.by_operator(result.rows)
    peaks = peaks and peaks.raised(rows)
    rows = report.with_roofline(rows, peaks)
    if options.html:
        title = model_title(options)
        text = report.page(model, inputs, title=title, profile=result, peaks=peaks)
        Path(options.html).write_text(text, encoding="utf-8")
    if options.trace:
        result.save_trace(options.trace)
    by_type = report.by_type(rows)
    console.data(
        {
            "model": options.model,
            "total_ms": result.total * 1e3,
            "threads": result.n_threads,
            "arena_bytes": result.arena_bytes,
            "precision": model.precision,
            "peaks": peaks._asdict() if peaks else None,
            "html": options.html,
            "trace": options.trace,
            "operators": rows,
            "types": by_type,
            "steps": result.rows,
            "kernels": result.by_kind(),
        }
    )
    shown = rows
    if options.top:
        shown = sorted(rows, key=lambda row: -row["seconds"])[: options.top]
    figures = [">us", ">share", ">GFLOP/s", ">GB/s", ">MB", ">roofline"]
    console.table(
        ["operator", "type", "kernel", *figures],
        [(r["name"], r["type"], _kernel_text(r["kernels"]), *_figures(r)) for r in shown],
    )
    console.heading("by type")
    console.table(
        ["type", ">count", *figures],
        [(g["type"], g["count"], *_figures(g)) for g in by_type],
    )
    line = (
        f"total {result.total * 1e3:.3f} ms, {result.n_threads} threads, "
        f"{bytes_text(result.arena_bytes)} of memory"
    )
    if peaks:
        line += f"; this machine: {peaks.gflops:.0f} GFLOP/s, memory {peaks.gbytes:.0f} GB/s"
        if peaks.caches:
            line += f", caches up to {peaks.caches[0][1]:.0f} GB/s"
    console.text(f"\n{line}")
    if text := result.precisions_text():
        console.text(text)
    if options.html:
        console.text(f"page: {options.html}")
    if options.trace:
        console.text(f"trace: {options.trace}, for ui.perfetto.dev or chrome://tracing")
    return 0


def _figures(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the numeric cells of an operator or type."""
    return (
        f"{row['seconds'] * 1e6:.1f}",
        f"{row['share']:.1%}",
        f"{row['gflops']:.1f}",
        f"{row['gbytes']:.1f}",
        f"{row['gbytes'] * row['seconds'] * 1e3:.2f}",
        "" if row["roofline"] is None else f"{row['roofline']:.0%}",
    )


def _kernel_text(kernels: list[str]) -> str:
    """Abbreviate the kernels of an operator, such as winograd_* (3 steps), or conv +1."""
    if len(kernels) == 1:
        return kernels[0]
    families = {kernel.partition("_")[0] for kernel in kernels}
    if len(families) == 1:
        return f"{families.pop()}_* ({len(kernels)} steps)"
    return f"{kernels[0]} +{len(kernels) - 1}"
