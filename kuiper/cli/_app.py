"""The parser of the command line, and the exit codes of errors."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial

import kuiper
from kuiper.cli import (
    completing,
    datasets,
    exporting,
    inspecting,
    listing,
    measuring,
    pictures,
    quantizing,
    serving,
)
from kuiper.cli._arguments import HelpFormatter
from kuiper.cli._console import Console
from kuiper.cli.completing import subcommands
from kuiper.planning.precision import PRECISION_VARIABLE

__all__ = ["EXIT_CODES", "build_parser", "main"]

EXIT_CODES = {"partly": 1, "usage": 2, "refused": 3, "file": 4, "package": 5, "interrupted": 130}

_EPILOG = """\
exit codes: 0 success, 1 some inputs failed or differ, 2 invalid command line, 3 kuiper refused
the model or input, 4 a file cannot be read or written, 5 a package is missing, 130 interrupted

`kuiper COMMAND --help` lists the options of a command, with examples.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with all commands."""
    parser = argparse.ArgumentParser(
        prog="kuiper",
        description="Run, inspect and measure PyTorch models: PNNX and ONNX files.",
        epilog=_EPILOG,
        formatter_class=HelpFormatter,
    )
    version = f"kuiper {kuiper.__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    parser.set_defaults(commands=commands)
    for module in (
        inspecting, measuring, pictures, datasets, serving, exporting, quantizing, listing,
        completing,
    ):  # fmt: skip
        module.add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; by default those of the process.

    Returns
    -------
    int
        The exit code; see :mod:`kuiper.cli`.
    """
    parser = build_parser()
    options = _parsed(parser, list(sys.argv[1:] if argv is None else argv))
    if options.command is None:
        parser.print_help(sys.stderr)
        return EXIT_CODES["usage"]
    for stream in (sys.stdout, sys.stderr):  # file names may have undisplayable characters
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    console = Console(
        as_json=getattr(options, "json", False), plain=getattr(options, "plain", False)
    )
    if getattr(options, "verbose", False):
        import logging

        logging.basicConfig(format="%(name)s: %(message)s")
        logging.getLogger("kuiper").setLevel(logging.DEBUG)
    try:
        if getattr(options, "threads", None) is not None and isinstance(options.threads, int):
            kuiper.set_num_threads(options.threads)
        with _precision(getattr(options, "precision", None)):
            return int(options.run(options, console) or 0)
    except kuiper.MissingPackageError as error:
        return _fail(options, str(error), "package")
    except kuiper.KuiperError as error:
        return _fail(options, str(error), "refused")
    except BrokenPipeError:
        # A reader such as `head` has exited; avoid a second error when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CODES["partly"]
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(options, f"{where}{error.strerror or error}", "file")
    except ValueError as error:
        return _fail(options, str(error), "refused")
    except KeyboardInterrupt:
        return _fail(options, "interrupted", "interrupted")


@contextmanager
def _precision(precision: str | None) -> Iterator[None]:
    """Set the default precision, for the processes that a command starts, too."""
    before = os.environ.get(PRECISION_VARIABLE)
    if precision is not None:
        os.environ[PRECISION_VARIABLE] = precision
    try:
        yield
    finally:
        if before is not None:
            os.environ[PRECISION_VARIABLE] = before
        elif precision is not None:
            del os.environ[PRECISION_VARIABLE]


def _parsed(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Return the options of a command line, or exit with the usage and a hint."""
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    _check_command(parser, words)
    options, strangers = parser.parse_known_args(words)
    if strangers and options.command is not None:
        command: argparse.ArgumentParser = options.parser
        if not any(map(partial(_is_option, command), strangers)):
            # argparse takes arguments of any number only up to the next option.
            mixed, strangers = command.parse_known_intermixed_args(words[1:])
            options = argparse.Namespace(**{**vars(options), **vars(mixed)})
    if strangers:
        _refuse_strangers(options, parser, strangers)
    return options


def _is_option(parser: argparse.ArgumentParser, word: str) -> bool:
    """Tell whether an argument is an option, not a number or expression with a minus."""
    return word[:1] == "-" and not parser._negative_number_matcher.match(word)


def _check_command(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Exit with the nearest command if the first word is neither a command nor a known option."""
    commands = subcommands(parser.get_default("commands"))
    if not words or words[0] in commands:
        return
    if words[0].startswith("-"):
        owners = _owners(commands, words[0])
        if owners and words[0] not in _names(parser):
            command = next((word for word in words if word in commands), owners[0])
            parser.error(
                f"{words[0]} is an option of the commands and follows them: "
                f"kuiper {command} {words[0]}"
            )
        return
    if words[0].endswith((".param", ".onnx")):
        hint = f"name a command first: kuiper info {words[0]}"
    else:
        near = get_close_matches(words[0].lower(), commands, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(commands)}"
    parser.error(f"there is no command '{words[0]}'; {hint}")


def _names(parser: argparse.ArgumentParser) -> list[str]:
    """Return the options of a parser."""
    return [name for action in parser._actions for name in action.option_strings]


def _owners(commands: Mapping[str, tuple[str, argparse.ArgumentParser]], word: str) -> list[str]:
    """Return the commands that have an option."""
    option = word.partition("=")[0]
    return [name for name, (_, parser) in commands.items() if option in _names(parser)]


def _refuse_strangers(
    options: argparse.Namespace, parser: argparse.ArgumentParser, strangers: Sequence[str]
) -> None:
    """Exit with the usage of the command that has no such arguments."""
    commands = subcommands(parser.get_default("commands"))
    if options.command is not None:
        parser = options.parser
    known = _names(parser)
    texts = []
    for word in strangers:
        near = owners = None
        if _is_option(parser, word):
            near = get_close_matches(word.partition("=")[0], known, 1, 0.7)
            owners = _owners(commands, word)
        if near:
            texts.append(f"{word} (did you mean {near[0]}?)")
        elif owners:
            texts.append(f"{word} (an option of {', '.join(owners)})")
        else:
            texts.append(word)
    parser.error(f"unrecognized arguments: {' '.join(texts)}")


def _fail(options: argparse.Namespace, message: str, reason: str) -> int:
    print(f"kuiper {options.command}: {message}", file=sys.stderr)
    return EXIT_CODES[reason]
