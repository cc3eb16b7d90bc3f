"""The command that makes integer models: quantize."""

from __future__ import annotations

import argparse
from pathlib import Path

import kuiper
from kuiper.cli._arguments import Commands, add_model, add_output, new_command
from kuiper.cli._console import Console, bytes_text
from kuiper.cli._inputs import load_model

__all__ = ["add_commands"]


def add_commands(commands: Commands) -> None:
    """Add the command of this module to the parser."""
    parser = new_command(
        commands,
        quantize,
        "write a model whose Linear layers compute with bytes",
        """\
Weights become signed bytes with a scale per output feature; the inputs of these layers are
quantized row by row in each run, so no calibration data is needed.  The table shows the
signal-to-noise ratio of each weight: 40 dB is an error of 1 %.
example: kuiper quantize bert.pnnx.param -o bert.int8.pnnx.param --keep "classifier*" """,
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
    add_output(parser, threads=False)


def quantize(options: argparse.Namespace, console: Console) -> int:
    """Quantize the Linear layers of a model and write it."""
    from kuiper.quantization import quantizable, quantize_layers

    target = Path(options.output)
    if target.suffix != ".param":
        raise kuiper.InputError(f"--output {target}: expected a name that ends with .param")
    model = load_model(options)
    graph = model.graph.copy()
    found = quantizable(graph, options.keep)
    steps = quantize_layers(graph, found)
    layers = list(console.progress(steps, len(found), "layers")) if found else list(steps)
    kuiper.save(graph, target)
    before, after = (
        sum(a.nbytes for op in graph for a in op.attributes.values())
        for graph in (model.graph, graph)
    )
    archive = target.with_suffix(".bin")
    console.data(
        {
            "param": str(target),
            "bin": str(archive),
            "bytes_before": before,
            "bytes": after,
            "layers": [layer._asdict() for layer in layers],
        }
    )
    console.table(
        ("operator", ">features", ">SQNR dB"),
        [
            (layer.name, f"{layer.shape[1]} -> {layer.shape[0]}", f"{layer.sqnr:.1f}")
            for layer in layers
        ],
    )
    console.text(
        f"{target}, {archive.name}: weights of {bytes_text(after)} instead of {bytes_text(before)}"
    )
    return 0
