"""Types of arguments, and the options that several commands have."""

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
    "add_preprocessing",
    "divisors",
    "fraction",
    "height_width",
    "new_command",
    "per_channel",
    "positive",
    "shape",
    "typed_shape",
    "whole_numbers",
]


Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keep line breaks, and use the width that there is: names in one column, help in another."""

    def __init__(self, prog: str, **more: Any) -> None:
        width = min(shutil.get_terminal_size().columns, 110) - 2
        super().__init__(prog, max_help_position=28 if width >= 70 else 20, width=width, **more)

    def add_argument(self, action: argparse.Action) -> None:
        """Add an argument; leave room for the names of commands, which are set further in."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment


def fraction(text: str) -> float:
    """Read a number, also as a fraction such as 1/255."""
    top, _, bottom = text.partition("/")
    try:
        return float(top) / float(bottom or 1)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number or fraction") from None


def positive(text: str) -> int:
    """Read a whole number above zero."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above zero")
    return int(text)


def whole_numbers(text: str) -> list[int]:
    """Read whole numbers above zero with commas between them."""
    return [positive(part) for part in text.split(",")]


def shape(text: str) -> tuple[int, ...]:
    """Read a shape, as in 1x3x224x224 or 1,3,224,224."""
    parts = text.strip("()[]").lower().replace("x", ",").split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"'{text}' is not a shape such as 1x3x224x224")
    return tuple(int(part) for part in parts)


def typed_shape(text: str) -> tuple[tuple[int, ...], str]:
    """Read a shape with the type of its elements, as in 1x128:i64; f32 where none is given."""
    extents, colon, dtype = text.partition(":")
    known = ("f32", "f64", "f16", "i64", "i32", "i16", "i8", "u8", "bool", "c64")
    if colon and dtype not in known:  # "1x3:" is a slip, not float32
        raise argparse.ArgumentTypeError(f"'{dtype}' is not one of the types {', '.join(known)}")
    return shape(extents), dtype or "f32"


def per_channel(text: str) -> tuple[float, ...]:
    """Read one number for each of three channels, as in 104,117,123; one alone is for all."""
    values = tuple(fraction(part) for part in text.split(","))
    if len(values) not in (1, 3):
        raise argparse.ArgumentTypeError(f"'{text}' is not one number, nor three with commas")
    return values * 3 if len(values) == 1 else values


def divisors(text: str) -> tuple[float, ...]:
    """Read numbers for three channels, none of them zero."""
    values = per_channel(text)
    if 0 in values:
        raise argparse.ArgumentTypeError(f"'{text}' would divide by zero")
    return values


def height_width(text: str) -> tuple[int, int]:
    """Read a size, as in 224 or 480x640 (height first)."""
    values = tuple(positive(part) for part in text.lower().split("x"))
    if len(values) > 2:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size such as 224 or 480x640")
    return values[0], values[-1]


def new_command(
    commands: Commands,
    name: str,
    run: Callable[..., int],
    summary: str,
    details: str = "",
) -> argparse.ArgumentParser:
    """Add a command whose function is `run(options, console)`."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=details,
        formatter_class=HelpFormatter,
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the model and what says how to load and plan it."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a .pnnx.param file, or the name of a bundled model")
    add("--bin", metavar="FILE", help="the weights (default: the .bin file beside MODEL)")
    add(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="run this first: a Python file with operators of your own (@kuiper.operator)",
    )
    add("--no-optimize", action="store_true", help="operator by operator, without passes")


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Add the option for the shapes of the inputs."""
    parser.add_argument(
        "--shape",
        type=shape,
        action="append",
        metavar="1x3x224x224",
        help="shape of an input, once for each (default: those in the file; "
        "open extents are 1 first, 224 for height and width, else 16)",
    )


def add_output(parser: argparse.ArgumentParser, threads: bool = True) -> None:
    """Add the options on output, and the number of threads."""
    add = parser.add_argument
    add("--json", action="store_true", help="print JSON, one object a line")
    add("--plain", action="store_true", help="plain text even where rich is installed")
    add("--verbose", action="store_true", help="say on standard error what is read and planned")
    if threads:
        add("--threads", type=positive, metavar="N", help="threads to use (default: all there are)")


def add_preprocessing(parser: argparse.ArgumentParser) -> None:
    """Add what becomes a `kuiper.vision.Preprocessing`; see :func:`._inputs.preprocessing`."""
    add = parser.add_argument_group("preprocessing").add_argument
    flag = BooleanOptionalAction
    add(
        "--preset",
        choices=["imagenet", "course", "caffe", "tf"],
        help="how pixels become numbers (default: the bundled model's; imagenet for others)",
    )
    add("--size", type=height_width, metavar="N|HxW", help="the network's input size")
    add("--crop", action=flag, help="keep the proportions and cut the centre, or squeeze all in")
    add("--resize", type=positive, metavar="N", help="short side before the cut")
    add("--antialias", action=flag, help="shrink as Pillow and torchvision do, or as OpenCV does")
    add("--scale", type=fraction, metavar="X", help="factor on pixels 0..255, as in 1/255")
    add("--mean", type=per_channel, metavar="A,B,C", help="subtracted after scaling, per channel")
    add("--std", type=divisors, metavar="A,B,C", help="divided by after that, per channel")
    add("--bgr", action=flag, help="channels blue first, or red first")
