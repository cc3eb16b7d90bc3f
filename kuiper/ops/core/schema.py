"""Typed arguments of operator records, and how they are collected from an operator of a graph.

PNNX spreads the arguments of one operator over four sources: literal parameters, attributes
(weights), inputs with a keyword and inputs without.  A record lists its arguments once;
:func:`resolve` collects them from all four, converts each to its declared type and reports all
faults of the operator in one error.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

import numpy as np

from kuiper.errors import OperatorError, ShapeError
from kuiper.ir import Attribute, Operand, Operator
from kuiper.ir.dtypes import DTYPES, from_scalar_type, from_torch
from kuiper.ir.view import TensorSpec, TensorView

if TYPE_CHECKING:
    from kuiper.ops.core.record import Record

__all__ = [
    "AnyArgument",
    "Argument",
    "Bool",
    "DType",
    "Float",
    "FloatArgument",
    "Int",
    "Ints",
    "Known",
    "Numbers",
    "Scalar",
    "StaticValue",
    "Str",
    "StrArgument",
    "Tensor",
    "TensorArgument",
    "TensorList",
    "Tensors",
    "ValuesNeeded",
    "Weights",
    "convert_positional",
    "field",
    "resolve",
    "schema",
]

# Upper bound of counts, extents and strides, so that a kernel can multiply one by the bytes of a
# row without overflow of 64 bits.  No tensor that fits into memory exceeds it.
MAX_COUNT = 2**40

# A tensor while a graph is planned: a spec while shapes are inferred, a view while steps are bound.
Known: TypeAlias = TensorSpec | TensorView
TENSORS = (TensorSpec, TensorView)  # for isinstance, where a union would be made at each call

REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "REQUIRED"})()


class ValuesNeeded(ShapeError):
    """Shapes depend on values that the model computes, so they are unknown before it runs.

    The planner cuts the graph before such an operator; see :mod:`kuiper.planning.segments`.

    Parameters
    ----------
    message : str
    specs : sequence of TensorSpec
        The tensors whose values are needed to plan the operator.  If empty, the operator has to
        be computed from all its inputs before the shapes of its outputs are known.
    """

    def __init__(self, message: str, specs: Sequence[TensorSpec] = ()) -> None:
        super().__init__(message)
        self.specs = tuple(specs)


class StaticValue:
    """A value that is known while planning and is no tensor: a number, list, string or None."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"StaticValue({self.value!r})"


class Argument:
    """A named argument of an operator; this base class accepts any value.

    Parameters
    ----------
    default : object, optional
        The value of an absent argument; without it the argument is required.
    """

    expected = "a value"
    is_numeric = False  # whether a tensor of one element may replace a number in it
    internal = False  # whether only passes set it, always by name
    catches_all = False  # whether it takes all keywords that no other argument names
    aliases: tuple[str, ...] = ()
    name = ""

    def __init__(self, default: Any = REQUIRED) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name.rstrip("_")  # a record appends "_" to a name that Record uses itself

    def convert(self, value: Any) -> Any:
        """Return `value` as the declared type, or raise ValueError, or ShapeError with a text."""
        return value

    def __repr__(self) -> str:
        default = "" if self.default is REQUIRED else f"={self.default}"
        return f"{self.name}{default}"


