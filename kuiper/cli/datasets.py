"""The command on data sets: run-dataset."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import TYPE_CHECKING, Any

from kuiper.cli._arguments import (
    Commands,
    add_output,
    add_precision,
    add_preprocessing,
    fraction,
    new_command,
    positive,
)
from kuiper.cli._console import Console
from kuiper.vision.model_zoo import TASKS

if TYPE_CHECKING:
    from kuiper.batch import Stage

__all__ = ["add_commands"]


def add_commands(commands: Commands) -> None:
    """Add the command of this module to the parser."""
    parser = new_command(
        commands,
        run_dataset,
        "run a model on a data set, resumable, on processes or a cluster",
        """\
IN is a folder (searched recursively) or a file: pictures, Parquet, .npy, .npz or CSV.  After an
interruption of any kind, the same command computes what is missing; every row is in OUT once.
example: kuiper run-dataset photos/ --out classes/ --task classify --format jsonl
         kuiper run-dataset x.parquet --out y/ --task predict --model net.pnnx.param --column a""",
    )
    add = parser.add_argument
    add("source", metavar="INPUT", help="a folder or file of pictures, Parquet, arrays or CSV")
    add("--out", required=True, metavar="FOLDER", help="a folder for the results, part by part")
    add(
        "--task",
        choices=[*TASKS, "predict"],
        default="classify",
        help="what the model does (default: classify)",
    )
    add(
        "--model",
        metavar="MODEL",
        help="a .pnnx.param or .onnx file or bundled model (default: the task's)",
    )
    add(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a Python file to run first, which defines operators with @kuiper.operator",
    )
    add("--column", metavar="NAME", help="the column of pictures, or of the only input")
    add(
        "--keep",
        metavar="A,B",
        help="columns to pass on (default: all that the model does not read)",
    )
    add("--input-kind", metavar="KIND", help="pictures, parquet, arrays or csv, in a mixed folder")
    add("--format", metavar="FORMAT", help="parquet, npz, csv or jsonl (default: parquet, or npz)")
    add("--overwrite", action="store_true", help="remove the results of earlier runs first")
    group = parser.add_argument_group("engine").add_argument
    group(
        "--engine",
        choices=["local", "ray"],
        default="local",
        help="processes of this machine, or a cluster (default: local)",
    )
    group("--workers", type=positive, metavar="N", help="processes (default: one per processor)")
    group("--threads", type=positive, default=1, metavar="N", help="threads of each (default: 1)")
    group("--batch", type=positive, metavar="N", help="rows in one call (default: by size)")
    group("--shard", type=positive, default=256, metavar="N", help="rows of a part (default: 256)")
    group("--address", metavar="HOST:PORT", help="of the Ray cluster (default: RAY_ADDRESS)")
    group = parser.add_argument_group("tasks").add_argument
    group("--topk", type=positive, default=1, metavar="N", help="classify: guesses (default: 1)")
    group("--labels", metavar="FILE", help="classify, detect: class names, one per line")
    group("--threshold", type=fraction, metavar="X", help="detect: minimum score")
    group("--iou", type=fraction, default=0.5, metavar="X", help="detect: overlap of duplicates")
    group("--decoder", metavar="NAME", help="detect: nanodet, yolov5, yolov8 or end2end")
    group("--kind", metavar="KIND", help="segment: u2net, selfie, unet or imagenet")
    group(
        "--input",
        action="append",
        metavar="NAME=COLUMN",
        help="predict: the column of an input, or several (A,B,C) that form a vector",
    )
    group("--outputs", metavar="A,B", help="predict: the outputs to write (default: all)")
    add_preprocessing(parser)
    add_precision(parser)
    add_output(parser, threads=False)


def run_dataset(options: argparse.Namespace, console: Console) -> int:
    """Run a model on a data set."""
    from kuiper import batch

    stage = _stage(options)
    seen, total = 0, 0
    # SIGTERM to this process must also end the workers.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with console.meter(None, options.source) as advance:

        def progress(done: int, rows: int) -> None:
            nonlocal seen, total
            if total:
                advance(done - seen)
            else:  # what earlier runs have done is no progress
                advance(0, rows - done)
            seen, total = done, rows

        try:
            summary = batch.run_dataset(
                options.source,
                options.out,
                stage,
                engine=options.engine,
                workers=options.workers,
                shard=options.shard,
                format=options.format,
                kind=options.input_kind,
                overwrite=options.overwrite,
                address=options.address,
                progress=progress,
            )
        except (KeyboardInterrupt, OSError):
            if total:
                print(
                    f"kuiper run-dataset: {seen} of {total} rows are in {options.out}; the same "
                    "command computes the others",
                    file=sys.stderr,
                )
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
    console.data({**vars(summary), "out": options.out})
    console.text(f"{summary}: {options.out}")
    for reason in summary.failed:
        console.error(f"kuiper run-dataset: no shard for {reason}")
    return int(bool(summary.errors or summary.failed))


def _stage(options: argparse.Namespace) -> Stage:
    """Return the stage that the options describe."""
    from kuiper.batch import Classify, Detect, Predictor, Segment

    common: dict[str, Any] = {
        "keep": None if options.keep is None else options.keep.split(","),
        "batch": options.batch,
        "threads": options.threads,
        "plugins": options.plugin,
    }
    if options.task == "predict":
        if options.model is None:
            raise ValueError("--task predict needs --model FILE")
        columns = options.column if options.input is None else _inputs(options)
        outputs = None if options.outputs is None else options.outputs.split(",")
        how = _preprocessing(options) if _takes_pictures(options) else None
        return Predictor(options.model, columns, outputs=outputs, preprocess=how, **common)
    model, column = options.model or TASKS[options.task][0], options.column or "image"
    if options.task == "classify":
        how = _preprocessing(options, model)
        return Classify(model, column, topk=options.topk, how=how, labels=options.labels, **common)
    if options.task == "detect":
        return Detect(
            model, column, labels=options.labels, threshold=options.threshold, iou=options.iou,
            decoder=options.decoder, size=options.size, **common,
        )  # fmt: skip
    return Segment(model, column, kind=options.kind, size=options.size, **common)


def _inputs(options: argparse.Namespace) -> dict[str, str | list[str]]:
    """Return the columns of inputs by name."""
    columns: dict[str, str | list[str]] = {}
    for text in options.input:
        name, equals, given = text.partition("=")
        if not equals or not name or not given:
            raise ValueError(f"--input {text}: expected NAME=COLUMN")
        columns[name] = given.split(",") if "," in given else given
    return columns


def _takes_pictures(options: argparse.Namespace) -> bool:
    """Tell whether the input holds pictures, or the options say how these become arrays."""
    from kuiper.batch.sources import find_source

    if options.preset or options.size:
        return True
    return find_source(options.source, ("image",), options.input_kind).kind == "pictures"


def _preprocessing(options: argparse.Namespace, model: str | None = None) -> Any:
    """Return the preprocessing of the options; that of the bundled model as the base."""
    from kuiper.cli._inputs import preprocessing
    from kuiper.vision import PRESETS
    from kuiper.vision.classification import _PRESET_OF

    return preprocessing(options, PRESETS[_PRESET_OF.get(str(model), "imagenet")])
