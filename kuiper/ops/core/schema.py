"""Typed arguments of operator records.

A record lists its arguments once; :func:`kuiper.ops.core.resolve.resolve` collects them.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeAlias

import numpy as np

from kuiper.errors import ShapeError
from kuiper.ir import Attribute
from kuiper.ir.dtypes import DTYPES, from_scalar_type, from_torch
from kuiper.ir.view import TensorSpec, TensorView

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
    "TensorsArgument",
    "ValuesNeeded",
    "Weights",
    "WeightsArgument",
    "convert_positional",
    "field",
    "later_numbers",
    "plain_number",
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


class TensorsArgument(Argument):
    """All remaining positional inputs, as a list."""

    expected = "one or more tensors"


class WeightsArgument(Argument):
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


AnyArgument, Tensor, Tensors = field(Argument), field(TensorArgument), field(TensorsArgument)
Weights, TensorList = field(WeightsArgument), field(_TensorList)
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
    if isinstance(value, str) and "_" not in value:  # Python reads '1_0' as 10
        return float(value)  # files spell 'inf', '-inf' and 'nan' as words
    raise ValueError


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
            value = plain_number(values[position], argument)
            try:
                result[argument.name] = argument.convert(value)
            except (ValueError, TypeError):
                wanted += later_numbers(value, argument)
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


def plain_number(value: Any, argument: Argument) -> Any:
    """Unwrap a static value, and known tensors of one element unless a tensor is declared."""
    if isinstance(value, StaticValue):
        value = value.value
        if argument.is_numeric and isinstance(value, tuple | list):
            return [item.constant.item() if _is_number(item) else item for item in value]
    if not isinstance(argument, TensorArgument) and _is_number(value):
        return value.constant.item()
    return value


def later_numbers(value: Any, argument: Argument) -> list[TensorSpec]:
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
