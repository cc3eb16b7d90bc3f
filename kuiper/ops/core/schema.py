"""Typed arguments of operator records, and how they are found on an operator of a graph.

PNNX spreads the arguments of one operator over four places: literal parameters, attributes
(weights), inputs with a keyword and inputs without.  A record lists its arguments once;
:func:`resolve` collects each from wherever it stands, converts it to the declared type and
reports every fault of the operator at once.
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

# Counts, extents, strides and the like stay below it, so that kernels may multiply such a number by
# the bytes of a row without leaving 64 bits.  No tensor that a machine can hold needs more.
MAX_COUNT = 2**40

# A tensor while a graph is planned: its shape while shapes are inferred, then where it lies.
Known: TypeAlias = TensorSpec | TensorView

REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "REQUIRED"})()


class ValuesNeeded(ShapeError):
    """Shapes cannot be told before the model runs: they depend on values that it computes.

    The planner cuts the graph in front of such an operator; see :mod:`kuiper.planning.segments`.

    Parameters
    ----------
    message : str
    specs : sequence of TensorSpec
        The tensors whose values are needed to plan the operator.  None at all means that the
        operator has to be computed, from all its inputs, to know the shapes of its outputs.
    """

    def __init__(self, message: str, specs: Sequence[TensorSpec] = ()) -> None:
        super().__init__(message)
        self.specs = tuple(specs)


class StaticValue:
    """A value known while planning that is not a tensor: a number, list, string or None."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"StaticValue({self.value!r})"


class Argument:
    """A named argument of an operator.

    Parameters
    ----------
    default : object, optional
        Taken where the argument is absent; an argument without default is required.
    """

    expected = "a value"
    is_numeric = False  # whether a tensor of one element may stand for a number of it
    internal = False  # whether passes alone set it, always by name
    catches_all = False  # whether it takes all keywords that no other argument names
    aliases: tuple[str, ...] = ()
    name = ""

    def __init__(self, default: Any = REQUIRED) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name.rstrip("_")  # with one at the end if records have another use for a name

    def convert(self, value: Any) -> Any:
        """Return `value` as the declared type, or raise `ValueError`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        default = "" if self.default is REQUIRED else f"={self.default}"
        return f"{self.name}{default}"


class _Any(Argument):
    """An argument that is taken as it comes."""

    def convert(self, value: Any) -> Any:
        return value


class TensorArgument(Argument):
    """A tensor: an input operand or an attribute.

    Parameters
    ----------
    optional : bool
        Whether None is allowed.
    rank : int or tuple of int, optional
        Allowed numbers of axes.
    number : bool
        Whether a Python number may stand in its place.
    aliases : tuple of str
        Other keywords for the same argument, where spellings of one operator differ.
    internal : bool
        Whether passes alone set it, always by name; it is no part of the operator's interface.
    """

    expected = "a tensor"

    def __init__(
        self,
        optional: bool = False,
        rank: Any = None,
        number: Any = False,
        aliases: Any = (),
        internal: bool = False,
    ) -> None:
        super().__init__(None if optional else REQUIRED)
        self.aliases, self.internal = aliases, internal
        self.rank = (rank,) if isinstance(rank, int) else rank
        self.number = number

    def convert(self, value: Any) -> Any:
        if isinstance(value, TensorSpec | TensorView):
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

    def convert(self, value: Any) -> Any:
        return value


class _TensorList(Argument):
    """A list of tensors, and of None where `gaps` are allowed."""

    expected = "a list of tensors"

    def __init__(self, gaps: bool = False) -> None:
        super().__init__()
        self.gaps = gaps

    def convert(self, value: Any) -> Any:
        if not isinstance(value, tuple | list):
            raise ValueError
        for item in value:
            if not isinstance(item, TensorSpec | TensorView) and not (self.gaps and item is None):
                raise ValueError
        return tuple(value)


class _Int(Argument):
    """An integer, at least `minimum`; None too where it is `nullable`."""

    is_numeric = True

    def __init__(
        self,
        default: Any = REQUIRED,
        minimum: int | None = None,
        nullable: bool = False,
    ) -> None:
        super().__init__(default)
        self.minimum, self.nullable = minimum, nullable
        self.expected = "an integer" if minimum is None else f"an integer >= {minimum}"

    def convert(self, value: Any) -> Any:
        if value is None and self.nullable:
            return None
        return _integer(value, self.minimum)


class _Ints(Argument):
    """A tuple of integers; one integer stands for `length` equal ones.

    Parameters
    ----------
    length : int, optional
        How many there are; any number where None.
    default : object, optional
    minimum : int, optional
    words : tuple of str
        Strings that may stand in their place (``same``, ``valid``).
    nullable : bool
        Whether None may stand in their place.
    """

    is_numeric = True

    def __init__(
        self,
        length: Any = None,
        default: Any = REQUIRED,
        minimum: Any = None,
        words: Any = (),
        nullable: Any = False,
    ) -> None:
        super().__init__(default)
        self.length, self.minimum, self.words, self.nullable = length, minimum, words, nullable
        count = "integers" if length is None else f"{length} integers"
        self.expected = count if minimum is None else f"{count} >= {minimum}"
        if words:
            self.expected += " or one of " + ", ".join(words)

    def convert(self, value: Any) -> Any:
        if isinstance(value, str) and value in self.words:
            return value
        if value is None:
            if self.nullable:
                return None
            if self.length is None:
                return ()  # PNNX writes an empty list as None
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if isinstance(value, tuple | list):
            items = tuple([_integer(item, self.minimum) for item in value])
            if self.length is not None and len(items) == 1:
                items *= self.length
        else:
            items = (_integer(value, self.minimum),) * (1 if self.length is None else self.length)
        if self.length is not None and len(items) != self.length:
            raise ValueError
        return items


class FloatArgument(Argument):
    """A real number."""

    is_numeric = True
    expected = "a number"

    def __init__(self, default: Any = REQUIRED, nullable: bool = False) -> None:
        super().__init__(default)
        self.nullable = nullable

    def convert(self, value: Any) -> Any:
        if value is None and self.nullable:
            return None
        return _real(value)


class _Scalar(Argument):
    """A number that keeps its kind, on which the dtype of a result may depend."""

    is_numeric = True
    expected = "a number"

    def __init__(self, default: Any = REQUIRED, nullable: bool = False) -> None:
        super().__init__(default)
        self.nullable = nullable

    def convert(self, value: Any) -> Any:
        if isinstance(value, numbers.Number) or (value is None and self.nullable):
            return value
        return _real(value)


class _DType(Argument):
    """An element type in PyTorch's spelling, or its number as positional arguments have it."""

    expected = "a dtype such as torch.float"

    def __init__(self, default: Any = REQUIRED) -> None:
        super().__init__(default)

    def convert(self, value: Any) -> Any:
        if value is None and self.default is None:
            return None
        try:
            found = from_torch(value) if isinstance(value, str) else from_scalar_type(value)
        except KeyError:
            raise ValueError from None
        return found.value