class TensorArgument(Argument):
    """A tensor: an input operand or an attribute.

    Parameters
    ----------
    optional : bool
        Whether None is allowed.
    rank : int or tuple of int, optional
        Allowed numbers of axes.
    number : bool
        Whether a Python number is allowed instead.
    aliases : tuple of str
        Other keywords for the argument: the module and the function may differ.
    internal : bool
        Whether only passes set it, always by name; it is not part of the operator's interface.
    """

    expected = "a tensor"

    def __init__(
        self, optional: bool = False, rank: Any = None, number: Any = False, aliases: Any = (),
        internal: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(None if optional else REQUIRED)
        self.aliases, self.internal = aliases, internal
        self.rank = (rank,) if isinstance(rank, int) else rank
        self.number = number

    def convert(self, value: Any) -> Any:
        if isinstance(value, TENSORS):
            if self.rank is not None and value.rank not in self.rank:
                ranks = " or ".join(map(str, self.rank))
                raise ShapeError(f"'{self.name}' has shape {value.shape}, expected rank {ranks}")
            return value
        if value is None and self.default is None:
            return None
        if self.number and isinstance(value, numbers.Number):
            return value
        raise ValueError


class _Tensors(Argument):
    """All remaining positional inputs, as a list."""

    expected = "one or more tensors"


class _Weights(Argument):
    """All attributes that no other argument names, as a dict; for modules of any depth."""

    expected = "weights"


class _TensorList(Argument):
    """A list of tensors, and of None where `gaps` are allowed."""

    expected = "a list of tensors"

    def __init__(self, gaps: bool = False) -> None:
        super().__init__()
        self.gaps = gaps

    def convert(self, value: Any) -> Any:
        allowed = (*TENSORS, type(None)) if self.gaps else TENSORS
        if not isinstance(value, tuple | list) or not all(isinstance(v, allowed) for v in value):
            raise ValueError
        return tuple(value)


class _Int(Argument):
    """An integer, at least `minimum`; also None if `nullable`."""

    is_numeric = True

    def __init__(
        self, default: Any = REQUIRED, minimum: int | None = None, nullable: bool = False
    ) -> None:
        super().__init__(default)
        self.minimum, self.nullable = minimum, nullable
        self.expected = "an integer" if minimum is None else f"an integer >= {minimum}"

    def convert(self, value: Any) -> Any:
        if value is None and self.nullable:
            return None
        return _integer(value, self.minimum)


class _Numbers(Argument):
    """A tuple of real numbers; a single number is repeated `length` times.

    Parameters
    ----------
    length : int, optional
        How many numbers there are; any if None.
    default : object, optional
    nullable : bool
        Whether None is allowed instead.
    """

    is_numeric = True

    def __init__(self, length: Any = None, default: Any = REQUIRED, nullable: Any = False) -> None:
        super().__init__(default)
        self.length, self.nullable = length, nullable
        self.expected = "numbers" if length is None else f"{length} numbers"

    def convert(self, value: Any) -> Any:
        if value is None and self.nullable:
            return None
        items = value if isinstance(value, tuple | list) else (value,)
        return self.repeated(tuple([_real(item) for item in items]))

    def repeated(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        """Repeat a single item to the declared length; raise ValueError for another length."""
        if self.length is not None and len(items) != self.length:
            if len(items) != 1:
                raise ValueError
            items *= self.length
        return items


class _Ints(_Numbers):
    """A tuple of integers; a single integer is repeated `length` times.

    Parameters
    ----------
    length, default, nullable
        As for numbers.
    minimum : int, optional
    words : tuple of str
        Strings that are allowed instead (``same``, ``valid``).
    """

    def __init__(
        self, length: Any = None, default: Any = REQUIRED, minimum: Any = None, words: Any = (),
        nullable: Any = False,
    ) -> None:  # fmt: skip
        super().__init__(length, default, nullable)
        self.minimum, self.words = minimum, words
        count = "integers" if length is None else f"{length} integers"
        self.expected = count if minimum is None else f"{count} >= {minimum}"
        if words:
            self.expected += " or one of " + ", ".join(words)

    def convert(self, value: Any) -> Any:
        if isinstance(value, str) and value in self.words:
            return value
        if value is None and (self.nullable or self.length is None):
            return None if self.nullable else ()  # PNNX writes an empty list as None
        if isinstance(value, np.ndarray):
            value = value.tolist()
        items = value if isinstance(value, tuple | list) else (value,)
        return self.repeated(tuple([_integer(item, self.minimum) for item in items]))


class FloatArgument(Argument):
    """A real number; also None if `nullable`."""

    is_numeric = True
    expected = "a number"

    def __init__(self, default: Any = REQUIRED, nullable: bool = False) -> None:
        super().__init__(default)
        self.nullable = nullable

    def convert(self, value: Any) -> Any:
        if value is None and self.nullable:
            return None
        return _real(value)


class _Scalar(FloatArgument):
    """A number that keeps its Python type, because the dtype of the result may depend on it."""

    def convert(self, value: Any) -> Any:
        if isinstance(value, numbers.Number) or (value is None and self.nullable):
            return value
        return _real(value)


class _DType(Argument):
    """An element type: PyTorch's name or, in positional arguments, its number."""

    expected = "a dtype such as torch.float"

    def convert(self, value: Any) -> Any:
        if value is None and self.default is None:
            return None
        try:
            found = from_torch(value) if isinstance(value, str) else from_scalar_type(value)
        except KeyError:
            raise ValueError from None
        return found.value


class _Bool(Argument):
    """A truth value."""

    is_numeric = True
    expected = "True or False"

    def convert(self, value: Any) -> bool:
        if isinstance(value, bool | np.bool_) or value in (0, 1):
            return bool(value)
        raise ValueError


class StrArgument(Argument):
    """One of several words.

    Parameters
    ----------
    choices : tuple of str, optional
        The allowed words; any if None.
    default : str or None, optional
    """

    def __init__(self, choices: Any = None, default: Any = REQUIRED) -> None:
        super().__init__(default)
        self.choices = choices
        self.expected = "a word" if choices is None else "one of " + ", ".join(choices)

    def convert(self, value: Any) -> Any:
        if value is None and self.default is None:
            return None
        if isinstance(value, str) and (self.choices is None or value in self.choices):
            return value
        raise ValueError


P = ParamSpec("P")


def field(argument: Callable[P, Argument]) -> Callable[P, Any]:
    """Type the declaration of an argument as Any, so that a record can annotate its value."""
    return argument


AnyArgument, Tensor, Tensors = field(Argument), field(TensorArgument), field(_Tensors)
Weights, TensorList = field(_Weights), field(_TensorList)
Int, Ints, Float = field(_Int), field(_Ints), field(FloatArgument)
Scalar, DType, Numbers = field(_Scalar), field(_DType), field(_Numbers)
Bool, Str = field(_Bool), field(StrArgument)


def schema(**arguments: Any) -> tuple[Argument, ...]:
    """Name arguments that are declared outside of a class body, and return them."""
    for name, argument in arguments.items():
        argument.name = name
    return tuple(arguments.values())


def _integer(value: Any, minimum: int | None = None) -> int:
    number: Any = value
    if type(value) is not int:  # the rare case
        if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
            raise ValueError
        number = int(number)
        if not isinstance(value, numbers.Integral) and value != number:
            raise ValueError
    if minimum is None:
        minimum, maximum = -(2**63), 2**63 - 1
    else:
        maximum = MAX_COUNT
    if not minimum <= number <= maximum:
        raise ValueError
    return number


def _real(value: Any) -> float:
    if isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_):
        return float(value)
    if isinstance(value, str):
        return float(value)  # files spell 'inf', '-inf' and 'nan' as words
    raise ValueError


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
    collected = _Collected(operator, _signature(record.arguments))
    collected.take_attributes(attributes)
    collected.take_parameters()
    collected.take_inputs(values)
    return record(**collected.converted())


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
        self.weights = next((a.name for a in arguments if isinstance(a, _Weights)), None)
        self.variadic = next((a.name for a in arguments if isinstance(a, _Tensors)), None)
        tensors = {a.name for a in arguments if isinstance(a, TensorArgument)}
        plain = self.by_name.keys() - tensors - self.aliases.keys()
        self.literals = frozenset(() if self.rest else plain)


# The bound exceeds the number of records; records of user-defined operators come and go.
_signature = lru_cache(maxsize=2000)(_Signature)

UNKNOWN: Any = object()

# The types of literal parameters; tensors and static values are none of them.
_LITERALS = frozenset({bool, int, float, str, tuple, list, type(None)})


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
            if is_tensor and isinstance(value, bool):
                self._check_flag(name, value)
            else:
                self.take(name, value)

    def _check_flag(self, name: str, value: bool) -> None:
        """Check a parameter such as ``bias=True`` against the attribute that it announces."""
        if value != (name in self.operator.attributes):
            has = "is missing" if value else "is there"
            self.faults.append(f"argument '{name}' is {value}, but the tensor '{name}' {has}")

    def take_inputs(self, values: Mapping[Operand, Any]) -> None:
        """Take the inputs: those with a keyword by name, the others in order."""
        operator = self.operator
        post_slots = {post.slot for post in operator.post_ops}
        # An expression numbers its operands; keys left over from the original operator are ignored.
        keyless = operator.type == "pnnx.Expression"
        positional: list[Operand] = []
        inputs = zip(operator.inputs, operator.input_keys, strict=True)
        for slot, (operand, key) in enumerate(inputs):
            if slot in post_slots:
                continue
            if key is None or keyless:
                positional.append(operand)
            else:
                self.take(key, values.get(operand, UNKNOWN))
        variadic = self.signature.variadic
        if variadic is not None:
            self.found[variadic] = [values.get(operand, UNKNOWN) for operand in positional]
        elif positional:
            self._take_positional(positional, values)

    def _take_positional(self, positional: list[Operand], values: Mapping[Operand, Any]) -> None:
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
        for argument, operand in zip(still_open, positional, strict=False):
            self.found[argument.name] = values.get(operand, UNKNOWN)
        for operand in positional[len(still_open) :]:
            self.faults.append(f"takes no further input, but has '{operand.name}'")

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
                value = _plain_number(value, argument)
            try:
                fields[name] = argument.convert(value)
            except ShapeError as error:
                self.faults.append(str(error))
            except (ValueError, OverflowError, TypeError):
                if later := _later_numbers(value, argument):
                    wanted += later
                    continue
                is_tensor = isinstance(value, TENSORS)
                got = f"the tensor {value}" if is_tensor else repr(value)
                self.faults.append(f"argument '{name}' is {got}, expected {argument.expected}")
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


def _is_number(value: Any) -> bool:
    """Whether a tensor holds one known number, so that it may replace a Python number."""
    return isinstance(value, TENSORS) and value.is_constant and value.size == 1


def convert_positional(values: Sequence[Any], arguments: Sequence[Argument]) -> dict[str, Any]:
    """Read the inputs of an operator as arguments in the same order.

    Parameters
    ----------
    values : sequence of (TensorSpec, TensorView or StaticValue)
    arguments : sequence of Argument
        At least as many as values; trailing arguments without value take their default.

    Returns
    -------
    dict of str to object
        Converted values by argument name.

    Raises
    ------
    ValueError
        If a value does not fit its argument, or one without default is missing.
    ValuesNeeded
        If the values fit, but a number among them is computed while the model runs.
    """
    result: dict[str, Any] = {}
    wanted: list[TensorSpec] = []
    for position, argument in enumerate(arguments):
        if position < len(values):
            value = _plain_number(values[position], argument)
            try:
                result[argument.name] = argument.convert(value)
            except (ValueError, TypeError):
                wanted += _later_numbers(value, argument)
                if not wanted:
                    raise
        elif argument.default is REQUIRED:
            raise ValueError
        else:
            result[argument.name] = argument.default
    if len(values) > len(arguments):
        raise ValueError
    if wanted:
        raise ValuesNeeded("a number is computed while the model runs", wanted)
    return result


def _plain_number(value: Any, argument: Argument) -> Any:
    """Unwrap a static value, and known tensors of one element unless a tensor is declared."""
    if isinstance(value, StaticValue):
        value = value.value
        if argument.is_numeric and isinstance(value, tuple | list):
            return [item.constant.item() if _is_number(item) else item for item in value]
    if not isinstance(argument, TensorArgument) and _is_number(value):
        return value.constant.item()
    return value


def _later_numbers(value: Any, argument: Argument) -> list[TensorSpec]:
    """Return the tensors of one element that supply numbers and are not computed yet."""
    if not argument.is_numeric:
        return []
    items = value if isinstance(value, tuple | list) else (value,)
    tensors = [item for item in items if isinstance(item, TensorSpec)]
    return [tensor for tensor in tensors if not tensor.is_constant and tensor.size == 1]


def attribute_spec(attribute: Attribute) -> TensorSpec:
    """Return the spec of a weight.

    Half precision is a storage format only: the spec says float32, and packing widens the weight
    as it reads it, without a copy in between.
    """
    dtype = DTYPES[attribute.dtype].value
    return TensorSpec(attribute.shape, np.float32 if dtype == np.float16 else dtype, attribute)
