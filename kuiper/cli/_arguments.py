"""Argument types, and the options that several commands share."""

from __future__ import annotations

import argparse
import shutil
from argparse import BooleanOptionalAction
from collections.abc import Callable
from typing import Any, TypeAlias

__all__ = [
    "Commands",
    "HelpFormatter",
    "add_model",
    "add_output",
    "add_plugin",
    "add_precision",
    "add_preprocessing",
    "divisors",
    "fraction",
    "height_width",
    "new_command",
    "per_channel",
    "positive",
    "positives",
    "shape",
    "typed_shape",
]


Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keep line breaks; put names and help into columns that fit the terminal."""

    def __init__(self, prog: str, **more: Any) -> None:
        width = min(shutil.get_terminal_size().columns, 110) - 2
        super().__init__(prog, max_help_position=28 if width >= 70 else 20, width=width, **more)

    def add_argument(self, action: argparse.Action) -> None:
        """Add an argument; widen the first column for the indented names of commands."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment


def fraction(text: str) -> float:
    """Parse a number or a fraction such as 1/255."""
    top, _, bottom = text.partition("/")
    try:
        return float(top) / float(bottom or 1)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number or fraction") from None


def positive(text: str) -> int:
    """Parse a positive integer."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive integer")
    return int(text)


def positives(text: str) -> list[int]:
    """Parse comma-separated positive integers."""
    return [positive(part) for part in text.split(",")]


def shape(text: str) -> tuple[int, ...]:
    """Parse a shape such as 1x3x224x224 or 1,3,224,224."""
    parts = text.strip("()[]").lower().replace("x", ",").split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"'{text}' is not a shape such as 1x3x224x224")
    return tuple(int(part) for part in parts)


def typed_shape(text: str) -> tuple[tuple[int, ...], str]:
    """Parse a shape with an optional element type, f32 by default, such as 1x128:i64."""
    extents, colon, dtype = text.partition(":")
    known = ("f32", "f64", "f16", "i64", "i32", "i16", "i8", "u8", "bool", "c64")
    if colon and dtype not in known:  # an empty type, as in "1x3:", is an error, too
        raise argparse.ArgumentTypeError(f"'{dtype}' is not one of the types {', '.join(known)}")
    return shape(extents), dtype or "f32"


def per_channel(text: str) -> tuple[float, ...]:
    """Parse a number for all three channels, or one for each, such as 104,117,123."""
    values = tuple(fraction(part) for part in text.split(","))
    if len(values) not in (1, 3):
        raise argparse.ArgumentTypeError(f"'{text}' is neither one number nor three with commas")
    return values * 3 if len(values) == 1 else values


def divisors(text: str) -> tuple[float, ...]:
    """Parse nonzero numbers for three channels."""
    values = per_channel(text)
    if 0 in values:
        raise argparse.ArgumentTypeError(f"'{text}' would divide by zero")
    return values


def height_width(text: str) -> tuple[int, int]:
    """Parse a size such as 224 or 480x640 (height x width)."""
    values = tuple(positive(part) for part in text.lower().split("x"))
    if len(values) > 2:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size such as 224 or 480x640")
    return values[0], values[-1]


def new_command(
    commands: Commands, run: Callable[..., int], summary: str, details: str
) -> argparse.ArgumentParser:
    """Add the command that `run(options, console)` executes, named like that function."""
    parser = commands.add_parser(
        run.__name__.replace("_", "-"),
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=details,
        formatter_class=HelpFormatter,
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the model and the options for loading and planning it."""
    add = parser.add_argument
    add(
        "model", metavar="MODEL", help="a .pnnx.param or .onnx file, or the name of a bundled model"
    )
    add("--bin", metavar="FILE", help="the weights (default: the .bin file beside MODEL)")
    add("--check", action="store_true", help="compare the weights with their checksums first")
    add_plugin(parser)
    add("--no-optimize", action="store_true", help="run the operators of the file, without passes")


def add_plugin(parser: argparse.ArgumentParser) -> None:
    """Add the option for Python files that define operators or functions."""
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a Python file to run first, which defines operators or functions of expressions",
    )


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Add the option for the shapes of the inputs."""
    parser.add_argument(
        "--shape",
        type=shape,
        action="append",
        metavar="1x3x224x224",
        help="shape of an input, once per input (default: that of the file, with open extents "
        "set to 1 for the batch, 224 for height and width, and 16 otherwise)",
    )


def add_output(parser: argparse.ArgumentParser, threads: bool = True) -> None:
    """Add the options for the output and the number of threads."""
    add = parser.add_argument
    add("--json", action="store_true", help="print JSON, one object per line")
    add("--plain", action="store_true", help="print plain text even if rich is installed")
    add("--verbose", action="store_true", help="log loading and planning to standard error")
    if threads:
        add("--threads", type=positive, metavar="N", help="number of threads (default: all)")
        add_precision(parser)


def add_precision(parser: argparse.ArgumentParser) -> None:
    """Add the option for the precision; :func:`kuiper.cli._app.main` applies it."""
    parser.add_argument(
        "--precision",
        choices=["float32", "bfloat16", "auto"],
        help="precision of activations and products; auto is bfloat16 where that is faster "
        "(default: the variable KUIPER_PRECISION, else float32)",
    )


def add_preprocessing(parser: argparse.ArgumentParser) -> None:
    """Add the options that :func:`._inputs.preprocessing` reads."""
    add = parser.add_argument_group("preprocessing").add_argument
    flag = BooleanOptionalAction
    add(
        "--preset",
        choices=["imagenet", "course", "caffe", "tf", "bicubic", "vit", "openai_clip"],
        help="conversion of pixels (default: that of the bundled model; imagenet for others)",
    )
    add("--size", type=height_width, metavar="N|HxW", help="input size of the network")
    add("--crop", action=flag, help="resize in proportion and crop the centre, or distort")
    add("--resize", type=positive, metavar="N", help="short side before the crop")
    add("--filter", choices=["bilinear", "bicubic"], help="how pixels are interpolated")
    add("--antialias", action=flag, help="resize like Pillow and torchvision, or like OpenCV")
    add("--scale", type=fraction, metavar="X", help="factor on pixels 0..255, such as 1/255")
    add("--mean", type=per_channel, metavar="A,B,C", help="subtracted after scaling, per channel")
    add("--std", type=divisors, metavar="A,B,C", help="divisor after that, per channel")
    add("--bgr", action=flag, help="channel order blue, green, red, or red, green, blue")
