"""Names of inputs and outputs in an export, and of the classes that pnnx keeps whole."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from kuiper.errors import InputError, KuiperError
from kuiper.ir import Graph
from kuiper.onnx import end_names
from kuiper.planning.names import INPUT, OUTPUT, tensors_at, write_names
from kuiper.pnnx import load_graph
from kuiper.pnnx._messages import listing
from kuiper.pnnx.param import format

__all__ = ["check_classes", "classes", "finish", "onnx_names", "parameter_names", "results_named"]


def parameter_names(module: Any, count: int) -> list[str]:
    """Return the names of the first parameters of `forward`; none if it hides them."""
    if hasattr(module, "_c"):  # TorchScript
        return [part.name for part in module.forward.schema.arguments[1:]][:count]
    try:
        parameters = [*inspect.signature(module.forward).parameters.values()]
    except (TypeError, ValueError):  # a function without a signature
        return []
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}.{n}" for n in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return names[:count]


@contextmanager
def results_named(module: Any) -> Iterator[list[str]]:
    """Yield a list, which the last call of the module fills with the names of its results."""
    names: list[str] = []

    def note(module: Any, inputs: Any, result: Any) -> None:
        names[:] = _result_names(result)

    hook = module.register_forward_hook(note)
    try:
        yield names
    finally:
        hook.remove()


def _result_names(result: Any) -> list[str]:
    """Return the path of keys to each tensor; nothing if there are no keys but numbers."""
    paths: list[str] = []
    has_keys = False

    def walk(value: Any, path: tuple[str, ...]) -> None:
        nonlocal has_keys
        if value is None:
            return
        if isinstance(value, Mapping):
            items, has_keys = [*value.items()], True
        elif hasattr(value, "_fields"):  # a named tuple
            items, has_keys = [*zip(value._fields, value, strict=True)], True
        elif isinstance(value, list | tuple):
            items = [*enumerate(value)]
        else:
            paths.append(".".join(path))
            return
        for key, item in items:
            walk(item, (*path, str(key)))

    walk(result, ())
    return paths if has_keys else []


def onnx_names(path: Path) -> tuple[list[str], list[str]]:
    """Return the names of the inputs and outputs of an ONNX file; none of a damaged one."""
    try:
        return end_names(path)
    except KuiperError:
        return [], []  # pnnx has the last word on it


def classes(moduleop: str | None) -> list[str]:
    """Return the classes that `moduleop` names.

    Raises
    ------
    InputError
        If it is no string.
    """
    if not isinstance(moduleop, str | None):
        raise InputError(f"moduleop is {moduleop!r}, expected a string: 'package.A,package.B'")
    return [name.strip() for name in (moduleop or "").split(",") if name.strip()]


def check_classes(module: Any, moduleop: str | None, torch: Any) -> None:
    """Raise InputError if no part of a module is of a class that `moduleop` names."""
    known = {
        torch._jit_internal._qualified_name(type(part)).removeprefix("__torch__.")
        for part in module.modules()
    }
    _refuse_unknown(classes(moduleop), known, f"{type(module).__name__} has no module")


def _refuse_unknown(wanted: Sequence[str], known: set[str], what: str) -> None:
    for name in wanted:
        if name in known:
            continue
        last = name.rpartition(".")[2]
        near = [full for full in sorted(known) if full.rpartition(".")[2] == last]
        near = near or get_close_matches(name, known, 3)
        others = sorted(full for full in known if not full.startswith("torch."))
        raise InputError(
            f"moduleop: {what} of the class '{name}'"
            + (f"; did you mean {' or '.join(near)}?" if near else "")
            + (f"; it has {listing(others, 8)}" if others and not near else "")
        )


def finish(
    param: Path,
    name: str,
    moduleop: str | None,
    wanted: tuple[Sequence[str] | None, Sequence[str] | None],
    found: tuple[Sequence[str], Sequence[str]],
) -> None:
    """Check a conversion, and write the names of inputs and outputs into the text.

    Raises
    ------
    InputError
        If no operator has a class of `moduleop`, or the wanted names do not fit.
    """
    if not (moduleop or any(found) or any(names is not None for names in wanted)):
        return
    graph = load_graph(param)
    types = {type for type in graph.type_counts() if not type.startswith(("pnnx.", "prim::"))}
    _refuse_unknown(classes(moduleop), types, f"{name} calls no module")
    named = False
    for end, names, traced in zip((INPUT, OUTPUT), wanted, found, strict=True):
        if names is not None:
            write_names(graph, end, names)
            named = True
        elif _fit(graph, end, traced):
            write_names(graph, end, traced)
            named = True
    if named:
        param.write_text(format(graph), encoding="utf-8", newline="\n")


def _fit(graph: Graph, end: str, names: Sequence[str]) -> bool:
    """Tell whether names that the export found belong to the tensors at one end."""
    count = sum(len(tensors) for _, tensors in tensors_at(graph, end))
    return bool(names) and len(names) == count == len(set(names)) and all(names)
