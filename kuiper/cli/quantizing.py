"""The command that makes integer models: quantize."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import kuiper
from kuiper.cli._arguments import (
    Commands,
    add_model,
    add_output,
    add_preprocessing,
    new_command,
    positive,
)
from kuiper.cli._console import Console, bytes_text
from kuiper.cli._inputs import load_model, preprocessing, read_inputs
from kuiper.pnnx._messages import plural
from kuiper.quantization.observers import METHODS

__all__ = ["add_commands"]


def add_commands(commands: Commands) -> None:
    """Add the command of this module to the parser."""
    parser = new_command(
        commands,
        quantize,
        "write a model whose layers compute with bytes",
        """\
With --images or --inputs, the scales of all tensors are measured on this data, and convolutions and
Linear layers read bytes.  Without, Linear layers quantize their input row by row in each run.
Ratios of signal to noise are in dB: 40 dB is an error of 1 %.
example: kuiper quantize mobilenet_v2 --images photos/ -o mobilenet_v2.int8.pnnx.param --report
         kuiper quantize bert.pnnx.param -o bert.int8.pnnx.param --keep "classifier*" """,
    )
    add_model(parser)
    add = parser.add_argument
    add("-o", "--output", metavar="FILE", required=True, help="the .param file to write")
    add(
        "--keep",
        action="append",
        default=[],
        metavar="NAME",
        help="an operator to leave in float32; may contain * and ?",
    )
    add = parser.add_argument_group("calibration").add_argument
    add("--images", nargs="+", metavar="PATH", help="pictures, and folders of them")
    add("--inputs", nargs="+", metavar="FILE", help=".npy or .npz files, one per call of the model")
    add("--count", type=positive, default=100, metavar="N", help="pictures at most (default: 100)")
    add("--method", choices=METHODS, default="mse", help="range of a tensor (default: mse)")
    add(
        "--percentile",
        type=float,
        default=99.99,
        metavar="P",
        help="of the values, for that method (99.99)",
    )
    add("--no-bias-correction", action="store_true", help="leave biases as they are")
    add(
        "--min-sqnr",
        type=float,
        metavar="DB",
        help="leave sensitive operators in float32 until the outputs have this ratio",
    )
    add("--report", action="store_true", help="show the error that each operator causes")
    add_preprocessing(parser)
    add_output(parser, threads=False)


def quantize(options: argparse.Namespace, console: Console) -> int:
    """Quantize a model and write it."""
    target = Path(options.output)
    if target.suffix != ".param":
        raise kuiper.InputError(f"--output {target}: expected a name that ends with .param")
    if options.images and options.inputs:
        raise kuiper.InputError("--images and --inputs: expected one of them")
    model = load_model(options)
    make = _static if options.images or options.inputs else _dynamic
    graph, facts = make(model, options, console)
    kuiper.save(graph, target)
    before, after = (
        sum(a.nbytes for op in graph for a in op.attributes.values())
        for graph in (model.graph, graph)
    )
    archive = target.with_suffix(".bin")
    written = {"param": str(target), "bin": str(archive), "bytes_before": before, "bytes": after}
    console.data({**written, **facts})
    console.text(
        f"{target}, {archive.name}: weights of {bytes_text(after)} instead of {bytes_text(before)}"
    )
    return 0


def _dynamic(
    model: kuiper.Model, options: argparse.Namespace, console: Console
) -> tuple[kuiper.ir.Graph, dict[str, Any]]:
    """Quantize Linear layers, and write a table of their weights' errors."""
    from kuiper.quantization import quantizable, quantize_layers

    if options.report or options.min_sqnr is not None:
        raise kuiper.InputError(
            "--report and --min-sqnr run the model; pass data by --images or --inputs"
        )
    graph = model.graph.copy()
    found = quantizable(graph, options.keep)
    steps = quantize_layers(graph, found)
    layers = list(console.progress(steps, len(found), "layers")) if found else list(steps)
    console.table(
        ("operator", ">features", ">SQNR dB"),
        [
            (layer.name, f"{layer.shape[1]} -> {layer.shape[0]}", f"{layer.sqnr:.1f}")
            for layer in layers
        ],
    )
    return graph, {"layers": [layer._asdict() for layer in layers]}


