"""The operators of ONNX that kuiper knows: a function with ONNX's signature for each.

::

    @op("ReduceSum")
    def reduce_sum(b, x, axes=None, *, keepdims=1, noop_with_empty_axes=0): ...

Inputs are given by position, attributes by name; an argument that older versions have as attribute
and newer ones as input is one argument.  `since` is the first opset in which the function holds, so
an operator that changed has several.  An attribute that the function lacks is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

__all__ = ["FOLDS", "OPERATORS", "Mapping", "find", "fold", "op"]

ONNX = ""  # the domain that files call "" or "ai.onnx"
KINDS: dict[str, type] = {"int": int, "float": float, "str": str, "int | None": int}


class Mapping(NamedTuple):
    """How one operator is translated.

    Attributes
    ----------
    function : callable
        ``function(builder, *inputs, **attributes)`` returns the outputs.
    since : int
    names : frozenset of str
        All arguments that may be given by name.
    inputs : int
        The maximum number of inputs; -1 for any.
    required : tuple of str
        The first inputs, which an operator must have.
    keywords : tuple of str
        The attributes that an operator must have.
    kinds : dict of str to type
        The types of the attributes that the function annotates as int, float or str.
    """

    function: Callable[..., Any]
    since: int
    names: frozenset[str]
    inputs: int
    required: tuple[str, ...]
    keywords: tuple[str, ...]
    kinds: dict[str, type]


# By domain and type, in the order of the versions.
OPERATORS: dict[tuple[str, str], list[Mapping]] = {}
# Functions of arrays by type, for inputs that the file determines.
FOLDS: dict[str, Callable[..., Any]] = {}


def op(*types: str, since: int = 1, domain: str = ONNX) -> Callable[..., Any]:
    """Register a function as the translation of operators from the opset `since` on."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        code = function.__code__
        stop = code.co_argcount + code.co_kwonlyargcount
        has_rest = bool(code.co_flags & 4)  # *inputs
        given = code.co_varnames[1 : code.co_argcount]
        keywords = code.co_varnames[code.co_argcount : stop]
        optional = function.__kwdefaults__ or {}
        mapping = Mapping(
            function,
            since,
            frozenset(code.co_varnames[1:stop]),
            -1 if has_rest else len(given),
            given[: len(given) - len(function.__defaults__ or ())]
            or (("input",) if has_rest and not given else ()),
            tuple(name for name in keywords if name not in optional),
            {
                name: KINDS[kind]
                for name, kind in function.__annotations__.items()
                if name in keywords and kind in KINDS
            },
        )
        for type_ in types:
            versions = OPERATORS.setdefault((domain, type_), [])
            versions.append(mapping)
            versions.sort(key=lambda version: version.since)
        return function

    return register


def fold(*types: str) -> Callable[..., Any]:
    """Register a function of arrays, with the operator's signature, as its meaning in numpy."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        FOLDS.update(dict.fromkeys(types, function))
        return function

    return register


def find(domain: str, type_: str, version: int) -> Mapping | None:
    """Return the translation of an operator in a version of its domain, None if there is none."""
    found: Iterable[Mapping] = OPERATORS.get((domain, type_), ())
    return next((m for m in reversed(list(found)) if m.since <= version), None)
