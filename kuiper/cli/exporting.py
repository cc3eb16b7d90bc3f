"""The command that converts models to .pnnx files: export."""

from __future__ import annotations

import argparse
import ast
import os
import sys
from pathlib import Path
from typing import Any

import kuiper
from kuiper.cli._arguments import Commands, add_output, new_command, shape, typed_shape
from kuiper.cli._console import Console

__all__ = ["add_commands"]


def add_commands(commands: Commands) -> None:
    """Add the commands of this module to the parser."""
    parser = new_command(
        commands,
        export,
        "convert a PyTorch or ONNX model to .pnnx files",
        """\
SOURCE is an ONNX file (.onnx), which kuiper reads itself, a TorchScript file (.pt), or a function
or class that returns an nn.Module: package.module:function or file.py:function.  TorchScript needs
pnnx, functions also PyTorch: pip install pnnx torch
Inputs are float32 unless the shape ends with another type, such as 1x128:i64 for token ids; those
of an ONNX file have the types of the file, and --shape fixes what it leaves open.
example: kuiper export torchvision.models:resnet18 --arg weights=DEFAULT --shape 1x3x224x224
example: kuiper export model.onnx -o model.pnnx.param""",
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", help="model.pt, model.onnx or package.module:function")
    add(
        "--shape",
        type=typed_shape,
        action="append",
        default=[],
        metavar="1x3x224x224",
        help="shape of an input, once per input; 1x128:i64 for integers",
    )
    add(
        "--shape2",
        type=shape,
        action="append",
        default=[],
        metavar="2x3x320x320",
        help="second shape of each input; extents that differ become variable",
    )
    add("--arg", action="append", default=[], metavar="KEY=VALUE", help="argument of the function")
    add("--moduleop", metavar="CLASS,...", help="classes to keep as one operator each")
    add("--pnnx", action="store_true", help="convert an ONNX file with pnnx, as kuiper once did")
    add("--input-names", metavar="NAME,...", help="names of the inputs, in order")
    add("--output-names", metavar="NAME,...", help="names of the results, in order")
    add("-o", "--output", metavar="FILE", help="the .pnnx.param file (default: beside SOURCE)")
    add_output(parser, threads=False)


def _keyword(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise kuiper.InputError(f"--arg {text}: expected KEY=VALUE")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def export(options: argparse.Namespace, console: Console) -> int:
    """Convert a model, and report what kuiper lacks to run it."""
    # On Windows a path may start with a drive and a colon.
    if ":" in options.source and not Path(options.source).exists():
        param = _export_function(options)
    else:
        param = _export_file(options)
    graph = kuiper.load_graph(param)
    known = set(kuiper.supported_operators())
    missing = {t: n for t, n in graph.type_counts().items() if t not in known}
    console.data(
        {
            "param": str(param),
            "bin": str(param.with_suffix(".bin")),
            "operators": len(graph),
            "unsupported": missing,
        }
    )
    console.text(f"{param}: {len(graph)} operators")
    if missing:
        listed = ", ".join(f"{type} ({count})" for type, count in missing.items())
        console.error(f"kuiper export: kuiper does not support {listed}")
        return 3
    return 0


def _names(options: argparse.Namespace) -> dict[str, Any]:
    """Return the names of the ends that are given."""
    return {
        key: given.split(",")
        for key in ("input_names", "output_names")
        if (given := getattr(options, key)) is not None
    }


def _shapes(options: argparse.Namespace) -> tuple[list[tuple[int, ...]], list[str]]:
    """Return the shapes of the inputs and their types."""
    return [extents for extents, _ in options.shape], [dtype for _, dtype in options.shape]


def _export_function(options: argparse.Namespace) -> Path:
    """Trace the module that a function returns."""
    from kuiper.export import pnnx_tool

    source = options.source
    output = options.output or f"{source.rpartition(':')[2]}.pnnx.param"
    if options.pnnx:
        options.parser.error("--pnnx is for ONNX files")
    sys.path.insert(0, os.getcwd())  # as `python -m` does, for modules in this folder
    module = pnnx_tool.call_by_name(source, dict(map(_keyword, options.arg)))
    shapes, dtypes = _shapes(options)
    if not shapes:
        options.parser.error("a module needs --shape, once per input")
    examples2 = None
    if options.shape2:
        types2 = dtypes if len(options.shape2) == len(dtypes) else ()
        examples2 = pnnx_tool.example_tensors(options.shape2, types2)
    return pnnx_tool.export_module(
        module,
        pnnx_tool.example_tensors(shapes, dtypes),
        output,
        example_inputs2=examples2,
        moduleop=options.moduleop,
        **_names(options),
    )


def _export_file(options: argparse.Namespace) -> Path:
    """Convert a file: ONNX by kuiper, others by pnnx."""
    source = options.source
    suffix = Path(source).suffix.lower()
    if suffix not in (".pt", ".pth", ".torchscript", ".onnx"):
        package, dot, function = source.removesuffix(".py").rpartition(".")
        hint = ""
        if source.endswith(".py"):
            hint = f"; name the function that makes the module: {source}:NAME"
        elif dot and not os.path.exists(source):
            hint = f"; did you mean {package}:{function}?"
        options.parser.error(
            f"'{source}' is neither a .pt or .onnx file nor package:function{hint}"
        )
    if options.pnnx and suffix != ".onnx":
        options.parser.error("--pnnx is for ONNX files")
    if not Path(source).exists():
        raise FileNotFoundError(2, "No such file or directory", source)
    output = options.output or str(Path(source).with_suffix(".pnnx.param"))
    shapes, dtypes = _shapes(options)
    if suffix == ".onnx" and not options.pnnx:
        from kuiper.export.onnx_file import convert_onnx

        if options.moduleop:
            options.parser.error("--moduleop needs pnnx; add --pnnx")
        return convert_onnx(source, output, shapes, options.shape2, dtypes, **_names(options))
    from kuiper.export import pnnx_tool

    return pnnx_tool.run_pnnx(
        source, output, shapes, options.shape2, dtypes, moduleop=options.moduleop,
        **_names(options),
    )  # fmt: skip
