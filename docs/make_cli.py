"""Write the tables of arguments and options into ``docs/cli.md``, from the parser of the commands.

::

    python docs/make_cli.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kuiper.cli._app import build_parser
from kuiper.cli.completing import subcommands

PAGE = Path(__file__).with_name("cli.md")
START, END = "<!-- options -->\n", "<!-- /options -->"


def commands() -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """Return the summary and the parser of each command."""
    return subcommands(build_parser().get_default("commands"))


def names(parser: argparse.ArgumentParser) -> list[str]:
    """Return the options of a command."""
    return [name for action in parser._actions for name in action.option_strings]


def _row(action: argparse.Action) -> tuple[str, str]:
    """Return an argument or option with its value, as the help shows it, and its meaning."""
    text, meaning = ", ".join(action.option_strings), action.help or ""
    if action.choices:
        meaning += f"; one of {', '.join(map(str, action.choices))}"
    if action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction):
        value = action.metavar or action.dest.upper()
        text = f"{text} {str(value).replace('|', ' or ')}".strip()
    if action.nargs in ("+", "*"):
        text += " ..."
    return f"`{text}`", meaning.replace("|", "\\|")


def tables() -> str:
    """Return a table of what several commands share, and one of the rest for each command."""
    rows = {
        name: [_row(a) for a in parser._actions if "--help" not in a.option_strings]
        for name, (_, parser) in commands().items()
    }
    owners: dict[tuple[str, str], list[str]] = {}
    for name, some in rows.items():
        for row in some:
            owners.setdefault(row, []).append(name)
    lines = ["| several commands | meaning | commands |", "|---|---|---|"]
    lines += [
        f"| {text} | {meaning} | {_list(names)} |"
        for (text, meaning), names in owners.items()
        if len(names) > 1
    ]
    for name, some in rows.items():
        own = [row for row in some if len(owners[row]) == 1]
        if own:
            lines += ["", f"| `kuiper {name}` | meaning |", "|---|---|"]
            lines += [f"| {text} | {meaning} |" for text, meaning in own]
    return "\n".join(lines) + "\n"


def _list(names: list[str]) -> str:
    """Return names of commands, or the fewer that are missing."""
    others = [name for name in commands() if name not in names]
    if len(others) < len(names):
        return f"all but {', '.join(others)}"
    return ", ".join(names)


def page(text: str) -> str:
    """Return the text of cli.md with the tables between their markers."""
    head, _, rest = text.partition(START)
    _, _, tail = rest.partition(END)
    return f"{head}{START}\n{tables()}\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), encoding="utf-8")
