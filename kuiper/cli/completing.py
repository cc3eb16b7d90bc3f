"""Shell scripts that complete commands, options, files and model names."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from kuiper.cli._arguments import Commands, new_command
from kuiper.cli._console import Console
from kuiper.vision.model_zoo import BUNDLED, TASKS

__all__ = ["add_commands", "subcommands"]


def add_commands(commands: Commands) -> None:
    """Add the command of this module to the parser."""
    parser = new_command(
        commands,
        completion,
        "print the completion script of a shell",
        """\
bash:  eval "$(kuiper completion bash)"             in ~/.bashrc
zsh:   eval "$(kuiper completion zsh)"              in ~/.zshrc, after compinit
fish:  kuiper completion fish > ~/.config/fish/completions/kuiper.fish""",
    )
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="the shell")


def completion(options: argparse.Namespace, console: Console) -> int:
    """Print the script for a shell."""
    table = {
        name: (summary, _slots(name, parser))
        for name, (summary, parser) in subcommands(options.commands).items()
    }
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell](table))
    return 0


# -- the words to complete -----------------------------------------------------------------------


_Kind = Literal["flag", "file", "folder", "text"]


@dataclass(frozen=True)
class _Slot:
    """An option or a positional argument.

    Attributes
    ----------
    names : tuple of str
        Such as ``("-o", "--output")``; empty for a positional argument.
    title : str
        Name of the value in the help.
    summary : str
    kind : str
        Kind of the value: none (a flag), a file, a folder or free text.
    words : tuple of str
        Values to offer, in addition to files.
    repeats : bool
        Whether it may occur several times.
    """

    names: tuple[str, ...]
    title: str
    summary: str
    kind: _Kind
    words: tuple[str, ...]
    repeats: bool


_Table = Mapping[str, tuple[str, list[_Slot]]]


def subcommands(commands: Commands) -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """Map the name of each command to its help and its parser."""
    helps = {action.dest: action.help or "" for action in commands._choices_actions}
    return {name: (helps.get(name, ""), parser) for name, parser in commands.choices.items()}


def _slots(command: str, parser: argparse.ArgumentParser) -> list[_Slot]:
    """Return the arguments of a command; the kind of each follows from its name in the help."""
    slots = []
    for action in parser._actions:
        title = str(action.metavar or action.dest)
        words = tuple(map(str, action.choices or ()))
        kind: _Kind = "text"
        if action.nargs == 0:
            kind = "flag"
        elif title == "FOLDER":
            kind = "folder"
        elif "FILE" in title or title in ("MODEL", "INPUT", "GOLDEN", "SOURCE", "VALUE"):
            kind = "file"
        if title == "MODEL":
            words = tuple(BUNDLED)
        elif title == "NAME|FILE":
            words = TASKS[command]
        several = action.nargs in ("*", "+") or isinstance(action, argparse._AppendAction)
        names = tuple(action.option_strings)
        slots.append(_Slot(names, title, action.help or "", kind, words, several))
    return slots


# -- the scripts -------------------------------------------------------------------------------


def _lines(words: Iterable[str]) -> str:
    """Quote words for bash, separated by line breaks since file names may contain spaces."""
    return "$'" + "\\n".join(words) + "'"


def _bash(commands: _Table) -> str:
    values, others = [], []
    for command, (_, slots) in commands.items():
        options = [name for slot in slots for name in slot.names]
        for slot in slots:
            if slot.names and slot.kind != "flag":
                names = "|".join(f"{command}:{name}" for name in slot.names)
                values.append(f"    {names}) kind={slot.kind} words={_lines(slot.words)} ;;")
        alone = [slot for slot in slots if not slot.names]
        kind = "file" if any(slot.kind == "file" for slot in alone) else "text"
        words = _lines(word for slot in alone for word in slot.words)
        others.append(f"    {command}) options={_lines(options)} kind={kind} words={words} ;;")
    new_line = "\n"
    return f"""\
