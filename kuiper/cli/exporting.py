"""Commands around files: export, completion."""

from __future__ import annotations

import argparse
import ast
import os
import sys
from collections.abc import Mapping
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
        "export",
        export,
        "make .pnnx files of a PyTorch or ONNX model, with pnnx",
        """\
SOURCE is a TorchScript file (.pt), an ONNX file (.onnx), or package.module:function or
file.py:function, a function (or class) that returns an nn.Module.  Files need pnnx, functions
PyTorch as well: pip install pnnx torch
Inputs are float32 where the shape does not end in another type: 1x128:i64 for token numbers.
example: kuiper export torchvision.models:resnet18 --arg weights=DEFAULT --shape 1x3x224x224""",
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", help="model.pt, model.onnx or package.module:function")
    add(
        "--shape",
        type=typed_shape,
        action="append",
        default=[],
        metavar="1x3x224x224",
        help="shape of an input, once for each; 1x128:i64 is one of whole numbers",
    )
    add(
        "--shape2",
        type=shape,
        action="append",
        default=[],
        metavar="2x3x320x320",
        help="a second shape of each; the extents that differ become variable",
    )
    add(
        "--arg",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an argument of the function",
    )
    add("--moduleop", metavar="CLASS,...", help="classes that pnnx shall keep as one operator")
    add("-o", "--output", metavar="FILE", help="the .pnnx.param file (default: beside SOURCE)")
    add_output(parser, threads=False)

    parser = new_command(
        commands,
        "completion",
        completion,
        "print the script that completes commands in a shell",
        """\
bash:  eval "$(kuiper completion bash)"             in ~/.bashrc
zsh:   eval "$(kuiper completion zsh)"              in ~/.zshrc, after compinit
fish:  kuiper completion fish > ~/.config/fish/completions/kuiper.fish""",
    )
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])


def _keyword(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise kuiper.InputError(f"--arg {text}: expected KEY=VALUE")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def export(options: argparse.Namespace, console: Console) -> int:
    """Run pnnx on a model."""
    from kuiper import _export

    source = options.source
    shapes = [extents for extents, _ in options.shape]
    dtypes = [dtype for _, dtype in options.shape]
    # On Windows a path may start with a drive and a colon.
    if ":" in source and not Path(source).exists():
        output = options.output or f"{source.rpartition(':')[2]}.pnnx.param"
        sys.path.insert(0, os.getcwd())  # as `python -m` has it, for modules in this folder
        module = _export.call_by_name(source, dict(map(_keyword, options.arg)))
        if not options.shape:
            options.parser.error("a module needs --shape, once for each of its inputs")
        examples2 = None
        if options.shape2:
            types2 = dtypes if len(options.shape2) == len(dtypes) else ()
            examples2 = _export.example_tensors(options.shape2, types2)
        param = _export.export_module(
            module,
            _export.example_tensors(shapes, dtypes),
            output,
            example_inputs2=examples2,
            moduleop=options.moduleop,
        )
    else:
        if Path(source).suffix not in (".pt", ".pth", ".torchscript", ".onnx"):
            package, dot, function = source.removesuffix(".py").rpartition(".")
            hint = ""
            if source.endswith(".py"):
                hint = f"; name the function that makes the module: {source}:NAME"
            elif dot and not os.path.exists(source):
                hint = f"; did you mean {package}:{function}?"
            options.parser.error(f"'{source}' is no .pt or .onnx file, nor package:function{hint}")
        if not Path(source).exists():
            raise FileNotFoundError(2, "No such file or directory", source)
        output = options.output or str(Path(source).with_suffix(".pnnx.param"))
        param = _export.run_pnnx(
            source, output, shapes, options.shape2, dtypes, moduleop=options.moduleop
        )
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
        console.complain(f"kuiper export: kuiper does not know {listed}")
        return 3
    return 0


# -- completion ----------------------------------------------------------------------------


def _commands(parser: argparse.ArgumentParser) -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """Return the commands of a parser: name -> help and parser of its own."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {a.dest: a.help or "" for a in action._choices_actions}
            return {name: (helps.get(name, ""), sub) for name, sub in action.choices.items()}
    return {}


def _options(parser: argparse.ArgumentParser) -> dict[str, tuple[str, list[str]]]:
    """Return the long options of a command: name -> help and choices."""
    return {
        name: (action.help or "", [str(c) for c in action.choices or []])
        for action in parser._actions
        for name in action.option_strings
        if name.startswith("--")
    }


def completion(options: argparse.Namespace, console: Console) -> int:
    """Print the script for a shell."""
    from kuiper.cli._app import build_parser

    commands = _commands(build_parser())
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell](commands))
    return 0


def _bash(commands: Mapping[str, tuple[str, argparse.ArgumentParser]]) -> str:
    cases, choices = [], []
    for name, (_, parser) in commands.items():
        found = _options(parser)
        cases.append(f"    {name}) words='{' '.join(found)}' ;;")
        for option, (_, values) in found.items():
            if values:
                choices.append(f"    {name}:{option}) words='{' '.join(values)}' ;;")
    choices.append("    completion:completion) words='bash zsh fish' ;;")
    new_line = "\n"
    return f"""\
_kuiper() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} words=''
  local command=${{COMP_WORDS[1]}}
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{" ".join(commands)} --help --version' -- "$current"))
    return
  fi
  case "$command:$previous" in
{new_line.join(choices)}
  esac
  if [ -n "$words" ]; then COMPREPLY=($(compgen -W "$words" -- "$current")); return; fi
  case "$command" in
{new_line.join(cases)}
  esac
  case "$current" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
    *) COMPREPLY=($(compgen -f -- "$current")) ;;
  esac
}}
complete -o filenames -F _kuiper kuiper"""


def _zsh(commands: Mapping[str, tuple[str, argparse.ArgumentParser]]) -> str:
    return "autoload -Uz bashcompinit && bashcompinit\n" + _bash(commands)


def _fish(commands: Mapping[str, tuple[str, argparse.ArgumentParser]]) -> str:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = ["complete -c kuiper -n __fish_use_subcommand -f"]
    for name, (summary, parser) in commands.items():
        lines.append(f"complete -c kuiper -n __fish_use_subcommand -a {name} -d {quoted(summary)}")
        for option, (text, values) in _options(parser).items():
            line = (
                f"complete -c kuiper -n '__fish_seen_subcommand_from {name}' "
                f"-l {option[2:]} -d {quoted(text)}"
            )
            lines.append(f"{line} -xa {quoted(' '.join(values))}" if values else line)
    lines.append(
        "complete -c kuiper -n '__fish_seen_subcommand_from completion' -xa 'bash zsh fish'"
    )
    return "\n".join(lines)