class _Numbers(Argument):
    """A tuple of real numbers; one number stands for `length` equal ones."""

    is_numeric = True

    def __init__(self, length: Any = None, default: Any = REQUIRED, nullable: Any = False) -> None:
        super().__init__(default)
        self.length, self.nullable = length, nullable
        self.expected = "numbers" if length is None else f"{length} numbers"

    def convert(self, value: Any) -> Any:
        if value is None and self.nullable:
            return None
        items = value if isinstance(value, tuple | list) else (value,)
        items = tuple(_real(item) for item in items)
        if self.length is not None and len(items) == 1:
            items *= self.length
        if self.length is not None and len(items) != self.length:
            raise ValueError
        return items


class _Bool(Argument):
    """A truth value."""

    is_numeric = True
    expected = "True or False"

    def convert(self, value: Any) -> bool:
        if isinstance(value, bool | np.bool_) or value in (0, 1):
            return bool(value)
        raise ValueError


class StrArgument(Argument):
    """One of some words.

    Parameters
    ----------
    choices : tuple of str, optional
        All words allowed; any where None.
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
    """Show type checkers what a record declares as the value it stands for, not as an Argument."""
    return argument


AnyArgument, Tensor, Tensors, Weights = (
    field(_Any),
    field(TensorArgument),
    field(_Tensors),
    field(_Weights),
)
TensorList, Int, Ints, Float = field(_TensorList), field(_Int), field(_Ints), field(FloatArgument)
Scalar, DType, Numbers = field(_Scalar), field(_DType), field(_Numbers)
Bool, Str = field(_Bool), field(StrArgument)


def schema(**arguments: Any) -> tuple[Argument, ...]:
    """Return arguments that are no members of a class, each with its name."""
    for name, argument in arguments.items():
        argument.name = name
    return tuple(arguments.values())


def _integer(value: Any, minimum: int | None = None) -> int:
    number: Any = value
    if type(value) is not int:  # as almost all are
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
        return float(value)  # 'inf', '-inf' and 'nan' reach us as words
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
        What is known of the operands; those that are missing (before shapes are known) leave
        their argument unset.
    attributes : mapping of str to (TensorSpec or TensorView)
        What stands for the operator's attributes.

    Returns
    -------
    Record
        An instance with one attribute per argument.

    Raises
    ------
    OperatorError
        Listing every argument that is missing, unknown or of a wrong type or value.
    """
    signature = _signature(record.arguments)
    by_name, aliases, literals = signature.by_name, signature.aliases, signature.literals
    rest, weights = signature.rest, signature.weights
    found: dict[str, Any] = {}
    faults: list[str] = []
    post_slots = {post.slot for post in operator.post_ops}

    def take(name: str, value: Any) -> None:
        name = aliases.get(name, name)
        if rest is not None:
            found.setdefault(rest, {})[name] = _plain(value)
        elif name not in by_name:
            known = ", ".join(n for n, a in by_name.items() if not a.internal) or "none"
            faults.append(f"has no argument '{name}' (known: {known})")
        elif name in found:
            faults.append(f"argument '{name}' is given twice")
        else:
            found[name] = value

    for name in operator.attributes:
        if weights is None or name in by_name or name in aliases:
            take(name, attributes.get(name))
        else:
            found.setdefault(weights, {})[name] = attributes.get(name)
    for name, value in operator.params.items():
        if name in literals and name not in found:  # as almost all are
            found[name] = value
            continue
        argument = by_name.get(name)
        if isinstance(value, bool) and isinstance(argument, TensorArgument) and not argument.number:
            # Modules say with a word whether they have a bias; the tensor itself is an attribute.
            if value != (name in operator.attributes):
                has = "is missing" if value else "is there"
                faults.append(f"argument '{name}' is {value}, but the tensor '{name}' {has}")
            continue
        take(name, value)
    positional: list[Operand] = []
    # An expression counts its operands; a keyword is left over from what stood there before.
    keyless = operator.type == "pnnx.Expression"
    for slot, (operand, key) in enumerate(zip(operator.inputs, operator.input_keys, strict=True)):
        if post_slots and slot in post_slots:
            continue
        if key is None or keyless:
            positional.append(operand)
        else:
            take(key, _known(values, operand))
    _place_positional(operator, signature, positional, values, found, faults)

    fields: dict[str, Any] = {}
    wanted: list[TensorSpec] = []
    for name, argument in by_name.items():
        if name not in found:
            if argument.default is REQUIRED:
                faults.append(f"argument '{name}' is missing, expected {argument.expected}")
            else:
                fields[name] = argument.default
            continue
        value = found[name]
        if value is UNKNOWN:
            continue
        if name == signature.variadic:
            fields[name] = value
            continue
        if type(value) not in _LITERALS:
            value = _plain_number(value, argument)
        try:
            fields[name] = argument.convert(value)
        except ShapeError as error:
            faults.append(str(error))
        except (ValueError, OverflowError, TypeError):
            if later := _later_numbers(value, argument):
                wanted += later
                continue
            got = (
                f"the tensor {value}" if isinstance(value, TensorSpec | TensorView) else repr(value)
            )
            faults.append(f"argument '{name}' is {got}, expected {argument.expected}")
    if faults:
        raise OperatorError(f"{operator.label}: " + "; ".join(faults))
    if wanted:
        raise ValuesNeeded(f"{operator.label}: a number is computed while the model runs", wanted)
    return record(**fields)