def _static(
    model: kuiper.Model, options: argparse.Namespace, console: Console
) -> tuple[kuiper.ir.Graph, dict[str, Any]]:
    """Quantize convolutions and Linear layers on calibration data, and write what it shows."""
    from kuiper.quantization import sensitivity
    from kuiper.quantization.static import Calibrated

    samples = _pictures(model, options) if options.images else _arrays(model, options)
    corrects = not options.no_bias_correction
    calibrated = Calibrated(
        model, samples, options.keep, options.method, options.percentile, console.progress
    )
    rows, kept = [], []
    if options.report or options.min_sqnr is not None:
        rows = sensitivity.sensitivities(calibrated)
    if options.min_sqnr is not None:
        kept = sensitivity.most_sensitive(calibrated, rows, options.min_sqnr, corrects)
    graph = calibrated.graph(kept, corrects)
    ratio = sensitivity.output_sqnr(calibrated, graph)
    if options.report:
        console.table(
            ("operator", ">weight", ">weight SQNR dB", ">output SQNR dB", ""),
            [
                (
                    row.name,
                    "x".join(map(str, row.shape)),
                    f"{row.weight_sqnr:.1f}",
                    f"{row.sqnr:.1f}",
                    "float32" if row.name in kept else "",
                )
                for row in rows
            ],
        )
    left = sorted({*calibrated.kept, *kept})
    count = len(calibrated.names) - len(kept)
    rest = f", {len(left)} left in float32" if left else ""
    console.text(
        f"{plural(count, 'layer')} of bytes{rest}; the outputs "
        f"for the first calibration inputs have {ratio:.1f} dB"
    )
    layers = [{**row._asdict(), "kept": row.name in kept} for row in rows]
    return graph, {"quantized": count, "kept": left, "sqnr": ratio, "layers": layers}


def _pictures(model: kuiper.Model, options: argparse.Namespace) -> list[np.ndarray]:
    """Return the inputs for some pictures."""
    from kuiper.vision import find_pictures, load_image
    from kuiper.vision.images import PICTURE_SUFFIXES

    convert = _conversion(model, options)
    found: Iterator[Path] = find_pictures(options.images)
    paths = [path for path in found if path.suffix.lower() in PICTURE_SUFFIXES]
    if not paths:
        raise kuiper.InputError(f"--images {' '.join(options.images)}: found no pictures")
    # Evenly from all folders, since classes are often in folders of their own.
    step = max(len(paths) / options.count, 1.0)
    chosen = [paths[int(n * step)] for n in range(min(len(paths), options.count))]
    return [convert(load_image(path))[np.newaxis] for path in chosen]


def _conversion(
    model: kuiper.Model, options: argparse.Namespace
) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function from a picture to the input of a model."""
    from kuiper.vision import PRESETS, Classifier, Detector, Segmenter, preprocess
    from kuiper.vision.images import input_size
    from kuiper.vision.model_zoo import TASKS

    name = options.model
    if name in TASKS["detect"]:
        detector = Detector(name, size=options.size)
        return lambda image: detector.preprocess(image)[0]
    if name in TASKS["segment"]:
        return Segmenter(name, size=options.size).preprocess
    if name in TASKS["classify"]:
        base = Classifier(name).how
    else:
        base = replace(PRESETS["imagenet"], size=input_size(model))
    how = preprocessing(options, base)
    return lambda image: preprocess(image, how)


def _arrays(model: kuiper.Model, options: argparse.Namespace) -> list[Any]:
    """Return the inputs in some files."""
    return [tuple(read_inputs(model, [path], options)) for path in options.inputs]
