"""The values of an ONNX graph while it is translated: known arrays, extents, tensors of a run.

::

    Known   an array, or a weight that is still in the file    folded by numpy
    Size    a number that follows from the shapes of a run     arithmetic becomes an expression
    Ref     a tensor that a run computes                       an operand of the graph

An array of extents is a `Known` of objects, integers and Sizes, with the dtype of the values: numpy
computes shape arithmetic on them, so that none of it reaches the graph.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from kuiper.errors import UnsupportedOperatorError
from kuiper.ir import Attribute, Operand
from kuiper.ir.dtypes import DTYPES

__all__ = ["Known", "Ref", "Size", "Undecided", "Value", "numbers", "product"]


MAX_LENGTH = 5000  # terms of an expression of extents: those that share a term repeat it


class Undecided(UnsupportedOperatorError):
    """The structure of the graph depends on an extent that the file leaves open."""


class Size:
    """A number that the shapes of a run determine: the extent of a tensor, or arithmetic on such.

    Parameters
    ----------
    name : str
        ``"size"``, ``"value"`` or a function of expressions.
    arguments : tuple
        An operand and an axis; a Ref; numbers and Sizes.
    probes : tuple of (int or float), or None
        The value for each trial shape of the inputs, None if it is unknown.
    """

    __slots__ = ("arguments", "length", "name", "probes")

    def __init__(
        self, name: str, arguments: tuple[Any, ...], probes: tuple[Any, ...] | None
    ) -> None:
        self.name, self.arguments, self.probes = name, arguments, probes
        self.length: int = 1 + sum(a.length for a in arguments if isinstance(a, Size))
        if self.length > MAX_LENGTH:
            raise Undecided(
                f"arithmetic on extents has more than {MAX_LENGTH} terms; fix the extents with "
                "shapes={...}"
            )

    @property
    def is_count(self) -> bool:
        """Whether it cannot be negative."""
        if self.name in ("add", "mul", "floor_divide", "max", "min"):
            return all(a.is_count if isinstance(a, Size) else a >= 0 for a in self.arguments)
        return self.name == "size"

    @property
    def is_computed(self) -> bool:
        """Whether it depends on numbers of a tensor, not on extents alone."""
        parts = (a for a in self.arguments if isinstance(a, Size))
        return self.name == "value" or any(part.is_computed for part in parts)

    def text(self, leaves: dict[Any, int]) -> str:
        """Return the expression; `leaves` maps the operands that it reads to their numbers."""
        if self.name in ("size", "value"):
            operand = self.arguments[0]
            read = f"@{leaves.setdefault(operand, len(leaves))}"
            return read if self.name == "value" else f"size({read},{self.arguments[1]})"
        parts = [a.text(leaves) if isinstance(a, Size) else repr(a) for a in self.arguments]
        return f"{self.name}({','.join(parts)})"

    def _same(self, other: Any) -> bool:
        if not isinstance(other, Size) or self.name != other.name:
            return False
        pairs = zip(self.arguments, other.arguments, strict=True)
        return all(a is b or (a._same(b) if isinstance(a, Size) else a == b) for a, b in pairs)

    def __eq__(self, other: object) -> Any:
        if self._same(other):
            return True
        if isinstance(other, int | float) and other < 0 and self.is_count:
            return False
        raise _undecided(self, "==", other)

    def __ne__(self, other: object) -> Any:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        if isinstance(other, int | float) and other <= 0 and self.is_count:
            return False
        raise _undecided(self, "<", other)

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __gt__(self, other: Any) -> bool:
        if isinstance(other, int | float) and other < 0 and self.is_count:
            return True
        raise _undecided(self, ">", other)

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __bool__(self) -> bool:
        raise _undecided(self, "!=", 0)

    def __hash__(self) -> int:
        return hash(self.name)

    def __add__(self, other: Any) -> Any:
        return self if _is(other, 0) else _call("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self if _is(other, 0) else _call("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self if _is(other, 0) else _call("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _call("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return self if _is(other, 1) else 0 if _is(other, 0) else _call("mul", self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return self if _is(other, 1) else _call("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _call("floor_divide", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _call("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _call("div", other, self)

    def __mod__(self, other: Any) -> Any:
        return _call("remainder", self, other)

    def __rmod__(self, other: Any) -> Any:
        return _call("remainder", other, self)

    def __pow__(self, other: Any) -> Any:
        return _call("pow", self, other)

    def __neg__(self) -> Any:
        return _call("neg", self)

    def __abs__(self) -> Any:
        return self if self.is_count else _call("abs", self)

    def __repr__(self) -> str:
        return self.text({})

    def apply(self, name: str, *others: Any) -> Size:
        """Return another function of it and of numbers."""
        return _call(name, self, *others)


def _is(value: Any, number: int) -> bool:
    return isinstance(value, int) and value == number


def _undecided(size: Size, relation: str, other: object) -> Undecided:
    return Undecided(
        f"depends on {size!r} {relation} {other!r}, which the file leaves open; fix the extents "
        "with shapes={...}"
    )


_MEANING: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "pow": operator.pow,
    "neg": operator.neg, "abs": abs, "max": max, "min": min, "floor": math.floor,
    "ceil": math.ceil, "round": round, "int": int, "trunc": math.trunc, "sqrt": math.sqrt,
    "float": float,
}  # fmt: skip


def _call(name: str, *arguments: Any) -> Size:
    plain = tuple(a.item() if isinstance(a, np.generic) else a for a in arguments)
    parts = [a.probes if isinstance(a, Size) else a for a in plain]
    probes: tuple[Any, ...] | None = None
    count = max((len(p) for p in parts if isinstance(p, tuple)), default=0)
    if None not in parts and count:
        try:
            probes = tuple(
                _MEANING[name](*(p[i] if isinstance(p, tuple) else p for p in parts))
                for i in range(count)
            )
        except (ArithmeticError, ValueError):
            probes = None
    return Size(name, plain, probes)


class Known:
    """An array that the file determines, or whose elements follow from the shapes of a run.

    Parameters
    ----------
    value : numpy.ndarray or Attribute
        An attribute is read when numpy needs its elements.
    dtype : numpy.dtype, optional
        Of an array of objects.
    """

    __slots__ = ("_array", "attribute", "dtype", "operand", "shape")

    def __init__(self, value: np.ndarray | Attribute, dtype: Any = None) -> None:
        self.operand: Operand | None = None  # of the constant that holds it in the graph
        self.attribute: Attribute | None = None
        self._array: np.ndarray | None = None
        self.shape: tuple[int, ...] = value.shape
        if isinstance(value, Attribute):
            self.attribute = value
            found = DTYPES[value.dtype].value
        else:
            self._array, found = value, value.dtype
        # Half precision is a storage format: computations are those of float32.
        self.dtype = np.dtype(
            np.float32 if found == np.float16 else found if dtype is None else dtype
        )

    @property
    def array(self) -> np.ndarray:
        """The elements, read from the file if need be."""
        if self._array is None:
            assert self.attribute is not None
            array = self.attribute.numpy()
            self._array = array.astype(np.float32) if array.dtype == np.float16 else array
        return self._array

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_open(self) -> bool:
        """Whether Sizes are among the elements."""
        return self.attribute is None and self.array.dtype == object


class Ref:
    """A tensor that a run computes.

    Attributes
    ----------
    operand : Operand
    dtype : numpy.dtype
        Of the values; float32 for half precision.
    shape : tuple of (int or None), or None
        None for open extents; None alone for an unknown rank.
    probes : tuple of tuple of int, or None
        The shape for each trial shape of the inputs.
    """

    __slots__ = ("dtype", "operand", "probes", "shape")

    def __init__(
        self, operand: Operand, dtype: Any, shape: Any, probes: tuple[Any, ...] | None = None
    ) -> None:
        self.operand, self.dtype, self.probes = operand, np.dtype(dtype), probes
        self.shape: tuple[int | None, ...] | None = shape

    @property
    def rank(self) -> int:
        """Number of axes; an error if it is unknown."""
        if self.shape is None:
            raise Undecided(
                f"needs the rank of '{self.operand.name}', which the file leaves open; fix the "
                "extents with shapes={...}"
            )
        return len(self.shape)

    def extent(self, axis: int) -> Any:
        """Return an extent: an int, or a Size if it is open."""
        rank = self.rank
        axis = axis + rank if axis < 0 else axis
        assert self.shape is not None
        found = self.shape[axis]
        if found is not None:
            return found
        probes = None if self.probes is None else tuple(shape[axis] for shape in self.probes)
        return Size("size", (self.operand, axis), probes)

    def extents(self) -> list[Any]:
        """Return all extents."""
        return [self.extent(axis) for axis in range(self.rank)]


Value = Known | Ref | None


def numbers(value: Any) -> list[Any]:
    """Return the elements of a known array as Python numbers and Sizes."""
    return list(value.array.reshape(-1).tolist())


def product(items: Iterable[Any]) -> Any:
    """Return the product of numbers and Sizes."""
    result: Any = 1
    for item in items:
        result = result * item
    return result


def merged(shapes: Sequence[Sequence[int]]) -> tuple[int | None, ...] | None:
    """Return the extents on which shapes agree, None elsewhere; None if their ranks differ."""
    if len({len(shape) for shape in shapes}) != 1:
        return None
    return tuple(n[0] if len(set(n)) == 1 else None for n in zip(*shapes, strict=True))
