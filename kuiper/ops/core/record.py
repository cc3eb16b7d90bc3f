"""Operator records and their registry.

A record is a class that holds all that kuiper knows of an operator: its PyTorch names, its
arguments, the inference of shapes (`infer`), the binding to steps (`bind`) and the batch rule.  To
add an operator is to add a record; nothing else needs an edit.
"""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast

from kuiper.errors import KuiperError
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.schema import Argument
from kuiper.ops.core.type_index import MODULES

if TYPE_CHECKING:
    from typing import Generic
else:

    class Generic:  # typing's takes 10 us for every record
        __class_getitem__ = classmethod(lambda cls, item: cls)


__all__ = [
    "FOLLOWS",
    "STARTS",
    "NoBatchRule",
    "Record",
    "define_record",
    "find_record",
    "function_of",
    "record",
    "record_later",
    "record_or_none",
    "registered_types",
]

T = TypeVar("T", covariant=True)

# What a record does with operands in bfloat16; see `Record.bfloat16`.
STARTS = "starts"
FOLLOWS = "follows"


class NoBatchRule(str):
    """The reason why an operator has no batch rule: usually, it mixes members of the batch."""

    __slots__ = ()


class Record(Generic[T]):
    """All that kuiper knows of an operator; an instance holds the arguments of one in a graph.

    A subclass declares the arguments as fields, in the order of PyTorch's schema::

        input: T = Tensor()
        dim: int = Int(-1)

    T is the type of tensors: :class:`~kuiper.ir.view.TensorSpec` while shapes are inferred,
    :class:`~kuiper.ir.view.TensorView` while steps are bound, arrays while numpy computes the
    result.  A record inherits the arguments of its base; they come first, or last after ``class
    Sub(Base, ahead=True)``.  An argument that a subclass sets to a plain value is removed.

    Attributes
    ----------
    types : tuple of str
        All type names of the operator in files.
    arguments : tuple of Argument
    n_outputs : int
        The number of the operator's outputs in the graph.
    activation : callable or None
        ``activation()`` -> (name, (p0, p1)) of the elementwise function, for an operator that is
        one function of one tensor; passes fuse such operators into their producer.
    layout : str
        The layout of the outputs, a constant of :class:`~kuiper.ir.view.Layout`.
    post_ops : bool
        Whether `bind` applies ``operator.post_ops``.
    computes_bytes : bool
        Whether it is a product of bytes, whose post-ops may end with ``kuiper.QuantizeLinear`` and
        may add a residual of bytes.
    bfloat16 : str
        Whether `bind` takes views stored in bfloat16, and writes outputs that the planner stores so
        (each of them may be float32 as well): ``STARTS`` for a dense product, which is worth a
        conversion of its input, ``FOLLOWS`` for other operators, ``""`` for float32 only.
    normalizes_rows : bool
        Whether it scales each row of its input by the statistics of this row.
    takes_means : bool
        Whether the outputs are means of elements of the first input.
    identity : bool
        Whether the output is the first input; a pass removes such operators.
    is_pure : bool
        Whether equal inputs give equal outputs without side effects, so that a pass may fold the
        operator or merge equal ones.
    replaceable : bool
        Whether another record may replace it: true for records of users, who redefine them.
    runs_in_numpy : bool
        Whether it is a call of numpy between the compiled steps.
    is_folded : bool
        Whether its result is always known while planning, so that no step is left.
    data_dependent : bool
        Whether the shapes of its outputs may depend on values that a model computes; then `infer`
        raises :class:`~kuiper.ops.core.schema.ValuesNeeded` and the planner cuts the graph.
    joined_axis : callable or None
        ``joined_axis()``: the axis along which the output concatenates the inputs, for a record
        that copies only inputs that are not in the output yet; the planner lets producers write
        into it.
    verify : callable or None
        ``verify(operator)`` raises OperatorError for what the file alone shows to be wrong; called
        when a model is loaded, where no input of the operator is known yet.
    batch : str, NoBatchRule or callable
        The batch rule: the name of a rule in :mod:`kuiper.ops.core.batch`, a method
        ``batch(call)``, or the reason why there is none.
    internal : bool
        Whether only passes make such operators; in a file the type counts as unknown.
    """

    arguments: tuple[Argument, ...] = ()
    n_outputs: int = 1
    activation: Callable[..., Any] | None = None
    layout = Layout.CONTIGUOUS
    post_ops = False
    computes_bytes = False
    bfloat16 = ""
    normalizes_rows = False
    takes_means = False
    identity = False
    is_pure = True
    replaceable = False
    runs_in_numpy = False
    is_folded = False
    data_dependent = False
    internal = False
    joined_axis: Any = None
    verify: Any = None
    batch: Callable[[Any], Any] | str | None = None
    types: tuple[str, ...] = ()

    def __init_subclass__(cls, ahead: bool = False) -> None:
        if "arguments" in vars(cls):
            return
        declared = [name for name, value in vars(cls).items() if isinstance(value, Argument)]
        own = {vars(cls)[name].name: vars(cls)[name] for name in declared}
        for name in declared:  # so that an unset argument is an error, not its declaration
            delattr(cls, name)
        base = {a.name: own.get(a.name, a) for a in cls.arguments if a.name not in vars(cls)}
        cls.arguments = tuple(({**own, **base} if ahead else {**base, **own}).values())

    def __init__(self, /, **values: Any) -> None:
        vars(self).update(values)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"

    def infer(self: Record[TensorSpec]) -> Any:
        """Return the specs of the outputs: one, or a tuple with one per output.

        An output that is no tensor is a :class:`~kuiper.ops.core.schema.StaticValue`.

        Raises
        ------
        ShapeError
            With a text that continues after the operator's label.
        """
        raise NotImplementedError

    def bind(self: Record[TensorView], b: Binder) -> None:
        """Add the steps that compute the outputs, or make them views of the inputs."""
        raise NotImplementedError


