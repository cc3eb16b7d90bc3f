"""How the arguments of an operator are collected from an operator of a graph.

PNNX spreads the arguments of one operator over four sources: literal parameters, attributes
(weights), inputs with a keyword and inputs without.  :func:`resolve` collects them from all four,
converts each to the type that the record declares and reports all faults of the operator in one
error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import lru_cache
from operator import is_ as _is
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from kuiper.errors import OperatorError, ShapeError
from kuiper.ir import Operand, Operator
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.schema import (
    REQUIRED,
    TENSORS,
    Argument,
    StaticValue,
    TensorArgument,
    TensorsArgument,
    ValuesNeeded,
    WeightsArgument,
    later_numbers,
    plain_number,
)

if TYPE_CHECKING:
    from kuiper.ops.core.record import Record

__all__ = ["resolve", "settle"]

R = TypeVar("R", bound="Record[Any]")


def resolve(
    operator: Operator,
    record: type[R],
    values: Mapping[Operand, Any],
    attributes: Mapping[str, Any],
) -> R:
    """Collect the arguments of an operator.

    Parameters
    ----------
    operator : Operator
    record : subclass of Record
        The operator's record, which declares them.
    values : mapping of Operand to (TensorSpec, TensorView or StaticValue)
        The operands that are known; the argument of a missing one (before shapes are inferred)
        stays unset.
    attributes : mapping of str to (TensorSpec or TensorView)
        The operator's weights.

    Returns
    -------
    Record
        An instance with one attribute per argument.

    Raises
    ------
    OperatorError
        Lists every argument that is missing, unknown or of a wrong type or value.
    ValuesNeeded
        If a number is the result of a step, so that it is unknown until the model runs.
    """
    template = operator.template
    if template is None or not (
        (template.owner is operator and template.record is record)
        or template.fits(operator, record)
    ):
        template = operator.template = _Template(operator, record)
    given = [values.get(operand, UNKNOWN) for operand in operator._inputs]
    fields = template.filled(given, attributes)
    if fields is None:
        fields = _collect(operator, record, given, attributes).converted()
    return record(**fields)


def settle(operator: Operator, record: type[Record[Any]]) -> None:
    """Let :func:`resolve` rely on an operator that nothing will change any more."""
    template = operator.template
    if template is None or not template.fits(operator, record):
        template = _Template(operator, record)
    operator.template = template.owned_by(operator)


def _collect(
    operator: Operator, record: type[Any], given: Sequence[Any], attributes: Mapping[str, Any]
) -> _Collected:
    collected = _Collected(operator, _signature(record.arguments))
    collected.take_attributes(attributes)
    collected.take_parameters()
    collected.take_inputs(given)
    return collected


class _Signature:
    """A record's arguments, indexed for lookup.

    Attributes
    ----------
    by_name : dict of str to Argument
        In the order of the record.
    aliases : dict of str to str
        Alias to name.
    rest, weights, variadic : str or None
        The argument that takes all other keywords, all other attributes, all inputs.
    literals : frozenset of str
        Arguments whose literal parameter needs no lookup of aliases or tensors.
    """

    def __init__(self, arguments: Sequence[Argument]) -> None:
        self.by_name = {argument.name: argument for argument in arguments}
        self.aliases = {alias: a.name for a in arguments for alias in a.aliases}
        self.rest = next((a.name for a in arguments if a.catches_all), None)
        self.weights = next((a.name for a in arguments if isinstance(a, WeightsArgument)), None)
        self.variadic = next((a.name for a in arguments if isinstance(a, TensorsArgument)), None)
        tensors = {a.name for a in arguments if isinstance(a, TensorArgument)}
        plain = self.by_name.keys() - tensors - self.aliases.keys()
        self.literals = frozenset(() if self.rest else plain)


# The bound exceeds the number of records; records of user-defined operators come and go.
_signature = lru_cache(maxsize=2000)(_Signature)

UNKNOWN: Any = object()

# The types of literal parameters; tensors and static values are none of them.
_LITERALS = frozenset({bool, int, float, str, tuple, list, type(None)})


class _Slot:
    """Stands for the input of a slot while a template is made."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class _Weight:
    """Stands for a weight while a template is made."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class _Template:
    """What is known of an operator's arguments without its inputs: literals, converted once.

    An operator is resolved when a model is loaded, and several times per plan.  Copies of a graph
    share the templates of its operators.

    Attributes
    ----------
    fixed : dict of str to object
        The converted literals and the defaults.
    inputs : list of (str, Argument, int)
        Name, argument and slot.
    weights : list of (str, Argument, str)
        Name, argument and attribute.
    variadic : tuple of (str, list of int), optional
        The argument that takes a list of inputs, and their slots.
    owner : Operator or None
        An operator that nothing will change any more: the template fits it.
    is_regular : bool
        False if the arguments are at fault or take arbitrary keywords: then :class:`_Collected`
        finds the message, or the keywords, from the values.
    """

    def __init__(self, operator: Operator, record: type[Any]) -> None:
        self.record = record
        self.owner: Operator | None = None
        # References, so that the identities that `fits` compares stay unique.
        self.state = _state(operator)
        self.is_regular = False
        signature = _signature(record.arguments)
        if signature.rest is not None or signature.weights is not None:
            return
        slots = [_Slot(number) for number in range(len(operator._inputs))]
        weights = {name: _Weight(name) for name in operator.attributes}
        collected = _collect(operator, record, slots, weights)
        self.fixed: dict[str, Any] = {}
        self.inputs: list[tuple[str, Argument, int]] = []
        self.weights: list[tuple[str, Argument, str]] = []
        self.variadic: tuple[str, list[int]] | None = None
        for name, argument in signature.by_name.items():
            value = collected.found.get(name, argument.default)
            if value is REQUIRED:
                return
            if isinstance(value, _Slot):
                self.inputs.append((name, argument, value.number))
            elif isinstance(value, _Weight):
                self.weights.append((name, argument, value.name))
            elif name == signature.variadic and name in collected.found:
                self.variadic = name, [slot.number for slot in value]
            elif name in collected.found:
                if type(value) not in _LITERALS:
                    value = plain_number(value, argument)
                try:
                    self.fixed[name] = argument.convert(value)
                except (ShapeError, ValueError, OverflowError, TypeError):
                    return
            else:
                self.fixed[name] = value
        self.is_regular = not collected.faults

    def owned_by(self, operator: Operator) -> _Template:
        """Return the template for an operator that it fits, and that nothing will change."""
        owned = copy(self)
        owned.owner = operator
        return owned

    def fits(self, operator: Operator, record: type[Any]) -> bool:
        """Tell whether the operator is as it was when the template was made."""
        if record is not self.record:
            return False
        old, new = self.state, _state(operator)
        # `is`, because True, 1 and 1.0 are equal.
        return len(old) == len(new) and all(map(_is, old, new))

    def filled(self, given: Sequence[Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the converted arguments; None if one does not convert."""
        if not self.is_regular:
            return None
        fields = self.fixed.copy()
        try:
            for name, argument, slot in self.inputs:
                value = given[slot]
                if value is not UNKNOWN:
                    fields[name] = argument.convert(plain_number(value, argument))
            for name, argument, key in self.weights:
                value = attributes.get(key)
                fields[name] = argument.convert(plain_number(value, argument))
            if self.variadic is not None:
                name, slots = self.variadic
                fields[name] = [given[slot] for slot in slots]
        except (ShapeError, ValueError, OverflowError, TypeError):
            return None
        return fields