class _Signature:
    """What follows from the arguments of a record alone.

    Attributes
    ----------
    by_name : dict of str to Argument
        In the order of the record.
    aliases : dict of str to str
        Other names of arguments.
    rest, weights, variadic : str or None
        The argument that takes all other keywords, all other attributes, all inputs.
    literals : frozenset of str
        Arguments that are what the file says, word for word.
    """

    def __init__(self, arguments: Sequence[Argument]) -> None:
        self.by_name = {argument.name: argument for argument in arguments}
        self.aliases = {alias: a.name for a in arguments for alias in a.aliases}
        catching = (a.name for a in arguments if a.catches_all)
        self.rest = next(catching, None)
        self.weights = next((a.name for a in arguments if isinstance(a, _Weights)), None)
        self.variadic = next((a.name for a in arguments if isinstance(a, _Tensors)), None)
        tensors = {a.name for a in arguments if isinstance(a, TensorArgument)}
        plain = self.by_name.keys() - tensors - self.aliases.keys()
        self.literals = frozenset(() if self.rest else plain)


# More than there are records; those of a user's own operators come and go.
_signature = lru_cache(maxsize=2000)(_Signature)

UNKNOWN: Any = object()

# What stands in a file, as almost all values do: no tensors, and nothing that holds any.
_LITERALS = frozenset({bool, int, float, str, tuple, list, type(None)})