_kuiper() {{
  local IFS=$'\\n' command=${{COMP_WORDS[1]}} options='' kind='' words=''
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
  # bash splits --option=value at the =
  if [ "$current" = = ]; then current=''
  elif [ "$previous" = = ]; then previous=${{COMP_WORDS[COMP_CWORD-2]}}
  fi
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W {_lines([*commands, "--help", "--version"])} -- "$current"))
    return
  fi
  case "$command" in
{new_line.join(others)}
  esac
  case "$command:$previous" in
{new_line.join(values)}
    *)
      case "$current" in
        -*) COMPREPLY=($(compgen -W "$options" -- "$current")); return ;;
      esac ;;
  esac
  case "$kind" in
    file) COMPREPLY=($(compgen -f -- "$current")) ;;
    folder) COMPREPLY=($(compgen -d -- "$current")) ;;
  esac
  COMPREPLY+=($(compgen -W "$words" -- "$current"))
}}
complete -o filenames -F _kuiper kuiper"""


def _zsh(commands: _Table) -> str:
    def quoted(text: str) -> str:
        return "'" + text.replace("'", "'\\''") + "'"

    def plain(text: str, special: str) -> str:
        return "".join(f"\\{c}" if c in special else c for c in text)

    def value(slot: _Slot) -> str:
        action = {"folder": "_files -/", "file": "_files", "text": " "}[slot.kind]
        if slot.words:
            words = " ".join(slot.words)
            # The leading space keeps zsh from adding arguments.
            action = f" _kuiper_files {words}" if slot.kind == "file" else f"({words})"
        return f":{plain(slot.title, ':')}:{action}"

    cases = []
    for command, (_, slots) in commands.items():
        specs, position = [], 0
        for slot in slots:
            for name in slot.names:
                others = " ".join(slot.names) if not slot.repeats else ""
                spec = "*" if slot.repeats else f"({others})"
                spec += name if slot.kind == "flag" or name[1] != "-" else f"{name}="
                spec += f"[{plain(slot.summary, '[]:')}]"
                specs.append(quoted(spec + (value(slot) if slot.kind != "flag" else "")))
            if not slot.names:
                position += 1
                specs.append(quoted(f"{'*' if slot.repeats else position}{value(slot)}"))
        listed = " \\\n          ".join(specs)
        cases.append(f"        {command})\n        _arguments {listed} && ret=0 ;;")
    names = " ".join(
        quoted(f"{name}:{plain(summary, ':')}") for name, (summary, _) in commands.items()
    )
    new_line = "\n"
    return f"""\
#compdef kuiper
_kuiper_files() {{
  _alternative "names:bundled model:($*)" 'files:file:_files'
}}
_kuiper() {{
  local curcontext=$curcontext state line ret=1
  local -a commands=({names})
  _arguments -C '(- *)'{{-h,--help}}'[show the commands]' '(- *)--version[show the version]' \\
    '1:command:->command' '*::argument:->argument' && ret=0
  case $state in
    command) _describe command commands && ret=0 ;;
    argument)
      case $words[1] in
{new_line.join(cases)}
      esac ;;
  esac
  return ret
}}
compdef _kuiper kuiper"""


def _fish(commands: _Table) -> str:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = [
        "complete -c kuiper -n __fish_use_subcommand -f",
        "complete -c kuiper -n __fish_use_subcommand -s h -l help -d 'show the commands'",
        "complete -c kuiper -n __fish_use_subcommand -l version -d 'show the version'",
    ]
    for command, (summary, slots) in commands.items():
        lines.append(
            f"complete -c kuiper -n __fish_use_subcommand -a {command} -d {quoted(summary)}"
        )
        start = f"complete -c kuiper -n '__fish_seen_subcommand_from {command}'"
        for slot in slots:
            offer = f" -a {quoted(' '.join(slot.words))}" if slot.words else ""
            if not slot.names:
                if offer:
                    title = " -d 'bundled model'" if slot.kind == "file" else " -f"
                    lines.append(f"{start}{offer}{title}")
                continue
            names = "".join(
                f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}"
                for name in slot.names
            )
            kind = {"flag": "", "file": " -r -F", "text": " -x", "folder": " -x"}[slot.kind]
            if slot.kind == "folder":
                offer = " -a '(__fish_complete_directories)'"
            lines.append(f"{start}{names} -d {quoted(slot.summary)}{kind}{offer}")
    return "\n".join(lines)