def _state(operator: Operator) -> list[Any]:
    """Return all that the arguments of an operator depend on, except for values."""
    params = operator.params
    return [
        operator.type, operator.input_keys, operator.post_ops, len(params),
        *operator.attributes, *params, *params.values(),
    ]  # fmt: skip


def _flag(name: str) -> str:
    """Return what a parameter that announces an attribute may be."""
    return f"True with a weight '{name}', or False without"


class _Collected:
    """The arguments of one operator as they are found, and the faults met on the way.

    Attributes
    ----------
    found : dict of str to object
        Values by argument name, before conversion; UNKNOWN for operands not known yet.
    faults : list of str
    """

    def __init__(self, operator: Operator, signature: _Signature) -> None:
        self.operator, self.signature = operator, signature
        self.found: dict[str, Any] = {}
        self.faults: list[str] = []

    def take(self, name: str, value: Any) -> None:
        """Record the value of the argument that has this name or alias."""
        signature = self.signature
        name = signature.aliases.get(name, name)
        if signature.rest is not None:
            self.found.setdefault(signature.rest, {})[name] = _plain(value)
        elif name not in signature.by_name:
            known = ", ".join(n for n, a in signature.by_name.items() if not a.internal) or "none"
            self.faults.append(f"has no argument '{name}' (known: {known})")
        elif name in self.found:
            self.faults.append(f"argument '{name}' is given twice")
        else:
            self.found[name] = value

    def take_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Take the weights of the operator."""
        signature = self.signature
        weights = signature.weights
        for name in self.operator.attributes:
            if weights is None or name in signature.by_name or name in signature.aliases:
                self.take(name, attributes.get(name))
            else:
                self.found.setdefault(weights, {})[name] = attributes.get(name)

    def take_parameters(self) -> None:
        """Take the literal parameters of the operator."""
        literals, by_name, found = self.signature.literals, self.signature.by_name, self.found
        for name, value in self.operator.params.items():
            if name in literals and name not in found:  # the common case
                found[name] = value
                continue
            argument = by_name.get(name)
            is_tensor = isinstance(argument, TensorArgument) and not argument.number
            if is_tensor and (isinstance(value, bool) or name in self.operator.attributes):
                self._check_flag(name, value)
            else:
                self.take(name, value)

    def _check_flag(self, name: str, value: Any) -> None:
        """Check a parameter such as ``bias=True`` against the attribute that it announces."""
        if not isinstance(value, bool):
            self.faults.append(f"argument '{name}' is {value!r}, expected {_flag(name)}")
        elif value != (name in self.operator.attributes):
            has = "is missing" if value else "is there"
            self.faults.append(f"argument '{name}' is {value}, but the tensor '{name}' {has}")

    def take_inputs(self, given: Sequence[Any]) -> None:
        """Take the inputs, one value per slot: by keyword, or else in order."""
        operator = self.operator
        post_slots = {post.slot for post in operator.post_ops}
        # An expression numbers its operands; keys left over from the original operator are ignored.
        keyless = operator.type == "pnnx.Expression"
        positional: list[int] = []
        for slot, key in enumerate(operator.input_keys):
            if slot in post_slots:
                continue
            if key is None or keyless:
                positional.append(slot)
            else:
                self.take(key, given[slot])
        variadic = self.signature.variadic
        if variadic is not None:
            self.found[variadic] = [given[slot] for slot in positional]
        elif positional:
            self._take_positional(positional, given)

    def _take_positional(self, positional: list[int], given: Sequence[Any]) -> None:
        """Assign the inputs without keyword to the arguments that are still open, in order."""
        operator = self.operator
        still_open = [
            argument
            for name, argument in self.signature.by_name.items()
            if name not in self.found and operator.params.get(name) is not False
        ]
        if operator.type.startswith("nn."):
            # A module whose weight is shared carries it as an extra first input as well.
            tensors = [a for a in still_open if isinstance(a, TensorArgument) and not a.internal]
            positional = positional[max(len(positional) - len(tensors), 0) :]
        if not operator.type.startswith("aten::"):
            # Tensors come first, then the numbers that are not literal.  Only operators that keep
            # their TorchScript name have all arguments in schema order.
            still_open.sort(key=lambda a: not isinstance(a, TensorArgument))
        for argument, slot in zip(still_open, positional, strict=False):
            self.found[argument.name] = given[slot]
        for slot in positional[len(still_open) :]:
            self.faults.append(f"takes no further input, but has '{operator.inputs[slot].name}'")

    def converted(self) -> dict[str, Any]:
        """Return the arguments in their declared types, with defaults; raise if any is at fault."""
        found = self.found
        fields: dict[str, Any] = {}
        wanted: list[TensorSpec] = []
        for name, argument in self.signature.by_name.items():
            if name not in found:
                fields[name] = argument.default  # REQUIRED is a fault, so no record sees it
                if argument.default is REQUIRED:
                    fault = f"argument '{name}' is missing, expected {argument.expected}"
                    self.faults.append(fault)
                continue
            value = found[name]
            if value is UNKNOWN:
                continue
            if type(value) not in _LITERALS:
                value = plain_number(value, argument)
            try:
                fields[name] = argument.convert(value)
            except ShapeError as error:
                self.faults.append(str(error))
            except (ValueError, OverflowError, TypeError):
                if later := later_numbers(value, argument):
                    wanted += later
                    continue
                is_tensor = isinstance(value, TENSORS)
                got = f"the tensor {value}" if is_tensor else repr(value)
                expected = argument.expected
                if isinstance(argument, TensorArgument) and self.operator.type.startswith("nn."):
                    expected = _flag(name)
                self.faults.append(f"argument '{name}' is {got}, expected {expected}")
        if self.faults:
            raise OperatorError(f"{self.operator.label}: " + "; ".join(self.faults))
        if wanted:
            text = f"{self.operator.label}: a number is computed while the model runs"
            raise ValuesNeeded(text, wanted)
        return fields


def _plain(value: Any) -> Any:
    """Return a keyword's value as a user's function receives it: Python values and arrays."""
    if isinstance(value, StaticValue):
        return value.value
    if isinstance(value, TENSORS) and value.is_constant:
        return np.asarray(value.constant, value.dtype)
    return value  # a tensor that is not known yet