def _plain(value: Any) -> Any:
    """Return what a user's function gets for a keyword: Python values and arrays."""
    if isinstance(value, StaticValue):
        return value.value
    if isinstance(value, TensorSpec | TensorView) and value.is_constant:
        return np.asarray(value.constant, value.dtype)
    return value  # a tensor that is computed later stays what it is


def _known(values: Mapping[Operand, Any], operand: Operand) -> Any:
    return values.get(operand, UNKNOWN)


def _is_number(value: Any) -> bool:
    """Tell whether a tensor holds one known number, which may stand where a number is wanted."""
    return isinstance(value, TensorSpec | TensorView) and value.is_constant and value.size == 1


def _place_positional(
    operator: Any, signature: Any, positional: Any, values: Any, found: Any, faults: Any
) -> None:
    """Give the inputs without keyword to the arguments that are still open, in order."""
    if signature.variadic is not None:
        found[signature.variadic] = [_known(values, operand) for operand in positional]
        return
    if not positional:
        return
    still_open = [
        argument
        for name, argument in signature.by_name.items()
        if name not in found and operator.params.get(name) is not False
    ]
    if operator.type.startswith("nn."):
        # A module whose weight is shared carries it as an extra first input as well.
        surplus = len(positional) - sum(
            isinstance(a, TensorArgument) and not a.internal for a in still_open
        )
        if surplus > 0:
            positional = positional[surplus:]
    if not operator.type.startswith("aten::"):
        # A tensor comes first; numbers that were not literal follow in their own order.  What
        # TorchScript left under its own name has all arguments in the order of its schema.
        still_open.sort(key=lambda a: not isinstance(a, TensorArgument))
    for operand in positional:
        if not still_open:
            faults.append(f"takes no further input, but has '{operand.name}'")
            continue
        found[still_open.pop(0).name] = _known(values, operand)


def convert_positional(values: Sequence[Any], arguments: Sequence[Argument]) -> dict[str, Any]:
    """Read the inputs of an operator as arguments in the same order.

    Parameters
    ----------
    values : sequence of (TensorSpec, TensorView or StaticValue)
    arguments : sequence of Argument
        At least as many as values; those at the end that have no value take their default.

    Raises
    ------
    ValueError
        If a value does not fit its argument, or one without default is missing.
    ValuesNeeded
        If the values would fit, but a number among them is computed while the model runs.
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
    """Unwrap a static value, and known tensors of one element where no tensor is wanted."""
    if isinstance(value, StaticValue):
        value = value.value
        if argument.is_numeric and isinstance(value, tuple | list):
            return [item.constant.item() if _is_number(item) else item for item in value]
    if not isinstance(argument, TensorArgument) and _is_number(value):
        return value.constant.item()
    return value


def _later_numbers(value: Any, argument: Argument) -> list[TensorSpec]:
    """Return the tensors of one element that stand for numbers and are not computed yet."""
    items = value if isinstance(value, tuple | list) else (value,)
    later = [
        item
        for item in items
        if isinstance(item, TensorSpec) and not item.is_constant and item.size == 1
    ]
    return later if argument.is_numeric else []


def attribute_spec(attribute: Attribute) -> TensorSpec:
    """Return what planning sees of a weight.

    Half-precision weights are storage only: they count as float32 and are widened where they are
    used, so a weight that is packed is never copied as it is.
    """
    dtype = DTYPES[attribute.dtype].value
    return TensorSpec(attribute.shape, np.float32 if dtype == np.float16 else dtype, attribute)
