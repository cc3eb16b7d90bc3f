"""Commands about this build of kuiper: operators, config."""

from __future__ import annotations

import argparse
from difflib import get_close_matches

import kuiper
from kuiper.cli._arguments import Commands, new_command
from kuiper.cli._console import Console

__all__ = ["add_commands"]


def add_commands(commands: Commands) -> None:
    """Add the commands of this module to the parser."""
    parser = new_command(
        commands,
        operators,
        "list the supported operators",
        "example: kuiper operators conv pool",
    )
    parser.add_argument(
        "words",
        nargs="*",
        default=[],
        metavar="WORD",
        help="list only types that contain one of these",
    )
    _add_output(parser)

    parser = new_command(
        commands,
        config,
        "show the version, instruction sets, threads and compiler of this build",
        "example: kuiper config --json",
    )
    _add_output(parser)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--plain", action="store_true", help="print plain text even if rich is installed"
    )


def operators(options: argparse.Namespace, console: Console) -> int:
    """Print the types of the supported operators, one per line."""
    words = [word.lower() for word in options.words]
    types = [
        type
        for type in kuiper.supported_operators()
        if not words or any(word in type.lower() for word in words)
    ]
    if not types:
        names = {type.rpartition(".")[2].lower(): type for type in kuiper.supported_operators()}
        near = [get_close_matches(word.rpartition(".")[2], names, 2, 0.7) for word in words]
        found = [names[name] for group in near for name in group]
        nearest = f" (nearest: {', '.join(found)})" if found else ""
        raise kuiper.InputError(
            f"no supported operator contains {' or '.join(map(repr, options.words))}{nearest}; "
            "`kuiper operators` lists them all, and @kuiper.operator adds your own"
        )
    console.data({"operators": types})
    console.text("\n".join(types))
    return 0


def config(options: argparse.Namespace, console: Console) -> int:
    """Print the configuration of this build."""
    facts = kuiper.show_config()
    console.data(facts)
    console.facts(
        [
            (name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else value)
            for name, value in facts.items()
        ]
    )
    return 0