# Maps a type to its record, or to a factory that the first lookup calls.
_registry: dict[str, type[Record[Any]] | Callable[[], type[Record[Any]]]] = {}
_making = _thread.RLock()
_Class = type  # parameters named `type` shadow the builtin
# The module below kuiper.ops that registers each built-in operator type.
_module_of = {name: module for module, names in MODULES.items() for name in names.split()}
# The types looked up after their module was completely imported.
_found: dict[str, type[Record[Any]]] = {}


def record(*types: str) -> Callable[[type[Record[Any]]], type[Record[Any]]]:
    """Register a record class for operators of the given types."""

    def register(cls: type[Record[Any]]) -> type[Record[Any]]:
        cls.types = types
        for name in types:
            if not (cls.replaceable and getattr(_registry.get(name), "replaceable", False)):
                _check_is_new(name)
            _registry[name] = cls
        return cls

    return register


def define_record(base: type[Record[Any]], type: str, summary: str, **members: Any) -> None:
    """Register a record that differs from its base in class attributes only."""
    members["__doc__"] = f"{summary}.\n\nSource: {type.replace('aten::', 'torch.')}."
    members["__module__"] = base.__module__
    record(type)(_Class(type.replace("::", ".").rpartition(".")[2], (base,), members))


def record_later(types: Sequence[str], base: type[Record[Any]], name: str, **members: Any) -> None:
    """Register a subclass of `base` that the first lookup of one of its types makes.

    For tables of which a model needs a few rows: making all activations and poolings takes 0.6 ms.
    """

    def make() -> type[Record[Any]]:
        with _making:
            if _registry[types[0]] is make:
                members["__module__"] = base.__module__
                cls: type[Record[Any]] = type(name, (base,), members)
                cls.types = tuple(types)
                _registry.update(dict.fromkeys(types, cls))
            return cast("type[Record[Any]]", _registry[types[0]])

    make.__module__ = base.__module__
    for type_ in types:
        _check_is_new(type_)
        _registry[type_] = make


def _check_is_new(name: str) -> None:
    if name in _registry:
        raise KuiperError(f"operator type {name!r} has a record already")


def record_or_none(type: str) -> type[Record[Any]] | None:
    """Return the record for an operator type, None for an unknown type.

    The first lookup imports the module, so a model pays only for the modules that it uses.
    """
    record = _registry.get(type)
    found = _found.get(type)
    if found is not None and found is record:
        return found
    if type in _module_of:
        # Before its submodules, which records import: threads that import a package and a submodule
        # of it in opposite orders run into a deadlock of their import locks.
        import_module("kuiper.expression")
        # If another thread is importing the module, wait until it has finished: records are
        # registered before the functions below them exist.
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


def find_record(type: str) -> type[Record[Any]]:
    """Return the record for a type that is known to have one: loading has checked the graph."""
    found = record_or_none(type)
    assert found is not None, type
    return found


def function_of(operator: Record[Any]) -> tuple[str, tuple[float, ...]]:
    """Return the name and parameters of the elementwise function that an operator computes."""
    assert operator.activation is not None, operator
    name, parameters = operator.activation()
    return name, parameters


def registered_types() -> list[str]:
    """Return all operator types that have a record and may occur in files, sorted."""
    for module in MODULES:
        import_module(f"kuiper.ops.{module}")
    return sorted(
        name for name, rule in list(_registry.items()) if not getattr(rule, "internal", False)
    )
