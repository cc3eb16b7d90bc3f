"""The parser of the command line, and the exit codes of errors."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

import kuiper
from kuiper.cli import completing, exporting, inspecting, measuring, pictures
from kuiper.cli._arguments import HelpFormatter
from kuiper.cli._console import Console

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
        description="Run, inspect and measure PyTorch models exported with pnnx.",
        epilog=_EPILOG,
        formatter_class=HelpFormatter,
    )
    version = f"kuiper {kuiper.__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for module in (inspecting, measuring, pictures, exporting, completing):
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
    options = parser.parse_args(argv)
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


def _fail(options: argparse.Namespace, message: str, reason: str) -> int:
    print(f"kuiper {options.command}: {message}", file=sys.stderr)
    return EXIT_CODES[reason]
