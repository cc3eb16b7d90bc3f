"""The registry of operator records.

A record is a class that holds everything kuiper knows of an operator: its PyTorch names, its
arguments, how shapes follow from shapes (`infer`) and how it becomes steps (`bind`).  Nothing else
needs an edit when one is added.
"""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, cast

from kuiper.errors import KuiperError
from kuiper.ops.core.schema import Argument
from kuiper.ops.core.type_index import MODULES

__all__ = [
    "NoBatchRule",
    "Record",
    "find_record",
    "function_of",
    "record",
    "record_later",
    "record_or_none",
    "registered_types",
]


class NoBatchRule(str):
    """Says why an operator has no batch rule: as a rule, because members meet in it."""

    __slots__ = ()


class Record:
    """What kuiper knows of one operator.

    Attributes
    ----------
    types : tuple of str
        All names under which files hold it.
    arguments : tuple of Argument
    infer : callable
        ``infer(a)``: argument namespace with :class:`~kuiper.ir.view.TensorSpec` for tensors ->
        one spec or :class:`~kuiper.ops.core.schema.StaticValue`, or a tuple of them, one per
        output. Raises ShapeError with a text that starts after the operator's label.
    bind : callable
        ``bind(a, b)``: argument namespace with :class:`~kuiper.ir.view.TensorView` for tensors and
        a :class:`~kuiper.planning.binder.Binder` -> None; adds steps, or makes an output a view.
    doc : str
        First line of the record's docstring.
    activation : callable or None
        ``activation(a)`` -> (name, p0, p1) of the elementwise function, for an operator that is
        one function of one tensor; passes fuse such operators into their producer.
    layout : str
        The layout of the outputs: ``"channels_last"``, ``"contiguous"``, ``"like"`` (follows the
        first input) or ``"view"``.
    post_ops : bool
        Whether `bind` honours ``operator.post_ops``.
    identity : bool
        Whether the operator hands its first input on; a pass takes it out.
    is_pure : bool
        Whether equal inputs give equal outputs and nothing else happens, so that a pass may compute
        it ahead or only once.
    replaceable : bool
        Whether another record may take its types over: those of users, who define one again.
    runs_in_numpy : bool
        Whether it is a call of numpy between the compiled steps.
    is_folded : bool
        Whether its result is always known while planning, so that it is no step at all.
    data_dependent : bool
        Whether the shapes of its outputs may depend on values that a model computes; where they
        do, `infer` raises :class:`~kuiper.ops.core.schema.ValuesNeeded` and the graph is cut there.
    joined_axis : callable or None
        ``joined_axis(a)``: the axis along which the output holds the inputs side by side, for a
        record that looks where its inputs lie; the planner has them computed in the output then.
    batch : str, NoBatchRule or callable
        How the batch goes through: the name of a rule of :mod:`kuiper.ops.core.batch`, a rule
        ``batch(call)`` of its own, or why there is none.
    internal : bool
        Whether passes alone make such operators; in a file the type is as good as unknown.
    """

    arguments: tuple[Argument, ...] = ()
    activation: Callable[..., Any] | None = None
    layout = "contiguous"
    post_ops = False
    identity = False
    is_pure = True
    replaceable = False
    runs_in_numpy = False
    is_folded = False
    data_dependent = False
    internal = False
    joined_axis: Callable[[Any], int] | None = None
    batch: Callable[[Any], Any] | str | None = None
    types: tuple[str, ...] = ()

    infer: Callable[[Any], Any]
    bind: Callable[[Any, Any], None]


# What makes a record stands for it until somebody looks it up.
_registry: dict[str, type[Record] | Callable[[], type[Record]]] = {}
_making = _thread.RLock()
_Class = type  # where `type` is that of an operator
# The module below kuiper.ops that registers each operator type of kuiper's own.
_module_of = {name: module for module, names in MODULES.items() for name in names.split()}
# The types that were looked up since their module was imported to its end.
_found: dict[str, type[Record]] = {}


def record(*types: str) -> Callable[[type[Record]], type[Record]]:
    """Register a record class for operators of the given types."""

    def register(cls: type[Record]) -> type[Record]:
        cls.types = types
        for name in types:
            if not (cls.replaceable and getattr(_registry.get(name), "replaceable", False)):
                _check_is_new(name)
            _registry[name] = cls
        return cls

    return register


def record_later(types: Sequence[str], make: Callable[[], type[Record]]) -> None:
    """Register a record class that is made when one of its types is looked up.

    For tables of many, of which a model needs a few: to make all activations and poolings takes
    0.6 ms.
    """

    def make_once() -> type[Record]:
        with _making:
            if _registry[types[0]] is make_once:
                cls = make()
                cls.types = tuple(types)
                _registry.update(dict.fromkeys(types, cls))
            return cast("type[Record]", _registry[types[0]])

    make_once.__module__ = make.__module__
    for name in types:
        _check_is_new(name)
        _registry[name] = make_once


def _check_is_new(name: str) -> None:
    if name in _registry:
        raise KuiperError(f"operator type {name!r} has a record already")


def record_or_none(type: str) -> type[Record] | None:
    """Return the record for an operator type, None where kuiper does not know it.

    Its module is imported on the first lookup, so a model pays for the modules that it uses.
    """
    record = _registry.get(type)
    found = _found.get(type)
    if found is not None and found is record:
        return found
    if type in _module_of:
        # If another thread is importing the module, this waits until it has finished: a record is
        # registered before the functions below it in its module exist.
        import_module(f"kuiper.ops.{_module_of[type]}")
        record = _registry[type]
    elif record is None:
        return None
    elif record.__module__ in sys.modules:  # waits likewise
        import_module(record.__module__)
    if not isinstance(record, _Class):
        record = record()
    _found[type] = record
    return record


def find_record(type: str) -> type[Record]:
    """Return the record for the type of an operator whose graph was checked when it was loaded."""
    found = record_or_none(type)
    assert found is not None, type
    return found


def function_of(type: str, a: Any) -> tuple[str, tuple[float, ...]]:
    """Return name and parameters of the elementwise function that an operator is known to be."""
    activation = find_record(type).activation
    assert activation is not None, type
    name, parameters = activation(a)
    return name, parameters


def registered_types() -> list[str]:
    """Return every operator type that a file may hold and that has a record, sorted."""
    for module in MODULES:
        import_module(f"kuiper.ops.{module}")
    return sorted(
        name for name, rule in list(_registry.items()) if not getattr(rule, "internal", False)
    )
